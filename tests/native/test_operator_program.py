"""kiln._native.OperatorProgram and how kiln.aot makes one of a graph: the same results as the graph run in Python."""

import gc
import operator
import os
import signal
import threading
import weakref

import pytest
import torch
import torch.fx

from kiln import _native
from kiln.aot.runtime.operator_programs import program_of

aten = torch.ops.aten


def never(*_):
    raise AssertionError("not to be called")


def graph_of(write, count, otherwise=never):
    """A module whose graph `write(graph, *placeholders)` writes, and its program."""
    graph = torch.fx.Graph()
    results = write(graph, *[graph.placeholder(f"x{i}") for i in range(count)])
    graph.output(tuple(results))
    module = torch.fx.GraphModule({}, graph)
    return module, program_of(module, otherwise)


def several_results(graph, x):
    both = graph.call_function(aten.max.dim, (x, 0), {"keepdim": True})
    return [graph.call_function(operator.getitem, (both, i)) for i in (1, 0)]


def items_of_a_list(graph, x):
    parts = graph.call_function(aten.split.Tensor, (x, 1))
    return [graph.call_function(operator.getitem, (parts, i)) for i in (2, 0)]


def numbers(graph, x):
    size = graph.call_function(aten.sym_size.int, (x, 0))
    twice = graph.call_function(operator.mul, (size, 2))
    grown = graph.call_function(aten.expand.default, (graph.call_function(aten.sum.default, (x,)), [twice, 3]))
    scaled = graph.call_function(aten.mul.Tensor, (x, twice))
    return [grown, scaled, twice, graph.call_function(aten.pow.Tensor_Scalar, (x, size)), 7, None]


def lists_of_tensors(graph, x):
    index = graph.call_function(aten.arange.default, (2,), {"dtype": torch.int64})
    picked = graph.call_function(aten.index.Tensor, (x, [None, index]))
    return [graph.call_function(aten.cat.default, ([x, x, picked], 1))]


def constants(graph, x):
    y = graph.call_function(aten.mul.Tensor, (x, 2))
    y = graph.call_function(aten.add.Tensor, (y, 1.5), {"alpha": 2})
    y = graph.call_function(aten.clamp.default, (y, None, 3))
    kind = graph.call_function(aten._to_copy.default, (y,), {"dtype": torch.float64, "memory_format": None})
    bits = graph.call_function(aten.eq.Scalar, (x, True))
    device = graph.call_function(aten.full.default, ([2, 2], 1j), {"device": torch.device("cpu")})
    return [y, kind, bits, device, graph.call_function(aten.gelu.default, (x,), {"approximate": "tanh"})]


def functions_of_python(graph, x):
    def shapes(tensors, number):
        assert torch.is_tensor(tensors[0]) and number == 3
        return tensors[0] * 2, "text"

    made = graph.call_function(shapes, ([x], 3))
    return [graph.call_function(operator.getitem, (made, 0)), graph.call_function(operator.getitem, (made, 1))]


def twice_the_same(graph, x):
    y = graph.call_function(aten.add.Tensor, (x, x))
    return [y, x, y]


@pytest.mark.parametrize(
    "write",
    [
        several_results,
        items_of_a_list,
        numbers,
        lists_of_tensors,
        constants,
        functions_of_python,
        twice_the_same,
    ],
)
def test_results_are_those_of_the_graph(write):
    module, program = graph_of(write, 1)
    x = torch.randn(3, 3)
    given = [x]
    ours, expected = program(given), module(x)
    assert given == [] and type(ours) is tuple and len(ours) == len(expected)
    for value, wanted in zip(ours, expected, strict=True):
        if torch.is_tensor(wanted):
            assert torch.equal(value, wanted) and value.dtype == wanted.dtype
        else:
            assert value == wanted and type(value) is type(wanted)


def test_what_has_no_program():
    def whole_tuple(graph, x):
        return [graph.call_function(aten.max.dim, (x, 0))]

    def inside(graph, x):
        return [graph.call_function(operator.getitem, (x, slice(0, graph.call_function(aten.sym_size.int, (x, 0)))))]

    for write in (whole_tuple, inside):
        assert graph_of(write, 1)[1] is None


def test_functions_with_keywords_and_methods():
    def keywords(graph, x):
        return [graph.call_function(torch.sum, (x,), {"dim": 0})]

    def method(graph, x):
        return [graph.call_method("sum", (x,))]

    x = torch.randn(3, 3)
    for write in (keywords, method):
        module, program = graph_of(write, 1)
        assert torch.equal(program([x])[0], module(x)[0])


def test_values_die_at_their_last_use():
    alive = []

    def look(x):
        alive.append([reference() is not None for reference in references])
        return x

    def write(graph, x, unused):
        y = graph.call_function(aten.sin.default, (x,))
        return [graph.call_function(look, (y,))]

    _, program = graph_of(write, 2)
    given = [torch.zeros(3), torch.zeros(3)]
    references = [weakref.ref(value) for value in given]
    program(given)
    assert alive == [[False, False]]


def test_errors_are_eagers():
    def write(graph, x, y):
        return [graph.call_function(aten.mm.default, (x, y))]

    module, program = graph_of(write, 2)
    given = torch.zeros(2, 3), torch.zeros(2, 3)
    with pytest.raises(RuntimeError) as ours:
        program(list(given))
    with pytest.raises(RuntimeError) as expected:
        module(*given)
    assert str(ours.value) == str(expected.value)

    def fail(_):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        graph_of(lambda graph, x: [graph.call_function(fail, (x,))], 1)[1]([torch.zeros(1)])
    with pytest.raises(TypeError, match="2 values are needed"):
        program([torch.zeros(1)])
    with pytest.raises(TypeError, match="one list"):
        program(1)


@pytest.mark.parametrize(
    "arguments",
    [
        (1, 2, [(("aten::nothing", ""), (0,), (1,))], [1], never),
        (1, 2, [(("aten::sin", ""), (0, 0), (1,))], [1], never),
        (1, 2, [(("aten::sin", ""), (5,), (1,))], [1], never),
        (1, 2, [(("aten::sin", ""), (None,), (1,))], [1], never),
        (1, 2, [(("aten::sin", ""), ([0],), (1,))], [1], never),
        (1, 2, [(("aten::sin", ""), (0,), ())], [1], never),
        (1, 2, [1], [1], never),
        (1, 2),
    ],
)
def test_wrong_programs_are_refused(arguments):
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        _native.OperatorProgram(*arguments)


class Subclass(torch.Tensor):
    pass


def test_tensors_of_other_classes_and_modes_see_python():
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    seen = []
    _, program = graph_of(lambda graph, x: [graph.call_function(aten.sin.default, (x,))], 1, seen.append)
    given = [torch.zeros(1).as_subclass(Subclass)]
    program(given)
    with Mode():
        program([torch.zeros(1)])
    assert seen[0] is given and len(given) == 1 and len(seen) == 2
    program([torch.nn.Parameter(torch.zeros(1))])
    assert len(seen) == 2


def test_dispatch_modes_and_the_profiler_see_operators():
    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    seen = []
    _, program = graph_of(lambda graph, x: [graph.call_function(aten.sin.default, (x,))], 1)
    given = [torch.zeros(1)]
    with Mode():
        program(given)
    assert seen == [aten.sin.default]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        program([torch.zeros(1)])
    assert "aten::sin" in {event.name for event in profile.events()}


def test_books_are_kept():
    """Views, versions and forward-mode gradients, as when Python calls the operators."""
    module, program = graph_of(
        lambda graph, x: [graph.call_function(aten.t.default, (x,)), graph.call_function(aten.sum.default, (x,))], 1
    )
    x = torch.randn(2, 3)
    with torch.no_grad():
        for ours, expected in zip(program([x]), module(x), strict=True):
            assert ours._is_view() == expected._is_view() and ours._base is expected._base
            assert ours._version == expected._version
        view = program([x])[0]
        x.add_(1)
        assert view._version == x._version
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        ours, expected = (torch.autograd.forward_ad.unpack_dual(r[1]).tangent for r in (program([dual]), module(dual)))
        assert torch.equal(ours, expected)


def test_autocast_is_not_applied_again():
    _, program = graph_of(lambda graph, x: [graph.call_function(aten.mm.default, (x, x))], 1)
    inside = []
    _, calling = graph_of(lambda graph, x: [graph.call_function(lambda x: inside.append(x @ x), (x,))], 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (result,) = program([torch.ones(2, 2)])
        calling([torch.ones(2, 2)])
    assert (result.dtype, inside[0].dtype) == (torch.float32, torch.bfloat16)


def test_other_threads_run_meanwhile():
    started, go_on = threading.Event(), threading.Event()

    def wait(x):
        started.set()
        assert go_on.wait(60)
        return x

    _, program = graph_of(lambda graph, x: [graph.call_function(wait, (x,))], 1)
    thread = threading.Thread(target=program, args=([torch.zeros(1)],))
    thread.start()
    assert started.wait(60)
    graph_of(lambda graph, x: [graph.call_function(aten.sin.default, (x,))], 1)[1]([torch.zeros(1)])
    go_on.set()
    thread.join()


def test_interrupts():
    def press(x):
        os.kill(os.getpid(), signal.SIGINT)
        return x.clone()

    def write(graph, x):
        for _ in range(200):
            x = graph.call_function(aten.sin.default, (x,))
        return [x]

    def with_press(graph, x):
        return write(graph, graph.call_function(operator_press, (x,)))

    operator_press = torch.library.custom_op("kiln_tests::press", press, mutates_args=(), schema="(Tensor x) -> Tensor")
    operator_press = torch.ops.kiln_tests.press.default
    _, program = graph_of(with_press, 1)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore the signal
    try:
        with pytest.raises(KeyboardInterrupt):
            program([torch.zeros(1)])
    finally:
        signal.signal(signal.SIGINT, before)


def test_programs_are_collected():
    class Callable:
        def __call__(self, given):
            return given

    otherwise = Callable()
    otherwise.program = graph_of(lambda graph, x: [x], 1, otherwise)[1]
    reference = weakref.ref(otherwise)
    del otherwise
    gc.collect()
    assert reference() is None


def test_inputs_between_operators():
    """A graph may have placeholders anywhere; a program has its inputs first."""
    graph = torch.fx.Graph()
    first = graph.placeholder("first")
    doubled = graph.call_function(torch.ops.aten.mul.Tensor, (first, 2))
    second = graph.placeholder("second")
    graph.output((graph.call_function(torch.ops.aten.sub.Tensor, (doubled, second)),))
    module = torch.fx.GraphModule({}, graph)
    program = program_of(module, lambda arguments: module(*arguments))
    (result,) = program([torch.ones(2), torch.full((2,), 5.0)])
    torch.testing.assert_close(result, torch.full((2,), -3.0))
