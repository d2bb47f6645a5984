"""The ways in which people write a module's ``forward``: each is one graph, compiled once, and does what eager does."""

from __future__ import annotations

import abc
import collections
import contextlib
import enum
import functools
from types import SimpleNamespace
from typing import Generic, TypeVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kiln.testing import check

X = torch.arange(24.0).reshape(4, 6) / 11 - 1


class Scaled(nn.Module):
    """A layer, and a tensor that is a plain attribute."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.factor = torch.linspace(0.5, 1.5, 6)

    def forward(self, x):
        return torch.tanh(self.inner(x)) * self.factor


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 6), nn.Tanh())

    def forward(self, x):
        return self.steps(x)


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Scaled(), Scaled()
        self.factor = torch.full((1, 6), 0.25)

    def forward(self, x):
        return self.second(self.first(x)) * self.factor


class Helping(Nested):
    """Children handed to a method, and to static and class methods, reached through the instance."""

    way = "method"

    def method(self, child, x):
        return child(x) + self.factor

    @staticmethod
    def static(child, x):
        return child(x) - 2

    @classmethod
    def of_class(cls, child, x):
        return child(x) * len(cls.way)

    def forward(self, x):
        help_with = getattr(self, self.way)
        return help_with(self.first, x) + help_with(self.second, x)


class HelpingStatically(Helping):
    way = "static"


class HelpingByClass(Helping):
    way = "of_class"


class StaticForward(nn.Module):
    @staticmethod
    def forward(x):
        return x * x.sigmoid()


class ClassForward(nn.Module):
    offset = 3

    @classmethod
    def forward(cls, x):
        return x + cls.offset


class Calls(nn.Module):
    """A module whose forward is a static or a class method, called by another."""

    def __init__(self, kind):
        super().__init__()
        self.child = kind()

    def forward(self, x):
        return self.child(x) + 1


class FunctionAsMember(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.activation = activation

    def forward(self, x):
        x = self.inner(x)
        if self.activation:
            x = self.activation(x)
        if self.activation is not None and self.activation is not F.relu:
            x = x + 2
        return x.cos() if self.activation is None else x


class CountedLoop(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.times = nn.Linear(6, 6), 4

    def forward(self, x):
        for step in range(self.times):
            x = self.inner(x).sigmoid() + step
        return x


class TrainingBranch(nn.Module):
    def __init__(self):
        super().__init__()
        self.learning, self.judging = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        layer = self.learning if self.training else self.judging
        return layer(x).relu()


class MaybeLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.there, self.absent = nn.Linear(6, 6), None

    def forward(self, x):
        for layer in (self.there, self.absent):
            if layer is not None:
                x = layer(x)
        return x if self.absent is None else x + 1


class PlainContainers(nn.Module):
    """Modules in a plain list and a plain dict, tensors in a tuple: Python's own containers."""

    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)]
        self.named = {"out": nn.Linear(6, 2)}
        self.tensors = (torch.ones(1, 6), torch.full((4, 1), 0.5))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        for tensor in self.tensors:
            x = x * tensor
        return self.named["out"](x)


class DefaultNumber(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x, offset=3, *, factor=0.5):
        return self.inner(x) * factor + offset


class Configured(nn.Module):
    """Settings in an object, a string and an enum."""

    class Mode(enum.Enum):
        PLAIN = 1
        TWICE = 2

    def __init__(self):
        super().__init__()
        self.settings = SimpleNamespace(shift=0.25, times=2)
        self.mode, self.kind = self.Mode.TWICE, "smooth"
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        for _ in range(self.settings.times):
            x = self.inner(x + self.settings.shift)
        if self.kind == "smooth":
            x = x.tanh()
        return x * 2 if self.mode is self.Mode.TWICE else x


class Listed(nn.Module):
    """Every way of walking a ModuleList."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)])

    def forward(self, x):
        for index in range(len(self.layers)):
            x = self.layers[index](x)
        for layer, amount in zip(self.layers, (x, 2, x.sum()), strict=True):
            x = layer(x) + amount
        for index, layer in enumerate(self.layers[::-1]):
            x = layer(x) * index
        for layer in reversed(self.layers):
            x = layer(x)
        return self.layers[-1](x) + self.layers[1:][0](x)


class ListedInPairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.pairs = nn.ModuleList([nn.ModuleList([nn.Linear(6, 6), nn.SiLU()]) for _ in range(2)])

    def forward(self, x):
        for layer, activation in self.pairs:
            x = activation(layer(x))
        return x


class OwnItems(nn.Module):
    """``__getitem__``, ``__len__`` and ``__iter__`` of the module itself, over containers of each kind."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.ReLU()])
        self.table = nn.ModuleDict({"a": nn.Linear(6, 6)})
        self.weights = nn.ParameterDict({"w": nn.Parameter(torch.eye(6) * 2)})

    def __getitem__(self, key):
        if isinstance(key, int):
            return self.layers[key]
        return self.table[key] if key in self.table else self.weights[key]

    def __len__(self):
        return len(self.layers)

    def __iter__(self):
        yield from self.layers

    def forward(self, x):
        for index in range(len(self)):
            x = self[index](x)
        for layer in self:
            x = layer(x)
        return self["a"](x).mm(self["w"])


class Tabled(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.ModuleDict({"first": nn.Linear(6, 6), "second": nn.PReLU()})
        self.weights = nn.ParameterDict({"w": nn.Parameter(torch.eye(6) / 3)})

    def forward(self, x):
        for name in self.table:
            x = self.table[name](x)
        for name in self.table.keys():
            x = self.table[name](x) + len(name)
        for layer in self.table.values():
            x = layer(x)
        for name, layer in self.table.items():
            x = layer(x) if name == "first" else x
        if "first" in self.table and "third" not in self.table:
            x = x + len(self.table)
        return x @ self.weights["w"]


class Joined(nn.Module):
    def forward(self, tensors):
        return torch.cat(tensors, 1) * 0.5


class Dense(nn.ModuleDict):
    """A ModuleDict with a forward of its own, whose names are no identifiers; walked in three ways."""

    def __init__(self, way):
        super().__init__()
        self.way = way
        for number in range(3):
            self.add_module(f"l@yer-{number}", Joined())

    def forward(self, x):
        seen = [x]
        if self.way == "values":
            for layer in self.values():
                seen.append(layer(seen))
        elif self.way == "enumerated":
            for number, layer in enumerate(self.values()):
                seen.append(layer(seen) + number)
        else:
            for key in self.keys():
                seen.append(self[key](seen))
        return torch.cat(seen, 1)


class CallsSuper(Scaled):
    def forward(self, x):
        return super().forward(x) + 5


class CallsBaseByName(Scaled):
    def forward(self, x):
        return Scaled.forward(self, x)


class Doubling(nn.Module):
    @classmethod
    def doubled(cls, x):
        return x + x


class CallsClassMethodOfSuper(Doubling):
    @classmethod
    def doubled(cls, x):
        return super().doubled(x) * 3

    def forward(self, x):
        return self.doubled(x)


class Children(nn.Module):
    def __init__(self, named):
        super().__init__()
        self.named = named
        self.a, self.b, self.c = nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)

    def forward(self, x):
        if self.named:
            for name, child in self.named_children():
                x = child(x) + (name == "c")
        else:
            for child in self.children():
                x = child(x)
        return x


class AsksForAttributes(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((6,), 2.0))

    def forward(self, x):
        x = x.relu()
        if hasattr(self, "scale"):
            x *= self.scale
        if hasattr(self, "shift"):
            x += self.shift
        return x + getattr(self, "nothing", 1)


class WithProperty(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.full((6,), 3.0)
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])

    @property
    def alias(self):
        return self.scale

    @property
    def pair(self):
        return [self.layers[0], self.layers[1]]

    def forward(self, x):
        for layer in self.pair:
            y = layer(x)
            y = F.relu6(y) if layer is None or layer == self.layers[0] else y.sin()
        return y * self.alias


class Direct(nn.Module):
    """``forward`` of children called by name, torch's own too."""

    def __init__(self):
        super().__init__()
        self.inner, self.last = Scaled(), nn.Linear(6, 4)

    def forward(self, x):
        return self.last.forward(self.inner.forward(x)) + self.last.__call__(x)


class NamedByClass(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        if type(self).__name__ == "Other":
            return None
        if self.inner.__class__.__name__ == "Linear":
            return self.inner(x).relu() + len(self._get_name())
        return 0


class Shadowed(nn.Module):
    """Methods of the base class with the names of children, parameters, buffers and plain attributes of the instance.

    What is in the instance's dictionary wins; children, parameters and buffers come only after the class.
    """

    def linear(self, x):
        return x * 3

    def factor(self):
        raise AssertionError("the attribute wins")


class Shadowing(Shadowed):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.factor = 0.5
        self.ones = torch.ones(6)

    def ones(self):
        raise AssertionError("the attribute wins")

    def forward(self, x):
        return self.linear(x + self.ones) * self.factor


class Repeated(nn.Module):
    """One child many times in a Sequential, by number and by name."""

    def __init__(self, named):
        super().__init__()
        self.relu = nn.ReLU()
        layers = [("a", nn.Linear(6, 5)), ("b", self.relu), ("c", nn.Linear(5, 6)), ("d", self.relu)]
        steps = collections.OrderedDict(layers)
        self.steps = nn.Sequential(steps) if named else nn.Sequential(*steps.values())

    def forward(self, x):
        return self.steps(x) + self.relu(x)


def elsewhere(x, y):
    """A function beside the module."""
    return x.sin() + y * 4


class CallsElsewhere(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        return elsewhere(self.inner(x), x)


class Convolving(nn.Module):
    """``forward`` of torch's convolutions called directly, and their own helper."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer.forward(x.reshape(1, 2, 3, 4))


class ConvolvingByHelper(Convolving):
    def forward(self, x):
        return self.layer._conv_forward(x.reshape(1, 2, 3, 4), self.layer.weight, self.layer.bias)


class OwnConvolution(nn.Conv1d):
    def forward(self, x, mask=None):
        return super().forward(x) if mask is None else x


class OwnTransposed(nn.ConvTranspose2d):
    def forward(self, x):
        if x.numel() > 0:
            return super().forward(x.reshape(2, 3, 4))
        sizes = [(i - 1) * s + k for i, s, k in zip(x.shape[-2:], self.stride, self.kernel_size, strict=True)]
        return x.new_empty([x.shape[0], self.bias.shape[0], *sizes])


# how it is made -> the behaviours of the modules document that it shows
FORMS = {
    "chain": (Chain, "seq"),
    "scaled": (Scaled, "basicmodule1 basicmodule2"),
    "nested": (Nested, "submodules1 submodules2"),
    "method": (Helping, "modulemethod1 modulemethod2"),
    "static method": (HelpingStatically, "module_static_method"),
    "class method": (HelpingByClass, "module_class_method"),
    "static forward": (lambda: Calls(StaticForward), "module_call_module_with_static_forward"),
    "class forward": (lambda: Calls(ClassForward), ""),
    "function": (lambda: FunctionAsMember(F.gelu), "fnmember"),
    "function compared": (lambda: FunctionAsMember(F.relu), "fnmembercmp1"),
    "no function": (lambda: FunctionAsMember(None), "fnmembercmp2"),
    "counted loop": (CountedLoop, "constloop"),
    "training": (TrainingBranch, "istraining1 istraining2"),
    "evaluating": (lambda: TrainingBranch().eval(), "iseval1 iseval2"),
    "function elsewhere": (CallsElsewhere, "viamodulecall"),
    "layer that is None": (MaybeLayer, "isnonelayer"),
    "plain containers": (PlainContainers, "layerlist tensorlist"),
    "default number": (DefaultNumber, "intarg"),
    "configured": (Configured, "cfgmod stringmember"),
    "listed": (Listed, "modulelist"),
    "listed in pairs": (ListedInPairs, "modulelist_nested"),
    "own items": (OwnItems, "modulelist_custom moduledict_custom parameterdict_custom"),
    "tabled": (
        Tabled,
        "moduledict parameterdict module_dict_iter_name module_dict_iter_keys module_dict_iter_values",
    ),
    "dense": (lambda: Dense("values"), "densenet module_guard_name_is_valid"),
    "dense enumerated": (lambda: Dense("enumerated"), "enumvalues"),
    "dense by key": (lambda: Dense("keys"), "access_by_keys"),
    "super": (CallsSuper, "super1"),
    "base by name": (CallsBaseByName, "super2"),
    "super's class method": (CallsClassMethodOfSuper, "super_class_method"),
    "children": (lambda: Children(False), "children"),
    "named children": (lambda: Children(True), "named_children"),
    "attributes asked for": (AsksForAttributes, "hasattr"),
    "property": (WithProperty, "module_property module_comparison"),
    "direct": (Direct, "forward_directly"),
    "named by class": (NamedByClass, "module_name_string"),
    "shadowing": (Shadowing, "module_attribute_precedence attr_precedence"),
    "repeated": (lambda: Repeated(False), "sequential_with_duplicated_module"),
    "repeated by name": (lambda: Repeated(True), "sequential_with_duplicated_module2"),
    "convolution": (lambda: Convolving(nn.Conv2d(2, 3, 2, bias=False)), "conv_call_forward_directly"),
    "transposed": (lambda: Convolving(nn.ConvTranspose2d(2, 3, 2)), "conv_transpose_call_forward_directly"),
    "convolution's helper": (
        lambda: ConvolvingByHelper(nn.Conv2d(2, 3, (2, 2))),
        "call_fn_with_non_const_inputs_safe",
    ),
    "own convolution": (lambda: OwnConvolution(4, 2, 3), "conv_call_super_forward_directly"),
    "own transposed": (lambda: OwnTransposed(2, 2, 2), "conv_transpose_call_super_forward_directly"),
}


# -- classes and forwards of the rarer kinds ---------------------------------------------------------------------------

Kind = TypeVar("Kind")


class Typed(nn.Module, Generic[Kind]):
    def forward(self, x):
        return x + 1


class Abstract(nn.Module, abc.ABC):
    @abc.abstractmethod
    def body(self, x): ...

    def forward(self, x):
        return self.body(x) + 1


class Concrete(Abstract):
    def __init_subclass__(cls, factor=2, **kwargs):
        super().__init_subclass__(**kwargs)
        cls.factor = factor

    def body(self, x):
        return x * self.factor


class WithFactor(Concrete, factor=5):
    pass


class Adds:
    """No module: its forward comes before the module's."""

    def forward(self, x):
        return super().forward(x) + 1


class Mixed(Adds, Scaled):
    pass


def doubled(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) * 2

    return wrapper


class Decorated(Scaled):
    @doubled
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


class DecoratesInside(Scaled):
    def forward(self, x):
        return doubled(self.inner)(x) + doubled(elsewhere)(x, x)


class WithoutGradients(Scaled):
    @torch.no_grad()
    def forward(self, x):
        return super().forward(x)


class InLowPrecision(Scaled):
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def forward(self, x):
        return super().forward(x)


class Partial(Scaled):
    def body(self, x, factor):
        return self.inner(x) * factor

    forward = functools.partialmethod(body, factor=3)


class Dispatching(Scaled):
    @functools.singledispatchmethod
    def apply_to(self, value):
        return self.inner(value)

    @apply_to.register
    def _(self, value: int):
        return value

    def forward(self, x):
        return self.apply_to(x) + self.apply_to(3)


class OwnFunction(Scaled):
    def __init__(self):
        super().__init__()
        self.forward = lambda x: self.inner(x) * 2


class Scoped(Scaled):
    """A context manager of its own, and a generator over its children."""

    def __init__(self):
        super().__init__()
        self.depth = 0

    @contextlib.contextmanager
    def deeper(self):
        self.depth += 1
        try:
            yield self.depth
        finally:
            self.depth -= 1

    def parts(self):
        for number, child in enumerate(self.children()):
            yield number + 1, child

    def forward(self, x):
        with self.deeper() as depth:
            found = [x := child(x) * number for number, child in self.parts()]
        return torch.stack(found) * depth + self.depth


class NamedOutputs(Scaled):
    def forward(self, x, mask=None, *, scale=1.0, **more):
        y = self.inner(x) * scale
        return {"pair": Outputs(y, [y, more]), "same": y, "nothing": mask}


Outputs = collections.namedtuple("Outputs", "first rest")


class KnowsItsParent(nn.Module):
    class Child(nn.Module):
        def forward(self, x):
            return x * self.parent.factor

    def __init__(self):
        super().__init__()
        self.factor, self.child = 3, self.Child()
        self.child.__dict__["parent"] = self

    def forward(self, x):
        return self.child(x)


class BufferList(nn.Module):
    def __init__(self):
        super().__init__()
        for number in range(2):
            self.register_buffer(str(number), torch.full((6,), number + 1.0))

    def __iter__(self):
        return iter(self._buffers.values())

    def __getitem__(self, number):
        return self._buffers[str(number)]

    def forward(self, x):
        for buffer in self:
            x = x * buffer
        return x + self[1]


class Matching(nn.Module):
    mode = "b"

    def forward(self, x):
        match self.mode:
            case "a":
                return x
            case "b" if x.shape[0] > 2:
                return x * 2
        return x * 3


RARE = [Typed[int], WithFactor, Mixed, Decorated, DecoratesInside, WithoutGradients, InLowPrecision, Partial]
RARE += [Dispatching, OwnFunction, Scoped, NamedOutputs, KnowsItsParent, BufferList, Matching]
FORMS |= {getattr(kind, "__name__", "Typed"): (kind, "") for kind in RARE}


def covering(table):
    """The names of a table, each marked with what its row covers."""
    rows = []
    for name, row in table.items():
        covers = [f"test_modules::test_{seed}" for seed in row[-1].split()]
        rows.append(pytest.param(name, marks=pytest.mark.covers(*covers) if covers else ()))
    return rows


@pytest.mark.parametrize("name", covering(FORMS))
def test_form(name):
    """One graph for the module, and no recompile on the second call."""
    make = FORMS[name][0]

    def setup():
        torch.manual_seed(1)
        module = make()
        return module, [(X.clone().requires_grad_(),), ((X + 1).requires_grad_(),)], module

    check(setup=setup, fullgraph=True, recompiles=0)


@pytest.mark.parametrize("name", FORMS)
def test_form_inside_a_function_with_breaks(name):
    make = FORMS[name][0]

    def setup():
        torch.manual_seed(1)
        module = make()

        def program(x):
            y = module(x)
            z = module(x + 1)
            return y, z

        return program, [(X,)] * 2, module

    check(setup=setup, breaks_every=("line",))
