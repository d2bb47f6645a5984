"""Replaces the code of many standard-library functions by its reassembled (and normalized) self and runs them.

Usage: python -m tests.bytecode.running_script
"""

import json
import types

from tests.bytecode import library_programs
from tests.bytecode.standalone import bytecode


def rebuilt(code, change):
    taken_apart = bytecode.decode(code)
    taken_apart.names, taken_apart.consts = [], [code.co_consts[0] if code.co_consts else None]
    for step in taken_apart:
        if isinstance(step.argval, types.CodeType):
            step.argval = rebuilt(step.argval, change)
    change(taken_apart)
    return bytecode.assemble(taken_apart)


def spread_out(taken_apart):
    """Make every jump long: plenty of code that nothing reaches between the first half and the second."""
    middle = len(taken_apart) // 2
    while taken_apart[middle - 1].op in ("KW_NAMES", "PRECALL", "END_FOR"):
        middle += 1  # the interpreter takes these and what follows as one
    around = taken_apart[middle]
    filler = [bytecode.Instruction("JUMP_FORWARD", target=around)]
    filler += [bytecode.Instruction("NOP") for _ in range(70000 if taken_apart.name == "wrap" else 300)]
    if not any(start.start.index < middle <= start.end.index for start in taken_apart.exceptions):
        taken_apart.instructions[middle:middle] = filler
        taken_apart.renumber()


def routed(code):
    """Every call passes through a router that changes nothing."""
    return bytecode.route_calls(code, same)


def same(callee):
    assert callable(callee), callee
    return callee


WAYS = [lambda code: rebuilt(code, lambda taken_apart: None), lambda code: rebuilt(code, bytecode.normalize)]
WAYS += [lambda code: rebuilt(code, spread_out), routed]


def main():
    expected = library_programs.run_all()
    failures = []
    count = 0
    for way in WAYS:
        originals = {function: function.__code__ for function in library_programs.functions()}
        for function, code in originals.items():
            function.__code__ = way(code)
        try:
            results = library_programs.run_all()
        finally:
            for function, code in originals.items():
                function.__code__ = code
        count += len(originals)
        failures += [
            (name, expected[name][:300], results[name][:300]) for name in expected if expected[name] != results[name]
        ]
    print(json.dumps({"programs": len(expected), "functions": count, "failures": failures}))


main()
