"""Private names of torch and CPython are used in kiln/platform alone; see docs/platform.md.

`kiln/compat` stands in for torch's compiler: it may name modules of that compiler, in strings. What it uses of torch
goes through the door like everything else.
"""

from __future__ import annotations

import pytest

from tests.structure.imports import ROOT
from tests.structure.private_names import uses, uses_below

KILN = ROOT / "kiln"

KNOWN = ("Known for torch 2.11 to 2.15", "Known for CPython 3.11 to 3.14")


def test_private_names_are_used_in_platform_alone() -> None:
    outside = {path.relative_to(KILN): found for path, found in uses_below(KILN).items()}
    found = [f"kiln/{path} {use}" for path, names in outside.items() for use in names if path.parts[0] != "platform"]
    assert found == []


@pytest.mark.parametrize("path", sorted((KILN / "platform").glob("*.py")), ids=lambda path: path.name)
def test_modules_of_platform_name_the_versions_they_are_known_for(path) -> None:
    text = path.read_text()
    if uses(text):
        assert any(known in text for known in KNOWN)


PRIVATE = [
    "import torch._C",
    "import torch._refs as refs",
    "from torch import _C",
    "from torch._subclasses.fake_tensor import FakeTensor",
    "from torch.fx.node import _get_qualified_name",
    "from torch.fx.experimental.symbolic_shapes import ShapeEnv",
    "import torch.utils._pytree as pytree",
    "from torch.utils import _pytree",
    "def f():\n    from torch._dispatch.python import enable_python_dispatcher",
    "import torch\ntorch._C._current_graph_task_id()",
    "import torch\nisinstance(x, torch._ops.OpOverload)",
    "import torch\ndef f(x: torch._ops.OpOverload): pass",
    "import torch as t\nt._foreach_add(a, b)",
    "import torch\nlibrary = torch\nlibrary._C",
    "import torch\ngetattr(torch, '_C')",
    "import torch\ntorch.autograd.Variable._execution_engine",
    "from torch.nn import Module\nModule._call_impl",
    "from torch.autograd import forward_ad\nforward_ad._current_level",
    "import importlib\nimportlib.import_module('torch._refs')",
    "tensor._version",
    "tensors[0]._base.requires_grad",
    "tensor.untyped_storage()._cdata",
    "operator._schema.arguments",
    "getattr(target, '_opname', '')",
    "module._parameters['weight'] = None",
    "graph._root.prev",
    "fake._is_param = True",
    "size.node.expr",
    "size.node.has_hint()",
    "operator.py_kernels[key]",
    "from operator import attrgetter\nattrgetter('_version')",
    "import sys\nsys._getframe(1)",
    "import dis\ndis._nb_ops",
    "import _thread",
    "from _collections_abc import Mapping",
    "from functools import _lru_cache_wrapper",
    "lock._at_fork_reinit()",
    "cls._value2member_map_",
    "import ctypes\nctypes.pythonapi.PyFrame_GetCode",
]

PUBLIC = [
    "import torch\ntorch.add(a, b)",
    "import torch\ntorch.ops.aten._softmax.default",
    "import torch\naten = torch.ops.aten\naten._to_copy.default",
    "from torch.nn import Module\nModule.__call__",
    "self._version_of_program",
    "from ..platform.torch_tensors import version_of\nversion_of(x)",
    "from .. import _native\n_native.is_instance",
    "from __future__ import annotations",
    "node.meta['expr']\nnode.expr",
    "record._asdict()\nrecord._fields",
    "'''Unlike torch._C, this is text: x._version'''",
    "import sys\nsys.__dict__",
]


@pytest.mark.parametrize("source", PRIVATE)
def test_private_names_are_found(source: str) -> None:
    assert uses(source)


@pytest.mark.parametrize("source", PUBLIC)
def test_public_names_are_not(source: str) -> None:
    assert uses(source) == []


def test_a_chain_counts_once_and_has_its_line() -> None:
    (use,) = uses("import torch\n\nx = torch._C._autograd.CreationMeta.DEFAULT")
    assert str(use) == "line 3: torch._C._autograd.CreationMeta.DEFAULT"


def test_a_planted_file_is_found(tmp_path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "file.py").write_text(
        "import torch\n\n\ndef f():\n    return torch._C._get_tracing_state()\n"
    )
    ((path, (use,)),) = uses_below(tmp_path).items()
    assert path.name == "file.py" and use.line == 5
