"""Augmented assignment of instances of classes derived from dictionaries, sets and sequences: they change in place."""

import collections
import operator

import pytest
import torch

import kiln

BASES = (dict, collections.defaultdict, collections.OrderedDict, collections.Counter, set, list, collections.deque)
OPERATORS = (operator.ior, operator.iand, operator.isub, operator.ixor, operator.iadd, operator.imul)
OPERANDS = (
    *(lambda: {1: 2}, lambda: {}.values(), lambda: {7: 8}.items(), lambda: {1: 2}.keys(), lambda: [(1, 2)]),
    *(lambda: (3, 4), lambda: {5}, lambda: iter([(1, 2)]), lambda: "ab", lambda: 2, lambda: None),
)


def derived(base):
    """A class with a method in Python, which is not that of the operator."""
    return type("Derived", (base,), {"__le__": lambda self, other: True})


@pytest.mark.parametrize("function", OPERATORS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("base", BASES, ids=lambda base: base.__name__)
def test_objects_change_in_place(base, function):
    kind = derived(base)

    def program(x, held, operand):
        made = kind()
        found = []
        for value in (held, made):
            try:
                result = function(value, operand())
                found.append((repr(result), result is value))
            except Exception as error:
                found.append((type(error), str(error)))
        return x + 1, found, repr(made)

    for operand in OPERANDS:
        kiln.reset()
        one, other, x = kind(), kind(), torch.ones(2)
        expected, found = program(x, one, operand), kiln.compile(program, backend="eager")(x, other, operand)
        assert found[1:] == expected[1:] and repr(other) == repr(one)
