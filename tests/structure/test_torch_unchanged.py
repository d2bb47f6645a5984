"""Importing Kiln and compiling leave torch, and Python, as they were; see docs/platform.md.

Programs run in fresh processes: one that has not loaded torch's own compiler, and one that has. What torch changes
itself while it runs is listed here. Kiln's exceptions are two: `torch.fx.node.has_side_effect` is told of Kiln's own
functions, and an import finder waits for torch's compiler while something is compiled.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

from tests.structure.imports import ROOT

# What torch changes itself: caches and counters.
OWN_CHANGES = re.compile(
    "|".join(
        [
            r"\.FakeTensorMode\.cache(_hits|_misses|_bypasses)?:",
            r"\.RemovableHandle\.next_id:",
            r"\.RemovableHandle\.__annotate_func__\.<__classdict__>: .*: 'next_id'$",  # the same, from CPython 3.14 on
            r"^torch\.(_opaque_base|_custom_class_base)\._FakeScriptObject_cls:",
            r"^torch\._logging\.structured\.INTERN_TABLE:",
            r"^torch\._ops\.cached_ops:",
            r"^torch\._subclasses\.fake_impls\.FAST_OP_IMPLEMENTATIONS:",
            r"^torch\._subclasses\.meta_utils\.DESCRIBER_NEXT_ID:",
            r"^torch\.fx\.operator_schemas\._SCHEMA_TO_SIGNATURE_CACHE:",
            r"^torch\.jit\._builtins\._builtin_table:",
            r"^torch\.autograd\.profiler\._cupti_monitor",
        ]
    )
)
# With torch's compiler loaded, torch marks functions that it keeps out of it at their first call.
MARKED_BY_TORCH = re.compile(r"\.__dict__: dict of \d -> dict of \d: '__dynamo_disable'$")

PRELUDE = """
import sys
import torch
import torch.distributed.tensor, torch.fx.experimental.symbolic_shapes, torch.utils._device, llvmlite.binding
from tests.structure.torch_state import Snapshot
"""
LOAD_COMPILER = """
import torch.export._trace, torch._inductor.codecache, torch.profiler
torch.optim.Adam([torch.ones(1, requires_grad=True)])
torch.manual_seed(0)
"""
PROGRAM = """
before = Snapshot()
import kiln
from kiln import compiled_autograd

imported = Snapshot()
for line in before.differences(imported):
    print("IMPORT", line)

def train(backend):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5))
    model.register_forward_hook(lambda module, inputs, output: output * 2)
    model[0].register_full_backward_hook(lambda module, given, made: None)
    loss = kiln.compile(lambda x: model(x).square().mean(), backend=backend)
    for _ in range(2):
        loss(torch.ones(3, 4)).backward()
    return model

def change(x):
    with torch.no_grad():
        y = x.view(-1)
        y.add_(1)
    print("", end="")
    return y.sum()

def walk(backend):
    x = torch.ones(3, requires_grad=True)
    x.register_hook(lambda gradient: gradient * 2)
    with compiled_autograd.enable(lambda graph: kiln.compile(graph, backend=backend)):
        for _ in range(2):
            (x * 2).sum().backward()

for backend in ("eager", "aot_eager", "kiln"):
    model = train(backend)
    kiln.compile(change, backend=backend)(torch.ones(2, 2))
    walk(backend)
"""
DYNAMIC = """
def sizes(backend):
    def resized(x):
        return torch.nn.functional.dropout(torch.nn.functional.interpolate(x, scale_factor=2.0), 0.5)

    step = kiln.compile(resized, backend=backend, dynamic=True)
    for size in (3, 4, 5):
        step(torch.ones(1, 1, size, size, requires_grad=True)).sum().backward()

def optimize(backend):
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.Adam([weight], foreach=True)
    step = kiln.compile(optimizer.step, backend=backend)
    for _ in range(2):
        weight.square().sum().backward()
        step()

for backend in ("eager", "aot_eager", "kiln"):
    sizes(backend)
    optimize(backend)
"""
COMPARE = """
for line in imported.differences(Snapshot()):
    print("RUN", line)
print("COMPILER LOADED", "torch._dynamo" in sys.modules)
"""


def run(program: str) -> str:
    """What a program prints in a fresh process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def changes(program: str) -> tuple[list[str], bool]:
    """What a program changes in a fresh process, and whether torch's compiler was loaded in the end."""
    said = run(program)
    found = [line.split(" ", 1) for line in said.splitlines() if line.startswith(("IMPORT ", "RUN "))]
    loaded = "COMPILER LOADED True" in said
    allowed = [OWN_CHANGES, MARKED_BY_TORCH] if loaded else [OWN_CHANGES]
    return [f"{when}: {what}" for when, what in found if not any(each.search(what) for each in allowed)], loaded


def test_nothing_is_changed() -> None:
    found, loaded = changes(PRELUDE + PROGRAM + COMPARE)
    assert not loaded
    (finder,) = found
    assert finder.startswith("RUN: sys.meta_path: ") and "-> ('StanceImportWatch', " in finder


def test_nothing_is_changed_with_the_compiler_loaded() -> None:
    found, loaded = changes(PRELUDE + LOAD_COMPILER + PROGRAM + DYNAMIC + COMPARE)
    assert loaded and found == []


INSTALLED = """
before = Snapshot()
import kiln
kiln.install()
assert torch.compile(lambda x: x + 1)(torch.ones(2)).sum() == 4
kiln.uninstall()
for line in before.differences(Snapshot()):
    print("RUN", line)
"""


def test_uninstalling_restores_torch() -> None:
    found, _ = changes(PRELUDE + INSTALLED)
    assert [line for line in found if "sys.meta_path" not in line] == []


PLANTED = {
    "a kernel": "torch.ops.aten.dropout.default.py_kernels[torch._C.DispatchKey.Autograd] = print",
    "a decomposition": "torch._decomp.decomposition_table[torch.ops.aten.add.Tensor] = print",
    "an attribute of a function": "torch.nn.functional.relu.kiln = 1",
    "an attribute of a wrapped function": "torch._refs.add.__wrapped__.__dynamo_disable = print",
    "a method": "torch.nn.Module.__call__ = lambda self: None",
    "a function": "torch.add = torch.sub",
    "a new name": "torch.nn.functional.kiln = print",
    "a hook of all modules": "torch.nn.modules.module.register_module_forward_hook(print)",
    "a builtin": "import builtins; builtins.__import__ = functools.partial(builtins.__import__)",
    "a finder": "sys.meta_path.append(type)",
    "a filter of warnings": "warnings.simplefilter('ignore', Warning)",
    "a level": "logging.getLogger('torch').setLevel(3)",
    "a profiler": "sys.setprofile(lambda *args: None)",
    "a switch": "torch.set_warn_always(True)",
    "a hook of the interpreter": "sys.excepthook = print",
    "Kiln's function in a new module": "sys.modules['torch.new'] = new = types.ModuleType('new'); new.f = ours",
}
PLANTING = """
import functools, logging, sys, types, warnings
import torch
from tests.structure.torch_state import Snapshot

ours = types.FunctionType((lambda: None).__code__, {"__name__": "kiln.planted"})
before = Snapshot()
for name, text in PLANTED.items():
    exec(text)
    after = Snapshot()
    print(name, len(before.differences(after)))
    before = after
"""


def test_planted_changes_are_found() -> None:
    done = run(f"PLANTED = {PLANTED!r}\n{PLANTING}")
    counts = dict(line.rsplit(" ", 1) for line in done.splitlines())
    assert list(counts) == list(PLANTED) and "0" not in counts.values()
