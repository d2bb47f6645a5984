"""``register_multi_grad_hook`` inside captured code: one graph, and torch's own bookkeeping afterwards."""

import pytest
import torch
from torch.autograd.graph import register_multi_grad_hook

import kiln
from kiln.testing import check

BACKENDS = [name for name in ("eager", "aot_eager") if name in kiln.list_backends()]


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


def leaf():
    return torch.linspace(1, 2, 3).requires_grad_()


def noted(log, name="all"):
    def hook(gradients):
        parts = gradients if isinstance(gradients, list) else [gradients]
        log.append((name, [None if part is None else part.tolist() for part in parts]))

    return hook


def intermediates(x, log):
    y, z = x * 2, x + 1
    register_multi_grad_hook((y, z), noted(log))
    return y * z


def inputs_and_outputs(x, log):
    y = x.exp()
    register_multi_grad_hook([x, y], noted(log))
    return y


def any_of_them(x, log):
    y, z, still = x * 2, x + 1, x.detach()
    register_multi_grad_hook((y, still, z), noted(log, "any"), mode="any")
    return y * z


def some_of_them(x, log):
    """Only one of the tensors is on the way back from what is returned first."""
    y, z = x * 2, x + 1
    register_multi_grad_hook((y, z), noted(log))
    return y.exp(), z


def removed(x, log):
    y, z = x * 2, x + 1
    handle = register_multi_grad_hook((y, z), noted(log))
    handle.remove()
    return y * z


def handed_out(x, log):
    y, z = x * 2, x + 1
    return y * z, register_multi_grad_hook((y, z), noted(log))


def among_others(x, log):
    y = x * 2
    y.register_hook(lambda gradient: log.append("before") or gradient * 2)
    register_multi_grad_hook((y, x), noted(log))
    y.register_hook(lambda gradient: log.append("after"))
    return y.exp()


def changed_later(x, log):
    y, z = x * 2, x + 1
    register_multi_grad_hook((y, z), noted(log))
    y.mul_(z)
    return y


PROGRAMS = [intermediates, inputs_and_outputs, any_of_them, some_of_them, removed, among_others, changed_later]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_one_graph(program):
    check(program, make_args=lambda: (leaf(), []), calls=2, fullgraph=True, graphs=1)


def gradients(function, root, create_graph):
    """What a backward pass from the results themselves, or from a loss, tells the hooks and gives."""
    log, x = [], leaf()
    results = function(x, log)
    results = results if isinstance(results, tuple) else (results,)
    weights = [torch.ones_like(result) for result in results]
    if root == "loss":
        results, weights = [sum(result.sum() for result in results)], None
    for _ in range(2):
        torch.autograd.backward(results, weights, create_graph=create_graph, retain_graph=True)
    return log, x.grad.tolist()


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("create_graph", [False, True], ids=["once", "twice differentiable"])
@pytest.mark.parametrize("root", ["loss", "results"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_what_hooks_are_told(program, root, create_graph, backend):
    compiled = kiln.compile(program, backend=backend, fullgraph=True)
    assert gradients(compiled, root, create_graph) == gradients(program, root, create_graph)


def test_backward_of_one_result_only(backend):
    logs = []
    for compiled in (some_of_them, kiln.compile(some_of_them, backend=backend, fullgraph=True)):
        log = []
        y, z = compiled(leaf(), log)
        y.sum().backward(retain_graph=True)
        (y.sum() + z.sum()).backward()
        logs.append(log)
    assert logs[0] == logs[1] and len(logs[0]) == 2


def test_handle_removed_outside(backend):
    for compiled in (handed_out, kiln.compile(handed_out, backend=backend, fullgraph=True)):
        log, x = [], leaf()
        result, handle = compiled(x, log)
        result.sum().backward(retain_graph=True)
        handle.remove()
        result.sum().backward()
        assert len(log) == 1 and type(handle).__mro__[1].__name__ == "RemovableHandle"


def refused(x, log):
    return register_multi_grad_hook((x, x.detach()), noted(log))


def unknown_mode(x, log):
    return register_multi_grad_hook((x,), noted(log), mode="some")


@pytest.mark.parametrize("program", [refused, unknown_mode], ids=lambda each: each.__name__)
def test_what_torch_refuses(program, backend):
    report = check(program, make_args=lambda: (leaf(), []), backend=backend)
    assert report.compiled.calls[0].raised is not None
