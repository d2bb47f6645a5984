"""``trace_wrapped``: functions that hooks defer to the backward pass."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import kiln
from kiln.engine.calls.trace_wrapped import make_operator, trace_wrapped
from kiln.testing import same
from tests.engine.engine_counts import CountingCompiler

covers = pytest.mark.covers
DOCUMENT = "test_backward_higher_order_ops"


def square(x):
    return x * x


def squared(gradient):
    return trace_wrapped(gradient, fn=square)


def halves():
    return torch.tensor([0.5, 0.5], requires_grad=True)


GRADIENT = torch.tensor([2.0, 2.0])
BACKENDS = ("eager", "aot_eager")


def hooked(hook):
    """A function that puts a hook on its argument."""

    def add(x, y):
        x.register_hook(hook)
        return x + y

    return add


@covers(f"{DOCUMENT}::test_invoke_in_eager")
@covers(f"{DOCUMENT}::test_invoke_in_pt2")
@pytest.mark.parametrize("backend", [None, *BACKENDS])
@pytest.mark.parametrize("intermediate", [False, True])
def test_hooks_of_plain_backward_passes(backend, intermediate):
    def program(x, y):
        z = x * 1 if intermediate else x
        z.register_hook(squared)
        return z + y

    called = program if backend is None else kiln.compile(program, backend=backend, fullgraph=True)
    x, y = halves(), halves()
    called(x, y).backward(GRADIENT)
    assert same((x.grad, y.grad), (GRADIENT * GRADIENT, GRADIENT))


@covers(f"{DOCUMENT}::test_invoke_make_fx_forward_contrived")
@covers(f"{DOCUMENT}::test_invoke_make_bw")
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx_records_one_node_that_calls_the_function_later(mode):
    calls = []

    def counted(x, scale=1):
        calls.append(scale)
        return x * x * scale

    def program(x):
        return trace_wrapped(x, fn=counted, scale=3) + 1

    graph = make_fx(program, tracing_mode=mode)(halves())
    assert not calls and [node.name for node in graph.graph.nodes if "trace_wrapped" in node.name] == ["trace_wrapped"]
    assert "trace_wrapped = kiln_engine_calls_trace_wrapped_self_invoke(x_1, scale = 3)" in graph.code
    assert "torch.ops.aten.mul" not in graph.code and "empty" not in graph.code
    for number in (1.0, 2.0):
        assert same(graph(torch.full((2,), number)), torch.full((2,), number * number * 3 + 1))
    assert calls == [3, 3]


def test_make_fx_over_a_backward_pass():
    def program(x, y):
        x = x.detach().requires_grad_()
        x.register_hook(squared)
        return torch.autograd.grad((x * y).sum(), x)

    graph = make_fx(program)(torch.ones(2), torch.ones(2))
    assert "self_invoke" in graph.code
    assert same(graph(torch.ones(2), torch.full((2,), 3.0)), (torch.full((2,), 9.0),))


def test_the_module_that_graphs_name_is_free():
    operator = make_operator("somewhere.else")
    assert "somewhere_else_self_invoke(x_1)" in make_fx(lambda x: operator(x, fn=square))(torch.ones(2)).code


@pytest.mark.parametrize("other", [lambda x: x.sum(), lambda x: x.double(), lambda x: "text"])
def test_results_that_graphs_do_not_expect(other):
    graph = make_fx(lambda x: trace_wrapped(x, fn=other))(torch.ones(2))
    with pytest.raises(RuntimeError, match="take.* to look like its first argument"):
        graph(torch.ones(2))


def test_autograd_goes_through_it_in_eager():
    x = halves()
    (trace_wrapped(x, fn=square).sum()).backward()
    assert same(x.grad, 2 * x.detach())


# -- under the engine -----------------------------------------------------------------------------------------------


@covers(f"{DOCUMENT}::test_invoke_in_pt2_compiled_autograd")
@pytest.mark.parametrize("backend", [None, *BACKENDS])
@pytest.mark.parametrize("inner", BACKENDS)
def test_the_engine_inlines_the_function(backend, inner):
    compiler = CountingCompiler(inner=inner)
    x, y = halves(), halves()
    program = hooked(squared)
    out = (program if backend is None else kiln.compile(program, backend=backend))(x, y)
    with kiln.compiled_autograd.enable(compiler):
        out.backward(GRADIENT)
    assert same((x.grad, y.grad), (GRADIENT * GRADIENT, GRADIENT))
    (graph,) = compiler.graphs
    assert " * " in graph.code and "wrapped" not in graph.code and "hook" not in graph.code


@pytest.mark.parametrize("fullgraph", [True, False])
def test_side_effects_are_seen_in_order(fullgraph):
    seen, record = [], {"calls": 0}

    def noting(x):
        seen.append("before")
        record["calls"] += 1
        seen.append(x * record["calls"])
        return x * x

    def run():
        seen.clear()
        x, y = halves(), halves()
        x.register_hook(lambda gradient: seen.append("first"))
        x.register_hook(lambda gradient: trace_wrapped(gradient, fn=noting))
        x.register_hook(lambda gradient: seen.append("last"))
        (x + y).backward(GRADIENT)
        return list(seen), record["calls"], x.grad, y.grad

    expected = [run() for _ in range(3)]
    record["calls"] = 0
    compiler = CountingCompiler(fullgraph=fullgraph)
    with kiln.compiled_autograd.enable(compiler):
        assert same([run() for _ in range(3)], expected)
    assert len(compiler.modules) == 1


@covers(f"{DOCUMENT}::test_invoke_in_pt2_compiled_autograd_graph_breaks")
@pytest.mark.parametrize("backend", [None, *BACKENDS])
def test_graph_breaks_inside(backend, capsys):
    def telling(x):
        print("told")
        return square(x)

    program = hooked(lambda gradient: trace_wrapped(gradient, fn=telling))
    called = program if backend is None else kiln.compile(program, backend=backend, fullgraph=True)
    x, y = halves(), halves()
    with pytest.raises(kiln.exc.Unsupported, match="print"), kiln.compiled_autograd.enable(CountingCompiler()):
        called(x, y).backward(GRADIENT)
    assert capsys.readouterr().out == ""
    x, y = halves(), halves()
    with kiln.compiled_autograd.enable(CountingCompiler(fullgraph=False)):
        called(x, y).backward(GRADIENT)
    assert same((x.grad, y.grad), (GRADIENT * GRADIENT, GRADIENT)) and capsys.readouterr().out == "told\n"
