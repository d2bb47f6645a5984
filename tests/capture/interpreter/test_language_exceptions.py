# ruff: noqa: B016, B030, B904, F841  (the programs are what they are on purpose)
"""Exceptions in captured code: try, except, else, finally, raise, chains of causes and contexts, custom classes."""

import sys

import pytest
import torch

import kiln
from kiln.capture.interpreter import operators
from kiln.capture.state.values import Raised
from kiln.testing import check
from tests.support.program_table import ProgramTable, X

TABLE = program = ProgramTable()


class Custom(Exception):
    def __init__(self, code, detail=None):
        super().__init__(f"code {code}")
        self.code = code
        self.detail = detail

    def describe(self):
        return f"{self.code}:{self.detail}"


class Child(Custom):
    def __str__(self):
        return f"child of {self.code}"


class Plain(ValueError):
    """No constructor of its own."""


@program(X, 3)
def try_except_else_finally(x, n):
    log = []
    for value in (1, 0, "a", None):
        try:
            log.append(n // value)
        except ZeroDivisionError:
            log.append("zero")
        except (TypeError, ValueError) as error:
            log.append(type(error).__name__)
        else:
            log.append("else")
        finally:
            log.append("finally")
    return x * len(log), log


@program(X)
def builtin_errors(x):
    caught = []
    table, items = {"k": 1}, [1]
    try:
        table["missing"]
    except KeyError as error:
        caught.append((error.args, str(error)))
    try:
        items[5]
    except IndexError as error:
        caught.append(str(error))
    try:
        items.missing
    except AttributeError as error:
        caught.append((str(error), error.name))
    try:
        int("a")
    except ValueError as error:
        caught.append(str(error))
    try:
        undefined_name
    except NameError as error:
        caught.append(str(error))
    try:
        next(iter(()))
    except StopIteration as error:
        caught.append(error.value)
    try:
        x.missing_attribute
    except AttributeError as error:
        caught.append(str(error))
    return x + len(caught), caught


@program(X)
def raise_and_catch(x):
    log = []
    try:
        raise ValueError("text", 1)
    except ValueError as error:
        log.append(error.args)
    try:
        raise KeyError
    except LookupError as error:
        log.append(repr(error))
    try:
        raise Plain("p")
    except ValueError as error:
        log.append((type(error).__name__, str(error)))
    try:
        raise Custom(7, detail="d")
    except Custom as error:
        log.append((error.code, error.describe(), str(error), error.args))
    try:
        raise Child(8)
    except Custom as error:
        log.append((str(error), error.detail, isinstance(error, Child)))
    return x * len(log), log


@program(X)
def nested_handlers(x):
    log = []
    try:
        try:
            raise ValueError("inner")
        except TypeError:
            log.append("never")
        finally:
            log.append("inner finally")
    except ValueError as outer:
        log.append(str(outer))
        try:
            raise TypeError("second")
        except TypeError as second:
            log.append(second.__context__ is outer)
            try:
                raise RuntimeError("third") from None
            except RuntimeError as third:
                log.append((third.__cause__, third.__suppress_context__, third.__context__ is second))
        log.append(sys.exc_info()[1] is outer)
    else:
        log.append("never")
    return x + len(log), log


@program(X)
def causes_and_contexts(x):
    results = []
    try:
        try:
            {}["k"]
        except KeyError as key_error:
            raise ValueError("wrapped") from key_error
    except ValueError as error:
        results.append(
            (type(error.__cause__).__name__, error.__cause__ is error.__context__, error.__suppress_context__)
        )
    try:
        try:
            1 / 0
        finally:
            {}["k"]
    except KeyError as error:
        results.append((type(error.__context__).__name__, error.__cause__, error.__suppress_context__))
    try:
        try:
            int("x")
        except ValueError:
            [].pop()
    except IndexError as error:
        results.append(str(error.__context__))
    error = ValueError("kept")
    error.note = "extra"
    error.add_note("a note")
    try:
        raise error
    except ValueError as caught:
        results.append((caught is error, caught.note, caught.__notes__))
    return x, results


@program(X)
def bare_raise(x):
    log = []
    try:
        try:
            raise ValueError("again")
        except ValueError:
            log.append("first")
            raise
    except ValueError as error:
        log.append((str(error), error.__context__))

    def reraise():
        raise

    try:
        try:
            raise KeyError("k")
        except KeyError:
            reraise()
    except KeyError as error:
        log.append(error.args)
    return x * 2, log


@program(X)
def name_is_unbound_after_handler(x):
    error = "before"
    try:
        raise ValueError
    except ValueError as error:
        x = x + 1
    try:
        error
    except UnboundLocalError as problem:
        return x, str(problem)


def check_positive(n):
    if n < 0:
        raise Custom(n)
    return n


def middle(n):
    try:
        return check_positive(n)
    finally:
        LOG.append(("middle", n))


LOG = []


@program(X)
def across_calls(x):
    results = []
    for n in (2, -1, 3, -5):
        try:
            results.append(middle(n))
        except Custom as error:
            results.append((error.code, str(error)))
    return x * len(results), results


@program(X)
def return_in_finally(x):
    def overrides():
        try:
            return "try"
        finally:
            return "finally"  # noqa: B012

    def swallows():
        try:
            raise ValueError
        finally:
            return "swallowed"  # noqa: B012

    def keeps():
        value = [1]
        try:
            return value
        finally:
            value.append(2)

    def loops():
        seen = []
        for i in range(4):
            try:
                if i == 1:
                    continue
                if i == 3:
                    break
                seen.append(i)
            finally:
                seen.append("f")
        return seen

    return x, overrides(), swallows(), keeps(), loops()


@program(X)
def tensor_work_in_handlers(x):
    total = x
    for value in (1, 0, 2):
        try:
            total = total * 2
            total = total + 1 // value
        except ZeroDivisionError:
            total = total - 1
        else:
            total = total + 0.5
        finally:
            total = total * 3
    return total


@program(X)
def try_in_a_loop_in_a_try(x):
    log = []
    try:
        for i in range(5):
            try:
                if i == 1:
                    raise ValueError(i)
                if i == 3:
                    raise KeyError(i)
            except ValueError as error:
                log.append(error.args)
                continue
            log.append(i)
            x = x + i
    except KeyError as error:
        log.append(("outer", error.args))
    return x, log


@program(X)
def chosen_classes(x):
    kinds = (ValueError, KeyError)
    other = TypeError
    log = []
    for error in (ValueError("v"), KeyError("k"), TypeError("t")):
        try:
            raise error
        except kinds as caught:
            log.append(("kinds", caught.args))
        except other as caught:
            log.append(("other", caught.args))
    return x, log


@program.breaking(X)
def bad_raises(x):
    messages = []
    try:
        raise 5
    except TypeError as error:
        messages.append(str(error))
    try:
        raise ValueError from 5
    except TypeError as error:
        messages.append(str(error))
    try:
        try:
            raise KeyError
        except 5:
            pass
    except TypeError as error:
        messages.append(str(error))
    return x, messages


@program.breaking(X)
def handlers_across_breaks(x):
    log = []
    try:
        print("try")
        x = x + 1
        raise ValueError("v")
    except ValueError as error:
        print("except", error)
        log.append(str(error))
        try:
            print("inner")
            raise KeyError("k") from error
        except KeyError as inner:
            print("handler")
            log.append((inner.__cause__ is error, str(inner.__context__)))
    finally:
        print("finally")
        x = x * 2
    return x, log


@program.breaking(X)
def exception_groups(x):
    log = []
    try:
        raise ExceptionGroup("many", [ValueError(1), TypeError(2), KeyError(3)])
    except* ValueError as group:
        log.append(len(group.exceptions))
        x = x + 1
    except* (TypeError, KeyError) as group:
        log.append([type(error).__name__ for error in group.exceptions])
    return x, log


@program.breaking(X)
def exceptions_as_values(x):
    made = ValueError("made", 1)
    custom = Custom(3, [x])
    return made, custom, [KeyError("k")], custom.detail[0] + 1, made.args


@TABLE.rows
def test_exceptions(program, args, expect):
    TABLE.run(program, args, expect)


def raises_plainly(x):
    y = x + 1
    raise ValueError(f"size {y.shape[0]}")


def raises_custom(x):
    raise Custom(3, detail=(1, 2))


def raises_from(x):
    try:
        {}["k"]
    except KeyError as error:
        raise Custom(1) from error


def raises_while_handling(x):
    try:
        x = x * 2
        [][0]
    except IndexError:
        raise Plain("second")


def raises_in_callee(x):
    y = x * 2
    return middle(-1) + y


def raises_after_mutation(x):
    LOG.append("before")
    x.add_(1)
    raise RuntimeError("after the mutation")


def raises_in_comprehension(x):
    return [1 / (2 - i) for i in range(5)]


def raises_in_torch(x):
    y = x + 1
    return y @ torch.ones(7)


def raises_in_finally(x):
    try:
        raise ValueError("lost")
    finally:
        x = x + 1
        raise KeyError("kept")


def raises_stop_iteration(x):
    return next(iter([])) + x


def raises_from_generator(x):
    def generate():
        yield x + 1
        raise Plain("in generator")

    return list(generate())


def raises_stop_in_generator(x):
    def generate():
        yield next(iter(()))

    return list(generate())


def raises_in_sort_key(x):
    def key(value):
        if value == 2:
            raise Custom(value)
        return value

    return sorted([3, 2, 1], key=key)


def raises_bad_call(x):
    return check_positive(1, 2, three=3)


def raises_system_exit(x):
    sys.exit(3)


def raises_key_error_in_except(x):
    table = {}
    try:
        return table[x.shape[0]]
    except KeyError:
        table[1] = x + 1
        return table[2]


RAISING = [value for name, value in list(globals().items()) if name.startswith("raises_")]


@pytest.mark.parametrize("program", RAISING, ids=lambda program: program.__name__)
def test_exceptions_that_leave(program):
    check(program, X, breaks_every=(None, "line"))


@pytest.mark.parametrize("error", [ValueError("v"), Custom(3), KeyError("k", 1), Plain()], ids=repr)
def test_raising_an_outside_exception(error):
    def program(x, error):
        try:
            y = x + 1
            raise error
        except type(error) as caught:
            return y, caught is error, caught.args, str(caught)

    check(program, X, error, breaks_every=(None, "line"))


def test_caught_exceptions_stay_in_the_graph():
    def program(x):
        y = x + 1
        try:
            y = y * 2
            raise Custom(3)
        except Custom as error:
            y = y + error.code
        return y * 2

    check(program, X, fullgraph=True, graphs=1, ops=4)


def test_context_of_the_caller_is_seen():
    def program(x):
        y = x + 1
        return y, sys.exc_info()[1], sys.exception() is None

    def caller(compiled, x):
        try:
            raise ValueError("outer")
        except ValueError:
            return compiled(x)

    import kiln

    compiled = kiln.compile(program)
    assert compiled(X)[1] is None
    assert isinstance(caller(compiled, X)[1], ValueError)
    assert compiled(X)[1] is None


def test_errors_that_only_capture_has_are_internal_errors(monkeypatch):
    """Python runs the instruction again and raises nothing: tests must see that."""

    def f(x):
        return x + 1, [x.shape[0]] + [2]

    def wrong(trace, function, left, right):
        raise Raised(TypeError("not in Python"))

    monkeypatch.setattr(operators, "run_native_operator", wrong)
    with pytest.raises(kiln.exc.InternalError, match="the program raises no TypeError"):
        kiln.compile(f, backend="eager")(torch.ones(3))
    kiln.reset()
    with kiln.config.patch(raise_internal_errors=False):
        assert kiln.compile(f, backend="eager")(torch.ones(3))[1] == [3, 2]
