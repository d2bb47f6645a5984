"""Operations of the interpreter for the layers below the one that defines them.

Calling a function may read an attribute, which may call a function: the operations of an interpreter are mutually
recursive, and its files would import each other in a circle. Each file imports downwards only; an operation that is
defined further up is reached through `operations`. The file that defines it registers it with ``@operation``.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    import torch
    import torch.fx

    from ..._native import Dispatcher
    from ...bytecode import Instruction
    from ..guards.source import Source
    from ..interpreter.frame import Frame
    from ..interpreter.generators import InterpretedGenerator
    from ..writeback.rebuild import Rebuilder
    from .trace import Trace
    from .values import TensorInfo, TensorSuper

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])
Args = tuple[Any, ...]
"""Positional arguments of a call in the program."""
Kwargs = dict[str, Any]
"""Keyword arguments of a call in the program."""
FunctionHandler = Callable[["Trace", types.FunctionType, Args, Kwargs], "tuple[object] | None"]
"""Does what a call of a Python function means; gives the result in a tuple, or None to interpret the function."""


class Operations:
    """The registered operations, by name. ``Any`` is a value of the program."""

    # shadows
    force: Callable[[Trace, object], Any]
    wrap: Callable[[Trace, object, Source], Any]
    wrap_identity: Callable[[Trace, object, Source], Any]
    wrap_number: Callable[[Trace, int | float, Source], Any]
    wrap_tensor: Callable[[Trace, torch.Tensor, Source], Any]
    name_copy: Callable[[Trace, object, Source, object], Any]
    add_placeholder: Callable[[Trace, Source], torch.fx.Node]
    back_from_native: Callable[[], AbstractContextManager[None]]
    unproxy: Callable[[object], Any]
    prepare_hashing: Callable[[Trace, Args], None]
    hashed_in_python: Callable[[object], bool]
    # calls
    call: Callable[[Trace, object, Args, Kwargs], Any]
    bind_arguments: Callable[[Trace, Any, Args, Kwargs], dict[str, Any]]
    run_function: Callable[[Trace, Any, dict[str, Any]], Any]
    make_generator: Callable[[Frame], InterpretedGenerator]
    handler_for: Callable[[types.FunctionType], FunctionHandler | None]
    is_enum_lookup: Callable[[Trace, type, Args, Kwargs], bool]
    run_uninterpreted: Callable[[Trace, object, Args, Kwargs], Any]
    # attributes, items, operators
    load_or_default: Callable[[Trace, object, str, object], Any]
    load_namespace: Callable[[Trace, object], Any]
    name_class_value: Callable[[Trace, type, str, object], None]
    get_item: Callable[[Trace, object, object], Any]
    consume: Callable[[Trace, object], Iterator[Any]]
    plain_mapping: Callable[[Trace, object], dict[str, object]]
    compare: Callable[[Trace, str, object, object], Any]
    percent: Callable[[Trace, object, object], Any]
    branch: Callable[[Frame, Instruction, object], bool]
    branch_ahead: Callable[[Frame, object], bool]
    # tensors
    is_operation: Callable[[Trace, object, Args, Kwargs], bool]
    call_torch: Callable[[Trace, object, Args, Kwargs], Any]
    is_overriding: Callable[[type], bool]
    operator_override: Callable[[Trace, object, Args], tuple[Any] | None]
    attribute_override: Callable[[Trace, torch.Tensor, object], tuple[Any] | None]
    tensor_attribute: Callable[[Trace, torch.Tensor, str], Any]
    python_attribute: Callable[[Trace, TensorInfo, str], Any]
    set_tensor_attribute: Callable[[Trace, torch.Tensor, str, object], None]
    load_own: Callable[[Trace, TensorInfo, str], tuple[Any] | None]
    tensor_super: Callable[[Trace, type, torch.Tensor], TensorSuper]
    check_input: Callable[[Trace, type], None]
    check_operator: Callable[[Trace, object, Args], None]
    check_method: Callable[[Trace, torch.Tensor, str], None]
    # autograd
    call_apply: Callable[[Trace, type, Args, Kwargs], Any]
    load_grad_fn: Callable[[Trace, TensorInfo], Any]
    load_from_node: Callable[[Trace, object, str], Any]
    # effects and dispatch
    miss: Callable[[Dispatcher, Args, Kwargs], Any]
    write_under_locks: Callable[[Rebuilder, Trace], None]
    log_line: Callable[[logging.Logger, int, object, Args, tuple[str, int, str]], None]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(f"no operation {name!r}: the file that defines it has not been imported")


operations = Operations()


def operation(function: AnyFunction) -> AnyFunction:
    """Register a function as the operation of its name."""
    if function.__name__ in vars(operations):
        raise ValueError(f"the operation {function.__name__!r} is registered twice")
    setattr(operations, function.__name__, function)
    return function
