"""Guards on tensors, aliasing, torch's global state and modules; the recompile limit. See ``scenarios.py``."""

import pytest
import torch

import kiln
from kiln.report import events
from kiln.testing import CompileCounter, same
from tests.support.scenarios import BACK, Scenarios, play

X = torch.arange(6.0).reshape(2, 3)

guards = Scenarios()


class Thing:
    scale = 2


def make_thing(**attributes):
    thing = Thing()
    thing.__dict__.update(attributes)
    return thing


# -- tensors --------------------------------------------------------------------------------------------------------


@guards(None, None, "dtype: float32 expected, float64 seen", BACK)
def dtype(compiler):
    f = compiler(lambda x: x / 2 if x.dtype is torch.float32 else x / 4)
    yield f(X)
    yield f(X + 1)
    yield f(X.double())
    yield f(X)


@guards(None, "size 1: 3 expected, 4 seen", dynamic=False)
def shape(compiler):
    f = compiler(lambda x: x * x.shape[1])
    yield f(X)
    yield f(torch.ones(2, 4))


@guards(None, "rank", BACK)
def rank(compiler):
    f = compiler(lambda x: x * x.ndim)
    yield f(X)
    yield f(X[0])
    yield f(X)


@guards(None, "stride", BACK)
def strides(compiler):
    f = compiler(lambda x: x + 1 if x.is_contiguous() else x - 1)
    yield f(torch.ones(3, 3))
    yield f(torch.ones(3, 3).t())
    yield f(torch.ones(3, 3))


@guards(None, "requires_grad", BACK)
def requires_grad(compiler):
    f = compiler(lambda x: x + 1 if x.requires_grad else x - 1)
    yield f(X)
    yield f(X.clone().requires_grad_())
    yield f(X)


@guards(None, "conj", BACK)
def conjugate_bit(compiler):
    f = compiler(lambda x: x + 1 if x.is_conj() else x - 1)
    z = torch.complex(X, X + 1)
    yield f(z)
    yield f(z.conj())
    yield f(z)


@guards(None, "eg", BACK)
def negative_bit(compiler):
    f = compiler(lambda x: x + 1 if x.is_neg() else x - 1)
    z = torch.complex(X, X + 1).conj().imag
    yield f(z.clone())
    yield f(z)
    yield f(z.clone())


@guards(None, "inference", BACK)
def inference_tensor(compiler):
    f = compiler(lambda x: x + 1 if x.is_inference() else x - 1)
    with torch.inference_mode():
        made = X + 0
    yield f(X)
    yield f(made)
    yield f(X)


@guards(None, "type", BACK)
def parameter_or_tensor(compiler):
    f = compiler(lambda x: x + 1 if isinstance(x, torch.nn.Parameter) else x - 1)
    yield f(X.clone().requires_grad_())
    yield f(torch.nn.Parameter(X))
    yield f(X.clone().requires_grad_())


@guards(None, "L['x']", BACK)
def tensor_or_number(compiler):
    f = compiler(lambda y, x: y + x)
    yield f(X, X)
    yield f(X, 3)
    yield f(X, X)


@guards(None, "grad", "grad", BACK)
def gradient_there_or_not(compiler):
    def f(p):
        return p + 1 if p.grad is None else p + p.grad

    f = compiler(f)
    p = torch.nn.Parameter(X.clone())
    yield f(p)
    p.grad = X + 1
    yield f(p)
    p.grad = (X + 1).double().float().t().contiguous().t()
    yield f(p)
    p.grad = None
    yield f(p)


# -- aliasing -------------------------------------------------------------------------------------------------------


@guards(None, "same object", BACK, BACK)
def tensors_become_one(compiler):
    def f(a, b):
        a.add_(1)
        return a + b

    f = compiler(f)
    x = X.clone()
    yield f(X.clone(), X.clone())
    yield f(x, x)
    yield f(X.clone(), X.clone())
    yield f(x, x)


@guards(None, "L['a']", BACK)
def tensors_become_two(compiler):
    def f(a, b):
        a.add_(1)
        return a + b

    f = compiler(f)
    x = X.clone()
    yield f(x, x)
    yield f(X.clone(), X.clone())
    yield f(x, x)


@guards(None, "L['a']", BACK)
def lists_become_two(compiler):
    def f(a, b):
        a.append(a[0] + 1)
        return b[-1], len(b)

    f = compiler(f)
    one, two = [X], [X]
    yield f(one, one)
    one, two = [X], [X]
    yield f(one, two)
    one, two = [X], [X]
    yield f(one, one)


@guards(None, "same object", BACK)
def lists_become_one(compiler):
    def f(a, b):
        a.append(a[0] + 1)
        return b[-1], len(b)

    f = compiler(f)
    one, two = [X], [X]
    yield f(one, two)
    one, two = [X], [X]
    yield f(one, one)
    one, two = [X], [X]
    yield f(one, two)


@guards(None, "same object")
def objects_become_one(compiler):
    def f(x, a, b):
        a.scale = 7
        return x * b.scale

    f = compiler(f)
    one = make_thing(scale=3)
    yield f(X, make_thing(scale=3), make_thing(scale=3))
    yield f(X, one, one)


@guards(None, "same object")
def tensor_inside_a_list_becomes_the_argument(compiler):
    def f(x, xs):
        x.mul_(2)
        return xs[0] + 1

    f = compiler(f)
    x = X.clone()
    yield f(X.clone(), [X.clone()])
    yield f(x, [x])


# -- global state ---------------------------------------------------------------------------------------------------


@guards(None, "grad mode: enabled expected, disabled seen", BACK)
def grad_mode(compiler):
    f = compiler(lambda x: x + 1 if torch.is_grad_enabled() else x - 1)
    yield f(X)
    with torch.no_grad():
        result = f(X)
    yield result
    yield f(X)


@guards(None, "grad mode", BACK)
def inference_mode(compiler):
    f = compiler(lambda x: x + 1)
    yield f(X)
    with torch.inference_mode():
        result = f(X)
    yield result.clone()
    yield f(X)


@guards(None, "autocast", BACK)
def autocast(compiler):
    f = compiler(lambda x: x @ x.t())
    yield f(X)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = f(X)
    yield result
    yield f(X)


@guards(None, "autocast", BACK)
def autocast_dtype(compiler):
    f = compiler(lambda x: x @ x.t())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = f(X)
    yield result
    with torch.autocast("cpu", dtype=torch.float16):
        result = f(X)
    yield result
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = f(X)
    yield result


@guards(None, "deterministic", BACK)
def deterministic(compiler):
    f = compiler(lambda x: x + 1 if torch.are_deterministic_algorithms_enabled() else x - 1)
    yield f(X)
    torch.use_deterministic_algorithms(True)
    try:
        result = f(X)
    finally:
        torch.use_deterministic_algorithms(False)
    yield result
    yield f(X)


@guards(None, "default dtype", BACK)
def default_dtype(compiler):
    f = compiler(lambda n: torch.ones(2) * n)
    yield f(X[0, :2])
    torch.set_default_dtype(torch.float64)
    try:
        result = f(X[0, :2])
    finally:
        torch.set_default_dtype(torch.float32)
    yield result
    yield f(X[0, :2])


class Doubling(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return result * 2 if function is torch.add else result


class Tripling(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return result * 3 if function is torch.add else result


def test_torch_function_modes_active_at_the_call():
    f = kiln.compile(lambda x: torch.add(x, 1), backend=CompileCounter())
    for mode in (None, Doubling(), Tripling(), Doubling(), None):
        expected = torch.add(X, 1) if mode is None else None
        if mode is None:
            assert same(f(X), expected)
        else:
            with mode:
                expected = torch.add(X, 1)
                assert same(f(X), expected), mode


# -- modules --------------------------------------------------------------------------------------------------------


@guards(None, "training", BACK)
def train_and_eval(compiler):
    module = torch.nn.Dropout(0.0)
    f = compiler(lambda x: module(x) + (1 if module.training else 2))
    yield f(X)
    module.eval()
    yield f(X)
    module.train()
    yield f(X)


@guards(None, "hook", None, BACK)
def hook_added_and_removed(compiler):
    module = torch.nn.ReLU()
    f = compiler(lambda x: module(x))
    yield f(X)
    handle = module.register_forward_hook(lambda module, args, output: output + 1)
    yield f(X)
    yield f(X + 1)
    handle.remove()
    yield f(X)


@guards(None, None, "_modules", BACK)
def submodule_replaced(compiler):
    module = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.ReLU())
    f = compiler(lambda x: module(x - 2))
    yield f(X)
    module[1] = torch.nn.ReLU()  # another object, the same in every way that was looked at
    yield f(X)
    module[1] = torch.nn.Tanh()
    yield f(X)
    module[1] = torch.nn.ReLU()
    yield f(X)


@guards(None, None, "weight", BACK)
def parameter_replaced(compiler):
    torch.manual_seed(0)
    module = torch.nn.Linear(3, 3, bias=False)
    f = compiler(lambda x: module(x))
    yield f(X)
    module.weight = torch.nn.Parameter(torch.ones(3, 3))
    yield f(X)
    module.weight = torch.nn.Parameter(torch.ones(4, 3))
    yield f(X)
    module.weight = torch.nn.Parameter(torch.ones(3, 3))
    yield f(X)


@guards(None, "forward", BACK)
def forward_replaced(compiler):
    module = torch.nn.ReLU()
    f = compiler(lambda x: module(x))
    yield f(X)
    module.forward = lambda x: x + 1
    yield f(X)
    del module.forward
    yield f(X)


@pytest.mark.parametrize(("scenario", "expected", "options"), guards)
def test_guard(scenario, expected, options):
    play(scenario, expected, **options)


# -- one check per entry, and no more guards than needed ------------------------------------------------------------


def test_an_argument_nobody_looks_at_has_no_guard():
    f = kiln.compile(lambda x, unused: x + 1, backend=CompileCounter())
    with events.listen() as heard:
        f(X, 1)
        f(X, "text")
        f(X, object())
        f(X, [1])
    assert heard.recompiles == []


def test_each_entry_has_one_generated_check():
    f = kiln.compile(lambda x, y, n: (x + y) * n, backend=CompileCounter())
    with events.listen() as heard:
        f(X, X + 1, 3)
    (_, check_text, _) = heard.code[0]
    assert check_text.count("def ") == 1
    assert check_text.count("_k_tensors") == 1, "both tensors in one native call"


def test_reasons_are_listed_when_the_limit_is_met():
    backend = CompileCounter()

    def f(x, how):
        return x + len(how)

    compiled = kiln.compile(f, backend=backend)
    words = ["a" * n for n in range(1, 12)]
    with kiln.config.patch(recompile_limit=4), pytest.warns(kiln.exc.RecompileWarning) as caught:
        results = [compiled(X, word) for word in words]
    assert same(results, [f(X, word) for word in words])
    assert backend.frame_count == 4
    assert len(caught) == 1
    text = str(caught[0].message)
    assert "recompile_limit" in text and "L['how'] == 'a'" in text and "test_guards_torch.py" in text
    assert "L['how'] == 'aaaa', 'aaaaa' seen" in text
    with kiln.config.patch(recompile_limit=4):
        assert same(compiled(X, "a"), f(X, "a"))  # entries made before the limit still serve
    assert backend.frame_count == 4


def test_limit_under_fullgraph_raises_each_time():
    compiled = kiln.compile(lambda x, how: x + len(how), backend=CompileCounter(), fullgraph=True)
    with kiln.config.patch(recompile_limit=2):
        compiled(X, "a")
        compiled(X, "bb")
        for _ in range(2):
            with pytest.raises(kiln.exc.RecompileLimitExceeded, match="compiled 2 times"):
                compiled(X, "ccc")
        assert same(compiled(X, "bb"), X + 2)


def test_limit_is_for_each_function_object():
    """Closures of one code share entries, yet none eats up the others' allowance."""
    backend = CompileCounter()

    def make(word):
        return kiln.compile(lambda x: x + len(word), backend=backend)

    with kiln.config.patch(recompile_limit=2):
        functions = [make("a" * length) for length in range(6)]
        for length, function in enumerate(functions):
            assert same(function(X), X + length)
        assert backend.frame_count == 6
        assert same(make("aaa")(X), X + 3)
        assert backend.frame_count == 6, "the entry of another closure with the same contents fits"
