"""All imports between the modules of a package, read from the source: at module level and inside functions."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Import:
    """One imported module: `importer` needs `imported`, by the statement at `line` of `importer`'s file."""

    importer: str
    imported: str
    line: int
    for_types: bool = False  # under `if TYPE_CHECKING:`, so never run

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def module_names(root: Path, package: str) -> dict[str, Path]:
    """The modules of `package` below `root`, by dotted name; a package's name stands for its `__init__.py`."""
    found = {}
    for path in sorted((root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    found |= {f"{package}.{path.stem}": path for path in (root / package).glob("*.pyi")}  # native modules
    return found


def imports_of(name: str, path: Path, modules: Mapping[str, object]) -> Iterator[Import]:
    """What the module `name` imports of `modules`."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    tree = ast.parse(path.read_text())
    for_types = {id(node) for node in under_type_checking(tree)}
    for node in ast.walk(tree):
        for imported in targets(node, package, modules):
            if imported != name:
                yield Import(name, imported, node.lineno, id(node) in for_types)  # type: ignore[attr-defined]


def targets(node: ast.AST, package: str, modules: Mapping[str, object]) -> Iterator[str]:
    """The modules that a statement imports. `from a import b` imports `a.b` where that is a module, otherwise `a`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in modules)
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            start = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*start, *([base] if base else [])])
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            if inner in modules or base in modules:
                yield inner if inner in modules else base


def under_type_checking(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for statement in node.body:
                yield from ast.walk(statement)


def all_imports(root: Path = ROOT, package: str = "kiln") -> list[Import]:
    modules = module_names(root, package)
    return [found for name, path in modules.items() for found in imports_of(name, path, modules)]


def cycles(edges: Iterable[tuple[str, str]]) -> list[list[str]]:
    """The strongly connected components of more than one module, largest first (Tarjan's algorithm)."""
    after: dict[str, list[str]] = {}
    for start, end in edges:
        after.setdefault(start, []).append(end)
        after.setdefault(end, [])
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    on_path: set[str] = set()
    found = []
    for root in after:
        work = [(root, iter(after[root]))] if root not in number else []
        while work:
            node, rest = work[-1]
            if node not in number:
                number[node] = lowest[node] = len(number)
                path.append(node)
                on_path.add(node)
            following = next(rest, None)
            if following is None:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[node])
                if lowest[node] == number[node]:
                    cut = path.index(node)
                    component, path[cut:] = path[cut:], []
                    on_path.difference_update(component)
                    if len(component) > 1:
                        found.append(sorted(component))
            elif following not in number:
                work.append((following, iter(after[following])))
            elif following in on_path:
                lowest[node] = min(lowest[node], number[following])
    return sorted(found, key=lambda component: (-len(component), component))
