"""Operators and functions that torch does not have, as leaves of graphs: what they do happens in every call."""

import pytest
import torch

import kiln
from kiln.report.bytecode_hooks import register_bytecode_hook
from kiln.testing import check

LOG = []


@torch.library.custom_op("kiln_tests::note", mutates_args=())
def note(text: str) -> None:
    LOG.append(text)


@note.register_fake
def _(text):
    return None


@torch.library.custom_op("kiln_tests::count_positive", mutates_args=())
def count_positive(x: torch.Tensor) -> int:
    return int((x > 0).sum())


@count_positive.register_fake
def _(x):
    return 0


@torch.library.custom_op("kiln_tests::step", mutates_args=("x",))
def step(x: torch.Tensor) -> int:
    x.add_(1)
    return 3


@step.register_fake
def _(x):
    return 3


backends = pytest.mark.parametrize("backend", ["eager", "aot_eager", "kiln"])


@backends
def test_operator_that_only_has_an_effect(backend):
    def program(x):
        note("first")
        y = x + 1
        note("second")
        return y * 2

    LOG.clear()
    compiled = kiln.compile(program, backend=backend, fullgraph=True)
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 4.0))
    assert LOG == ["first", "second"] * 3


@backends
def test_operator_that_gives_a_number(backend):
    def program(x):
        return x * count_positive(x)

    check(program, calls=[(torch.ones(3),), (-torch.ones(3),), (torch.tensor([1.0, -1.0, 2.0]),)], backend=backend)


@backends
def test_operator_that_changes_its_argument_and_gives_a_number(backend):
    def program(x):
        number = step(x)
        return x * number

    check(program, torch.ones(3), calls=2, backend=backend)


@backends
def test_allowed_function_without_tensors_runs_in_every_call(backend):
    calls = []

    @kiln.allow_in_graph
    def observe():
        calls.append(torch.is_grad_enabled())

    def program(x):
        with torch.no_grad():
            observe()
        return x + 1

    compiled = kiln.compile(program, backend=backend, fullgraph=True)
    compiled(torch.ones(3))
    calls.clear()  # capture has run it as well
    compiled(torch.ones(3))
    compiled(torch.ones(3))
    assert calls == [False, False]


@backends
def test_allowed_function_that_gives_a_number(backend):
    settings = {"level": 2}
    level = kiln.allow_in_graph(lambda x: settings["level"])

    def program(x):
        return x * level(x)

    compiled = kiln.compile(program, backend=backend)
    for settings["level"] in (2, 5):
        assert torch.equal(compiled(torch.ones(3)), torch.ones(3) * settings["level"])


@torch.library.custom_op("kiln_tests::noise", mutates_args=())
def noise(x: torch.Tensor) -> torch.Tensor:
    return torch.rand(x.shape)


@noise.register_fake
def _(x):
    return torch.empty_like(x)


@pytest.mark.parametrize(
    "draw", [kiln.allow_in_graph(lambda x: torch.rand(x.shape)), noise], ids=["function", "operator"]
)
@pytest.mark.parametrize("caught", [False, True])
@backends
def test_random_numbers_of_a_users_function_in_a_graph_that_raises(draw, caught, backend):
    """Eager runs the frame again from its start; the numbers drawn so far must not be used up."""

    def f(x, index):
        drawn = draw(x)
        try:
            return drawn + x[index]
        except IndexError:
            if caught:
                return drawn + torch.rand(3)
            raise

    good, bad = torch.tensor([0, 1, 2]), torch.tensor([0, 1, 7])
    compiled = kiln.compile(f, backend=backend)
    for index in (good, bad, good, bad):
        results = []
        for function in (f, compiled):
            torch.manual_seed(3)
            try:
                results.append(function(torch.ones(3), index))
            except IndexError:
                results.append(torch.zeros(3))
            results.append(torch.rand(2))  # where the generator stands
        assert torch.equal(results[0], results[2]) and torch.equal(results[1], results[3])


@backends
def test_argument_names_that_are_keywords(backend):
    def program(x):
        drawn = torch.zeros(4).uniform_(**{"from": 2.0, "to": 3.0})
        return (
            x.clone().random_(**{"from": -10, "to": 10}) + drawn + torch.Tensor.uniform_(x, **{"from": 5.0, "to": 6.0})
        )

    check(program, torch.ones(4), calls=2, backend=backend, fullgraph=True)


def test_is_compiling_under_its_old_name():
    def program(x):
        return x + 1 if torch._utils.is_compiling() else x - 1

    with pytest.warns(UserWarning, match="deprecated"):
        assert torch.equal(program(torch.ones(2)), torch.zeros(2))
    assert torch.equal(kiln.compile(program, backend="eager", fullgraph=True)(torch.ones(2)), torch.full((2,), 2.0))


def test_bytecode_hook_that_gives_back_the_programs_own_code():
    scale = 3

    def program(x):
        return x * scale

    seen = []
    with register_bytecode_hook(lambda code, made: seen.append(made) or code):
        compiled = kiln.compile(program, backend="eager")
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
    assert len(seen) == 1
