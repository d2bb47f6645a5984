"""Passes that are one graph though their Python code needs real tensors: the graph calls that code as it is."""

import functools
import gc
import weakref

import pytest
import torch
from torch.autograd import Function, Variable, forward_ad, grad
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import kiln
from kiln.engine.calls import opaque_calls as opaque_functions
from kiln.engine.trace import address_use
from tests.engine.engine_counts import CountingCompiler, beside_eager, captures
from tests.engine.observing import as_traced, compare, engine, inner_graph, observe, whole, with_breaks
from tests.engine.topics import error_of, leaf

programs = []


def program(function):
    programs.append(pytest.param(function, id=function.__name__))
    return function


class ThroughForward(Function):
    """Its backward is a backward pass through what its forward computed."""

    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.y = ctx.x.exp() * ctx.x
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, gradient):
        ctx.y.backward(gradient)
        return ctx.x.grad


class Tangent(Function):
    """Its backward is a forward-mode derivative of a function that has one of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with forward_ad.dual_level():
            result = Sine.apply(forward_ad.make_dual(x.detach(), gradient))
            return forward_ad.unpack_dual(result).tangent


class Sine(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x.sin()

    @staticmethod
    def jvp(ctx, tangent):
        return tangent * ctx.x.cos()


class Comparing(Function):
    """Its backward compares addresses."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        same, other = gradient.view(gradient.shape), gradient.clone()
        factor = 2 if same.data_ptr() == gradient.data_ptr() else 5
        return other * factor if other.data_ptr() != gradient.data_ptr() else other


class GradWithGraph(Function):
    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.y = ctx.x**3
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, gradient):
        return grad(ctx.y, ctx.x, gradient)[0]


def symmetric(size):
    matrix = torch.randn(size, size, dtype=torch.double)
    return (matrix @ matrix.t() + torch.eye(size, dtype=torch.double)).requires_grad_()


@program
def backward_through_forward():
    x = leaf(1.0, 2.0)
    ThroughForward.apply(x * 2).sum().backward()
    return [x.grad]


@program
def backward_through_forward_twice():
    x = leaf(1.0, 2.0)
    (ThroughForward.apply(x) * ThroughForward.apply(x * 3)).sum().backward()
    return [x.grad]


@program
def gradient_through_forward():
    x = leaf(1.0, 2.0)
    GradWithGraph.apply(x).sum().backward()
    return [x.grad]


@program
def hooks_in_order():
    x, other, log = leaf(1.0, 2.0), leaf(3.0), []
    cube = other**3
    y = x * 2

    def first(gradient):
        log.append(("first", gradient.clone(), None if other.grad is None else other.grad.clone()))

    def second(gradient):
        cube.backward(retain_graph=True)
        log.append(("second", other.grad.clone()))
        return gradient * other.grad

    y.register_hook(first)
    y.register_hook(second)
    z = y * other
    z.register_hook(first)
    z.grad_fn.register_prehook(lambda gradients: log.append("before"))
    z.grad_fn.register_hook(lambda inputs, outputs: log.append(("after", len(inputs), len(outputs))))
    y.retain_grad()
    z.sum().backward()
    return [x.grad, other.grad, y.grad, log]


@program
def leaves_seen_by_later_hooks():
    """Gradients are accumulated in eager's order: a backward inside a hook adds to what is there."""
    x, w, log = leaf(1.0, 2.0), leaf(3.0, 4.0), []
    square = (w * w).sum()

    def hook(parameter):
        square.backward(retain_graph=True)
        log.append((parameter.grad.clone(), w.grad.clone()))

    x.register_post_accumulate_grad_hook(hook)
    (x.exp() * w).sum().backward()
    return [x.grad, w.grad, log]


@program
def hook_on_a_compiled_function():
    x, w = leaf(1.0, 2.0), leaf(3.0, 4.0)
    square = (w * w).sum()

    def hook(gradient):
        square.backward(retain_graph=True)
        return gradient * w.grad

    def inner(x):
        y = x.sin()
        y.register_hook(hook)
        return y * 2

    kiln.compile(inner, backend="aot_eager")(x).sum().backward()
    return [x.grad, w.grad]


@program
def hooks_after_a_backward_see_what_nobody_takes():
    log = []

    class Two(Function):
        @staticmethod
        def forward(ctx, x, y):
            with torch.enable_grad():
                ctx.x = x.detach().requires_grad_()
                ctx.y = ctx.x.exp()
            return ctx.y * y

        @staticmethod
        def backward(ctx, gradient):
            return grad(ctx.y, ctx.x, gradient)[0], gradient * 3

    x = leaf(1.0, 2.0)
    result = Two.apply(x * 1, torch.ones(2))

    def after(inputs, outputs):
        log.extend(None if one is None else one.clone() for one in inputs)
        return inputs[0] * 2, inputs[1]

    result.grad_fn.register_hook(after)
    result.sum().backward()
    return [x.grad, log]


@program
def reentrant_checkpoints():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 2))
    x = torch.randn(5, 3, requires_grad=True)
    checkpoint(module, x, use_reentrant=True).sum().backward()
    return [x.grad, *[parameter.grad for parameter in module.parameters()]]


@program
def callbacks():
    log = []

    class Queueing(Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            Variable._execution_engine.queue_callback(lambda: log.append("inner"))
            return gradient

    def hook(gradient):
        Variable._execution_engine.queue_callback(lambda: log.append("outer"))
        with torch.enable_grad():
            Queueing.apply(leaf(1.0)).backward()
        log.append("after")

    x = leaf(1.0, 2.0)
    y = x * 2
    y.register_hook(hook)
    y.sum().backward()
    return [x.grad, log]


@program
def forward_mode():
    x = leaf(1.0, 2.0)
    Tangent.apply(x * 1).sum().backward()
    return [x.grad]


@program
def forward_mode_by_a_transform():
    x = leaf(1.0, 2.0)
    y = x * 2
    y.register_hook(lambda gradient: torch.func.jvp(torch.exp, (y.detach(),), (gradient,))[1])
    y.sum().backward()
    return [x.grad]


@program
def addresses_compared():
    x = leaf(1.0, 2.0)
    Comparing.apply(x).sum().backward()
    return [x.grad]


@program
def addresses_in_hooks():
    x, log = leaf(1.0, 2.0), []
    y = x * 2
    y.register_hook(lambda gradient: log.append(gradient.data_ptr() == 0))
    (y * y).sum().backward()
    return [x.grad, log]


@program
def eigenvalues_of_a_part():
    torch.manual_seed(0)
    matrix, start = symmetric(9), torch.randn(9, 2, dtype=torch.double)
    values, vectors = torch.lobpcg(matrix.triu() + matrix.triu(1).mT, k=2, X=start, niter=500, tol=1e-10)
    ((vectors**4).sum() + (values * values).sum()).backward()
    return [matrix.grad]


@pytest.mark.parametrize("inner", ["eager", "aot_eager", "kiln"])
@pytest.mark.parametrize("program", programs)
def test_one_graph(program, inner):
    before = kiln.report.counters["engine opaque"]
    beside_eager(program, inner=inner)
    assert kiln.report.counters["engine opaque"] > before


def opaque_calls(graph):
    return [node.target.__name__ for node in graph.nodes if node.target in opaque_functions.ALL]


@pytest.mark.parametrize(
    ("program", "calls"),
    [
        (backward_through_forward, ["backward", "accumulate"]),
        (gradient_through_forward, ["backward", "accumulate"]),
        (forward_mode, ["backward", "accumulate"]),
        (addresses_compared, ["backward", "accumulate"]),
        (addresses_in_hooks, ["hook", "check_hooks", "accumulate"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_graph(program, calls):
    """The graph of the outer pass has the opaque calls between its operations; a second run needs no other graph."""
    compiler = CountingCompiler()
    kiln.reset()
    with kiln.compiled_autograd.enable(compiler):
        program()
        count = len(compiler.graphs)
        program()
    assert len(compiler.graphs) == count
    found = [graph for graph in compiler.graphs if opaque_calls(graph.graph)]
    assert [opaque_calls(graph.graph) for graph in found] == [calls]
    assert any(isinstance(node.target, torch._ops.OpOverload) for node in found[0].graph.nodes)


def test_sizes_vary():
    def sizes():
        for size in (2, 3, 4, 5):
            x = torch.arange(1.0, size + 1).requires_grad_()
            ThroughForward.apply(x * 2).sum().backward()
            yield x.grad

    kiln.reset()
    before = captures()
    beside_eager(sizes)
    assert captures() - before <= 6  # of the outer and the inner pass: the first size, then symbols


def check(program):
    """With the engine on and one graph asked for, two runs are as in eager."""
    observe(program)
    expected = observe(program)
    before = kiln.report.counters["engine opaque"]
    with engine(lambda module: kiln.compile(module, backend=inner_graph, fullgraph=True)):
        found = [compare(expected, observe(program)) for _ in range(2)]
    assert found == [[], []]
    assert kiln.report.counters["engine opaque"] > before


def test_hooks_come_and_go():
    def program():
        x, w, log, handles = leaf(1.0, 2.0), leaf(3.0), [], []
        cube = w**3
        y = x * 2
        z = y * 3

        def hook(gradient):
            cube.backward(retain_graph=True)
            handles.pop().remove()
            y.register_hook(lambda gradient: gradient * w.grad)

        handles.append(y.register_hook(lambda gradient: log.append("removed")))
        z.register_hook(hook)
        z.sum().backward()
        return x.grad, w.grad, log

    check(program)


def test_a_backward_gives_none():
    class Sometimes(Function):
        @staticmethod
        def forward(ctx, x, y):
            with torch.enable_grad():
                ctx.x = x.detach().requires_grad_()
                ctx.y = ctx.x.exp()
            return ctx.y * y

        @staticmethod
        def backward(ctx, gradient):
            found = grad(ctx.y, ctx.x, gradient)[0]
            rest = [found, None] if len(found) == 2 else [None, found]
            return rest[0], rest[1]

    def program():
        found = []
        for size in (2, 3):
            x, y = torch.ones(size, requires_grad=True), torch.ones(size, requires_grad=True)
            Sometimes.apply(x, y).sum().backward()
            found += [x.grad, y.grad]
        return found

    check(program)


def test_errors():
    """An error in opaque code comes out unchanged, and the next pass is right."""

    class Failing(Function):
        @staticmethod
        def forward(ctx, x):
            with torch.enable_grad():
                ctx.x = x.detach().requires_grad_()
                ctx.y = Child.apply(ctx.x)
            return ctx.y.detach().clone()

        @staticmethod
        def backward(ctx, gradient):
            ctx.y.backward(gradient)
            return gradient

    class Child(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            raise ValueError(f"no gradient today, {gradient.data_ptr() != 0}")

    def program():
        x, w = leaf(1.0), leaf(2.0)
        y = Failing.apply(x * w)
        found = error_of(y.backward), error_of(y.backward)
        (x * w).backward()
        return found, x.grad, w.grad

    check(program)


def test_retained_graphs():
    class Twice(Function):
        @staticmethod
        def forward(ctx, x):
            with torch.enable_grad():
                ctx.x = x.detach().requires_grad_()
                ctx.y = ctx.x**3
            return ctx.y.detach()

        @staticmethod
        def backward(ctx, gradient):
            return grad(ctx.y, ctx.x, gradient, retain_graph=True)[0]

    def program():
        x = leaf(1.0, 2.0)
        y = Twice.apply(x * 2).sum()
        y.backward(retain_graph=True)
        first = x.grad.clone()
        found = grad(y, x, retain_graph=True)
        y.backward()
        return first, found, x.grad, error_of(y.backward)

    check(program)


def test_values_still_raise():
    """What the program could do in another way is refused, with its line."""
    x = leaf(1.0, 2.0)
    y = x * 2
    y.register_hook(lambda gradient: gradient * 2 if gradient.sum() > 0 else gradient)
    with engine(lambda module: kiln.compile(module, fullgraph=True)), pytest.raises(kiln.exc.Unsupported) as caught:
        y.sum().backward()
    assert caught.value.location.file == __file__
    assert "a branch on a tensor's value" in str(caught.value)


@pytest.mark.parametrize("make", [lambda gradient: gradient.to_sparse(), lambda gradient: gradient * 2])
def test_sparse_gradients(make):
    """A backward that gives a sparse gradient is called, and torch's engine takes it from there."""

    class Saved(Function):
        @staticmethod
        def forward(ctx, x, gradient):
            ctx.save_for_backward(gradient)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            (saved,) = ctx.saved_tensors
            return make(saved.to_dense()), None

    def program():
        found = torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (3,))
        x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        (Saved.apply(x, found) + Saved.apply(x * y, found)).sum().backward()
        return x.grad.to_dense(), y.grad.to_dense(), x.grad.is_sparse

    check(program)


def test_deprecated_names_warn():
    class Old(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_variables
            return gradient * x

    def program():
        x = leaf(1.0, 2.0)
        Old.apply(x * 1).sum().backward()
        return x.grad

    check(program)


@pytest.mark.parametrize("compiler", [as_traced, whole])
def test_nothing_is_kept_alive(compiler):
    """Hooks and nodes die with the program's references, without the cycle collector."""

    def program():
        def hook(gradient):
            assert other.grad is None
            cube.backward()
            return gradient * other.grad

        other = leaf(3.0)
        cube = other**3
        x = leaf(1.0, 2.0)
        with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            y = x.exp()
        z = ThroughForward.apply(x * 2) + y
        z.register_hook(hook)
        z.sum().backward()
        return [weakref.ref(one) for one in (hook, x, z, cube, x.grad)]

    def count_alive():
        program()  # whatever is made once
        gc.collect()
        gc.disable()
        try:
            return [reference() is not None for reference in program()]
        finally:
            gc.enable()

    assert not any(count_alive())
    with engine(compiler):
        assert not any(count_alive())


# -- addresses that are noted ---------------------------------------------------------------------------------------


def address(tensor):
    return tensor.data_ptr()


class NotesInClass(Function):
    noted = None

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        NotesInClass.noted = gradient.data_ptr()
        return gradient


class NotesByHelper(Function):
    noted: list = []

    @staticmethod
    def forward(ctx, x, y):
        return x + y

    @staticmethod
    def backward(ctx, gradient):
        NotesByHelper.noted.append(address(gradient))
        return gradient, gradient


class OnlyCompares(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (1 if gradient.data_ptr() == gradient.detach().data_ptr() else 2)


def noted_in_a_class():
    x = leaf(1.0, 2.0)
    (NotesInClass.apply(x) * leaf(3.0, 4.0)).sum().backward()
    return x.grad, NotesInClass.noted == x.grad.data_ptr()


def noted_by_a_helper():
    NotesByHelper.noted.clear()
    x, y = torch.randn(3, 2, requires_grad=True), torch.randn(3, 2, requires_grad=True)
    (NotesByHelper.apply(x, y) * torch.ones(3, 2)).sum().backward()
    (found,) = NotesByHelper.noted
    return x.grad, found == x.grad.data_ptr(), found == y.grad.data_ptr()


def noted_by_a_hook():
    x, noted = leaf(1.0, 2.0), []
    x.register_hook(lambda gradient: noted.append(gradient.data_ptr()))
    (x * x).sum().backward()
    return x.grad, noted == [x.grad.data_ptr()]


@pytest.mark.parametrize("compiler", [as_traced, with_breaks, whole])
@pytest.mark.parametrize("program", [noted_in_a_class, noted_by_a_helper, noted_by_a_hook])
def test_noted_addresses_are_those_of_gradients(program, compiler):
    expected = observe(program)
    with engine(compiler):
        for _ in range(2):
            assert compare(expected, observe(program)) == []


def test_addresses_that_nobody_notes_hand_nothing_over():
    def program():
        x = leaf(1.0, 2.0)
        OnlyCompares.apply(x).sum().backward()
        return [x.grad]

    assert beside_eager(program) == (2, 1)
    assert not address_use.keep_addresses([OnlyCompares.apply(leaf(1.0)).grad_fn])
    assert address_use.keep_addresses([functools.partial(NotesByHelper.backward, None)])
    assert address_use.keep_addresses([NotesInClass.apply(leaf(1.0)).grad_fn])
