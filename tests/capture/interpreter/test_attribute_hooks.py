"""Attribute access that a class takes over in other ways than by a plain method."""

import copy
import types

from tests.support.program_table import ProgramTable, X

TABLE = program = ProgramTable()


class Remembering:
    """A descriptor that gives a getter for attributes, and counts what it is asked."""

    def __init__(self):
        self.asked = []

    def __get__(self, instance, owner=None):
        def getter(*args):
            self.asked.append((type(instance).__name__, *args))
            if len(args) == 1:
                raise AttributeError(args[0])

        return getter


FIRST, SECOND, THIRD = Remembering(), Remembering(), Remembering()


class ByDescriptors:
    __getattr__ = FIRST


class ReadByDescriptor:
    __getattribute__ = SECOND
    __getattr__ = SECOND


class WrittenByDescriptor:
    __setattr__ = THIRD
    __delattr__ = THIRD


def told(action, *args):
    try:
        return action(*args)
    except (AttributeError, TypeError, KeyError) as error:
        return type(error).__name__, str(error)


def assigned(value):
    value.name = 1
    return "assigned"


def deleted(value):
    del value.name
    return "deleted"


@program(X)
def hooks_that_are_descriptors(x):
    FIRST.asked.clear()
    SECOND.asked.clear()
    THIRD.asked.clear()
    found = [told(lambda value: value.missing, ByDescriptors()), told(lambda value: value.missing, ReadByDescriptor())]
    written = WrittenByDescriptor()
    found += [told(assigned, written), told(deleted, written), written.__dict__]
    return x + 1, found, list(FIRST.asked), list(SECOND.asked), list(THIRD.asked)


class Items(dict):
    """Attributes are items: native methods of another name in the place of the hooks."""

    __setattr__ = dict.__setitem__
    __delattr__ = dict.__delitem__
    __getattr__ = dict.__getitem__


@program(X)
def native_methods_as_hooks(x):
    items = Items()
    items.first = 1
    items.second = 2
    del items.second
    return x + items.first, dict(items), items["first"], told(lambda value: value.third, items)


class Blocked:
    __setattr__ = None
    __delattr__ = None


@program(X)
def hooks_that_are_none(x):
    return x + 1, told(assigned, Blocked()), told(deleted, Blocked())


class SetOnly:
    def __set__(self, instance, value):
        instance.__dict__["described"] = value * 2


class DeleteOnly:
    def __delete__(self, instance):
        instance.log = "deleted"


class WithSetOnly:
    described = SetOnly()
    deleted = DeleteOnly()


@program(X, WithSetOnly())
def descriptors_that_cannot_be_read(x, outside):
    inside = WithSetOnly()
    before = type(inside.described).__name__, type(outside.deleted).__name__
    inside.described = 21
    outside.__dict__["deleted"] = 5
    after = inside.described, outside.deleted
    del inside.deleted
    return x + inside.described, before, after, inside.log, told(lambda value: setattr(value, "deleted", 1), inside)


class WithProperty:
    def read(self):
        return 1

    value = property(read)
    static = staticmethod(read)


@program(X)
def parts_of_descriptors_from_outside(x):
    raw = WithProperty.__dict__["value"] if False else WithProperty.value
    getter = raw.fget
    x = x + getter(None)
    return (
        x,
        getter is WithProperty.read,
        raw.fget is getter,
        raw.fset is None,
        WithProperty.static is WithProperty.read,
    )


class OwnModule(types.ModuleType):
    def __getattribute__(self, name):
        if name == "computed":
            return 5
        return super().__getattribute__(name)


MODULE = OwnModule("own")
MODULE.number = 3


@program.breaking(X)
def module_with_code_of_its_own(x):
    return x + MODULE.computed + MODULE.number, MODULE.__name__


class NewArguments:
    def __new__(cls, *args):
        made = super().__new__(cls)
        made.given = args
        return made

    def __getnewargs__(self):
        return self.wanted

    wanted = (1, 2)


class Slotted:
    __slots__ = ("a", "b")

    def __getattr__(self, name):
        if name == "b":
            return 7
        raise AttributeError(name)


class Reduced:
    def __init__(self, value):
        self.value = value

    def __reduce__(self):
        return Reduced, (self.value + 1,), {"extra": self.value}


class ReducedEx(Reduced):
    def __reduce_ex__(self, protocol):
        return ReducedEx, (protocol,)


class StateOfClass(list):
    """Its state is what a class method says."""

    def __init__(self, a):
        super().__init__()
        self.a = a

    @classmethod
    def __getstate__(cls):
        return {"a": "of the class"}

    __getnewargs__ = staticmethod(lambda: ())

    def __setstate__(self, state):
        self.a = state["a"]


@program.breaking(X)
def class_of_a_module(x):
    module = types.ModuleType("made")
    before = module.__class__ is types.ModuleType
    module.__class__ = OwnModule
    return x + module.computed, before, module.__class__ is OwnModule, type(module).__name__


class Holding(list):
    def __init__(self, *args):
        super().__init__(*args)
        self.tag = "t"


@program.breaking(X)
def copies(x):
    bad = NewArguments()
    bad.wanted = "text"
    slotted = Slotted()
    slotted.a = 1
    made = [copy.copy(Reduced(1)), copy.deepcopy(Reduced(2)), copy.copy(ReducedEx(3)), copy.copy(NewArguments(5))]
    found = [vars(value) for value in made]
    holding = copy.copy(Holding([1, [2]]))
    found += [told(copy.copy, bad), copy.copy(slotted).a, copy.copy(slotted).b, holding, holding.tag]
    found += [copy.deepcopy({"k": [Reduced(1)]})["k"][0].value, told(lambda value: value.__reduce_ex__(2)[2], slotted)]
    found += [copy.copy(StateOfClass(3)).a, copy.deepcopy(StateOfClass(3)).a]
    return x + 1, found


@TABLE.rows
def test_attribute_hooks(program, args, expect):
    TABLE.run(program, args, expect)
