"""kiln._native.ItemsCheck and ClassCheck: what they tell apart, what they say about it, and what they survive."""

import collections
import gc
import sys
import types
import weakref

import pytest
import torch

from kiln import _native
from kiln._native import MISSING, ClassCheck, CodeCheck, ItemsCheck


class Key:
    """A key that compares in Python, and may refuse."""

    refuse: type[BaseException] | None = None

    def __hash__(self):
        return 1

    def __eq__(self, other):
        if Key.refuse:
            raise Key.refuse("refused")
        return True


class Silent:
    """An object whose repr raises."""

    error: type[BaseException] = ValueError

    def __repr__(self):
        raise self.error("no repr")


@pytest.fixture
def refusing():
    yield Key
    Key.refuse = None


# ---- ItemsCheck ---------------------------------------------------------------------------------------------------


def test_items_are_compared_by_identity():
    first, equal = [1], [1]
    table = {"x": first}
    check = ItemsCheck([(table, "x", first)])
    assert check() is True and check.reason() is None
    table["x"] = equal
    assert check() is False and check.reason() == "G['x'] is [1]; another [1] seen"
    table["x"] = 2
    assert check() is False and check.reason() == "G['x'] is [1]; 2 seen"
    del table["x"]
    assert check() is False and check.reason() == "G['x'] is [1]; nothing seen"
    table["x"] = first
    assert check() is True and check.reason() is None


def test_missing_means_absent():
    table = {}
    check = ItemsCheck([(table, "x", MISSING)])
    assert check() is True and check.reason() is None
    for value in (None, 0, MISSING):
        table["x"] = value
        assert check() is False and check.reason() == f"G['x'] is absent; {value!r} seen"
    table["x"] = None
    assert ItemsCheck([(table, "x", None)])() is True
    del table["x"]
    assert check() is True and ItemsCheck([(table, "x", None)])() is False
    assert repr(MISSING) == "MISSING"
    with pytest.raises(TypeError):
        type(MISSING)()


def test_every_item_counts_and_the_first_difference_is_said():
    module = types.ModuleType("some.module")
    objects = [object() for _ in range(50)]
    table = {f"name{i}": each for i, each in enumerate(objects)}
    vars(module).update(table)
    check = ItemsCheck([(d, f"name{i}", each) for i, each in enumerate(objects) for d in (table, vars(module))])
    assert len(check) == 100 and check() is True
    for i, each in enumerate(objects):
        setattr(module, f"name{i}", i)
        assert check() is False
        assert check.reason() == f"some.module['name{i}'] is {each!r}; {i} seen"
        setattr(module, f"name{i}", each)
        assert check() is True


@pytest.mark.parametrize("name", ["é\ud800", None, 3, MISSING], ids=ascii)
def test_names_of_dictionaries(name):
    table = {"x": 1, "__name__": name}
    if name is MISSING:
        del table["__name__"]
    check = ItemsCheck([(table, "x", 2)])
    assert check.reason() == f"{name if isinstance(name, str) else 'G'}['x'] is 2; 1 seen"


def test_keys_of_every_kind():
    table = {2: "two", (1, 2): "pair", None: "none", "a" * 40: "long", Key(): "key"}
    check = ItemsCheck([(table, key, value) for key, value in table.items()])
    assert check() is True
    assert ItemsCheck([(table, 2.0, "two"), (table, "".join(["a"] * 40), "long"), (table, Key(), "key")])() is True
    table[None] = 0
    assert check() is False and check.reason() == "G[None] is 'none'; 0 seen"


def test_subclasses_of_dict_are_read_as_dictionaries():
    class Other(dict):
        def __getitem__(self, key):
            raise AssertionError

        def __missing__(self, key):
            raise AssertionError

    for table in (Other(x=1), collections.OrderedDict(x=1), collections.defaultdict(list, x=1)):
        assert ItemsCheck([(table, "x", 1), (table, "y", MISSING)])() is True
        assert len(table) == 1


def test_dictionary_that_grows_and_shrinks():
    class Instance:
        def __init__(self):
            self.x = self.y = "value"

    instance = Instance()
    table = vars(instance)
    check = ItemsCheck([(table, "x", "value"), (table, "z", MISSING)])
    assert check()
    for i in range(1000):
        table[f"other{i}"] = i
        assert check()
    instance.z = 1
    assert not check()
    table.clear()
    assert not check()
    instance.x = "value"
    assert check()


def test_lookup_that_raises_says_no(refusing):
    table = {Key(): 1}
    check = ItemsCheck([(table, Key(), 1)])
    assert check() is True
    refusing.refuse = ValueError
    assert check() is False
    assert check.reason().endswith("] cannot be looked up")
    assert ItemsCheck([(table, Key(), MISSING)])() is False
    refusing.refuse = KeyboardInterrupt
    for use in (check, check.reason):
        with pytest.raises(KeyboardInterrupt):
            use()
    refusing.refuse = None
    assert check() is True


def test_repr_that_raises(monkeypatch):
    check = ItemsCheck([({"x": Silent()}, "x", 1)])
    assert check() is False and check.reason() == "G['x'] is 1; <Silent object> seen"
    assert ItemsCheck([({}, "x", Silent())]).reason() == "G['x'] is <Silent object>; nothing seen"
    monkeypatch.setattr(Silent, "error", KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        check.reason()


def test_code_that_runs_during_a_check_may_change_everything():
    table = {}

    class Clearing:
        def __hash__(self):
            return 1

        def __eq__(self, other):
            table.clear()
            gc.collect()
            return True

        def __repr__(self):
            table.clear()
            return "Clearing()"

    table[Clearing()] = value = object()
    check = ItemsCheck([(table, Clearing(), value)])
    assert check() is False and table == {}
    table["x"] = Clearing()
    assert ItemsCheck([(table, "x", 1)]).reason() == "G['x'] is 1; Clearing() seen"

    class Emptying:
        def __hash__(self):
            items.clear()
            return 1

    items = [(table, Emptying(), MISSING), (table, "y", MISSING)]
    assert len(ItemsCheck(items)) == 2 and items == []


def test_items_wrong_use_raises_type_error():
    for items in [1, [1], [()], [({}, "x")], [({}, "x", 1, 2)], [[{}, "x", 1]], [(1, "x", 1)], [({}, [], 1)]]:
        with pytest.raises(TypeError):
            ItemsCheck(items)
    for wrong in (lambda: ItemsCheck(), lambda: ItemsCheck([], []), lambda: ItemsCheck(other=[])):
        with pytest.raises(TypeError):
            wrong()
    check = ItemsCheck(items=[({}, "x", MISSING)])
    for wrong in (lambda: check(1), lambda: check(x=1), lambda: check.reason(1)):
        with pytest.raises(TypeError):
            wrong()


def test_items_are_kept_alive():
    class Table(dict):
        pass

    class Value:
        pass

    table, value, key = Table(), Value(), Key()
    table["x"] = value
    references = [weakref.ref(each) for each in (table, value, key)]
    check = ItemsCheck([(table, "x", value), ({}, key, MISSING)])
    del table, value, key
    gc.collect()
    assert all(each() is not None for each in references) and check() is True
    del check
    assert all(each() is None for each in references)


# ---- ClassCheck ---------------------------------------------------------------------------------------------------


def checked(*classes):
    return ClassCheck([(each, _native.type_version(each)) for each in classes])


def test_class_check_sees_changes_to_the_class_and_its_bases():
    class Base:
        pass

    class Other:
        pass

    class Derived(Base):
        pass

    check = checked(Other, Derived)
    Derived().attribute = 1
    assert check() is True
    for change in (
        lambda: setattr(Derived, "attribute", 1),
        lambda: delattr(Derived, "attribute"),
        lambda: setattr(Base, "method", lambda self: 1),
        lambda: setattr(Base, "method", lambda self: 2),
        lambda: setattr(Derived, "__bases__", (Other,)),
    ):
        check = checked(Other, Derived)
        assert check() is True
        change()
        assert check() is False and check() is False
        assert checked(Other, Derived)() is True


def test_class_check_agrees_with_type_version():
    class Local:
        pass

    version = _native.type_version(Local)
    assert ClassCheck([(Local, version)])() is True
    assert ClassCheck([(Local, version + 1)])() is False
    assert ClassCheck([(Local, 0)])() is False
    Local.attribute = 1
    assert ClassCheck([(Local, 0)])() is False
    assert ClassCheck([(Local, version)])() is False
    assert checked(Local)() is True
    # CPython gives a class no version any more that was changed a thousand times, and other tests change Tensor.
    known = [cls for cls in (int, object, type, torch.Tensor, torch.nn.Module) if _native.type_version(cls)]
    assert {int, object, type} <= set(known) and checked(*known)() is True


def test_class_check_wrong_use():
    for classes in [1, [1], [()], [(int,)], [(int, 1, 2)], [[int, 1]], [(1, 1)], [(int, "1")], [(int, None)]]:
        with pytest.raises(TypeError):
            ClassCheck(classes)
    for version in (-1, 1 << 32, 1 << 64, 1 << 100):
        with pytest.raises(OverflowError):
            ClassCheck([(int, version)])
    for wrong in (lambda: ClassCheck(), lambda: ClassCheck([], []), lambda: ClassCheck(other=[])):
        with pytest.raises(TypeError):
            wrong()
    check = ClassCheck(classes=[(int, _native.type_version(int))])
    for wrong in (lambda: check(1), lambda: check(x=1)):
        with pytest.raises(TypeError):
            wrong()


# ---- both ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ItemsCheck, ClassCheck, _native.TensorCheck])
def test_without_items_a_check_holds(kind):
    for nothing in ([], ()):
        check = kind(nothing)
        assert check() is True and check(*[], **{}) is True
    assert ItemsCheck([]).reason() is None and len(ItemsCheck([])) == 0


def test_a_dispatcher_takes_a_check():
    table = {"x": 1}
    calls = _native.Dispatcher(lambda: "original", lambda dispatcher, args, kwargs: "missed")
    calls.entries.append((ItemsCheck([(table, "x", 1)]), lambda: "hit"))
    assert calls() == "hit"
    table["x"] = 2
    assert calls() == "missed"


class Value:
    pass


def cycle_through_dictionary():
    value, table = Value(), {}
    table["x"] = value
    table["check"] = ItemsCheck([(table, "x", value)])
    return weakref.ref(value)


def cycle_through_expected():
    value = Value()
    value.check = ItemsCheck([({}, "x", value)])
    return weakref.ref(value)


def cycle_through_key():
    key = Key()
    key.check = ItemsCheck([({}, key, MISSING)])
    return weakref.ref(key)


def cycle_through_class():
    class Local:
        pass

    Local.check = checked(Local)
    return weakref.ref(Local)


@pytest.mark.parametrize(
    "build", [cycle_through_dictionary, cycle_through_expected, cycle_through_key, cycle_through_class]
)
def test_cycles_are_collected(build):
    reference = build()
    gc.collect()
    assert reference() is None


def test_referents():
    table, key, value = {}, Key(), Value()
    check = ItemsCheck([(table, key, value)])
    assert [id(each) for each in gc.get_referents(check)] == [id(table), id(key), id(value)]
    assert gc.get_referents(ClassCheck([(Key, 1)])) == [Key]
    assert gc.is_tracked(check) and gc.is_tracked(ClassCheck([]))


def test_nothing_leaks():
    value, wrong = object(), object()
    table = {"x": value}
    key = "a key of its own"
    good, bad = ItemsCheck([(table, "x", value)]), ItemsCheck([(table, "x", wrong)])
    version = _native.type_version(Key)

    def loop():
        for _ in range(300):
            good(), bad(), good.reason(), bad.reason()
            ItemsCheck([(table, key, MISSING), (table, "x", value)])()
            ClassCheck([(Key, version)])(), ClassCheck([(Key, 0)])()
            for kind, items in ((ItemsCheck, [(table, key, value), 1]), (ClassCheck, [(Key, 1), (Key, -1)])):
                with pytest.raises((TypeError, OverflowError)):
                    kind(items)

    loop()
    gc.collect()
    objects = [table, value, wrong, key, good, bad, Key, MISSING]
    before, blocks = [sys.getrefcount(each) for each in objects], sys.getallocatedblocks()
    loop()
    gc.collect()
    assert [sys.getrefcount(each) for each in objects] == before
    assert sys.getallocatedblocks() - blocks < 300


def test_code_check():
    def one():
        return 1

    def two():
        return 2

    check = CodeCheck([(one, one.__code__), (two, two.__code__)])
    assert check() is True
    before = two.__code__
    two.__code__ = one.__code__
    assert check() is False
    two.__code__ = before
    assert check() is True
    assert CodeCheck([])() is True
    for wrong in ([(one, 3)], [(3, before)], [one], 5):
        with pytest.raises(TypeError):
            CodeCheck(wrong)
    with pytest.raises(TypeError):
        check(1)
