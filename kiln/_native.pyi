"""Types of the native module (kiln/native/*.cpp). `import torch` must come before it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

Entry = tuple[Callable[..., Any] | None, Callable[..., Any]] | tuple[Any, ...]

class Dispatcher:
    """What `kiln.compile(function)` returns: a callable that runs the first entry whose check holds.

    A call tries the entries in order. `check(*args, **kwargs)` decides, `run(*args, **kwargs)` is the result; both get
    the caller's arguments as they are. A check that answers with a tuple says yes, and `run(tuple, *args, **kwargs)` is
    the result: what the check has read need not be read again. A check that raises an Exception says no. An entry
    `(None, run)` takes every call. An entry that hits moves to the front (never one without a check). An entry may
    carry more items after `run`. When no entry applies, the result is `miss(dispatcher, args_tuple, kwargs_dict)`.

    When the function's `__code__`, `__defaults__` or `__kwdefaults__` was replaced since the last `sync()` (or the
    construction), the next call empties `entries` in place, syncs, calls `changed(dispatcher)` if set, and misses.

    Otherwise it is like its function: it binds as a method, passes unknown attributes on to it, pickles by name, and
    copies as it does (a deep copy of a compiled bound method is a new dispatcher without entries).
    """

    entries: list[Entry]
    enabled: bool
    miss: Callable[[Dispatcher, tuple[Any, ...], dict[str, Any]], Any]
    changed: Callable[[Dispatcher], Any] | None
    @property
    def function(self) -> Callable[..., Any]: ...
    @property
    def __wrapped__(self) -> Callable[..., Any]: ...
    def __init__(
        self, function: Callable[..., Any], miss: Callable[[Dispatcher, tuple[Any, ...], dict[str, Any]], Any]
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: Any, owner: type | None = None, /) -> Any: ...
    def __getattr__(self, name: str) -> Any: ...
    def sync(self) -> None:
        """Take the function as it is now for the one the entries were made from."""

class TensorCheck:
    """`TensorCheck([(tensor, dynamic_dims, check_strides), ...])`, then `check(*tensors)`: are these like those?

    Compared are the exact Python type, dtype, device, layout, requires_grad, the dispatch keys (so also conjugate and
    negative bits and whether it is an inference tensor), rank, sizes except where `dynamic_dims` lets them vary, and
    strides if asked. Where some size may vary, a stride that was the product of the size and stride of the dimension
    inside it is compared with that product as it is now: "contiguous" stays contiguous for any size.

    Tensors without strides have none compared. Tensors whose sizes cannot be read (nested ones) never match. Symbolic
    sizes count as dynamic. No tensor is kept alive.
    """

    def __init__(self, descriptions: Sequence[tuple[torch.Tensor, Sequence[bool] | None, bool]]) -> None: ...
    def __call__(self, *tensors: Any) -> bool: ...
    def __len__(self) -> int: ...
    def reason(self, names: Sequence[str], /, *tensors: Any) -> str | None:
        """The first difference, as in "L['x'] size 0: 4 expected, 5 seen"."""
    def mismatches(self, *tensors: Any) -> list[tuple[int, int]]:
        """(tensor index, dimension) of sizes that differ, of tensors of which only sizes and strides differ."""

class GlobalState:
    """A snapshot of the settings of torch, global and of this thread, that change what a program does.

    Grad and inference mode, autocast, deterministic algorithms, default dtype, number of torch function and dispatch
    modes, the number of threads, float32 precision of matrix products, thread-local dispatch keys (so also functorch
    transforms). Take it before tracing pushes modes of its own.
    """

    def check(self) -> bool:
        """Is everything as it was?"""
    def reason(self) -> str | None:
        """The first difference, as in "grad mode: enabled expected, disabled seen"."""
    def restore(self) -> None:
        """Put back grad mode, autocast, the deterministic setting and the default dtype; the rest is left alone."""

MISSING: object
"""In an ItemsCheck: the key must be absent."""

class ItemsCheck:
    """`ItemsCheck([(dictionary, key, expected), ...])`, then `check()`: is each of these still that very object?

    Compared is identity. Where `MISSING` is expected the key must be absent. What a subclass of dict makes of a lookup
    does not count. A key that raises an Exception when compared says no. Dictionaries, keys and objects are kept alive.
    Without items it holds (and is false as a truth value, as every empty sequence is).
    """

    def __init__(self, items: Sequence[tuple[dict[Any, Any], Any, Any]]) -> None: ...
    def __call__(self) -> bool: ...
    def __len__(self) -> int: ...
    def reason(self) -> str | None:
        """The first difference, as in "module['name'] is 1; 2 seen", or "G" for a dictionary without `__name__`."""

class ClassCheck:
    """`ClassCheck([(cls, version), ...])`, then `check()`: has each class still this `type_version`?

    The version 0, which says that there was none to give, never holds. The classes are kept alive.
    """

    def __init__(self, classes: Sequence[tuple[type, int]]) -> None: ...
    def __call__(self) -> bool: ...

class CodeCheck:
    """`CodeCheck([(function, code), ...])`, then `check()`: has each function still this `__code__`?

    The functions and their code are kept alive.
    """

    def __init__(self, functions: Sequence[tuple[Any, Any]]) -> None: ...
    def __call__(self) -> bool: ...

def distinct(*objects: object) -> bool:
    """Is no object given twice?"""

def is_instance(value: object, kinds: Any, /) -> bool:
    """`isinstance` by type alone: the value is not asked for its `__class__`, which may be code of the program."""

def type_version(cls: type, /) -> int:
    """A number that changes with every change to the class or its bases; 0 when it has none to give."""

def set_disabled(flag: bool, /) -> bool:
    """Make every dispatcher call its original function, in this thread; returns the flag as it was."""

def is_disabled() -> bool:
    """Is the flag of `set_disabled` set in this thread?"""

class GuardProgram:
    """`program(*roots)` gives the tuple of inputs, or False if an assumption does not hold.

    Registers are numbered: the roots, then the constants, then what steps fill. A step is `(op, register, number,
    what)`: `("table", r, -1, (of_attributes, facts))` about the dictionary in r, or the attributes of the object in r;
    `("type", r, -1, cls)`, `("empty" | "full", r, -1, None)`, `("length", r, n, None)`, `("element", r, index, target)`
    of a list or tuple, `("cell", r, -1, target)`, `("is" | "is_not" | "equals", r, -1, object)`,
    `("code", r, -1, code)`, `("same" | "not_same", r, other, None)`. A fact is `(op, key, what)`: `("read", key,
    target)`, `("absent" | "present", key, None)`, `("is" | "is_not" | "equals", key, object)`, `("keys", "", tuple)`.

    Then the registers in `distinct` must hold different objects, and those in `tensors` fit `tensor_check`. Constants
    that are no str, int or float are compared by `same_constant`. Steps ask for nothing that others must have checked.
    """

    def __init__(
        self,
        registers: int,
        roots: int,
        constants: list[Any],
        steps: list[tuple[str, int, int, Any]],
        inputs: list[int],
        distinct: list[int],
        tensors: list[int],
        tensor_check: TensorCheck | None,
        same_constant: Callable[[Any, Any], bool],
    ) -> None: ...
    def __call__(self, *roots: Any) -> tuple[Any, ...] | bool: ...

class GradNode:
    """One compiled backward in autograd's graph, while it is being built; ``tensor.grad_fn`` is a ``KilnBackward``.

    ``following`` says where gradients go: to a tensor's gradient edge (nowhere if it requires none), to another
    node's k-th gradient by ``(node, k)``, or nowhere (None). ``inputs`` are the inputs of the graph, held without
    their history to run it again: a tensor changed in the meantime is eager's version error then. ``context`` is
    handed to the callables. Then the outputs, in the order of the gradients, and at the end what backward needs,
    once.

    The engine calls ``backward(defined, needed, saved, gradients, context)``: two ints, bit i for the i-th gradient
    that is there or wanted; a list of the saved tensors, and one of the gradients (None where undefined), which the
    callee may empty, since nobody else holds them unless the graph is retained. The result has a tensor or None for
    each of ``following``. While a graph of the backward is made (``create_graph=True``), and where ``backward`` gave
    NotImplemented, ``higher(defined, needed, inputs, gradients, context)`` is called instead, with a list of the
    inputs that lead to the real ones in autograd's graph.

    Saved tensors are autograd's own: default hooks pack them, changes in place are noticed, a second backward is
    eager's error. They are freed together with the context and the inputs, before ``backward`` is called unless the
    graph is retained. A node that saved nothing frees nothing and can run again.
    """

    def __new__(
        cls,
        name: str,
        backward: Callable[[int, int, list[Any], list[Any], Any], Any],
        higher: Callable[[int, int, list[Any], list[Any], Any], Any],
        context: Any,
        inputs: tuple[Any, ...],
        following: tuple[torch.Tensor | tuple[Any, int] | None, ...],
        /,
    ) -> GradNode: ...
    @property
    def grad_fn(self) -> Any:
        """The node as torch shows it."""
    def output(self, tensor: torch.Tensor, /) -> int:
        """A fresh tensor gets this node as history; the number of its gradient."""
    def outputs(self, *tensors: torch.Tensor | None) -> None:
        """Each as by ``output``, or ``output_none`` for None."""
    def output_none(self) -> int:
        """A number for an output that has no gradient."""
    def replaced(self, tensor: torch.Tensor, /) -> int:
        """Like ``output`` for a tensor that was changed in place; a view's base gets the history, as in eager."""
    def hidden(self, *like: Any) -> int:
        """``hidden(tensor)`` or ``hidden(sizes, dtype, device)``: a gradient that no tensor stands for."""
    def save(self, *tensors: torch.Tensor | None) -> None: ...

def bump_version(tensor: torch.Tensor, times: int, /) -> None:
    """As if the tensor had been changed in place so often."""

def with_history_of(value: torch.Tensor, origin: torch.Tensor | tuple[Any, int] | None, /) -> torch.Tensor:
    """The data and version counter of one tensor with the gradient edge of another (as in ``following``)."""

def shared_storages(*tensors: Any) -> tuple[int, ...]:
    """For each the place of the first with the same storage; its own for what is no tensor or has no storage."""

class OperatorProgram:
    """`program(list)` runs a graph of operators without Python between them and gives a tuple; the list is emptied.

    Registers are numbered: the inputs, then results. A step is ``(target, arguments, results)``: an operator ``(name,
    overload)``, with a description for each argument of its schema (None for the default); or a callable; or a number,
    which takes an item of a list. A description is a register's number, a constant in a tuple of one, or a list of
    descriptions. Values die at their last use. Autocast is off while it runs, as the graph was recorded below it.

    If an input is a tensor of a class of its own, or modes want to see functions of torch, ``otherwise(list)`` runs.
    """

    def __init__(
        self,
        inputs: int,
        registers: int,
        steps: list[tuple[Any, tuple[Any, ...], tuple[int, ...]]],
        outputs: list[Any],
        otherwise: Callable[[list[Any]], Any],
        /,
    ) -> None: ...
    def __call__(self, arguments: list[Any], /) -> tuple[Any, ...]: ...

def cut_edges(tensors: list[torch.Tensor], edges: list[tuple[Any, int, Any, int]], /) -> tuple[list[Any], Any]:
    """Of the graph behind tensors: edges (consumer, index, node, number) end in nodes of their own; gives those, and
    what `mend_edges` takes to undo it."""

def mend_edges(cuts: Any, links: list[tuple[Any, int, torch.Tensor]], /) -> None:
    """Undo `cut_edges`; edges to (node, number) lead to the tensor's place instead."""

def link_tensor(tensor: torch.Tensor, index: int, /) -> None:
    """While a node runs: the tensor's gradients go where the node's index-th ones go."""

def lead_to_running(tensors: list[Any], places: list[tuple[Any, int, int]], /) -> None:
    """While a node runs: edges behind the tensors that lead to (node, number) lead to its index-th output instead."""

def shares_memory(changed: tuple[Any, ...], others: tuple[Any, ...], /) -> bool:
    """Whether one of the changed tensors shares its storage with another tensor of either."""
