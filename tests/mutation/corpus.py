"""The programs that guard mutation works on: tables of the capture tests, models, generated programs."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kiln.testing.differential import Call
from kiln.testing.program_copies import ProgramCopy, Template
from tests.fuzz.program import generate
from tests.models import plain_models
from tests.support.program_table import ProgramTable

TESTS = Path(__file__).resolve().parents[1]


@dataclass
class Program:
    """A program with a way to make a fresh world of it; `final_globals` is asked inside of one."""

    name: str
    world: Callable[[], Any]
    expect: dict[str, Any] = field(default_factory=dict)
    otherwise: Callable[[], Any] | None = None  # a context in which eager may take another way that is right, too


def table_programs() -> Iterator[Program]:
    """The rows of all program tables under tests/capture."""
    for path in sorted((TESTS / "capture").rglob("test_*.py"), key=lambda path: path.name):
        if "ProgramTable" not in path.read_text():
            continue
        module = importlib.import_module(".".join(path.relative_to(TESTS.parent).with_suffix("").parts))
        tables = {id(value): value for value in vars(module).values() if isinstance(value, ProgramTable)}
        for table in tables.values():
            for row in table.programs:
                program, args, expect = row.values
                expect = {**table.defaults, **expect}
                made = table_program(f"{path.stem.removeprefix('test_')}.{row.id}", program, args, expect)
                if made is not None:
                    yield made


def table_program(name: str, program: Callable, args: tuple, expect: dict[str, Any]) -> Program | None:
    if "setup" in expect:
        return None
    calls = expect.get("calls", 1)
    call = Call(tuple(args), expect.get("kwargs") or {})
    if not isinstance(calls, int):
        call = calls[0] if isinstance(calls[0], Call) else Call(tuple(calls[0]))
    make_args = expect.get("make_args")
    template = Template(program, [] if make_args else [call])

    @contextmanager
    def world() -> Iterator[tuple[ProgramCopy, Callable[[], dict[str, Any]]]]:
        with template.fresh_copy() as made:
            if make_args is not None:
                made.calls = [Call(tuple(make_args()))]
            yield made, template.final_globals

    return Program(name, world, expect)


def model_programs() -> Iterator[Program]:
    """The plain models; a small Hugging Face one of each kind."""
    for name, build in plain_models.PLAIN.items():
        yield _model(f"plain.{name}", build)
    try:
        from tests.models import tiny_models
    except ImportError:  # transformers is not there
        return
    for name, build in tiny_models.BUILDERS.items():
        yield replace(_model(f"tiny.{name}", build), otherwise=transformers_as_if_compiled)


@contextmanager
def transformers_as_if_compiled() -> Iterator[None]:
    """Transformers asks torch whether it is being compiled and then makes attention masks that it does not make
    otherwise: what is wrong with an input may show elsewhere. Frames that Kiln leaves to Python take the usual way."""
    import torch

    def is_compiling() -> bool:
        return sys._getframe(1).f_globals["__name__"].startswith("transformers")

    before, torch.compiler.is_compiling = torch.compiler.is_compiling, is_compiling
    try:
        yield
    finally:
        torch.compiler.is_compiling = before


def _model(name: str, build: Callable[[], Any]) -> Program:
    @contextmanager
    def world() -> Iterator[tuple[ProgramCopy, Callable[[], dict[str, Any]]]]:
        import torch

        torch.manual_seed(0)
        model, inputs = build()
        yield ProgramCopy(run_model, [Call((model, inputs(2, 8)))]), dict

    return Program(name, world, {})


def run_model(model: Any, inputs: dict[str, Any]) -> Any:
    return model(**inputs)


def generated_programs(seed: int) -> Iterator[Program]:
    """Programs of the fuzzer, without end."""
    number = 0
    while True:
        tape = random.Random(f"{seed}:{number}").randbytes(300)
        yield _generated(f"generated.{seed}.{number}", generate(tape))
        number += 1


def _generated(name: str, source: str) -> Program:
    code = compile(source, f"<{name}>", "exec")

    @contextmanager
    def world() -> Iterator[tuple[ProgramCopy, Callable[[], dict[str, Any]]]]:
        namespace: dict[str, Any] = {"__name__": "program"}
        exec(code, namespace)
        arguments = namespace["make_calls"]()
        yield ProgramCopy(namespace["main"], [Call(tuple(arguments[0]))]), dict

    return Program(name, world, {})
