"""`kiln.aot`: functions and modules compiled by anyone's compilers, and what those are given."""

import subprocess
import sys
from collections import namedtuple

import pytest
import torch

import kiln
from kiln import aot


class Compilers:
    """Compilers that keep the graphs they are given, by kind."""

    def __init__(self, boxed=False):
        self.forward, self.backward, self.inference = [], [], []
        self.boxed = boxed

    def keep(self, kind):
        def compiler(graph, inputs):
            getattr(self, kind).append((graph, list(inputs)))
            return aot.make_boxed_func(graph.forward) if self.boxed else graph

        return compiler

    def arguments(self):
        return {
            "fw_compiler": self.keep("forward"),
            "bw_compiler": self.keep("backward"),
            "inference_compiler": self.keep("inference"),
        }

    @property
    def counts(self):
        return len(self.forward), len(self.backward), len(self.inference)


def leaf(*values):
    return torch.tensor(values or (1.0, 2.0, 3.0), requires_grad=True)


def placeholders(graph):
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


# -- functions ------------------------------------------------------------------------------------------------------

Point = namedtuple("Point", "x y")


@pytest.mark.parametrize("boxed", [False, True])
def test_function(boxed):
    compilers = Compilers(boxed)
    compiled = aot.aot_function(lambda x, y: (x * y).sin(), **compilers.arguments())
    x, y = leaf(), torch.tensor([3.0, 4.0, 5.0])
    for _ in range(2):
        x.grad = None
        result = compiled(x, y)
        torch.testing.assert_close(result, (x * y).sin())
        result.sum().backward()
        torch.testing.assert_close(x.grad, (x * y).cos().detach() * y)
    assert compilers.counts == (1, 1, 0)
    (graph, inputs) = compilers.forward[0]
    assert len(placeholders(graph)) == len(inputs) == 2
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, y), (x * y).sin())
    assert compilers.counts == (1, 1, 1)
    assert all(
        isinstance(node.target, torch._ops.OpOverload) for node in graph.graph.nodes if node.op.startswith("call")
    )


def test_the_forward_compiler_stands_in_for_the_others():
    compilers = Compilers()
    compiled = aot.aot_function(lambda x: x.sin(), compilers.keep("forward"))
    compiled(leaf()).sum().backward()
    compiled(leaf().detach())
    assert compilers.counts == (3, 0, 0)


def test_trees_and_constants():
    compilers = Compilers()

    def program(data, *, factor, point, flag=None):
        scaled = data["x"] * factor
        return {"scaled": scaled, "rest": [factor, None, Point(point.x + 1, "text")], "flag": flag}

    compiled = aot.aot_function(program, **compilers.arguments())
    x, point = leaf(), Point(torch.ones(2), 7)
    for factor, forwards in ((2, 1), (2, 1), (2.0, 2), (True, 3), (-0.0, 4), (0.0, 5), (2, 5)):
        seen = compiled({"x": x}, factor=factor, point=point)
        expected = program({"x": x}, factor=factor, point=point)
        assert seen["rest"][0] == factor and type(seen["rest"][0]) is type(factor)
        assert seen["rest"][1] is None and type(seen["rest"][2]) is Point and seen["rest"][2].y == "text"
        torch.testing.assert_close(seen["scaled"], expected["scaled"])
        assert compilers.counts[0] == forwards
    assert compiled({"x": x}, factor=2, point=point, flag="a")["flag"] == "a"
    assert compilers.counts[0] == 6


@pytest.mark.parametrize(
    "other",
    [
        lambda: torch.ones(4, requires_grad=True),
        lambda: torch.ones(3, dtype=torch.float64, requires_grad=True),
        lambda: torch.ones(3),
        lambda: torch.ones(6, requires_grad=True)[::2],
        lambda: torch.ones(3, 1, requires_grad=True),
        lambda: torch.ones(3, requires_grad=True) * 2,  # no leaf: may be changed in place
    ],
    ids=["size", "dtype", "requires_grad", "stride", "rank", "no leaf"],
)
def test_other_metadata_is_another_version(other):
    compilers = Compilers()
    compiled = aot.aot_function(lambda x: x * 2, **compilers.arguments())
    for make in (lambda: torch.ones(3, requires_grad=True), other):
        for _ in range(2):
            torch.testing.assert_close(compiled(make()), make() * 2)
    assert sum(compilers.counts) == 2


def test_tensors_that_are_one():
    """Whether two arguments are one tensor, or share memory, matters where one is changed."""

    def program(x, y):
        x.add_(1)
        return x * y

    compiled = aot.aot_function(program, aot.nop)
    base, again = torch.arange(6.0), torch.arange(6.0)
    views = [(slice(0, 4), slice(0, 4)), (slice(0, 4), slice(2, 6)), (slice(0, 2), slice(2, 4))]
    for one, other in views + views:
        torch.testing.assert_close(compiled(base[one], base[other]), program(again[one], again[other]))
        torch.testing.assert_close(base, again)
    torch.testing.assert_close(compiled(base, base), program(again, again))
    torch.testing.assert_close(base, again)


def test_closures_are_followed():
    """What a function reaches without being given it is no argument, and gets its gradient all the same."""
    weight = leaf(2.0, 3.0, 4.0)
    compiled = aot.aot_function(lambda x: x * weight, aot.nop)
    x = leaf()
    compiled(x).sum().backward()
    torch.testing.assert_close(weight.grad, x.detach())
    with torch.no_grad():
        weight.add_(1)
    torch.testing.assert_close(compiled(x), x * weight)


def test_sizes_that_vary():
    compilers = Compilers()
    compiled = aot.aot_function(lambda x, y: (x @ y).sin() * x.shape[0], **compilers.arguments(), dynamic=True)
    for count in (3, 4, 7):
        x, y = torch.rand(count, 5, requires_grad=True), torch.rand(5, 2)
        result = compiled(x, y)
        torch.testing.assert_close(result, (x @ y).sin() * count)
        result.sum().backward()
        expected = torch.autograd.grad(((x @ y).sin() * count).sum(), x)
        torch.testing.assert_close(x.grad, *expected)
    assert compilers.counts[:2] == (1, 1)


def test_a_size_that_turns_out_not_to_vary():
    compilers, layer = Compilers(), torch.nn.Linear(4, 6)
    compiled = aot.aot_function(lambda x: layer(x).tanh(), **compilers.arguments(), dynamic=True)
    for count in (3, 5):
        x = torch.rand(count, 4)
        torch.testing.assert_close(compiled(x), layer(x).tanh())


def test_views_of_sizes_that_depend_on_data():
    def program(x, places):
        return torch.tensor_split(x, places)

    compiled = aot.aot_function(program, **Compilers().arguments(), dynamic=True)
    for places in (torch.tensor([1, 2]), torch.tensor([2, 4])):
        x = torch.randn(5, 3)
        torch.testing.assert_close(compiled(x, places), program(x, places))


def test_branch_on_a_size_that_varies():
    def program(x):
        return x * 2 if x.shape[0] > 5 else x * 3

    compilers = Compilers()
    compiled = aot.aot_function(program, **compilers.arguments(), dynamic=True)
    for count in (3, 8, 4, 9):
        torch.testing.assert_close(compiled(torch.ones(count)), program(torch.ones(count)))
    assert compilers.counts == (0, 0, 2)


# -- modules --------------------------------------------------------------------------------------------------------


class Counting(torch.nn.Module):
    """Tied parameters, a buffer changed in place, one replaced, and dropout."""

    def __init__(self):
        super().__init__()
        self.first = self.again = torch.nn.Linear(3, 3)
        self.norm = torch.nn.BatchNorm1d(3)
        self.register_buffer("calls", torch.zeros(()))
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x, *, scale=1.0):
        self.calls = self.calls + 1
        return self.dropout(self.norm(self.again(self.first(x)))) * scale


def stepped(module, compiled, calls=2):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    results = []
    torch.manual_seed(0)
    for number in range(calls):
        optimizer.zero_grad()
        result = compiled(torch.linspace(-1, 1, 12).reshape(4, 3), scale=2.0 + number)
        result.square().sum().backward()
        optimizer.step()
        results.append(result.detach())
    return results, {name: value.clone() for name, value in module.state_dict().items()}


def test_module():
    torch.manual_seed(1)
    module, compilers = Counting(), Compilers()
    import copy

    reference = copy.deepcopy(module)
    compiled = aot.aot_module(module, **compilers.arguments())
    assert isinstance(compiled, torch.nn.Module) and set(compiled.parameters()) == set(module.parameters())
    torch.testing.assert_close(stepped(module, compiled), stepped(reference, reference))
    graph, inputs = compilers.forward[0]
    parameters = list(module.named_parameters())
    assert [tuple(each.shape) for each in inputs[: len(parameters)]] == [tuple(p.shape) for _, p in parameters]
    before = sum(compilers.counts)
    module.eval()
    reference.eval()
    x = torch.ones(2, 3)
    torch.testing.assert_close(compiled(x), reference(x))
    assert sum(compilers.counts) > before


def test_module_simplified():
    module, compilers = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()), Compilers()
    x = torch.ones(2, 3)
    compiled = aot.aot_module_simplified(module, (x,), **compilers.arguments())
    assert sum(compilers.counts) == 1, "compiled at once"
    torch.testing.assert_close(compiled(x), module(x))
    compiled(x).sum().backward()
    assert module[0].weight.grad is not None
    torch.testing.assert_close(compiled(torch.ones(5, 3)), module(torch.ones(5, 3)))
    assert dict(compiled.named_parameters()).keys() == dict(module.named_parameters()).keys()


# -- backends -------------------------------------------------------------------------------------------------------


def test_backend_of_ones_own():
    compilers = Compilers()
    compiled = kiln.compile(lambda x: x.sin() * 2, backend=aot.make_aot_backend(**compilers.arguments()))
    x = leaf()
    compiled(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.cos().detach())
    assert compilers.counts == (1, 1, 0)
    with torch.no_grad():
        compiled(x)
    assert compilers.counts == (1, 1, 1)


@pytest.mark.parametrize("boxed", [False, True])
def test_boxed_compiler(boxed):
    """A boxed callable owns its arguments: it may drop each as soon as it has used it."""
    emptied = []

    def compiler(graph, inputs):
        def run(arguments):
            taken = list(arguments)
            arguments.clear()
            emptied.append(len(taken))
            return graph(*taken)

        run._boxed_call = True
        return run

    chosen = compiler if boxed else aot.make_boxed_compiler(aot.nop)
    compiled = kiln.compile(lambda x, y: (x * y).sin(), backend=aot.make_aot_backend(chosen))
    x, y = leaf(), leaf()
    compiled(x, y).sum().backward()
    torch.testing.assert_close(x.grad, (x * y).cos().detach() * y.detach())
    assert bool(emptied) is boxed


def test_decompositions_and_partition():
    compilers, seen = Compilers(), []
    table = {torch.ops.aten.silu.default: lambda x: x * torch.sigmoid(x)}

    def partition(joint, inputs, *, num_fwd_outputs, **more):
        seen.append((joint, num_fwd_outputs))
        return aot.default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **more)

    backend = aot.make_aot_backend(**compilers.arguments(), decompositions=table, partition_fn=partition)
    x = leaf()
    kiln.compile(lambda x: torch.nn.functional.silu(x), backend=backend)(x).sum().backward()
    again = leaf()
    torch.nn.functional.silu(again).sum().backward()
    torch.testing.assert_close(x.grad, again.grad)
    targets = {str(node.target) for graph, _ in compilers.forward for node in graph.graph.nodes}
    assert "aten.sigmoid.default" in targets and "aten.silu.default" not in targets
    ((joint, outputs),) = seen
    names = [node.name for node in placeholders(joint)]
    assert names == ["primals_1", "tangents_1"] and outputs == 1


def test_compilers_that_fail():
    def broken(graph, inputs):
        raise ValueError("no such machine")

    with pytest.raises(kiln.exc.BackendError, match="no such machine"):
        kiln.compile(lambda x: x * 2, backend=aot.make_aot_backend(broken))(leaf())
    with pytest.raises(kiln.exc.BackendError, match="no such machine"):
        aot.aot_function(lambda x: x * 2, broken)(leaf())


def test_bad_arguments():
    with pytest.raises(kiln.exc.NotCallable):
        aot.aot_function(3, aot.nop)
    with pytest.raises(kiln.exc.NotCallable):
        aot.make_aot_backend("nop")
    with pytest.raises(kiln.exc.UserError, match="takes a module"):
        aot.aot_module(lambda x: x, aot.nop)
    with pytest.raises(TypeError, match="unexpected keyword argument 'fw_compilr'"):
        aot.make_aot_backend(aot.nop, fw_compilr=1)
    assert aot.aot_function(lambda x: x + 1, aot.nop, static_argnums=(0,), hasher_type="x")(leaf()).shape == (3,)
    with pytest.raises(AttributeError):
        aot.no_such_name


def test_nothing_is_loaded_before_it_is_used():
    program = "import sys, kiln; kiln.aot; print([n for n in sys.modules if n.startswith('kiln.aot.')])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# -- numbers that vary, in backends of others -------------------------------------------------------------------------


def scaled(x, n):
    return torch.add(x, x, alpha=n)


def repeated(x, n):
    return x.repeat(n).sum() * n


def sliced(x, n):
    return x[n:].sum() + n


def clamped(x, n):
    return torch.clamp(x, max=n) * 2


def number_returned(x, n):
    return x * n, n + 1


class Around(torch.nn.Module):
    """What a backend may put around a graph that it was given."""

    def __init__(self, graph):
        super().__init__()
        self.graph = graph

    def forward(self, *args):
        return self.graph(*args)


def forward_only(graph, inputs):
    return aot.aot_module_simplified(graph, inputs, fw_compiler=aot.nop)


def wrapped(graph, inputs):
    return aot.aot_module_simplified(Around(graph), inputs, fw_compiler=aot.nop)


@pytest.mark.parametrize("backend", [forward_only, wrapped, "aot_eager", "kiln"])
@pytest.mark.parametrize("program", [scaled, repeated, sliced, clamped, number_returned])
@pytest.mark.parametrize("numbers", [(5, 6, 3), (2.5, 1.5, 3.5)])
def test_numbers_that_vary(backend, program, numbers):
    if isinstance(numbers[0], float) and program in (repeated, sliced):
        numbers = [int(number) for number in numbers]
    x = torch.arange(8.0, requires_grad=True)
    compiled = kiln.compile(program, backend=backend, dynamic=True)
    for number in numbers:
        expected, seen = program(x, number), compiled(x, number)
        torch.testing.assert_close(seen, expected)


def test_a_graph_of_numbers_alone():
    compiled = kiln.compile(lambda n: torch.ones(3) * n, backend=forward_only, dynamic=True)
    for number in (5, 6):
        torch.testing.assert_close(compiled(number), torch.ones(3) * number)
