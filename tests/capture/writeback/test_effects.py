"""Side effects: what the program does to things that outlive it, and when, as seen from outside and from within."""

import collections
import sys
import types

import pytest
import torch

import kiln
from kiln.testing import check, same
from tests.support.program_table import ProgramTable, X, Y

TABLE = program = ProgramTable(breaks_every=(None, "line", "instruction"), calls=2)

COUNT = 0
ITEMS = [1, 2]
SETTINGS = {"a": 1}
TEMPORARY = "there"
other = types.ModuleType("other_module")
other.level = 1
other.__dict__["names"] = ["x"]


class Box:
    kind = "box"
    made = 0

    def __init__(self, value, next=None):
        self.value = value
        self.next = next

    def __eq__(self, other):
        return isinstance(other, Box) and self.value == other.value

    __hash__ = object.__hash__


class Slotted:
    __slots__ = ("left", "right")

    def __init__(self, left, right):
        self.left, self.right = left, right


# -- globals --------------------------------------------------------------------------------------------------------


@program(X)
def write_globals(x):
    global COUNT, FRESH
    COUNT += 1
    FRESH = COUNT * 2
    ITEMS.append(COUNT)
    SETTINGS["b"] = x * 2
    before = COUNT, FRESH
    COUNT = COUNT + 10
    return x + COUNT, before


@program(X)
def delete_globals(x):
    global TEMPORARY, COUNT
    TEMPORARY = x + 1
    seen = TEMPORARY
    del TEMPORARY
    try:
        TEMPORARY
    except NameError as error:
        seen = (seen, str(error))
    TEMPORARY = "back"  # noqa: F841
    COUNT = 5
    return seen


def bump_global(by):
    global COUNT
    COUNT += by
    return COUNT


@program(X)
def globals_through_callees(x):
    first = bump_global(2)
    second = bump_global(first)
    return x * second + COUNT


def test_globals_of_another_module():
    def setup():
        module = types.ModuleType("kiln_test_effects_module")
        module.level = 1
        module.names = ["x"]
        sys.modules[module.__name__] = module

        def main(x):
            import kiln_test_effects_module as elsewhere

            elsewhere.level += 1
            elsewhere.names.append("y")
            elsewhere.fresh = x * elsewhere.level
            del elsewhere.names[0]
            return x + elsewhere.level, elsewhere.fresh

        return main, [(X,), (X,)], module.__dict__

    check(setup=setup, breaks_every=(None, "line"))


def test_functions_of_another_module_write_their_own_globals():
    def setup():
        space = {"__name__": "elsewhere", "total": 1, "log": []}
        exec("def add(n):\n    global total\n    total += n\n    log.append(total)\n    return total", space)
        add = space["add"]

        def main(x):
            y = x * add(2)
            return y + add(3)

        return main, [(X,), (X,)], {"total": lambda: space["total"], "log": space["log"]}["log"]

    check(setup=setup, breaks_every=(None, "line"))


# -- cells ----------------------------------------------------------------------------------------------------------


def test_shared_cells_over_calls():
    def setup():
        total, log = 0, []

        def add(x):
            nonlocal total
            total += 1
            log.append(total)
            return x * total

        def read():
            return total

        return add, [(X,), (X,), (X,)], (read, log)

    check(setup=setup, breaks_every=(None, "line"))


@program(X)
def cells_made_inside(x):
    def counter():
        count = 0

        def step(by=1):
            nonlocal count
            count += by
            return count

        def reset():
            nonlocal count
            del count
            count = 100  # noqa: F841

        return step, reset

    step, reset = counter()
    first = step(), step(5)
    reset()
    return first, step(), x * step(), step, [step.__closure__[0] is reset.__closure__[0]]


def test_defaults_keep_what_was_put_there():
    def setup():
        def keep(value, kept=[], *, named={}):
            kept.append(value)
            named[len(kept)] = value
            return list(kept), dict(named)

        def main(x, seen=[]):
            seen.append(x + len(seen))
            return seen, keep(x), keep(x + 1)

        return main, [(X,), (X,), (X,)], (main.__defaults__, keep.__defaults__, keep.__kwdefaults__)

    check(setup=setup, breaks_every=(None, "line"))


# -- attributes -----------------------------------------------------------------------------------------------------


@program(X, Box(1, Box(2)), calls=1)
def attributes(x, box):
    box.value += 1
    box.next.value, box.value = box.value, box.next.value
    box.fresh = x * box.value
    box.fresh = box.fresh + 1
    del box.next.next
    box.next.inner = Box(3, box)
    return box.fresh, box.next.inner.next is box, vars(box.next).keys()


@program(X, Box(1, 2))
def attributes_set_again_come_last(x, box):
    value = box.value
    del box.value
    box.other = x
    box.value = value
    return list(vars(box))


def test_attribute_that_is_gone_the_next_time():
    def main(x, box):
        del box.value
        return x + 1

    box = Box(1)
    check(main, calls=[(X, box), (X, box)], breaks_every=(None, "line"))


@program(X, Box([1]), Box({}), calls=1)
def swapped_attributes(x, a, b):
    a.value, b.value = b.value, a.value
    a.value["k"] = x
    b.value.append(2)
    a.next, b.next = b, a
    a.same = b.same = a.value
    return a.same is b.same, a.next.next is a


@program(X, Slotted(1, [2]))
def slots(x, slotted):
    slotted.left = x * 2
    slotted.right.append(slotted.left)
    old = slotted.right
    del slotted.right
    try:
        return slotted.right
    except AttributeError as error:
        slotted.right = [old, str(error)]
    return slotted.left + 1


@program(X, Box(0))
def written_and_read_back(x, box):
    log = []
    for i in range(3):
        box.value = box.value + i
        setattr(box, f"step{i}", box.value)
        log.append(getattr(box, f"step{i}"))
    delattr(box, "step1")
    return log, hasattr(box, "step1"), x + box.value, list(box.__dict__)


def test_class_level_state():
    def setup():
        class Local:
            made = 0
            names = ["first"]

            def __init__(self):
                type(self).made += 1
                self.names.append("another")

        def main(x):
            one, two = Local(), Local()
            Local.fresh = x * 2
            return x * Local.made, one.names is two.names

        return main, [(X,), (X,)], Local

    check(setup=setup, breaks_every=(None, "line"))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("mean", torch.zeros(3))
        self.steps = 0
        self.history = []

    def forward(self, x):
        self.steps += 1
        self.mean = self.mean * 0.9 + x * 0.1
        self.history.append(self.steps)
        self.mean.add_(1)
        return x * self.weight + self.mean


def test_module_state():
    check(Model(), X, calls=3, breaks_every=(None, "line"), breaks=0)


# -- containers -----------------------------------------------------------------------------------------------------


@program(X, [1, 2, 3], [[1], [2]])
def lists(x, items, nested):
    items.append(x)
    items.insert(0, items.pop(1))
    items[1:3] = [7, 8, 9]
    del items[0]
    nested[0], nested[1] = nested[1], nested[0]
    nested[0].append(nested)
    nested += [items]
    items.reverse()
    return items is nested[2], len(items), nested[0][-1] is nested


@program(X, {"a": 1, "b": 2, "c": 3})
def dictionary_order(x, table):
    table["d"] = x
    table["a"] = table.pop("a")
    table["b"] = table["b"] + 1
    del table["c"]
    table.setdefault("c", []).append(x + 1)
    table.update(e=5, b=7)
    return list(table), table["c"][0] * 2


@program(
    X, {1, 2, 3}, collections.deque([1, 2], maxlen=3), collections.OrderedDict(a=1, b=2), collections.Counter("aab")
)
def other_containers(x, numbers, queue, ordered, counted):
    numbers.add(10)
    numbers.discard(1)
    numbers ^= {2, 20}
    queue.append(x)
    queue.appendleft(x + 1)
    ordered.move_to_end("a")
    ordered["c"] = queue[0]
    counted.update("bcc")
    counted["a"] -= 5
    return len(numbers), list(ordered), counted.most_common(1)


@program(X, collections.defaultdict(list))
def default_dictionary(x, table):
    table["a"].append(x)
    table["a"].append(table["b"])
    return len(table), table["a"][0] + 1


def test_aliased_arguments():
    def main(x, a, b, box):
        a.append(x)
        b.append(len(a))
        box.value.append("box")
        a.clear() if len(b) > 50 else None
        return a is b, b is box.value

    shared = [1]
    check(main, calls=[(X, shared, shared, Box(shared)), (X, [1], [1], Box([1])), (X, shared, [1], Box(shared))])


@program(X, [[1], [2]])
def aliases_inside(x, nested):
    first = nested[0]
    nested.append(first)
    first.append(x)
    copy = list(nested)
    copy[0] = "copy"
    nested[2].append("last")
    return nested[0] is nested[2], len(first), copy


@program(X, Box([1, {"k": [2]}]))
def deep_in_arguments(x, box):
    box.value[1]["k"].append(x)
    box.value[1]["k"][0] = {"new": box.value}
    box.value[0] = box.value[1]["k"][0]["new"] is box.value
    return x + 1


@program(X)
def results_share_what_they_share(x):
    inner = [x]
    outer = {"a": inner, "b": inner, "c": (inner, [inner])}
    outer["self"] = outer
    return outer, inner


@program([3, 1, 2], [5])
def nothing_left_to_write(items, rest):
    items.append(1)
    items.pop()
    items.sort()
    rest.extend(items)
    del rest[1:]
    return items, rest


# -- tensors --------------------------------------------------------------------------------------------------------


@program(X.clone(), Y.clone(), [0])
def tensors_in_place(x, y, log):
    x.add_(1)
    log.append(x.clone())
    y[0] = x[1]
    x.mul_(y)
    y[1:] += x[:2]
    log[0] = y
    return x, x + y


@program(X)
def attributes_on_tensors(x):
    x.note = "mine"
    y = x * 2
    y.note = [x.note]
    return y, y.note, x.note, hasattr(x, "absent")


def test_gradients_are_written():
    def main(x):
        x.grad = x.detach() * 2
        y = x.grad + 1
        x.grad = None
        x.grad = y
        return y

    check(main, X.clone().requires_grad_(), calls=2, breaks_every=(None, "line"))


# -- order ----------------------------------------------------------------------------------------------------------


@kiln.disable
def show(*values):
    print(*values)


@program(X, [1], Box(1), fullgraph=False)
def order_around_native_calls(x, items, box):
    global COUNT
    items.append(2)
    box.value = items[:]
    show(items, box.value, COUNT)
    COUNT += 1
    items.append(3)
    show(items, box.value, COUNT)
    box.value.append(x.sum().item())
    items.clear()
    show(items, box.value)
    return x


def mutate_then_break(items, x):
    items.append("before")
    show(items)
    items.append(x)
    return x + len(items)


@program(X, [1], fullgraph=False)
def mutation_in_a_callee_before_a_break(x, items):
    items.append(0)
    y = mutate_then_break(items, x * 2)
    items.append(y)
    show(len(items))
    return items


@program(X, [1], Box(1), fullgraph=False)
def mutation_before_an_exception(x, items, box):
    global COUNT
    items.append(2)
    box.value = x * 2
    COUNT += 1
    items.append(1 // (len(items) - 2))
    items.append("never")
    return x


@program(X, {}, [1, 2], fullgraph=False)
def mutation_before_an_error_of_an_operation(x, table, items):
    table["before"] = x + 1
    items.pop()
    x.add_(1)
    return x @ torch.ones(7)


def fill(items, count, x):
    for i in range(count):
        items.append(x * i)
        if i == 2:
            raise ValueError("full")
    return items


@program(X, [])
def mutation_in_a_callee_that_raises(x, items):
    try:
        fill(items, 5, x)
    except ValueError as error:
        items.append(str(error))
    return len(items), items[1] + 1


@program(X, [3, 1, 2], fullgraph=False)
def sort_with_a_key_that_breaks(x, items):
    def key(n):
        show(n)
        return -n

    items.sort(key=key)
    return items, x + 1


class Tracker:
    """Says what is done to it, in order."""

    def __init__(self):
        self.log = []

    def __setitem__(self, key, value):
        self.log.append(("set", key))

    def __setattr__(self, name, value):
        if name != "log":
            self.log.append(("attribute", name))
        object.__setattr__(self, name, value)

    def __delattr__(self, name):
        self.log.append(("delete", name))
        object.__delattr__(self, name)

    def __iadd__(self, other):
        self.log.append(("add", other))
        return self


@program(X, Tracker())
def special_methods_see_every_write(x, tracker):
    tracker["k"] = 1
    tracker.field = x
    tracker.field = x + 1
    del tracker.field
    tracker += 5
    return tracker.log, x * 2


class Watched:
    """A descriptor that says what is done to it."""

    def __get__(self, owner, cls=None):
        return self if owner is None else owner.kept

    def __set__(self, owner, value):
        show("set", value)
        owner.kept = value

    def __delete__(self, owner):
        show("delete")
        del owner.kept


class Watching:
    field = Watched()
    kept = "default"


@program(X, Watching(), fullgraph=False)
def descriptors_see_every_write(x, owner):
    owner.field = 1
    owner.field += 2
    first = owner.field
    del owner.field
    return x + first, owner.field


@TABLE.rows
def test_program(program, args, expect):
    TABLE.run(program, args, expect)


@pytest.mark.parametrize("first", (True, False))
def test_effects_of_both_branches(first):
    def main(x, flag, log):
        if flag:
            log.append("yes")
            x = x + 1
        else:
            log.insert(0, "no")
            x = x - 1
        return x, log

    check(main, calls=[(X, first, []), (X, not first, ["a"]), (X, first, ["a", "b"])], breaks=0)


@pytest.mark.parametrize("backend", ["eager", "kiln"])
@pytest.mark.parametrize("size", [4, 1 << 18])
@pytest.mark.parametrize("effect", ["random", "in place", "both"])
def test_effects_before_an_error_that_fake_tensors_do_not_foresee(effect, size, backend):
    """A bias of another length passes on fake tensors. What comes before it must not happen twice."""

    def program(x, buffer, bias):
        if effect != "in place":
            x = x + torch.rand_like(x)
        if effect != "random":
            buffer.add_(1)
        return torch.nn.functional.linear(x, torch.ones(1, 3), bias)

    def run(function):
        torch.manual_seed(0)
        buffer, seen = torch.zeros(size), []
        for length in (1, 5, 1, 5, 5, 1):
            try:
                seen.append(function(torch.ones(2, 3), buffer, torch.ones(length)))
            except RuntimeError as error:
                seen.append(str(error))
            seen.append(buffer.clone())
        return seen, torch.rand(3)

    assert same(run(program), run(kiln.compile(program, backend=backend)), rtol=1e-6)


def test_random_numbers_before_a_distribution_that_refuses_its_parameters():
    """A deviation below zero passes on fake tensors; the numbers drawn before must not be drawn twice."""

    def run(function):
        torch.manual_seed(0)
        function(X, X.abs())
        with pytest.raises(RuntimeError, match="std"):
            function(X, -X.abs())
        return torch.rand(3)

    def program(mean, std):
        return torch.rand(1) + torch.normal(mean, std)

    assert same(run(program), run(kiln.compile(program)))


def test_error_of_a_write_to_elements_that_share_memory():
    """Torch fills such a tensor, and refuses to draw random numbers into it. It cannot be put back as it was."""

    def program(x):
        x.fill_(2.0)
        made = torch.rand(2)
        return x.normal_(), made

    def run(function):
        torch.manual_seed(0)
        seen = []
        for x in (torch.ones(2, 3), torch.ones(1, 3).expand(2, 3), torch.ones(2, 3)):
            try:
                seen.append(function(x))
            except RuntimeError as error:
                seen.append((str(error), error.__context__))
            seen.append(x.clone())
        return seen, torch.rand(3)

    assert same(run(program), run(kiln.compile(program)))
