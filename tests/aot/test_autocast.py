"""Autocast around and inside of compiled graphs: forward and backward under what they run under in eager."""

import pytest
import torch

import kiln


def mixed(x, w):
    """A part under the caller's autocast, a part under none, a part under one of its own."""
    outer = torch.mm(x, w)
    with torch.autocast("cpu", enabled=False):
        plain = torch.mm(x, w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        own = torch.mm(x, w)
    return (outer.float().sin() * plain.cos() * own.float()).sum()


def user_compiler(module, inputs):
    return lambda *args: module(*args)


BACKENDS = {
    "aot_eager": lambda: "aot_eager",
    "a compiler of the user's": lambda: kiln.aot.make_aot_backend(user_compiler, user_compiler),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("forward", [False, True])
@pytest.mark.parametrize("wanted", [("x", "w"), ("w",)])
def test_forward_and_backward(backend, forward, wanted):
    compiled = kiln.compile(mixed, backend=BACKENDS[backend]())

    def run(function, backward):
        generator = torch.Generator().manual_seed(0)
        leaves = {name: torch.randn(4, 4, generator=generator, requires_grad=True) for name in ("x", "w")}
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=forward):
            out = function(**leaves)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=backward):
            return [out, *torch.autograd.grad(out, [leaves[name] for name in wanted])]

    for backward in (forward, not forward, forward):
        assert all(map(torch.equal, run(compiled, backward), run(mixed, backward)))
    assert not torch._C._is_any_autocast_enabled()
