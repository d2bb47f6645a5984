"""Operators as programs call them: numbers for tensors, generators, torch's prims, operators of the program's own."""

import pytest
import torch

import kiln

BACKENDS = ["eager", "aot_eager", "kiln"]


def agree(program, *make, backend, calls=2, **options):
    """Results, arguments and generators afterwards are eager's; arguments are made anew for each side."""

    def run(function):
        torch.manual_seed(7)
        args = [each() for each in make]
        found = [function(*args) for _ in range(calls)]
        generators = [arg for arg in args if isinstance(arg, torch.Generator)]
        drawn = [torch.rand(2), *[torch.rand(2, generator=each) for each in generators]]
        return [*found, *drawn, *[arg for arg in args if isinstance(arg, torch.Tensor)]]

    with kiln.config.patch(raise_internal_errors=True):
        seen = run(kiln.compile(program, backend=backend, **options))
    torch.testing.assert_close(seen, run(program), rtol=0, atol=0, check_stride=True)


def ones():
    return torch.ones(4)


# -- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.bool], ids=str)
@pytest.mark.parametrize("value", [2, 2.9, -2.9, True, -0.0])
def test_a_copy_of_a_number(value, dtype, backend):
    agree(lambda t: torch.zeros(2, 3, dtype=dtype).copy_(value), ones, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "program",
    [
        lambda t: t.copy_(2),
        lambda t: t.copy_(2, non_blocking=True) + 1,
        lambda t: (t[1:].copy_(3), t)[1] * 2,
        lambda t: torch.ops.aten.copy(t, 2.5) + t,
        lambda t: torch.ops.aten.copy_(t, True),
        lambda t: torch.zeros_like(t).copy_(torch.tensor(2)),
        lambda t: torch.empty(2, 4).copy_(t.sum()),
        lambda t: torch.where(t > 0, 1, 2.5),
        lambda t: t.fill_(torch.tensor(3)),
        lambda t: torch.add(t, 1, out=torch.empty(4, dtype=torch.float64)),
    ],
)
def test_numbers_for_tensors(program, backend):
    agree(program, ones, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("number", [3, 3.5])
def test_a_copy_of_a_number_that_varies(number, backend):
    agree(lambda t, n: torch.zeros_like(t).copy_(n), ones, lambda: number, backend=backend, dynamic=True)
    agree(lambda t, n: torch.zeros_like(t).copy_(t.shape[0]), ones, lambda: number, backend=backend, dynamic=True)


# -- generators -----------------------------------------------------------------------------------------------------

DRAWN = {
    "randn": lambda g: torch.randn(20, 20, generator=g),
    "rand": lambda g: torch.rand(4, generator=g, dtype=torch.float64) * 2,
    "randint": lambda g: torch.randint(0, 100, (4,), generator=g),
    "randperm": lambda g: torch.randperm(6, generator=g),
    "normal": lambda g: torch.normal(torch.zeros(4), torch.ones(4), generator=g),
    "bernoulli": lambda g: torch.bernoulli(torch.full((4,), 0.5), generator=g),
    "multinomial": lambda g: torch.multinomial(torch.ones(5), 2, generator=g),
    "poisson": lambda g: torch.poisson(torch.ones(4) * 3, generator=g),
    "uniform_": lambda g: torch.empty(4).uniform_(generator=g),
    "random_": lambda g: torch.empty(4).random_(10, generator=g),
    "exponential_": lambda g: torch.empty(4).exponential_(generator=g),
    "init": lambda g: torch.nn.init.trunc_normal_(torch.empty(4), generator=g),
    "mixed": lambda g: (torch.randn(4, generator=g), torch.randn(3), torch.rand(2, generator=g)),
    "none": lambda g: torch.randn(4, generator=None),
    "default": lambda g: torch.randn(4, generator=torch.default_generator),
    "seeded inside": lambda g: torch.randn(4, generator=g.manual_seed(5)),
    "made inside": lambda g: torch.randn(4, generator=torch.Generator().manual_seed(3)),
    "state read": lambda g: (torch.randn(2, generator=g), g.get_state()),
    "state set": lambda g: (g.set_state(torch.Generator().manual_seed(9).get_state()), torch.randn(2, generator=g))[1],
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", DRAWN)
def test_generators(name, backend):
    agree(DRAWN[name], lambda: torch.Generator().manual_seed(3), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_generator_in_training(backend):
    def program(t, generator):
        return ((torch.randn(4, generator=generator) * t).sin() * torch.rand(4, generator=generator).exp()).sum()

    results = []
    for function in (program, kiln.compile(program, backend=backend)):
        generator = torch.Generator().manual_seed(3)
        t = torch.ones(4, requires_grad=True)
        for _ in range(2):
            function(t, generator).backward()
        results.append([t.grad, torch.rand(2, generator=generator)])
    torch.testing.assert_close(results[1], results[0])


# -- prims ----------------------------------------------------------------------------------------------------------

prims = torch.ops.prims
PRIMS = {
    "as_strided": lambda t: prims.as_strided(t * 2, [2], [2], 0) + 1,
    "as_strided of an input": lambda t: prims.as_strided(t, [2], [2], 1),
    "as_strided changed": lambda t: (prims.as_strided(t, [2], [2], 0).add_(1), t)[1],
    "convert_element_type": lambda t: prims.convert_element_type(t * 2, torch.float64) + 1,
    "broadcast_in_dim": lambda t: prims.broadcast_in_dim(t * 2, [2, 4], [1]) + 1,
    "collapse_view": lambda t: prims.collapse_view((t * 2).reshape(2, 2), 0, 1) + 1,
    "transpose": lambda t: prims.transpose((t * 2).reshape(2, 2), [1, 0]) + 1,
    "squeeze": lambda t: prims.squeeze((t * 2).reshape(1, 4), [0]) + 1,
    "split_dim": lambda t: prims.split_dim(t * 2, 0, 2) + 1,
    "view_of": lambda t: prims.view_of(t * 2) + 1,
    "copy_to": lambda t: (prims.copy_to(t, t * 2), t + 1)[1],
    "resize": lambda t: prims.resize(t * 2, [2]) + 1,
    "copy_strided": lambda t: prims.copy_strided(t.reshape(2, 2), [1, 2]),
    "sum": lambda t: prims.sum(t * 2, [0]) + 1,
    "where": lambda t: prims.where(t > 0, t, t * 2) + 1,
    "cat": lambda t: prims.cat([t, t * 2], 0) + 1,
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PRIMS)
def test_prims(name, backend):
    agree(PRIMS[name], ones, backend=backend)


# -- operators that look at strides ---------------------------------------------------------------------------------

STRIDES: list[tuple] = []
TAGS = {
    "untagged": (),
    "fixed": (torch.Tag.needs_fixed_stride_order,),
    "exact": (torch.Tag.needs_exact_strides,),
    "contiguous": (torch.Tag.needs_contiguous_strides,),
}
library = torch.library.Library("kiln_test_strides", "FRAGMENT")


def look(x, y):
    STRIDES.append((x.stride(), y.stride()))
    return x.clone() + y.sum()


for _name, _tags in TAGS.items():
    library.define(f"{_name}(Tensor x, Tensor y) -> Tensor", tags=_tags)
    library.impl(_name, look, "CPU")
    library.impl(_name, lambda x, y: torch.empty_like(x), "Meta")

LAID_OUT = {
    "transposed": lambda a: (a.t() * 2, a.t() + 1),
    "sliced": lambda a: (a[:, 1:], (a * 2)[1:, ::2]),
    "expanded": lambda a: (a[:1].expand(4, 3), a[:, :1].expand(4, 5) * 1),
    "expanded inside": lambda a: ((a * 2)[:1].expand(4, 3), (a + 1)[:, :1].expand(4, 5)),
    "permuted": lambda a: (a.reshape(2, 3, 2).permute(2, 0, 1) + 1, a.reshape(2, 3, 2).permute(1, 2, 0).relu()),
    "viewed": lambda a: ((a + 1).view(3, 4), (a + 1).view(3, 4).t()),
    "channels last": lambda a: (a.reshape(1, 3, 2, 2).to(memory_format=torch.channels_last) * 2, a[0]),
    "product": lambda a: ((a @ a.t()).t(), torch.softmax(a.t(), 0)),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", LAID_OUT)
@pytest.mark.parametrize("tag", TAGS)
def test_own_operators_get_the_strides_of_eager(tag, layout, backend):
    operator = getattr(torch.ops.kiln_test_strides, tag)

    def program(a):
        return operator(*LAID_OUT[layout](a)) + 1

    given = torch.arange(12.0).reshape(4, 3)
    STRIDES.clear()
    expected = program(given)
    strides = list(STRIDES)
    STRIDES.clear()
    torch.testing.assert_close(kiln.compile(program, backend=backend)(given), expected, check_stride=True)
    assert strides == STRIDES
