"""The shape cache on disk: the answers that the compilation of a function needed, for the next process.

An answer (`shape_cache.py`) is a fact about an operator of torch and holds for every program under the same version of
torch. It is stored with the code that asked for it, so that the next compilation of that code finds it. Answers are
written as JSON; what JSON cannot express is not stored, and computed again.
"""

from __future__ import annotations

import contextlib
import json
import types
from collections.abc import Callable
from typing import Any

import torch

from ...config import config
from ...platform.torch_fake import FakeTensor
from ...platform.torch_operators import OpOverload, operator_name, overload_name
from .. import disk_cache
from . import shape_cache
from .shape_cache import Answer, NumberAnswer, Part, QuestionLog, TensorAnswer

MAX_ANSWERS = 4000
FOLDERS = ("platform", "program")  # of Kiln, where the rules for shapes are
FORMAT = "answers 3"
TYPES: dict[str, type] = {kind.__name__: kind for kind in (*shape_cache.PLAIN, FakeTensor, list, tuple)}
CONSTANTS = (torch.dtype, torch.layout, torch.memory_format)


class NotEncodable(Exception):
    """Something that JSON does not say."""


class StoredShapes:
    """The answers that are known for a function, and those that its compilation asks for."""

    def __init__(self, code: types.CodeType) -> None:
        texts = (FORMAT, code.co_filename, code.co_qualname, code.co_code, repr(code.co_names))
        self.key = disk_cache.key_of(*texts, folders=FOLDERS)
        self.known = load(disk_cache.read(self.key))
        self.log = QuestionLog()

    def keep(self) -> None:
        """Write down what is new. A single question that is left to torch costs a warm start its imports."""
        asked = self.log.keys or {}
        fresh = [question for question in asked if question not in self.known]
        if not fresh or not config.cache:
            return
        answers = {question: shape_cache.cached_answer(question) for question in asked}
        if len(self.known) + len(fresh) <= MAX_ANSWERS:
            answers = {**self.known, **answers}
        disk_cache.write(self.key, {"answers": dump(answers)})

    def close(self) -> None:
        self.log.keys = None


def load(parts: dict[str, bytes] | None) -> dict[tuple[Any, ...], Answer]:
    """The answers of an entry, from now on known."""
    if parts is None:
        return {}
    try:
        found = dict(decode_pair(pair) for pair in json.loads(parts["answers"]))
    except (KeyError, ValueError, TypeError, AttributeError, IndexError):  # not as this file writes them
        return {}
    shape_cache.add_answers(found)
    return found


def dump(answers: dict[tuple[Any, ...], Answer | None]) -> bytes:
    pairs = []
    for question, answer in answers.items():
        if answer is not None:
            with contextlib.suppress(NotEncodable):
                parts = list(map(encode_part, answer.parts))
                pairs.append([encode(question), [encode(answer.container), *parts]])
    return json.dumps(pairs, separators=(",", ":")).encode()


def decode_pair(pair: list[Any]) -> tuple[tuple[Any, ...], Answer]:
    question, (container, *parts) = pair
    return decode(question), Answer(decode(container), tuple(map(decode_part, parts)))


def encode_part(made: Part) -> Any:
    if isinstance(made, NumberAnswer):
        return ["number", encode(made.number)]
    if not isinstance(made, TensorAnswer):
        return made
    return [*made.size], [*made.stride], made.offset, encode(made.dtype), str(made.device), made.bits, made.memory_of


def decode_part(value: Any) -> Part:
    if value is None or isinstance(value, int):
        return value
    if value[0] == "number":
        return NumberAnswer(decode(value[1]))
    size, stride, offset, dtype, device, bits, memory = value
    return TensorAnswer(tuple(size), tuple(stride), offset, decode(dtype), torch.device(device), tuple(bits), memory)


# A value is itself, where JSON has it, else a list of a letter and what says it.


def encode(value: Any) -> Any:
    kind: type = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is tuple or kind is torch.Size:
        return ["(" if kind is tuple else "s", *map(encode, value)]
    if kind is float:
        return ["f", value.hex()]
    if kind is complex:
        return ["c", value.real.hex(), value.imag.hex()]
    if kind in CONSTANTS:
        return ["t", str(value).removeprefix("torch.")]
    if kind is torch.device:
        return ["d", str(value)]
    if kind is OpOverload:
        return ["o", value.namespace, operator_name(value), overload_name(value)]
    if isinstance(value, type) and TYPES.get(value.__name__) is value:
        return ["k", value.__name__]
    raise NotEncodable(kind)


def constant(name: str) -> Any:
    value = getattr(torch, name)
    if type(value) not in CONSTANTS:
        raise ValueError(name)
    return value


def operator(namespace: str, name: str, overload: str) -> OpOverload:
    found: OpOverload = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    return found


DECODERS: dict[str, Callable[..., Any]] = {
    "(": lambda *parts: tuple(map(decode, parts)),
    "s": lambda *parts: torch.Size(parts),
    "f": float.fromhex,
    "c": lambda real, imaginary: complex(float.fromhex(real), float.fromhex(imaginary)),
    "t": constant,
    "d": torch.device,
    "o": operator,
    "k": TYPES.__getitem__,
}


def decode(value: Any) -> Any:
    return DECODERS[value[0]](*value[1:]) if type(value) is list else value
