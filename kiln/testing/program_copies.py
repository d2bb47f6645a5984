"""Copies of a program for each run: of the program, what it closes over, its globals and its arguments.

`copy.deepcopy` takes functions as they are, so two runs of a closure would write to one list and always agree. Here
functions that close over something are copied with their cells, and globals that the program names are replaced by
copies for the length of a run.
"""

from __future__ import annotations

import copy
import gc
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import Any

from ..platform.cpython import functions_found_in_memos
from ..platform.light_dataclass import dataclass

GlobalName = tuple[int, str]  # which globals dictionary, which name in it

# Looked through neither for functions to copy nor for data: they belong to the interpreter, not to the program.
_CLOSED = (types.ModuleType, types.CodeType, types.FrameType, types.TracebackType, types.BuiltinFunctionType, str, int)


@dataclass
class ProgramCopy:
    """What one run works on: the callable, the argument tuples of its calls, and whatever else is to be compared."""

    program: Callable[..., Any]
    calls: list[Any]
    state: Any = None
    globals: dict[GlobalName, Any] = field(default_factory=dict)


def reachable(roots: list[Any]) -> tuple[list[types.FunctionType], list[object]]:
    """The Python functions that `roots` hold, close over, or call by a global name; and the bare sentinel objects."""
    functions: list[types.FunctionType] = []
    sentinels: list[object] = []
    seen: set[int] = set()
    pending = list(roots)
    alive = []  # what get_referents makes up on the spot must outlive its id
    while pending:
        value = pending.pop()
        if id(value) in seen or isinstance(value, _CLOSED) or _belongs_to_library(value):
            continue
        seen.add(id(value))
        alive.append(value)
        if isinstance(value, types.FunctionType):
            functions.append(value)
            pending.extend(_referents_of_function(value))
        elif isinstance(value, type):
            pending.extend(item for item in vars(value).values() if isinstance(item, _FUNCTION_LIKE))
        elif type(value) is object:
            sentinels.append(value)
        else:
            pending.extend(gc.get_referents(value))
    return functions, sentinels


_FUNCTION_LIKE = (types.FunctionType, classmethod, staticmethod, property)
_LIBRARIES = (
    "torch", "numpy", "builtins", "kiln", "collections", "typing", "functools", "abc", "contextlib", "pytest",
    "dataclasses",
)  # fmt: skip


def _belongs_to_library(value: Any) -> bool:
    """Functions and classes of libraries hold no state of the tested program."""
    if not isinstance(value, (types.FunctionType, type)):
        return False
    module = getattr(value, "__module__", None)
    return isinstance(module, str) and module.split(".")[0] in _LIBRARIES


def own_attributes(function: types.FunctionType) -> dict[str, Any]:
    """A function's attributes without what Kiln keeps there."""
    return {name: value for name, value in function.__dict__.items() if not name.startswith("__kiln_")}


def _referents_of_function(function: types.FunctionType) -> list[Any]:
    values: list[Any] = [function.__defaults__, function.__kwdefaults__, own_attributes(function)]
    for cell in function.__closure__ or ():
        values.append(cell)  # an empty cell simply has no referents
    values.extend(function.__globals__[name] for name in global_names(function))
    return values


def global_names(function: types.FunctionType) -> list[str]:
    """The names in a function's code, and in code nested in it, that its globals have."""
    names: dict[str, None] = {}
    pending = [function.__code__]
    while pending:
        code = pending.pop()
        names.update((name, None) for name in code.co_names if name in function.__globals__)
        pending.extend(constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return list(names)


class Copier:
    """Deep copies that share one memory: what was one object before is one object among the copies."""

    def __init__(self, functions: list[types.FunctionType], sentinels: list[object]) -> None:
        # Code compares sentinels by identity, and may reach them in other ways: each is its own copy.
        self.memo: dict[int, Any] = {id(sentinel): sentinel for sentinel in sentinels}
        self._originals = functions
        self._alive: list[Any] = []
        self._cells: list[tuple[types.CellType, types.CellType]] = []
        self._make_functions()

    def _make_functions(self) -> None:
        twins: dict[int, types.CellType] = {}
        for function in self._originals:
            if function.__closure__ or has_state_in_defaults(function):
                cells = tuple(self._twin(cell, twins) for cell in function.__closure__ or ())
                self.memo[id(function)] = _function_with_cells(function, cells)
        for function in self._originals:
            if has_state_in_defaults(function):
                twin = self.memo[id(function)]
                twin.__defaults__ = self.copy(function.__defaults__)
                twin.__kwdefaults__ = self.copy(function.__kwdefaults__)
        for cell, twin in self._cells:
            try:
                content = cell.cell_contents
            except ValueError:  # empty
                continue
            twin.cell_contents = self.copy(content)

    def _twin(self, cell: types.CellType, twins: dict[int, types.CellType]) -> types.CellType:
        if id(cell) not in twins:
            twins[id(cell)] = types.CellType()
            self._cells.append((cell, twins[id(cell)]))
        return twins[id(cell)]

    def copy(self, value: Any, *, required: bool = False) -> Any:
        """A deep copy; where there can be none (locks, files, non-leaf tensors) the value itself, or an error."""
        attempt = dict(self.memo)  # a copy that fails must leave no partial objects behind
        try:
            with functions_found_in_memos():
                result = copy.deepcopy(value, attempt)
        except Exception as error:
            if required:
                raise TypeError(
                    f"kiln.testing.check cannot copy {type(value).__name__} for each run ({error}); "
                    "give make_args= or setup=, which make fresh ones"
                ) from error
            return value
        # deepcopy keeps the originals alive in a list under the memo's own id; once this memo is gone, another object
        # may get that id.
        self._alive.append(attempt.pop(id(attempt), None))
        self.memo.update(attempt)
        return result


def has_state_in_defaults(function: types.FunctionType) -> bool:
    """Whether a default argument could be changed by a call."""
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return any(
        is_state(value) and not isinstance(value, (int, float, complex, str, bytes, type(None))) for value in defaults
    )


def _function_with_cells(function: types.FunctionType, cells: tuple[types.CellType, ...]) -> types.FunctionType:
    twin = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, cells or None
    )
    twin.__kwdefaults__ = function.__kwdefaults__
    twin.__qualname__ = function.__qualname__
    twin.__module__ = function.__module__
    twin.__doc__ = function.__doc__
    twin.__dict__.update(own_attributes(function))
    return twin


class Template:
    """A program and its calls as they were given; makes a fresh copy for each run."""

    def __init__(self, program: Callable[..., Any], calls: list[Any]) -> None:
        self.program = program
        self.calls = calls
        self.functions, self.sentinels = reachable([program, calls])
        self.namespaces = {id(function.__globals__): function.__globals__ for function in self.functions}
        self.globals = {
            (id(function.__globals__), name): function.__globals__[name]
            for function in self.functions
            for name in global_names(function)
            if is_state(function.__globals__[name]) or is_stateful_function(function.__globals__[name])
        }

    @contextmanager
    def fresh_copy(self) -> Iterator[ProgramCopy]:
        """A fresh copy, whose globals are in place while the block runs; afterwards they are as they were."""
        copier = Copier(self.functions, self.sentinels)
        program = copier.copy(self.program)
        calls = copier.copy(self.calls, required=True)
        before = {key: dict(namespace) for key, namespace in self.namespaces.items()}
        for (key, name), value in self.globals.items():
            self.namespaces[key][name] = copier.copy(value)
        made = ProgramCopy(program, calls)
        try:
            yield made
        finally:
            self._restore(before)

    def final_globals(self) -> dict[str, Any]:
        """While a copy is in place: the values of the globals that the program names."""
        return {
            name: function.__globals__[name]
            for function in self.functions
            for name in global_names(function)
            if is_state(function.__globals__[name])
        }

    def _restore(self, before: dict[int, dict[str, Any]]) -> None:
        for key, namespace in self.namespaces.items():
            for name in namespace.keys() - before[key].keys():
                del namespace[name]
            for name, value in before[key].items():
                if namespace.get(name, NotImplemented) is not value:
                    namespace[name] = value


def is_stateful_function(value: Any) -> bool:
    """Whether a global is a function whose defaults a call could change: each copy has its own."""
    return isinstance(value, types.FunctionType) and not _belongs_to_library(value) and has_state_in_defaults(value)


def is_state(value: Any) -> bool:
    """Whether a global is data of the program, as opposed to code."""
    return not isinstance(value, (types.ModuleType, type, types.FunctionType, types.BuiltinFunctionType))
