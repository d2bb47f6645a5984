"""Printing of artefacts that ``KILN_LOG`` or ``kiln.config.log`` asks for."""

from __future__ import annotations

import sys


def log(artefact: str, text: str) -> None:
    print(f"[kiln {artefact}] {text}", file=sys.stderr)
