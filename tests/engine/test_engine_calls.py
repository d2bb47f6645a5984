"""What graphs of the engine call does what torch's engine does in the same place: results, and errors word for word.

Each case runs twice: in a backward pass of torch's, and by the function of `kiln.engine.calls` on what that pass had
given to it.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kiln.engine.calls import checks, hook_calls, node_calls
from kiln.program import accumulation
from kiln.testing import same


def outcome(function: Callable[[], Any]) -> tuple:
    try:
        return ("returned", function())
    except Exception as error:
        return ("raised", type(error), str(error))


class Picky:
    def __call__(self, gradient: Any) -> Any:
        return gradient[:1]


class Named(Picky):
    __name__ = "named"


class Misnamed(Picky):
    __name__ = 5  # type: ignore[assignment]


TENSOR_HOOKS = {
    "nothing": lambda g: None,
    "another": lambda g: g * 3,
    "itself": lambda g: g,
    "strided": lambda g: (g * 2).repeat_interleave(2)[::2],
    "number": lambda g: 3,
    "list": lambda g: [g],
    "tuple": lambda g: (g,),
    "shorter": lambda g: g[:1],
    "broadcast": lambda g: g.sum().reshape(1),
    "double": lambda g: g.double(),
    "bfloat16": lambda g: g.bfloat16(),
    "complex": lambda g: g.to(torch.complex64),
    "double and shorter": lambda g: g.double()[:1],
    "meta": lambda g: g.to("meta"),
    "meta bfloat16": lambda g: g.to("meta").bfloat16(),
    "sparse": lambda g: g.to_sparse(),
    "partial": functools.partial(lambda g, size: g[:size], size=1),
    "callable object": Picky(),
    "named object": Named(),
    "misnamed object": Misnamed(),
}


@pytest.mark.parametrize("hook", TENSOR_HOOKS.values(), ids=TENSOR_HOOKS)
def test_tensor_hooks(hook: Any) -> None:
    def by_torch() -> Any:
        x = torch.arange(3.0, requires_grad=True)
        y = x * 2
        y.register_hook(hook)
        return torch.autograd.grad(y, y, torch.ones(3))[0].contiguous()

    assert same(outcome(lambda: hook_calls.call_tensor_hook(hook, torch.ones(3))), outcome(by_torch))


@pytest.mark.parametrize("hook", [lambda g: None, lambda g: torch.ones(2), lambda g: 5], ids=["none", "tensor", "int"])
def test_tensor_hooks_without_gradient(hook: Any) -> None:
    def by_torch() -> None:
        first, second = torch.ones(4, requires_grad=True).split(2)
        second.register_hook(hook)
        first.sum().backward()

    assert outcome(lambda: hook_calls.call_tensor_hook(hook, None)) == outcome(by_torch)


TUPLE_HOOKS = {
    "nothing": lambda g: None,
    "same": lambda g: g,
    "others": lambda g: tuple(value * 3 for value in g),
    "number": lambda g: 3,
    "tensor": lambda g: g[0],
    "list": lambda g: list(g),
    "too many": lambda g: g + g,
    "too few": lambda g: g[:-1],
    "taken away": lambda g: (None, *g[1:]),
    "shorter": lambda g: (g[0][:1], *g[1:]),
    "double": lambda g: (g[0].double(), *g[1:]),
    "text": lambda g: ("a", *g[1:]),
}


@pytest.mark.parametrize("hook", TUPLE_HOOKS.values(), ids=TUPLE_HOOKS)
@pytest.mark.parametrize("place", ["before", "after"])
def test_node_hooks(hook: Any, place: str) -> None:
    found: list[Any] = []

    def before(grad_outputs: Any) -> Any:
        found.append(grad_outputs)
        return hook(grad_outputs)

    def after(grad_inputs: Any, grad_outputs: Any) -> Any:
        found.append((grad_inputs, grad_outputs))
        return hook(grad_inputs)

    before.__name__ = after.__name__ = "hook"

    def by_torch() -> Any:
        x, w = torch.ones(2, 2, requires_grad=True), torch.full((2, 2), 2.0, requires_grad=True)
        y = x * w
        if place == "before":
            y.grad_fn.register_prehook(before)
            y.grad_fn.register_prehook(lambda g: seen.append(g))
        else:
            y.grad_fn.register_hook(after)
            y.grad_fn.register_hook(lambda g, _: seen.append(g))
        y.sum().backward()
        return seen[0]

    seen: list[Any] = []
    expected = outcome(by_torch)
    given = found[0]
    call = functools.partial(hook_calls.call_pre_hook, before) if place == "before" else None
    result = outcome(lambda: call(given) if call else hook_calls.call_post_hook(after, *given))
    assert same(result, expected)


def test_node_hooks_do_not_make_gradients() -> None:
    expected = "can't replace a None gradient with a non-None value"
    with pytest.raises(RuntimeError, match=expected):
        hook_calls.call_pre_hook(lambda g: (g[0], torch.ones(2)), (torch.ones(2), None))
    with pytest.raises(RuntimeError, match=expected):
        hook_calls.call_post_hook(lambda i, o: (i[0], torch.ones(2)), (torch.ones(2), None), ())


LEAF_HOOKS = {
    "nothing": lambda p: None,
    "itself": lambda p: p,
    "another": lambda p: p * 2,
    "shorter": lambda p: p[:1],
    "tuple": lambda p: (p,),
    "number": lambda p: 3,
}


@pytest.mark.parametrize("hook", LEAF_HOOKS.values(), ids=LEAF_HOOKS)
def test_hooks_after_accumulation(hook: Any) -> None:
    def by_torch(seen: list[Any]) -> None:
        x = torch.arange(3.0, requires_grad=True)
        x.register_post_accumulate_grad_hook(hook)
        x.register_post_accumulate_grad_hook(lambda p: seen.append(p.detach().clone()))
        (x * 2).sum().backward()

    def by_kiln(seen: list[Any]) -> None:
        x = torch.arange(3.0, requires_grad=True)
        with torch.no_grad():
            hook_calls.call_accumulate_hooks(x, hook, lambda p: seen.append(p.detach().clone()))

    eager_saw: list[Any] = []
    kiln_saw: list[Any] = []
    assert outcome(lambda: by_kiln(kiln_saw)) == outcome(lambda: by_torch(eager_saw))
    assert same(kiln_saw, eager_saw)


# -- functions in Python ---------------------------------------------------------------------------------------------

BACKWARDS = {
    "fine": lambda ctx, g, h: (g * 2, None, h),
    "none at all": lambda ctx, g, h: (None, None, None),
    "single": lambda ctx, g, h: g,
    "list": lambda ctx, g, h: [g, None, g],
    "nothing": lambda ctx, g, h: None,
    "too few": lambda ctx, g, h: (g, None),
    "too many": lambda ctx, g, h: (g, None, g, g),
    "too many, but none": lambda ctx, g, h: (g, None, h, None, None),
    "text": lambda ctx, g, h: ("a", None, g),
    "number for a tensor that needs none": lambda ctx, g, h: (g, None, 5),
    "tensor for a number": lambda ctx, g, h: (g, g, g),
    "text for a number": lambda ctx, g, h: (g, "a", g),
    "raises": lambda ctx, g, h: 1 / 0,
}


def function(backward: Any, materialize: bool, name: str = "backward") -> Any:
    def forward(ctx: Any, a: Any, number: Any, b: Any) -> Any:
        ctx.set_materialize_grads(materialize)
        marked = torch.zeros(4, dtype=torch.int64)
        ctx.mark_non_differentiable(marked)
        return a * 1, b * 1, marked, 7

    names = {"forward": staticmethod(forward), name: staticmethod(backward)}
    return type("Some", (torch.autograd.Function,), names)


def short(backward: Any) -> Any:
    return lambda ctx, g, h, marked, number: backward(ctx, g, h)


@pytest.mark.parametrize("backward", BACKWARDS.values(), ids=BACKWARDS)
def test_backwards(backward: Any) -> None:
    kind = function(short(backward), True)

    def run(how: Any) -> Any:
        x, w = torch.arange(3.0, requires_grad=True), torch.ones(2, requires_grad=True)
        out = kind.apply(x * 1, 3, w * 1)
        seen: list[Any] = []
        out[0].grad_fn.register_hook(lambda i, o: seen.append(i))
        return how(out, seen)

    def by_torch(out: Any, seen: list[Any]) -> Any:
        torch.autograd.backward(out[:2], (torch.ones(3), torch.ones(2)))
        return seen[0]

    def by_kiln(out: Any, seen: list[Any]) -> Any:
        return node_calls.call_backward(out[0].grad_fn, torch.ones(3), torch.ones(2), None, None)

    assert same(outcome(lambda: run(by_kiln)), outcome(lambda: run(by_torch)))


@pytest.mark.parametrize("materialize", [True, False])
@pytest.mark.parametrize("name", ["backward", "vjp"])
def test_zeros_in_place_of_none(materialize: bool, name: str) -> None:
    seen: list[Any] = []

    def backward(ctx: Any, *gradients: Any) -> Any:
        seen.append(gradients)
        return gradients[0], None, gradients[1]

    kind = function(backward, materialize, name)

    def outputs() -> Any:
        return kind.apply(torch.ones(3, requires_grad=True), 3, torch.ones(2, requires_grad=True))

    outputs()[0].backward(torch.ones(3))
    context = outputs()[0].grad_fn
    with torch.no_grad():
        node_calls.call_backward(context, torch.ones(3), None, None, None)
    assert same(seen[1], seen[0])
    assert [value is None for value in seen[0]] == ([False] * 3 + [True] if materialize else [False, True, True, True])


def test_which_function_is_called() -> None:
    both = type("Both", (torch.autograd.Function,), {})
    both.forward = staticmethod(lambda ctx, a: a * 1)  # type: ignore[attr-defined]
    x = torch.ones(2, requires_grad=True)
    for names in ((), ("backward", "vjp")):
        for name in names:
            setattr(both, name, staticmethod(lambda ctx, g: g))
        expected = outcome(lambda: both.apply(x).sum().backward())
        assert outcome(lambda: node_calls.call_backward(both.apply(x).grad_fn, torch.ones(2))) == expected
        assert expected[0] == "raised"


GRADIENTS = {
    "fine": lambda g: g,
    "shorter": lambda g: g[:1],
    "expanded": lambda g: g.expand(4, 2, 3),
    "wrongly expanded": lambda g: g.expand(4, 2, 3)[..., :2],
    "fewer dimensions": lambda g: g[0],
    "double": lambda g: g.double(),
    "half": lambda g: g.half(),
    "integers": lambda g: g.int(),
    "complex": lambda g: g.to(torch.complex64),
    "complex and expanded": lambda g: g.to(torch.complex64).expand(4, 2, 3),
    "bool": lambda g: g.bool(),
    "meta": lambda g: g.to("meta"),
    "meta and shorter": lambda g: g.to("meta")[:1],
    "number": lambda g: g.sum(),
    "transposed": lambda g: g.t().contiguous().t(),
}


@pytest.mark.parametrize("change", GRADIENTS.values(), ids=GRADIENTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_gradients_between_nodes(change: Any, dtype: torch.dtype) -> None:
    class Changes(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, number: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return None, change(g)

    def by_torch() -> Any:
        x = torch.ones(2, 3, dtype=dtype, requires_grad=True)
        y = x * 1
        (given,) = torch.autograd.grad(Changes.apply(3, y), y, torch.ones(2, 3, dtype=dtype))
        return given.contiguous()  # a graph's gradients have the strides that were predicted

    def by_kiln() -> Any:
        value = change(torch.ones(2, 3, dtype=dtype))
        return node_calls.validated(value, (2, 3), (3, 1), dtype, torch.device("cpu"), "ChangesBackward", 0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert same(outcome(by_kiln), outcome(by_torch))


def test_a_number_on_another_device_is_moved() -> None:
    moved = node_calls.validated(torch.ones(()), (), (), torch.float32, torch.device("meta"), "Some", 0)
    assert moved.device.type == "meta"


def test_plain_gradients() -> None:
    plain = [None, torch.ones(2), torch.ones(2).to_sparse(), torch.nn.Buffer(torch.ones(2)), Subclass(torch.ones(2))]
    assert [checks.is_plain(value) for value in plain][:3] == [True, True, False]
    assert not checks.is_plain(plain[-1])


class Subclass(torch.Tensor):
    pass


# -- accumulation ----------------------------------------------------------------------------------------------------


LEAVES = {
    "contiguous": lambda: torch.ones(3, 3),
    "transposed": lambda: torch.ones(3, 3).t(),
    "with gaps": lambda: torch.ones(3, 6)[:, ::2],
    "odd stride of size one": lambda: torch.ones(60).as_strided((3, 1, 3), (3, 7, 1)),
    "channels last": lambda: torch.ones(2, 3, 2, 2).contiguous(memory_format=torch.channels_last),
    "number": lambda: torch.ones(()),
    "empty": lambda: torch.ones(0, 3),
    "expanded": lambda: torch.ones(1).expand(3),
}
ARRIVING = {
    "as it is": lambda g: g * 1,
    "transposed": lambda g: g.clone().transpose(0, -1) if g.dim() > 1 and g.shape[0] == g.shape[-1] else g.clone(),
    "expanded": lambda g: torch.ones(()).expand(g.shape),
    "fresh": lambda g: torch.full(g.shape, 2.0),
}


class Arrives(torch.autograd.Function):
    """Lets a chosen gradient arrive."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, make: Any) -> torch.Tensor:
        ctx.make, ctx.like = make, x.detach()
        return x.sum()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return ctx.make(ctx.like), None


@pytest.mark.parametrize("leaf", LEAVES.values(), ids=LEAVES)
@pytest.mark.parametrize("arriving", ARRIVING.values(), ids=ARRIVING)
@pytest.mark.parametrize("present", [False, True])
def test_accumulation(leaf: Any, arriving: Any, present: bool) -> None:
    def run(accumulate: Callable[[torch.Tensor], None]) -> Any:
        x = leaf().detach().requires_grad_()
        before = None
        if present:
            before = x.grad = torch.ones(x.shape)
        accumulate(x)
        return x.grad, x.grad.stride(), x.grad is before, x.grad._version

    def by_kiln(x: torch.Tensor) -> None:
        with torch.no_grad():
            accumulation.accumulate_grad_(x, arriving(x.detach()), True)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert same(run(by_kiln), run(lambda x: Arrives.apply(x, arriving).backward()))


def test_memory_is_taken_or_copied() -> None:
    for steal in (True, False):
        x = torch.ones(3, requires_grad=True)
        gradient = torch.ones(3)
        with torch.no_grad():
            accumulation.accumulate_grad_(x, gradient, steal)
        assert x.grad is not gradient
        assert (x.grad.data_ptr() == gradient.data_ptr()) == steal


@pytest.mark.parametrize("steal", [True, False])
def test_nothing_to_accumulate(steal: bool) -> None:
    x = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        accumulation.accumulate_grad_(x, None, steal)
        assert x.grad is None
        accumulation.accumulate_grad_(x.requires_grad_(False), torch.ones(3), steal)
    assert x.grad is None


PRESENT = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "expanded": lambda: torch.ones(1).expand(3, 3),
    "requires grad": lambda: torch.ones(3, 3, requires_grad=True),
    "view": lambda: torch.ones(9).view(3, 3),
    "gaps": lambda: torch.ones(3, 6)[:, ::2],
}


@pytest.mark.parametrize("present", PRESENT.values(), ids=PRESENT)
def test_gradients_that_are_there(present: Any) -> None:
    def run(accumulate: Callable[[torch.Tensor], None]) -> Any:
        x = torch.ones(3, 3, requires_grad=True)
        before = x.grad = present()
        accumulate(x)
        return x.grad, x.grad is before, x.grad.layout, x.grad.requires_grad, before

    def by_kiln(x: torch.Tensor) -> None:
        with torch.no_grad():
            accumulation.accumulate_grad_(x, torch.full((3, 3), 2.0), True)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert same(outcome(lambda: run(by_kiln)), outcome(lambda: run(lambda x: (x * 2).sum().backward())))


def test_inference_tensors_are_not_changed() -> None:
    x = torch.ones(3, requires_grad=True)
    with torch.inference_mode():
        x.grad = torch.ones(3)
    expected = outcome(lambda: (x * 2).sum().backward())
    with torch.no_grad():
        assert outcome(lambda: accumulation.accumulate_grad_(x, torch.ones(3), True)) == expected
    assert expected[0] == "raised"


def test_an_unusual_layout_is_warned_of() -> None:
    x = torch.ones(4, 3).t().detach().requires_grad_()
    x.grad = torch.ones(3, 4)
    with (
        torch.no_grad(),
        pytest.warns(UserWarning, match="do not obey the gradient layout contract.*\n.*sizes") as said,
    ):
        accumulation.accumulate_grad_(x, torch.ones(3, 4), True)
    assert "grad.sizes() = [3, 4], strides() = [4, 1]\nparam.sizes() = [3, 4], strides() = [1, 3]" in str(
        said[0].message
    )


def test_dead_hooks_inside_compiled_functions_do_not_run() -> None:
    from kiln.engine.walk.inner_hooks import InnerHook

    place: dict[int, Any] = {}
    gradient = torch.ones(2)
    calls: list[str] = []

    def hook(*given: Any) -> None:
        calls.append("called")

    place[3] = hook
    inner = InnerHook(hook, place, 3)
    for _ in range(2):
        assert hook_calls.call_inner_hook(inner, gradient) is gradient
        assert hook_calls.call_inner_pre_hook(inner, (gradient,)) == (gradient,)
        assert hook_calls.call_inner_post_hook(inner, (gradient, None), (gradient,)) == (gradient, None)
        place.clear()
    assert len(calls) == 3


def test_a_gradient_taken_away_inside_a_compiled_function_is_zeros() -> None:
    from kiln.engine.walk.inner_hooks import InnerHook

    inner = InnerHook(lambda *given: (None, None), {1: None}, 1)
    first, second = hook_calls.call_inner_pre_hook(inner, (torch.ones(2), None))
    assert same(first, torch.zeros(2)) and second is None
    assert same(hook_calls.call_inner_post_hook(inner, (torch.ones(2), None), ()), (torch.zeros(2), None))


def test_gradients_from_hooks_are_laid_out_like_what_they_replace() -> None:
    transposed = torch.ones(3, 2).t()
    assert hook_calls.call_tensor_hook(lambda g: torch.ones(2, 3), transposed).stride() == transposed.stride()
    single = torch.ones(3, 1).t()
    assert hook_calls.call_tensor_hook(lambda g: single, torch.ones(1, 3)) is single
    assert node_calls.validated(single, (1, 3), (3, 1), torch.float32, torch.device("cpu"), "Some", 0) is single
    given = torch.ones(2, 3)
    assert hook_calls.call_tensor_hook(lambda g: given, torch.ones(()).expand(2, 3)) is given
    assert hook_calls.call_tensor_hook(lambda g: transposed, torch.ones(()).expand(2, 3)).is_contiguous()
