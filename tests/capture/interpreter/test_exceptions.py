"""Exceptions: type, message, arguments, cause, context and the user's lines are those of eager, wherever they arise."""

import contextlib
import sys
import traceback

import pytest
import torch

import kiln
from kiln.testing import check
from tests.support.program_table import ProgramTable, X

TABLE = program = ProgramTable(breaks_every=(None, "line", "instruction"), fullgraph=False)
M = torch.zeros(3, 3)


class Problem(Exception):
    def __init__(self, message, code):
        super().__init__(message)
        self.code = code

    def __str__(self):
        return f"{self.args[0]} ({self.code})"


class Failing:
    def __init__(self, value):
        self.value = value

    @property
    def broken(self):
        raise AttributeError(f"no {self.value}")

    def __getattr__(self, name):
        raise AttributeError(f"{name} of {self.value}")

    def __add__(self, other):
        raise Problem("add", other)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if isinstance(error, KeyError):
            raise ValueError("from exit")
        return False

    def __iter__(self):
        yield 1
        raise Problem("iteration", 5)


def raise_deep(x, depth):
    if depth == 0:
        y = x * 2
        raise Problem("deep", y.shape[0])
    return raise_deep(x + 1, depth - 1) * 2


def handle(x, error):
    try:
        raise error
    except KeyError:
        return x + 1


# -- leaving the compiled function ----------------------------------------------------------------------------------


@program(X)
def raised_at_root(x):
    y = x + 1
    raise Problem("root", y.dim())


@program(X)
def raised_in_callees(x):
    y = x * 2
    return raise_deep(y, 3)


@program(X)
def raised_with_cause(x):
    try:
        {}["missing"]
    except KeyError as error:
        raise ValueError("outer") from error


@program(X)
def raised_with_context(x):
    try:
        x + 1
        raise_deep(x, 1)
    except Problem as error:
        raise ValueError(f"while handling {error.code}")  # noqa: B904


@program(X)
def raised_from_none(x):
    try:
        int("x")
    except ValueError:
        raise LookupError from None


@program(X)
def raised_again(x):
    try:
        raise_deep(x, 2)
    except Problem as error:
        error.code += 1
        raise


@program(X)
def raised_in_finally(x):
    try:
        raise_deep(x, 1)
    finally:
        x = x + 1
        [][3]


@program(X)
def failing_assertion(x):
    n = x.dim()
    assert n == 1
    assert n == 2, f"expected 2, not {n}"


@program(X)
def from_a_manager(x):
    with Failing(1):
        x + 1
        {}["key"]


@program(X)
def from_a_generator(x):
    return [x * i for i in Failing(2)]


@program(X)
def from_a_comprehension(x):
    return [x * (1 // (2 - i)) for i in range(4)]


@program(X)
def from_a_property(x):
    owner = Failing(x + 1)
    return owner.broken


@program(X)
def from_native_code(x):
    return sorted([1, "a"]), x


@program(X)
def unbound_local(x):
    if x.dim() > 1:
        y = 1
    return y


@program(X)
def undefined_global(x):
    return x + undefined_name  # noqa: F821


@program(X)
def wrong_call(x):
    return raise_deep(x + 1, 1, 2, depth=3)


@program(X)
def wrong_types(x):
    return x + 1, "a" + 1


@program(X)
def not_an_exception(x):
    raise 5  # noqa: B016


@program(X)
def exits(x):
    x + 1
    sys.exit(3)


@program(X)
def interrupted(x):
    x + 1
    raise KeyboardInterrupt


@program(X)
def stop_iteration_through_a_generator(x):
    def numbers():
        yield x
        next(iter(()))

    return list(numbers())


# -- operations that fail -------------------------------------------------------------------------------------------


@program(X)
def wrong_shapes(x):
    y = x * 2
    return y @ torch.ones(5, 2)


def matrix_product(a, b):
    return torch.mm(a, b)


@program(X, calls=2)
def wrong_shapes_in_a_callee(x):
    y = x.reshape(3, 1) + 1
    return matrix_product(y, y)


@program(torch.zeros(3, 3), calls=2)
def singular_matrix(m):
    return torch.linalg.inv(m) + 1


@program(X, torch.tensor(7), calls=2)
def index_out_of_range(x, index):
    y = x * 2
    return y.index_select(0, index.reshape(1)) + 1


@program(torch.zeros(3, 3), [0])
def fails_after_an_effect(m, log):
    log.append("before")
    m.add_(0)
    y = torch.linalg.inv(m)
    log.append("after")
    return y


@program(torch.zeros(3, 3), [0])
def fails_after_random_numbers(m, log):
    noise = torch.rand(3)
    y = torch.linalg.inv(m)
    return y + noise


@program(torch.zeros(3, 3))
def fails_under_no_grad(m):
    with torch.no_grad():
        y = m * 2
        return torch.linalg.inv(y)


@program(torch.zeros(3, 3), [])
def failure_is_handled(m, log):
    try:
        log.append("try")
        y = torch.linalg.inv(m)
        log.append("no")
    except RuntimeError as error:
        log.append(type(error).__name__)
        y = m + 1
    finally:
        log.append("finally")
    return y * 2, log


@program(torch.zeros(3, 3), [])
def failure_in_a_callee_is_handled(m, log):
    def inverse(value):
        with contextlib.suppress(TypeError), torch.no_grad():
            log.append(torch.is_grad_enabled())
            return torch.linalg.inv(value)

    try:
        y = inverse(m + 0)
    except RuntimeError:
        y = m - 1
    return y, torch.is_grad_enabled()


@program(X)
def wrong_shapes_are_handled(x):
    log = []
    for size in (3, 4):
        try:
            log.append(x + torch.ones(size))
        except RuntimeError as error:
            log.append(str(error)[:40])
    return log


@program(torch.zeros(3, 3))
def suppressed_failure(m):
    y = m
    with contextlib.suppress(RuntimeError):
        y = torch.linalg.inv(m)
    return y + 1


# -- caught inside --------------------------------------------------------------------------------------------------

CAUGHT = ProgramTable(breaks_every=(None, "line", "instruction"), fullgraph=True)


@CAUGHT(X)
def caught_at_root(x):
    try:
        raise Problem("a", 1)
    except (KeyError, Problem) as error:
        return x + error.code, str(error), error.args


@CAUGHT(X)
def caught_from_callees(x):
    results = []
    for depth in range(3):
        try:
            raise_deep(x, depth)
        except Problem as error:
            results.append(x * error.code)
        else:
            results.append(None)
        finally:
            results.append(depth)
    return results


@CAUGHT(X)
def nested_handlers(x):
    log = []
    try:
        try:
            raise KeyError("inner")
        except KeyError as error:
            log.append(repr(error))
            try:
                raise ValueError("second")
            except ValueError as second:
                log.append(repr(second.__context__))
            raise TypeError("third") from error
    except TypeError as third:
        log += [repr(third), repr(third.__cause__), repr(third.__context__), third.__suppress_context__]
    return log, x + 1


@CAUGHT(X)
def caught_in_a_callee(x):
    return handle(x, KeyError("k"))


@CAUGHT(X)
def exceptions_are_objects(x):
    errors = [Problem("a", 1), KeyError("k"), ValueError()]
    return [(type(e).__name__, e.args, str(e)) for e in errors], errors[0].code, errors[1], x * 2


@CAUGHT(X)
def attribute_errors(x):
    owner = Failing("it")
    return getattr(owner, "broken", x), hasattr(owner, "other"), getattr(owner, "other", None)


@CAUGHT(X)
def stop_iterations(x):
    numbers = iter([1])
    values = [next(numbers), next(numbers, "default")]
    try:
        next(numbers)
    except StopIteration as stop:
        values.append(stop.value)
    return values, x


@CAUGHT(X)
def return_and_continue_in_finally(x):
    def decide(flag):
        for i in range(3):
            try:
                if flag:
                    raise KeyError(i)
                return i
            except KeyError:
                if i == 1:
                    break
                continue
            finally:
                log.append(i)
        return "end"

    log = []
    return decide(True), decide(False), log, x


@CAUGHT(X)
def suppressing_managers(x):
    with contextlib.suppress(KeyError):
        {}["missing"]
        x = x * 100
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(Problem))
        raise_deep(x, 1)
    return x + 1


@TABLE.rows
def test_leaving(program, args, expect):
    TABLE.run(program, args, expect)


@CAUGHT.rows
def test_caught(program, args, expect):
    CAUGHT.run(program, args, expect)


# -- beyond the helper ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", (raised_at_root, raised_in_callees, wrong_shapes, unbound_local))
def test_fullgraph_gives_the_programs_own_error(function):
    check(function, X, fullgraph=True)


def test_a_program_that_raises_at_times():
    def main(x, n):
        y = x / n
        if n > 2:
            raise ValueError(n)
        return y + 1

    check(main, calls=[(X, 1), (X, 3), (X, 2), (X, 4)])


def test_caller_is_handling_something():
    def reraise():
        raise

    def context():
        try:
            raise KeyError("k")
        except KeyError as error:
            return error.__context__, sys.exception() is error

    def main(x):
        inside = context()
        return x + 1, inside, sys.exception()

    def program(x, compiled_main, compiled_reraise):
        try:
            raise ValueError("outer")
        except ValueError:
            result = compiled_main(x)
            try:
                compiled_reraise()
            except ValueError as error:
                return result[0], str(error), repr(result[1][0]), result[1][1], repr(result[2])

    expected = program(X, main, reraise)
    for _ in range(2):
        got = program(X, kiln.compile(main), kiln.compile(reraise))
        assert torch.equal(got[0], expected[0]) and got[1:] == expected[1:]


def test_traceback_text_has_the_users_lines():
    def main(x):
        y = x + 1
        kiln.graph_break()
        return raise_deep(y, 1)

    with pytest.raises(Problem) as caught:
        kiln.compile(main)(X)
    text = "".join(traceback.format_exception(caught.value))
    assert text.count("return raise_deep(y, 1)") == 1
    assert text.count("return raise_deep(x + 1, depth - 1) * 2") == 1
    assert 'raise Problem("deep", y.shape[0])' in text


def test_traceback_of_a_handled_exception():
    def lines(error):
        return [entry.name for entry in traceback.extract_tb(error.__traceback__) if entry.filename == __file__]

    def main(x):
        try:
            raise_deep(x, 2)
        except Problem as error:
            kept = error
        return kept

    assert lines(kiln.compile(main)(X)) == lines(main(X))


def test_keyboard_interrupt_while_compiling_leaves_things_as_they_were():
    def backend(graph, inputs):
        raise KeyboardInterrupt

    compiled = kiln.compile(lambda x: x + 1, backend=backend)
    with torch.no_grad(), pytest.raises(KeyboardInterrupt):
        compiled(X)
    assert torch.is_grad_enabled()


def test_state_after_a_graph_failed():
    def main(m):
        with torch.no_grad():
            a = torch.rand(2)
            b = torch.linalg.inv(m)
        return a, b

    compiled = kiln.compile(main)
    for function in (main, compiled, compiled):
        torch.manual_seed(1)
        with pytest.raises(RuntimeError):
            function(M)
        assert torch.is_grad_enabled()
        assert torch.rand(1).item() == pytest.approx(0.4031, abs=1e-4)


def test_error_after_a_good_call():
    check(lambda m: torch.linalg.inv(m) + 1, calls=[(torch.eye(3),), (M,), (torch.eye(3) * 2,)], recompiles=0)
