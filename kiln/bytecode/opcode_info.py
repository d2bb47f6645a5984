"""What every opcode of CPython 3.11 to 3.14 is: how its argument is read, where it may go, how it names its partner.

All knowledge that differs between interpreter versions and concerns single opcodes lives here, as tables.  The effect
of opcodes on the operand stack is in `stack_effects`.
"""

import dis
import sys

from ..platform.cpython import COMMON_CONSTANTS, INLINE_CACHE_ENTRIES, OPERATOR_SYMBOLS, SPECIAL_METHODS

VERSION = sys.version_info[:2]
SUPPORTED = ((3, 11), (3, 12), (3, 13), (3, 14))

OPCODE: dict[str, int] = {
    name: number for name, number in dis.opmap.items() if number < 256 and not name.startswith("INSTRUMENTED_")
}
OPNAME: dict[int, str] = {number: name for name, number in OPCODE.items()}

EXTENDED_ARG = OPCODE["EXTENDED_ARG"]
CACHE = OPCODE["CACHE"]


def _cache_counts() -> dict[int, int]:
    """Inline cache units that follow an opcode (by opcode; 3.13 keys the table by name, and only where not zero)."""
    table = INLINE_CACHE_ENTRIES
    if isinstance(table, dict):
        return {OPCODE[name]: count for name, count in table.items() if name in OPCODE}
    return {number: table[number] for number in OPNAME}


CACHES: dict[int, int] = {number: 0 for number in OPNAME} | _cache_counts()


def _known(*names: str) -> frozenset[str]:
    """Those of the names which are opcodes of the running interpreter."""
    return frozenset(names) & OPCODE.keys()


HAS_CONST = _known("LOAD_CONST", "RETURN_CONST", "KW_NAMES")
# Two instructions on variables in one, and the two.
PAIRS: dict[str, tuple[str, str]] = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": ("LOAD_FAST_BORROW", "LOAD_FAST_BORROW"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}
HAS_PAIR = _known(*PAIRS)
# From 3.14 on CPython loads a variable without a reference of its own where it can prove that the variable outlives the
# value on the stack.  Code that is changed loads it in the usual way.
OWNING: dict[str, str] = {
    "LOAD_FAST_BORROW": "LOAD_FAST",
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": "LOAD_FAST_LOAD_FAST",
}
LOADS_LOCAL = _known("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW")
# Loads of a constant; the constant is the instruction's `argval`.
LOADS_CONSTANT = _known("LOAD_CONST", "LOAD_SMALL_INT", "LOAD_COMMON_CONSTANT")
# Tables of the interpreter that arguments index.
INDEXED: dict[str, tuple[object, ...]] = {
    "BINARY_OP": tuple(symbol for _, symbol in OPERATOR_SYMBOLS),
    "LOAD_COMMON_CONSTANT": tuple(COMMON_CONSTANTS),
    "LOAD_SPECIAL": tuple(SPECIAL_METHODS),
}
HAS_LOCAL = LOADS_LOCAL | _known("STORE_FAST", "DELETE_FAST", "LOAD_FAST_AND_CLEAR")
HAS_CELL = _known(
    "MAKE_CELL", "LOAD_CLOSURE", "LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF", "LOAD_CLASSDEREF",
    "LOAD_FROM_DICT_OR_DEREF",
)  # fmt: skip
HAS_VARIABLE = HAS_LOCAL | HAS_CELL
HAS_NAME = _known(
    "LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME", "STORE_NAME", "DELETE_NAME", "LOAD_ATTR", "STORE_ATTR",
    "DELETE_ATTR", "LOAD_METHOD", "IMPORT_NAME", "IMPORT_FROM", "LOAD_SUPER_ATTR", "LOAD_FROM_DICT_OR_GLOBALS",
)  # fmt: skip

# How far the index into a table is shifted left in the raw argument, to make room for flags below it.
SHIFT: dict[str, int] = {"LOAD_GLOBAL": 1}
if VERSION >= (3, 12):
    SHIFT |= {"LOAD_ATTR": 1, "LOAD_SUPER_ATTR": 2}

# The bit of the raw argument that `Instruction.flag` shows.
FLAG: dict[str, int] = {"LOAD_GLOBAL": 1, "IS_OP": 1, "CONTAINS_OP": 1}
if VERSION >= (3, 12):
    FLAG |= {"LOAD_ATTR": 1, "LOAD_SUPER_ATTR": 1}
if VERSION >= (3, 13):
    FLAG |= {"COMPARE_OP": 16}
if VERSION < (3, 14):
    FLAG |= {"CALL_FUNCTION_EX": 1}

COMPARE_OPERATORS: tuple[str, ...] = tuple(dis.cmp_op)
COMPARE_SHIFT: int = {(3, 11): 0, (3, 12): 4}.get(VERSION, 5)
# From 3.12 on the low bits tell the specialiser which outcomes (unordered 1, less 2, greater 4, equal 8) count as true.
COMPARE_MASK: dict[str, int] = {"<": 2, "<=": 10, "==": 8, "!=": 7, ">": 4, ">=": 12}

# Jumps.  Where a version has forward and backward opcodes for one meaning, FORWARD and BACKWARD lead from either of
# them to the one wanted; an opcode missing from BACKWARD can only go forward.
_DIRECTED = {"JUMP_FORWARD": "JUMP_BACKWARD"}
if VERSION == (3, 11):
    for _condition in ("FALSE", "TRUE", "NONE", "NOT_NONE"):
        _DIRECTED[f"POP_JUMP_FORWARD_IF_{_condition}"] = f"POP_JUMP_BACKWARD_IF_{_condition}"
BACKWARD: dict[str, str] = _DIRECTED | {back: back for back in _DIRECTED.values()}
BACKWARD |= {name: name for name in ("JUMP_BACKWARD_NO_INTERRUPT", "END_ASYNC_FOR")}
FORWARD: dict[str, str] = {back: front for front, back in _DIRECTED.items()}
FORWARD["JUMP_BACKWARD_NO_INTERRUPT"] = "JUMP_FORWARD"

UNCONDITIONAL = _known("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
HAS_JUMP = UNCONDITIONAL | _known(
    "FOR_ITER", "SEND", "JUMP_IF_FALSE_OR_POP", "JUMP_IF_TRUE_OR_POP",
    "POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE",
    *_DIRECTED, *_DIRECTED.values(),
)  # fmt: skip
# Instructions that name another one.  From 3.14 on END_ASYNC_FOR names the END_SEND before it, for what watches jumps.
HAS_TARGET = HAS_JUMP | (_known("END_ASYNC_FOR") if VERSION >= (3, 14) else frozenset())
IS_BACKWARD = frozenset(_DIRECTED.values()) | {"JUMP_BACKWARD_NO_INTERRUPT", "END_ASYNC_FOR"}
# A conditional jump that a version cannot do backward is written as its opposite around a plain jump.
INVERSE: dict[str, str] = {
    "POP_JUMP_IF_FALSE": "POP_JUMP_IF_TRUE",
    "POP_JUMP_IF_TRUE": "POP_JUMP_IF_FALSE",
    "POP_JUMP_IF_NONE": "POP_JUMP_IF_NOT_NONE",
    "POP_JUMP_IF_NOT_NONE": "POP_JUMP_IF_NONE",
}

RETURNS = _known("RETURN_VALUE", "RETURN_CONST")
NO_FALLTHROUGH = UNCONDITIONAL | RETURNS | _known("RAISE_VARARGS", "RERAISE", "INTERPRETER_EXIT")

CALLS = _known("CALL", "CALL_KW", "CALL_FUNCTION_EX")
CALL_PREFIXES = _known("KW_NAMES", "PRECALL")

# How generic names (the keys) are spelled on the running version, for code that is generated.
JUMP_IF: dict[str, str] = {
    condition: f"POP_JUMP_FORWARD_IF_{condition}" if VERSION == (3, 11) else f"POP_JUMP_IF_{condition}"
    for condition in ("FALSE", "TRUE", "NONE", "NOT_NONE")
}
# Whether a call's NULL lies under the callable (3.11, 3.12) or over it (from 3.13 on).
NULL_BELOW_CALLABLE: bool = VERSION < (3, 13)
# The instruction of `container[key]`: opcode and argument.
SUBSCRIPT: tuple[str, object] = ("BINARY_SUBSCR", None) if "BINARY_SUBSCR" in OPCODE else ("BINARY_OP", "[]")
# Whether CALL_FUNCTION_EX always takes keyword arguments, or a NULL in their place.
KEYWORDS_OR_NULL: bool = VERSION >= (3, 14)
# What drops the value and the iterator where a loop ends that FOR_ITER has left.  On 3.11 FOR_ITER itself drops them.
LOOP_END: tuple[str, ...] = {(3, 11): (), (3, 12): ("END_FOR",), (3, 13): ("END_FOR", "POP_TOP")}.get(
    VERSION, ("END_FOR", "POP_ITER")
)
