"""Messages of the native module are made without C++ streams.

Some compilers link the C++ library statically into the module. Its streams then have locales that torch's libraries do
not know, and a message that formats a number through a stream crashes. `TORCH_CHECK` with one string makes no stream;
with several arguments, or one of another type, it does.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[2] / "kiln" / "native"
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
CHECK = re.compile(r"\b(TORCH_CHECK\w*|TORCH_INTERNAL_ASSERT\w*|TORCH_WARN\w*|C10_THROW_ERROR|TORCH_THROW\w*)\s*\(")
STREAM = re.compile(r"#include\s*<(?:iostream|sstream|ostream|iomanip|fstream)>|std::\w*stream\b|std::cerr|c10::str\b")
MESSAGE = re.compile(r'"|text$|name|to_string|ERR_\w+$|std::string')  # how a string begins or what it is called


def arguments(source: str, start: int) -> list[str]:
    """The arguments of a macro whose parenthesis opens before ``start``."""
    depth, quoted, found, place = 1, False, [""], start
    while depth:
        letter = source[place]
        if quoted:
            found[-1] += source[place : place + (2 if letter == "\\" else 1)]
            place += 2 if letter == "\\" else 1
            quoted = letter != '"'
            continue
        quoted = letter == '"'
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 1:
            found.append("")
        elif depth:
            found[-1] += letter
        place += 1
    return [" ".join(one.split()) for one in found]


def offences(source: str) -> list[str]:
    source = COMMENT.sub("", source)
    found = [f"a stream: {match.group()}" for match in STREAM.finditer(source)]
    for match in CHECK.finditer(source):
        given = arguments(source, match.end())
        messages = given if "WARN" in match.group(1) else given[1:]
        if len(messages) > 1 or (messages and not MESSAGE.search(messages[0])):
            found.append(f"{match.group(1)} formats: {', '.join(messages)}")
    return found


def sources() -> list[Path]:
    return sorted(path for ending in ("cpp", "h", "py") for path in NATIVE.rglob(f"*.{ending}"))


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(NATIVE)))
def test_messages_are_ready_strings(path):
    assert offences(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "#include <sstream>",
        "std::ostringstream text;",
        'TORCH_CHECK(count > 0, "not ", count);',
        'TORCH_CHECK_VALUE(is_fine(a, b), "no block has ", bytes,\n " bytes");',
        "TORCH_CHECK(found, number);",
        'TORCH_WARN("twice: ", "it");',
        'auto text = c10::str("a", 1);',
    ],
)
def test_formatting_is_found(source):
    assert offences(source)


@pytest.mark.parametrize(
    "source",
    [
        'TORCH_CHECK(f(a, b) && c[1], "a, (b) \\" is \\n needed");',
        'TORCH_CHECK_TYPE(x, std::string("not ") + Py_TYPE(x)->tp_name);',
        'TORCH_CHECK(n < most, "the kernel " + step.name + " needs " + std::to_string(n));',
        "TORCH_CHECK(false, text);",
        "TORCH_INTERNAL_ASSERT(found);",
        "// std::cerr",
    ],
)
def test_ready_strings_pass(source):
    assert offences(source) == []
