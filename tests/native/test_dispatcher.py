"""kiln._native.Dispatcher: what a call does, and that it passes for the function it wraps."""

import copy
import functools
import gc
import inspect
import pickle
import sys
import threading
import types
import warnings
import weakref

import pytest
import torch  # noqa: F401  (must be loaded before the native module)

from kiln import _native


def no_miss(dispatcher, args, kwargs):
    raise AssertionError("no call should miss")


def record_miss(dispatcher, args, kwargs):
    return ("miss", args, kwargs)


def dispatcher_of(function, *entries, miss=record_miss):
    made = _native.Dispatcher(function, miss)
    made.entries = list(entries)
    return made


def original(x, y=2, *, z=3):
    """The documentation."""
    return ("original", x, y, z)


module_level = _native.Dispatcher(original, record_miss)
module_level.__qualname__ = "module_level"


def test_first_entry_that_applies_runs_with_the_same_arguments():
    made = dispatcher_of(
        original,
        (lambda *args, **kwargs: False, lambda *args, **kwargs: "first"),
        (lambda x, **kwargs: x == 1, lambda *args, **kwargs: ("second", args, kwargs)),
        miss=no_miss,
    )
    assert made(1, y=5) == ("second", (1,), {"y": 5})
    assert made(1) == ("second", (1,), {})


def test_miss_gets_dispatcher_tuple_and_dict():
    made = _native.Dispatcher(original, lambda *args: args)
    assert made(1, 2, z=4) == (made, (1, 2), {"z": 4})
    assert made() == (made, (), {})
    assert made(*[1], **{"z": 4}) == (made, (1,), {"z": 4})


def test_entry_without_check_takes_all_but_stays_behind():
    made = dispatcher_of(original, (lambda x: x == 1, lambda x: "one"), (None, lambda x: "any"))
    assert [made(2), made(1), made(2)] == ["any", "one", "any"]
    assert made.entries[1][0] is None


def test_hit_moves_to_the_front():
    entries = [(lambda x, i=i: x == i, lambda x, i=i: i) for i in range(4)]
    made = dispatcher_of(original, *entries)
    assert made(2) == 2
    assert made.entries == [entries[2], entries[0], entries[1], entries[3]]
    assert [made(i) for i in (3, 0, 1, 2)] == [3, 0, 1, 2]


def test_check_that_raises_says_no():
    def failing(x):
        raise ValueError("a guard met something odd")

    assert dispatcher_of(original, (failing, no_miss), (None, lambda x: "next"))(1) == "next"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_check_that_is_interrupted_stops_the_call(error):
    def interrupted(x):
        raise error

    with pytest.raises(error):
        dispatcher_of(original, (interrupted, no_miss), (None, no_miss))(1)


def test_check_may_answer_with_any_object():
    class Undecided:
        def __bool__(self):
            raise ValueError("neither")

    run = lambda x: "ran"
    assert dispatcher_of(original, (lambda x: [1], run))(1) == "ran"
    assert dispatcher_of(original, (lambda x: [], run))(1)[0] == "miss"
    assert dispatcher_of(original, (lambda x: Undecided(), run))(1)[0] == "miss"


def test_errors_of_run_and_miss_come_out():
    def failing(*args):
        raise LookupError("from the program")

    with pytest.raises(LookupError, match="from the program"):
        dispatcher_of(original, (None, failing), (None, no_miss))(1)
    with pytest.raises(LookupError, match="from the program"):
        dispatcher_of(original, miss=failing)(1)


def test_disabled_and_not_enabled_call_the_original():
    made = dispatcher_of(original, (None, lambda *args, **kwargs: "compiled"))
    assert made(1) == "compiled"
    made.enabled = False
    assert made(1, z=9) == original(1, z=9)
    made.enabled = True
    assert _native.set_disabled(True) is False
    try:
        assert _native.is_disabled()
        assert made(1) == original(1)
        seen = []
        thread = threading.Thread(target=lambda: seen.append((_native.is_disabled(), made(1))))
        thread.start()
        thread.join()
        assert seen == [(False, "compiled")]
    finally:
        assert _native.set_disabled(False) is True
    assert made(1) == "compiled"


def redefine_code(function):
    function.__code__ = (lambda x, y=2, *, z=3: "redefined").__code__


def redefine_defaults(function):
    function.__defaults__ = (7,)


def redefine_keyword_defaults(function):
    function.__kwdefaults__ = {"z": 8}


@pytest.mark.parametrize("redefine", [redefine_code, redefine_defaults, redefine_keyword_defaults])
@pytest.mark.parametrize("bound", [False, True])
def test_redefinition_drops_the_entries(redefine, bound):
    def function(x, y=2, *, z=3):
        return x

    made = dispatcher_of(types.MethodType(function, 0) if bound else function, (None, lambda *args: "compiled"))
    changes = []
    made.changed = changes.append
    entries = made.entries
    assert made(1) == "compiled"
    redefine(function)
    assert made(1)[0] == "miss"
    assert changes == [made]
    assert made.entries is entries and entries == []
    made.entries.append((None, lambda *args: "compiled again"))
    assert made(1) == "compiled again"
    assert changes == [made]


def test_sync_accepts_a_redefinition():
    def function(x, y=2, *, z=3):
        return x

    made = dispatcher_of(function, (None, lambda *args: "compiled"))
    redefine_code(function)
    made.sync()
    assert made(1) == "compiled"


def test_entries_may_change_during_a_call():
    def clearing(x):
        made.entries.clear()
        return x

    made = dispatcher_of(original, (lambda x: False, None), (clearing, lambda x: "ran"))
    assert made(True) == "ran"
    assert made.entries == []

    def replacing(x):
        made.entries = [(None, lambda x: "replaced")]
        gc.collect()
        return False

    made.entries = [(replacing, None)]
    assert made(1)[0] == "miss"
    assert made(1) == "replaced"


def test_wrong_use_raises_type_error():
    for arguments in [(), (original,), (1, original), (original, 1), (original, original, original)]:
        with pytest.raises(TypeError):
            _native.Dispatcher(*arguments)
    made = dispatcher_of(original)
    for name, value in [("entries", ()), ("entries", None), ("miss", None), ("changed", 1), ("enabled", 1)]:
        with pytest.raises(TypeError):
            setattr(made, name, value)
    with pytest.raises(TypeError):
        del made.entries
    with pytest.raises((AttributeError, TypeError)):
        made.function = original
    for entry in [1, (), (None,), [None, original]]:
        made.entries = [entry]
        with pytest.raises(TypeError, match="entry"):
            made(1)
    made.entries = [(None, 1)]
    with pytest.raises(TypeError):
        made(1)


class Described:
    def __call__(self, value):
        return "called", value

    def __get__(self, instance, owner):
        return ("got", instance, owner)


def test_binds_like_its_function():
    partial = functools.partial(original)

    class Plain:
        callable_object = partial

    class Example:
        method = dispatcher_of(lambda self, x: (self, x))
        callable_object = dispatcher_of(partial)
        bound_method = dispatcher_of([].append)
        cached = dispatcher_of(functools.lru_cache(original))
        described = dispatcher_of(Described())

    instance = Example()
    assert Example.method is Example.__dict__["method"]
    assert isinstance(instance.method, types.MethodType)
    assert instance.method.__func__ is Example.method and instance.method.__self__ is instance
    assert instance.method(1) == ("miss", (instance, 1), {})
    assert instance.cached(1) == ("miss", (instance, 1), {})
    assert instance.described == ("got", instance, Example)
    with warnings.catch_warnings(record=True) as expected:
        warnings.simplefilter("always")
        owner = getattr(Plain().callable_object, "__self__", None)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        called = instance.callable_object(1)
    assert called == ("miss", (1,) if owner is None else (instance, 1), {})
    assert [str(each.message) for each in found] == [str(each.message) for each in expected]
    assert instance.bound_method(1) == ("miss", (1,), {})


def test_passes_for_its_function():
    made = dispatcher_of(original)
    original.user_attribute = "seen"
    assert (made.__name__, made.__qualname__, made.__module__) == ("original", "original", __name__)
    assert made.__doc__ == "The documentation."
    assert made.user_attribute == "seen"
    assert made.__wrapped__ is made.function is original
    assert inspect.signature(made) == inspect.signature(original)
    assert repr(made) == f"<kiln.compile of {original!r}>"
    assert callable(made)
    with pytest.raises(AttributeError, match="absent"):
        made.absent
    made.own, made.__doc__ = 1, "other"
    assert (made.own, made.__doc__) == (1, "other")
    assert not hasattr(original, "own") and original.__doc__ == "The documentation."
    assert functools.wraps(made)(lambda: None).__name__ == "original"
    assert weakref.ref(made)() is made
    assert {made: 1}[made] == 1


def test_copies_like_its_function():
    assert copy.copy(module_level) is module_level
    assert copy.deepcopy(module_level) is module_level
    assert pickle.loads(pickle.dumps(module_level)) is module_level

    class Holder:
        def method(self):
            return self

    holder = Holder()
    holder.method = dispatcher_of(holder.method, (None, lambda: "compiled"), miss=lambda d, args, kwargs: d.function())
    holder.method.own = 1
    copied = copy.deepcopy(holder)
    assert holder.method() == "compiled"
    assert copied.method() is copied
    assert copied.method.own == 1 and copied.method.entries == []


def test_recursion_ends_in_recursion_error():
    made = dispatcher_of(original, (None, lambda x: made(x)))
    with pytest.raises(RecursionError):
        made(1)


def test_cycles_are_collected():
    class Witness:
        pass

    def build():
        witness = Witness()
        made = dispatcher_of(lambda: witness)
        made.entries.append((None, lambda: made))
        made.itself = made
        return weakref.ref(witness), weakref.ref(made)

    references = build()
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_calls_leak_nothing():
    argument, run = object(), lambda x, y=None: None

    def failing(x, y=None):
        raise ValueError

    def function(x, y=None):
        return None

    made = dispatcher_of(function, (failing, run), (lambda x, y=None: y, run), (lambda x, y=None: y is None, run))
    objects = [argument, run, failing, made.entries, *made.entries, *function.__defaults__, made, made.miss]
    objects = [each for each in objects if each is not None]

    def loop():
        for _ in range(300):
            made(argument)
            made(argument, y=argument)
            made(argument, False)
            made(x=argument, y=False)

    loop()
    before = [sys.getrefcount(each) for each in objects]
    loop()
    assert [sys.getrefcount(each) for each in objects] == before

    blocks = sys.getallocatedblocks()
    for _ in range(300):
        dispatcher_of(function, (None, run)).own = 1
    loop()
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 200


def test_threads_share_a_dispatcher():
    made = dispatcher_of(original, *[(lambda x, i=i: x == i, lambda x, i=i: i * 10) for i in range(5)])
    wrong = []

    def work(start):
        for step in range(5000):
            value = (start + step) % 5
            if made(value) != value * 10:
                wrong.append(value)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    # An entry that another thread moves during the walk must not be stepped over: that would compile it again.
    assert wrong == []
    assert len(set(made.entries)) == 5


@pytest.mark.parametrize("count", (0, 3, 20))
def test_what_a_check_has_read_goes_to_the_run_function(count):
    seen = []

    def run(read, /, *args, **kwargs):
        seen.append((read, args, kwargs))
        return "ran"

    dispatcher = _native.Dispatcher(lambda *args, **kwargs: None, lambda *args: "missed")
    dispatcher.entries.append((lambda *args, **kwargs: ("inputs", 1), run))
    arguments = tuple(range(count))
    assert dispatcher(*arguments, k=5) == "ran"
    assert seen == [(("inputs", 1), arguments, {"k": 5})]


def test_an_empty_tuple_is_a_yes():
    dispatcher = _native.Dispatcher(lambda: None, lambda *args: "missed")
    dispatcher.entries.append((lambda: (), lambda read: read))
    assert dispatcher() == ()
