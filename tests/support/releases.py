"""What releases of torch cannot do."""

from __future__ import annotations

import torch

RELEASE = tuple(int(part) for part in torch.__version__.split(".")[:2])
# Torch 2.11 reads sizes as numbers where recurrent networks and max_pool1d are taken apart: they compile for each size.
SIZES_STAY_DYNAMIC = RELEASE >= (2, 12)
