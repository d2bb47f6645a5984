"""The lowerings of ATen operators, by family; importing this fills the table of registry.py."""

from .movement import (  # noqa: F401
    concatenation,
    embedding_bag,
    gather,
    padding,
    scatter,
    upsampling,
    view_operators,
)
from .pointwise import (  # noqa: F401
    activations,
    copies,
    creation,
    elementwise,
    optimizers,
    pointwise_losses,
    random_numbers,
    special_functions,
)
from .reductions import (  # noqa: F401
    attention,
    basic,
    batch_norm,
    cumulative,
    matrix_products,
    max_pooling,
    nll_loss,
    normalization,
    pooling,
    softmax,
    statistics,
)
