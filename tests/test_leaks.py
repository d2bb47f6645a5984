"""No leaks: functions compiled and dropped leave nothing behind, and entries keep no argument alive."""

import contextlib
import gc
import linecache
import types
import weakref

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

import kiln
from kiln import _native
from kiln.capture.entry import dispatchers
from kiln.capture.entry.entry import Entry
from kiln.capture.guards.guards import GuardSet
from kiln.capture.state.trace import Trace

X = torch.arange(6.0).reshape(2, 3)

WATCHED = (torch.fx.GraphModule, torch.fx.Graph, torch.fx.Node, FakeTensor, Entry, GuardSet, Trace)
WATCHED += (_native.Dispatcher, _native.TensorCheck, _native.ItemsCheck, dispatchers.FrameCache)


def count():
    """How many objects of the compiler are alive."""
    for _ in range(3):
        gc.collect()
    found, classes = {id(kind): 0 for kind in WATCHED}, 0  # classes of other tests may refuse to be hashed
    for value in gc.get_objects():
        kind = type(value)
        if id(kind) in found:
            found[id(kind)] += 1
        elif issubclass(kind, torch.fx.GraphModule):
            found[id(torch.fx.GraphModule)] += 1
        elif issubclass(kind, type):
            classes += 1
    return {"classes": classes, **{kind.__name__: found[id(kind)] for kind in WATCHED}}


def simple(k):
    def f(x):
        return x * k + 1

    return f, (X,)


def breaking(k):
    def f(x):
        y = x * k
        kiln.graph_break()
        z = y + 1
        print(end="")
        return z * y.sum().item()

    return f, (X,)


def closing_over_itself(k):
    box = []

    def f(x):
        kiln.graph_break()
        return inner(x) + len(box)

    def inner(x):
        if box is None:
            return inner(x)
        kiln.graph_break()
        return x * k

    box.append(f)
    return f, (X,)


def with_hooks(k):
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    module.register_forward_hook(lambda module, args, output: output + k)
    return module, (X,)


class Model:
    def __init__(self, k):
        self.k = k
        self.callback = lambda x: x + self.k

    def run(self, x):
        kiln.graph_break()
        return self.callback(x) * self.k


def method(k):
    return Model(k).run, (X,)


def changing_sizes(k):
    def f(x):
        return x.sum() * x.shape[0] + k

    def call(compiled):
        for size in (2, 3, 4, 5):
            compiled(torch.ones(size))

    return f, call


def raising(k):
    def f(x):
        torch.sin(x + k)
        raise ValueError("as it should")

    def call(compiled):
        with pytest.raises(ValueError, match="as it should"):
            compiled(X)

    return f, call


def refused(k):
    def f(x):
        return x.sum().item() + k

    def call(compiled):
        strict = kiln.compile(f, fullgraph=True)
        with pytest.raises(kiln.exc.Unsupported):
            strict(X)
        compiled(X)

    return f, call


def with_classes(k):
    class Vector:
        def __init__(self, x):
            self.x = x

        def __add__(self, other):
            return Vector(self.x + other.x * k)

        def __eq__(self, other):
            return isinstance(other, Vector)

        __hash__ = None

    def f(x):
        total = sum([Vector(x), Vector(x + 1)], Vector(x))
        return total.x if total in [Vector(x)] else x

    return f, (X,)


def symbolic(k):
    def f(x, n, s):
        return x * (n // 2 + k) * s if n > 3 else x

    def call(compiled):
        for n in (5, 6, 7):
            compiled(X, n, n / 3)

    return f, call


PROGRAMS = [
    with_classes,
    symbolic,
    simple,
    breaking,
    closing_over_itself,
    with_hooks,
    method,
    changing_sizes,
    raising,
    refused,
]


def grown(before):
    """What there is more of; less is what earlier tests had left to the garbage collector."""
    after = count()
    return {name: (before[name], after[name]) for name in after if after[name] > before[name]}


def compile_and_drop(make, number):
    function, call = make(number)
    if isinstance(function, types.MethodType):
        marker = weakref.ref(function.__self__)
    else:
        marker = weakref.ref(function)
    compiled = kiln.compile(function, backend="eager")
    if callable(call):
        call(compiled)
    else:
        compiled(*call)
        compiled(*call)
    return marker


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_nothing_is_left(make):
    for number in range(4):  # what is imported and cached for good comes with the first
        compile_and_drop(make, number)
    before = count()
    markers = [compile_and_drop(make, number) for number in range(4, 14)]
    assert grown(before) == {}
    assert sum(marker() is not None for marker in markers) == 0, "functions or their owners are kept alive"


def test_a_thousand_functions():
    for number in range(3):
        compile_and_drop(simple, number)
    before = count()
    tables = len(dispatchers._CACHES), len(dispatchers._DISPATCHERS)
    for number in range(1000):
        compile_and_drop((simple, breaking)[number % 10 == 0], number)
    assert grown(before) == {}
    assert len(dispatchers._CACHES) <= tables[0] and len(dispatchers._DISPATCHERS) <= tables[1]


def memory():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_memory_is_flat():
    def work(times):
        for number in range(times):
            compile_and_drop(simple, number)
        gc.collect()

    work(150)
    before = memory()
    work(300)
    assert memory() - before < 12e6


# -- arguments ------------------------------------------------------------------------------------------------------


class Owner:
    def __init__(self):
        self.tensor = torch.ones(4)
        self.items = [torch.ones(3), {"k": torch.ones(2)}]


ARGUMENTS = {
    "tensor": lambda: torch.ones(1000),
    "parameter": lambda: torch.nn.Parameter(torch.ones(10)),
    "result": lambda: torch.ones(3, requires_grad=True) * 2,
    "object": Owner,
    "module": lambda: torch.nn.Linear(3, 3),
    "function": lambda: lambda x: x + 1,
    "set": lambda: {1, 2},
}


def use(value):
    if isinstance(value, torch.Tensor):
        return value * 2
    if isinstance(value, Owner):
        value.items.append(value.tensor + value.items[0].sum() + value.items[1]["k"].sum())
        return value.items[-1]
    if isinstance(value, set):
        return X + len(value)
    return value(X)


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("make", ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_of_the_first_call_are_let_go(make, broken):
    def f(value):
        if broken:
            kiln.graph_break()
        return use(value)

    compiled = kiln.compile(f, backend="eager")
    value = make()
    marker = weakref.ref(value)
    tensor = weakref.ref(value.tensor) if isinstance(value, Owner) else marker
    compiled(value)
    del value
    gc.collect()
    assert marker() is None and tensor() is None, gc.get_referrers(marker() or tensor())
    compiled(make())


def test_results_are_let_go():
    compiled = kiln.compile(lambda x: x * 2, backend="eager")
    marker = weakref.ref(compiled(X))
    assert marker() is None, "without a garbage collection"


def test_errors_keep_no_arguments_once_gone():
    def f(x):
        return x @ torch.ones(7, 7)

    compiled = kiln.compile(f, backend="eager")
    x = torch.ones(100)
    marker = weakref.ref(x)
    with pytest.raises(RuntimeError):
        compiled(x)
    del x
    gc.collect()
    assert marker() is None


# -- without a garbage collection -----------------------------------------------------------------------------------


def plain(x):
    return x.sin()


def fails_and_goes_on(x):
    try:
        return x + torch.ones(7)
    except RuntimeError:
        return x * 2


def fails_later(x):
    y = x.sin()
    for size in (7, 8):
        try:
            y = y + torch.ones(size)
        except RuntimeError:
            y = y * 2
    return y


def fails(x):
    return x.sin() + torch.ones(7)


def fails_in_grad(x):
    return torch.autograd.grad(x.sin() * torch.ones(4), x)


def needs_values(x):
    return x[x > 0].sum()


def raises(x):
    raise ValueError(x.sum() * 2)


def raises_natively(x):
    return x * int("x")


def lists_a_generator(x):
    def items():
        yield x + 1

    return list(items())


def sorts_and_raises(x):
    return sorted([x.dim(), 2], key=lambda size: size // 0) and x


def misses_an_attribute(x):
    return x * len(getattr(type(x.shape), "_fields", ()))


def fails_under_vmap(x):
    return torch.vmap(lambda row: row + torch.ones(7))(x)


class Counter:
    """An iterator that raises StopIteration itself."""

    def __init__(self, most):
        self.count, self.most = 0, most

    def __iter__(self):
        return self

    def __next__(self):
        if self.count == self.most:
            raise StopIteration
        self.count += 1
        return self.count


def stops_native_code(x):
    return x * sum(list(Counter(3)))


class Manager:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        return kind is KeyError


def leaves_a_block(x):
    with Manager():
        raise KeyError("key")
    return x + 1


@contextlib.contextmanager
def no_collections():
    """Only what nothing refers to dies in the block."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize(
    "program",
    [
        plain,
        fails_and_goes_on,
        fails_later,
        fails,
        fails_in_grad,
        needs_values,
        raises,
        raises_natively,
        lists_a_generator,
        sorts_and_raises,
        misses_an_attribute,
        fails_under_vmap,
        stops_native_code,
        leaves_a_block,
    ],
)
def test_capture_lets_go_of_arguments_at_once(program, fullgraph):
    if fullgraph and program in (fails_and_goes_on, fails_later):
        pytest.skip("eager does not raise: the error has the frames of the compiler in its traceback")
    compiled = kiln.compile(program, backend="eager", fullgraph=fullgraph)
    with no_collections():
        x = torch.ones(4, requires_grad=True) * 2
        marker = weakref.ref(x)
        with contextlib.suppress(RuntimeError, ValueError, ZeroDivisionError, kiln.exc.Unsupported):
            compiled(x)
        del x
        assert marker() is None


@pytest.mark.parametrize(
    "change",
    [lambda x: torch.ones(5), lambda x: x.detach().double(), lambda x: torch.ones(2, 4).t()],
    ids=["size", "dtype", "dimensions"],
)
@pytest.mark.parametrize("keep_grad", [False, True])
@pytest.mark.parametrize("program", [fails_and_goes_on, fails_later, needs_values])
def test_leaves_whose_data_is_replaced_for_a_while(program, keep_grad, change):
    """An accumulating node knows the kind of its leaf. The one of a changed leaf must die with the graph it is in."""

    def calls(function):
        seen = []
        x = torch.ones(4, requires_grad=True)
        before = x.data
        for data in (before, change(x), before):
            x.data = data
            try:
                result = function(x)
                seen.append(result.dtype)
                result.sum().backward()
            except RuntimeError as error:
                seen.append(type(error))
            result = None
            seen.append(None if x.grad is None else x.grad.tolist())
            if not keep_grad:
                x.grad = None
        return seen

    with no_collections():
        expected = calls(program)
        assert calls(kiln.compile(program, backend="eager")) == expected


def test_dropped_entries_go_with_reset():
    compiled = kiln.compile(lambda x: x * 2, backend="eager")
    compiled(X)
    module = weakref.ref(dispatchers.state_of(compiled).cache.entries[0].graph_module)
    kiln.reset()
    gc.collect()
    assert module() is None


def test_text_of_what_was_differentiated_dies_with_it():
    def texts():
        gc.collect()
        return sum(name.startswith("<kiln run") for name in linecache.cache)

    before = texts()
    compiled = kiln.compile(lambda x: x.sin().sum(), backend="aot_eager")
    compiled(torch.ones(3, requires_grad=True)).backward()
    assert texts() == before + 1
    del compiled
    kiln.reset()
    assert texts() == before
