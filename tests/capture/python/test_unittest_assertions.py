"""Assertions of `unittest` and of torch's own test case: captured where they hold, eager's error where they do not."""

import unittest

import pytest
import torch
from torch.testing._internal.common_utils import TestCase

import kiln
from kiln.testing import check


class Plain(unittest.TestCase):
    def test_nothing(self):
        """A test case needs a test."""


class Torch(TestCase):
    def test_nothing(self):
        """A test case needs a test."""


def raises(case, x):
    with case.assertRaises(ValueError) as caught:
        raise ValueError("boohoo")
    case.assertEqual(str(caught.exception), "boohoo")


def raises_like(case, x):
    with case.assertRaisesRegex(RuntimeError, "boo"):
        raise RuntimeError("boohoo")


ASSERTIONS = {
    "true": lambda case, x: case.assertTrue(x.dim() == 1),
    "true of a tensor": lambda case, x: case.assertTrue((x > 0).all()),
    "false": lambda case, x: case.assertFalse(x.requires_grad),
    "none": lambda case, x: case.assertIsNone(x.grad_fn),
    "not none": lambda case, x: case.assertIsNotNone(x),
    "equal": lambda case, x: case.assertEqual(x.dim(), 1),
    "equal sizes": lambda case, x: case.assertEqual(x.shape, (2,)),
    "equal text": lambda case, x: case.assertEqual("a", "a"),
    "equal lists": lambda case, x: case.assertEqual([1, 2.0], [1, 2.0]),
    "not equal": lambda case, x: case.assertNotEqual(2, 1),
    "same": lambda case, x: case.assertIs(x, x),
    "instance": lambda case, x: case.assertIsInstance(x, torch.Tensor),
    "in": lambda case, x: case.assertIn(1, [1]),
    "greater": lambda case, x: case.assertGreater(2, 1),
    "raises": raises,
    "raises like": raises_like,
}
OF_TENSORS = {
    "equal tensors": lambda case, x: case.assertEqual(x, torch.tensor([1.0, 2.0])),
    "equal lists of tensors": lambda case, x: case.assertEqual([x, x * 2], [x, x + x]),
    "close": lambda case, x: torch.testing.assert_close(x, x + 1e-9),
}
FAILING = {
    "true": lambda case, x: case.assertTrue(x.dim() == 2),
    "true of a tensor": lambda case, x: case.assertTrue((x > 1).all(), "not all"),
    "none": lambda case, x: case.assertIsNone(x),
    "equal": lambda case, x: case.assertEqual(x.dim(), 2),
}
OF_TENSORS_FAILING = {
    "equal tensors": lambda case, x: case.assertEqual(x, torch.tensor([1.0, 3.0])),
    "equal sizes": lambda case, x: case.assertEqual(x, torch.ones(3)),
    "close": lambda case, x: torch.testing.assert_close(x, x + 1),
}


def cases(plain, of_tensors):
    return [
        pytest.param(kind, assertion, id=f"{kind.__name__} {name}")
        for kind, table in ((Plain, plain), (Torch, plain | of_tensors))
        for name, assertion in table.items()
    ]


@pytest.mark.parametrize(("kind", "assertion"), cases(ASSERTIONS, OF_TENSORS))
def test_that_holds(kind, assertion):
    case = kind("test_nothing")

    def program(x):
        assertion(case, x)
        return x * 2

    check(program, torch.tensor([1.0, 2.0]), fullgraph=True, graphs=1)


@pytest.mark.parametrize(("kind", "assertion"), cases(FAILING, OF_TENSORS_FAILING))
def test_that_does_not_hold(kind, assertion):
    case = kind("test_nothing")

    def program(x):
        assertion(case, x)
        return x * 2

    report = check(program, torch.tensor([1.0, 2.0]), tracebacks=False)
    assert isinstance(report.compiled.calls[0].raised, AssertionError)


def test_the_names_of_operators():
    operators = [torch.ops.aten.sin.default]

    def program(x):
        operator = operators[0]
        return str(operator), f"{torch.ops.aten.add.Tensor!r}", operator(x)

    compiled = kiln.compile(program, fullgraph=True)
    x = torch.ones(1)
    for operator in (torch.ops.aten.sin.default, torch.ops.aten.cos.default):
        operators[0] = operator
        assert compiled(x) == program(x)
