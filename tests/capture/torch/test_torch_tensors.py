"""Tensors in captured code: attributes read and set, indexing, views and aliasing, iteration, values that break."""

from __future__ import annotations

import math

import numpy
import pytest
import torch

from kiln.testing import check
from tests.support.program_table import ProgramTable

X = torch.arange(12.0).reshape(3, 4) / 4
V = torch.tensor([3.0, 1.0, 2.0])
C = torch.tensor([1 + 2j, 3 - 1j])


def leaf(*sizes: int) -> torch.Tensor:
    count = math.prod(sizes)
    return (torch.arange(float(count)) / 3 + 0.5).reshape(sizes).requires_grad_()


# -- attributes -----------------------------------------------------------------------------------------------------

attributes = ProgramTable()


@attributes(X)
def plain(x):
    y = x.t()
    facts = [x.shape, x.dtype, x.device, x.ndim, x.layout, x.itemsize, x.nbytes, y.is_contiguous(), y.stride()]
    more = [x.is_cuda, x.is_sparse, x.is_quantized, x.is_floating_point(), x.is_complex(), x.numel(), x.dim(), x.size()]
    return facts, more, y.size(1), y.stride(0), x.element_size(), y.storage_offset(), x.is_leaf, x.grad_fn


@attributes(leaf(2, 3))
def autograd_facts(x):
    y = x * 2
    z = y.detach()
    facts = (x.is_leaf, x.requires_grad, x.grad, y.is_leaf, y.requires_grad, y.output_nr, z.requires_grad, z.grad_fn)
    return facts, y, x.grad_fn is None, y.retains_grad


@attributes(X)
def transposes(x):
    return x.T + 1, x.mT * 2, x.H, x.mH.shape


@attributes(C)
def complex_parts(x):
    return x.real + 1, x.imag * 2, x.conj(), x.is_conj(), x.conj().is_conj(), torch.view_as_real(x)


@attributes(leaf(3))
def data_read(x):
    return x.data * 2, x.data.requires_grad


@attributes.breaking(leaf(3))
def data_assigned(x):
    x.data = x.data * 2
    return x * 3


@attributes(X)
def contiguity(x):
    y = x.t()
    if y.is_contiguous():
        return y
    return y.contiguous(), y.is_contiguous(memory_format=torch.contiguous_format)


@attributes(X)
def requires_grad_set(x):
    y = x * 2
    y.requires_grad = True
    z = y * 3
    return y, z.requires_grad, z.is_leaf


@attributes(X)
def requires_grad_method(x):
    y = x.clone().requires_grad_()
    return (y * y).sum(), y


@attributes(V)
def custom_attributes(x):
    y = x + 1
    y.tag = "tagged"
    y.numbers = [1, 2]
    y.numbers.append(3)
    return y, y.tag, hasattr(y, "tag"), hasattr(x, "tag"), getattr(x, "missing", 5)


@attributes(V)
def custom_attribute_of_argument(x):
    x.seen = getattr(x, "seen", 0) + 1
    return x.seen


@attributes(V)
def gradient_set(x):
    y = x.clone().requires_grad_()
    y.grad = x * 2
    return y, y.grad


@attributes(leaf(3))
def gradient_of_argument_set(x):
    x.grad = torch.ones_like(x)
    return x.grad + 1


@attributes(X)
def types_of_tensors(x):
    y = x.to(torch.int64)
    return isinstance(x, torch.Tensor), isinstance(y, torch.LongTensor), type(x) is torch.Tensor, x.type(), y.dtype


@attributes(X)
def sizes(x):
    shape = x.shape
    more = shape + (5,)
    return shape[0], shape[-1], shape[1:], shape.numel(), len(shape), list(shape), more, type(more), shape == (3, 4)


@attributes(X)
def size_arithmetic(x):
    rows, columns = x.shape
    return x.reshape(columns, rows), x.new_zeros(rows * 2), torch.zeros(*x.shape), torch.Size([rows, 2]), (*x.size(), 1)


@attributes(X)
def dtype_objects(x):
    info = torch.finfo(x.dtype)
    return x.dtype.is_floating_point, x.dtype.itemsize, info.max, info.eps, torch.iinfo(torch.int8).min, str(x.dtype)


@attributes(X)
def device_objects(x):
    device = torch.device("cpu")
    return x.device == device, x.device.type, x.device.index, torch.zeros(2, device=x.device), x.to(device), x.cpu()


@attributes(X)
def device_literals(x):
    return (
        x.to("cpu"),
        torch.ones(2, device="cpu", dtype=torch.float64),
        x.to(dtype=torch.float16),
        x.double().type_as(x),
    )


@attributes(X)
def lengths(x):
    return len(x), len(x[0]), x.size(dim=-1), x.ndimension()


@attributes.rows
def test_attributes(program, args, expect):
    attributes.run(program, args, expect)


def test_gradient_read_after_backward():
    def program(x):
        return x.grad * 2 if x.grad is not None else x

    def setup():
        x = leaf(3)
        (x * 2).sum().backward()
        return program, (x,)

    check(setup=setup, fullgraph=True)
    check(program, leaf(3), fullgraph=True)


def test_non_leaf_argument():
    def program(y):
        return y * 2, y.is_leaf, y.requires_grad, y.grad_fn is None

    def setup():
        return program, (leaf(3) * 2,)

    check(setup=setup)


# -- indexing -------------------------------------------------------------------------------------------------------

INDEX = torch.tensor([2, 0])
MASK = torch.tensor([True, False, True])

READS = {
    "int": lambda x: x[1],
    "negative": lambda x: x[-1],
    "ints": lambda x: x[1, 2],
    "slice": lambda x: x[1:],
    "slices": lambda x: x[:2, 1:3],
    "step": lambda x: x[::2, ::3],
    "ellipsis": lambda x: x[..., 1],
    "none": lambda x: x[None, :, None],
    "tensor": lambda x: x[INDEX],
    "tensors": lambda x: x[INDEX, INDEX],
    "mixed": lambda x: x[INDEX, 1:, None],
    "list": lambda x: x[[0, 2]],
    "lists": lambda x: x[[0, 2], [1, 3]],
    "bool": lambda x: x[True],
    "tuple": lambda x: x[(1, slice(None, 2))],
    "slice object": lambda x: x[slice(0, 2)],
    "scalar tensor": lambda x: x[torch.tensor(1)],
    "range": lambda x: x[range(2)],
    "chain": lambda x: x[1:][0][2],
    "computed": lambda x: x[len(x) - 1, x.shape[1] // 2],
}

WRITES = {
    "int": (lambda x: x.__setitem__(0, 5.0)),
    "slices": (lambda x: x.__setitem__((slice(1, None), slice(0, 2)), 7)),
    "tensor": (lambda x: x.__setitem__(INDEX, torch.ones(4))),
    "mask": (lambda x: x.__setitem__(MASK, 0.0)),
    "mask of values": (lambda x: x.__setitem__(x > 1, -1.0)),
    "ellipsis": (lambda x: x.__setitem__((Ellipsis, 0), torch.zeros(3))),
    "broadcast": (lambda x: x.__setitem__(slice(None), torch.arange(4.0))),
}


@pytest.mark.parametrize("name", READS)
def test_index(name):
    read = READS[name]

    def program(x):
        return read(x) * 2

    check(program, leaf(3, 4), fullgraph=True)


def test_index_with_mask_breaks():
    def program(x, mask):
        y = x + 1
        return y[mask] * 2

    check(program, X, MASK, breaks=1, breaks_every=(None, "line"))


@pytest.mark.parametrize("name", WRITES)
def test_write(name):
    write = WRITES[name]

    def program(x):
        y = x * 1
        write(y)
        return y * 2

    check(program, leaf(3, 4), fullgraph=True)


writes = ProgramTable()


@writes(X.clone())
def write_to_argument(x):
    x[0] = 1
    x[1, 1:] += 5
    x[:, 0] *= torch.tensor([1.0, 2.0, 3.0])
    return x.sum()


@writes(X.clone(), V)
def write_through_view(x, v):
    row = x[1]
    row[:3] = v
    view = x.view(-1)
    view[0] = 100
    return row, view


@writes(X)
def in_place_operators(x):
    y = x.clone()
    before = y
    y += 1
    y -= 0.5
    y *= 2
    y /= 3
    y **= 2
    y //= 0.5
    y %= 3
    return y, y is before


@writes(torch.arange(6))
def in_place_bits(x):
    y = x.clone()
    y &= 5
    y |= 2
    y ^= 1
    y <<= 1
    y >>= 1
    return y, ~y


@writes(X.clone())
def in_place_methods(x):
    x.add_(1).mul_(2).clamp_(max=4)
    x.zero_()[0].fill_(3)
    x.t_().t_()
    torch.relu_(x)
    return x


@writes(X.clone())
def copies(x):
    y = torch.empty_like(x)
    y.copy_(x)
    x.zero_()
    return y, x


@writes(X)
def out_arguments(x):
    out = torch.empty(3, 4)
    result = torch.add(x, 1, out=out)
    values, indices = torch.empty(3), torch.empty(3, dtype=torch.long)
    torch.max(x, dim=1, out=(values, indices))
    return result is out, out, values, indices


@writes.breaking(X.clone())
def delete_item_fails(x):
    try:
        del x[0]
    except TypeError as error:
        return str(error)


@writes.rows
def test_writes(program, args, expect):
    writes.run(program, args, expect)


# -- views, aliasing, identity --------------------------------------------------------------------------------------

aliases = ProgramTable(calls=2)


@aliases(X.clone())
def views_of_argument(x):
    return x.view(-1), x[0], x.t(), x.detach(), x, x.unsqueeze(0), x.expand(2, 3, 4), x.view_as(x)


@aliases(X.clone())
def views_of_each_other(x):
    y = x + 1
    z = y.view(-1)
    z.add_(1)
    return y, z, z[:2], y is z


@aliases(X.clone())
def the_same_object(x):
    y = x.contiguous()
    z = x.to(torch.float32)
    w = x.reshape(3, 4)
    return x is y, x is z, x is w, x.float() is x, y, z, [x, x], torch.nn.functional.dropout(x, training=False)


@aliases(X.clone(), V.clone())
def returned_twice(x, v):
    y = x * 2
    return y, {"a": y, "b": [y, v]}, v


@aliases(X.clone())
def chunks(x):
    a, b = x.chunk(2, dim=1)
    c, *rest = x.split(1)
    a.add_(1)
    return a, b, c, rest, x.unbind(1)


@aliases(X.clone())
def mutation_after_view(x):
    v = x[1]
    x.mul_(3)
    w = v + 1
    v.zero_()
    return w, x.sum()


@aliases.rows
def test_aliases(program, args, expect):
    aliases.run(program, args, expect)


def test_arguments_that_alias():
    def program(a, b):
        a.add_(1)
        return b * 2

    def setup():
        base = X.clone()
        return program, [(base, base), (base, base.clone()), (base[0], base), (base, base.view(-1))]

    check(setup=setup)


# -- iteration ------------------------------------------------------------------------------------------------------

iteration = ProgramTable()


@iteration(X)
def loop(x):
    total = torch.zeros(4)
    for row in x:
        total = total + row
    return total


@iteration(X)
def unpacking(x):
    a, b, c = x
    first, *rest = b
    return a + c, first, rest


@iteration(X)
def comprehension(x):
    return [row.sum() * i for i, row in enumerate(x)], list(zip(x, x.t(), strict=False)), tuple(reversed(list(x)))


@iteration(V)
def builtins_of_tensors(x):
    return sum(x), max(x.unbind(), key=lambda t: t.shape), list(map(torch.sin, x)), abs(x), x @ x


@iteration(X)
def stacked(x):
    return torch.stack([row * 2 for row in x]), torch.cat(tuple(x)), torch.stack(list(x), dim=1)


@iteration.rows
def test_iteration(program, args, expect):
    iteration.run(program, args, expect)


# -- values: the graph breaks, and is right -------------------------------------------------------------------------

values = ProgramTable(fullgraph=False, calls=[(V,), (-V,), (V * 0,)], breaks_every=(None, "line"))


@values()
def branch(x):
    y = x * 2
    if y.sum() > 0:
        return y + 1
    elif (y < 0).all():
        y = y - 1
    return y * 3


@values()
def item(x):
    number = x[0].item()
    return x * number, number, int(x[1]), float(x[2]), bool(x[0]), x.tolist()


@values()
def item_in_condition(x):
    y = x + 1 if x.max().item() > 2 else x - 1
    while y.sum() > 10:
        y = y / 2
    return y


@values()
def item_in_loop(x):
    total = 0.0
    for value in x:
        total += value.item()
        if value > 2 or not value:
            continue
        x = x + total
    return x, total


@values()
def boolean_operators(x):
    a = x.sum() > 0 and x.max() > 2
    b = not x.any()
    return a, b, (x[0] > 0) is True, bool(x.all()) and 3


@values()
def as_index(x):
    i = int(x[0].abs().item()) % 3
    return x[i], [10, 20, 30][i], [4, 5, 6][torch.tensor(i)], range(torch.tensor(2))


@values()
def text(x):
    y = x * 2
    return f"{y.sum().item():.2f}", str(y), repr(x), f"{x}"


@values()
def numpy_calls(x):
    array = (x * 2).numpy()
    y = torch.from_numpy(array + 1)
    return y * 2, numpy.asarray(x).sum(), numpy.add(x.numpy(), 1), torch.as_tensor(array), torch.tensor(array)


@values()
def asserted(x):
    assert x.isfinite().all(), "not finite"
    return x.exp()


@values()
def equal_and_close(x):
    return torch.equal(x, x + 0), torch.allclose(x, x * 1), x.equal(x), x in [x], bool((x == x).all())


@values()
def shapes_from_values(x):
    y = x.nonzero()
    z = torch.masked_select(x, x > 1)
    return y.shape[0], z * 2, x.unique(), torch.where(x > 1)


@values()
def membership(x):
    return 2.0 in x, 17.0 in x


@values.rows
def test_values(program, args, expect):
    values.run(program, args, expect)


def test_item_counts_breaks():
    def program(x):
        y = x * 2
        n = y.sum().item()
        return y + n

    check(program, V, breaks=1, graphs=2)


# -- comparison with what is no tensor ------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [None, "text", 3, 2.0, True, (1, 2), [3.0, 1.0, 2.0], {"a": 1}, {1}, int, V, object])
@pytest.mark.parametrize("reflected", [False, True])
def test_comparison(other, reflected):
    def program(x):
        y = x * 1
        if reflected:
            return other == y, other != y
        return y == other, y != other

    check(program, V)


def test_is_none():
    def program(x, y=None):
        if y is None:
            y = x * 2
        return x is None, y is not None, x is x, x is y, y

    check(program, V, fullgraph=True, calls=[(V,), (V, V), (V, X)])


def test_attribute_that_only_another_version_of_torch_has():
    missing = next((name for name in ("names", "is_xla", "is_ipu") if not hasattr(torch.Tensor, name)), "is_vapour")

    def setup():
        def program(x):
            found = [hasattr(x, name) for name in ("names", "is_xla", "is_ipu", "is_vulkan", "_is_param")]
            setattr(x, missing, 3)
            return found, getattr(x, missing) + x, getattr(x + 1, missing, "none")

        return program, [(X.clone(),), (X.clone(),)]

    check(setup=setup, fullgraph=not hasattr(torch.Tensor, "names"))  # torch 2.11 cannot fake names of dimensions
