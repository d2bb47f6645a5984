"""Backends learn what a graph's inputs were before the program changed them."""

import torch

import kiln
from kiln.testing import CompileCounter


def states_of(program, *args, dynamic=None):
    counter = CompileCounter()
    kiln.compile(program, backend=counter, dynamic=dynamic)(*args)
    nodes = counter.graphs[-1].graph.find_nodes(op="placeholder")
    return [node.meta["input_state"] for node in nodes if "input_state" in node.meta]


def test_state_is_that_of_the_start():
    def program(x):
        x.t_()
        x.add_(1)
        return x * 2

    x = torch.ones(2, 3)
    x.mul_(2)
    (state,) = states_of(program, x)
    assert (state.size, state.stride, state.storage_offset, state.version) == ((2, 3), (3, 1), 0, 1)
    assert (state.dtype, state.device) == (torch.float32, torch.device("cpu"))


def test_standing_in_autograd():
    leaf, parameter = torch.ones(2, requires_grad=True), torch.nn.Parameter(torch.ones(2))
    result, view = leaf * 2, leaf.view(2)
    states = states_of(lambda *all: sum(t.sum() for t in all), leaf, parameter, result, view)
    assert [state.requires_grad for state in states] == [True] * 4
    assert [state.is_leaf for state in states] == [True, True, False, False]
    assert [state.is_parameter for state in states] == [False, True, False, False]
    assert [state.is_view_of_leaf for state in states] == [False, False, False, True]
    with torch.inference_mode():
        (state,) = states_of(lambda x: x + 1, torch.ones(2))
    assert state.is_inference and state.version == -1


def test_memory_and_bases():
    base, other = torch.zeros(6).add(1), torch.zeros(6)
    one, two, apart = base.view(2, 3)[1:], base[2:], other[1:]
    shares = base.detach()
    states = states_of(lambda *all: sum(t.sum() for t in all), base, one, two, apart, shares)
    keys = [state.storage_key for state in states]
    assert keys[0] == keys[1] == keys[2] == keys[4] != keys[3]
    assert len({state.key for state in states}) == 5
    assert states[0].base is None
    assert states[1].base == states[2].base and states[1].base.key == states[0].key
    assert states[4].base is None  # autograd knows nothing of what detach() shares
    assert (states[1].storage_offset, states[1].base.size, states[1].base.stride) == (3, (6,), (1,))
    assert states[3].base.key not in {state.key for state in states}


def test_sizes_that_vary_are_symbols():
    (state,) = states_of(lambda x: x.t_() * 2, torch.ones(4, 3), dynamic=True)
    assert all(isinstance(size, torch.SymInt) for size in state.size)
    assert [int(size) for size in state.size] == [4, 3] and isinstance(state.stride[0], torch.SymInt)
