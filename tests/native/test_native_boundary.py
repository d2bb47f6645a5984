"""The native module's door to private parts of torch and CPython, enforced from the C++ sources: kiln/native/platform.

Everything that the rest of kiln/native knows of torch::autograd, of torch's Python objects and of CPython's structures
goes through the headers of that folder. The module checks when it is imported that what they assume is so.
"""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[2] / "kiln" / "native"
PLATFORM = NATIVE / "platform"

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')

# In the code without comments and strings.
IN_CODE = {
    "a private header of torch": r"#include\s*[<\"]torch/(?!library\.h)[^>\"]*",
    "a private header of ATen or c10": r"#include\s*[<\"](?:ATen|c10)/(?:[^>\"]*/)?"
    r"(?:impl/|detail/|PythonTorchFunctionTLS|EmptyTensor)[^>\"]*",
    "a private header of CPython": r"#include\s*[<\"](?:internal/|cpython/)[^>\"]*|Py_BUILD_CORE",
    "a name of torch's C++ side": r"\b(?:torch|pybind11|py)::\w+",
    "a private name of ATen or c10": r"\b(?:at|c10)::(?:impl|detail)::\w+",
    "a Python object of torch's": r"\bTHP\w+",
    "a private function of CPython": r"\b_Py[A-Z]\w+",
    "a structure of CPython": r"\bPy(?:Dict|Code|List|Tuple|Long|Unicode)Object\b",
    "a field of a structure of CPython": r"(?:->|\.)(?:ma_\w+|co_\w+|func_\w+|tp_version_tag|ob_digit|ob_item)\b",
    "a function found by name": r"\bdlsym\b|\b(?:GOMP|omp)_\w+",
}
# In the strings: #include <…> is in neither.
IN_STRINGS = {"a mangled name": r"\bN\d+torch\d|_ZN|St10shared_ptr"}


def offences(source: str) -> list[str]:
    """What a C++ source does that only kiln/native/platform may."""
    source = COMMENT.sub("", source)
    strings = "\n".join(STRING.findall(source))
    included = "\n".join(line for line in source.splitlines() if line.lstrip().startswith("#include"))
    code = included + "\n" + STRING.sub('""', source)
    found = [(what, text, code) for what, text in IN_CODE.items()]
    found += [(what, text, strings) for what, text in IN_STRINGS.items()]
    return [f"{what}: {match.group()}" for what, text, where in found for match in re.finditer(text, where)]


def sources() -> list[Path]:
    return sorted(
        path for ending in ("cpp", "h") for path in NATIVE.rglob(f"*.{ending}") if PLATFORM not in path.parents
    )


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(NATIVE)))
def test_sources_keep_to_the_door(path):
    assert offences(path.read_text()) == []


def test_the_generated_source_keeps_to_the_door():
    generator = runpy.run_path(str(PLATFORM / "generate_saved_values.py"))
    structure = generator["Structure"]("AddBackward0", [("SavedVariable", "self_")])
    assert "AddBackward0" in generator["source"]([structure])
    assert offences(generator["source"]([structure])) == []


def test_the_door_has_no_translation_units_of_its_own():
    # Its headers belong to the units that include them: setup.py compiles a folder that has sources as one unit.
    assert list(PLATFORM.glob("*.cpp")) == []


@pytest.mark.parametrize("header", sorted(PLATFORM.glob("*.h")), ids=lambda path: path.name)
def test_headers_say_what_they_are_known_for(header):
    comment = header.read_text().split("#pragma once")[0]
    assert re.search(
        r"torch\s*(?://\s*)?2\.11\s*(?://\s*)?to\s*(?://\s*)?2\.15|3\.11 to 3\.14|for the other headers", comment
    )


OFFENDING = [
    "#include <torch/csrc/autograd/function.h>",
    "#include <torch/extension.h>",
    "#include <c10/core/impl/LocalDispatchKeySet.h>",
    "#include <ATen/PythonTorchFunctionTLS.h>",
    "#include <internal/pycore_dict.h>",
    "#define Py_BUILD_CORE 1",
    "torch::autograd::impl::gradient_edge(tensor);",
    "using torch::autograd::Node;",
    "auto guard = c10::impl::VirtualGuardImpl(device);",
    "at::detail::empty_strided_cpu(sizes, strides, dtype);",
    "const at::Tensor& tensor = THPVariable_Unpack(object);",
    "py::object object;",
    "PyObject* found = _PyDict_GetItem_KnownHash(dictionary, key, hash);",
    "auto version = reinterpret_cast<PyDictObject*>(dictionary)->ma_version_tag;",
    "return type->tp_version_tag;",
    "return code->co_consts;",
    'return typeid(node).name() == std::string_view("N5torch8autograd6PyNodeE");',
    'void* function = dlsym(RTLD_DEFAULT, "name");',
    'dlopen("_ZN5torch3jit8toIValueE");',
    "GOMP_parallel(body, data, threads, 0);",
]

HARMLESS = [
    "#include <ATen/core/Tensor.h>\n#include <torch/library.h>\n#include <Python.h>",
    "// torch::autograd::Node is a node",
    "/* THPVariable_Unpack\n   _PyType_Lookup */",
    'set("name", "torch::autograd::GraphRoot");',
    "platform::gradient_edge(tensor);",
    "PyFunctionObject* function = nullptr; PyTuple_GET_ITEM(tuple, 0);",
    "at::Tensor tensor; c10::SymInt size;",
]


@pytest.mark.parametrize("source", OFFENDING)
def test_offending_snippets_are_found(source):
    assert offences(source), source


@pytest.mark.parametrize("source", HARMLESS)
def test_harmless_snippets_pass(source):
    assert offences(source) == []


def test_another_torch_than_it_was_built_for_is_an_import_error():
    program = "import torch; torch.__version__ = '2.99.1+cpu'; import kiln._native"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    first = done.stderr.partition("NotLoaded: ")[2].splitlines()[0]
    assert first.startswith("Kiln's native module was built for torch 2.")
    assert first.endswith("and torch 2.99.1+cpu is installed.")
