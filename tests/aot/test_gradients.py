"""Gradients through compiled functions, and everything that a user can do between forward and backward."""

import copy
import threading

import pytest
import torch
from torch import nn
from torch.autograd import grad

from tests.aot.stories import Stories, attempt, leaf

story = Stories()
pytestmark = pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected in")


def two_results(x, y):
    return x.sin() * y, y.exp()


def logits_and_loss(x, w):
    logits = (x @ w).tanh()
    return logits, (logits * logits).sum()


class Swallow(torch.autograd.Function):
    """A user's function whose gradient is undefined."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return None


# -- incoming gradients -----------------------------------------------------------------------------------------------


@story
def one_of_two_results(compile):
    f = compile(two_results)
    log = []
    for number in (0, 1, 0):
        x, y = leaf(), leaf()
        f(x, y)[number].sum().backward()
        log.append([x.grad, y.grad])
    return log


@story
def undefined_for_all_results(compile):
    x, y = leaf(), leaf()
    a, b = compile(two_results)(x, y)
    (Swallow.apply(a).sum() + Swallow.apply(b).sum()).backward()
    return x.grad, y.grad


@story
def undefined_for_one_result(compile):
    f = compile(two_results)
    log = []
    for swallowed in (0, 1):
        x, y = leaf(), leaf()
        results = list(f(x, y))
        results[swallowed] = Swallow.apply(results[swallowed])
        (results[0].sum() + results[1].sum()).backward()
        log.append([x.grad, y.grad])
    return log


@story
def none_given_for_scalars(compile):
    x, y = leaf(), leaf()
    f = compile(lambda x, y: ((x * y).sum(), y.cos()))
    a, b = f(x, y)
    torch.autograd.backward([a, b], [None, torch.ones_like(b)])
    a, b = f(x, y)
    return x.grad, y.grad, attempt(lambda: torch.autograd.backward([a, b], [torch.tensor(2.0), None]))


@story
def of_other_layouts(compile):
    log = []
    f = compile(two_results)
    for make in (
        lambda t: torch.randn(t.shape[::-1], dtype=t.dtype).t(),
        lambda t: torch.randn(1, dtype=t.dtype).expand_as(t),
        lambda t: torch.randn(t.shape[0], 1, dtype=t.dtype).expand_as(t),
        lambda t: torch.randn(*t.shape, 2, dtype=t.dtype)[..., 1],
        lambda t: torch.randn(t.shape, dtype=t.dtype).flip(0),
    ):
        x, y = leaf(), leaf()
        a, b = f(x, y)
        torch.autograd.backward([a, b], [make(a), make(b)])
        log.append([x.grad, y.grad])
    return log


@story
def layouts_of_gradients(compile):
    """A gradient takes on the layout of its leaf, whatever came in."""
    f = compile(lambda x, y: x * 2 + y)
    x = torch.randn(4, 3, dtype=torch.float64).t().requires_grad_()
    y = torch.randn(6, 4, dtype=torch.float64)[::2].detach().requires_grad_()
    f(x, y).backward(torch.randn(3, 4, dtype=torch.float64))
    first = [x.grad.stride(), y.grad.stride()]
    gradients = grad(f(x, y), [x, y], torch.randn(4, 3, dtype=torch.float64).t())
    return first, [x.grad, y.grad], [gradient.stride() for gradient in gradients]


class Tagged(torch.Tensor):
    """A subclass that only has a name."""


@story
def of_a_plain_subclass(compile):
    x, y = leaf(), leaf()
    a, b = compile(two_results)(x, y)
    torch.autograd.backward([a, b], [torch.ones_like(a).as_subclass(Tagged), torch.ones_like(b)])
    return type(x.grad), torch.Tensor(x.grad), type(y.grad)


class Pair(torch.Tensor):
    """Two tensors in one, below autograd."""

    @staticmethod
    def __new__(cls, first, second):
        return torch.Tensor._make_wrapper_subclass(cls, first.shape, dtype=first.dtype, strides=first.stride())

    def __init__(self, first, second):
        self.first, self.second = first, second

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        def half(name):
            one = [getattr(item, name) if isinstance(item, Pair) else item for item in args]
            return function(*one, **(kwargs or {}))

        first, second = half("first"), half("second")
        return cls(first, second) if isinstance(first, torch.Tensor) else first


@story
def of_a_dispatching_subclass(compile):
    x, y = leaf(), leaf()
    a, b = compile(two_results)(x, y)
    pair = Pair(torch.ones_like(a), torch.full_like(a, 2))
    gradients = grad([a], [x, y], [pair])
    return [type(gradient).__name__ for gradient in gradients], [[g.first, g.second] for g in gradients]


@story
def sparse_ones(compile):
    table = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    f = compile(lambda index, table: nn.functional.embedding(index, table, sparse=True) * 2)
    for _ in range(2):
        f(torch.tensor([1, 4, 1]), table).sum().backward()
    return table.grad.layout, table.grad.to_dense()


@story
def reduced_and_cast(compile):
    """Broadcasting and mixed dtypes: each gradient comes in its input's shape and dtype."""
    f = compile(lambda x, y, z: (x * y).float() + z)
    x, y, z = leaf(3, 4), leaf(4), leaf(3, 1, dtype=torch.float32)
    result = f(x, y, z)
    result.sum().backward()
    return result.dtype, x.grad, y.grad, z.grad


@story
def complex_ones(compile):
    x, y = leaf(dtype=torch.complex128), leaf()
    f = compile(lambda x, y: ((x * y).abs(), x * x.conj(), torch.view_as_real(x * 2)))
    torch.autograd.backward([result.sum().abs() for result in f(x, y)])
    return x.grad, y.grad


@story
def batched(compile):
    """`is_grads_batched` runs the backward under vmap."""
    x, y = leaf(), leaf()
    a, _ = compile(two_results)(x, y)
    return grad(a, [x, y], torch.randn(5, *a.shape, dtype=a.dtype), is_grads_batched=True)


# -- which gradients --------------------------------------------------------------------------------------------------


@story
def results_that_are_inputs(compile):
    f = compile(lambda x, y: (x, x * y, y))
    x, y = leaf(), leaf()
    p, q = x * 2, y * 3
    a, b, c = f(p, q)
    assert a is p and c is q
    torch.autograd.backward([a, b, c], [torch.full_like(a, 3.0), torch.ones_like(b), torch.full_like(c, 5.0)])
    a, b, c = f(x, y)
    log = [x.grad, y.grad, grad(a.sum() + b.sum() + c.sum(), [x, a, y, c], retain_graph=True)]
    return log, attempt(lambda: grad(a.sum(), [b, y], allow_unused=True, retain_graph=True)), grad(b.sum(), [a, c])


@story
def unused_inputs(compile):
    x, y, z = leaf(), leaf(), leaf()
    result = compile(lambda x, y, z: (x * 2, z))(x, y, z)[0]
    return (
        grad(result.sum(), [x, y, z], allow_unused=True, retain_graph=True),
        attempt(lambda: grad(result.sum(), [x, y], retain_graph=True)),
        grad(result.sum(), [x, y], materialize_grads=True, allow_unused=True),
    )


class Watching(torch.autograd.Function):
    """A product that tells which gradients were asked for."""

    log: list = []

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        Watching.log.append(tuple(ctx.needs_input_grad))
        return gradient * y if ctx.needs_input_grad[0] else None, gradient * x if ctx.needs_input_grad[1] else None


@story
def not_needed_not_computed(compile):
    f = compile(lambda x, y: Watching.apply(x * 2, y) + 1)
    Watching.log.clear()
    x, y = leaf(), leaf()
    found = []
    for wanted in ([x], [y], [x, y]):
        found.append(grad(f(x, y).sum(), wanted))
    f(x, y).sum().backward(inputs=[y])
    found.append([x.grad, y.grad])
    y.requires_grad_(False)
    f(x, y).sum().backward()
    return found, [x.grad, y.grad], list(Watching.log)


@story
def only_into_given_leaves(compile):
    x, y = leaf(), leaf()
    a, b = compile(two_results)(x, y)
    torch.autograd.backward([a.sum(), b.sum()], inputs=[x], retain_graph=True)
    first = (x.grad.clone(), y.grad)
    torch.autograd.backward([a.sum(), b.sum()], inputs=[y])
    return first, x.grad, y.grad


@story
def requires_grad_changes_between_calls(compile):
    f = compile(two_results)
    x, y = leaf(), leaf()
    log = []
    for flags in ((True, True), (True, False), (False, True), (False, False), (True, True)):
        x.requires_grad_(flags[0])
        y.requires_grad_(flags[1])
        x.grad = y.grad = None
        results = f(x, y)
        torch.autograd.backward([result.sum() for result in results if result.requires_grad])
        log.append([x.grad, y.grad, *(result.requires_grad for result in results)])
    return log


@story
def requires_grad_turned_off_before_backward(compile):
    x, y = leaf(), leaf()
    a, b = compile(two_results)(x, y)
    x.requires_grad_(False)
    (a.sum() + b.sum()).backward()
    return x.grad, y.grad


@story
def integers_and_flags(compile):
    f = compile(lambda x, n, flags: (x * n, x.argmax(), flags & (x > 0), n + 1))
    x, n = leaf(), torch.arange(4)
    a, b, c, d = f(x, n, torch.tensor([True, False, True, True]))
    a.sum().backward()
    return x.grad, b, c, d, [result.requires_grad for result in (a, b, c, d)]


# -- the graph kept and freed -----------------------------------------------------------------------------------------


@story
def kept_and_freed(compile):
    x, y = leaf(), leaf()
    a, b = compile(two_results)(x, y)
    loss = (a * b).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    return x.grad, y.grad, attempt(loss.backward), x.grad, attempt(lambda: grad(a.sum(), x))


@story
def nothing_saved_nothing_freed(compile):
    """Backward needs nothing, so it can be run again without keeping the graph: eager allows it."""
    x, y = leaf(), leaf()
    result = compile(lambda x, y: (x + y).t())(x, y)
    ones = torch.ones_like(result)
    result.backward(ones)
    result.backward(ones)
    return x.grad, y.grad


@story
def each_result_by_itself(compile):
    x, y = leaf(), leaf()
    a, b = compile(lambda x, y: (x.sin(), y.cos()))(x, y)
    a.sum().backward()
    second = attempt(lambda: b.sum().backward())
    return x.grad, y.grad, second, attempt(lambda: a.sum().backward())


@story
def results_in_sequence(compile):
    """The first depends on nothing of the second's: freeing one leaves the other."""
    x, w = leaf(), leaf(4, 2)
    logits, loss = compile(logits_and_loss)(x, w)
    first = grad(loss, logits)
    logits.sum().backward()
    return first, x.grad, w.grad, attempt(loss.backward)


@story
def calls_interleaved(compile):
    f = compile(two_results)
    pairs = [(leaf(), leaf()) for _ in range(3)]
    results = [f(*pair) for pair in pairs]
    for a, b in reversed(results):
        (a * b).sum().backward()
    return [[x.grad, y.grad] for x, y in pairs]


@story
def added_to_what_is_there(compile):
    f = compile(two_results)
    x, y = leaf(), leaf()
    x.grad = mine = torch.ones_like(x)
    log = []
    for _ in range(3):
        f(x, y)[0].sum().backward()
        log.append([x.grad is mine, x.grad.clone(), y.grad.clone(), x.grad._version])
    return log


@story
def gradients_are_nobody_elses_memory(compile):
    f = compile(lambda x, y: x + y)
    x, y = leaf(), leaf()
    incoming = torch.ones(3, 4, dtype=torch.float64)
    f(x, y).backward(incoming)
    x.grad.mul_(5)
    return x.grad, y.grad, incoming


# -- modified in the meantime -----------------------------------------------------------------------------------------


def quietly(change):
    with torch.no_grad():
        change()


@story
def saved_inputs_changed(compile):
    log = []
    for function in (lambda x, y: x * y, lambda x, y: x + y, lambda x, y: x.exp() + y, lambda x, y: x.sin() * 2 + y):
        for changed in ("x", "y"):
            x, y = leaf(), leaf()
            result = compile(function)(x, y)
            quietly(lambda t=x if changed == "x" else y: t.add_(1))
            error = attempt(lambda result=result: result.sum().backward())
            log.append([error, None if error else (x.grad, y.grad)])
    return log


@story
def a_view_of_a_saved_input_changed(compile):
    x, y = leaf(), leaf()
    result = compile(lambda x, y: x * y)(x, y)
    quietly(lambda: x[0].zero_())
    return attempt(lambda: result.sum().backward())


@story
def saved_input_changed_and_changed_back(compile):
    """Versions count changes, not contents; through `.data` nobody counts."""
    x, y = leaf(), leaf()
    f = compile(lambda x, y: x * y)
    result = f(x, y)
    quietly(lambda: x.add_(1).sub_(1))
    first = attempt(lambda: result.sum().backward())
    result = f(x, y)
    x.data.mul_(2)
    result.sum().backward()
    return first, x.grad, y.grad


@story
def saved_results_changed(compile):
    """`exp` and `tanh` keep their results for the backward, `sin` and sums do not."""
    log = []
    for function in (
        torch.exp,
        torch.sin,
        lambda x: x * 2,
        torch.tanh,
        lambda x: x.exp() * 2,
        lambda x: x.sigmoid().t(),
    ):
        x = leaf()
        p = x * 1
        result = compile(lambda p, function=function: function(p))(p)
        result.add_(1)
        log.append([attempt(lambda result=result: result.sum().backward()), x.grad])
    return log


@story
def parameters_updated_too_early(compile):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    f = compile(model)
    x = leaf()
    first, second = f(x), f(x)
    first.sum().backward()
    optimizer.step()
    return attempt(lambda: second.sum().backward()), list(model.parameters()), x.grad


@story
def optimizer_steps(compile):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    f = compile(lambda x: model(x).square().mean())
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        losses.append(f(torch.randn(5, 4, dtype=torch.float64)))
        losses[-1].backward()
        optimizer.step()
    return losses, list(model.parameters()), list(model.buffers())


# -- higher orders ----------------------------------------------------------------------------------------------------


def normalized(compile, module, loss_of):
    """Two calls in training, with second derivatives; the running statistics change in each."""
    f = compile(lambda x: loss_of(module(x), module))
    found = []
    for _ in range(2):
        x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
        loss = f(x)
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        found += [loss, first, *torch.autograd.grad(first.square().sum(), [x, *module.parameters()])]
    return found, list(module.buffers())


@story
def second_derivatives_through_batch_norm(compile):
    return normalized(compile, nn.BatchNorm1d(4).double(), lambda y, _: y.pow(3).sum())


@story
def second_derivatives_with_running_statistics(compile):
    return normalized(compile, nn.BatchNorm1d(4).double(), lambda y, norm: (y.pow(3) * norm.running_var).sum())


@story
def three_orders(compile):
    f = compile(lambda x, y: (x**4 * y).sin() + y.exp() * x)
    x, y = leaf(3), leaf(3)
    log = []
    outputs = [f(x, y).sum()]
    for order in range(3):
        gradients = grad(outputs, [x, y], create_graph=order < 2)
        log.append(gradients)
        outputs = [gradient.cos().sum() for gradient in gradients]
    return log


@story
def second_order_of_some(compile):
    """Second derivatives where first ones are undefined, unused or not asked for."""
    f = compile(lambda x, y, z: ((x * x * y).sum(), (z.exp() * 2).sum(), z + 1))
    x, y, z = leaf(3), leaf(3), leaf(3)
    a, b, c = f(x, y, z)
    (gx,) = grad(a, [x], create_graph=True)
    found = [gx, grad(gx.sum(), [x, y, z], allow_unused=True)]
    (gz,) = grad(b, [z], create_graph=True)
    found.append(grad(gz.square().sum(), [z, x], allow_unused=True))
    gc = grad(c.sum(), [z, x], create_graph=True, allow_unused=True)
    return found, gc, [g is not None and g.requires_grad for g in gc]


@story
def by_incoming_gradients(compile):
    """The first derivative is linear in what comes in, and differentiable by it."""
    x, y = leaf(3), leaf(3)
    v = leaf(3)
    result = compile(lambda x, y: x.sin() * y)(x, y)
    gradients = grad(result, [x, y], v, create_graph=True)
    return grad([gradient.sum() for gradient in gradients], [v, x, y])


@story
def linear_functions_have_no_second_order(compile):
    x, y = leaf(3), leaf(3)
    gradients = grad(compile(lambda x, y: x * 2 + y)(x, y).sum(), [x, y], create_graph=True)
    return gradients, [gradient.requires_grad for gradient in gradients]


@story
def accumulated_with_graph(compile):
    x = leaf(3)
    f = compile(lambda x: (x**3).sum())
    for _ in range(2):
        f(x).backward(create_graph=True)
    first = x.grad
    x.grad = None
    first.sum().backward()
    found = [first.detach().clone(), x.grad.clone(), first.requires_grad]
    x.grad = None
    return found


@story(strides=False)  # those of a dimension of size 1
def gradient_penalty(compile):
    critic = nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 1)).double()
    f = compile(critic)
    for _ in range(2):
        x = leaf(5, 4)
        scores = f(x)
        (slope,) = grad(scores.sum(), x, create_graph=True)
        (scores.mean() + (slope.norm(dim=1) - 1).square().mean()).backward()
    return x.grad, [parameter.grad for parameter in critic.parameters()]


@story
def gradient_penalty_inside(compile):
    critic = nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 1)).double()

    def loss(x):
        scores = critic(x)
        (slope,) = grad(scores.sum(), x, create_graph=True)
        return scores.mean() + (slope.norm(dim=1) - 1).square().mean()

    f = compile(loss)
    for _ in range(2):
        x = leaf(5, 4)
        f(x).backward()
    return x.grad, [parameter.grad for parameter in critic.parameters()]


@story
def learning_to_learn(compile):
    """An inner loop of gradient steps that stays differentiable."""
    f = compile(lambda x, w, b, target: ((x @ w).tanh() + b - target).square().mean())
    x, target = leaf(5, 3, requires_grad=False), leaf(5, 2, requires_grad=False)
    w, b = leaf(3, 2), leaf(2)
    fast = [w, b]
    for _ in range(3):
        gradients = grad(f(x, *fast, target), fast, create_graph=True)
        fast = [parameter - 0.1 * gradient for parameter, gradient in zip(fast, gradients, strict=True)]
    f(x, *fast, target).backward()
    return fast, w.grad, b.grad


@story
def jacobians_and_hessians(compile):
    f = compile(lambda x: (x.sin() * x).sum())
    g = compile(lambda x: x.sin() * x.sum())
    x = leaf(3)
    functional = torch.autograd.functional
    return (
        functional.hessian(f, x),
        functional.jacobian(g, x),
        functional.jacobian(g, x, vectorize=True),
        functional.hvp(f, x, torch.ones_like(x)),
        functional.vjp(g, x, torch.ones_like(x)),
    )


@story
def checked_numerically(compile):
    x, y = leaf(3), leaf(3)
    f = compile(two_results)
    return torch.autograd.gradcheck(f, (x, y)), torch.autograd.gradgradcheck(f, (x, y))


@story
def second_order_after_a_mutation(compile):
    def f(x, y):
        y.mul_(x.sin())
        return (y * x).exp(), y[0]

    f = compile(f)
    x, y = leaf(3), leaf(3)
    p = y * 1
    outputs = f(x, p)
    gradients = grad([output.sum() for output in (*outputs, p)], [x, y], create_graph=True)
    return gradients, grad([gradient.square().sum() for gradient in gradients], [x, y])


@story
def second_order_with_randomness(compile):
    """The mask is drawn once, in the forward."""
    f = compile(lambda x: nn.functional.dropout(x.sin(), 0.5) * x)
    x = leaf(16)
    result = f(x)
    torch.rand(3)
    (first,) = grad(result.sum(), x, create_graph=True)
    return result, first, grad(first.square().sum(), x), torch.rand(2)


@story
def second_order_after_inputs_changed(compile):
    """Through `.data` nobody counts, but eager then computes with the new contents."""
    f = compile(lambda x, y: x.sin() * y)
    x, y = leaf(3), leaf(3)
    result = f(x, y)
    quietly(lambda: x.add_(1))
    return attempt(lambda: grad(result.sum(), [x, y], create_graph=True))


@story
def once_differentiable(compile):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, gradient):
            return gradient * 2

    x = leaf(3)
    f = compile(lambda x: Double.apply(x.sin()))
    (first,) = grad(f(x).sum(), x, create_graph=True)
    return first.detach(), attempt(lambda: grad(first.sum(), x))


# -- hooks ------------------------------------------------------------------------------------------------------------


def logging(log, name):
    return lambda gradient: log.append((name, gradient.detach().clone()))


@story
def hooks_on_results(compile):
    log = []
    x, y = leaf(), leaf()
    x.register_hook(logging(log, "x"))
    a, b = compile(two_results)(x, y)
    for name, tensor in (("b", b), ("a", a), ("a again", a), ("y", y)):
        tensor.register_hook(logging(log, name))
    (a * b).sum().backward()
    return log[:3], dict(log[3:])["x"], dict(log[3:])["y"], x.grad, y.grad


@story
def hooks_where_one_result_feeds_another(compile):
    f = compile(logits_and_loss)
    found = []
    for _ in range(2):
        log = []
        x, w = leaf(), leaf(4, 2)
        logits, loss = f(x, w)
        logits.register_hook(logging(log, "logits"))
        loss.register_hook(logging(log, "loss"))
        logits.register_hook(lambda gradient: gradient * 3)
        logits.retain_grad()
        loss.backward(retain_graph=True)
        logits.sum().backward()
        found.append([log, logits.grad, x.grad, w.grad])
    return found


@story
def gradients_by_results(compile):
    x, w = leaf(), leaf(4, 2)
    logits, loss = compile(logits_and_loss)(x, w)
    (by_logits,) = grad(loss, logits, retain_graph=True)
    by_both = grad(loss, [logits, x], retain_graph=True)
    second = grad(grad(loss, logits, create_graph=True)[0].sum(), [logits, w], retain_graph=True)
    logits.backward(by_logits)
    return by_logits, by_both, second, x.grad, w.grad


@story
def a_chain_of_results(compile):
    def chain(x):
        a = x.sin()
        b = a * a
        c = b.exp() + a
        return c, a, b, a[0], (b + c).sum()

    f = compile(chain)
    log = []
    x = leaf()
    results = f(x)
    for number, result in enumerate(results):
        result.register_hook(logging(log, number))
        result.retain_grad()
    results[4].backward(retain_graph=True)
    (results[3].sum() * 2).backward(retain_graph=True)
    found = [result.grad for result in results]
    pairs = [
        grad(one.sum(), other, allow_unused=True, retain_graph=True)
        for one in results
        for other in results
        if one is not other
    ]
    return found, pairs, log, x.grad


@story
def hooks_that_change_gradients(compile):
    x, y = leaf(), leaf()
    a, b = compile(two_results)(x, y)
    a.register_hook(lambda gradient: gradient * 2)
    handle = b.register_hook(lambda gradient: gradient * 100)
    b.register_hook(lambda gradient: None)
    handle.remove()
    (a.sum() + b.sum()).backward()
    return x.grad, y.grad


@story
def hooks_that_see_undefined_gradients(compile):
    log = []
    x, y = leaf(), leaf()
    a, b = compile(two_results)(x, y)
    for tensor, name in ((a, "a"), (b, "b"), (x, "x")):
        tensor.register_hook(lambda gradient, name=name: log.append((name, gradient is None)))
    b.sum().backward()
    return log, x.grad, y.grad


@story
def hooks_of_nodes(compile):
    log = []
    x, y = leaf(), leaf()
    a, b = compile(two_results)(x, y)
    loss = (a * b).sum()
    a.grad_fn.register_prehook(lambda gradients: log.append(("before", gradients[0].clone())))
    a.grad_fn.register_hook(lambda inputs, outputs: log.append("after"))
    loss.backward()
    return log[0], "after" in log, x.grad, y.grad


@story
def hooks_after_accumulation_and_of_several(compile):
    log = []
    x, y = leaf(), leaf()
    x.register_post_accumulate_grad_hook(lambda tensor: log.append(("accumulated", tensor.grad.clone())))
    a, b = compile(two_results)(x, y)
    graph = torch.autograd.graph
    graph.register_multi_grad_hook([a, b, x], lambda gradients: log.append(("all", len(gradients))))
    graph.register_multi_grad_hook([a, b], lambda gradient: log.append(("any", gradient.clone())), mode="any")
    (a * b).sum().backward()
    return log, x.grad, y.grad


@story
def retained_on_results(compile):
    x, y = leaf(), leaf()
    a, b = compile(lambda x, y: (x.sin() * y, x[0] * 2))(x, y)
    a.retain_grad()
    b.retain_grad()
    first = (a.grad, a.retains_grad)
    (a.sum() + b.exp().sum()).backward(retain_graph=True)
    second = (a.grad.clone(), b.grad.clone())
    a.sum().backward()
    return first, second, a.grad, b.grad, x.grad


@story
def retained_and_changed_in_place(compile):
    x = leaf()
    a = compile(lambda x: x * 2)(x)
    a.retain_grad()
    a.mul_(3)
    a.sum().backward()
    return a.grad, x.grad


@story
def a_hook_that_calls_the_function(compile):
    f = compile(lambda x: x.sin() * 2)
    x, z = leaf(), leaf()

    def hook(gradient):
        with torch.enable_grad():
            f(z).sum().backward()
        return gradient * f(gradient.detach()).detach()

    result = f(x)
    result.register_hook(hook)
    result.sum().backward()
    return x.grad, z.grad


# -- saved tensors, modes, copies -------------------------------------------------------------------------------------


@story
def saved_elsewhere(compile):
    f = compile(two_results)
    packed = []

    def pack(tensor):
        packed.append(tuple(tensor.shape))
        return tensor.detach().numpy().copy()

    found = []
    for _ in range(2):
        x, y = leaf(), leaf()
        with torch.autograd.graph.saved_tensors_hooks(pack, torch.from_numpy):
            a, b = f(x, y)
        (a.sum() + b.sum()).backward()
        found.append([x.grad, y.grad])
    f(x, y)
    return found, bool(packed)


@story
def saved_with_a_change(compile):
    """What the hooks return is what backward computes with."""
    x, y = leaf(), leaf()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.detach() * 2, lambda tensor: tensor):
        result = compile(lambda x, y: x * y)(x, y)
    result.sum().backward()
    return x.grad, y.grad


@story
def saved_on_the_cpu(compile):
    x, y = leaf(), leaf()
    with torch.autograd.graph.save_on_cpu():
        a, b = compile(two_results)(x, y)
    (a * b).sum().backward()
    return x.grad, y.grad


@story
def saving_that_raises(compile):
    def trouble(value):
        raise ValueError("nowhere to put it")

    f = compile(lambda x, y: x * y)
    x, y = leaf(), leaf()
    hooks = torch.autograd.graph.saved_tensors_hooks
    log = []
    with hooks(trouble, lambda tensor: tensor):
        log.append(attempt(lambda: f(x, y)))
    with hooks(lambda tensor: tensor, trouble):
        result = f(x, y)
    log.append(attempt(lambda: result.sum().backward()))
    f(x, y).sum().backward()
    return log, x.grad, y.grad


@story
def saving_forbidden(compile):
    f = compile(two_results)
    x, y = leaf(), leaf()
    with torch.autograd.graph.disable_saved_tensors_hooks("not now"):
        a, b = f(x, y)
        entered = attempt(torch.autograd.graph.saved_tensors_hooks(abs, abs).__enter__)
    (a * b).sum().backward()
    return entered, x.grad, y.grad


@story
def anomalies(compile):
    f = compile(lambda x: x.sqrt() * 2)

    def found(check_nan):
        x = torch.tensor([0.0, -1.0], dtype=torch.float64, requires_grad=True)
        with torch.autograd.detect_anomaly(check_nan=check_nan):
            result = f(x)
            error = attempt(lambda: result.sum().backward())
        return error[0] if error else None, "returned nan values in its 0th output" in str(error), x.grad

    captured = f(leaf())  # calls in anomaly mode, whose warnings show the lines of the program, are left to Python
    return found(True), found(False), torch.is_anomaly_enabled(), captured


@story
def results_detached(compile):
    x, y = leaf(), leaf()
    a, b = compile(two_results)(x, y)
    a.detach_()
    log = [a.requires_grad, a.is_leaf, a.grad_fn, attempt(lambda: a.sum().backward())]
    b.sum().backward()
    return log, x.grad, y.grad


@story
def requires_grad_of_results(compile):
    f = compile(lambda x, n: (x.sin(), x.detach() * 2, n + 1))
    x = leaf()
    a, b, c = f(x, torch.arange(3))
    log = [attempt(lambda: a.requires_grad_(False)), attempt(lambda: c.requires_grad_())]
    b.requires_grad_()
    (a * b).sum().backward()
    return log, b.grad, x.grad, b.is_leaf


@story
def copies_of_results(compile):
    f = compile(lambda x: (x.sin(), x.detach() * 2, x[0]))
    x = leaf()
    a, b, c = f(x)
    log = [attempt(lambda: copy.deepcopy(tensor)) for tensor in (a, c)]
    b_copy = copy.deepcopy(b)
    return log, b_copy, copy.copy(b), a.clone().requires_grad


@story
def called_without_grad(compile):
    f = compile(lambda x, y: (x.sin() * y, x[0], x))
    x, y = leaf(), leaf()
    log = []
    for context in (torch.no_grad, torch.enable_grad, torch.inference_mode, torch.enable_grad, torch.no_grad):
        with context():
            results = f(x, y)
        log.append([(r.requires_grad, r.is_inference(), r._is_view(), r.is_leaf, r.detach().clone()) for r in results])
    results = f(x, y)
    results[0].sum().backward()
    return log, x.grad, y.grad


@story
def inference_tensors_as_inputs(compile):
    f = compile(lambda x, y: x.sin() + y)
    with torch.inference_mode():
        y = torch.ones(4, dtype=torch.float64)
        inside = f(y, y)
    x = leaf()
    f(x, y).sum().backward()
    return inside.is_inference(), x.grad, attempt(lambda: compile(lambda x, y: x * y)(x, y).sum())


@story
def results_changed_by_the_user(compile):
    f = compile(lambda x, y: (x * 2, (x + y)[0], y.t()))
    x, y = leaf(), leaf()
    p, q = x * 1, y * 1
    a, b, c = f(p, q)
    a.mul_(b.sum())
    b.add_(1)
    c.mul_(2)
    (a.sum() + b.sum() + c.sum() + q.sum()).backward()
    return x.grad, y.grad, a, b, c, q


@story
def several_views_changed_by_the_user(compile):
    def views(x):
        base = x * 2
        return base[0], base[1:], base

    f = compile(views)
    x = leaf()
    first, rest, base = f(x)
    first.mul_(3)
    rest[0].zero_()
    (base * base).sum().backward()
    return x.grad, first, rest, base


@story
def chunks_changed_by_the_user(compile):
    x = leaf(4, 4)
    a, b = compile(lambda x: (x * 2).chunk(2))(x)
    return attempt(lambda: a.add_(1)), attempt(lambda: b.add_(1)), a, b


@story
def backward_elsewhere(compile):
    """In another thread, without grad mode, under autocast."""
    f = compile(two_results)
    log = []

    def backward(results):
        (results[0] * results[1]).sum().backward()

    x, y = leaf(), leaf()
    results = f(x, y)
    loss = (results[0] * results[1]).sum()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    log.append([x.grad.clone(), y.grad.clone()])
    loss = f(x, y)[0].sum()
    with torch.no_grad():
        loss.backward()
    log.append([x.grad.clone(), y.grad.clone()])
    m, n = leaf(4, 4, dtype=torch.float32), leaf(4, 4, dtype=torch.float32)
    result = compile(lambda m, n: m @ n)(m, n)
    with torch.autocast("cpu"):
        result.sum().backward()
    return log, m.grad, n.grad


@story
def backward_in_many_threads(compile):
    f = compile(two_results)
    pairs = [(leaf(), leaf()) for _ in range(8)]

    def work(x, y):
        for _ in range(5):
            a, b = f(x, y)
            (a * b).sum().backward()

    threads = [threading.Thread(target=work, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [[x.grad, y.grad] for x, y in pairs]


@story
def dropped_before_backward(compile):
    f = compile(two_results)
    x, y = leaf(), leaf()
    p, q = x * 1, y * 1
    a, b = f(p, q)
    del a, p, q
    b.sum().backward()
    return x.grad, y.grad


@story
def compiled_functions_in_a_row(compile):
    f = compile(two_results)
    x, y = leaf(), leaf()
    a, b = f(x, y)
    c, d = f(a, b.detach().requires_grad_())
    c, d = f(c, a)
    (c * d).sum().backward()
    return x.grad, y.grad


@story
def checkpoint_around_it(compile):
    f = compile(two_results)
    x, y = leaf(), leaf()
    log = []
    for reentrant in (False, True):
        a, b = torch.utils.checkpoint.checkpoint(f, x, y, use_reentrant=reentrant)
        (a * b).sum().backward()
        log.append([x.grad.clone(), y.grad.clone()])
    return log


@story
def non_leaf_inputs_keep_gradients(compile):
    x = leaf()
    p = x * 2
    p.retain_grad()
    compile(two_results)(p, p)[0].sum().backward()
    return p.grad, x.grad


@story
def the_same_input_twice(compile):
    f = compile(lambda x, y: x.sin() * y)
    x, y = leaf(), leaf()
    f(x, x).sum().backward()
    first = x.grad.clone()
    f(x, y).sum().backward()
    f(y, x).sum().backward()
    return first, x.grad, y.grad


@story
def a_buffer_with_history(compile):
    """What a mutation leaves in an input can be differentiated, call after call."""

    def update(state, x):
        state.mul_(0.5).add_(x.sin())
        return state.sum()

    f = compile(update)
    state = torch.ones(4, dtype=torch.float64)
    xs = [leaf(4) for _ in range(3)]
    losses = [f(state, x) for x in xs]
    losses[-1].backward()
    return state, [x.grad for x in xs], state.requires_grad, losses


@story(dynamic=True)
def sizes_vary(compile):
    f = compile(lambda x, w: logits_and_loss(x, w))
    log = []
    w = leaf(4, 2)
    for rows in (3, 5, 2, 7):
        x = leaf(rows, 4)
        logits, loss = f(x, w)
        (loss + logits.exp().sum()).backward()
        log.append([x.grad, w.grad.clone()])
    return log


test_story = story.test()
