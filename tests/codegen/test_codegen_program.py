"""Lowered graphs as programs: what they give beside eager, as data that is stored, and as text that runs."""

from __future__ import annotations

import json

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from kiln.codegen.program_description import Describer
from kiln.codegen.size_instructions import SizeInstructions
from kiln.loops import ir
from kiln.loops.steps import Scheduled
from kiln.lower import ops  # noqa: F401  (fills the table of lowerings)
from kiln.lower.lowering import CannotLower, Lowering
from kiln.lower.schedule.memory_plan import plan_memory
from kiln.lower.schedule.scheduling import schedule
from kiln.target.cpu import jit
from kiln.target.cpu.cpu_target import CPU
from kiln.target.cpu.emit.llvm_module import emit_module
from kiln.target.cpu.kernel_call import call_kernel
from kiln.target.native_program import assemble, constant_in
from kiln.target.program_text import names_of, program_text


def never(arguments):
    raise AssertionError("not natively")


class Compiled:
    """A function as a scheduled graph with machine code."""

    def __init__(self, function, inputs, tracing="fake"):
        self.module = make_fx(function, tracing_mode=tracing)(*inputs)
        self.scheduled: Scheduled = schedule(Lowering(self.module).run())
        names = {kernel.name: kernel for kernel in self.scheduled.kernels}
        self.code = jit.compile_module(emit_module(names)) if names else None
        self.addresses = [self.code.address(name) for name in names]
        self.plan = plan_memory(self.scheduled)

    def program(self, otherwise=never):
        described = Describer(self.scheduled, self.plan, CPU)
        return assemble(described.run(), self.addresses, described.constants, otherwise, self.code)

    def data(self):
        return Describer(self.scheduled, self.plan, CPU).run()

    def kernels(self):
        """Functions of tensors, for the program's text."""

        def function(kernel, address):
            def launch(*tensors, sizes=()):
                call_kernel(kernel, address, [tensor.data_ptr() for tensor in tensors], sizes)

            return launch

        pairs = zip(self.scheduled.kernels, self.addresses, strict=True)
        return {kernel.name: function(kernel, address) for kernel, address in pairs}


def same(found, expected):
    expected = expected if isinstance(expected, (list, tuple)) else (expected,)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(one, other)
            assert one.stride() == other.stride()
        else:
            assert one == other


def chain(x, w):
    h = torch.mm(torch.relu(x), w)
    return torch.nn.functional.gelu(h), torch.softmax(h, -1).sum(0), h


def views_and_lists(x, w):
    first, second = torch.split(torch.sin(x), 4, 1)
    return [first + second, x.t(), torch.sort(x * 2, 1)[0] + 1, x[2:, 1:], 5, None, x]


def several_results(x, w):
    q, r = torch.linalg.qr(x)
    parts = torch.ops.aten.unbind.int(torch.linalg.matrix_exp(x @ x.t()))
    return q.abs(), r + 1, parts[1] * 2, parts[0]


def constants(x, w):
    return x + torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]), torch.full((3,), 2.5), torch.cumsum(x * 2, 0)


def empty(x, w):
    return x[:0] * 2, (x[:0] @ w).sin(), torch.zeros(0, 3), x[:0].sum(0)


def complex_numbers(x, w):
    return [torch.view_as_real(torch.complex(x + 1, x) * (2 - 3j)) * 2]


PROGRAMS = [chain, views_and_lists, several_results, constants, empty, complex_numbers]


@pytest.fixture
def inputs():
    torch.manual_seed(0)
    return torch.randn(6, 8), torch.randn(8, 16)


@pytest.mark.parametrize("function", PROGRAMS)
def test_results_are_eagers(function, inputs):
    program = Compiled(function, inputs).program()
    for _ in range(2):
        given = list(inputs)
        same(program(given), function(*inputs))
        assert not given


@pytest.mark.parametrize("function", PROGRAMS)
def test_data_is_plain_and_makes_the_same_program(function, inputs):
    compiled = Compiled(function, inputs)
    data = compiled.data()
    again = json.loads(json.dumps(data))
    assert again == data
    found = [constant_in(compiled.module, kind, name) for kind, name in again["constants"]]
    program = assemble(again, compiled.addresses, found, never, compiled.code)
    same(program(list(inputs)), function(*inputs))


@pytest.mark.parametrize("function", PROGRAMS)
def test_text_runs(function, inputs):
    compiled = Compiled(function, inputs)
    data = compiled.data()
    names = dict(names_of(compiled.kernels(), [constant_in(compiled.module, *one) for one in data["constants"]]))
    text = program_text(data)
    exec(text, names)
    same(names["program"](*inputs), function(*inputs))
    several = [len(step) - 2 for step in data["steps"] if step[0] == "launch" and len(step) > 3]  # a line each
    assert len(text.splitlines()) == len(data["steps"]) + sum(several) + 2


def test_text_is_short(inputs):
    text = program_text(Compiled(chain, inputs).data())
    assert "aten.mm.default(r2, i1)" in text and text.startswith("def program(i0, i1):\n")


# ---- sizes that vary -------------------------------------------------------------------------------------------------


def varying(x, w):
    h = torch.mm(torch.relu(x), w)
    rows = x.shape[0]
    return (
        torch.softmax(h, -1).sum(0),
        h.t().sin(),
        torch.arange(rows // 2) + rows % 5,
        torch.cat([x, x * 2]).sort(0)[0] + 1,
        torch.ones(torch.sym_min(rows, x.shape[1]), 3).cos(),
        rows * 2 + 1,
    )


@pytest.mark.parametrize("shape", [(6, 8), (9, 3), (20, 33)])
def test_one_program_for_all_sizes(shape):
    compiled = Compiled(varying, (torch.randn(6, 8), torch.randn(8, 10)), "symbolic")
    inputs = torch.randn(shape), torch.randn(shape[1], 7)
    same(compiled.program()(list(inputs)), varying(*inputs))
    names = dict(names_of(compiled.kernels(), []))
    exec(program_text(compiled.data()), names)
    same(names["program"](*inputs), varying(*inputs))


def test_sizes_are_solved_for():
    import sympy

    s, t = sympy.symbols("s t", positive=True, integer=True)
    inputs = [ir.Buffer("x", torch.float32, (2 * s + 1, t), (t, 1), "input"), 3, None]
    numbers = SizeInstructions(inputs)
    assert numbers.number(s) == (len(numbers.instructions) - 1,)
    kinds = [operation for operation, _, _ in numbers.instructions]
    assert kinds[-1] == "floordiv" and "size" in kinds
    with pytest.raises(CannotLower):
        numbers.number(sympy.Symbol("u"))


def test_other_layouts_go_otherwise(inputs):
    seen = []
    program = Compiled(chain, inputs).program(lambda values: seen.append(values) or "otherwise")
    x, w = inputs
    assert program([x.t().contiguous().t(), w]) == "otherwise"
    assert program([x.double(), w]) == "otherwise"
    assert len(seen) == 2
