"""Topics: what nodes, hooks and backwards find out about tensors and the pass that they run in."""

import torch
from torch.autograd import Function
from torch.autograd.graph import saved_tensors_hooks

import kiln
from tests.engine.topics import error_of, leaf, topics

topic, test_topic = topics()


@topic
def parts_of_a_gradient_by_number():
    class Parts(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            result = gradient * gradient[0] + gradient[-1]
            result[1] = result[0] * 2
            return result

    x = leaf(1.0, 2.0, 3.0)
    (Parts.apply(x) * leaf(2.0, 3.0, 4.0)).sum().backward()
    return x.grad


@topic
def rows_of_a_gradient_by_number():
    x = torch.arange(6.0).view(2, 3).requires_grad_()
    y = x * 2
    y.register_hook(lambda gradient: gradient + gradient[1] + gradient[0][2])
    (y * y).sum().backward()
    return x.grad


@topic
def number_of_a_saved_tensor_among_results():
    log = []

    class Saving(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            log.append(x.output_nr)
            return gradient * x.output_nr

    x = torch.arange(6.0).requires_grad_()
    first, second, third = (x * 1).split(2)
    (Saving.apply(third).sum() + Saving.apply(second).sum() + first.sum()).backward()
    return x.grad, log


@topic
def saved_input_detached_in_place():
    a = leaf(1.0).clone()
    b = a.sin()
    a.detach_()
    return error_of(b.backward)


@topic
def saved_output_detached_in_place():
    x = leaf(1.0)
    a = x.exp()
    b = a * 1
    a.detach_()
    b.backward()
    return x.grad


@topic
def unpacking_registers_a_hook_on_the_node_that_runs():
    seen = []

    def halve(grad_inputs, grad_outputs):
        seen.append([gradient is None for gradient in grad_outputs])
        return tuple(None if gradient is None else gradient / 2 for gradient in grad_inputs)

    def unpack(tensor):
        torch._C._current_autograd_node().register_hook(halve)
        return tensor

    x = leaf(1.0, 2.0, 4.0)
    with saved_tensors_hooks(lambda tensor: tensor, unpack):
        loss = (x * x).sum()
    loss.backward()
    return x.grad, seen


def keeps_graph():
    return torch._C._autograd._get_current_graph_task_keep_graph()


def asking(question):
    log = []

    class Asking(Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            log.append(question())
            return gradient

    x = leaf(1.0, 2.0)
    y = Asking.apply(x).sum()
    y.backward(retain_graph=True)
    y.backward()
    return x.grad, log


@topic
def backward_asks_whether_the_graph_is_kept():
    log = []

    class Asking(Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            log.append(torch._C._autograd._get_current_graph_task_keep_graph())
            return gradient

    x = leaf(1.0, 2.0)
    y = Asking.apply(x).sum()
    y.backward(retain_graph=True)
    y.backward()
    return x.grad, log


@topic
def backward_has_it_asked_whether_the_graph_is_kept():
    return asking(keeps_graph)


@topic
def compiled_function_with_packed_tensors_twice():
    x = leaf(1.0, 2.0)
    compiled = kiln.compile(lambda x: x.sin() * x, backend="aot_eager")
    with saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor.clone()):
        loss = compiled(x).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    return x.grad, error_of(loss.backward)
