"""Sizes, named tuples, enums and other subclasses as arguments of torch calls and of functions in graphs."""

import collections
import enum

import pytest
import torch
from torch.autograd import Variable
from torch.utils.checkpoint import checkpoint

import kiln
from kiln.testing import check

Pair = collections.namedtuple("Pair", "first second")


class OwnTuple(tuple):
    pass


class OwnInt(int):
    pass


class OwnFloat(float):
    pass


class OwnText(str):
    pass


class OwnList(list):
    pass


class Axis(enum.IntEnum):
    ROWS = 0
    COLUMNS = 1


class Mode(enum.StrEnum):
    FLOOR = "floor"


def matrix():
    return torch.arange(6.0).reshape(2, 3)


BACKENDS = [("eager", None), ("eager", True), ("aot_eager", None), ("kiln", None), ("kiln", True)]


@pytest.mark.parametrize(("backend", "dynamic"), BACKENDS)
def test_noise_of_a_variational_autoencoder(backend, dynamic):
    def sample(mean, logvar):
        std = logvar.div(2).exp()
        eps = Variable(std.data.new(std.size()).normal_())
        return mean + std * eps

    means = matrix().requires_grad_(), (matrix() / 10).requires_grad_()
    check(sample, *means, fullgraph=True, graphs=1, backend=backend, dynamic=dynamic)


SHAPES = [
    lambda x: x.new(x.size()).fill_(2),
    lambda x: x.new(x.shape[1:]).fill_(2),
    lambda x: x.new(x.size(), device="cpu").fill_(2),
    lambda x: x.new(size=x.size()).fill_(2),
    lambda x: x.long().new(x.size()).fill_(2),
    lambda x: x.new(*x.size()).fill_(2),
    lambda x: x.new(x.size() + (2,)).fill_(2),
    lambda x: torch.Tensor(x.size()).fill_(2),
    lambda x: torch.FloatTensor(x.size()).fill_(2),
    lambda x: torch.LongTensor(x.shape[:1]).fill_(2),
    lambda x: torch.DoubleTensor(torch.Size([2, 3])).fill_(2),
    lambda x: type(x)(x.size()).fill_(2),
    lambda x: x.new_zeros(x.size()),
    lambda x: torch.zeros(Pair(2, 3)),
    lambda x: torch.zeros(OwnTuple((2, 3))),
    lambda x: x.sum().expand(x.size()),
    lambda x: x.view(Pair(3, 2)),
    lambda x: x.permute(OwnTuple((1, 0))),
    lambda x: x.repeat(torch.Size([2, 1])),
]
NUMBERS = [
    lambda x: torch.FloatTensor(Pair(2, 3)),
    lambda x: x.new((2, 3)),
    lambda x: x.new(Pair(2, 3)),
    lambda x: x.new_tensor(torch.Size([2, 3])),
    lambda x: torch.tensor(x.size()),
    lambda x: x.sum(Axis.COLUMNS) + x.sum(dim=(Axis.ROWS, Axis.COLUMNS)),
    lambda x: x.sum(OwnInt(1)) + OwnFloat(1.5) * x[OwnInt(0), :2],
    lambda x: x + Axis.COLUMNS,
    lambda x: x[Pair(0, 1)] + x[OwnTuple((1, 1))] + x[torch.Size([0, 1])],
    lambda x: torch.full((2,), Axis.COLUMNS),
    lambda x: torch.full((2,), True),
    lambda x: torch.div(x, 2, rounding_mode=Mode.FLOOR),
    lambda x: torch.einsum(OwnText("ij->i"), x),
    lambda x: torch.stack(torch.aminmax(x)),
    lambda x: torch.cat(torch.aminmax(x, dim=1)),
    lambda x: torch.stack(Pair(x, x + 1)),
    lambda x: torch.stack(OwnTuple((x, x + 1))),
]


@pytest.mark.parametrize(("backend", "dynamic"), BACKENDS)
@pytest.mark.parametrize("program", SHAPES + NUMBERS)
def test_torch_functions_take_subclasses_as_eager_does(program, backend, dynamic):
    check(program, matrix(), fullgraph=True, graphs=1, backend=backend, dynamic=dynamic)


def test_an_old_constructor_given_a_size_is_general_in_that_size():
    def noise(x):
        return x + x.new(x.size()).fill_(1) + torch.FloatTensor(x.size()).fill_(2)

    calls = [(torch.ones(n, 3),) for n in (2, 4, 5)]
    check(noise, calls=calls, graphs=1, dynamic=True)


def test_an_exported_graph_keeps_the_shape():
    exported = kiln.export(lambda x: x.new(x.size()).fill_(1) + torch.stack(torch.aminmax(x)).sum())(matrix())
    torch.testing.assert_close(exported.graph_module(matrix())[0], torch.full((2, 3), 6.0))


KINDS = [type(None), tuple, torch.Size, Pair, OwnTuple, int, OwnInt, Axis, bool, OwnFloat, OwnText, Mode, str, list]
KINDS += [torch.return_types.aminmax, OwnList]


def number_of(value):
    return KINDS.index(type(value))


@kiln.allow_in_graph
def taken_whole(x, value, *, option=None):
    return x * 100 + number_of(value) * 10 + number_of(option)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, value):
        ctx.value = value
        return x + number_of(value)

    @staticmethod
    def backward(ctx, grad):
        return grad * number_of(ctx.value), None


CALLS = [
    lambda x, value: taken_whole(x, value),
    lambda x, value: taken_whole(x, None, option=value),
    lambda x, value: taken_whole(x, (value,)[0]),
    lambda x, value: Scaled.apply(x, value),
    lambda x, value: checkpoint(lambda x: x * number_of(value), x, use_reentrant=False),
]
VALUES = {
    "size": lambda x: x.size(),
    "part of a size": lambda x: x.size()[:1],
    "constant size": lambda x: torch.Size([1, 2]),
    "named tuple": lambda x: Pair(1, 2),
    "named tuple of tensors": lambda x: Pair(x, x + 1),
    "tuple": lambda x: OwnTuple((1, 2)),
    "tuple of tensors": lambda x: OwnTuple((x, 2)),
    "int": lambda x: OwnInt(3),
    "int enum": lambda x: Axis.COLUMNS,
    "bool": lambda x: True,
    "float": lambda x: OwnFloat(1.5),
    "text": lambda x: OwnText("a"),
    "text enum": lambda x: Mode.FLOOR,
    "results of torch": lambda x: torch.aminmax(x),
}


@pytest.mark.parametrize(("backend", "dynamic"), [("eager", None), ("eager", True), ("aot_eager", None)])
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
@pytest.mark.parametrize("call", CALLS)
def test_the_programs_own_functions_see_the_classes_of_their_arguments(call, value, backend, dynamic):
    x = matrix().requires_grad_()
    check(lambda x: call(x, value(x)), x, fullgraph=True, graphs=1, backend=backend, dynamic=dynamic)


def marked(value):
    value.note = 1
    return value


@pytest.mark.parametrize("value", [lambda: OwnList([1]), lambda: marked(OwnInt(1)), lambda: marked(OwnTuple((1,)))])
def test_what_a_graph_could_not_make_again_breaks_it(value):
    check(lambda x: taken_whole(x, value()), matrix(), grads=False, breaks=1)


def test_the_number_of_a_hook_that_is_registered_in_the_graph_is_not_a_constant():
    def numbered(x):
        y = x * 2
        handle = y.register_hook(lambda grad: grad)
        return y + handle.id * 0

    check(numbered, matrix().requires_grad_())


@pytest.mark.parametrize("flags", [{}, {"requires_grad": True}, {"requires_grad": False}])
def test_variables_are_tensors_without_history(flags):
    def program(x):
        v = Variable(x, **flags)
        return v * 2, v.requires_grad, isinstance(v, Variable)

    check(program, matrix(), fullgraph=True, graphs=1)
    check(program, matrix().requires_grad_(), grads=False)


@pytest.mark.parametrize("program", [lambda x: Variable(x, volatile=True) + 1, lambda x: Variable() + x])
def test_variables_made_in_other_ways_are_left_to_python(program):
    check(program, matrix(), grads=False)
