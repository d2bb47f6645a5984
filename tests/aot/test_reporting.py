"""What people are told of graphs that are differentiated ahead of time."""

import pytest
import torch

import kiln
from kiln.report import counters

SIZE = 256  # small tensors are not worth computing again
BYTES = SIZE * SIZE * 4


def chain(x, w):
    h = x @ w
    for _ in range(3):
        h = h * h + 1
    return h.sum()


def arguments(gradient=True):
    return torch.rand(SIZE, SIZE), torch.rand(SIZE, SIZE, requires_grad=gradient)


def test_explanation():
    """A chain of pointwise operations is computed anew from its beginning; eager keeps every link."""
    found = kiln.explain(chain)(*arguments())
    (graph,) = found.differentiated
    assert set(graph.graphs) == {"joint", "forward", "backward"}
    assert graph.saved.bytes == BYTES and graph.saved.tensors == 1
    assert graph.eager.bytes == 3 * BYTES and graph.eager.tensors == 3
    assert graph.saved.bytes_with_inputs == 2 * BYTES
    text = str(found)
    assert "Saved for backward:" in text and "262 kB in 1 tensor beside its inputs (eager: 786 kB in 3 tensors)" in text
    assert "test_reporting.py" in text and "float32[256, 256], 262 kB" in text


def test_explanation_without_gradients():
    found = kiln.explain(chain)(*arguments(gradient=False))
    assert "Saved for backward" not in str(found)
    (graph,) = found.differentiated
    assert set(graph.graphs) == {"inference"} and graph.saved.bytes == graph.eager.bytes == 0


def test_explanation_is_of_the_call(capsys):
    """Explaining changes nothing: results and gradients are eager's."""
    x, w = arguments()
    found = kiln.explain(chain)(x, w)
    found.result.backward()
    seen, w.grad = w.grad, None
    chain(x, w).backward()
    torch.testing.assert_close(seen, w.grad)


@pytest.mark.parametrize("gradient", [True, False])
def test_log(capsys, gradient):
    with kiln.config.patch(log={"aot"}):
        kiln.compile(chain, backend="aot_eager")(*arguments(gradient))
    text = capsys.readouterr().err
    assert text.startswith("[kiln aot] the graph from ")
    for kind in ("joint graph", "forward graph", "backward graph"):
        assert (kind in text) is gradient
    assert ("inference graph" in text) is not gradient
    assert "torch.ops.aten.mm.default" in text and "h = x @ w" in text


def test_no_log_no_work(capsys, monkeypatch):
    from kiln.aot import reporting

    monkeypatch.setattr(reporting, "saved_in_eager", None)
    kiln.compile(chain, backend="aot_eager")(*arguments()).backward()
    assert capsys.readouterr().err == ""


def test_graph_left_to_eager(capsys):
    seen = []

    class Noted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            seen.append(gradient)
            return gradient * 2

    def program(x):
        return Noted.apply(x)

    before = counters["aot eager"]
    x = torch.ones(3, requires_grad=True)
    with kiln.config.patch(log={"aot"}):
        kiln.compile(program, backend="aot_eager")(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 2.0))
    assert counters["aot eager"] == before + 1
    assert "left to eager" in capsys.readouterr().err and len(seen) == 1
