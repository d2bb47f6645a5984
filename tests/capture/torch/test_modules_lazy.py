"""Lazy modules: their parameters are made while capture looks at the first call, and one entry serves all calls."""

from __future__ import annotations

import collections
import warnings

import pytest
import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

import kiln
from kiln.capture.torch import lazy_modules
from kiln.testing import CompileCounter, check

X = torch.arange(12.0).reshape(3, 4) / 5
LAYERS = {
    "linear": (lambda: nn.LazyLinear(3), X),
    "no bias": (lambda: nn.LazyLinear(3, bias=False), X),
    **{
        f"{name}{dimensions}": (
            lambda name=name, dimensions=dimensions: getattr(nn, f"Lazy{name}{dimensions}d")(
                *((2, 2) if "Conv" in name else ())
            ),
            torch.arange(2 * 3 * 3.0**dimensions).reshape(2, 3, *[3] * dimensions) / 9,
        )
        for name in ("Conv", "ConvTranspose", "BatchNorm", "InstanceNorm")
        for dimensions in (1, 2, 3)
    },
}


def parameters_of(module):
    return [(name, type(value), value) for name, value in module.state_dict(keep_vars=True).items()]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_every_lazy_layer(name):
    make, argument = LAYERS[name]

    def setup():
        module = nn.Sequential(make(), nn.Tanh())
        return module, [(argument,)] * 2, module

    report = check(setup=setup, fullgraph=True, recompiles=0, graphs=1)
    module = report.compiled.program[0]
    assert not isinstance(module, LazyModuleMixin) and type(module).__name__ == type(make()).cls_to_become.__name__


class Materialised(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_parameter("weight", None)

    def forward(self, x):
        return x * self.weight


class Materialising(LazyModuleMixin, Materialised):
    """Its initialisation breaks the graph wherever it is captured: it must not be."""

    cls_to_become = Materialised

    def __init__(self):
        super().__init__()
        self.weight = UninitializedParameter()
        self.register_buffer("seen", UninitializedBuffer())

    def initialize_parameters(self, x):
        kiln.graph_break()
        self.weight.materialize(x.shape)
        self.seen.materialize((1,))
        with torch.no_grad():
            self.weight.uniform_()
            self.seen.fill_(len(x))


class MakesParameter(LazyModuleMixin, nn.Module):
    """No class to become, and parameters that did not exist before; takes any structure of tensors."""

    def initialize_parameters(self, parts, *, extra=None):
        first = parts.inner["a"][0] if isinstance(parts, Pair) else parts[0]
        with torch.no_grad():
            self.weight = nn.Parameter(torch.empty(first.shape).fill_(0.5))
            self.extra = nn.Parameter(torch.ones(len(extra))) if extra else None

    def forward(self, parts, *, extra=None):
        tensors = parts.inner["a"] if isinstance(parts, Pair) else parts
        total = sum(tensors) * self.weight
        return total if extra is None else total + self.extra.sum() * extra[0]


Pair = collections.namedtuple("Pair", "inner last")


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = MakesParameter()

    def forward(self, parts, **kwargs):
        return self.layer(parts[:-1] if isinstance(parts, list) else parts, **kwargs)


class MakesLazy(LazyModuleMixin, nn.Module):
    """Initialising makes a lazy submodule, which is initialised in the same call."""

    def initialize_parameters(self, *args, **kwargs):
        self.layer = MakesParameter()

    def forward(self, parts, extra=None):
        return self.layer(parts, extra=extra)


class Base(LazyModuleMixin, nn.Module):
    def shifted(self, x):
        return x.cos() + self.shift


class ByBase(Base):
    def initialize_parameters(self, x):
        self.shift = nn.Parameter(torch.ones(x.shape[-1]))

    def forward(self, x):
        return super().shifted(x.sin())


WRITTEN = {
    "materialising": (Materialising, (X,), {}, "lazy_module1"),
    "two layers": (lambda: nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(2)), (X,), {}, "lazy_module2"),
    "list": (Outer, ([X, X, X, None],), {}, "lazy_module5"),
    "named tuple": (Outer, (Pair({"a": [X, X], "b": X}, X),), {}, "lazy_module7"),
    "makes lazy": (MakesLazy, ([X, X],), {}, "lazy_module6"),
    "keywords": (MakesLazy, ([X, X],), {"extra": [X, X]}, "lazy_module_kwargs"),
    "no class to become": (ByBase, (X,), {}, "lazy_module_no_cls_to_become"),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.covers(f"test_modules::test_{row[3]}")) for name, row in WRITTEN.items()],
)
def test_lazy_module(name):
    make, args, kwargs, _ = WRITTEN[name]

    def setup():
        module = make()

        def program(*args, **kwargs):
            return module(*args, **kwargs)

        return program, args, (module, parameters_of)

    check(setup=setup, kwargs=kwargs, calls=2, fullgraph=True, recompiles=0, graphs=1)


@pytest.mark.covers("test_modules::test_lazy_module1")
def test_becomes_its_class_and_has_its_parameters():
    module = Materialising()

    def program():
        return module(torch.ones(2, 3))

    counter = CompileCounter()
    compiled = kiln.compile(program, backend=counter, fullgraph=True)
    result = compiled()
    assert type(module) is Materialised and type(module.weight) is nn.Parameter and module.weight.shape == (2, 3)
    assert torch.equal(result, program()) and torch.equal(result, compiled())
    assert counter.frame_count == 1


@pytest.mark.covers("test_modules::test_lazy_module1")
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_made_inside():
    """A lazy module that the function itself makes: right, though not in one graph."""

    def program(x):
        module = nn.LazyLinear(2)
        return module(x), module

    check(program, X, calls=2)


@pytest.mark.covers("test_modules::test_lazy_module3")
def test_converted_afterwards_recompiles_once():
    """The document moves the module to another device; another dtype is the same question."""
    module, counter = nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(1)), CompileCounter()
    compiled = kiln.compile(module, backend=counter, fullgraph=True)
    assert torch.equal(compiled(X), module(X))
    module.to(torch.float64)
    for _ in range(2):
        assert torch.equal(compiled(X.double()), module(X.double()))
    assert counter.frame_count == 2


@pytest.mark.covers("test_modules::test_lazy_module4")
def test_input_that_no_longer_fits():
    def setup():
        module = nn.Sequential(nn.LazyLinear(3), nn.Tanh(), nn.LazyLinear(1))
        return module, [(X,), (torch.ones(5, 4),), (torch.ones(5, 5),), (X,)], module

    check(setup=setup, fullgraph=True)


def test_sizes_that_vary_become_numbers():
    """The module may keep a size that it is given: never one that stands for many."""

    def program(modules, x):
        return modules[0](x.reshape(1, -1, 2))

    def setup():
        modules = [nn.LazyConv1d(2, 1)]
        return program, (modules, torch.ones(3, 2)), modules

    report = check(setup=setup, dynamic=True, fullgraph=True)
    module = report.compiled.state[0]
    assert type(module.in_channels) is int and module.in_channels == 3


# -- where initialising early could be seen ----------------------------------------------------------------------------


class KeepsMean(LazyModuleMixin, nn.Module):
    def initialize_parameters(self, x):
        self.mean = x.mean()

    def forward(self, x):
        return x - self.mean


class LooksAtValues(LazyModuleMixin, nn.Module):
    def initialize_parameters(self, x):
        self.weight = nn.Parameter(torch.ones(2))
        self.positive = bool(x.sum() > 0)

    def forward(self, x):
        return x + 1 if self.positive else x - 1


class HalfDone(LazyModuleMixin, nn.Module):
    """Fails after it has changed a parameter and itself."""

    def __init__(self):
        super().__init__()
        self.weight = UninitializedParameter()

    def initialize_parameters(self, x):
        self.first = 1
        self.weight.materialize((2,))
        if len(x) == 3:
            raise ValueError("three rows")
        with torch.no_grad():
            self.weight.fill_(2)

    def forward(self, x):
        return x * self.weight.sum()


@pytest.mark.parametrize("kind", [KeepsMean, LooksAtValues])
def test_needs_values(kind):
    def setup():
        module = kind()
        return module, [(X,)] * 2, module

    check(setup=setup)
    module = kind()
    with pytest.raises(kiln.exc.Unsupported, match="first call of a lazy module"):
        kiln.compile(module, backend="eager", fullgraph=True)(X)
    assert list(module.parameters()) == [] and hasattr(module, "_initialize_hook")
    assert torch.equal(kiln.compile(module, backend="eager")(X), module(X))


def test_initialising_fails():
    for fullgraph in (False, True):
        module = HalfDone()
        compiled = kiln.compile(module, backend="eager", fullgraph=fullgraph)
        with pytest.raises(ValueError, match="three rows"):
            compiled(X)
        module = HalfDone()
        assert torch.equal(kiln.compile(module, backend="eager", fullgraph=fullgraph)(X[:2]), X[:2] * 4)
        assert type(module.weight) is nn.Parameter


def test_put_back_after_a_failure():
    """Under fullgraph eager raises the module's own error, and so initialises half of it; once, as eager does."""
    module = nn.Sequential(nn.Dropout(), HalfDone())
    before = dict(vars(module[1]))
    with pytest.raises(ValueError), lazy_modules.rollback_on_error(module):
        module(X)
    assert vars(module[1]) == before and type(module[1].weight) is UninitializedParameter
    assert torch.equal(module.eval()(X[:2]), X[:2] * 4)


def test_random_numbers_in_order():
    """Those of the first layer come first, and are drawn while tracing; a lazy layer after dropout breaks the graph."""

    def setup():
        module = nn.Sequential(nn.LazyLinear(4), nn.Dropout(0.5), nn.LazyLinear(2), nn.Dropout(0.5))
        return module, [(X,)] * 2, module

    check(setup=setup, versions=False)  # parameters made while tracing are made once more


class ReadsSetting(LazyModuleMixin, nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.settings = settings

    def initialize_parameters(self, x):
        self.shift = nn.Parameter(torch.full((1,), float(self.settings["shift"])) + self.settings["tensor"])

    def forward(self, x):
        return x + self.shift


@pytest.mark.parametrize("change", ["object", "tensor"])
def test_reads_what_was_changed_before(change):
    def program(settings, module, x):
        if change == "object":
            settings["shift"] = 7
        else:
            settings["tensor"] += 3
        return module(x)

    def setup():
        settings = {"shift": 1, "tensor": torch.zeros(1)}
        module = ReadsSetting(settings)
        return program, [(settings, module, X)] * 2, module

    check(setup=setup)


class Warns(LazyModuleMixin, nn.Module):
    def initialize_parameters(self, x):
        warnings.warn("initialising", stacklevel=1)
        print("initialising", len(x))

    def forward(self, x):
        return x + 1


def test_warnings_and_printing_happen_once():
    def setup():
        module = Warns()
        return module, [(X,)] * 2, module

    check(setup=setup, fullgraph=True)


def test_many_lazy_layers():
    """One attempt finds them all: more layers than capture makes attempts."""

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.LazyLinear(4) for _ in range(120)])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    module = Deep()
    assert torch.equal(kiln.compile(module, backend="eager", fullgraph=True)(X), module(X))
