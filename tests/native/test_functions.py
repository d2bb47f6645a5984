"""The functions of kiln._native: identity and class versions."""

import collections
import decimal
import functools
import sys

import pytest
import torch

from kiln import _native


@pytest.mark.parametrize("count", [0, 1, 2, 16, 17, 200])
def test_distinct(count):
    objects = [object() for _ in range(count)]
    assert _native.distinct(*objects) is True
    for position in range(count):
        assert _native.distinct(*objects, objects[position]) is False
    with pytest.raises(TypeError):
        _native.distinct(x=1)


def test_distinct_means_identity():
    assert _native.distinct([], []) is True
    assert _native.distinct(float("nan"), float("nan")) is True
    assert _native.distinct(None, 1, None) is False


def test_type_name_is_what_messages_say():
    class Derived(decimal.Decimal):
        pass

    values = 1, decimal.Decimal(2), Derived(3), collections.deque(), functools.partial(len), torch.Size([1])
    for value in values:
        with pytest.raises(AttributeError) as raised:
            value.missing  # noqa: B018
        assert f"'{_native.type_name(type(value))}' object" in str(raised.value)
    Derived.__name__ = "Renamed"
    assert _native.type_name(Derived) == "Renamed"
    with pytest.raises(TypeError, match="needs a class, not int"):
        _native.type_name(3)


def test_type_version_changes_with_the_class_and_its_bases():
    class Base:
        pass

    class Derived(Base):
        pass

    first = _native.type_version(Derived)
    assert first > 0 and _native.type_version(Derived) == first
    Derived.attribute = 1
    second = _native.type_version(Derived)
    assert second not in (0, first)
    Base.attribute = 2
    third = _native.type_version(Derived)
    assert third not in (0, first, second)
    Derived().attribute = 3
    assert _native.type_version(Derived) == third
    assert _native.type_version(int) > 0


def test_type_version_needs_a_class():
    with pytest.raises(TypeError):
        _native.type_version(1)
    with pytest.raises(TypeError):
        _native.type_version()


PROFILES = pytest.mark.skipif(sys.version_info >= (3, 12), reason="later versions are in test_watched_calls.py")


@PROFILES
def test_call_watched_shows_the_frames_that_are_entered():
    entered = []

    def inner():
        return len([1])

    def outer(*args, **kwargs):
        return inner(), args, kwargs

    assert _native.call_watched(lambda frame: entered.append(frame.f_code), outer, (1,), {"a": 2}) == (
        1,
        (1,),
        {"a": 2},
    )
    assert entered[:2] == [outer.__code__, inner.__code__]
    assert sys.getprofile() is None


@PROFILES
def test_a_watcher_that_raises_stops_the_function():
    ran = []

    def refuse(frame):
        raise LookupError(frame.f_code.co_name)

    def target():
        ran.append(1)

    with pytest.raises(LookupError, match="target"):
        _native.call_watched(refuse, target, (), {})
    assert not ran and sys.getprofile() is None


@PROFILES
def test_errors_of_a_watched_call_are_its_own():
    with pytest.raises(ZeroDivisionError):
        _native.call_watched(lambda frame: None, divmod, (1, 0), {})
    assert sys.getprofile() is None
    with pytest.raises(TypeError):
        _native.call_watched(lambda frame: None, len)


def test_has_keys_means_the_very_keys_in_order():
    word = "".join(["wo", "rd"])
    assert _native.has_keys({}, ()) is True
    assert _native.has_keys({"a": 1, word: 2}, ("a", word)) is True
    assert _native.has_keys({"a": 1, word: 2}, (word, "a")) is False
    assert _native.has_keys({"a": 1, word: 2}, ("a",)) is False
    assert _native.has_keys({"a": 1}, ("a", word)) is False
    assert _native.has_keys({"".join(["wo", "rd"]): 2}, (word,)) is False
    assert _native.has_keys(collections.OrderedDict(a=1), ("a",)) is False
    assert _native.has_keys(["a"], ("a",)) is False
    with pytest.raises(TypeError):
        _native.has_keys({}, [])
