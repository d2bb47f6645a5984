"""Modules in a bad state, called wrongly or changed under way: eager's error, and the next call is right.

Scenarios as in ``scenarios.py``; an error counts as a result: its type, its text, and the user's lines it came by.
"""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import kiln
from kiln.testing import check, same
from kiln.testing.observe import user_lines
from tests.support.scenarios import Scenarios, play

X = torch.arange(6.0).reshape(2, 3) / 4 - 0.5

bad = Scenarios()


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("scenario, expected, options", bad)
def test_bad_input(scenario, expected, options, fullgraph):
    play(scenario, expected, fullgraph=fullgraph)


def attempt(function, *args, **kwargs):
    """The result, or what was raised."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        lines = [line for line in user_lines(error) if line[0] != "attempt"]
        context = error.__context__
        return type(error), str(error), lines, type(context), str(context), type(error.__cause__)


def linear(scale=1.0):
    made = nn.Linear(3, 3)
    with torch.no_grad():
        made.weight.copy_(torch.arange(9.0).reshape(3, 3) * scale / 10)
        made.bias.fill_(0.5)
    return made


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = linear()
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("shift", torch.full((3,), 2.0))
        self.words = "text"

    def forward(self, x):
        y = self.first(x) * self.scale
        return y + self.shift + len(self.words)


# -- modules that were not made properly ----------------------------------------------------------------------------


class Uninitialised(nn.Module):
    """``super().__init__()`` was forgotten, and nothing was set."""

    def __init__(self):
        pass

    def forward(self, x):
        return x + 1


class SetsPlainAttributes(Uninitialised):
    def __init__(self):
        self.width = 3

    def forward(self, x):
        return x + self.width


@bad()
def never_initialised(compiler):
    m = Uninitialised()
    f = attempt(compiler, m)
    yield attempt(f, X)
    yield attempt(f, X)
    nn.Module.__init__(m)
    yield attempt(f, X)


@bad()
def never_initialised_with_attributes(compiler):
    m = SetsPlainAttributes()
    f = compiler(lambda x: m(x))
    yield attempt(f, X)
    yield attempt(f, X)
    nn.Module.__init__(m)
    yield attempt(f, X)


@bad()
def never_initialised_inside(compiler):
    class Wrong(nn.Module):
        def __init__(self, how):
            if how == "module":
                self.inner = linear()
            elif how == "parameter":
                self.weight = nn.Parameter(torch.ones(3))
            elif how == "buffer":
                self.register_buffer("b", torch.ones(3))
            super().__init__()
            if how == "late":
                raise ValueError("not like this")

        def forward(self, x):
            return x * 2

    f = compiler(lambda x, how: Wrong(how)(x))
    for how in ("module", "parameter", "buffer", "late", "none", "module"):
        yield attempt(f, X, how)


@bad()
def made_without_init(compiler):
    """As some loaders do."""
    m = nn.Linear.__new__(nn.Linear)
    f = compiler(lambda x: m(x))
    yield attempt(f, X)
    m.__dict__.update(linear().__dict__)
    yield attempt(f, X)


# -- forward --------------------------------------------------------------------------------------------------------


@bad()
def forward_is_no_callable(compiler):
    m = Net()
    f = compiler(m)
    yield attempt(f, X)
    for forward in (3, None, "forward", X):
        m.forward = forward
        yield attempt(f, X)
        yield attempt(f, X)
    del m.forward
    yield attempt(f, X)


@bad()
def forward_of_the_class_is_no_callable(compiler):
    class Local(Net):
        pass

    m = Local()
    f = compiler(lambda x: m(x))
    yield attempt(f, X)
    Local.forward = 17
    yield attempt(f, X)
    del Local.forward
    yield attempt(f, X)


@bad()
def forward_is_missing(compiler):
    class Empty(nn.Module):
        pass

    m = Empty()
    f = compiler(m)
    yield attempt(f, X)
    m.forward = lambda x: x * 3
    yield attempt(f, X)
    Empty.forward = lambda self, x: x * 4
    yield attempt(f, X)
    del m.forward
    yield attempt(f, X)


@bad()
def wrong_arguments(compiler):
    m = Net()
    f = compiler(m)
    yield attempt(f)
    yield attempt(f, X)
    yield attempt(f, X, X)
    yield attempt(f, x=X)
    yield attempt(f, y=X)
    yield attempt(f, X, x=X)
    yield attempt(f, None)
    yield attempt(f, "text")
    yield attempt(f, X)


@bad()
def wrong_shapes_and_dtypes(compiler):
    m = nn.Sequential(Net(), nn.ReLU())
    f = compiler(m)
    yield attempt(f, X)
    yield attempt(f, torch.ones(2, 4))
    yield attempt(f, X.double())
    yield attempt(f, X.long())
    yield attempt(f, X.to("meta"))
    yield attempt(f, torch.ones(()))
    yield attempt(f, X)


@bad()
def attribute_of_super_that_is_not_there(compiler):
    class Child(Net):
        def forward(self, x):
            return super().forwards(x)

    m = Child()
    f = compiler(m)
    yield attempt(f, X)
    yield attempt(f, X)


def takes(a, b, /, c, *rest, d, e=2):
    return a


class Taking:
    def __init__(self, width):
        self.width = width

    def method(self, z):
        return z

    @staticmethod
    def static(q=1, *, r):
        return q


CALLS = {
    "nothing": lambda: takes(),
    "too few": lambda: takes(1, 2, 3),
    "position only": lambda: takes(1, b=2, c=3, d=4),
    "unknown": lambda: Taking.static(2, r=1, f=3),
    "twice": lambda: takes(1, 2, 3, c=3, d=1),
    "too many": lambda: Taking.static(1, 2, r=1),
    "class": lambda: Taking(),
    "class with more": lambda: Taking(1, 2),
    "method": lambda: Taking(1).method(),
    "unbound method": lambda: Taking.method(),
    "function without a name": lambda: (lambda x, y=1: x)(1, 2, 3),
    "star of a number": lambda: takes(*5),
    "star of nothing": lambda: Taking(*None),
    "stars of a number": lambda: Taking(1).method(**3),
    "keyword twice": lambda: takes(1, 2, d=1, **{"d": 2}),
    "keyword that is none": lambda: takes(1, 2, 3, **{4: 5}),
    "tensor called": lambda: X(),
    "size called": lambda: X.shape(),
    "ordered dictionary called": lambda: nn.ReLU()._forward_hooks(1),
    "dtype called": lambda: X.dtype(),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_do_not_fit(name):
    """The program can handle CPython's own error, in the graph."""
    call = CALLS[name]

    def program(x):
        try:
            return call()
        except TypeError as error:
            return x + 1, str(error)

    check(program, X, fullgraph=True, graphs=1)


class Endless(nn.Module):
    def __getattr__(self, name):
        return getattr(self, name + "x")

    def forward(self, x):
        return x + self.missing


def test_attributes_without_end():
    """Nobody asks the module anything while it is compiled. (Under ``fullgraph`` the depth is the error.)"""

    def scenario(compiler):
        m = Endless()
        f, g = compiler(lambda x: m(x)), compiler(m)
        m.__dict__["missing"] = 5
        yield f(X), g(X)
        del m.__dict__["missing"]
        yield attempt(f, X)[0], attempt(f, X)[0]

    play(scenario, None)


# -- state that is gone, or is not what it was ----------------------------------------------------------------------


@bad()
def parameter_set_to_none(compiler):
    m = Net()
    f = compiler(m)
    yield attempt(f, X)
    kept, m.scale = m.scale, None
    yield attempt(f, X)
    yield attempt(f, X)
    m.scale = kept
    yield attempt(f, X)
    m.first.bias = None
    yield attempt(f, X)
    m.first.weight = None
    yield attempt(f, X)


@bad()
def attributes_deleted(compiler):
    m = Net()
    f = compiler(m)
    yield attempt(f, X)
    for name in ("words", "shift", "scale", "first"):
        kept = getattr(m, name)
        delattr(m, name)
        yield attempt(f, X)
        yield attempt(f, X)
        if name == "shift":
            m.register_buffer(name, kept)
        else:
            setattr(m, name, kept)
        yield attempt(f, X)


@bad()
def tables_deleted(compiler):
    m = Net()
    f = compiler(m)
    yield attempt(f, X)
    for name in ("_parameters", "_modules", "_forward_hooks", "_buffers"):
        kept = m.__dict__.pop(name)
        yield attempt(f, X)
        m.__dict__[name] = kept
        yield attempt(f, X)


@bad()
def state_of_the_wrong_shape(compiler):
    m = Net()
    f = compiler(m)
    yield attempt(f, X)
    m.shift = torch.ones(5)
    yield attempt(f, X)
    m.shift = torch.ones(3)
    yield attempt(f, X)
    m.scale.data = torch.ones(7)
    yield attempt(f, X)
    m.scale.data = torch.ones(3)
    yield attempt(f, X)
    m.first.weight = nn.Parameter(torch.ones(3, 4))
    yield attempt(f, X)
    yield attempt(f, torch.ones(2, 4))


@bad()
def state_of_another_kind(compiler):
    m = Net()
    f = compiler(m)
    yield attempt(f, X)
    yield attempt(setattr, m, "scale", "text")
    yield attempt(f, X)
    m._parameters["scale"] = "text"
    yield attempt(f, X)
    m._parameters["scale"] = 3.0
    yield attempt(f, X)
    m._modules["first"] = None
    yield attempt(f, X)
    m._modules["first"] = torch.relu
    yield attempt(f, X)
    m.words = 3
    yield attempt(f, X)


@bad()
def loading_what_does_not_fit(compiler):
    m = Net()
    f = compiler(m)
    yield attempt(f, X)
    state = m.state_dict()
    yield attempt(m.load_state_dict, {**state, "scale": torch.ones(4)})
    yield attempt(f, X)
    yield attempt(m.load_state_dict, {"scale": torch.full((3,), 5.0)})
    yield attempt(f, X)
    yield attempt(m.load_state_dict, {**state, "more": torch.ones(4)})
    yield attempt(f, X)
    m.load_state_dict({**state, "scale": torch.full((3,), 7.0)}, assign=True)
    yield attempt(f, X)


@bad()
def called_after_del(compiler):
    m = Net()
    f = compiler(m)
    yield attempt(f, X)
    del m
    yield attempt(f, X)
    if hasattr(f, "_orig_mod"):
        del f.first
    else:
        del f.first
    yield attempt(f, X)


# -- parameters swapped while running -------------------------------------------------------------------------------


class Swapping(nn.Module):
    """Changes its own parameters under way: what comes after sees the new ones."""

    def __init__(self, how):
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 2.0))
        self.other = nn.Parameter(torch.full((3,), 5.0))
        self.how = how

    def forward(self, x):
        y = x * self.weight
        self.how(self)
        return y + self.weight


def swap(m):
    m.weight, m.other = m.other, m.weight


def swap_in_table(m):
    m._parameters["weight"] = m._parameters["other"]


def delete(m):
    del m.weight


def delete_in_table(m):
    del m._parameters["weight"]


def to_none(m):
    m.weight = None


def to_text(m):
    m.weight = "text"


def to_tensor(m):
    m.weight = torch.ones(3)


def make_new(m):
    m.weight = nn.Parameter(torch.ones(3))


def reshape(m):
    m.weight = nn.Parameter(torch.ones(4))


def set_data(m):
    m.weight.data = torch.full((3,), 9.0)


def as_plain_attribute(m):
    m.__dict__["weight"] = m.weight + 1


WAYS = [swap, swap_in_table, delete, delete_in_table, to_none, to_text, to_tensor, make_new, reshape, set_data]
WAYS += [as_plain_attribute]


@pytest.mark.parametrize("where", ["forward", "hook", "pre-hook"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_parameters_changed_by_the_program_itself(way, where):
    def scenario(compiler):
        if where == "forward":
            m = Swapping(way)
        else:
            inner = nn.Identity()
            m = Swapping(lambda m: inner(m.other))
            if where == "hook":
                inner.register_forward_hook(lambda module, args, output: way(m))
            else:
                m.register_forward_pre_hook(lambda module, args: way(module))
        f = compiler(m)
        for _ in range(3):
            yield attempt(f, X), sorted(m._parameters), sorted(m.__dict__)
        m.__dict__.pop("weight", None)
        m._parameters["weight"] = nn.Parameter(torch.full((3,), 2.0))
        yield attempt(f, X), sorted(m._parameters)

    play(scenario, None)


@kiln.config.patch(raise_internal_errors=False)  # guards need not hold when compiling is done: then eager runs
def test_parameters_swapped_by_another_thread():
    """Each call sees the one or the other in full: guards, reads and the graph are about the same parameters."""
    m = nn.Linear(3, 3)
    small, large = nn.Parameter(torch.full((3, 3), 1.0)), nn.Parameter(torch.full((4, 3), 2.0))
    biases = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(4))
    m.weight, m.bias = small, biases[0]
    compiled = kiln.compile(m, backend="eager")
    done = threading.Event()

    def swap_all_the_time():
        while not done.is_set():
            m._parameters.update(weight=large, bias=biases[1])
            m._parameters.update(weight=small, bias=biases[0])

    thread = threading.Thread(target=swap_all_the_time)
    thread.start()
    try:
        for _ in range(300):
            try:
                result = compiled(torch.ones(2, 3))
            except RuntimeError as error:
                assert "size" in str(error), error  # one of each: eager can meet that too
            else:
                assert (tuple(result.shape), result[0, 0].item()) in {((2, 3), 3.0), ((2, 4), 6.0)}
    finally:
        done.set()
        thread.join()
    m.weight, m.bias = small, biases[0]
    assert same(compiled(X), m(X))


# -- hooks ----------------------------------------------------------------------------------------------------------


def raises(*args):
    raise KeyError("hook")


def wrong_signature(module):
    return None


NONSENSE = {
    "raises": raises,
    "raises stop": lambda *args: next(iter(())),
    "divides by zero": lambda *args: 1 / 0,
    "wrong signature": wrong_signature,
    "text": lambda *args: "nonsense",
    "no tensors": lambda *args: (1, 2, 3, 4, 5),
    "empty": lambda *args: (),
    "wrong shape": lambda *args: torch.ones(7, 7),
    "an object": lambda *args: object,
    "no callable": 3,
    "nothing callable": None,
}


@pytest.mark.parametrize("kind", ["_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"])
@pytest.mark.parametrize("name", NONSENSE)
def test_hook_that_is_nonsense(name, kind):
    hook = NONSENSE[name]

    def scenario(compiler):
        m = nn.Sequential(Net(), linear())
        f = compiler(m)
        x = X.clone().requires_grad_()
        yield attempt(f, x)
        table = getattr(m[0], kind)
        table[7] = hook
        if "backward" in kind:
            m[0]._is_full_backward_hook = True
        for _ in range(2):
            result = attempt(f, x)
            yield result
            if isinstance(result, torch.Tensor):
                yield attempt(result.sum().backward), x.grad
        del table[7]
        yield attempt(f, x)

    play(scenario, None)


@bad()
def pre_hook_with_keywords_that_gives_something_else(compiler):
    m = Net()
    f = compiler(m)
    for wrong in (3, (1,), (X, {}), ((X,), 3), ((X,), {"y": 1}), ((X,), {})):
        handle = m.register_forward_pre_hook(lambda module, args, kwargs: wrong, with_kwargs=True)
        yield attempt(f, X)
        handle.remove()
        yield attempt(f, X)


@bad()
def tables_of_hooks_that_are_none(compiler):
    m = Net()
    f = compiler(m)
    yield attempt(f, X)
    for wrong in (None, 3, {}, {5: lambda module, args, output: output * 2}, {"k": raises}):
        m._forward_hooks = wrong
        yield attempt(f, X)
        m._forward_hooks = {}
        yield attempt(f, X)
