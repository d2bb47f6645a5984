"""``torch.compile`` and the functions of ``torch._dynamo``, and what they mean on Kiln."""

import functools
import gc
import weakref

import pytest
import torch

import kiln
from kiln.testing import same


def mixed(x, y):
    return (x * 2 + y).relu()


@pytest.fixture
def counter(installed):
    return torch._dynamo.testing.CompileCounter()


WAYS = {
    "call": lambda counter: torch.compile(mixed, backend=counter),
    "decorator": lambda counter: torch.compile(backend=counter)(mixed),
    "fullgraph": lambda counter: torch.compile(mixed, backend=counter, fullgraph=True, dynamic=False),
    "compiler": lambda counter: torch.compiler.compile(mixed, backend=counter),
    "optimize": lambda counter: torch._dynamo.optimize(counter)(mixed),
    "nopython": lambda counter: torch._dynamo.optimize(counter, nopython=True, dynamic=None)(mixed),
    "assert": lambda counter: torch._dynamo.optimize_assert(counter)(mixed),
    "partial": lambda counter: functools.partial(torch.compile, backend=counter)(mixed),
}


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_compile(counter, way):
    compiled = WAYS[way](counter)
    x, y = torch.randn(3), torch.randn(3)
    assert torch.equal(compiled(x, y), mixed(x, y)) and torch.equal(compiled(y, x), mixed(y, x))
    assert (counter.frame_count, counter.op_count) == (1, 3)
    assert compiled._torchdynamo_orig_callable is mixed and torch._dynamo.eval_frame.innermost_fn(compiled) is mixed


def test_modules(counter):
    net = torch.nn.Linear(3, 3)
    compiled = torch.compile(net, backend=counter)
    assert isinstance(compiled, torch._dynamo.OptimizedModule) and compiled._orig_mod is net
    assert torch._dynamo.eval_frame.innermost_fn(compiled) is net
    net.compile(backend=counter)
    x = torch.randn(2, 3)
    assert torch.equal(net(x), compiled(x))
    assert counter.frame_count >= 1


def test_arguments_of_torch_compile(installed):
    asked = []

    def backend(graph_module, example_inputs, mode=None, options=None):
        asked.append((mode, options))
        return graph_module

    torch.compile(mixed, backend=backend, mode="max-autotune")(torch.ones(1), torch.ones(1))
    torch.compile(mixed, backend=backend, options={"a": 1})(torch.ones(1), torch.ones(1))
    torch.compile(mixed, backend=backend)(torch.ones(1), torch.ones(1))
    assert asked == [("max-autotune", None), (None, {"a": 1}), (None, None)]
    for accepted in ({"mode": "reduce-overhead"}, {"options": {"trace.enabled": True}}, {"name": "x"}):
        torch.compile(mixed, **accepted)(torch.ones(1), torch.ones(1))  # nothing to Kiln's own backend
    assert torch.compile(mixed, disable=True) is mixed
    for mistaken in (torch.compile, torch._dynamo.optimize):
        with pytest.raises(TypeError, match="fulgraph"):
            mistaken(fulgraph=True)
    with pytest.raises(kiln.exc.NotAvailable, match="guard_export_fn"):
        torch._dynamo.optimize("eager", guard_export_fn=print)
    with pytest.raises(RuntimeError, match="both can't be specified"):
        torch.compile(mixed, mode="default", options={"a": 1})


def test_sizes_that_vary(counter):
    compiled = torch.compile(mixed, backend=counter, dynamic=True)
    for size in (3, 4, 5):
        compiled(torch.ones(size), torch.ones(size))
    assert counter.frame_count == 1
    with torch._dynamo.config.patch(assume_static_by_default=False):
        other = torch._dynamo.testing.CompileCounter()
        compiled = torch.compile(mixed, backend=other)
        for size in (3, 4, 5):
            compiled(torch.ones(size), torch.ones(size))
    assert other.frame_count == 1


@pytest.mark.parametrize("mark", ["mark_dynamic", "maybe_mark_dynamic", "mark_static", "mark_static_address"])
def test_marks(counter, mark):
    compiled = torch.compile(lambda x: x + 1, backend=counter)
    for size in (3, 4, 5):
        x = torch.ones(size)
        getattr(torch._dynamo, mark)(x, *([0] if mark != "mark_static_address" else []))
        compiled(x)
    assert counter.frame_count == {"mark_static": 3, "mark_static_address": 2}.get(mark, 1)


class Toy(torch.nn.Module):
    def __init__(self, names):
        super().__init__()
        self.parts = torch.nn.ModuleDict({name: torch.nn.Linear(1, 1) for name in names})

    def forward(self, x):
        return x * 3 if "foo" in self.parts else x + 1


@pytest.mark.covers("test_modules::test_nn_moduledict_contains", "test_modules::test_generation_tag")
def test_a_block_compiles_the_modules_called_in_it(counter):
    with pytest.raises(RuntimeError, match="context manager"), torch._dynamo.optimize(counter):
        pass
    tracker = torch._dynamo.mutation_guard.GenerationTracker
    old = torch.nn.Linear(1, 1)
    generation = tracker.get_generation_value(old)
    with torch._dynamo.config.patch(raise_on_ctx_manager_usage=False):
        with torch._dynamo.optimize(counter):
            assert torch.equal(Toy(["bar"])(torch.ones(1)), torch.full((1,), 2.0))
            assert torch.equal(Toy(["cat"])(torch.ones(1)), torch.full((1,), 2.0))
            assert (counter.frame_count, counter.op_count) == (1, 1)
            assert torch.equal(Toy(["foo"])(torch.ones(1)), torch.full((1,), 3.0))
            with pytest.raises(TypeError):
                Toy(["foo"])()
            assert tracker.get_generation_value(torch.nn.Linear(1, 1)) == generation + 1
    frames = counter.frame_count
    Toy(["foo", "bar"])(torch.ones(1))
    assert counter.frame_count == frames == 2 and tracker.get_generation_value(old) == generation


def test_keeping_out(counter):
    calls = []

    @torch._dynamo.disable
    def outside(x):
        calls.append(torch._dynamo.is_compiling())
        return x + 1

    def program(x):
        x = outside(x * 2)
        torch._dynamo.graph_break()
        return x * (2 if torch._dynamo.is_compiling() else 1)

    compiled = torch.compile(program, backend=counter)
    assert compiled(torch.ones(1)).item() == 6 and program(torch.ones(1)).item() == 3
    assert calls == [False, False] and counter.frame_count == 2
    with torch._dynamo.disable():
        assert compiled(torch.ones(1)).item() == 3
    assert torch._dynamo.run(compiled)(torch.ones(1)).item() == 3
    for made in (torch._dynamo.disable()(program), torch.compiler.disable(program, recursive=False)):
        assert torch.compile(made, backend=counter)(torch.ones(1)).item() == 3


def test_a_graph_break_that_torch_itself_asks_for_is_none(counter):
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    torch.compile(optimizer.step, backend=counter, fullgraph=True)()
    assert parameter.tolist() == [0.5, 0.5] and counter.frame_count == 1
    with pytest.raises(torch._dynamo.exc.Unsupported, match="graph_break"):
        torch.compile(lambda x: torch._dynamo.graph_break(), fullgraph=True)(torch.ones(1))


def test_in_and_out_of_graphs(counter):
    seen = []

    def opaque(x):
        seen.append(type(x))
        return x.sin()

    torch._dynamo.allow_in_graph(opaque)
    torch.compile(lambda x: opaque(x) + 1, backend=counter)(torch.ones(1))
    assert [node.target for node in counter.graphs[0].graph.nodes if node.op == "call_function"][0] is opaque
    counter.clear()

    def kept(x):
        return torch.special.entr(x * 2) + 1

    torch._dynamo.disallow_in_graph(torch.special.entr)
    assert torch.equal(torch.compile(kept, backend=counter)(torch.ones(1)), kept(torch.ones(1)))
    assert counter.frame_count == 2
    with pytest.raises(torch._dynamo.exc.Unsupported, match="disallow_in_graph"):
        torch.compile(kept, fullgraph=True)(torch.ones(1))


def test_a_constant_result_is_looked_at(counter):
    value = [2]

    @torch._dynamo.assume_constant_result
    def factor():
        return value[0]

    compiled = torch.compile(lambda x: x * factor(), backend=counter)
    assert compiled(torch.ones(1)).item() == 2
    value[0] = 5
    assert compiled(torch.ones(1)).item() == 5  # where torch would go on with 2


def test_stances(counter):
    compiled = torch.compile(lambda x: x * (2 if torch.compiler.is_compiling() else 1), backend=counter)
    with torch.compiler.set_stance("force_eager"):
        assert compiled(torch.ones(1)).item() == 1
    assert compiled(torch.ones(1)).item() == 2
    assert torch.compiler.set_stance("force_eager")(lambda: compiled(torch.ones(1)).item())() == 1
    with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(torch._dynamo.exc.RecompileError):
        compiled(torch.ones(1, 1))
    assert compiled(torch.ones(1, 1)).item() == 2
    torch._dynamo.set_stance("force_eager")
    assert compiled(torch.ones(1)).item() == 1
    torch._dynamo.set_stance("default")
    assert compiled(torch.ones(1)).item() == 2
    with pytest.raises(RuntimeError, match="did you mean 'force_eager'"):
        torch.compiler.set_stance("force_eagre")
    with pytest.raises(kiln.exc.NotAvailable):
        torch.compiler.set_stance("eager_then_compile")


def test_backends(installed):
    @torch._dynamo.register_backend
    def compat_backend(graph_module, example_inputs):
        return graph_module.forward

    assert "compat_backend" in torch._dynamo.list_backends() and "eager" in torch._dynamo.list_backends(None)
    assert torch._dynamo.lookup_backend("compat_backend") is compat_backend
    assert torch._dynamo.backends.registry.lookup_backend("compat_backend") is compat_backend
    assert torch.compile(mixed, backend="compat_backend")(torch.ones(1), torch.ones(1)).item() == 3


def test_explaining(installed):
    def program(x):
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    found = torch._dynamo.explain(program)(torch.ones(1))
    assert (found.graph_count, found.graph_break_count, found.op_count) == (2, 1, 2)
    assert [len(each) for each in found.ops_per_graph] == [1, 1] and found.out_guards and len(found.graphs) == 2
    assert "graph_break" in str(found.break_reasons[0]) and "1 graph break" in str(found)
    assert torch._dynamo.explain(program, torch.ones(1)).graph_count == 2  # as it once was called


class Exported(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("shift", torch.ones(3))
        self.flag = True

    def forward(self, x, more=None):
        y = self.linear(x) + self.shift
        return {"y": y, "x": x, "n": 3, "more": [y * more["a"]] if self.flag else None}


@pytest.mark.covers(
    "test_modules::test_call_fn_with_non_const_inputs_safe",
    "test_aot_autograd::test_call_fn_with_non_const_inputs_aot_safe",
)
def test_exporting(installed):
    net = Exported()
    graph, guards = torch._dynamo.export(net)(torch.randn(2, 3), more={"a": torch.ones(3)})
    x, more = torch.randn(2, 3), {"a": torch.randn(3)}
    assert same(graph(x, more=more), net(x, more=more)) and any("flag" in guard for guard in guards)
    assert {id(each) for each in graph.parameters()} == {id(each) for each in net.parameters()}
    assert len(list(graph.buffers())) == 1 and "relu" not in graph.code and graph.graph.nodes
    compiled = torch.compile(graph, backend="eager", fullgraph=True)
    assert same(compiled(x, more=more), net(x, more=more))
    one = torch._dynamo.export(mixed, torch.ones(1), torch.ones(1)).graph_module  # as it once was called
    assert one(torch.ones(1), torch.ones(1)).item() == 3
    with pytest.raises(torch._dynamo.exc.UserError, match="tensor work"):
        torch._dynamo.export(lambda x: x)(torch.ones(1))
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch._dynamo.export(lambda x: x.item() + torch.ones(1))(torch.ones(1))


def test_resetting_the_caches_of_code(installed):
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(lambda x: x + 1, backend=counter)
    compiled(torch.ones(2))
    torch._dynamo.reset_code_caches()
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    assert counter.frame_count == 2


def test_exporting_finds_arguments_by_name(installed):
    def scaled(x, *, by, plus):
        return x * by + plus["a"] - plus["b"]

    one, two, three, four = (torch.full((2,), float(n)) for n in (2, 3, 5, 7))
    graph = torch._dynamo.export(scaled, one, by=two, plus={"a": three, "b": four}, aten_graph=False).graph_module
    expected = scaled(one, by=two, plus={"a": three, "b": four})
    assert torch.equal(graph(one, by=two, plus={"a": three, "b": four}), expected)
    assert torch.equal(graph(one, plus={"b": four, "a": three}, by=two), expected)
    assert torch.equal(graph(plus={"a": three, "b": four}, by=two, x=one), expected)
    with pytest.raises(torch._dynamo.exc.UserError, match="another structure"):
        graph(one, by=[two, two], plus={"a": three, "b": four})
    with pytest.raises(TypeError, match="plus"):
        graph(one, by=two)


def test_exporting_a_function_that_changes_its_arguments(installed):
    def shifted(items):
        kept = items.copy()
        items[0] = items[1]
        return items[0] + items[1], kept[0] + kept[1]

    def make():
        return [torch.tensor([1.5, 2.0]), torch.tensor([8.0, 6.25])]

    graph = torch._dynamo.export(shifted)(make()).graph_module
    assert same(graph(make()), shifted(make()))


def test_an_exported_call_refuses_what_it_was_not_made_for(installed):
    graph = torch._dynamo.export(lambda x, n: x * x.shape[0] + n)(torch.ones(2, 3), 4).graph_module
    assert same(graph(torch.ones(2, 3), 4), torch.ones(2, 3) * 2 + 4)
    for args, reason in [
        ((torch.ones(5, 3), 4), "size 0 of l_x is 2 in it, and 5 here"),
        ((torch.ones(2, 3), 5), "4 is written into it, and 5 is given here"),
        ((torch.ones(2, 3), 4.0), "4 is written into it, and 4.0 is given here"),
    ]:
        with pytest.raises(kiln.exc.UserError, match=reason):
            graph(*args)


def test_an_exported_call_refuses_other_sizes_of_what_it_only_measures(installed):
    def program(x, more):
        return torch.ones(5 * x.shape[0]) + more["scale"]

    x, more = torch.ones(4, 3), {"scale": torch.ones(1)}
    graph = torch._dynamo.export(program)(x, more).graph_module
    assert same(graph(x, more), program(x, more))
    for other, reason in [
        (torch.ones(6, 3), r"argument \['x'\] are \[4, 3\] in it, and \[6, 3\] here"),
        (torch.ones(4), "number of dimensions"),
        (torch.ones(4, 3, dtype=torch.float64), "dtype"),
        (4, "of type int here"),
    ]:
        with pytest.raises(kiln.exc.UserError, match=reason):
            graph(other, more)


def test_counters_follow_what_kiln_does(installed):
    from torch._dynamo.utils import counters

    counters.clear()

    def program(x):
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    compiled = torch.compile(program)
    compiled(torch.ones(2))
    assert counters["stats"]["unique_graphs"] == 2 and counters["frames"] == {"total": 2, "ok": 2}
    assert sum(counters["graph_break"].values()) == 1 and "graph_break" in next(iter(counters["graph_break"]))
    compiled(torch.ones(2, 2))
    assert counters["stats"]["unique_graphs"] > 2 and sum(counters["recompiles"].values()) >= 1
    counters["compiled_autograd"]["captures"] += 1
    assert counters["compiled_autograd"]["captures"] == 1 and counters["compiled_autograd"]["compiles"] == 0
    counters.clear()
    assert not counters
    kiln.uninstall()
    kiln.compile(lambda x: x - 1)(torch.ones(2))
    assert not counters


def test_what_was_compiled_outlives_what_it_was_compiled_for(counter):
    """Until a reset, and without keeping the model."""
    model = torch.nn.Linear(2, 2)
    for _ in range(3):
        torch.compile(model, backend=counter, fullgraph=True)(torch.ones(1, 2))
    assert counter.frame_count == 1
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    torch._dynamo.reset()
    torch.compile(torch.nn.Linear(2, 2), backend=counter, fullgraph=True)(torch.ones(1, 2))
    assert counter.frame_count == 2
