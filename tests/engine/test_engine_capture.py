"""Graph modules as the engine makes them, compiled: lists that are consumed, hooks, gradients, sizes, effects.

Each module is compared with itself, run as it is.
"""

from __future__ import annotations

import dis
import functools
import logging
import operator
import re
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
from torch.testing._internal.logging_tensor import LoggingTensor

import kiln
from kiln.engine.calls.hook_calls import call_accumulate_hooks, call_tensor_hook, retain_grad
from kiln.engine.trace.walk_sizes import WalkSizes
from kiln.program.accumulation import accumulate_grad_
from kiln.program.call_markers import abandons_capture, fact, leaf
from kiln.program.consumed_lists import get_locals_to_steal, set_locals_to_steal
from kiln.program.shapes.fake_tensors import make_mode
from kiln.report.bytecode_hooks import register_bytecode_hook
from kiln.report.events import counters

for name in ("accumulate_grad_", "call_accumulate_hooks", "call_tensor_hook", "retain_grad", "stay", "call_leaf"):
    torch.fx.wrap(name)


def module_of(function: Callable[..., Any], *names: str) -> torch.fx.GraphModule:
    module = torch.fx.symbolic_trace(function)
    set_locals_to_steal(module, names or ["inputs"])
    return module


class Counting:
    """A backend that runs graphs as they are, and keeps them."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        self.graphs.append(module)
        return module

    @property
    def count(self) -> int:
        return len(self.graphs)


def placeholders(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return list(module.graph.find_nodes(op="placeholder"))


@pytest.fixture(autouse=True)
def without_gradients():
    """As backward passes run."""
    with torch.no_grad():
        yield


def leaf_tensor(*size: int) -> torch.Tensor:
    return torch.zeros(*size, requires_grad=True)


BACKENDS = [Counting, lambda: "eager", lambda: "aot_eager"]


# -- lists that are consumed ----------------------------------------------------------------------------------------


def two_gradients(inputs, sizes, hooks):
    gradient, activation, first, second = inputs[0], inputs[1], inputs[2], inputs[3]
    gradient = torch.ops.aten.mul.Tensor(gradient, activation)
    gradient = call_tensor_hook(hooks[0], gradient)
    accumulate_grad_(first, gradient, False)
    accumulate_grad_(second, gradient, True)
    return (gradient,)


def double(gradient):
    return gradient * 2


def run_two(run, hook=double, present=False):
    first, second = leaf_tensor(3, 4), leaf_tensor(3, 4)
    if present:
        first.grad = torch.full((3, 4), 5.0)
    before = first.grad
    inputs = [torch.full((3, 4), 2.0), torch.full((3, 4), 3.0), first, second]
    (result,) = run(inputs, [], [hook])
    kept = first.grad is before
    return [result.tolist(), first.grad.tolist(), second.grad.tolist(), kept, first.grad is second.grad], len(inputs)


@pytest.mark.parametrize("present", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.covers("test_compiled_autograd::test_dynamo_boxed")
def test_list_is_one_input_and_emptied(backend, present):
    module, chosen = module_of(two_gradients), backend()
    compiled = kiln.compile(module, backend=chosen, fullgraph=True)
    expected, _ = run_two(module, present=present)
    for _ in range(2):
        seen, left = run_two(compiled, present=present)
        assert seen == expected
        assert left == 0
    if isinstance(chosen, Counting):
        (graph,) = chosen.graphs
        assert len(placeholders(graph)) == 1 + present
        taken = [node.args[1] for node in graph.graph.find_nodes(op="call_function", target=operator.getitem)]
        assert taken == [0, 1]
        assert isinstance(placeholders(graph)[0].meta["example_value"], list)


def test_names_are_told():
    module = module_of(two_gradients, "inputs", "hooks")
    assert get_locals_to_steal(module) == ["inputs", "hooks"]
    assert get_locals_to_steal(torch.nn.Linear(1, 1)) == []
    set_locals_to_steal(double, ["inputs"])  # no graph module: nothing to tell


SEEN: list[bool] = []
WATCHED: list[Any] = [None]


@pytest.fixture
def probe():
    """An operator that notes whether a tensor is alive when it runs."""

    def look(x):
        SEEN.append(WATCHED[0]() is not None)
        return x.clone()

    with torch.library._scoped_library("kiln_engine_capture", "FRAGMENT") as library:
        library.define("probe(Tensor x) -> Tensor")
        library.impl("probe", look, "CPU")
        library.impl("probe", lambda x: x.clone(), "Meta")
        SEEN.clear()
        yield
    WATCHED[0] = None


def probed(inputs):
    first, second, third = inputs[0], inputs[1], inputs[2]
    product = torch.ops.aten.mul.Tensor(first, second)
    early = torch.ops.kiln_engine_capture.probe.default(second)
    late = torch.ops.kiln_engine_capture.probe.default(torch.ops.aten.add.Tensor(product, early))
    accumulate_grad_(third, late, True)
    return (late,)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.covers("test_compiled_autograd::test_free_activation_memory")
def test_tensors_die_at_their_last_use(backend, dynamic, probe):
    compiled = kiln.compile(module_of(probed), backend=backend(), fullgraph=True, dynamic=dynamic)
    for size in (4, 4, 6):
        inputs = [torch.ones(size), torch.ones(size), leaf_tensor(size)]
        WATCHED[0] = weakref.ref(inputs[1])
        SEEN.clear()
        compiled(inputs)
        assert SEEN == [True, False]
        assert not inputs


def unused(inputs):
    return (inputs[0] * 1 if False else torch.ones(2),)


def test_unused_list_is_emptied():
    compiled = kiln.compile(module_of(unused), fullgraph=True)
    inputs = [torch.ones(3)]
    compiled(inputs)
    assert not inputs


def raising(inputs):
    return (torch.ops.aten.index.Tensor(inputs[0], [inputs[1]]) + 1,)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_graph_that_raises_says_what_eager_says(backend):
    module = module_of(raising)
    compiled = kiln.compile(module, backend=backend(), fullgraph=True)
    assert compiled([torch.ones(3), torch.tensor([2])])[0].tolist() == [2.0]
    with pytest.raises(IndexError) as eager:
        module([torch.ones(3), torch.tensor([5])])
    with pytest.raises(IndexError) as seen:
        compiled([torch.ones(3), torch.tensor([5])])
    assert str(seen.value) == str(eager.value)
    assert compiled([torch.ones(3), torch.tensor([1])])[0].tolist() == [2.0]


def names_in(instruction):
    """What an instruction is about; from 3.13 on one may read or write two variables."""
    return instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)


def counted(instructions, op, name):
    found = 0
    for one in instructions:
        ops = re.findall("LOAD_FAST|STORE_FAST", one.opname)  # also of LOAD_FAST_BORROW and of two at once
        found += list(zip(ops, names_in(one), strict=False)).count((op, name))
    return found


def check_references(code, new_code):
    instructions = list(dis.get_instructions(new_code))
    call = next(place for place, one in enumerate(instructions) if one.opname == "CALL")
    assert counted(instructions[:call], "STORE_FAST", "inputs_ref_0") == 1
    assert counted(instructions[call:], "LOAD_FAST", "inputs_ref_0") == 1
    assert not any("inputs" in names_in(one) for one in instructions[call:])


def attribute_mutation(inputs, sizes, hooks):
    gradient = inputs[1] * 2
    accumulate_grad_(inputs[0], gradient, True)
    return (gradient,)


def with_subclass(inputs):
    total = inputs[0] + 1
    total = total + inputs[1]
    return (total.cpu(),)


@pytest.mark.covers("test_compiled_autograd::test_inputs_aliasing_bytecode_attr_mutations")
@pytest.mark.covers("test_compiled_autograd::test_logging_tensor_flaky")
def test_bytecode_keeps_what_is_needed_after_the_graph(caplog):
    # LoggingTensor's own messages cannot be formatted, whoever asked for them: torch's helpers do, and leave it so.
    caplog.set_level(logging.WARNING, logger="LoggingTensor")
    told = []

    def hook(code, new_code):
        told.append(code.co_name)
        check_references(code, new_code)

    with register_bytecode_hook(hook):
        parameter = leaf_tensor(100)
        compiled = kiln.compile(module_of(attribute_mutation), backend="aot_eager", dynamic=True)
        compiled([parameter, torch.ones(100)], (), ())
        assert parameter.grad.tolist() == [2.0] * 100
        inputs = [torch.ones(10), LoggingTensor(torch.ones(1))]
        (out,) = kiln.compile(module_of(with_subclass))(inputs)
        assert not inputs
        assert type(out) is LoggingTensor
        assert out.elem.tolist() == [3.0] * 10
    assert told == ["forward", "forward"]
    kiln.compile(module_of(attribute_mutation))([parameter, torch.ones(100)], (), ())
    assert len(told) == 2  # removed


# -- hooks as inputs ------------------------------------------------------------------------------------------------


def scaling(factor):
    return lambda gradient: gradient * factor


def unless(flag, factor):
    return lambda gradient: gradient * 2 if flag else gradient * factor


def scaled(factor, gradient):
    return gradient * factor


class Scaler:
    def __init__(self, factor):
        self.factor, self.unused = factor, object()

    def __call__(self, gradient):
        return gradient * self.factor

    def method(self, gradient):
        return self(gradient)


SERIES = {
    "functions made anew": ([lambda: (lambda gradient: gradient + 1)] * 3, [1, 1, 1]),
    "equal closures": ([lambda: scaling(2.5)] * 3, [1, 1, 1]),
    "other closures": ([lambda: scaling(2.5), lambda: scaling(3.5), lambda: scaling(2.5)], [1, 2, 2]),
    "closures over tensors": ([lambda: scaling(torch.ones(3, 4)), lambda: scaling(torch.zeros(3, 4))], [1, 1]),
    "closures not looked at": ([lambda: unless(1, 3.0), lambda: unless(1, 4.0), lambda: unless(0, 4.0)], [1, 1, 2]),
    "partials": ([functools.partial(functools.partial, scaled, k) for k in (2.0, 2.0, 3.0)], [1, 1, 2]),
    "partials with tensors": ([lambda: functools.partial(scaled, torch.ones(4))] * 2, [1, 1]),
    "objects": ([lambda: Scaler(2.0), lambda: Scaler(2.0), lambda: Scaler(3.0)], [1, 1, 2]),
    "methods": ([lambda: Scaler(2.0).method, lambda: Scaler(2.0).method, lambda: Scaler(3.0).method], [1, 1, 2]),
    "other functions": ([lambda: double, lambda: scaling(2.0), lambda: double], [1, 2, 2]),
    "no result": ([lambda: (lambda gradient: None)] * 2, [1, 1]),
}  # fmt: skip


@pytest.mark.parametrize("hooks, counts", SERIES.values(), ids=SERIES)
def test_recompiles_only_where_the_hook_depends_on_it(hooks, counts):
    module, backend = module_of(two_gradients), Counting()
    compiled = kiln.compile(module, backend=backend, fullgraph=True, dynamic=True)
    seen = []
    for make in hooks:
        assert run_two(compiled, make())[0] == run_two(module, make())[0]
        seen.append(backend.count)
    assert seen == counts


LOG: list[Any] = []
calls = 0


class Holder:
    last: Any = None
    count = 0


HOLDER = Holder()


def appending(gradient):
    LOG.append(gradient.sum())
    LOG.append("after")
    return gradient + 1


def counting(gradient):
    global calls
    calls += 1
    return gradient * calls


def storing(gradient):
    HOLDER.last = gradient
    HOLDER.count += 1


def in_a_closure():
    count = 0

    def hook(gradient):
        nonlocal count
        count += 1
        LOG.append(count)
        return gradient * count

    return hook


def looking(gradient):
    LOG.append("before")
    LOG.append(float(gradient.sum()))
    LOG.append("after")
    return gradient * 2


def clear_world():
    global calls
    LOG.clear()
    HOLDER.last, HOLDER.count, calls = None, 0, 0


def world():
    log = [float(item) if isinstance(item, torch.Tensor) else item for item in LOG]
    return log, calls, None if HOLDER.last is None else HOLDER.last.tolist(), HOLDER.count


@pytest.mark.parametrize(
    "make, fullgraph",
    [
        (lambda: appending, True),
        (lambda: counting, True),
        (lambda: storing, True),
        (in_a_closure, True),
        (lambda: looking, False),
    ],
    ids=["append", "global", "attribute", "nonlocal", "break"],
)
def test_side_effects_of_hooks(make, fullgraph):
    module = module_of(two_gradients)
    seen = []
    for run in (module, kiln.compile(module, fullgraph=fullgraph, dynamic=True)):
        clear_world()
        hook = make()
        seen.append(([run_two(run, hook)[0] for _ in range(4)], world()))
    assert seen[0] == seen[1]


def test_breaks_in_hooks_in_their_order():
    def chain(inputs, sizes, hooks):
        gradient = inputs[0]
        for place in range(3):
            gradient = call_tensor_hook(hooks[place], gradient * 2)
            gradient = gradient + inputs[1]
        accumulate_grad_(inputs[2], gradient, False)
        return (gradient,)

    def run(function):
        clear_world()
        leaf_ = leaf_tensor(3)
        (out,) = function([torch.ones(3), torch.full((3,), 0.5), leaf_], [], [appending, looking, appending])
        return out.tolist(), leaf_.grad.tolist(), world()

    module = module_of(chain)
    compiled = kiln.compile(module, dynamic=True)
    expected = run(module)
    assert [run(compiled) for _ in range(3)] == [expected] * 3
    with pytest.raises(kiln.exc.Unsupported, match="item|value"):
        run(kiln.compile(module, fullgraph=True))


# -- gradients of leaves --------------------------------------------------------------------------------------------


def accumulating(inputs, sizes, hooks):
    gradient, first, second = inputs[0], inputs[1], inputs[2]
    accumulate_grad_(first, gradient * 2, True)
    call_accumulate_hooks(first, hooks[0])
    accumulate_grad_(second, gradient, False)
    return ()


def step(parameter):
    parameter.add_(parameter.grad, alpha=-0.5)
    parameter.grad = None


def step_data(parameter):
    parameter.data = parameter.data - parameter.grad


def scale_in_place(parameter):
    parameter.grad.mul_(3)


@pytest.mark.parametrize("hook", [step, step_data, scale_in_place])
@pytest.mark.parametrize("present", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_hooks_after_accumulation(hook, present, backend):
    def run(function):
        first, second = leaf_tensor(3), leaf_tensor(3)
        first.grad = torch.ones(3) if present else None
        before = first.grad
        for _ in range(2):
            function([torch.ones(3), first, second], [], [hook])
        gradient = first.grad
        return first.tolist(), None if gradient is None else gradient.tolist(), second.grad.tolist(), gradient is before

    module = module_of(accumulating)
    assert run(kiln.compile(module, backend=backend(), fullgraph=True, dynamic=True)) == run(module)


# -- deferred calls, facts, leaves -----------------------------------------------------------------------------------


def retaining(inputs, sizes, hooks):
    gradient = inputs[0] * 2
    retain_grad(hooks[0], gradient)
    gradient = call_tensor_hook(hooks[1], gradient * 3)
    retain_grad(hooks[2], gradient)
    return (gradient,)


def test_deferred_calls_come_in_order():
    def run(function, hook):
        clear_world()
        kept = []
        first, second = lambda value: kept.append((1, value.tolist())), lambda value: kept.append((2, value.tolist()))
        (out,) = function([torch.ones(2)], [], [first, hook, second])
        return out.tolist(), kept, world()

    module, backend = module_of(retaining), Counting()
    compiled = kiln.compile(module, backend=backend, fullgraph=True)
    for _ in range(2):
        assert run(compiled, appending) == run(module, appending)
    assert backend.count == 1
    broken = kiln.compile(module)
    for _ in range(2):
        assert run(broken, looking) == run(module, looking)


def test_gradient_that_a_deferred_call_sets_is_not_read_too_early():
    with torch.enable_grad():
        middle = leaf_tensor(2) * 1
        middle.retain_grad()

    def run(function):
        middle.grad = None

        def retain(value):
            middle.grad = value.clone()

        def hook(gradient):
            return gradient if middle.grad is None else gradient + middle.grad

        return function([torch.ones(2)], [], [retain, hook, retain])[0].tolist(), middle.grad.tolist()

    module = module_of(retaining)
    assert run(kiln.compile(module)) == run(module) == ([8.0, 8.0], [8.0, 8.0])


class Leaving:
    """Stands for the engine's departure: whether hooks have changed, and what is done then."""

    def __init__(self, owner):
        self.owner, self.left = owner, []

    @property
    @fact
    def changed(self):
        return len(self.owner._backward_hooks or ()) != 1

    def leave(self, step, values, pending):
        self.left.append((step, [value.tolist() for value in values]))


def stay(departure, step, values, pending):
    if departure.changed:
        departure.leave(step, values, pending)


def leaving(inputs, sizes, hooks):
    gradient = call_tensor_hook(hooks[1], inputs[0])
    stay(hooks[0], 7, (gradient,), (gradient,))
    return (gradient * 2,)


def removing(owner, handle):
    def hook(gradient):
        handle.remove()
        return gradient * 3

    return hook


def registering(owner, handle):
    def hook(gradient):
        owner.register_hook(double)
        return gradient * 3

    return hook


@pytest.mark.parametrize("make, left", [(removing, True), (registering, True), (lambda *_: double, False)])
def test_hooks_that_change_hooks_are_noticed(make, left):
    module = module_of(leaving)

    def run(function):
        owner = leaf_tensor(2)
        departure = Leaving(owner)
        hook = make(owner, owner.register_hook(double))
        (out,) = function([torch.ones(2)], [], [departure, hook])
        return out.tolist(), departure.left, len(owner._backward_hooks)

    compiled = kiln.compile(module, dynamic=True)
    expected = run(module)
    assert bool(expected[1]) is left
    assert [run(compiled) for _ in range(3)] == [expected] * 3
    whole = kiln.compile(module, fullgraph=True, dynamic=True)
    if left:
        with pytest.raises(kiln.exc.Unsupported, match="registered or removed"):
            run(whole)
    else:
        assert run(whole) == expected


def told_results(node, told, *gradients):
    return tuple([None if size is None else torch.empty(size) for size in told])


@leaf(told_results)
def call_leaf(node, told, *gradients):
    return node(*gradients)


def calling_leaf(inputs, sizes, hooks):
    results = call_leaf(hooks[0], ((2,), None), inputs[0] * 2)
    return (results[0] + 1, results[1])


class Native:
    """As good as native code: capture does not look into objects with a finalizer."""

    def __init__(self, function):
        self.function = function

    def __call__(self, gradient):
        LOG.append(type(gradient))
        return self.function(gradient), None

    def __del__(self):
        pass


@pytest.mark.parametrize("backend", BACKENDS)
def test_leaves_are_called_as_they_are(backend):
    compiled = kiln.compile(module_of(calling_leaf), backend=backend(), fullgraph=True, dynamic=True)
    clear_world()
    before = counters["frames"]
    assert compiled([torch.ones(2)], [], [Native(torch.neg)])[0].tolist() == [-1.0, -1.0]
    assert compiled([torch.ones(2)], [], [Native(torch.square)])[0].tolist() == [5.0, 5.0]
    assert LOG == [torch.Tensor, torch.Tensor]  # never a fake
    assert counters["frames"] == before + 1


# -- sizes ----------------------------------------------------------------------------------------------------------


def sized(inputs, sizes, hooks):
    gradient, activation, parameter = inputs[0], inputs[1], inputs[2]
    gradient = torch.ops.aten.expand.default(gradient, [sizes[0], 4]) * activation
    gradient = call_tensor_hook(hooks[0], gradient)
    accumulate_grad_(parameter, torch.ops.aten.sum.dim_IntList(gradient, [0]), True)
    return (gradient,)


def tell_sizes(module, dynamic):
    """Put on the module's nodes what the engine's trace does."""
    sizes = WalkSizes([3], frozenset({0}) if dynamic else frozenset())
    shapes = {"inputs": [(), (sizes.values[0], 4), (4,)]}
    mode = make_mode(shape_env=sizes.environment)
    for node in module.graph.find_nodes(op="call_function", target=operator.getitem):
        owner, place = node.args
        if owner.name == "sizes":
            node.meta["val"] = sizes.values[0]
        elif owner.name == "inputs":
            with mode:
                node.meta["val"] = torch.empty(shapes["inputs"][place])


def run_sized(run, size, hook=double):
    parameter = leaf_tensor(4)
    (out,) = run([torch.tensor(2.0), torch.full((size, 4), 3.0), parameter], [size], [hook])
    return out.tolist(), parameter.grad.tolist()


@pytest.mark.parametrize("hook", [double, looking])
@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_that_vary_need_no_recompile(dynamic, told, backend, hook):
    module = module_of(sized)
    if told:
        tell_sizes(module, dynamic=True)
    compiled = kiln.compile(module, backend=backend(), fullgraph=hook is double, dynamic=dynamic)
    frames = []
    for size in (3, 3, 5, 7, 4):
        assert run_sized(compiled, size, hook) == run_sized(module, size, hook)
        frames.append(counters["frames"])
    late = 0 if dynamic or (told and hook is double) else 2  # learnt from the first two sizes
    assert frames[-1] == frames[late]


def test_sizes_told_to_be_fixed_are_numbers():
    module, backend = module_of(sized), Counting()
    tell_sizes(module, dynamic=False)
    compiled = kiln.compile(module, backend=backend, fullgraph=True, dynamic=True)
    run_sized(compiled, 3)
    (graph,) = backend.graphs
    assert len(placeholders(graph)) == 2  # the list, and the number in sizes, of which nothing was told
    assert [type(size) for size in placeholders(graph)[0].meta["example_value"][1].shape] == [int, int]
    assert run_sized(compiled, 5) == run_sized(module, 5)  # not as told: assumed, and so noticed


def test_guards_do_not_grow_with_the_list():
    """Items of the list are checked by one native program."""

    def many(inputs):
        total = inputs[0]
        for place in range(1, 40):
            total = torch.ops.aten.add.Tensor(total, inputs[place])
        return (total,)

    def few(inputs):
        return (torch.ops.aten.add.Tensor(inputs[0], inputs[1]) + inputs[2],)

    lines = []
    for function, count in ((many, 40), (few, 3)):
        module = module_of(function)
        compiled = kiln.compile(module, fullgraph=True)
        assert compiled([torch.ones(2)] + [torch.zeros(2) for _ in range(count - 1)])[0].tolist() == [1.0, 1.0]
        (check, _), *_ = compiled._kiln_call.entries
        lines.append(len(list(dis.get_instructions(check))))
    assert lines[0] <= lines[1]


def caught(inputs, sizes, hooks):
    return (call_tensor_hook(hooks[0], inputs[0]), inputs[1] + 1)


def test_what_a_hook_catches_begins_anew():
    """A graph that may raise inside the program's try block keeps its inputs until it has not."""

    def hook(gradient):
        try:
            return gradient.index_select(0, INDEX[0])
        except IndexError as error:
            LOG.append(str(error))
            return gradient * 2

    def run(function, *index):
        LOG.clear()
        INDEX[0] = torch.tensor(index)
        inputs = [torch.ones(2), torch.zeros(2)]
        return [value.tolist() for value in function(inputs, [], [hook])], list(LOG), len(inputs)

    module = module_of(caught)
    compiled = kiln.compile(module, fullgraph=True)
    for index in ((0, 1), (0, 7), (1, 0)):
        assert run(compiled, *index)[:2] == run(module, *index)[:2]
    assert run(compiled, 0, 0)[2] == 0


INDEX: list[Any] = [None]


# -- what hooks change in place -------------------------------------------------------------------------------------


class Surprise(BaseException):
    """Raised before anything ran."""


class Watching:
    """Stands for the engine's departure: whether a tensor has been changed."""

    def __init__(self, tensor):
        self.tensor, self.left = tensor, 0

    @property
    @fact
    @abandons_capture(lambda self: Surprise())
    def changed(self):
        return self.tensor._version > 0

    def leave(self, *rest):
        self.left += 1


def reading_later(inputs, sizes, hooks):
    gradient = inputs[0] * 2
    if BREAKS[0]:
        gradient = call_tensor_hook(hooks[2], gradient)
    gradient = call_tensor_hook(hooks[1], gradient)
    stay(hooks[0], 0, (gradient,), ())
    return (torch.ops.aten.mul.Tensor(gradient, inputs[1]),)


BREAKS = [False]


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("view", [False, True])
def test_what_a_hook_changes_and_the_pass_reads_later(breaks, view):
    BREAKS[0] = breaks
    module = module_of(reading_later)
    compiled = kiln.compile(module)

    def run(function, armed):
        saved = torch.full((3,), 3.0)
        departure = Watching(saved)
        target = saved.detach()

        def hook(gradient):
            if armed:
                (target if view else saved).mul_(2)

        return function([torch.ones(3), saved], [], [departure, hook, looking])[0].tolist(), departure.left

    assert run(compiled, False) == run(module, False) == ([6.0 * (1 + breaks)] * 3, 0)
    if breaks:  # something has run: the pass is asked after the hook
        assert run(compiled, True) == run(module, True) == ([24.0] * 3, 1)
    else:
        with pytest.raises(Surprise):
            run(compiled, True)


def computing(inputs, sizes, hooks):
    return (torch.ops.aten.mul.Tensor(inputs[0], sizes[0]),)


@pytest.mark.parametrize("values", [(0, 1, 2, 7), (0.0, 1.0, 2.5)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_that_are_no_sizes_are_never_assumed(values, backend):
    module = module_of(computing)
    (node,) = [node for node in module.graph.nodes if node.name == "getitem_1"]
    node.meta["val"] = values[0]
    compiled = kiln.compile(module, backend=backend(), fullgraph=True, dynamic=True)
    before = counters["frames"]
    for value in values:
        assert compiled([torch.full((2,), 3.0)], [value], [])[0].tolist() == [3.0 * value] * 2
    assert counters["frames"] == before + 1


@pytest.mark.parametrize("by_name", [False, True])
def test_operators_in_captured_code_keep_their_history(by_name):
    weight = leaf_tensor(3)

    def function(x):
        other = {"other": weight} if by_name else {}
        return torch.ops.aten.mul.Tensor(x, *(() if by_name else (weight,)), **other) + 1

    compiled = kiln.compile(function, fullgraph=True)
    with torch.enable_grad():
        for _ in range(2):
            (gradient,) = torch.autograd.grad(compiled(torch.full((3,), 2.0)).sum(), weight)
            assert gradient.tolist() == [2.0] * 3


def test_graph_modules_that_consume_nothing_go_on_after_a_break():
    def chain(x, hook):
        return call_tensor_hook(hook, x * 2) + 1

    module, backend = torch.fx.symbolic_trace(chain), Counting()
    compiled = kiln.compile(module, backend=backend)
    clear_world()
    assert compiled(torch.ones(2), looking).tolist() == module(torch.ones(2), looking).tolist() == [5.0, 5.0]
    assert backend.count >= 2
