"""Backwards of autograd functions in captured code, by their real contexts: what the engine's graphs call."""

import gc
import operator
import weakref

import pytest
import torch
from torch.autograd.function import once_differentiable
from torch.nn.modules._functions import BackwardHookFunction

import kiln
from kiln.engine.calls import node_calls
from kiln.testing import same

GRADIENT = torch.tensor([1.0, 2.0, 3.0])


def graph_of(count):
    """A graph like the engine's: the backward of the first of its hooks, on the gradients that are its inputs."""
    graph = torch.fx.Graph()
    inputs, _, hooks = (graph.placeholder(name) for name in ("inputs", "sizes", "hooks"))
    context = graph.call_function(operator.getitem, (hooks, 0))
    gradients = [graph.call_function(operator.getitem, (inputs, index)) for index in range(count)]
    graph.output(graph.call_function(node_calls.call_backward, (context, *gradients)))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


class Compiled:
    """The graph, compiled; `graphs` are those that the backend got."""

    def __init__(self, count=1, **options):
        self.graphs = []
        options = {"fullgraph": True, "dynamic": True, **options}
        self.call = kiln.compile(graph_of(count).forward, backend=self.backend, **options)

    def backend(self, graph, inputs):
        self.graphs.append(graph)
        return graph.forward

    @torch.no_grad()
    def __call__(self, context, *gradients):
        return self.call(list(gradients), [], [context])


@torch.no_grad()
def eager(context, *gradients):
    return node_calls.call_backward(context, *gradients)


KEPT = []  # up to torch 2.12 a context does not keep its node


def context_of(result):
    KEPT.append(result)
    return (result[0] if isinstance(result, tuple) else result).grad_fn


def leaf(length=3):
    return torch.arange(1.0, length + 1, requires_grad=True)


def function(forward, backward):
    return type("Written", (torch.autograd.Function,), {"forward": forward, "backward": staticmethod(backward)})


def outcome(call):
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


def compared(make, *gradients, times=2, observe=lambda context: None, **options):
    """Both give the same, several times over, each time for a new context; gives what was compiled."""
    compiled = Compiled(len(gradients), **options)
    for _ in range(times):
        expected, actual = context_of(make()), context_of(make())
        assert same(
            (outcome(lambda: compiled(actual, *gradients)), observe(actual)),
            (outcome(lambda: eager(expected, *gradients)), observe(expected)),
        )
    return compiled


def saving(ctx, x, *rest):
    ctx.save_for_backward(x)
    return x * 2


def by_saved(ctx, gradient):
    return gradient * ctx.saved_tensors[0]


# -- functions of one kind each -------------------------------------------------------------------------------------


class Plain(torch.autograd.Function):
    forward = staticmethod(saving)
    backward = staticmethod(by_saved)


class Once(Plain):
    backward = staticmethod(once_differentiable(by_saved))


class SetUp(torch.autograd.Function):
    @staticmethod
    def forward(x, factor):
        return x * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output, inputs[0], output)
        ctx.factor = inputs[1]

    @staticmethod
    def vjp(ctx, gradient):
        x, output, again, twice = ctx.saved_tensors
        assert x is again and output is not twice
        return gradient * ctx.factor + output * x + twice, None


class Two(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, text, y):
        return x * 2, y * 3

    @staticmethod
    def backward(ctx, first, second):
        return first * 2, None, second * 3


class Unfilled(Two):
    @staticmethod
    def forward(ctx, x, text, y):
        ctx.set_materialize_grads(False)
        return x * 2, y * 3

    @staticmethod
    def backward(ctx, first, second):
        return first * 2, None, None if second is None else second * 3


class Needed(Two):
    @staticmethod
    def backward(ctx, first, second):
        return first if ctx.needs_input_grad[0] else None, None, second if ctx.needs_input_grad[2] else None


class Settled(Two):
    @staticmethod
    def forward(ctx, x, text, y):
        other = y * 3
        ctx.mark_non_differentiable(other)
        return x * 2, other


@pytest.mark.parametrize("cls", [Plain, Once])
def test_one_gradient(cls):
    assert len(compared(lambda: cls.apply(leaf()), GRADIENT).graphs) == 1


def test_set_up_apart_and_saved_twice():
    assert len(compared(lambda: SetUp.apply(leaf(), 3), GRADIENT).graphs) == 1


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("cls", [Two, Unfilled, Needed, Settled])
def test_several_gradients_some_of_them_missing(cls, missing):
    second = None if missing or cls is Settled else GRADIENT
    assert len(compared(lambda: cls.apply(leaf(), "text", leaf()), GRADIENT, second).graphs) <= 1


def test_gradients_that_nobody_needs():
    def make(x, y):
        return lambda: Needed.apply(x, "text", y)

    compiled = Compiled(2)
    for x, y in [(leaf(), GRADIENT), (GRADIENT, leaf()), (leaf(), leaf())]:
        context = context_of(make(x, y)())
        assert same(compiled(context, GRADIENT, GRADIENT * 2), eager(context, GRADIENT, GRADIENT * 2))


def test_hooks_of_modules_are_functions_too():
    compared(lambda: BackwardHookFunction.apply(leaf(), leaf()), GRADIENT, GRADIENT * 2)


# -- what is on the context ----------------------------------------------------------------------------------------


def test_sizes_on_the_context_vary_like_those_of_tensors():
    def forward(ctx, x):
        ctx.shape, ctx.half = x.shape, x.shape[0] // 2
        return x.sum()

    cls = function(staticmethod(forward), lambda ctx, gradient: gradient.expand(ctx.shape) * ctx.half)
    compiled = Compiled()
    for length in [10, 100, 10, 15, 20, 25]:
        context = context_of(cls.apply(leaf(length)))
        assert same(compiled(context, torch.tensor(2.0)), eager(context, torch.tensor(2.0)))
    assert len(compiled.graphs) == 1


def test_attributes_of_all_kinds_and_what_backward_does_to_them():
    linear = torch.nn.Linear(3, 3)

    def forward(ctx, x):
        ctx.numbers, ctx.table, ctx.module = [1, 2], {"x": x.detach(), "scale": 2.5}, linear
        ctx.closure, ctx.text, ctx.tensor, ctx.gone = (lambda value: value * len(ctx.numbers)), "abc", x.detach() * 2, 0
        return x * 2

    def backward(ctx, gradient):
        ctx.numbers.append(len(ctx.text))
        ctx.table["gradient"] = gradient * ctx.table["scale"]
        ctx.made, ctx.text = (gradient, ctx.numbers), ctx.text + "d"
        del ctx.gone
        return ctx.closure(ctx.module(ctx.tensor * ctx.table["x"])) + getattr(ctx, "absent", 1)

    cls = function(staticmethod(forward), backward)

    def state(context):
        return {name: value for name, value in vars(context).items() if name not in ("closure", "module")}

    compiled = compared(lambda: cls.apply(leaf()), GRADIENT, times=3, observe=state)
    assert len(compiled.graphs) == 1


@pytest.mark.parametrize("kind", ["closed over", "on the context"])
def test_values_that_vary(kind):
    """A value that captured code depends on is guarded: the answer is right, whatever it takes."""

    def forward(ctx, x, factor):
        ctx.factor, ctx.scaled = factor, (lambda gradient: gradient * factor)
        return x * factor

    def backward(ctx, gradient):
        return (ctx.scaled(gradient) if kind == "closed over" else gradient * ctx.factor), None

    cls, compiled = function(staticmethod(forward), backward), Compiled()
    for factor in (2, 3.5, 4, torch.tensor(5.0), torch.tensor(6.0), 7, 7.5):
        context = context_of(cls.apply(leaf(), factor))
        assert same(compiled(context, GRADIENT), eager(context, GRADIENT))
    assert len(compiled.graphs) <= 5


def test_a_context_says_what_it_is():
    seen = []

    def backward(ctx, gradient):
        kinds = isinstance(ctx, torch.autograd.function.FunctionCtx), type(ctx)._forward_cls.__name__
        seen.append((type(ctx).__name__, ctx.name(), *kinds, ctx.needs_input_grad, hasattr(ctx, "missing")))
        return gradient * 2

    cls = function(staticmethod(saving), backward)
    compared(lambda: cls.apply(leaf()), GRADIENT)
    assert len(seen) == 4 and len(set(seen)) == 1


def test_classes_made_at_run_time():
    """Another class is another function; the same one again is not."""
    compiled = Compiled()
    classes = [function(staticmethod(saving), lambda ctx, gradient, n=n: gradient * n) for n in range(3)]
    for cls in (*classes, *classes):
        context = context_of(cls.apply(leaf()))
        assert same(compiled(context, GRADIENT), eager(context, GRADIENT))
    assert len(compiled.graphs) == 3


# -- what goes wrong -----------------------------------------------------------------------------------------------


def failing(ctx, gradient):
    raise ValueError("not today")


WRONG = {
    "raises": failing,
    "too many": lambda ctx, gradient: (gradient, gradient),
    "no tensor": lambda ctx, gradient: "text",
    "freed": by_saved,
}


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("kind", WRONG)
def test_errors_are_those_of_eager(kind, fullgraph):
    cls = function(staticmethod(saving), WRONG[kind])

    def make():
        made = cls.apply(leaf())
        if kind == "freed":
            made.sum().backward()
        return made

    assert isinstance(outcome(lambda: eager(context_of(make()), GRADIENT))[0], type)
    compared(make, GRADIENT, fullgraph=fullgraph)


def test_breaks_inside(capsys):
    def telling(ctx, gradient):
        ctx.before = gradient * 2
        print("told")
        ctx.after = ctx.before + 1
        return ctx.after * ctx.saved_tensors[0]

    cls = function(staticmethod(saving), telling)
    with pytest.raises(kiln.exc.Unsupported, match="print"):
        Compiled()(context_of(cls.apply(leaf())), GRADIENT)
    compiled = compared(lambda: cls.apply(leaf()), GRADIENT, observe=vars, fullgraph=False)
    assert len(compiled.graphs) == 2 and capsys.readouterr().out == "told\n" * 4


def test_saved_tensors_that_hooks_unpack_are_read_as_often_as_in_eager():
    unpacked = []

    def make():
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: unpacked.append(len(unpacked)) or x):
            return Plain.apply(leaf())

    compared(make, GRADIENT, fullgraph=False)
    assert len(unpacked) == 4


def test_what_is_native_is_left_to_native_code():
    def backward(ctx, gradient):
        ctx.set_materialize_grads(False)
        return gradient * 2

    compared(lambda: function(staticmethod(saving), backward).apply(leaf()), GRADIENT, fullgraph=False)


def test_a_context_that_forward_hands_to_compiled_code():
    @kiln.compile(backend="eager")
    def fill(ctx, x):
        ctx.save_for_backward(x)
        ctx.twice = x * 2
        return x * 3

    cls = function(staticmethod(lambda ctx, x: fill(ctx, x)), lambda ctx, g: g * ctx.saved_tensors[0] + ctx.twice)
    for _ in range(2):
        x = leaf()
        cls.apply(x).sum().backward()
        assert same(x.grad, x.detach() * 3)


# -- the end of the backward pass -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fullgraph", [True, False])
def test_callbacks_are_queued_after_the_graph(fullgraph):
    engine, seen = torch.autograd.Variable._execution_engine, []

    @kiln.compile(backend="eager", fullgraph=fullgraph)
    def hook(gradient):
        for number in (1, 2):
            engine.queue_callback(lambda: seen.append(number))
        seen.append("hook")
        if not fullgraph:
            print("a break")
        return gradient * 2

    x = leaf()
    y = x * 1
    y.register_hook(hook)
    y.register_hook(lambda gradient: seen.append("later"))
    y.sum().backward()
    assert seen == ["hook", "later", 2, 2] and same(x.grad, torch.full((3,), 2.0))


def test_compiling_a_pass_keeps_nothing_of_it():
    """What a context holds goes with the graph, and not when the garbage collector comes."""

    def run():
        with kiln.compiled_autograd.enable(lambda graph: kiln.compile(graph, backend="eager", fullgraph=True)):
            y = cls.apply(leaf())
            y.grad_fn.thing = Thing()
            gone = weakref.ref(y.grad_fn.thing)
            y.sum().backward()
        return gone

    class Thing:
        pass

    cls = function(staticmethod(saving), by_saved)
    gc.disable()
    try:
        assert [run()(), run()()] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("fullgraph", [True, False])
def test_hooks_that_unpack_run_in_order_and_once(fullgraph):
    """Under ``fullgraph=True`` torch's engine does it, before anything has run."""
    seen = []

    def run():
        seen.clear()
        x = leaf()
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: seen.append("unpacked") or x):
            y = Plain.apply(x)
        y.register_hook(lambda gradient: seen.append("before"))
        x.register_hook(lambda gradient: seen.append("after"))
        y.sum().backward()
        return list(seen), x.grad

    expected = run()
    options = {"backend": "eager", "fullgraph": fullgraph}
    with kiln.compiled_autograd.enable(lambda graph: kiln.compile(graph, **options)):
        assert same([run(), run()], [expected, expected])
