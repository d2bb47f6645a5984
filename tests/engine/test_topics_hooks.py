"""Topics: hooks of tensors, nodes, accumulation and modules: which are called, with what, and in what order."""

import gc
import unittest
import weakref
from functools import partial

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge, register_multi_grad_hook

from tests.engine.topics import error_of, leaf, topics

topic, test_topic = topics()


# -- tensor hooks -----------------------------------------------------------------------------------------------------


@topic
def hooks_add_up():
    counter = [0]

    def bump(step, gradient):
        counter[0] += step
        return gradient * 2 if step == 2 else None

    x, y = torch.ones(5, 5, requires_grad=True), torch.full((5, 5), 4.0, requires_grad=True)
    z = x**2 + x * 2 + x * y + y
    x.register_hook(partial(bump, 0))
    first = z.register_hook(partial(bump, 1))
    z.backward(torch.ones(5, 5), retain_graph=True)
    counts = [counter[0]]
    second = z.register_hook(partial(bump, 2))
    z.backward(torch.ones(5, 5), retain_graph=True)
    counts.append(counter[0])
    second.remove()
    z.backward(torch.ones(5, 5), retain_graph=True)
    counts.append(counter[0])
    first.remove()
    y.grad.zero_()
    z.register_hook(lambda gradient: gradient * 3)
    z.backward(torch.ones(5, 5))
    return counts, x.grad, y.grad


@topic(breaks="torch.equal")
def hooks_with_assertions():
    case = unittest.TestCase()
    x = leaf(1.0, 2.0)
    seen = []

    def hook(gradient):
        case.assertTrue(torch.equal(gradient, torch.tensor([2.0, 4.0])))
        case.assertIsInstance(gradient, torch.Tensor)
        case.assertIsNone(gradient.grad_fn)
        case.assertIsNotNone(gradient)
        case.assertEqual(gradient.shape, (2,))
        case.assertFalse(gradient.requires_grad)
        case.assertIs(gradient, gradient)
        case.assertIn(2, [2, 3])
        case.assertGreater(2, 1)
        seen.append(gradient)

    x.register_hook(hook)
    (x * x).sum().backward()
    return x.grad, len(seen)


@topic
def torch_test_case_assertions():
    from torch.testing._internal.common_utils import TestCase

    case = TestCase()
    x = leaf(1.0, 2.0)

    def hook(gradient):
        case.assertEqual(gradient, torch.tensor([2.0, 4.0]))
        case.assertTrue(gradient.is_contiguous())

    x.register_hook(hook)
    (x * x).sum().backward()
    return x.grad


@topic
def a_hook_that_asserts_and_fails():
    case = unittest.TestCase()
    x = leaf(1.0)
    x.register_hook(lambda gradient: case.assertEqual(1, 2))
    return error_of((x * 2).backward), x.grad


@topic
def hook_none_returned_and_gradient_none():
    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x + 1, y + 1

        @staticmethod
        def backward(ctx, first, second):
            return first, None

    log = []
    x, y = leaf(1.0), leaf(2.0)
    a, b = Nothing.apply(x, y * 2)
    y.register_hook(lambda gradient: log.append("y"))
    a.register_hook(lambda gradient: log.append(("a", gradient)))
    (a + b).sum().backward()
    return x.grad, y.grad, log


@topic
def hooks_in_place_belong_to_the_version():
    log = []
    x = leaf(1.0, 2.0)
    y = x * 2
    y.register_hook(lambda gradient: log.append(("before", gradient.clone())))
    y.mul_(3)
    y.register_hook(lambda gradient: log.append(("after", gradient.clone())))
    y.sum().backward()
    return x.grad, log


@topic
def hooks_in_place_over_a_view():
    log = []
    x = leaf(1.0, 2.0)
    base = x.clone()
    view = base.narrow(0, 0, 1)
    base.register_hook(lambda gradient: log.append(("base before", gradient.clone())))
    view.register_hook(lambda gradient: log.append(("view before", gradient.clone())))
    view.mul_(2)
    base.register_hook(lambda gradient: log.append(("base after", gradient.clone())))
    view.register_hook(lambda gradient: log.append(("view after", gradient.clone())))
    (base.sum() + view.sum()).backward()
    return x.grad, log


@topic
def hooks_in_place_of_several_outputs():
    class Two(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, first, second):
            return first * 2 + second * 3

    log = []
    x = leaf(1.0, 2.0)
    first, second = Two.apply(x)
    first.register_hook(lambda gradient: log.append(("first", gradient.clone())))
    second.register_hook(lambda gradient: log.append(("second", gradient.clone())))
    first.mul_(4)
    second.mul_(5)
    first.register_hook(lambda gradient: log.append(("first changed", gradient.clone())))
    (first + second).sum().backward()
    return x.grad, log


@topic
def hooks_on_a_leaf_changed_in_place():
    x = torch.ones(2)
    x.requires_grad_()
    log = []
    x.register_hook(lambda gradient: log.append(gradient.clone()))
    y = x * 2
    y += x
    y.sum().backward()
    return x.grad, log


@topic
def hooks_replace_the_gradient_in_order():
    x = leaf(3.0)
    x.register_hook(lambda gradient: gradient + 1)
    x.register_hook(lambda gradient: gradient * 10)
    x.register_hook(lambda gradient: None)
    (x * 1).backward()
    return x.grad


@topic
def a_hook_that_changes_the_gradient_in_place():
    x = leaf(1.0, 2.0)
    y = x * 2
    y.register_hook(lambda gradient: gradient.mul_(5))
    (y * y).sum().backward()
    return x.grad


@topic
def a_hook_that_keeps_the_gradient():
    x, kept = leaf(1.0, 2.0), []
    x.register_hook(kept.append)
    (x * 2).sum().backward()
    return x.grad, kept[0], kept[0] is x.grad, kept[0].data_ptr() == x.grad.data_ptr()


@topic
def a_hook_called_under_autograd_grad():
    log = []
    x = leaf(1.0, 2.0)
    y = x.sin()
    y.retain_grad()
    x.register_hook(lambda gradient: log.append("x"))
    y.register_hook(lambda gradient: log.append("y"))
    x.register_post_accumulate_grad_hook(lambda x: log.append("accumulated"))
    found = torch.autograd.grad(y.sum(), (x, y))
    return found, log, x.grad, y.grad


@topic(breaks="item")
def a_hook_on_a_root():
    log = []
    x = leaf(2.0)
    x.register_hook(lambda gradient: gradient * 2)
    x.backward()
    y = x * 3
    y.register_hook(lambda gradient: log.append(gradient.item()))
    y.backward(torch.tensor([4.0]))
    return x.grad, log


@topic
def hooks_as_methods_and_builtins():
    class Holder:
        def __init__(self):
            self.total = 0

        def hook(self, gradient):
            self.total = self.total + gradient.sum()

    holder, kept = Holder(), []
    x = leaf(1.0, 2.0)
    x.register_hook(holder.hook)
    x.register_hook(kept.append)
    x.register_hook(torch.neg)
    (x * x).sum().backward()
    return x.grad, holder.total, kept


@topic
def removing_twice_and_after():
    x = leaf(1.0)
    handle = x.register_hook(lambda gradient: gradient * 2)
    (x * 1).backward()
    handle.remove()
    handle.remove()
    (x * 1).backward()
    with x.register_hook(lambda gradient: gradient * 5):
        (x * 1).backward()
    (x * 1).backward()
    return x.grad


@topic
def hook_closures_do_not_leak():
    class Thing:
        pass

    def run():
        thing = Thing()
        x = leaf(1.0)
        y = x * 2
        y.register_hook(lambda gradient: (thing, gradient)[1])
        y.backward()
        return weakref.ref(thing)

    alive = run()
    gc.collect(1)
    return alive() is None


@topic
def a_hook_cycle_is_collected():
    class Thing:
        pass

    def run():
        thing = Thing()
        x = leaf(1.0)
        y = x * 2
        y.thing = thing
        y.register_hook(lambda gradient: (y, gradient)[1])
        y.backward()
        return weakref.ref(thing)

    alive = run()
    gc.collect(1)
    return alive() is None


# -- node hooks -------------------------------------------------------------------------------------------------------


@topic
def node_pre_hooks():
    log = []
    x = leaf(1.0, 2.0)
    y = x * 2
    y.grad_fn.register_prehook(lambda gradients: (gradients[0] * 3,))
    y.grad_fn.register_prehook(lambda gradients: log.append(gradients[0].clone()))
    y.grad_fn.register_prehook(lambda gradients: (gradients[0] + 1,))
    y.sum().backward()
    return x.grad, log


@topic
def node_pre_hooks_of_several_outputs():
    log = []
    x = torch.arange(6.0, requires_grad=True)
    parts = (x * 2).split(2)
    node = parts[0].grad_fn

    def pre(gradients):
        log.append([None if gradient is None else gradient.clone() for gradient in gradients])
        return tuple(None if gradient is None else gradient * 2 for gradient in gradients)

    node.register_prehook(pre)
    (parts[0] * parts[2]).sum().backward()
    return x.grad, log


@topic
def node_pre_hooks_removed():
    log = []
    x = leaf(1.0, 2.0)
    y = x * 2
    first = y.grad_fn.register_prehook(lambda gradients: log.append("first"))
    second = y.grad_fn.register_prehook(lambda gradients: log.append("second"))
    y.sum().backward(retain_graph=True)
    first.remove()
    y.sum().backward(retain_graph=True)
    second.remove()
    y.sum().backward()
    return x.grad, log


@topic
def node_pre_hooks_that_remove_themselves():
    log = []
    x = leaf(1.0, 2.0)
    y = x * 2

    def pre(gradients):
        handle.remove()
        log.append("pre")
        return (gradients[0] * 2,)

    handle = y.grad_fn.register_prehook(pre)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    return x.grad, log


@topic
def node_post_hooks():
    log = []
    x = leaf(1.0, 2.0)
    y = x.exp()
    y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] + outputs[0],))
    y.grad_fn.register_hook(lambda inputs, outputs: log.append((inputs[0].clone(), outputs[0].clone())))
    y.sum().backward()
    return x.grad, log


@topic
def node_post_hooks_see_none():
    log = []
    x = leaf(1.0, 2.0)
    y = x * torch.ones(2)
    y.grad_fn.register_hook(lambda inputs, outputs: log.append([gradient is None for gradient in inputs]))
    y.sum().backward()
    return x.grad, log


@topic
def node_hooks_on_accumulation():
    log = []
    x = leaf(1.0, 2.0)
    node = x.expand_as(x).grad_fn.next_functions[0][0]
    node.register_hook(lambda inputs, outputs: log.append(("post", len(inputs), x.grad is not None)))
    node.register_prehook(lambda gradients: log.append(("pre", gradients[0].clone(), x.grad is not None)))
    (x * 2).sum().backward()
    return x.grad, log, type(node).__name__


@topic
def accumulation_hooks_see_tensor_hooks():
    log = []
    x = leaf(1.0, 2.0)
    x.register_hook(lambda gradient: gradient * 2)
    node = get_gradient_edge(x).node
    node.register_hook(lambda inputs, outputs: log.append(torch.allclose(x.grad, outputs[0])))
    node.register_prehook(lambda gradients: (gradients[0] * 10,))
    (x * 1).sum().backward()
    return x.grad, log


@topic(breaks="a retained gradient is set after the graph")
def order_of_pre_hooks():
    log = []
    x = leaf(1.0, 2.0)
    y = x * 2
    y.grad_fn.register_prehook(lambda gradients: log.append("node"))
    y.register_hook(lambda gradient: log.append("tensor"))
    y.retain_grad()
    y.grad_fn.register_prehook(lambda gradients: log.append(("retained", y.grad is not None)))
    y.register_hook(lambda gradient: log.append(("retained before", y.grad is not None)))
    y.sum().backward()
    return x.grad, y.grad, log


@topic
def tensor_hooks_run_before_node_hooks_whenever_registered():
    log = []
    x = leaf(1.0, 2.0)
    y = x.clone()
    node = y.grad_fn
    node.register_prehook(lambda gradients: log.append("pre 1"))
    y.register_hook(lambda gradient: log.append("hook 1"))
    node.register_hook(lambda inputs, outputs: log.append("post 1"))
    node.register_prehook(lambda gradients: log.append("pre 2"))
    y.register_hook(lambda gradient: log.append("hook 2"))
    y.sum().backward()
    return log


@topic
def captured_inputs_see_tensor_hooks_only():
    log = []
    x = leaf(1.0, 2.0)
    y = x * 2
    y.register_hook(lambda gradient: gradient * 7)
    y.grad_fn.register_prehook(lambda gradients: log.append("node pre-hook"))
    found = torch.autograd.grad(y.sum(), y)
    return found, log


@topic
def hooks_when_only_captured_inside():
    log = []
    x = leaf(1.0, 2.0)
    y = x * 2
    z = y.sin()
    y.grad_fn.register_prehook(lambda gradients: log.append("pre"))
    y.register_hook(lambda gradient: gradient * 2)
    y.retain_grad()
    (z.sum() + x.sum()).backward(inputs=[y, x])
    return y.grad, x.grad, log


# -- post-accumulate hooks --------------------------------------------------------------------------------------------


@topic
def post_accumulate_order():
    log = []
    x = leaf(1.0, 2.0)

    def double(x):
        x.grad.mul_(2)

    x.register_post_accumulate_grad_hook(lambda x: log.append(("one", x.grad.clone())))
    x.register_post_accumulate_grad_hook(double)
    x.register_post_accumulate_grad_hook(lambda x: log.append(("three", x.grad.clone())))
    (x * 3).sum().backward()
    return x.grad, log


@topic
def post_accumulate_removed():
    log = []
    x = leaf(1.0, 2.0)
    first = x.register_post_accumulate_grad_hook(lambda x: log.append("first"))
    x.register_post_accumulate_grad_hook(lambda x: log.append("second"))
    (x * 3).sum().backward()
    first.remove()
    (x * 3).sum().backward()
    return x.grad, log


@topic
def post_accumulate_that_returns():
    x = leaf(1.0, 2.0)
    x.register_post_accumulate_grad_hook(lambda x: x.grad)
    return error_of((x * 3).sum().backward), x.grad


@topic
def post_accumulate_on_no_leaf():
    x = leaf(1.0, 2.0)
    y = x * 2
    return error_of(y.register_post_accumulate_grad_hook, print)


@topic(breaks="item in Adam")
def post_accumulate_steps_an_optimizer():
    parameters = [leaf(1.0, 2.0), leaf(3.0)]
    optimizers = {p: torch.optim.Adam([p], lr=0.1) for p in parameters}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(2):
        (parameters[0].sum() * parameters[1]).sum().backward()
    return parameters, [p.grad for p in parameters]


@topic
def post_accumulate_ordering_with_all():
    log = []
    x = leaf(2.0)
    node = get_gradient_edge(x).node
    node.register_hook(lambda inputs, outputs: log.append("post"))
    x.register_post_accumulate_grad_hook(lambda x: log.append("accumulated"))
    node.register_prehook(lambda gradients: log.append("pre"))
    x.register_hook(lambda gradient: log.append("tensor"))
    x.clone().backward()
    x.sin().backward()
    return log, x.grad


# -- multi-grad hooks -------------------------------------------------------------------------------------------------


def _four():
    return [torch.rand(2, 3, requires_grad=True) for _ in range(4)]


@topic
def multi_grad_all():
    t1, t2, t3, t4 = _four()
    count, kept = [0], []

    def hook(gradients):
        count[0] += 1
        kept.append(tuple(gradients))

    def total():
        return (t1 * t2).sin().sum() + (t3 * t4).cos().sum()

    def used(*tensors):
        return sum(tensor.sum() for tensor in tensors)

    handle = register_multi_grad_hook((t1, t2, t3, t4), hook)
    total().backward()
    used(t2, t3).backward()
    used(t1, t4).backward(inputs=[t1])
    counts = [count[0]]
    handle.remove()
    total().backward()
    counts.append(count[0])
    return counts, kept, [t.grad for t in (t1, t2, t3, t4)]


@topic
def multi_grad_any():
    t1, t2, t3, t4 = _four()
    kept = []
    register_multi_grad_hook((t1, t2, t3), kept.append, mode="any")
    (t1 * t2).sum().backward()
    (t3 * t4).sum().backward()
    (t4 * t4).sum().backward()
    return kept


@topic
def multi_grad_on_intermediates():
    x, log = leaf(1.0, 2.0), []
    first, second = x.sin(), x.cos()
    register_multi_grad_hook((first, second, x), lambda grads: log.append([g.clone() for g in grads if g is not None]))
    (first * second).sum().backward(retain_graph=True)
    first.sum().backward()
    return x.grad, log


@topic
def multi_grad_twice_and_with_other_hooks():
    t1, t2, _, _ = _four()
    log = []
    t1.register_hook(lambda gradient: gradient * 2)
    register_multi_grad_hook((t1, t2), lambda grads: log.append(("one", grads[0].clone())))
    t1.register_hook(lambda gradient: gradient * 3)
    register_multi_grad_hook((t2, t1), lambda grads: log.append(("two", grads[1].clone())))
    for _ in range(2):
        (t1 * t2).sum().backward()
    return log, t1.grad


@topic
def multi_grad_that_raises():
    t1, t2, _, _ = _four()
    register_multi_grad_hook((t1, t2), lambda grads: 1 / 0)
    return error_of((t1 * t2).sum().backward), error_of((t1 * 2).sum().backward), t1.grad, t2.grad


# -- module hooks -----------------------------------------------------------------------------------------------------


@topic
def module_backward_hooks():
    log = []
    model = nn.Sequential(nn.Linear(2, 2), nn.Sigmoid())
    model[1].register_full_backward_hook(lambda m, inputs, outputs: log.append(("full", inputs[0].clone())))
    model[1].register_full_backward_pre_hook(lambda m, outputs: log.append(("pre", outputs[0].clone())))
    model[0].register_full_backward_hook(lambda m, inputs, outputs: log.append(("none", inputs[0] is None)))
    model(torch.ones(1, 2)).sum().backward()
    return [p.grad for p in model.parameters()], log


@topic
def module_backward_hooks_that_modify():
    model = nn.Linear(2, 2)
    model.register_full_backward_pre_hook(lambda m, outputs: (outputs[0] * 2,))
    model.register_full_backward_hook(lambda m, inputs, outputs: (inputs[0] + outputs[0],))
    x = leaf(1.0, 2.0)
    model(x).sum().backward()
    return x.grad, [p.grad for p in model.parameters()]


@topic
def module_backward_hook_with_double_backward():
    log = []
    model = nn.Linear(2, 2)
    model.register_full_backward_hook(lambda m, inputs, outputs: log.append(len(inputs)))
    x = leaf(1.0, 2.0)
    (first,) = torch.autograd.grad(model(x).pow(2).sum(), x, create_graph=True)
    first.sum().backward()
    return first, x.grad, log


@topic
def module_hooks_of_several_inputs():
    class Two(nn.Module):
        def forward(self, x, y, flag=True):
            return x * y, x + y

    log = []
    model = Two()
    model.register_full_backward_hook(
        lambda m, inputs, outputs: log.append(([g is None for g in inputs], [g is None for g in outputs]))
    )
    x, y = leaf(1.0), torch.tensor([2.0])
    product, total = model(x, y)
    product.sum().backward()
    return x.grad, log


@topic
def module_hook_that_returns_the_wrong_number():
    model = nn.Linear(2, 2)
    model.register_full_backward_hook(lambda m, inputs, outputs: (inputs[0], inputs[0]))
    return error_of(lambda: model(leaf(1.0, 2.0)).sum().backward())


@topic
def global_module_hooks():
    log = []
    handle = nn.modules.module.register_module_full_backward_hook(
        lambda m, inputs, outputs: log.append(type(m).__name__)
    )
    try:
        model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        model(leaf(1.0, 2.0)).sum().backward()
    finally:
        handle.remove()
    return log, [p.grad for p in model.parameters()]
