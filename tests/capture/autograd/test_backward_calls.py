"""``backward()`` inside a compiled function under ``fullgraph=True``: in the graph, or an error that says why not."""

import pytest
import torch
from torch import nn

import kiln
from kiln.testing import check

BACKENDS = ["eager", "aot_eager"]


def leaf(*values):
    return torch.tensor(values, requires_grad=True)


def plain(x, y):
    loss = (x * y).sin().sum()
    loss.backward()
    return loss.detach() * 2


def read_afterwards(x, y):
    (x * y).sum().backward()
    return x.grad + y.grad, x.grad


def twice(x, y):
    loss = (x * y).exp().sum()
    loss.backward(retain_graph=True)
    first = x.grad.clone()
    loss.backward()
    return first, x.grad


def weighted(x, y):
    z = x * y
    z.backward(torch.ones_like(z) * 3)
    return z.detach()


def several(x, y):
    torch.autograd.backward([x * y, (x + y).sum()], [torch.ones(2), None])
    return x.grad


def one_gradient_for_two(x, y):
    (x + y).sum().backward()
    x.grad.mul_(2)
    return y.grad


def only_one_used(x, y):
    (x * 3).sum().backward()
    return y.grad


def cleared_between(x, y):
    (x * y).sum().backward()
    x.grad = None
    (x * x).sum().backward()
    return x.grad


def stepped(x, y):
    (x * y).sum().backward()
    with torch.no_grad():
        x.sub_(x.grad, alpha=0.1)
        y.sub_(y.grad, alpha=0.1)
    x.grad = y.grad = None


def leaf_made_inside(x, y):
    z = (x * y).detach().requires_grad_()
    (z * z).sum().backward()
    return z.grad


def to_one_of_two(x, y):
    (x * y).sum().backward(inputs=[x])
    return y.grad


def to_one_alone(x, y):
    torch.autograd.backward((x * y).sum(), inputs=y)
    return x.grad, y.grad


def to_one_twice(x, y):
    (x * y).sum().backward(inputs=[x, x])
    return x.grad


def to_one_that_is_not_reached(x, y):
    (x * 3).sum().backward(inputs=(x, y))
    return x.grad, y.grad


PROGRAMS = [
    to_one_of_two, to_one_alone, to_one_twice, to_one_that_is_not_reached,
    plain, read_afterwards, twice, weighted, several, one_gradient_for_two, only_one_used, cleared_between, stepped,
    leaf_made_inside,
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_in_one_graph(program, backend):
    make_args = lambda: (leaf(1.0, 2.0), leaf(3.0, 4.0))
    check(program, make_args=make_args, calls=3, backend=backend, fullgraph=True, versions=False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_training_step(backend):
    def setup():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).pow(2).sum()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss.detach(), norm

        return step, [(torch.rand(2, 3),) for _ in range(4)], list(model.parameters())

    check(setup=setup, backend=backend, fullgraph=True, versions=False, rtol=1e-5, atol=1e-6)


def refused(program, *args):
    with pytest.raises(kiln.exc.Unsupported) as caught:
        kiln.compile(program, fullgraph=True)(*args)
    return str(caught.value)


WATCHED = {
    "tensor hook": lambda x: x.register_hook(lambda gradient: gradient * 2),
    "post-accumulate hook": lambda x: x.register_post_accumulate_grad_hook(lambda x: None),
    "node hook": lambda x: torch.autograd.graph.get_gradient_edge(x).node.register_hook(lambda *given: None),
    "node pre-hook": lambda x: torch.autograd.graph.get_gradient_edge(x).node.register_prehook(lambda given: None),
}


@pytest.mark.parametrize("kind", WATCHED)
def test_hooks_on_leaves_are_noticed(kind):
    """Also those that come later: the graph that was made without them is not used."""
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    compiled = kiln.compile(plain, fullgraph=True)
    compiled(x, y)
    node = torch.autograd.graph.get_gradient_edge(x).node  # kept, as eager would lose the hook with it
    WATCHED[kind](x)
    with pytest.raises(kiln.exc.Unsupported, match="hooks"):
        compiled(x, y)
    assert torch.equal(x.grad, (y * (x * y).cos()).detach()), "the pass that was refused has done nothing"
    assert node is not None


def through_a_history(loss):
    loss.backward()


def with_a_graph(x):
    (x * x).sum().backward(create_graph=True)


def to_what_is_no_leaf(x):
    y = x * 2
    (y * y).sum().backward(inputs=[y])
    return x.grad


def retained(x):
    y = x * 2
    y.retain_grad()
    (y * y).sum().backward()
    return y.grad


def hooked(x):
    y = x * 2
    y.register_hook(lambda gradient: gradient * 2)
    (y * y).sum().backward()
    return x.grad


@pytest.mark.parametrize("program", [through_a_history, with_a_graph, to_what_is_no_leaf, retained, hooked])
def test_what_one_graph_cannot_hold(program):
    make = {through_a_history: lambda: (leaf(1.0, 2.0) * 2).sum()}.get(program, lambda: leaf(1.0, 2.0))
    message = refused(program, make())
    assert "test_backward_calls.py" in message.splitlines()[0], "the user's own line comes first"
    x = make()
    check(program, make_args=lambda: (make(),), versions=False, compare_warnings=False)
    assert x is not None


def test_nothing_to_differentiate_is_eagers_error():
    check(lambda x: x.sum().backward(), torch.ones(2))
