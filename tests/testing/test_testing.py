"""The differential helper must itself be tested: it has to see each kind of difference, and no difference in equals.

A fake compiler stands in for Kiln and perturbs one thing at a time.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import random
import warnings
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from kiln.testing import (
    Call,
    CompileCounter,
    CompileCounterWithBackend,
    Mismatch,
    check,
    check_source,
    differences,
    same,
)

COUNTS = [0]
TOTAL = 0


def identity(program, **options):
    return program


def perturbing(change):
    """A compiler whose product calls the program and then hands (result, args) to `change` for the final result."""

    def compiler(program, **options):
        @functools.wraps(program)
        def run(*args, **kwargs):
            return change(program(*args, **kwargs), args)

        return run

    return compiler


def fails(program, *args, compile, match, **more):
    check(program, *args, compile=identity, **more)
    with pytest.raises(Mismatch, match=match):
        check(program, *args, compile=compile, **more)


# --- same and differences ---------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Point:
    x: float
    y: Any


Pair = collections.namedtuple("Pair", "left right")


class Plain:
    def __init__(self, value):
        self.value = value


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


EQUAL = [
    lambda: 1,
    lambda: float("nan"),
    lambda: complex(1, float("nan")),
    lambda: torch.tensor([1.0, float("nan")]),
    lambda: [1, (2, {"a": {3, 4}})],
    lambda: Point(1.0, torch.ones(2)),
    lambda: Pair(1, [torch.ones(2)]),
    lambda: Plain({"k": torch.zeros(1)}),
    lambda: Slotted([1]),
    lambda: numpy.array([1.0, numpy.nan]),
    lambda: ValueError("text", 3),
    lambda: collections.deque([torch.ones(1)], maxlen=3),
    lambda: collections.OrderedDict(a=1, b=torch.ones(1)),
    lambda: collections.defaultdict(list, a=[1]),
    lambda: iter([1, 2]),
    lambda: torch.Size([2, 3]),
    lambda: torch.eye(2).to_sparse(),
    lambda: nn.Linear(2, 2).requires_grad_(False).apply(lambda module: nn.init.ones_(module.weight)).weight,
    lambda: {Plain(1)},
    lambda: lambda default=3: default,
    lambda: torch.device("cpu"),
    lambda: {"a": 1}.values(),
]

DIFFERENT = [
    (1, 2),
    (1, True),
    (1, 1.0),
    (0.0, -0.0),
    ("a", "b"),
    ([1], (1,)),
    ([1], [1, 2]),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({"a": 1}, {"a": 2}),
    ({1, 2}, {1, 3}),
    (torch.ones(2), torch.zeros(2)),
    (torch.ones(2), torch.ones(2, dtype=torch.float64)),
    (torch.ones(2), torch.ones(1, 2)),
    (torch.ones(2), torch.ones(2, requires_grad=True)),
    (torch.ones(2), nn.Parameter(torch.ones(2), requires_grad=False)),
    (torch.ones(2), torch.ones(2, device="meta")),
    (torch.eye(2), torch.eye(2).to_sparse()),
    (Point(1.0, 2), Point(1.0, 3)),
    (Pair(1, 2), Pair(1, 3)),
    (Pair(1, 2), (1, 2)),
    (Plain(1), Plain(2)),
    (Slotted(1), Slotted(2)),
    (numpy.array([1.0]), numpy.array([2.0])),
    (numpy.array([1]), numpy.array([1.0])),
    (numpy.float32(1), numpy.float64(1)),
    (ValueError("a"), ValueError("b")),
    (ValueError("a"), TypeError("a")),
    (collections.deque([1], maxlen=3), collections.deque([1], maxlen=4)),
    (collections.deque([torch.ones(1)]), collections.deque([torch.zeros(1)])),
    (iter([1, 2]), iter([1, 3])),
    (len, abs),
    (int, float),
    ([].append, {}.get),
    ({"a": 1}.values(), {"a": 2}.values()),
    (random, warnings),
    (torch.float32, torch.float64),
]


@pytest.mark.parametrize("make", EQUAL)
def test_same_sees_equals(make):
    assert differences(make(), make()) == []
    assert same(make(), make())


@pytest.mark.parametrize("index", range(len(DIFFERENT)))
def test_same_sees_differences(index):
    left, right = DIFFERENT[index]
    assert not same(left, right)
    assert not same(right, left)


def test_strides_are_seen():
    left, right = torch.ones(2, 3), torch.ones(3, 2).t()
    assert not same(left, right)
    assert same(left, right, strides=False)


def test_tolerance():
    assert not same(torch.tensor(1.0), torch.tensor(1.0 + 1e-6))
    assert same(torch.tensor(1.0), torch.tensor(1.0 + 1e-6), rtol=1e-5)
    assert same(1.0, 1.0 + 1e-9, rtol=1e-5)
    assert not same(torch.tensor(1), torch.tensor(2), atol=10.0)


def test_recursive_structures_end():
    left, right = [1], [1]
    left.append(left)
    right.append(right)
    assert same(left, right)


def test_identity_of_objects_and_storages():
    shared = [1]
    assert differences([shared, shared], [[1], [1]])
    assert differences([[1], [1]], [shared, shared])
    assert same([shared, shared], [[1], [1]])
    base = torch.zeros(4)
    assert "share storage" in differences([base, base[:2]], [torch.zeros(4), torch.zeros(2)])[0]
    assert "expected its own" in differences([torch.zeros(4), torch.zeros(2)], [base, base[:2]])[0]


def test_twin_classes_pair_up():
    def make():
        class Local:
            pass

        return Local()

    assert same(make(), make())
    one, other = make(), make()
    assert not same([one, one], [other, make()], identity=True)


def test_paths_say_where():
    (text,) = differences({"a": [1, Plain(torch.ones(2))]}, {"a": [1, Plain(torch.zeros(2))]})
    assert text.startswith("value['a'][1].value: 2 of 2 values differ, by 1 at most")


# --- counters ---------------------------------------------------------------------------------------------------------


def traced():
    return torch.fx.symbolic_trace(lambda x: (x.sin() + 1).cos())


def test_counter():
    counter = CompileCounter()
    run = counter(traced(), [])
    assert (counter.frame_count, counter.op_count) == (1, 3)
    assert torch.equal(run(torch.zeros(1)), torch.zeros(1).sin().add(1).cos())
    counter.clear()
    assert (counter.frame_count, counter.op_count, counter.graphs) == (0, 0, [])


def test_counter_with_backend():
    seen = []

    def backend(graph_module, example_inputs):
        seen.append(graph_module)
        return graph_module.forward

    counter = CompileCounterWithBackend(backend)
    graph_module = traced()
    counter(graph_module, [])
    assert seen == [graph_module]
    assert counter.frame_count == 1
    assert CompileCounterWithBackend("eager")(graph_module, [])(torch.ones(1)) is not None


# --- check: equals pass -----------------------------------------------------------------------------------------------


def test_each_run_has_copies_of_arguments():
    values = [1]
    report = check(lambda items: items.append(2), values, compile=identity)
    assert values == [1]
    assert report.compiled.arguments == [(([1, 2],), {})]


def test_closures_are_copied():
    log = []

    def program(x):
        log.append(len(log))
        return x + len(log)

    check(program, torch.ones(2), compile=identity, calls=3)
    assert log == []


def test_hooks_with_closures_are_copied():
    log = []
    model = nn.Linear(2, 2)
    model.register_forward_hook(lambda module, inputs, output: log.append("hook"))
    check(model, torch.ones(1, 2), compile=identity)
    assert log == []

    def skips_hooks(program, **options):
        return program.forward

    with pytest.raises(Mismatch, match="length 1 expected, 0 seen"):
        check(model, torch.ones(1, 2), compile=skips_hooks)


def count_globally(x):
    global TOTAL
    COUNTS.append(len(COUNTS))
    TOTAL += 1
    return x * TOTAL


def test_globals_are_put_back():
    report = check(count_globally, torch.ones(1), calls=2, compile=identity)
    assert report.compiled.globals["TOTAL"] == 2
    assert (COUNTS, TOTAL) == ([0], 0)


def test_setup_and_state():
    def setup():
        log = []

        def program(x):
            log.append("called")
            return x

        return program, (torch.ones(1),), log

    assert check(setup=setup, compile=identity).eager.state == ["called"]

    def forgets(program, **options):
        return lambda x: x

    with pytest.raises(Mismatch, match="state: length 1 expected, 0 seen"):
        check(setup=setup, compile=forgets)


def test_make_args_for_non_leaf_tensors():
    with pytest.raises(TypeError, match="make_args"):
        check(lambda x: x * 2, torch.ones(1, requires_grad=True) * 2, compile=identity)
    check(lambda x: x * 2, make_args=lambda: (torch.ones(1, requires_grad=True) * 2,), compile=identity)


def test_random_programs_agree():
    def program(x):
        return torch.rand(2) + random.random() + numpy.random.rand() + torch.nn.functional.dropout(x)

    check(program, torch.ones(2), compile=identity, calls=2)


def test_calls_with_keywords():
    report = check(lambda a, b=1: a + b, calls=[(1,), Call((2,), {"b": 3})], compile=identity)
    assert [call.returned for call in report.compiled.calls] == [2, 5]
    assert check(lambda a, b=1: a + b, 1, kwargs={"b": 5}, compile=identity).returned == 6


def test_process_is_left_as_it_was():
    def program():
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.rand(3)

    before = torch.get_rng_state()
    check(program, compile=identity)
    assert torch.is_grad_enabled() and torch.get_default_dtype() is torch.float32
    assert torch.equal(before, torch.get_rng_state())


def test_exceptions_agree():
    def program(x):
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer", 3) from error

    report = check(program, 1, compile=identity)
    assert report.eager.calls[0].traceback == [("program", program.__code__.co_firstlineno + 4)]


def test_endless_recursion_agrees():
    def program(n):
        return program(n + 1)

    check(program, 1, compile=lambda p, **k: lambda n: p(n), tracebacks=False)
    check(program, 1, compile=identity)


def test_optimizers_in_closures_are_copied_with_their_models():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    before = model.weight.detach().clone()

    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        return model(x)

    check(step, torch.ones(1, 2), calls=2, compile=identity)
    assert torch.equal(before, model.weight) and not optimizer.state
    with pytest.raises(Mismatch):
        check(step, torch.ones(1, 2), calls=2, compile=lambda p, **k: lambda x: p(x * 2))


def test_sentinels_keep_their_identity():
    missing = object()

    def program(box, default=missing):
        return default is missing and box["x"] is missing

    assert check(program, {"x": missing}, compile=identity).returned is True


# --- check: each kind of difference is seen ---------------------------------------------------------------------------


def test_sees_values():
    fails(lambda x: x + 1, torch.ones(2), compile=perturbing(lambda y, args: y + 1), match="result: 2 of 2 values")


def test_sees_dtype():
    fails(lambda x: x + 1, torch.ones(2), compile=perturbing(lambda y, args: y.double()), match="dtype")


def test_sees_strides():
    change = perturbing(lambda y, args: y.t().contiguous().t())
    fails(lambda x: x + 1, torch.ones(2, 3), compile=change, match="strides")


def test_sees_lost_alias_with_argument():
    fails(lambda x: x, torch.ones(2), compile=perturbing(lambda y, args: y.clone()), match="same object as")
    fails(lambda x: x[:1], torch.ones(2), compile=perturbing(lambda y, args: y.clone()), match="share storage")
    fails(lambda x: x[:1], torch.ones(2), compile=perturbing(lambda y, args: y.detach()), match="a view expected")
    fails(lambda x: x[:1], torch.ones(2), compile=perturbing(lambda y, args: args[0].detach()[:1]), match="_base")
    fails(lambda x: x + 1, torch.ones(2), compile=perturbing(lambda y, args: y.add_(0)), match="version 0 expected, 1")


def test_sees_false_alias():
    change = perturbing(lambda y, args: args[0])
    fails(lambda items: list(items), [1, 2], compile=change, match="is the same object as")


def test_sees_alias_between_results():
    def program(x):
        y = [1]
        return y, y

    fails(program, 1, compile=perturbing(lambda y, args: ([1], [1])), match=r"result\[1\]: expected to be the same")


def test_sees_mutation_of_arguments():
    def undo(y, args):
        args[0].pop()
        return y

    fails(lambda items: items.append(1), [0], compile=perturbing(undo), match="arguments after the calls")


def test_sees_tensor_mutation():
    def undo(y, args):
        args[0].zero_()
        return y

    fails(lambda x: x.add_(1).sum(), torch.zeros(2), compile=perturbing(undo), match="arguments after the calls")


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def test_sees_gradients_of_inputs():
    x = torch.ones(2, requires_grad=True)
    fails(lambda x: x * 3, x, compile=perturbing(lambda y, args: Doubled.apply(y)), match=r"\.grad: 2 of 2 values")
    check(lambda x: x * 3, x, compile=perturbing(lambda y, args: Doubled.apply(y)), grads=False)


def test_sees_gradients_of_parameters():
    model = nn.Linear(2, 2)
    compile = perturbing(lambda y, args: Doubled.apply(y))
    fails(model, torch.ones(1, 2), compile=lambda m, **k: compile(m.forward), match="program._parameters")


def test_sees_detached_results():
    x = torch.ones(2, requires_grad=True)
    fails(lambda x: x * 3, x, compile=perturbing(lambda y, args: y.detach()), match="requires_grad True expected")


def test_sees_module_state():
    def compiler(program, **options):
        def run(x):
            with torch.no_grad():
                program.running_mean += 1
            return program(x)

        return run

    fails(nn.BatchNorm1d(2), torch.ones(2, 2), compile=compiler, match="running_mean")


def test_sees_attributes():
    class Counter:
        def __init__(self):
            self.count = 0

    def program(counter):
        counter.count += 1

    fails(program, Counter(), compile=lambda p, **k: lambda c: None, match=r"\.count: 1 expected, 0 seen")


def test_sees_globals():
    fails(count_globally, torch.ones(1), compile=lambda p, **k: lambda x: x * 1, match="globals")


def test_sees_closure_variables():
    def make():
        total = 0

        def program(x):
            nonlocal total
            total += x
            return total

        return program

    fails(make(), 2, compile=lambda p, **k: lambda x: 2, match="closure variable total: 2 expected, 0 seen")


def test_sees_printed_text():
    def noisy(y, args):
        print("more")
        return y

    fails(lambda: print("text"), compile=perturbing(noisy), match="printed text: 'text")


def test_sees_warnings():
    fails(lambda: warnings.warn("careful", stacklevel=1), compile=lambda p, **k: lambda: None, match="warnings: length")


@pytest.mark.parametrize(
    "draw",
    [lambda: torch.rand(1), lambda: random.random(), lambda: numpy.random.rand()],
    ids=["torch", "random", "numpy"],
)
def test_sees_random_state(draw):
    def drawing(y, args):
        draw()
        return y

    fails(lambda: 1, compile=perturbing(drawing), match="random state")


@pytest.mark.parametrize(
    "switch",
    [
        lambda: torch.set_grad_enabled(False),
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_autocast_enabled("cpu", True),
        lambda: torch.use_deterministic_algorithms(True),
    ],
    ids=["grad", "dtype", "autocast", "deterministic"],
)
def test_sees_switches(switch):
    def switching(y, args):
        switch()
        return y

    fails(lambda: 1, compile=perturbing(switching), match="torch switch")


def raising(error):
    def compiler(program, **options):
        def run(*args):
            raise error

        return run

    return compiler


def test_sees_exceptions():
    def program():
        raise ValueError("text")

    fails(program, compile=raising(TypeError("text")), match="type ValueError expected, TypeError seen")
    fails(program, compile=raising(ValueError("other")), match="'other'")
    fails(program, compile=lambda p, **k: lambda: 3, match="raised ValueError: text expected, but it returned")
    with pytest.raises(Mismatch, match="returned expected, but it raised") as caught:
        check(lambda: 1, compile=raising(ValueError("new")))
    assert isinstance(caught.value.__cause__, ValueError)


def test_sees_cause_and_context():
    def program():
        raise ValueError("text") from KeyError("k")

    def lost(program, **options):
        def run():
            raise ValueError("text")

        return run

    fails(program, compile=lost, match="__cause__", tracebacks=False)

    def with_context(program, **options):
        def run():
            try:
                raise OSError
            except OSError:
                program()

        return run

    def plain():
        raise ValueError("text")

    fails(plain, compile=with_context, match="__context__", tracebacks=False)


def test_sees_traceback_lines():
    def program():
        raise ValueError("text")

    def more_frames(program, **options):
        return lambda: program()

    fails(program, compile=more_frames, match="traceback lines")


def test_sees_errors_in_backward():
    class Refusing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise RuntimeError("no")

    x = torch.ones(1, requires_grad=True)
    fails(lambda x: x * 2, x, compile=perturbing(lambda y, args: Refusing.apply(y)), match="exception in backward")


def test_says_which_call():
    count = []

    def compiler(program, **options):
        def run(x):
            count.append(1)
            return program(x) + (len(count) == 2)

        return run

    with pytest.raises(Mismatch, match="call 2: result: 2 expected, 3 seen"):
        check(lambda x: x + 1, 1, calls=3, compile=compiler)


def graphing(program, *, backend, **options):
    """A compiler good enough to count: traces the program with torch.fx, and hands the graph to the backend."""
    return backend(torch.fx.symbolic_trace(program), [])


def test_counts():
    report = check(lambda x: x.sin().cos(), torch.ones(1), compile=graphing, graphs=1, ops=2)
    assert (len(report.graphs), report.ops) == (1, 2)
    with pytest.raises(Mismatch, match="graphs: 2 expected, 1 seen"):
        check(lambda x: x.sin(), torch.ones(1), compile=graphing, graphs=2)
    with pytest.raises(Mismatch, match="ops: 5 expected, 1 seen"):
        check(lambda x: x.sin(), torch.ones(1), compile=graphing, ops=5)


def test_options_reach_the_compiler():
    seen = {}

    def compiler(program, **options):
        seen.update(options)
        return program

    check(lambda: 1, compile=compiler, fullgraph=True, dynamic=True, options={"a": 1})
    backend = seen.pop("backend")
    assert isinstance(backend, CompileCounterWithBackend) and backend.backend == "eager"
    assert seen == {"fullgraph": True, "dynamic": True, "options": {"a": 1}}


def test_breaks_every():
    from kiln.config import config

    seen = []

    def compiler(program, *, fullgraph, **options):
        seen.append((config.break_every, fullgraph))
        return (lambda: 2) if config.break_every == "instruction" else program

    with pytest.raises(Mismatch, match="with a graph break at every instruction"):
        check(lambda: 1, compile=compiler, fullgraph=True, breaks_every=(None, "line", "instruction"))
    assert seen == [(None, True), ("line", False), ("instruction", False)]


def test_source_programs():
    source = "total = [0]\n\ndef main():\n    total.append(1)\n    return len(total)\n"
    assert check_source(source, compile=identity).returned == 2
    with pytest.raises(Mismatch, match="(?s)def main.*total.*length 2 expected, 1 seen"):
        check_source(source, compile=lambda p, **k: lambda: 2)


def test_mutable_defaults_are_copied_for_each_run():
    def remember(x, seen=[], *, table={}):
        seen.append(len(seen))
        table[len(seen)] = x
        return x + len(seen), list(table)

    report = check(remember, torch.ones(2), calls=3)
    assert [len(one.returned[1]) for one in report.eager.calls] == [1, 2, 3]
    assert remember.__defaults__ == ([],) and remember.__kwdefaults__ == {"table": {}}


@pytest.mark.parametrize("name", ["complex32", "bcomplex32"])
def test_small_complex_numbers(name):
    if not hasattr(torch, name):
        pytest.skip(f"this torch has no {name}")
    one, same, other = [torch.tensor(values).to(getattr(torch, name)) for values in ([1 + 2j], [1 + 2j], [1 + 3j])]
    assert list(differences(one, same)) == []
    assert len(list(differences(one, other))) == 1
