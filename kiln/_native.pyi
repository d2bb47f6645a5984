"""Types of the native module (kiln/native, see docs/native.md). `import torch` must come before it."""

import types
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import torch
from typing_extensions import TypeIs

_A = TypeVar("_A")
_B = TypeVar("_B")
_C = TypeVar("_C")
_D = TypeVar("_D")

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
    def function(self) -> Any: ...  # a types.FunctionType, which checkers take for a method
    @property
    def __wrapped__(self) -> types.FunctionType: ...
    def __init__(
        self, function: types.FunctionType, miss: Callable[[Dispatcher, tuple[Any, ...], dict[str, Any]], Any]
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

def call_watched(watcher: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> Any:
    """`function(*args, **kwargs)`; the watcher is told of Python functions that are entered; they raise what it raises.

    On CPython 3.11 it is called with the frame of each, as a profile function is (`sys.getprofile()` gives it); from
    3.12 on with the code, the globals and the positional arguments of those that the call enters itself.
    """

def watch_entered(watcher: Any, /) -> None:
    """Let a watcher look on, as in `call_watched`, until `sys.setprofile(None)`. Only on CPython 3.11."""

def distinct(*objects: object) -> bool:
    """Is no object given twice?"""

def has_keys(mapping: object, keys: tuple[Any, ...], /) -> bool:
    """Is it a dict whose keys are just these very objects, in this order? Runs no Python."""

@overload
def is_instance(value: object, kinds: type[_A], /) -> TypeIs[_A]:
    """`isinstance` by type alone: the value is not asked for its `__class__`, which may be code of the program."""

@overload
def is_instance(value: object, kinds: tuple[type[_A], type[_B]], /) -> TypeIs[_A | _B]: ...
@overload
def is_instance(value: object, kinds: tuple[type[_A], type[_B], type[_C]], /) -> TypeIs[_A | _B | _C]: ...
@overload
def is_instance(
    value: object, kinds: tuple[type[_A], type[_B], type[_C], type[_D]], /
) -> TypeIs[_A | _B | _C | _D]: ...
@overload
def is_instance(value: object, kinds: Any, /) -> bool: ...
def type_name(cls: type, /) -> str:
    """The name of a class in CPython's messages; classes written in C may have one with a dot."""

def has_node_creation_hooks() -> bool:
    """Whether new nodes of this thread are given to hooks: `torch.autograd.graph.node_creation_hook`."""

def type_version(cls: type, /) -> int:
    """A number that changes with every change to the class or its bases; 0 when it has none to give."""

def set_disabled(flag: bool, /) -> bool:
    """Make every dispatcher call its original function, in this thread; returns the flag as it was."""

def is_disabled() -> bool:
    """Is the flag of `set_disabled` set in this thread?"""

TORCH_VERSION: str
"""The release of torch that the module was compiled for."""

def knows_dictionary_keys() -> bool:
    """Whether it is known which dictionaries have keys of str alone, so that looking one up runs no Python."""

def distrust_dictionary_keys() -> None:
    """From now on each lookup counts as one that may run Python."""

def has_openmp() -> bool:
    """Whether torch's OpenMP library was found, so that kernels run on its threads."""

def refuse_walks(reason: str | None, /) -> None:
    """Refuse each walk from now on, for this reason, so that torch's engine runs the pass; None: no more."""

class GuardProgram:
    """`program(*roots)` gives the tuple of inputs, or False if an assumption does not hold.

    Registers are numbered: the roots, then the constants, then what steps fill. A step is `(op, register, number,
    what)`: `("table", r, -1, (of_attributes, facts))` about the dictionary in r, or the attributes of the object in r;
    `("type", r, -1, cls)`, `("empty" | "full", r, -1, None)`, `("length", r, n, None)`, `("element", r, index, target)`
    of a list or tuple, `("cell" | "gradient", r, -1, target)`, `("is" | "is_not" | "equals", r, -1, object)`,
    `("code", r, -1, code)`, `("same" | "not_same", r, other, None)`. A fact is `(op, key, what)`: `("read", key,
    target)`, `("absent" | "present", key, None)`, `("is" | "is_not" | "equals", key, object)`, `("keys", "", tuple)`,
    in which an Ellipsis stands for any key, `("key_at" | "value_at", place, target)` of an entry by its place in order.

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

def bump_versions(tensors: tuple[torch.Tensor, ...], times: tuple[int, ...], /) -> None:
    """The same for each tensor and its number."""

def set_contents(tensors: tuple[torch.Tensor, ...], contents: tuple[torch.Tensor, ...], /) -> None:
    """What each tensor holds from now on, as `tensor.data.copy_(content)` does it: no version is counted, and modes see
    the copies. Small tensors on the CPU are moved at once, those on a GPU are copied together."""

def with_history_of(value: torch.Tensor, origin: torch.Tensor | tuple[Any, int] | None, /) -> torch.Tensor:
    """The data and version counter of one tensor with the gradient edge of another (as in ``following``)."""

def shared_storages(*tensors: Any) -> tuple[int, ...]:
    """For each the place of the first with the same storage; its own for what is no tensor or has no storage."""

class OperatorProgram:
    """`program(list)` runs steps without Python between them and gives a tuple; the list is emptied.

    Registers are numbered: the inputs, then results. A step is ``(target, arguments, results[, layouts])``: an operator
    ``(name, overload)``, with a description for each argument of its schema (None for the default); or a callable; or a
    number, which takes an item of a list. A description is a register's number, a constant in a tuple of one, or a list
    of descriptions. Results that do not have the layout ``(dtype, sizes, strides)`` given for them are copied into it.
    Other steps are ``("allocate", register, layout, donor)``, where the donor's memory is taken if nobody else holds it
    (-1 for none), ``("view", register, source, layout, offset)``, and ``("launch", name, launch, ...)``. A launch is
    ``(address, ((source, offset in bytes, whether an input is written), ...), sizes, (units, work), whether one thread
    does it)`` and calls ``void(void**, int64_t*, int64_t start, int64_t end)`` for runs of its units: threads share the
    work, in picoseconds, of all launches of a step. ``("cuda_launch", name, function, pointers, sizes, blocks, threads,
    bytes of shared memory)`` is one kernel on a GPU. Values die at their last use.
    Autocast is off while it runs, as the graph was recorded below it.

    Sizes are ints, or in a tuple of one the place of an instruction, ``(operation, first, second)``: see
    kiln/codegen/size_instructions.py. ``checks`` are pairs of inputs and layouts that they must have; ``exposed`` are
    pairs of an instruction and a register that its number is put into. Attributes can be set.

    ``device`` is the index of the GPU whose memory the program allocates and whose kernels it launches (-1: the CPU). A
    ``launcher`` is the address of cuLaunchKernel, a function that gives the stream of a device's index, asked once a
    call, and one that takes a kernel's name, the driver's error and the device's index when a launch fails: it raises,
    or returns for the launch to be tried once more. A layout may have an alignment in bytes as its fourth part.

    If an input is a tensor of a class of its own or not as it must be, or modes want to see functions of torch,
    ``otherwise(list)`` runs.
    """

    _boxed_call: bool
    name: str  # of its range in torch's profiler; "" for none
    code: Any  # where set: what holds the machine code
    written_inputs: frozenset[int]  # where set: results that are inputs, with their new contents
    work_steps: int  # where set: how many launches and calls it has

    def __init__(
        self,
        inputs: int,
        registers: int,
        steps: list[tuple[Any, ...]],
        outputs: list[Any],
        otherwise: Callable[[list[Any]], Any],
        instructions: list[tuple[str, int, int]] = ...,
        checks: list[tuple[int, tuple[Any, ...] | None]] = ...,
        exposed: list[tuple[int, int]] = ...,
        device: int = ...,
        launcher: tuple[int, Callable[[int], int], Callable[[str, int, int], None]] = ...,
        /,
    ) -> None: ...
    def __call__(self, arguments: list[Any], /) -> tuple[Any, ...]: ...

class RecordedMemory:
    """The results of recordings that share memory for their intermediate values, in the order of recording.

    A recording may overwrite results of later ones: these lie where its intermediate values are.
    """

    def count_used(self) -> int:
        """How many storages of results somebody uses."""

class RecordedCall:
    """`recording(arguments)` runs a recorded program and gives its results in a tuple; the list is emptied.

    It gives None, and does nothing, where the recording does not fit the arguments or somebody still uses results that
    it would overwrite. ``arguments`` and ``results`` are those that the program was recorded with. An argument whose
    place is in ``copied`` is copied to the recorded one; others must be at the recorded address. Results in
    ``given_out`` are copies of the recording's memory, the others are tensors over it. ``replay()`` runs the recording.
    """

    def __init__(
        self,
        arguments: list[Any],
        copied: frozenset[int],
        results: tuple[Any, ...],
        given_out: frozenset[int],
        replay: Callable[[], object],
        memory: RecordedMemory,
        /,
    ) -> None: ...
    def __call__(self, arguments: list[Any], /) -> tuple[Any, ...] | None: ...
    def is_alike(self, arguments: list[Any], /) -> bool:
        """Whether arguments are like the recorded ones in all but addresses."""
    def moved(self, arguments: list[Any], /) -> list[int]:
        """Of arguments that are alike, the places of those at other addresses than the recorded ones."""
    def is_free(self) -> bool:
        """Whether nobody uses memory that the recording writes."""
    def is_intact(self) -> bool:
        """Whether the memory of its results is where it was."""

def any_modes() -> bool:
    """Whether modes want to see this thread's functions or operators."""

def cut_edges(tensors: list[torch.Tensor], edges: list[tuple[Any, int, Any, int]], /) -> tuple[list[Any], Any]:
    """Of the graph behind tensors: edges (consumer, index, node, number) end in nodes of their own; gives those, and
    what `mend_edges` takes to undo it."""

def mend_edges(cuts: Any, links: list[tuple[Any, int, torch.Tensor]], /) -> None:
    """Undo `cut_edges`; edges to (node, number) lead to the tensor's place instead."""

def link_tensor(tensor: torch.Tensor, index: int, /) -> None:
    """While a node runs: the tensor's gradients go where the node's index-th ones go."""

def lead_to_running(tensors: list[Any], places: list[tuple[Any, int, int]], /) -> None:
    """While a node runs: edges behind the tensors that lead to (node, number) lead to its index-th output instead."""

def gradient_edge(tensor: torch.Tensor, /) -> tuple[Any, int] | None:
    """The tensor's place in autograd's graph, found without an operation on it."""

def shares_memory(changed: tuple[Any, ...], others: tuple[Any, ...], /) -> bool:
    """Whether one of the changed tensors shares its storage with another tensor of either."""

def function_facts(context: Any, /) -> tuple[tuple[bool, ...], tuple[bool, ...], bool, bool, bool]:
    """Of the context of an autograd.Function, what Python cannot read: for each gradient whether backward gets zeros in
    place of none, for each argument of forward whether it was a tensor, whether backward takes one list of gradients,
    whether its saved tensors were freed, and whether some of them are packed by hooks."""

def function_zeros(context: Any, /) -> tuple[tuple[tuple[int, ...], torch.dtype, torch.device] | None, ...]:
    """Size, dtype and device of each output of an autograd.Function; None for one that was no tensor."""

class TensorDescription(tuple[Any, ...]):
    """A tensor among the inputs of a walk (`walk.tensors`): enough to make a stand-in of the same shape.

    ``sizes`` holds indices into ``walk.sizes``. ``strides`` is ("contiguous", None) where they are exactly those of
    ``torch.empty(size)``; ("permuted", p) with the dimensions from the outermost to the innermost where they are
    exactly ``stride[p[i]] == product of max(size[p[j]], 1) for j > i``; ("given", indices into ``walk.sizes``)
    otherwise. ``constant`` is the number for a tensor that is a wrapped number (`x * 2.0` saves one), else None; it is
    at ``position`` in ``walk.sizes``, a float as its bits, and may vary as sizes do, or it is complex and in the key.
    The key holds everything else here but the sizes.
    """

    dtype: torch.dtype
    device: torch.device
    sizes: list[int]
    strides: tuple[str, Any]
    requires_grad: bool
    is_leaf: bool
    constant: None | bool | int | float | complex
    position: int | None

class NodeCall:
    """One step of a walk (`walk.calls`). The first is the root; it gives the root gradients to its edges.

    ``kind`` is "root", "builtin", "accumulate", "python" (torch.autograd.Function), "custom" (the same in C++) or
    "kiln" (GradNode). ``traceable``: what the node keeps is known, so that ``walk.apply`` can put stand-ins there.

    What happens at a call that is ``needed``: captures, tensor hooks, retains, pre-hooks, the node itself, validation,
    post-hooks. At one that is not, which is there for captures or as a lone root: tensor hooks, retains, captures.

    ``metadata``, per gradient that comes in: (indices into ``walk.sizes``, dtype, device, dtype that gradients are cast
    to or None), or ([], None, None, None) if nothing is known. ``edges``, per gradient that goes out: None where
    nothing follows or what follows does not run, or (index of the call, number of its input). ``captures``: (number of
    the input, place in the result of the backward). ``tensor_hooks`` and ``retains``: (number of the input, place in
    ``walk.hooks()``); ``pre_hooks``, ``post_hooks``, ``accumulate_hooks``: places there. ``saved``: inputs of the walk
    or None for undefined tensors, of the root its gradients; ``saved_sizes``: indices into ``walk.sizes``.

    AccumulateGrad: ``variable`` is its input, ``has_grad`` whether its ``.grad`` is there. Python functions: ``object``
    is the place of the ctx in ``walk.hooks()``; of custom C++ functions, and of other nodes that keep something packed
    by saved-tensor hooks (kind "custom" too), that of a callable that takes the gradients and does what ``walk.apply``
    does. Kiln's nodes: ``inner_hooks`` has the hooks inside of them: (number of the registration, place there).

    ``node`` is the node as torch shows it. Asked of all nodes of a long graph, the graph dies recursively.
    """

    index: int
    name: str
    kind: str
    traceable: bool
    needed: bool
    input_count: int
    metadata: list[tuple[list[int], Any, Any, Any]]
    edges: list[tuple[int, int] | None]
    captures: list[tuple[int, int]]
    tensor_hooks: list[tuple[int, int]]
    retains: list[tuple[int, int]]
    pre_hooks: list[int]
    post_hooks: list[int]
    accumulate_hooks: list[int]
    inner_hooks: list[tuple[int, int]]
    saved: list[int | None]
    saved_sizes: list[int]
    variable: int | None
    has_grad: bool
    object: int | None
    @property
    def node(self) -> Any: ...

class Walk:
    """What a backward pass would do: the calls of nodes in the engine's order, and all that they depend on.

    ``refusal`` says why torch's own engine must do it, or is None; the rest means something only then. ``key`` is
    equal for two walks that differ in nothing but sizes, tensors' contents and hook functions; it holds the ids of
    ``classes``, which must be kept alive with it. ``sizes`` has every size by index: of the gradients that come in at
    each call, of the inputs, of sizes that nodes keep; ``size_bytes`` has them as an array.

    It keeps the nodes alive, but none of their tensors once ``inputs()`` was called.
    """

    refusal: str | None
    has_saved_tensor_hooks: bool
    key: bytes
    sizes: list[int]
    size_bytes: bytes
    count: int
    calls: list[NodeCall]
    tensors: list[TensorDescription]
    classes: list[Any]
    def inputs(self) -> list[torch.Tensor]:
        """The tensors, each once, in order of first use: root gradients, then what the calls keep. Only once."""
    def hooks(self) -> list[Any]:
        """None, for the caller; then per call: tensor hooks, retains, pre-hooks, object, accumulate hooks, post-hooks.

        A new list each time. `retain_grad` is a callable that takes the gradient.
        """
    def apply(
        self,
        index: int,
        gradients: Sequence[torch.Tensor | None],
        saved: Sequence[torch.Tensor | None] | None = None,
        sizes: Sequence[Any] | None = None,
        /,
    ) -> tuple[torch.Tensor | None, ...]:
        """Call the node without hooks and without grad mode, then torch's checks of the result: one per edge.

        ``saved`` takes the place of what the node keeps, as ``NodeCall.saved`` lists it; ``sizes``, parallel to
        ``walk.sizes``, that of the sizes it keeps and of the sizes the result is checked against. Only for traceable
        nodes. What does not run after this node is not computed. All is put back, also after an exception.
        """
    def finish(
        self,
        edges: Sequence[tuple[int, int]],
        gradients: Sequence[torch.Tensor | None],
        inputs: tuple[Any, ...],
        retain_graph: bool,
        accumulate: bool,
        /,
    ) -> tuple[torch.Tensor | None, ...]:
        """Let torch's engine run what is left of the pass, from the gradients that wait at these inputs of calls.

        Undefined ones count: a node that gets nothing else runs as well. None where an input was not reached.
        """
    def release(self, lending: bool | Sequence[int] = False, /) -> None:
        """The nodes that ran let go of what they saved, those of Python and others that run as they are excepted.

        What is lent can be put back by ``restore`` while somebody holds it, and is released by a second call. With a
        number for each input, the last call at which the caller uses it or -1, a node lends only what is used at its
        own call or later.
        """
    def restore(self, start: int, /) -> None:
        """What was lent is the nodes' again, of calls from ``start`` on. Raises where a tensor is gone."""
    def release_rest(self) -> None:
        """Those excepted let go as well."""
    def watch(self) -> None:
        """Remember the hooks that there are now, for ``changed``."""
    def changed(self, start: int, /) -> bool:
        """Whether, for calls from ``start`` on, hooks came or went since ``watch``, or a saved tensor was changed in
        place since the walk."""
    def hooks_now(self, index: int, /) -> tuple[list[tuple[int, Any]], list[tuple[int, Any]], list[Any], list[Any]]:
        """The hooks of a call as they are by now: tensor hooks and retains with the number of the input, hooks before
        and after. Raises where there is one that walks refuse."""

def walk(
    roots: tuple[Any, ...],
    gradients: tuple[torch.Tensor | None, ...],
    inputs: tuple[Any, ...],
    retain_graph: bool,
    accumulate: bool,
    /,
) -> Walk:
    """Follow the graph as `torch.autograd.backward` (accumulate) or `grad` would, and run nothing of it.

    As in torch, `retain_grad()` is called on ``inputs`` that are no leaves, to accumulate.
    """

def set_inner_hook_type(factory: Callable[[Any, dict[Any, Any], Any], Any], /) -> None:
    """How a walk shows a hook inside a compiled function: `factory(function, place, key)`, where `place[key]` is it."""

def run_in_engine(function: Callable[[], Any], keep_graph: bool = False, /) -> Any:
    """Call it as a node of a backward pass: within a task of torch's engine, grad mode off; then the task's callbacks.

    What it raises comes through unchanged.
    """

def saved_values(node: Any, /) -> list[tuple[str, Any]] | None:
    """What a node, or the one that made a tensor, keeps, in the order in which walks read it; None where not known.

    Entries: ("variable", tensor or None), checked for changes as eager does; ("tensor", tensor or None), kept as it is;
    ("size", int); ("constant", bytes). To test with and to look at.
    """
