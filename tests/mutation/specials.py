"""Special methods that a class can get, and what they answer."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from .variants import bump


class Plain:
    """Special methods that a class can get."""

    def __bool__(self) -> bool:
        return False

    def __len__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 5

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return 9

    def __getattribute__(self, name: str) -> Any:
        return (
            bump(object.__getattribute__(self, name))
            if not name.startswith("_")
            else object.__getattribute__(self, name)
        )

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, bump(value))

    def __call__(self, *args: Any) -> Any:
        return args

    def __iter__(self) -> Iterator[Any]:
        return iter((1, 2))

    def __contains__(self, item: Any) -> bool:
        return item == 2

    def __getitem__(self, index: Any) -> Any:
        return 11

    def __add__(self, other: Any) -> Any:
        return 12

    def __radd__(self, other: Any) -> Any:
        return 13

    def __repr__(self) -> str:
        return "plain"

    def __lt__(self, other: Any) -> bool:
        return True

    def __index__(self) -> int:
        return 1

    def __ne__(self, other: object) -> bool:
        return True

    def __le__(self, other: Any) -> bool:
        return True

    def __gt__(self, other: Any) -> bool:
        return True

    def __ge__(self, other: Any) -> bool:
        return False

    def __str__(self) -> str:
        return "plain text"

    def __format__(self, form: str) -> str:
        return f"plain {form}"

    def __int__(self) -> int:
        return 3

    def __float__(self) -> float:
        return 2.5

    def __complex__(self) -> complex:
        return 1j

    def __bytes__(self) -> bytes:
        return b"plain"

    def __neg__(self) -> Any:
        return 14

    def __abs__(self) -> Any:
        return 15

    def __round__(self, digits: Any = None) -> Any:
        return 16

    def __sub__(self, other: Any) -> Any:
        return 17

    def __rsub__(self, other: Any) -> Any:
        return 18

    def __mul__(self, other: Any) -> Any:
        return 19

    def __rmul__(self, other: Any) -> Any:
        return 20

    def __or__(self, other: Any) -> Any:
        return 21

    def __iadd__(self, other: Any) -> Any:
        return 22

    def __imul__(self, other: Any) -> Any:
        return 23

    def __setitem__(self, index: Any, value: Any) -> None:
        return None

    def __delitem__(self, index: Any) -> None:
        return None

    def __reversed__(self) -> Iterator[Any]:
        return iter((4, 3))

    def __length_hint__(self) -> int:
        return 6

    def __missing__(self, key: Any) -> Any:
        return 24

    def __next__(self) -> Any:
        raise StopIteration

    def __delattr__(self, name: str) -> None:
        raise AttributeError(name)

    def __enter__(self) -> Any:
        return 25

    def __exit__(self, *error: Any) -> bool:
        return True

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return 26

    def __set__(self, instance: Any, value: Any) -> None:
        return None

    def __copy__(self) -> Any:
        return 27

    def __deepcopy__(self, memo: Any) -> Any:
        return 28

    def __reduce_ex__(self, protocol: Any) -> Any:
        return int, (29,)

    def __instancecheck__(self, instance: Any) -> bool:
        return True

    def __subclasscheck__(self, other: Any) -> bool:
        return True

    def __dir__(self) -> list[str]:
        return ["plain"]


SPECIAL = {name: method for name, method in vars(Plain).items() if isinstance(method, types.FunctionType)}
