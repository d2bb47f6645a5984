# ruff: noqa: B905, UP031  (the programs are what they are on purpose)
"""Programs that mix constructs of the language with data-dependent branches and other graph breaks.

PYTEST_DONT_REWRITE: the assert statements here belong to the programs.
"""

import contextlib
import functools
import sys

import torch

from tests.support.program_table import ProgramTable

TABLE = program = ProgramTable()
NUMBERS = torch.tensor([1.0, 2.0, 3.0])

G = 0
STATE = {"n": 0}


@contextlib.contextmanager
def cm(log, name):
    log.append("in " + name)
    try:
        yield name
    except ValueError as e:
        log.append("caught " + str(e))
        raise
    finally:
        log.append("out " + name)


@contextlib.contextmanager
def printing(name):
    print("enter", name)
    yield
    print("leave", name)


@program.breaking(NUMBERS)
def branch_in_with(x):
    log = []
    with cm(log, "a"):
        if x.sum() > 3:
            y = x + 1
        else:
            y = x - 1
        with cm(log, "b"):
            while y.sum() < 100:
                y = y * 2
    return y, log


@program.breaking(NUMBERS)
def raise_after_branch_in_with(x):
    log = []
    try:
        with cm(log, "a"):
            if x.sum() > 3:
                raise ValueError("big")
            log.append("never")
    except ValueError as e:
        log.append(e.args)
    return x, log


@program.breaking(NUMBERS)
def printing_cm(x):
    with printing("p"):
        x = x + 1
        with printing("q"):
            x = x * 2
    return x


@program.breaking(NUMBERS)
def try_branch(x):
    out = []
    for i in range(4):
        try:
            if (x * i).sum() > 8:
                raise KeyError(i)
            out.append(i)
        except KeyError as e:
            out.append(e.args)
            if x.min() > 0:
                continue
            break
        finally:
            out.append("f")
    else:
        out.append("else")
    return x, out


@program.breaking(NUMBERS)
def callee_branches(x):
    def pick(t):
        if t.sum() > 3:
            return t + 1
        return t - 1

    a = pick(x)
    b = pick(-x)
    return a, b, [pick(x * i) for i in range(3)]


@program.breaking(NUMBERS)
def callee_raises_after_branch(x):
    def risky(t):
        if t.sum() > 3:
            raise ValueError("too big")
        return t

    r = []
    for s in (0.1, 1, 10):
        try:
            r.append(risky(x * s))
        except ValueError as e:
            r.append(str(e))
    return r


@program.breaking(NUMBERS)
def closure_cell_branch(x):
    n = 0

    def bump():
        nonlocal n
        n += 1
        if x.sum() > 0:
            print("bump", n)
        return n

    bump()
    bump()
    y = x * n
    bump()
    return y, n, bump


@program.breaking(NUMBERS)
def gen_branch(x):
    def gen():
        for i in range(4):
            if x.sum() * i > 5:
                yield i
            else:
                yield -i

    return list(gen()), sum(gen())


@program.breaking(NUMBERS)
def global_branch(x):
    global G
    G += 1
    if x.sum() > 1:
        G += 10
    STATE["n"] += G
    print(G)
    G *= 2
    return x * G, dict(STATE)


@program.breaking(NUMBERS)
def item_use(x):
    n = int(x[0].item())
    s = x.sum().item()
    l = x.tolist()
    for v in l:
        n += int(v)
    return x + n, f"{s:.2f}", [i for i in range(n)], l


@program.breaking(NUMBERS)
def break_in_comp(x):
    return (
        [print(i) or x * i for i in range(3)],
        {i: (print("d", i), x + i)[1] for i in range(2)},
        [v for v in x if v > 1.5],
    )


@program.breaking(NUMBERS)
def nested_break_funcs(x):
    def a(t):
        print("a")
        return b(t) + 1

    def b(t):
        print("b")
        return c(t) * 2

    def c(t):
        print("c")
        return t.relu()

    return a(x)


@program.breaking(NUMBERS)
def method_break(x):
    o = Obj(x)
    o.step()
    o.step()
    return o.total, o.log


class Obj:
    def __init__(s, x):
        s.x = x
        s.total = x
        s.log = []

    def step(s):
        s.total = s.total + s.x
        print("step", len(s.log))
        s.log.append(s.total.sum())
        if s.total.sum() > 10:
            s.log.append("big")
        return s


@program.breaking(NUMBERS)
def while_item(x):
    i = 0
    while x.max() < 50:
        x = x * 1.5
        i += 1
        if i == 4:
            x = x + 10
            continue
        if i > 20:
            break
    else:
        i = -i
    return x, i


@program.breaking(NUMBERS)
def unpack_break(x):
    a, b, c = x.tolist()
    (d, e), f = (print("u") or (a, b)), c
    *g, h = [print("z"), a, b]
    return x + a + d, e, f, g, h


@program.breaking(NUMBERS)
def and_or_break(x):
    a = x.sum() > 3 and print("and") or "or"
    b = x.sum() < 3 or "lt"
    c = not x.sum() > 3
    d = 0 < x.sum() < 10
    return a, b, c, d, x if x.any() else None


@program.breaking(NUMBERS)
def exc_from_break(x):
    try:
        print("t")
        [][1]
    except IndexError as e:
        print("h", e)
        try:
            {}["z"]
        except KeyError as k:
            print("kk")
            r = (k.__context__ is e, str(k))
    return x, r


@program.breaking(NUMBERS)
def raise_in_finally_break(x):
    log = []
    try:
        try:
            print("1")
            raise ValueError("v")
        finally:
            print("2")
            log.append(sys.exc_info()[0].__name__)
    except ValueError as e:
        print("3")
        log.append(str(e))
    return x, log, sys.exc_info()


@program.breaking(NUMBERS)
def return_from_with_break(x):
    log = []

    def f():
        with cm(log, "w"):
            print("in")
            for i in range(3):
                with cm(log, str(i)):
                    if i == 1:
                        return x + i

    return f(), log


@program.breaking(NUMBERS)
def lambda_default_break(x):
    fs = [(lambda t, i=i: (print(i), t + i)[1]) for i in range(3)]
    y = x
    for f in fs:
        y = f(y)
    return y, functools.reduce(lambda a, f: f(a), fs, x)


@program.breaking(NUMBERS)
def slices_break(x):
    l = list(range(10))
    l[print("i") or 2 : 5] = [0]
    l[int(x[0].item())] += 100
    del l[print("d") or -1]
    y = x.clone()
    y[print("t") or 0] = 7
    return l, y


@program.breaking(NUMBERS)
def dict_break(x):
    d = {"a": 1, print("k") or "b": x + 1}
    d[print("s") or "c"] = x
    d["a"] += print("aug") or 5
    return d


@program.breaking(NUMBERS)
def fstring_break(x):
    return f"{print('p')} {x.sum().item():.1f} {len(x)!r:>4} {x.shape}", "%s %d" % (x.sum().item(), 3)


@program.breaking(NUMBERS)
def match_break(x):
    r = []
    for v in (x.sum().item(), [1, print("m")], {"k": x}, 5):
        match v:
            case float(f) if f > 5:
                r.append(("f", f))
            case [a, None]:
                r.append(a)
            case {"k": t}:
                r.append(t + 1)
            case _:
                r.append("o")
    return r


@program.breaking(NUMBERS)
def star_call_break(x):
    def f(*a, k=0, **q):
        print(a[1:], k, sorted(q))
        return a[0] * k + len(q)

    args = (x, 1)
    kw = {"k": 2, "z": 3}
    return f(*args, **kw), f(x, *[1, 2], k=3, **{"q": 1}), f(*(x,), k=print("kk") or 4)


@program.breaking(NUMBERS)
def assert_break(x):
    assert x.sum() > 0, "positive"
    try:
        assert x.sum() < 0, f"sum {x.sum().item()}"
    except AssertionError as e:
        return x, str(e)


@program.breaking(NUMBERS)
def deco_break(x):
    def log(f):
        @functools.wraps(f)
        def w(*a, **k):
            print("call", f.__name__)
            r = f(*a, **k)
            print("done")
            return r

        return w

    @log
    def g(t, n=1):
        return t + n

    return g(x), g(x, n=2), g.__name__


@program.breaking(NUMBERS)
def iter_protocol_break(x):
    return [v for v in It(3)], sum(It(4)), list(zip(It(2), It(3))), max(It(3))


class It:
    def __init__(s, n):
        s.n = n

    def __iter__(s):
        print("iter")
        return s

    def __next__(s):
        print("next")
        if s.n <= 0:
            raise StopIteration
        s.n -= 1
        return s.n


@program.breaking(NUMBERS)
def user_ops_break(x):
    a = Num(x)
    b = Num(2)
    return (a + b).v, (b * a).v, a == b, a < b, bool(b), (-a).v, [Num(3), Num(1)][b > Num(1)].v


class Num:
    def __init__(s, v):
        s.v = v

    def __add__(s, o):
        print("add")
        return Num(s.v + o.v)

    def __mul__(s, o):
        return Num(s.v * o.v) if torch.is_tensor(o.v) else NotImplemented

    def __eq__(s, o):
        print("eq")
        return s is o

    def __lt__(s, o):
        return "lt"

    def __gt__(s, o):
        return print("gt") or True

    def __bool__(s):
        print("bool")
        return True

    def __neg__(s):
        return Num(-s.v)

    __hash__ = None


@program.breaking(NUMBERS)
def early_return_branch(x):
    if x.sum() > 100:
        return "big"
    for row in x:
        if row > 2.5:
            return row
    return "none"


@program.breaking(NUMBERS)
def nested_try_break_reraise(x):
    log = []
    try:
        try:
            try:
                print(1 / 0)
            except ZeroDivisionError:
                print("z")
                raise
            finally:
                log.append("f1")
        except ArithmeticError as e:
            print("ar")
            raise RuntimeError("r") from e
        finally:
            log.append("f2")
    except RuntimeError as e:
        log.append((str(e), type(e.__cause__).__name__))
    return x, log


@program.breaking(NUMBERS)
def uncaught_in_with_break(x):
    log = []
    with cm(log, "o"):
        print("b")
        raise ValueError("out")


@TABLE.rows
def test_programs(program, args, expect):
    TABLE.run(program, args, expect)
