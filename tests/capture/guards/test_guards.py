"""Guards on plain Python: values, types, containers, attributes, functions. See ``scenarios.py``."""

import enum
import functools
import types
from collections import OrderedDict, defaultdict, deque, namedtuple

import pytest
import torch

import kiln
from tests.support.scenarios import BACK, Scenarios, play

X = torch.arange(6.0).reshape(2, 3)

guards = Scenarios()


# -- values ---------------------------------------------------------------------------------------------------------


@guards(None, None, "L['n'] == 3, 4 seen", dynamic=False)
def int_value(compiler):
    f = compiler(lambda x, n: x * n)
    yield f(X, 3)
    yield f(X, 3)
    yield f(X, 4)


@guards(None, "True", "L['n']", BACK, BACK)
def true_is_not_one(compiler):
    def f(x, n):
        return x + 1 if n is True else x + 2

    f = compiler(f)
    yield f(X, 1)
    yield f(X, True)
    yield f(X, 1.0)
    yield f(X, 1)
    yield f(X, True)


@guards(None, "-0.0 seen", BACK, BACK, dynamic=False)
def zeros_have_signs(compiler):
    import math

    f = compiler(lambda x, s: x * math.copysign(1.0, s))
    yield f(X, 0.0)
    yield f(X, -0.0)
    yield f(X, 0.0)
    yield f(X, -0.0)


@guards(None, None, "nan", BACK, dynamic=False)
def not_a_number_equals_itself(compiler):
    f = compiler(lambda x, s: x + s if s == s else x)
    yield f(X, float("nan"))
    yield f(X, float("nan"))
    yield f(X, 2.5)
    yield f(X, float("nan"))


@guards(None, None, "(3+1j) seen", "seen")
def complex_values(compiler):
    f = compiler(lambda x, z: x * z.real + (z.imag if str(z.imag) != "-0.0" else 7))
    yield f(X, 2 + 0j)
    yield f(X, 2 + 0j)
    yield f(X, 3 + 1j)
    yield f(X, complex(2, -0.0))


@guards(None, "== 'sum'", BACK)
def string_value(compiler):
    f = compiler(lambda x, how: getattr(x, how)())
    yield f(X, "sum")
    yield f(X, "mean")
    yield f(X, "sum")


@guards(None, "None", BACK)
def none_or_not(compiler):
    f = compiler(lambda x, bias=None: x if bias is None else x + bias)
    yield f(X)
    yield f(X, X)
    yield f(X)


@guards(None, "float64", BACK)
def dtype_argument(compiler):
    f = compiler(lambda x, dtype: x.to(dtype))
    yield f(X, torch.float64)
    yield f(X, torch.float16)
    yield f(X, torch.float64)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@guards(None, None, "RED", BACK)
def enum_member(compiler):
    f = compiler(lambda x, color: x + 1 if color is Color.RED else x + 2)
    yield f(X, Color.RED)
    yield f(X, Color.RED)
    yield f(X, Color.BLUE)
    yield f(X, Color.RED)


# -- types, lengths, keys -------------------------------------------------------------------------------------------


class Plus:
    def act(self, x):
        return x + 1


class Minus:
    def act(self, x):
        return x - 1


@guards(None, None, "type", BACK)
def instance_type(compiler):
    f = compiler(lambda x, who: who.act(x))
    yield f(X, Plus())
    yield f(X, Plus())
    yield f(X, Minus())
    yield f(X, Plus())


@guards(None, "type", "type", BACK)
def container_type(compiler):
    f = compiler(lambda xs: xs[0] + len(xs))
    yield f([X, X + 1])
    yield f((X, X + 1))
    yield f({0: X, 1: X})
    yield f([X, X + 1])


@guards(None, None, "length: 2 expected, 3 seen", BACK)
def list_length(compiler):
    f = compiler(lambda xs: sum(xs[1:], xs[0]))
    yield f([X, X + 1])
    yield f([X + 5, X + 1])
    yield f([X, X + 1, X + 2])
    yield f([X, X + 1])


@guards(None, "length", "length", BACK)
def deque_length(compiler):
    f = compiler(lambda xs: xs[-1] * len(xs))
    yield f(deque([X]))
    yield f(deque([X, X + 1]))
    yield f(deque([X, X + 1, X + 2]))
    yield f(deque([X]))


@guards(None, None, "keys", "keys", BACK)
def keys_and_their_order(compiler):
    def f(d):
        result = 0
        for number, key in enumerate(d):
            result = result + d[key] * (number + 1)
        return result

    f = compiler(f)
    yield f({"a": X, "b": X + 1})
    yield f({"a": X + 3, "b": X + 1})
    yield f({"b": X, "a": X + 1})
    yield f({"a": X, "b": X + 1, "c": X + 2})
    yield f({"a": X + 3, "b": X + 1})


@guards(None, None, None)
def keys_that_nobody_looks_at(compiler):
    f = compiler(lambda d: d["a"] + 1)
    yield f({"a": X})
    yield f({"a": X, "b": X})
    yield f(dict(b=1, a=X))


@guards(None, "has key 'b'", BACK)
def key_presence(compiler):
    f = compiler(lambda d: d["a"] + (d["b"] if "b" in d else 1))
    yield f({"a": X, "b": X})
    yield f({"a": X})
    yield f({"a": X, "b": X})


@guards(None, "has no key 'b'", BACK)
def key_absence(compiler):
    f = compiler(lambda d: d["a"] + d.get("b", 1))
    yield f({"a": X})
    yield f({"a": X, "b": X})
    yield f({"a": X})


@guards(None, "keys", BACK)
def keys_have_types(compiler):
    f = compiler(lambda x, d: x + sum(10 if type(k) is bool else 1 for k in d))
    yield f(X, {1: 0})
    yield f(X, {True: 0})
    yield f(X, {1: 0})


@guards(None, "keys", BACK)
def keys_have_types_inside(compiler):
    f = compiler(lambda x, d: x + sum(10 if type(k[0]) is bool else 1 for k in d))
    yield f(X, {(1, 2): 0})
    yield f(X, {(True, 2): 0})
    yield f(X, {(1, 2): 0})


@guards(None, "keys", BACK)
def set_contents(compiler):
    f = compiler(lambda x, s: x + sum(s))
    yield f(X, {1, 2})
    yield f(X, {1, 3})
    yield f(X, {1, 2})


@guards(None, "L['d']['k'] == 1", dynamic=False)
def value_in_a_dictionary(compiler):
    f = compiler(lambda x, d: x + d["k"])
    yield f(X, {"k": 1})
    yield f(X, {"k": 2})


@guards(None, "key", BACK)
def ordered_and_default(compiler):
    f = compiler(lambda d: d["a"] + (1 if "z" in d else 2))
    yield f(OrderedDict(a=X))
    yield f(OrderedDict(a=X, z=X))
    yield f(OrderedDict(a=X))


@guards(None, "default_factory", BACK)
def default_factory(compiler):
    f = compiler(lambda x, d: x + len(d["new"]))
    yield f(X, defaultdict(list))
    yield f(X, defaultdict(dict))
    yield f(X, defaultdict(list))


Pair = namedtuple("Pair", "left right")


@guards(None, None, "type", BACK)
def named_tuples(compiler):
    f = compiler(lambda p: p[0] + (p.right if hasattr(p, "right") else 3))
    yield f(Pair(X, X))
    yield f(Pair(X, X))
    yield f((X, X))
    yield f(Pair(X, X))


# -- attributes -----------------------------------------------------------------------------------------------------


class Thing:
    scale = 2

    def act(self, x):
        return x * self.scale


def make_thing(**attributes):
    thing = Thing()
    thing.__dict__.update(attributes)
    return thing


@guards(None, "has no attribute 'bias'", BACK)
def attribute_absent_then_there(compiler):
    f = compiler(lambda x, t: x + (t.bias if hasattr(t, "bias") else 1))
    yield f(X, make_thing())
    yield f(X, make_thing(bias=X))
    yield f(X, make_thing())


@guards(None, "bias", BACK)
def attribute_there_then_absent(compiler):
    f = compiler(lambda x, t: x + getattr(t, "bias", 1))
    yield f(X, make_thing(bias=X))
    yield f(X, make_thing())
    yield f(X, make_thing(bias=X))


@guards(None, "scale", BACK, dynamic=False)
def instance_shadows_class_attribute(compiler):
    f = compiler(lambda x, t: t.act(x))
    yield f(X, make_thing())
    yield f(X, make_thing(scale=5))
    yield f(X, make_thing())


@guards(None, "act", BACK)
def instance_shadows_method(compiler):
    f = compiler(lambda x, t: t.act(x))
    yield f(X, make_thing())
    yield f(X, make_thing(act=lambda x: x - 9))
    yield f(X, make_thing())


@guards(None, "act", BACK)
def class_method_replaced(compiler):
    class Local(Thing):
        pass

    f = compiler(lambda x, t: t.act(x))
    t = Local()
    yield f(X, t)
    Local.act = lambda self, x: x - 4
    yield f(X, t)
    del Local.act
    yield f(X, t)


@guards(None, None, "scale")
def class_attribute_replaced(compiler):
    class Local(Thing):
        other = 1

    f = compiler(lambda x, t: t.act(x))
    t = Local()
    yield f(X, t)
    Local.other = 2  # not looked at: the class changed, the assumptions still hold
    yield f(X, t)
    Local.scale = 7
    yield f(X, t)


@guards(None, "scale", BACK, dynamic=False)
def base_class_attribute_replaced(compiler):
    class Base:
        scale = 3

    class Derived(Base):
        pass

    f = compiler(lambda x, t: x * t.scale)
    yield f(X, Derived())
    Base.scale = 4
    yield f(X, Derived())
    Base.scale = 3
    yield f(X, Derived())


@guards(None, "offset", BACK, dynamic=False)
def class_attribute_through_class(compiler):
    class Settings:
        offset = 3

    f = compiler(lambda x: x + Settings.offset)
    yield f(X)
    Settings.offset = 4
    yield f(X)
    Settings.offset = 3
    yield f(X)


@guards(None, "extra", "extra")
def class_attribute_none_then_gone(compiler):
    class Settings:
        extra = None

    f = compiler(lambda x: x + (1 if getattr(Settings, "extra", 5) is None else 2))
    yield f(X)
    del Settings.extra
    yield f(X)
    Settings.extra = 3
    yield f(X)


@guards(None, "__getattr__")
def fallback_added(compiler):
    class Local(Thing):
        pass

    f = compiler(lambda x, t: x + getattr(t, "missing", 1))
    t = Local()
    yield f(X, t)
    Local.__getattr__ = lambda self, name: 10
    yield f(X, t)


@guards(None, "scale")
def property_replaced(compiler):
    class Local:
        @property
        def scale(self):
            return 2

    f = compiler(lambda x, t: x * t.scale)
    yield f(X, Local())
    Local.scale = property(lambda self: 5)
    yield f(X, Local())


@guards(None, "value", BACK, dynamic=False)
def slots(compiler):
    class Slotted:
        __slots__ = ("value",)

        def __init__(self, value):
            self.value = value

    f = compiler(lambda x, t: x + t.value)
    yield f(X, Slotted(3))
    yield f(X, Slotted(4))
    yield f(X, Slotted(3))


@guards(None, "p", None)
def class_of_instance_changed(compiler):
    f = compiler(lambda x, p: p.act(x))
    p = Plus()
    yield f(X, p)
    p.__class__ = Minus
    yield f(X, p)
    yield f(X, Plus())


# -- functions ------------------------------------------------------------------------------------------------------


def helper(x, scale=2, *, bias=1):
    return x * scale + bias


def helper_two(x, scale=2, *, bias=1):
    return x * scale - bias


def fresh_helper():
    made = types.FunctionType(helper.__code__, globals(), "helper", helper.__defaults__)
    made.__kwdefaults__ = dict(helper.__kwdefaults__)
    return made


def namespace_with(function, **names):
    """A copy of a function with globals of its own."""
    return types.FunctionType(function.__code__, {"torch": torch, **names}, function.__name__, function.__defaults__)


def calls_global(x):
    return GLOBAL(x)  # noqa: F821


@guards(None, None, "GLOBAL", BACK)
def global_function_rebound(compiler):
    function = namespace_with(calls_global, GLOBAL=helper)
    f = compiler(function)
    yield f(X)
    yield f(X)
    function.__globals__["GLOBAL"] = helper_two
    yield f(X)
    function.__globals__["GLOBAL"] = helper
    yield f(X)


@guards(None, "code", None)
def global_function_gets_other_code(compiler):
    callee = fresh_helper()
    f = compiler(namespace_with(calls_global, GLOBAL=callee))
    yield f(X)
    callee.__code__ = helper_two.__code__
    yield f(X)
    yield f(X)


@guards(None, "GLOBAL", "GLOBAL", dynamic=False)
def defaults_replaced(compiler):
    callee = fresh_helper()
    f = compiler(namespace_with(calls_global, GLOBAL=callee))
    yield f(X)
    callee.__defaults__ = (5,)
    yield f(X)
    callee.__defaults__ = (5, 6)
    yield f(X)


@guards(None, "GLOBAL", BACK, dynamic=False)
def keyword_defaults_changed_in_place(compiler):
    callee = fresh_helper()
    f = compiler(namespace_with(calls_global, GLOBAL=callee))
    yield f(X)
    callee.__kwdefaults__["bias"] = 8
    yield f(X)
    callee.__kwdefaults__["bias"] = 1
    yield f(X)


@guards(None, "L['scale'] == 2, 5 seen", dynamic=False)
def own_defaults_replaced(compiler):
    callee = fresh_helper()
    f = compiler(callee)
    yield f(X)
    callee.__defaults__ = (5,)
    yield f(X)


@guards(None, "bias", BACK, dynamic=False)
def own_keyword_defaults_changed_in_place(compiler):
    callee = fresh_helper()
    f = compiler(callee)
    yield f(X)
    callee.__kwdefaults__["bias"] = 8
    yield f(X)
    callee.__kwdefaults__["bias"] = 1
    yield f(X)


@guards(None, None, None)
def own_code_replaced(compiler):
    callee = fresh_helper()
    f = compiler(callee)
    yield f(X)
    callee.__code__ = helper_two.__code__
    yield f(X)
    yield f(X)


@guards(None, None, "scale", BACK, dynamic=False)
def own_cell_changed(compiler):
    scale = 3

    def f(x):
        return x * scale

    f = compiler(f)
    yield f(X)
    yield f(X)
    scale = 4
    yield f(X)
    scale = 3
    yield f(X)


@guards(None, "__closure__[0] == 3", BACK, dynamic=False)
def cell_of_a_callee_changed(compiler):
    scale = 3

    def inner(x):
        return x * scale

    f = compiler(lambda x, g: g(x))
    yield f(X, inner)
    scale = 4
    yield f(X, inner)
    scale = 3
    yield f(X, inner)


@guards(None, None, "code", BACK)
def function_argument(compiler):
    def make(n):
        return lambda x: x + 2  # another object each time, the same code

    f = compiler(lambda x, g: g(x))
    yield f(X, make(1))
    yield f(X, make(2))
    yield f(X, lambda x: x - 2)
    yield f(X, make(3))


@guards(None, "keywords", "func", BACK, dynamic=False)
def partial_argument(compiler):
    f = compiler(lambda x, g: g(x))
    yield f(X, functools.partial(helper, scale=3))
    yield f(X, functools.partial(helper, scale=4))
    yield f(X, functools.partial(helper_two, scale=3))
    yield f(X, functools.partial(helper, scale=3))


def reads_global(x):
    return x * SCALE  # noqa: F821


@guards(None, "SCALE", BACK, dynamic=False)
def global_value_rebound(compiler):
    function = namespace_with(reads_global, SCALE=2)
    f = compiler(function)
    yield f(X)
    function.__globals__["SCALE"] = 3
    yield f(X)
    function.__globals__["SCALE"] = 2
    yield f(X)


def uses_builtin(x):
    return x + len([1, 2])


@guards(None, "len", BACK)
def global_hides_builtin(compiler):
    function = namespace_with(uses_builtin)
    f = compiler(function)
    yield f(X)
    function.__globals__["len"] = lambda items: 40
    yield f(X)
    del function.__globals__["len"]
    yield f(X)


def uses_module(x):
    return library.act(x)  # noqa: F821


@guards(None, None, "act", BACK)
def module_attribute_replaced(compiler):
    library = types.ModuleType("library")
    library.act = helper
    library.other = 1
    f = compiler(namespace_with(uses_module, library=library))
    yield f(X)
    library.other = 2
    yield f(X)
    library.act = helper_two
    yield f(X)
    library.act = helper
    yield f(X)


@pytest.mark.parametrize(("scenario", "expected", "options"), guards)
def test_guard(scenario, expected, options):
    play(scenario, expected, **options)


class Planet(enum.Enum):
    EARTH = 1
    MARS = 2

    def __init__(self, number):
        self.mass = number * 10


ENUM_READERS = {
    "value": lambda x: x + Planet.MARS.value,
    "private value": lambda x: x + Planet.MARS._value_,
    "name": lambda x: (x, Planet.MARS.name),
    "attribute": lambda x: x + Planet.MARS.mass,
    "argument": lambda x, member=Planet.MARS: x + member.mass + member.value,
    "dictionary": lambda x: (x, dict(vars(Planet.MARS))["mass"]),
}


@pytest.mark.parametrize("name", ENUM_READERS)
def test_members_of_enumerations_change(name, monkeypatch):
    program = ENUM_READERS[name]
    compiled = kiln.compile(program, backend="eager")
    assert equal(compiled(X), program(X))
    monkeypatch.setattr(Planet.MARS, "_value_", 7)
    monkeypatch.setattr(Planet.MARS, "_name_", "ARES")
    monkeypatch.setattr(Planet.MARS, "mass", 70)
    assert equal(compiled(X), program(X))


def equal(one, other):
    if isinstance(one, tuple):
        return all(map(equal, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
