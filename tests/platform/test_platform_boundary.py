"""The platform boundary, enforced from Kiln's source text: it stands on torch and never on torch's own compiler.

See docs/architecture.md. `kiln/compat` stands in for those modules: it has their names in strings, as data, and is held
to the same rule as the rest.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

KILN = Path(__file__).resolve().parents[2] / "kiln"

# Nothing at or below these names is imported, reached by attributes, or named in a string that imports it.
FORBIDDEN = (
    "torch._dynamo",
    "torch._inductor",
    "torch.compile",
    "torch._C._dynamo",
    "torch._export",
    "torch.export",
    "torch._functorch.aot_autograd",
    "torch._functorch._aot_autograd",
    "torch._functorch.partitioners",
    "torch._functorch.compilers",
    "torch._functorch.compile_utils",
    "functorch.compile",
    "torch.compiler.compile",
)

# torch.compiler has entry points that compile or steer torch's compiler, and harmless questions about it.
ALLOWED_COMPILER_NAMES = {"is_compiling", "is_dynamo_compiling", "is_exporting"}

IMPORTERS = {"import_module", "__import__", "find_spec", "resolve_name", "lazy_import"}

# In C++ and other text there is no tree to walk.
TEXT_PATTERN = re.compile(r"torch/csrc/(dynamo|inductor)|torch\._dynamo|torch\._inductor|torch\._C\._dynamo")


def is_forbidden(name: str) -> bool:
    """Whether a dotted name is, or is below, something that Kiln must not touch."""
    if any(name == banned or name.startswith(banned + ".") for banned in FORBIDDEN):
        return True
    parts = name.split(".")
    return parts[:2] == ["torch", "compiler"] and len(parts) > 2 and parts[2] not in ALLOWED_COMPILER_NAMES


def offences(source: str) -> list[str]:
    """What a Python source does that the boundary forbids, each with its line."""
    tree = ast.parse(source)
    aliases = _aliases(tree)
    found = []
    for node in ast.walk(tree):
        for name in _names_used(node, aliases):
            if is_forbidden(name):
                found.append(f"line {getattr(node, 'lineno', '?')}: {name}")
    return list(dict.fromkeys(found))


def _aliases(tree: ast.Module) -> dict[str, str]:
    """What local names stand for: `import torch.fx as fx`, `from torch import _C`, `t = torch`."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for item in node.names:
                aliases[item.asname or item.name.split(".")[0]] = item.name if item.asname else item.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for item in node.names:
                aliases[item.asname or item.name] = f"{node.module}.{item.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            value = _dotted(node.value, aliases)
            if value and value.split(".")[0] in ("torch", "functorch"):
                aliases[node.targets[0].id] = value
    return aliases


def _dotted(node: ast.AST, aliases: dict[str, str]) -> str | None:
    """The dotted name that an expression spells, aliases and constant getattr calls resolved."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value, aliases)
        return f"{base}.{node.attr}" if base else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        if len(node.args) >= 2 and isinstance(node.args[1], ast.Constant):
            base = _dotted(node.args[0], aliases)
            return f"{base}.{node.args[1].value}" if base else None
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        base = _dotted(node.value, aliases)
        if base == "sys.modules":
            return str(node.slice.value)
    return None


def _names_used(node: ast.AST, aliases: dict[str, str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (item.name for item in node.names)
    elif isinstance(node, ast.ImportFrom):
        if node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{item.name}" for item in node.names)
    elif isinstance(node, (ast.Attribute, ast.Subscript)):
        name = _dotted(node, aliases)
        if name:
            yield name
    elif isinstance(node, ast.Call):
        name = _dotted(node, aliases)
        if name:
            yield name
        called = _dotted(node.func, aliases) or ""
        if called.split(".")[-1] in IMPORTERS | {"get"}:  # sys.modules.get("…") imports nothing but reaches it
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value


def sources() -> list[Path]:
    return sorted(KILN.rglob("*.py"))


def native_sources() -> list[Path]:
    return sorted(path for ending in ("*.cpp", "*.h", "*.cu", "*.pyi") for path in KILN.rglob(ending))


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(KILN)))
def test_python_sources_keep_the_boundary(path):
    assert offences(path.read_text()) == []


@pytest.mark.parametrize("path", native_sources(), ids=lambda path: str(path.relative_to(KILN)))
def test_native_sources_keep_the_boundary(path):
    code = re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
    assert TEXT_PATTERN.findall(code) == []


def test_files_are_short_and_say_their_job():
    for path in sources():
        text = path.read_text()
        assert len(text.splitlines()) < 1000, f"{path} is too long to be one idea"
        if text.strip():
            assert ast.get_docstring(ast.parse(text)), f"{path} does not say what its job is"


OFFENDING = [
    "import torch._dynamo",
    "import torch._dynamo.config as settings",
    "from torch import _dynamo",
    "from torch import compile",
    "from torch._dynamo import utils",
    "from torch._inductor.codegen import cpp",
    "import torch._inductor as inductor",
    "from torch._C import _dynamo",
    "from torch._C._dynamo.eval_frame import set_eval_frame",
    "import torch\ntorch.compile(f)",
    "import torch\n@torch.compile\ndef f(): pass",
    "import torch\n@torch.compile(backend='eager')\ndef f(): pass",
    "import torch as t\nt._dynamo.reset()",
    "import torch\ntorch._C._dynamo.guards",
    "from torch import _C\n_C._dynamo.eval_frame",
    "import torch\nlibrary = torch\nlibrary.compile(f)",
    "import torch\ngetattr(torch, 'compile')(f)",
    "import torch\ngetattr(torch, '_dynamo').reset()",
    "import importlib\nimportlib.import_module('torch._dynamo')",
    "from importlib import import_module\nimport_module('torch._inductor.lowering')",
    "__import__('torch._dynamo')",
    "import sys\nsys.modules['torch._dynamo']",
    "import sys\nsys.modules.get('torch._dynamo')",
    "from torch._functorch.aot_autograd import aot_function",
    "from torch._functorch import partitioners",
    "from functorch.compile import aot_module",
    "import functorch.compile",
    "import torch\ntorch.compiler.compile(f)",
    "import torch\ntorch.compiler.disable(f)",
    "from torch.compiler import allow_in_graph",
    "def f():\n    from torch._dynamo import x",
    "import torch\ntorch.export.export(m, ())",
]

HARMLESS = [
    "import torch",
    "import torch.fx\nfrom torch._subclasses import FakeTensorMode",
    "from torch.fx.experimental.symbolic_shapes import ShapeEnv",
    "import torch\ntorch.compiler.is_compiling()",
    "from torch._functorch import config",
    "'''Unlike torch._dynamo, this installs no frame hook; torch.compile does.'''",
    "message = 'use torch.compile instead'",
    "import re\nre.compile('x')",
    "def compile(f): return f\ncompile(1)",
    "import kiln\nkiln.compile(f)",
    "table = {}\ntable.get('torch')",
    "import torch._decomp, torch._refs, torch.utils._pytree",
]


@pytest.mark.parametrize("source", OFFENDING)
def test_offending_snippets_are_found(source):
    assert offences(source), source


@pytest.mark.parametrize("source", HARMLESS)
def test_harmless_snippets_pass(source):
    assert offences(source) == []


def test_native_pattern():
    assert TEXT_PATTERN.search("#include <torch/csrc/dynamo/guards.h>")
    assert not TEXT_PATTERN.search("#include <torch/csrc/autograd/variable.h>")
