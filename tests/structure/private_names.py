"""Uses of private names of torch and CPython in a Python source, read from its syntax tree.

Private are: names below torch, or below a module of the standard library, with a component that starts with one
underscore; `torch.fx.experimental`, which torch does not document; modules of the standard library that start with an
underscore; and the attributes listed here, on any object. Operators (`torch.ops.aten._softmax`) are public by any name.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Private attributes of torch's objects, by the kind of object. Attributes of Kiln's own classes have other names.
PRIVATE_ATTRIBUTES = frozenset(
    [
        # tensors and storages
        *("_version", "_base", "_is_view", "_cdata", "_is_zerotensor", "_is_param", "_make_subclass"),
        *("_make_wrapper_subclass", "_backward_hooks", "_post_accumulate_grad_hooks", "_has_symbolic_sizes_strides"),
        # operators and their schemas
        *("_schema", "_opname", "_overloadname", "_op", "_dispatch_cache", "_handle", "_qualified_op_name"),
        *("py_kernels", "py_impl", "functorch_table", "_overload_names", "_lazy_handle"),
        # nodes of autograd's graph, contexts, the engine
        *("_sequence_nr", "_forward_cls", "_raw_saved_self", "_saved_self", "_input_metadata", "_execution_engine"),
        *("_register_hook_dict", "_register_hook"),
        # modules and their hooks
        *("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_call_impl", "_wrapped_call_impl"),
        *("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
        *("_forward_pre_hooks_with_kwargs", "_backward_pre_hooks", "_get_backward_hooks", "_get_backward_pre_hooks"),
        *("_is_full_backward_hook", "_get_name", "_compiled_call_impl", "_infer_parameters", "_initialize_hook"),
        # fx graphs
        *(
            "_erased",
            "_root",
            "_rename",
            "_func_name",
            "_graph_namespace",
            "_codegen",
            "_insert",
            "_len",
            "_tracer_cls",
        ),
        *("_next", "_prev", "_input_nodes", "_args", "_kwargs", "_update_args_kwargs", "_gen_python_code"),
        # fake tensors, modes, symbolic numbers
        *("_allow_unsafe_data_ptr_access", "_expr", "_dispatch_impl", "_allow_non_fake_inputs"),
        # flags of torch's other compilers on functions
        *("_torchdynamo_inline", "_torchdynamo_disable", "_torchdynamo_orig_callable", "_torchdynamo_wrapper_id"),
        *("_torchdynamo_disable_msg", "_dynamo_forbidden", "__torch_dynamo_polyfill__", "__dynamo_disable", "_stance"),
        *("_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices", "_dynamo_unbacked_indices"),
        *("_dynamo_strict_unbacked_indices", "_dynamo_static_indices", "_has_dynamo_dim_marking"),
        # CPython and its standard library
        *("_member_map_", "_value2member_map_", "_value_", "_name_", "_at_fork_reinit", "_is_owned", "_is_protocol"),
    ]
)
SYMBOLIC_NODE = frozenset({"expr", "hint", "has_hint", "shape_env", "pytype", "constant", "maybe_as_int"})
UNDOCUMENTED = ("torch.fx.experimental", "ctypes.pythonapi", "ctypes.py_object")
PUBLIC = ("torch.ops",)
READERS = frozenset(
    ["getattr", "hasattr", "setattr", "delattr", "attrgetter", "methodcaller", "get", "pop", "setdefault"]
)
IMPORTERS = frozenset({"import_module", "__import__"})
ROOTS = frozenset(sys.stdlib_module_names) | {"torch", "functorch"}


@dataclass(frozen=True)
class Use:
    """One private name or attribute at a line of a source."""

    line: int
    name: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.name}"


def is_private(name: str) -> bool:
    """Whether a dotted name is, or is below, something private."""
    if below(name, PUBLIC):
        return False
    root, *rest = name.split(".")
    if below(name, UNDOCUMENTED):
        return True
    return root in ROOTS and (one_underscore(root) or any(one_underscore(part) for part in rest))


def below(name: str, tops: tuple[str, ...]) -> bool:
    return any(name == top or name.startswith(top + ".") for top in tops)


def one_underscore(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def uses(source: str) -> list[Use]:
    """The private names that a source uses, each chain of attributes once."""
    tree = ast.parse(source)
    aliases = imported_names(tree)
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}  # parts of longer chains
    found = []
    for node in ast.walk(tree):
        if id(node) in inner and dotted(node, aliases):
            continue
        found += [Use(node.lineno, name) for name in private_in(node, aliases)]  # type: ignore[attr-defined]
    return sorted(set(found), key=lambda use: (use.line, use.name))


def imported_names(tree: ast.Module) -> dict[str, str]:
    """What names stand for: `import torch.fx as fx`, `from torch import nn`, `t = torch`."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for item in node.names:
                aliases[item.asname or item.name.split(".")[0]] = item.name if item.asname else item.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            aliases |= {item.asname or item.name: f"{node.module}.{item.name}" for item in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            value = dotted(node.value, aliases)
            if value and (value == "torch" or value.startswith("torch.")) and not is_private(value):
                aliases[node.targets[0].id] = value
    return aliases


def dotted(node: ast.AST, aliases: dict[str, str]) -> str | None:
    """The dotted name of an imported thing that an expression spells."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id)
    if isinstance(node, ast.Attribute):
        base = dotted(node.value, aliases)
        return f"{base}.{node.attr}" if base else None
    return None


def private_in(node: ast.AST, aliases: dict[str, str]) -> Iterator[str]:
    """The private names that one node of the tree uses, its children left out."""
    if isinstance(node, ast.Import):
        yield from (item.name for item in node.names if is_private(item.name))
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield from (name for item in node.names if is_private(name := f"{node.module}.{item.name}"))
    elif isinstance(node, ast.Attribute):
        name = dotted(node, aliases)
        if name and is_private(name):
            yield name
        elif not (name and below(name, PUBLIC)):
            yield from private_attributes(node)
    elif isinstance(node, ast.Call):
        yield from private_arguments(node, aliases)
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        if isinstance(node.slice.value, str) and node.slice.value in PRIVATE_ATTRIBUTES:
            yield f"[{node.slice.value!r}]"


def private_attributes(node: ast.Attribute) -> Iterator[str]:
    """A known private attribute anywhere in a chain, each looked at by its own node."""
    if node.attr in PRIVATE_ATTRIBUTES:
        yield "." + node.attr
    elif node.attr in SYMBOLIC_NODE and isinstance(node.value, ast.Attribute) and node.value.attr == "node":
        yield f".node.{node.attr}"


def private_arguments(call: ast.Call, aliases: dict[str, str]) -> Iterator[str]:
    """Private names in `getattr(x, "_version")` and `import_module("torch._refs")`."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    for argument in call.args:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            text = argument.value
            if function in READERS and text in PRIVATE_ATTRIBUTES:
                yield "." + text
            elif function in READERS and (base := dotted(call.args[0], aliases)) and is_private(f"{base}.{text}"):
                yield f"{base}.{text}"
            elif function in IMPORTERS and is_private(text):
                yield text


def uses_below(folder: Path) -> dict[Path, list[Use]]:
    """The private names used in each file below a folder."""
    return {path: found for path in sorted(folder.rglob("*.py")) if (found := uses(path.read_text()))}
