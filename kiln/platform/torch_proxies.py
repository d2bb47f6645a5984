"""torch's own tracer to fx graphs (``make_fx``), which may be active around Kiln. Known for torch 2.11 to 2.15."""

from __future__ import annotations

from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, get_proxy_mode, track_tensor_tree

__all__ = ["disable_proxy_modes_tracing", "get_proxy_mode", "track_tensor_tree"]
