"""``torch._dynamo.mutation_guard``. Kiln guards what it uses of a module and needs no generations of modules."""

from __future__ import annotations

import weakref
from typing import Any


class GenerationTracker:
    """In which generation a module was first asked about; every block of ``optimize`` begins one."""

    generation = 0
    generation_values: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    @classmethod
    def tag(cls, obj: Any) -> None:
        cls.generation_values[obj] = cls.generation

    @classmethod
    def get_generation_value(cls, obj: Any) -> int:
        return cls.generation_values.setdefault(obj, cls.generation)

    @classmethod
    def check(cls, obj: Any) -> bool:
        return cls.get_generation_value(obj) == cls.generation

    @classmethod
    def clear(cls) -> None:
        cls.generation = 0
        cls.generation_values = weakref.WeakKeyDictionary()
