"""Single facts about assembling, analysing and splitting, each a function `case_…`; run on each interpreter.

Usage: python -m tests.bytecode.cases_script
"""

import gc
import json
import traceback
import types
import weakref

from tests.bytecode import breaking
from tests.bytecode.standalone import bytecode

UNBOUND, Instruction, assemble, decode_apart = (
    bytecode.UNBOUND,
    bytecode.Instruction,
    bytecode.assemble,
    bytecode.decode_apart,
)
dis_text, split = bytecode.dis_text, bytecode.split


def index_of(code, op, value=None, nth=0):
    found = [
        step.index for step in decode_apart(code) if step.op.startswith(op) and (value is None or step.argval == value)
    ]
    return found[nth]


def call_after(code, value):
    """The index of the first call after the load of a name."""
    steps = decode_apart(code)
    start = next(step.index for step in steps if step.argval == value)
    return next(step.index for step in steps.instructions[start:] if step.op == "CALL")


def straight(function, segment):
    return function


def build(made, globals_=None, wrap=straight, route=lambda target: target):
    return made.build(globals() if globals_ is None else globals_, wrap, route)


# Assembling


def case_constants_that_compare_equal_stay_apart():
    shared = []
    values = [
        1,
        1.0,
        True,
        0.0,
        -0.0,
        (1,),
        (1.0,),
        (True,),
        "1",
        b"1",
        1j,
        -1j,
        frozenset({1}),
        frozenset({True}),
        shared,
        [],
        float("nan"),
    ]
    steps = [Instruction("RESUME", 0), *(Instruction("LOAD_CONST", argval=value) for value in values)]
    steps += [Instruction("BUILD_TUPLE", len(values)), Instruction("RETURN_VALUE")]
    empty = decode_apart((lambda: None).__code__)
    empty.instructions, empty.consts = steps, [None]
    result = types.FunctionType(assemble(empty), {})()
    assert [(type(one), repr(one)) for one in result] == [(type(one), repr(one)) for one in values]
    assert result[14] is shared and result[15] is not shared


def case_created_instructions():
    def template(a, b): ...

    head = decode_apart(template.__code__)
    false, end = Instruction("LOAD_CONST", argval="less"), Instruction("RETURN_VALUE")
    head.instructions = [
        Instruction("RESUME", 0),
        Instruction("LOAD_FAST", argval="a"),
        Instruction("LOAD_FAST", argval="b"),
        Instruction("COMPARE_OP", argval="<", flag=bytecode.opcode_info.VERSION >= (3, 13)),
        Instruction(bytecode.opcode_info.JUMP_IF["TRUE"], target=false),
        Instruction("LOAD_FAST", argval="a"),
        Instruction("LOAD_GLOBAL", argval="len"),
        Instruction("POP_TOP"),
        Instruction("LOAD_FAST", argval="b"),
        Instruction("BINARY_OP", argval="-"),
        Instruction("JUMP_FORWARD", target=end),
        false,
        end,
    ]
    made = types.FunctionType(assemble(head), {"len": len})
    assert (made(5, 2), made(1, 2)) == (3, "less")


def case_backward_conditional_jump():
    def template(n): ...

    head = decode_apart(template.__code__)
    top = Instruction("LOAD_FAST", argval="n")
    head.instructions = [
        Instruction("RESUME", 0),
        top,
        Instruction("LOAD_CONST", argval=1),
        Instruction("BINARY_OP", argval="-"),
        Instruction("STORE_FAST", argval="n"),
        Instruction("LOAD_FAST", argval="n"),
        Instruction("LOAD_CONST", argval=0),
        Instruction("COMPARE_OP", argval=">", flag=bytecode.opcode_info.VERSION >= (3, 13)),
        Instruction(bytecode.opcode_info.JUMP_IF["TRUE"], target=top),
        Instruction("LOAD_FAST", argval="n"),
        Instruction("RETURN_VALUE"),
    ]
    assert types.FunctionType(assemble(head), {})(1000) == 0


def case_many_names():
    source = (
        "def f():\n"
        + "".join(f"  v{i} = {i}.5\n" for i in range(700))
        + "  return "
        + " + ".join(f"v{i}" for i in range(700))
    )
    space = {}
    exec(source, space)
    head = decode_apart(space["f"].__code__)
    head.varnames.reverse()
    head.consts, head.names = [None], []
    assert types.FunctionType(assemble(head), {})() == space["f"]()


def case_text():
    text = dis_text(decode_apart(case_text.__code__))
    assert "RETURN" in text and "'dis_text'" in text and ">>" not in text.splitlines()[0]


# Analyses


def case_liveness():
    def sample(a, b, c):
        x = a + b
        if x:
            return c
        return x

    code = decode_apart(sample.__code__)
    live = bytecode.live_locals(code)
    assert live[0] == {"a", "b", "c"}
    store = next(step.index for step in code if step.op.startswith("STORE_FAST"))
    assert live[store] >= {"c"} and "a" not in live[store]


def case_assignment():
    def sample(flag):
        if flag:
            late = 1
        return late

    code = decode_apart(sample.__code__)
    bound = bytecode.assigned(code)
    assert bound[0] == {"flag"}
    assert "late" not in bound[index_of(sample.__code__, "RETURN_VALUE") - 1]


def case_loops():
    def sample(xs):
        for x in xs:
            while x:
                x -= 1
        return [y for y in xs]

    headers = [loop.header for loop in bytecode.loops(decode_apart(sample.__code__))]
    steps = decode_apart(sample.__code__)
    assert len(headers) == (2 if bytecode.opcode_info.VERSION == (3, 11) else 3)
    assert sum(steps[header].op == "FOR_ITER" for header in headers) == len(headers) - 1


def case_normalized_super_runs_elsewhere():
    class Base:
        def name(self):
            return "base"

    class Derived(Base):
        def name(self):
            return super().name() + "!"

    code = Derived.name.__code__
    head = decode_apart(code)
    bytecode.normalize(head)
    head.varnames = ["other", "self"]  # super() would now find something else in the first slot
    head.argcount = 2
    for step in head:
        step.arg = None if step.op in bytecode.opcode_info.HAS_LOCAL else step.arg
    made = types.FunctionType(assemble(head), globals(), "name", None, Derived.name.__closure__)
    if bytecode.opcode_info.VERSION >= (3, 12):
        assert made(1, Derived()) == "base!"
    else:  # there the first argument is what the rewriting names
        assert "self" in dis_text(head)


# Splitting


def loader(log, batches):
    total = 0
    scale = 2
    for batch in batches:
        doubled = batch * scale
        print_(log, doubled)
        total += doubled
    return total


def print_(log, value):
    log.append((value, len(traceback.extract_stack())))


def case_a_native_loop_with_two_segments():
    code = loader.__code__
    made = split(code, call_after(code, "print_"))
    assert [kind for kind, _ in made.parameters].count("stack") == 4, "iterator, callable and two arguments"
    looping = [segment for segment in made.segments if segment.exits]
    ending = [segment for segment in made.segments if not segment.exits]
    assert len(looping) == 2 and len(ending) == 1
    for segment in looping:
        assert ("stack", 0) not in segment.parameters, "the iterator stays in the skeleton"
        assert 3 <= segment.line - code.co_firstlineno <= 6
    before, after = sorted(looping, key=lambda segment: segment.start)
    assert before.parameters == (("stack", 1), ("local", "log"), ("local", "scale"))
    assert set(after.parameters) == {("local", "total"), ("local", "doubled")}
    assert ending[0].parameters == (("local", "total"),)


def case_loops_do_not_grow_the_stack():
    code = loader.__code__
    function = breaking.broken(loader, [call_after(code, "print_")])
    log = []
    assert function(log, range(10000)) == 2 * sum(range(10000))
    assert len({depth for _, depth in log}) == 1

    def counting(n):
        log = []
        while n:
            n -= 1
            print_(log, n)
            if n % 2:
                continue
        return log

    function = breaking.broken(counting, [call_after(counting.__code__, "print_")], breaking.Breaker("w", 2, 2))
    log = function(10000)
    assert len(log) == 10000 and len({depth for _, depth in log[5:]}) <= 2


def case_skeleton_called_at_the_break():
    def sample(a, b):
        text = a.upper()
        return text + b

    call = call_after(sample.__code__, "upper")
    stack = bytecode.stack_kinds(normalized(sample.__code__))
    made = split(sample.__code__, call, (True, False) if bytecode.opcode_info.NULL_BELOW_CALLABLE else (False, True))
    slot = 1 if bytecode.opcode_info.NULL_BELOW_CALLABLE else 0
    assert made.parameters == (("stack", slot), ("local", "b")), (made.parameters, stack)
    seen = []
    skeleton = build(made, route=lambda target: seen.append(target) or (lambda: "routed "))
    assert skeleton("x".upper, "b") == "routed b"
    assert len(seen) == 1 and skeleton.__name__ == "sample" and skeleton.__code__.co_filename == __file__


def normalized(code):
    head = decode_apart(code)
    bytecode.normalize(head)
    return head


def case_wrong_nulls_are_refused():
    def sample(f):
        return f()

    for wrong in ((), (True, True), (False, False), (True, False, False)):
        try:
            split(sample.__code__, index_of(sample.__code__, "CALL"), wrong)
        except bytecode.CannotSplit:
            continue
        raise AssertionError(wrong)


def case_what_cannot_be_split():
    def generator():
        yield 1

    for code, index in ((generator.__code__, 3), (loader.__code__, 0), (loader.__code__, 10**6)):
        try:
            split(code, index)
        except bytecode.CannotSplit:
            continue
        raise AssertionError(index)


def case_unbound_locals():
    def sample(flag, note):
        if flag:
            late = 1
        note()
        try:
            return late
        except UnboundLocalError:
            return "unbound"

    made = split(sample.__code__, index_of(sample.__code__, "CALL"))
    skeleton = build(made)
    for value, expected in ((5, 5), (UNBOUND, "unbound")):
        state = {"late": value}
        arguments = [state[name] if kind == "local" else (lambda: None) for kind, name in made.parameters]
        assert skeleton(*arguments) == expected


def case_a_branch_is_decided_natively():
    def sample(test, x):
        if test(x):
            return x + 1
        return x - 1

    made = split(sample.__code__, index_of(sample.__code__, "CALL"))
    assert len(made.segments) == 2
    assert all(segment.parameters == (("local", "x"),) for segment in made.segments)


def case_cells_are_shared():
    def outer():
        count = 0

        def bump():
            nonlocal count
            count += 1

        bump()
        bump()
        return count

    code = outer.__code__
    made = split(code, index_of(code, "CALL", nth=-1))
    cell = types.CellType(10)
    bump = types.FunctionType(
        next(c for c in code.co_consts if isinstance(c, types.CodeType)), {}, "bump", None, (cell,)
    )
    arguments = [cell if kind == "cell" else bump for kind, _ in made.parameters]
    assert ("cell", "count") in made.parameters
    assert build(made)(*arguments) == 11 and cell.cell_contents == 11


class Big:
    pass


def case_values_die_as_soon_as_without_a_break():
    def sample(make, watch, done):
        first = make()
        watch(first)
        first = None
        done("first")
        for _ in range(2):
            item = make()
            watch(item)
            item = 0
            done("item")
        return 1

    def run(function):
        alive, events = [], []

        def watch(thing):
            alive.append(weakref.ref(thing))

        def done(name):
            events.append((name, [ref() is not None for ref in alive]))

        assert function(Big, watch, done) == 1
        return events

    expected = run(sample)
    assert not any(any(flags) for _, flags in expected)
    for index in breaking.breakable(sample.__code__):
        assert run(breaking.broken(sample, [index])) == expected, index


def case_no_cycles_through_frames():
    """Skeleton, segments and their objects go away with the last reference."""
    function = breaking.broken(loader, [call_after(loader.__code__, "print_")])
    function([], [1])
    ghost = weakref.ref(function.runner.skeleton)
    gc.disable()
    try:
        function.runner.skeleton = None
        assert ghost() is None
    finally:
        gc.enable()


def failing(x):
    y = x + 1
    print_([], y)
    return y // 0


def case_traceback_shows_the_users_lines():
    function = breaking.broken(failing, [call_after(failing.__code__, "print_")])
    try:
        function(1)
    except ZeroDivisionError as error:
        entries = [entry for entry in traceback.extract_tb(error.__traceback__) if entry.name == "failing"]
    assert entries[-1].lineno == failing.__code__.co_firstlineno + 3
    assert entries[-1].line == "return y // 0"
    assert not any(entry.lineno for entry in entries[:-1]), "calls of segments have no line of the user's"


def case_broken_call_is_routed():
    function = breaking.broken(loader, [call_after(loader.__code__, "print_")])
    function([], [1, 2, 3])
    assert function.runner.routed.count("print_") == 3

    def keywords(f, args, kwargs):
        return f(1, k=2), f(*args, **kwargs), f(*args), max([3, 4], key=lambda v: -v)

    def callee(*args, **kwargs):
        return args, kwargs

    expected = keywords(callee, (1,), {"z": 2})
    for index in breaking.breakable(keywords.__code__):
        op = decode_apart(keywords.__code__)[index].op
        function = breaking.broken(keywords, [index])
        assert function(callee, (1,), {"z": 2}) == expected
        assert (len(function.runner.routed) == 1) == (
            op in ("PRECALL", "KW_NAMES", "CALL", "CALL_KW", "CALL_FUNCTION_EX")
        ), op


def case_code_objects_hold_no_objects_of_kiln():
    made = split(loader.__code__, call_after(loader.__code__, "print_"))
    for code in [made.code, *(segment.code for segment in made.segments)]:
        assert all(isinstance(constant, (int, str, tuple, type(None))) for constant in code.co_consts)
        assert all(name.startswith("__kiln_") for name in code.co_freevars)


def main():
    cases = {name: value for name, value in globals().items() if name.startswith("case_")}
    failures = {}
    for name, case in cases.items():
        try:
            case()
        except Exception:
            failures[name] = traceback.format_exc()[-1500:]
    print(json.dumps({"cases": len(cases), "failures": failures}))


main()
