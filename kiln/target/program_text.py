"""A program's description as Python text, for logs. It runs with the names of `names_of`.

def program(i0, i1):
    s0 = i0.size(0)
    r2 = empty((s0, 128), (128, 1), float32, i0)  # in i0's memory, if nothing else holds it
    kernel0(i0, i1, r2, sizes=(8192,))
    r3 = aten.mm.default(r2, i1)
    with together:  # independent launches: threads share their work
        kernel1(i0, r2, sizes=(8192,))
        kernel1(i1, r3, sizes=(512,))
    return r3,

Launches on a GPU say how: ``kernel0(i0, r2, blocks=s3, threads=256)``. Those ``with together`` are one launch there, or
few.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..platform.torch_operators import find_schema
from .native_program import CONSTRUCTORS, Data

INFIX = {"add": "+", "mul": "*", "floordiv": "//", "mod": "%", "pow": "**", "eq": "==", "ne": "!=", "lt": "<"}
INFIX |= {"le": "<="}


def program_text(data: Data) -> str:
    """The program as Python."""
    return Text(data).write()


class Text:
    def __init__(self, data: Data) -> None:
        self.data = data

    def write(self) -> str:
        data = self.data
        inputs = ", ".join(f"i{number}" for number in range(data["inputs"]))
        lines = [f"s{place} = {self.instruction(*one)}" for place, one in enumerate(data["instructions"])]
        lines += [f"{self.register(register)} = s{number}" for number, register in data["exposed"]]
        lines += [getattr(self, step[0])(*step[1:]) for step in data["steps"]]
        results = "".join(f"{self.argument(output)}, " for output in data["outputs"])
        lines.append(f"return ({results.strip()})")
        return f"def program({inputs}):\n" + "".join(f"    {line}\n" for line in lines)

    # ---- values ------------------------------------------------------------------------------------------------------

    def instruction(self, operation: str, first: int, second: int) -> str:
        if operation == "value":
            return f"i{first}"
        if operation in ("size", "stride"):
            return f"i{first}.{operation}({second})"
        if operation == "constant":
            return str(first)
        if operation in INFIX:
            return f"s{first} {INFIX[operation]} s{second}"
        return f"{operation}(s{first}, s{second})"

    def register(self, number: int) -> str:
        return f"i{number}" if number < self.data["inputs"] else f"r{number}"

    def registers(self, numbers: Sequence[int]) -> str:
        return ", ".join(self.register(number) if number >= 0 else "_" for number in numbers)

    def size(self, size: Any) -> str:
        return f"s{size[0]}" if isinstance(size, list) else str(size)

    def sizes(self, sizes: Sequence[Any]) -> str:
        return f"({', '.join(map(self.size, sizes))}{',' if len(sizes) == 1 else ''})"

    def layout(self, layout: Sequence[Any]) -> str:
        dtype, sizes, strides = layout
        return f"{self.sizes(sizes)}, {self.sizes(strides)}, {dtype}"

    def argument(self, described: Any) -> str:
        if isinstance(described, int):
            return self.register(described)
        kind, value = described
        if kind == "list":
            return f"[{', '.join(map(self.argument, value))}]"
        if kind == "constant":
            return f"c{value}"
        if kind == "torch":
            return str(value)
        return f"{kind}({value!r})" if kind in CONSTRUCTORS else repr(value)

    # ---- steps -------------------------------------------------------------------------------------------------------

    def allocate(self, register: int, layout: list[Any], donor: int) -> str:
        taken = f", {self.register(donor)}" if donor >= 0 else ""
        return f"{self.register(register)} = empty({self.layout(layout)}{taken})"

    def view(self, register: int, source: Any, layout: list[Any], offset: Any) -> str:
        whole = self.argument(source)
        place = "" if offset == 0 else f" + {self.size(offset)}"
        sizes, strides = self.sizes(layout[1]), self.sizes(layout[2])
        return f"{self.register(register)} = {whole}.as_strided({sizes}, {strides}, {whole}.storage_offset(){place})"

    def launch(self, name: str, *launches: list[Any]) -> str:
        lines = [self.one_launch(*one) for one in launches]
        return lines[0] if len(lines) == 1 else "\n        ".join(["with together:", *lines])

    def one_launch(self, kernel: int, pointers: list[Any], sizes: list[Any], extent: list[Any], is_whole: int) -> str:
        return f"{self.kernel(kernel)}({', '.join(self.given(pointers, sizes))})"

    def cuda_launch(
        self, name: str, kernel: int, pointers: list[Any], sizes: list[Any], blocks: Any, threads: int, shared: int
    ) -> str:
        given = [*self.given(pointers, sizes), f"blocks={self.size(blocks)}", f"threads={threads}"]
        return f"{self.kernel(kernel)}({', '.join([*given, f'shared={shared}'] if shared else given)})"

    def kernel(self, number: int) -> str:
        names = self.data.get("names")
        return str(names[number]) if names else f"kernel{number}"

    def draw(self, register: int, increment: Any) -> str:
        return f"{self.register(register)} = draw({self.size(increment)})"

    def cuda_table(self, name: str, kernel: int, works: list[Any], rows: int, threads: int, shared: int) -> str:
        lines = [self.cuda_launch(name, kernel, one, sizes, count, threads, shared) for one, sizes, count in works]
        return "\n        ".join(["with together:", *lines])

    def given(self, pointers: list[Any], sizes: list[Any]) -> list[str]:
        found = [self.argument(source) + (f"[{offset}:]" if offset else "") for source, offset, _ in pointers]
        return [*found, f"sizes={self.sizes(sizes)}"] if sizes else found

    def operator(self, name: str, overload: str, arguments: list[Any], results: list[int], layouts: list[Any]) -> str:
        schema = find_schema(name, overload)
        given, by_name = [], False
        for argument, value in zip(schema.arguments, arguments, strict=True):
            by_name = by_name or argument.kwarg_only or value is None
            if value is not None:
                given.append(f"{argument.name}={self.argument(value)}" if by_name else self.argument(value))
        call = f"{name.replace('::', '.')}.{overload or 'default'}({', '.join(given)})"
        return f"{self.registers(results)} = {call}" if any(result >= 0 for result in results) else call

    def python(self, target: int, arguments: list[Any], result: int, expected: Any) -> str:
        call = f"c{target}({', '.join(map(self.argument, arguments))})"
        return f"{self.register(result)} = {call}" if result >= 0 else call

    def item(self, place: int, source: int, result: int, expected: Any) -> str:
        return f"{self.register(result)} = {self.register(source)}[{place}]"


def names_of(kernels: Mapping[str, Callable[..., None]], constants: Sequence[Any]) -> Mapping[str, Any]:
    """What the names in a program's text mean, to run it: kernels, by name, take tensors, then ``sizes``."""

    def empty(sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype, donor: Any = None) -> torch.Tensor:
        return torch.empty_strided(sizes, strides, dtype=dtype)

    names: dict[str, Any] = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
    names |= {"empty": empty, "together": contextlib.nullcontext(), "device": torch.device, "strided": torch.strided}
    names |= {name: value for name, value in vars(torch).items() if isinstance(value, torch.memory_format)}
    names |= {space: getattr(torch.ops, space) for space in ("aten", "prims", "kiln")}
    names |= kernels
    return names | {f"c{number}": constant for number, constant in enumerate(constants)}
