"""Bad input to compiled functions and their backward: eager's own error, nothing left behind, the next call right."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.autograd import grad

import kiln
from tests.aot.stories import BACKENDS, Stories, attempt, compare_story, leaf

story = Stories()


# -- functions that return nothing to differentiate -------------------------------------------------------------------


@story
def no_tensor_returned(compile):
    x = leaf()
    functions = (
        lambda x: None,
        lambda x: (x.shape[0], "text", {"k": [None]}),
        lambda x: [],
        lambda x: (x.sin(), None)[1],
        lambda x: x.numel() * 2.5,
    )
    return [[compile(function)(x) for _ in range(2)] for function in functions]


@story
def no_tensor_returned_but_one_changed(compile):
    def change(state, x):
        state.add_(x.sin())

    f = compile(change)
    state, x = torch.zeros(3, 4, dtype=torch.float64), leaf()
    returned = [f(state, x), f(state, x)]
    (state * state).sum().backward()
    return returned, state, x.grad


@story
def only_results_without_grad(compile):
    f = compile(lambda x: (x.detach().sin(), (x > 0).sum(), x.argmax(dim=0)))
    x = leaf()
    results = f(x)
    return results, attempt(lambda: results[0].sum().backward()), attempt(lambda: grad(results[0].sum(), x))


@story(captured=False)
def no_tensor_at_all(compile):
    return compile(lambda n: n + 1)(3), compile(lambda: None)()


# -- mutations that eager refuses -------------------------------------------------------------------------------------

REFUSED = {
    "leaf": lambda x, y: x.mul_(2),
    "view of leaf": lambda x, y: x[0].mul_(2),
    "leaf, by an item": lambda x, y: x.__setitem__(0, 1.0),
    "row of unbind": lambda x, y: (x * 1).unbind(0)[0].mul_(2),
    "view made without grad": lambda x, y: made_without_grad(x * 1).mul_(2),
    "wrong shape": lambda x, y: y.add_(torch.ones(7, dtype=y.dtype)),
    "wrong dtype": lambda x, y: torch.arange(12).view(3, 4).mul_(y),
    "expanded": lambda x, y: y[0].expand(3, 4).mul_(2),
    "leaf as out": lambda x, y: torch.add(y, 1, out=x),
    "leaf resized": lambda x, y: x.resize_(2, 2),
    "leaf set": lambda x, y: x.set_(y),
    "leaf detached view": lambda x, y: x[0].detach_(),
}


def made_without_grad(x):
    with torch.no_grad():
        return x[0]


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("backend", BACKENDS)
def test_refused(name, backend):
    """What is done before the refusal is done once; what comes after is not; the next call is right."""

    def refused(compile):
        change = REFUSED[name]

        def program(x, y, flag):
            y.add_(1)
            z = x.sin() * 2
            if flag:
                change(x, y)
            y.mul_(3)
            return z, y

        f = compile(program)
        log = []
        for flag in (True, False, True):
            x, y = leaf(), leaf(requires_grad=False)
            log.append([attempt(lambda flag=flag, x=x, y=y: f(x, y, flag)), x, y, y._version])
        z, y = f(x, y, False)
        z.sum().backward()
        return log, x.grad

    compare_story(refused, backend, fullgraph=False)


@story(fullgraph=False)
def mutation_of_an_expanded_input(compile):
    """Memory shared between elements: eager refuses to write most ways, and allows some."""
    log = []
    for change in (
        lambda x: x.add_(1),
        lambda x: x[0].add_(1),
        lambda x: x.fill_(2.0),
        lambda x: x.zero_(),
        lambda x: x.copy_(torch.ones(3, 4)),
        lambda x: x.transpose_(0, 1),
    ):
        f = compile(lambda x, change=change: (change(x), x * 2)[1])
        for _ in range(2):
            row = torch.arange(4.0)
            x = row.expand(3, 4)
            log.append([attempt(lambda f=f, x=x: f(x)), row, x.shape, row._version])
    return log


@story(fullgraph=False)
def storage_replaced(compile):
    """`set_`, `resize_` and `.data =` on inputs: done, or eager's error; what others see of the old memory stays."""
    log = []
    for change in (
        lambda x, y: x.set_(y),
        lambda x, y: x.set_(y.untyped_storage(), 1, (2, 2), (2, 1)),
        lambda x, y: x.resize_(2, 2),
        lambda x, y: x.resize_(5, 5).fill_(1.0),
        lambda x, y: setattr(x, "data", y * 2),
        lambda x, y: x.swapaxes_(0, 1).squeeze_().unsqueeze_(0),
        lambda x, y: x.as_strided_((2, 2), (1, 2)),
    ):

        def program(x, y, change=change):
            change(x, y)
            return x.sum() + y

        f = compile(program)
        for requires_grad in (False, False, True):
            x, y = torch.arange(12.0).view(3, 4).clone(), torch.ones(3, 4).requires_grad_(requires_grad)
            result = attempt(lambda f=f, x=x, y=y: f(x, y))
            if isinstance(result, torch.Tensor) and result.requires_grad:
                log.append(attempt(lambda result=result: result.sum().backward()))
            log.append([result, x.shape, x.stride(), y.grad])
    return log


# -- errors half-way --------------------------------------------------------------------------------------------------


@story(fullgraph=False)
def raising_half_way(compile):
    """At a tensor of the wrong size, known only at run time by a value, by the program itself."""

    def program(state, x, index, sign):
        state.add_(1)
        torch.rand(2)
        y = x.sin()
        if sign < 0:
            raise ValueError(f"sign {sign}")
        z = y[index] + torch.linalg.cholesky(x.detach() @ x.detach().t() * sign + torch.eye(3, dtype=x.dtype)).sum()
        state.mul_(2)
        return z

    f = compile(program)
    log = []
    for index, sign in ((1, 1), (9, 1), (1, -1), (0, 0), (2, 1)):
        state, x = torch.zeros(3, dtype=torch.float64), leaf()
        result = attempt(lambda state=state, x=x, index=index, sign=sign: f(state, x, torch.tensor(index), sign))
        if isinstance(result, torch.Tensor):
            result.sum().backward()
        log.append([result, state, x.grad, torch.is_grad_enabled(), torch.rand(1)])
    return log


@story(fullgraph=False)
def raising_with_switches_thrown(compile):
    def program(x, index):
        with torch.no_grad(), torch.autocast("cpu"):
            y = x @ x.t()
            z = x[index]
        return y.sum() + (z * x).sum()

    f = compile(program)
    x = leaf(4, 4, dtype=torch.float32)
    log = [attempt(lambda: f(x, torch.tensor(index))) for index in (1, 11, 2)]
    log[-1].backward()
    return log, x.grad, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")


@story(fullgraph=False)
def grad_mode_left_changed(compile):
    """A function may leave grad mode as it likes."""

    def program(x, on):
        y = x.sin()
        torch.set_grad_enabled(on)
        return y, x.cos()

    f = compile(program)
    log = []
    for on in (False, True, False):
        x = leaf()
        with torch.enable_grad():
            results = f(x, on)
            log.append([torch.is_grad_enabled(), *(result.requires_grad for result in results)])
            torch.set_grad_enabled(True)
            results[0].sum().backward()
        log.append(x.grad)
    return log


# -- backwards that raise ---------------------------------------------------------------------------------------------


class Trouble(Exception):
    pass


class Raising(torch.autograd.Function):
    wrong = True

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        if Raising.wrong:
            raise Trouble("in backward")
        return gradient * 2


@story
def a_function_whose_backward_raises(compile):
    f = compile(lambda x, y: Raising.apply(x.sin()) * y)
    log = []
    for wrong in (True, False, True, False):
        Raising.wrong = wrong
        x, y = leaf(), leaf()
        result = f(x, y)
        log.append([attempt(lambda result=result: result.sum().backward()), x.grad, y.grad, torch.is_grad_enabled()])
    Raising.wrong = False
    return log


@story
def hooks_that_raise(compile):
    def trouble(gradient):
        raise Trouble("in a hook")

    f = compile(lambda x, y: ((x * y).sin(), y.exp()))
    log = []
    for place in ("result", "input", "none"):
        x, y = leaf(), leaf()
        p = x * 1
        a, b = f(p, y)
        if place != "none":
            (a if place == "result" else p).register_hook(trouble)
        loss = a.sum() + b.sum()
        log.append([attempt(lambda loss=loss: loss.backward(retain_graph=True)), x.grad])
        log.append([attempt(lambda b=b, y=y: grad(b.sum(), y))])
    return log


class Wrong(torch.autograd.Function):
    """A backward that returns what it should not."""

    made = None

    @staticmethod
    def forward(ctx, x, y):
        return x * y

    @staticmethod
    def backward(ctx, gradient):
        return Wrong.made(gradient)


@story
def functions_that_return_wrong_gradients(compile):
    log = []
    for made in (
        lambda gradient: (gradient, gradient),
        lambda gradient: gradient,
        lambda gradient: (gradient, gradient, gradient),
        lambda gradient: (gradient[0:1, 0:2], gradient),
        lambda gradient: (gradient.float(), gradient),
        lambda gradient: (3, gradient),
        lambda gradient: (None, gradient),
        lambda gradient: (gradient.expand(5, 3, 4), gradient),
    ):
        Wrong.made = made
        f = compile(lambda x, y: Wrong.apply(x * 1, y * 1) * 2)
        for _ in range(2):
            x, y = leaf(), leaf()
            result = f(x, y)
            log.append([attempt(lambda result=result: result.sum().backward()), x.grad, y.grad])
    return log


@story
def hooks_that_return_wrong_gradients(compile):
    f = compile(lambda x: (x.sin() * 2, x.cos()))
    log = []
    for made in (lambda g: g[0], lambda g: g.float(), lambda g: "text", lambda g: g.sum(), lambda g: g.t()):
        x = leaf()
        a, b = f(x)
        log.append(attempt(lambda a=a, made=made: a.register_hook(made) and None))
        log.append([attempt(lambda a=a, b=b: (a * b).sum().backward()), x.grad])
    return log


# -- wrong gradients from outside -------------------------------------------------------------------------------------


@story
def incoming_gradients_that_do_not_fit(compile):
    f = compile(lambda x: (x.sin() * 2, x.exp()))
    log = []
    for gradient in (
        torch.ones(3),
        torch.ones(4, 3, dtype=torch.float64),
        torch.ones(2, 3, 4, dtype=torch.float64),
        torch.ones(1, 4, dtype=torch.float64),
        torch.ones((), dtype=torch.float64),
        torch.ones(3, 4, dtype=torch.float32),
        torch.ones(3, 4, dtype=torch.int64),
        torch.ones(3, 4, dtype=torch.complex128),
        torch.ones(3, 4, dtype=torch.float64, device="meta"),
        torch.ones(3, 4, dtype=torch.float64).to_sparse(),
        None,
        "text",
    ):
        x = leaf()
        a, b = f(x)
        log.append([attempt(lambda a=a, gradient=gradient: a.backward(gradient)), x.grad])
        log.append([attempt(lambda a=a, x=x, gradient=gradient: grad(a, x, gradient))])
        x.grad = None
        a, b = f(x)
        torch.autograd.backward([a, b], [torch.ones_like(a), torch.ones_like(b)])
        log.append(x.grad)
    return log


@story
def wrong_calls_of_grad(compile):
    f = compile(lambda x: x.sin() * 2)
    x, other = leaf(), leaf()
    result = f(x)
    loss = result.sum()
    return (
        grad(loss, x, retain_graph=True),
        attempt(lambda: grad(result, x, retain_graph=True)),
        attempt(lambda: grad(loss, [], retain_graph=True)),
        attempt(lambda: grad(loss, other, retain_graph=True)),
        attempt(lambda: grad(loss, x.detach(), retain_graph=True)),
        attempt(lambda: grad(loss, x.sum(), retain_graph=True)),
        attempt(lambda: grad([loss], [x], [None, None])),
        attempt(lambda: result.detach().sum().backward()),
    )


@story
def gradients_that_raise_in_the_accumulation(compile):
    """A `.grad` that cannot take what comes, and a hook after accumulation that raises."""
    f = compile(lambda x, y: x.sin() * y)
    x, y = leaf(), leaf()

    def trouble(tensor):
        raise Trouble("accumulated")

    x.register_post_accumulate_grad_hook(trouble)
    first = attempt(lambda: f(x, y).sum().backward())
    z = leaf()
    f(z, z).sum().backward()
    return first, x.grad, z.grad, attempt(lambda: setattr(z, "grad", torch.ones(2)))


# -- compiling what cannot be -----------------------------------------------------------------------------------------


@story(fullgraph=False)
def other_kinds_of_tensors(compile):
    """Meta, sparse and quantized tensors, strides of zero, no elements, no dimensions."""
    f = compile(lambda x: (x * 2).sum() if x.layout is torch.strided else x * 2)
    log = []
    for x in (
        torch.ones(0, 3, requires_grad=True),
        torch.ones((), requires_grad=True),
        torch.ones(3, device="meta"),
        torch.ones(3, dtype=torch.float16, requires_grad=True),
        torch.ones(3, dtype=torch.bool),
        torch.ones(3, 1, requires_grad=True).expand(3, 4),
    ):
        result = attempt(lambda x=x: f(x))
        gradient = grad(result, x) if isinstance(result, torch.Tensor) and result.requires_grad else None
        log.append([result, gradient])
    return log, f(torch.eye(2).to_sparse()).to_dense()


@story(fullgraph=False)
def dual_numbers(compile):
    """Forward-mode derivatives around a compiled function."""
    from torch.autograd import forward_ad

    f = compile(lambda x: x.sin() * 2)
    f(torch.ones(3))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(3), torch.full((3,), 2.0))
        primal, tangent = forward_ad.unpack_dual(f(dual))
    return primal, tangent


@story(fullgraph=False)
def transforms_around(compile):
    f = compile(lambda x: (x.sin() * x).sum())
    x = leaf(3, requires_grad=False)
    func = torch.func
    return func.grad(f)(x), func.vmap(f)(leaf(4, 3, requires_grad=False)), func.jacrev(func.grad(f))(x), f(x)


test_story = story.test()


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_is_kept_of_a_call_that_raised(backend):
    f = kiln.compile(lambda x, index: x.sin()[index] * x.exp()[index], backend=backend)
    index = torch.tensor(1)
    f(leaf(3, 4), index)
    x = leaf(3, 4)
    gone = weakref.ref(x)
    with pytest.raises(IndexError):
        f(x, torch.tensor(5))
    del x
    gc.collect()
    assert gone() is None
    model = nn.Linear(4, 4).double()
    g = kiln.compile(model, backend=backend)
    result = g(leaf(3, 4))
    with pytest.raises(RuntimeError, match="shape"):
        result.backward(torch.ones(2, 2))
    g(leaf(3, 4)).sum().backward()
    assert torch.equal(model.bias.grad, torch.full((4,), 3.0, dtype=torch.float64))
