"""Topics: retain_grad, accumulation, `autograd.grad` and its options, higher derivatives, what is left behind."""

import gc
import weakref

import torch
from torch import nn
from torch.autograd import Function, backward, grad
from torch.autograd.graph import GradientEdge, get_gradient_edge

from tests.engine.topics import error_of, leaf, topics

topic, test_topic = topics()


# -- retain_grad ------------------------------------------------------------------------------------------------------


@topic
def retain_grad_many_times():
    x = torch.rand(1, 3, requires_grad=True)
    h = x * 3
    out = (h * h).sum()
    h.retain_grad()
    h.retain_grad()
    out.backward(retain_graph=True)
    first = h.grad.clone()
    out.backward(retain_graph=True)
    second = h.grad.clone()
    h.grad = None
    out.backward()
    x.retain_grad()
    return first, second, h.grad, x.grad, x.retains_grad, error_of(torch.ones(1).retain_grad)


@topic
def retain_grad_after_in_place():
    a = leaf(1.0, 2.0).clone()
    a.retain_grad()
    b = a.mul_(3)
    b.add_(2)
    b.retain_grad()
    b.sum().backward()
    return a is b, a.grad


@topic
def retain_grad_in_place_over_a_view():
    base = torch.tensor([1.0, 2.0], requires_grad=True).clone()
    view, other = base[0], base[0]
    view.retain_grad()
    other.retain_grad()
    view.exp_()
    (view + other.sum() * 2).backward()
    return view.grad, other.grad


@topic
def retain_grad_of_several_outputs_in_place():
    class Two(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, first, second):
            return first * 2 + second * 3

    first, second = Two.apply(leaf(1.0, 2.0))
    first.retain_grad()
    second.retain_grad()
    first.mul_(5)
    (first + second).sum().backward()
    return first.grad, second.grad


@topic
def retained_gradient_sees_tensor_hooks():
    x = leaf(1.0, 2.0)
    y = x * 2
    y.retain_grad()
    y.register_hook(lambda gradient: gradient * 2)
    y.sum().backward(retain_graph=True)
    y.register_hook(lambda gradient: gradient + 1)
    kept = y.grad.clone()
    y.grad = None
    y.sum().backward()
    return kept, y.grad, x.grad


@topic
def a_retained_gradient_is_its_own_tensor():
    x = leaf(1.0, 2.0)
    y = x * 2
    y.retain_grad()
    (y * 3).sum().backward()
    x.grad.zero_()
    return y.grad, y.grad.data_ptr() == x.grad.data_ptr(), y.grad.requires_grad


@topic
def retain_grad_makes_no_cycle():
    x = leaf(1.0)

    def run():
        y = x * 2
        y.retain_grad()
        y.backward()
        return weakref.ref(y)

    return run()() is None


@topic
def retained_and_captured():
    x = leaf(1.0, 2.0)
    y = x * 2
    y.retain_grad()
    z = (y * y).sum()
    z.retain_grad()
    z.backward(inputs=[x])
    return x.grad, y.grad, z.grad


# -- accumulation -----------------------------------------------------------------------------------------------------


@topic
def accumulation_keeps_the_object():
    x = leaf(1.0, 2.0)
    (x * 2).sum().backward()
    first = x.grad
    (x * 3).sum().backward()
    same = x.grad is first
    version = first._version
    (x * 3).sum().backward(create_graph=True)
    return same, version > 0, x.grad is first, x.grad, first


@topic
def accumulation_by_create_graph():
    x = leaf(1.0, 2.0)
    (x * x).sum().backward(create_graph=True)
    first = x.grad
    (x * x).sum().backward(create_graph=True)
    return first.requires_grad, x.grad is first, x.grad.requires_grad, [v.detach() for v in (first, x.grad)]


@topic
def a_stolen_gradient():
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    root = torch.ones(2)
    (x + y).backward(root)
    return (
        x.grad,
        y.grad,
        x.grad.data_ptr() == y.grad.data_ptr(),
        root.data_ptr() in (x.grad.data_ptr(), y.grad.data_ptr()),
    )


@topic
def layouts_of_gradients():
    weight = torch.rand(3, 2).t().requires_grad_()
    channels = torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last).requires_grad_()
    expanded = torch.rand(3, 1, requires_grad=True)
    (weight * 2).sum().backward()
    (channels * channels).sum().backward()
    (expanded.expand(3, 4) * torch.rand(3, 4)).sum().backward()
    return [(item.grad.stride(), item.grad.shape) for item in (weight, channels, expanded)], weight.grad


@topic
def grad_of_another_dtype_and_shape_set_by_hand():
    x = leaf(1.0, 2.0)
    x.grad = torch.ones(2)
    mine = x.grad
    (x * 3).sum().backward()
    return x.grad, x.grad is mine, error_of(setattr, x, "grad", torch.ones(3)), error_of(setattr, x, "grad", 1)


@topic
def grad_that_is_a_view():
    storage = torch.zeros(4)
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    x.grad, y.grad = storage[:2], storage[2:]
    (x * y).sum().backward()
    return storage, x.grad.data_ptr() == storage.data_ptr()


@topic
def requires_grad_turned_off_before_backward():
    x, y = leaf(1.0), leaf(2.0)
    z = x * y
    x.requires_grad_(False)
    z.backward()
    return x.grad, y.grad


@topic
def accumulation_of_sparse_and_dense():
    log = []
    for order in ([True, False], [False, True], [True, True]):
        embed = nn.Embedding.from_pretrained(torch.arange(8.0).reshape(4, 2), freeze=False)
        for sparse in order:
            embed.sparse = sparse
            embed(torch.tensor([1, 3, 1])).sum().backward()
        log.append((embed.weight.grad.layout, embed.weight.grad.to_dense()))
    return log


@topic
def input_buffers_add_without_touching():
    x = leaf(1.0, 2.0)
    kept = []
    a, b, c = x * 1, x * 2, x * 3
    for item in (a, b, c):
        item.register_hook(kept.append)
    (a + b + c).sum().backward()
    return x.grad, kept


@topic
def a_model_freed_before_backward():
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))
    x = leaf(1.0, 2.0)
    loss = model(x).sum()
    alive = weakref.ref(model[0].weight)
    del model
    gc.collect(1)
    loss.backward()
    del loss
    gc.collect(1)
    return x.grad, alive() is None


@topic
def saved_tensors_are_released():
    x = leaf(1.0, 2.0)

    def run(retain_graph):
        y = x.exp()
        loss = (y * y).sum()
        kept = weakref.ref(y)
        del y
        loss.backward(retain_graph=retain_graph)
        return kept() is None, loss

    return [run(flag)[0] for flag in (False, True)], x.grad


@topic
def backward_twice():
    x = leaf(1.0, 2.0)
    y = (x * x).exp().sum()
    y.backward(retain_graph=True)
    y.backward()
    z = (x + 1).sum()
    z.backward()
    return error_of(y.backward), error_of(z.backward), x.grad


@topic
def two_backwards_share_a_part():
    x = leaf(1.0, 2.0)
    shared = x.exp()
    first, second = shared.sum(), (shared * shared).sum()
    first.backward()
    return error_of(second.backward), x.grad


# -- roots ------------------------------------------------------------------------------------------------------------


@topic
def several_roots():
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    backward([(x * y).sum(), x * 2, x * 2], [None, torch.ones(2), torch.tensor([3.0, 4.0])])
    return x.grad, y.grad


@topic
def the_same_root_twice():
    x = leaf(1.0)
    y = x * 2
    backward([y, y], [torch.ones(1), torch.ones(1)])
    return x.grad


@topic
def roots_that_are_leaves():
    x, y = leaf(1.0, 2.0), leaf(3.0)
    backward([x, y * 2, x.sum()], [torch.ones(2), None, None])
    return x.grad, y.grad


@topic
def bad_roots():
    x = leaf(1.0, 2.0)
    y = x * 2
    return [
        error_of(y.backward),
        error_of(y.backward, torch.ones(3)),
        error_of(torch.ones(1).backward),
        error_of(y.backward, torch.ones(2, dtype=torch.complex64)),
        error_of(backward, [y], [torch.ones(2), torch.ones(2)]),
        error_of((y > 0).float().sum().backward),
        error_of(y.sum().backward, inputs=[]),
        error_of(y.sum().backward, inputs=[torch.ones(1)]),
    ]


@topic
def root_gradients_of_other_kinds():
    x = leaf(1.0, 2.0)
    y = x * 2
    y.backward(torch.ones(1).expand(2))
    z = (x * x).sum()
    z.backward(torch.tensor(2.0, requires_grad=True))
    return x.grad, x.grad.requires_grad


@topic
def a_root_gradient_that_requires_grad():
    x, weight = leaf(1.0, 2.0), leaf(1.0, 1.0)
    (found,) = grad(x * x, x, weight, create_graph=True)
    return found, grad(found.sum(), (x, weight))


@topic
def backward_to_nodes_and_edges():
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    z = x * y
    w = z.sin()
    first = grad(w.sum(), get_gradient_edge(z), retain_graph=True)
    second = grad(w.sum(), [get_gradient_edge(x), y], retain_graph=True)
    edge = get_gradient_edge(w)
    backward(edge, torch.ones(2), retain_graph=True)
    third = grad(edge, x, torch.ones(2))
    return first, second, third, x.grad, isinstance(edge, GradientEdge)


# -- autograd.grad ----------------------------------------------------------------------------------------------------


@topic
def grad_leaves_grad_alone():
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    found = grad((x * y).sum(), (x, y))
    return found, x.grad, y.grad


@topic
def grad_of_an_interior_tensor():
    x = leaf(1.0, 2.0)
    y = x.exp()
    z = (y * x).sum()
    return grad(z, (y, x), retain_graph=True), grad(z, (x, x, y))


@topic
def grad_of_many_outputs():
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    outputs = [x * y, (x + y).sum(), y]
    return grad(outputs, [x, y], [torch.ones(2), torch.tensor(2.0), torch.ones(2)])


@topic
def unused_inputs():
    x, y, z = leaf(1.0), leaf(2.0), leaf(3.0)
    loss = lambda: (x * y).sum()
    return [
        grad(loss(), (x, z), allow_unused=True),
        grad(loss(), (x, z), materialize_grads=True),
        error_of(grad, loss(), (x, z)),
        error_of(grad, loss(), (x, z), allow_unused=False, materialize_grads=True),
        error_of(grad, loss(), (torch.ones(1),)),
        error_of(grad, loss(), ()),
    ]


@topic
def grad_of_itself():
    x = leaf(1.0, 2.0)
    return grad(x, x, torch.tensor([3.0, 4.0])), x.grad


@topic
def unreachable_roots():
    x, y = leaf(1.0, 2.0), leaf(3.0)
    return grad([(x * 2).sum(), y.sum()], [x, y]), grad((x * 2).sum(), [y, x], allow_unused=True)


@topic
def batched_gradients():
    x = leaf(1.0, 2.0, 3.0)
    y = x * x.flip(0)
    return grad(y, x, torch.eye(3), is_grads_batched=True, retain_graph=True), grad(y, x, torch.ones(3))


@topic
def non_leaf_inputs_of_backward():
    x = leaf(1.0, 2.0)
    y = x * x
    z = y * y
    z.sum().backward(create_graph=True, inputs=[x, y])
    first = [v.grad.detach().clone() for v in (x, y)]
    z.sum().backward(inputs=y)
    return first, y.grad.detach(), x.grad.detach()


@topic
def backward_of_inputs_leaves_others():
    x, y = leaf(1.0), leaf(2.0)
    z = x * y
    z.backward(inputs=[x], retain_graph=True)
    kept = x.grad.clone(), y.grad
    z.backward(inputs=(y,))
    return kept, x.grad, y.grad


# -- higher derivatives -----------------------------------------------------------------------------------------------


@topic
def second_derivatives():
    x = leaf(1.0, 2.0)
    (first,) = grad((x**3).sum(), x, create_graph=True)
    (second,) = grad(first.sum(), x, create_graph=True)
    second.sum().backward()
    return first, second, x.grad


@topic
def hessian_vector():
    x, y = torch.rand(2, 2, requires_grad=True), torch.rand(2, 2, requires_grad=True)
    z = x**2 + y * x + y**2
    z.backward(torch.ones(2, 2), create_graph=True)
    with torch.no_grad():
        kept = [x.grad.clone(), y.grad.clone()]
    (x.grad + 2 * y.grad).sum().backward(torch.tensor(1.0))
    return kept, x.grad.detach(), y.grad.detach()


@topic
def create_graph_warns():
    x = leaf(1.0)
    (x * x).backward(create_graph=True)
    return x.grad.detach()


@topic
def penalties():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.rand(2, 3, requires_grad=True)
    for _ in range(2):
        (slope,) = grad(model(x).sum(), x, create_graph=True)
        (slope.norm(2, dim=1) - 1).pow(2).mean().backward()
    return [p.grad for p in model.parameters()], x.grad


@topic
def functional_derivatives():
    from torch.autograd import functional

    x = torch.tensor([1.0, 2.0])
    f = lambda x: (x**3).sum()
    return functional.hessian(f, x), functional.jacobian(torch.sin, x), functional.vhp(f, x, torch.ones(2))


@topic
def functorch_transforms():
    x = torch.tensor([1.0, 2.0])
    f = lambda x: (x.sin() * x).sum()
    return torch.func.grad(f)(x), torch.func.hessian(f)(x), torch.func.vmap(torch.func.grad(f))(torch.eye(2))


@topic
def forward_mode_over_reverse():
    import torch.autograd.forward_ad as forward_ad

    x, tangent = leaf(1.0, 2.0), torch.ones(2)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        y = (dual**3).sum()
        (first,) = grad(y, x, create_graph=True)
        unpacked = forward_ad.unpack_dual(first)
        return unpacked.primal.detach().clone(), unpacked.tangent.detach().clone()
