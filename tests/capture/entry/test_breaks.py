"""Graph breaks and continuations: where they may fall, what they carry over, and how often anything compiles."""

import contextlib
import functools
import gc
import sys

import pytest
import torch

import kiln
from kiln.testing import check
from tests.support.program_table import ProgramTable, X, Y

TABLE = program = ProgramTable(fullgraph=False, breaks_every=(None, "line"), calls=2)
EVERY = (None, "line", "instruction")


def shout(*values):
    """A callee whose print breaks the graph in the middle."""
    doubled = [value * 2 for value in values]
    print(len(doubled))
    return doubled[0] + 1


@kiln.disable
def native(value):
    return value + 1


# -- kinds of instructions ------------------------------------------------------------------------------------------


@program(X, breaks_every=EVERY, breaks=1, graphs=2)
def plain_break(x):
    y = x + 1
    kiln.graph_break()
    return y * 2


@program(X, breaks_every=EVERY, breaks=3)
def several_on_one_line(x):
    return native(x) + native(x * 2) * native(x - 1)


@program(X, {"a": 1}, breaks_every=EVERY)
def partially_built_call(x, table):
    return dict(first=x + 1, second=native(x), third=[native(x * 2), *[x, native(x)], {"k": native(x), **table}])


@program(X, breaks_every=EVERY)
def between_method_load_and_call(x):
    return "a-b".split(native(x).sum().item() and "-"), x.add(native(x)).mul(native(x)), [].__class__


@program(X, breaks_every=EVERY)
def operators_and_items(x):
    table = {"a": [1, 2, 3]}
    table["a"][int(native(1))] += int(native(2))
    table["b"] = native(x)[native(0) : native(2)]
    del table["a"][native(0)]
    return table, native(1) < native(2) < native(5), not native(0), -native(1), native(1) in [2], f"{native(3)!r:>5}"


@program(X, breaks_every=EVERY)
def unpacking(x):
    a, (b, *c), d = native(1), (native(2), x, native(x)), [native(3)]
    (first, *rest), last = [native(4), 5, 6], native(x)
    return a, b, c, d, first, rest, last


@program(X, 3, breaks_every=EVERY)
def condition_on_tensor(x, n):
    if (x > 100).any():
        return x
    while x.sum() < 50:
        x = x * 2
        n += 1
    return (x + 1 if x.mean() > 3 else x - 1), n, bool(x[0] > 0) and x or n


@pytest.mark.parametrize("values", ([1.0, 2.0], [-1.0, -2.0]))
def test_condition_on_tensor_is_right_both_ways(values):
    def branch(x):
        y = x * 2
        if y.sum() > 0:
            y = y + 10
        else:
            y = y - 10
        return y * 3

    calls = [(torch.tensor(values),), (-torch.tensor(values),), (torch.tensor(values),)]
    check(branch, calls=calls, graphs=3, breaks=1, recompiles=0)


@program(X, breaks_every=EVERY)
def assertion_and_item(x):
    assert x.sum() > 0, "positive"
    n = int(x[0].item() * 4)
    return x[:n], x.tolist()


@program(X, breaks_every=EVERY)
def match_statement(x):
    match native(1), {"k": native(2), "rest": 5}, native(x):
        case (1, {"k": 2}, _):
            return 1
        case (2, {"k": 3, **rest}, y):
            return y * rest["rest"], native(y)
    return None


@program(X, breaks_every=EVERY)
def walrus_and_chains(x):
    if (n := native(1)) and (m := native(n)) > 1:
        return x * n + m
    return x


@program(X, breaks_every=EVERY)
def imports(x):
    import math
    from collections import OrderedDict as Ordered

    kiln.graph_break()
    import os.path as path

    return x * math.floor(native(2.5)), Ordered(a=native(1)), path.join("a", "b")


# -- locals, cells, names -------------------------------------------------------------------------------------------


@program(X, True, breaks_every=EVERY)
def unbound_and_deleted(x, flag):
    if not flag:
        never = 1
    gone = x + 1
    del gone
    kiln.graph_break()
    try:
        return never
    except UnboundLocalError as error:
        first = str(error)
    try:
        return gone
    except NameError as error:
        return first, str(error), x * 2


@program(X, breaks_every=EVERY)
def cells(x):
    count = 0
    unset: int

    def bump(by=1):
        nonlocal count
        count += by
        return count

    def later():
        return unset

    bump()
    kiln.graph_break()
    bump(2)
    count += 10
    y = x * bump()
    kiln.graph_break()
    unset = 7
    kiln.graph_break()
    return y, count, later(), bump(), bump.__closure__[0].cell_contents


@program(X, breaks_every=EVERY)
def closures_in_loops(x):
    made = []
    for i in range(3):

        def add(y, i=i):
            return y + i + total

        total = native(i)
        made.append(add)
        made.append(lambda y: y * i)
    return [f(x) for f in made]


class Counter:
    total = 0

    def __init__(self, start):
        self.value = start
        print("made")
        self.twice = self.value * 2

    @property
    def shown(self):
        print("shown", self.value)
        return self.value + 1

    def add(self, x):
        self.value = self.value + 1
        print("adding")
        self.value = self.value + 1
        return x + self.value

    def __add__(self, other):
        print("plus")
        return self.value + other

    def __getitem__(self, key):
        print("item")
        return key * 2

    def __enter__(self):
        print("enter")
        return self

    def __exit__(self, *details):
        print("exit", details[0])
        return False

    def __iter__(self):
        print("iter")
        yield self.value
        print("between")
        yield self.twice

    def __call__(self, x):
        print("called")
        return x * 2


@program(X)
def in_methods(x):
    counter = Counter(1)
    y = counter.add(x) * 2
    with counter as same:
        y = y + same.shown
    return y, counter + 3, counter[4], counter(y), list(counter), counter.__dict__


# -- callees --------------------------------------------------------------------------------------------------------


def inner(x):
    x = x + 1
    print("inner")
    return x * 2


def middle(x):
    return inner(x - 1) / 2


def test_callee_is_compiled_on_its_own():
    def caller(x):
        y = x.sin()
        z = inner(y)
        return z.cos()

    report = check(caller, X, breaks_every=EVERY, graphs=4)
    called = [[node.name for node in graph.graph.nodes if "call" in node.op] for graph in report.graphs]
    assert called == [["sin"], ["add"], ["mul"], ["cos"]]


def test_nested_callees_and_callees_of_objects():
    def caller(x):
        return middle(middle(x)) + functools.partial(inner, x)() + (lambda y: inner(y))(x)

    report = check(caller, X, calls=3)
    names = [node.name for graph in report.graphs for node in graph.graph.nodes if "call" in node.op]
    assert names.count("div") <= 2, "the continuation of a callee compiles once for both of its calls"


class Printing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.count = 0

    def forward(self, x):
        y = self.linear(x)
        self.count += 1
        print(self.count)
        return y.relu()


def test_modules_that_break():
    model = torch.nn.Sequential(Printing(), torch.nn.Tanh(), Printing())

    def caller(x):
        return model(x + 1) * 2

    check(caller, X, calls=3, breaks_every=(None, "line"))
    check(model, X, calls=2)


def test_module_continuations_do_not_recompile():
    model = Printing()
    model.count = 5
    counter = kiln.testing.CompileCounter()
    compiled = kiln.compile(model, backend=counter)
    with contextlib.redirect_stdout(None):
        compiled(X)
        compiled(X)  # the count turns symbolic
        seen = counter.frame_count
        for _ in range(3):
            compiled(X)
    assert counter.frame_count == seen


def test_recursion_across_breaks():
    def down(x, n):
        if n == 0:
            return x
        print(n)
        return down(x + n, n - 1) * 2

    check(down, X, 4, calls=2, breaks_every=(None, "line"))


def test_deep_recursion_across_breaks():
    def down(x, n):
        if n == 0:
            return x
        print(end="")
        return down(x + 1, n - 1) + 1

    assert kiln.compile(down)(X, 500)[0] == X[0] + 1000


@program(X, breaks_every=EVERY)
def comprehensions(x):
    squares = [native(i) * x for i in range(3) if native(i) % 2]
    table = {native(k): v for k, v in {"a" * 1: 1}.items() if v} if False else {k: native(v) for k, v in [("a", 1)]}
    return squares, table, {native(i) for i in (1, 2)}, sum(native(i) for i in range(3)), [[native(j) for j in "a" * 0]]


@program(X, breaks_every=EVERY)
def native_code_that_calls_back(x):
    pairs = dict(map(lambda k: (k, native(k)), "ab"))
    items = [3, 1, 2]
    items.extend(map(native, [4, 5]))
    items.sort(key=native)
    return (
        list(map(native, [1, 2, 3])),
        sorted("cab", key=native),
        [*map(native, (x, x))],
        sum(map(native, items)),
        pairs,
    )


def numbers(x):
    yield x
    print("in the generator")
    yield x + 1
    kiln.graph_break()
    yield from [x + 2, x + 3]


@program(X)
def generators(x):
    total = x
    for value in numbers(x):
        total = total + value
    first, *rest = numbers(x)
    return total, first, rest, list(zip(numbers(x), range(3), strict=False)), max(len(str(n)) for n in [native(1)])


@program(X)
def generator_alive_at_a_break(x):
    running = numbers(x)
    first = next(running)
    print("between")
    return first + next(running), list(running)


@program(X)
def iterators_alive_at_a_break(x):
    pairs = zip([1, 2, 3], "abc", strict=True)
    counted = enumerate([x, x + 1], start=5)
    kept = map(lambda v: v + 1, [1, 2, 3])
    chosen = filter(None, [0, 1, 2])
    next(pairs), next(counted), next(kept)
    print("break")
    return list(pairs), list(counted), list(kept), list(chosen)


# -- loops ----------------------------------------------------------------------------------------------------------


def test_loop_body_compiles_once():
    def train(x, count):
        for i in range(count):
            y = x * 2
            print(end="")
            x = y / 2 + 0
        return x + 1

    report = check(train, X, 60, calls=2)
    assert len(report.graphs) <= 6
    assert report.recompiles <= 2


def test_ten_thousand_iterations_do_not_grow_the_stack():
    def loop(x, count):
        depth = 0
        for i in range(count):
            depth = max(depth, stack_depth())
        n = 0
        while n < count:
            n += 1
            depth = max(depth, stack_depth())
        return x + n, depth

    compiled = kiln.compile(loop)
    few, many = compiled(X, 50)[1], compiled(X, 10_000)[1]
    assert many <= few


def stack_depth():
    frame, depth = sys._getframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    return depth


class Loader:
    """Like a DataLoader: its iterator is an object of its own that Kiln cannot look into."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        for batch in self.batches:
            print("loading")
            yield batch, len(batch)


def test_loader_body_compiles():
    def train(loader, weight):
        losses = []
        for batch, size in loader:
            loss = (batch * weight).sum() / size
            losses.append(loss)
        return torch.stack(losses)

    batches = [torch.full((4,), float(i)) for i in range(6)]
    report = check(train, Loader(batches), X[:1], breaks_every=(None, "line"))
    bodies = [g for g in report.graphs if any(node.name.startswith("sum") for node in g.graph.nodes)]
    assert len(bodies) == 1


def test_real_data_loader():
    def train(loader, weight):
        total = weight * 0
        for (batch,) in loader:
            total = total + (batch * weight).sum()
        return total

    def setup():
        data = torch.utils.data.TensorDataset(torch.arange(12.0).reshape(6, 2))
        return train, (torch.utils.data.DataLoader(data, batch_size=2), torch.tensor(2.0))

    report = check(setup=setup)
    assert report.graphs


@program(X, [3, 1, 2], breaks_every=EVERY)
def for_with_everything(x, items):
    log = []
    for i in items:
        if i == native(0):
            continue
        for j in zip(range(i), "abc", strict=False):
            log.append((i, j))
            print(j)
            if j[0] == 1:
                break
            x = x + native(j[0])
        else:
            log.append("no break")
            continue
        log.append("broke")
    else:
        log.append("end")
    return x, log


@program(X, breaks_every=EVERY)
def while_with_everything(x):
    n = 0
    while n < 6:
        n += 1
        if native(n) == 3:
            continue
        x = x * 2
        if n == 5:
            print("last")
            break
        try:
            if n == 2:
                continue
        finally:
            print("finally", n)
    else:
        x = x - 1
    while True:
        n -= 1
        if native(n) < 3:
            return x + n


@program(X, breaks_every=EVERY)
def return_from_a_loop(x):
    for i in range(5):
        with torch.no_grad():
            y = x * i
            if native(i) > 2:
                return y, torch.is_grad_enabled()
    return x


@program(X)
def loop_over_a_generator(x):
    for i, value in enumerate(numbers(x)):
        x = x + value
        print(i)
        if i == 2:
            break
    return x


@program(X)
def loop_changes_what_it_iterates(x):
    items = [1, 2, 3]
    for i in items:
        print(i)
        if len(items) < 6:
            items.append(i + native(1))
    return x, items


@program({"a": 1, "b": 2, "c": 3})
def loop_over_a_dictionary(table):
    for key, value in table.items():
        print(key)
        table[key] = value + 1
    for key in list(table):
        print(key)
        del table[key]
    return table


# -- blocks open at a break -----------------------------------------------------------------------------------------

LOG = []


class Manager:
    def __init__(self, name, swallow=()):
        self.name, self.swallow = name, swallow

    def __enter__(self):
        LOG.append("enter " + self.name)
        return self.name

    def __exit__(self, kind, error, trace):
        LOG.append(f"exit {self.name} {kind.__name__ if kind else None} {trace is not None}")
        return kind is not None and issubclass(kind, self.swallow)


@contextlib.contextmanager
def managed(name, swallow=()):
    LOG.append("enter " + name)
    try:
        yield name
    except swallow as error:
        LOG.append(repr(error))
    finally:
        LOG.append("exit " + name)


@program(X.clone().requires_grad_(), breaks_every=EVERY)
def grad_modes(x):
    states = []
    with torch.no_grad():
        y = x * 2
        kiln.graph_break()
        states.append(torch.is_grad_enabled())
        with torch.enable_grad():
            z = x * 3
            print("inner")
            states.append(torch.is_grad_enabled())
        w = x * 4
    states.append(torch.is_grad_enabled())
    return y, z, w, states


@program(X, breaks_every=EVERY)
def managers(x):
    with Manager("a") as a, Manager("b", (ValueError,)) as b:
        kiln.graph_break()
        x = x + 1
        with managed("c") as c:
            print(a, b, c)
            x = x * 2
    return x, LOG


@program(X, breaks_every=EVERY)
def suppressing_managers(x):
    with Manager("a", (ValueError,)):
        x = x + 1
        print("before")
        raise ValueError("swallowed")
    with contextlib.suppress(KeyError):
        {}["missing" if native(1) else ""]
    with managed("c", ZeroDivisionError):
        x = x + 1 // native(-1)
    return x * 2, LOG


@program(X, breaks_every=EVERY)
def try_except_finally(x):
    log = []
    try:
        try:
            x = x + 1
            kiln.graph_break()
            raise KeyError("inner")
        except ValueError:
            log.append("wrong")
        finally:
            print("finally")
            log.append("finally")
            x = x * 2
    except KeyError as error:
        log.append(repr(error))
        kiln.graph_break()
        log.append((repr(sys.exception()), repr(error)))
        x = x - 1
    else:
        log.append("wrong")
    return x, log, sys.exception()


@program(X, breaks_every=EVERY)
def break_in_handlers(x):
    log = []
    for kind in (ValueError, KeyError, None):
        try:
            if kind is not None:
                raise kind("first")
        except ValueError as error:
            print("handling", error)
            try:
                {}[native(1)]
            except KeyError as inner_error:
                log.append((repr(inner_error), repr(inner_error.__context__)))
                print(repr(sys.exception()))
            log.append(repr(sys.exception()))
        except (KeyError, TypeError):
            log.append(native(7))
        else:
            print("none")
            log.append(sys.exc_info())
        x = x + 1
    return x, log


@program(X, breaks_every=EVERY)
def reraised_and_return_in_finally(x):
    def raising():
        try:
            raise ValueError("a")
        except ValueError:
            print("again")
            raise
        finally:
            print("done")

    def returning():
        try:
            return native(1)
        finally:
            print("leaving")
            x.add(1)

    try:
        raising()
    except ValueError as error:
        return repr(error), returning(), x + 1


# -- routes and recompiles ------------------------------------------------------------------------------------------


@kiln.disable
def untouched(x):
    return x + 1 if not kiln.is_compiling() else None


def test_disabled_callee_is_not_compiled():
    def caller(x):
        return untouched(x * 2) * 3

    report = check(caller, X, breaks=1, graphs=2)
    assert [node.name for g in report.graphs for node in g.graph.nodes if "call" in node.op] == ["mul", "mul"]


def test_disabled_callee_runs_as_if_there_were_no_compiler():
    def hidden(x):
        print("x")
        return helper(x)

    def helper(x):
        return x + 1

    counter = kiln.testing.CompileCounter()
    compiled = kiln.compile(lambda x: kiln.disable(hidden)(x) if False else disabled(x) * 2, backend=counter)
    disabled = kiln.disable(hidden)
    with contextlib.redirect_stdout(None):
        assert torch.equal(compiled(X), (X + 1) * 2)
    assert counter.op_count == 1


def test_calls_of_a_generator_are_compiled():
    def body(x):
        return x.sin() + 1

    def produce(x):
        for i in range(3):
            print("producing")
            yield body(x * i)

    def caller(x):
        total = x
        for value in produce(x):
            total = total + value
        return total

    report = check(caller, X, calls=2)
    names = {node.name for graph in report.graphs for node in graph.graph.nodes}
    assert "sin" in names


def test_calls_of_a_frame_left_alone_are_compiled():
    def body(x):
        return x.sin() + 1

    def odd(x):
        try:
            raise ExceptionGroup("g", [ValueError(1)])
        except* ValueError:
            y = body(x)
        return y

    report = check(odd, X, calls=2, breaks_every=(None, "line"))
    assert any(node.name == "sin" for graph in report.graphs for node in graph.graph.nodes)


def test_calls_do_not_recompile():
    def step(x, table):
        y = x * table["scale"]
        print("step")
        table["count"] = table.get("count", 0) + len(table)
        z = native(y) + 1
        if z.sum() > 0:
            z = z - 1
        return z

    calls = [(X + i, {"scale": 2.0, "count": 5}) for i in range(5)]
    report = check(step, calls=calls, recompiles=0)
    assert len(report.graphs) <= 4


def test_entries_of_continuations_are_freed():
    def make():
        def broken(x):
            y = x + 1
            kiln.graph_break()
            return y * 2

        return broken

    def graphs():
        gc.collect()
        return sum(issubclass(type(thing), torch.fx.GraphModule) for thing in gc.get_objects())

    kiln.compile(make())(X)
    before = graphs()
    for _ in range(5):
        kiln.compile(make())(X)
    assert graphs() <= before + 2


def test_one_code_with_different_globals():
    source = "def f(x):\n    y = x + level\n    shout(level)\n    return y * level\n"
    spaces = [{"level": level, "shout": print} for level in (1, 2)]
    exec(source, spaces[0])
    functions = [type(shout)(spaces[0]["f"].__code__, space, "f") for space in spaces]
    for function, space in zip(functions, spaces, strict=True):
        level = space["level"]
        assert torch.equal(kiln.compile(function)(X), (X + level) * level)


@TABLE.rows
def test_program(program, args, expect):
    LOG.clear()
    TABLE.run(program, args, expect)


def test_two_tensors_break_the_same_way():
    def pair(x, y):
        a = native(x)
        b = native(y)
        return a + b, a is b

    check(pair, calls=[(X, Y), (X, X), (Y, X)])


def ids_of_text(x):
    text = "some text, " + "not an identifier"
    before = id(text) == id(text), id(text) == id(text * 1)
    print(end="")
    return x + 1, before, id(text) == id(text)


def ids_over_breaks(x):
    number, text, large = 2.5 * len(x.shape), "a b", 10**30
    ids = id(number), id(text), id(large)
    same = number
    print(end="")
    return x + 1, ids == (id(number), id(text), id(large)), same is number


@pytest.mark.parametrize("program", [ids_of_text, ids_over_breaks])
def test_constants_stay_the_same_objects(program):
    check(program, torch.ones(2))


def test_a_torch_whose_changed_name_torch_fx_cannot_read(monkeypatch):
    def f(x):
        return torch.relu(x) * 2

    compiled, x = kiln.compile(f), torch.arange(-2.0, 2.0)
    compiled(x)
    monkeypatch.setattr(torch, "__name__", b"torch")
    assert torch.equal(compiled(x.reshape(2, 2)), f(x.reshape(2, 2)))
    with pytest.raises(kiln.exc.Unsupported, match="torch.fx cannot write its text"):
        kiln.compile(f, fullgraph=True)(x)
    monkeypatch.undo()
    check(f, x, graphs=1)
