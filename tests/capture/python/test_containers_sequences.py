"""Lists, tuples, deques, ranges, slices and ``torch.Size`` in captured code."""

# ruff: noqa: B905 (programs under test are written the way users write them)

import collections
from collections import deque

import torch

from kiln.testing import check
from tests.support.program_table import M, ProgramTable, X, Y

TABLE = program = ProgramTable()


# -- lists ----------------------------------------------------------------------------------------------------------


@program(X)
def list_methods(x):
    items = [x, 1]
    items.append(x + 1)
    items.extend((2, x * 2))
    items.insert(1, "one")
    items.insert(-100, None)
    popped = items.pop()
    first = items.pop(0)
    items.reverse()
    copied = items.copy()
    copied.clear()
    return items, popped, first, copied, len(items)


@program(X)
def list_search(x):
    numbers = [3, 1, 4, 1, 5, 9, 2, 6]
    numbers.remove(1)
    return x + numbers.index(4) + numbers.count(1) + numbers.index(1, 2, 5), numbers, 9 in numbers, 7 not in numbers


@program(X)
def list_sort(x):
    numbers = [3, 1, 4, 1, 5]
    numbers.sort()
    words = ["bb", "a", "ccc"]
    words.sort(key=len, reverse=True)
    pairs = [(2, x), (1, x + 1)]
    pairs.sort(key=lambda pair: pair[0])
    return numbers, words, pairs, sorted(numbers, reverse=True), sorted(words, key=lambda w: -len(w))


@program(X)
def list_operators(x):
    a, b = [1, x], [2]
    c = a + b
    c += (3,)
    c *= 2
    d = b * 3
    d[1:2] = [x, x]
    del d[0]
    return c, d, 2 * b, a == [1, x] or True, b == [2], b < [3], [1, 2] <= [1, 2], b != [2]


@program(X)
def list_slices(x):
    items = list(range(10))
    items[::2] = [0] * 5
    items[3:5] = []
    del items[-2:]
    return x + items[-1], items[1:4], items[::-1], items[slice(0, 2)], items[-3:]


@program(X)
def list_unpacking(x):
    first, *middle, last = [1, x, x + 1, 4]
    (a, b), c = [[first, last], middle]
    return [*middle, a, b, *c, *(0, 1)], {*[1, 2], 3}


@program([X, Y, 3], X)
def list_argument_mutated(items, x):
    items.append(items[0] + x)
    items[2] += 1
    items.reverse()
    return items[0]


@program([X, [Y, [1, 2]]])
def list_argument_nested(items):
    items[1][1].append(items[0] + items[1][0])
    items[1][1][0] = "changed"
    return items[1]


@program([1, 2, 3])
def list_argument_emptied(items):
    while items:
        items.pop()
    return items


@program([3, 1, 2], X)
def list_argument_sorted(items, x):
    items.sort()
    return x * items[0]


@program([X, Y])
def list_element_replaced_and_put_back(items):
    keep = items[0]
    items[0] = None
    items[0] = keep
    return items[0] + 1


def test_aliased_lists():
    def program(a, b, x):
        a.append(x)
        return b[-1] + 1, a is b

    def arguments(shared):
        a = [1]
        return (a, a if shared else [torch.ones(3)], X.clone())

    check(program, make_args=lambda: arguments(True), fullgraph=True, breaks_every=(None, "line"))
    both = [[arguments(True), arguments(False), arguments(True)], [arguments(False), arguments(True)]]
    for calls in both:
        check(program, make_args=lambda calls=calls: calls, calls=calls, breaks_every=(None, "line"))


def test_alias_inside_another_argument():
    def program(outer, inner, x):
        inner.append(x + 1)
        outer["list"].append(x + 2)
        return outer["list"] is inner, len(inner)

    def arguments():
        inner = [0]
        return {"list": inner}, inner, X.clone()

    check(program, make_args=arguments, fullgraph=True, breaks_every=(None, "line"))


def test_list_that_contains_itself():
    def program(x):
        items = [x]
        items.append(items)
        return items

    check(program, X, fullgraph=True, breaks_every=(None, "line"))


def test_cyclic_argument():
    def program(items, x):
        items.append(x + 1)
        return items[0][0][0][1] * 2, items[0] is items

    def arguments():
        items: list = []
        items.append(items)
        items.append(torch.ones(3))
        return items, X.clone()

    check(program, make_args=arguments, fullgraph=True, breaks_every=(None, "line"))


GLOBAL_LIST = [1, 2]


@program(X, calls=3)
def global_list_grows(x):
    GLOBAL_LIST.append(len(GLOBAL_LIST))
    return x + len(GLOBAL_LIST)


@program(X)
def list_iterator_over_a_growing_list(x):
    items = [1]
    total = x
    for item in items:
        total = total + item
        if len(items) < 4:
            items.append(item + 1)
    return total, items


@program(X)
def list_of_lists_shares(x):
    row = [0]
    grid = [row] * 2
    grid[0].append(x)
    return grid


@program(X)
def list_errors(x):
    caught = []
    for action in (lambda: [].pop(), lambda: [1][5], lambda: [1].index(2), lambda: [1].remove(7), lambda: [1] + (1,)):
        try:
            action()
        except (IndexError, ValueError, TypeError) as error:
            caught.append((type(error).__name__, str(error)))
    return x + 1, caught


@program([X, Y, X + Y])
def list_comprehensions(items):
    return [i + 1 for i in items if i.ndim == 1], {k: v for k, v in enumerate(items)}, sum(i for i in items)


class Stack(list):
    """A subclass with state and a method."""

    def __init__(self, *items):
        super().__init__(items)
        self.pushed = 0

    def push(self, item):
        self.append(item)
        self.pushed += 1
        return self

    def __getitem__(self, index):
        return super().__getitem__(index)


@program(X)
def list_subclass_made_inside(x):
    stack = Stack(1, 2).push(x).push(x + 1)
    return stack, len(stack), stack[-1], stack.pushed, isinstance(stack, list)


@program(Stack(1, X), Y)
def list_subclass_argument(stack, y):
    stack.push(stack[1] + y)
    stack.extend([1])
    return len(stack)


# -- tuples ---------------------------------------------------------------------------------------------------------


@program((X, 1, (Y, "a")))
def tuple_argument(items):
    x, number, (y, text) = items
    return items + (x + y,), items[2], items[::-1], number, text * 2, items


@program(X)
def tuple_methods(x):
    items = (1, 2, 2, 3)
    return x + items.count(2) + items.index(3), hash((1, "a")) == hash((1, "a")), (1, 2) < (1, 3), items * 2, 2 in items


Point = collections.namedtuple("Point", "x y", defaults=[0])


@program(Point(X, 2), X)
def namedtuple_argument(point, x):
    moved = point._replace(y=x)
    return moved, point.x + 1, Point._fields, moved._asdict(), Point(1), Point._make([x, 2]), Point(x=1, y=2) == (1, 2)


@program(X)
def namedtuple_made_inside(x):
    point = Point(x, y=x + 1)
    a, b = point
    return point, a + b, point[0], point == Point(x, b) if False else None, isinstance(point, tuple), len(point)


class Pair(tuple):
    """A subclass with its own constructor and a property."""

    def __new__(cls, first, second):
        return super().__new__(cls, (first, second))

    def __getnewargs__(self):
        return tuple(self)

    @property
    def first(self):
        return self[0]


@program(Pair(X, 3), X)
def tuple_subclass(pair, x):
    return pair.first * pair[1], Pair(x, 1), pair


# -- deque ----------------------------------------------------------------------------------------------------------


@program(X)
def deque_methods(x):
    queue = deque([1, 2, x], maxlen=4)
    queue.append(3)
    queue.appendleft(0)
    queue.rotate(1)
    queue.extend([7, 8])
    queue.extendleft([9])
    right, left = queue.pop(), queue.popleft()
    queue.insert(1, "in")
    queue.reverse()
    copied = queue.copy()
    queue.clear()
    return copied, queue, right, left, queue.maxlen, len(copied)


@program(X)
def deque_search(x):
    queue = deque([3, 1, 3])
    queue.remove(1)
    queue += [5]
    queue[0] = 4
    del queue[1]
    return (
        x + queue.count(3) + queue.index(4),
        5 in queue,
        queue,
        list(reversed(queue)),
        queue == deque([4, 5]),
        queue + queue,
    )


@program(deque([X, 1], maxlen=3), X)
def deque_argument(queue, x):
    queue.append(x + queue[0])
    queue.appendleft(2)
    return queue[-1], queue.maxlen


@program(deque([1, 2, 3]), X)
def deque_iterated(queue, x):
    for item in queue:
        x = x + item
    return x, [*queue]


# -- range, slice, torch.Size ---------------------------------------------------------------------------------------


@program(X)
def ranges(x):
    r = range(2, 20, 3)
    parts = (r.start, r.stop, r.step, r.index(8), r.count(5), len(r), r[1], r[-1], 8 in r, 9 in r)
    return x + r[2], parts, r[1:3], list(reversed(r)), r == range(2, 20, 3), r


@program(range(4), slice(1, None), X)
def range_and_slice_arguments(r, s, x):
    return x[s], [x * i for i in r], s.start, s.stop, s.indices(3), r, s


@program(X)
def slices(x):
    s = slice(0, 2)
    return x[s], s, [1, 2, 3][s], slice(None, None, -1), s == slice(0, 2), "abc"[s], (1, 2, 3)[slice(-2, None)]


@program(M)
def sizes(m):
    size = m.shape
    rows, columns = size
    same = size == (2, 3) and size == torch.Size([2, 3])
    made = torch.Size([1, 2]) + size[1:]
    return (
        m.reshape(size.numel()),
        rows * columns,
        same,
        made,
        size[-1],
        tuple(size),
        list(size),
        size,
        len(size),
        size.numel(),
    )


@program(torch.Size([2, 3]), M)
def size_argument(size, m):
    return m.view(size[::-1]), size == m.shape, isinstance(size, tuple), type(size) is torch.Size, size


@program.breaking([X, Y])
def list_of_tensors_compared(items):
    return items == [items[0], items[1]], items.index(items[0]), items[0] in items


@program(X)
def iterators_alive(x):
    items = iter([1, 2, 3, 4])
    total = x + next(items)
    total = total + next(items)
    backwards = reversed([1, 2, 3])
    total = total * next(backwards)
    return total, list(items), next(backwards), next(items, "end")


@program([1, 2, 3], X)
def iterator_over_an_argument(items, x):
    iterator = iter(items)
    x = x + next(iterator)
    items.append(10)
    x = x + next(iterator)
    return x, list(iterator)


@program(X)
def iterators_returned(x):
    return iter([x, 1]), zip([1, 2], (x, x)), enumerate([x]), reversed([1, x]), range(3).__iter__()


@TABLE.rows
def test_sequences(program, args, expect):
    TABLE.run(program, args, expect)
