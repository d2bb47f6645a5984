"""``with torch.device(...)``: the mode behind it. Known for torch 2.11 to 2.13.

Importing it loads ``torch.utils._device``, which importing torch does not.
"""

from __future__ import annotations

from torch.utils._device import DeviceContext
from torch.utils._device import _device_constructors as device_constructors

__all__ = ["DeviceContext", "device_constructors"]  # the functions that such a mode gives a device
