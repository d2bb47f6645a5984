"""The shape cache: results of operators on fake tensors, kept by the properties of their arguments.

Computing shapes takes most of the time of a trace, and most of it repeats: layers repeat, and a program is traced more
than once. Where sizes are plain numbers, the result of an operator depends only on the sizes, strides and dtypes of its
tensors, its other arguments and a few global switches. These are the key. A result is cached only if a tensor made from
it equals torch's in everything that a trace can see, and if the arguments look as before. Everything else is left to
torch: symbolic sizes, operators that read values or reshape their arguments, operators that are not torch's own.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from ...platform.light_dataclass import dataclass
from ...platform.torch_dispatch import (
    DisableTorchDispatch,
    DispatchKey,
    active_fake_mode,
    dispatch_keys_of,
    is_key_excluded,
)
from ...platform.torch_fake import FakeTensor, without_torch_compiler
from ...platform.torch_operators import OpOverload
from ...platform.torch_tensors import set_conj, set_neg, set_versions, storage_address, version_of
from ..operators.operator_table import operator_of
from . import missing_shapes  # noqa: F401  which registers rules
from .cpu_layouts import corrected
from .kernel_trials import RULE_ERRORS, CannotTry, run_on_zeros
from .symbolic_kernels import below_autograd

aten = torch.ops.aten
DEVICE = torch.ops.prim.device.default
NUMBERS = (int, float, bool)
PLAIN = (int, float, bool, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
MAX_ANSWERS = 50_000
Key = tuple[Any, ...]
_answers: dict[Key, Answer | None] = {}  # None: not to be cached


class QuestionLog:
    """The keys that a compilation has asked for, in all its threads: autograd runs the backward of tensors on a GPU in
    a thread of its own. None: they are not recorded any more."""

    def __init__(self) -> None:
        self.keys: dict[Key, None] | None = {}


@dataclass(slots=True)  # never changed
class TensorAnswer:
    """One tensor of an answer."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    bits: tuple[bool, bool]  # conjugate, negative
    memory_of: int | None  # which tensor among the arguments it is a view of

    def tensor(self, mode: Any, given: list[FakeTensor]) -> FakeTensor:
        elem = torch.empty_strided(self.size, self.stride, dtype=self.dtype, device="meta")
        if self.memory_of is not None:
            elem.set_(given[self.memory_of].untyped_storage(), self.offset, self.size, self.stride)
            set_versions((elem,), (0,))  # that was no change
        if self.bits[0]:
            set_conj(elem, True)
        if self.bits[1]:
            set_neg(elem, True)
        return FakeTensor(mode, elem, self.device)


@dataclass(slots=True)  # never changed
class NumberAnswer:
    """One number of an answer, such as the longest sequence that attention has seen."""

    number: int | float


Part: TypeAlias = "TensorAnswer | NumberAnswer | int | None"


@dataclass(slots=True)  # never changed
class Answer:
    """What an operator gives, in a container or alone.

    Parts are new tensors, numbers, Nones, and indices: of an argument or, counted on from those, of a part before.
    """

    container: type | None
    parts: tuple[Part, ...]

    def value(self, mode: Any, given: list[FakeTensor]) -> Any:
        there: list[Any] = [*given]
        with DisableTorchDispatch():
            for part in self.parts:
                if isinstance(part, TensorAnswer):
                    there.append(part.tensor(mode, given))
                elif isinstance(part, NumberAnswer):
                    there.append(part.number)
                else:
                    there.append(part if part is None else there[part])
        made = there[len(given) :]
        return self.container(made) if self.container is not None else made[0]


def mode_of(*values: Any) -> contextlib.AbstractContextManager[Any]:
    """The mode of the first fake among some values, to ask for results under: it may know them."""
    modes = (value.fake_mode for value in values if isinstance(value, FakeTensor))
    return next(modes, contextlib.nullcontext())


class NotPlain(Exception):
    """An argument that only torch can work with."""


def run(function: OpOverload, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What the operator gives under the present fake mode."""
    return cached_result(active_fake_mode(), function, args, keywords, compute)


def cached_result(
    mode: Any, function: Any, args: tuple[Any, ...], keywords: dict[str, Any], compute: Callable[..., Any]
) -> Any:
    """The result of an operator under a fake mode: from the cache, else from ``compute``."""
    if mode is None or not is_regular(function):
        return compute(function, args, keywords)
    given: list[FakeTensor] = []
    key: list[Any] = [function, torch.get_default_dtype(), torch.is_inference_mode_enabled(), len(args)]
    try:
        describe(args, mode, key, given)
        for name, value in keywords.items():
            key.append(name)
            describe((value,), mode, key, given)
        whole = tuple(key)
        answer = _answers.get(whole, NotPlain)
    except (NotPlain, TypeError):  # symbolic sizes have no hash
        return compute(function, args, keywords)
    mutable = operator_of(function).mutable
    if mutable and not is_plain_change(function, args, keywords, given):
        return compute(function, args, keywords)
    log = getattr(mode, "question_log", None)
    if log is not None and log.keys is not None:
        log.keys[whole] = None
    if answer is None:
        return compute(function, args, keywords)
    if isinstance(answer, Answer):
        return answer.value(mode, given)
    if mutable:
        before = [(visible_properties(tensor), storage_address(tensor)) for tensor in given]
        result = compute(function, args, keywords)
        answer = change_of(result, given, before)
    else:
        try:
            result = compute(function, args, keywords)
        except RULE_ERRORS as error:
            result = answer_from_kernel(function, args, keywords, mode, given, error)
        answer = answer_of(result, mode, given)
    if len(_answers) >= MAX_ANSWERS:
        _answers.clear()
    _answers.setdefault(whole, answer)  # the mode itself may have cached it
    return result


def answer_from_kernel(
    function: Any, args: tuple[Any, ...], keywords: dict[str, Any], mode: Any, given: list[FakeTensor], error: Exception
) -> Any:
    """The answer of the kernel itself, where torch's rule made a mistake."""
    try:
        found = run_on_zeros(function, args, keywords, given)
    except CannotTry:
        raise error from None
    container = type(found) if isinstance(found, (tuple, list)) else None
    parts = [None if part is None else kernel_tensor_answer(part) for part in (found if container else [found])]
    return Answer(container, tuple(parts)).value(mode, given)


def kernel_tensor_answer(tensor: torch.Tensor) -> TensorAnswer:
    size, stride = tuple(tensor.shape), tuple(tensor.stride())
    return TensorAnswer(size, stride, 0, tensor.dtype, tensor.device, (False, False), None)


def compute(function: OpOverload, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Torch's result, corrected to match the real kernel."""
    with below_autograd() as is_symbolic:
        rule = operator_of(function).symbolic_shape if is_symbolic else None
        return match_real_kernel(function, args, (rule or function)(*args, **keywords))


def match_real_kernel(function: OpOverload, args: tuple[Any, ...], result: Any) -> Any:
    """What torch's Python kernels give, as the real ones would: with their layout, and unchanged since it was made.

    They may write to what they make; the real ones do that out of autograd's sight. The version of a view is that of
    what it is a view of, and stays.
    """
    operator = operator_of(function)
    if operator.layout is not None:
        result = corrected(operator.layout, args, result)
    if not operator.mutable and not function.is_view:
        for part in result if isinstance(result, (tuple, list)) else (result,):
            if not isinstance(part, FakeTensor) or part.is_inference() or any(part is arg for arg in args):
                continue
            if version_of(part):
                set_versions((part,), (0,))
    return result


def cached_answer(question: Key) -> Answer | None:
    return _answers.get(question)


def add_answers(answers: dict[Key, Answer]) -> None:
    """Answers that were found elsewhere. Those that are known here stay."""
    for question, answer in answers.items():
        _answers.setdefault(question, answer)


class ShapeCachingMode:
    """A mix-in for fake modes: operations that reach the mode from anywhere use the cache."""

    question_log: QuestionLog | None = None
    shape_env: Any
    _has_own_cache = False

    @property
    def cache_enabled(self) -> bool:
        """Asked by torch: whether it keeps results as well. What it keeps of plain sizes is kept here already, and its
        own keys and entries take as long as the shapes of most operators."""
        return self._has_own_cache and (self.shape_env is not None or torch.is_inference_mode_enabled())

    @cache_enabled.setter
    def cache_enabled(self, value: bool) -> None:
        self._has_own_cache = value

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Asked by torch at the first use of a mode: answering spares loading its compiler."""
        return False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is DEVICE and type(args[0]) is FakeTensor:
            return args[0].fake_device  # asked for more often than anything else
        fake_mode: Any = super()

        def plain(*given: Any) -> Any:
            with without_torch_compiler():  # values are asked for outside of traces, too, and in other threads
                return fake_mode.__torch_dispatch__(*given)

        if (
            type(function) is not OpOverload
            or not is_regular(function)
            or torch.is_inference_mode_enabled()  # versions are not counted
        ):
            return plain(function, types, args, kwargs)

        mode: Any = self

        def compute(function: OpOverload, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            result = plain(function, types, args, keywords)
            if result is NotImplemented:
                return result
            if isinstance(result, (tuple, list)):
                result = container_of(function)(result)  # torch's Python kernels have others, and ones with names
            with mode:
                return match_real_kernel(function, args, result)

        return cached_result(self, function, args, kwargs or {}, compute)


@functools.cache
def container_of(function: OpOverload) -> type:
    """What an operator gives several tensors in."""
    returned = operator_of(function).schema.returns
    return list if len(returned) == 1 and isinstance(returned[0].type, torch.ListType) else tuple


@functools.cache
def is_regular(function: OpOverload) -> bool:
    """Whether what it gives follows from what `run` looks at, and it gives nothing else."""
    operator = operator_of(function)
    if not operator.is_own or operator.lifts:
        return False
    if function is not aten.index.Tensor and (operator.needs_values or operator.replaces_metadata):
        return False
    return not (function.is_view and operator.is_composite)  # those may or may not give a view


def describe(values: Any, mode: Any, key: list[Any], given: list[FakeTensor]) -> None:
    """Add to the key what the result may depend on, and to the given tensors those met."""
    for value in values:
        kind = type(value)
        if kind is FakeTensor:
            if value.fake_mode is not mode or value.constant is not None or value.layout is not torch.strided:
                raise NotPlain
            if value.is_inference():
                raise NotPlain
            given.append(value)
            key.append(FakeTensor)
            key.append(value.shape)
            key.append(value.stride())
            key.append((value.dtype, value.fake_device, value.storage_offset(), value.is_conj(), value.is_neg()))
        elif value is None:
            key.append(None)
        elif kind in PLAIN:
            key.append(kind)
            key.append(value)
        elif kind is list or kind is tuple:
            key.append((kind, len(value)))
            describe(value, mode, key, given)
        else:
            raise NotPlain


def answer_of(result: Any, mode: Any, given: list[FakeTensor]) -> Answer | None:
    """The answer to cache, if a tensor made from it equals torch's."""
    container = type(result) if type(result) in (tuple, list) else None
    parts = list(result) if container is not None else [result]
    if not all(part is None or type(part) is FakeTensor or type(part) in NUMBERS for part in parts):
        return None
    if any(part is argument for part in parts for argument in given):
        return None
    try:
        answer = Answer(container, tuple([part_of(number, parts, given) for number in range(len(parts))]))
        again = answer.value(mode, given)
    except (NotPlain, RuntimeError):
        return None
    twins = again if container is not None else [again]
    alike = all(
        visible_properties(part) == visible_properties(twin)
        if isinstance(part, FakeTensor)
        else part is twin or (type(part) is type(twin) and part == twin)
        for part, twin in zip(parts, twins, strict=True)
    )
    own = [storage_address(part) for part, made in zip(parts, answer.parts, strict=True) if has_own_memory(made)]
    return answer if alike and len(own) == len(set(own)) else None


def is_plain_change(
    function: OpOverload, args: tuple[Any, ...], keywords: dict[str, Any], given: list[FakeTensor]
) -> bool:
    """Whether torch counts the change itself, and a change of one of these is none of another (or an error)."""
    if not is_key_excluded(DispatchKey.ADInplaceOrView):
        return False
    arguments = operator_of(function).arguments
    written = [value for said, value in zip(arguments, args, strict=False) if said.is_write]
    written += [keywords[said.name] for said in arguments if said.is_write and said.name in keywords]
    tensors = [tensor for value in written for tensor in (value if isinstance(value, list) else [value])]
    changed = [storage_address(tensor) for tensor in tensors if tensor is not None]
    memory = [storage_address(tensor) for tensor in given]
    return all(memory.count(one) == 1 for one in changed)


def part_of(number: int, parts: list[Any], given: list[FakeTensor]) -> Part:
    part = parts[number]
    if part is None:
        return None
    if not isinstance(part, FakeTensor):
        return NumberAnswer(part)
    first = next(index for index, other in enumerate(parts) if other is part)
    return tensor_answer(part, given) if first == number else len(given) + first


def change_of(result: Any, given: list[FakeTensor], before: list[tuple[tuple[Any, ...], int]]) -> Answer | None:
    """The answer of an operator that changes arguments and gives those back, or nothing."""
    container = type(result) if type(result) in (tuple, list) else None
    parts = list(result) if container is not None else [result]
    places = [next((i for i, tensor in enumerate(given) if tensor is part), None) for part in parts]
    if any(place is None and part is not None for place, part in zip(places, parts, strict=True)):
        return None
    after = [(visible_properties(tensor), storage_address(tensor)) for tensor in given]
    return Answer(container, tuple(places)) if after == before else None


def has_own_memory(made: Part) -> bool:
    return isinstance(made, TensorAnswer) and made.memory_of is None


def tensor_answer(tensor: FakeTensor, given: list[FakeTensor]) -> TensorAnswer:
    if tensor.constant is not None or tensor.layout is not torch.strided:
        raise NotPlain
    offset = tensor.storage_offset()
    if not isinstance(offset, int) or any(type(number) is not int for number in (*tensor.shape, *tensor.stride())):
        raise NotPlain
    memory = storage_address(tensor)
    place = next((i for i, other in enumerate(given) if storage_address(other) == memory), None)
    bits = (tensor.is_conj(), tensor.is_neg())
    size, stride = tuple(tensor.shape), tuple(tensor.stride())
    return TensorAnswer(size, stride, offset, tensor.dtype, tensor.fake_device, bits, place)


def visible_properties(tensor: FakeTensor) -> tuple[Any, ...]:
    """All that a trace can see of a tensor."""
    return (
        tensor.shape,
        tensor.stride(),
        tensor.storage_offset(),
        tensor.dtype,
        tensor.fake_device,
        tensor.untyped_storage().nbytes(),
        tensor.is_conj(),
        tensor.is_neg(),
        tensor.requires_grad,
        version_of(tensor),
        dispatch_keys_of(tensor),
    )
