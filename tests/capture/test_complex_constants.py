"""Complex constants in graphs whose text Python reads as another number: signed zeros, infinities, NaN."""

import copy
import math

import pytest
import torch

import kiln

NUMBERS = [
    complex(1, -0.0),
    complex(-0.0, 1),
    complex(-0.0, -0.0),
    complex(math.nan, 1),
    complex(1, math.inf),
    complex(-math.inf, -0.0),
    complex(2, 3),
]


def with_constant(number):
    def program(x):
        return torch.full((2,), number), torch.tensor([number, 1j]), x.to(torch.complex64) + torch.full((2,), number)

    return program


def exact(tensors):
    """Text in which signs of zeros are seen."""
    return [repr(tensor.tolist()) for tensor in tensors]


def text_of_aot_graphs():
    def compile_text(module, inputs):
        return torch.fx.GraphModule(module, module.graph)

    return kiln.aot.make_aot_backend(fw_compiler=compile_text)


def copied(module, inputs):
    return copy.deepcopy(module)


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
@pytest.mark.parametrize(
    "backend",
    ["eager", "aot_eager", "kiln", text_of_aot_graphs(), copied],
    ids=["eager", "aot", "kiln", "text", "copied"],
)
def test_constants_keep_signs_and_special_parts(backend, number):
    program = with_constant(number)
    compiled = kiln.compile(program, backend=backend, fullgraph=True)
    assert exact(compiled(torch.ones(2))) == exact(program(torch.ones(2)))
