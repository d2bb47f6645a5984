"""The operator table: what is derived from torch's schemas and tags, and what is declared by hand."""

from __future__ import annotations

import ast
import operator
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from kiln.capture.shadows.tensor_effects import may_raise, operator_called
from kiln.program.operators import declarations
from kiln.program.operators.functional_forms import functional_form
from kiln.program.operators.operator_table import Cost, Raises, operator_named, operator_of

aten = torch.ops.aten
KILN = Path(__file__).parents[2] / "kiln"


def called(function):
    return operator_called(function, function.__name__)


# ---- from schemas and tags ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        torch.rand,
        torch.bernoulli,
        torch.Tensor.normal_,
        F.dropout,
        F.dropout2d,
        torch.dropout,
        aten.native_dropout.default,
    ]
    + [F.gumbel_softmax, F.scaled_dot_product_attention, F.rrelu, torch.lstm, aten.randint.low, aten.uniform_.default]
    + [F.multi_head_attention_forward, F.fractional_max_pool2d, torch.multinomial],
)
def test_random_operators(function) -> None:
    assert called(function).random


@pytest.mark.parametrize(
    "function",
    [F.normalize, F.poisson_nll_loss, torch.lstm_cell, torch.Tensor.__rand__, torch.add, operator.add, F.linear]
    + [aten.native_dropout_backward.default, aten.fractional_max_pool2d.default],
)
def test_operators_that_draw_nothing(function) -> None:
    assert not called(function).random


IN_PLACE = [torch.Tensor.add_, torch.Tensor.__iadd__, operator.iadd, operator.ilshift, operator.setitem, torch.relu_]
NOT_IN_PLACE = [torch.add, operator.and_, operator.or_, torch.Tensor.__invert__, torch.sort, operator.imatmul]


def test_operators_in_place() -> None:
    assert [function for function in IN_PLACE if not called(function).in_place] == []
    assert [function for function in NOT_IN_PLACE if called(function).in_place] == []


def test_a_function_in_python_is_in_place_by_its_name() -> None:
    assert operator_named("scale_").in_place and not operator_named("scale").in_place


def test_mutation_and_views() -> None:
    assert [place.name for place in operator_of(aten.add_.Tensor).signature.changed] == ["self"]
    assert [place.name for place in operator_of(aten.add.out).signature.changed] == ["out"]
    assert operator_of(aten.add_.Tensor).mutable and not operator_of(aten.add.Tensor).mutable
    assert operator_of(aten.transpose.int).is_view and operator_of(aten.transpose.int).signature.view_of == 0
    assert operator_of(aten.split.Tensor).signature.view_of == 0
    assert not operator_of(aten.add_.Tensor).is_view
    assert operator_of(aten.transpose_.default).replaces_metadata
    assert operator_of(aten.contiguous.default).may_return_views
    assert not operator_of(aten.mm.default).may_return_views


def test_functional_forms() -> None:
    assert functional_form(aten.add_.Tensor) == (aten.add.Tensor, ())
    form, left_out = functional_form(aten.add.out)
    assert form is aten.add.Tensor and [place.name for place in left_out] == ["out"]


def test_operators_that_need_values() -> None:
    assert operator_of(aten.nonzero.default).needs_values and operator_of(aten._local_scalar_dense.default).needs_values
    assert not operator_of(aten.add.Tensor).needs_values


def test_operators_with_effects() -> None:
    with_effect = (aten.add_.Tensor, aten.rand.default, aten._assert_async.default, aten._assert_scalar.default)
    assert all(operator_of(overload).has_effect for overload in with_effect)
    assert not operator_of(aten.add.Tensor).has_effect


@pytest.fixture
def users():
    with torch.library._scoped_library("kiln_table", "DEF") as library:
        library.define("dropout(Tensor x) -> Tensor")
        library.impl("dropout", torch.clone, "CompositeExplicitAutograd")
        yield torch.ops.kiln_table.dropout


def test_of_users_operators_nothing_is_known(users) -> None:
    for found in (operator_of(users.default), called(users)):
        assert not found.is_own and not found.random  # torch's operator of that name draws, and this one has no tag
    assert operator_of(users.default).has_effect and operator_of(users.default).cost is Cost.EXPENSIVE


# ---- declared by hand -----------------------------------------------------------------------------------------------

RAISES = {
    Raises.NEVER: [torch.sqrt, torch.add, torch.lgamma, torch.resolve_conj, operator.truediv, torch.mode, operator.inv]
    + [F.kl_div, torch.Tensor.sqrt_, torch.Tensor.normal_],
    Raises.ON_VALUES: [torch.gather, torch.Tensor.index_add_, F.cross_entropy, F.embedding, torch.linalg.inv, torch.det]
    + [torch.normal, torch.multinomial, aten.det.default, torch.linalg.solve_ex, torch.Tensor.scatter_, F.one_hot],
    Raises.ON_INTEGERS: [torch.div, operator.floordiv, operator.mod, torch.Tensor.remainder_, torch.Tensor.__mod__],
    Raises.ON_INDICES: [operator.getitem, torch.Tensor.__setitem__],
}


@pytest.mark.parametrize("kind", RAISES, ids=lambda kind: kind.name)
def test_when_operators_raise(kind: Raises) -> None:
    assert [function for function in RAISES[kind] if called(function).raises is not kind] == []


def test_indices_on_a_gpu_are_checked_by_the_device() -> None:
    """A graph that only such operations could fail needs no copies of what it changes before."""
    mode = FakeTensorMode()

    def fakes(device: str) -> list[torch.Tensor]:
        return [FakeTensor(mode, torch.empty(4, 3, device="meta"), torch.device(device)) for _ in range(2)]

    for function in (F.cross_entropy, F.embedding, torch.gather, operator.getitem):
        assert called(function).asserts_on_gpu
        assert may_raise(called(function), function, fakes("cpu"))
        assert may_raise(called(function), function, [*fakes("cuda:0"), *fakes("cpu")])
        assert not may_raise(called(function), function, fakes("cuda:0"))
    for function in (torch.linalg.inv, torch.multinomial, torch.bincount):  # these look at values before they return
        assert may_raise(called(function), function, fakes("cuda:0"))
    assert declarations.ASSERTS_ON_GPU <= declarations.RAISES_ON_VALUES | declarations.RAISES_ON_INDICES


def test_operators_of_one_dtype() -> None:
    yes = [
        F.linear,
        torch.mm,
        torch.Tensor.__matmul__,
        operator.matmul,
        F.conv2d,
        torch.addmm,
        F.layer_norm,
        aten.mm.default,
    ]
    no = [torch.add, F.normalize, torch.nn.functional.interpolate, torch.cat]
    assert all(called(function).one_dtype for function in yes) and not any(
        called(function).one_dtype for function in no
    )


def test_operators_that_change_statistics() -> None:
    assert called(F.batch_norm).changes_unmarked and called(F.instance_norm).changes_unmarked
    assert (
        not called(F.layer_norm).changes_unmarked and not called(torch.fake_quantize_per_tensor_affine).changes_unmarked
    )


def test_quantized_operators() -> None:
    assert called(torch.quantize_per_tensor).quantized and called(torch.Tensor.int_repr).quantized
    assert not called(torch.fake_quantize_per_tensor_affine).quantized


def test_attention_kernels() -> None:
    assert (
        called(F.scaled_dot_product_attention).chooses_attention_kernel
        and not called(F.softmax).chooses_attention_kernel
    )


def test_facts_for_tracing() -> None:
    assert operator_of(aten.sym_size.default).asks_form and not operator_of(aten.sym_size.int).asks_form
    assert operator_of(aten.sym_size.int).gives_size and not operator_of(aten.add.Tensor).gives_size
    assert operator_of(aten.detach.default).gives_argument and not operator_of(aten.clone.default).gives_argument
    assert operator_of(aten._unsafe_view.default).hands_memory_on and not operator_of(aten.view.default).hands_memory_on
    assert operator_of(aten.bernoulli_.float).draws_in_memory_order
    assert not operator_of(aten.bernoulli_.Tensor).draws_in_memory_order
    assert operator_of(aten.normal_.default).draws_otherwise_with_holes
    assert operator_of(aten.linalg_eig.default).derivative_reads_values
    assert operator_of(aten.lift_fresh.default).lifts and not operator_of(aten.clone.default).lifts
    assert operator_of(aten.one_hot.default).faithful_in_python
    assert operator_of(aten.as_strided.default).counts_from_storage
    assert operator_of(aten.empty_like.default).leaves_unwritten
    assert not operator_of(aten.zeros_like.default).leaves_unwritten


def test_costs() -> None:
    wanted = {
        aten.transpose.int: Cost.VIEW,
        aten._unsafe_view.default: Cost.VIEW,
        aten.add.Tensor: Cost.CHEAP,
        aten.cat.default: Cost.CHEAP,
        aten._softmax.default: Cost.PASSES,
        aten.special_i1.default: Cost.PASSES,
        aten.mm.default: Cost.EXPENSIVE,
    }
    assert {overload: operator_of(overload).cost for overload in wanted} == wanted


def test_rules_of_other_layers() -> None:
    import kiln.lower.ops.pointwise.elementwise
    import kiln.program.shapes.shape_cache  # noqa: F401

    assert operator_of(aten.add.Tensor).lowering is not None and operator_of(aten.add.Tensor).lowers_dynamic_floats
    assert operator_of(aten.convolution.default).lowering is None
    assert operator_of(aten.native_batch_norm.default).rewrite is not None
    assert operator_of(aten.native_batch_norm.default).layout is not None
    assert operator_of(aten.upsample_bilinear2d_backward.default).symbolic_shape is not None


def test_batch_norm_of_a_library_is_recorded_as_that_of_aten():
    """cuDNN's changes the running statistics without saying so, and reserves memory for its own backward."""
    function = aten.cudnn_batch_norm.default
    rewrite = operator_of(function).rewrite
    given = ("x", "weight", "bias", "mean", "variance")
    form, args, keywords, signature = rewrite(function, (*given, True, 0.1, 1e-5), {})
    assert form is aten._native_batch_norm_legit_functional.default
    assert args == (*given, True, 0.1, 1e-5) and keywords == {}
    assert [place.name for place in signature.changed] == ["running_mean", "running_var"]
    for unchanged in ((*given, False, 0.1, 1e-5), ("x", "weight", "bias", None, None, True, 0.1, 1e-5)):
        assert rewrite(function, unchanged, {}) == (function, unchanged, {}, None)
    backward = aten.cudnn_batch_norm_backward.default
    saved = ("mean", "variance", "saved mean", "saved deviation")
    form, args, *_ = operator_of(backward).rewrite(backward, ("x", "gradient", "weight", *saved, 1e-5, "memory"), {})
    assert form is aten.native_batch_norm_backward.default
    assert args == ("gradient", "x", "weight", *saved, True, 1e-5, [True, True, True])


# Functions that torch removed, and keeps to raise an error, and names that only some releases have.
NEW = {"_foreach_mm", "linear_cross_entropy"}  # not in torch 2.11
OLD = {"eig", "symeig", "solve", "lstsq", "dsmm", "hsmm", "saddmm", "spmm", "divmod", "seed"}


def test_declared_names_exist() -> None:
    tables = [value for value in vars(declarations).values() if isinstance(value, frozenset)]
    declared = {name for table in (*tables, declarations.DRAWS_NOTHING_WITH) for name in table}
    places = (torch.ops.aten, torch.ops.prims, torch, torch.Tensor, F, operator)

    def exists(name: str) -> bool:
        if "." in name:
            packet, overload = name.split(".")
            return hasattr(getattr(aten, packet, None), overload)
        return any(hasattr(place, spelled) for place in places for spelled in (name, f"{name}_"))

    private = {"_svd_lowrank", "_test_check_tensor"}
    assert sorted(name for name in declared if not exists(name) and name not in OLD | NEW | private) == []
    assert sorted(name for name in declarations.ATEN_NAMES.values() if not exists(name)) == []


def test_no_fact_is_declared_twice() -> None:
    """Not by ``name`` and ``name_``, and no operator raises in two ways."""
    for table in [value for value in vars(declarations).values() if isinstance(value, frozenset)]:
        assert [name for name in table if name.endswith("_") and name[:-1] in table and not name.endswith("__")] == []
    ways = (declarations.RAISES_ON_VALUES, declarations.RAISES_ON_INTEGERS, declarations.RAISES_ON_INDICES)
    assert sum(map(len, ways)) == len(frozenset().union(*ways))
    costs = (declarations.CHEAP, declarations.PASSES, declarations.LIKE_VIEWS)
    assert sum(map(len, costs)) == len(frozenset().union(*costs))


# ---- how it is asked ------------------------------------------------------------------------------------------------


def test_a_record_is_made_once() -> None:
    assert operator_named("add") is operator_named("add")
    assert operator_of(aten.add.Tensor) is operator_of(aten.add.Tensor)


PACKAGES = ("aot", "capture", "codegen", "engine", "loops", "lower", "program", "target")


def patterns(tree: ast.AST) -> list[str]:
    """The texts of regular expressions in a module: of calls of functions of re."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    of_re = [call for call in calls if isinstance(call.func.value, ast.Name) and call.func.value.id == "re"]
    return [
        part.value
        for call in of_re
        for part in ast.walk(call)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]


def operators_in(pattern: str) -> list[str]:
    """Names of operators that a regular expression spells out."""
    return [word for word in re.findall(r"[a-z_]{3,}", pattern) if hasattr(aten, word)]


def test_no_regular_expression_over_names_of_operators() -> None:
    """What an operator does is a fact in the table."""
    found = {
        f"{path.relative_to(KILN)}: {pattern}"
        for package in PACKAGES
        for path in (KILN / package).rglob("*.py")
        for pattern in patterns(ast.parse(path.read_text()))
        if operators_in(pattern)
    }
    assert found == set()


def test_such_an_expression_is_found() -> None:
    text = 'import re\nRANDOM = re.compile(r"rand|dropout" r"|bernoulli")\nre.search("x", "words")'
    assert [operators_in(pattern) for pattern in patterns(ast.parse(text))] == [
        ["rand", "dropout", "bernoulli"],
        [],
        [],
    ]
