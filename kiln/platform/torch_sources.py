"""torch's names for where values come from, which shape environments ask for. Known for torch 2.11 to 2.13."""

from __future__ import annotations

from torch._guards import ChainedSource, GuardSource, Source

__all__ = ["ChainedSource", "GuardSource", "Source"]
