"""What modules hold, walked, compared, changed and replaced: by the compiled code, and behind its back."""

from __future__ import annotations

import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kiln
from kiln.testing import CompileCounter, check, same
from tests.support import program_helpers

X = torch.arange(24.0).reshape(4, 6) / 11 - 1


def covers(*names):
    return pytest.mark.covers(*(f"test_modules::test_{name}" for name in names))


# -- parameters, buffers, modules -------------------------------------------------------------------------------------


class Weighted(nn.Module):
    def __init__(self, frozen=False):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.full((1, 6), 2.0))
        self.same = self.scale
        self.register_buffer("shift", torch.arange(6.0))
        self.register_buffer("absent", None)
        self.requires_grad_(not frozen)

    def learns(self, recurse):
        return any(parameter.requires_grad for parameter in self.parameters(recurse))


class AsksWhetherItLearns(Weighted):
    def forward(self, x):
        return self.inner(x) * self.scale if not self.learns(False) else x + 1


class AsksForDtype(Weighted):
    recurse = True

    def forward(self, x):
        ones = torch.ones(6, dtype=next(self.parameters(recurse=self.recurse)).dtype)
        return F.relu(self.inner(x)) * self.scale + ones


class AsksForOwnDtype(AsksForDtype):
    recurse = False


class CountsParameters(Weighted):
    """A parameter with two names is one parameter."""

    def forward(self, x):
        count = 0
        for _ in self.parameters():
            count += 1
        return x * self.scale * count + len(list(self.buffers()))


WALKS = {
    "learns": (AsksWhetherItLearns, "parameters1"),
    "frozen": (lambda: AsksWhetherItLearns(frozen=True), "parameters2"),
    "dtype": (AsksForDtype, "parameters3"),
    "own dtype": (AsksForOwnDtype, "parameters4"),
    "counted": (CountsParameters, "parameters5"),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=covers(row[1])) for name, row in WALKS.items()])
def test_parameters_asked_for(name):
    def setup():
        torch.manual_seed(1)
        module = WALKS[name][0]()
        return module, [(X,)] * 2, module

    check(setup=setup, fullgraph=True, recompiles=0, breaks_every=(None, "line"))


class Tree(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Weighted()
        self.listed = nn.ModuleList([nn.Linear(6, 6), nn.ReLU()])
        self.table = nn.ModuleDict({"0": nn.Linear(6, 6), "odd name!": nn.BatchNorm1d(6)})
        self.factor = torch.ones(6)

    def forward(self, x):
        x = self.first.inner(x)
        by_name = dict(self.named_parameters())
        parameters = list(self.parameters())
        buffers_by_name, buffers = dict(self.named_buffers()), list(self.buffers())
        modules_by_name, modules = dict(self.named_modules()), list(self.modules())
        children = dict(self.named_children())
        kiln.graph_break()
        assert modules_by_name["first.inner"] is self.first.inner and modules[0] is self
        assert by_name["listed.0.weight"] is parameters[3]
        x = x + by_name["listed.0.weight"][0] + buffers_by_name["first.shift"] + buffers[1]
        return children["table"]["0"](x) * len(modules) * self.factor, list(by_name), list(modules_by_name)


@covers("module_forward_has_graph_break")
def test_walked_before_a_break_used_after():
    def setup():
        torch.manual_seed(1)
        module = Tree()
        return module, [(X,)] * 2, module

    check(setup=setup, breaks=1, breaks_every=(None, "line"))


class Ordered(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.ones(1))
        self.q = nn.Parameter(torch.ones(2))
        self.register_buffer("a", torch.ones(3))
        self.register_buffer("b", torch.ones(4))
        self.linear = nn.Linear(5, 5)
        self.norm = nn.LayerNorm(6)


ORDERS = {
    "_parameters": (lambda m: [p.sum() for p in m.parameters()] + [p.sum() for _, p in m.named_parameters()], "param"),
    "_buffers": (lambda m: [p.sum() for p in m.buffers()] + [p.sum() for _, p in m.named_buffers()], "buffer"),
    "_modules": (
        lambda m: [
            len(name) + len(type(child).__name__)
            for walk in (m.named_modules, m.named_children)
            for name, child in walk()
        ],
        "module",
    ),
}


@pytest.mark.parametrize("table", [pytest.param(name, marks=covers(f"{row[1]}_order")) for name, row in ORDERS.items()])
def test_order_is_noticed(table):
    walk = ORDERS[table][0]
    module, counter = Ordered(), CompileCounter()

    def program(x):
        for index, value in enumerate(walk(module)):
            x = x + value * (index + 2)
        return x

    compiled = kiln.compile(program, backend=counter, fullgraph=True)
    first = compiled(torch.ones(1))
    assert same(first, program(torch.ones(1))) and same(compiled(torch.ones(1)), first) and counter.frame_count == 1
    members = getattr(module, table)
    moved = next(iter(members))
    members[moved] = members.pop(moved)
    assert same(compiled(torch.ones(1)), program(torch.ones(1))) and not same(first, program(torch.ones(1)))
    assert counter.frame_count == 2


@covers("module_order")
def test_modules_as_keys():
    module = Ordered()
    weights = {module: 10, module.linear: 20, module.norm: 30}

    def program(x):
        for index, child in enumerate(module.modules()):
            x = x + weights[child] * (index + 1)
        return x, [weights[child] for child in module.children()]

    check(program, torch.ones(1), calls=2, fullgraph=True, recompiles=0)


@covers("nn_moduledict_contains")
def test_names_in_a_module_dict():
    class Asks(nn.Module):
        def __init__(self, name):
            super().__init__()
            self.table = nn.ModuleDict({name: nn.Identity()})

        def forward(self, x):
            if "wanted" in self.table:
                x = x * 2
            return x + 1

    counts = []
    for name in ("wanted", "other"):
        module, counter = Asks(name), CompileCounter()
        assert same(kiln.compile(module, backend=counter, fullgraph=True)(X), module(X))
        counts.append(counter.op_count)
    assert counts == [2, 1]
    module.table["wanted"] = nn.Identity()
    assert same(kiln.compile(module, backend=counter, fullgraph=True)(X), module(X)) and counter.op_count == 1 + 2


# -- state that forward changes ---------------------------------------------------------------------------------------


class Counting(nn.Module):
    """Each call sees another number, which soon becomes an input of the graph."""

    def __init__(self):
        super().__init__()
        self.inner, self.calls = nn.Linear(6, 6), 0

    def forward(self, x):
        result = self.inner(x) + self.calls
        self.calls += 1
        return result.relu()


@covers("self_mutating1")
def test_counter_on_a_module():
    torch.manual_seed(1)
    counter = CompileCounter()
    modules = [Counting() for _ in range(3)]
    for module in modules[1:]:
        module.inner = modules[0].inner
    expected = [modules[0](X) for _ in range(5)]
    for module in modules[1:]:
        compiled = kiln.compile(module, backend=counter, fullgraph=True)
        assert same([compiled(X) for _ in range(5)], expected) and module.calls == 5
    assert counter.frame_count == 3  # for zero, for one, and for any other number


class Assigns(nn.Module):
    """A new attribute, one replaced, one deleted, a buffer and a parameter replaced, a child's attribute."""

    def __init__(self):
        super().__init__()
        self.child = nn.Linear(6, 6)
        self.register_buffer("mean", torch.zeros(6))
        self.weight = nn.Parameter(torch.ones(6))
        self.old, self.log = 3, []

    def forward(self, x):
        self.fresh = x + 1
        self.mean = self.mean * 0.5 + x.mean(0)
        self.child.note = len(self.log)
        self.log.append(x.shape[0])
        if hasattr(self, "old"):
            del self.old
        return self.child(self.fresh) + self.mean * self.weight


@covers("assign_does_not_exist", "module_setattr")
def test_assigned_in_forward():
    def setup():
        torch.manual_seed(1)
        module = Assigns()
        return module, [(X,), (X + 1,), (X,)], module

    check(setup=setup, fullgraph=True)
    module = Assigns()
    module.forward = types.MethodType(lambda self, x: setattr(self, "kept", x + 1) or self.kept, module)
    assert kiln.compile(module, backend="eager", fullgraph=True)(X) is module.kept


@covers("module_setattr", "unspecialized_seq")
def test_flag_set_on_a_child():
    models = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))
    models[0].flag = False

    def program(x):
        models[0].flag = True
        models[1].training = False
        return models(x)

    compiled = kiln.compile(program, backend="eager", fullgraph=True)
    assert same(compiled(X), models[0](X)) and models[0].flag is True and models[1].training is False


@covers("no_op_assignment")
def test_assignment_that_changes_nothing():
    """``to`` gives the same tensor back, or another where the dtype differs; parameters are inputs of the graph."""

    class Moves(nn.Module):
        def __init__(self):
            super().__init__()
            self.buffer = torch.linspace(0, 1, 6)

        def forward(self, x):
            x = x + 1
            self.buffer = self.buffer.to(x)
            return self.buffer + x

    class MovesWithSetter(Moves):
        def __setattr__(self, name, value):
            super().__setattr__(name, value)

    def program(module, x):
        return module(x)

    for kind in (Moves, MovesWithSetter):

        def setup():
            module = kind()
            return program, [(module, X), (module, X), (module, X.half()), (module, X.half())], module

        report = check(setup=setup, fullgraph=True)
        assert all(not list(graph.buffers()) for graph in report.graphs)
        # float; half with a float buffer; half with the half buffer that this left behind
        assert report.recompiles == 2


@pytest.mark.parametrize("way", ["setattr", "super", "object", "dict", "property", "getattr"])
def test_own_ways_of_setting_and_getting(way):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(6, 6)
            self.__dict__["names"] = []

        def __setattr__(self, name, value):
            if way == "super" and name == "level":
                super().__setattr__("hidden_level", value)
            elif way == "object":
                object.__setattr__(self, name, value)
            elif way == "dict" and name == "level":
                self.__dict__["level"] = value + 1
            else:
                super().__setattr__(name, value)

        def __getattr__(self, name):
            if way == "getattr" and name.startswith("made_"):
                self.names.append(name)
                return len(name)
            return super().__getattr__(name)

        @property
        def doubled(self):
            return self.__dict__.get("level", 1) * 2

        @doubled.setter
        def doubled(self, value):
            self.level = value / 2

        def forward(self, x):
            setattr(self, "level", 3.0) if way == "setattr" else None
            self.level = 4.0
            if way == "property":
                self.doubled = 10.0
                x = x + self.doubled
            if way == "getattr":
                x = x + self.made_up + self.made_of_air
            return self.inner(x) * getattr(self, "level", 7)

    def setup():
        torch.manual_seed(1)
        module = Own()
        return module, [(X,)] * 2, module

    check(setup=setup, fullgraph=True)


here = there = 0


def count_here():
    global here, there
    here += 1
    there += 2


@covers("globals_change_in_other_file")
def test_globals_of_two_files():
    global here, there

    def program(x):
        count_here()
        program_helpers.set_level(program_helpers.get_level() + here)
        return program_helpers.scale(x, 2) * (here + there + program_helpers.LEVEL)

    results = []
    for function in (program, kiln.compile(program, backend="eager", fullgraph=True)):
        here = there = 0
        program_helpers.set_level(1)
        results.append(([function(X) for _ in range(3)], here, there, program_helpers.LEVEL))
    program_helpers.LEVEL, program_helpers.TABLE["k"] = 1, 5
    assert same(*results) and results[1][1:] == (3, 6, 7)


# -- forward replaced -------------------------------------------------------------------------------------------------


class Cosine(nn.Module):
    def forward(self, x):
        return x.cos()


@covers("monkeypatching_forward", "module_patch")
@pytest.mark.parametrize("how", ["method", "function", "class", "partial"])
def test_forward_replaced(how, monkeypatch):
    module, counter = Cosine(), CompileCounter()

    def program(x):
        return module(x)

    compiled = kiln.compile(program, backend=counter, fullgraph=True)
    for _ in range(2):
        assert same(compiled(X), X.cos())
    assert counter.frame_count == 1
    if how == "method":
        module.forward = types.MethodType(lambda self, x: x.sin(), module)
    elif how == "function":
        module.forward = lambda x: x.sin()
    elif how == "partial":
        module.forward = torch.sin
    else:
        monkeypatch.setattr(Cosine, "forward", lambda self, x: x.sin())
    for _ in range(2):
        assert same(compiled(X), X.sin())
    assert counter.frame_count == 2


@covers("module_patch")
def test_module_without_a_forward_of_its_own():
    module = nn.Module()
    module.forward = types.MethodType(lambda self, x: x - 1, module)
    assert same(kiln.compile(lambda x: module(x), backend="eager", fullgraph=True)(X), X - 1)
    assert same(kiln.compile(module, backend="eager", fullgraph=True)(X), X - 1)


# -- what breaks ------------------------------------------------------------------------------------------------------


@kiln.disable
def kept_out(x, y):
    return x + y


class BreaksInAMethod(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def scaled(self, x):
        return kept_out(self.inner(x) * 2, x)

    def forward(self, x):
        return x + self.scaled(x)


class BreaksInAChild(nn.Module):
    def __init__(self):
        super().__init__()
        self.child = BreaksInAMethod()

    def forward(self, x):
        return self.child(x * 1.5) + 1


class BranchesOnValues(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x - 1


@pytest.mark.parametrize(
    ("kind", "operations"),
    [
        pytest.param(BreaksInAMethod, 3, marks=covers("unsupportedmethod")),
        pytest.param(BreaksInAChild, 5, marks=covers("unsupportedmodule")),
        pytest.param(lambda: nn.Sequential(BranchesOnValues()), None, marks=covers("unspec_non_inlinable_module")),
    ],
)
def test_breaks_inside_modules(kind, operations):
    """Everything but the call that is kept out is in graphs."""

    def setup():
        torch.manual_seed(1)
        module = kind()
        return module, [(X,), (-X,)], module

    report = check(setup=setup, ops=operations)
    assert report.breaks


# -- subclasses of tensors --------------------------------------------------------------------------------------------


@covers("simple_torch_function", "torch_function_with_closure")
@pytest.mark.parametrize("closure", [False, True])
def test_subclass_with_an_override(closure):
    calls = 0

    class Plain(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return super().__torch_function__(func, types, args, kwargs)

    class Counted(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            nonlocal calls  # written, too: the document only reads it
            calls += 1
            return super().__torch_function__(func, types, args, kwargs)

    def program(x):
        x = F.sigmoid(F.sigmoid(x))
        return x.sigmoid().sigmoid()

    x = X.as_subclass(Counted if closure else Plain)
    expected, after_eager, counter = program(x), calls, CompileCounter()
    result = kiln.compile(program, backend=counter, fullgraph=True)(x)
    assert counter.op_count == 4
    assert calls == 2 * after_eager == (8 if closure else 0)
    assert type(result) is type(x) and same(result, expected)


# -- .data assigned ----------------------------------------------------------------------------------------------------


def data_scaled(module, x):
    module.weight.data = module.weight.data * 2
    module.bias.data.mul_(0.5)
    return module(x)


def data_of_another_form(module, x):
    view = module.weight[0]
    module.weight.data = torch.ones(2, 6)
    module.bias.data = module.bias.data[:2]
    return module(x), view, module.weight.shape


def data_shared(module, x):
    kept = module.weight.data
    module.weight.data = module.other.data
    module.weight.data.mul_(2)
    return module(x), kept


def data_of_itself(module, x):
    module.weight.data = module.weight
    return module(x)


def data_swapped(module, x):
    module.weight.data, module.other.data = module.other.data, module.weight.data
    return module(x) @ module.other


def data_of_an_intermediate(module, x):
    y = x + 1
    y.data = x.sum(0)
    return module(y), y


def data_in_a_try_block(module, x):
    try:
        module.weight.data = module.weight.data * 2
        return module(x[torch.tensor([9])])
    except IndexError:
        return module(x)


def data_of_something_else(module, x):
    try:
        module.weight.data = 3
    except TypeError as error:
        return module(x), str(error)


def converted(module, x):
    module.double()
    y = module(x.double())
    return module.float()(x) + y.float(), module.to("cpu") is module


DATA = [data_scaled, data_of_another_form, data_shared, data_of_itself, data_swapped, data_of_an_intermediate]


@pytest.mark.parametrize("program", [*DATA, converted, data_in_a_try_block, data_of_something_else])
def test_data_assigned(program):
    def setup():
        torch.manual_seed(1)
        module = nn.Linear(6, 6)
        module.other = nn.Parameter(torch.eye(6))
        return program, [(module, X), (module, X + 1)], module

    check(setup=setup, fullgraph=program in (*DATA, converted), breaks_every=(None, "line"))


def test_a_normalization_that_torch_refuses_counts_its_batches_once():
    """The graph counts a batch and then raises; eager, which takes over, must not count it again."""
    counts = []
    for compile in (lambda module: module, kiln.compile):
        module = nn.BatchNorm1d(3)
        call = compile(module)
        call(torch.ones(2, 3))
        module.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
        with pytest.raises(RuntimeError):
            call(torch.ones(2, 3))
        counts.append(module.num_batches_tracked.item())
    assert counts[1] == counts[0]
