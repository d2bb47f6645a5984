"""Bad input: each a clear error or plain eager behaviour."""

import asyncio
import types
import warnings

import pytest
import torch

import kiln
from kiln.testing import CompileCounter, same

X = torch.arange(3.0)


# -- what is compiled -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("thing", [3, "text", None, [], X, object()], ids=lambda t: type(t).__name__)
def test_not_callable(thing):
    with pytest.raises(kiln.exc.NotCallable, match=type(thing).__name__):
        kiln.compile(thing)
    with pytest.raises(TypeError):
        kiln.compile(backend="eager")(thing)
    with pytest.raises(kiln.exc.NotCallable, match="kiln.disable"):
        kiln.disable(thing)


def test_unknown_backend():
    with pytest.raises(kiln.exc.UnknownBackend, match="did you mean 'eager'"):
        kiln.compile(lambda x: x, backend="eagre")
    with pytest.raises(ValueError, match="There is no backend called"):
        kiln.compile(lambda x: x, backend=3)
    with pytest.raises(kiln.exc.UnknownBackend):
        kiln.compile(backend="nothing like it at all")
    with pytest.raises(kiln.exc.NotCallable):
        kiln.register_backend(3, name="three")


def test_wrong_options():
    with pytest.raises(TypeError):
        kiln.compile(lambda x: x, unknown=3)
    with pytest.raises(kiln.exc.UnknownOption, match="The backend 'kiln' takes no option 'chek': did you mean 'check'"):
        kiln.compile(lambda x: x, backend="kiln", options={"chek": True})
    with pytest.raises(kiln.exc.UnknownOption, match="The backend 'eager' takes no option 'colour': known names: none"):
        kiln.compile(lambda x: x, backend="eager", options={"colour": "red"})

    def tuned(graph_module, example_inputs, *, level=0, **others):
        assert (level, others) == (2, {"colour": "red"})
        return graph_module.forward

    assert kiln.compile(lambda x: x + 1, backend=tuned, options={"level": 2, "colour": "red"})(X).equal(X + 1)


# -- backends that misbehave ----------------------------------------------------------------------------------------


class BackendTrouble(Exception):
    pass


def raising_backend(graph_module, example_inputs):
    raise BackendTrouble("no such instruction")


def test_backend_that_raises():
    log, cell, box = [], [0], {"n": 1}

    class Thing:
        count = 0

    thing = Thing()

    def f(x):
        log.append(1)
        cell[0] += 1
        box["new"] = 2
        thing.count += 1
        x.add_(1)
        torch.set_grad_enabled(False)
        return x * 2

    x = X.clone()
    compiled = kiln.compile(f, backend=raising_backend)
    for _ in range(2):
        with pytest.raises(kiln.exc.BackendError, match="no such instruction") as caught:
            compiled(x)
        assert isinstance(caught.value.__cause__, BackendTrouble)
        assert "raising_backend" in str(caught.value) and "test_bad_input.py" in str(caught.value)
        assert (log, cell, box, thing.count) == ([], [0], {"n": 1}, 0)
        assert same(x, X) and torch.is_grad_enabled()


def test_backend_that_raises_may_be_suppressed():
    with kiln.config.patch(suppress_errors=True), pytest.warns(RuntimeWarning, match="no such instruction"):
        assert same(kiln.compile(lambda x: x + 1, backend=raising_backend)(X), X + 1)


@pytest.mark.parametrize("returned", [None, 3, X], ids=lambda r: type(r).__name__)
def test_backend_that_returns_no_callable(returned):
    with pytest.raises(kiln.exc.InvalidBackend, match=type(returned).__name__):
        kiln.compile(lambda x: x + 1, backend=lambda graph_module, example_inputs: returned)(X)


def test_backend_whose_code_fails_when_run():
    def backend(graph_module, example_inputs):
        def run(*inputs):
            raise BackendTrouble("at run time")

        return run

    compiled = kiln.compile(lambda x: x + 1, backend=backend)
    x = X.clone()
    with pytest.warns(RuntimeWarning, match="raised BackendTrouble: at run time, which eager does not"):
        assert same(compiled(x), X + 1), "eager takes over, and says so"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(compiled(x), X + 1), "once"
    assert same(x, X)


def test_backend_that_is_interrupted():
    def backend(graph_module, example_inputs):
        raise KeyboardInterrupt

    compiled = kiln.compile(lambda x: x + 1, backend=backend)
    with pytest.raises(KeyboardInterrupt):
        compiled(X)
    assert torch.is_grad_enabled()


# -- wrong arguments ------------------------------------------------------------------------------------------------


def takes(x, y, /, a=1, *, b, c=3):
    return x + y + a + b + c


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((X,), {}),
        ((X, X, 1, 2), {"b": 1}),
        ((X, X), {"a": 1}),
        ((X, X), {"b": 1, "z": 1}),
        ((X, X, 1), {"a": 1, "b": 1}),
        ((X,), {"y": X, "b": 1}),
    ],
)
def test_arguments_that_do_not_fit(args, kwargs):
    compiled = kiln.compile(takes, backend=CompileCounter())
    assert same(compiled(X, X, b=1), takes(X, X, b=1))
    with pytest.raises(TypeError) as eager:
        takes(*args, **kwargs)
    with pytest.raises(TypeError) as found:
        compiled(*args, **kwargs)
    assert str(found.value) == str(eager.value)


def test_call_inside_with_arguments_that_do_not_fit():
    def f(x):
        return takes(x + 1)

    with pytest.raises(TypeError) as eager:
        f(X)
    with pytest.raises(TypeError) as found:
        kiln.compile(f)(X)
    assert str(found.value) == str(eager.value)


# -- functions of other kinds ---------------------------------------------------------------------------------------


def test_source_is_gone():
    namespace = {"torch": torch}
    exec("def gone(x):\n    y = x + 1\n    return torch.sin(y) * y.shape[0]", namespace)
    counter = CompileCounter()
    assert same(kiln.compile(namespace["gone"], backend=counter)(X), namespace["gone"](X))
    assert counter.frame_count == 1
    exec("def gone(x):\n    return x.sum().item() + 1", namespace)
    with pytest.raises(kiln.exc.Unsupported, match="<string>:2"):
        kiln.compile(namespace["gone"], fullgraph=True)(X)


def test_code_without_lines():
    def f(x):
        return x + 1

    bare = types.FunctionType(f.__code__.replace(co_linetable=b"", co_filename="<nowhere>"), {})
    assert same(kiln.compile(bare)(X), X + 1)


def test_names_of_generated_code():
    def f(_k_G, _k_type, error, _k_out_0=3):
        return _k_G * 2 + _k_type + error + _k_out_0

    assert same(kiln.compile(f)(X, 1, 2), f(X, 1, 2))
    assert same(kiln.compile(lambda x: f(x, 1, 2))(X), f(X, 1, 2))


def numbers(x):
    for i in range(3):
        yield x + i


def test_generator_function():
    compiled = kiln.compile(numbers)
    made = compiled(X)
    assert isinstance(made, types.GeneratorType)
    assert same(list(made), [X, X + 1, X + 2])
    made = compiled(X)
    assert same(next(made), X)
    made.close()


def test_coroutine_function():
    async def wait(x):
        await asyncio.sleep(0)
        return x + 1

    assert same(asyncio.run(kiln.compile(wait)(X)), X + 1)


def test_asynchronous_generator():
    async def count(x):
        for i in range(3):
            yield x + i

    async def collect():
        return [x async for x in kiln.compile(count)(X)]

    assert same(asyncio.run(collect()), [X, X + 1, X + 2])


def test_generators_and_coroutines_called_inside():
    async def wait(x):
        return x + 1

    def f(x):
        coroutine = wait(x * 2)
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return stop.value + sum(numbers(x))

    assert same(kiln.compile(f)(X), f(X))


def test_native_code():
    import array

    for target in (array.array, bytes.fromhex, dict.fromkeys):
        argument = {array.array: "d", bytes.fromhex: "00ff", dict.fromkeys: "ab"}[target]
        assert kiln.compile(target)(argument) == target(argument)

    def f(x):
        stored = array.array("d", [1.0, 2.0])
        return x * stored[1] + len(stored.tobytes())

    assert same(kiln.compile(f)(X), f(X))


# -- recursion ------------------------------------------------------------------------------------------------------


def endless(x):
    return endless(x + 1) + 1


class Endless:
    def __init__(self):
        self.depth = 0

    def __getattr__(self, name):
        return getattr(self, name + "_")


def test_endless_recursion():
    compiled = kiln.compile(endless)
    for _ in range(2):
        with pytest.raises(RecursionError):
            compiled(X)
    assert same(kiln.compile(lambda x: x + 1)(X), X + 1)


def test_endless_recursion_in_attributes():
    with pytest.raises(RecursionError):
        kiln.compile(lambda x, e: x + e.nothing)(X, Endless())


def test_endless_recursion_that_is_caught():
    def f(x):
        try:
            return endless(x)
        except RecursionError:
            return x - 1

    assert same(kiln.compile(f)(X), X - 1)


def test_deep_recursion():
    def down(x, n):
        return x if n == 0 else down(x + 1, n - 1)

    with kiln.config.patch(recompile_limit=1000):
        assert same(kiln.compile(down)(X, 100), X + 100)
        assert same(kiln.compile(down)(X, 300), X + 300)


def test_endless_loop_is_left_to_python():
    """A loop that capture gives up on runs on in eager."""

    def f(x):
        n = 0
        while True:
            n += 1
            if n > 100_000:
                return x + n

    with kiln.config.patch(max_instructions=1000):
        assert same(kiln.compile(f)(X), X + 100_001)


def test_self_referring_containers():
    def f(x, items):
        items.append(items)
        return x + len(items[0]) if len(items) > 1 else x, items

    items = [[1, 2]]
    result, back = kiln.compile(f)(X, items)
    assert same(result, X + 2) and back is items and items[1] is items


# -- errors of the program ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda x: x @ torch.ones(5, 5), RuntimeError),
        (lambda x: x.view(2, 2), RuntimeError),
        (lambda x: x[5], IndexError),
        (lambda x: torch.cat([x, "no"]), TypeError),
        (lambda x: x + [1][3], IndexError),
        (lambda x: x + {}["missing"], KeyError),
        (lambda x: x.nothing, AttributeError),
        (lambda x: x + 1 / 0, ZeroDivisionError),
        (lambda x: x + int("x"), ValueError),
        (lambda x: undefined_name(x), NameError),  # noqa: F821
        (lambda x: torch.nn.functional.linear(x, x, x, x), TypeError),
    ],
)
def test_errors_of_the_program_are_its_own(function, kind, fullgraph):
    with pytest.raises(kind) as eager:
        function(X)
    for _ in range(2):
        with pytest.raises(kind) as found:
            kiln.compile(function, fullgraph=fullgraph)(X)
        assert type(found.value) is type(eager.value)
        assert str(found.value) == str(eager.value)


def test_fullgraph_names_construct_line_and_way_out():
    def f(x):
        y = x + 1
        print("y", y)
        return y

    with pytest.raises(kiln.exc.Unsupported) as caught:
        kiln.compile(f, fullgraph=True)(X)
    text = str(caught.value)
    assert text.startswith("tests/test_bad_input.py:") or "test_bad_input.py:" in text.splitlines()[0]
    assert 'print("y", y)' in text.splitlines()[0]
    assert "Kiln cannot capture" in text and "What to do:" in text
    assert caught.value.location.line == f.__code__.co_firstlineno + 2
