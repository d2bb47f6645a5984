"""Programs with hooks of every kind, for the table of imperative autograd behaviours (`imperative.py`).

Each takes `compile`, makes everything it needs, and returns all that a user could see. The docstring is its title.
"""

from functools import partial

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook, saved_tensors_hooks


def _net(*sizes, activation=nn.Tanh):
    torch.manual_seed(1)
    layers = []
    for before, after in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


def _inputs(rows=3, columns=4, requires_grad=True):
    return torch.linspace(-1, 1, rows * columns).reshape(rows, columns).requires_grad_(requires_grad)


def _grads(module):
    return {name: parameter.grad for name, parameter in module.named_parameters()}


# -- retain_grad ------------------------------------------------------------------------------------------------------


def retain_grad_on_an_intermediate(compile):
    """retain_grad on an intermediate"""

    @compile
    def f(x):
        y = x.sin()
        y.retain_grad()
        return y, (y * y).sum()

    x = _inputs()
    y, loss = f(x)
    loss.backward()
    return x, y.grad, y.retains_grad


def retain_grad_outside(compile):
    """retain_grad on a result, called after the compiled function"""
    f = compile(lambda x: (x * 2).cos())
    x = _inputs()
    y = f(x)
    y.retain_grad()
    y.sum().backward()
    return x.grad, y.grad


def retain_grad_in_place(compile):
    """retain_grad, then an in-place operation"""

    @compile
    def f(x):
        y = x * 2
        y.retain_grad()
        y.mul_(3)
        return y, (y * x).sum()

    x = _inputs()
    y, loss = f(x)
    loss.backward()
    return x.grad, y.grad


def retain_grad_over_a_view(compile):
    """retain_grad on a base whose view is changed in place"""

    @compile
    def f(x):
        base = x.clone()
        view = base[0]
        base.retain_grad()
        view.mul_(2)
        view.retain_grad()
        return base, view, (base * x).sum() + view.sum()

    x = _inputs()
    base, view, loss = f(x)
    loss.backward()
    return x.grad, base.grad, view.grad


def retain_grad_of_several(compile):
    """retain_grad on several tensors, with hooks that change the gradient"""

    @compile
    def f(x):
        first, second = x.sin(), x.cos()
        for item in (first, second):
            item.retain_grad()
            item.retain_grad()
            item.register_hook(lambda gradient: gradient * 10)
        return first, second, (first * second).sum()

    x = _inputs()
    first, second, loss = f(x)
    loss.backward(retain_graph=True)
    kept = first.grad
    loss.backward()
    return x.grad, first.grad, second.grad, kept is first.grad


# -- tensor hooks -----------------------------------------------------------------------------------------------------


def hook_with_side_effects(compile):
    """a tensor hook that appends to a list"""
    log = []

    @compile
    def f(x):
        y = x.sin()
        y.register_hook(lambda gradient: log.append(gradient.sum()))
        return y.pow(2).sum()

    x = _inputs()
    for _ in range(2):
        f(x).backward()
    return x.grad, log


def stateful_hook(compile):
    """a stateful hook: an object that counts, and scales by the count"""

    class Counting:
        def __init__(self):
            self.calls = 0

        def __call__(self, gradient):
            self.calls += 1
            return gradient * self.calls

    hook = Counting()
    model = _net(4, 3)
    model[0].weight.register_hook(hook)
    f = compile(model)
    kept = []
    for _ in range(3):
        model.zero_grad()
        f(_inputs()).sum().backward()
        kept.append(model[0].weight.grad.clone())
    return kept, hook.calls


def hook_with_a_nonlocal(compile):
    """a hook that writes an outer variable and reads it back"""

    def run():
        scale = 1.0
        x = _inputs()

        def hook(gradient):
            nonlocal scale
            scale *= 2
            return gradient * scale

        x.register_hook(hook)
        f = compile(lambda x: (x * x).sum())
        for _ in range(3):
            f(x).backward()
        return x.grad, scale

    return run()


def hooks_between_calls(compile):
    """hooks added and removed between calls"""
    log = []
    model = _net(4, 4, 2)
    f = compile(model)

    def step(label):
        model.zero_grad()
        f(_inputs()).sum().backward()
        log.append((label, [p.grad.clone() for p in model.parameters()]))

    step("none")
    first = model[0].weight.register_hook(lambda gradient: gradient * 2)
    step("one")
    second = model[0].weight.register_hook(lambda gradient: gradient + 1)
    step("two")
    first.remove()
    step("second")
    second.remove()
    step("none again")
    return log


def hook_replaced(compile):
    """the hook function replaced between calls, one partial after the other"""

    def scaled(factor, gradient):
        return gradient * factor

    x = _inputs()
    f = compile(lambda x: x.exp().sum())
    kept = []
    for factor in (2.0, 3.0, 2.0, 5):
        handle = x.register_hook(partial(scaled, factor))
        f(x).backward()
        kept.append(x.grad.clone())
        x.grad = None
        handle.remove()
    return kept


def late_hook(compile):
    """a hook put on a result after the forward, with another between two backwards"""
    log = []
    f = compile(lambda x: (x.sin(), x.cos()))
    x = _inputs()
    first, second = f(x)
    loss = (first * second).sum()
    first.register_hook(lambda gradient: log.append("first"))
    loss.backward(retain_graph=True)
    second.register_hook(lambda gradient: log.append("second"))
    second.register_hook(lambda gradient: gradient * 2)
    loss.backward()
    return x.grad, log


def hook_removed_inside(compile):
    """a hook that removes itself"""
    x, log = _inputs(), []

    def once(gradient):
        log.append("once")
        handle.remove()
        return gradient * 2

    handle = x.register_hook(once)
    f = compile(lambda x: (x * 3).sum())
    f(x).backward()
    first = x.grad.clone()
    f(x).backward()
    return first, x.grad, log


def hooks_in_order(compile):
    """hooks of all kinds on one leaf: their order"""
    log = []
    x = _inputs()
    x.register_post_accumulate_grad_hook(lambda x: log.append(("accumulated", x.grad.sum())))
    x.register_hook(lambda gradient: log.append(("gradient", gradient.sum())))
    node = torch.autograd.graph.get_gradient_edge(x).node
    node.register_prehook(lambda gradients: log.append("before"))
    node.register_hook(lambda inputs, outputs: log.append(("after", x.grad is not None)))
    f = compile(lambda x: (x * x).sum())
    f(x).backward()
    return x.grad, log


# -- node hooks -------------------------------------------------------------------------------------------------------


def node_hooks_outside(compile):
    """node pre-hooks and post-hooks on a result's grad_fn"""
    log = []
    f = compile(lambda x: x.exp() * 2)
    x = _inputs()
    y = f(x)
    y.grad_fn.register_prehook(lambda gradients: (gradients[0] * 2,))
    y.grad_fn.register_hook(lambda inputs, outputs: log.append(outputs[0].sum()))
    y.sum().backward()
    return x.grad, log


def node_hooks_inside(compile):
    """node pre-hooks and post-hooks put on inside the compiled function"""
    log = []

    @compile
    def f(x):
        y = x.exp()
        y.grad_fn.register_prehook(lambda gradients: (gradients[0] + 1,))
        y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] * outputs[0],))
        return (y * x).sum()

    x = _inputs()
    f(x).backward()
    return x.grad, log


# -- module hooks -----------------------------------------------------------------------------------------------------


def module_hook_that_modifies(compile):
    """a full backward hook of a module that changes the gradient"""
    model = _net(4, 4, 2)
    model[2].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 3,))
    f = compile(model)
    x = _inputs()
    f(x).sum().backward()
    return x.grad, _grads(model)


def module_pre_hook_that_modifies(compile):
    """a full backward pre-hook of a module that changes the gradient"""
    model = _net(4, 4, 2)
    model[1].register_full_backward_pre_hook(lambda module, outputs: (outputs[0] + 1,))
    f = compile(model)
    x = _inputs()
    f(x).sum().backward()
    return x.grad, _grads(model)


def module_hooks_with_side_effects(compile):
    """module backward hooks and pre-hooks that log, on each layer"""
    log = []
    model = _net(4, 4, 2)
    for index, layer in enumerate(model):
        layer.register_full_backward_pre_hook(lambda m, outputs, index=index: log.append((index, "pre")))
        layer.register_full_backward_hook(lambda m, inputs, outputs, index=index: log.append((index, len(inputs))))
    f = compile(model)
    f(_inputs()).sum().backward()
    f(_inputs(requires_grad=False)).sum().backward()
    return _grads(model), log


def module_hooks_added_later(compile):
    """a module backward hook added after the first compiled call, then removed"""
    model = _net(4, 2)
    f = compile(model)
    kept = []
    handle = None
    for _ in range(3):
        x = _inputs()
        f(x).sum().backward()
        kept.append(x.grad)
        if handle is None:
            handle = model[0].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * -1,))
        else:
            handle.remove()
    return kept


# -- multi-grad hooks -------------------------------------------------------------------------------------------------


def multi_grad_hook_on_leaves(compile):
    """a multi-grad hook (all) on parameters"""
    log = []
    model = _net(4, 4, 2)
    register_multi_grad_hook(list(model.parameters()), lambda grads: log.append([g is not None for g in grads]))
    f = compile(model)
    f(_inputs()).sum().backward()
    f(_inputs())[:, 0].sum().backward()
    return _grads(model), log


def multi_grad_hook_on_results(compile):
    """multi-grad hooks (all and any) on results, one of them unused"""
    log = []
    f = compile(lambda x: (x.sin(), x.cos(), x.tan()))
    x = _inputs()
    first, second, third = f(x)
    register_multi_grad_hook((first, second, third), lambda grads: log.append([g is None for g in grads]))
    register_multi_grad_hook((first, second), lambda gradient: log.append(gradient.sum()), mode="any")
    (first * second).sum().backward()
    return x.grad, log


def multi_grad_hook_inside(compile):
    """a multi-grad hook registered inside the compiled function"""
    log = []

    @compile
    def f(x):
        first, second = x.sin(), x.cos()
        register_multi_grad_hook((first, second), lambda grads: log.append(len(grads)))
        return (first * second).sum()

    x = _inputs()
    f(x).backward()
    return x.grad, log


# -- saved-tensor hooks -----------------------------------------------------------------------------------------------


def saved_tensor_hooks_around(compile):
    """saved-tensor hooks around the call: values packed and unpacked"""
    f = compile(lambda x: (x.sin() * x.exp()).sum())
    x = _inputs()
    with saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2):
        loss = f(x)
    loss.backward()
    return x.grad


def saved_tensor_hook_counts(compile):
    """how often saved-tensor hooks pack and unpack, with an eager forward"""
    counts = {"packed": 0, "unpacked": 0}

    def pack(tensor):
        counts["packed"] += 1
        return tensor.clone()

    def unpack(tensor):
        counts["unpacked"] += 1
        return tensor

    x = _inputs()
    with saved_tensors_hooks(pack, unpack):
        loss = (x.sin() * x.exp()).sum()
    compile(lambda loss: loss.backward(retain_graph=True))(loss)
    loss.backward()
    return x.grad, counts


def save_on_cpu(compile):
    """torch.autograd.graph.save_on_cpu around the forward"""
    model = _net(4, 4, 2)
    f = compile(model)
    with torch.autograd.graph.save_on_cpu():
        loss = f(_inputs()).sum()
    loss.backward()
    return _grads(model)


# -- post-accumulate hooks --------------------------------------------------------------------------------------------


def post_accumulate_step(compile):
    """post-accumulate hooks that step the parameter and free the gradient"""
    model = _net(4, 4, 2)
    log = []

    def step(parameter):
        log.append(parameter.grad.sum())
        with torch.no_grad():
            parameter.add_(parameter.grad, alpha=-0.1)
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    f = compile(model)
    for _ in range(2):
        f(_inputs()).pow(2).sum().backward()
    return list(model.parameters()), log


def post_accumulate_optimizers(compile):
    """one optimizer for each parameter, stepped in its post-accumulate hook"""
    model = _net(4, 4, 2)
    optimizers = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    f = compile(model)
    for _ in range(3):
        f(_inputs()).pow(2).sum().backward()
    return list(model.parameters())


def post_accumulate_inside(compile):
    """backward with post-accumulate hooks inside the compiled function"""
    x, log = _inputs(), []
    x.register_post_accumulate_grad_hook(lambda x: log.append(x.grad.sum()))

    @compile
    def f(x):
        (x * x).sum().backward()
        return x.grad * 2

    return f(x), x.grad, log


def ddp_like_averaging(compile):
    """hooks that divide each gradient by the number of workers, and count when all are ready"""
    model = _net(4, 4, 2)
    ready = []
    for name, parameter in model.named_parameters():
        parameter.register_hook(lambda gradient: gradient / 4)
        parameter.register_post_accumulate_grad_hook(lambda parameter, name=name: ready.append(name))
    f = compile(model)
    for _ in range(2):
        f(_inputs()).sum().backward()
        ready.append("reduced")
    return _grads(model), ready
