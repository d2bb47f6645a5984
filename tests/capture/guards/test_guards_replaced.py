"""Parts of torch and of Python that a program replaces (``torch.bfloat16``, ``torch.Tensor.abs``) between two calls."""

from __future__ import annotations

import _thread
import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import operator
import re
import reprlib
import types
import warnings

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import kiln
from kiln.testing import CompileCounter, same
from tests.capture.guards.test_guards_mutated import attribute


def called_thrice(program, args, change):
    """What a program answers to three calls, the second of which is made with something replaced."""
    seen = [program(*args())]
    with change():
        seen.append(program(*args()))
    seen.append(program(*args()))
    return seen


def test_dtype_replaced_under_autocast():
    def program(x):
        with torch.autocast("cpu"):
            y = x @ x.t()
            with torch.autocast("cpu", enabled=False):
                z = x @ x.t()
            state = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        return y.dtype, z.dtype, state

    def run(function):
        with pytest.warns(UserWarning, match="target dtype is not supported"):
            seen = called_thrice(
                function, lambda: (torch.ones(2, 2),), lambda: attribute(torch, "bfloat16", torch.float64)
            )
        return seen, torch.get_autocast_dtype("cpu")

    assert run(kiln.compile(program, backend="eager", fullgraph=True)) == run(program)
    assert torch.get_autocast_dtype("cpu") is torch.bfloat16


@pytest.mark.parametrize(
    ("name", "other", "program"),
    [
        ("float64", torch.float16, lambda x, kept: (x.to(kept), x.to(torch.float64))),
        ("float64", torch.float16, lambda x, kept: (x + 1, torch.zeros(2, dtype=kept) + 1)),
        ("channels_last", torch.contiguous_format, lambda x, kept: (x + 1).to(memory_format=kept)),
        ("strided", torch.sparse_coo, lambda x, kept: (x + 1, torch.zeros(2, layout=kept) + 1)),
    ],
)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_constant_of_torch_replaced(name, other, program, backend):
    kept = getattr(torch, name)
    compiled = kiln.compile(program, backend=backend, fullgraph=True)
    args = (torch.ones(2, 3, 4, 4), kept)
    for _ in range(2):
        assert same(program(*args), compiled(*args))
        with attribute(torch, name, other):
            expected, seen = program(*args), compiled(*args)
        assert same(expected, seen)


def test_constant_of_torch_replaced_under_a_checkpoint():
    def program(x, kept):
        return checkpoint(lambda y: torch.sin(y).to(kept) * 2, x, use_reentrant=False)

    compiled = kiln.compile(program, backend="eager", fullgraph=True)
    args = (torch.ones(3, requires_grad=True), torch.float64)
    assert same(program(*args), compiled(*args))
    with attribute(torch, "float64", torch.float16):
        expected, seen = program(*args), compiled(*args)
    assert same(expected, seen)


class PlainSubclass(torch.Tensor):
    """A tensor of another class that behaves like one."""


@pytest.mark.parametrize("name", ["weight_ih_l0", "weight_hh_l0", "bias_hh_l0"])
@pytest.mark.parametrize("network", [torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM])
def test_parameter_of_a_recurrent_network_becomes_a_subclass(network, name):
    def run(function):
        model = network(3, 4)
        seen = [type(function(model, torch.ones(2, 1, 3)))]
        model._parameters[name] = model._parameters[name].detach().as_subclass(PlainSubclass)
        return [*seen, type(function(model, torch.ones(2, 1, 3)))]

    def program(model, x):
        return model(x)[0]

    assert run(kiln.compile(program, backend="eager")) == run(program) == [torch.Tensor, PlainSubclass]


def test_subclass_in_a_list_whose_first_item_was_looked_at():
    def program(tensors):
        return tensors[0].dtype, torch.cat(tensors)

    tensors = [torch.ones(2), torch.ones(2).as_subclass(PlainSubclass)]
    assert same(kiln.compile(program, backend="eager")(tensors), program(tensors))
    assert type(kiln.compile(program, backend="eager", fullgraph=True)(tensors)[1]) is PlainSubclass


class Meta(type):
    def __call__(cls, *args):
        made = super().__call__(*args)
        made.by_meta = True
        return made


class Made(metaclass=Meta):
    def __init__(self, value=1):
        self.value = value


class Maker:
    def __call__(self, value):
        return [value]


@pytest.mark.parametrize(
    "maker",
    [
        staticmethod(Meta.__call__),
        staticmethod(lambda value: (value, 2)),
        classmethod(lambda cls, value: (cls.__name__, value)),
        Maker(),
        type.__call__,
    ],
)
def test_call_of_a_metaclass_replaced(maker):
    def program(x):
        made = Made(x)
        return vars(made) if type(made) is Made else made

    compiled = kiln.compile(program, backend="eager")
    assert_same_outcome(compiled, program)
    with attribute(Meta, "__call__", maker):
        assert_same_outcome(compiled, program)
    assert_same_outcome(compiled, program)


@pytest.mark.parametrize("init", [staticmethod(print), staticmethod(lambda value: value), Maker()])
def test_init_that_is_no_function(init):
    def program(x):
        return vars(Made(x))

    compiled = kiln.compile(program, backend="eager")
    assert_same_outcome(compiled, program)
    with attribute(Made, "__init__", init):
        assert_same_outcome(compiled, program)


def assert_same_outcome(compiled, program):
    outcomes = []
    for function in (program, compiled):
        try:
            outcomes.append(function(torch.arange(3.0)))
        except Exception as error:
            outcomes.append((type(error), str(error)))
    assert same(*outcomes)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(3.0),
        lambda: torch.arange(3.0, requires_grad=True),
        lambda: torch.arange(6).view(2, 3).clone().t(),
        lambda: torch.ones(0, 2),
        lambda: torch.tensor(2, dtype=torch.complex64),
    ],
)
def test_version_of_a_deep_copy(make, backend):
    def program(x):
        return copy.deepcopy(x)

    expected, seen = program(make()), kiln.compile(program, backend=backend, fullgraph=True)(make())
    assert same(seen, expected)
    assert seen._version == expected._version == 1
    assert seen.requires_grad == expected.requires_grad and seen.is_leaf == expected.is_leaf


OPERATIONS = {
    "abs": (abs, "abs __abs__"),
    "neg": (operator.neg, "neg __neg__"),
    "pos": (operator.pos, "positive __pos__"),
    "invert": (lambda x: ~(x > 0), "bitwise_not __invert__"),
    "add": (lambda x: x + 2, "add __add__ __radd__"),
    "radd": (lambda x: 2 + x, "add __add__ __radd__"),
    "sub": (lambda x: 2 - x, "sub __rsub__"),
    "div": (lambda x: (x / 2, 2 / x), "div true_divide __truediv__ __rtruediv__ reciprocal"),
    "floordiv": (lambda x: (x // 2, 2 // x), "floor_divide __floordiv__ __rfloordiv__"),
    "mod": (lambda x: (x % 2, 5 % x), "remainder __mod__ __rmod__"),
    "pow": (lambda x: (x**2, 2**x), "pow __pow__ __rpow__"),
    "matmul": (lambda x: x @ x, "matmul __matmul__"),
    "compare": (lambda x: (x < 1, x == 1, x != 1), "lt __lt__ eq __eq__ __ne__"),
    "and": (lambda x: (x > 0) & (x < 1), "bitwise_and __and__"),
    "iadd": (lambda x: operator.iadd(x.clone(), 1), "add_ __iadd__"),
    "getitem": (lambda x: x[1:], "__getitem__"),
    "len": (lambda x: x * len(x), "__len__ size dim"),
    "only len": (len, "__len__"),
    "iterate": (lambda x: [y * 2 for y in x], "__iter__ unbind"),
    "reversed": (lambda x: list(reversed(x)), "__reversed__ flip"),
    "round": (round, "round"),
    "sum": (sum, "__radd__ __iter__"),
    "max": (max, "__gt__ gt"),
    "special method": (lambda x: (x.__neg__(), x.__abs__()), "neg __neg__ abs __abs__"),
    "function": (lambda x: torch.split(x, 1), "split"),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    ("operation", "method"), [(name, method) for name, (_, methods) in OPERATIONS.items() for method in methods.split()]
)
def test_method_of_tensors_replaced_under_an_operator(operation, method, backend):
    program = OPERATIONS[operation][0]
    original = getattr(torch.Tensor, method)

    def other(*args):
        result = original(*args)
        return torch.logical_not(result) if isinstance(result, torch.Tensor) else result[1:]

    def outcome(function):
        try:
            return function(torch.tensor([-1.2, 0.5, 2.7]))
        except Exception as error:
            return type(error), str(error)

    compiled = kiln.compile(lambda x: program(x), backend=backend)
    expected, seen = [outcome(program)], [outcome(compiled)]
    with attribute(torch.Tensor, method, other):
        expected.append(outcome(program))
        seen.append(outcome(compiled))
    expected.append(outcome(program))
    seen.append(outcome(compiled))
    assert same(seen, expected)


def test_method_of_tensors_added_needs_no_new_graph():
    counter = CompileCounter()
    compiled = kiln.compile(lambda x: x.sin() + 1, backend=counter)
    compiled(torch.ones(3))
    with attribute(torch.Tensor, "twice", lambda self: self * 2):
        compiled(torch.ones(3))
    assert counter.frame_count == 1


def test_anomaly_mode_tells_of_the_lines_of_the_program():
    def program(x):
        return torch.sqrt(x) * 0

    def run(function):
        function(torch.zeros(2, requires_grad=True))
        with warnings.catch_warnings(record=True) as told, torch.autograd.set_detect_anomaly(True):
            warnings.simplefilter("always")
            with pytest.raises(RuntimeError, match="returned nan values"):
                function(torch.zeros(2, requires_grad=True)).sum().backward()
        return [[line for line in str(each.message).splitlines() if "in program" in line] for each in told]

    expected = run(program)
    assert any(expected)
    assert run(kiln.compile(program, backend="eager", fullgraph=True)) == expected


@pytest.mark.parametrize("network", [torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM])
def test_recurrent_network_with_a_tensor_without_values(network):
    model = network(3, 4)

    def outcome(function):
        try:
            return function(torch.ones(2, 1, 3, device="meta"))
        except RuntimeError as error:
            return type(error), str(error)

    expected = outcome(model)
    assert expected[0] is RuntimeError
    assert outcome(kiln.compile(lambda x: model(x), backend="eager")) == expected


def test_change_of_a_tensor_without_values_that_fails():
    def program(x, y):
        x[:], y[:] = y.clone(), x.clone()
        return x - y

    def outcome(function):
        try:
            return function(torch.ones(3), torch.ones(3, device="meta"))
        except NotImplementedError as error:
            return str(error), error.__context__

    assert outcome(kiln.compile(program, backend="eager")) == outcome(program)


class Cached:
    @functools.cached_property
    def total(self):
        return 3


Cached.other = vars(Cached)["total"]


@pytest.mark.parametrize("name", ["other", "", None, b"total", ...])
def test_name_that_a_cached_property_is_kept_by(name):
    def program(x):
        owner = Cached()
        first = owner.total
        return x + first, sorted(vars(owner), key=repr)

    def set_name(text):
        vars(Cached)["total"].attrname = text

    compiled = kiln.compile(program, backend="eager")
    assert_same_outcome(compiled, program)
    try:
        if name is ...:
            del vars(Cached)["total"].attrname
        else:
            set_name(name)
        assert_same_outcome(compiled, program)
    finally:
        set_name("total")
    assert_same_outcome(compiled, program)


def test_cached_property_of_two_names():
    def program(x):
        owner = Cached()
        owner.__dict__["total"] = 5
        return x + owner.other, vars(owner)

    assert_same_outcome(kiln.compile(program, backend="eager"), program)


@pytest.mark.parametrize(
    ("name", "other", "program"),
    [
        ("is_grad_enabled", lambda: False, lambda x: (torch.is_grad_enabled(), x * 2)),
        ("is_grad_enabled", lambda: True, lambda x: (run_without_gradients(x), x * 2)),
        ("is_inference_mode_enabled", lambda: True, lambda x: (torch.is_inference_mode_enabled(), x * 2)),
        ("get_default_dtype", lambda: torch.float64, lambda x: (torch.get_default_dtype(), torch.ones(2), x * 2)),
        ("is_floating_point", lambda x: False, lambda x: x * 2 if torch.is_floating_point(x) else x),
        ("is_tensor", lambda x: False, lambda x: x * 2 if torch.is_tensor(x) else x),
        ("is_autocast_enabled", lambda *args: True, lambda x: (torch.is_autocast_enabled("cpu"), x @ x)),
        (
            "are_deterministic_algorithms_enabled",
            lambda: True,
            lambda x: x * torch.are_deterministic_algorithms_enabled(),
        ),
    ],
)
def test_question_of_torch_replaced(name, other, program):
    is_grad_enabled = torch.is_grad_enabled

    def run(function):
        seen = []
        for replaced in (False, True, False):
            with attribute(torch, name, other) if replaced else contextlib.nullcontext():
                seen.append(function(torch.arange(3.0, requires_grad=True)))
            seen.append(is_grad_enabled())
            torch._C._set_grad_enabled(True)
        return seen

    assert same(run(kiln.compile(program, backend="eager", fullgraph=True)), run(program))


def run_without_gradients(x):
    with torch.no_grad():
        return x * 2


def scripted_helper(x):
    return x * 3


def scripted_function(x):
    return scripted_helper(x) + 1


@pytest.mark.parametrize("changed", ["code", "helper", "function"])
def test_function_changed_after_it_was_scripted(changed, monkeypatch):
    """TorchScript has read it when it compiled it."""
    script = torch.jit.script(scripted_function)
    compiled = kiln.compile(lambda x: script(x) * 2, backend="eager")
    x = torch.arange(3.0)
    expected = script(x) * 2
    assert same(compiled(x), expected)
    if changed == "code":
        monkeypatch.setattr(scripted_function, "__code__", (lambda x: scripted_helper(x) + 7).__code__)
    elif changed == "helper":
        monkeypatch.setitem(globals(), "scripted_helper", lambda x: x * 5)
    else:
        monkeypatch.setattr(script, "_torchdynamo_inline", lambda x: x)
    assert same(script(x) * 2, expected)
    assert same(compiled(x), expected)
    monkeypatch.undo()
    assert same(compiled(x), expected)


def test_name_of_the_module_removed_that_a_function_made_inside_shows(monkeypatch):
    namespace = {"__name__": "somewhere"}
    exec("def program(x):\n    def inner(): pass\n    return x + 1, inner.__module__", namespace)
    program = namespace["program"]
    compiled = kiln.compile(program, backend="eager", fullgraph=True)
    assert_same_outcome(compiled, program)
    monkeypatch.delitem(namespace, "__name__")
    assert_same_outcome(compiled, program)


class Copied:
    def __init__(self):
        self.number = 3


@pytest.mark.parametrize("noted", [(), ["number"], ["missing"]])
def test_names_of_slots_that_the_program_notes(noted):
    """``copy`` takes the names of slots from the class, where they are noted."""

    def program(x, given):
        return x + copy.copy(given).number

    compiled = kiln.compile(program)
    assert torch.equal(compiled(torch.ones(2), Copied()), program(torch.ones(2), Copied()))
    before = Copied.__dict__.get("__slotnames__", [])
    Copied.__slotnames__ = noted
    try:
        outcomes = []
        for function in (program, compiled):
            try:
                outcomes.append(function(torch.ones(2), Copied()).tolist())
            except Exception as error:
                outcomes.append(f"{type(error).__name__}: {error}")
        assert outcomes[1] == outcomes[0]
    finally:
        Copied.__slotnames__ = before


def test_scripts_under_a_function_mode():
    """A mode does not see the operations inside a TorchScript function."""

    class Doubling(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            return result * 2 if function is torch.Tensor.mul else result

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        script = torch.jit.script(times_three)

    def program(x):
        return script(x) + 1

    compiled = kiln.compile(program)
    assert torch.equal(compiled(torch.ones(2)), program(torch.ones(2)))
    with Doubling():
        assert torch.equal(compiled(torch.ones(2)), program(torch.ones(2)))


def times_three(x: torch.Tensor) -> torch.Tensor:
    return x.mul(3.0)


class Answering(types.ModuleType):
    def __getattribute__(self, name):
        return 5 if name == "computed" else super().__getattribute__(name)


def test_a_module_whose_getattribute_becomes_a_static_method():
    def program(x):
        module = types.ModuleType("made")
        module.__class__ = Answering
        return x + module.computed

    compiled = kiln.compile(program)
    assert torch.equal(compiled(torch.ones(2)), program(torch.ones(2)))
    before = Answering.__dict__["__getattribute__"]
    Answering.__getattribute__ = staticmethod(before)
    try:
        with pytest.raises(TypeError) as expected:
            program(torch.ones(2))
        with pytest.raises(TypeError) as seen:
            compiled(torch.ones(2))
        assert str(seen.value) == str(expected.value)
    finally:
        Answering.__getattribute__ = before


def outcome(function, *args):
    try:
        return function(*args)
    except Exception as error:
        return type(error), re.sub("0x[0-9a-f]+", "0x", str(error))


@dataclasses.dataclass
class Shown:
    number: int


class WithRepr:
    @reprlib.recursive_repr()
    def __repr__(self):
        return "<WithRepr>"


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.delattr(dataclasses, "_thread", raising=False),  # from 3.13 on only reprlib has one
        lambda patch: patch.setattr(
            dataclasses, "_thread", types.SimpleNamespace(get_ident=lambda: "no number"), raising=False
        ),
        lambda patch: patch.delattr(_thread, "get_ident"),
        lambda patch: patch.setattr(dataclasses, "id", lambda value: [], raising=False),
        lambda patch: patch.delattr(reprlib, "get_ident"),
        lambda patch: patch.setattr(reprlib, "id", lambda value: [], raising=False),
    ],
)
@pytest.mark.parametrize("make", [lambda: Shown(3), WithRepr])
def test_what_a_repr_calls_that_guards_against_recursion(make, change):
    shown = make()

    def program(x):
        return x + len(repr(shown))

    def run(function):
        answers = [outcome(function, torch.ones(2))]
        with pytest.MonkeyPatch.context() as patch:
            change(patch)
            answers.append(outcome(function, torch.ones(2)))
        return [*answers, outcome(function, torch.ones(2))]

    assert same(run(program), run(kiln.compile(program)))


class Keyed:
    def __init__(self, number):
        self.number = number

    def __hash__(self):
        return hash(self.number)

    def __eq__(self, other):
        return self.number == other.number


@pytest.mark.parametrize("make", [dict.fromkeys, set, frozenset, collections.OrderedDict.fromkeys])
@pytest.mark.parametrize(
    "change",
    [
        lambda patch, key: patch.setitem(globals(), "hash", lambda value: value + 7),
        lambda patch, key: patch.setattr(key, "number", 5),
    ],
)
@pytest.mark.parametrize("wanted", [1, 5])
def test_keys_that_came_in_under_another_hash(make, change, wanted):
    def program(x, held):
        return x + (Keyed(wanted) in held), len(held), [key in held for key in held]

    def run(function):
        key = Keyed(1)
        held = make([key, Keyed(2)])
        answers = [outcome(function, torch.ones(2), held)]
        with pytest.MonkeyPatch.context() as patch:
            change(patch, key)
            answers.append(outcome(function, torch.ones(2), held))
        return [*answers, outcome(function, torch.ones(2), held)]

    assert same(run(program), run(kiln.compile(program)))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_parameter_replaced_by_a_subclass(backend, monkeypatch):
    class Named(torch.nn.Parameter):
        pass

    def program(x):
        made = torch.nn.Parameter(torch.ones(3))
        return x * made, isinstance(made, torch.nn.Parameter), type(made).__name__, made.requires_grad

    def run(function):
        answers = [function(torch.ones(3))]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.nn, "Parameter", Named)
            answers.append(function(torch.ones(3)))
        return [*answers, function(torch.ones(3))]

    assert same(run(program), run(kiln.compile(program, backend=backend)))


def test_regular_expressions_replaced(monkeypatch):
    def program(x, text):
        return x + len(text)

    compiled = kiln.compile(program, dynamic=True)
    monkeypatch.setattr(re, "sub", lambda *args: "1 2")
    monkeypatch.setattr(re, "fullmatch", lambda *args: None)
    for size in (3, 4, 5):
        assert same(compiled(torch.ones(size), "abc"), program(torch.ones(size), "abc"))


class Recorded(collections.defaultdict):
    """A table that notes what it was asked for."""


def test_table_of_an_enumeration_that_makes_entries(monkeypatch):
    class Color(enum.Enum):
        RED = 1
        GREEN = 2

    def program(x, color):
        return x + color.value, [name for name in Color.__members__], sorted(each.name for each in Color)

    def run(function):
        answers = [function(torch.ones(2), Color.RED)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Color, "_member_map_", Recorded(int, Color._member_map_))
            answers.append(function(torch.ones(2), Color.RED))
        return [*answers, function(torch.ones(2), Color.RED)]

    assert same(run(program), run(kiln.compile(program)))


class Holder:
    pass


@pytest.mark.parametrize("make", [collections.deque, list, tuple, dict.fromkeys])
def test_item_that_is_held_and_never_looked_at(make):
    def program(x, held):
        holder = Holder()
        holder.item = held[4]
        kept = holder.item
        return x + 1, kept is held[4]

    values = make(range(3, 9))
    kiln.testing.check(program, torch.ones(2), values, fullgraph=True)


@pytest.mark.parametrize("value", [True, 2.5, "text", 3, None, (), torch.ones(1)])
@pytest.mark.parametrize("name", ["__setattr__", "__delattr__", "__bool__", "__len__", "__getattr__", "__iter__"])
def test_special_method_that_cannot_be_called(name, value):
    class Blocked:
        pass

    uses = {
        "__setattr__": lambda each: setattr(each, "name", 1),
        "__delattr__": lambda each: delattr(each, "name"),
        "__bool__": bool,
        "__len__": len,
        "__getattr__": lambda each: each.missing,
        "__iter__": list,
    }

    def program(x, each):
        try:
            return x + 1, uses[name](each)
        except (TypeError, AttributeError) as error:
            return x, type(error), str(error)

    def run(function):
        each = Blocked()
        answers = [function(torch.ones(2), each)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Blocked, name, value, raising=False)
            answers.append(function(torch.ones(2), each))
        return [*answers, function(torch.ones(2), each)]

    assert same(run(program), run(kiln.compile(program)))


REPLACED_OPERATORS = {
    "getitem": lambda x, items: (operator.getitem(x, 0), x[1], operator.getitem(items, 1)),
    "add": lambda x, items: (operator.add(x, 1), x + 1, operator.add(items[1], 1)),
    "mul": lambda x, items: (operator.mul(x, x), x * 3, x.shape[0] * 2),
    "eq": lambda x, items: (operator.eq(x, 1.0), x == 1.0, operator.eq(items[1], 2)),
    "neg": lambda x, items: (operator.neg(x), -x, operator.neg(items[1])),
    "index": lambda x, items: (x[operator.index(1)], x.sum(items[0])),
}


@pytest.mark.parametrize("backend", ["eager", "kiln"])
@pytest.mark.parametrize("name", REPLACED_OPERATORS)
@pytest.mark.parametrize("compiled_before", [True, False])
def test_function_of_operator_replaced_by_one_that_calls_it(name, backend, compiled_before):
    """What Kiln itself calls or puts into a graph is not what the program has put in that place."""
    original = getattr(operator, name)
    program = REPLACED_OPERATORS[name]

    def replacement(*args):
        return original(*args) + 1

    def run(function):
        seen = [function(torch.arange(3.0), [0, 2])] if compiled_before else []
        with attribute(operator, name, replacement):
            seen.append(function(torch.arange(3.0), [0, 2]))
        seen.append(function(torch.arange(3.0), [0, 2]))
        return seen

    # torch imports modules with tables of these functions, and caches results: that is to happen before the change.
    kiln.compile(program, backend=backend, dynamic=True)(torch.arange(3.0), [0, 2])
    assert same(run(kiln.compile(program, backend=backend)), run(program))


def same_code(function):
    """A function that does the same, without attributes."""
    given = (function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    made = types.FunctionType(*given)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


@pytest.mark.parametrize("attribute", [None, lambda *args, **kwargs: args[1] * 100])
def test_attributes_of_a_wrapper_do_not_say_what_it_calls(attribute):
    wrapper = same_code(checkpoint)

    def program(x):
        return wrapper(torch.sin, x, use_reentrant=False) * 2

    compiled = kiln.compile(program, backend="eager")
    x = torch.ones(3, requires_grad=True)
    assert torch.equal(compiled(x), program(x))
    if attribute is not None:
        wrapper.__wrapped__ = attribute
    assert torch.equal(compiled(x), program(x))
    assert torch.equal(kiln.compile(program, backend="eager")(x), program(x))
