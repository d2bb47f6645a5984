"""What the program reached is assumed to be there, even if it never looked at it: passed on, dropped, asked for."""

from __future__ import annotations

import types

import pytest
import torch
from torch import nn

import kiln
from kiln.testing import check
from tests.support.scenarios import BACK, Scenarios, play

X = torch.ones(2)

presence = Scenarios()


@pytest.mark.parametrize("scenario, expected, options", presence)
def test_presence(scenario, expected, options):
    play(scenario, expected, **options)


def attempt(function, *args):
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error)


class Plain:
    fallback = "of the class"


def passes_on(owner):
    return owner.it


def falls_back(owner):
    return owner.fallback


def drops(owner):
    owner.it
    return X + 1


def asks(owner):
    return hasattr(owner, "it"), X + 1


def has_default(owner):
    return getattr(owner, "it", X + 1)


def plain_object():
    made = Plain()
    made.it = made.fallback = [1]
    return made


def module_with_parameter():
    made = nn.Module()
    made.it = nn.Parameter(torch.ones(2))
    made.fallback = nn.ReLU()
    return made


def tensor():
    made = torch.zeros(3)
    made.it = made.fallback = [2]
    return made


def function():
    def made():
        pass

    made.it = made.fallback = {3: 4}
    return made


def python_module():
    made = types.ModuleType("made")
    made.it = made.fallback = 7
    return made


OWNERS = [plain_object, module_with_parameter, tensor, function, python_module]


@pytest.mark.parametrize("make", OWNERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("program", [passes_on, falls_back, drops, asks, has_default], ids=lambda p: p.__name__)
def test_attributes(program, make):
    def scenario(compiler):
        owner = make()
        f = compiler(lambda: program(owner))
        yield attempt(f)
        yield attempt(f)
        name = "fallback" if program is falls_back else "it"
        kept = getattr(owner, name)
        delattr(owner, name)
        yield attempt(f)
        yield attempt(f)
        setattr(owner, name, kept)
        yield attempt(f)

    play(scenario, None)


@presence(None, "has key 'SOMETHING'", BACK)
def a_global(compiler):
    namespace = {"SOMETHING": [1]}
    exec("def f(): return SOMETHING", namespace)
    f = compiler(namespace["f"])
    yield attempt(f)
    del namespace["SOMETHING"]
    yield attempt(f)
    namespace["SOMETHING"] = [2]
    yield attempt(f)


@presence(None, "has key 'it'", BACK)
def moved_to_another_table(compiler):
    m = module_with_parameter()
    f = compiler(lambda: m.it)
    yield attempt(f)
    m._buffers["it"] = m._parameters.pop("it").detach()
    yield attempt(f)
    m._parameters["it"] = nn.Parameter(m._buffers.pop("it"))
    yield attempt(f)


def test_a_free_variable():
    something = [1]

    def f():
        return something

    compiled = kiln.compile(f, backend="eager")
    assert attempt(compiled) is something
    del something
    assert attempt(compiled) == attempt(f)
    something = [2]
    assert attempt(compiled) is something


@pytest.mark.parametrize("sequence", ([4, 5], (4, 5)), ids=("list", "tuple"))
def test_an_element_that_is_only_moved(sequence):
    """Whether a list has an element at a place is a question of its length, not of what it contains."""

    def move(sequence, holder, x):
        holder["value"] = sequence[1]
        return x * 2

    check(move, calls=[(sequence, {}, torch.ones(2)), (sequence, {}, torch.ones(2))], graphs=1, recompiles=0)
