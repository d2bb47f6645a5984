"""Alternatives of library calls: what the rules find, that each computes the same, and how one is chosen."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kiln.codegen import pipeline
from kiln.codegen.choices import choose, measuring, rules
from kiln.codegen.choices.alternatives import RULES, rewrite_calls
from kiln.codegen.rewrites.embedding_gradients import add_to_embedding_gradients
from kiln.program import disk_cache
from tests.support.codegen_programs import graph_of
from tests.support.cuda_programs import cuda_graph_of

aten = torch.ops.aten
assert rules.HAS_WIDE_RESULTS


def low(*shape):
    return torch.randn(*shape).bfloat16()


A, B, BIAS = low(16, 32), low(32, 8), low(8)
PROGRAMS = {
    "float32 product": (lambda a, b: aten.mm(a, b).to(torch.float32), [A, B], "mm.dtype"),
    "of a transposed operand": (lambda a, b: aten.mm(a.t(), b).to(torch.float32), [low(32, 16), B], "mm.dtype"),
    "relu": (lambda b, x, w: aten.relu(aten.addmm(b, x, w)), [BIAS, A, B], "addmm_activation"),
    "gelu": (lambda b, x, w: aten.gelu(aten.addmm(b, x, w), approximate="tanh"), [BIAS, A, B], "addmm_activation"),
    "gelu of a view": (
        lambda b, x, w: aten.gelu(aten.addmm(b, x, w).view(4, 4, 8), approximate="tanh"),
        [BIAS, A, B],
        "addmm_activation",
    ),
}
WITHOUT = {
    "a kernel reads it": (lambda a, b: aten.mm(a, b).to(torch.float32) * 2, [A, B]),
    "a product read twice": (lambda a, b: (lambda p: (p.to(torch.float32), p + 1))(aten.mm(a, b)), [A, B]),
    "float32 already": (lambda a, b: aten.mm(a, b).to(torch.float64), [A.float(), B.float()]),
    "float16, whose products may be infinite": (
        lambda a, b: aten.mm(a, b).to(torch.float32),
        [A.half(), B.half()],
    ),
    "gelu of float16": (
        lambda b, x, w: aten.gelu(aten.addmm(b, x, w), approximate="tanh"),
        [BIAS.half(), A.half(), B.half()],
    ),
    "exact gelu": (lambda b, x, w: aten.gelu(aten.addmm(b, x, w)), [BIAS, A, B]),
    "a matrix added": (lambda b, x, w: aten.relu(aten.addmm(b, x, w)), [low(16, 8), A, B]),
    "scaled": (lambda b, x, w: aten.relu(aten.addmm(b, x, w, alpha=2)), [BIAS, A, B]),
}


def last(site):
    return len(site.alternatives) - 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_rules_write(name):
    function, inputs, wanted = PROGRAMS[name]
    module = cuda_graph_of(function, inputs)
    before = [node.meta["val"] for node in module.graph.nodes if node.op == "output" for node in node.args[0]]
    assert list(rewrite_calls(module, last).values()) == [wanted]
    after = [node.meta["val"] for node in module.graph.nodes if node.op == "output" for node in node.args[0]]
    assert [(one.shape, one.stride(), one.dtype) for one in before] == [
        (one.shape, one.stride(), one.dtype) for one in after
    ]
    _, lowered, _ = pipeline.lower_for(module, pipeline_target(), [])
    assert lowered.called


def pipeline_target():
    from kiln.target.cuda.cuda_target import CudaTarget
    from tests.support.cuda_programs import CUDA

    return CudaTarget(CUDA)


@pytest.mark.parametrize("name", WITHOUT)
def test_where_rules_find_nothing(name):
    function, inputs = WITHOUT[name]
    assert rewrite_calls(cuda_graph_of(function, inputs), last) == {}


def test_the_cpu_has_no_alternatives():
    for function, inputs, _ in PROGRAMS.values():
        assert rewrite_calls(graph_of(function, inputs), last) == {}


@pytest.mark.parametrize("name", PROGRAMS)
def test_alternatives_agree(name):
    """On tensors of the CPU, where the operator is there."""
    function, inputs, wanted = PROGRAMS[name]
    if wanted == "mm.dtype":
        pytest.skip("torch has mm with another type of result on GPUs only")
    module = cuda_graph_of(function, inputs)
    (site,) = sites_of(module)
    values = dict(zip([node.name for node in module.graph.nodes if node.op == "placeholder"], inputs, strict=True))
    given = [values[node.name] for node in site.inputs]
    first, second = (one.compute(measuring.call, *given) for one in site.alternatives)
    assert first.shape == second.shape and first.dtype is second.dtype
    torch.testing.assert_close(first, second, rtol=2e-2, atol=2e-2)


def sites_of(module):
    found = []
    rewrite_calls(module, lambda site: found.append(site) or 0)
    return found


# ---- choosing --------------------------------------------------------------------------------------------------------


class Clock:
    """Gives times instead of measuring, and counts how often it is asked."""

    def __init__(self, *times):
        self.times, self.asked = times, 0

    def __call__(self, site):
        self.asked += 1
        return list(self.times) if self.times else None


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KILN_CACHE_DIR", str(tmp_path / "cache"))


def site(*shape):
    x = low(*(shape or (16, 32)))
    (found,) = sites_of(cuda_graph_of(lambda a, b: aten.mm(a, b).to(torch.float32), [x, low(32, 8)]))
    return found


def test_the_faster_one_is_taken_and_remembered(cache):
    clock = Clock(2.0, 1.0)
    chooser = choose.Measured(("gpu",), clock)
    assert chooser(site()) == 1 and chooser(site()) == 1 and clock.asked == 1
    later = Clock(1.0, 2.0)
    assert choose.Measured(("gpu",), later)(site()) == 1 and later.asked == 0  # from disk
    assert choose.Measured(("another gpu",), later)(site()) == 0 and later.asked == 1
    assert choose.Measured(("gpu",), later)(site(64, 32)) == 0 and later.asked == 2  # another shape


def test_a_small_gain_is_chance(cache):
    assert choose.Measured(("gpu",), Clock(0.99, 1.0))(site()) == site().preferred == 1
    assert choose.fastest([1.0, 0.99], 0) == 0 and choose.fastest([1.0, 0.9], 0) == 1
    assert choose.fastest([0.99, 1.0], 1) == 1


def test_nothing_is_remembered_where_nothing_is_measured(cache):
    assert choose.Measured(("gpu",), Clock())(site()) == site().preferred
    clock = Clock(2.0, 1.0)
    assert choose.Measured(("gpu",), clock)(site()) == 1 and clock.asked == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"chosen": "nothing"}', b'{"chosen": 3}'])
def test_a_damaged_entry_is_measured_again(cache, content):
    chooser = choose.Measured(("gpu",), Clock(2.0, 1.0))
    disk_cache.write(chooser.key(site().text), {"choice": content})
    assert chooser(site()) == 1


def test_without_the_cache(cache, monkeypatch):
    monkeypatch.setattr(disk_cache, "is_on", lambda: False)
    clock = Clock(2.0, 1.0)
    assert choose.Measured(("gpu",), clock)(site()) == 1
    assert choose.Measured(("gpu",), clock)(site()) == 1 and clock.asked == 2


def test_keys_have_types_shapes_and_strides():
    x, y = low(16, 32), low(32, 16)
    texts = {
        sites_of(cuda_graph_of(lambda a, b: aten.mm(a, b).to(torch.float32), [a, low(32, 8).to(a.dtype)]))[0].text
        for a in (x, y.t(), low(8, 32))
    }
    assert len(texts) == 3
    assert all(RULES.values())


# ---- gradients of embeddings -----------------------------------------------------------------------------------------


def gradients(other, rows, indices):
    return other * 2 + aten.embedding_dense_backward(rows, indices, 10, -1, False)


def test_rows_are_added_to_the_other_gradient():
    inputs = [torch.randn(10, 4), torch.randn(3, 5, 4), torch.randint(0, 10, (3, 5))]
    module = graph_of(lambda *given: [gradients(*given)], inputs)
    (expected,) = module(*inputs)
    add_to_embedding_gradients(module)
    targets = [node.target for node in module.graph.nodes]
    assert aten.index_put.default in targets and aten.embedding_dense_backward.default not in targets
    module.recompile()
    torch.testing.assert_close(module(*inputs)[0], expected)


def test_each_embedding_of_a_graph():
    inputs = [torch.randn(10, 4), torch.randn(3, 5, 4), torch.randint(0, 10, (3, 5))]
    module = graph_of(lambda *given: [gradients(*given), gradients(*given) * 3], inputs)
    expected = module(*inputs)
    add_to_embedding_gradients(module)
    assert len(module.graph.find_nodes(op="call_function", target=aten.index_put.default)) == 2
    module.recompile()
    torch.testing.assert_close(module(*inputs), expected)


def test_gradients_with_a_padding_stay():
    inputs = [torch.randn(10, 4), torch.randn(3, 4), torch.randint(0, 10, (3,))]
    for function in (
        lambda other, rows, i: [other + aten.embedding_dense_backward(rows, i, 10, 2, False)],
        lambda other, rows, i: [other + aten.embedding_dense_backward(rows, i, 10, -1, True)],
        lambda other, rows, i: [other.double() + aten.embedding_dense_backward(rows, i, 10, -1, False)],
        lambda other, rows, i: (lambda g: [other + g, g])(aten.embedding_dense_backward(rows, i, 10, -1, False)),
    ):
        module = graph_of(function, inputs)
        add_to_embedding_gradients(module)
        assert aten.index_put.default not in [node.target for node in module.graph.nodes]


# ---- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", PROGRAMS)
def test_measured_on_a_gpu(cache, name):
    function, inputs, _ = PROGRAMS[name]
    on_gpu = [one.cuda() for one in inputs]
    module = graph_of(function, on_gpu)
    (found,) = sites_of(module)
    times = measuring.seconds_of(found)
    assert times is not None and all(0 < one < 1 for one in times)
    given = dict(zip([node.name for node in module.graph.nodes if node.op == "placeholder"], on_gpu, strict=True))
    results = (
        [one.compute(measuring.call, *(given[node.name] for node in found.inputs)) for one in found.alternatives]
        if all(node.name in given for node in found.inputs)
        else []
    )
    if results:
        torch.testing.assert_close(results[0], results[1], rtol=2e-2, atol=2e-2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_autotuned_program(cache):
    import kiln

    layer = torch.nn.Linear(64, 128).cuda()
    x = torch.randn(256, 64, device="cuda")

    def step(call):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.relu(call(x)).float().square().mean()
        loss.backward()
        gradient, layer.weight.grad = layer.weight.grad, None
        return loss, gradient

    torch.testing.assert_close(
        step(kiln.compile(layer, backend="kiln", options={"autotune": True})), step(layer), rtol=2e-2, atol=1e-3
    )
