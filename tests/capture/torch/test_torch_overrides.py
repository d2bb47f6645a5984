"""``__torch_function__``: tensor subclasses, tensor-like objects, modes; custom operators of ``torch.library``."""

from __future__ import annotations

import pytest
import torch
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function

import kiln
from kiln.testing import check

LOG: list[str] = []
WATCHED = frozenset("add sub __rsub__ add_ sin matmul mul cos relu zeros stack".split())


class Logged(torch.Tensor):
    """Logs some operations, and keeps its class through all of them."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func.__name__ in WATCHED:
            LOG.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


class Bare(torch.Tensor):
    """Adds methods and nothing else."""

    def twice(self):
        return self * 2


class Doubling(torch.Tensor):
    """An override in full: one function is replaced, the others give plain tensors."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            return result * 2 if func is torch.sin else result


class Refusing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.cos:
            return NotImplemented
        return super().__torch_function__(func, types, args, kwargs or {})


class Switched(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


def arguments(cls):
    return lambda: (torch.arange(1.0, 4.0).as_subclass(cls),)


def arithmetic(x):
    y = x + 1
    z = 1 - y
    z += 2
    w = torch.sin(z) @ y
    return w, z[0], y.sum(dim=0), type(y), isinstance(w, torch.Tensor), y


def methods(x):
    y = x.mul(2).relu()
    values, indices = y.max(dim=0)
    return y, values, indices, y.shape, y.dtype, len(y), [row for row in y]


def with_plain(x):
    plain = torch.ones(3)
    return plain + x, x + plain, torch.stack([x, plain]), plain * 2, torch.nn.functional.relu(x)


@pytest.mark.parametrize("cls", [Logged, Bare, Doubling, Switched])
@pytest.mark.parametrize("program", [arithmetic, methods, with_plain])
def test_subclass(cls, program):
    check(program, make_args=arguments(cls), fullgraph=True, calls=2, breaks_every=(None, "line"))


def test_method_of_subclass():
    def program(x):
        return x.twice() + 1, type(x.twice())

    check(program, make_args=arguments(Bare), fullgraph=True, breaks_every=(None, "line"))


def test_subclass_with_attributes():
    def program(x):
        y = x * x.factor
        y.factor = x.factor + 1
        return y, y.factor

    def setup():
        x = torch.arange(3.0).as_subclass(Logged)
        x.factor = 3
        return program, (x,)

    check(setup=setup, fullgraph=True)


def test_subclass_made_inside():
    def program(x):
        y = x.as_subclass(Logged)
        z = y * 2
        return z, type(z), isinstance(y, Logged), y.as_subclass(torch.Tensor) + 1

    check(program, torch.arange(3.0), fullgraph=True, breaks_every=(None, "line"))


def test_subclass_with_gradient():
    def program(x):
        y = x.as_subclass(Logged)
        return (y * y).sum().as_subclass(torch.Tensor)

    check(program, torch.arange(3.0, requires_grad=True), fullgraph=True)


def test_nobody_implements_it():
    def program(x):
        y = x + 1
        return torch.cos(y)

    check(program, make_args=arguments(Refusing))


def test_changed_override_is_noticed():
    class Fickle(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return 1

    def program(x):
        return torch.sin(x)

    compiled = kiln.compile(program)
    x = torch.ones(2).as_subclass(Fickle)
    assert compiled(x) == 1
    Fickle.__torch_function__ = classmethod(lambda cls, func, types, args=(), kwargs=None: 2)
    assert compiled(x) == 2


class Meters:
    """Not a tensor, but torch functions take it."""

    def __init__(self, value):
        self.value = value

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        values = [arg.value if isinstance(arg, Meters) else arg for arg in args]
        return Meters(func(*values, **(kwargs or {})))


def test_tensor_like():
    def program(x):
        length = Meters(x + 1)
        total = torch.add(length, 2)
        both = torch.mul(total, Meters(x))
        return both.value, torch.sum(both, dim=0).value, torch.is_tensor(both)

    check(program, torch.arange(3.0), fullgraph=True, breaks_every=(None, "line"))


def test_tensor_like_from_outside():
    def program(length):
        return torch.add(length, 1).value

    def setup():
        return program, (Meters(torch.arange(3.0)),)

    check(setup=setup, fullgraph=True)


def described(x, factor=2):
    """A function of the user's that takes part in the protocol."""
    if has_torch_function((x,)):
        return handle_torch_function(described, (x,), x, factor=factor)
    return x * factor


def test_user_function_with_overrides():
    def program(x):
        return described(x), described(x, factor=3)

    check(program, torch.arange(3.0), fullgraph=True)
    check(program, make_args=arguments(Logged))


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.sin(x) * x

    @staticmethod
    def backward(ctx, grad):
        return grad


def test_autograd_function_on_a_subclass():
    def program(x):
        return Square.apply(x + 1) * 2

    check(program, make_args=arguments(Logged))


def test_autograd_function_under_a_mode():
    def program(x):
        with Counting() as mode:
            y = Square.apply(x + 1)
        return y, mode.names

    check(program, torch.arange(3.0))


# -- modes ----------------------------------------------------------------------------------------------------------


class Counting(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.sin else result


class Replacing(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.cos:
            return torch.sin(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def test_mode_inside():
    def program(x):
        with Counting() as mode:
            y = torch.sin(x) + 1
            z = torch.zeros(3) + y.shape[0]
        return y, z, torch.sin(y), mode.names

    check(program, torch.arange(3.0), fullgraph=True, breaks_every=(None, "line"))


def test_modes_nest():
    def program(x):
        with Counting() as outer, Replacing():
            y = torch.cos(x)
            with Counting() as inner:
                y = y + torch.cos(y)
        return y, outer.names, inner.names

    check(program, torch.arange(3.0), fullgraph=True, breaks_every=(None, "line"))


def test_break_under_a_mode():
    def program(x):
        with Counting() as mode:
            y = torch.sin(x)
            n = y.sum().item()
            y = torch.sin(y) * n
        return torch.sin(y), mode.names

    check(program, torch.arange(3.0))


def test_mode_outside():
    def program(x):
        return torch.sin(x) * 2, x.shape, torch.ones(2)

    x = torch.arange(3.0)
    compiled = kiln.compile(program, fullgraph=True)
    with Counting() as expected:
        wanted = program(x)
    for _ in range(2):
        with Counting() as seen:
            got = compiled(x)
        assert seen.names == expected.names
        assert torch.equal(got[0], wanted[0])
    assert torch.equal(compiled(x)[0], program(x)[0])


def test_mode_of_another_class_outside():
    def program(x):
        return torch.cos(x)

    x = torch.arange(3.0)
    compiled = kiln.compile(program, fullgraph=True)
    for mode in (Counting, Replacing, Counting):
        with mode():
            assert torch.equal(compiled(x), program(x))
    with torch._C.DisableTorchFunction(), Replacing():
        assert torch.equal(compiled(x), program(x))


def test_device_context_outside():
    def program(n):
        return torch.ones(n) + 1, torch.empty(2).device, torch.zeros(2, device="cpu").device

    compiled = kiln.compile(program, fullgraph=True)
    with torch.device("meta"):
        result = compiled(3)
        assert [result[0].device.type, result[1].type, result[2].type] == ["meta", "meta", "cpu"]
    assert compiled(3)[0].device.type == "cpu"


def test_device_context_inside():
    def program(x):
        with torch.device("cpu"):
            y = torch.ones(3)
        return x + y

    check(program, torch.arange(3.0))


# -- torch.library --------------------------------------------------------------------------------------------------


@torch.library.custom_op("kiln_tests::scaled", mutates_args=())
def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.from_numpy(x.detach().numpy() * factor)


@scaled.register_fake
def _(x, factor):
    return torch.empty_like(x)


scaled.register_autograd(
    lambda ctx, grad: (grad * ctx.factor, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
)


@torch.library.custom_op("kiln_tests::bump", mutates_args=("x",))
def bump(x: torch.Tensor) -> None:
    x.add_(1)


@bump.register_fake
def _(x):
    return None


@torch.library.custom_op("kiln_tests::no_fake", mutates_args=())
def no_fake(x: torch.Tensor) -> torch.Tensor:
    return x.clone() + 5


LIBRARY = torch.library.Library("kiln_tests_defined", "FRAGMENT")
LIBRARY.define("both(Tensor x, Tensor y, *, int times=1) -> (Tensor, Tensor)")
LIBRARY.impl("both", lambda x, y, times=1: (x + y * times, x * y), "CompositeExplicitAutograd")


def test_custom_operator():
    def program(x):
        return scaled(x + 1, 2.0) * 3, torch.ops.kiln_tests.scaled(x, 0.5), torch.ops.kiln_tests.scaled.default(x, 4.0)

    report = check(program, torch.arange(3.0, requires_grad=True), breaks_every=(None, "line"))
    assert not report.breaks


def test_custom_operator_that_mutates():
    def program(x):
        y = x * 1
        bump(y)
        bump(x)
        return y * 2

    report = check(program, torch.arange(3.0), breaks_every=(None, "line"))
    assert not report.breaks


def test_custom_operator_without_fake():
    def program(x):
        y = x * 2
        z = no_fake(y)
        return z + 1

    check(program, torch.arange(3.0), breaks=1, breaks_every=(None, "line"))


def test_operator_defined_in_a_library():
    def program(x):
        a, b = torch.ops.kiln_tests_defined.both(x, x + 1, times=3)
        return a - b, torch.ops.kiln_tests_defined.both.default(x, x)

    check(program, torch.arange(3.0), fullgraph=True, breaks_every=(None, "line"))


def test_aten_operators():
    def program(x):
        y = torch.ops.aten.add(x, 1)
        z = torch.ops.aten.mul.Tensor(y, x)
        torch.ops.aten.add_.Scalar(z, 1)
        return (
            z,
            torch.ops.aten.sum.dim_IntList(z, [0]),
            torch.ops.aten.max.dim(x, 0),
            torch.ops.aten.split.Tensor(x, 2),
        )

    check(program, torch.arange(4.0), fullgraph=True, breaks_every=(None, "line"))


# -- classes of results are not the graph's business -------------------------------------------------------------------


class Marked(torch.Tensor):
    pass


def leaf(x):
    y = torch.ones_like(x)
    y.requires_grad_()
    return y, y * 2


def changed(x):
    y = x.sin()
    z = y.view(-1)
    z.add_(1)
    y.mul_(2)
    return y, z


def hooked(x):
    y = x * 3
    y.register_hook(lambda gradient: gradient * 10)
    return y * 2, y


def same_twice(x):
    y = x + 1
    plain = y.as_subclass(torch.Tensor)
    return y, y, plain, plain * 2, [y.shape, type(y), type(plain)]


@pytest.mark.parametrize("program", [leaf, changed, hooked, same_twice])
def test_class_given_after_the_graph(program):
    def marked():
        return (torch.arange(3.0).as_subclass(Marked).requires_grad_(),)

    check(program, make_args=marked, calls=2, fullgraph=True, breaks_every=(None, "line"))


def test_graph_of_plain_operations():
    def program(x):
        return (x.sin() + 1).cos() * 2

    report = check(program, make_args=lambda: (torch.arange(3.0).as_subclass(Marked),), fullgraph=True, ops=4)
    assert type(report.returned) is Marked
