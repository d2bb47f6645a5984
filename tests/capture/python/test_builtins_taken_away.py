"""A program that takes builtins away for a while: Kiln is written with them, and leaves it alone meanwhile."""

import builtins

import pytest
import torch

import kiln


@pytest.mark.parametrize("name", ["iter", "reversed", "len", "isinstance", "sorted"])
def test_a_builtin_taken_away(name):
    def helper(x):
        return x + 1

    def program(x, table):
        kept = table[name]
        try:
            del table[name]
            x = helper(x)
            kiln.graph_break()
            x = helper(x) * 2
        finally:
            table[name] = kept
        return helper(x)

    table, x = vars(builtins), torch.ones(2)
    kept = table[name]
    try:
        got = kiln.compile(program, backend="eager")(x, table)
        back = table.get(name)
    finally:
        table[name] = kept
    assert got.equal(program(x, table))
    assert back is kept
