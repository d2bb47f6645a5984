"""``guard_fail_fn``, ``error_on_recompile``: why something is compiled again, in the words that programs look for."""

import pytest
import torch

import kiln
from kiln.compat.guard_failures import translated


class Heard:
    """Compiles with a ``guard_fail_fn``, and remembers what it was told."""

    def __init__(self, target):
        self.counter = torch._dynamo.testing.CompileCounter()
        self.reasons = []
        self.compiled = torch._dynamo.optimize(self.counter, guard_fail_fn=self.note)(target)
        self.target = target

    def note(self, failure):
        assert failure[0] == failure.reason and failure.orig_code.co_name
        self.reasons.append(failure[0])

    def call(self, *args):
        self.reasons.clear()
        assert kiln.testing.same(self.compiled(*args), self.target(*args))
        return self.reasons[-1] if self.reasons else None


class Add(torch.nn.Module):
    def forward(self, x, y):
        return (x + y,)


@pytest.mark.covers("test_aot_autograd::test_requires_grad_fake_via_dynamo_recompiles")
def test_requires_grad(installed):
    heard = Heard(Add())
    x, y = torch.randn(3), torch.randn(3, requires_grad=True)
    assert heard.call(x, y) is None
    assert "tensor 'L['y']' requires_grad mismatch. expected requires_grad=1" in heard.call(x, x.clone())
    assert heard.counter.frame_count == 2
    assert heard.call(x, torch.randn(3)) is None and heard.counter.frame_count == 2


class Scaled(torch.nn.Module):
    """Tensors that may be one, a parameter, a global, and arguments that are none."""

    def __init__(self):
        super().__init__()
        self.mean = torch.nn.Parameter(torch.randn(3))

    def forward(self, a, b, e, f):
        a, b = a * self.mean, b - SHARED
        return a + b * e + len(f)


SHARED = torch.randn(3)
DUPLICATES = [
    ("L['a'] is L['b']", (0, 0, 2, [1]), (0, 1, 2, [1])),
    ("L['a'] is L['b']", (0, 1, 2, [1]), (0, 0, 2, [1])),
]


@pytest.mark.covers(
    "test_aot_autograd::test_arg_dupe_via_dynamo_recompiles",
    "test_aot_autograd::test_arg_dupe_via_dynamo_recompiles_many_args",
    "test_aot_autograd::test_arg_dupe_via_dynamo_recompiles_many_args_param",
    "test_aot_autograd::test_arg_dupe_via_dynamo_recompiles_many_args_param_non_tensor_arg",
    "test_aot_autograd::test_arg_dupe_via_dynamo_recompiles_many_args_param_non_tensor_arg_list",
    "test_aot_autograd::test_arg_dupe_via_dynamo_recompiles_many_with_global",
)
@pytest.mark.parametrize(("reason", "first", "second"), DUPLICATES, ids=["were one", "were two"])
def test_arguments_that_are_one_object(installed, reason, first, second):
    tensors = [torch.randn(3), torch.randn(3)]

    def arguments(places):
        return [tensors[places[0]], tensors[places[1]], *places[2:]]

    heard = Heard(Scaled())
    assert heard.call(*arguments(first)) is None
    said = heard.call(*arguments(second))
    assert said.startswith(reason) and "object" in said  # and Kiln's own words after it
    assert heard.counter.frame_count == 2
    assert heard.call(*arguments(first)) is heard.call(*arguments(second)) is None
    assert heard.counter.frame_count == 2


@pytest.mark.covers("test_modules::test_hooks_inner", "test_modules::test_hooks_outer")
def test_hooks_of_a_module_in_a_closure(installed):
    module = torch.nn.Identity()

    def program(x):
        return module(x * 2)

    def one(module, args, result):
        return result + 1

    def other(module, args, result):
        return result + 2

    handle = module.register_forward_hook(one)
    heard = Heard(program)
    assert heard.call(torch.ones(1)) is None
    module._forward_hooks[handle.id] = other
    assert heard.call(torch.ones(1)).startswith("___check_obj_id(L['module']._forward_hooks")
    handle.remove()
    assert "forward_hooks" in heard.call(torch.ones(1))
    assert heard.counter.frame_count == 3


def test_only_ones_own_recompiles_are_heard(installed):
    heard, other = Heard(Add()), Heard(Add())
    for each in (heard, other):
        each.call(torch.ones(2), torch.ones(2))
    other.call(torch.ones(2, 2), torch.ones(2, 2))
    assert other.reasons and not heard.reasons


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("L['x'] and G['y'] are the same object now, and were two", "L['x'] is G['y']  ("),
        ("closure 'm'.training == True, False seen", "L['m'].training == True, False seen"),
        ("L['n'] == 1, 2 seen", "L['n'] == 1, 2 seen"),
    ],
)
def test_translation(words, expected):
    assert translated(words).startswith(expected)


def test_a_recompile_as_an_error():
    compiled = kiln.compile(lambda x: x + 1)
    with kiln.config.patch(error_on_recompile=True):
        compiled(torch.ones(2))
        with pytest.raises(
            kiln.exc.RecompileError, match=r"(?s)test_guard_failures.*rank: 1 expected, 2 seen"
        ) as caught:
            compiled(torch.ones(2, 2))
        compiled(torch.ones(2))
        assert caught.value.reason == "L['x'] rank: 1 expected, 2 seen"
    compiled(torch.ones(2, 2))


def test_a_callback_of_ones_own():
    heard = []
    compiled = kiln.compile(Add(), on_recompile=lambda function, reason: heard.append(reason))
    compiled(torch.ones(2), torch.ones(2))
    compiled(torch.ones(2, 1), y=torch.ones(2, 1))
    assert len(heard) == 1 and "L['args']" not in heard[0]
