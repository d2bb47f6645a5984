"""functorch's transforms: ``torch.func.grad``, ``vmap`` and others. Known for torch 2.11 to 2.13.

Without one of the functions, importing this module fails.
"""

from __future__ import annotations

import torch

are_transforms_active = torch._C._are_functorch_transforms_active
innermost_transform = torch._C._functorch.peek_interpreter_stack
"""The transform that operations go to first, None outside."""
is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
