"""Hooks on tensors beside the rest of torch: functions of autograd, nodes, backends, backward passes, models."""

import functools

import pytest
import torch

import kiln
from kiln.testing import check, same

BOTH = (None, "line")


def note(log, name, gradient):
    log.append((name, gradient.tolist()))


def leaf(*values):
    return torch.tensor(values or (1.0, 2.0, 3.0), requires_grad=True)


def global_double(gradient):
    return gradient * 2


# -- functions of autograd, slots -----------------------------------------------------------------------------------


def test_inside_an_autograd_function():
    class Registering(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, log):
            x.register_hook(lambda g: note(log, "x", g))
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2, None

    def function(x, log):
        y = x * 2
        y.register_hook(lambda g: note(log, "y", g))
        return Registering.apply(y, log)

    check(function, leaf(), [], calls=2)


def test_hooks_around_an_autograd_function():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    def function(x, log):
        y = x * 2
        y.register_hook(lambda g: note(log, "y", g))
        z = Double.apply(y)
        z.register_hook(lambda g: note(log, "z", g))
        z.grad_fn.register_hook(lambda inputs, outputs: log.append((len(inputs), len(outputs))))
        z.grad_fn.register_prehook(lambda outputs: log.append(("pre", len(outputs))))
        return z, z.grad_fn.name()

    check(function, leaf(), [], calls=2, fullgraph=True, graphs=1, breaks_every=BOTH)


def test_backends_see_slots():
    """What a backend gets for a hook: an input that is no tensor, marked, and a node that must not be dropped."""
    seen = []

    def backend(module, inputs):
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        seen.append([node.meta.get("hook_slot") for node in placeholders])
        assert [not isinstance(value, torch.Tensor) for value in inputs] == [mark is not None for mark in seen[-1]]
        module.graph.eliminate_dead_code()
        module.recompile()
        return module.forward

    def function(x, log):
        x.register_hook(lambda g: note(log, "x", g))  # done after the graph: no matter of the backend
        y = x * 2
        y.register_hook(lambda g: note(log, "y", g))
        y.retain_grad()
        return y * 3

    check(function, leaf(), [], calls=2, backend=backend, fullgraph=True)
    assert seen == [[None, "register_hook"]]


# -- nodes of autograd's graph -------------------------------------------------------------------------------------


def test_nodes_asked_for_more():
    """Whatever else the program asks of a node is answered by eager, between graphs."""

    def function(x, log):
        y = x * 2
        node = y.grad_fn
        node.register_hook(lambda inputs, outputs: log.append("node"))
        names = [type(node).__name__, node.name(), len(node.next_functions), y.grad_fn.__class__.__name__]
        attention = torch.nn.functional.scaled_dot_product_attention(
            x[None, :, None], x[None, :, None], x[None, :, None]
        )
        names += [type(attention.grad_fn).__name__, isinstance(y.grad_fn, torch.autograd.graph.Node)]
        z = y + 1
        return z, names, node is y.grad_fn, z.grad_fn is node, x.grad_fn

    check(function, leaf(), [], calls=2, breaks_every=BOTH)


def test_multi_grad_hooks():
    def function(x, log):
        y, z = x * 2, x + 1
        torch.autograd.graph.register_multi_grad_hook((y, z), lambda gradients: log.append(len(gradients)))
        return y * z

    check(function, leaf(), [], calls=2)


# -- backward passes inside ------------------------------------------------------------------------------------------


def test_backward_inside():
    """The backward pass breaks the graph: by then all hooks are in their places."""

    def function(x, log):
        handle = x.register_hook(lambda g: note(log, "x", g))
        y = x * 2
        y.register_hook(lambda g: note(log, "y", g))
        y.retain_grad()
        y.sum().backward()
        handle.remove()
        (gradient,) = torch.autograd.grad((x * y.detach()).sum(), x)
        return gradient, y.grad, x.grad

    check(function, leaf(), [], calls=2, breaks_every=BOTH)


def test_leaves_and_others_are_told_apart():
    def function(x):
        x.retain_grad()
        return x * 2, x.retains_grad

    check(setup=lambda: (function, [(leaf(),), (leaf() * 2,), (leaf(),)]), graphs=2)


def test_a_backend_that_drops_registrations():
    def backend(module, inputs):
        for node in module.graph.nodes:
            if node.name == "register_hook":
                module.graph.erase_node(node)
        module.recompile()
        return module.forward

    def function(x):
        y = x * 2
        y.register_hook(global_double)
        return y

    with pytest.raises(RuntimeError, match="did not register a hook"):
        kiln.compile(function, backend=backend)(leaf())


def test_graphs_with_slots_print(capsys):
    def function(x):
        y = x * 2
        y.register_hook(global_double)
        return y

    kiln.compile(function, backend="print")(leaf())
    assert "register_hook" in capsys.readouterr().out
    assert "register_hook" in str(kiln.explain(function)(leaf()))


# -- as models do it ---------------------------------------------------------------------------------------------------


class Watched(torch.nn.Module):
    """Keeps activations and their gradients, and logs those of its parameters, as tools that explain models do."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)
        self.activation = self.gradient = None
        self.log = []

    def keep(self, gradient):
        self.gradient = gradient

    @staticmethod
    def double(gradient):
        return gradient * 2

    @classmethod
    def negate(cls, gradient):
        return -gradient

    def forward(self, x):
        for name, parameter in self.named_parameters():
            parameter.register_hook(functools.partial(note, self.log, name))
        self.activation = self.inner(x)
        for hook in (self.keep, self.double, Watched.negate):
            self.activation.register_hook(hook)
        return self.activation.relu()


def test_module_that_watches_itself():
    check(Watched(), torch.ones(2, 3), calls=3, fullgraph=True, graphs=1, recompiles=0, breaks_every=BOTH)


def test_optimizer_step_in_the_backward_pass():
    def function(model, x):
        optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}

        def step(parameter):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        handles = [parameter.register_post_accumulate_grad_hook(step) for parameter in model.parameters()]
        return model(x).sum(), handles

    check(function, torch.nn.Linear(3, 2), torch.ones(2, 3))


def test_sizes_that_vary():
    def function(x, log):
        count, y = x.shape[0], x * 2
        y.register_hook(lambda g: note(log, count, g * count))
        return y.sum() * count

    def setup():
        log = []
        return function, [(torch.ones(size, requires_grad=True), log) for size in (2, 3, 4, 5)], log

    check(setup=setup, fullgraph=True, recompiles=1)


def test_checkpointed():
    def body(x, log):
        y = x * 2
        y.register_hook(lambda g: note(log, "y", g))
        return y.sin()

    def function(x, log):
        return torch.utils.checkpoint.checkpoint(body, x, log, use_reentrant=False)

    check(function, leaf(), [], calls=2)


def test_double_backward():
    def function(x):
        y = x.exp()
        y.register_hook(lambda g: g * y)
        return y

    def gradients(function):
        x = leaf()
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        return first, torch.autograd.grad(first.sum(), x)

    assert same(gradients(function), gradients(kiln.compile(function, fullgraph=True)))


def removed_in_finally(x, index, log):
    handle = x.register_hook(lambda g: note(log, "inside", g))
    try:
        y = (x * 2)[index]
    finally:
        handle.remove()
    return y


def left_by_an_error(x, index, log):
    try:
        with x.register_hook(lambda g: note(log, "inside", g)):
            y = (x * 2)[index]
    except IndexError:
        y = x * 3
    return y


def broken_inside_a_block(x, index, log):
    with x.register_hook(lambda g: note(log, "inside", g)) as handle:
        y = x * 2
        kiln.graph_break()
        y.register_hook(lambda g: note(log, "y", g))
    return y[index], handle


@pytest.mark.parametrize("function", [removed_in_finally, left_by_an_error, broken_inside_a_block])
def test_errors_and_blocks(function):
    def setup():
        log = []
        return function, [(leaf(), torch.tensor([place]), log) for place in (0, 9, 1)], log

    check(setup=setup, breaks_every=BOTH)
