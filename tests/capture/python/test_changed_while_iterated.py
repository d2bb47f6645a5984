"""Containers that change while they are iterated, searched, compared or filled, and what Python then does."""

import operator
from collections import OrderedDict, deque

import pytest

import kiln
from kiln.testing import check
from tests.support.program_table import X


def attempt(function, *args):
    try:
        return function(*args)
    except Exception as error:
        return type(error).__name__, str(error)


def run_over(items, change):
    """Iterate, with a change at each step; gives up on what would not end."""
    count = 0
    for _ in items:
        count += 1
        change(count)
        if count > 20:
            return "without end"
    return count


class Changing:
    """Its comparison changes something."""

    def __init__(self, change):
        self.change = change

    def __eq__(self, other):
        self.change()
        return False

    __hash__ = object.__hash__


class ChangingKey:
    """A key whose comparison changes something."""

    def __init__(self, number, change):
        self.number, self.change = number, change

    def __hash__(self):
        return self.number

    def __eq__(self, other):
        self.change()
        return self is other


PROGRAMS = {
    "dict add": lambda: (lambda d: attempt(run_over, d, lambda n: d.__setitem__(n + 10, 1)))({1: 1, 2: 2}),
    "dict del": lambda: (lambda d: attempt(run_over, d, lambda n: d.pop(n, None)))({1: 1, 2: 2}),
    "dict items": lambda: (lambda d: attempt(run_over, d.items(), lambda n: d.__setitem__(n + 10, 1)))({1: 1, 2: 2}),
    "dict values": lambda: (lambda d: attempt(run_over, d.values(), lambda n: d.clear()))({1: 1, 2: 2}),
    "dict reversed": lambda: (lambda d: attempt(run_over, reversed(d), lambda n: d.__setitem__(n + 10, 1)))(
        {1: 1, 2: 2}
    ),
    "dict swap": lambda: (lambda d: attempt(run_over, d, lambda n: (d.pop(n), d.__setitem__(n + 10, 1))))({1: 1, 2: 2}),
    "odict": lambda: (lambda d: attempt(run_over, d, lambda n: d.__setitem__(n + 10, 1)))(OrderedDict({1: 1, 2: 2})),
    "odict move": lambda: (lambda d: attempt(run_over, d, lambda n: d.move_to_end(n)))(OrderedDict({1: 1, 2: 2})),
    "set add": lambda: (lambda d: attempt(run_over, d, lambda n: d.add(n + 10)))({1, 2}),
    "set clear": lambda: (lambda d: attempt(run_over, d, lambda n: d.clear()))({1, 2}),
    "deque append": lambda: (lambda d: attempt(run_over, d, lambda n: d.append(1)))(deque([1, 2])),
    "deque popappend": lambda: (lambda d: attempt(run_over, d, lambda n: (d.pop(), d.append(1))))(deque([1, 2, 3])),
    "deque rev": lambda: (lambda d: attempt(run_over, reversed(d), lambda n: d.append(1)))(deque([1, 2])),
    "deque count": lambda: (lambda d: (d.append(Changing(d.clear)), attempt(d.count, 3)))(deque([1, 2])),
    "deque index": lambda: (lambda d: (d.append(Changing(d.clear)), attempt(d.index, 3)))(deque([1, 2])),
    "deque remove": lambda: (lambda d: (d.append(Changing(d.clear)), attempt(d.remove, 3)))(deque([1, 2])),
    "deque in": lambda: (lambda d: (d.append(Changing(d.clear)), attempt(lambda: 3 in d)))(deque([1, 2])),
    "deque eq": lambda: (lambda d: (d.append(Changing(d.clear)), attempt(lambda: d == deque([1, 2, 3]))))(
        deque([1, 2])
    ),
    "list index": lambda: (lambda d: (d.append(Changing(d.clear)), attempt(d.index, 3)))([1, 2]),
    "list count": lambda: (lambda d: (d.append(Changing(d.clear)), attempt(d.count, 3)))([1, 2]),
    "list remove": lambda: (lambda d: (d.append(Changing(d.clear)), attempt(d.remove, 3)))([1, 2]),
    "list in": lambda: (lambda d: (d.append(Changing(d.clear)), attempt(lambda: 3 in d)))([1, 2]),
    "list sort": lambda: (lambda d: attempt(lambda: d.sort(key=lambda i: d.append(i) or i)))([2, 1]),
    "list sort2": lambda: (lambda d: (attempt(lambda: d.sort(key=lambda i: len(d))), d))([2, 1]),
    "list loop": lambda: (lambda d: attempt(run_over, d, lambda n: d.append(1) if n < 5 else None))([2, 1]),
    "list extend self": lambda: (lambda d: (d.extend(d), d.extend(iter(d[:2])), d))([2, 1]),
    "dict get evil": lambda: (lambda d: (d.__setitem__(ChangingKey(1, d.clear), 1), attempt(lambda: d.get(1, "no"))))(
        {}
    ),
    "set evil merge": lambda: (
        lambda s: (s.add(ChangingKey(1, s.clear)), attempt(lambda: s.update({1, 2, 9})), len(s))
    )(set()),
    "set evil rem": lambda: (lambda s: (s.add(ChangingKey(1, s.clear)), attempt(lambda: s.remove(1)), len(s)))(set()),
    "dict evil update": lambda: (
        lambda d: (d.__setitem__(ChangingKey(1, d.clear), 1), attempt(lambda: d.update({1: 2})), len(d))
    )({}),
    "dict eq": lambda: (
        lambda d: (d.update({1: Changing(lambda: d.update({5: 5}))}), attempt(lambda: d == {1: 4}), len(d))
    )({}),
    "items in": lambda: (
        lambda d: (d.update({1: Changing(lambda: d.clear())}), attempt(lambda: (1, 4) in d.items()), len(d))
    )({}),
    "values in": lambda: (
        lambda d: (d.update({1: Changing(lambda: d.clear()), 2: 3}), attempt(lambda: 7 in d.values()), len(d))
    )({}),
    "values iter evil": lambda: (
        lambda d: (
            d.update({1: Changing(lambda: d.clear()), 2: 3}),
            attempt(lambda: [v == 1 for v in d.values()]),
            len(d),
        )
    )({}),
    "sum map": lambda: (lambda d: attempt(lambda: list(map(lambda k: d.__setitem__(k + 10, 1), d))))({1: 1, 2: 2}),
    "comp": lambda: (lambda d: attempt(lambda: [d.pop(k) for k in d]))({1: 1, 2: 2}),
    "dict update gen": lambda: (lambda d: attempt(lambda: d.update((k + 10, 1) for k in d)))({1: 1, 2: 2}),
    "set update gen": lambda: (lambda d: attempt(lambda: d.update(k + 10 for k in d)))({1, 2}),
    "deque extend gen": lambda: (lambda d: attempt(lambda: d.extend(k + 10 for k in d)))(deque([1, 2])),
    "deque insert full": lambda: attempt(lambda: deque([1, 2], 2).insert(0, 5)),
    "deque extend self": lambda: (lambda d: (d.extend(d), d.extendleft(d), list(d)))(deque([1, 2])),
    "set self": lambda: (lambda d: (d.update(d), d.difference_update(d), len(d)))({1, 2}),
    "dict next": lambda: (lambda d, i: (next(i), d.clear(), attempt(next, i), attempt(next, i)))(
        *(lambda d: (d, iter(d)))({1: 1, 2: 2})
    ),
    "len hint": lambda: (lambda d, i: (d.clear(), i.__length_hint__()))(*(lambda d: (d, iter(d)))({1: 1, 2: 2})),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_change_meanwhile(name):
    run = PROGRAMS[name]

    def program(x):
        made = run()
        return x + 1, str(made)

    check(program, X, breaks_every=(None, "line"))


class Money:
    """Compares in Python."""

    def __init__(self, amount):
        self.amount = amount

    def __eq__(self, other):
        return self.amount == getattr(other, "amount", other)

    __hash__ = None

    def __repr__(self):
        return f"Money({self.amount})"


def test_searches_with_a_comparison_in_python():
    def program(x, coins):
        seen = []
        for items in (coins, deque(coins)):
            for places in ((), (1,), (-2,), (-9, -1), (0, 1), (5,)):
                seen.append(attempt(items.index, Money(2), *places))
            seen.append(items.count(Money(2)))
            seen.append(attempt(items.remove, Money(3)))
            seen.append(attempt(items.remove, Money(3)))
            seen.append([coin.amount for coin in items])
        coins.sort(key=lambda coin: -coin.amount)
        seen.append([coin.amount for coin in coins])
        return x + 1, seen

    check(program, X, [Money(1), Money(2), Money(3), Money(2)], fullgraph=True)


def test_what_came_before_an_error_stays():
    def items(pairs):
        yield ("a", 1) if pairs else 1
        yield ("b", 2) if pairs else 2
        raise ValueError("no more")

    def program(x, table, numbers, thinned):
        seen = [
            attempt(table.update, items(True)),
            attempt(numbers.update, items(False)),
            attempt(thinned.difference_update, items(False)),
            attempt(lambda: table.update(zip("cd", items(False), strict=False))),
        ]
        table.update((("e", 5) for _ in range(1)), f=6)
        return x + 1, seen

    check(program, X, {"z": 0}, {9}, {1, 2, 3}, calls=2, breaks_every=(None, "line"))


LIMIT = 3


class Counted:
    """A key that looks at a global variable."""

    def __init__(self, number):
        self.number = number

    def __hash__(self):
        return self.number % LIMIT

    def __eq__(self, other):
        if LIMIT == 1:
            raise ZeroDivisionError("one for all")
        return self.number == other.number


def test_keys_that_read_a_global_variable_that_is_written():
    def program(x):
        global LIMIT
        LIMIT = 3
        table = {Counted(1): 1, Counted(2): 2}
        LIMIT = 1
        made = attempt(lambda: {Counted(3), Counted(4)})
        LIMIT = 3
        return x + 1, made, len(table), Counted(1) in table

    check(program, X)


def test_a_set_from_outside_whose_elements_have_one_hash():
    log = []

    def program(x, one, other):
        made = attempt(one.update, other)
        return x + 1, made, len(one)

    def arguments():
        return {ChangingKey(7, lambda: log.append(1))}, {ChangingKey(7, lambda: log.append(2)) for _ in range(3)}

    def outcome(function):
        given = arguments()
        log.clear()  # making them compares as well
        return function(X, *given)[1:], list(log)

    assert outcome(kiln.compile(program, backend="eager")) == outcome(program)


REPLACED = {
    "replaced": lambda d: operator.setitem(d, 1, 7),
    "window moved on": lambda d: (d.popleft(), d.append(5)),
    "rotated": lambda d: d.rotate(1),
    "grown": lambda d: d.append(5),
}


@pytest.mark.parametrize("name", REPLACED)
def test_iterators_of_a_deque_from_outside(name):
    """An iterator stays valid where elements were only replaced, and no longer where some came or went."""
    change = REPLACED[name]

    def program(x, queue):
        change(queue)
        return x + queue[0]

    def run(function):
        queue = deque([1, 2, 3])
        iterator = iter(queue)
        result = function(X, queue)
        try:
            return result.tolist(), list(queue), list(iterator)
        except RuntimeError as error:
            return result.tolist(), list(queue), str(error)

    assert run(kiln.compile(program, backend="eager", fullgraph=True)) == run(program)


ITERATORS = {
    "ordered": lambda: iter(OrderedDict(a=1, b=2, c=3)),
    "ordered items": lambda: iter(OrderedDict(a=1, b=2, c=3).items()),
    "reversed": lambda: reversed({1: 2, 3: 4}),
    "reversed items": lambda: reversed({1: 2, 3: 4}.items()),
    "reversed ordered": lambda: reversed(OrderedDict(a=1, b=2)),
    "dict": lambda: iter({1: 2, 3: 4}),
    "values": lambda: iter({1: 2, 3: 4}.values()),
    "set": lambda: iter({1, 2}),
    "deque": lambda: iter(deque([1, 2])),
    "reversed list": lambda: reversed([1, 2]),
    "text": lambda: iter("ab"),
}


@pytest.mark.parametrize("name", ITERATORS)
def test_an_iterator_that_outlives_a_graph_keeps_its_type(name):
    make = ITERATORS[name]

    def program(x):
        iterator = make()
        next(iterator)
        x = x + 1
        print(end="")
        return x, type(iterator).__name__, list(iterator)

    check(program, X)
