"""Expressions of generated programs: a table of templates for each type, and what fills their holes.

A hole `{int}` takes an expression of that type; `{int/i}` one that may also use the name `i`, which the template binds;
`{int0}` just a name or literal (Python 3.11 cannot nest quotes in f-strings). `{{` stands for a brace.
Results are kept small on purpose (`% 997`, `[:20]`): a product or a doubling inside two loops must not eat the machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from .tape import Tape

TYPES = ("int", "float", "bool", "str", "ints", "pair", "table", "set", "tensor", "tensors", "box", "fn", "maybe")

LITERALS: dict[str, tuple[str, ...]] = {
    "int": ("0", "1", "2", "3", "7", "-1", "-4", "12"),
    "float": ("0.5", "1.0", "-2.25", "3e2", "0.1"),
    "bool": ("False", "True"),
    "str": ("''", "'a'", "'key'", "'Hello World'", "'b,c'", "'42'"),
    "ints": ("[]", "[1]", "[3, 1, 2]", "[5, 5, 0, -1]", "list(range(4))"),
    "pair": ("(1, 2)", "(0, 0)", "(3, -1)"),
    "table": ("{}", "{'a': 1}", "{'key': 2, 'b': 3}", "dict(a=4, c=5)"),
    "set": ("set()", "{1, 2}", "{3}", "{0, 2, 5}"),
    "tensor": (
        "torch.ones(3)",
        "torch.zeros(3)",
        "torch.arange(3.0)",
        "torch.full((3,), 2.0)",
        "torch.tensor([1.0, -2.0, 3.0])",
    ),
    "tensors": ("[]", "[torch.ones(3)]", "[torch.zeros(3), torch.arange(3.0)]"),
    "box": ("Box(1)", "Box(2, [1, 2])", "Child(3)", "Child(4, [0])"),
    "fn": ("abs", "(lambda n: n + 1)", "helper_one", "len_or_zero"),
    "maybe": ("None", "None", "0", "'text'"),
}

RULES: dict[str, tuple[str, ...]] = {
    "int": (
        "({int} + {int})",
        "({int} - {int})",
        "({int} * {int}) % 997",
        "({int} * 3)",
        "({int} // ({int} or 1))",
        "({int} % ({int} or 5))",
        "({int} // {int})",
        "(-{int})",
        "(~{int})",
        "({int} & {int})",
        "({int} | {int})",
        "({int} ^ {int})",
        "(({int} % 64) << {small})",
        "({int} >> {small})",
        "(({int} % 10) ** {small})",
        "abs({int})",
        "min({int}, {int})",
        "max({int}, {int}, {int})",
        "len({ints})",
        "len({str})",
        "len({table})",
        "len({set})",
        "sum({ints})",
        "sum(i * {int/i} % 50 for i in {ints})",
        "({ints} or [0])[0]",
        "({ints} or [0])[-1]",
        "{ints}[{small}]",
        "{pair}[0]",
        "{pair}[-1]",
        "{table}.get({str}, {int})",
        "{table}.get('a', 0)",
        "{table}['a']",
        "{ints}.count({int})",
        "{str}.count('a')",
        "{str}.find({str})",
        "({int} if {bool} else {int})",
        "({int} and {int})",
        "({int} or {int})",
        "{box}.value",
        "{box}.double()",
        "{box}.twice",
        "len({box})",
        "{box}[{small}]",
        "getattr({box}, 'value', {int})",
        "getattr({box}, 'missing', {int})",
        "{fn}({int})",
        "helper_two({int})",
        "helper_two({int}, {int})",
        "helper_two({int}, key={int})",
        "helper_two({int}, {int}, {int}, {int}, key={int}, more={int})",
        "helper_two(*{pair})",
        "helper_two({int}, **{{'key': {int}, 'other': 1}})",
        "helper_two(*{ints}[:2], 1)",
        "recursive({small})",
        "int({bool})",
        "int({float} * 0.5 // 1)",
        "int('12') + {int}",
        "round({float})",
        "divmod({int}, {int} or 3)[1]",
        "max({ints}, default={int})",
        "min(({int}, {int}), key=lambda n: -n)",
        "functools.reduce(lambda a, b: a + {int/a}, {ints}, 0) % 997",
        "sum(i for i, j in enumerate({ints}) if j > {int/i})",
        "sum(a * b for a, b in zip({ints}, {ints})) % 997",
        "next(iter({ints}), {int})",
        "next((i for i in {ints} if i > {int}), -1)",
        "ord(({str} or 'z')[0])",
        "hash({int} % 100)",
        "{tensor}.shape[0]",
        "{tensor}.dim()",
        "len({tensors})",
        "math.gcd({int}, {int})",
        "operator.add({int}, {int})",
        "GLOBAL_COUNT",
        "len(GLOBAL_LIST)",
        "sum(count_up({small}))",
        "[*count_up({small}), {int}][0]",
        "sum(1 for _ in itertools.chain({ints}, {pair}))",
        "({ints}[1:2] or [{int}])[0]",
        "int({tensor}.sum() > 0)",
    ),
    "float": (
        "({float} + {float})",
        "({float} - {int})",
        "({float} * {float})",
        "({int} / ({int} or 2))",
        "({float} / {float})",
        "({float} // 0.75)",
        "float({int})",
        "abs({float})",
        "round({float}, 1)",
        "min({float}, {float})",
        "max({float}, {int})",
        "(-{float})",
        "sum([{float}, {float}])",
        "math.sqrt(abs({float}))",
        "math.floor({int} * 0.5)",
        "{tensor}.sum().item()",
        "{tensor}.tolist()[0]",
        "({float} if {bool} else {float})",
        "float('inf')",
    ),
    "bool": (
        "({int} < {int})",
        "({int} == {int})",
        "({int} != {int})",
        "({int} >= {float})",
        "({int} < {int} <= {int})",
        "({int} <= {int} < {int} != {int})",
        "(not {bool})",
        "({bool} and {bool})",
        "({bool} or {bool})",
        "({bool} ^ {bool})",
        "({int} in {ints})",
        "({int} not in {set})",
        "({str} in {table})",
        "({str} in {str})",
        "({str} == {str})",
        "({ints} == {ints})",
        "({ints} < {ints})",
        "({pair} == {pair})",
        "({table} == {table})",
        "({set} <= {set})",
        "({maybe} is None)",
        "({maybe} is not None)",
        "({box} is {box})",
        "({box} == {box})",
        "isinstance({any}, int)",
        "isinstance({any}, (str, list))",
        "isinstance({box}, Child)",
        "issubclass(Child, Box)",
        "hasattr({box}, {str})",
        "callable({any})",
        "any(i > {int/i} for i in {ints})",
        "all(i != {int/i} for i in {ints})",
        "bool({ints})",
        "bool({str})",
        "{str}.startswith('a')",
        "{str}.isdigit()",
        "bool({table} or {set})",
        "({tensor} is {tensor})",
        "torch.is_tensor({any})",
        "({tensor}.shape == (3,))",
        "bool(({tensor} > 0).all())",
        "({tensor}.sum() > {float})",
        "{tensor}.requires_grad",
        "type({any}) is int",
    ),
    "str": (
        "({str} + {str})[:20]",
        "({str} * {small})[:20]",
        "{str}.upper()",
        "{str}.title()",
        "{str}.strip()",
        "{str}.replace('a', 'xy')[:20]",
        "{str}[::-1]",
        "{str}[{small}:]",
        "{str}[:{small}]",
        "{str}[{small}]",
        'f"{{ {int0} }}"',
        'f"{{ {int0} }}:{{ {str0} !r}}"[:20]',
        'f"{{ {float0} :.2f}}"',
        'f"{{ {int0} :>4}}|{{ {int0} + {int0} =}}"',
        "str({int})",
        "repr({ints})[:20]",
        "repr({pair})",
        "str({table})[:20]",
        "repr({box})",
        "'-'.join(str(i) for i in {ints})[:20]",
        "','.join(sorted({table}))[:20]",
        "'%d/%s' % ({int}, {bool})",
        "'{{}} {{}}'.format({int}, {bool})",
        "({str}.split(',') or [''])[0]",
        "({str} if {bool} else {str})",
        "({str} or {str})",
        "type({any}).__name__",
        "max([{str}, {str}], key=len)",
        "chr(97 + {int} % 20)",
        "str({maybe})",
        "{box}.label()",
        "str({tensor}.dtype)",
    ),
    "ints": (
        "[{int}, {int}]",
        "[{int}, *{pair}]",
        "({ints} + {ints})[:8]",
        "({ints} * 2)[:6]",
        "{ints}[1:]",
        "{ints}[::-1]",
        "{ints}[{small}:{small}]",
        "{ints}[::2]",
        "sorted({ints})",
        "sorted({ints}, reverse=True)",
        "sorted({ints}, key=lambda n: (n % 3, n))",
        "sorted({set})",
        "list(reversed({ints}))",
        "list({pair})",
        "list(map(lambda n: {int/n}, {ints}))",
        "list(map({fn}, {ints}))",
        "list(filter(lambda n: {bool/n}, {ints}))",
        "list({table}.values())",
        "[i + {int} for i in {ints}]",
        "[{int/i} for i in {ints} if i > 0]",
        "[i * j for i in {ints}[:3] for j in range({small})]",
        "[i if i % 2 else {int/i} for i in {ints}]",
        "[a + b for a, b in zip({ints}, {ints})]",
        "[len(s) for s in {str}.split(',')]",
        "[j for i, j in sorted({table}.items())]",
        "list(range({small}))",
        "list(range({small}, {int} % 9, 2))",
        "list(count_up({small}))",
        "list(itertools.accumulate({ints}))",
        "list(itertools.islice(itertools.count({int}), {small}))",
        "{box}.items",
        "({ints} if {bool} else {ints})",
        "{ints}.copy()",
        "list(dict.fromkeys({ints}))",
        "collect({int}, {int}, {int})",
        "[sum(row) for row in [[{int}, i] for i in {ints}[:3]]]",
        "GLOBAL_LIST[:3]",
    ),
    "pair": (
        "({int}, {int})",
        "divmod({int}, {int} or 1)",
        "tuple([{int}, {int}])",
        "{pair}[::-1]",
        "({pair} if {bool} else {pair})",
        "Point({int}, {int})",
        "Point(x={int}, y={int})._replace(x={int})",
        "tuple(sorted({pair}))",
        "max([{pair}, {pair}])",
        "(*{pair}[:1], {int})",
        "min_max({ints})",
    ),
    "table": (
        "{{'a': {int}, {str}: {int} }}",
        "dict(a={int}, b={int})",
        "{{**{table}, 'c': {int} }}",
        "({table} | {table})",
        "{{str(i): {int/i} for i in {ints}[:4]}}",
        "{{k: v for k, v in {table}.items() if v != {int/v} }}",
        "dict(zip('abc', {ints}))",
        "dict({table})",
        "{table}.copy()",
        "dict(sorted({table}.items()))",
        "dict.fromkeys(['x', 'y'], {int})",
        "gather(p={int}, q={int})",
        "gather(**{table})",
        "dict(collections.Counter({str}))",
        "dict(enumerate_names({ints}))",
        "({table} if {bool} else {table})",
    ),
    "set": (
        "set({ints})",
        "{{ {int}, {int} }}",
        "({set} | {set})",
        "({set} & {set})",
        "({set} - {{ {int} }})",
        "({set} ^ {set})",
        "{{i % 5 for i in {ints} }}",
        "set({table}.values())",
        "frozenset({ints}).union({pair})",
    ),
    "tensor": (
        "({tensor} + {tensor})",
        "({tensor} * {float})",
        "({tensor} - {int})",
        "({tensor} * {tensor})",
        "({int} - {tensor})",
        "(-{tensor})",
        "{tensor}.sin()",
        "{tensor}.relu()",
        "{tensor}.abs()",
        "{tensor}.clone()",
        "{tensor}.detach()",
        "torch.add({tensor}, {tensor}, alpha=2)",
        "torch.where({tensor} > 0, {tensor}, {tensor})",
        "torch.maximum({tensor}, {tensor})",
        "torch.stack([{tensor}, {tensor}]).sum(0)",
        "torch.stack({tensors} or [{tensor}]).sum(dim=0)",
        "{tensor}[[2, 1, 0]]",
        "{tensor}.flip(0)",
        "{tensor}.view(3, 1).squeeze(-1)",
        "({tensor} if {bool} else {tensor})",
        "torch.full((3,), float({int}))",
        "sum({tensors}, {tensor})",
        "torch.tensor([{float}, 1.0, {float}])",
        "{box}.scale({tensor})",
        "functional({tensor})",
        "functional({tensor}, power={small})",
        "({tensors} or [{tensor}])[0]",
        "{tensor}.cumsum(0)",
        "({tensor} > 0).float()",
        "torch.nn.functional.relu({tensor})",
        "({tensor}[:1] + {tensor})",
        "torch.zeros_like({tensor})",
    ),
    "tensors": (
        "[{tensor}, {tensor}]",
        "({tensors} + [{tensor}])[:4]",
        "[t * 2 for t in {tensors}]",
        "list(({tensor} + 1).unbind())[:0] + {tensors}",
        "{tensors}[:1]",
        "list(map(torch.neg, {tensors}))",
        "[{tensor} for _ in range({small} % 3)]",
    ),
    "box": (
        "Box({int}, {ints})",
        "Child({int})",
        "({box} + {box})",
        "({box} if {bool} else {box})",
        "{box}.clone()",
        "Box.make({int})",
        "Child.make({int})",
    ),
    "fn": (
        "(lambda n: {int/n})",
        "(lambda n, k={int}: n + k)",
        "functools.partial(helper_two, {int})",
        "make_adder({int})",
        "{box}.apply",
        "({fn} if {bool} else {fn})",
        "compose({fn}, {fn})",
    ),
    "maybe": (
        "({maybe} or {int})",
        "({int} if {bool} else None)",
        "{table}.get({str})",
        "({maybe} if {bool} else {str})",
        "print_nothing()",
        "dict.get({table}, 'a')",
    ),
}

_HOLE = re.compile(r"\{(\w+(?:/\w+)?)\}")
_SMALL = ("0", "1", "2", "3")
_DEEPEST = 3


def _parse(template: str) -> tuple[str | tuple[str, str], ...]:
    """A template as literal pieces and holes (type, name bound in the hole)."""
    marked = template.replace("{{", "\x01").replace("}}", "\x02")
    pieces: list[str | tuple[str, str]] = []
    for index, piece in enumerate(_HOLE.split(marked)):
        if index % 2:
            kind, _, bound = piece.partition("/")
            pieces.append((kind, bound))
        elif piece:
            pieces.append(piece.replace("\x01", "{").replace("\x02", "}"))
    return tuple(pieces)


_PARSED = {kind: [_parse(template) for template in templates] for kind, templates in RULES.items()}

Names = Callable[[str], list[str]]


class Expressions:
    """Writes expressions; `names` answers which variables of a type there are at this point of the program."""

    def __init__(self, tape: Tape, names: Names) -> None:
        self._tape = tape
        self._names = names
        self._bound: list[tuple[str, str]] = []

    def make(self, kind: str, depth: int = _DEEPEST) -> str:
        """An expression of the given type, nested no deeper than `depth`."""
        if kind == "small":
            return self._tape.pick(_SMALL)
        if kind.endswith("0"):
            return self._leaf(kind[:-1])
        if kind == "any":
            kind = self._tape.pick(TYPES)
        # Half of the inner nodes are leaves, or else expressions grow until the tape ends.
        if depth <= 0 or self._tape.is_empty or (depth < _DEEPEST and self._tape.chance(45)):
            return self._leaf(kind)
        pieces = self._tape.pick(_PARSED[kind])
        return "".join(piece if isinstance(piece, str) else self._fill(*piece, depth - 1) for piece in pieces)

    def fill(self, template: str, depth: int = 2) -> str:
        """A template given by a statement, with its holes filled."""
        return "".join(piece if isinstance(piece, str) else self._fill(*piece, depth) for piece in _parse(template))

    def _fill(self, kind: str, bound: str, depth: int) -> str:
        if not bound:
            return self.make(kind, depth)
        self._bound.append((bound, "int"))
        try:
            return self.make(kind, depth)
        finally:
            self._bound.pop()

    def _leaf(self, kind: str) -> str:
        names = self._names(kind) + [name for name, bound_kind in self._bound if bound_kind == kind]
        if names and (self._tape.is_empty or not self._tape.chance(25)):
            return names[self._tape.below(len(names))]
        return self._tape.pick(LITERALS[kind])
