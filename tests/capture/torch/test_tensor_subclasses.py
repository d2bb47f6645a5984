"""Subclasses of tensors that define in Python what torch defines: properties, methods, operators, class attributes."""

import pytest
import torch

import kiln
from kiln.testing import CompileCounter


class Answering(torch.Tensor):
    """Properties answered by ``__torch_function__``."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.ndim.__get__:
            return 42
        if func is torch.Tensor.shape.__get__:
            return (7, 8)
        if func is torch.Tensor.dtype.__get__:
            return torch.int8
        return super().__torch_function__(func, types, args, kwargs or {})


class Redefining(torch.Tensor):
    """Properties and attributes of the class, also those that Kiln asks for itself."""

    shape = property(lambda self: (1, 2, 3))
    dtype = property(lambda self: "mine")
    data = property(lambda self: 5)
    grad = property(lambda self: 6)
    is_leaf = property(lambda self: "leaf")
    requires_grad = property(lambda self: "perhaps")
    device = "here"
    ndim = property(lambda self: 10)
    T = property(lambda self: "T")
    extra = property(lambda self: self.sum() * 2)
    scale = 3
    nothing = None

    def size(self, *args):
        return 99

    def dim(self):
        return 98


class RedefiningOverride(Redefining):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


class Slightly(torch.Tensor):
    """What Kiln itself does not ask for: this stays in one graph."""

    ndim = property(lambda self: 10)
    extra = property(lambda self: self.sum() * 2)
    T = property(lambda self: super().T + 1)
    scale = 3
    nothing = None

    def to(self, *args, **kwargs):
        return super().to(*args, **kwargs).as_subclass(type(self))

    def sum(self, *args):
        return super().sum(*args) * 2

    @classmethod
    def make(cls, tensor):
        return tensor.as_subclass(cls)

    @staticmethod
    def double(tensor):
        return tensor * 2


class Plainly(Slightly):
    """The same where torch asks no override."""

    __torch_function__ = torch._C._disabled_torch_function_impl


class Operators(torch.Tensor):
    def __add__(self, other):
        return "added"

    def __radd__(self, other):
        return "added from the right"

    def __neg__(self):
        return "negative"

    def __eq__(self, other):
        return "equal"

    def __len__(self):
        return 77

    def __bool__(self):
        return False

    def __getitem__(self, index):
        return ("item", index)

    def __iter__(self):
        return iter([1, 2])

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return f"attribute {name}"


class Settable(torch.Tensor):
    _tag = 4

    @property
    def tag(self):
        return self._tag

    @tag.setter
    def tag(self, value):
        self._tag = value * 2


def told(value):
    if isinstance(value, torch.Tensor):
        return type(value).__name__, value.as_subclass(torch.Tensor).tolist(), str(torch.Tensor.dtype.__get__(value))
    if isinstance(value, list | tuple):
        return type(value).__name__, [told(item) for item in value]
    return type(value).__name__, value


def agree(program, kind, **options):
    def given():
        return torch.arange(6.0).reshape(2, 3).as_subclass(kind)

    with kiln.config.patch(raise_internal_errors=True):
        compiled = kiln.compile(program, backend="eager", **options)
        assert told(compiled(given())) == told(program(given()))
        assert told(compiled(given())) == told(program(given()))


NAMES = "ndim shape dtype data grad is_leaf T requires_grad device".split()


@pytest.mark.parametrize(
    "kind", [Answering, Redefining, RedefiningOverride, Slightly, Plainly], ids=lambda k: k.__name__
)
@pytest.mark.parametrize("name", NAMES)
def test_property(kind, name):
    agree(lambda t: (getattr(t, name), t * 1), kind)


@pytest.mark.parametrize(
    "kind", [Answering, Redefining, RedefiningOverride, Slightly, Plainly], ids=lambda k: k.__name__
)
@pytest.mark.parametrize("name", NAMES)
def test_property_of_a_tensor_made_inside(kind, name):
    agree(lambda t: (getattr((t * 2).as_subclass(kind), name),), torch.Tensor)


@pytest.mark.parametrize("kind", [Redefining, RedefiningOverride, Slightly, Plainly], ids=lambda k: k.__name__)
def test_attributes_of_the_class(kind):
    agree(lambda t: (t.extra, t.scale, t.nothing, t * 1), kind)


@pytest.mark.parametrize("kind", [Redefining, RedefiningOverride], ids=lambda k: k.__name__)
def test_methods_that_tell_sizes(kind):
    agree(lambda t: (t.size(), t.dim(), t.numel()), kind)


@pytest.mark.parametrize("kind", [Slightly, Plainly], ids=lambda k: k.__name__)
def test_methods_stay_in_one_graph(kind):
    def program(t):
        made = t.make(t * 2)
        return t.to(torch.float64), t.sum(), made, t.double(t), made.extra, torch.sum(t), torch.Tensor.sum(t)

    agree(program, kind, fullgraph=True)


@pytest.mark.parametrize(
    "program",
    [
        lambda t: t + 1,
        lambda t: 1 + t,
        lambda t: -t,
        lambda t: t == 1,
        lambda t: len(t),
        lambda t: 1 if t else 2,
        lambda t: t[0],
        lambda t: list(t),
        lambda t: t.something,
        lambda t: getattr(t, "something", 3),
        lambda t: t * 2,
    ],
)
def test_operators(program):
    agree(program, Operators)


def test_a_property_that_is_set():
    def program(t):
        t.tag = 5
        return t.tag, t + 1

    agree(program, Settable)


def test_a_property_is_guarded():
    kind = type("Own", (torch.Tensor,), {"factor": property(lambda self: 2)})
    compiled = kiln.compile(lambda t: t * t.factor, backend=CompileCounter())
    given = torch.ones(2).as_subclass(kind)
    assert compiled(given).tolist() == [2.0, 2.0]
    kind.factor = property(lambda self: 3)
    assert compiled(given).tolist() == [3.0, 3.0]
