"""The lowerings of ATen operators, by family; importing this fills the table of registry.py."""

from . import activations, copies, creation, elementwise, mathematics, pointwise_losses  # noqa: F401
from . import batch_norm, losses, normalization, reductions, softmax, statistics  # noqa: F401
from . import indexing, joining, padding, scatter, shapes  # noqa: F401
