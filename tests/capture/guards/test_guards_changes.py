"""More that may change between calls; only the results count here. See ``scenarios.py``."""

import dataclasses
import functools

import pytest
import torch

from tests.support.scenarios import Scenarios, play

X = torch.arange(6.0).reshape(2, 3)

guards = Scenarios()


@guards()
def global_list_mutated(compiler):
    ns = {"torch": torch, "ITEMS": [1, 2]}
    exec("def f(x):\n    return x + sum(ITEMS)", ns)
    f = compiler(ns["f"])
    yield f(X)
    ns["ITEMS"].append(5)
    yield f(X)
    ns["ITEMS"][0] = 7
    yield f(X)
    ns["ITEMS"] = [1, 2]
    yield f(X)


@guards()
def global_dict_value(compiler):
    ns = {"CFG": {"a": 1, "b": {"c": 2}}}
    exec("def f(x):\n    return x * CFG['b']['c'] + CFG['a']", ns)
    f = compiler(ns["f"])
    yield f(X)
    ns["CFG"]["b"]["c"] = 5
    yield f(X)
    ns["CFG"]["b"] = {"c": 9}
    yield f(X)


@guards()
def dict_len(compiler):
    f = compiler(lambda x, d: x + len(d))
    yield f(X, {})
    yield f(X, {1: 2})
    yield f(X, {3: 4})


@guards()
def dict_bool(compiler):
    f = compiler(lambda x, d: x + 1 if d else x - 1)
    yield f(X, {})
    yield f(X, {1: 2})
    yield f(X, {3: 4})
    yield f(X, {})


@guards()
def list_bool(compiler):
    f = compiler(lambda x, d: x + 1 if d else x - 1)
    yield f(X, [])
    yield f(X, [1])
    yield f(X, [1, 2])
    yield f(X, [])


@guards()
def object_keys(compiler):
    class K:
        pass

    a, b = K(), K()
    f = compiler(lambda x, d, k: x + d[k])
    yield f(X, {a: 1, b: 2}, a)
    yield f(X, {a: 1, b: 2}, b)
    yield f(X, {b: 1, a: 2}, a)


@guards()
def dc(compiler):
    @dataclasses.dataclass
    class D:
        a: int
        b: float = 2.0

    f = compiler(lambda x, d: x * d.a + d.b)
    yield f(X, D(3))
    yield f(X, D(4))
    yield f(X, D(5))
    yield f(X, D(5, 3.5))
    yield f(X, D(6, 1.25))


@guards()
def frozen_dc_eq(compiler):
    @dataclasses.dataclass(frozen=True)
    class D:
        a: int

    f = compiler(lambda x, d, e: x + 1 if d == e else x - 1)
    yield f(X, D(3), D(3))
    yield f(X, D(4), D(5))
    yield f(X, D(4), D(4))


@guards()
def func_attr(compiler):
    def g(x):
        return x + g.k

    g.k = 1
    f = compiler(lambda x: g(x))
    yield f(X)
    g.k = 2
    yield f(X)
    g.k = 3
    yield f(X)


@guards()
def tensor_attr(compiler):
    f = compiler(lambda x: x + x.note)
    a = X.clone()
    a.note = 3
    yield f(a)
    b = X.clone()
    b.note = 4
    yield f(b)


@guards()
def tensor_hasattr(compiler):
    f = compiler(lambda x: x + 1 if hasattr(x, "note") else x - 1)
    yield f(X.clone())
    b = X.clone()
    b.note = 4
    yield f(b)
    yield f(X.clone())


@guards()
def tensor_is_leaf(compiler):
    f = compiler(lambda x: x + 1 if x.is_leaf else x - 1)
    p = X.clone().requires_grad_()
    yield f(p)
    yield f(p * 1)
    yield f(p)


@guards()
def grad_fn_none(compiler):
    f = compiler(lambda x: x + 1 if x.grad_fn is None else x - 1)
    p = X.clone().requires_grad_()
    yield f(p)
    yield f(p * 1)
    yield f(p)


@guards()
def tensor_output_nr_version(compiler):
    f = compiler(lambda x: x + x._version)
    p = X.clone()
    yield f(p)
    p.add_(1)
    yield f(p)


@guards()
def view_flag(compiler):
    f = compiler(lambda x: x + 1 if x._is_view() else x - 1)
    yield f(X.clone())
    yield f(X.clone()[:])
    yield f(X.clone())


@guards()
def data_shared(compiler):
    def f(a, b):
        a.add_(1)
        return b * 2

    f = compiler(f)
    base = X.clone()
    yield f(base.clone(), base.clone())
    yield f(base[0], base[0])
    b = X.clone()
    yield f(b[0:1], b)


@guards()
def same_storage(compiler):
    def f(a, b):
        return a + 1 if a.data_ptr() == b.data_ptr() else b

    f = compiler(f)
    b = X.clone()
    yield f(b, b[:])
    yield f(b, b.clone())


@guards()
def method_of_arg(compiler):
    class A:
        def __init__(s, k):
            s.k = k

        def m(s, x):
            return x + s.k

    f = compiler(lambda x, m: m(x))
    yield f(X, A(1).m)
    yield f(X, A(2).m)
    yield f(X, A(3).m)
    yield f(X, A(4).m)


@guards()
def builtin_method_arg(compiler):
    def f(x, ap):
        ap(x + 1)
        return x

    f = compiler(f)
    l = []
    yield f(X, l.append)
    yield l
    s = [3]
    yield f(X, s.append)
    yield s
    yield len(s)


@guards()
def sub_attr(compiler):
    class A:
        pass

    a = A()
    a.b = A()
    a.b.c = [1, {"k": 2}]
    f = compiler(lambda x: x + a.b.c[1]["k"])
    yield f(X)
    a.b.c[1]["k"] = 5
    yield f(X)
    a.b.c[1] = {"k": 6}
    yield f(X)
    a.b = A()
    a.b.c = [0, {"k": 9}]
    yield f(X)


@guards()
def isinstance_abc(compiler):
    import collections.abc as cabc

    class A:
        pass

    f = compiler(lambda x, a: x + 1 if isinstance(a, cabc.Sized) else x - 1)
    yield f(X, A())
    A.__len__ = lambda s: 3
    yield f(X, A())


@guards()
def isinstance_register(compiler):
    import abc

    class P(abc.ABC):  # noqa: B024
        pass

    class A:
        pass

    f = compiler(lambda x, a: x + 1 if isinstance(a, P) else x - 1)
    yield f(X, A())
    P.register(A)
    yield f(X, A())


@guards()
def cls_dict_default(compiler):
    class A:
        table = {"a": 1}

    f = compiler(lambda x: x + A.table["a"])
    yield f(X)
    A.table["a"] = 4
    yield f(X)
    A.table = {"a": 6}
    yield f(X)


@guards()
def meth_default(compiler):
    class A:
        def m(self, x, k=2):
            return x * k

    a = A()
    f = compiler(lambda x: a.m(x))
    yield f(X)
    A.m.__defaults__ = (7,)
    yield f(X)


@guards()
def meth_code(compiler):
    class A:
        def m(self, x):
            return x * 2

    a = A()
    f = compiler(lambda x: a.m(x))
    yield f(X)
    A.m.__code__ = (lambda self, x: x - 9).__code__
    yield f(X)


@guards()
def closure_fn_rebinding(compiler):
    def g(x):
        return x + 1

    def f(x):
        return g(x)

    c = compiler(f)
    yield c(X)

    def g(x):  # noqa: F811
        return x + 2

    yield c(X)


@guards()
def decorator_state(compiler):
    def deco(fn):
        count = [0]

        @functools.wraps(fn)
        def w(x):
            count[0] += 1
            return fn(x) * count[0]

        return w

    @deco
    def g(x):
        return x + 1

    f = compiler(lambda x: g(x))
    for _ in range(6):
        yield f(X)


@guards()
def module_buffers_added(compiler):
    m = torch.nn.Module()
    m.register_buffer("b", torch.ones(3))
    f = compiler(lambda x: x + sum(m.buffers()))
    yield f(X)
    m.register_buffer("c", torch.ones(3))
    yield f(X)


@guards()
def module_children_iter(compiler):
    m = torch.nn.ModuleList([torch.nn.ReLU()])

    def f(x):
        for l in m:
            x = l(x) - 1
        return x

    c = compiler(f)
    yield c(X)
    m.append(torch.nn.Tanh())
    yield c(X)


@guards()
def global_hooks(compiler):
    m = torch.nn.ReLU()
    c = compiler(lambda x: m(x))
    yield c(X)
    h = torch.nn.modules.module.register_module_forward_hook(lambda mod, a, o: o + 5)
    try:
        r = c(X)
    finally:
        h.remove()
    yield r
    yield c(X)


@guards()
def getattr_dyn(compiler):
    class A:
        def __getattr__(self, n):
            return len(n)

    f = compiler(lambda x, a, n: x + getattr(a, n))
    yield f(X, A(), "abc")
    yield f(X, A(), "abcd")
    a = A()
    a.abc = 10
    yield f(X, a, "abc")


@guards()
def str_subclass(compiler):
    class S(str):
        pass

    f = compiler(lambda x, s: x + len(s) if type(s) is str else x - len(s))
    yield f(X, "ab")
    yield f(X, S("ab"))
    yield f(X, S("abc"))
    yield f(X, "ab")


@guards()
def np_scalar(compiler):
    import numpy as np

    f = compiler(lambda x, s: x * s)
    yield f(X, np.float32(2))
    yield f(X, np.float32(3))
    yield f(X, np.int64(3))


@guards()
def none_attr_class(compiler):
    class A:
        b = None

    f = compiler(lambda x, a: x + 1 if a.b is None else x + a.b)
    a = A()
    yield f(X, a)
    a.b = 4
    yield f(X, a)
    del a.b
    yield f(X, a)
    A.b = 6
    yield f(X, a)


@guards()
def tuple_nested(compiler):
    f = compiler(lambda x, t: x + t[0][1] + t[1])
    yield f(X, ((1, 2), 3))
    yield f(X, ((1, 5), 3))
    yield f(X, ((1, 7), 4))
    yield f(X, ((1, 8.5), 4))


@guards()
def slice_arg(compiler):
    f = compiler(lambda x, s: x[:, s])
    yield f(X, slice(0, 2))
    yield f(X, slice(1, 2))
    yield f(X, slice(None))
    yield f(X, slice(0, 3, 2))


@guards()
def range_arg(compiler):
    f = compiler(lambda x, r: x + sum(r))
    yield f(X, range(3))
    yield f(X, range(4))
    yield f(X, range(1, 3))


@guards()
def device_arg(compiler):
    f = compiler(lambda x, d: x.to(d))
    yield f(X, "cpu")
    yield f(X, torch.device("cpu"))
    yield f(X, "meta").shape


@guards()
def default_device(compiler):
    f = compiler(lambda x: torch.ones(2).device.type)
    yield f(X)
    torch.set_default_device("meta")
    try:
        r = f(X)
    finally:
        torch.set_default_device(None)
    yield r
    yield f(X)


@guards()
def property_state(compiler):
    class A:
        def __init__(s):
            s._n = 1

        @property
        def n(s):
            s._n += 1
            return s._n

    a = A()
    f = compiler(lambda x: x + a.n)
    for _ in range(6):
        yield f(X)


@guards()
def num_threads(compiler):
    f = compiler(lambda x: x + torch.get_num_threads())
    n = torch.get_num_threads()
    yield f(X)
    torch.set_num_threads(n + 1)
    yield f(X)
    torch.set_num_threads(n)
    yield f(X)


@guards()
def env(compiler):
    import os

    f = compiler(lambda x: x + len(os.environ.get("KILN_T", "")))
    os.environ.pop("KILN_T", None)
    yield f(X)
    os.environ["KILN_T"] = "abc"
    yield f(X)
    del os.environ["KILN_T"]


@guards()
def time_(compiler):
    f = compiler(lambda x: id(x) != 0)
    yield f(X)


@guards()
def default_mutable(compiler):
    def f(x, acc=[]):
        acc.append(1)
        return x + len(acc)

    f = compiler(f)
    for _ in range(4):
        yield f(X)


@guards()
def id_of(compiler):
    f = compiler(lambda a, b: X + 1 if id(a) == id(b) else X - 1)
    l = [1]
    yield f(l, l)
    yield f([1], [1])
    yield f(l, l)


@guards()
def sys_mod(compiler):
    import sys

    f = compiler(lambda x: x + 1 if "nonexistent_mod" in sys.modules else x - 1)
    yield f(X)
    sys.modules["nonexistent_mod"] = sys
    yield f(X)
    del sys.modules["nonexistent_mod"]


@guards()
def weird_eq_key(compiler):
    f = compiler(lambda x, d: x + d[1])
    yield f(X, {1: 2})
    yield f(X, {True: 2})
    yield f(X, {1.0: 3})
    yield f(X, {2: 1, 1: 5})


@guards()
def nested_same(compiler):
    def f(a):
        a[0].append(1)
        return X + len(a[1])

    f = compiler(f)
    l = []
    yield f([l, l])
    yield f([[], []])
    l = []
    yield f([l, l])


@guards()
def dict_same_val(compiler):
    def f(d):
        d["a"].add_(1)
        return d["b"] * 2

    f = compiler(f)
    t = X.clone()
    yield f({"a": t, "b": t})
    yield f({"a": X.clone(), "b": X.clone()})


@guards()
def obj_arg_alias_global(compiler):
    ns = {"T": X.clone()}
    exec("def f(x):\n    x.add_(1)\n    return T*2", ns)
    f = compiler(ns["f"])
    yield f(X.clone())
    yield f(ns["T"])


@pytest.mark.parametrize(("scenario", "expected", "options"), guards)
def test_guard(scenario, expected, options):
    play(scenario, expected, **options)
