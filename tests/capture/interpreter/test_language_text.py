# ruff: noqa: B905, F524, UP030, UP031, UP032  (the programs are what they are on purpose)
"""Text in captured code: f-strings, format specifications, %-formatting and the methods of str."""

import datetime

import pytest
import torch

from kiln.testing import check
from tests.support.program_table import ProgramTable, X

TABLE = program = ProgramTable()


@program(X, 3, 2.5, "name")
def f_strings(x, i, f, s):
    width, digits = 8, 2
    texts = [f"{i}", f"{i:05d}|{f:.3f}|{s!r}|{s:>6}", f"{i + 1 =}", f"{s!s:^10}", f"{'nested ' + s!a}", f"{{{i}}}"]
    texts += [
        f"{f:{width}.{digits}f}",
        f"{i:#x} {i:b} {10**6:,} {f:e} {f:%}",
        f"{None} {True} {1j}",
        f"{[1, 'a']} {(1,)}",
    ]
    texts += [f"{ {'k': s} } {len(s)} {s.upper()} {x.shape} {x.dtype} {x.dim()}", f"{'' or 'x'}{i}y", rf"\n{i}"]
    return x + len(texts), texts


@program(X, 3, 2.5, "name")
def f_strings_of_numbers(x, i, f, s):
    width = 8
    return x, f"{i}", f"{i:05d}|{f:.3f}|{s!r:>9}", f"{i + 1 = }", f"{f:{width}.{i}f}", f"{s!a:^10}", f"{i}{f}{s}"


@program(X, 3, 2.5, "name")
def formatting(x, i, f, s):
    texts = ["%d %s %r %5.2f %x %%" % (i, s, s, f, 255), "%(a)s-%(b)03d" % {"a": s, "b": i}, "%s" % i, "%s" % (s,)]
    texts += [
        "{} {}".format(i, s),
        "{1}{0}".format(i, s),
        "{a:>5}|{b!r}".format(a=i, b=s),
        "{0[1]} {1[k]}".format([1, 2], {"k": s}),
    ]
    texts += [format(f, ".1f"), format(i), format(s, "*^9"), str(f), repr(s), ascii("é"), "{:{}}".format(s, 10)]
    texts += ["{:>{width}.{digits}}".format(f, width=9, digits=2), "{x}".format_map({"x": i}), "%s %s" % (None, [1, s])]
    return x * i, texts


@program(X, "  Hello, World  ")
def string_methods(x, s):
    t = s.strip()
    values = [t.lower(), t.upper(), t.title(), t.swapcase(), t.capitalize(), t.casefold(), s.lstrip(), s.rstrip("d ")]
    values += [
        t.split(","),
        t.rsplit("o", 1),
        t.partition(", "),
        t.rpartition("o"),
        "a\nb".splitlines(),
        "-".join(["a", "b"]),
    ]
    values += [
        t.find("o"),
        t.rfind("o"),
        t.index("l"),
        t.rindex("l"),
        t.count("l"),
        t.replace("l", "L", 1),
        t.zfill(15),
    ]
    values += [
        t.startswith("He"),
        t.endswith(("d", "x")),
        t.center(20, "*"),
        t.ljust(15),
        t.rjust(15),
        t.encode(),
        len(t),
    ]
    values += [
        "a1".isalnum(),
        "a".isalpha(),
        "1".isdigit(),
        "1".isdecimal(),
        "½".isnumeric(),
        "a".islower(),
        "A".isupper(),
    ]
    values += [
        " ".isspace(),
        "A b".istitle(),
        "id".isidentifier(),
        "a".isprintable(),
        "a".isascii(),
        "\t".expandtabs(2),
    ]
    values += [t.removeprefix("He"), t.removesuffix("ld"), t.translate(str.maketrans("lo", "01")), t[7:], t[-1], t * 2]
    values += [
        list("abc"),
        sorted("bca"),
        "".join(reversed("abc")),
        "b" in "abc",
        min("bca"),
        ord("a"),
        chr(98),
        hex(10),
    ]
    return x + len(values), values


@program(X, b"a,b")
def bytes_methods(x, b):
    array = bytearray(b)
    array.append(33)
    array[0] = 65
    return (
        x,
        b.split(b","),
        b.upper(),
        b.decode("ascii"),
        bytes(array),
        b.hex(),
        int.from_bytes(b"\1\2", "big"),
        b.find(b"b"),
    )


@program(X, "abc")
def characters(x, s):
    total = 0
    for index, character in enumerate(s):
        total += ord(character) * index
    return x + total, [c + d for c in s for d in "12"], dict(zip(s, range(3))), {c: s.index(c) for c in s}, s.__len__()


class Named:
    def __init__(self, name):
        self.name = name

    def __str__(self):
        return f"<{self.name}>"

    def __repr__(self):
        return f"Named({self.name!r})"

    def __format__(self, spec):
        return f"{self.name}|{spec}"


class OnlyRepr:
    def __repr__(self):
        return "only repr"


@program(X)
def text_of_objects(x):
    n, o = Named("n"), OnlyRepr()
    return (
        x,
        str(n),
        repr(n),
        f"{n} {n!s} {n!r} {n:>5}",
        f"{o} {o!s}",
        "{} {!r}".format(n, n),
        "%s %r" % (n, n),
        "%s" % o,
        format(o),
    )


@program(X)
def text_of_containers_of_objects(x):
    n = Named("n")
    return x, f"{[n]} {(n,)} { {'k': n} }", str([OnlyRepr()]), "%s" % [n]


@program(X)
def text_of_exceptions_and_classes(x):
    error = ValueError("bad", 3)
    return (
        x,
        str(error),
        repr(error),
        f"{error}",
        str(ValueError),
        f"{int} {Named.__name__}",
        str(KeyError("k")),
        f"{type(x)}",
    )


@program.breaking(X)
def text_errors(x):
    messages = []
    for text, values in (("%d", "a"), ("%s %s", (1,)), ("%s", (1, 2)), ("%(a)s", {})):
        try:
            text % values
        except (TypeError, ValueError, KeyError) as error:
            messages.append(repr(error))
    try:
        "{} {}".format(1)
    except IndexError as error:
        messages.append(repr(error))
    try:
        f"{3:z9q}"
    except ValueError as error:
        messages.append(repr(error))
    try:
        "a" + 1
    except TypeError as error:
        messages.append(repr(error))
    try:
        "abc".index("z")
    except ValueError as error:
        messages.append(repr(error))
    try:
        ",".join(["a", 1])
    except TypeError as error:
        messages.append(repr(error))
    return messages


@program.breaking(X)
def text_of_tensors(x):
    return f"{x} {x.sum():.2f} {x!r}", str(x + 1), "%s" % x, "{}".format(x * 2)


@program.breaking(X)
def text_across_a_break(x):
    name = f"{x.shape[0]}-part"
    print(name)
    name += "!"
    print(f"{name:>12}")
    return x * len(name), name


@TABLE.rows
def test_text(program, args, expect):
    TABLE.run(program, args, expect)


@pytest.mark.parametrize(
    "spec", ["", "5", "<5", ">5", "^5", "05", "+", " ", ",", "_", "x", "#b", "c", ".2f", "e", "g", "%"]
)
def test_format_specifications(spec):
    def program(x, n):
        return x, f"{n:{spec}}", format(n, spec), f"%{spec}" if spec else ""

    check(program, X, 65, fullgraph=True)


def test_text_of_sizes_that_vary():
    def program(x):
        return x + 1, f"{x.shape[0]:>4}", str(x.shape), "%d" % x.size(0), "a" * x.shape[0]

    check(program, calls=[(torch.ones(2),), (torch.ones(3),), (torch.ones(4),)], fullgraph=True)


def test_outside_objects_with_native_text():
    def program(x, day):
        return x + 1, f"{day:%Y}", str(day)

    check(program, X, datetime.date(2024, 5, 6))
