"""Storages that programs resize or replace, as FSDP does with parameters: no operator tells of that."""

import pytest
import torch
import torch._inductor  # registers the operator that resizes a storage
from torch.testing import assert_close

import kiln
from kiln.aot import aot_function

ELEMENTS = 8
BYTES = 4 * ELEMENTS


def resize(tensor, size):
    tensor.untyped_storage().resize_(size)


def up(x, y):
    resize(x, BYTES)
    with torch.no_grad():
        x.copy_(torch.ones(ELEMENTS))
    return x.sin()


def up_by_operator(x, y):
    torch.ops.inductor.resize_storage_bytes_(x, BYTES)
    with torch.no_grad():
        x.copy_(torch.ones(ELEMENTS))
    return x.sin()


def up_and_down(x, y):
    resize(x, BYTES)
    with torch.no_grad():
        x.copy_(torch.ones(ELEMENTS))
    out = x + 1
    resize(x, 0)
    return out


def down(x, y):
    out = x * 2
    resize(x, 0)
    return out


def down_by_operator(x, y):
    out = x * 2
    torch.ops.inductor.resize_storage_bytes_(x, 0)
    return out


def larger(x, y):
    resize(x, 2 * BYTES)
    return x * 3


def larger_under_a_view(x, y):
    view = x[2:6]
    resize(x, 2 * BYTES)
    with torch.no_grad():
        view.fill_(5.0)
    return view * 2 + x[0]


def down_and_up_through_a_view(x, y):
    view = x.view(2, 4)
    resize(view, 0)
    resize(view, BYTES)
    with torch.no_grad():
        view.fill_(5.0)
    return x * 2


def set_to_a_tensor(x, y):
    with torch.no_grad():
        x.set_(y)
    return x * 2


def set_to_a_storage(x, y):
    with torch.no_grad():
        x.set_(y.untyped_storage(), 2, (3,), (2,))
    return x * 2


def set_and_changed(x, y):
    with torch.no_grad():
        x.set_(y)
        x.add_(1)
    return x * 2


def set_to_nothing(x, y):
    with torch.no_grad():
        x.set_()
    return x + 1


def set_data(x, y):
    x.data = y
    return x * 2


def resized_tensor(x, y):
    with torch.no_grad():
        x.resize_(4)
    return x * 2


def resized_tensor_up(x, y):
    with torch.no_grad():
        x.resize_(12)
        x.fill_(1.0)
    return x * 2


def intermediate(x, y):
    inner = x * 2
    resize(inner, 2 * BYTES)
    return inner + 1


def intermediate_set(x, y):
    inner = torch.empty(3)
    inner.set_(y)
    inner.add_(1)
    return inner * x[0]


def set_to_a_view_of_itself(x, y):
    with torch.no_grad():
        x.set_(x[2:6])
    return x * 2


def set_and_set_back(x, y):
    before = torch.ops.aten.alias.default(x)
    with torch.no_grad():
        x.set_(y)
        x.set_(before)
    return x + y


def data_of_an_intermediate_set(x, y):
    inner = x * 2
    inner.data = y
    return inner * x[0] + 1


def data_of_a_returned_intermediate_set(x, y):
    inner = x * 2
    inner.data = y
    return inner


STARTS_WITHOUT_MEMORY = [up, up_by_operator, up_and_down]
ENDS_WITHOUT_MEMORY = [up_and_down, down, down_by_operator]
PROGRAMS = [
    *STARTS_WITHOUT_MEMORY,
    down,
    down_by_operator,
    larger,
    larger_under_a_view,
    down_and_up_through_a_view,
    set_to_a_tensor,
    set_to_a_storage,
    set_and_changed,
    set_to_nothing,
    set_data,
    resized_tensor,
    resized_tensor_up,
    intermediate,
    intermediate_set,
    set_to_a_view_of_itself,
    set_and_set_back,
    data_of_an_intermediate_set,
    data_of_a_returned_intermediate_set,
]
WAYS = {
    "aot_function": lambda program: aot_function(program, fw_compiler=lambda graph, inputs: graph),
    "eager": lambda program: kiln.compile(program, backend="eager"),
    "aot_eager": lambda program: kiln.compile(program, backend="aot_eager"),
    "kiln": lambda program: kiln.compile(program, backend="kiln"),
}


def outcome(call, program, *, requires_grad):
    """What a call gives, and what it leaves in its arguments; the error where it raises."""
    x, y = torch.arange(float(ELEMENTS)).requires_grad_(requires_grad), 10 * torch.arange(float(ELEMENTS))
    if program in STARTS_WITHOUT_MEMORY:
        resize(x, 0)
    try:
        out = call(x, y)
    except RuntimeError as error:
        return type(error).__name__, str(error).split("\n")[0]
    if requires_grad:
        out.sum().backward()
    size = x.untyped_storage().nbytes()
    return {
        "out": out.detach(),
        "x": x.detach().clone() if size or not x.numel() else None,
        "shape": x.shape,
        "bytes": size,
        "grad": x.grad,
        "y": y,
        "one memory": size and x.data_ptr() == y.data_ptr(),
    }


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_storages_are_resized_and_replaced_as_in_eager(program, way, requires_grad):
    if requires_grad and program in ENDS_WITHOUT_MEMORY:
        pytest.skip("the backward of eager would read memory that is gone")
    expected = outcome(program, program, requires_grad=requires_grad)
    compiled = WAYS[way](program)
    for _ in range(2):
        actual = outcome(compiled, program, requires_grad=requires_grad)
        assert type(actual) is type(expected)
        if isinstance(expected, tuple):
            assert actual == expected
            continue
        plain = [name for name in expected if not isinstance(expected[name], torch.Tensor)]
        assert {name: actual[name] for name in plain} == {name: expected[name] for name in plain}
        for name in set(expected) - set(plain):
            assert_close(actual[name], expected[name])


@pytest.mark.parametrize("way", WAYS)
def test_a_version_for_full_storages_serves_no_empty_ones(way):
    compiled = WAYS[way](up)
    full, empty = torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)
    resize(empty, 0)
    for x in (full, empty):
        assert_close(compiled(x, None), torch.ones(ELEMENTS).sin())
        assert_close(x, torch.ones(ELEMENTS))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "kiln"])
def test_torch_says_that_memory_is_missing(backend):
    """The operators that look say so; compiled for tensors that have memory, the program is not run on one without."""
    compiled = kiln.compile(lambda x: x @ x, backend=backend)
    assert_close(compiled(torch.ones(3, 3)), torch.full((3, 3), 3.0))
    x = torch.ones(3, 3)
    resize(x, 0)
    with pytest.raises(RuntimeError, match="not allocated"):
        compiled(x)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "kiln"])
def test_memory_that_hooks_bring_back_for_the_backward_pass(backend):
    """As FSDP does: parameters are freed after the forward pass, and there again when their gradient is computed."""

    def program(enabled):
        weight = torch.full((ELEMENTS,), 3.0)
        x = torch.arange(float(ELEMENTS)).requires_grad_()
        out = (x * weight).sin()
        out.register_hook(lambda gradient: fill(weight))
        resize(weight, 0)
        with enabled:
            out.sum().backward()
        return x.grad

    def fill(weight):
        resize(weight, BYTES)
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(weight):
            weight.fill_(3.0)

    x = torch.arange(float(ELEMENTS)).requires_grad_()
    (x * 3.0).sin().sum().backward()
    found = program(kiln.compiled_autograd.enable(lambda graph: kiln.compile(graph, backend=backend)))
    assert_close(found, x.grad)
