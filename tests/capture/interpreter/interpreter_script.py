"""Runs the symbolic interpreter over plain Python programs, under any supported CPython, without torch.

torch is installed for one interpreter only, but the opcodes of all must be right. Here torch and Kiln's extension are
stand-ins that nothing but isinstance ever looks at, and the programs of the language tests run on numbers: what the
interpreter makes of their bytecode must be what CPython makes of it. Prints a summary as JSON.
"""

import collections
import importlib
import importlib.abc
import importlib.machinery
import inspect
import json
import re
import sys
import types
from pathlib import Path

HERE = Path(__file__).parent
STOOD_IN = ("torch", "numpy", "pytest", "sympy")
# The second one asks whether the native module fits torch: what lies in the tree may be for another torch, or missing.
STOOD_IN_OF_KILN = ("kiln._native", "kiln.platform.support.native_module")
NEVER_THERE = ("__abstractmethods__", "__set_name__", "__mro_entries__", "__wrapped__", "__orig_bases__")


class OnDemand(collections.UserDict):
    """The namespace of a stand-in, which has every name: what ``vars`` gives while modules are imported."""

    def __init__(self, owner, names):
        self.owner, self.data = owner, names

    def __missing__(self, name):
        return getattr(self.owner, name)


class StandInClass(type):
    """Every attribute of a stand-in is another, made on demand; special methods only while modules are imported."""

    importing = True

    @property
    def __dict__(cls):
        names = type.__dict__["__dict__"].__get__(cls)
        return OnDemand(cls, names) if StandInClass.importing else names

    def __getattr__(cls, name):
        special = name.startswith("__")
        if name in NEVER_THERE or (special and not StandInClass.importing):
            raise AttributeError(name)
        made = stand_in(name)
        if not special:
            setattr(cls, name, made)
        return made


def stand_in(name):
    methods = {
        "__init__": lambda self, *args, **kwargs: None,
        "__getattr__": lambda self, name: getattr(type(self), name),
        "__signature__": inspect.signature(lambda *args, **kwargs: None),
    }
    return StandInClass(name, (), {**methods, "__module__": "torch"})


class StandInModule(types.ModuleType):
    @property
    def __dict__(self):
        names = types.ModuleType.__dict__["__dict__"].__get__(self)
        return OnDemand(self, names) if StandInClass.importing else names

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, made := stand_in(name))
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in STOOD_IN or name in STOOD_IN_OF_KILN:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return StandInModule(spec.name)

    def exec_module(self, module):
        return None


class Programs:
    """Takes the place of ProgramTable."""

    found: list = []

    def __init__(self, **defaults):
        self.programs = []

    def __call__(self, *args, **expect):
        def register(program):
            values = types.SimpleNamespace(values=(program, args, expect))
            self.programs.append(values)
            Programs.found.append(values.values)
            return program

        return register

    def breaking(self, *args, **expect):
        return self(*args, fullgraph=False, **expect)

    @property
    def rows(self):
        return lambda test: test


def install():
    sys.meta_path.insert(0, Finder())
    torch = importlib.import_module("torch")
    torch.__version__ = "2.13.0"
    importlib.import_module("torch.fx").Graph = type("Graph", (), {"nodes": ()})
    mode = type("TorchFunctionMode", (), {"__enter__": lambda self: self, "__exit__": lambda self, *details: None})
    importlib.import_module("torch.overrides").TorchFunctionMode = mode
    native = sys.modules["kiln._native"] = StandInModule("kiln._native")  # complete before Kiln is imported
    native.type_version, native.is_instance = lambda cls: 0, isinstance
    native.call_watched = lambda watcher, function, args, kwargs: function(*args, **kwargs)
    native.set_disabled = lambda value: False
    native.type_name = lambda cls: cls.__name__
    torch.arange = torch.ones = torch.tensor = lambda *args: 2.0
    pytest = importlib.import_module("pytest")
    anything = types.SimpleNamespace(parametrize=lambda *args, **kwargs: lambda test: test)
    pytest.mark, pytest.param = anything, lambda *args, **kwargs: args
    table = types.ModuleType("tests.support.program_table")
    table.ProgramTable, table.X, table.Y, table.M = Programs, 2.5, 4.0, 3.0
    sys.modules["tests.support.program_table"] = table


def interpret(function, args):
    """What the interpreter says that a call returns or raises; None if it would break the graph."""
    from kiln.capture.entry.compile_frame import root_locals
    from kiln.capture.interpreter.frame import Finished, RootFrame
    from kiln.capture.state.trace import Options, Trace
    from kiln.capture.state.values import GraphBreak, Restart

    trace = Trace(function, Options(backend=None, backend_name="none"), {})
    trace.root = frame = RootFrame(trace, function, root_locals(function, args, {}))
    try:
        outcome = frame.run_root(None)
    except Restart as restart:
        return ("break", restart.args[0].reason)
    except GraphBreak as reason:
        return ("break", reason)
    if isinstance(outcome, Finished):
        return ("returned", settle(trace, outcome.value))
    return ("break", outcome.reason)


def settle(trace, value):
    """A result with everything looked at."""
    from kiln.capture.shadows.wrap import force

    value = force(trace, value)
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(settle(trace, item) for item in value)
    if type(value) is dict:
        return {settle(trace, key): settle(trace, item) for key, item in value.items()}
    return value


def eager(function, args):
    try:
        return ("returned", function(*args))
    except Exception as error:
        return ("raised", error)


def text(value):
    return re.sub(r"0x[0-9a-f]+", "0x…", repr(value))


def main():
    install()
    for path in sorted(HERE.glob("test_language_*.py")):
        if path.stem != "test_language_interpreters":
            importlib.import_module(f"{__spec__.parent}.{path.stem}")
    folder = HERE.parents[2] / "kiln" / "capture"
    for path in sorted(folder.rglob("*.py")):
        if path.stem != "__init__":
            importlib.import_module(".".join(("kiln.capture", *path.relative_to(folder).with_suffix("").parts)))
    StandInClass.importing = False
    wrong, reasons, same, skipped = {}, {}, 0, []
    for program, args, expect in Programs.found:
        try:
            kind, seen = interpret(program, args)  # first: unlike running the program, it changes nothing outside
        except BaseException as error:
            kind, seen = "failed", f"{type(error).__name__}: {error}"
        expected = eager(program, args)
        if expected[0] == "raised":
            skipped.append(program.__name__)  # it needs real tensors
            continue
        if kind == "break":
            if expect.get("fullgraph", True):
                reasons[program.__name__] = seen.reason
        elif (kind, text(seen)) != ("returned", text(expected[1])):
            wrong[program.__name__] = f"{repr(expected[1])[:1500]} expected, {kind} {repr(seen)[:1500]}"
        else:
            same += 1
    print(json.dumps({"same": same, "wrong": wrong, "breaks": reasons, "skipped": skipped}))


if __name__ == "__main__":
    main()
