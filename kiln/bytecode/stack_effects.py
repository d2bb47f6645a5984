"""What each opcode does to the operand stack: how many slots it pops, and the kinds of those it pushes.

Kinds: 'value'; 'null' (a NULL that is part of a call's layout); 'method' (either half of what a method load pushes:
NULL or not, known only at run time; `normalize` removes them); 'saved' (a local kept by LOAD_FAST_AND_CLEAR: a value or
NULL); 'maybe' (any other value or NULL: the object of a method that LOAD_SPECIAL loads); 'iterator'; 'exc' (the
exception being handled); 'exc_prev' (the one handled before); 'lasti' (where it was raised).
"""

from collections.abc import Callable

from .instruction import Instruction
from .opcode_info import KEYWORDS_OR_NULL, NULL_BELOW_CALLABLE, VERSION

Stack = tuple[str, ...]
Effect = tuple[int, Stack]

ONE: Stack = ("value",)
TWO: Stack = ("value", "value")
NULL: Stack = ("null",)
CALLABLE: Stack = ("null", "value") if NULL_BELOW_CALLABLE else ("value", "null")
METHOD: Stack = ("method", "method")


def _counts(text: str) -> dict[str, Effect]:
    """Read lines of 'pops pushes: OPCODE OPCODE …'."""
    table: dict[str, Effect] = {}
    for line in text.strip().splitlines():
        counts, names = line.split(":")
        pops, pushes = map(int, counts.split())
        table |= {name: (pops, ("value",) * pushes) for name in names.split()}
    return table


FIXED: dict[str, Effect] = _counts("""
0 0: NOP RESUME MAKE_CELL COPY_FREE_VARS SETUP_ANNOTATIONS PRECALL KW_NAMES JUMP_FORWARD JUMP_BACKWARD
0 0: JUMP_BACKWARD_NO_INTERRUPT DELETE_FAST DELETE_NAME DELETE_GLOBAL DELETE_DEREF RETURN_CONST NOT_TAKEN
0 1: LOAD_CONST LOAD_FAST LOAD_FAST_CHECK LOAD_DEREF LOAD_CLOSURE LOAD_CLASSDEREF LOAD_NAME LOAD_BUILD_CLASS
0 1: LOAD_ASSERTION_ERROR LOAD_LOCALS RETURN_GENERATOR IMPORT_FROM GET_LEN MATCH_MAPPING MATCH_SEQUENCE MATCH_KEYS
0 1: WITH_EXCEPT_START GET_ANEXT LOAD_FAST_BORROW LOAD_SMALL_INT LOAD_COMMON_CONSTANT
0 2: LOAD_FAST_LOAD_FAST LOAD_FAST_BORROW_LOAD_FAST_BORROW
1 0: POP_TOP STORE_FAST STORE_NAME STORE_GLOBAL STORE_DEREF DELETE_ATTR RETURN_VALUE RERAISE POP_EXCEPT IMPORT_STAR
1 0: PRINT_EXPR LIST_APPEND SET_ADD LIST_EXTEND SET_UPDATE DICT_UPDATE DICT_MERGE EXIT_INIT_CHECK INTERPRETER_EXIT
1 0: POP_ITER
1 0: POP_JUMP_IF_FALSE POP_JUMP_IF_TRUE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE POP_JUMP_FORWARD_IF_FALSE
1 0: POP_JUMP_FORWARD_IF_TRUE POP_JUMP_FORWARD_IF_NONE POP_JUMP_FORWARD_IF_NOT_NONE POP_JUMP_BACKWARD_IF_FALSE
1 0: POP_JUMP_BACKWARD_IF_TRUE POP_JUMP_BACKWARD_IF_NONE POP_JUMP_BACKWARD_IF_NOT_NONE
1 1: UNARY_POSITIVE UNARY_NEGATIVE UNARY_NOT UNARY_INVERT TO_BOOL LIST_TO_TUPLE GET_AITER GET_YIELD_FROM_ITER
1 1: GET_AWAITABLE YIELD_VALUE ASYNC_GEN_WRAP CONVERT_VALUE FORMAT_SIMPLE CALL_INTRINSIC_1 STORE_FAST_LOAD_FAST
1 1: LOAD_FROM_DICT_OR_GLOBALS LOAD_FROM_DICT_OR_DEREF CHECK_EXC_MATCH LOAD_ATTR
1 2: BEFORE_WITH BEFORE_ASYNC_WITH
2 0: STORE_ATTR DELETE_SUBSCR MAP_ADD STORE_FAST_STORE_FAST END_ASYNC_FOR
2 1: BINARY_OP BINARY_SUBSCR COMPARE_OP IS_OP CONTAINS_OP IMPORT_NAME PREP_RERAISE_STAR FORMAT_WITH_SPEC
2 1: CALL_INTRINSIC_2 SET_FUNCTION_ATTRIBUTE END_SEND BUILD_TEMPLATE
2 2: CHECK_EG_MATCH
3 0: STORE_SUBSCR
3 1: BINARY_SLICE MATCH_CLASS
3 2: CLEANUP_THROW
4 0: STORE_SLICE
""")
FIXED |= {
    "PUSH_NULL": (0, NULL),
    "GET_ITER": (1, ("iterator",)),
    "PUSH_EXC_INFO": (1, ("exc_prev", "exc")),
    "LOAD_FAST_AND_CLEAR": (0, ("saved",)),
    "LOAD_METHOD": (1, METHOD),
    "LOAD_SPECIAL": (1, ("value", "maybe")),
    "END_FOR": (2 if VERSION == (3, 12) else 1, ()),
}


def _count(instruction: Instruction) -> int:
    value = instruction.argval if isinstance(instruction.argval, int) else instruction.arg
    assert isinstance(value, int), instruction
    return value


def _build(per_item: int, extra: int = 0) -> Callable[[Instruction, bool], Effect]:
    return lambda instruction, jump: (_count(instruction) * per_item + extra, ONE)


def _unpack_ex(instruction: Instruction, jump: bool) -> Effect:
    return 1, ("value",) * ((_count(instruction) & 0xFF) + (_count(instruction) >> 8) + 1)


def _make_function(instruction: Instruction, jump: bool) -> Effect:
    flags = _count(instruction) if VERSION < (3, 13) else 0
    return 1 + flags.bit_count(), ONE


def _for_iter(instruction: Instruction, jump: bool) -> Effect:
    """From 3.12 on both ways leave iterator and value, and the END_FOR at the target drops what it must."""
    if jump and VERSION == (3, 11):
        return 1, ()
    return 1, ("iterator", "value")


def _call_function_ex(instruction: Instruction, jump: bool) -> Effect:
    return 3 + (1 if KEYWORDS_OR_NULL else instruction.flag), ONE


def _send(instruction: Instruction, jump: bool) -> Effect:
    return (2, ONE) if jump and VERSION == (3, 11) else (2, TWO)


COMPUTED: dict[str, Callable[[Instruction, bool], Effect]] = {
    "LOAD_GLOBAL": lambda instruction, jump: (0, CALLABLE if instruction.flag else ONE),
    "LOAD_SUPER_ATTR": lambda instruction, jump: (3, METHOD if instruction.flag else ONE),
    "UNPACK_SEQUENCE": lambda instruction, jump: (1, ("value",) * _count(instruction)),
    "UNPACK_EX": _unpack_ex,
    "FOR_ITER": _for_iter,
    "SEND": _send,
    "BUILD_TUPLE": _build(1),
    "BUILD_LIST": _build(1),
    "BUILD_SET": _build(1),
    "BUILD_STRING": _build(1),
    "BUILD_SLICE": _build(1),
    "BUILD_MAP": _build(2),
    "BUILD_CONST_KEY_MAP": _build(1, 1),
    "JUMP_IF_FALSE_OR_POP": lambda instruction, jump: (0 if jump else 1, ()),
    "JUMP_IF_TRUE_OR_POP": lambda instruction, jump: (0 if jump else 1, ()),
    "RAISE_VARARGS": lambda instruction, jump: (_count(instruction), ()),
    "MAKE_FUNCTION": _make_function,
    "CALL": _build(1, 2),
    "CALL_KW": _build(1, 3),
    "CALL_FUNCTION_EX": _call_function_ex,
    "BUILD_INTERPOLATION": lambda instruction, jump: (2 + (_count(instruction) & 1), ONE),
    "FORMAT_VALUE": lambda instruction, jump: (2 if _count(instruction) & 4 else 1, ONE),
    "COPY": lambda instruction, jump: (0, ONE),
    "SWAP": lambda instruction, jump: (0, ()),
}
if VERSION >= (3, 12):
    COMPUTED["LOAD_ATTR"] = lambda instruction, jump: (1, METHOD if instruction.flag else ONE)
    del FIXED["LOAD_ATTR"]


def effect(instruction: Instruction, jump: bool = False) -> Effect:
    """(slots popped, kinds pushed) when control falls through, or takes the jump."""
    fixed = FIXED.get(instruction.op)
    return fixed if fixed is not None else COMPUTED[instruction.op](instruction, jump)


def apply(instruction: Instruction, stack: Stack, jump: bool = False) -> Stack:
    """The stack after an instruction."""
    if instruction.op == "COPY":
        return _copy(stack, _count(instruction))
    if instruction.op == "SWAP":
        depth = _count(instruction)
        if depth < 2:
            return stack
        return (*stack[:-depth], stack[-1], *stack[1 - depth : -1], stack[-depth])
    pops, pushed = effect(instruction, jump)
    if pops > len(stack):
        raise ValueError(f"stack underflow at {instruction}: {stack}")
    return stack[: len(stack) - pops] + pushed


def _copy(stack: Stack, depth: int) -> Stack:
    """A copied 'exc_prev' is about to be popped as the saved state, which makes the one below a mere value."""
    kind = stack[-depth]
    if kind == "exc_prev":
        stack = (*stack[:-depth], "value", *stack[len(stack) - depth + 1 :])
    return (*stack, kind)


# How far opcodes look down the stack where that is further than they pop (beyond the count in the argument).
_REACH: dict[str, int] = {
    "WITH_EXCEPT_START": 5 if VERSION >= (3, 14) else 4, "CHECK_EXC_MATCH": 2, "MATCH_KEYS": 2, "GET_LEN": 1,
    "MATCH_MAPPING": 1, "MATCH_SEQUENCE": 1, "IMPORT_FROM": 1, "GET_ANEXT": 1, "JUMP_IF_FALSE_OR_POP": 1,
    "JUMP_IF_TRUE_OR_POP": 1,
}  # fmt: skip
_REACH_BEYOND_COUNT: dict[str, int] = {
    "COPY": 0, "SWAP": 0, "LIST_APPEND": 1, "SET_ADD": 1, "MAP_ADD": 2, "LIST_EXTEND": 1, "SET_UPDATE": 1,
    "DICT_UPDATE": 1, "DICT_MERGE": 4, "RERAISE": 1, "PRECALL": 2,
}  # fmt: skip


def reach(instruction: Instruction) -> int:
    """How many slots from the top an instruction reads, writes or pops."""
    if instruction.op in _REACH_BEYOND_COUNT:
        return _count(instruction) + _REACH_BEYOND_COUNT[instruction.op]
    return max(effect(instruction)[0], _REACH.get(instruction.op, 0))


def at_handler(stack: Stack, depth: int, lasti: bool) -> Stack:
    """The stack on entry of an exception handler, from that of an instruction in its range."""
    return (*stack[:depth], "lasti", "exc") if lasti else (*stack[:depth], "exc")


def merge(left: Stack, right: Stack) -> Stack:
    """One stack for two ways that meet."""
    if left == right:
        return left
    if len(left) != len(right):
        raise ValueError(f"stack depths differ where ways meet: {left} and {right}")
    return tuple(a if a == b else _either(a, b) for a, b in zip(left, right, strict=True))


MAYBE_NULL = ("saved", "maybe")


def _either(left: str, right: str) -> str:
    """What may be NULL on one way may be NULL where they meet."""
    return "maybe" if {left, right} & {"null", "saved", "method", "maybe"} else "value"
