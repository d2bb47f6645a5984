"""The engine on the behaviours of the document test_compiled_autograd: eager's values, traces and compiles counted."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import kiln
from kiln import compiled_autograd
from kiln.testing import same
from tests.engine.engine_counts import CountingCompiler, beside_eager, captures

covers = pytest.mark.covers
DOCUMENT = "test_compiled_autograd"


def case(program, counts, *names, **options):
    """A program, how many traces and compiles it takes, and the behaviours it is about."""
    marks = [covers(f"{DOCUMENT}::{name}") for name in names]
    return pytest.param(program, counts, options, marks=marks, id=program.__name__)


def layers(*widths, activation=torch.nn.ReLU):
    pairs = [(torch.nn.Linear(*pair), activation()) for pair in zip(widths, widths[1:], strict=False)]
    return torch.nn.Sequential(*[layer for pair in pairs for layer in pair])


def gradients(model):
    return [parameter.grad.clone() for parameter in model.parameters()]


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def ramp(length):
    return torch.arange(0.0, length, requires_grad=True)


LENGTHS = [10, 100, 10, 15, 20, 25]

# -- built-in nodes, and gradients asked for ------------------------------------------------------------------------


def one_pass():
    model = layers(4, 4, 4)
    model(torch.randn(2, 4)).sum().backward()
    yield gradients(model)


def models_made_anew():
    for _ in range(3):
        yield from one_pass()


def without_bias():
    model = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False), torch.nn.Linear(1, 2, bias=False))
    loss = model(torch.randn(2, 2)).sum()
    torch.manual_seed(0)
    loss.backward()
    yield gradients(model)


def compiled_model():
    model = layers(4, 4, activation=torch.nn.Sigmoid)
    compiled = kiln.compile(model, fullgraph=True)
    for _ in range(3):
        compiled(torch.randn(1, 4)).sum().backward()
        yield gradients(model)
        model.zero_grad()


def batches_of_many_sizes():
    model = layers(4, 4, 4)
    compiled = kiln.compile(model, dynamic=True)
    for batch in range(10, 100, 10):
        compiled(torch.randn(batch, 4)).sum().backward()
        yield gradients(model)
        model.zero_grad()


def gradients_that_add_up():
    model = layers(4, 4, 4)
    compiled = kiln.compile(model, dynamic=True)
    for _ in range(10):
        compiled(torch.randn(10, 4)).sum().backward()
        yield gradients(model)


def gradients_that_were_given():
    model = layers(4, 4)
    compiled = kiln.compile(model, dynamic=True)
    for _ in range(10):
        given = [torch.rand_like(parameter) for parameter in model.parameters()]
        for parameter, gradient in zip(model.parameters(), given, strict=True):
            parameter.grad = gradient
        compiled(torch.randn(10, 4)).sum().backward()
        assert all(parameter.grad is gradient for parameter, gradient in zip(model.parameters(), given, strict=True))
        yield gradients(model)


def of_leaves_returned():
    first, second = leaf(1, 4), leaf(1, 4)
    for _ in range(3):
        total = torch.sigmoid(torch.randn(1, 4) * second + first.sin() + first.cos()).sum()
        yield torch.autograd.grad(total, inputs=[first, second])
        assert first.grad is second.grad is None


def of_leaves_accumulated():
    first, second = leaf(1, 4), leaf(1, 4)
    for _ in range(3):
        total = torch.sigmoid(torch.randn(1, 4) * second + first.sin() + first.cos()).sum()
        assert total.backward() is None
        yield first.grad, second.grad
        first.grad = second.grad = None


class NotToRun(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("nobody asked for this gradient")


def of_some_leaves_returned():
    other, wanted = leaf(1, 4), leaf(1, 4)
    for _ in range(3):
        total = torch.sigmoid(NotToRun.apply(other) * wanted).sum()
        yield torch.autograd.grad(total, inputs=[wanted])
        assert other.grad is wanted.grad is None


def of_some_leaves_accumulated():
    first, second, other = leaf(1, 4), leaf(1, 4), leaf(1, 4)
    for _ in range(3):
        total = torch.sigmoid(torch.randn(1, 4) * first * second * NotToRun.apply(other)).sum()
        assert total.backward(inputs=[first, second]) is None
        assert other.grad is None
        yield first.grad, second.grad
        first.grad = second.grad = None


def of_other_leaves_each_time():
    leaves = [leaf(5) for _ in range(3)]
    for wanted in leaves[:2]:
        total = (leaves[0] * leaves[1] * leaves[2]).sum()
        kiln.compile(lambda total=total, wanted=wanted: torch.autograd.backward(total, inputs=[wanted]))()
        yield wanted.grad


def graph_kept():
    x = torch.tensor([2.0], requires_grad=True)
    square = x**2
    for _ in range(3):
        x.grad = torch.tensor([0.0])
        square.backward(retain_graph=True)
        yield x.grad.clone()
    square.backward()
    yield x.grad


def checkpointed(reentrant):
    def program():
        model = layers(4, 4, 4)
        x = leaf(3, 4)
        for _ in range(3):
            model.zero_grad(), setattr(x, "grad", None)
            checkpoint(model, x, use_reentrant=reentrant).sum().backward()
            yield gradients(model), x.grad

    program.__name__ = f"checkpointed_{'re' if reentrant else 'not_re'}entrant"
    return program


# -- hooks ----------------------------------------------------------------------------------------------------------


def hooked(name, register):
    def program():
        for _ in range(3):
            model = layers(4, 4)
            total = model(torch.randn(1, 4)).sum()
            register(model, total)
            total.backward()
            yield gradients(model)

    program.__name__ = name
    return program


def register_on_a_leaf(model, total):
    model[0].weight.register_hook(lambda gradient: gradient * 2)


def register_before_a_node(model, total):
    total.grad_fn.register_prehook(lambda given: (given[0] + 1,))


def register_after_a_node(model, total):
    total.grad_fn.register_hook(lambda made, given: (made[0].sin() + given[0],))


# -- functions in Python --------------------------------------------------------------------------------------------


def function(forward, backward):
    """A class for autograd; ``forward`` and ``backward`` get its context."""
    return type(
        "Made", (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    )


def over_lengths(name, made, count=1, lengths=LENGTHS):
    """A program that applies a function to vectors of several lengths."""

    def program():
        applied = made()
        for length in lengths:
            xs = [ramp(length) for _ in range(count)]
            results = applied(*xs)
            results = results if isinstance(results, tuple) else (results,)
            functools.reduce(torch.mul, results).sum().backward()
            yield [x.grad for x in xs]

    program.__name__ = name
    return program


def saved_forward(ctx, x):
    ctx.save_for_backward(x)
    return x.sin()


def saved_backward(ctx, gradient):
    (x,) = ctx.saved_tensors
    return gradient * x.cos()


def telling(method):
    """The same, with a line printed: a break where Kiln cannot hold it in a graph."""

    def told(ctx, *args):
        print("graph break")
        return method(ctx, *args)

    return told


def two_saved():
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x.sin(), y.sin()

    def backward(ctx, for_x, for_y):
        x, y = ctx.saved_tensors
        return for_x * x.cos(), for_y * y.cos()

    return function(forward, backward).apply


def one_saved_twice():
    def forward(ctx, x):
        ctx.save_for_backward(x, x)
        return x.sin()

    def backward(ctx, gradient):
        x, again = ctx.saved_tensors
        return gradient * x.cos() * again.cos()

    return function(forward, backward).apply


def shape_of_saved():
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    return function(forward, lambda ctx, gradient: gradient * ctx.saved_tensors[0].shape[0]).apply


def shape_as_attribute():
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.clone()

    return function(forward, lambda ctx, gradient: gradient * ctx.shape[0]).apply


def two_results():
    return function(lambda ctx, x, y: (x + y, y.clone()), lambda ctx, first, second: (first, second)).apply


def number_among_inputs():
    made = function(lambda ctx, x, y, z: (x * 2, y * 3, z * 4), lambda ctx, first, second, third: (first, None, third))

    def apply(x, z):
        first, _, third = made.apply(x, 1, z)
        return first, third

    return apply


def classes_that_are_alike():
    classes = [function(lambda ctx, x: x.clone(), lambda ctx, gradient: gradient) for _ in range(2)]
    for cls in classes * 2:
        x = ramp(10)
        cls.apply(x).sum().backward()
        yield x.grad


def classes_made_at_run_time():
    def make(factor):
        return function(lambda ctx, x: x * factor, lambda ctx, gradient: gradient * factor)

    for factor in (10, 20, 30):
        x = ramp(10)
        make(factor).apply(x).sum().backward()
        yield x.grad


def view_through_a_function():
    x = torch.arange(1, 10, dtype=torch.float16, requires_grad=True)
    made = function(lambda ctx, x: x.clone(), lambda ctx, gradient: gradient)
    made.apply(x.view(3, 3)).sum().backward()
    yield x.grad


PLAIN = {"saved": lambda: function(saved_forward, saved_backward).apply}

PROGRAMS = [
    case(one_pass, (1, 1), "test_basic"),
    case(models_made_anew, (1, 1), "test_cache_hit"),
    case(without_bias, (1, 1), "test_accumulate_grad_accuracy"),
    case(compiled_model, (1, 1), "test_torch_compile"),
    case(batches_of_many_sizes, (2, 2), "test_dynamic_shapes"),
    case(gradients_that_add_up, (2, 2), "test_accumulate_without_zero"),
    case(gradients_that_were_given, (1, 1), "test_inplace_grad_update"),
    case(of_leaves_returned, (1, 1), "test_output_nodes_all_leaves"),
    case(of_some_leaves_returned, (1, 1), "test_output_nodes_some_leaves"),
    case(of_leaves_accumulated, (1, 1), "test_no_output_nodes_all_leaves"),
    case(of_some_leaves_accumulated, (1, 1), "test_no_output_nodes_some_leaves"),
    case(of_other_leaves_each_time, (2, 2), "test_no_output_nodes_different_leaves_will_recompile"),
    case(graph_kept, (1, 1), "test_keep_graph_simple"),
    case(hooked("hook_on_a_leaf", register_on_a_leaf), (1, 1), "test_tensor_grad_hook1"),
    case(hooked("hook_before_a_node", register_before_a_node), (1, 1), "test_tensor_grad_hook2"),
    case(hooked("hook_after_a_node", register_after_a_node), (1, 1), "test_tensor_grad_hook3"),
    case(over_lengths("function_with_saved", PLAIN["saved"]), (2, 2), "test_custom_fn_saved_tensors"),
    case(over_lengths("function_with_two_saved", two_saved, 2), (2, 2), "test_custom_fn_saved_multiple_tensors"),
    case(over_lengths("function_saving_twice", one_saved_twice), (2, 2), "test_custom_fn_saved_multiple_tensors_dedup"),
    case(over_lengths("function_with_a_shape", shape_of_saved), (2, 2), "test_custom_fn_saved_shape_tensor"),
    case(over_lengths("function_with_attributes", shape_as_attribute), (2, 2), "test_custom_fn_saved_attr"),
    case(over_lengths("function_with_two_results", two_results, 2), (2, 2), "test_custom_fn_multiple_grads"),
    case(over_lengths("function_of_a_number", number_among_inputs, 2), (2, 2), "test_custom_fn_non_variable_input"),
    case(classes_that_are_alike, (2, 2), "test_custom_fn_with_same_graph"),
    case(classes_made_at_run_time, (3, 3), "test_custom_fn_dynamically_defined_class"),
    case(view_through_a_function, (1, 1), "test_custom_fn_output_metadata"),
]


@pytest.mark.parametrize(("program", "counts", "options"), PROGRAMS)
def test_one_graph(program, counts, options):
    assert beside_eager(program, **options) == counts


AHEAD_OF_TIME = [one_pass, compiled_model, gradients_that_were_given, of_some_leaves_returned, graph_kept]
AHEAD_OF_TIME += [classes_made_at_run_time]


@pytest.mark.parametrize("program", AHEAD_OF_TIME)
def test_backward_graphs_compiled_ahead_of_time(program):
    beside_eager(program, inner="aot_eager")


@pytest.mark.parametrize("program", [checkpointed(True), checkpointed(False)], ids=lambda program: program.__name__)
@covers(f"{DOCUMENT}::test_issue106555")
def test_checkpoints(program):
    beside_eager(program, fullgraph=False)


# -- breaks ---------------------------------------------------------------------------------------------------------

BREAKING = {
    "backward": (lambda: function(saved_forward, telling(saved_backward)).apply, "test_custom_fn_bw_graph_break"),
    "forward": (
        lambda: kiln.compile(function(telling(saved_forward), saved_backward).apply),
        "test_custom_fn_compiled_fw_graph_break",
    ),
    "both": (
        lambda: kiln.compile(function(telling(saved_forward), telling(saved_backward)).apply),
        "test_custom_fn_compiled_fw_bw_graph_break",
    ),
}


@pytest.mark.parametrize(
    "made", [pytest.param(made, marks=covers(f"{DOCUMENT}::{name}"), id=key) for key, (made, name) in BREAKING.items()]
)
def test_lines_printed_on_the_way(made, capsys):
    traced, compiled = beside_eager(over_lengths("printing", made), fullgraph=False)
    text = capsys.readouterr().out
    assert text.count("graph break") % (2 * len(LENGTHS)) == 0  # as often as in eager
    assert traced == 2
    assert compiled <= 6


def test_break_in_a_backward_under_fullgraph_raises():
    made = function(saved_forward, lambda ctx, gradient: (kiln.graph_break(), saved_backward(ctx, gradient))[1])
    x = ramp(3)
    with compiled_autograd.enable(CountingCompiler(fullgraph=True)), pytest.raises(kiln.exc.Unsupported):
        made.apply(x).sum().backward()


@covers(f"{DOCUMENT}::test_callback_graph_break_throws_error")
@pytest.mark.parametrize("fullgraph", [False, True])
def test_callback_queued_in_a_backward(fullgraph):
    """The document asserts an error for a callback and a break; Kiln's passes run in a task of torch's engine."""
    called = []

    def backward(ctx, gradient):
        torch.autograd.Variable._execution_engine.queue_callback(lambda: called.append(x.grad is not None))
        if not fullgraph:
            kiln.graph_break()
        return gradient

    x = leaf(3, 3)
    made = function(lambda ctx, x: x.clone(), torch.autograd.function.once_differentiable(backward))
    with compiled_autograd.enable(CountingCompiler(fullgraph=fullgraph)):
        made.apply(x).sum().backward()
    assert called == [True]
    assert same(x.grad, torch.ones(3, 3))


# -- kiln.compile and the setting -----------------------------------------------------------------------------------


@covers(f"{DOCUMENT}::test_keep_graph_usage_after_compiled")
def test_graph_kept_is_of_use_to_either_engine():
    x = torch.tensor([2.0], requires_grad=True)
    square, x.grad = x**2, torch.tensor([0.0])
    compiler = CountingCompiler()
    for _ in range(3):
        for block in (compiled_autograd.enable(compiler), compiled_autograd.disable()):
            with block:
                square.backward(retain_graph=True)
            assert x.grad.item() == 4
            x.grad = torch.tensor([0.0])
    assert len(compiler.modules) == 1


def training():
    torch.manual_seed(11)
    model = layers(4, 4, activation=torch.nn.Sigmoid)
    found = []
    for _ in range(3):
        model(torch.randn(1, 4)).sum().backward()
        found.append(gradients(model))
        model.zero_grad()
    return found


API = {"eager": "test_torch_compile_api_eager", "aot_eager": "test_torch_compile_api_aot_eager"}


@pytest.mark.parametrize("backend", [pytest.param(key, marks=covers(f"{DOCUMENT}::{API[key]}")) for key in API])
def test_whole_function_compiled_with_the_setting(backend):
    """One graph has the constructor and the first forward pass, which eager differentiates: parameters are made in it.
    The later forward passes are differentiated ahead of time, where the backend does that: another backward graph."""
    kiln.reset()
    expected, before = training(), captures()
    with kiln.config.patch(compiled_autograd=True):
        compiled = kiln.compile(training, backend=backend)
    assert same(expected, compiled(), rtol=1e-5, atol=1e-6)
    assert captures() - before == (1 if backend == "eager" else 2)


@covers(f"{DOCUMENT}::test_torch_compile_api_inductor")
def test_whole_function_compiled_with_the_default_backend():
    kiln.reset()
    expected, before = training(), captures()
    with kiln.config.patch(compiled_autograd=True):
        compiled = kiln.compile(training)
    assert same(expected, compiled())
    assert captures() - before == 1


@covers(f"{DOCUMENT}::test_multiple_torch_compile")
def test_functions_with_and_without_the_setting():
    kiln.reset()
    model, other, x = layers(4, 4, activation=torch.nn.Sigmoid), torch.nn.Linear(4, 4), torch.randn(1, 4)
    counts = [captures()]

    def step():
        model(x).sum().backward()

    def other_step():
        other(x).sum().backward()

    for function, setting in ((step, False), (other_step, True), (step, False)):
        with kiln.config.patch(compiled_autograd=setting):
            kiln.compile(function)()
        counts.append(captures())
    assert [count - counts[0] for count in counts] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param("all disabled", marks=covers(f"{DOCUMENT}::test_torch_compile_graph_break")),
        pytest.param("backward disabled", marks=covers(f"{DOCUMENT}::test_torch_compile_graph_break2")),
        pytest.param("backward alone", marks=covers(f"{DOCUMENT}::test_torch_compile_only_backward_call")),
    ],
)
def test_backward_is_captured_wherever_it_is_called(shape):
    kiln.reset()
    model, x = layers(4, 4, activation=torch.nn.Sigmoid), torch.randn(1, 4)
    model(x).sum().backward()
    expected = gradients(model)
    model.zero_grad()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def whole():
        model(x).sum().backward()

    def calling():
        kiln.disable(lambda total: total.backward())(model(x).sum())

    total = model(x).sum()
    functions = {
        "all disabled": kiln.disable(whole),
        "backward disabled": calling,
        "backward alone": lambda: total.backward(),
    }
    before = captures()
    with kiln.config.patch(compiled_autograd=True):
        kiln.compile(functions[shape], backend=backend)()
    assert captures() - before == 1
    assert same(expected, gradients(model))
    assert any("accumulate" in graph.code or "mm" in graph.code for graph in graphs), "its graph was not compiled"


@pytest.mark.parametrize(
    "dynamic",
    [
        pytest.param(False, marks=covers(f"{DOCUMENT}::test_mismatch_fake_tensor_mode")),
        pytest.param(True, marks=covers(f"{DOCUMENT}::test_mismatch_fake_tensor_mode_dynamic_shape")),
    ],
)
def test_forward_and_backward_in_one_compiled_function(dynamic):
    x, y = torch.rand(8, 16), torch.rand(8, 16, requires_grad=True)
    if dynamic:
        kiln.mark_dynamic(x, 0)
        kiln.mark_dynamic(y, 0)

    def program():
        y.grad = None
        total = x + y
        total.sum().backward()
        return total, y.grad

    assert beside_eager(program, wrap=kiln.compile) == (1, 1)


@covers(f"{DOCUMENT}::test_dynamo_boxed")
def test_backward_graphs_take_one_list():
    """A compiled function has its tensors as inputs; the graph of its backward pass one list, which it consumes."""
    placeholders = {}

    def counting(kind):
        def backend(graph, inputs):
            placeholders.setdefault(kind, []).append(len(graph.graph.find_nodes(op="placeholder")))
            return graph.forward

        return lambda target: kiln.compile(target, backend=backend)

    def products(xs):
        product = functools.reduce(torch.mm, xs)
        with compiled_autograd.enable(counting("backward")):
            product.sum().backward()
        return [x.grad for x in xs]

    xs = [leaf(1, 2), leaf(2, 3), leaf(3, 4)]
    expected = torch.autograd.grad(functools.reduce(torch.mm, xs).sum(), xs)
    assert same(list(expected), counting("forward")(products)(xs))
    assert placeholders["forward"][0] == 3
    assert placeholders["backward"] == [1]


@covers(f"{DOCUMENT}::test_dynamo_flaky_segfault")
def test_large_products_before_and_after_a_reset():
    for _ in range(2):
        x, weight = torch.randn(100, 300), leaf(100, 300)
        total = F.linear(x, weight).sum()
        with compiled_autograd.enable(lambda module: kiln.compile(module)):
            total.backward()
        assert torch.allclose(weight.grad, x.sum(0).expand(100, 300), atol=1e-4)
        kiln.reset()


# -- on one machine what the document has on another ---------------------------------------------------------------


def half_precision():
    model = torch.nn.Linear(10, 10, dtype=torch.float16)
    model(torch.randn(10, 10, dtype=torch.float16)).mean().backward()
    yield gradients(model)


def attention():
    query, key, value = leaf(2, 2, 8, 4), torch.randn(2, 2, 8, 4), torch.randn(2, 2, 8, 4)
    F.scaled_dot_product_attention(query, key, value).sum().backward()
    yield query.grad


def number_saved_in_python():
    def forward(ctx, x):
        ctx.save_for_backward(x, torch.tensor(5))
        ctx.number = 5
        return x.sum()

    def backward(ctx, gradient):
        x, tensor = ctx.saved_tensors
        return gradient * torch.ones_like(x) * tensor * ctx.number

    x = leaf(10)
    function(forward, backward).apply(x).backward()
    yield x.grad


@pytest.mark.parametrize(
    ("program", "counts", "options"),
    [
        case(half_precision, (1, 1), "test_cudagraphs_cpu_graph", "test_cudagraphs_cpu_division"),
        case(attention, (1, 1), "test_cudagraphs_sdpa"),
        case(number_saved_in_python, (1, 1), "test_cudagraphs_cpu_scalar_used_in_python_custom_op"),
    ],
)
def test_on_the_processor(program, counts, options):
    """The document has these on a GPU, about graphs of CUDA's."""
    assert beside_eager(program, **options) == counts


# -- logs -----------------------------------------------------------------------------------------------------------

NODES = (  # in the order in which torch's engine runs them: gradients of leaves as soon as they are there
    "SumBackward0 ReluBackward0 AddmmBackward0 torch::autograd::AccumulateGrad TBackward0 "
    "torch::autograd::AccumulateGrad ReluBackward0 AddmmBackward0 torch::autograd::AccumulateGrad TBackward0 "
    "torch::autograd::AccumulateGrad"
).split()


@covers(f"{DOCUMENT}::test_verbose_logs_graph")
@pytest.mark.parametrize("log", ["engine", "backward"])
def test_graphs_name_the_nodes(log, capsys):
    with kiln.config.patch(log={log}):
        assert beside_eager(one_pass) == (1, 1)
    text = capsys.readouterr().err
    told = [line.strip() for line in text.splitlines() if "(NodeCall" in line and line.strip().startswith("#")]
    assert told == [f"# {name} (NodeCall {number})" for number, name in enumerate(NODES, 1)]


@covers(f"{DOCUMENT}::test_verbose_logs_cpp")
def test_misses_are_told(capsys):
    def program():
        model = layers(4, 4, 4)
        for batch in (10, 11, 12):
            model.zero_grad()
            model(torch.randn(batch, 4)).sum().backward()
            yield gradients(model)

    with kiln.config.patch(log={"engine"}):
        assert beside_eager(program) == (2, 2)
    lines = [line for line in capsys.readouterr().err.splitlines() if "Cache miss" in line]
    assert "new autograd node: torch::autograd::GraphRoot (NodeCall 0) with key size" in lines[0]
    assert lines[0].endswith("previous key sizes=[]")
    told = [line.partition(" of ")[2] for line in lines[1:]]
    assert all("changed shapes: marking size idx" in line for line in lines[1:])
    assert told and all(line.endswith(" as dynamic") for line in told)
    assert len(set(lines)) == len(lines)
    assert any(line.startswith("SumBackward0 (NodeCall 1)") for line in told)


# -- memory ---------------------------------------------------------------------------------------------------------


class Watched(torch.Tensor):
    """A tensor that a subclass of the user's is: it is passed through, and let go of like any other."""


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(torch.Tensor, marks=covers(f"{DOCUMENT}::test_free_activation_memory")),
        pytest.param(
            Watched,
            marks=[
                covers(f"{DOCUMENT}::test_free_activation_memory_subclass"),
                covers(f"{DOCUMENT}::test_logging_tensor_flaky"),
            ],
        ),
    ],
)
def test_lists_are_consumed_by_graph_modules(kind):
    """An activation is gone once the graph has used it, and the caller's list is empty."""
    import weakref

    from kiln.program.consumed_lists import set_locals_to_steal

    alive = []

    def forward(activations):
        total = activations[0] + 1
        return (torch.ops.kiln_engine_test.look(total + activations[1]),)

    with torch.library._scoped_library("kiln_engine_test", "FRAGMENT") as library:
        library.define("look(Tensor x) -> Tensor")
        library.impl("look", lambda x: (alive.append(reference() is not None), x.clone())[1], "CPU")
        library.impl("look", lambda x: x.clone(), "Meta")
        module = torch.fx.symbolic_trace(forward)
        set_locals_to_steal(module, ["activations"])
        compiled = kiln.compile(module)
        for _ in range(2):
            activations = [torch.ones(1000), torch.ones(1).as_subclass(kind)]
            reference = weakref.ref(activations[0])
            (result,) = compiled(activations)
            assert activations == []
            assert result.sum().item() == 3000
            assert alive.pop() is False
