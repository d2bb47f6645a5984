"""Builtins and library functions that get arguments they do not take: Python's error, with Python's words."""

import dataclasses
import operator
import sys
import typing

import torch

from kiln.testing import check
from tests.support.program_table import ProgramTable, X

TABLE = program = ProgramTable()


class Plain:
    pass


class Initialised:
    def __init__(self, size):
        self.size = size


class PassesOn:
    def __new__(cls, size):
        return super().__new__(cls, size)


class InitialisesBase:
    def __init__(self, size):
        super().__init__(size)


def message(function, *args, **kwargs):
    try:
        return function(*args, **kwargs)
    except TypeError as error:
        return str(error)


@program(X)
def too_many(x):
    texts = [
        message(f, x, x, x, x) for f in (isinstance, hasattr, getattr, setattr, delattr, issubclass, len, callable)
    ]
    texts += [message(f, x, x, x, x) for f in (id, hash, iter, next, vars, dir, bool, super, range, operator.add)]
    return texts, x + 1


@program(X)
def too_few(x):
    texts = [message(f) for f in (isinstance, hasattr, getattr, setattr, delattr, issubclass, len, callable, id, hash)]
    return texts, [message(f, x) for f in (isinstance, hasattr, getattr, setattr, delattr, operator.add)], x + 1


@program(X)
def names_that_are_not_taken(x):
    texts = [message(isinstance, x, torch.Tensor, invalid=True), message(len, obj=[1]), message(bool, x=1)]
    return texts, message(operator.add, 1, b=2), message(hasattr, x, name="shape"), message(callable, obj=x), x + 1


@program(X)
def python_functions_by_name(x):
    wrong = [message(torch.is_tensor, x, x), message(torch.is_tensor), message(typing.cast, int)]
    given = torch.is_tensor(obj=x), typing.cast(typ=int, val=3), dataclasses.is_dataclass(obj=Plain)
    return wrong, given, x + 1


@program(X)
def questions_to_torch(x):
    return message(torch.is_grad_enabled, 3), message(torch._C._set_grad_enabled), x + 1


@program(X)
def making_objects(x):
    texts = [message(cls, 3) for cls in (Plain, PassesOn, InitialisesBase)]
    texts += [message(object.__new__, Plain, 3), message(object.__new__, PassesOn, 3)]
    texts += [message(object.__init__, Plain(), 3), message(object.__init__, Plain(), size=3)]
    return texts, type(object.__new__(Initialised, 3)) is Initialised, x + 1


@program.breaking(X)
def type_with_a_name(x):
    return message(type, 1, name=2), x + 1


@program.breaking(X)
def methods_of_functions(x):
    return message(message.__get__), message(dict.__getitem__, {}), x + 1


@program.breaking(X)
def exit_codes(x):
    return message(sys.exit, 1, 2), message(sys.exc_info, 1), x + 1


class WithoutOwner:
    @staticmethod
    def static():
        return super().__repr__()

    def collected(*args):
        return super().__repr__()

    def another(self):
        return super().__repr__()


def outside_of_classes(x):
    return super().__repr__()


def raised(function, *args):
    try:
        return function(*args)
    except (RuntimeError, TypeError) as error:
        return type(error), str(error)


@program.breaking(X, breaks_every=(None,))  # in a frame of Kiln's own, Python has other words for it
def super_without_a_first_argument(x):
    owner = WithoutOwner()
    return raised(owner.static), raised(owner.collected), raised(outside_of_classes, 1), x + 1


@program(X)
def super_with_another_first_argument(x):
    return raised(WithoutOwner.another, 3), x + 1


@TABLE.rows
def test_wrong_arguments(program, args, expect):
    TABLE.run(program, args, expect)


def test_super_in_the_compiled_function_itself():
    for function in (WithoutOwner.static, WithoutOwner.collected):
        check(function, backend="eager")
    check(outside_of_classes, 3)
