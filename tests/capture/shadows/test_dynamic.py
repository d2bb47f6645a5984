"""Sizes and numbers that vary: symbolic after one miss, right for every value that passes the guards."""

import math
import random

import pytest
import torch

import kiln
from kiln.report import events
from kiln.testing import CompileCounter, check, same


def run(function, calls, *, frames=None, **options):
    """Call compiled and plain with each tuple of arguments; gives the counter. ``frames`` after the last call."""
    backend = CompileCounter()
    compiled = kiln.compile(function, backend=backend, **options)
    reasons = []
    for number, args in enumerate(calls):
        with events.listen() as heard:
            result = compiled(*args)
        expected = function(*args)
        assert same(expected, result), f"call {number} with {args}: {expected} expected, {result} seen"
        assert type(expected) is type(result)
        assert not heard.skips, heard.skips
        reasons += [reason for _, reason in heard.recompiles]
    if frames is not None:
        assert backend.frame_count == frames, f"{frames} graphs expected, {backend.frame_count} seen: {reasons}"
    backend.reasons = reasons
    return backend


def vectors(*sizes):
    return [(torch.arange(float(size)),) for size in sizes]


def matrices(*shapes):
    return [(torch.arange(float(math.prod(shape))).reshape(shape),) for shape in shapes]


# -- which sizes are symbolic, and when -----------------------------------------------------------------------------


def test_third_size_does_not_recompile():
    backend = run(lambda x: x * 2 + 1, vectors(3, 4, 5, 100, 2), frames=2)
    assert backend.reasons == ["L['x'] size 0: 3 expected, 4 seen"]


def test_dynamic_true_is_symbolic_at_once():
    run(
        lambda x, n: x * n,
        [(x, n) for (x,), n in zip(vectors(3, 4, 5), (7, 8, 9), strict=True)],
        frames=1,
        dynamic=True,
    )


def test_dynamic_false_never_is():
    run(lambda x: x * 2, vectors(3, 4, 5), frames=3, dynamic=False)
    run(lambda x, n: x * n, [(torch.ones(2), n) for n in (3, 4, 5)], frames=3, dynamic=False)


def test_automatic_dynamic_can_be_switched_off():
    with kiln.config.patch(automatic_dynamic=False):
        run(lambda x: x * 2, vectors(3, 4, 5), frames=3)


def test_only_what_varies_is_symbolic():
    backend = run(lambda x: x.sum(0) + x.shape[1], matrices((2, 3), (4, 3), (5, 3)), frames=2)
    assert "3" in backend.graphs[1].code and "size(1)" not in backend.graphs[1].code
    run(lambda x: x.sum(0) + x.shape[1], matrices((2, 3), (4, 3), (5, 3), (5, 4), (6, 7)), frames=3)


def test_marked_dynamic_is_symbolic_at_once():
    calls = vectors(3, 4, 5)
    kiln.mark_dynamic(calls[0][0], 0)
    run(lambda x: x * 2, calls, frames=1)
    calls = matrices((2, 3), (4, 5), (6, 7))
    kiln.mark_dynamic(calls[0][0], [0, -1])
    run(lambda x: x * 2, calls, frames=1)


def test_marked_static_stays_so():
    calls = vectors(3, 4, 5)
    for (x,) in calls:
        kiln.mark_static(x)
    run(lambda x: x * 2, calls, frames=3, dynamic=True)
    calls = matrices((2, 3), (3, 3), (4, 4), (5, 4))
    for (x,) in calls:
        kiln.mark_static(x, 1)
    run(lambda x: x * 2, calls, frames=2, dynamic=True)


@pytest.mark.parametrize("mark", [kiln.mark_dynamic, kiln.mark_static])
def test_marks_check_their_arguments(mark):
    with pytest.raises(kiln.exc.UserError, match="dimension 2 of a tensor with 1"):
        mark(torch.ones(3), 2)
    with pytest.raises(kiln.exc.UserError, match="a tensor is expected, not int"):
        mark(3, 0)


def test_parameters_keep_their_sizes():
    module = torch.nn.Linear(3, 4)
    backend = run(module, matrices((2, 3), (5, 3), (6, 3)), frames=2)
    assert "weight" in backend.graphs[1].code


SIZES = {
    "index": lambda x: x * x.shape[0],
    "negative index": lambda x: x * x.shape[-1],
    "size": lambda x: x * x.size(0),
    "all sizes": lambda x: x * x.size()[0],
    "unpacked": lambda x: x * [n for n in x.shape][0],
    "slice": lambda x: x * x.shape[:1][0],
    "sum": lambda x: x.reshape(x.shape[:-1] + (x.shape[-1],)) + sum(x.shape),
    "numel": lambda x: x * x.numel() + x.shape.numel(),
    "len": lambda x: x * len(x),
    "tuple": lambda x: torch.zeros(tuple(x.shape)) + x + torch.zeros(*x.shape) + torch.zeros(x.shape),
    "list": lambda x: x.reshape(list(x.shape)) + x.new_zeros(x.size(0)),
    "returned": lambda x: (x.shape, x.size(0), tuple(x.shape), list(x.shape), x.shape[0] // 2),
    "view": lambda x: x.view(1, x.shape[0]) + x.view(-1, x.shape[0]),
    "compared": lambda x: x + 1 if x.shape[0] > 2 else x,
    "equal sizes": lambda x: x + 1 if x.shape[0] == x.size(-1) else x,
}


@pytest.mark.parametrize("function", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_stay_symbolic(function, dynamic):
    backend = run(function, vectors(3, 4, 5, 7, 11, 6), dynamic=dynamic)
    assert len(backend.reasons) == (dynamic is None), backend.reasons


def test_zero_and_one_are_special():
    run(lambda x: x.sum() * x.shape[0], vectors(3, 4, 5, 1, 0, 1, 0, 7), frames=4)
    run(lambda x: x + torch.ones(3), vectors(3, 1, 3, 1), frames=2)


def test_equal_sizes_then_unequal():
    def f(x, y):
        return x.sum() + y.sum() + x.shape[0]

    pairs = [(3, 3), (4, 4), (5, 5), (4, 6), (7, 9), (8, 8)]
    run(f, [(torch.ones(a), torch.ones(b)) for a, b in pairs], frames=3)


def test_equal_sizes_that_must_be_equal():
    run(lambda x, y: x + y, [(torch.ones(n), torch.ones(n)) for n in (3, 4, 5, 6)], frames=2)


def test_two_dimensions_equal_then_unequal():
    run(lambda x: x.sum(1) * 2, matrices((3, 3), (4, 4), (5, 5), (5, 6), (7, 8)), frames=2)


# -- strides --------------------------------------------------------------------------------------------------------

STRIDED = {
    "transposed": lambda n: torch.arange(float(n * (n + 1))).reshape(n, n + 1).t(),
    "columns": lambda n: torch.arange(float(n * (n + 2))).reshape(n, n + 2)[:, :2],
    "every other": lambda n: torch.arange(float(4 * n)).reshape(2 * n, 2)[::2],
    "offset": lambda n: torch.arange(float(3 * n)).reshape(n, 3)[1:],
    "expanded": lambda n: torch.arange(3.0).expand(n, 3),
    "permuted": lambda n: torch.arange(float(n * 6)).reshape(2, n, 3).permute(2, 0, 1),
    "channels last": lambda n: torch.arange(float(n * 24)).reshape(n, 2, 3, 4).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("make", STRIDED.values(), ids=STRIDED)
def test_strides_of_views(make):
    def f(x):
        return (x * 2 + 1, x.stride(), x.is_contiguous(), x.contiguous().view(-1), x.t() if x.dim() == 2 else x)

    run(f, [(make(n),) for n in (4, 5, 6, 9)], frames=2)
    calls = [(make(n),) for n in (4, 5, 6)] + [(make(7).contiguous(),), (make(8),)]
    run(f, calls)


def test_storage_offsets_are_seen():
    def f(x):
        return x + x.storage_offset(), x[1:].storage_offset()

    base = torch.arange(20.0)
    run(f, [(base[k : k + 5],) for k in (0, 3, 4, 0)])
    run(f, [(base[k : k + 3 + k],) for k in (2, 3, 4, 5)])


# -- ints -----------------------------------------------------------------------------------------------------------

INTEGERS = {
    "arithmetic": lambda x, n: x * (n * 3 - 2 + n // 2 + n % 3),
    "negative": lambda x, n: x * (-n // 2) + (-n) % 3,
    "power": lambda x, n: x * n**2 + 2**n,
    "true division": lambda x, n: x * (n / 3) + 1 / n,
    "bits": lambda x, n: x * ((n << 1) | 1) + (n & 6) + (n ^ 3) + (n >> 1) + ~n,
    "extremes": lambda x, n: x * max(n, 4) + min(n, 4) + max(n, 2, 6),
    "absolute": lambda x, n: x * abs(3 - n),
    "divmod": lambda x, n: x * divmod(n, 3)[0] + divmod(n, 3)[1],
    "float": lambda x, n: x * float(n) + n * 0.1,
    "math": lambda x, n: x * math.sqrt(n) + math.floor(n / 2) + math.ceil(n / 2) + math.log(n),
    "round": lambda x, n: x * round(n / 3, 2) + round(n / 3) + int(n / 2),
    "truth": lambda x, n: x + 1 if n else x - 1,
    "chain": lambda x, n: x + 1 if 2 < n < 6 else x - 1,
    "equality": lambda x, n: x + 1 if n == 5 or n != 6 else x - 1,
    "range": lambda x, n: sum([x * i for i in range(n)], x),
    "text": lambda x, n: x + len(f"{n:>{n}}") + len(str(n)),
    "list": lambda x, n: x + len([0] * n) + [1, 2, 3, 4, 5, 6, 7, 8, 9][n % 9],
    "dictionary": lambda x, n: x + {3: 1, 4: 2}.get(n, 7),
    "returned": lambda x, n: (x + 1, n, n + 1, n * 0.5, [n - 1], {"n": n}, n > 4),
    "factory": lambda x, n: torch.zeros(n, n + 1).sum() + torch.arange(n).sum() + torch.full((2,), n),
    "index": lambda x, n: x[n % 2] + x[: n - 2].sum() + x[-n:].sum(),
    "view": lambda x, n: x.repeat(n).view(n, -1).sum(0),
    "is instance": lambda x, n: x + 1 if isinstance(n, int) and type(n) is int else x,
    "boolean": lambda x, n: x * (n + True) + (n > 3) + (n > 3) * 2,
}


@pytest.mark.parametrize("function", INTEGERS.values(), ids=INTEGERS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_ints(function, dynamic):
    with kiln.config.patch(recompile_limit=100):
        run(function, [(torch.arange(4.0) + 1, n) for n in (3, 4, 5, 6, 8, 13, 1, 2, 4)], dynamic=dynamic)


@pytest.mark.parametrize("name", ["arithmetic", "power", "true division", "bits", "absolute", "float", "math", "round"])
def test_int_arithmetic_does_not_recompile(name):
    run(INTEGERS[name], [(torch.ones(2), n) for n in (13, 14, 15, 17, 31)], frames=2)


def test_names_that_conditions_use():
    """Parameters called like a symbol, or like a function that conditions on sizes are written with."""

    def f(s0, s77, max, min, int, math, a, here):
        size = s0.shape[0] // 2 if s0.shape[0] % 3 == max % 3 else s0.shape[0] - int
        return s0[:size] * max + min + (s77 if a > here else math) + (a == here)

    rows = [(6, 5, 3, 2, 1, 7, 9, 8), (7, 6, 5, 3, 2, 8, 8, 9), (9, 6, 7, 4, 3, 9, 6, 2), (12, 3, 6, 5, 4, 2, 5, 5)]
    calls = [(torch.arange(float(size)), *rest) for size, *rest in rows * 2]
    with kiln.config.patch(recompile_limit=100):
        backend = run(f, calls, dynamic=True)
    assert len(backend.reasons) < 4


def test_negative_ints_and_zero():
    run(lambda x, n: x * n, [(torch.ones(2), n) for n in (3, 4, -5, 0, 1, -1)], frames=2)


def test_huge_ints():
    run(lambda x, n: (x + 1, n * 2), [(torch.ones(2), n) for n in (2**70, 2**71, 5, 6, 2**62 + 1)])


def test_branch_specialises_with_a_guard_in_words():
    def f(x, n):
        return x + 1 if n > 10 else x - 1

    backend = run(f, [(torch.ones(2), n) for n in (3, 4, 5, 12, 13, 6)], frames=3)
    assert backend.reasons[1] == "L['n'] <= 10 expected"


def test_size_branch_specialises_with_a_guard_in_words():
    def f(x):
        return x.sum() if x.shape[0] % 2 == 0 else x.mean()

    backend = run(f, vectors(4, 6, 8, 5, 7, 9, 10), frames=3)
    assert backend.reasons[1].startswith("L['x'].size(0) % 2 == 0") or "L['x'].size(0)" in backend.reasons[1]


def test_counter_on_a_module_does_not_recompile_for_ever():
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x + self.calls

    module, plain = Counting(), Counting()
    backend = CompileCounter()
    compiled = kiln.compile(module, backend=backend)
    for _ in range(12):
        assert same(compiled(torch.ones(2)), plain(torch.ones(2)))
        assert module.calls == plain.calls
    assert backend.frame_count == 3  # for 0, for 1, for all others


def test_settings_of_modules_stay_constant_under_dynamic_true():
    backend = run(torch.nn.LayerNorm(4), [(torch.ones(n, 4),) for n in (2, 3, 4)], frames=1, dynamic=True)
    assert "1e-05" in backend.graphs[0].code


def test_global_and_closure_ints():
    count = 0

    def f(x):
        nonlocal count
        count += 1
        return x * count

    backend = CompileCounter()
    compiled = kiln.compile(f, backend=backend)
    for number in range(1, 12):
        assert same(compiled(torch.ones(2)), torch.ones(2) * number)
    assert backend.frame_count == 3


# -- floats ---------------------------------------------------------------------------------------------------------

FLOATS = {
    "scale": lambda x, s: x * s,
    "alpha": lambda x, s: torch.add(x, x, alpha=s),
    "negated": lambda x, s: x.add(x, alpha=-s),
    "not associative": lambda x, s: x * ((s + 0.1) + 0.2 - 0.3),
    "not distributive": lambda x, s: x * (s * 0.1 + s * 0.2),
    "power": lambda x, s: x * s**2 + s**0.5,
    "math": lambda x, s: x * math.exp(-s) + math.floor(s) + math.sin(s) + abs(-s),
    "int": lambda x, s: x * int(s) + round(s),
    "fill": lambda x, s: torch.full_like(x, s) + torch.full((2, 2), s).sum(),
    "clamp": lambda x, s: x.clamp(max=s) + torch.nn.functional.leaky_relu(-x, s),
    "returned": lambda x, s: (x, s, s * 2, [s + 0.1 + 0.2]),
    "size": lambda x, s: x * (s / x.shape[0]),
    "is instance": lambda x, s: x + 1 if isinstance(s, float) else x,
    "tensor": lambda x, s: x + torch.tensor(s),
}


@pytest.mark.parametrize("name", FLOATS)
def test_floats(name):
    numbers = (3.5, 2.25, 0.1, 0.7, 1e-30, 123456.789, 0.30000000000000004, 0.3)
    with kiln.config.patch(recompile_limit=100):
        backend = run(FLOATS[name], [(torch.arange(3.0), n) for n in numbers])
        run(FLOATS[name], [(torch.arange(3.0), n) for n in (0.5, 1.0, 0.0, 2.0)])
    if name not in ("int", "tensor", "returned", "math"):
        assert backend.frame_count == 2, backend.reasons


def test_special_floats():
    calls = [(torch.ones(2), s) for s in (0.5, 0.25, math.inf, -math.inf, math.nan, 0.0, -0.0, 1.0, 0.75)]
    run(lambda x, s: (x * s, math.copysign(1.0, s), s > 0.1), calls)


def test_float_comparison_specialises_with_a_guard():
    calls = [(torch.ones(2), s) for s in (0.5, 0.6, 0.7, 0.1, 0.2)]
    backend = run(lambda x, s: x + 1 if s > 0.3 else x - 1, calls, frames=3)
    assert "L['s']" in backend.reasons[-1] and "0.3" in backend.reasons[-1]


def test_float_that_is_used_as_text_is_constant():
    run(lambda x, s: x + len(str(s)), [(torch.ones(2), s) for s in (0.5, 0.25, 0.125)], frames=3)


def test_learning_rate_schedule():
    class Step:
        def __init__(self):
            self.rate = 0.1

        def __call__(self, p, g):
            p.add_(g, alpha=-self.rate)
            self.rate *= 0.9
            return p

    backend = CompileCounter()
    one, other = Step(), Step()
    compiled = kiln.compile(one, backend=backend)
    p, q = torch.ones(3), torch.ones(3)
    for _ in range(12):
        assert same(compiled(p, torch.ones(3)), other(q, torch.ones(3)))
        assert one.rate == other.rate
    assert backend.frame_count == 2


# -- every size that passes the guards ------------------------------------------------------------------------------

SHAPED = {
    "reshape": lambda x: x.reshape(-1, 2) if x.numel() % 2 == 0 else x.reshape(-1),
    "split": lambda x: [part.sum() for part in x.split(3)],
    "chunk": lambda x: x.chunk(2),
    "unfold": lambda x: x.unfold(0, 2, 1).sum(),
    "pad": lambda x: torch.nn.functional.pad(x, (0, x.shape[-1] % 3)),
    "cat": lambda x: torch.cat([x, x[: x.shape[0] // 2]]),
    "half": lambda x: x[: x.shape[0] // 2] + x[x.shape[0] - x.shape[0] // 2 :],
    "broadcast": lambda x: x[:, None] + x[None, :] if x.dim() == 1 else x,
    "matmul": lambda x: x @ x.t() if x.dim() == 2 else x @ x,
    "conv": lambda x: torch.nn.functional.avg_pool1d(x.reshape(1, 1, -1), 2) if x.numel() > 3 else x,
    "view": lambda x: x.view(x.shape[0], -1).sum(1) / x.shape[0],
    "loop": lambda x: sum([x[i] for i in range(x.shape[0])], x[0]),
    "softmax": lambda x: torch.softmax(x / math.sqrt(x.shape[-1]), -1),
    "interpolate": lambda x: torch.nn.functional.interpolate(x.reshape(1, 1, -1), size=x.numel() + 1),
    "flatten": lambda x: x.flatten().view(x.numel()),
    "numel": lambda x: x.reshape(x.numel()) * (x.numel() - 1),
    "transposed": lambda x: x.t().contiguous() if x.dim() == 2 else x.flip(0),
    "roll": lambda x: torch.roll(x, x.shape[0] // 2),
    "unbind": lambda x: x.unbind(0)[-1],
    "unpack": lambda x: sum(x.shape) + x,
    "triangle": lambda x: torch.ones(x.shape[0], x.shape[0]).triu().sum() + x,
    "strides": lambda x: (x + 1, x.stride(), x.is_contiguous()),
}


@pytest.mark.parametrize("name", SHAPED)
@pytest.mark.parametrize("dynamic", [None, True])
def test_random_shapes(name, dynamic):
    """The graph is right for every size that passes the guards: many sizes, in an order that differs by program."""
    rng = random.Random(name)
    shapes = []
    for _ in range(10):
        rank = rng.choice((1, 1, 2))
        shapes.append(tuple(rng.choice((1, 2, 3, 4, 5, 6, 7, 8, 12)) for _ in range(rank)))
    with kiln.config.patch(recompile_limit=1000):
        run(SHAPED[name], matrices(*shapes), dynamic=dynamic)


def test_sizes_across_a_break():
    def f(x):
        n = x.shape[0]
        y = x * n
        kiln.graph_break()
        return y + n * 2, n

    run(f, vectors(3, 4, 5, 6, 7), frames=4)


def test_lists_of_varying_length_are_told_apart_by_length():
    lists = [[torch.ones(2) for _ in range(length)] for length in (2, 3, 4)]
    run(lambda xs: sum(xs[1:], xs[0]), [(xs,) for xs in lists], frames=3)


# -- sizes that depend on data --------------------------------------------------------------------------------------


def by_nonzero(x):
    return x.nonzero().sum() + 1


def by_item(x):
    return torch.ones(int(x.sum().item())).sum()


def by_mask(x):
    return x[x > 1].sum()


@pytest.mark.parametrize("function", [by_nonzero, by_item, by_mask])
@pytest.mark.parametrize("dynamic", [None, True])
def test_data_dependent_sizes(function, dynamic):
    run(function, vectors(3, 4, 5), dynamic=dynamic)
    with pytest.raises(kiln.exc.Unsupported) as caught:
        kiln.compile(function, fullgraph=True, dynamic=dynamic)(torch.arange(4.0))
    text = str(caught.value)
    assert "test_dynamic.py" in text and "value" in text and "What to do" in text


def test_truths_of_varying_numbers_are_numbers_too():
    def main(n, m):
        found = [n << (n == m), n ** (n < m), (n < m) ^ False, (n < m) & (n == m), (n < m) + (m < n), -(n < m)]
        return found, [type(value) for value in found], n * (m > 2), f"{(n, m < n)}"

    check(main, calls=[(3, 4), (5, 4), (7, 9), (9, 2), (11, 12)])


def test_a_square_is_not_taken_for_a_rule():
    """Two sizes of one tensor that happen to be equal when they are found to vary stay two numbers."""

    def program(x, mask):
        return (x * mask).sum(1) + x.shape[0] * x.shape[1]

    sizes = [(2, 3), (4, 4), (3, 5), (5, 2)]
    calls = [(torch.rand(size), torch.ones(size)) for size in sizes]
    check(program, calls=calls, fullgraph=True, graphs=2)
