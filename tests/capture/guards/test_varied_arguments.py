"""Whatever changes somewhere in the arguments is noticed: programs of the other tables with varied arguments."""

import collections
import copy
import enum
import random
import types

import pytest
import torch

from kiln.testing import check
from tests.capture import test_objects, test_objects_odd
from tests.capture.python import test_builtins, test_containers_mappings, test_containers_sequences
from tests.capture.writeback import test_containers_kept

MODULES = [test_builtins, test_containers_kept, test_containers_mappings, test_containers_sequences]
MODULES += [test_objects, test_objects_odd]
OPAQUE = (type, torch.Tensor, types.FunctionType, types.ModuleType, enum.Enum)
VARIATIONS_OF_A_PROGRAM = 2


def variations(value, seen):
    """Functions that change one place each in a value, found by walking it."""
    if id(value) in seen or isinstance(value, OPAQUE):
        return []
    seen.add(id(value))
    found, parts = [], []
    if isinstance(value, list | collections.deque):
        found = [lambda: value.append(1), lambda: value.pop()]
        parts = [(item, value.__setitem__, index) for index, item in enumerate(value)]
    elif isinstance(value, dict):
        found = [] if isinstance(value, collections.OrderedDict) else [lambda: dict.__setitem__(value, "zz", 1)]
        parts = [(item, lambda key, new: dict.__setitem__(value, key, new), key) for key, item in dict.items(value)]
    elif isinstance(value, set):
        found = [lambda: value.add(99)]
    elif isinstance(value, tuple):
        parts = [(item, None, index) for index, item in enumerate(value)]
    elif hasattr(value, "__dict__"):
        found = [lambda: vars(value).__setitem__("zz", 1)]
        parts = [(item, vars(value).__setitem__, name) for name, item in vars(value).items()]
    for item, setter, key in parts:
        if isinstance(item, int | float | str) and not isinstance(item, enum.Enum):
            if setter is not None:
                changed = item + "x" if isinstance(item, str) else item + 1
                found.append(lambda setter=setter, key=key, changed=changed: setter(key, changed))
        else:
            found += variations(item, seen)
    return found


ROWS = [
    pytest.param(*row.values[:2], id=f"{module.__name__.rpartition('.')[2]}-{row.id}")
    for module in MODULES
    for row in module.TABLE.programs
    if variations(row.values[1], set())
]


@pytest.mark.parametrize("program, args", ROWS)
def test_changed_arguments_are_noticed(program, args):
    count = len(variations(args, set()))
    for chosen in random.Random(0).sample(range(count), min(count, VARIATIONS_OF_A_PROGRAM)):
        varied = copy.deepcopy(args)
        try:
            variations(varied, set())[chosen]()
        except (IndexError, TypeError):
            continue
        check(program, calls=[args, varied, args], tracebacks=False)
