"""GuardProgram: each step and fact, what is remembered between runs, and runs inside runs."""

import collections
import gc
import types
import weakref

import pytest
import torch

from kiln import _native


class Thing:
    pass


def thing(**attributes):
    made = Thing()
    made.__dict__.update(attributes)
    return made


def program(steps, *, filled=0, constants=(), roots=1, inputs=(), distinct=(), tensors=(), check=None, same=None):
    return _native.GuardProgram(
        registers=roots + len(constants) + filled,
        roots=roots,
        constants=list(constants),
        steps=steps,
        inputs=list(inputs),
        distinct=list(distinct),
        tensors=list(tensors),
        tensor_check=check,
        same_constant=same or (lambda a, b: a == b),
    )


def table(*facts, register=0, attributes=False):
    return [("table", register, -1, (attributes, list(facts)))]


FUNCTION = lambda: 1
OTHER = lambda: 2
WORD = "word"
LARGE = 10**30

STEPS = {
    "type": (("type", 0, -1, list), [], {}),
    "type of a subclass": (("type", 0, -1, dict), {}, collections.OrderedDict()),
    "empty dictionary": (("empty", 0, -1, None), {}, {1: 2}),
    "empty ordered dictionary": (("empty", 0, -1, None), collections.OrderedDict(), collections.OrderedDict(a=1)),
    "empty list": (("empty", 0, -1, None), [], [0]),
    "nothing sized is empty": (("empty", 0, -1, None), (), 0),
    "full": (("full", 0, -1, None), [0], []),
    "length": (("length", 0, 2, None), (1, 2), (1,)),
    "is": (("is", 0, -1, FUNCTION), FUNCTION, OTHER),
    "is not": (("is_not", 0, -1, FUNCTION), OTHER, FUNCTION),
    "equal text": (("equals", 0, -1, WORD), "".join(["wo", "rd"]), "sword"),
    "equal int": (("equals", 0, -1, LARGE), 10**30, 10**29),
    "an int is no bool": (("equals", 0, -1, 1), 1, True),
    "equal float": (("equals", 0, -1, 0.5), float("0.5"), 0.25),
    "negative zero": (("equals", 0, -1, 0.0), 0.0, -0.0),
    "not a number": (("equals", 0, -1, float("nan")), float("nan"), 1.0),
    "equal tuple": (("equals", 0, -1, (1, 2)), tuple([1, 2]), (1, 3)),
    "code": (("code", 0, -1, FUNCTION.__code__), FUNCTION, OTHER),
    "code of what is no function": (("code", 0, -1, FUNCTION.__code__), FUNCTION, 3),
    "table of what is no dictionary": (table(("absent", "a", None))[0], {}, []),
    "absent": (table(("absent", "a", None))[0], {"b": 1}, {"a": 1}),
    "present": (table(("present", "a", None))[0], {"a": 1}, {"b": 1}),
    "entry is": (table(("is", "a", FUNCTION))[0], {"a": FUNCTION}, {"a": OTHER}),
    "entry is not there": (table(("is", "a", FUNCTION))[0], {"a": FUNCTION}, {}),
    "entry is not": (table(("is_not", "a", FUNCTION))[0], {"a": OTHER}, {"a": FUNCTION}),
    "what is not there is nothing": (table(("is_not", "a", FUNCTION))[0], {"a": OTHER}, {}),
    "entry equals": (table(("equals", 3, 0.5))[0], {3: 0.5}, {3: 0.6}),
    "keys": (table(("keys", "", ("a", "b")))[0], {"a": 1, "b": 2}, {"a": 1}),
    "order of keys": (table(("keys", "", ("a", "b")))[0], {"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "other keys": (table(("keys", "", ("a", "b")))[0], {"a": 1, "b": 2}, {"a": 1, "c": 2}),
    "keys of an ordered dictionary": (
        table(("keys", "", ("a",)))[0],
        {"a": 1},
        collections.OrderedDict(a=1),  # its order is not that of its entries: the program does not vouch for it
    ),
    "attribute absent": (table(("absent", "a", None), attributes=True)[0], thing(b=1), thing(a=1)),
    "attribute of what has none": (table(("present", "a", None), attributes=True)[0], thing(a=1), 3),
}


@pytest.mark.parametrize("name", STEPS)
def test_step(name):
    step, good, bad = STEPS[name]
    check = program([step])
    for _ in range(2):  # remembered or not
        assert check(good) == ()
        assert check(bad) is False


def test_reads():
    inner = thing(x=5)
    outer = {"inner": [0, inner]}
    steps = [
        *table(("read", "inner", 1)),
        ("element", 1, 1, 2),
        *table(("read", "x", 3), register=2, attributes=True),
    ]
    check = program(steps, filled=3, inputs=[3, 0, 2])
    assert check(outer) == (5, outer, inner)
    inner.x = 6
    assert check(outer) == (6, outer, inner)
    outer["inner"].pop()
    assert check(outer) is False
    assert check({}) is False
    assert check({"inner": 7}) is False


def test_cells_and_constants():
    def make(value):
        return (lambda: value).__closure__[0]

    check = program([("cell", 0, -1, 2), ("same", 2, 1, None)], filled=1, constants=[FUNCTION], inputs=[2])
    assert check(make(FUNCTION)) == (FUNCTION,)
    assert check(make(OTHER)) is False
    assert check(types.CellType()) is False
    assert check(3) is False
    differ = program([("not_same", 0, 1, None)], roots=2)
    assert differ(FUNCTION, OTHER) == () and differ(FUNCTION, FUNCTION) is False


CHANGES = {
    "value": lambda d: d.update(a=2),
    "same value again": lambda d: d.update(a=d["a"]),
    "deleted": lambda d: d.pop("a"),
    "deleted and back": lambda d: d.update(a=d.pop("a")),
    "another key": lambda d: d.update(z=1),
    "cleared": lambda d: d.clear(),
    "many keys": lambda d: d.update({str(i): i for i in range(100)}),
    "popitem": lambda d: d.popitem(),
    "setdefault": lambda d: (d.pop("a"), d.setdefault("a", 9)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("attributes", (False, True))
def test_a_changed_dictionary_is_looked_at_again(change, attributes):
    owner = thing(a=1, b=2)
    root = owner if attributes else owner.__dict__
    check = program(table(("read", "a", 1), ("absent", "z", None), attributes=attributes), filled=1, inputs=[1])
    assert check(root) == (1,)
    CHANGES[change](owner.__dict__)
    now = owner.__dict__
    expected = False if "z" in now or "a" not in now else (now["a"],)
    for _ in range(2):
        assert check(root) == expected


def test_attributes_set_in_every_way_are_seen():
    """Specialised stores of the interpreter go past the dictionary's own functions."""

    class Counter:
        def __init__(self):
            self.count = 0

        def step(self):
            self.count += 1

    counter = Counter()
    check = program(table(("read", "count", 1), attributes=True), filled=1, inputs=[1])
    for expected in range(200):
        assert check(counter) == (expected,)
        counter.step()
    object.__setattr__(counter, "count", -1)
    assert check(counter) == (-1,)
    counter.__dict__ = {"count": -2}
    assert check(counter) == (-2,)
    del counter.count
    assert check(counter) is False


def test_what_must_differ():
    a, b, c = Thing(), Thing(), Thing()
    steps = [("element", 0, i, i + 1) for i in range(3)]
    check = program(steps, filled=3, distinct=[1, 2, 3])
    same, other = [a, b, c], [a, b, a]
    for _ in range(3):
        assert check(same) == ()
        assert check(other) is False
    same[1] = c  # one object only changed since the last run
    assert check(same) is False
    same[2] = b
    assert check(same) == ()


def test_many_must_differ():
    things = [Thing() for _ in range(50)]
    steps = [("element", 0, i, i + 1) for i in range(50)]
    check = program(steps, filled=50, distinct=list(range(1, 51)))
    assert check(things) == ()
    for i in range(50):
        for j in range(50):
            changed = list(things)
            changed[i] = things[j]
            assert (check(changed) == ()) is (i == j)
    assert check([Thing() for _ in range(50)]) == ()


def test_tensors():
    check = _native.TensorCheck([(torch.ones(2, 3), None, True), (torch.ones(4), (True,), True)])
    steps = table(("read", "a", 1), ("read", "b", 2))
    run = program(steps, filled=2, tensors=[1, 2], check=check, inputs=[2, 1])
    a, b = torch.zeros(2, 3), torch.zeros(9)
    assert run({"a": a, "b": b}) == (b, a)
    assert run({"a": a.double(), "b": b}) is False
    assert run({"a": b, "b": a}) is False
    assert run({"a": 1, "b": b}) is False


def test_a_program_run_while_it_runs():
    """Comparing constants calls Python, which may call the same program for other objects."""
    nested = []

    def same(a, b):
        if depth[0] < 3:
            depth[0] += 1
            nested.append(check({"a": tuple([1, 2]), "b": "inner"}))
        return a == b

    depth = [0]
    check = program(table(("read", "b", 1), ("equals", "a", (1, 2))), filled=1, inputs=[1], same=same)
    assert check({"a": tuple([1, 2]), "b": "outer"}) == ("outer",)
    assert nested == [("inner",)] * 3


def test_errors_say_no_and_interrupts_go_through():
    def fail(a, b):
        raise error

    check = program([("equals", 0, -1, (1,))], same=fail)
    error = ValueError("no")
    assert check(tuple([1])) is False
    error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        check(tuple([1]))
    error = ValueError("no")
    assert check(tuple([1])) is False


BAD = {
    "unknown step": (dict(steps=[("jump", 0, -1, None)]), ValueError),
    "no such register": (dict(steps=[("type", 4, -1, int)]), IndexError),
    "no such target": (dict(steps=table(("read", "a", 9))), IndexError),
    "key without a hash": (dict(steps=table(("absent", [], None))), TypeError),
    "keys that are no tuple": (dict(steps=table(("keys", "", ["a"]))), TypeError),
    "tensors without registers": (
        dict(steps=[], check=_native.TensorCheck([(torch.ones(1), None, True)])),
        ValueError,
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_programs(name):
    arguments, error = BAD[name]
    with pytest.raises(error):
        program(**arguments)


def test_wrong_number_of_roots():
    check = program([], roots=2)
    with pytest.raises(TypeError):
        check(1)
    with pytest.raises(TypeError):
        check(1, other=2)


def test_holds_its_constants_and_nothing_else():
    kept, seen = Thing(), {"a": Thing()}
    references = [weakref.ref(kept), weakref.ref(seen["a"])]
    check = program(table(("read", "a", 2)), filled=1, constants=[kept], inputs=[2])
    assert check(seen) == (seen["a"],)
    del kept, seen
    gc.collect()
    assert references[0]() is not None and references[1]() is None
    assert check({"a": 1}) == (1,)
    kept = references[0]()
    kept.cycle = check  # a cycle through the program
    del kept, check
    gc.collect()
    assert references[0]() is None


# ---- entries by their place, gradients -------------------------------------------------------------------------------


class Listed(dict):
    pass


@pytest.mark.parametrize("kind", [dict, Listed, lambda items: collections.defaultdict(dict, items)])
def test_keys_and_values_by_their_place(kind):
    keys, values = [Thing() for _ in range(6)], [Thing() for _ in range(6)]
    steps = table(("value_at", 4, 1), ("key_at", 1, 2), ("value_at", 1, 3), ("key_at", 5, 4))
    check = program(steps, filled=4, inputs=[1, 2, 3, 4])
    mapping = kind(dict(zip(keys, values, strict=True)))
    expected = (values[4], keys[1], values[1], keys[5])
    for _ in range(2):
        assert check(mapping) == expected
    moved = mapping.pop(keys[1])  # leaves a hole
    assert check(mapping) is False  # five are left
    mapping[keys[1]] = moved
    assert check(mapping) == (values[5], keys[2], values[2], keys[1])


def test_only_a_dictionary_in_plain_order_has_places():
    check = program(table(("key_at", 0, 1)), filled=1, inputs=[1])
    assert check({"a": 1}) == ("a",)
    for other in (collections.OrderedDict(a=1), ["a"], None, {}):
        assert check(other) is False
    with pytest.raises(ValueError):
        program(table(("key_at", -1, 1)), filled=1)
    with pytest.raises(IndexError):
        program(table(("key_at", 0, 9)), filled=1)


def test_an_ellipsis_stands_for_any_key():
    check = program(table(("keys", "", (..., "b", ...))))
    assert check({object(): 1, "b": 2, 3: 4}) == ()
    assert check(collections.defaultdict(dict, {object(): 1, "b": 2, 3: 4})) == ()
    assert check({object(): 1, "c": 2, 3: 4}) is False
    assert check({object(): 1, "b": 2}) is False
    assert check(collections.OrderedDict({1: 1, "b": 2, 3: 4})) is False


class Quiet(torch.Tensor):
    pass


def test_gradients_are_read_without_a_warning(recwarn):
    check = program([("gradient", 0, -1, 1)], filled=1, inputs=[1])
    leaf = torch.ones(2, requires_grad=True)
    assert check(leaf) == (None,)
    assert check(torch.ones(2)) == (None,)
    inner = leaf * 2
    assert check(inner) == (None,)
    inner.sum().backward()  # makes a gradient that Python has not seen
    (found,) = check(leaf)
    assert torch.equal(found, torch.full((2,), 2.0)) and found is leaf.grad
    replaced = leaf.grad = torch.zeros(2)
    assert check(leaf)[0] is replaced
    special = torch.nn.Parameter(torch.ones(2).as_subclass(Quiet))
    special.grad = torch.ones(2).as_subclass(Quiet)
    assert check(special)[0] is special.grad
    assert check("no tensor") is False
    assert not [warning for warning in recwarn if "grad" in str(warning.message)]


def test_a_gradient_lives_no_longer_than_the_run():
    check = program([("gradient", 0, -1, 1)], filled=1)
    leaf = torch.ones(2, requires_grad=True)
    leaf.grad = torch.ones(2)
    seen = weakref.ref(leaf.grad)
    assert check(leaf) == ()
    leaf.grad = None
    assert seen() is None
