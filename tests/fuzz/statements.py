"""Statements of generated programs, and the scopes that say which variables of which type they may use.

Loops are bounded and their counters out of the body's reach, so each program ends.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager

from .expressions import TYPES, Expressions
from .tape import Tape

INDENT = "    "

# Changes to something that exists: the type of the target, then the statement with the target as TARGET.
MUTATIONS: tuple[tuple[str, str], ...] = (
    ("ints", "TARGET.append({int})"),
    ("ints", "TARGET.insert({small}, {int})"),
    ("ints", "TARGET.extend({ints}[:2])"),
    ("ints", "TARGET += [{int}]"),
    ("ints", "TARGET.sort()"),
    ("ints", "TARGET.sort(key=lambda n: -n)"),
    ("ints", "TARGET.reverse()"),
    ("ints", "TARGET[1:2] = [{int}, {int}]"),
    ("ints", "TARGET[{small}:] = []"),
    ("ints", "TARGET[0] = {int}"),
    ("ints", "TARGET and TARGET.pop()"),
    ("ints", "del TARGET[:1]"),
    ("ints", "TARGET.remove({int})"),
    ("ints", "TARGET.clear()"),
    ("table", "TARGET[{str}] = {int}"),
    ("table", "TARGET['a'] = TARGET.get('a', 0) + {int}"),
    ("table", "TARGET.update(b={int})"),
    ("table", "TARGET.update({table})"),
    ("table", "TARGET.setdefault({str}, {int})"),
    ("table", "TARGET.pop({str}, None)"),
    ("table", "TARGET |= {table}"),
    ("table", "del TARGET['a']"),
    ("table", "TARGET.popitem()"),
    ("set", "TARGET.add({int})"),
    ("set", "TARGET.discard({int})"),
    ("set", "TARGET |= {set}"),
    ("set", "TARGET.update({ints})"),
    ("box", "TARGET.value = {int}"),
    ("box", "TARGET.value += {int}"),
    ("box", "TARGET.items.append({int})"),
    ("box", "TARGET.items = {ints}"),
    ("box", "TARGET.double()"),
    ("box", "setattr(TARGET, 'extra', {int})"),
    ("box", "TARGET.__dict__.update(extra={int})"),
    ("box", "del TARGET.extra"),
    ("box", "TARGET.tensor = {tensor}"),
    ("tensors", "TARGET.append({tensor})"),
    ("tensors", "TARGET[:] = TARGET[:2]"),
    ("tensor", "TARGET.add_({tensor})"),
    ("tensor", "TARGET.mul_({float})"),
    ("tensor", "TARGET[0] = {float}"),
    ("tensor", "TARGET[1:] = {tensor}[1:]"),
    ("tensor", "TARGET += {tensor}"),
    ("tensor", "TARGET *= 0.5"),
    ("int", "TARGET += {int}"),
    ("int", "TARGET -= {int}"),
    ("int", "TARGET //= {int} or 2"),
    ("int", "TARGET ^= {int}"),
    ("float", "TARGET *= 0.5"),
    ("float", "TARGET += {int}"),
    ("str", "TARGET = (TARGET + {str})[:20]"),
)

# Statements that stand alone.
EFFECTS: tuple[str, ...] = (
    "LOG.append({any})",
    "LOG.append({str})",
    "print({str}, {int})",
    "print({int}, sep='', end=';')",
    "GLOBAL_LIST.append({int})",
    "GLOBAL_TABLE[{str}] = {int}",
    "GLOBAL_COUNT += {int}",
    "assert {bool} or True, {str}",
    "kiln.graph_break()",
    "kiln.graph_break()",
    "{any}",
    "pass",
)

RAISES: tuple[str, ...] = (
    "raise ValueError({str})",
    "raise Problem({str}, {int})",
    "raise WorseProblem({str})",
    "raise KeyError({int})",
    "assert {bool}, {str}",
    "{ints}[20]",
    "{table}['absent']",
    "{int} // 0",
    "{box}.absent",
    "int({str})",
    "{str} + {int}",
    "raise Problem({str}) from ValueError({int})",
)

HANDLERS = (
    "Exception",
    "(ValueError, KeyError)",
    "Problem",
    "LookupError",
    "ZeroDivisionError",
    "(TypeError, AttributeError)",
    "WorseProblem",
    "ArithmeticError",
)

# Where a loop's values come from, and the names (with types) that it binds.
ITERABLES: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("range({small})", (("i", "int"),)),
    ("range(3)", (("i", "int"),)),
    ("range({int} % 4, 0, -1)", (("i", "int"),)),
    ("{ints}[:3]", (("v", "int"),)),
    ("enumerate({ints}[:3])", (("i", "int"), ("v", "int"))),
    ("zip({ints}[:3], {ints})", (("a", "int"), ("b", "int"))),
    ("list({table}.items())[:3]", (("k", "str"), ("v", "int"))),
    ("sorted({set})[:3]", (("v", "int"),)),
    ("{str}[:3]", (("c", "str"),)),
    ("{tensors}[:3]", (("t", "tensor"),)),
    ("{pair}", (("v", "int"),)),
    ("count_up({small})", (("v", "int"),)),
    ("both({small})", (("v", "int"),)),
    ("reversed({ints}[:3])", (("v", "int"),)),
    ("map(lambda n: {int/n}, {ints}[:3])", (("v", "int"),)),
    ("({int}, {int})", (("v", "int"),)),
    ("[({int}, {str}), ({int}, {str})]", (("v", "int"), ("s", "str"))),
    ("itertools.chain({ints}[:2], {pair})", (("v", "int"),)),
)

MANAGERS: tuple[tuple[str, str, str], ...] = (
    ("Manager({str})", "", ""),
    ("Manager({str}, (ValueError, Problem))", "m", "maybe"),
    ("Manager('all', Exception)", "", ""),
    ("managed({int})", "n", "int"),
    ("contextlib.suppress(ValueError, LookupError)", "", ""),
    ("torch.no_grad()", "", ""),
    ("torch.enable_grad()", "", ""),
    ("contextlib.nullcontext({int})", "n", "int"),
)


class Function:
    """The body of one function under construction: its lines, and what its variables are at this point."""

    def __init__(self, tape: Tape, parameters: dict[str, str], *, level: int, loops: int, budget: int) -> None:
        self.tape = tape
        self.lines: list[str] = []
        self.variables = dict(parameters)
        self.protected: set[str] = set()
        self.expressions = Expressions(tape, self.names)
        self.level = level
        self.loops_left = loops
        self.budget = budget
        self.in_loop = False
        self.in_try = False
        self.counter = 0

    def names(self, kind: str) -> list[str]:
        """The variables of a type."""
        return [name for name, its_kind in self.variables.items() if its_kind == kind]

    def fresh(self, prefix: str) -> str:
        """A name not used before."""
        self.counter += 1
        return f"{prefix}{self.counter}"

    def write(self, line: str) -> None:
        """One line at the present indentation."""
        self.lines.append(INDENT * self.level + line)

    def write_filled(self, template: str) -> None:
        """One line out of a template."""
        self.write(self.expressions.fill(template))

    @contextmanager
    def indented(self, header: str):
        """A block under a header; variables that it makes are not seen outside, since it may not run."""
        self.write(header)
        before = dict(self.variables)
        self.level += 1
        yield
        self.level -= 1
        self.variables = before

    def block(self, header: str, most: int = 3) -> None:
        """A header and a few statements under it."""
        with self.indented(header):
            self.statements(1 + self.tape.below(most))

    def statements(self, count: int) -> None:
        """So many statements, as long as the budget lasts; at least one line."""
        start = len(self.lines)
        for _ in range(count):
            if self.budget <= 0 or self.tape.is_empty:
                break
            self.budget -= 1
            kinds = _SIMPLE if self.level >= 4 else _ALL
            self.tape.pick(kinds)(self)
        if len(self.lines) == start:
            self.write("pass")


def _assign(self: Function) -> None:
    kind = self.tape.pick(TYPES)
    value = self.expressions.make(kind)
    known = [name for name in self.names(kind) if name not in self.protected]
    # Functions are only ever given new names: one that came to hold itself would not end.
    name = self.tape.pick(known) if known and kind != "fn" and self.tape.chance(35) else self.fresh(kind[0])
    self.write(f"{name} = {value}")
    self.variables[name] = kind


def _alias(self: Function) -> None:
    kind = self.tape.pick(("ints", "table", "box", "tensor", "set"))
    known = self.names(kind)
    if not known:
        return _assign(self)
    name = self.fresh(kind[0])
    self.write(f"{name} = {self.tape.pick(known)}")
    self.variables[name] = kind


def _mutate(self: Function) -> None:
    kind, template = self.tape.pick(MUTATIONS)
    known = [name for name in self.names(kind) if name not in self.protected]
    if not known:
        return _assign(self)
    self.write(self.expressions.fill(template).replace("TARGET", self.tape.pick(known)))


def _unpack(self: Function) -> None:
    one, other = self.fresh("u"), self.fresh("u")
    shape = self.tape.below(6)
    template, kinds = (
        (f"{one}, {other} = {{pair}}", ("int", "int")),
        (f"{one}, *{other} = [{{int}}, *{{ints}}]", ("int", "ints")),
        (f"*{other}, {one} = [*{{ints}}, {{int}}]", ("int", "ints")),
        (f"({one}, _), [{other}, *_] = {{pair}}, [{{str}}, 1, 2]", ("int", "str")),
        (f"{one} = {other} = {{ints}}", ("ints", "ints")),
        (f"{one}, {other} = {{int}}, {{ints}}", ("int", "ints")),
    )[shape]
    self.write_filled(template)
    self.variables[one], self.variables[other] = kinds


def _effect(self: Function) -> None:
    self.write_filled(self.tape.pick(EFFECTS))


def _condition(self: Function) -> str:
    choice = self.tape.below(10)
    if choice < 7:
        return self.expressions.make("bool", 2)
    if choice == 7:
        return self.expressions.fill("{tensor}.sum() > 0")
    if choice == 8:
        return self.expressions.fill(f"({self.fresh('w')} := {{int}}) > {{int}}")
    return self.expressions.make("any", 1)


def _if(self: Function) -> None:
    self.block(f"if {_condition(self)}:")
    while self.tape.chance(20):
        self.block(f"elif {_condition(self)}:", 2)
    if self.tape.chance(50):
        self.block("else:")


def _loop_body(self: Function, count: int) -> None:
    outer_loop, outer_try = self.in_loop, self.in_try
    self.in_loop = True
    self.statements(count)
    self.in_loop, self.in_try = outer_loop, outer_try


def _for(self: Function) -> None:
    if self.loops_left <= 0:
        return _assign(self)
    iterable, targets = self.tape.pick(ITERABLES)
    bound = [(self.fresh(prefix), kind) for prefix, kind in targets]
    source = self.expressions.fill(iterable, 1)
    self.loops_left -= 1
    with self.indented(f"for {', '.join(name for name, _ in bound)} in {source}:"):
        self.variables.update(bound)
        _loop_body(self, 1 + self.tape.below(3))
    self.loops_left += 1
    if self.tape.chance(25):
        self.block("else:", 2)


def _while(self: Function) -> None:
    if self.loops_left <= 0:
        return _assign(self)
    counter = self.fresh("n")
    self.write(f"{counter} = 0")
    self.variables[counter] = "int"
    self.protected.add(counter)
    condition = f" and {self.expressions.make('bool', 1)}" if self.tape.chance(50) else ""
    self.loops_left -= 1
    with self.indented(f"while {counter} < {1 + self.tape.below(3)}{condition}:"):
        self.write(f"{counter} += 1")
        _loop_body(self, 1 + self.tape.below(3))
    self.loops_left += 1
    if self.tape.chance(25):
        self.block("else:", 2)


def _leave_loop(self: Function) -> None:
    if not self.in_loop:
        return _if(self)
    with self.indented(f"if {_condition(self)}:"):
        self.write(self.tape.pick(("break", "continue")))


def _try(self: Function) -> None:
    outer, self.in_try = self.in_try, True
    with self.indented("try:"):
        self.statements(1 + self.tape.below(2))
        if self.tape.chance(60):
            self.write_filled(self.tape.pick(RAISES))
    self.in_try = outer
    handled = self.tape.chance(85)
    if handled:
        _handlers(self)
        if self.tape.chance(25):
            self.block("else:", 2)
    if not handled or self.tape.chance(30):
        self.block("finally:", 2)


def _handlers(self: Function) -> None:
    kinds = [self.tape.pick(HANDLERS)] + ([self.tape.pick(HANDLERS)] if self.tape.chance(30) else [])
    if self.tape.chance(60):
        kinds.append("Exception")
    for kind in kinds:
        error = self.fresh("e")
        with self.indented(f"except {kind} as {error}:"):
            self.write(f"LOG.append((type({error}).__name__, str({error})))")
            self.statements(1)
            if self.tape.chance(12):
                self.write_filled(
                    self.tape.pick(("raise", f"raise Problem({{str}}) from {error}", "raise KeyError(1)"))
                )


def _with(self: Function) -> None:
    manager, name, kind = self.tape.pick(MANAGERS)
    target = self.fresh(name) if name else ""
    with self.indented(f"with {self.expressions.fill(manager, 1)}{f' as {target}' if target else ''}:"):
        if target:
            self.variables[target] = kind
        self.statements(1 + self.tape.below(3))
        if self.tape.chance(12):
            self.write_filled(self.tape.pick(RAISES))


def _inner_function(self: Function) -> None:
    """A closure: reads and, by nonlocal, writes variables around it; then is called."""
    name = self.fresh("f")
    known = [variable for variable in self.names("int") if variable not in self.protected]
    with self.indented(f"def {name}(p, q={self.expressions.make('int', 0)}):"):
        if known and self.tape.chance(65):
            target = self.tape.pick(known)
            self.write(f"nonlocal {target}")
            self.write(f"{target} += p")
        else:
            captured = {key: kind for key, kind in self.variables.items() if kind in ("int", "ints", "tensor", "str")}
            self.variables = captured | {"p": "int", "q": "int"}
            # Only reads and mutations of what is around: an assignment would make the name local to the closure.
            targets = self.names("ints")
            if targets:
                # No further than this: somebody may be calling the closure while walking over the same list.
                target = self.tape.pick(targets)
                self.write(f"len({target}) < 9 and {target}.append(q)")
        self.write(f"return {self.expressions.make('int', 2)}")
    self.variables[name] = "fn"
    result = self.fresh("r")
    self.write_filled(f"{result} = {name}({{int}}) + {name}({{int}}, q={{int}})")
    self.variables[result] = "int"


def _generator(self: Function) -> None:
    """A generator made and consumed on the spot, whole or in part."""
    name, result = self.fresh("g"), self.fresh("r")
    with self.indented(f"def {name}(limit):"):
        with self.indented("for step in range(limit):"):
            self.variables |= {"step": "int"}
            if self.tape.chance(40):
                self.write("LOG.append(step)")
            self.write(f"yield {self.expressions.make('int', 1)}")
        if self.tape.chance(30):
            self.write("yield from (limit, 0)")
    use = self.tape.pick(
        (
            "list({g}({n}))",
            "[next({g}({n}), -1)]",
            "[a + b for a, b in zip({g}({n}), {g}(3))]",
            "sorted({g}({n}))",
            "[sum({g}({n}))]",
            "[*{g}({n}), *{g}(1)]",
            "list(itertools.islice({g}({n}), 2))",
        )
    )
    self.write(f"{result} = " + use.replace("{g}", name).replace("{n}", self.tape.pick(("0", "1", "2", "3"))))
    self.variables[result] = "ints"


def _match(self: Function) -> None:
    subject = self.expressions.make(self.tape.pick(("int", "pair", "table", "maybe", "box", "str")), 1)
    cases = (
        "case 0 | 1:",
        "case (CAPTURE, 0):",
        "case [CAPTURE, *_]:",
        "case {'a': CAPTURE}:",
        "case Box(value=CAPTURE):",
        "case int() as CAPTURE if CAPTURE > 2:",
        "case str():",
        "case None:",
    )
    with self.indented(f"match {subject}:"):
        for _ in range(1 + self.tape.below(3)):
            case, captured = self.tape.pick(cases), self.fresh("c")
            with self.indented(case.replace("CAPTURE", captured)):
                if "CAPTURE" in case:
                    self.write(f"LOG.append({captured})")
                self.statements(1)
        self.block("case _:", 1)


def _early_return(self: Function) -> None:
    with self.indented(f"if {_condition(self)}:"):
        self.write(f"return {self.expressions.make('int', 1)}")


def _raise(self: Function) -> None:
    if self.in_try or self.tape.chance(15):
        with self.indented(f"if {self.expressions.make('bool', 1)}:"):
            self.write_filled(self.tape.pick(RAISES))
    else:
        _mutate(self)


_SIMPLE: tuple[Callable[[Function], None], ...] = (_assign, _assign, _mutate, _mutate, _effect, _unpack, _alias)
_ALL = _SIMPLE + (_assign, _mutate, _effect, _if, _if, _for, _for, _while, _leave_loop, _try, _try, _with)
_ALL += (_inner_function, _generator, _match, _early_return, _raise)
