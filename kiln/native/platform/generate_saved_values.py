"""Writes the C++ that visits what torch's generated autograd nodes save, from the header that torch installs for them.

`setup.py` calls `generate` before it builds. Each structure of the header becomes one function over its fields, in the
header's order. A structure with a declaration or a field type not known here is left out: at run time its nodes count
as unknown, which is always safe.
"""

import re
from dataclasses import dataclass
from pathlib import Path

HEADER = "torch/csrc/autograd/generated/Functions.h"

# What Field<Type> of autograd/saved_fields.h is defined for, without leading colons.
VALUES = {
    "SavedVariable",
    "at::Device",
    "at::Layout",
    "at::MemoryFormat",
    "at::Scalar",
    "at::ScalarType",
    "at::Tensor",
    "at::TensorGeometry",
    "at::TensorOptions",
    "bool",
    "c10::SymInt",
    "double",
    "int64_t",
    "size_t",
    "std::string",
    "torch::autograd::generated::TypeAndSize",
}
WRAPPER = re.compile(r"(?:std::vector|std::optional|c10::OptionalArray)<(.*)>")

STRUCTURE = re.compile(r"^struct (?:TORCH_API )?(\w+) : public (?:TraceableFunction|Node) \{$")
FIELD = re.compile(r"^  (?P<type>[\w:<>, ]+?) (?P<name>\w+)(?: = [^;()]+)?;$")
# What else stands directly in a structure: a method, whole or its first or last line; constructors taken over.
METHOD = re.compile(r"^  (?:\}|(?:[\w:]+ )+\w+\(.*\)(?: const)? override(?:;| \{.*)|using (\w+)::\1;)$")


@dataclass
class Structure:
    """One node type: its fields as (type, name), and the first line that was not understood."""

    name: str
    fields: list[tuple[str, str]]
    problem: str | None = None

    def read(self, line: str) -> None:
        """Take in one line between the braces."""
        if not line.strip() or line.startswith(("    ", "#")) or METHOD.match(line):
            return
        match = FIELD.match(line)
        if match and is_known(match["type"]):
            self.fields.append((match["type"], match["name"]))
        else:
            self.problem = self.problem or line.strip()


def is_known(kind: str) -> bool:
    """Whether fields of this C++ type can be visited."""
    kind = kind.strip().removeprefix("::")
    wrapped = WRAPPER.fullmatch(kind)
    return is_known(wrapped[1]) if wrapped else kind in VALUES


def parse(header: str) -> list[Structure]:
    """All node types of the header, in its order."""
    structures: list[Structure] = []
    current: Structure | None = None
    for line in header.splitlines():
        if match := STRUCTURE.match(line):
            # Each is declared twice, for two kinds of compiler, with one body.
            current = Structure(match[1], [])
        elif line == "};" and current:
            structures.append(current)
            current = None
        elif current:
            current.read(line)
    return structures


def function(structure: Structure) -> str:
    """The function that visits one node type."""
    lines = [f"bool visit_{structure.name}(Node& node, SavedVisitor& visitor) {{"]
    released = [name for _, name in structure.fields if name.endswith("_released_")]
    visited = [name for _, name in structure.fields if not name.endswith("_released_")]
    if structure.fields:
        lines.append(f"  auto& saved = static_cast<generated::{structure.name}&>(node);")
    if released:
        lines.append(f"  if ({' || '.join(f'saved.{name}' for name in released)}) return false;")
    if visited:
        lines.append(f"  return fields(visitor, {', '.join(f'saved.{name}' for name in visited)});")
    else:
        lines.append("  return true;")
    return "\n".join([*lines, "}"])


def source(structures: list[Structure]) -> str:
    """The C++ file: a function for each of these types, and the table of them."""
    functions = "\n\n".join(function(structure) for structure in structures)
    rows = "\n".join(f'    {{"{structure.name}", visit_{structure.name}}},' for structure in structures)
    return f"""// Written by generate_saved_values.py.
#include "autograd/saved_fields.h"
#include "platform/generated_nodes.h"

namespace kiln {{
namespace {{

namespace generated = platform::generated;

{functions}

}}  // namespace

const KnownType generated_types[] = {{
{rows}
}};
const size_t generated_type_count = {len(structures)};

}}  // namespace kiln
"""


def generate(include: Path) -> str:
    """The file's text, for the torch whose headers are in `include`."""
    structures = parse((include / HEADER).read_text())
    known = [structure for structure in structures if structure.problem is None]
    print(f"saved values: {len(known)} of {len(structures)} node types of {HEADER} are known")
    for structure in structures:
        if structure.problem is not None:
            print(f"saved values: {structure.name} is not known because of: {structure.problem}")
    return source(known)
