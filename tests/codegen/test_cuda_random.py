"""Random numbers in programs for GPUs: drawn as eager draws them, bit for bit."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import kiln
from kiln.codegen import pipeline
from kiln.codegen.cuda_graphs import recordable
from kiln.loops import draw_check, gpu_generators, reference
from kiln.loops import philox as drawing
from kiln.loops.steps import Draw
from tests.codegen.test_cuda_programs import TARGET, Made
from tests.support import philox
from tests.support.cuda_programs import cuda_graph_of

aten = torch.ops.aten
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
SIZES = [1, 2, 7, 255, 256, 1022, 1023, 1024, 4096, 100_004, 1_000_003, 2_200_000, 3_145_728, 9_000_002]


# ---- without a GPU ---------------------------------------------------------------------------------------------------


def dropped(x):
    return aten.native_dropout(x, 0.1, True)


def test_dropout_is_a_kernel():
    made = Made(dropped, torch.randn(64, 768))
    assert made.lowered.called == {} and len(made.scheduled.kernels) == 1
    assert made.steps("draw") == [["draw", made.steps("draw")[0][1], 4]]
    ((_, _, _, pointers, *_),) = made.steps("cuda_launch")
    assert [use for _, _, use in pointers].count(2) == 1


def test_draws_keep_the_order_of_the_program():
    def f(x):
        first = aten.native_dropout(x, 0.1, True)[0]
        between = torch.randn_like(x)
        return first, between, aten.native_dropout(x, 0.2, True)[0]

    made = Made(f, torch.randn(64, 768))
    drawing = [
        step[0] if step[0] == "draw" else step[1] for step in made.data["steps"] if step[0] in ("draw", "operator")
    ]
    assert drawing == ["draw", "aten::randn_like", "draw"]


def test_an_unused_dropout_still_draws():
    made = Made(lambda x: (aten.native_dropout(x, 0.1, True), x + 1)[1], torch.randn(64, 768))
    in_graph = [node.target for node in made.module.graph.nodes].count(aten.native_dropout.default)
    assert len(made.steps("draw")) == in_graph


@pytest.mark.parametrize("how", [(0.1, False), (1.0, True)])  # these draw nothing
def test_dropout_that_draws_nothing(how):
    assert not Made(lambda x: aten.native_dropout(x, *how), torch.randn(64, 66)).steps("draw")


LEFT = [torch.randn(65, 132)[:, ::2], torch.randn(65, 66)[:, 1:], torch.randn(65, 67).t(), torch.randn(0, 5)]


@pytest.mark.parametrize("given", LEFT, ids=lambda x: f"{tuple(x.shape)} {x.stride()}")
def test_layouts_that_are_left_to_aten(given):
    assert not Made(dropped, given).steps("draw")


@pytest.mark.parametrize(("start", "is_drawn"), [(0, True), (4, True), (1, False), (2, False)])
def test_elements_that_are_not_aligned(start, is_drawn):
    def f(x):
        return dropped(aten.slice.Tensor(aten.relu(x), 0, start, 4096 + start))

    assert bool(Made(f, torch.randn(5000)).steps("draw")) is is_drawn


def test_dynamic_sizes():
    """Which elements a thread of ATen takes depends on what divides the number of elements."""
    assert not Made(dropped, torch.randn(64, 768), dynamic=True).steps("draw")
    made = Made(lambda x: dropped(aten.cat([x] * 4, 1)), torch.randn(5, 7, 3), dynamic=True)
    ((_, _, increment),) = made.steps("draw")
    assert isinstance(increment, list)
    ((_, _, _, pointers, sizes, *_),) = [step for step in made.steps("cuda_launch") if any(p[2] == 2 for p in step[3])]
    assert sizes


def test_cuda_graphs_take_kernels_that_draw():
    assert recordable.refusal(cuda_graph_of(dropped, [torch.randn(64, 768)]), None) is None


def test_inputs_have_to_be_aligned():
    """ATen's kernel gives other numbers to elements that are not."""
    made = Made(dropped, torch.randn(64, 768, dtype=torch.float64).t())
    assert dict(map(tuple, made.data["aligned"]))[0] == 16


def test_equal_kernels_of_several_draws():
    def f(x):
        for _ in range(3):
            x = aten.native_dropout(x.relu(), 0.1, True)[0] @ x
        return x

    made = Made(f, torch.randn(256, 256))
    draws = [step for step in made.lowered.items if isinstance(step, Draw)]
    assert len(draws) == 3 and len(made.scheduled.kernels) == 1


SEED, OFFSET = -(2**63) + 12345, 40


def meaning(monkeypatch, function, *inputs):
    """What the lowered program means, if the generator has a known seed and offset."""
    offset = OFFSET

    def draw(device, increment):
        nonlocal offset
        offset += increment
        return torch.tensor([SEED, offset - increment])

    monkeypatch.setattr(gpu_generators, "draw", draw)
    lowering, lowered, scheduled = pipeline.lower_for(cuda_graph_of(function, inputs), TARGET, [])
    assert lowered.called == {}
    for program in (lowered, scheduled):
        offset = OFFSET
        found = reference.run(program, inputs)
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 6, 255, 1024, 300_000])
def test_numbers_of_dropout(monkeypatch, size, dtype):
    x = torch.randn(size).to(dtype)
    found, mask = meaning(monkeypatch, dropped, x)
    threads, vector = philox.threads_of(size), math.gcd(16 // dtype.itemsize, size)
    if vector > 1:
        drawn = philox.vector_bits(SEED, OFFSET, size, threads, vector)
    else:
        drawn = philox.strided_bits(SEED, OFFSET, size, threads)
    keep = 0.9 if dtype is torch.float64 else float(torch.tensor(0.9))
    assert torch.equal(mask, philox.uniform(drawn).double() < keep)
    assert torch.equal(found != 0, mask & (x != 0))


@pytest.mark.parametrize("shape", [(2, 3, 5), (40, 70, 9), (1, 1, 1), (100, 100, 40)])
def test_numbers_of_dropout_for_dynamic_sizes(monkeypatch, shape):
    def f(x):
        return dropped(aten.cat([x] * 4, 1))

    x = torch.randn(shape)
    monkeypatch.setattr(gpu_generators, "draw", lambda device, increment: torch.tensor([SEED, OFFSET, increment])[:2])
    graph = cuda_graph_of(f, [torch.randn(6, 7, 8)], dynamic=True)
    _, _, scheduled = pipeline.lower_for(graph, TARGET, [])
    found, mask = reference.run(scheduled, [x])
    count = 4 * x.numel()
    drawn = philox.vector_bits(SEED, OFFSET, count, philox.threads_of(count), 4)
    assert torch.equal(mask.reshape(-1), philox.uniform(drawn) < 0.9)


def test_uniform_numbers(monkeypatch):
    def f(x):
        first = torch.rand(500, device="cuda"), torch.rand_like(x, dtype=torch.bfloat16)
        second = torch.rand(300, device="cuda", dtype=torch.float64)
        more = aten.uniform.default(x, -3.0, 5.0), aten.bernoulli.p(x, 0.25)
        return (
            *first,
            second,
            *more,
            torch.randint(-5, 1000, (7, 8), device="cuda"),
            torch.randint_like(x, 3, dtype=torch.int64),
        )

    numbers = lambda count, place: philox.strided_bits(SEED, OFFSET + 4 * place, count, philox.threads_of(count))  # noqa: E731
    found = meaning(monkeypatch, f, torch.zeros(40, 10))
    assert torch.equal(found[0], philox.uniform(numbers(500, 0)))
    assert torch.equal(found[1].reshape(-1), philox.uniform(numbers(400, 1)).bfloat16() % 1)
    assert torch.equal(found[2], philox.uniform_double(philox.strided_wide_bits(SEED, OFFSET + 8, 300, 512)))
    torch.testing.assert_close(found[3].reshape(-1), philox.uniform(numbers(400, 3)) * 8 - 3)
    assert torch.equal(found[4].reshape(-1), (philox.uniform(numbers(400, 4)) < 0.25).float())
    assert torch.equal(found[5].reshape(-1), numbers(56, 5) % 1005 - 5)
    assert torch.equal(found[6].reshape(-1), numbers(400, 6) % 3)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.rand(300_000, device="cuda"),  # which ATen computes four at a time
        lambda x: torch.randn_like(x),
        lambda x: torch.randint(0, 2**30, (5,), device="cuda"),
        lambda x: torch.randint(0, 3, (5,), device="cuda", dtype=torch.int32),
        lambda x: aten.bernoulli.default(x),
        lambda x: aten.bernoulli.Tensor(x, x),
        lambda x: aten.bernoulli.p(x.int(), 0.5),
    ],
)
def test_numbers_that_aten_draws(function):
    assert not Made(function, torch.ones(5, 6)).steps("draw")


# ---- on a GPU --------------------------------------------------------------------------------------------------------


def bits(value):
    if isinstance(value, (tuple, list)):
        return [bits(one) for one in value]
    return value.detach().contiguous().view(torch.uint8).cpu() if isinstance(value, torch.Tensor) else value


def same(a, b):
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def observed(function, inputs, seed, times):
    torch.manual_seed(seed)
    torch.rand(3, device="cuda")
    found = []
    for _ in range(times):
        given = [one.detach().clone(memory_format=torch.preserve_format).requires_grad_() for one in inputs]
        results = function(*given)
        results = results if isinstance(results, tuple) else (results,)
        sum(one.float().sum() for one in results).backward()
        found += [bits(results), bits([one.grad for one in given])]
    return [*found, torch.cuda.get_rng_state()]


def check(function, *inputs, seed=1234567890123, times=2):
    """The compiled function gives eager's bits, and leaves the generator as eager does."""
    kiln.reset()
    expected = observed(function, inputs, seed, times)
    found = observed(kiln.compile(function, backend="kiln"), inputs, seed, times)
    for number, (one, other) in enumerate(zip(expected, found, strict=True)):
        assert same(one, other), f"part {number} differs"


@on_gpu
def test_what_aten_draws_is_compared(monkeypatch):
    """For releases of torch whose kernels were not read."""
    device = torch.device("cuda", 0)
    expected = gpu_generators.processors_and_threads(0)
    state = torch.cuda.get_rng_state()
    assert draw_check.agrees(device, *expected)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    for name, value in (("KEY_STEPS", (1, 2)), ("NUMBERS_OF_CALL", 2), ("count_below", lambda bound: 5)):
        with monkeypatch.context() as patch:
            patch.setattr(drawing, name, value)
            assert not draw_check.agrees(device, *expected), name
    assert not draw_check.agrees(device, expected[0] - 1, expected[1])


@on_gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_dropout(size, dtype):
    check(lambda x: F.dropout(x, 0.1), torch.randn(size, device="cuda").to(dtype))


@on_gpu
def test_dropout_of_dynamic_sizes():
    def f(x, y):
        return F.dropout(torch.cat([x] * 4, 1), 0.1), F.dropout(y, 0.5)

    kiln.reset()
    compiled = kiln.compile(f, dynamic=True, backend="kiln")
    for shape in ((2, 3, 5), (40, 70, 9), (1000, 100, 40), (7, 1, 1), (3000, 300, 2)):
        x, y = torch.randn(shape, device="cuda"), torch.randn(shape[0], 768, device="cuda", dtype=torch.bfloat16)
        results = []
        for function in (f, compiled):
            torch.manual_seed(9)
            results.append([*function(x, y), *function(x, y), torch.cuda.get_rng_state()])
        assert all(torch.equal(one, other) for one, other in zip(*results, strict=True)), shape


@on_gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 7, 255, 256, 1023, 4096, 270_336, 270_337, 1_000_003])
def test_uniform(size, dtype):
    def f(x):
        y = torch.rand_like(x) + 1
        z = torch.empty_like(x).uniform_(-0.3, 1.7)
        return x * y, z * 2, torch.empty_like(x).bernoulli_(0.3) * x, torch.rand(size, device="cuda", dtype=dtype) * x

    check(f, torch.randn(size, device="cuda").to(dtype))


@on_gpu
def test_integers():
    def f(x):
        return x * torch.randint(3, 1000, (77, 5), device="cuda"), x * torch.randint_like(x, 7)

    check(f, torch.randn(77, 5, device="cuda"))


@on_gpu
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9999, 1.0])
def test_probabilities(p):
    check(lambda x: F.dropout(x, p) + 1, torch.randn(300, 400, device="cuda"))


@on_gpu
def test_several_draws_in_sequence():
    def f(x, y):
        a = F.dropout(x, 0.1)
        b = torch.randn_like(x)
        c = F.dropout(a * b, 0.3)
        return c, F.dropout(y, 0.5), torch.rand_like(x) + F.dropout(F.relu(c), 0.2)

    check(f, torch.randn(512, 384, device="cuda"), torch.randn(384, 128, device="cuda"), times=3)


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_in_fused_kernels(dtype):
    def f(x, r, w, b):
        return F.layer_norm(F.dropout(x, 0.1) + r, (768,), w, b), F.softmax(F.dropout(x.relu(), 0.2).float(), -1)

    given = [torch.randn(1024, 768, device="cuda").to(dtype) for _ in range(2)]
    kiln.reset()
    torch.manual_seed(3)
    expected = f(*given, *(torch.ones(768, device="cuda", dtype=dtype) for _ in range(2)))
    torch.manual_seed(3)
    found = kiln.compile(f, backend="kiln")(*given, *(torch.ones(768, device="cuda", dtype=dtype) for _ in range(2)))
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, rtol=2e-2 if dtype is torch.bfloat16 else 1e-4, atol=1e-2)


@on_gpu
@pytest.mark.parametrize(
    "layout",
    [
        lambda x: x.to(memory_format=torch.channels_last),
        lambda x: x.transpose(1, 2),
        lambda x: x[:, ::2],
        lambda x: x.reshape(-1)[1:],
        lambda x: x.reshape(-1)[2:],
        lambda x: x[1:, 1:],
        lambda x: x[:, :, :1].expand(-1, -1, 8, -1),
    ],
)
def test_layouts(layout):
    x = layout(torch.randn(4, 16, 8, 12, device="cuda"))
    torch.manual_seed(5)
    expected = F.dropout(x, 0.4)
    torch.manual_seed(5)
    kiln.reset()
    found = kiln.compile(lambda x: F.dropout(x, 0.4), backend="kiln")(x)
    assert torch.equal(found, expected) and found.stride() == expected.stride()


@on_gpu
def test_views_inside_the_graph():
    def f(x):
        y = x.relu()
        return F.dropout(y.t(), 0.5), F.dropout(y[3:], 0.5), F.dropout(y.reshape(-1)[1:], 0.5), F.dropout(y[:, 4:], 0.5)

    check(f, torch.randn(64, 96, device="cuda"))


@on_gpu
def test_changed_inputs():
    def f(x):
        x.mul_(2)
        return F.dropout(x, 0.5)

    for start in (0, 4):  # where it is not aligned, eager's numbers depend on the memory that it changes in place
        base = torch.randn(4100, device="cuda")
        results = []
        for function in (f, kiln.compile(f, backend="kiln")):
            x = base.clone()[start : 4096 + start]
            torch.manual_seed(9)
            results.append((function(x), x))
        assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])


@on_gpu
def test_seeds_and_forks():
    def f(x):
        return F.dropout(x, 0.5)

    x, compiled = torch.randn(1000, device="cuda"), kiln.compile(f, backend="kiln")
    compiled(x)
    for seed in (0, 1, 2**63 - 1, 2**63 + 5, -3):
        results = []
        for function in (f, compiled):
            torch.manual_seed(seed)
            with torch.random.fork_rng(devices=[0]):
                inside = function(x)
            results.append((inside, function(x)))
        assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
        assert torch.equal(*results[1])


@on_gpu
def test_checkpoint():
    def f(x, w):
        return checkpoint(lambda x: F.dropout(torch.tanh(x @ w), 0.5), x, use_reentrant=False)

    x, w = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    results = []
    for function in (f, kiln.compile(f, backend="kiln")):
        torch.manual_seed(11)
        a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
        found = function(a, b)
        found.sum().backward()
        results.append((found, a.grad, b.grad))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)


@on_gpu
def test_inside_a_cuda_graph():
    """Each replay draws anew, as eager's kernels in a graph do."""

    def f(x):
        return F.dropout(x, 0.5), F.dropout(x.relu(), 0.1)

    x = torch.randn(64, 1024, device="cuda")
    compiled = kiln.compile(f, backend="kiln")
    replays = []
    for function in (f, compiled):
        torch.manual_seed(21)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side), torch.no_grad():
            function(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            results = function(x)
        seen = []
        for seed in (None, None, 77):
            if seed is not None:
                torch.manual_seed(seed)
            graph.replay()
            seen += [one.clone() for one in results]
        with torch.no_grad():
            seen += function(x)
        replays.append(seen)
    assert not torch.equal(replays[0][0], replays[0][2])
    for number, (one, other) in enumerate(zip(*replays, strict=True)):
        assert torch.equal(one, other), number


@on_gpu
def test_other_threads_and_checked_programs():
    def f(x):
        return F.dropout(x.exp(), 0.5)

    x = torch.randn(256, 256, device="cuda")
    torch.manual_seed(1)
    expected = f(x)
    torch.manual_seed(1)
    found = kiln.compile(f, backend="kiln", options={"check": True})(x)
    torch.testing.assert_close(found, expected)
