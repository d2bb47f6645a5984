"""Attributes that Python modules compute: by a ``__getattr__`` of their own, or by properties of their class.

Settings of torch are such: ``torch.backends.cudnn.enabled``, ``torch.fx.experimental._config``.
"""

import types

import pytest
import torch
from torch.fx.experimental import _config as shape_config

import kiln
from kiln.testing import CompileCounter, check


class Settings(types.ModuleType):
    """A module with a property, a ``__getattr__`` and a ``__setattr__``."""

    values = {"factor": 2, "names": ["a"], "shape": (2, 3)}

    @property
    def doubled(self):
        return self.values["factor"] * 2

    @doubled.setter
    def doubled(self, value):
        self.values["factor"] = value // 2

    @property
    def fresh(self):
        return [self.values["factor"]]

    def __getattr__(self, name):
        if name in self.values:
            return self.values[name]
        raise AttributeError(name)

    def __setattr__(self, name, value):
        self.values[name] = value


class Properties(types.ModuleType):
    """Only a property: other names are in the module's dictionary."""

    state = [1]

    @property
    def level(self):
        return self.state[0]

    @level.setter
    def level(self, value):
        self.state[0] = value


def plain_module():
    module = types.ModuleType("plain_with_getattr")
    exec("values = {'factor': 2}\ndef __getattr__(name):\n    return values[name]", module.__dict__)
    return module


settings, properties, plain = Settings("settings"), Properties("properties"), plain_module()


@pytest.fixture(autouse=True)
def defaults():
    Settings.values.update(factor=2, names=["a"], shape=(2, 3))
    Properties.state[0] = 1
    plain.values["factor"] = 2
    yield


READS = {
    "__getattr__": (lambda x: x * settings.factor, lambda: setattr(settings, "factor", 7)),
    "property": (lambda x: x * settings.doubled, lambda: setattr(settings, "factor", 7)),
    "only a property": (lambda x: x * properties.level, lambda: setattr(properties, "level", 7)),
    "tuple": (lambda x: x * settings.shape[1], lambda: setattr(settings, "shape", (2, 7))),
    "list": (lambda x: x * len(settings.names), lambda: settings.names.append("b")),
    "function in the module": (lambda x: x * plain.factor, lambda: plain.values.update(factor=7)),
    "torch's": (
        lambda x: x * 2 if shape_config.print_specializations else x * 3,
        lambda: setattr(shape_config, "print_specializations", True),
    ),
}


@pytest.mark.parametrize("case", READS)
def test_what_a_module_computes_is_guarded(case):
    program, change = READS[case]
    counter = CompileCounter()
    compiled = kiln.compile(program, backend=counter, fullgraph=True)
    x = torch.ones(2)
    before = shape_config.print_specializations
    try:
        assert torch.equal(compiled(x), program(x)) and torch.equal(compiled(x), program(x))
        assert counter.frame_count == 1
        old = program(x)
        change()
        assert torch.equal(compiled(x), program(x)) and not torch.equal(compiled(x), old)
    finally:
        shape_config.print_specializations = before


def test_what_is_made_anew_on_each_look_stays_outside():
    check(lambda x: x * settings.fresh[0], torch.ones(2), breaks=1)


def write_through_setattr(x):
    settings.factor = 5
    return x * settings.factor


def write_through_property(x):
    properties.level = 5
    return x * properties.level


def delete_from(x):
    properties.extra = 1
    del properties.extra
    return x * 2


@pytest.mark.parametrize("program", [write_through_setattr, write_through_property])
def test_writing_runs_the_modules_own_code(program):
    compiled = kiln.compile(program)
    assert compiled(torch.ones(1)).item() == 5
    assert (settings.factor, properties.level) == ((5, 1) if program is write_through_setattr else (2, 5))
    assert "factor" not in vars(settings) and "level" not in vars(properties)


def test_other_names_are_in_the_dictionary():
    counter = CompileCounter()
    assert kiln.compile(delete_from, backend=counter, fullgraph=True)(torch.ones(1)).item() == 2
    assert not hasattr(properties, "extra") and counter.frame_count == 1


def test_a_property_wins_over_the_dictionary():
    vars(properties)["level"] = 9
    try:
        check(lambda x: x * properties.level, torch.ones(1))
    finally:
        del vars(properties)["level"]
