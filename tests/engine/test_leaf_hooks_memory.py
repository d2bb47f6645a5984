"""Which tensors are the same memory between the hooks of a leaf and its ``.grad``: what one changes, the others see."""

import contextlib

import pytest
import torch

import kiln

COMPILERS = {
    "graph": lambda graph: graph,
    "eager": lambda graph: kiln.compile(graph, backend="eager"),
    "aot_eager": lambda graph: kiln.compile(graph, backend="aot_eager"),
    "kiln": lambda graph: kiln.compile(graph, backend="kiln"),
}
# Hooks in eager's order; the ones that change something do so in place.
HOOKS = {
    "after changes": ("change gradient after",),
    "accumulated changes, after reads": ("change grad", "read after"),
    "both change, after reads": ("change grad", "change gradient after", "read after"),
    "tensor hook looks": ("look", "change grad", "read after"),
    "node hook looks": ("look before", "change grad", "read after"),
    "tensor hook replaces": ("replace", "change gradient after", "change grad", "read after"),
    "tensor hook keeps": ("keep", "change grad", "read after"),
    "tensor hook changes": ("change", "change gradient after", "read after"),
    "all look": ("look", "look before", "read after"),
}


class Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def plain(w, x):
    return (w * x).sum()


def one_gradient_for_both(w, x):
    return (w + x).square().sum()


def transposed(w, x):
    return (w.view(2, 2).t() * x.view(2, 2)).sum()


def from_python(w, x):
    return (Layer.apply(w) * x).sum()


def used_twice(w, x):
    return (w * x).sum() + (w * w).sum()


LOSSES = [plain, one_gradient_for_both, transposed, from_python, used_twice]


def changed(tensor, number):
    tensor.mul_(number)


def register(w, node, kinds, kept, log):
    hooks = {
        "look": lambda: w.register_hook(lambda g: log.append(("tensor", g.tolist()))),
        "replace": lambda: w.register_hook(lambda g: g * 3),
        "change": lambda: w.register_hook(lambda g: changed(g, 3)),
        "keep": lambda: w.register_hook(lambda g: kept.append(g)),
        "look before": lambda: node.register_prehook(lambda gs: log.append(("before", gs[0].tolist()))),
        "change grad": lambda: w.register_post_accumulate_grad_hook(lambda p: changed(p.grad, 10)),
        "change gradient after": lambda: node.register_hook(lambda _, gs: changed(gs[0], 100)),
        "read after": lambda: node.register_hook(lambda _, gs: log.append(("after", gs[0].tolist()))),
    }
    for kind in kinds:
        hooks[kind]()


def run(loss, kinds, with_grad, enabled):
    w, x = torch.arange(1.0, 5.0).requires_grad_(), torch.arange(2.0, 6.0).requires_grad_()
    node = w.expand_as(w).grad_fn.next_functions[0][0]
    kept, log = [], []
    register(w, node, kinds, kept, log)
    if with_grad:
        w.grad = torch.ones(4)
    with enabled:
        for _ in range(2):
            loss(w, x).backward()
            log.append(("grads", w.grad.tolist(), x.grad.tolist()))
    log.append([one.tolist() for one in kept])
    return log


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("with_grad", [False, True], ids=["no grad yet", "grad there"])
@pytest.mark.parametrize("kinds", HOOKS)
def test_what_hooks_of_a_leaf_change_is_seen_as_in_eager(kinds, with_grad, compiler):
    for loss in LOSSES:
        expected = run(loss, HOOKS[kinds], with_grad, contextlib.nullcontext())
        actual = run(loss, HOOKS[kinds], with_grad, kiln.compiled_autograd.enable(COMPILERS[compiler]))
        assert actual == expected, loss.__name__


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "kiln"])
def test_a_hook_after_the_accumulation_is_in_the_graph(backend):
    """The usual case: nobody but the leaf and its hook has the gradient."""
    before = kiln.report.counters["engine handed over"]
    enabled = kiln.compiled_autograd.enable(lambda graph: kiln.compile(graph, backend=backend, fullgraph=True))
    run(plain, ("change grad", "change gradient after"), False, enabled)
    assert kiln.report.counters["engine handed over"] == before


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_gradient_that_is_asked_for_is_what_hooks_change(compiler):
    def program(enabled):
        x = torch.arange(1.0, 5.0).requires_grad_()
        y = x * 2
        y.register_hook(lambda g: changed(g, 5))
        with enabled:
            return [one.tolist() for one in torch.autograd.grad((y * y).sum(), [x, y])]

    expected = program(contextlib.nullcontext())
    assert program(kiln.compiled_autograd.enable(COMPILERS[compiler])) == expected
