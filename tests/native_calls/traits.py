"""What builtins may do with their arguments, by families: patterns of names, the first that matches counts.

A family declares which special methods its builtins may call on their arguments and on elements of these, whether they
change an argument, and whether arguments or elements stay alive in results or in other arguments. Capture's tables rest
on this: where elements are asked for nothing, lazy values may stay in containers; where arguments are asked, they are
looked at, and those that answer in Python become proxies, or the graph breaks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .entries import Entry

BINARY = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and or xor"
GROUPS: dict[str, str] = {
    "index": "__index__",
    "number": "__index__ __int__ __float__ __complex__ __trunc__ __floor__ __ceil__ __round__ __abs__",
    "unary": "__neg__ __pos__ __invert__ __abs__",
    "binary": " ".join(f"__{form}{name}__" for name in BINARY.split() for form in ("", "r", "i")),
    "iterate": "__iter__ __next__ __getitem__ __len__ __length_hint__ __reversed__",
    "item": "__getitem__ __setitem__ __delitem__ __contains__ __missing__",
    "mapping": "keys __getitem__ __setitem__ __delitem__ __contains__ __missing__ __iter__ __next__ __len__",
    "equal": "__eq__ __ne__",
    "order": "__eq__ __ne__ __lt__ __le__ __gt__ __ge__",
    "hash": "__hash__ __eq__",
    "truth": "__bool__ __len__",
    "text": "__repr__ __str__ __format__ __iter__ __next__ __len__",
    "bytes": "__bytes__ __fspath__ __buffer__",
    "call": "__call__",
}
EVERY = " ".join(GROUPS)


@dataclass(frozen=True)
class Family:
    """Builtins that do the same with their arguments."""

    name: str
    pattern: str
    arguments: str = ""  # groups of special methods called on arguments
    elements: str = ""  # and on elements of arguments
    changes: bool = False
    keeps: bool = False

    def methods(self, groups: str) -> frozenset[str]:
        return frozenset(name for group in groups.split() for name in GROUPS[group].split())


CONTAINER = r"(list|tuple|dict|set|frozenset|mappingproxy|dict_\w+|collections\.\w+)"
NUMBER = r"(int|float|complex|bool)"
TEXT = r"(str|bytes|bytearray)"
ITERATOR = r"(\w*iterator|_collections\.\w+|collections\._\w+|itertools\.\w+|enumerate|zip|map|filter|reversed)"
ERROR = r"\w*(Error|Exception|Warning|Exit|Interrupt|Iteration|ExceptionGroup)"

FAMILIES = [
    Family("attributes by name", r".*\.__(getattribute|setattr|delattr)__", "hash call", changes=True, keeps=True),
    Family(
        "text",
        rf"(.*\.__(repr|str|format)__|repr|str|ascii|format|{TEXT}\.__r?mod__|str\.format(_map)?)",
        "text number mapping bytes binary hash",
        "text number hash",
    ),
    Family(
        "state for copies",
        r".*\.__(reduce|reduce_ex|sizeof|dir|getstate|setstate|copy|getnewargs|subclasshook)__",
        "mapping index order iterate truth text",
        "hash",
        changes=True,
        keeps=True,
    ),
    Family("hashes", r"(hash|.*\.__hash__)", "hash iterate", "hash"),
    Family(
        "comparisons",
        r"(.*\.__(eq|ne|lt|le|gt|ge)__|operator\.(eq|ne|lt|le|gt|ge))",
        "order iterate mapping hash",
        "order hash truth iterate",
    ),
    Family(
        "operators as functions",
        r"(operator\.\w+|abs|divmod|pow|round|len|next|operator\..*\.__call__)",
        EVERY,
        "order hash binary truth",
        changes=True,
        keeps=True,
    ),
    Family(
        "changes of dictionaries",
        r"(dict|collections\.(OrderedDict|defaultdict))\."
        r"(__(setitem|delitem|ior|init|missing)__|clear|pop|popitem|setdefault|update|move_to_end)",
        "mapping hash iterate truth",
        "hash iterate",
        changes=True,
        keeps=True,
    ),
    Family(
        "dictionaries",
        r"(dict(\.\w+)?|dict_(keys|values|items).*|odict_\w+.*|mappingproxy.*"
        r"|collections\.(OrderedDict|defaultdict).*)",
        "mapping hash equal iterate index binary",
        "hash iterate equal",
        keeps=True,
    ),
    Family(
        "changes of sets",
        r"set\.(__i\w+__|__init__|add|clear|discard|pop|remove|update|\w+_update)",
        "iterate hash",
        "hash",
        changes=True,
        keeps=True,
    ),
    Family("sets", r"(set|frozenset)(\.\w+)?", "iterate hash binary", "hash", keeps=True),
    Family(
        "searches in sequences",
        r"(list|tuple|collections\.deque|range)\.(index|count|remove|__contains__)",
        "order index text",
        "order truth text",
        changes=True,
    ),
    Family(
        "sorting",
        r"(list\.sort|sorted|min|max)",
        "order iterate call truth",
        "order truth call iterate",
        changes=True,
        keeps=True,
    ),
    Family(
        "changes of sequences",
        r"(list|collections\.deque)\.(append|appendleft|extend|extendleft|insert|pop|popleft"
        r"|clear|reverse|rotate|__(setitem|delitem|iadd|imul|init)__)",
        "index iterate",
        changes=True,
        keeps=True,
    ),
    Family(
        "sequences",
        r"(list|tuple|collections\.deque|range|slice|torch\.Size)(\.\w+)?",
        "index iterate order",
        keeps=True,
    ),
    Family("counting", r"collections\._count_elements", "iterate mapping hash", "hash", changes=True, keeps=True),
    Family(
        "folds", r"(all|any|sum|functools\.reduce|iter)", "iterate binary call truth", "truth binary call", keeps=True
    ),
    Family("iterators, moving", rf"{ITERATOR}\.__next__", EVERY, EVERY, changes=True, keeps=True),
    Family(
        "iterators",
        rf"{ITERATOR}(\.\w+)?",
        "iterate index number binary truth call order",
        "iterate truth order binary call",
        changes=True,
        keeps=True,
    ),
    Family(
        "heaps and bisection",
        r"(heapq|bisect)\.\w+",
        "order index item iterate truth call",
        "order truth",
        changes=True,
        keeps=True,
    ),
    Family("mathematics", r"c?math\.\w+", "number iterate binary order unary", "number binary order unary"),
    Family("numbers", rf"{NUMBER}(\.\w+)?", "number binary unary iterate truth bytes text", "index"),
    Family("numbers as text", r"(bin|hex|oct|chr|ord)", "index"),
    Family(
        "changes of bytes",
        r"bytearray\.(append|extend|insert|pop|remove|clear|reverse"
        r"|__(setitem|delitem|iadd|imul|init)__)",
        "index iterate",
        "index",
        changes=True,
    ),
    Family("translation", rf"{TEXT}\.translate", "index item hash truth iterate", "index", changes=True),
    Family(
        "strings and bytes", rf"{TEXT}(\.\w+)?", "index iterate hash item bytes text truth", "index hash", keeps=True
    ),
    Family("patterns", r"re\..*", "index hash iterate text call", "hash", keeps=True),
    Family("exceptions", rf"{ERROR}(\.\w+)?", "iterate equal hash text truth call", "", changes=True, keeps=True),
    Family("structures and modes", r"(struct|stat)\.\w+", "index number hash iterate bytes", "index", changes=True),
    Family(
        "callables",
        r"(functools|types|operator)\..*|(method|function|partial|property|staticmethod|classmethod"
        r"|super|code|cell)(\.\w+)?",
        "call iterate mapping hash index order text",
        "hash",
        changes=True,
        keeps=True,
    ),
    Family("singletons", r"(NoneType|NotImplementedType|ellipsis|object)(\.\w+)?", "truth equal", keeps=True),
    Family("torch's values", r"torch\..*", "index hash truth text", ""),
    Family("enums", r"enum\..*", "hash call iterate", "", keeps=True),
    Family("questions", r"(callable|posix\.fspath|fspath)", "bytes", keeps=True),
]


def family_of(entry: Entry) -> Family | None:
    """The family that speaks for an entry."""
    return next((family for family in FAMILIES if re.fullmatch(family.pattern, entry.name)), None)
