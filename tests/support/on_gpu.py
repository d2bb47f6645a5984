"""A plugin for pytest: tensors that name no device are on the GPU: ``pytest -p tests.support.on_gpu tests/aot``.

Tests that are about the CPU fail under it; it is for looking at what else does.
"""

import warnings

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    # Not torch.set_default_device: that is a mode, under which compiled programs run operator by operator.
    torch.set_default_tensor_type("torch.cuda.FloatTensor")
