"""What autograd's nodes keep, as walks read it: equal programs give equal streams, any other argument another one."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

import kiln
from kiln import _native
from tests.engine.saved_programs import PROGRAMS

GENERATOR = Path(kiln.__file__).parent / "native" / "platform" / "generate_saved_values.py"

# Classes of torch's that Functions.h does not describe: written by hand in C++, here or not visited at all.
WRITTEN_BY_HAND = {"AccumulateGrad", "CopyBackwards", "CopySlices", "UndefinedGrad", "UndefinedGradBackward"}
# They raise, or send over a network: torch's engine runs them.
NOT_VISITED = {"DelayedError", "Error", "NotImplemented", "SendRpcBackward"}


def test_every_node_type_of_torch_is_known():
    generator = runpy.run_path(str(GENERATOR))
    header = Path(torch.__file__).parent / "include" / generator["HEADER"]
    structures = generator["parse"](header.read_text())
    assert [structure.name for structure in structures if structure.problem] == []
    with_classes = {name for name in dir(torch._C._functions) if not name.startswith("__")}
    names = {structure.name for structure in structures}
    assert with_classes - names == WRITTEN_BY_HAND | NOT_VISITED
    assert len(names) >= 701


def test_what_the_generator_does_not_understand_makes_the_type_unknown():
    parse = runpy.run_path(str(GENERATOR))["parse"]
    header = """
struct TORCH_API GoodBackward0 : public TraceableFunction {
  using TraceableFunction::TraceableFunction;
  variable_list apply(variable_list&& grads) override;
  void release_variables() override {
    self_.reset_data();
  }
  SavedVariable self_;
  ::std::vector<::std::vector<c10::SymInt>> sizes;
  int64_t dim = 0;
};
struct TORCH_API StrangeBackward0 : public Node {
  using Node::Node;
  at::Wonder wonder;
};
struct TORCH_API CalledBackward0 : public Node {
  std::function<void(int)> called;
};
"""
    good, strange, called = parse(header)
    assert good.problem is None and [name for _, name in good.fields] == ["self_", "sizes", "dim"]
    assert strange.problem == "at::Wonder wonder;"
    assert called.problem == "std::function<void(int)> called;"


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def leaf() -> torch.Tensor:
    return torch.rand(4, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()


def nodes_behind(output: Any) -> list[torch.autograd.graph.Node]:
    outputs = [output] if isinstance(output, torch.Tensor) else list(output)
    pending = [one.grad_fn for one in outputs if one.grad_fn is not None]
    seen: dict[torch.autograd.graph.Node, None] = {}
    while pending:
        node = pending.pop()
        if node is not None and node not in seen:
            seen[node] = None
            pending += [following for following, _ in node.next_functions]
    return list(seen)


def stream(output: Any) -> list[tuple[str, Any]]:
    """All that a key and its sizes are made of: tensors by presence alone."""
    result = []
    for node in nodes_behind(output):
        entries = _native.saved_values(node)
        assert entries is not None, f"{node.name()} is unknown"
        result.append(("node", node.name()))
        result += [(kind, value is None if kind in ("variable", "tensor") else value) for kind, value in entries]
    return result


@pytest.mark.parametrize("name", PROGRAMS)
def test_equal_arguments_are_saved_equally_and_others_differently(name):
    program, arguments, *others = PROGRAMS[name]
    expected = stream(program(leaf(), *arguments))
    assert stream(program(leaf(), *arguments)) == expected
    for other in others:
        assert stream(program(leaf(), *other)) != expected, other


def test_the_programs_cover_every_kind_of_field():
    generator = runpy.run_path(str(GENERATOR))
    header = (Path(torch.__file__).parent / "include" / generator["HEADER"]).read_text()
    fields = {structure.name: {kind for kind, _ in structure.fields} for structure in generator["parse"](header)}
    seen = set()
    for program, arguments, *_ in PROGRAMS.values():
        for node in nodes_behind(program(leaf(), *arguments)):
            seen |= fields.get(node.name(), set())
    assert set().union(*fields.values()) - seen == set()


def test_it_needs_a_node():
    with pytest.raises(TypeError, match="needs a node of C"):
        _native.saved_values(torch.rand(3))


def changed_through(view, operation):
    y = leaf() * 1
    operation(view(y))
    assert y.grad_fn.name() == "torch::autograd::CopySlices"
    return _native.saved_values(y)


class TestOperationsOnViews:
    @pytest.mark.parametrize("operation", [lambda v: v.exp_(), lambda v: v.mul_(3), lambda v: v.copy_(v * 2)])
    def test_the_operations_own_node_is_part_of_it(self, operation):
        entries = changed_through(lambda y: y[0], operation)
        other = changed_through(lambda y: y[0], lambda v: v.sin_())
        assert [one for one in entries if one[0] == "constant"] != [one for one in other if one[0] == "constant"]

    def test_functions_that_make_the_view_are_refused(self):
        """Views that no strides describe; their functions keep what cannot be read."""
        assert changed_through(lambda y: torch.view_as_complex(y.view(4, 3, 2)), lambda v: v.mul_(2)) is None

    def test_functions_of_the_users_are_refused(self, custom_functions):
        assert changed_through(lambda y: y[0], custom_functions.doubling) is None
        assert changed_through(lambda y: y[0], Doubled.apply) is None


class TestFreed:
    def test_a_saved_tensor_raises_eagers_error(self):
        output = leaf().sin()
        output.sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            _native.saved_values(output)

    def test_a_list_of_tensors_is_refused(self):
        x = leaf()
        output = x[torch.tensor([0])]
        assert _native.saved_values(output) is not None
        output.sum().backward()
        assert _native.saved_values(output) is None

    def test_an_operation_on_a_view_is_refused(self):
        y = leaf() * 1
        y[0].exp_()
        assert _native.saved_values(y) is not None
        y.sum().backward()
        assert _native.saved_values(y) is None

    def test_what_was_changed_raises_eagers_error(self):
        y = leaf() * 1
        output = y.sin()
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            _native.saved_values(output)


class TestCustomFunctions:
    arguments = {"flag": True, "number": 2, "names": ["a", "bc"], "weights": {"a": 0.5}}

    def stream(self, custom_functions, **changed):
        arguments = {**self.arguments, **changed}
        output = custom_functions.saving(leaf(), leaf(), torch.ones(3), *arguments.values())
        return stream(output)

    @pytest.mark.parametrize(
        "changed",
        [
            {"flag": False},
            {"number": 3},
            {"names": ["a"]},
            {"names": ["ab", "c"]},
            {"names": ["abc"]},
            {"weights": {"a": 0.25}},
            {"weights": {"b": 0.5}},
            {"weights": {"a": 0.5, "b": 1.0}},
        ],
        ids=str,
    )
    def test_saved_data_are_part_of_it(self, custom_functions, changed):
        expected = self.stream(custom_functions)
        assert self.stream(custom_functions) == expected
        assert self.stream(custom_functions, **changed) != expected

    def test_tensors_of_every_kind_are_found(self, custom_functions):
        x, first, second = leaf(), torch.rand(6), torch.rand(6)
        entries = _native.saved_values(custom_functions.saving_nested(x, first, second))
        # By name of the entry: dictionary, list, tuple.
        kept = [value for kind, value in entries if kind == "tensor"]
        assert [any(one is other for other in (first, second)) for one in kept] == [True] * 4
        assert [one is first for one in kept] == [False, True, False, True]

    def test_types_with_the_same_code_differ(self, custom_functions):
        x = leaf()
        assert stream(custom_functions.identity(x)) == stream(custom_functions.identity(x))
        assert stream(custom_functions.identity(x)) != stream(custom_functions.other_identity(x))

    def test_sizes_of_outputs_are_sizes(self, custom_functions):
        entries = _native.saved_values(custom_functions.saving_view(leaf()))
        assert [value for kind, value in entries if kind == "size"] == [4, 6]

    def test_undefined_gradients_are_part_of_it(self, custom_functions):
        custom_functions.reset()
        streams = [stream(custom_functions.data_dependent(leaf(), leaf())) for _ in range(6)]
        assert [one == streams[0] for one in streams] == [True, True, False, True, False, True]

    def test_what_has_no_bytes_is_refused(self, custom_functions):
        assert _native.saved_values(custom_functions.saving_generator(leaf())) is None

    def test_freed_ones_are_refused(self, custom_functions):
        output = custom_functions.saving_view(leaf())
        output.sum().backward()
        assert _native.saved_values(output) is None
