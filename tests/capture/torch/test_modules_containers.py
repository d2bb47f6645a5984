"""Containers of modules and parameters changed by the program; where modules live; modules made by the program."""

from __future__ import annotations

import copy
import dataclasses
import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kiln.testing import check

X = torch.arange(24.0).reshape(4, 6) / 11 - 1


def ones(value=1.0):
    return nn.Parameter(torch.full((6,), float(value)))


class Reads(nn.Module):
    """Everything that can be asked of containers of parameters."""

    def __init__(self):
        super().__init__()
        self.listed = nn.ParameterList([ones(number) for number in range(3)])
        self.table = nn.ParameterDict({"a": ones(), "b": ones(2), "plain": torch.ones(6)})

    def forward(self, x):
        for index, parameter in enumerate(self.listed):
            x = x + parameter * index
        x = x * self.listed[-1] + self.listed[0:2][1] + len(self.listed)
        for key in self.table:
            x = x + self.table[key]
        for key, value in self.table.items():
            x = x * value + len(key)
        if "a" in self.table and "z" not in self.table:
            x = x + self.table.get("b") + self.table.get("z", 3) + len(self.table)
        names = [name for name, _ in self.named_parameters()], list(self.table.keys())
        return x + sum(p.sum() for p in self.listed.parameters()), names, len(list(self.table.values()))


class ChangesParameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.listed = nn.ParameterList([ones(number) for number in range(3)])
        self.table = nn.ParameterDict({"a": ones(), "b": ones(2)})

    def forward(self, x):
        if "a" in self.table:
            self.listed.append(ones(4))
            self.listed[0] = ones(0)
            self.listed.extend([ones(9)])
            self.table["c"] = self.table.pop("a")
            self.table.update({"d": ones(5)})
            del self.table["b"]
            self.table.setdefault("e", ones(4))
        for parameter in self.listed:
            x = x + parameter
        for key, value in self.table.items():
            x = x * value + len(key)
        return x


class ChangesModules(nn.Module):
    def __init__(self):
        super().__init__()
        self.listed = nn.ModuleList([nn.Linear(6, 6), nn.ReLU()])
        self.table = nn.ModuleDict({"a": nn.Linear(6, 6), "b": nn.ReLU()})
        self.steps = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Tanh())

    def forward(self, x):
        if "b" in self.table:
            self.listed.append(nn.Tanh())
            self.listed.insert(0, nn.Sigmoid())
            self.listed.extend([nn.Identity()])
            self.listed[1] = nn.SiLU()
            del self.listed[2]
            self.table["c"] = nn.Tanh()
            x = self.table.pop("b")(x)
            self.table.update({"z": nn.Sigmoid()})
            self.steps.append(nn.Sigmoid())
        for layer in (*self.listed, *self.listed[1:3], *(self.listed + nn.ModuleList([nn.Tanh()]))):
            x = layer(x)
        for name, layer in self.table.items():
            x = layer(x) + len(name)
        return (self.steps[1:] + nn.Sequential(nn.Sigmoid()))(self.steps[0](x)), len(self.steps)


class Registers(nn.Module):
    """Members that forward registers, and removes."""

    def forward(self, x):
        if not hasattr(self, "mean"):
            self.register_buffer("mean", x.detach().mean(0))
            self.register_buffer("hidden", torch.ones(6), persistent=False)
            self.register_parameter("weight", ones(2))
            self.register_parameter("nothing", None)
            self.add_module("child", nn.Identity())
        kept = self.weight
        del self.weight
        self.weight = kept
        return (
            self.child(x) * self.mean * self.weight,
            [name for name, _ in self.named_parameters()],
            list(self._buffers),
        )


class Replaces(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = ones()
        self.other = nn.Linear(6, 6)
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        before = self.weight
        self.weight = nn.Parameter(before.detach() * 2)
        self.other.weight = self.inner.weight
        try:
            self.weight = torch.ones(6)
        except TypeError as error:
            x = x + len(str(error))
        return self.other(x * before + self.weight) + self.inner(x)


class OwnCall(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.calls = nn.Linear(6, 6), 0

    def __call__(self, x, *args, **kwargs):
        self.calls += 1
        return super().__call__(x + 1, *args, **kwargs) * 2

    def forward(self, x):
        return self.inner(x)


class Delegating(nn.Module):
    """Attributes that are not here are the inner module's."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.inner, name)

    def forward(self, x):
        return self.inner(x) + self.weight.sum() + self.in_features


@dataclasses.dataclass
class Settings:
    width: int = 6
    activation: str = "relu"


class SlotsAndProperties(nn.Module):
    __slots__ = ("factor",)

    def __init__(self):
        super().__init__()
        self.settings = Settings()
        self.inner = nn.Linear(self.settings.width, self.settings.width)
        object.__setattr__(self, "factor", 5)

    @property
    def activation(self):
        return getattr(F, self.settings.activation)

    @functools.cached_property
    def doubled(self):
        return self.settings.width * 2

    def forward(self, x):
        return self.activation(self.inner(x)) * self.factor * self.doubled


@dataclasses.dataclass(eq=False)
class AsDataclass(nn.Module):
    width: int = 6
    scale: float = 2.0

    def __post_init__(self):
        super().__init__()
        self.inner = nn.Linear(self.width, self.width)

    def forward(self, x):
        return self.inner(x) * self.scale


class OnTheClass(nn.Module):
    shared = nn.Linear(6, 6)

    def forward(self, x):
        return self.shared(x) + type(self).shared(x)


class Shared(nn.Module):
    """One module under three names, in a list and a dict too."""

    def __init__(self):
        super().__init__()
        self.a = self.b = nn.Linear(6, 6)
        self.plain = {"c": [self.a]}

    def forward(self, x):
        y = self.a(self.b(x)) + self.plain["c"][0](x)
        return y, self.a is self.b, len(list(self.parameters())), len(list(self.named_modules(remove_duplicate=False)))


class Selects(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))

    def forward(self, x):
        for layer in self.steps:
            if isinstance(layer, nn.Linear):
                x = layer(x) + layer.in_features
            elif type(layer) is nn.ReLU:
                x = layer(x)
        first = self.get_submodule("steps.0")
        seen = {first, self.steps[1], self.steps[0]}
        return x + self.get_parameter("steps.0.weight").sum(), len(seen), first == self.steps[0], first.extra_repr()


class Switches(nn.Module):
    """Modes, flags and functions applied to all parts."""

    def __init__(self):
        super().__init__()
        self.steps = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))

    def halve(self, module):
        if isinstance(module, nn.Linear):
            with torch.no_grad():
                module.weight.mul_(0.5)

    def forward(self, x):
        self.steps.eval()
        x = self.steps(x)
        self.steps.train()
        self.apply(self.halve)
        self.steps[0].bias.requires_grad_(False)
        for parameter in self.parameters():
            parameter.grad = None
        return x + self.steps(x)


class ReadsState(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)

    def forward(self, x):
        state = self.state_dict()
        copied = copy.deepcopy(self.inner)
        copied.load_state_dict(self.inner.state_dict())
        return copied(x) + state["inner.weight"].sum(), list(state), copied.weight is self.inner.weight


KINDS = [Reads, ChangesParameters, ChangesModules, Registers, Replaces, OwnCall, Delegating, SlotsAndProperties]
KINDS += [AsDataclass, OnTheClass, Shared, Selects, Switches, ReadsState]


@pytest.mark.parametrize("kind", KINDS)
def test_module(kind):
    def setup():
        torch.manual_seed(1)
        module = nn.Sequential(kind())
        return module, [(X.clone().requires_grad_(),)] * 3, module

    check(setup=setup, fullgraph=True)


@pytest.mark.parametrize("kind", [ChangesParameters, ChangesModules, Registers, Replaces, Switches])
def test_module_with_breaks(kind):
    def setup():
        torch.manual_seed(1)
        module = kind()

        def program(x):
            y = module(x)
            z = module(x)
            return y, z

        return program, [(X,)] * 2, module

    check(setup=setup, breaks_every=("line",))


# -- where a module is found -------------------------------------------------------------------------------------------

LINEAR = nn.Linear(6, 6)


class Holder:
    def __init__(self):
        self.inner, self.table = nn.Linear(6, 6), {"a": [nn.ReLU()]}

    def __call__(self, x):
        return self.table["a"][0](self.inner(x))


def made_by(factor):
    inner = nn.Linear(6, 6)
    return lambda x: inner(x) * factor


def by_default(x, module=LINEAR, *, activation=nn.ReLU()):
    return activation(module(x))


def in_a_global(x):
    return LINEAR(x) + LINEAR.weight.sum()


PLACES = {
    "default argument": lambda: by_default,
    "global": lambda: in_a_global,
    "callable object": Holder,
    "bound method": lambda: Holder().__call__,
    "partial": lambda: functools.partial(by_default, activation=nn.Tanh()),
    "closures": lambda: lambda x, made=[made_by(2), made_by(3)]: made[1](made[0](x)),
}


@pytest.mark.parametrize("place", PLACES)
def test_place(place):
    torch.manual_seed(1)
    check(PLACES[place](), X, calls=2, fullgraph=True, recompiles=0)


def test_argument_in_structures():
    def program(modules, x):
        for layer in modules["layers"]:
            x = layer(x)
        return modules["last"][0](x)

    def setup():
        torch.manual_seed(1)
        modules = {"layers": [nn.Linear(6, 6), nn.ReLU()], "last": (nn.Linear(6, 2),)}
        return program, [(modules, X)] * 2, modules

    check(setup=setup, fullgraph=True, recompiles=0)


# -- made inside -------------------------------------------------------------------------------------------------------


class Made(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(count)])
        self.register_buffer("scale", torch.ones(6), persistent=False)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x * self.scale


def makes_and_calls(x):
    steps = nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.LayerNorm(3), nn.Dropout(0.1))
    return steps(x) + nn.Embedding(5, 3)(torch.tensor([1]))


def makes_and_returns(x):
    module = Made(2)
    return module(x), module


def makes_with_statistics(x):
    norm = nn.BatchNorm1d(6)
    return norm(x), norm.running_mean, nn.MultiheadAttention(6, 2)(x, x, x)[0]


def skips_initialising(x):
    layer = nn.utils.skip_init(nn.Linear, 6, 6)
    nn.init.ones_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer(x)


@pytest.mark.parametrize("program", [makes_and_calls, makes_and_returns, makes_with_statistics, skips_initialising])
def test_made_inside(program):
    check(program, X, calls=2, fullgraph=True, recompiles=0, breaks_every=(None, "line"))


# -- deep copies -------------------------------------------------------------------------------------------------------


class Copied(nn.Module):
    """Reaches itself through a hook, and holds tensors of every kind."""

    def __init__(self, kind):
        super().__init__()
        self.inner, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.inner.register_forward_hook(self.shifted)
        self.plain = torch.ones(6)
        if kind == "view":
            self.register_buffer("part", torch.arange(12.0)[::2])
        elif kind == "shared":
            self.register_buffer("one", torch.ones(6))
            self.register_buffer("other", self.one.view(2, 3))
        elif kind == "sparse":
            self.extra = torch.eye(6).to_sparse()
        elif kind == "attribute":
            self.plain.note = "kept"
        elif kind == "gradient":
            self.plain.requires_grad_()
            self.plain.sum().backward()
        elif kind == "strided":
            self.register_buffer("turned", torch.arange(6.0).reshape(2, 3).t())

    def shifted(self, module, args, output):
        return output + 1

    def forward(self, x):
        return self.norm(self.inner(x)) * self.plain


IN_ONE_GRAPH = ("plain", "strided")


@pytest.mark.parametrize("kind", [*IN_ONE_GRAPH, "view", "shared", "sparse", "attribute", "gradient"])
def test_deep_copy(kind):
    def program(module, x):
        made = copy.deepcopy(module)
        part = copy.deepcopy(module.inner)
        owner = next(iter(part._forward_hooks.values())).__self__
        facts = made.inner is module.inner, owner.inner is part, made.plain is module.plain
        return made(x) + part(x), facts, made

    def setup():
        torch.manual_seed(1)
        module = Copied(kind)
        return program, [(module, X), (module, X + 1)], module

    check(setup=setup, fullgraph=kind in IN_ONE_GRAPH, versions=False)  # those of copies


def test_deep_copy_of_what_becomes_a_view():
    """The entry for a tensor with memory of its own must not serve one that shares it."""

    def program(holder, x):
        made = copy.deepcopy(holder["tensor"])
        return made + x, made.storage_offset(), made.untyped_storage().nbytes()

    base = torch.arange(12.0)
    tensors = [torch.arange(6.0), base[:6], base[6:], torch.ones(6), torch.ones(6, requires_grad=True)]
    check(program, calls=[({"tensor": tensor}, X[0]) for tensor in tensors])
