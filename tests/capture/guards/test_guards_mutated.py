"""Missing guards that guard mutation found (tests/sweep_guards.py), each as a small test of its own.

A program is called, one thing that it can reach is changed, and it is called again: the answer must be eager's.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import math
import operator
import warnings

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import kiln
from kiln.testing import check
from tests.support.program_table import X


def changes(program, args, change):
    """Call, change, call, undo, call: compiled and in eager."""
    compiled = kiln.compile(program, backend="eager", fullgraph=True)
    assert_same(compiled, program, args)
    with change:
        assert_same(compiled, program, args)
    assert_same(compiled, program, args)


def assert_same(compiled, program, args):
    def run(function):
        try:
            return function(*args)
        except Exception as error:
            return type(error), str(error)

    expected, seen = run(program), run(compiled)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(seen, expected, rtol=0, atol=0)
    else:
        assert seen == expected


@contextlib.contextmanager
def attribute(owner, name, value):
    """An attribute set for a while, and taken away or put back."""
    before = owner.__dict__.get(name, NotImplemented)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is NotImplemented:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def test_getattribute_added_to_a_class():
    class Box:
        def __init__(self):
            self.size = 3

    def other(self, name):
        found = object.__getattribute__(self, name)
        return found + 1 if name == "size" else found

    changes(lambda x, box: x + box.size, (X, Box()), attribute(Box, "__getattribute__", other))


def test_getattribute_added_to_a_class_that_the_program_makes_objects_of():
    class Box:
        def __init__(self):
            self.size = 3

    def other(self, name):
        found = object.__getattribute__(self, name)
        return found + 1 if name == "size" else found

    changes(lambda x: x + Box().size, (X,), attribute(Box, "__getattribute__", other))


def test_getattribute_added_to_a_subclass_of_tuple():
    class Pair(tuple):
        scale = 2

    def other(self, name):
        return 5 if name == "scale" else tuple.__getattribute__(self, name)

    changes(lambda x, pair: x * pair.scale + pair[0], (X, Pair((1, 2))), attribute(Pair, "__getattribute__", other))


@pytest.mark.parametrize(
    ("name", "method", "program"),
    [
        ("__bool__", lambda self: False, lambda x, box: x + 1 if box else x - 1),
        ("__len__", lambda self: 0, lambda x, box: x + 1 if box else x - 1),
        ("__eq__", lambda self, other: False, lambda x, box: x + (box == box)),
        ("__iter__", lambda self: iter((7,)), lambda x, box: x + sum(box)),
        ("__contains__", lambda self, item: True, lambda x, box: x + (9 in box)),
        ("__repr__", lambda self: "box", lambda x, box: x + len(repr(box))),
        ("__call__", lambda self: 8, lambda x, box: x + box() if callable(box) else x),
        ("__hash__", lambda self: 5, lambda x, box: x + hash(box)),
    ],
)
def test_special_method_added_to_a_class(name, method, program):
    class Box:
        def __getitem__(self, index):
            if index > 2:
                raise IndexError(index)
            return index

        def __hash__(self):
            return 4

        def __repr__(self):
            return "a box"

        __eq__ = object.__eq__

    changes(program, (X, Box()), attribute(Box, name, method))


def test_class_between_gets_the_method_that_super_finds():
    class Base:
        def scale(self):
            return 2

    class Middle(Base):
        pass

    class Last(Middle):
        def scale(self):
            return super().scale() + 1

    changes(lambda x, owner: x * owner.scale(), (X, Last()), attribute(Middle, "scale", lambda self: 10))


def test_bases_changed_under_super():
    class One:
        def scale(self):
            return 2

    class Other:
        def scale(self):
            return 5

    class Base(One):
        pass

    class Last(Base):
        def scale(self):
            return super().scale() + 1

    @contextlib.contextmanager
    def rebased():
        Base.__bases__ = (Other,)
        try:
            yield
        finally:
            Base.__bases__ = (One,)

    changes(lambda x, owner: x * owner.scale(), (X, Last()), rebased())


def test_method_of_tensors_replaced():
    original = torch.Tensor.sigmoid
    changes(lambda x: x.sigmoid(), (X,), attribute(torch.Tensor, "sigmoid", lambda self: original(self) + 1))


def test_function_of_torch_replaced_by_one_that_calls_it():
    """The graph holds the original; its text must not find the replacement by name."""
    original = torch.sin
    changes(lambda x: torch.sin(x), (X,), attribute(torch, "sin", lambda x: original(x) + 1))


def test_function_of_torch_reached_otherwise_keeps_its_meaning():
    """The program holds the original; what the name means later does not matter to it."""
    program = {"function": torch.cos}
    changes(lambda x, table: table["function"](x), (X, program), attribute(torch, "cos", lambda x: torch.zeros_like(x)))


def test_empty_slot_is_asked_without_getattr():
    """A check must not run a ``__getattr__`` of the program's."""

    class Box:
        __slots__ = ("value",)
        asked = 0

        def __getattr__(self, name):
            Box.asked += 1
            raise AttributeError(name)

    def program(x, box):
        try:
            return x + box.value
        except AttributeError:
            return x - 1

    compiled = kiln.compile(program, backend="eager")
    assert torch.equal(compiled(X, Box()), X - 1)
    before = Box.asked
    assert torch.equal(compiled(X, Box()), X - 1)
    assert Box.asked - before <= 1  # by the program itself


def test_explaining_a_miss_makes_no_items_of_a_defaultdict():
    def program(table):
        for key in table:
            table[key] = table[key] + 1
        return list(table)

    compiled = kiln.compile(program, backend="eager")
    assert compiled({"a": 1, "b": 2}) == ["a", "b"]
    table = collections.defaultdict(int)
    assert compiled(table) == [] and not table


def test_getattribute_of_a_metaclass():
    class Meta(type):
        pass

    class Settings(metaclass=Meta):
        scale = 3

    def other(cls, name):
        return 7 if name == "scale" else type.__getattribute__(cls, name)

    changes(lambda x: x * Settings.scale, (X,), attribute(Meta, "__getattribute__", other))


def test_gradient_of_another_size():
    def program(x):
        return x * 2

    def replaced():
        x = torch.ones(3, requires_grad=True)
        (x * 2).sum().backward()
        x.data = torch.ones(4)
        return (x,)

    check(program, make_args=replaced, dynamic=True, grads=False)


def test_method_caller_with_keywords_across_a_break():
    class Pair:
        def total(self, *, extra):
            return extra

    def program(x, pair):
        caller = operator.methodcaller("total", extra=x * 2)
        kiln.graph_break()
        return caller(pair) + 1

    check(program, X, Pair())


class PlainSubclass(torch.Tensor):
    pass


def test_checkpoint_of_a_tensor_subclass_ends():
    """The conversion to the subclass is taken out of the graph; it was the end of the checkpointed region."""

    def program(x):
        return checkpoint(lambda t: (t * 2).sin(), x, use_reentrant=False)

    check(program, make_args=lambda: (torch.arange(3.0).as_subclass(PlainSubclass).requires_grad_(),))
    check(program, make_args=lambda: (torch.arange(3.0).as_subclass(PlainSubclass),))


@contextlib.contextmanager
def item(owner, key, value):
    """An item set for a while, and put back."""
    before = owner[key]
    owner[key] = value
    try:
        yield
    finally:
        owner[key] = before


@pytest.mark.parametrize("name", ["another_module", 3, None, b"bytes"])
def test_module_of_a_function_made_inside(name):
    def program(x):
        def inner():
            return x

        return inner.__module__, str(inner.__module__)

    changes(program, (X,), item(globals(), "__name__", name))


def test_name_of_a_module_that_is_no_string():
    """Functions of such a module are called and broken in like others."""

    def helper(x):
        kiln.graph_break()
        return x * 2

    helper.__module__ = 3
    check(lambda x: helper(x) + 1, X, graphs=None)


def test_module_of_a_function_made_inside_that_is_returned():
    def program(x):
        def inner():
            return x

        inner.__module__ = ("any", "value")
        return inner

    assert kiln.compile(program, backend="eager")(X).__module__ == ("any", "value")


@pytest.mark.parametrize("cell", ["repr_running", "user_function"])
def test_emptied_closure_of_the_repr_of_a_dataclass(cell):
    @dataclasses.dataclass
    class Point:
        across: int = 1

    @contextlib.contextmanager
    def emptied():
        closure = Point.__repr__.__closure__[Point.__repr__.__code__.co_freevars.index(cell)]
        before = closure.cell_contents
        del closure.cell_contents
        try:
            yield
        finally:
            closure.cell_contents = before

    compiled = kiln.compile(lambda x, point: (x + 1, repr(point))[1], backend="eager")
    point = Point()
    assert compiled(X, point) == repr(point)
    with emptied(), pytest.raises(NameError):
        compiled(X, point)
    assert compiled(X, point) == repr(point)


def test_deterministic_mode_counts_the_filling_of_legacy_constructors():
    def program(x):
        made = torch.Tensor(2, 0), torch.FloatTensor(torch.Size([0])), x.new(0), torch.empty(0), torch.Tensor([1.0])
        return [each._version for each in made]

    compiled = kiln.compile(program, backend="eager")
    assert compiled(X) == program(X)
    torch.use_deterministic_algorithms(True)
    try:
        assert compiled(X) == program(X) == [1, 1, 1, 0, 0]
    finally:
        torch.use_deterministic_algorithms(False)
    assert compiled(X) == program(X)


class Renamed:
    def method(self):
        return 1


@pytest.mark.parametrize(
    "program",
    [
        lambda x, box: type(box).__name__,
        lambda x, box: Renamed.__qualname__,
        lambda x, box: box.__class__.__name__ + str(x.dim()),
    ],
)
@pytest.mark.parametrize("name", ["__name__", "__qualname__"])
def test_class_renamed(program, name):
    changes(program, (X, Renamed()), renamed(Renamed, name))


@contextlib.contextmanager
def renamed(cls, name):
    before = getattr(cls, name)
    setattr(cls, name, "Other")
    try:
        yield
    finally:
        setattr(cls, name, before)


def message(function, *args):
    try:
        return function(*args)
    except (TypeError, AttributeError) as error:
        return str(error)


@pytest.mark.parametrize(
    "operation",
    [
        lambda box: box + 1,
        lambda box: box < box,
        lambda box: box.missing,
        lambda box: iter(box),
        lambda box: len(box),
        lambda box: 1 in box,
        lambda box: box[0],
        lambda box: box(),
        lambda box: [*box],
        lambda box: box.method(3),
    ],
)
def test_class_renamed_that_an_error_names(operation):
    changes(lambda x, box: message(operation, box), (X, Renamed()), renamed(Renamed, "__name__"))


def test_function_renamed_that_an_error_names():
    def helper(a, *, b):
        return a

    def program(x):
        return message(helper)

    changes(program, (X,), renamed(helper, "__qualname__"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("__defaults__", (1,)), ("__defaults__", (1, 2)), ("__kwdefaults__", {"c": 1}), ("__kwdefaults__", {"d": 1})],
)
def test_defaults_of_a_function_that_is_called_with_too_few_arguments(name, value):
    def helper(a, b, *, c):
        return a, b, c

    @contextlib.contextmanager
    def given():
        setattr(helper, name, value)
        try:
            yield
        finally:
            setattr(helper, name, None)

    changes(lambda x: [message(helper), message(helper, 1)], (X,), given())


class Exact:
    """Conversions that give instances of subclasses, which Python warns of."""

    def __index__(self):
        return True

    def __float__(self):
        return Part(0.5)

    def __complex__(self):
        return Whole(2)


class Part(float):
    pass


class Whole(complex):
    pass


@pytest.mark.parametrize(
    "operation",
    [
        int,
        float,
        complex,
        operator.index,
        hex,
        range,
        math.sqrt,
        math.floor,
        lambda given: [1, 2, 3][given],
        lambda given: [1, 2, 3][given:],
        lambda given: [1] * given,
        lambda given: round(1.23, given),
        lambda given: torch.ones(3)[given:],
        lambda given: math.fsum([given, given]),
        lambda given: chr(given),
        lambda given: bytes(given),
    ],
)
def test_warning_of_a_conversion_to_a_subclass(operation):
    def warned(function):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            result = function(X, Exact())
        return str(result), [(each.category, str(each.message)) for each in seen]

    def program(x, given):
        return operation(given), x + 1

    expected = warned(program)
    assert expected[1]
    assert warned(kiln.compile(program, backend="eager")) == expected


def test_question_of_torch_replaced_that_kiln_asks_too():
    original = torch.is_grad_enabled

    def program(x):
        with torch.no_grad():
            return x * 2

    def both(function):
        x = torch.ones(3, requires_grad=True)
        seen = [function(x).requires_grad]
        with attribute(torch, "is_grad_enabled", lambda: not original()):
            seen.append(function(x).requires_grad)
        seen.append(original())
        torch._C._set_grad_enabled(True)
        return seen

    assert both(program) == both(kiln.compile(program, backend="eager")) == [False, False, False]


class Countdown:
    def __init__(self, left):
        self.left = left

    def __iter__(self):
        return self

    def __next__(self):
        if self.left <= 0:
            raise StopIteration
        self.left = self.left - 1
        return self.left


def test_iteration_that_a_tensor_ends_is_no_failed_check():
    """The graph asserts that the iteration goes on; that it does not is nothing that went wrong."""

    def program(ticks, x):
        for tick in ticks:
            x = x + tick
            if tick == 1:
                break
        return x

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = kiln.compile(program, backend="eager")
        for left in (3, 0, 3):
            expected = program(Countdown(torch.tensor(left)), X)
            assert torch.equal(compiled(Countdown(torch.tensor(left)), X), expected)


class Integer(int):
    def __index__(self):
        return 1

    def __repr__(self):
        return "integer"


class Real(float):
    def __float__(self):
        return 8.0


@pytest.mark.parametrize(
    "operation",
    [
        lambda whole, real: [1, 2, 3, 4][whole],
        lambda whole, real: (1, 2, 3, 4)[whole:],
        lambda whole, real: [1] * whole,
        lambda whole, real: whole * "ab",
        lambda whole, real: operator.index(whole),
        lambda whole, real: range(whole),
        lambda whole, real: (hex(whole), chr(whole), bytes(whole)),
        lambda whole, real: (int(whole), float(real), int(real)),
        lambda whole, real: (math.sqrt(real), math.floor(real), math.isnan(real)),
        lambda whole, real: (complex(real), round(real, whole), f"{real:.2f}"),
    ],
)
def test_numbers_are_not_asked_for_their_conversions(operation):
    """An int that has an ``__index__`` of its own is what it is; only ``int()`` and ``float()`` ask."""

    def program(x, whole, real):
        return operation(whole, real), x + 1

    check(program, X, Integer(3), Real(2.5))


def test_warning_of_the_gradient_of_a_tensor_that_is_no_leaf():
    def program(x):
        return x.grad, x.requires_grad

    def warned(function):
        leaf = torch.ones(3, requires_grad=True)
        seen = []
        for given in (leaf, leaf * 1, leaf, torch.ones(3)):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                function(given)
            seen.append([str(each.message).partition("Triggered")[0] for each in caught])
        return seen

    expected = warned(program)
    assert [len(each) for each in expected] == [0, 1, 0, 0]
    assert warned(kiln.compile(program, backend="eager", fullgraph=True)) == expected


@pytest.mark.parametrize("view", [torch._neg_view, lambda x: x.to(torch.complex64).conj()])
@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.tensor([x[0], x[1]]),
        lambda x: torch.as_tensor([x[0], 2.0]),
        lambda x: x.new_tensor([[x[0]], [x[1]]]),
        lambda x: torch.tensor((x[0],)) + x,
    ],
)
def test_list_of_tensors_with_a_negative_or_conjugate_bit(program, view):
    """Torch reads the memory of such a fake tensor, which has none."""
    check(program, make_args=lambda: (view(torch.arange(3.0)),), compare_warnings=False)


def test_effect_before_a_product_of_two_dtypes_happens_once():
    """Fakes do not notice that the product is going to raise; then eager runs the frame again, from its start."""

    def program(x, weight, total):
        total.mul_(2).add_(1)
        drawn = torch.rand(2)
        return torch.nn.functional.linear(x, weight) + drawn.sum()

    def run(function, x):
        torch.manual_seed(0)
        total = torch.ones(3)
        function(torch.ones(2, 3), torch.ones(4, 3), total)
        with pytest.raises(RuntimeError):
            function(x, torch.ones(4, 3), total)
        return total, total._version, torch.rand(2)

    for dtype in (torch.float64, torch.complex64, torch.int64):
        x = torch.ones(2, 3, dtype=dtype)
        expected, seen = run(program, x), run(kiln.compile(program, backend="eager"), x)
        assert torch.equal(expected[0], seen[0]) and expected[1] == seen[1] and torch.equal(expected[2], seen[2])


def test_check_of_a_tensor_without_values():
    def program(x):
        if x.sum() > 8:
            raise ValueError("too much")
        return x + 1

    check(program, torch.ones(3))
    compiled = kiln.compile(program, backend="eager")
    compiled(torch.ones(3))
    with pytest.raises(RuntimeError, match="meta"):
        compiled(torch.ones(3, device="meta"))


def test_data_assigned_in_inference_mode():
    def program(x):
        x.data = x.data * 2
        return x * 3

    def run(function):
        x = torch.ones(3, requires_grad=True)
        function(x)
        with torch.inference_mode():
            function(x)
        return function(x), x.detach()

    for expected, seen in zip(run(program), run(kiln.compile(program, backend="eager")), strict=True):
        torch.testing.assert_close(seen, expected)


def test_copy_of_an_object_with_slots_and_getattribute():
    class Slotted:
        __slots__ = ("value",)

        def __init__(self):
            self.value = 2

    def other(self, name):
        found = object.__getattribute__(self, name)
        return found + 1 if name == "value" else found

    def program(x, box):
        return copy.copy(box).value

    compiled = kiln.compile(program, backend="eager")
    box = Slotted()
    assert compiled(X, box) == program(X, box) == 2
    Slotted.__getattribute__ = other
    assert compiled(X, box) == program(X, box) == 4


def scripted_part(x):
    return x.sin() + 1


def test_method_of_tensors_replaced_that_a_scripted_function_calls():
    """TorchScript has looked it up when it compiled the function."""
    script = torch.jit.script(scripted_part)
    original = torch.Tensor.sin
    compiled = kiln.compile(lambda x: script(x) * 2, backend="eager")
    expected = script(X) * 2
    torch.testing.assert_close(compiled(X), expected)
    with attribute(torch.Tensor, "sin", lambda self: original(self) + 1):
        torch.testing.assert_close(compiled(X), expected)


def test_requires_grad_assigned_to_a_tensor_that_is_no_leaf():
    """The method does nothing where the assignment raises."""

    def program(x):
        y = x * 2
        y.requires_grad = True
        return y * 3

    def assigned(x):
        x.requires_grad = True
        return x * 3

    leaf = torch.ones(3, requires_grad=True)
    for function in (program, assigned):
        compiled = kiln.compile(function, backend="eager")
        assert compiled(torch.ones(3)).requires_grad
        for _ in range(2):
            with pytest.raises(RuntimeError, match="leaf variables"):
                compiled(leaf * 1)
    assert kiln.compile(assigned, backend="eager", fullgraph=True)(leaf).requires_grad


def test_class_becomes_abstract():
    class Box:
        def size(self):
            return 3

    changes(lambda x: x + Box().size(), (X,), attribute(Box, "__abstractmethods__", frozenset({"other"})))


def test_kernels_of_attention_that_are_allowed():
    """Their results have different strides."""

    def program(x):
        made = torch.nn.functional.scaled_dot_product_attention(x, x, x)
        return made, made.stride(), made.transpose(1, 2).contiguous().view(2, 4, -1)

    x = torch.arange(2 * 4 * 3 * 8.0).reshape(2, 4, 3, 8).transpose(1, 2)
    compiled = kiln.compile(program, backend="eager", fullgraph=True)
    for kernels in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(kernels), warnings.catch_warnings():
            warnings.simplefilter("error")
            expected, seen = program(x), compiled(x)
        assert seen[1] == expected[1] and seen[0].stride() == expected[0].stride()
        assert torch.equal(seen[2], expected[2])
