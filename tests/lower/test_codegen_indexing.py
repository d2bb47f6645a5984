"""Indices that are data: what is looked up and written is eager's, and so are the errors of those out of range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import kiln
from tests.support.movement_cases import LAYOUTS, check, tensor

I, J = torch.tensor([2, -1, 0, 1, 1]), torch.tensor([[3], [-5]])
ROWS = torch.tensor([2, 0, 1, 1, 2])
ELEMENTS = torch.tensor([[0, 2, 1, 0, 2], [1, 1, 0, 2, 2]])

# Of a tensor of shape (3, 5, 4).
LOOKUPS: dict[str, Callable[[torch.Tensor], Any]] = {
    "first axis": lambda x: x[I],
    "last axis": lambda x: x[..., I],
    "middle axis": lambda x: x[:, J],
    "two axes": lambda x: x[I, J],
    "apart": lambda x: x[I, :, I],
    "apart, broadcast": lambda x: x[J[:, 0] % 3, :, I[:2]],
    "behind": lambda x: x[:, J, I[:1]],
    "with slices": lambda x: x[1:, I, ::2],
    "int32": lambda x: x[I.int()],
    "positions": lambda x: x[torch.arange(3), torch.arange(3)],
    "a number": lambda x: x[torch.tensor(1)],
    "embedding": lambda x: F.embedding(ELEMENTS, x[0]),
    "embedding with padding": lambda x: F.embedding(ELEMENTS, x[0], padding_idx=2),
    "index_select": lambda x: x.index_select(1, ROWS),
    "gather": lambda x: x[..., 0].gather(0, ELEMENTS),
    "gather behind": lambda x: x[:2, :, 0].gather(1, ELEMENTS + 2),
    "take": lambda x: x.take(torch.tensor([[0, -1], [17, 59]])),
    "take_along_dim": lambda x: torch.take_along_dim(x, x.argsort(1), 1),
    "of an expression": lambda x: (x * 2 + 1)[I].sin(),
    "by an expression": lambda x: x[(ROWS + 1) % 3],
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_lookups(name: str) -> None:
    function = LOOKUPS[name]
    called = ("aten.sort.default",) if name == "take_along_dim" else ()
    check(lambda x: function(x * 1), tensor((3, 5, 4)), called=called, exact=False)


@pytest.mark.parametrize("layout", LAYOUTS[1:4])
@pytest.mark.parametrize("name", ("first axis", "apart", "embedding", "index_select", "gather"))
def test_layouts(name: str, layout: str) -> None:
    check(LOOKUPS[name], tensor((3, 5, 4), layout), exact=False)


# Of a tensor of shape (3, 5) and a source of shape (5, 5). Elements meet, and the order counts.
WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "index_put": lambda x, y: x.index_put((I[:3],), y[:3]),
    "index_put by two": lambda x, y: x.index_put((I, torch.arange(5)), y[0]),
    "index_put of a number": lambda x, y: x[:].index_put((ROWS[:2],), torch.tensor(2.0)),
    "index_put adds": lambda x, y: x.index_put((I,), y, accumulate=True),
    "index_put by a mask": lambda x, y: x.index_put((x > 0,), torch.tensor(3.0)),
    "index_put by a mask of rows": lambda x, y: x.index_put((x[:, 0] > 0,), torch.tensor(3.0)),
    "index_add": lambda x, y: x.index_add(0, ROWS, y),
    "index_add, a factor": lambda x, y: x.index_add(1, ROWS, y[:3], alpha=2.5),
    "index_copy": lambda x, y: x.index_copy(1, ROWS[:3], y[:3, :3]),
    "index_fill": lambda x, y: x.index_fill(1, ROWS, 9.0),
    "put": lambda x, y: x.put(torch.tensor([0, -1, 3]), y[0, :3]),
    "put adds": lambda x, y: x.put(torch.tensor([0, -1, 0]), y[0, :3], accumulate=True),
    "scatter": lambda x, y: x.scatter(0, ELEMENTS[:1], y[:1]),
    "scatter of a number": lambda x, y: x.scatter(1, ELEMENTS, 5.0),
    "scatter_add": lambda x, y: x.scatter_add(0, ELEMENTS, y[:2]),
    "scatter_add behind": lambda x, y: x.scatter_add(1, ELEMENTS, y[:2]),
    "scatter sum": lambda x, y: x.scatter_reduce(0, ELEMENTS, y[:2], "sum", include_self=False),
    "scatter prod": lambda x, y: x.detach().scatter_reduce(0, ELEMENTS, y.detach(), "prod"),
    "scatter amax": lambda x, y: x.detach().scatter_reduce(1, ELEMENTS, y.detach(), "amax"),
    "scatter amin alone": lambda x, y: x.detach().scatter_reduce(1, ELEMENTS, y.detach(), "amin", include_self=False),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes(name: str) -> None:
    function = WRITES[name]
    check(lambda x, y: function(x * 2, y), tensor((3, 5)), tensor((5, 5)), exact=False)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.uint8), ids=str)
def test_types(dtype: torch.dtype) -> None:
    def program(x, y):
        return (
            x[I],
            F.embedding(ROWS, x),
            x.gather(1, ELEMENTS),
            x.index_put((I,), y),
            x.index_put((I,), y, accumulate=True),
            x.index_add(0, ROWS, y),
            x.scatter(1, ELEMENTS, y),
            x.scatter(1, ELEMENTS, y, reduce="add"),
            x.scatter(1, ELEMENTS, y, reduce="multiply"),
        )

    adding = ("aten.index_add.default", "aten.scatter.reduce")  # in float32, of bfloat16
    called = adding if dtype is torch.bfloat16 else ()
    check(program, tensor((3, 5), dtype=dtype), tensor((5, 5), dtype=dtype), grads=False, called=called)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_gradient_of_embedding(dtype: torch.dtype) -> None:
    """Many indices meet in few rows, one after another as in eager; the row of the padding gets nothing."""
    weight, indices = tensor((7, 33), dtype=dtype), torch.arange(60).reshape(4, 15) % 5
    check(lambda w: F.embedding(indices, w, padding_idx=3) * 2, weight)


@pytest.mark.parametrize("shape", ((6, 4), (1, 3), (5, 1)), ids=str)
def test_bags_of_one_size(shape: tuple[int, ...]) -> None:
    indices = torch.randint(0, 9, shape, generator=torch.Generator().manual_seed(0))
    check(lambda w: F.embedding_bag(indices, w, mode="sum") * 2, tensor((9, 33)), called=None, exact=False)


def test_bags_of_many_sizes() -> None:
    indices, offsets = torch.randint(0, 9, (20,)), torch.tensor([0, 3, 3, 12, 19])
    for options in ({}, {"padding_idx": 2}, {"mode": "mean"}, {"mode": "max"}):
        options = {"mode": "sum"} | options
        check(lambda w, o=options: F.embedding_bag(indices, w, offsets, **o), tensor((9, 5)), called=None, exact=False)


# With an index that is out of range in one of two ways.
WRONG: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "index": lambda x, i: x[i],
    "index of two": lambda x, i: x[0, i, i - 2],
    "index_put": lambda x, i: x.index_put((i,), x[:1]),
    "embedding": lambda x, i: F.embedding(i, x[0]),
    "index_select": lambda x, i: x.index_select(0, i),
    "index_select of columns": lambda x, i: x[0].index_select(1, i),
    "gather": lambda x, i: x[:1, :1, :1].gather(0, i[None, None]),
    "scatter": lambda x, i: x[0, 0].scatter(0, i, 1.0),
    "scatter_add": lambda x, i: x[0, 0].scatter_add(0, i, x[0, 0, :1]),
    "index_add": lambda x, i: x.index_add(0, i, x[:1]),
    "index_copy": lambda x, i: x.index_copy(0, i, x[:1]),
    "index_fill": lambda x, i: x.index_fill(0, i, 1.0),
    "take": lambda x, i: x[0, 0].take(i),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors(name: str) -> None:
    function, x = WRONG[name], tensor((3, 4, 4))
    compiled = kiln.compile(lambda x, i: function(x * 1, i) + 1, backend="kiln", fullgraph=True)
    for index in (2, 4, -6, 2**62, 1):
        given = torch.tensor([index])
        try:
            expected = function(x * 1, given) + 1
        except (IndexError, RuntimeError) as error:
            with pytest.raises(type(error)) as raised:
                compiled(x, given)
            assert str(raised.value).splitlines()[0] == str(error).splitlines()[0]
        else:
            torch.testing.assert_close(compiled(x, given), expected)


def test_errors_of_dynamic_sizes() -> None:
    compiled = kiln.compile(lambda x, i: x[i] * 2, backend="kiln", fullgraph=True, dynamic=True)
    for size in (5, 9):
        x = tensor((size, 3))
        torch.testing.assert_close(compiled(x, torch.tensor([size - 1, -size])), x[[size - 1, -size]] * 2)
        with pytest.raises(IndexError, match=f"index {size} is out of bounds for dimension 0 with size {size}"):
            compiled(x, torch.tensor([0, size]))


def test_the_least_of_all_numbers_is_no_index() -> None:
    compiled = kiln.compile(lambda x, i: x[i] * 2, backend="kiln", fullgraph=True)
    for dtype in (torch.int64, torch.int32):
        with pytest.raises(IndexError):
            compiled(tensor((4, 3)), torch.tensor([1, torch.iinfo(dtype).min], dtype=dtype))


def test_nothing_to_look_up_or_to_look_in() -> None:
    none = torch.empty(0, dtype=torch.int64)
    check(
        lambda x: (x[none], x.index_select(1, none), F.embedding(none, x), x.index_put((none,), x[:0])), tensor((3, 4))
    )
    empty = kiln.compile(lambda x, i: x[i] + 1, backend="kiln")
    with pytest.raises(IndexError):
        empty(torch.empty(0, 4), torch.tensor([0]))


def test_positions_are_not_looked_up() -> None:
    """An index that is nothing but positions in the range is a view: no check, no indirect load."""
    from tests.support.codegen_programs import calls, launches, scheduled_of

    scheduled = scheduled_of(lambda w: F.embedding(torch.arange(4), w) + 1, [tensor((8, 16))])
    assert calls(scheduled) == []
    assert all(not access.indirect for launch in launches(scheduled) for access in launch.kernel.accesses())


def test_the_same_index_is_checked_once() -> None:
    from tests.support.codegen_programs import launches, scheduled_of

    def program(x, i):
        return x[i], x[i] * 2, (x + 1)[i]

    scheduled = scheduled_of(program, [tensor((8, 16)), torch.tensor([3, 4])])
    written = [output.target.buffer.name for launch in launches(scheduled) for output in launch.kernel.outputs]
    assert written.count("bad_indices") == 1
