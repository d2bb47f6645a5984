"""Guards on the state of modules: a native program over hundreds of modules, which notices every change."""

import collections
import gc
import resource
import threading
import types
import weakref

import pytest
import torch
from torch import nn

import kiln
from kiln.capture.entry import dispatch
from kiln.testing import CompileCounter, same


class Block(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.scale = 2.0
        self.name = "block"
        self.shape = (1, 2)

    def forward(self, x):
        x = self.norm(self.linear(x)) * self.scale
        return x + len(self.name) + self.shape[0]


class Net(nn.Module):
    def __init__(self, blocks=3):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.extra = [Block()]
        self.table = {"last": nn.ReLU()}

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.table["last"](self.extra[0](x))


class OtherBlock(Block):
    def forward(self, x):
        return x - 1


def hook(module, inputs, output):
    return output * 3


def replace_class(net):
    net.blocks[1].__class__ = OtherBlock


CHANGES = {
    "a parameter's value": (lambda net: net.blocks[0].linear.weight.data.mul_(2), 0),
    "a parameter for another": (lambda net: setattr(net.blocks[0].linear, "weight", nn.Parameter(torch.ones(4, 4))), 0),
    "parameters of another type": (lambda net: (net.double(), net.extra[0].double()), 1),
    "a parameter frozen": (lambda net: net.blocks[2].linear.bias.requires_grad_(False), 1),
    "a parameter taken away": (lambda net: setattr(net.blocks[1].linear, "bias", None), 1),
    "a parameter's data swapped": (
        lambda net: setattr(net.blocks[1].linear.weight, "data", torch.ones(4, 4).t().contiguous().t()),
        1,
    ),
    "training": (lambda net: net.eval(), 1),
    "training of one": (lambda net: net.blocks[1].norm.eval(), 1),
    "a number": (lambda net: setattr(net.blocks[2], "scale", 5.0), 1),
    "a text": (lambda net: setattr(net.extra[0], "name", "longer name"), 1),
    "the same text again": (lambda net: setattr(net.extra[0], "name", "".join(["blo", "ck"])), 0),
    "a tuple": (lambda net: setattr(net.blocks[0], "shape", (7, 2)), 1),
    "an equal tuple": (lambda net: setattr(net.blocks[0], "shape", tuple([1, 2])), 0),
    "a hook": (lambda net: net.blocks[1].linear.register_forward_hook(hook), 1),
    "a hook on the whole": (lambda net: net.register_forward_pre_hook(lambda m, args: (args[0] + 1,)), 1),
    "forward replaced": (
        lambda net: setattr(net.blocks[1], "forward", types.MethodType(lambda self, x: x + 5, net.blocks[1])),
        1,
    ),
    "the class": (replace_class, 1),
    "a module replaced": (lambda net: net.blocks.__setitem__(1, nn.Identity()), 1),
    "a module of the same kind": (lambda net: net.blocks.__setitem__(1, Block()), 0),
    "a module appended": (lambda net: net.blocks.append(Block()), 1),
    "the order of modules": (lambda net: net.blocks._modules.update({"0": net.blocks._modules.pop("0")}), 1),
    "a module in a list": (lambda net: net.extra.__setitem__(0, nn.Tanh()), 1),
    "a module in a dictionary": (lambda net: net.table.update(last=nn.Tanh()), 1),
    "the dictionary itself": (lambda net: setattr(net, "table", {"last": nn.Sigmoid()}), 1),
    "one module in two places": (lambda net: net.blocks.__setitem__(1, net.blocks[0]), 1),
    "one parameter in two places": (
        lambda net: setattr(net.blocks[1].linear, "weight", net.blocks[0].linear.weight),
        1,
    ),
    "the attributes as a whole": (
        lambda net: setattr(net.blocks[1], "__dict__", dict(net.blocks[1].__dict__, scale=9.0)),
        1,
    ),
    "a parameter hidden by an attribute": (
        lambda net: net.blocks[0].linear.__dict__.__setitem__("weight", torch.zeros(4, 4)),
        1,
    ),
    "a buffer replaced": (lambda net: setattr(net.blocks[0].norm, "running_mean", torch.ones(4)), 0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_noticed(change):
    apply, recompiles = CHANGES[change]
    torch.manual_seed(0)
    net = Net()
    counter = CompileCounter()
    compiled = kiln.compile(net, backend=counter)
    x = torch.randn(5, 4)

    def both():
        given = x.to(net.blocks[0].linear.weight.dtype if hasattr(net.blocks[0], "linear") else x.dtype)
        state = {name: value.clone() for name, value in net.state_dict().items()}
        expected = net(given)
        with torch.no_grad():
            for name, value in net.state_dict().items():
                value.copy_(state[name])
        return same(expected, compiled(given))

    assert both() and both()
    before = counter.frame_count
    apply(net)
    assert both() and both()
    assert counter.frame_count - before == recompiles


def test_two_instances_by_turns():
    torch.manual_seed(0)
    counter = CompileCounter()
    one, two = Net().eval(), Net().eval()
    compiled = [kiln.compile(one, backend=counter), kiln.compile(two, backend=counter)]
    x = torch.randn(3, 4)
    for _ in range(3):
        assert same(one(x), compiled[0](x)) and same(two(x), compiled[1](x))
        one.blocks[0].linear.weight.data.add_(1)
    assert counter.frame_count == 1


def test_threads_with_modules_of_their_own():
    """What one check has read goes to its own run, whatever other threads check meanwhile."""
    torch.manual_seed(0)
    nets = [Net().eval() for _ in range(4)]

    @kiln.compile
    def run(net, x):
        return net(x)

    x = torch.randn(3, 4)
    expected = [net(x) for net in nets]
    assert same(run(nets[0], x), expected[0])
    wrong = []

    def work(index):
        for _ in range(200):
            if not same(run(nets[index], x), expected[index]):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_ordered_dictionaries_and_their_order():
    """The order of an OrderedDict is not that of the dictionary inside: it is checked by Python."""
    table = collections.OrderedDict(a=torch.ones(2), b=torch.zeros(2))
    counter = CompileCounter()

    @kiln.compile(backend=counter)
    def fold(mapping, x):
        for value in mapping.values():
            x = x * 2 + value
        return x

    x = torch.ones(2)
    assert fold(table, x).tolist() == [6.0, 6.0]
    table.move_to_end("a")
    assert fold(table, x).tolist() == [5.0, 5.0]
    assert counter.frame_count == 2


def live_objects(kind):
    gc.collect()
    return sum(isinstance(thing, kind) for thing in gc.get_objects())


def resident_megabytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(128, 128)  # 64 KiB: a thousand that stay would be 64 MiB

    def forward(self, x):
        return torch.relu(self.linear(x))


def test_a_thousand_models_made_and_dropped_leave_memory_flat():
    x = torch.ones(2, 128)
    first = kiln.compile(Wide())
    first(x)

    def use():
        model = Wide()
        compiled = kiln.compile(model)
        compiled(x)
        return weakref.ref(model), weakref.ref(compiled)

    for _ in range(50):
        use()
    objects, before = live_objects(object), resident_megabytes()
    references = [use() for _ in range(1000)]
    assert live_objects(object) - objects < 4000  # the list of references; an entry or a model each would be far more
    assert all(model() is None and compiled() is None for model, compiled in references)
    assert resident_megabytes() - before < 16


@pytest.mark.parametrize("broken", (False, True))
def test_models_of_their_own_classes_leave_nothing(broken):
    """Each is compiled anew, into entries of its own: they go with the model."""

    def use():
        class Own(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(4, 4)

            def forward(self, x):
                y = self.linear(x)
                if broken:
                    kiln.graph_break()
                return y * 2

        kiln.compile(Own())(torch.ones(2, 4))

    for _ in range(5):
        use()
    before = live_objects(object)
    for _ in range(10):
        use()
    assert live_objects(object) - before < 50


def test_entries_of_classes_made_without_end_do_not_pile_up(monkeypatch):
    """One model of a factory lives on, and what is compiled for its code with it."""
    monkeypatch.setattr(dispatch, "MOST_ENTRIES", 4)

    def make():
        class Own(nn.Module):
            def forward(self, x):
                kiln.graph_break()
                return x * 2

        compiled = kiln.compile(Own())
        assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
        return compiled

    kept = make()
    for _ in range(6):
        make()
    before = live_objects(object)
    for _ in range(6):
        make()
    assert live_objects(object) - before < 50
    assert kept(torch.ones(2)).tolist() == [2.0, 2.0]


def test_models_passed_to_one_function_are_not_kept():
    @kiln.compile
    def run(model, x):
        return model(x)

    def use():
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        run(model, torch.ones(2, 4))
        return weakref.ref(model)

    references = [use() for _ in range(5)]
    gc.collect()
    assert all(reference() is None for reference in references)


def test_an_entry_does_not_keep_a_closed_over_model():
    def make():
        model = nn.Linear(4, 4)

        @kiln.compile
        def run(x):
            return model(x)

        run(torch.ones(2, 4))
        return weakref.ref(model), run

    reference, run = make()
    del run
    gc.collect()
    assert reference() is None


def test_an_entry_dies_with_what_it_names():
    """A module that is a global: entries know it by its name, not by itself."""
    namespace: dict = {"model": nn.Linear(4, 4)}
    exec("def run(x):\n    return model(x)\n", namespace)
    run = kiln.compile(namespace["run"])
    run(torch.ones(2, 4))
    reference = weakref.ref(namespace["model"])
    namespace["model"] = nn.Linear(4, 4)
    gc.collect()
    assert reference() is None
    x = torch.ones(2, 4)
    assert same(run(x), namespace["model"](x))
