"""Programs that differentiate and train, for the table of imperative autograd behaviours (`imperative.py`).

Each takes `compile`, makes everything it needs, and returns all that a user could see. The docstring is its title.
"""

import threading

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function, Variable, grad
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from tests.engine.imperative_hooks import _grads, _inputs, _net

# -- checkpoints and anomaly mode -------------------------------------------------------------------------------------


def _checkpointed(compile, **how):
    model, ran = _net(4, 4, 2), []

    def first(x):
        ran.append("first")
        return model[1](model[0](x))

    f = compile(lambda x: model[2](checkpoint(first, x, **how)).sum())
    x = _inputs()
    f(x).backward()
    return x.grad, _grads(model), ran


def checkpoint_without_reentry(compile):
    """checkpointing, not reentrant"""
    return _checkpointed(compile, use_reentrant=False)


def checkpoint_with_reentry(compile):
    """checkpointing, reentrant"""
    return _checkpointed(compile, use_reentrant=True)


def checkpoint_with_dropout(compile):
    """a checkpoint with dropout: the same random numbers when it is run again"""
    f = compile(lambda x: checkpoint(lambda x: F.dropout(x.sin(), 0.5), x, use_reentrant=False).sum())
    x = _inputs()
    f(x).backward()
    return x.grad, torch.rand(1)


def checkpoint_around(compile):
    """a compiled function inside an eager checkpoint"""
    model = _net(4, 4, 2)
    f = compile(model)
    x = _inputs()
    checkpoint(f, x, use_reentrant=False).sum().backward()
    return x.grad, _grads(model)


def selective_checkpoint(compile):
    """selective checkpointing: matrix products are kept, the rest is done again"""

    def policy(context, operator, *args, **kwargs):
        kept = operator in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    model = _net(4, 4, 2)
    x = _inputs()
    contexts = lambda: create_selective_checkpoint_contexts(policy)
    loss = checkpoint(model, x, use_reentrant=False, context_fn=contexts).sum()
    compile(lambda loss: loss.backward())(loss)
    return x.grad, _grads(model)


def anomaly_mode(compile):
    """anomaly mode: NaN in a backward is eager's error"""
    f = compile(lambda x: (x.sqrt() * 0).sum())
    x = torch.zeros(2, requires_grad=True)
    with torch.autograd.detect_anomaly():
        try:
            f(x).backward()
        except RuntimeError as error:
            return "returned nan values in its 0th output" in str(error), x.grad
    return "none raised", x.grad


def anomaly_mode_without_anomaly(compile):
    """anomaly mode with nothing wrong"""
    model = _net(4, 4, 2)
    f = compile(model)
    with torch.autograd.detect_anomaly(check_nan=False):
        f(_inputs()).sum().backward()
    return _grads(model)


# -- higher derivatives and autograd.grad -----------------------------------------------------------------------------


def double_backward(compile):
    """double backward: grad of grad"""
    f = compile(lambda x: (x.sin() * x).sum())
    x = _inputs()
    (first,) = grad(f(x), x, create_graph=True)
    first.pow(2).sum().backward()
    return first, x.grad


def triple_backward(compile):
    """third derivatives"""
    f = compile(lambda x: x.pow(4).sum())
    x = _inputs()
    (first,) = grad(f(x), x, create_graph=True)
    (second,) = grad(first.sum(), x, create_graph=True)
    (third,) = grad(second.sum(), x)
    return first, second, third


def gradient_penalty(compile):
    """a gradient penalty in a training step"""
    model = _net(4, 4, 2)
    f = compile(model)
    x = _inputs()
    score = f(x).sum()
    (slope,) = grad(score, x, create_graph=True)
    (score + (slope.norm(dim=1) - 1).pow(2).mean()).backward()
    return x.grad, _grads(model)


def gradient_penalty_inside(compile):
    """a gradient penalty, all in the compiled function"""
    model = _net(4, 4, 2)

    @compile
    def loss(x):
        score = model(x).sum()
        (slope,) = grad(score, x, create_graph=True)
        return score + (slope.norm(dim=1) - 1).pow(2).mean()

    x = _inputs()
    loss(x).backward()
    return x.grad, _grads(model)


def hessian_vector_product(compile):
    """a Hessian-vector product"""
    f = compile(lambda x: (x.exp() * x.sum()).sum())
    x, vector = _inputs(), torch.ones(3, 4)
    (first,) = grad(f(x), x, create_graph=True)
    return grad(first, x, vector)


def double_backward_with_hooks(compile):
    """double backward through a hook that computes"""
    f = compile(lambda x: (x * x * x).sum())
    x = _inputs()
    x.register_hook(lambda gradient: gradient * x)
    (first,) = grad(f(x), x, create_graph=True)
    first.sum().backward()
    return first, x.grad


def grad_inside(compile):
    """torch.autograd.grad inside the compiled function"""

    @compile
    def f(x):
        y = x.sin().sum()
        (gradient,) = grad(y, x)
        return gradient * 2

    return f(_inputs())


def grad_of_an_intermediate_inside(compile):
    """torch.autograd.grad for an intermediate inside, then used in the loss"""

    @compile
    def f(x):
        y = x.sin()
        (gradient,) = grad(y.exp().sum(), y, retain_graph=True)
        return (gradient.detach() * x).sum()

    x = _inputs()
    f(x).backward()
    return x.grad


def grad_options(compile):
    """allow_unused, materialize_grads and is_grads_batched"""
    f = compile(lambda x, y: x.exp() * 2)
    x, y = _inputs(), _inputs()
    unused = grad(f(x, y).sum(), (x, y), allow_unused=True)
    zeros = grad(f(x, y).sum(), (x, y), materialize_grads=True)
    batched = grad(f(x, y), x, torch.stack([torch.ones(3, 4), torch.eye(3, 4)]), is_grads_batched=True)
    return unused, zeros, batched


def unused_without_allow(compile):
    """an unused input of autograd.grad is eager's error"""
    f = compile(lambda x, y: x.exp().sum())
    x, y = _inputs(), _inputs()
    try:
        grad(f(x, y), (x, y))
    except RuntimeError as error:
        return str(error)
    return "none raised"


# -- backward ---------------------------------------------------------------------------------------------------------


def backward_inside(compile):
    """backward inside the compiled function"""
    model = _net(4, 4, 2)

    @compile
    def f(x):
        loss = model(x).pow(2).sum()
        loss.backward()
        return loss.detach()

    return f(_inputs()), f(_inputs()), _grads(model)


def backward_of_an_argument_inside(compile):
    """backward of a loss made outside, inside the compiled function"""
    x = _inputs()
    loss = (x.sin() * x).sum()

    @compile
    def f(loss):
        loss.backward()
        return x.grad + 1

    return f(loss), x.grad


def backward_with_inputs(compile):
    """backward with inputs="""
    f = compile(lambda x, y: (x * y).sum())
    x, y = _inputs(), _inputs()
    f(x, y).backward(inputs=[x])
    return x.grad, y.grad


def retain_graph_twice(compile):
    """backward twice with retain_graph, then once more: eager's error"""
    f = compile(lambda x: (x * x).exp().sum())
    x = _inputs()
    loss = f(x)
    loss.backward(retain_graph=True)
    loss.backward()
    try:
        loss.backward()
    except RuntimeError as error:
        return x.grad, str(error)[:60]
    return x.grad, "none raised"


def gradient_accumulation(compile):
    """gradient accumulation: .grad stays the same object"""
    model = _net(4, 2)
    f = compile(model)
    f(_inputs()).sum().backward()
    first = [p.grad for p in model.parameters()]
    f(_inputs() * 2).sum().backward()
    same = [a is p.grad for a, p in zip(first, model.parameters(), strict=True)]
    return _grads(model), same


def zero_grad_both_ways(compile):
    """zero_grad with set_to_none and without"""
    model = _net(4, 2)
    f = compile(model)
    kept = []
    for set_to_none in (True, False, True):
        f(_inputs()).sum().backward()
        kept.append([p.grad.clone() for p in model.parameters()])
        model.zero_grad(set_to_none=set_to_none)
        kept.append([p.grad if p.grad is None else p.grad.clone() for p in model.parameters()])
    return kept


def detached_part(compile):
    """a gradient stopped by detach, and another by no_grad"""

    @compile
    def f(x):
        stopped = x.sin().detach()
        with torch.no_grad():
            scale = x.abs().sum()
        return (x * stopped * scale).sum()

    x = _inputs()
    f(x).backward()
    return x.grad


def unused_parameters(compile):
    """parameters that the loss does not depend on"""
    model = _net(4, 4, 2)
    model.unused = nn.Linear(2, 2)
    f = compile(lambda x: model[1](model[0](x)).sum())
    f(_inputs()).backward()
    return _grads(model)


def shared_weights(compile):
    """shared weights"""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(5, 3)
            self.out = nn.Linear(3, 5, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, tokens):
            return self.out(self.embed(tokens).tanh())

    model = Tied()
    f = compile(model)
    f(torch.tensor([0, 2, 2])).logsumexp(1).sum().backward()
    return model.embed.weight.grad, model.embed.weight.grad is model.out.weight.grad


def in_place_and_views(compile):
    """in-place operations on views of intermediates"""

    @compile
    def f(x):
        y = x * 2
        y[0].mul_(3)
        y.t()[1].add_(y.t()[0])
        return y.sin().sum()

    x = _inputs()
    f(x).backward()
    return x.grad


def in_place_saved_changed(compile):
    """a saved tensor changed in place before backward: eager's error"""
    f = compile(lambda x: x * 1)
    x = _inputs()
    y = f(x)
    loss = y.exp().sum() + y.pow(2).sum()
    y.add_(1)
    try:
        loss.backward()
    except RuntimeError as error:
        return str(error)[:70], x.grad
    return "none raised", x.grad


def complex_numbers(compile):
    """complex parameters"""
    z = torch.tensor([1 + 2j, 3 - 1j], requires_grad=True)
    f = compile(lambda z: (z * z.conj()).real.sum() + torch.view_as_real(z * 1j).pow(2).sum())
    f(z).backward()
    return z.grad


def sparse_embedding(compile):
    """an embedding with sparse gradients, accumulated"""
    embed = nn.Embedding(6, 3, sparse=True)
    f = compile(lambda tokens: embed(tokens).pow(2).sum())
    f(torch.tensor([1, 4, 1])).backward()
    f(torch.tensor([0, 4])).backward()
    return embed.weight.grad.coalesce()


# -- training ---------------------------------------------------------------------------------------------------------


def _train(compile, make_optimizer, steps=3):
    model = _net(4, 4, 2)
    optimizer = make_optimizer(model.parameters())

    @compile
    def step(x, target):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses = [step(_inputs(requires_grad=False), torch.ones(3, 2)) for _ in range(steps)]
    return losses, list(model.parameters())


def train_sgd(compile):
    """a whole training step in one compiled function: SGD"""
    return _train(compile, lambda parameters: torch.optim.SGD(parameters, lr=0.1))


def train_momentum(compile):
    """a whole training step in one compiled function: SGD with momentum"""
    return _train(compile, lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True))


def train_adam(compile):
    """a whole training step in one compiled function: Adam"""
    return _train(compile, lambda parameters: torch.optim.Adam(parameters, lr=0.01))


def train_adamw(compile):
    """a whole training step in one compiled function: AdamW"""
    return _train(compile, lambda parameters: torch.optim.AdamW(parameters, lr=0.01))


def train_outside(compile):
    """a compiled model, eager backward and optimizer"""
    model = _net(4, 4, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    f = compile(model)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.mse_loss(f(_inputs()), torch.ones(3, 2))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, list(model.parameters())


def clip_and_step(compile):
    """clip_grad_norm_ between backward and step, in one compiled function"""
    model = _net(4, 4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    @compile
    def step(x):
        optimizer.zero_grad(set_to_none=False)
        model(x).pow(2).sum().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return norm

    return [step(_inputs(requires_grad=False)) for _ in range(2)], list(model.parameters())


def scaled_loss(compile):
    """loss scaling: gradients scaled, unscaled in place, stepped unless infinite"""
    model = _net(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    f = compile(model)
    scale, skipped = 2.0**10, 0
    for factor in (1.0, float("inf"), 2.0):
        optimizer.zero_grad()
        (f(_inputs()).sum() * factor * scale).backward()
        if all(parameter.grad.isfinite().all() for parameter in model.parameters()):
            for parameter in model.parameters():
                parameter.grad.div_(scale)
            optimizer.step()
        else:
            scale, skipped = scale / 2, skipped + 1
    return list(model.parameters()), scale, skipped


def autocast(compile):
    """autocast to bfloat16 around forward"""
    model = _net(4, 4, 2)
    f = compile(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = f(_inputs()).float().sum()
    loss.backward()
    return _grads(model)


# -- custom functions, callbacks, threads -----------------------------------------------------------------------------


class _Clamped(Function):
    @staticmethod
    def forward(ctx, x, low, high):
        ctx.save_for_backward(x)
        ctx.limits = {"low": low, "high": high}
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        inside = (x >= ctx.limits["low"]) & (x <= ctx.limits["high"])
        return gradient * inside, None, None


class _TwoResults(Function):
    @staticmethod
    def forward(x, y):
        return x * y, x + y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, product, total):
        x, y = ctx.saved_tensors
        first = None if product is None else product * y
        second = None if product is None else product * x
        if total is not None:
            first = total if first is None else first + total
            second = total if second is None else second + total
        return first, second


class _Logged(Function):
    log: list = []

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        _Logged.log.append(float(gradient.sum()))
        return gradient * 2


def custom_function(compile):
    """an autograd.Function with saved tensors, attributes and numbers"""
    f = compile(lambda x: _Clamped.apply(x * 2, -0.5, 0.5).sum())
    x = _inputs()
    f(x).backward()
    return x.grad


def custom_function_of_two_results(compile):
    """an autograd.Function of two results, one of them unused"""
    f = compile(lambda x, y: _TwoResults.apply(x, y))
    x, y = _inputs(), _inputs()
    product, total = f(x, y)
    product.sum().backward(retain_graph=True)
    (product * total).sum().backward()
    return x.grad, y.grad


def custom_function_with_side_effects(compile):
    """an autograd.Function whose backward writes a log"""
    _Logged.log.clear()
    f = compile(lambda x: _Logged.apply(x.sin()).sum())
    x = _inputs()
    for _ in range(2):
        f(x).backward()
    return x.grad, list(_Logged.log)


def queued_callback(compile):
    """queue_callback from a hook: runs when the backward is done"""
    log = []
    x = _inputs()

    def hook(gradient):
        Variable._execution_engine.queue_callback(lambda: log.append(("done", x.grad.sum())))
        log.append("hook")

    y = compile(lambda x: x.sin())(x)
    y.register_hook(hook)
    y.sum().backward()
    return x.grad, log


def backward_in_a_hook(compile):
    """a backward inside a hook"""
    x, other, log = _inputs(), _inputs(), []

    def hook(gradient):
        with torch.enable_grad():
            (other * gradient.detach()).sum().backward()
        log.append(other.grad.sum())

    x.register_hook(hook)
    f = compile(lambda x: x.exp().sum())
    f(x).backward()
    return x.grad, other.grad, log


def backward_in_threads(compile):
    """backwards in several threads into the same parameters"""
    model = _net(4, 2)
    f = compile(model)
    f(_inputs()).sum().backward()
    threads = [threading.Thread(target=lambda: f(_inputs()).sum().backward()) for _ in range(3)]
    for thread in threads:
        thread.start()
        thread.join()
    return _grads(model)


def distributed_data_parallel(compile):
    """DistributedDataParallel (one process): the reducer's C++ hooks, and a communication hook"""
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(_net(4, 4, 2))
        reduced = []

        def halve(state, bucket):
            reduced.append(bucket.is_last())
            future = torch.futures.Future()
            future.set_result(bucket.buffer() / 2)
            return future

        model.register_comm_hook(None, halve)
        f = compile(lambda x: model(x).pow(2).sum())
        for _ in range(2):
            f(_inputs()).backward()
        return _grads(model.module), reduced
    finally:
        distributed.destroy_process_group()


def sizes_that_change(compile):
    """another batch size in each step"""
    model = _net(4, 4, 2)
    f = compile(model)
    for rows in (2, 3, 5, 8):
        f(_inputs(rows)).sum().backward()
    return _grads(model)


def model_freed(compile):
    """the model freed before its backward"""
    model = _net(4, 2)
    f = compile(model)
    x = _inputs()
    loss = f(x).sum()
    del model, f
    loss.backward()
    return x.grad
