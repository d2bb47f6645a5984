"""Guard mutation, a sample: programs that reach something of every kind, and some changes of each.

The long run over all programs is ``tests/sweep_guards.py``; what it found is in ``test_guards_mutated.py``.
"""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import functools
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.mutation.corpus import table_program
from tests.mutation.runner import mutate_program, sample_count
from tests.support import program_helpers
from tests.support.program_table import ProgramTable, X, Y

program = ProgramTable()

SCALE = 2
FACTORS = {"a": 1.5, "b": 2}
OFFSETS = [1, 2.5, True]
NAMES = {"left", "right"}


class Color(enum.IntEnum):
    RED = 1
    BLUE = 2


class Meta(type):
    @property
    def level(cls):
        return cls.depth + 1


class Shape(metaclass=Meta):
    depth = 2
    unit = 1.0

    def area(self):
        return self.unit * self.depth

    @property
    def side(self):
        return self.unit + 1

    @classmethod
    def name(cls):
        return cls.__name__

    @staticmethod
    def twice(value):
        return value * 2


class Square(Shape):
    __slots__ = ("edge", "note")

    def __init__(self, edge):
        self.edge = edge
        self.note = None

    def area(self):
        return super().area() + self.edge**2


class Sized(abc.ABC):
    @abc.abstractmethod
    def size(self): ...


class Box(Sized):
    def __init__(self, content, parent=None):
        self.content = content
        self.parent = parent

    def size(self):
        return len(self.content)

    def __contains__(self, item):
        return item in self.content


@dataclasses.dataclass
class Settings:
    rate: float = 0.5
    steps: int = 2
    tags: tuple = ("x",)
    nested: dict = dataclasses.field(default_factory=lambda: {"on": True})


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("shift", torch.ones(3))
        self.gain = 2.0
        self.activation = nn.ReLU()

    def forward(self, x):
        if self.training:
            x = x * self.gain
        return self.activation(self.linear(x)) + self.shift


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.extra = None
        self.settings = Settings()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x * self.settings.rate if self.extra is None else x + self.extra


def net():
    torch.manual_seed(0)
    return Net()


def scaled(x, by=2, *, plus=1):
    return x * by + plus


def counter(start):
    step = 3

    def add(x):
        return x + start * step

    return add


ADD = counter(2)
HALF = functools.partial(scaled, by=0.5, plus=0)
TABLE: dict[str, Callable] = {"scale": scaled, "add": ADD}


@program(X)
def reads_globals(x):
    total = x * SCALE
    for name in sorted(FACTORS):
        total = total + FACTORS[name]
    return total + sum(OFFSETS) + len(NAMES), math.pi, Color.RED + 1


@program(X)
def reads_another_module(x):
    return program_helpers.scale(x, 2) + program_helpers.get_level(), program_helpers.TABLE["k"]


@program(X)
def calls_functions(x):
    return scaled(x), scaled(x, 3, plus=2), ADD(x), HALF(x), TABLE["scale"](x), max(1, abs(-2))


@program(Square(3), X)
def walks_objects(shape, x):
    return x * shape.area() + shape.side, shape.note, Shape.level, shape.twice(2), shape.name()


@program(Box([1, 2], Box((3,))), X)
def asks_objects(box, x):
    found = 2 in box and isinstance(box, Sized)
    return x + box.size() if found else x, box.parent.size(), hasattr(box, "more"), getattr(box, "missing", 4)


@program(Settings(), X)
def reads_a_dataclass(settings, x):
    return x * settings.rate * settings.steps, settings.tags[0], settings.nested["on"], settings == Settings()


@program({"a": X, "b": [1, {"c": 2.0}]}, (1, True, 1.0, "one", None), X)
def reads_containers(table, numbers, x):
    first, flag, real, text, nothing = numbers
    total = table["a"] + table["b"][0] + table["b"][1]["c"]
    return total * first if flag else x * real, text.upper(), nothing is None, list(table), type(real)


@program({1, 2}, frozenset({"a"}), collections.deque([1, 2], maxlen=3), X)
def reads_collections(numbers, names, queue, x):
    return x + sum(numbers) + len(names) + queue[-1], queue.maxlen, "a" in names, 2 in numbers


@program(collections.OrderedDict(a=1, b=2), collections.defaultdict(int, a=X), X)
def reads_dictionaries(ordered, defaults, x):
    return [x * value for value in ordered.values()], defaults["a"] + defaults.get("b", 1), list(ordered)


@program(X.clone().requires_grad_(), Y.clone(), X.clone())
def reads_tensors(a, b, c):
    if a.requires_grad and a.dtype == b.dtype and a.shape == b.shape:
        a = a * 2
    if b is c or a is c:
        return a - b
    return a + b * c.stride(0), b.is_contiguous(), b.dim(), c.storage_offset(), type(c).__name__


@program(X.clone(), X.clone())
def changes_tensors(a, b):
    a.add_(1)
    b.mul_(2)
    return a + b


@program(X.clone(), 2, 0.5, True)
def branches_on_arguments(x, count, rate, flag):
    for _ in range(count):
        x = x * rate
    return x + 1 if flag else x - 1, count / 2, rate == 0.5, f"{count} {rate}"


@program(torch.arange(6.0).reshape(2, 3))
def reads_sizes(x):
    rows, columns = x.shape
    padded = torch.cat([x, x.new_zeros(rows, 1)], 1) if columns == 3 else x
    return padded.reshape(-1)[: rows * 2], x.numel(), torch.ones(rows)


@program(net(), X, grads=False)
def calls_a_network(model, x):
    return model(x)


@program(net(), X)
def trains_a_network(model, x):
    return F.mse_loss(model(x), torch.zeros(3))


@program(X)
def reads_switches(x):
    made = torch.zeros(3) + torch.tensor([0.5, 1.0, 2.0])
    return x @ made, torch.is_grad_enabled(), torch.get_default_dtype(), made.dtype, torch.is_autocast_enabled("cpu")


@program([X.clone(), Y.clone()], {"scale": 2})
def writes_back(items, table):
    items.append(items[0] * table["scale"])
    table["seen"] = table.get("seen", 0) + 1
    return items[-1] + len(items)


@program.rows
def test_programs(program, args, expect):
    ProgramTable().run(program, args, expect)


@program.rows
def test_mutations(program, args, expect, request):
    """Every program in this file: so many changes, spread over the kinds that there are."""
    name = request.node.callspec.id
    made = table_program(name, program, args, expect)
    tally = mutate_program(made, sample_count(name), seed=0)
    assert not tally.skipped, tally.skipped
    assert tally.mutations > 5 and tally.seen > 0
    assert not tally.failures, "\n".join(f"{each.site}: {'; '.join(each.differences)}" for each in tally.failures)


def test_a_missing_guard_is_found():
    """The means itself: an entry that asks nothing of its arguments answers for the values that it was made with."""
    from kiln.capture.guards import guards

    def reads(box, x):
        return x * box.content

    made = table_program("reads", reads, (Box(2), X), {})
    unguarded = guards.GuardSet.add
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            guards.GuardSet,
            "add",
            lambda self, source, kind, value=None: None if kind == "constant" else unguarded(self, source, kind, value),
        )
        tally = mutate_program(made, 0, seed=0, only="args[0].content: int changed")
    assert tally.mutations == 2 and len(tally.failures) == 2
