"""``torch.autograd.grad`` inside captured code: one node of the graph, and in everything what eager does."""

import pytest
import torch
from torch.autograd.function import once_differentiable

import kiln
from kiln.testing import Call, check

BACKENDS = [name for name in ("eager", "aot_eager") if name in kiln.list_backends()]


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


def values(*shape, seed=0, grad=True):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_(grad)


def first_order(x, w):
    y = (x @ w).sin()
    return torch.autograd.grad(y.sum(), (x, w))


def with_weights(x, w):
    y = x @ w
    return torch.autograd.grad([y.sin(), y], [w, x], [torch.ones_like(y), None if y.dim() == 0 else y.detach()])


def of_intermediate(x, w):
    y = x * 2
    z = (y @ w).exp().sum()
    gy, gw = torch.autograd.grad(z, (y, w), create_graph=True)
    return gy, (gw * z).sum()


def twice(x, w):
    y = (x * x @ w).sin().sum()
    (gx,) = torch.autograd.grad(y, x, create_graph=True)
    (hx,) = torch.autograd.grad(gx.sum(), x, create_graph=True)
    return gx, hx, torch.autograd.grad(hx.sum(), w, create_graph=True)[0]


def kept_and_used_again(x, w):
    y = (x @ w).exp().sum()
    one = torch.autograd.grad(y, x, retain_graph=True)
    return one, torch.autograd.grad(y, [w]), y.detach()


def penalty(x, w):
    out = (x @ w).tanh()
    (gx,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return out.mean() + (gx.norm(2, dim=1) - 1).pow(2).mean()


def unused(x, w):
    return torch.autograd.grad((x * 2).sum(), (x, w), allow_unused=True)


def materialized(x, w):
    return torch.autograd.grad((x * 2).sum(), (w, x), materialize_grads=True)


def gradient_given_back(x, w):
    seed = torch.ones_like(x)
    (gx,) = torch.autograd.grad(x, x, seed)
    return gx is seed, gx


def under_no_grad(x, w):
    y = (x @ w).sum()
    with torch.no_grad():
        (gx,) = torch.autograd.grad(y, x)
        return gx * 2, gx.requires_grad


def of_made_leaf(x, w):
    leaf = x.detach().requires_grad_()
    return torch.autograd.grad((leaf @ w).sin().sum(), leaf)[0] + x


def of_changed_intermediate(x, w):
    y = x * 2
    y.mul_(w.sum())
    return torch.autograd.grad(y.exp().sum(), y)[0] * y


def inner_step(x, w):
    fast = w
    for _ in range(2):
        loss = (x @ fast).pow(2).mean()
        (gradient,) = torch.autograd.grad(loss, fast, create_graph=True)
        fast = fast - 0.1 * gradient
    return (x @ fast).sum()


def inputs_from_a_generator(x, w):
    table = {"x": x, "w": w}
    return torch.autograd.grad((x @ w).sum(), (table[name] for name in ("w", "x")))


CAPTURED = [
    first_order, with_weights, of_intermediate, twice, kept_and_used_again, penalty, unused, materialized,
    gradient_given_back, under_no_grad, of_made_leaf, of_changed_intermediate, inner_step, inputs_from_a_generator,
]  # fmt: skip


@pytest.mark.covers("test_aot_autograd::test_double_backward_errors")
@pytest.mark.parametrize("program", CAPTURED, ids=lambda program: program.__name__)
def test_captured(program, backend):
    make_args = lambda: (values(3, 4), values(4, 2, seed=1))
    check(program, make_args=make_args, calls=2, fullgraph=True, graphs=1, backend=backend)


@pytest.mark.parametrize("program", [first_order, twice, penalty, inner_step], ids=lambda program: program.__name__)
def test_captured_for_all_sizes(program, backend):
    calls = [(values(rows, 4), values(4, 2, seed=rows)) for rows in (3, 5, 6)]
    check(setup=lambda: (program, calls), fullgraph=True, dynamic=True, recompiles=0, backend=backend)


def second_order_outside(x, w):
    (gx,) = torch.autograd.grad((x @ w).sin().sum(), x, create_graph=True)
    return gx


def test_history_of_the_results(backend):
    """Derivatives of what came out, taken outside the compiled function."""

    def program():
        x, w = values(3, 4), values(4, 2, seed=1)
        gx = kiln.compile(second_order_outside, backend=backend, fullgraph=True)(x, w)
        return gx, torch.autograd.grad(gx.sum(), (x, w))

    x, w = values(3, 4), values(4, 2, seed=1)
    gx = second_order_outside(x, w)
    expected = (gx, torch.autograd.grad(gx.sum(), (x, w)))
    torch.testing.assert_close(program(), expected)


# -- errors ---------------------------------------------------------------------------------------------------------


def second_time(x, w):
    y = (x @ w).exp().sum()
    torch.autograd.grad(y, x)
    return torch.autograd.grad(y, w)


def not_used(x, w):
    return torch.autograd.grad((x * 2).sum(), (x, w))


def not_a_scalar(x, w):
    return torch.autograd.grad(x @ w, x)


def no_gradient(x, w):
    return torch.autograd.grad((x @ w).sum().detach(), x)


def wrong_shape(x, w):
    return torch.autograd.grad(x @ w, x, torch.ones(5, dtype=x.dtype))


def changed_since(x, w):
    y = (x * 1).exp()
    z = y.exp()
    y.add_(1)
    return torch.autograd.grad(z.sum(), x)


def caught(x, w):
    try:
        torch.autograd.grad((x * 2).sum(), w)
    except RuntimeError as error:
        return str(error), x * w.sum()


REFUSED = [second_time, not_used, not_a_scalar, no_gradient, wrong_shape, changed_since]


@pytest.mark.parametrize("program", [*REFUSED, caught], ids=lambda program: program.__name__)
def test_errors(program, backend):
    report = check(program, make_args=lambda: (values(3, 4), values(4, 2, seed=1)), calls=2, backend=backend)
    raised = report.compiled.calls[0].raised
    assert raised is None if program is caught else isinstance(raised, RuntimeError)


def freed(x, w):
    y = (x @ w).exp()
    (gx,) = torch.autograd.grad(y.sum(), x)
    return gx, y


def test_what_was_freed_stays_freed(backend):
    """The graph that a backward pass inside has freed cannot be gone through outside."""
    x, w = values(3, 4), values(4, 2, seed=1)
    errors = []
    for function in (freed, kiln.compile(freed, backend=backend, fullgraph=True)):
        _, y = function(x, w)
        with pytest.raises(RuntimeError) as caught_error:
            y.sum().backward()
        errors.append(str(caught_error.value))
    assert errors[0] == errors[1]


# -- histories that begin outside ------------------------------------------------------------------------------------


def of_first(x, y):
    return torch.autograd.grad((y * 2 + x).sum(), x, allow_unused=True)


def of_second(x, y):
    return torch.autograd.grad((y * 2 + x.detach()).exp().sum(), y)


def related():
    x = values(3)
    return x, x * 2


def test_history_outside_leads_to_the_input(backend):
    """``y`` was computed from ``x`` before: the gradient goes through it, so the graph ends before."""
    assert check(of_first, make_args=related, backend=backend).breaks == 1


def test_gradient_of_an_input_with_history(backend):
    check(of_second, make_args=related, fullgraph=True, graphs=1, backend=backend)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_leaf_in_one_call_and_result_in_the_next(order, backend):
    kinds = (lambda: (values(3), values(3, seed=1)), related)
    check(setup=lambda: (of_first, [kinds[index]() for index in order]), backend=backend)


# -- hooks ----------------------------------------------------------------------------------------------------------


def hook_inside(x):
    y = x * 2
    y.register_hook(lambda gradient: gradient * 10)
    return torch.autograd.grad(y.exp().sum(), x)


def hook_inside_on_input(x):
    x.register_hook(lambda gradient: gradient * 10)
    return torch.autograd.grad((x * 2).exp().sum(), x)


def hook_elsewhere(x):
    other = x * 3
    other.register_hook(lambda gradient: gradient * 10)
    return torch.autograd.grad((x * 2).exp().sum(), x), other


@pytest.mark.parametrize(
    ("program", "breaks"),
    [(hook_inside, 1), (hook_inside_on_input, 1), (hook_elsewhere, 0)],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_hooks_that_the_program_registers(program, breaks, backend):
    assert check(program, make_args=lambda: (values(3),), backend=backend).breaks == breaks


def test_hooks_from_outside(backend):
    def setup():
        x, log = values(3), []

        def program(x):
            return torch.autograd.grad((x * 2).exp().sum(), x)

        def hook(gradient):
            log.append(gradient.shape)
            return gradient * 10

        def run(hooked):
            handle = x.register_hook(hook) if hooked else None
            result = compiled(x)
            if handle is not None:
                handle.remove()
            return result

        compiled = kiln.compile(program, backend=backend)
        return run, log

    run, log = setup()
    plain, hooked, again = run(False), run(True), run(False)
    torch.testing.assert_close(hooked[0], plain[0] * 10)
    torch.testing.assert_close(again, plain)
    assert log == [torch.Size([3])]


# -- functions that the user wrote ------------------------------------------------------------------------------------

SEEN: list[str] = []


class Cubed(torch.autograd.Function):
    """Saved inputs and intermediates, attributes of the context."""

    @staticmethod
    def forward(ctx, x, factor):
        square = x * x
        ctx.save_for_backward(x, square)
        ctx.factor = factor
        return square * x * factor

    @staticmethod
    def backward(ctx, grad):
        x, square = ctx.saved_tensors
        return (grad * 3 * x * x * ctx.factor if ctx.needs_input_grad[0] else None), None


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp(), x * 2

    @staticmethod
    @once_differentiable
    def backward(ctx, one, two):
        (x,) = ctx.saved_tensors
        return one * x.exp() + two * 2


class Separate(torch.autograd.Function):
    @staticmethod
    def forward(x, shift=1.0):
        return x.sin() + shift

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, grad):
        return None if grad is None else (grad * ctx.saved_tensors[0].cos(), None)


class Telling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        SEEN.append("backward")
        return grad * 2


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        raise ValueError("no gradient today")


def through_cubed(x):
    y = Cubed.apply(x * 2, 3.0)
    (gx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return gx, torch.autograd.grad(gx.sum(), x)


def through_once(x):
    one, two = Once.apply(x)
    return torch.autograd.grad(one.sum() + two.prod(), x)


def through_separate(x):
    return torch.autograd.grad(Separate.apply(x).sum(), x)


def through_telling(x):
    return torch.autograd.grad(Telling.apply(x).sum(), x), len(SEEN)


def through_failing(x):
    return torch.autograd.grad(Failing.apply(x).sum(), x)


@pytest.mark.parametrize("program", [through_cubed, through_once, through_separate], ids=lambda each: each.__name__)
def test_functions_of_the_user(program, backend):
    check(program, make_args=lambda: (values(3),), calls=2, fullgraph=True, graphs=1, backend=backend)


@pytest.mark.parametrize("program", [through_telling, through_failing], ids=lambda each: each.__name__)
def test_functions_whose_backward_does_more(program, backend):
    check(program, make_args=lambda: (values(3),), calls=2, backend=backend)


# -- modules --------------------------------------------------------------------------------------------------------


class Field(torch.nn.Module):
    """A network whose output's derivative is part of what it returns."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()

    def forward(self, x):
        energy = self.layers(x).sum()
        (force,) = torch.autograd.grad(energy, x, create_graph=self.training)
        return energy, -force


@pytest.mark.parametrize("training", [True, False])
def test_energy_and_forces(training, backend):
    torch.manual_seed(0)
    model = Field().train(training)
    check(model, make_args=lambda: (values(4, 2),), calls=2, fullgraph=True, backend=backend)


class Adapted(torch.nn.Module):
    """An inner step of training on a module's parameters."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 3).double()

    def forward(self, x):
        loss = self.inner(x).pow(2).mean()
        slopes = torch.autograd.grad(loss, self.inner.parameters(), create_graph=True)
        names = [name for name, _ in self.inner.named_parameters()]
        fast = {
            name: parameter - 0.1 * slope
            for name, parameter, slope in zip(names, self.inner.parameters(), slopes, strict=True)
        }
        return torch.func.functional_call(self.inner, fast, (x,)).sum()


def test_inner_step_of_a_module(backend):
    torch.manual_seed(0)
    check(Adapted(), make_args=lambda: (values(4, 3),), calls=2, backend=backend)


@pytest.mark.covers("test_aot_autograd::test_eager_sequence_nr")
def test_model_with_a_gradient_inside(backend):
    torch.manual_seed(0)
    parts = (
        torch.nn.Conv2d(2, 2, 1),
        torch.nn.BatchNorm2d(2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(18, 1),
    )
    model = torch.nn.Sequential(*parts).double()
    weight = torch.tensor(1.0, requires_grad=True, dtype=torch.float64)

    def program(model, x, target, weight):
        loss = torch.nn.functional.l1_loss(model(x), target)
        return torch.autograd.grad(loss, x, create_graph=True, grad_outputs=weight)[0]

    calls = [Call((model, values(4, 2, 3, 3), values(4, 1, seed=2, grad=False), weight))]
    check(program, calls=calls, fullgraph=True, graphs=1, backend=backend)


def batched(x):
    y = x * x
    return torch.autograd.grad(y, x, torch.eye(3, dtype=x.dtype), is_grads_batched=True)


def recurrent(x):
    torch.manual_seed(0)
    cell = torch.nn.LSTM(3, 2).double()
    return torch.autograd.grad(cell(x[None, None])[0].sum(), x)


def after_pooling(x):
    return torch.autograd.grad(torch.nn.functional.max_pool1d(x[None, None], 2).sum(), x)


@pytest.mark.parametrize("program", [batched, recurrent, after_pooling], ids=lambda each: each.__name__)
def test_left_to_eager(program, backend):
    check(program, make_args=lambda: (values(3),), backend=backend)
