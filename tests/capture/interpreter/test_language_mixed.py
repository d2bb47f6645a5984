# ruff: noqa: B012, E401, F841, I001  (the programs are what they are on purpose)
"""Programs that mix constructs of the language."""

import collections
import dataclasses
import enum
import sys

import torch
from tests.support.program_table import ProgramTable

TABLE = program = ProgramTable()
NUMBERS = torch.tensor([1.0, 2.0, 3.0])


class E1(Exception):
    def __new__(cls, *a, **k):
        self = super().__new__(cls, *a)
        self.made = True
        return self

    def __init__(self, a, *, b=2):
        self.a, self.b = a, b


@dataclasses.dataclass
class E2(Exception):
    code: int
    text: str = "t"


class E3(ValueError, KeyError):
    pass


class E4(Exception):
    @property
    def double(self):
        return self.args[0] * 2

    def __eq__(self, o):
        return isinstance(o, E4) and self.args == o.args

    __hash__ = None


@program.breaking(NUMBERS)
def exc_classes(x):
    log = []
    try:
        raise E1(1, b=3)
    except E1 as e:
        log.append((e.a, e.b, e.made, e.args))
    try:
        raise E2(5)
    except E2 as e:
        log.append((e.code, e.text, e.args))
    try:
        raise E3("k")
    except KeyError as e:
        log.append((str(e), isinstance(e, ValueError)))
    try:
        raise E4(4)
    except E4 as e:
        log.append((e.double, e == E4(4), e != E4(5)))
    return x + 1, log


@program.breaking(NUMBERS)
def enter_raises(x):
    log = []
    try:
        with Ctx(log, "a"), Ctx(log, "b", fail="enter"):
            log.append("never")
    except ValueError as e:
        log.append(str(e))
    try:
        with Ctx(log, "c", fail="exit"):
            raise KeyError("body")
    except ValueError as e:
        log.append((str(e), repr(e.__context__)))
    return x * 2, log


class Ctx:
    def __init__(self, log, name, fail=None):
        self.log, self.name, self.fail = log, name, fail

    def __enter__(self):
        self.log.append(("in", self.name))
        if self.fail == "enter":
            raise ValueError("enter")
        return self

    def __exit__(self, *a):
        self.log.append(("out", self.name, a[0] and a[0].__name__))
        if self.fail == "exit":
            raise ValueError("exit")


@program.breaking(NUMBERS)
def base_exceptions(x):
    log = []
    try:
        raise KeyboardInterrupt("k")
    except BaseException as e:
        log.append(type(e).__name__)
    try:
        sys.exit(2)
    except SystemExit as e:
        log.append(e.code)
    try:
        try:
            raise GeneratorExit
        finally:
            log.append("f")
    except GeneratorExit:
        log.append("g")
    return x + len(log), log


@program.breaking(NUMBERS)
def stored_exception(x):
    errors = []
    for i in range(3):
        try:
            if i:
                raise ValueError(i)
        except ValueError as e:
            errors.append(e)
    try:
        raise errors[-1]
    except ValueError as e:
        same = e is errors[1]
    try:
        raise errors[0] from errors[1]
    except ValueError as e:
        cause = e.__cause__ is errors[1]
    try:
        raise KeyError from ValueError
    except KeyError as e:
        c2 = type(e.__cause__).__name__
    return x + 1, same, cause, c2, [e.args for e in errors]


@program.breaking(NUMBERS)
def finally_continue(x):
    log = []
    i = 0
    while i < 5:
        i += 1
        try:
            if i == 2:
                raise ValueError
            log.append(i)
        except ValueError:
            log.append("e")
            continue
        finally:
            log.append("f")
            if i == 4:
                break
    else:
        log.append("else")
    for j in range(3):
        try:
            continue
        finally:
            x = x + 1
    return x, log


@program.breaking(NUMBERS)
def aug_targets(x):
    o = Ctx([], "n")
    o.count = 1
    o.count += 2
    d = {"a": [1, 2]}
    d["a"][0] += 5
    d["a"] += [3]
    l = [1, 2, 3]
    l[1:] += [9]
    i = 0
    l[i] *= 10
    t = x.clone()
    t[0] += 1
    t[1:] *= 3
    a = b = c = []
    a.append(1)
    m = torch.eye(3)
    m @= m
    return t, o.count, d, l, b is c, m


@program.breaking(NUMBERS)
def del_things(x):
    o = Ctx([], "n")
    o.z = 1
    del o.z
    l = [1, 2, 3, 4]
    del l[1:3], l[0]
    d = {"a": 1, "b": 2}
    del d["a"]
    has = hasattr(o, "z")
    try:
        del o.z
    except AttributeError as e:
        m = str(e)
    try:
        del d["q"]
    except KeyError as e:
        k = e.args
    try:
        del l[10]
    except IndexError as e:
        q = str(e)
    return x, l, d, has, m, k, q


@program.breaking(NUMBERS)
def star_index(x):
    idx = (slice(0, 2),)
    y = x[*idx]
    return y, max(*[1, 2], 3), "{}{}".format(*"ab"), [*range(2), *{"k": 1}]


@program.breaking(NUMBERS)
def nested_defs(x):
    def outer(n, acc=[]):
        acc.append(n)

        def inner(m=n, *, k=len(acc)):
            return m * k + n

        return inner

    f = outer(1)
    g = outer(2)
    return x + f(), g(), f(k=5), outer.__defaults__


@program.breaking(NUMBERS)
def big_ints(x):
    n = 10**30
    return (
        x + float(n % 7),
        n,
        n // 3,
        -n,
        hex(n),
        n.bit_length(),
        2**100 - 1,
        (1 << 70) >> 68,
        int("123456789012345678901234567890"),
    )


@program.breaking(NUMBERS)
def string_iter(x):
    out = {}
    for c in "hello world":
        out[c] = out.get(c, 0) + 1
    words = "the quick brown fox the".split()
    counts = collections.Counter(words)
    return x, out, counts.most_common(1), sorted(set(words)), " ".join(w.title() for w in words)


@program.breaking(NUMBERS)
def bool_ops_tensor_none(x):
    y = None
    z = y or x
    w = y is None and x.dim() == 1
    v = x.sum() if w else 0
    return z, w, v, not y, bool(x.shape), bool([]), x.shape and "s"


@program.breaking(NUMBERS)
def comp_scopes(x):
    i = 5
    a = [i for i in range(i)]
    b = {i: j for i, j in enumerate("ab")}
    c = [(i, k) for k in range(2)]
    d = [[r * s for s in range(r)] for r in range(3)]
    e = list(map(lambda q: q + i, a))
    f = [y for x_ in [1, 2] if (y := x_ * 2) > 2]
    return x, i, a, b, c, d, e, f, y


@program.breaking(NUMBERS)
def closures_nonlocal_loop(x):
    fs = []
    for i in range(3):
        n = i

        def f():
            nonlocal n
            n += 1
            return n

        fs.append(f)
    r = [f() for f in fs]
    return x + n, r, [f() for f in fs]


@program.breaking(NUMBERS)
def while_true_return(x):
    i = 0
    while True:
        try:
            i += 1
            if i == 3:
                return x * i, i
        finally:
            x = x + 1


@program.breaking(NUMBERS)
def ternary_chain(x):
    n = x.shape[0]
    return x if n > 5 else -x if n > 2 else x * 0, (n > 1) + (n > 2), [n, 0][n > 2], n and 5 or 6


@program.breaking(NUMBERS)
def dict_methods(x):
    d = {}
    d.setdefault("a", []).append(1)
    d.setdefault("a", []).append(x)
    d.update(b=2, **{"c": 3})
    e = d | {"z": 1}
    p = d.pop("b")
    q = d.pop("nope", None)
    k = list(d)
    it = d.items()
    d["new"] = 1
    return d, e, p, q, k, len(it), list(reversed(d))


@program.breaking(NUMBERS)
def chained_methods(x):
    return x.add(1).mul(2).sum().item if False else x.add(1).mul(2), "a,b".split(",")[0].upper().center(5, "*")


@program.breaking(NUMBERS)
def eval_order_kwargs(x):
    log = []

    def t(v):
        log.append(v)
        return v

    def f(*a, **k):
        return a, k

    r = f(t(1), *[t(2)], t(3), a=t(4), **{t("b"): t(5)})
    d = {t("k1"): t(6), t("k2"): t(7)}
    l = [t(8), t(9)][t(0)]
    return x, r, d, l, log


@program.breaking(NUMBERS)
def imports_in_function(x):
    import math, torch.nn.functional as F
    from os import path, sep
    from collections import namedtuple as nt

    Pt = nt("Pt", "a b")
    return (
        F.relu(x),
        math.floor(2.5),
        sep,
        path.basename("a/b"),
    )


@program.breaking(NUMBERS)
def enum_flow(x):
    r = []
    for c in Col:
        if c is Col.A:
            r.append(c.name)
        elif c == Col.B:
            r.append(c.value)
        else:
            r.append(Col(c.value) is c)
    return x, r, Col["A"], len(Col), Col.A in Col, {Col.A: 1}[Col.A]


class Col(enum.Enum):
    A = 1
    B = "b"
    C = 3


@program.breaking(NUMBERS)
def gen_in_class(x):
    t = Tree([Tree([], 1), Tree([Tree([], 5)], 2)], 3)
    return x + sum(t), list(t)


class Tree:
    def __init__(self, kids, v):
        self.kids, self.v = kids, v

    def __iter__(self):
        yield self.v
        for k in self.kids:
            yield from k


@TABLE.rows
def test_programs(program, args, expect):
    TABLE.run(program, args, expect)
