"""With statements in captured code: user-defined, suppressing and generator-based managers, and those of contextlib."""

import contextlib

import torch

from kiln.testing import check
from tests.support.program_table import ProgramTable, X

TABLE = program = ProgramTable()


class Manager:
    def __init__(self, log, name="m", suppress=(), result=None):
        self.log = log
        self.name = name
        self.suppress = suppress
        self.result = result

    def __enter__(self):
        self.log.append(("enter", self.name))
        return self if self.result is None else self.result

    def __exit__(self, kind, error, traceback):
        self.log.append(
            ("exit", self.name, None if kind is None else kind.__name__, None if error is None else error.args)
        )
        return kind is not None and issubclass(kind, self.suppress)


@contextlib.contextmanager
def generated(log, name="g", catch=()):
    log.append(("enter", name))
    try:
        yield name
    except catch as error:
        log.append(("caught", name, type(error).__name__))
    finally:
        log.append(("exit", name))


@contextlib.contextmanager
def without_try(log):
    log.append("begin")
    yield 5
    log.append("end")


@contextlib.contextmanager
def replacing(error):
    try:
        yield
    except ValueError as caught:
        raise error from caught


@program(X)
def user_manager(x):
    log = []
    with Manager(log) as m:
        x = x + 1
        log.append(m.name)
    with Manager(log, "result", result=7) as value:
        x = x * value
    with Manager(log, "unused"):
        pass
    return x, log


@program(X)
def several_managers(x):
    log = []
    with Manager(log, "a") as a, Manager(log, "b", result=(1, 2)) as (p, q), generated(log, "c") as c:
        x = x + p * q
        log.append((a.name, c))
    with (
        Manager(log, "d"),
        Manager(log, "e") as e,
    ):
        log.append(e.name)
    return x, log


@program(X)
def suppressing_manager(x):
    log = []
    with Manager(log, suppress=(ValueError,)):
        x = x + 1
        raise ValueError("gone", 1)
        x = x * 100
    with Manager(log, "outer", suppress=(KeyError,)):
        with Manager(log, "inner"):
            {}["k"]
    try:
        with Manager(log, "not", suppress=(KeyError,)):
            raise TypeError("stays")
    except TypeError as error:
        log.append(str(error))
    return x * 2, log


@program(X)
def generator_manager(x):
    log = []
    with generated(log) as name:
        x = x + len(name)
    with without_try(log) as five:
        x = x * five
    with generated(log, "catching", catch=(ValueError,)):
        x = x - 1
        raise ValueError("inside")
    try:
        with generated(log, "passing"):
            raise KeyError("through")
    except KeyError as error:
        log.append(("outside", error.args))
    try:
        with without_try(log):
            raise KeyError("no end")
    except KeyError as error:
        log.append(error.args)
    try:
        with replacing(TypeError("new")):
            raise ValueError("old")
    except TypeError as error:
        log.append((str(error), str(error.__cause__)))
    return x, log


@program(X)
def leaving_with(x):
    log = []

    def returns():
        with Manager(log, "returns"):
            return "value"

    def returns_from_generated():
        with generated(log, "returns"):
            return "value"

    def breaks():
        for i in range(5):
            with Manager(log, i), generated(log, -i):
                if i == 1:
                    continue
                if i == 2:
                    break
                log.append("body")
        return i

    def suppressed_return():
        with Manager(log, "s", suppress=(ValueError,)):
            raise ValueError
        return "after"

    return x, returns(), returns_from_generated(), breaks(), suppressed_return(), log


@program(X)
def exit_stack(x):
    log = []
    with contextlib.ExitStack() as stack:
        for name in "abc":
            stack.enter_context(Manager(log, name))
        stack.callback(log.append, "callback")
        stack.enter_context(generated(log))
        x = x + 1
    with contextlib.ExitStack() as stack:
        stack.enter_context(Manager(log, "outer", suppress=(ValueError,)))
        stack.enter_context(Manager(log, "inner"))
        raise ValueError("in the stack")
    return x, log


@program(X)
def library_managers(x):
    log = []
    with contextlib.nullcontext() as nothing, contextlib.nullcontext(4) as four:
        x = x + four
    with contextlib.suppress(KeyError, ValueError):
        x = x * 2
        {}["k"]
        x = x * 100
    with contextlib.suppress(ValueError):
        log.append("no error")

    return x, nothing, log


class Closable:
    def __init__(self, log):
        self.log = log

    def close(self):
        self.log.append("closed")


@program(X)
def closing(x):
    log = []
    with contextlib.closing(Closable(log)) as c:
        c.log.append("open")
        x = x + 1
    return x, log


class Switched(contextlib.ContextDecorator):
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("on")

    def __exit__(self, *details):
        self.log.append(("off", len(details)))


@program(X)
def as_decorators(x):
    log = []

    @Switched(log)
    def first(value):
        return value + 1

    @generated(log, "decorator")
    def second(value):
        return value * 2

    return second(first(x)), first(x), log


@program(X)
def grad_modes(x):
    states = []
    with torch.no_grad():
        states.append(torch.is_grad_enabled())
        y = x * 2
        with torch.enable_grad():
            states.append(torch.is_grad_enabled())
            z = x * 3
    try:
        with torch.no_grad():
            raise ValueError
    except ValueError:
        states.append(torch.is_grad_enabled())
    return y, z, x * 4, states


@program(X)
def manager_changes_the_exception(x):
    log = []

    class_name = None
    try:
        with Manager(log, "outer"):
            try:
                with Manager(log, "inner"):
                    raise ValueError("first")
            finally:
                class_name = "seen"
                raise KeyError("second")
    except KeyError as error:
        log.append((error.args, str(error.__context__), class_name))
    return x, log


@program.breaking(X)
def no_manager(x):
    messages = []
    try:
        with 5:
            pass
    except TypeError as error:
        messages.append(str(error))
    try:
        with [] as items:
            items.append(1)
    except TypeError as error:
        messages.append(str(error))
    return x, messages


@program.breaking(X)
def breaks_inside_blocks(x):
    log = []
    with Manager(log, "a") as a, generated(log, "b"):
        x = x + 1
        print("inside", a.name)
        x = x * 2
        with Manager(log, "c", suppress=(ValueError,)):
            print("deeper")
            raise ValueError("suppressed")
        print("after")
        x = x - 1
    return x, log


@program.breaking(X)
def breaks_in_enter_and_exit(x):
    class Printing:
        def __enter__(self):
            print("enter")

        def __exit__(self, *details):
            print("exit", details[0])
            return True

    with Printing():
        x = x + 1
        raise KeyError
    return x


@TABLE.rows
def test_with(program, args, expect):
    TABLE.run(program, args, expect)


def test_exceptions_that_leave_with_blocks():
    def program(x, log):
        with Manager(log, "a"), generated(log, "b"):
            y = x + 1
            raise ValueError(f"size {y.shape[0]}")

    check(program, X, [], breaks_every=(None, "line"))


def test_return_inside_with_is_one_graph():
    def program(x):
        log = []
        with Manager(log), generated(log):
            return x * 2 + 1, log

    check(program, X, fullgraph=True, graphs=1, ops=2)


def test_managers_from_outside():
    def program(x, manager):
        with manager as m:
            x = x + 1
        with manager:
            x = x * 2
        return x, m is manager

    check(program, X, Manager([], "outside"), fullgraph=True, breaks_every=(None, "line"))
