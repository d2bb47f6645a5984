"""Modules, numbers and shapes that change between calls; only the results count here. See ``scenarios.py``."""

import pytest
import torch

from kiln.testing import check
from tests.support.scenarios import Scenarios, play

X = torch.arange(6.0).reshape(2, 3)

guards = Scenarios()


@guards()
def dyn_module_attr_list(compiler):
    class M(torch.nn.Module):
        def __init__(s):
            super().__init__()
            s.hist = []

        def forward(s, x):
            s.hist.append(x.sum())
            return x + len(s.hist)

    m = M()
    c = compiler(m)
    for _ in range(4):
        yield c(X)
    yield m.hist


@guards()
def param_data_swap(compiler):
    m = torch.nn.Linear(3, 3)
    c = compiler(m)
    torch.manual_seed(0)
    with torch.no_grad():
        m.weight.fill_(1)
        m.bias.zero_()
    yield c(X)
    m.weight.data = torch.full((3, 3), 2.0)
    yield c(X)
    m.weight.data = m.weight.data.double()
    m.bias.data = m.bias.data.double()
    yield c(X.double())


@guards()
def requires_grad_flip(compiler):
    m = torch.nn.Linear(3, 3)
    with torch.no_grad():
        m.weight.fill_(1)
        m.bias.zero_()
    c = compiler(m)
    yield c(X).requires_grad
    m.requires_grad_(False)
    yield c(X).requires_grad
    m.requires_grad_(True)
    yield c(X).requires_grad


@guards()
def tied(compiler):
    class M(torch.nn.Module):
        def __init__(s):
            super().__init__()
            s.a = torch.nn.Parameter(torch.ones(3))
            s.b = s.a

        def forward(s, x):
            return x * s.a + s.b

    m = M()
    c = compiler(m)
    yield c(X)
    m.b = torch.nn.Parameter(torch.zeros(3))
    yield c(X)
    m.b = m.a
    yield c(X)


@guards()
def batchnorm(compiler):
    m = torch.nn.BatchNorm1d(3)
    c = compiler(m)
    for _ in range(4):
        yield c(X)
    m.eval()
    yield c(X)
    m.train()
    yield c(X)
    m.momentum = 0.5
    yield c(X)
    yield m.running_mean
    yield m.num_batches_tracked


@guards()
def hook_handle_kw(compiler):
    m = torch.nn.Linear(3, 3)
    with torch.no_grad():
        m.weight.fill_(1)
        m.bias.zero_()
    c = compiler(m)
    yield c(X)
    k = [1]
    h = m.register_forward_pre_hook(lambda mod, a: (a[0] + k[0],))
    yield c(X)
    k[0] = 5
    yield c(X)
    h.remove()
    yield c(X)
    h = m.register_full_backward_hook(lambda mod, gi, go: None)
    yield c(X)
    h.remove()
    yield c(X)


@guards()
def class_hooks_order(compiler):
    m = torch.nn.Identity()
    c = compiler(lambda x: m(x))
    a = m.register_forward_hook(lambda mod, i, o: o * 2)
    b = m.register_forward_hook(lambda mod, i, o: o + 1)
    yield c(X)
    a.remove()
    a = m.register_forward_hook(lambda mod, i, o: o * 2)
    yield c(X)
    m._forward_hooks.move_to_end(b.id, last=True)
    yield c(X)


@guards()
def seq_modified(compiler):
    m = torch.nn.Sequential(torch.nn.Identity(), torch.nn.ReLU())
    c = compiler(m)
    yield c(X - 3)
    m.insert(1, torch.nn.Tanh())
    yield c(X - 3)
    del m[0]
    yield c(X - 3)
    m.add_module("z", torch.nn.Sigmoid())
    yield c(X - 3)


@guards()
def train_flag_child_only(compiler):
    m = torch.nn.Sequential(torch.nn.Dropout(0.0), torch.nn.Dropout(1.0))
    c = compiler(m)
    m.eval()
    yield c(X)
    m[1].train()
    yield c(X)
    m[1].eval()
    yield c(X)


@guards()
def grad_accum(compiler):
    p = torch.nn.Parameter(torch.ones(3))
    c = compiler(lambda x: (x * p).sum())
    for _ in range(3):
        c(X).backward()
        yield p.grad.clone()
    p.grad = None
    c(X).backward()
    yield p.grad


@guards()
def strict_types(compiler):
    f = compiler(lambda x, k: x + k)
    yield f(X, True)
    yield f(X, 1)
    yield f(X, 1.0)
    yield f(X, 2)
    yield f(X, 2.0)
    yield f(X, False)
    yield f(X, 3)
    yield f(X, 3.5)


@guards()
def int_promo(compiler):
    x = torch.arange(4)
    f = compiler(lambda x, k: x * k)
    yield f(x, 2)
    yield f(x, 3)
    yield f(x, 2.5)
    yield f(x, 3.5)
    yield f(x, 7.25)
    yield f(x, True)


@guards()
def big_int(compiler):
    x = torch.arange(4)
    f = compiler(lambda x, k: x + k)
    yield f(x, 2)
    yield f(x, 2**40)
    yield f(x, -(2**40))
    yield f(x, 7)


@guards()
def zero_dim(compiler):
    f = compiler(lambda x, y: x * y)
    yield f(X, torch.tensor(2.0))
    yield f(X, torch.tensor([2.0]))
    yield f(X, torch.tensor(2.0, dtype=torch.float64))
    yield f(X.to(torch.int32), torch.tensor(2.0))


@guards()
def expand_stride0(compiler):
    f = compiler(lambda x: (x + 1, x.stride(), x.is_contiguous()))
    for t in (
        torch.ones(1).expand(3),
        torch.ones(1).expand(4),
        torch.ones(5),
        torch.ones(1).expand(6),
        torch.ones(2, 1).expand(2, 3),
        torch.ones(2, 3),
    ):
        yield f(t)


@guards()
def empty_sizes(compiler):
    f = compiler(lambda x: (x.sum(), x.numel(), x.mean(0) if x.dim() > 1 else x))
    for sh in ((3, 2), (0, 2), (4, 2), (5, 0), (0, 0), (6, 2), (1, 2), (1, 1)):
        yield f(torch.ones(sh))


@guards()
def subclass_tensor(compiler):
    class T(torch.Tensor):
        pass

    f = compiler(lambda x: type(x + 1).__name__)
    yield f(X)
    yield f(X.as_subclass(T))
    yield f(X)


@guards()
def negative_idx(compiler):
    f = compiler(lambda x, i: x[i])
    for i in (0, 1, -1, -2, 1, 0):
        yield f(X, i)


@guards()
def bool_idx(compiler):
    f = compiler(lambda x, i: x[i].shape)
    for i in (0, True, False, 1, None, slice(None), ...):
        yield f(X, i)


@guards()
def string_fmt(compiler):
    f = compiler(lambda x, n: (x + n, f"{n}-{x.shape}-{n:03d}", str(n), "%d" % n))  # noqa: UP031
    for n in (2, 3, 4, 5):
        yield f(X, n)


@guards()
def dict_by_int(compiler):
    f = compiler(lambda x, n: x + {2: 1, 3: 2, 4: 3, 5: 9}[n])
    for n in (2, 3, 4, 5, 2):
        yield f(X, n)


@guards()
def nested_loop(compiler):
    def f(x, n):
        for i in range(n):
            for j in range(i):
                x = x + i * j
        return x

    f = compiler(f)
    for n in (2, 3, 4, 5, 2):
        yield f(X, n)


@guards()
def while_loop(compiler):
    def f(x, n):
        while n > 1:
            n = n // 2
            x = x * 2
        return x, n

    f = compiler(f)
    for n in (2, 3, 4, 5, 9, 17, 1, 0):
        yield f(X, n)


@guards()
def global_counter(compiler):
    ns = {"COUNT": 0}
    exec("def f(x):\n    global COUNT\n    COUNT += 1\n    return x*COUNT", ns)
    f = compiler(ns["f"])
    for _ in range(6):
        yield f(X)
    yield ns["COUNT"]


@guards()
def float_chain(compiler):
    class Optimizer:
        lr = 0.1

        def step(s, x):
            s.lr = s.lr * 0.9 + 0.001
            return x * s.lr / (1 - s.lr**2)

    o = Optimizer()
    f = compiler(lambda x: o.step(x))
    for _ in range(8):
        yield f(X)
        yield o.lr


@guards()
def bias_correction(compiler):
    class Optimizer:
        def __init__(s):
            s.t = 0

        def step(s, p, g):
            s.t += 1
            b1 = 1 - 0.9**s.t
            b2 = 1 - 0.999**s.t
            return p.addcdiv(g * (1 / b1), (g * g / b2).sqrt() + 1e-8, value=-0.1)

    o = Optimizer()
    f = compiler(lambda p: o.step(p, X + 1))
    for _ in range(8):
        yield f(X)


@guards()
def size_as_index(compiler):
    f = compiler(lambda x: (x[x.shape[0] - 1], [10, 20, 30, 40, 50, 60, 70][x.shape[0]]))
    for n in (2, 3, 4, 5):
        yield f(torch.arange(float(n)))


@guards()
def tuple_of_sizes(compiler):
    f = compiler(
        lambda x: (
            x.shape,
            tuple(x.shape),
            x.size(),
            list(x.shape),
            x.shape[1:],
            x.shape + (1,),
            (x.shape == torch.Size([4, 2])),
            x.shape.numel(),
        )
    )
    for n in (2, 3, 4, 5, 4):
        yield f(torch.ones(n, 2))


@guards()
def cond_on_two(compiler):
    f = compiler(lambda x, y: x @ y if x.shape[1] == y.shape[0] else x.sum() + y.sum())
    for a, b, c, d in ((2, 3, 3, 4), (3, 4, 4, 5), (4, 5, 6, 7), (5, 5, 5, 5), (7, 3, 3, 2), (2, 2, 3, 3)):
        yield f(torch.ones(a, b), torch.ones(c, d))


@pytest.mark.parametrize(("scenario", "expected", "options"), guards)
def test_guard(scenario, expected, options):
    play(scenario, expected, **options)


def test_numbers_that_vary_beside_complex_ones():
    def program(x, n):
        mixed = n + 1j, 2j * n, n**2j, (n,) == (3 + 0j,), n in [3 + 0j], [3 + 0j].count(n)
        return x + 1, n == (3 + 0j), (3 + 0j) == n, n != (3 + 0j), mixed

    for dynamic in (None, True):
        check(program, calls=[(torch.ones(2), n) for n in (1, 2, 3, 4, 3)], dynamic=dynamic)
