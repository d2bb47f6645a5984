"""Small programs that work standard-library modules hard, for running them with their functions replaced.

Each returns something comparable.  `MODULES` names the modules whose functions the programs go through.
"""

import argparse
import ast
import bisect
import collections
import configparser
import copy
import csv
import dataclasses
import difflib
import enum
import fractions
import functools
import heapq
import html.parser
import inspect
import io
import json
import pprint
import random
import re
import shlex
import statistics
import string
import textwrap
import tokenize
import types
import urllib.parse

MODULES = [
    argparse, ast, bisect, collections, configparser, copy, csv, dataclasses, difflib, enum, fractions, functools,
    heapq, html.parser, inspect, json, json.decoder, json.encoder, json.scanner, pprint, re, re._compiler, re._parser,
    shlex, statistics, string, textwrap, tokenize, urllib.parse,
]  # fmt: skip

TEXT = """The compiler is as much a product as the code it makes.
    Nothing is dropped, skipped or assumed constant without a guard; what cannot be captured is left to plain Python.
What three places need, one place has."""


def program_json():
    data = {"a": [1, 2.5, None, True, {"b": 'é\n"x"'}], "c": {"d": [], "e": {}}, "f": -1e300, "g": "\u2028"}
    encoder = json.encoder.JSONEncoder(indent=2, sort_keys=True)
    text = "".join(json.encoder._make_iterencode(
        {}, encoder.default, json.encoder.py_encode_basestring_ascii, "  ", float.__repr__, ": ", ", ", True, False,
        False,
    )(data, 0))  # fmt: skip
    decoder = json.decoder.JSONDecoder()
    decoder.parse_string = json.decoder.py_scanstring
    decoder.scan_once = json.scanner.py_make_scanner(decoder)
    failures = []
    for bad in ("[1,", '{"a" 1}', "[1 2]", '"\\q"', "nul"):
        try:
            decoder.decode(bad)
        except json.JSONDecodeError as error:
            failures.append(str(error))
    return text, decoder.decode(text), failures, json.loads(json.dumps(data)) == data


def program_textwrap():
    dedented = textwrap.dedent("   a\n     b\n   c\n")
    return (
        textwrap.wrap(TEXT, 30),
        textwrap.fill(TEXT, 17),
        textwrap.shorten(TEXT, 40),
        textwrap.indent(TEXT, "> "),
        dedented,
    )


def program_difflib():
    one, two = TEXT.splitlines(True), TEXT.replace("plain", "real").replace("What", "Which").splitlines(True)
    matcher = difflib.SequenceMatcher(None, TEXT, TEXT.upper().lower())
    return (
        list(difflib.ndiff(one, two)), list(difflib.unified_diff(one, two, lineterm="")), matcher.get_opcodes()[:5],
        round(matcher.ratio(), 6), difflib.get_close_matches("appel", ["ape", "apple", "peach", "puppy"]),
    )  # fmt: skip


def program_heapq():
    numbers = [(7919 * i) % 101 for i in range(60)]
    heap = []
    for number in numbers:
        heapq.heappush(heap, number)
    merged = list(heapq.merge(sorted(numbers[:20]), sorted(numbers[20:]), reverse=False))
    return (
        [heapq.heappop(heap) for _ in numbers],
        heapq.nlargest(5, numbers),
        heapq.nsmallest(4, numbers, key=lambda n: -n),
        merged,
    )


def program_statistics():
    data = [1.5, 2.5, 2.5, 2.75, 3.25, 4.75]
    failures = []
    for call in (lambda: statistics.mean([]), lambda: statistics.mode([]), lambda: statistics.quantiles([1], n=0)):
        try:
            call()
        except statistics.StatisticsError as error:
            failures.append(str(error))
    return (
        statistics.mean(data), statistics.median(data), statistics.mode(data), round(statistics.stdev(data), 9),
        statistics.quantiles(data, n=4), statistics.multimode("aabbc"), statistics.harmonic_mean(data), failures,
        statistics.linear_regression([1, 2, 3], [2, 4, 6.5]),
    )  # fmt: skip


def program_re():
    found = []
    for number, pattern in enumerate(
        [r"(\w+)\s+(?P<b>[a-z]+)", r"(?i)THE|one\b", r"(?:a|e)+?x*", r"[^\W\d_]{3,5}", r"(?<=p)l(?!a)"]
    ):
        compiled = re._compiler.compile(pattern, re.MULTILINE if number % 2 else 0)
        found.append((compiled.findall(TEXT)[:6], compiled.groups, dict(compiled.groupindex)))
    failures = []
    for bad in ("(", "[a", "*", "(?P<1>x)", "a{3,2}", r"\8", "(?z)"):
        try:
            re._compiler.compile(bad)
        except re.error as error:
            failures.append(str(error))
    return found, failures, re.sub(r"(\w)(\w*)", r"\2\1", TEXT[:40]), re.escape("a.b*c")


def program_dataclasses():
    @dataclasses.dataclass(order=True)
    class Point:
        x: int
        y: float = 2.0
        tags: list = dataclasses.field(default_factory=list, compare=False)

    @dataclasses.dataclass(frozen=True)
    class Named:
        name: str
        point: Point

        def __post_init__(self):
            object.__setattr__(self, "name", self.name.upper())

    named = Named("n", Point(1))
    try:
        named.name = "no"
    except dataclasses.FrozenInstanceError as error:
        frozen = str(error)
    return (
        repr(named),
        dataclasses.asdict(named),
        dataclasses.replace(named, name="q").name,
        Point(1) < Point(2),
        frozen,
    )


def program_collections():
    Pair = collections.namedtuple("Pair", "left right", defaults=[3])
    counter = collections.Counter(TEXT.lower())
    chain = collections.ChainMap({"a": 1}, {"a": 2, "b": 3})
    ordered = collections.OrderedDict.fromkeys("hello")
    return (
        repr(Pair(1)), Pair(1)._replace(right=9), counter.most_common(4),
        (counter - collections.Counter("the")).total(),
        dict(chain), repr(ordered), collections.UserList([3, 1])[::-1].data,
    )  # fmt: skip


def program_enum():
    class Color(enum.Enum):
        RED = 1
        BLUE = 2
        AZURE = 2

    class Mode(enum.Flag):
        A = enum.auto()
        B = enum.auto()
        AB = A | B

    try:
        Color(7)
    except ValueError as error:
        missing = str(error)
    return [repr(c) for c in Color], repr(Color["AZURE"]), str(Mode.A | Mode.B), (~Mode.A).value, missing


def program_argparse():
    parser = argparse.ArgumentParser(prog="kiln", exit_on_error=False)
    parser.add_argument("files", nargs="*")
    parser.add_argument("-v", "--verbose", action="count", default=0)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--level", type=int, choices=range(4))
    group.add_argument("--fast", action="store_true")
    try:
        parser.parse_args(["--level", "x"])
    except argparse.ArgumentError as error:
        wrong = str(error)
    return vars(parser.parse_args(["-vv", "--level=2", "a", "b"])), parser.format_help(), wrong


def program_ast():
    tree = ast.parse("def f(a, *b, c=1, **d):\n  return [x*y for x in b if x > a for y in d] + [lambda: (yield)]\n")
    return ast.dump(tree, indent=1), ast.unparse(tree), ast.literal_eval("{'a': (1, -2j), 'b': {3}}")


def program_text_formats():
    table = io.StringIO()
    writer = csv.DictWriter(table, ["a", "b"], extrasaction="ignore")
    writer.writeheader()
    writer.writerows([{"a": 'x,"y"', "b": 2, "z": 0}, {"a": "", "b": None}])
    config = configparser.ConfigParser()
    config.read_string("[s]\na = 1\nb = %(a)s2\n[t]\nlong = x\n  y\n")
    template = string.Template("$who likes ${what} $$").safe_substitute(who="tim")
    return (
        list(csv.DictReader(io.StringIO(table.getvalue()))), dict(config["s"]), config.get("t", "long"), template,
        shlex.split("a 'b c' \"d\\\"e\" f#g", comments=True), shlex.join(["a b", "c"]), string.capwords("ab cd"),
    )  # fmt: skip


def program_copy_and_print():
    shared = [1, (2, [3])]
    cyclic = {"a": shared, "b": shared, "f": fractions.Fraction(3, 9)}
    cyclic["me"] = [cyclic]
    twin = copy.deepcopy(cyclic)
    wide = {f"key{i}": list(range(i)) for i in range(12)}
    return (
        twin["a"] is twin["b"],
        twin["me"][0] is twin,
        pprint.pformat(wide, width=40),
        pprint.pformat(twin["a"] * 9, width=20),
    )


def program_urls_and_tokens():
    parts = urllib.parse.urlsplit("http://u:p@host:80/a/b;c?q=1&r=%20x#frag")
    source = "def f(x):\n    return f'{x!r:>{3}}' if x else {1: 2}\n"
    tokens = [(token.type, token.string) for token in tokenize.generate_tokens(io.StringIO(source).readline)]
    return (
        parts.port, parts.geturl(), urllib.parse.parse_qs("a=1&a=2&b=%C3%A9"), 
        urllib.parse.urlencode({"k": [1, "ü"]}, doseq=True),
        urllib.parse.urljoin("http://a/b/c/d", "../e?x"), urllib.parse.quote("a b/é"), tokens,
    )  # fmt: skip


def program_html():
    seen = []

    class Parser(html.parser.HTMLParser):
        def handle_starttag(self, tag, attrs):
            seen.append((tag, attrs))

        def handle_data(self, data):
            seen.append(data)

    Parser().feed("<p class='a'>x &amp; y<br/><!-- c --><b>z</b></p>")
    return seen


def program_inspect():
    def sample(a, /, b: int = 1, *args, c, d=2, **kw) -> str: ...

    signature = inspect.signature(sample)
    try:
        signature.bind(1)
    except TypeError as error:
        wrong = str(error)
    bound = signature.bind(1, 2, 3, c=4, z=5)
    bound.apply_defaults()
    partial = inspect.signature(functools.partial(sample, 1, c=3))
    return (
        str(signature),
        dict(bound.arguments),
        wrong,
        str(partial),
        [name for name, _ in inspect.getmembers(Seven())][-2:],
    )


class Seven:
    yellow = 1

    @functools.cached_property
    def zeta(self):
        return 7


def program_functools():
    @functools.singledispatch
    def shown(value):
        return f"object {value}"

    @shown.register
    def _(value: int):
        return f"int {value}"

    @functools.total_ordering
    class Version:
        def __init__(self, number):
            self.number = number

        def __lt__(self, other):
            return self.number < other.number

    ordered = sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a))
    generator = random.Random(5)
    picks = [generator.choice("abc"), generator.sample(range(20), 4), bisect.insort([], 1)]
    return (
        shown(1),
        shown("x"),
        Version(2) >= Version(1),
        ordered,
        picks,
        functools.reduce(lambda a, b: a * b, range(1, 6)),
    )


PROGRAMS = [value for name, value in sorted(globals().items()) if name.startswith("program_")]


def run_all():
    """Results by program name; an exception counts as a result."""
    results = {}
    for program in PROGRAMS:
        try:
            results[program.__name__] = repr(program())
        except Exception as error:
            results[program.__name__] = f"{type(error).__name__}: {error}"
    return results


def functions():
    """Every Python function of the modules: their own, and those of their classes."""
    seen = set()
    for module in MODULES:
        for value in list(vars(module).values()):
            members = (
                list(vars(value).values())
                if isinstance(value, type) and value.__module__ == module.__name__
                else [value]
            )
            for member in members:
                member = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
                if (
                    isinstance(member, types.FunctionType)
                    and member.__module__ == module.__name__
                    and member not in seen
                ):
                    seen.add(member)
                    yield member
