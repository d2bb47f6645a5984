"""Stories: what a user does around compiled functions, run once in eager and once compiled, with equal results.

A story is a function of `compile`. It returns everything to compare (a list, as a rule); errors that are part of the
story go through `attempt`. In the eager run, `compile` returns the function itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import kiln
from kiln.testing import CompileCounterWithBackend, differences
from kiln.testing.observe import clean_process, read_modes, seed_everything

Story = Callable[[Callable[..., Any]], Any]
BACKENDS = ["eager", "aot_eager"]


class Stories(list):
    """The stories of one file, as parameters of its test."""

    def __call__(self, story: Story | None = None, **options: Any) -> Any:
        """Decorator: one more story, with options for `compare_story`."""
        if story is None:
            return lambda function: self(function, **options)
        self.append(pytest.param(story, options, id=story.__name__))
        return story

    def test(self) -> Callable[..., None]:
        """The test of all of them with every backend."""

        @pytest.mark.parametrize("backend", BACKENDS)
        @pytest.mark.parametrize(("story", "options"), self)
        def test_story(story: Story, options: dict[str, Any], backend: Any) -> None:
            compare_story(story, backend, **options)

        return test_story


def compare_story(
    story: Story,
    backend: Any,
    *,
    fullgraph: bool = True,
    dynamic: bool | None = None,
    captured: bool = True,
    strides: bool = True,
    rtol: float = 1e-6,
    atol: float = 1e-7,
) -> None:
    """Run a story in eager and compiled, and compare; `captured=False` where nothing is compiled."""
    counter = CompileCounterWithBackend(backend)

    def compiler(function: Callable[..., Any], **more: Any) -> Callable[..., Any]:
        return kiln.compile(function, **{"backend": counter, "fullgraph": fullgraph, "dynamic": dynamic, **more})

    kiln.reset()
    expected = run_story(story, lambda function, **more: function)
    seen = run_story(story, compiler)
    how = {"rtol": rtol, "atol": atol, "strides": strides, "identity": True, "versions": False}
    found = differences(expected, seen, name=story.__name__, **how)
    assert not found, "\n".join(found)
    assert bool(counter.graphs) == captured, "whether anything was captured"


def run_story(story: Story, compiler: Callable[..., Any]) -> dict[str, Any]:
    with clean_process():
        seed_everything(0)
        before = read_modes()
        ending = story(compiler)
        return {
            "ending": ending,
            "switches left as they were": read_modes() == before,
            "dispatch modes": torch._C._len_torch_dispatch_stack(),
            "random state": torch.get_rng_state(),
        }


def attempt(call: Callable[[], Any]) -> Any:
    """What a call returns, or the error that it raises; which of several saved tensors it names is left out."""
    try:
        return call()
    except Exception as error:
        text = re.sub(r"modified by an inplace operation: .*", "modified by an inplace operation", str(error))
        return type(error), text


def leaf(*shape: int, dtype: torch.dtype = torch.float64, requires_grad: bool = True) -> torch.Tensor:
    """Values that no symmetry cancels."""
    return torch.randn(*(shape or (3, 4)), dtype=dtype).requires_grad_(requires_grad)
