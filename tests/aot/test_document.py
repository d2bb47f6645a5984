"""The ahead-of-time document's behaviours that are ahead-of-time autograd's own.

What it says of frames, guards and recompiles is in `capture/test_seed_aot_frames.py`, which runs with this backend too.
"""

import copy
import re

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import kiln
from kiln import aot
from kiln.testing import check

AHEAD = "aot_eager"


@pytest.mark.covers("test_aot_autograd::test_double_backward_errors")
@pytest.mark.parametrize("given", [True, False], ids=["gradient given", "no gradient given"])
@pytest.mark.parametrize("where", ["inside", "first inside", "outside"])
def test_second_derivatives(where, given):
    """The document has errors; Kiln gives eager's derivatives, wherever the two backward passes are."""
    gradient = torch.tensor(1.5, requires_grad=True) if given else None

    def first(x):
        y = x.sin().exp()
        return torch.autograd.grad(y, x, grad_outputs=gradient, create_graph=True)[0]

    def both(x):
        inner = first(x)
        return inner, torch.autograd.grad(inner, x, create_graph=True)[0]

    def outside(x):
        return x.sin().exp()

    def derivatives(function, x):
        if where == "inside":
            return list(function(x))
        value = function(x)
        if where == "outside":
            (value,) = torch.autograd.grad(value, x, grad_outputs=gradient, create_graph=True)
        return [value, torch.autograd.grad(value, x, create_graph=True)[0]]

    program = {"inside": both, "first inside": first, "outside": outside}[where]
    compiled = kiln.compile(program, backend=AHEAD)
    for number in (0.3, 0.7):
        x, again = torch.tensor(number, requires_grad=True), torch.tensor(number, requires_grad=True)
        expected, seen = derivatives(program, x), derivatives(compiled, again)
        torch.testing.assert_close(seen, expected)
        torch.testing.assert_close(
            torch.autograd.grad(seen[-1], again), torch.autograd.grad(expected[-1], x), msg="the third derivative"
        )


@pytest.mark.covers("test_aot_autograd::test_double_backward_errors")
def test_first_derivative_of_a_function_with_others():
    compiled = kiln.compile(lambda x: x.sin().exp(), backend=AHEAD)
    x = torch.tensor(1.0, requires_grad=True)
    (seen,) = torch.autograd.grad(compiled(x), x)
    torch.testing.assert_close(seen, (x.cos() * x.sin().exp()).detach())
    assert not seen.requires_grad


@pytest.fixture
def twice_or_not():
    """An operator with two results that are one and the same tensor if the argument is small."""
    with torch.library._scoped_library("kilntest_aot", "DEF") as library:
        library.define("perhaps_twice(Tensor a) -> (Tensor, Tensor)")

        def perhaps_twice(x):
            y = x + 1
            return (y, y) if x.numel() < 5 else (y, x + 2)

        library.impl("perhaps_twice", perhaps_twice, "CPU")
        library.impl("perhaps_twice", perhaps_twice, "Meta")
        yield torch.ops.kilntest_aot.perhaps_twice


class Tupled(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args):
        result = self.inner(*args)
        return result if isinstance(result, list | tuple) else (result,)


class Compiled(torch.nn.Module):
    def __init__(self, part, inputs, is_tuple):
        super().__init__()
        self.run, self.is_tuple = aot.aot_module_simplified(Tupled(part), inputs, aot.nop), is_tuple

    def forward(self, *args):
        return self.run(*args) if self.is_tuple else self.run(*args)[0]


@pytest.mark.covers("test_aot_autograd::test_multiple_aot_autograd_calls_dupe_args")
def test_parts_of_a_graph_compiled_one_by_one(twice_or_not):
    """A backend may cut the graph and differentiate each part: what aliases in one part's outputs does in the next."""
    from torch.fx.passes.split_module import split_module

    parts = []

    def backend(graph, inputs):
        split = split_module(graph, None, lambda node: 1 if "mul" in str(node) else 0)
        between = split.submod_0(*inputs)
        split.submod_0 = Compiled(split.submod_0, inputs, isinstance(between, tuple))
        split.submod_1 = Compiled(split.submod_1, between, True)
        parts.append(split)
        return split

    def function(a):
        b, c = twice_or_not(a)
        return (b.mul_(c),)

    for count in (4, 6):
        compiled = kiln.compile(function, backend=backend, dynamic=False)
        torch.testing.assert_close(compiled(torch.ones(count)), function(torch.ones(count)))
    assert len(parts) == 2


@pytest.mark.covers("test_aot_autograd::test_aot_export_joint_simple_repro")
def test_graph_without_gradients_as_a_backend():
    """The fake mode that the inputs belong to goes on being used; parameters are inputs like others."""
    module = torch.nn.Linear(5, 7)
    found = []

    def backend(graph, inputs):
        mode = next(each.fake_mode for each in inputs if isinstance(each, torch.Tensor))
        mode.allow_non_fake_inputs = True
        with mode:
            found.append(aot.aot_export_joint_simple(graph, inputs, trace_joint=False))
        return found[-1]

    x = torch.rand(3, 4, 5)
    torch.testing.assert_close(kiln.compile(module, backend=backend)(x), module(x))
    (exported,) = found
    targets = {node.target for node in exported.graph.nodes if node.op == "call_function"}
    assert targets and all(isinstance(target, torch._ops.OpOverload) for target in targets)


class Convolved(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(4, 4, (1, 1), padding="same")
        self.norm = torch.nn.BatchNorm2d(4)
        self.last = torch.nn.Linear(4 * 8 * 8 * 2, 1)
        self.loss = torch.nn.L1Loss()

    def forward(self, x, target):
        y = self.norm(self.convolution(x)).relu() + x
        return (self.loss(self.last(torch.flatten(y)), target),)


@pytest.mark.covers("test_aot_autograd::test_eager_sequence_nr")
def test_profiler_sees_numbered_backward_operations():
    module, x, target = Convolved(), torch.rand(2, 4, 8, 8, requires_grad=True), torch.rand(1)
    weight = torch.tensor(1.0, requires_grad=True)

    def gradient(module, x, target):
        (loss,) = module(x, target)
        return torch.autograd.grad(loss, x, grad_outputs=weight, create_graph=True)[0]

    reference = copy.deepcopy(module)
    compiled = kiln.compile(gradient, backend=AHEAD)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiled:
        seen = compiled(module, x, target)
    torch.testing.assert_close(seen, gradient(reference, x, target))
    numbered = [event for event in profiled.events() if event.sequence_nr >= 0]
    assert numbered, "operations with numbers"
    assert any(re.search(r"Backward", event.name) for event in numbered)


@pytest.mark.covers("test_aot_autograd::test_data_ptr_access_copy")
def test_fake_tensor_copied():
    with FakeTensorMode():
        x = torch.randn(3)
        y = copy.copy(x)
    assert y.shape == x.shape


@pytest.mark.covers("test_aot_autograd::test_data_ptr_access_fails_in_backward")
def test_backward_that_asks_for_a_pointer():
    """While tracing there is no data; without ``fullgraph`` the call is left to eager, where it works."""
    called = []

    class Pointed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            called.append(type(gradient))
            assert gradient.data_ptr()
            return gradient.clone()

    with torch.library._scoped_library("kilntest_aot", "FRAGMENT") as library:
        torch.library.define("kilntest_aot::pointed", "(Tensor x) -> Tensor", lib=library)
        torch.library.impl("kilntest_aot::pointed", "CompositeImplicitAutograd", Pointed.apply, lib=library)

        def function(x):
            return torch.ops.kilntest_aot.pointed(x)

        with pytest.raises(RuntimeError, match="Cannot access data pointer"):
            kiln.compile(function, backend=AHEAD, fullgraph=True)(torch.randn(3, requires_grad=True))
        assert called, "the backward was traced"
        with kiln.config.patch(raise_internal_errors=False):
            check(function, torch.ones(3, requires_grad=True), backend=AHEAD)


@pytest.mark.covers("test_aot_autograd::test_split_with_sizes_aot_autograd_cleans_up_traceback_meta")
def test_marks_of_nodes_are_taken_off_again():
    import torch.fx.traceback as fx_traceback

    from kiln.compat.aot import setup_stacktrace_preservation_hooks

    seen = []
    x = torch.randn(32, requires_grad=True)
    parts = torch.ops.aten.split_with_sizes(x, [7, 16, 9])
    setup_stacktrace_preservation_hooks([part.grad_fn for part in parts])
    parts[0].grad_fn.register_prehook(lambda gradients: seen.append(dict(fx_traceback.current_meta)))
    with fx_traceback.preserve_node_meta():
        sum(part.sum() for part in parts).backward()
        assert not {"grad_fn_seq_nr", "in_grad_fn"} & set(fx_traceback.current_meta)
    assert seen[0]["in_grad_fn"] == 1 and seen[0]["grad_fn_seq_nr"] == [parts[0].grad_fn._sequence_nr()]


# -- what graphs say of where they come from ------------------------------------------------------------------------


def test_nodes_carry_lines_and_numbers():
    """Backward nodes have the source line and the number of the forward operation they belong to."""
    graphs = {}

    def keep(kind):
        return lambda graph, inputs: graphs.setdefault(kind, graph)

    def program(x, y):
        first = x @ y
        return first.sin()

    compiled = kiln.compile(program, backend=aot.make_aot_backend(keep("forward"), keep("backward")))
    compiled(torch.rand(2, 2, requires_grad=True), torch.rand(2, 2, requires_grad=True)).sum().backward()

    def described(graph, kind):
        return next(node for node in graph.graph.nodes if node.op == "call_function" and kind in str(node.target))

    product, sine = described(graphs["forward"], "mm"), described(graphs["forward"], "sin")
    cosine, back = described(graphs["backward"], "cos"), described(graphs["backward"], "mm")
    assert "first = x @ y" in product.meta["stack_trace"] and "first.sin()" in sine.meta["stack_trace"]
    assert "first.sin()" in cosine.meta["stack_trace"] and "first = x @ y" in back.meta["stack_trace"]
    assert product.meta["seq_nr"] == back.meta["seq_nr"] < sine.meta["seq_nr"] == cosine.meta["seq_nr"]
    assert back.meta["original_aten"] is not None
