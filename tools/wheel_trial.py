"""Tries a wheel in a clean environment, as somebody who installs it does."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from .environments import ROOT, Environment
from .processes import Failed, must, run

WHERE = """
import os, sys
import kiln, kiln._native
assert os.path.commonpath([kiln.__file__, sys.prefix]) == sys.prefix, kiln.__file__
print(kiln.__version__, kiln._native.__file__)
"""

TRAINING = """
import torch
import kiln

def train(compiled):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data, target = torch.randn(32, 8), torch.randint(4, (32,))
    forward = kiln.compile(model) if compiled else model
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(forward(data), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)

eager, compiled = train(False), train(True)
torch.testing.assert_close(compiled, eager)
assert eager[2] < eager[0]
explained = kiln.explain(lambda x: torch.nn.functional.gelu(x) * 2)(torch.ones(4))
assert len(explained.graphs) == 1 and explained.programs, explained
print(compiled.tolist())
"""

# torch finds Kiln by an entry point of the installed package.
BACKEND = """
import torch
from importlib.metadata import entry_points

names = [entry.name for entry in entry_points(group="torch_dynamo_backends") if entry.value.startswith("kiln.")]
for name in names:
    function = torch.compile(lambda x: torch.softmax(x * 2, 0).sin(), backend=name)
    torch.testing.assert_close(function(torch.arange(4.0)), torch.softmax(torch.arange(4.0) * 2, 0).sin())
print(*names or ["none"])
"""

TYPED = """
import torch
import kiln
from kiln.testing import check


@kiln.compile
def step(x: torch.Tensor, factor: int) -> torch.Tensor:
    return torch.relu(x) * factor


@kiln.compile(fullgraph=True, dynamic=False)
def whole(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


@kiln.disable
def plain(x: torch.Tensor, factor: int) -> torch.Tensor:
    return x * factor


@kiln.disable()
def also_plain(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def run(x: torch.Tensor) -> torch.Tensor:
    with kiln.config.patch(recompile_limit=4), kiln.disable():
        return also_plain(plain(whole(step(x, 2)), factor=3))


model = kiln.compile(torch.nn.Linear(2, 2), backend="eager")
weight: torch.Tensor = model.weight
explained: str = str(kiln.explain(run)(torch.ones(2)))
with kiln.compiled_autograd.enable(kiln.compile):
    torch.autograd.grad(run(weight).sum(), weight)
check(run, torch.ones(2))
kiln.mark_dynamic(weight, 0)
"""

# The errors that a type checker has to find, and can only find with the types of the package.
WRONG = {
    "version: int = kiln.__version__": "assignment",
    "kiln.compile(5)": "call-overload",
    "kiln.compile(len, full_graph=True)": "call-overload",
    "kiln.compile(len)(1)": "arg-type",
}


def fifteen_lines(readme: str) -> str:
    """The program under the heading "Fifteen lines" of the readme."""
    found = re.search(r"^## Fifteen lines\n+```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    if found is None:
        raise Failed("README.md has no program under ## Fifteen lines")
    return found[1]


def in_eager(program: str) -> str:
    """The program without Kiln, up to where it asks for an explanation."""
    kept = [line for line in program.splitlines() if "kiln" not in line]
    return "\n".join([*kept, ""])


def try_wheel(clean: Environment, wheel: Path, folder: Path, torch: str) -> Iterator[str]:
    """Install a wheel and use it in an empty folder outside of the repository; what was seen, line by line."""
    folder.mkdir(parents=True)
    # torch warns where numpy is missing, which Kiln does not need.
    variables = {**clean.variables(), "KILN_CACHE_DIR": str(folder / "cache"), "PYTHONWARNINGS": "ignore"}
    count = 0

    def output(what: str, *command: str, status: int = 0) -> str:
        """What a command prints, which ends with this status."""
        nonlocal count
        count += 1
        done = run(command, clean.logs / f"trial-{count}.log", folder=folder, environment=variables, seconds=600)
        if status == 0:
            must(done, what)
        elif done.status != status:
            raise Failed(f"{what}: status {done.status} instead of {status}; see {done.log}")
        return done.log.read_text(errors="replace")

    def script(what: str, text: str) -> str:
        path = folder / f"{what.replace(' ', '_')}.py"
        path.write_text(textwrap.dedent(text).lstrip())
        return output(what, clean.python, str(path))

    clean.install("wheel", str(wheel))
    yield f"installed with torch {clean.versions()['torch']}"
    yield f"imported: {script('import', WHERE).strip()}"

    program = fifteen_lines((ROOT / "README.md").read_text(encoding="utf-8"))
    expected = script("fifteen lines in eager", in_eager(program))
    printed = script("fifteen lines", program)
    if not printed.startswith(expected) or len(printed) <= len(expected):
        raise Failed(f"the README's program printed {printed!r}, in eager {expected!r}")
    yield f"the README's program: {printed.splitlines()[0]}"
    yield f"losses of three steps: {script('training', TRAINING).strip()}"

    usage = output("kiln --help", str(clean.folder / "bin" / "kiln"), "--help")
    commands = ["cache", *(command for command in ("--version", "doctor") if command in usage)]
    for command in commands:
        output(f"python -m kiln {command}", clean.python, "-m", "kiln", command)
    torch_program = folder / "torch_compile.py"
    torch_program.write_text("import torch\nprint(torch.compile(torch.sin)(torch.zeros(2)))\n")
    if "tensor([0., 0.])" not in output("python -m kiln run", clean.python, "-m", "kiln", "run", str(torch_program)):
        raise Failed("python -m kiln run printed something else")
    yield f"commands: --help run {' '.join(commands)}"

    yield f"backends of torch.compile: {script('backend', BACKEND).strip()}"

    other = "2.11" if torch != "2.11" else "2.12"
    refused = run([*clean.installer(), "--dry-run", str(wheel), f"torch=={other}.*"], clean.logs / "trial-other.log")
    text = refused.log.read_text(errors="replace")
    if refused.status == 0 or "kiln-torch" not in text:
        raise Failed(f"the wheel with torch {other}: not refused; see {refused.log}")
    yield f"refused together with torch {other}"

    clean.install("mypy", "mypy")
    (folder / "typed.py").write_text(TYPED)
    (folder / "wrong.py").write_text("\n".join(["import kiln", *WRONG, ""]))
    output("mypy --strict", clean.python, "-m", "mypy", "--strict", "typed.py")
    told = output("mypy --strict of a wrong program", clean.python, "-m", "mypy", "--strict", "wrong.py", status=1)
    for number, (statement, error) in enumerate(WRONG.items(), start=2):
        if not re.search(rf"^wrong.py:{number}: error: .*\[{error}\]$", told, re.MULTILINE):
            raise Failed(f"mypy does not see that `{statement}` is wrong: {told.strip()}")
    yield f"mypy --strict: a program is accepted, {len(WRONG)} wrong statements are found"
