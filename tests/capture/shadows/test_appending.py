"""Lists from outside that are only appended to are not guarded by length; any look at them is right all the same."""

import torch

import kiln
from kiln.testing import check

LOG: list = []


class Holder:
    def __init__(self):
        self.losses = []


def append_only(holder, x):
    y = x * 2
    holder.losses.append(y.sum())
    holder.losses.extend([y, 3])
    return y + 1


def test_appending_does_not_recompile():
    holder, x = Holder(), torch.ones(3)
    check(append_only, holder, x, calls=6, graphs=1, recompiles=0, breaks=0, breaks_every=(None, "line"))


def method_loaded_before_a_break(holder, x):
    holder.losses.append(x.sum().item())
    return x + 1


def test_method_loaded_before_a_break():
    check(method_loaded_before_a_break, Holder(), torch.ones(3), calls=6, recompiles=0)


def appended_over_a_break_then_read(history, x):
    history.append(x.sum().item())
    return x + (1 if history[-1] > 3 else 2)


def test_list_reached_in_two_ways_over_a_break():
    calls = [([], torch.ones(3)) for _ in range(3)]
    check(appended_over_a_break_then_read, calls=calls, recompiles=0)


def look_after(items, x):
    items.append(x + 1)
    first = items[0] if len(items) > 1 else None
    items.append(len(items))
    return first, items[-1]


def look_before(items, x):
    count = len(items)
    items.append(x + count)
    return items


def append_itself(items, x):
    items.append(items)
    return items[0] is items, x + 1


def look_in_argument(items, x):
    items.append(len(items))
    return x * items[-1]


def two_names(left, right, x):
    left.append(1)
    right.append(x + 2)
    return len(left), x


def keep_method(items, x):
    add = items.append
    add(x * 2)
    kiln.graph_break()
    add(x * 3)
    return add.__name__


def to_global(x):
    LOG.append(x.shape[0])
    return x + 1


def wrong_call(items, x):
    try:
        items.append(1, 2)
    except TypeError as error:
        return str(error), x + 1


def test_looking_at_the_list_too():
    x = torch.ones(2)
    for program in (look_after, look_before, append_itself, look_in_argument, keep_method, wrong_call):
        for items in ([], [1], [x, 2]):
            check(program, items, x, calls=2, breaks_every=(None, "line", "instruction"))


def test_aliased_lists():
    x, shared = torch.ones(2), []
    check(two_names, [], [], x, breaks_every=(None, "line"))
    check(two_names, shared, shared, x, breaks_every=(None, "line"))

    def setup():
        one, other, third = [], [], []
        return two_names, [(one, other, x), (third, third, x), (one, other, x)]

    check(setup=setup)


def test_global_list():
    check(to_global, torch.ones(2), calls=4, recompiles=0, graphs=1)
