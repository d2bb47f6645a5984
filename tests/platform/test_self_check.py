"""What Kiln assumes about torch and CPython holds here; what does not hold is found, and programs go on in eager."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import kiln
from kiln import _native
from kiln.exc import PlatformWarning, SwitchedOff
from kiln.operator_functions import attrgetter
from kiln.platform import torch_fake, torch_tensors
from kiln.platform.support import assumptions, switches
from kiln.report import events
from kiln.testing import check
from tests.support.kiln_copies import copy_of, newer_torch, run


def test_all_of_it_holds_here() -> None:
    assert [str(finding) for finding in assumptions.examine() if finding.problem] == []


def test_it_holds_under_the_modes_of_programs() -> None:
    with torch.inference_mode(), torch.device("meta"):
        assert [str(finding) for finding in assumptions.examine() if finding.problem] == []


def test_it_changes_nothing_that_programs_see() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assumptions.examine()
    assert caught == [] and torch.equal(torch.rand(4), expected)


# ---- each assumption, made to fail -----------------------------------------------------------------------------------

walk, saved_values, function_zeros = _native.walk, _native.saved_values, _native.function_zeros
gradient_edge = _native.gradient_edge


class Answer:
    """An object of the native module that answers some question otherwise."""

    def __init__(self, inner: Any, **answers: Any) -> None:
        self.inner, self.answers = inner, answers

    def __getattr__(self, name: str) -> Any:
        return self.answers[name] if name in self.answers else getattr(self.inner, name)


class AnyTensor:
    """Guards that take any tensor for the same."""

    def __init__(self, descriptions: Any) -> None: ...

    def __call__(self, *tensors: Any) -> bool:
        return True


class AnyState:
    def check(self) -> bool:
        return True


class Emptied:
    """Programs whose results are zeros."""

    def __init__(self, *description: Any) -> None: ...

    def __call__(self, arguments: list[Any]) -> tuple[Any, ...]:
        return (torch.zeros(1, 3, dtype=torch.float64),)


def without_hooks(*request: Any) -> Any:
    return Answer(walk(*request), hooks=lambda: [None])


def other_calls(*request: Any) -> Any:
    found = walk(*request)
    return Answer(found, apply=lambda index, gradients, saved: found.apply(index, gradients))


def of_the_wrong_place(tensor: Any) -> Any:
    found = gradient_edge(tensor)
    return None if found is None else (found[0], found[1] + 1)


def fails(*_: Any, **__: Any) -> Any:
    raise AttributeError("this torch has something else there")


PLANTED: dict[str, tuple[tuple[Any, str, Any], ...]] = {
    "private names": ((assumptions.importlib, "import_module", fails),),
    "private attributes": ((torch_tensors, "base_of", attrgetter("_base_of_another_torch")),),
    "fake tensors": ((torch_fake, "light_fake_mode", fails),),
    "properties of tensors": ((_native, "TensorCheck", AnyTensor),),
    "global state of torch": ((_native, "GlobalState", AnyState),),
    "keys of dictionaries": ((_native, "knows_dictionary_keys", lambda: False),),
    "edges of autograd's graph": ((_native, "gradient_edge", of_the_wrong_place),),
    "calls of operators": ((_native, "OperatorProgram", Emptied),),
    "saved values of nodes": ((_native, "saved_values", lambda node: (saved_values(node) or [None])[1:]),),
    "contexts of functions": ((_native, "function_zeros", lambda context: function_zeros(context) * 2),),
    "kinds of nodes and hooks": ((_native, "walk", without_hooks),),
    "calls of nodes": ((_native, "walk", other_calls),),
}


def test_each_assumption_is_made_to_fail() -> None:
    assert set(PLANTED) == {assumption.name for assumption in assumptions.ASSUMPTIONS}


@pytest.mark.parametrize("name", PLANTED)
def test_what_does_not_hold_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with monkeypatch.context() as patched:
        for owner, attribute, value in PLANTED[name]:
            patched.setattr(owner, attribute, value)
        found = [finding.assumption.name for finding in assumptions.examine() if finding.problem]
    assert found == [name]


# ---- what is switched off --------------------------------------------------------------------------------------------


@pytest.fixture
def switched_off(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """A function that switches parts off until the test ends."""
    monkeypatch.setattr(switches, "_off", {})
    kiln.reset()
    yield switches.switch_off
    _native.refuse_walks(None)
    kiln.reset()


def loss_of(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x @ weight)
    y = y * 2
    return (y.sin() * y).sum()


def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.rand(4, 3), torch.rand(3, 2, requires_grad=True)


def test_without_ahead_of_time_autograd_graphs_are_torchs(switched_off: Callable[[str, str], None]) -> None:
    switched_off(switches.AHEAD_OF_TIME, "edges: planted")
    before = events.counters["aot eager"]
    check(loss_of, *tensors(), backend="aot_eager")
    check(loss_of, *tensors(), backend="kiln")
    assert events.counters["aot eager"] > before
    found = kiln.explain(loss_of)(*tensors())
    assert found.graph_count == 1 and "Switched off with this torch: ahead-of-time autograd" in str(found)
    assert "edges: planted" in str(found)


def test_without_walks_torchs_engine_runs(
    switched_off: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    switched_off(switches.ENGINE, "saved values: planted")
    x, weight = tensors()
    loss_of(x, weight).backward()
    expected, weight.grad = weight.grad, None
    before = events.counters["engine captures"]
    with kiln.config.patch(log={"engine"}), kiln.compiled_autograd.enable(kiln.compile):
        loss_of(x, weight).backward()
    assert expected is not None and weight.grad is not None and torch.equal(expected, weight.grad)
    assert events.counters["engine captures"] == before
    assert "switched off: saved values: planted" in capsys.readouterr().err


def test_without_capture_functions_run_in_eager(switched_off: Callable[[str, str], None]) -> None:
    switched_off(switches.CAPTURE, "names: planted")
    kiln.api.warn_of_eager.cache_clear()
    with pytest.warns(PlatformWarning, match="names: planted") as caught:
        compiled = kiln.compile(loss_of)
    assert compiled is loss_of and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kiln.compile(dynamic=True)(loss_of) is loss_of
        assert kiln.disable(loss_of) is loss_of
        with kiln.compiled_autograd.TorchEngine.enable(kiln.compile):
            loss_of(*tensors()).backward()
    found = kiln.explain(loss_of)(*tensors())
    assert found.graph_count == 0 and found.skips == [("loss_of", "names: planted")]
    for refused in (lambda: kiln.compile(loss_of, fullgraph=True), kiln.install, lambda: kiln.export(loss_of)):
        with pytest.raises(SwitchedOff, match="names: planted"):
            refused()
    with pytest.raises(kiln.exc.NotCallable):
        kiln.compile(3)


# ---- a newer torch, simulated ----------------------------------------------------------------------------------------

PROGRAM = """
import json, sys, warnings
import torch
torch.__version__ = "2.16.0"
{planted}
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as caught:
    import kiln
    import kiln.api

def loss_of(x, weight):
    y = torch.relu(x @ weight)
    print("user:", float(y.sum()) > 0)
    return (y.sin() * y).sum()

def gradient(function, engine):
    torch.manual_seed(0)
    x, weight = torch.rand(4, 3), torch.rand(3, 2, requires_grad=True)
    if engine:
        with kiln.compiled_autograd.enable(kiln.compile):
            function(x, weight).backward()
    else:
        function(x, weight).backward()
    return weight.grad.tolist()

expected = gradient(loss_of, False)
with warnings.catch_warnings(record=True) as later:
    compiled = kiln.compile(loss_of)
    found = [gradient(compiled, False), gradient(loss_of, True), gradient(compiled, True)]
    kiln.compile(loss_of)
try:
    whole = kiln.compile(torch.sin, fullgraph=True)(torch.ones(1)).item()
except kiln.exc.SwitchedOff as error:
    whole = str(error)
from kiln.platform.support import switches
from kiln.report.events import counters
print(json.dumps({{
    "equal": [one == expected for one in found], "warned": [str(one.message) for one in caught],
    "where": [one.filename for one in caught], "later": [str(one.message) for one in later], "whole": whole,
    "off": switches.all_off(), "graphs": counters["graphs"], "engine": counters["engine captures"],
}}))
"""

# What is planted, what is switched off for it, and what the reason says.
NEWER: dict[str, tuple[str, str | None, str]] = {
    "all as it was": ("", None, ""),
    "a name is gone": ("del torch._C._current_autograd_node", switches.CAPTURE, "_current_autograd_node"),
    "a name is gone that capture itself uses": (
        "del torch.overrides.has_torch_function_variadic",
        switches.CAPTURE,
        "variadic",
    ),
    "nodes have other names": (
        "torch.sin = lambda x: x.exp()\ntorch.Tensor.sin = lambda self: self.exp() * 1",
        switches.ENGINE,
        "the name of a node is 'MulBackward0', and should be 'SinBackward0'",
    ),
}


@pytest.mark.parametrize("name", NEWER)
def test_a_newer_torch_warns_and_works(tmp_path: Path, name: str) -> None:
    planted, part, reason = NEWER[name]
    newer_torch(tmp_path)
    done = run(tmp_path, "-c", PROGRAM.format(planted=planted), KILN_LOG="platform")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["equal"] == [True] * 3
    if part is not switches.CAPTURE:
        assert told["graphs"] > 0 and told["later"] == []
        assert told["whole"] == pytest.approx(torch.ones(1).exp().item() if part else torch.ones(1).sin().item())
    (warned,) = told["warned"]
    assert warned.startswith("torch 2.16.0 is newer than Kiln") and told["where"] == ["<string>"]
    if part is None:
        assert warned.endswith("all of it holds.") and told["off"] == {} and told["engine"] > 0
        return
    assert part in told["off"] and reason in told["off"][part]
    assert told["engine"] == 0
    if part is switches.CAPTURE:
        assert len(told["later"]) == 1 and reason in told["later"][0] and "SwitchedOff" not in told["later"][0]
        assert reason in told["whole"] and told["graphs"] == 0
    if reason not in warned:  # found when capture is loaded
        assert warned.endswith("all of it holds.")
    else:
        assert f"switched off: {part}" in done.stderr


def test_lookups_count_as_python_where_keys_are_not_known(tmp_path: Path) -> None:
    program = """
import kiln, torch
from kiln import _native
from kiln.platform.support import switches
switches.switch_off(switches.STRING_KEYS, "planted")
model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
compiled, x = kiln.compile(model), torch.ones(2, 3)
for _ in range(3):
    assert torch.allclose(compiled(x), model(x))
model[0].bias = None
assert torch.allclose(compiled(x), model(x))
assert not _native.knows_dictionary_keys()
"""
    copy_of(tmp_path)
    done = run(tmp_path, "-c", program)
    assert done.returncode == 0, done.stderr


def test_a_torch_that_is_known_can_be_tried_too(tmp_path: Path) -> None:
    copy_of(tmp_path)
    done = run(tmp_path, "-W", "error", "-c", "import kiln", KILN_SELF_CHECK="1", KILN_LOG="platform")
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines == [f"[kiln platform] {assumption.name}: as expected" for assumption in assumptions.ASSUMPTIONS]


def test_known_releases_are_not_tried_at_import(tmp_path: Path) -> None:
    copy_of(tmp_path)
    done = run(tmp_path, "-c", "import sys, kiln; print('kiln.platform.support.assumptions' in sys.modules)")
    assert done.stdout.strip() == "False" and done.stderr == ""
