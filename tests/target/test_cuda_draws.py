"""Steps that draw random numbers. Functions of this test stand in for torch's generator and for cuLaunchKernel."""

from __future__ import annotations

import ctypes

import pytest
import torch

from kiln import _native
from kiln.target.native_program import Launcher, assemble
from kiln.target.program_text import program_text
from tests.target.test_cuda_launches import FUNCTION, STREAM, LaunchKernel, never

# A method that returns a structure: its address comes first.
DrawFromGenerator = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)


class State(ctypes.Structure):
    """at::PhiloxCudaState."""

    _fields_ = [
        ("seed", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
        ("inside", ctypes.c_uint64),
        ("captured", ctypes.c_bool),
    ]


class Gpu:
    def __init__(self, captured=False):
        self.offset, self.captured, self.words, self.increments = 8, captured, [], []
        self.launch_entry, self.draw_entry = LaunchKernel(self.launch), DrawFromGenerator(self.draw)
        addresses = [ctypes.cast(one, ctypes.c_void_p).value for one in (self.launch_entry, self.draw_entry)]
        self.given = Launcher(addresses[0], lambda device: STREAM, lambda *error: None, addresses[1])

    def launch(self, function, *given):
        parameters = given[-2]
        self.words.append([ctypes.cast(parameters[n], ctypes.POINTER(ctypes.c_int64))[0] for n in range(6)])
        return 0

    def draw(self, place, generator, increment):
        assert generator
        state = ctypes.cast(place, ctypes.POINTER(State))[0]
        state.seed, state.offset, state.inside, state.captured = 77, self.offset, 24, self.captured
        self.offset += increment
        self.increments.append(increment)
        return place


def launch(drawn, source):
    pointers = ((source, 0, 0), (drawn, 0, 2), (source, 4, 0))
    return "cuda_launch", "kernel", FUNCTION, pointers, (5,), 1, 32, 0


def program(gpu, steps, outputs, registers=5, instructions=()):
    return _native.OperatorProgram(1, registers, steps, outputs, never, list(instructions), [], [], -1, gpu.given)


def test_a_kernel_gets_what_was_drawn_as_parameters():
    gpu, x = Gpu(), torch.zeros(4)
    program(gpu, [("draw", 1, 12), ("draw", 2, 4), launch(1, 0), launch(2, 0), launch(1, 0)], [])([x])
    address = x.data_ptr()
    assert gpu.words == [[address, 77, offset, 0, address + 4, 5] for offset in (8, 20, 8)]
    assert gpu.increments == [12, 4]


def test_what_is_drawn_in_a_cuda_graph_is_addresses():
    gpu, x = Gpu(captured=True), torch.zeros(4)
    program(gpu, [("draw", 1, 12), launch(1, 0)], [])([x])
    assert gpu.words == [[x.data_ptr(), 77, 24, 8, x.data_ptr() + 4, 5]]


def test_what_nobody_reads_is_drawn_all_the_same():
    gpu = Gpu()
    program(gpu, [("draw", 1, 12)], [0])([torch.zeros(4)])
    assert gpu.increments == [12]


def test_increments_that_vary():
    gpu = Gpu()
    run = program(gpu, [("draw", 1, (0,))], [1], instructions=[("size", 0, 0)])
    assert run([torch.zeros(6)])[0].tolist() == [77, 8, 0]
    assert run([torch.zeros(3)])[0].tolist() == [77, 14, 0]
    assert gpu.increments == [6, 3]


def test_draws_need_a_generator():
    gpu = Gpu()
    gpu.given = gpu.given._replace(draw=0)
    with pytest.raises(ValueError, match="whose launcher does not draw"):
        program(gpu, [("draw", 1, 12)], [0])
    with pytest.raises(TypeError, match="a register and an increment"):
        program(Gpu(), [("draw", 1)], [0])


def test_a_description():
    gpu, x = Gpu(), torch.zeros(4)
    data = {
        "inputs": 1,
        "registers": 2,
        "instructions": [],
        "checks": [],
        "exposed": [],
        "steps": [["draw", 1, 12], ["cuda_launch", "kernel", 0, [[0, 0, 0], [1, 0, 2], [0, 0, 0]], [5], 1, 32, 0]],
        "outputs": [0],
        "constants": [],
        "written": [],
    }
    assert assemble(data, [FUNCTION], [], never, None, gpu.given)([x])[0] is x
    assert gpu.words == [[x.data_ptr(), 77, 8, 0, x.data_ptr(), 5]]
    assert "r1 = draw(12)" in program_text(data) and "kernel0(i0, r1, i0" in program_text(data)
