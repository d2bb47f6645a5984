"""Python code that runs in the middle of native code, and drops or changes what that is looking at.

In the usual build a mistake here may go unnoticed; ``make asan`` reports it.
"""

import gc

import pytest
import torch

from kiln import _native


class Thing:
    pass


class Key:
    """A key with the hash of a word, which runs something when it is compared."""

    def __init__(self, word, action):
        self.word, self.action = word, action

    def __hash__(self):
        return hash(self.word)

    def __eq__(self, other):
        self.action()
        return False


def program(steps, registers, *, roots, inputs=(), same=lambda a, b: a == b):
    return _native.GuardProgram(
        registers=registers,
        roots=roots,
        constants=[],
        steps=steps,
        inputs=list(inputs),
        distinct=[],
        tensors=[],
        tensor_check=None,
        same_constant=same,
    )


def table(register, *facts):
    return ("table", register, -1, (False, list(facts)))


@pytest.mark.parametrize("runs", [1, 2])
def test_a_key_that_drops_what_was_read(runs):
    """The value read from the first dictionary has no other owner when the second one is looked at."""
    first, second = {}, {}
    second[Key("b", first.clear)] = None
    second["b"] = 1
    guards = program([table(0, ("read", "a", 2)), table(1, ("present", "b", None)), ("type", 2, -1, Thing)], 3, roots=2)
    for _ in range(runs):
        first["a"] = Thing()
        second[0] = object()  # looked at again
        assert guards(first, second) == ()
        assert not first


def test_a_comparison_that_drops_what_was_read_before_it_in_the_same_dictionary():
    holder = {"a": Thing(), "b": (1, 2)}

    def same(seen, expected):
        holder.clear()
        return seen == expected

    guards = program(
        [table(0, ("read", "a", 1), ("equals", "b", (1, 2))), ("type", 1, -1, Thing)], 2, roots=1, inputs=[1], same=same
    )
    holder["b"] = tuple([1, 2])
    (found,) = guards(holder)
    assert type(found) is Thing and not holder


def test_a_comparison_that_drops_an_element():
    holder = [Thing(), (1, 2)]

    def same(seen, expected):
        holder.clear()
        gc.collect()
        return True

    steps = [("element", 0, 0, 1), ("element", 0, 1, 2), ("equals", 2, -1, (1, 2)), ("type", 1, -1, Thing)]
    holder[1] = tuple([1, 2])
    (found,) = program(steps, 3, roots=1, inputs=[1], same=same)(holder)
    assert type(found) is Thing


@pytest.mark.parametrize("change", ["more", "fewer"])
def test_a_comparison_that_changes_the_keys(change):
    holder = {(1, 0): 0, (2, 0): 0}

    def same(seen, expected):
        if change == "more":
            holder.update({(3, number): 0 for number in range(100)})
        else:
            holder.clear()
        return True

    keys = tuple([tuple([1, 0]), tuple([2, 0])])
    assert program([table(0, ("keys", "", keys))], 1, roots=1, same=same)(holder) is False


def test_a_program_that_is_dropped_while_it_runs():
    programs = []
    holder = {}
    holder[Key("a", programs.clear)] = None
    programs.append(program([table(0, ("absent", "a", None)), ("full", 0, -1, None)], 1, roots=1))
    assert programs[0](holder) == ()
    assert not programs


def test_a_check_of_items_that_is_dropped_while_it_runs():
    checks = []
    holder = {}
    holder[Key("a", checks.clear)] = None
    items = [(holder, "a", _native.MISSING), (holder, "b", _native.MISSING)]
    checks.append(_native.ItemsCheck(items))
    assert checks[0]() is True
    assert not checks


def test_the_node_of_a_pass_that_is_over():
    """Code that runs in a pass can take hold of its node."""
    nodes = []
    _native.run_in_engine(lambda: nodes.append(torch._C._current_autograd_node()))
    with pytest.raises(RuntimeError, match="over"):
        nodes[0](torch.zeros(()))


def test_an_int_that_is_too_large_for_a_program():
    large = 1 << 70
    same = _native.OperatorProgram(1, 1, [], [0], lambda values: ())
    assert same([large]) == (large,)
    assert same([-large]) == (-large,)


def test_a_program_of_fewer_than_no_inputs():
    with pytest.raises(ValueError, match="inputs"):
        _native.OperatorProgram(-1, 1, [], [], lambda values: ())


def test_cuts_that_do_not_fit():
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    with pytest.raises(IndexError, match="no such output"):
        _native.cut_edges([y], [(y.grad_fn, 0, y.grad_fn.next_functions[0][0], 7)])
    for index in (7, -1):
        with pytest.raises(IndexError, match="no such input"):
            _native.cut_edges([y], [(y.grad_fn, index, y.grad_fn.next_functions[0][0], 0)])
