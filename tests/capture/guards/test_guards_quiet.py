"""Checking guards and explaining a miss run none of the program's code, whatever stands where the arguments stood."""

import collections
import functools
import types
import warnings
import weakref

import pytest
import torch

import kiln
from kiln.capture.entry.dispatch import explain_miss
from kiln.capture.entry.dispatchers import state_of

SEEN: list[str] = []

METHODS = """
    __getattr__ __getitem__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __len__ __bool__ __iter__ __next__ __contains__
    __hash__ __repr__ __str__ __format__ __index__ __int__ __float__ __complex__ __call__ __add__ __radd__ __mul__
    __rmul__ __sub__ __rsub__ __mod__ __floordiv__ __truediv__ __pow__ __neg__ __abs__ __round__ __floor__ __ceil__
    __trunc__ __missing__ __instancecheck__ __subclasscheck__ __dir__ __bytes__ __reversed__ __length_hint__
""".split()

PROPERTIES = """
    grad shape ndim dtype device is_leaf data names output_nr requires_grad __code__ __func__ __self__ __closure__
    __defaults__ __kwdefaults__ __wrapped__ cell_contents func args keywords start stop step maxlen default_factory
    needs_input_grad saved_tensors __name__ __class__ size stride storage_offset value a b
""".split()


def noting(name):
    def noted(self, *args):
        SEEN.append(name)
        raise RuntimeError(f"the program's {name} ran")

    noted.__name__ = name
    return noted


BODY = {name: noting(name) for name in METHODS} | {name: property(noting(name)) for name in PROPERTIES}


class NotingMeta(type):
    """A metaclass whose instances tell when they are asked for anything."""

    __eq__ = noting("metaclass __eq__")
    __hash__ = noting("metaclass __hash__")
    __repr__ = noting("metaclass __repr__")
    __instancecheck__ = noting("metaclass __instancecheck__")
    __subclasscheck__ = noting("metaclass __subclasscheck__")


Plain = type("Plain", (), BODY)
Odd = NotingMeta("Odd", (), dict(BODY))
Everything = type("Everything", (), {**BODY, "__getattribute__": noting("__getattribute__")})


def subclass(base, names):
    return type(f"Noting{base.__name__}", (base,), {name: BODY[name] for name in names})


CONTAINER = [name for name in METHODS if name not in ("__getattr__", "__missing__", "__next__", "__hash__")]
NotingDict = subclass(dict, [*CONTAINER, "__missing__"])
NotingList = subclass(list, CONTAINER)
NotingTuple = subclass(tuple, CONTAINER)
NotingInt = subclass(int, [name for name in METHODS if name != "__getattr__"])
NotingStr = subclass(str, [name for name in METHODS if name != "__getattr__"])


class NotingTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        SEEN.append("__torch_function__")
        return super().__torch_function__(function, types, args, kwargs or {})


def strangers():
    """What may stand where something else stood."""
    return [
        Plain(),
        Odd(),
        object.__new__(Everything),
        NotingDict(a=1, b=2),
        NotingList([1, 2, 3]),
        NotingTuple((1, 2, 3)),
        int.__new__(NotingInt, 3),
        str.__new__(NotingStr, "a"),
        torch.ones(3).as_subclass(NotingTensor),
        torch.tensor([0, 1]),
        torch.ones(2, 2, requires_grad=True) * 2,
        torch.tensor(1.0),
        None,
        Plain,
        Odd,
        3,
        "a",
        [1, 2],
        {"a": Odd()},
    ]


class Point:
    def __init__(self, a, b=2):
        self.a = a
        self.b = b

    def scaled(self, x):
        return x * self.a


KEPT = Point(2)


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a

    __getattr__ = noting("__getattr__")


class Sized(dict):
    """A dictionary with methods in Python, which noone may call to see whether it is as it was."""

    def __len__(self):
        SEEN.append("__len__")
        return dict.__len__(self)

    def __iter__(self):
        SEEN.append("__iter__")
        return dict.__iter__(self)

    def __contains__(self, key):
        SEEN.append("__contains__")
        return dict.__contains__(self, key)

    def __getitem__(self, key):
        SEEN.append("__getitem__")
        return dict.__getitem__(self, key)


def use_grad(x, t):
    return x * 2 if t.grad is None else x + t.grad


def use_leaf(x, t):
    return x * 2 if t.is_leaf else x


def use_sizes(x, t):
    return x * t.shape[0] if t.shape[0] > t.shape[1] else x + t.sum()


def use_slot(x, t):
    return x * t.a if not hasattr(type(t), "nothing") else x


def use_missing_slot(x, t):
    try:
        return x * object.__getattribute__(t, "b")
    except AttributeError:
        return x * 3


def use_subscript(x, t):
    return x * t[0] + t[1]


def use_defaults(x, t):
    return t(x)


def closure_of(number):
    def inner(x, factor=3, *, more=4):
        return x * number * factor + more

    return inner


def use_reference(x, t):
    found = t()
    return x * found.a if found is not None else x


def change(x, t):
    t.add_(1)
    return x + t


def use_backward(x, t):
    return torch.autograd.grad((t * 2).sum(), t)[0] + x.sum()


class Kind(type):
    def __call__(cls, *args):
        return super().__call__(*args)


PROGRAMS = {
    "slice": (lambda x, t: x[:t] if isinstance(t, int) else x, [1, 2]),
    "number": (lambda x, t: x * t, [2, 3]),
    "float": (lambda x, t: x * t, [2.5, 3.5]),
    "zero": (lambda x, t: x + 1 if t == 0 else x, [0.0]),
    "text": (lambda x, t: x + len(t), ["abc"]),
    "none": (lambda x, t: x if t is None else x + 1, [None]),
    "complex": (lambda x, t: x * t, [2j]),
    "dtype": (lambda x, t: x.to(t), [torch.float64]),
    "range": (lambda x, t: x * sum(t), [range(3)]),
    "list": (use_subscript, [[1, 2], [1, 2, 3]]),
    "tuple": (use_subscript, [(1, 2), (1, 3)]),
    "dict": (lambda x, t: x * t["a"] if "b" in t else x, [{"a": 1, "b": 2}]),
    "dict lacks": (lambda x, t: x * t.get("a", 2), [{"b": 2}]),
    "dict loop": (lambda x, t: x * sum(t.values()), [{"a": 1, "b": 2}]),
    "dict empty": (lambda x, t: x if t else x * 2, [{}]),
    "dict objects": (lambda x, t: x * sum(t.values()), [{Point(1): 1, Point(2): 2}]),
    "ordered": (lambda x, t: x * next(iter(t.values())), [collections.OrderedDict(a=1, b=2)]),
    "defaultdict": (lambda x, t: x * t["a"], [collections.defaultdict(int, a=1)]),
    "own dictionary": (lambda x, t: x * len(dict(t)) if isinstance(t, dict) else x, [Sized(a=1)]),
    "own empty dictionary": (lambda x, t: x * len(list(dict.keys(t))), [Sized()]),
    "set": (lambda x, t: x * sum(t), [{1, 2}]),
    "deque": (lambda x, t: x * t[0], [collections.deque([1, 2], maxlen=3)]),
    "object": (lambda x, t: x * t.a if t.b else x, [Point(1)]),
    "object of object": (lambda x, t: x * t.a.a, [Point(Point(1))]),
    "no attribute": (lambda x, t: x * getattr(t, "c", 3), [Point(1)]),
    "attributes": (lambda x, t: x * len(vars(t)), [Point(1)]),
    "method": (lambda x, t: t(x), [Point(2).scaled]),
    "slot": (use_slot, [Slotted(2)]),
    "empty slot": (use_missing_slot, [Slotted(2)]),
    "function": (use_defaults, [closure_of(2), closure_of(3)]),
    "partial": (use_defaults, [functools.partial(closure_of(2), factor=2)]),
    "builtin": (use_defaults, [torch.sin]),
    "class": (lambda x, t: x * t(2).a, [Point]),
    "slice object": (lambda x, t: x[t], [slice(0, 2)]),
    "identity": (lambda x, t: x if t is torch else x * 2, [torch]),
    "type": (lambda x, t: x * 2 if type(t) is Point else x, [Point(2)]),
    "isinstance": (lambda x, t: x * 2 if isinstance(t, collections.abc.Mapping) else x, [Point(2)]),
    "iterator": (lambda x, t: x * next(t), [iter([1, 2])]),
    "namespace": (lambda x, t: x * t.a, [types.SimpleNamespace(a=2)]),
    "tensor": (lambda x, t: x + t, [torch.ones(3), torch.ones(1)]),
    "tensor sizes": (use_sizes, [torch.ones(3, 2), torch.ones(4, 2), torch.ones(5, 3)]),
    "tensor grad": (use_grad, [torch.ones(3, requires_grad=True)]),
    "tensor leaf": (use_leaf, [torch.ones(3, requires_grad=True)]),
    "tensor changed": (change, [torch.ones(3)]),
    "tensor differentiated": (use_backward, [torch.ones(3, requires_grad=True)]),
    "tensor attribute": (lambda x, t: x * getattr(t, "mark", 3), [torch.ones(3)]),
    "list of tensors": (lambda x, t: x + t[0] + t[1], [[torch.ones(3), torch.ones(3)]]),
    "many": (lambda x, t: x + sum(t[i].a for i in range(9)), [[Point(torch.ones(3)) for _ in range(9)]]),
    "module": (lambda x, t: t(x), [torch.nn.Linear(3, 3)]),
    "weak reference": (use_reference, [weakref.ref(KEPT)]),
    "set of constants": (lambda x, t: x * 2 if "a" in t else x, [frozenset({"a"})]),
    "metaclass": (lambda x, t: x * t.a, [Kind("Made", (), {"a": 3})]),
}


def look(compiled, args, kwargs=None):
    """What the checks of a compiled function say of a call, and the reason for the miss."""
    answers = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for check, _ in list(compiled.entries):
            try:
                answers.append(check is None or check(*args))
            except Exception as error:  # as the dispatcher takes it
                answers.append(error)
        reason = explain_miss(state_of(compiled).cache, compiled.function, args, kwargs or {})
    return answers, reason, [str(each.message) for each in caught]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_strangers_as_arguments_are_not_run(name, dynamic):
    program, values = PROGRAMS[name]
    x = torch.ones(3)
    compiled = kiln.compile(program, backend="eager", dynamic=dynamic)
    for value in values:
        compiled(x, value)
    assert compiled.entries
    SEEN.clear()
    for value in strangers():
        answers, reason, warned = look(compiled, (x, value))
        assert (SEEN, warned) == ([], []), (type.__repr__(type(value)), answers)
        assert isinstance(reason, str)


INSIDE = {
    "item": (use_subscript, [[1, 2]], lambda t, new: t.__setitem__(0, new)),
    "value": (lambda x, t: x * t["a"], [{"a": 1}], lambda t, new: t.__setitem__("a", new)),
    "attribute": (lambda x, t: x * t.a, [Point(1)], lambda t, new: setattr(t, "a", new)),
    "attribute list": (lambda x, t: x * t.a[0], [Point([1])], lambda t, new: setattr(t, "a", new)),
    "attribute dict": (lambda x, t: x * t.a["a"], [Point({"a": 1})], lambda t, new: setattr(t, "a", new)),
    "attribute object": (lambda x, t: x * t.a.a, [Point(Point(1))], lambda t, new: setattr(t, "a", new)),
    "attribute tensor": (
        lambda x, t: use_grad(x, t.a),
        [Point(torch.ones(3, requires_grad=True))],
        lambda t, new: setattr(t, "a", new),
    ),
    "attribute sizes": (
        lambda x, t: use_sizes(x, t.a),
        [Point(torch.ones(3, 2)), Point(torch.ones(4, 2))],
        lambda t, new: setattr(t, "a", new),
    ),
    "slot": (use_slot, [Slotted(1)], lambda t, new: setattr(t, "a", new)),
    "defaults": (use_defaults, [closure_of(3)], lambda t, new: setattr(t, "__defaults__", (new,))),
    "keyword defaults": (use_defaults, [closure_of(3)], lambda t, new: t.__kwdefaults__.__setitem__("more", new)),
    "cell": (use_defaults, [closure_of(3)], lambda t, new: setattr(t.__closure__[0], "cell_contents", new)),
    "module": (
        lambda x, t: t(x),
        [torch.nn.Sequential(torch.nn.ReLU())],
        lambda t, new: t._modules.__setitem__("0", new),
    ),
    "class": (
        lambda x, t: x * t.extra,
        [type("Own", (), {"extra": 3})()],
        lambda t, new: setattr(type(t), "extra", new),
    ),
}


@pytest.mark.parametrize("name", INSIDE)
def test_strangers_inside_arguments_are_not_run(name):
    program, values, put = INSIDE[name]
    x = torch.ones(3)
    compiled = kiln.compile(program, backend="eager")
    for value in values:
        compiled(x, value)
    assert compiled.entries
    for stranger in strangers():
        put(values[-1], stranger)
        SEEN.clear()
        answers, reason, warned = look(compiled, (x, values[-1]))
        assert (SEEN, warned) == ([], []), (type.__repr__(type(stranger)), answers)
        assert isinstance(reason, str)


OUTSIDE = None


@pytest.mark.parametrize(
    "before", [1, 2.5, "a", [1, 2], {"a": 1}, Point(1), torch.ones(3)], ids=lambda v: type(v).__name__
)
def test_strangers_in_globals_are_not_run(before):
    global OUTSIDE

    def program(x):
        outside = OUTSIDE
        if type(outside) is str:
            return x + len(outside)
        if type(outside) is list:
            return x * outside[0]
        if type(outside) is dict:
            return x * outside["a"]
        return x * (outside.a if type(outside) is Point else outside)

    OUTSIDE = before
    compiled = kiln.compile(program, backend="eager")
    compiled(torch.ones(3))
    for stranger in strangers():
        OUTSIDE = stranger
        SEEN.clear()
        answers, reason, warned = look(compiled, (torch.ones(3),))
        assert (SEEN, warned) == ([], []), (type.__repr__(type(stranger)), answers)
        assert isinstance(reason, str)


def test_an_index_that_becomes_a_tensor():
    compiled = kiln.compile(lambda x, t: x[:t] if isinstance(t, int) else x[t])
    found = [compiled(torch.arange(3.0), t).tolist() for t in (1, 2, torch.tensor([0, 1]))]
    assert found == [[0.0], [0.0, 1.0], [0.0, 1.0]]


def test_overrides_do_not_run_for_the_sizes_of_a_subclass():
    compiled = kiln.compile(lambda x: x.sum(), backend="eager", dynamic=True)
    given = torch.ones(3, 4).as_subclass(NotingTensor)
    compiled(given)
    SEEN.clear()
    answers, _, _ = look(compiled, (given,))
    assert [bool(answer) for answer in answers] == [True]
    look(compiled, (torch.ones(1, 4).as_subclass(NotingTensor),))
    assert SEEN == []


def test_keys_that_hash_like_a_constant_are_not_compared_for_a_reason():
    class Key:
        def __init__(self, name):
            self.name = name

        def __hash__(self):
            return hash(self.name)

        def __eq__(self, other):
            SEEN.append("__eq__")
            return self is other

    compiled = kiln.compile(lambda x, t: x * t["a"] if "b" not in t else x, backend="eager")
    compiled(torch.ones(3), {"a": 1})
    odd = {Key("a"): 1, Key("b"): 2}
    SEEN.clear()
    reason = explain_miss(state_of(compiled).cache, compiled.function, (torch.ones(3), odd), {})
    assert SEEN == []
    assert "'a'" in reason


def test_abstract_classes_are_not_asked_again():
    import abc

    class Hooked(metaclass=abc.ABCMeta):  # noqa: B024
        @classmethod
        def __subclasshook__(cls, other):
            SEEN.append("__subclasshook__")
            return NotImplemented

    compiled = kiln.compile(lambda x, t: x * 2 if isinstance(t, Hooked) else x, backend="eager")
    point = Point(1)
    compiled(torch.ones(3), point)
    Hooked.register(Slotted)  # abstract classes look again
    SEEN.clear()
    look(compiled, (torch.ones(3), point))
    assert SEEN == []
    assert torch.equal(compiled(torch.ones(3), point), torch.ones(3))
    Hooked.register(Point)
    assert torch.equal(compiled(torch.ones(3), point), torch.ones(3) * 2)


def test_a_value_is_described_without_its_code():
    from kiln.capture.guards.descriptions import short_text

    SEEN.clear()
    for value in strangers():
        assert isinstance(short_text(value), str)
        assert isinstance(short_text([value]), str)
    assert SEEN == []


def test_objects_that_entries_stand_for_are_not_compared():
    """A check is written, and a miss explained, without comparing the objects that it asks for."""
    one, other = Plain(), Plain()

    def program(x, given):
        return x + 1 if given is one else x - 1

    compiled = kiln.compile(program)
    SEEN.clear()
    for given in (one, other, one, None):
        assert torch.equal(compiled(torch.ones(2), given), program(torch.ones(2), given))
    assert SEEN == []


def test_arrays_between_graphs_are_not_compared():
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")

    def program(x):
        array = numpy.arange(5)
        out = numpy.empty((5, 5))
        result = numpy.sin(array, out=out)
        return x + len(result), result is out

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seen, expected = kiln.compile(program)(torch.ones(2)), program(torch.ones(2))
    assert torch.equal(seen[0], expected[0]) and seen[1] is expected[1]
