"""Whole programs: the prelude, two generated helpers, and `main` with the arguments of its calls."""

from __future__ import annotations

from .prelude import PRELUDE
from .statements import Function
from .tape import Tape

PARAMETERS = {"x": "tensor", "y": "tensor", "n": "int", "text": "str", "items": "ints", "table": "table", "box": "box"}

ARGUMENTS = """\


def make_calls():
    shared = [4, 5]
    first = (torch.arange(3.0), torch.ones(3, requires_grad=GRAD), 3, "abc", shared, {"a": 1, "b": 2}, Box(5, shared))
    second = (torch.full((3,), -1.0), torch.zeros(3), 6, "", [], {}, Child(2))
    third = (torch.arange(3.0), torch.ones(3, requires_grad=GRAD), 3, "abc", shared, {"a": 1, "b": 2}, Box(5, shared))
    return [first, second, third][:CALLS]
"""


def generate(content: bytes) -> str:
    """The program that a byte string stands for."""
    tape = Tape(content)
    calls = 1 + tape.below(3)
    needs_gradient = tape.chance(25)
    main = _function(tape, "main", PARAMETERS, "", loops=2, budget=6 + tape.below(18))
    helpers = [
        _helper(tape, "helper_one", "n", {"n": "int"}),
        _helper(
            tape, "helper_two", "n, b=2, *rest, key=1, **more", {"n": "int", "b": "int", "key": "int", "more": "table"}
        ),
    ]
    arguments = ARGUMENTS.replace("CALLS", str(calls)).replace("GRAD", str(needs_gradient))
    return PRELUDE + "\n".join(helpers) + "\n" + main + arguments


def _helper(tape: Tape, name: str, signature: str, parameters: dict[str, str]) -> str:
    text = _function(tape, name, parameters, signature, loops=1, budget=2 + tape.below(4))
    # Helpers call no helpers: a program that calls itself without end would compare nothing.
    header, _, body = text.partition("\n")
    return header + "\n" + body.replace("helper_one", "simple_one").replace("helper_two", "simple_two")


def _function(tape: Tape, name: str, parameters: dict[str, str], signature: str, *, loops: int, budget: int) -> str:
    body = Function(tape, parameters, level=1, loops=loops, budget=budget)
    is_main = name == "main"
    body.write("global GLOBAL_COUNT")
    body.statements(3 + tape.below(14 if is_main else 3))
    if is_main:
        kept = [variable for variable, kind in body.variables.items() if kind != "fn"]
        body.write(f"return {{{', '.join(f'{variable!r}: {variable}' for variable in kept)}}}")
    else:
        body.write(f"return {body.expressions.make('int', 1)}")
    header = f"def {name}({signature or ', '.join(parameters)}):"
    return "\n".join([header, *body.lines]) + "\n"
