# ruff: noqa: B012, B904, F821, UP031
"""Functions of every shape that control flow can take, for splitting.  Each takes (log) and leaves its trace there."""


class Suppress:
    def __init__(self, log, name, suppress=False):
        self.log, self.name, self.suppress = log, name, suppress

    def __enter__(self):
        self.log.append(f"enter {self.name}")
        return self

    def __exit__(self, kind, value, traceback):
        self.log.append(f"exit {self.name} {kind and kind.__name__} {value}")
        return self.suppress


class Thing:
    def __init__(self, value=0):
        self.value = value

    def add(self, other, *, times=1):
        self.value += other * times
        return self

    def fail(self):
        raise ValueError(f"thing {self.value}")


def for_loop(log):
    total = 0
    for i in range(4):
        total += i
        log.append(total)
    return total


def for_else_break_continue(log):
    for i in range(6):
        if i == 1:
            continue
        if i == 4:
            break
        log.append(i)
    else:
        log.append("else")
    for j in range(2):
        log.append(j)
    else:
        log.append("else2")
    return i, j


def nested_for(log):
    pairs = []
    for i in range(3):
        for j in range(i + 1):
            if j == 2:
                break
            pairs.append((i, j))
        else:
            log.append(("full", i))
        log.append(len(pairs))
    return pairs


def while_loop(log):
    i = 0
    while i < 5:
        i += 1
        if i % 2:
            continue
        log.append(i)
    else:
        log.append("done")
    return i


def while_true(log):
    n = 27
    steps = 0
    while True:
        if n == 1:
            return steps
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
        if steps > 12:
            log.append(n)
            break
    return -n


def while_in_for(log):
    seen = {}
    for word in ["aab", "", "c"]:
        k = 0
        while k < len(word) and word[k] != "c":
            seen[word[k]] = seen.get(word[k], 0) + 1
            k += 1
        log.append((word, k))
    return sorted(seen.items())


def return_in_loop(log):
    for i in range(5):
        for j in range(5):
            log.append((i, j))
            if i * j == 2:
                return i, j


def try_except(log):
    try:
        log.append(1)
        x = int("x")
        log.append(x)
    except ValueError as error:
        log.append(str(error))
    else:
        log.append("no")
    finally:
        log.append("finally")
    return "end"


def try_in_loop(log):
    out = []
    for item in ["1", "b", None, "4", "5"]:
        try:
            out.append(int(item))
        except ValueError as error:
            log.append(f"value {error}")
            continue
        except TypeError:
            log.append("type")
            out.append(None)
        finally:
            log.append(("finally", item))
        if item == "4":
            break
    return out


def try_finally_return(log):
    try:
        try:
            return log.append("returning") or 3
        finally:
            log.append("inner")
    finally:
        log.append("outer")


def finally_overrides(log):
    for i in range(3):
        try:
            if i == 1:
                raise KeyError(i)
            log.append(i)
        finally:
            if i == 1:
                log.append("swallow")
                continue
    return "ok"


def raise_in_handler(log):
    try:
        try:
            {}["missing"]
        except KeyError as error:
            log.append(repr(error))
            raise RuntimeError("in handler")
    except RuntimeError as error:
        log.append((repr(error), repr(error.__context__), error.__cause__))
    return 5


def raise_from(log):
    try:
        try:
            1 / 0
        except ZeroDivisionError as error:
            raise ValueError("from") from error
    except ValueError as error:
        log.append((repr(error.__cause__), error.__suppress_context__))
        raise


def bare_raise(log):
    try:
        try:
            [][1]
        except IndexError:
            log.append("seen")
            raise
        finally:
            log.append("f")
    except LookupError as error:
        log.append(type(error).__name__)
        try:
            raise
        except IndexError as again:
            log.append(again is error)
    return "x"


def nested_handlers(log):
    import sys

    try:
        raise ValueError("a")
    except ValueError:
        log.append(repr(sys.exc_info()[1]))
        try:
            raise TypeError("b")
        except TypeError:
            log.append(repr(sys.exc_info()[1]))
            for k in range(2):
                log.append((k, repr(sys.exc_info()[1])))
        log.append(repr(sys.exc_info()[1]))
    log.append(sys.exc_info()[1])


def uncaught(log):
    total = 0
    for i in range(3):
        log.append(i)
        total += 10 // (1 - i)
    return total


def loop_in_handler(log):
    try:
        raise OSError("io")
    except OSError as error:
        for i in range(3):
            log.append((i, str(error)))
            if i == 1:
                break
    try:
        error
    except UnboundLocalError as gone:
        log.append(type(gone).__name__)
    return i


def with_plain(log):
    with Suppress(log, "a") as a, Suppress(log, "b", suppress=True) as b:
        log.append(a.name + b.name)
        raise ValueError("inside")
    return "after"


def with_in_loop(log):
    for i in range(4):
        with Suppress(log, i, suppress=i == 1):
            if i == 1:
                raise KeyError(i)
            if i == 2:
                continue
            if i == 3:
                return "returned"
            log.append("body")
        log.append("next")


def with_raising(log):
    with Suppress(log, "outer"):
        with Suppress(log, "inner"):
            Thing(3).fail()
    return 0


def with_try(log):
    with Suppress(log, "w"):
        try:
            with Suppress(log, "v"):
                raise TypeError("t")
        except TypeError as error:
            log.append(str(error))
    return "fine"


def closure_nonlocal(log):
    count = 0

    def bump(by=1):
        nonlocal count
        count += by
        return count

    for i in range(3):
        bump(i)
        log.append(count)
    count *= 2
    return bump(), count


def make_free(start):
    history = [start]

    def free_variable(log):
        nonlocal start
        for i in range(3):
            start += i
            history.append(start)
            log.append(start)
        return list(history), [start + h for h in history if h > i]

    return free_variable


def free_variable(log):
    return make_free(7)(log)


def cell_argument(log, parameter=4):
    functions = []
    for i in range(3):
        functions.append(lambda x: x + parameter + i)
        parameter += 1
    return [f(1) for f in functions]


def comprehensions(log):
    x = "outer"
    squares = [x * x for x in range(5) if x % 2]
    table = {k: [v for v in range(k)] for k in range(3)}
    unique = {len(s) for s in ("a", "bb", "cc")}
    lazy = sum(y for y in squares)
    log.append((x, sorted(unique), lazy))
    return squares, table, [a + b for a in "xy" for b in "zw"]


def comprehension_cells(log):
    x = "outer"
    show = lambda: x
    for round in range(2):
        functions = [(lambda: (x, y, log.append(x))) for x in range(3) for y in "ab" if x != round]
        log.append((x, show()))
        x += "!"
    return [function() for function in functions], show()


def comprehension_hides_cell(log):
    first = []
    for base in (1, 2):
        first.append(any(base == other for other in (2, 3)))
    return [base + 1 for base in range(3)], [base for base in ()], first, (lambda: base)()


def comprehension_calls(log):
    def note(value):
        log.append(value)
        return value

    try:
        return max([note(i) for i in range(3)], default=[note(10 // i) for i in (1, 0)])
    except ZeroDivisionError as error:
        return str(error)


def unbound_local(log):
    for flag in (True, False):
        if flag:
            late = 1
        else:
            del late
        try:
            log.append(late)
        except UnboundLocalError as error:
            log.append(str(error))
    late = 2
    return late


def unbound_after_loop(log):
    for item in ():
        pass
    log.append("before")
    return item


def deletions(log):
    a, b = [1, 2, 3], {"k": 1}
    del a[0], b["k"]
    log.append((a, b))
    del a
    try:
        a
    except NameError as error:
        log.append(str(error))
    return b


def methods(log):
    thing = Thing(1)
    thing.add(2).add(3, times=2)
    log.append(thing.value)
    text = "a-b-c".replace("-", "+").split("+", maxsplit=1)
    return text, thing.add(1).value, [*map(str.upper, "ab")]


def star_calls(log):
    def target(*args, **kwargs):
        log.append((args, kwargs))
        return len(args) + len(kwargs)

    values, options = (1, 2), {"k": 3}
    return (
        target(*values), target(0, *values, 9, **options, z=1), target(**options), target(*[], *values),
        target(1, b=2), dict(a=1, **options),
    )  # fmt: skip


def walrus(log):
    data = iter([3, 2, 1, 0, 5])
    while (value := next(data)) > 0:
        log.append(value)
    return value, [y for x in (1, 2) if (y := x * 2) > 2], y


def conditionals(log):
    out = []
    for a in (0, 1, None, "s"):
        out.append((a or "default", a and "both", "yes" if a else "no", a is None, not a))
        out.append(0 <= len(str(a)) < 2 and a != 0)
        if a is not None and (a == 1 or a == "s"):
            log.append(a)
    return out


def matching(log):
    results = []
    for subject in (1, "x", [1, 2, 3], {"k": 5, "z": 1}, Thing(8), (), None, ["go", "north"]):
        match subject:
            case 0 | 1:
                results.append("small")
            case str(text):
                results.append(text)
            case []:
                results.append("empty")
            case ["go", ("north" | "south") as way]:
                results.append(way)
            case [first, *rest]:
                results.append((first, rest))
            case {"k": value, **others} if value > 4:
                results.append((value, others))
            case Thing(value=v):
                results.append(v)
            case _:
                results.append("other")
    log.append(len(results))
    return results


def generators(log):
    def produce(n):
        for i in range(n):
            log.append(("produce", i))
            got = yield i
            if got:
                log.append(got)
        return "end"

    def delegate():
        result = yield from produce(2)
        log.append(result)

    collected = [value for value in delegate()]
    for value in produce(2):
        collected.append(value)
    for left, right in zip(produce(2), "ab", strict=True):
        collected.append((left, right))
    return collected


def unpacking(log):
    first, *middle, last = range(5)
    (a, b), c = [1, 2], 3
    a, b, c = c, a, b
    log.append((first, middle, last))
    x = y = [0] * 3
    x[1] += 5
    x[0:1] = [7, 8]
    return a, b, c, y, x[1:], [*x, *middle], {**{"q": 1}, "r": 2}, (*x,), {*middle}


def strings(log):
    name, width = "kiln", 8
    log.append(f"{name!r:>{width}}|{name:^{width}}|{width:03d}{name}")
    return f"{name}" + "x" * 2, f"{width=}", "%s-%d" % (name, width)


def decorated(log):
    def twice(function):
        def inner(*args):
            return function(*args) * 2

        return inner

    @twice
    @twice
    def add(a, b=2, *, c: int = 3):
        return a + b + c

    class Local(Thing):
        kind = "local"

        def add(self, other, *, times=1):
            log.append("super")
            return super().add(other, times=times)

    return add(1), Local(2).add(3).value, Local.kind


class Base:
    def __init__(self, log):
        self.log = log

    def run(self, n):
        self.log.append(("base", n))
        return n + 1


class Derived(Base):
    def __init__(self, log):
        super().__init__(log)
        self.extra = 1

    def run(self, n):
        total = 0
        for i in range(2):
            total += super().run(n + i) + self.extra
        s = super()
        first = lambda: self.extra
        return total + s.run(n) + first(), __class__.__name__


def supers(log):
    return Derived(log).run(3)


def assertions(log):
    assert log is not None, "never"
    try:
        assert not [1], f"list {len('ab')}"
    except AssertionError as error:
        log.append(str(error))
    import os.path as path
    from collections import OrderedDict, deque

    return path.basename("/a/b"), OrderedDict(a=1)["a"], list(deque([1, 2], maxlen=1))


def exception_groups(log):
    try:
        raise ExceptionGroup("g", [ValueError("v"), TypeError("t"), KeyError("k")])
    except* ValueError as group:
        log.append([repr(e) for e in group.exceptions])
    except* (TypeError, KeyError) as group:
        log.append(sorted(repr(e) for e in group.exceptions))
    return "grouped"


def globals_and_attributes(log):
    global counter_for_corpus
    counter_for_corpus = 1
    thing = Thing()
    thing.value = counter_for_corpus + 1
    thing.value += 2
    thing.items = {}
    thing.items["a", 1] = thing.value
    del thing.value
    log.append(hasattr(thing, "value"))
    del counter_for_corpus
    return thing.items


def retry_loop(log):
    attempts = 0
    while True:
        try:
            attempts += 1
            if attempts < 3:
                raise ConnectionError(attempts)
            return attempts
        except ConnectionError as error:
            log.append(error.args)
        else:
            log.append("never")


def loop_with_everything(log):
    results = {}
    for i, word in enumerate(["a", "bb", "ccc", "stop", "never"]):
        with Suppress(log, word, suppress=True):
            try:
                if word == "stop":
                    break
                for ch in word:
                    if i == 1 and ch == "b":
                        raise ValueError(word)
                    results[word] = results.get(word, 0) + 1
            except ValueError as error:
                log.append(str(error))
                raise LookupError("again") from None
            finally:
                log.append(("done", word))
        log.append(i)
    else:
        return "no"
    return results, i


def signature(log, a=1, /, b=2, *args, c=3, **kwargs):
    kwargs["b"] = b
    log.append((a, b, c, args))
    return kwargs


def mutual(log):
    is_even = lambda n: True if n == 0 else is_odd(n - 1)
    is_odd = lambda n: False if n == 0 else is_even(n - 1)
    return is_even(6), is_odd(4)


def lambda_in_loop_argument(log):
    return sorted([3, 1, 2], key=lambda v: (log.append(v), -v)[1]), print(end=""), list(map(lambda x, k=2: x * k, [1]))


def no_return(log):
    if log:
        log.append("x")


FUNCTIONS = [
    value
    for value in list(globals().values())
    if getattr(value, "__code__", None) is not None and value.__code__.co_varnames[:1] == ("log",)
]
