"""Topics: backwards inside backwards, and what code can ask about the backward that it runs in."""

import threading

import torch
from torch.autograd import Function, Variable, grad
from torch.autograd.graph import get_gradient_edge
from torch.utils.checkpoint import checkpoint

from tests.engine.topics import error_of, leaf, topics

topic, test_topic = topics()


class Reenter(Function):
    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.y = ctx.x * ctx.x - 2
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            ctx.y.sum().backward()
        return ctx.x.grad * gradient


@topic
def simple():
    x = torch.rand(2, 2, requires_grad=True)
    Reenter.apply(x).sum().backward()
    return x.grad


@topic
def nested_in_itself():
    x = leaf(1.0, 2.0)
    y = Reenter.apply(Reenter.apply(x) * 2)
    y.sum().backward()
    return x.grad


@topic(breaks="a branch on a value")
def deep():
    class Deep(Function):
        @staticmethod
        def forward(ctx, x):
            with torch.enable_grad():
                ctx.x = x.detach().requires_grad_()
                ctx.x = ctx.x - 1
            return ctx.x.detach()

        @staticmethod
        def backward(ctx, gradient):
            if ctx.x < 0:
                return gradient
            with torch.enable_grad():
                Deep.apply(ctx.x).sum().backward()
            return gradient

    x = torch.tensor(40.0, requires_grad=True)
    Deep.apply(x).sum().backward()
    return x.grad


@topic(breaks="a branch on a value")
def priorities():
    log = []

    class Simple(Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, gradient):
            log.append("simple")
            return gradient

    class Down(Function):
        @staticmethod
        def forward(ctx, x):
            with torch.enable_grad():
                ctx.x = x.detach().requires_grad_()
                ctx.x = ctx.x - 1
            return ctx.x.detach()

        @staticmethod
        def backward(ctx, gradient):
            log.append("reentrant")
            if ctx.x < 0:
                return gradient
            with torch.enable_grad():
                Down.apply(ctx.x).sum().backward()
            return gradient

    a = Simple.apply(leaf(2.0)) * 1
    b = Down.apply(leaf(6.0)) * 1
    (a * b).sum().backward()
    return log


@topic
def with_a_hook_on_a_leaf():
    handle, log = None, []
    x = leaf(2.0)

    def hook(gradient):
        handle.remove()
        with torch.enable_grad():
            y = x * x
            x.grad = None
            y.backward()
        log.append(x.grad.clone())

    handle = x.register_hook(hook)
    (x * 3).backward()
    return x.grad, log


@topic
def with_a_hook_on_an_interior_tensor():
    handle, log = None, []
    x = leaf(2.0)
    y = x * 3

    def hook(gradient):
        handle.remove()
        with torch.enable_grad():
            (x * x).backward()
        log.append(x.grad.clone())

    handle = y.register_hook(hook)
    (y * 2).backward()
    return x.grad, log


def _callbacks(depths):
    counter = {"inner": 0, "outer": 0}

    def count(which):
        counter[which] += 1

    class Function1(Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, gradient):
            if 1 in depths:
                Variable._execution_engine.queue_callback(lambda: count("inner"))
            return gradient

    class Function2(Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, gradient):
            if 0 in depths:
                Variable._execution_engine.queue_callback(lambda: count("outer"))
            with torch.enable_grad():
                inner = torch.ones(2).requires_grad_()
                Function1.apply(inner).sum().backward()
                counter["seen inside"] = counter["inner"], counter["outer"]
            return gradient

    x = leaf(1.0, 2.0)
    Function2.apply(x * 1).sum().backward()
    return counter, x.grad


@topic
def callbacks_at_depth_0():
    return _callbacks([0])


@topic
def callbacks_at_depth_1():
    return _callbacks([1])


@topic
def callbacks_at_both_depths():
    return _callbacks([0, 1])


@topic
def errors_of_a_child():
    class Child(Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ValueError("Simulate error")

    class Parent(Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            with torch.enable_grad():
                Child.apply(leaf(1.0)).sum().backward()
            return gradient

    x = leaf(1.0)
    first = error_of(Parent.apply(x).sum().backward)
    (x * 2).backward()
    return first, x.grad


@topic
def grad_mode_restored():
    log = []

    class Modes(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            log.append(torch.is_grad_enabled())
            with torch.enable_grad():
                inner = leaf(1.0)
                with torch.no_grad():
                    (inner * 1).requires_grad
                (inner * 2).backward()
                log.append(torch.is_grad_enabled())
            log.append(torch.is_grad_enabled())
            return gradient

    x = leaf(1.0)
    for mode in (True, False):
        y = Modes.apply(x)
        with torch.set_grad_enabled(mode):
            y.backward()
            log.append(torch.is_grad_enabled())
    return log, x.grad


@topic
def grad_inside_a_backward():
    class Inner(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                y = x.detach().requires_grad_()
                (found,) = grad((y**3).sum(), y)
            return gradient * found

    x = leaf(1.0, 2.0)
    Inner.apply(x).sum().backward()
    return x.grad


@topic
def checkpoints_reentrant():
    x = leaf(1.0, 2.0)
    log = []
    y = checkpoint(lambda x: (log.append("run"), x.sin())[1], x, use_reentrant=True)
    z = checkpoint(lambda y: y.exp() * x, y, use_reentrant=True)
    z.sum().backward()
    return x.grad, log


@topic
def checkpoints_not_reentrant():
    x = leaf(1.0, 2.0)
    log = []

    def inner(x):
        log.append("run")
        return x.sin().exp()

    def outer(x):
        return checkpoint(inner, x, use_reentrant=False) * x

    checkpoint(outer, x * 2, use_reentrant=False).sum().backward()
    return x.grad, log


@topic
def backward_inside_a_hook_of_the_same_parameters():
    x = leaf(1.0, 2.0)
    y = x * 2

    def hook(gradient):
        with torch.enable_grad():
            (x.detach() * x).sum().backward()
        return gradient * 2

    y.register_hook(hook)
    (y * y).sum().backward()
    return x.grad


# -- what can be asked ------------------------------------------------------------------------------------------------


@topic
def graph_task_ids():
    ids = [torch._C._current_graph_task_id()]
    x = leaf(1.0)
    y = x * 2
    y.register_hook(lambda gradient: ids.append(torch._C._current_graph_task_id()))
    x.register_hook(lambda gradient: ids.append(torch._C._current_graph_task_id()))
    for _ in range(2):
        y.backward(retain_graph=True)
        ids.append(torch._C._current_graph_task_id())
    return [value == -1 for value in ids], ids[1] == ids[2], ids[1] == ids[4]


@topic
def execution_order():
    found = []
    x = leaf(1.0)
    y = x.sin()
    z = y.exp() + y
    z.register_hook(lambda gradient: found.extend(torch._C._current_graph_task_execution_order()))
    with torch.autograd.set_multithreading_enabled(False):
        z.backward()
    return [node.name() for node in found], error_of(torch._C._current_graph_task_execution_order)


@topic
def nodes_to_be_executed():
    log = []
    x = leaf(1.0)
    y = x.sin()
    z = y.exp()
    nodes = [z.grad_fn, y.grad_fn, get_gradient_edge(x).node]
    z.register_hook(lambda gradient: log.append([torch._C._will_engine_execute_node(node) for node in nodes]))
    z.backward(retain_graph=True)
    z.backward(inputs=[y], retain_graph=True)
    return log, error_of(grad, z, x), error_of(torch._C._will_engine_execute_node, nodes[0])


@topic
def the_current_node():
    log = [torch._C._current_autograd_node()]
    x = leaf(1.0, 2.0)
    y = x.sin()

    class Names(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            log.append(torch._C._current_autograd_node() is ctx)
            return gradient

    z = Names.apply(y)
    z.sum().backward()
    return log, x.grad


@topic
def the_current_node_in_hooks():
    log = []
    x = leaf(1.0, 2.0)
    y = x.sin()
    y.register_hook(lambda gradient: log.append(torch._C._current_autograd_node().name()))
    y.grad_fn.register_prehook(lambda gradients: log.append(torch._C._current_autograd_node().name()))
    y.grad_fn.register_hook(lambda inputs, outputs: log.append(torch._C._current_autograd_node().name()))
    (y * 2).sum().backward()
    return log, x.grad


@topic
def threads_share_leaves():
    x = leaf(1.0, 2.0)
    log = []
    x.register_hook(lambda gradient: log.append(threading.current_thread() is not threading.main_thread()))

    def work():
        (x * x).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
        thread.join()
    return x.grad, log


@topic
def grad_mode_does_not_matter():
    x = leaf(1.0, 2.0)
    y = (x * x).sum()
    with torch.no_grad():
        y.backward()
    with torch.inference_mode():
        z = error_of(lambda: (x * x).sum().backward())
    return x.grad, z
