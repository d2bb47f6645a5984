"""Which functions' ``backward`` may be traced ahead of time: told on the node, and nobody is misled."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch.amp import custom_bwd
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import kiln
from kiln.testing import check

BACKENDS = [name for name in ("eager", "aot_eager") if name in kiln.list_backends()]
SCALE = 2.0
WEIGHT = torch.full((3,), 4.0)
LOG: list[str] = []


class Owner:
    factor = 3.0

    def __init__(self):
        self.scale = 5.0


OWNER = Owner()


def twice(x):
    return x * 2


def function(name, backward, prepare=None, **more):
    """A function with this backward; ``prepare`` is the part of forward that is about the context."""

    def forward(ctx, x):
        if prepare is not None:
            prepare(ctx, x)
        ctx.save_for_backward(x)
        return x * x

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward), **more}
    return type(name, (Function,), methods)


def closed_over(value):
    return lambda ctx, grad: grad * value


def counting(ctx, grad):
    ctx.count += 1
    return grad


def telling(ctx, grad):
    LOG.append("backward")
    return grad


def printing(ctx, grad):
    print("backward")
    return grad


def choosing(ctx, grad):
    return grad if grad.sum() > 0 else -grad


def cast_as_before(ctx, x):
    ctx._fwd_used_autocast, ctx._dtype = False, torch.bfloat16


def put(name, value):
    return lambda ctx, x: setattr(ctx, name, value(x) if callable(value) else value)


TRACEABLE = {
    "saved": function("Saved", lambda ctx, grad: grad * ctx.saved_tensors[0] * 2),
    "number": function("Number", lambda ctx, grad: grad * ctx.factor, put("factor", 3.0)),
    "size": function("Size", lambda ctx, grad: grad.reshape(ctx.shape), put("shape", lambda x: x.shape)),
    "list made inside": function("List", lambda ctx, grad: grad * ctx.parts[1], put("parts", lambda x: [1, x.dim()])),
    "tensor computed inside": function("Held", lambda ctx, grad: grad * ctx.held, put("held", lambda x: x + 1)),
    "helper function": function("Helper", lambda ctx, grad: twice(grad)),
    "constants of libraries": function("Library", lambda ctx, grad: grad.to(torch.float32) * math.pi),
    "differentiable once": function("Once", once_differentiable(lambda ctx, grad: grad * ctx.saved_tensors[0])),
    "autocast as in forward": function("Cast", custom_bwd(lambda ctx, grad: grad, device_type="cpu"), cast_as_before),
    "asks what is needed": function("Needed", lambda ctx, grad: grad if ctx.needs_input_grad[0] else None),
}
UNTRACEABLE = {
    "appends": (function("Appends", telling), "changes Python objects"),
    "prints": (function("Prints", printing), "print"),
    "reads a global number": (function("Global", lambda ctx, grad: grad * SCALE), "reads G['SCALE']"),
    "reads a global tensor": (function("Tensor", lambda ctx, grad: grad * WEIGHT), "reads G['WEIGHT']"),
    "reads an object": (function("Object", lambda ctx, grad: grad * OWNER.scale), "reads G['OWNER']"),
    "reads a class": (function("Class", lambda ctx, grad: grad * Owner.factor), "reads"),
    "closes over a number": (function("Cell", closed_over(3.0)), "reads"),
    "holds an object": (function("Holds", lambda ctx, grad: grad * ctx.owner.scale, put("owner", OWNER)), "ctx.owner"),
    "changes its context": (function("Counts", counting, put("count", 0)), "changes its context"),
    "looks at values": (function("Values", choosing), ""),
    "random numbers of Python": (function("Random", lambda ctx, grad: grad * random.random()), "random"),
}  # fmt: skip


def node_of(cls, x):
    report = check(lambda x: cls.apply(x).sum(), x, fullgraph=True, graphs=1)
    return next(node for node in report.graphs[0].graph.nodes if "traceable_backward" in node.meta)


def leaf():
    return torch.linspace(1, 2, 3).requires_grad_()


@pytest.mark.parametrize("kind", TRACEABLE)
def test_traceable(kind):
    node = node_of(TRACEABLE[kind], leaf())
    assert node.meta["traceable_backward"] is True, node.meta["traceable_reason"]


@pytest.mark.parametrize("kind", UNTRACEABLE)
def test_untraceable(kind):
    cls, reason = UNTRACEABLE[kind]
    node = node_of(cls, leaf())
    assert node.meta["traceable_backward"] is False
    assert reason in node.meta["traceable_reason"]


def test_without_gradients_there_is_none():
    assert node_of(UNTRACEABLE["appends"][0], leaf().detach()).meta["traceable_backward"] is True


class Partly(Function):
    """What it does when only one gradient is there."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, one, two):
        if one is None:
            LOG.append("no first gradient")
        return sum(gradient * (index + 2) for index, gradient in enumerate((one, two)) if gradient is not None)


def test_effects_where_a_gradient_is_missing():
    report = check(lambda x: Partly.apply(x)[1], leaf(), fullgraph=True)
    (node,) = [node for node in report.graphs[0].graph.nodes if "traceable_backward" in node.meta]
    assert node.meta["traceable_backward"] is False


# -- nobody is misled ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_global_that_changes_between_forward_and_backward(backend):
    global SCALE
    cls, _ = UNTRACEABLE["reads a global number"]
    x = leaf()
    compiled = kiln.compile(lambda x: cls.apply(x).sum(), backend=backend, fullgraph=True)
    for value in (2.0, 10.0):
        SCALE = 2.0
        loss = compiled(x)
        SCALE = value
        (gradient,) = torch.autograd.grad(loss, x)
        assert gradient.tolist() == [value] * 3
    SCALE = 2.0


@pytest.mark.parametrize("backend", BACKENDS)
def test_effects_happen_once_for_each_backward(backend):
    cls, _ = UNTRACEABLE["appends"]
    compiled = kiln.compile(lambda x: cls.apply(x).sum(), backend=backend, fullgraph=True)
    LOG.clear()
    for count in (1, 2):
        loss = compiled(leaf())
        assert len(LOG) == count - 1
        loss.backward()
        assert len(LOG) == count


@pytest.mark.parametrize("backend", BACKENDS)
def test_backward_replaced_later(backend):
    cls = function("Replaced", printing)
    compiled = kiln.compile(lambda x: cls.apply(x).sum(), backend=backend)
    compiled(leaf())
    cls.backward = staticmethod(lambda ctx, grad: grad * 7)
    x = leaf()
    compiled(x).backward()
    assert x.grad.tolist() == [7.0] * 3
