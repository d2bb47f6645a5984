"""Subclasses and modes through ahead-of-time autograd."""

import pytest
import torch
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

import kiln
from kiln import aot
from kiln.testing import check

AHEAD = "aot_eager"


def leaf(*shape):
    count = torch.Size(shape).numel()
    return torch.linspace(-1, 1, count).reshape(shape).requires_grad_()


def ahead(program, *args, **more):
    return check(program, *args, backend=AHEAD, graphs=1, fullgraph=True, calls=2, recompiles=0, **more)


# -- autocast -------------------------------------------------------------------------------------------------------


def test_autocast_inside():
    def program(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
        return y.float() + x

    ahead(program, leaf(3, 3), leaf(3, 3))


@pytest.mark.parametrize("cached", [True, False])
def test_autocast_outside(cached):
    """The weight is cast twice, or once with autocast's cache; its gradient is that of both uses."""

    def program(x, w):
        return torch.nn.functional.linear(torch.nn.functional.linear(x, w), w).float().sum()

    compiled = kiln.compile(program, backend=AHEAD, fullgraph=True)
    for repeat in range(2):
        results = []
        for function in (program, compiled):
            x, w = leaf(3, 3), leaf(3, 3)
            with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cached):
                loss = function(x, w)
            loss.backward()
            results.append((loss, x.grad, w.grad))
        torch.testing.assert_close(*results, msg=f"call {repeat}")
    torch.testing.assert_close(compiled(leaf(3, 3), leaf(3, 3)), program(leaf(3, 3), leaf(3, 3)), msg="without")


# -- functional calls, checkpoints ----------------------------------------------------------------------------------


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)
        self.dropout, self.second = torch.nn.Dropout(0.5), torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.second(self.dropout(self.norm(self.first(x)).tanh()))


def test_functional_call():
    module = Layers()
    state = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
    state["first.weight"].requires_grad_()

    def program(x, state):
        return torch.func.functional_call(module, state, (x,))

    check(program, leaf(5, 4), state, backend=AHEAD, calls=2)


@pytest.mark.parametrize("reentrant", [False, True], ids=["plain", "reentrant"])
def test_checkpoint(reentrant):
    """Dropout inside: what is computed anew in backward draws the numbers that it drew before."""

    class Checkpointed(Layers):
        def forward(self, x):
            y = self.norm(self.first(x))
            y = checkpoint(lambda y: self.dropout(y.tanh()).sin(), y, use_reentrant=reentrant)
            return self.second(y)

    check(Checkpointed(), leaf(5, 4), backend=AHEAD, calls=2)


@pytest.mark.parametrize("reentrant", [False, True], ids=["plain", "reentrant"])
def test_checkpoint_with_statistics(reentrant):
    """A region that is computed anew changes its state twice."""

    class Checkpointed(Layers):
        def forward(self, x):
            return checkpoint(lambda x: self.norm(self.first(x)), x, use_reentrant=reentrant)

    check(Checkpointed(), leaf(5, 4), backend=AHEAD, calls=2)


def test_gradient_changed_in_place():
    class InPlace(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient.mul_(3)

    compiled = kiln.compile(lambda x: InPlace.apply(x), backend=AHEAD)
    given = []
    for function in (InPlace.apply, compiled):
        x, gradient = leaf(4), torch.ones(4)
        function(x).backward(gradient)
        given.append((x.grad, gradient))
    torch.testing.assert_close(*given)


def test_checkpoint_saves_less():
    """A checkpointed region keeps its inputs, not what it computes."""
    saved = []

    def keep(graph, inputs):
        saved.append(inputs)
        return graph

    def region(x):
        return x.sin().cos().sin().cos()

    def plain(x):
        return region(x)

    def checkpointed(x):
        return checkpoint(region, x, use_reentrant=False)

    for program in (plain, checkpointed):
        backend = aot.make_aot_backend(aot.nop, keep, partition_fn=aot.default_partition)
        kiln.compile(program, backend=backend)(leaf(16)).sum().backward()
    assert len(saved[1]) < len(saved[0])


# -- complex numbers ------------------------------------------------------------------------------------------------


def test_complex_numbers():
    def program(x, y):
        z = torch.complex(x, y)
        return (z * z.conj()).real.sum() + torch.view_as_real(z.exp()).sum(), z.imag

    ahead(program, leaf(4), leaf(4))
    ahead(lambda z: (z.conj() * 2).abs(), torch.tensor([1 + 2j, 3 - 1j], requires_grad=True))


# -- functions with a backward of their own -------------------------------------------------------------------------


class SavesTensors(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y, factor):
        ctx.save_for_backward(x, y)
        ctx.factor = factor
        return x * y * factor, x + y

    @staticmethod
    def backward(ctx, first, second):
        x, y = ctx.saved_tensors
        return first * y * ctx.factor + second, first * x * ctx.factor + second * 2, None


class SetsUp(torch.autograd.Function):
    @staticmethod
    def forward(x, power):
        return x**power

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.power = inputs
        ctx.save_for_backward(x, output)

    @staticmethod
    def backward(ctx, gradient):
        x, output = ctx.saved_tensors
        return gradient * ctx.power * output / x, None


class Dirties(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


class GivesNumbers(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        order = x.argsort()
        ctx.mark_non_differentiable(order)
        ctx.set_materialize_grads(False)
        return x * 2, order, x.cos()

    @staticmethod
    def backward(ctx, gradient, order, other):
        assert order is None
        return gradient * 2 if other is None else gradient * 2 + other


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.cos() * 2


FUNCTIONS = {
    "saved tensors and numbers": lambda x: SavesTensors.apply(x, x.cos(), 3),
    "one output unused": lambda x: SavesTensors.apply(x, x.cos(), 3)[1] * 2,
    "setup_context": lambda x: SetsUp.apply(x.exp(), 3),
    "mark_dirty": lambda x: Dirties.apply(x * 1) + 1,
    "mark_non_differentiable": lambda x: GivesNumbers.apply(x),
    "undefined gradients": lambda x: GivesNumbers.apply(x)[0].sum(),
    "once_differentiable": lambda x: Once.apply(x * 2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_with_its_own_backward(name):
    program = FUNCTIONS[name]
    check(program, leaf(4), backend=AHEAD, graphs=1, calls=2)


# -- what is left to eager, rightly ---------------------------------------------------------------------------------


def assigns_data(x):
    x.data = x.data * 2
    return x * 3


def switches_the_default_type(x):
    torch.set_default_dtype(torch.float64)
    made = torch.ones(2) + torch.arange(2) / 3
    torch.set_default_dtype(torch.float32)
    return made * x.sum(), torch.ones(1)


def leaves_the_default_type(x):
    y = x * 2
    torch.set_default_dtype(torch.float64)
    return y


def makes_a_generator(x):
    generator = torch.Generator().manual_seed(3)
    return torch.rand(4, generator=generator) * x, torch.randn(4, generator=generator)


@pytest.mark.parametrize(
    "program",
    [assigns_data, switches_the_default_type, leaves_the_default_type, makes_a_generator],
    ids=lambda p: p.__name__,
)
def test_what_no_graph_can_say(program):
    before = torch.get_default_dtype()
    try:
        check(program, leaf(4), backend=AHEAD, calls=2)
    finally:
        torch.set_default_dtype(before)


def test_generator_as_an_argument():
    """Another generator in the next call draws other numbers."""

    def program(x, generator):
        return torch.rand(4, generator=generator) * x

    compiled = kiln.compile(program, backend=AHEAD)
    for seed in (1, 2):
        one, other = (torch.Generator().manual_seed(seed) for _ in range(2))
        torch.testing.assert_close(compiled(leaf(4), one), program(leaf(4), other))


# -- lists of tensors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gradient", [False, True])
def test_lists_changed_at_once(gradient):
    """Each tensor of the list counts the change."""

    def scaled(x, y):
        with torch.no_grad():
            torch._foreach_mul_([x, y], 0.5)
            torch._foreach_addcdiv_([x], [y], [y])
        return x + 1

    def written(x, y):
        parts = [torch.empty(4), torch.empty(4)]
        torch.unbind_copy(torch.stack([x, y]).detach(), 0, out=parts)
        return parts

    for program in (scaled, written):
        check(program, leaf(4).detach().requires_grad_(gradient), torch.ones(4), backend=AHEAD, calls=2)


# -- custom operators -----------------------------------------------------------------------------------------------


@pytest.fixture
def operators():
    """An operator with a gradient of its own, and one that changes its argument."""
    with torch.library._scoped_library("kilntest_modes", "DEF"):

        @torch.library.custom_op("kilntest_modes::scaled", mutates_args=())
        def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
            return torch.from_numpy(x.detach().numpy() * factor)

        @scaled.register_fake
        def _(x, factor):
            return torch.empty_like(x)

        def setup_context(ctx, inputs, output):
            x, ctx.factor = inputs
            ctx.save_for_backward(x)

        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient * ctx.factor + x * 0, None

        scaled.register_autograd(backward, setup_context=setup_context)

        @torch.library.custom_op("kilntest_modes::fill", mutates_args=("x",))
        def fill(x: torch.Tensor, value: float) -> None:
            x.numpy().fill(value)

        yield scaled, fill


def test_custom_operators(operators):
    scaled, fill = operators

    def program(x):
        buffer = torch.zeros(4)
        fill(buffer, 2.5)
        return scaled(x.sin(), 3.0) * buffer

    def mutates(x, y):
        fill(y, 1.5)
        fill(y[1:], 0.5)
        return x * y, y[0]

    ahead(program, leaf(4))
    ahead(mutates, leaf(4), torch.zeros(4))


# -- subclasses -----------------------------------------------------------------------------------------------------


class Pair(torch.Tensor):
    """Two tensors, every operation done on both."""

    @staticmethod
    def __new__(cls, one, other):
        return torch.Tensor._make_wrapper_subclass(
            cls, one.shape, strides=one.stride(), dtype=one.dtype, device=one.device, requires_grad=one.requires_grad
        )

    def __init__(self, one, other):
        self.one, self.other = one, other

    def __repr__(self):
        return f"Pair({self.one}, {self.other})"

    def __tensor_flatten__(self):
        return ["one", "other"], "pair"

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        assert context == "pair"
        return Pair(inner["one"], inner["other"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        results = [
            function(*tree_map_only(Pair, part, args), **tree_map_only(Pair, part, kwargs or {}))
            for part in (lambda pair: pair.one, lambda pair: pair.other)
        ]
        if isinstance(results[0], torch.Tensor):
            return Pair(*results)
        return results[0]


def pair(number, gradient=True):
    made = Pair(torch.linspace(-1, number, 4), torch.linspace(number, 2, 4))
    return made.requires_grad_(gradient)


def parts(value):
    if isinstance(value, Pair):
        return {"one": parts(value.one), "other": parts(value.other)}
    return value.detach() if isinstance(value, torch.Tensor) else value


PAIR_PROGRAMS = {
    "one input": (lambda x: (x * 2).sin(), lambda: (pair(3.0),)),
    "with a plain tensor": (lambda x, y: (x * y).sin() + x, lambda: (pair(3.0), torch.arange(4.0))),
    "no gradient": (lambda x, y: x * y, lambda: (pair(3.0, False), torch.arange(4.0))),
    "one output twice": (lambda x: [x.sin()] * 2, lambda: (pair(3.0),)),
    "made inside": (lambda x, y: Pair(x * 2, y), lambda: (torch.arange(4.0), torch.ones(4))),
    "pair of pairs": (lambda x: (x * 2).sin(), lambda: (Pair(pair(3.0, False), pair(2.0, False)).requires_grad_(),)),
}
LEFT_TO_EAGER = {
    "two outputs": (lambda x: (x.sin(), x.cos().sum()), lambda: (pair(3.0),)),
    "a plain tensor's gradient is a pair": (lambda x, y: (x * y).sin() + x, lambda: (pair(3.0), leaf(4))),
}


@pytest.mark.parametrize("name", PAIR_PROGRAMS | LEFT_TO_EAGER)
def test_two_tensors_as_one(name):
    program, make = (PAIR_PROGRAMS | LEFT_TO_EAGER)[name]
    inputs = []

    def keep(graph, examples):
        inputs.append([type(example) for example in examples])
        return graph

    compiled = aot.aot_function(program, keep)
    for repeat in range(2):
        seen = []
        for function in (program, compiled):
            args = make()
            result = function(*args)
            results = result if isinstance(result, tuple | list) else (result,)
            total = sum(each.sum() for each in results if each.requires_grad)
            if isinstance(total, torch.Tensor):
                total.backward()
            seen.append([parts(each) for each in (*results, *(arg.grad for arg in args))])
        torch.testing.assert_close(*seen, msg=lambda text: f"call {repeat}: {text}")
    assert bool(inputs) is (name in PAIR_PROGRAMS)
    assert not any(issubclass(kind, Pair) for kinds in inputs for kind in kinds)


def test_two_tensors_as_one_second_derivative():
    compiled = aot.aot_function(lambda x: (x * x * x).sum(), aot.nop)
    x = pair(3.0)
    (first,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(parts(second), parts(6 * x))


def test_two_tensors_as_one_input_is_output():
    compiled = aot.aot_function(lambda x: (x, x * 2), aot.nop)
    x = pair(3.0)
    same, doubled = compiled(x)
    assert same is x and isinstance(doubled, Pair)


def test_two_tensors_as_one_changed_in_place():
    """Left to eager: a wrapper's history cannot be put back from outside."""

    def program(x):
        y = x * 1
        x.add_(1)
        return y

    with kiln.config.patch(raise_internal_errors=False):
        compiled = aot.aot_function(program, aot.nop)
        x, again = pair(3.0, False), pair(3.0, False)
        torch.testing.assert_close(parts(compiled(x)), parts(program(again)))
        torch.testing.assert_close(parts(x), parts(again))


def test_subclass_in_a_compiled_function():
    """Capture leaves such tensors to eager."""
    compiled = kiln.compile(lambda x: (x * 2).sin(), backend=AHEAD)
    x, again = pair(3.0), pair(3.0)
    compiled(x).sum().backward()
    (again * 2).sin().sum().backward()
    torch.testing.assert_close(parts(x.grad), parts(again.grad))
