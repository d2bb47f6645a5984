"""Sets that a graph break or the end of a frame hands over iterate in eager's order, which depends on their past."""

import pytest

import kiln
from kiln.testing import check
from tests.support.program_table import X


def collided(x):
    late = {8, 16}
    late.add(0)
    early = {0}
    early.update((16, 8))
    return x + 1, list(late), list(early), late, early


def thinned(x):
    many = set(range(200))
    for number in range(200):
        if number not in (16, 1, 9):
            many.discard(number)
    return x + 1, list(many), many, frozenset(many)


def thinned_across_a_break(x):
    many = set(range(200))
    for number in range(200):
        if number not in (16, 1, 9):
            many.discard(number)
    kiln.graph_break()
    return x + 1, list(many), many


def differences(x):
    one = {1, 2, 33}.symmetric_difference([9, 2, 17, 1])
    return x, list(one), one, {1, 9, 17}.union((25, 33)), {33, 1, 9} & {9, 1, 33}, {1, 33} ^ {9, 33}


@pytest.mark.parametrize("program", [collided, thinned, thinned_across_a_break, differences])
def test_the_order_of_a_set(program):
    def ordered(x):
        result = program(x)
        return [list(part) if isinstance(part, set | frozenset) else part for part in result]

    check(ordered, X, breaks_every=(None, "line"))
    compiled = kiln.compile(program, backend="eager")
    for want, got in zip(program(X), compiled(X), strict=True):
        if isinstance(want, set | frozenset):
            assert list(got) == list(want)


class Node:
    """An object that hashes by identity."""

    def __init__(self, number):
        self.number = number


def looked_through(x, nodes):
    total, seen = x, [node.number for node in nodes]
    for place, node in enumerate(nodes):
        total = total + place * node.number
    return total, seen, [node.number for node in list(nodes)], [number for number, _ in zip(seen, nodes, strict=True)]


def test_a_set_of_objects_from_outside_keeps_its_order():
    nodes = {Node(number) for number in range(20)}
    compiled = kiln.compile(looked_through, backend="eager", fullgraph=True)
    want, got = looked_through(X, nodes), compiled(X, nodes)
    assert want[1:] == got[1:]
    assert want[0].equal(got[0])


def test_a_set_of_objects_that_changes_while_it_is_iterated():
    def program(x, nodes, more):
        seen = []
        try:
            for node in nodes:
                seen.append(node.number)
                nodes.add(more)
        except RuntimeError as error:
            return x + 1, str(error), seen
        return x, seen

    def arguments():
        return X, {Node(number) for number in range(3)}, Node(7)

    want, got = program(*arguments()), kiln.compile(program, backend="eager")(*arguments())
    assert want[1] == got[1]
    assert len(want[2]) == len(got[2])


class Backwards(set):
    """A set that iterates in another way."""

    def __iter__(self):
        return iter(sorted(set.__iter__(self), reverse=True))

    def __eq__(self, other):
        return True

    __hash__ = None


class _Unused: ...


def test_a_set_with_an_iterator_in_python():
    def program(x, numbers):
        return x + 1, [number for number in numbers], list(numbers)

    check(program, X, Backwards({1, 2, 3}))


def test_an_iterator_over_a_set_across_a_break():
    def program(x, numbers, other):
        kept = {5, 6, 7}
        seen = []
        for number in numbers:
            seen.append(number)
            kiln.graph_break()
        try:
            for number in kept:
                seen.append(number)
                kiln.graph_break()
                kept.add(9)
        except RuntimeError as error:
            seen.append(str(error))
        try:
            for number in other:
                seen.append(number)
                kiln.graph_break()
                other.discard(number)
        except RuntimeError as error:
            seen.append(str(error))
        return x + 1, seen

    check(program, X, {16, 1, 9}, {1, 2}, breaks_every=(None, "line"))
