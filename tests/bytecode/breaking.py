"""Runs functions broken at chosen instructions, with the machinery that Kiln uses and without any tracer.

A function is split at its very first instruction, where the state is just the arguments, and (with `also`) at the
instructions that a test wants broken.  Segments are functions like any other and may be broken in turn.
"""

import functools
import random
import types

from tests.bytecode.standalone import bytecode

Instruction = bytecode.Instruction


@functools.cache
def entry(code):
    """The index of the first instruction of the body."""
    return next(step.index + 1 for step in bytecode.decode_apart(code) if step.op == "RESUME")


def breakable(code):
    """Indices at which a break is possible: all that can be reached but the ends of for loops and new cells."""
    steps = bytecode.decode_apart(code)
    kinds = bytecode.stack_kinds(steps)
    ends = {step.index for step in steps if step.op == "END_FOR"}
    if bytecode.opcode_info.VERSION >= (3, 13):
        ends |= {index + 1 for index in ends}
    ends |= {step.index for step in steps if step.op == "MAKE_CELL"}
    return [index for index in range(entry(code), len(steps)) if index not in ends and kinds[index] is not None]


def straight(function, segment):
    return function


class Breaker:
    """Breaks segments again, at random instructions, down to some depth of splits."""

    def __init__(self, seed, depth, breaks):
        self.random, self.depth, self.breaks = random.Random(seed), depth, breaks

    def __call__(self, function, segment):
        if self.depth == 0:
            return function
        deeper = Breaker(self.random.random(), self.depth - 1, self.breaks)
        code = function.__code__
        size = len(bytecode.decode_apart(code))
        also = sorted({self.random.randrange(entry(code), size) for _ in range(self.breaks)})
        return broken(function, also, deeper)


class Stepper:
    """Breaks every segment at its start, again and again: the code runs one instruction at a time."""

    def __init__(self, steps):
        self.steps = steps

    def __call__(self, function, segment):
        return broken(function, (), Stepper(self.steps - 1)) if self.steps else function


def broken(function, also=(), wrap=straight):
    """A function that does what `function` does, broken at its start and at the instructions `also`."""
    runner = Runner(function, function.__code__, also, wrap)
    code = trampoline(function.__code__, runner)
    made = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.runner = runner
    return made


class Runner:
    """Receives the arguments and free cells of a call and runs the split code with them."""

    def __init__(self, function, code, also, wrap):
        self.function, self.code, self.also, self.wrap = function, code, list(also), wrap
        self.skeleton = None
        self.routed = []

    def route(self, target):
        self.routed.append(getattr(target, "__name__", None))
        return target

    def build(self):
        start = entry(self.code)
        while self.skeleton is None:
            try:
                self.split = bytecode.split(self.code, start, (), [index for index in self.also if index != start])
                self.skeleton = self.split.build(self.function.__globals__, self.wrap, self.route)
            except bytecode.CannotSplit:
                if not self.also:
                    raise
                self.also.pop()  # random indices may hit what is no break
        taken_apart = bytecode.decode_apart(self.code)
        self.arguments = taken_apart.arguments
        self.freevars = taken_apart.freevars
        prologue = taken_apart.instructions[:start]
        makes = {step.argval for step in prologue if step.op == "MAKE_CELL"}
        self.passed_cells = set(taken_apart.cellvars) - makes  # segments get their cells as arguments

    def __call__(self, arguments, cells):
        if self.skeleton is None:
            self.build()
        values = dict(zip(self.arguments, arguments, strict=True))
        free = dict(zip(self.freevars, cells, strict=True))
        state = []
        for kind, name in self.split.parameters:
            assert kind != "stack"
            if kind == "local":
                state.append(values.get(name, bytecode.UNBOUND))
            elif name in free:
                state.append(free[name])
            elif name in self.passed_cells:
                state.append(values[name])
            else:
                state.append(types.CellType(values[name]) if name in values else types.CellType())
        del arguments, values
        return self.skeleton(*state)


def trampoline(code, runner):
    """Code with the parameters and free variables of `code` that calls runner(arguments, cells)."""
    head = bytecode.decode_apart(code)
    call = ["PRECALL", "CALL"] if bytecode.opcode_info.VERSION == (3, 11) else ["CALL"]
    below = bytecode.opcode_info.NULL_BELOW_CALLABLE
    steps = [Instruction("COPY_FREE_VARS", len(head.freevars))] if head.freevars else []
    steps += [Instruction("RESUME", 0)]
    steps += [Instruction("PUSH_NULL")] if below else []
    steps += [Instruction("LOAD_CONST", argval=runner)]
    steps += [] if below else [Instruction("PUSH_NULL")]
    steps += [Instruction("LOAD_FAST", argval=name) for name in head.arguments]
    steps += [Instruction("BUILD_TUPLE", len(head.arguments))]
    closure = "LOAD_FAST" if bytecode.opcode_info.VERSION >= (3, 13) else "LOAD_CLOSURE"
    steps += [Instruction(closure, argval=name) for name in head.freevars]
    steps += [Instruction("BUILD_TUPLE", len(head.freevars))]
    steps += [Instruction(op, 2) for op in call]
    steps += [Instruction("RETURN_VALUE")]
    head.instructions, head.exceptions, head.names, head.consts = steps, [], [], [None]
    head.varnames, head.cellvars = head.arguments, []
    head.renumber()
    return bytecode.assemble(head)


def outcome(function, *arguments):
    """(result or exception with its chain, log), comparable."""
    log = []
    try:
        result = ("returned", repr(function(log, *arguments)))
    except Exception as error:
        result = ("raised", *chain(error))
    return result, repr(log)


def chain(error):
    while error is not None:
        yield f"{type(error).__name__}: {error}"
        error = error.__cause__ or error.__context__
