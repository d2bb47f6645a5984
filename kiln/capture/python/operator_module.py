"""The ``operator`` module: its functions are operators, its getters call what they were made with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ... import operator_functions as operator
from ..._native import is_instance as isinstance
from ..interpreter import calls, native_calls
from ..interpreter.attributes import load_attribute
from ..interpreter.call_rules import frames_below, rule
from ..interpreter.items import delete_item, get_item, set_item
from ..interpreter.membership import contains, is_same
from ..interpreter.operators import BINARY, COMPARE, INPLACE, UNARY, binary, compare, unary
from ..interpreter.protocols import truth
from ..shadows.wrap import force
from ..state.operations import Args, Kwargs
from ..state.trace import Trace


def call_getter(trace: Trace, getter: Any, args: Args, kwargs: Kwargs) -> object:
    """``itemgetter``, ``attrgetter`` and ``methodcaller`` objects."""
    if len(args) != 1 or kwargs:
        raise trace.fail(f"a call to an operator.{type(getter).__name__} with wrong arguments")
    owner = force(trace, args[0])
    made_of, keywords = getter.__reduce__()[1], {}
    if isinstance(getter, operator.methodcaller):
        maker: Any = getter.__reduce__()[0]
        name, made_of, keywords = (
            (made_of[0], made_of[1:], {})
            if maker is operator.methodcaller
            else (maker.args[0], made_of, maker.keywords)
        )
        return calls.call(trace, load_attribute(trace, owner, name), tuple(made_of), dict(keywords))
    if isinstance(getter, operator.itemgetter):
        found = [get_item(trace, owner, item) for item in made_of]
    else:
        found = [load_path(trace, owner, path) for path in made_of]
    return found[0] if len(found) == 1 else tuple([force(trace, value) for value in found])


def load_path(trace: Trace, owner: object, path: str) -> object:
    for name in path.split("."):
        owner = load_attribute(trace, owner, name)
    return owner


def operator_rule(function: object, run: Callable[..., Any]) -> None:
    """``operator.add(a, b)`` is ``a + b``, also where the operands' methods are Python code."""

    @rule(function)
    def rule_operator(trace: Trace, args: Args, kwargs: Kwargs) -> object:
        try:
            return run(trace, *[force(trace, arg) for arg in args], **kwargs)
        except TypeError as error:
            if frames_below(error) == 0:  # the wrong number of arguments: CPython raises its own error
                return native_calls.call_without_rule(trace, function, args, kwargs)
            raise


for _sign, (_function, _, _) in BINARY.items():
    operator_rule(_function, lambda trace, left, right, sign=_sign: binary(trace, sign, left, right))


for _sign, (_function, _) in INPLACE.items():
    operator_rule(_function, lambda trace, left, right, sign=_sign: binary(trace, sign, left, right))


for _sign, (_function, _, _) in COMPARE.items():
    operator_rule(_function, lambda trace, left, right, sign=_sign: compare(trace, sign, left, right))


for _name, (_function, _) in UNARY.items():
    operator_rule(_function, lambda trace, value, name=_name: unary(trace, name, value))


for _function, _run in (
    (operator.getitem, get_item),
    (operator.setitem, set_item),
    (operator.delitem, delete_item),
    (operator.contains, contains),
    (operator.is_, is_same),
    (operator.is_not, lambda trace, left, right: not is_same(trace, left, right)),
    (operator.truth, truth),
    (operator.not_, lambda trace, value: not truth(trace, value)),
):
    operator_rule(_function, _run)


for _kind in (operator.itemgetter, operator.attrgetter, operator.methodcaller):
    calls.CALLABLES[_kind] = call_getter
