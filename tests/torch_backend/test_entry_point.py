"""torch finds the backend by its entry point; options, mistakes and errors; Kiln under torch's names beside it."""

import json
import subprocess
import sys
import textwrap
from importlib.metadata import entry_points

import pytest

from kiln.torch_backend import compile_graph
from tests.structure.imports import ROOT
from tests.torch_backend.running import GROUP, is_installed

installed_only = pytest.mark.skipif(
    not is_installed(), reason="Kiln is on the path and not installed, so that it has no entry points"
)


def run(program: str):
    """What a program in a process of its own prints last."""
    text = f"import json, sys; sys.path.insert(0, {str(ROOT)!r})\n{textwrap.dedent(program)}"
    result = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=280, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@installed_only
def test_entry_point():
    (found,) = entry_points(group=GROUP, name="kiln")
    assert found.load() is compile_graph


@installed_only
def test_name_without_importing_kiln():
    """torch imports Kiln; `kiln.install` puts Kiln under torch's names, and `uninstall` takes it away."""
    found = run(
        """
        import torch
        f = lambda x: x.sin() * 2
        results = [torch.compile(f, backend="kiln")(torch.ones(2)).tolist(), "kiln" in torch._dynamo.list_backends()]
        import kiln
        results += [kiln.report.counters["kernels"], kiln.report.counters["frames"]]
        with kiln.install():
            results += [torch.compile(f, backend="kiln")(torch.ones(2)).tolist(), kiln.report.counters["frames"]]
            results += [torch.compile.__module__.partition(".")[0]]
        torch._dynamo.reset()
        results += [torch.compile(f, backend="kiln")(torch.ones(3)).tolist(), kiln.report.counters["frames"]]
        results += [torch.compile.__module__, kiln.list_backends()]
        print(json.dumps(results))
        """
    )
    value = found[0][0]
    assert found[:4] == [[value, value], True, 1, 0]
    assert found[4:7] == [[value, value], 1, "kiln"]
    assert found[7:] == [[value] * 3, 1, "torch", ["aot_eager", "cudagraphs", "eager", "kiln", "print"]]


def test_options_and_errors():
    found = run(
        """
        import torch, kiln
        from tests.torch_backend.running import compiled
        x = torch.ones(4)

        def outcome(function, *args):
            torch._dynamo.reset()
            try:
                return function(*args).tolist()
            except Exception as error:
                return [type(error).__name__, str(error).splitlines()[:3]]

        f = lambda x: x.sin() * 2
        close = lambda found: isinstance(found[0], float) and torch.allclose(torch.tensor(found), f(x))
        results = {
            "check": close(outcome(compiled(f, options={"check": True}), x)),
            "mode": close(outcome(compiled(f, mode="max-autotune-no-cudagraphs"), x)),
            "option": outcome(compiled(f, options={"chek": True}), x),
            "unknown mode": outcome(compiled(f, mode="fast"), x),
            "shapes": outcome(compiled(lambda x: x @ torch.ones(3)), x),
            "index": outcome(compiled(lambda x, i: x[i]), x, torch.tensor([9])),
        }
        before = kiln.report.counters["kernels"]
        outcome(compiled(f, options={"disable_kernels": ["sin", "mul"]}), x)
        results["disabled"] = kiln.report.counters["kernels"] - before
        print(json.dumps(results))
        """
    )
    assert found["check"] and found["mode"] and found["disabled"] == 0
    assert found["option"][0] == "BackendCompilerFailed" and "UnknownOption" in str(found["option"])
    assert "takes no option 'chek': did you mean 'check'?" in str(found["option"])
    assert "There is no mode 'fast'" in str(found["unknown mode"])
    assert found["shapes"][0] == "TorchRuntimeError"
    assert found["index"][0] == "IndexError"


def test_a_hook_on_frames_that_is_not_of_torch_loads_no_compiler():
    """Kiln leaves torch's hook by a function of torch; where the hook is a debugger's, nothing is loaded."""
    assert run(
        """
        import torch, kiln
        f = kiln.compile(lambda x: x.sin() * 2, backend="eager")
        f(torch.ones(2))
        print(json.dumps("torch._dynamo" not in sys.modules))
        """
    )
