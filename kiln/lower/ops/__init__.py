"""The lowerings of ATen operators, by family; importing this fills the table of registry.py."""

from . import (  # noqa: F401
    activations,
    attention,
    batch_norm,
    copies,
    creation,
    elementwise,
    indexing,
    joining,
    losses,
    mathematics,
    normalization,
    optimizers,
    padding,
    pointwise_losses,
    reductions,
    resampling,
    scatter,
    shapes,
    softmax,
    statistics,
)
