"""A sample of the operator sweep through code generation (`tests/sweep_codegen.py` runs all of it)."""

from __future__ import annotations

import pytest
import torch

from tests import sweep_codegen

EVERY = 60  # operators
# One of each family that goes another way: reductions, scatters, several results, random numbers, library calls …
FAMILIES = (
    "amax, argmax, cat, cumsum, index_put, nn_functional_batch_norm, nn_functional_conv2d, nn_functional_cross_entropy"
    ", nn_functional_dropout, nn_functional_embedding, nn_functional_gelu, nn_functional_layer_norm, scatter_add"
    ", softmax, var_mean, where"
).split(", ")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def operators():
    return sweep_codegen.all_operators()


def judge_all(names, operators, options):
    known = sweep_codegen.known_failures()
    found = [item for name in names for item in sweep_codegen.judge_operator(operators[name], options)]
    failed = [f"{case}: {verdict.reason}" for case, verdict in found if verdict.status == "failed"]
    assert not [text for text in failed if text.split(" ")[0] not in known], "\n".join(failed)
    return [verdict.status for _, verdict in found]


@pytest.mark.parametrize("dtype", sweep_codegen.DTYPES)
def test_sample_of_operators(operators, dtype):
    """Other operators in each type, with one sample in all layouts."""
    first = list(sweep_codegen.DTYPES).index(dtype)
    names = [name for name in operators if sweep_codegen.DTYPES[dtype] in operators[name].dtypes]
    names = names[3 * first :: EVERY * (2 if dtype in sweep_codegen.WHOLE else 1)]
    statuses = judge_all(names, operators, sweep_codegen.Options([dtype], limit=1, compiled=0))
    tried = [status for status in statuses if status not in ("skipped", "facts")]
    assert tried and tried.count("lowered") + tried.count("called") > 0.5 * len(tried)


def test_families(operators):
    statuses = judge_all(FAMILIES, operators, sweep_codegen.Options(["float32"], limit=1, laid_out=False, compiled=0))
    assert "eager" not in statuses


def test_families_with_symbolic_sizes(operators):
    options = sweep_codegen.Options(["float32"], limit=1, laid_out=False, compiled=0, dynamic=True)
    judge_all(FAMILIES, operators, options)


# torch 2.11, or 2.13, has no samples of them
NEW = {"native_group_norm", "torch_ops_aten__scaled_dot_product_flash_attention_for_cpu"}


def test_list_of_failures_is_short(operators):
    known = sweep_codegen.known_failures()
    assert set(known) - NEW <= set(operators)
    assert len(known) < sweep_codegen.MOST_FAILURES * len(operators)
    assert all(known.values()), "each with a reason"
