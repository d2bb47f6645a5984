# ruff: noqa: UP028  (the programs are what they are on purpose)
"""Generators in captured code: consumed inside, with send, throw, close, delegation, and alive at a graph break."""

import itertools

import torch

from kiln.testing import check
from tests.support.program_table import M, ProgramTable, X

TABLE = program = ProgramTable()


def count_up(n, log=None):
    for i in range(n):
        yield i
        if log is not None:
            log.append(i)


def averager():
    total, count, average = 0, 0, None
    while True:
        value = yield average
        if value is None:
            return total
        total += value
        count += 1
        average = total / count


def careful(log):
    value = None
    while True:
        try:
            value = yield ("got", value)
        except ValueError as error:
            log.append(("caught", error.args))
            value = "recovered"
        except GeneratorExit:
            log.append("exit")
            raise
        finally:
            log.append("finally")


def delegating(log):
    result = yield from careful_inner(log)
    log.append(("result", result))
    try:
        yield from count_up(2)
    except KeyError as error:
        log.append(("key", error.args))
        yield "after key"
    return "done"


def careful_inner(log):
    try:
        first = yield "inner"
        log.append(("first", first))
        yield "second"
    except ValueError as error:
        log.append(("inner caught", error.args))
        return "from except"
    return "from end"


def tree(depth):
    if depth:
        yield from tree(depth - 1)
        yield depth
        yield from tree(depth - 1)


@program(X)
def consumed_by_loops(x):
    total = 0
    for i in count_up(4):
        total += i
        x = x + i
    for i, j in zip(count_up(3), count_up(5), strict=False):
        x = x * (i + j + 1)
    return x, total


@program(X)
def consumed_by_builtins(x):
    values = [
        list(count_up(3)),
        tuple(count_up(2)),
        set(count_up(3)),
        sum(count_up(4)),
        max(count_up(4)),
        sorted(count_up(3)),
    ]
    values += [
        dict.fromkeys(count_up(2)),
        any(i > 1 for i in count_up(3)),
        all(count_up(3)),
        ",".join(str(i) for i in count_up(3)),
    ]
    values += [
        list(map(str, count_up(2))),
        list(filter(None, count_up(3))),
        list(enumerate(count_up(2))),
        [*count_up(2), 9],
    ]
    values += [
        list(itertools.islice(count_up(9), 2, 5)),
        list(itertools.chain(count_up(1), count_up(2))),
        2 in count_up(4),
    ]
    first, *rest = count_up(3)
    a, b = count_up(2)
    return x + first, rest, a, b, values, max(*count_up(3), 7), list(tree(3)), dict(enumerate(count_up(2)))


@program(X)
def tensors_through_generators(x):
    def rows(t):
        for row in t.unsqueeze(1):
            yield row * 2

    def pairs():
        yield x, 1
        yield x + 1, 2

    return torch.cat(list(rows(x))), sum(rows(x)), [a * b for a, b in pairs()], torch.stack([r for r in rows(x)]).sum()


@program(X)
def infinite_generators(x):
    def naturals():
        n = 0
        while True:
            yield n
            n += 1

    taken = []
    numbers = naturals()
    for n in numbers:
        if n > 3:
            break
        taken.append(n)
    taken.append(next(numbers))
    return x + n, taken, list(itertools.islice(numbers, 2)), [n for n, _ in zip(numbers, "ab", strict=False)]


@program(X)
def next_and_end(x):
    g = count_up(2)
    values = [next(g), next(g), next(g, "default"), next(g, None)]
    try:
        next(g)
    except StopIteration as error:
        values.append(error.value)
    return x, values, list(g), iter(g) is g


@program(X)
def sending(x):
    g = averager()
    next(g)
    values = [g.send(10), g.send(20), g.send(3)]
    try:
        g.send(None)
    except StopIteration as error:
        values.append(error.value)
    h = averager()
    try:
        h.send(5)
    except TypeError as error:
        values.append(str(error))
    return x * values[1], values


@program(X)
def throwing(x):
    log = []
    g = careful(log)
    values = [
        next(g),
        g.send(1),
        g.throw(ValueError("v", 2)),
        g.send(3),
        g.throw(ValueError),
        g.throw(ValueError("again")),
    ]
    try:
        g.throw(KeyError("k"))
    except KeyError as error:
        values.append(error.args)
    try:
        next(g)
    except StopIteration:
        values.append("finished")
    fresh = careful(log)
    try:
        fresh.throw(ValueError("not started"))
    except ValueError as error:
        values.append(error.args)
    return x, values, log, list(fresh)


@program(X)
def closing(x):
    log = []
    g = careful(log)
    next(g)
    g.close()
    g.close()
    unstarted = careful(log)
    unstarted.close()

    def stubborn():
        try:
            yield 1
        except GeneratorExit:
            log.append("ignored")
        yield 2

    s = stubborn()
    next(s)
    try:
        s.close()
    except RuntimeError as error:
        log.append(str(error))

    def returning():
        try:
            yield 1
        except GeneratorExit:
            return

    r = returning()
    next(r)
    r.close()
    return x, log, list(g), list(unstarted), list(r)


@program(X)
def delegation(x):
    log = []
    g = delegating(log)
    values = [next(g), g.send("s"), next(g), next(g)]
    try:
        next(g)
    except StopIteration as error:
        values.append(error.value)
    h = delegating(log)
    values += [next(h), h.throw(ValueError("into inner")), h.throw(KeyError("into outer"))]
    k = delegating(log)
    next(k)
    k.close()

    def over_list():
        got = yield from [1, 2]
        return got

    def nested():
        a = yield from over_list()
        b = yield from (i for i in "xy")
        return a, b

    values += list(nested())
    return x, values, log


@program(X)
def exceptions_out_of_generators(x):
    def raising():
        yield 1
        raise ValueError("inside")

    def stopping():
        yield 1
        raise StopIteration("bad")

    log = []
    seen = []
    try:
        for value in raising():
            seen.append(value)
    except ValueError as error:
        log.append(str(error))
    try:
        list(raising())
    except ValueError as error:
        log.append(str(error))
    try:
        list(stopping())
    except RuntimeError as error:
        log.append((str(error), type(error.__cause__).__name__, error.__cause__ is error.__context__))
    return x, log, seen


@program(X)
def handlers_inside_generators(x):
    def guarded():
        for i in range(3):
            try:
                yield 10 // i
            except ZeroDivisionError:
                yield "never"
            finally:
                log.append(i)

    def safe():
        for i in range(3):
            try:
                value = 10 // i
            except ZeroDivisionError:
                value = "zero"
            yield value

    log = []
    try:
        list(guarded())
    except ZeroDivisionError:
        log.append("outside")
    return x, list(safe()), log


@program(X)
def closures_and_state(x):
    calls = 0

    def gen():
        nonlocal calls, x
        for i in range(3):
            calls += 1
            x = x + i
            yield x

    values = list(gen())
    return values, calls, x


@program(X)
def two_at_once(x):
    log = []
    a, b = count_up(3, log), count_up(3, log)
    values = [next(a), next(b), next(a), next(b), next(a)]
    return x + len(log), values, log, list(b), list(a)


@program(M)
def pipelines(x):
    def source():
        for row in x:
            yield row

    def double(rows):
        for row in rows:
            yield row * 2

    def only(rows, predicate):
        return (row for row in rows if predicate(row))

    return list(double(only(source(), lambda row: row.dim() == 1))), sum(map(torch.sum, double(source())))


class Iterating:
    """Iteration by a generator method, and an iterator class."""

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        for item in self.items:
            yield item * 2


class Countdown:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n <= 0:
            raise StopIteration
        self.n -= 1
        return self.n


@program(X)
def iterators_of_classes(x):
    c = Countdown(4)
    first = next(c)
    pairs = list(zip(Iterating([1, 2]), Countdown(5), strict=False))
    return (
        x + first,
        list(c),
        list(Iterating("ab")),
        sum(Iterating([1, 2])),
        pairs,
        [*Countdown(2)],
        max(Countdown(3)),
        1 in Countdown(3),
    )


@program.breaking(X)
def alive_at_a_break(x):
    g = count_up(5)
    x = x + next(g)
    print("break")
    x = x * next(g)
    rest = list(g)
    return x, rest


@program.breaking(X)
def breaks_inside_a_generator(x):
    def noisy():
        for i in range(3):
            print("yielding", i)
            yield x + i

    total = x
    for value in noisy():
        total = total + value
        print("body")
    return total


@program(X, breaks_every=(None,))  # across forced breaks, frames that wait would keep the generator a little longer
def dropped_in_a_try_block(x):
    log = []

    def cleaning():
        try:
            yield 1
            yield 2
        finally:
            log.append("cleaned")

    for value in cleaning():
        log.append(value)
        break
    g = cleaning()
    log.append(next(g))
    g = None
    log.append("dropped")
    return x + 1, log


@program.breaking(X)
def returned_generators(x):
    def gen():
        for i in range(3):
            yield x + i

    return list(gen()), type(gen()).__name__


@program.breaking(X)
def running_twice(x):
    def recursive():
        yield next(g)

    g = recursive()
    try:
        next(g)
    except ValueError as error:
        return x, str(error)


@TABLE.rows
def test_generators(program, args, expect):
    TABLE.run(program, args, expect)


def test_a_returned_generator_goes_on_outside():
    def program(x):
        y = x + 1

        def gen():
            for i in range(3):
                yield y * i

        return gen()

    import kiln

    assert [t.tolist() for t in kiln.compile(program)(X)] == [t.tolist() for t in program(X)]


def test_generator_from_outside():
    def program(x, values):
        for value in values:
            x = x + value
        return x

    check(program, make_args=lambda: (X, count_up(3)), breaks_every=(None, "line"))


def test_compiled_generator_functions_run_in_eager():
    import kiln

    assert list(kiln.compile(count_up)(3)) == [0, 1, 2]


def test_one_graph():
    def program(x):
        def gen():
            for i in range(3):
                yield x * i

        return sum(gen())

    check(program, X, fullgraph=True, graphs=1)
