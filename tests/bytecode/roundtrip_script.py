"""Takes apart and puts together every code object of the standard library; run by `test_bytecode_roundtrip` on each
interpreter.  Prints one line of JSON.

Usage: python -m tests.bytecode.roundtrip_script EVERY_NTH_FILE
"""

import glob
import json
import os
import sys
import sysconfig
import types
import warnings

from tests.bytecode.standalone import bytecode

analysis, opcode_info = bytecode.analysis, bytecode.opcode_info

SKIPPED_FOLDERS = ("test", "tests", "idlelib", "lib2to3", "site-packages", "turtledemo", "idle_test")


def code_objects(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from code_objects(constant)


def library_files():
    root = sysconfig.get_path("stdlib")
    files = sorted(glob.glob(os.path.join(root, "**", "*.py"), recursive=True))
    files = [path for path in files if os.path.exists(path)]  # Debian has links in it that may lead nowhere
    return [path for path in files if not set(path[len(root) :].split(os.sep)) & set(SKIPPED_FOLDERS)]


def content(code):
    return [(step.op, step.argval.index if step.target else step.argval) for step in bytecode.decode(code)]


def has_needless_prefix(taken_apart):
    """Whether a jump back has a prefix only because the prefix itself makes the jump longer.

    Either is a solution; CPython's assembler may come from above, ours comes from below.
    """
    return any(step.op in opcode_info.IS_BACKWARD and step.arg in (1 << 8, 1 << 16) for step in taken_apart)


def check_round_trip(code):
    """What differs between a code object and its reassembled self."""
    taken_apart = bytecode.decode(code)
    again = bytecode.assemble(taken_apart)
    if content(again) != content(code):
        yield "instructions"
    if not has_needless_prefix(taken_apart):
        if again.co_code != code.co_code:
            yield "code"
        if list(again.co_positions()) != list(code.co_positions()):
            yield "positions"
        if again.co_exceptiontable != code.co_exceptiontable:
            yield "exception table"
    if again.co_stacksize < code.co_stacksize:
        yield "stack size"
    for name in ("consts", "names", "varnames", "cellvars", "freevars", "name", "qualname", "flags", "nlocals"):
        if getattr(again, "co_" + name) != getattr(code, "co_" + name):
            yield name


def check_fresh_tables(code):
    """With empty tables and no hints everything is numbered anew and must mean the same."""
    taken_apart = bytecode.decode(code)
    slots = taken_apart.slots
    if len(set(slots)) != len(slots):
        return  # a name that is cell and free at once needs the hint
    taken_apart.names, taken_apart.consts = [], []
    for step in taken_apart:
        step.arg = (
            None if step.op not in opcode_info.FLAG else (step.arg & ((1 << opcode_info.SHIFT.get(step.op, 5)) - 1))
        )
        if step.op == "COMPARE_OP" and opcode_info.VERSION < (3, 13):
            step.arg = None
    again = bytecode.assemble(taken_apart)
    ops = [step.op for step in bytecode.decode(again)]
    if ops != [step.op for step in bytecode.decode(code)]:
        yield "fresh tables"
        return
    fresh, old = bytecode.decode(again).instructions, bytecode.decode(code).instructions
    for one, other in zip(fresh, old, strict=True):
        if one.target is None and (type(one.argval), repr(one.argval)) != (type(other.argval), repr(other.argval)):
            yield f"fresh argument of {one.op}"
        if one.op == "COMPARE_OP" and one.arg != other.arg:
            yield "mask of COMPARE_OP"


def check_analyses(code):
    """Invariants of the analyses on normalized code."""
    taken_apart = bytecode.decode(code)
    before = list(taken_apart)
    replaced = bytecode.normalize(taken_apart)
    if set(replaced) != set(before):
        yield "normalize's map"
    kinds = bytecode.stack_kinds(taken_apart)
    live = bytecode.live_locals(taken_apart)
    bound = bytecode.assigned(taken_apart)
    for loop in bytecode.loops(taken_apart):
        if loop.header not in loop.body:
            yield "loop"
    if max((len(kind) for kind in kinds if kind), default=0) > bytecode.stack_size(taken_apart):
        yield "stack_size"
    for step in taken_apart:
        stack = kinds[step.index]
        if stack is None:
            continue
        if "method" in stack:
            yield "a dynamic NULL after normalize"
        if step.op == "POP_EXCEPT" and stack[-1] != "exc_prev":
            yield "POP_EXCEPT without exc_prev"
        read = set(analysis.uses(step)[0])
        if step.op != "LOAD_FAST_AND_CLEAR" and not read <= live[step.index] | set(analysis.uses(step)[1]):
            yield "read but not live"
        if step.op == "LOAD_FAST" and opcode_info.VERSION >= (3, 12) and not read <= bound[step.index]:
            yield "unchecked load of what may be unbound"  # CPython itself proved these bound
    bytecode.assemble(taken_apart)


def main():
    warnings.simplefilter("ignore")
    counts = {"code": 0, "instructions": 0, "files": 0}
    wrong = {}
    for path in library_files()[:: int(sys.argv[1])]:
        with open(path, "rb") as file:
            top = compile(file.read(), path, "exec", dont_inherit=True)
        counts["files"] += 1
        for number, code in enumerate(code_objects(top)):
            counts["code"] += 1
            counts["instructions"] += len(code.co_code) // 2
            checks = [check_round_trip]
            if number % 5 == 0:  # the round trip is for all, the slower checks for a sample
                checks += [check_fresh_tables, check_analyses]
            for check in checks:
                for what in check(code):
                    wrong.setdefault(what, []).append(f"{path}:{code.co_firstlineno} {code.co_qualname}")
    print(json.dumps({"counts": counts, "wrong": {what: places[:5] for what, places in wrong.items()}}))


main()
