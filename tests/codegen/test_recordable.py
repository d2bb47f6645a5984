"""Which graphs can be recorded into a CUDA graph, and the reasons why others cannot."""

from __future__ import annotations

import pytest
import torch

from kiln.codegen.cuda_graphs.recordable import device_of, refusal
from kiln.platform.torch_fake import FakeTensorMode

aten = torch.ops.aten


class Graph:
    """A graph of operators on tensors without data."""

    def __init__(self) -> None:
        self.graph, self.mode = torch.fx.Graph(), FakeTensorMode()

    def tensor(self, *sizes: int, device: str = "cuda", dtype: torch.dtype = torch.float32) -> torch.Tensor:
        with self.mode:
            return torch.empty(sizes, device=device, dtype=dtype)

    def given(self, name: str, value) -> torch.fx.Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = value
        return node

    def call(self, target, value, *args, **kwargs) -> torch.fx.Node:
        node = self.graph.call_function(target, args, kwargs)
        node.meta["val"] = value
        return node

    def module(self, *results: torch.fx.Node) -> torch.fx.GraphModule:
        self.graph.output(tuple(results))
        return torch.fx.GraphModule(torch.nn.Module(), self.graph)


class Program:
    def __init__(self, called: tuple[str, ...] = (), steps: int = 9) -> None:
        self.called_operators, self.work_steps = called, steps


@pytest.fixture
def made():
    return Graph()


def test_a_graph_on_one_gpu(made):
    x = made.given("x", made.tensor(4, device="cuda:0"))
    module = made.module(made.call(aten.sin.default, made.tensor(4, device="cuda:0"), x))
    assert refusal(module, Program()) is None and device_of(module) == torch.device("cuda", 0)


def test_numbers_of_the_program_on_the_cpu(made):
    """Factories make them, as attention does of a mask; they are the same in each call."""
    x = made.given("x", made.tensor(4))
    n = made.given("n", 3)
    number = made.call(aten.scalar_tensor.default, made.tensor(device="cpu"), n)
    module = made.module(made.call(aten.mul.Tensor, made.tensor(4), x, number))
    assert refusal(module, Program()) is None and device_of(module).type == "cuda"


@pytest.mark.parametrize("place", ["given", "computed"])
def test_tensors_on_the_cpu(made, place):
    x = made.given("x", made.tensor(4))
    if place == "given":
        y = made.given("y", made.tensor(device="cpu"))
    else:
        y = made.call(aten._to_copy.default, made.tensor(4, device="cpu"), x, device="cpu")
    module = made.module(made.call(aten.mul.Tensor, made.tensor(4), x, y))
    assert "is on the device cpu" in refusal(module, Program())


def test_several_gpus(made):
    x = made.given("x", made.tensor(4, device="cuda:0"))
    y = made.given("y", made.tensor(4, device="cuda:1"))
    assert refusal(made.module(x, y), Program()) == "it works on several GPUs"


def test_functions_of_python(made):
    x = made.given("x", made.tensor(4))
    module = made.module(made.call(torch.sin, made.tensor(4), x))
    assert "calls a Python function, sin" in refusal(module, Program())


def test_sizes_are_numbers(made):
    import operator

    x = made.given("x", made.tensor(4))
    n = made.given("n", 3)
    module = made.module(x, made.call(operator.add, 4, n, 1))
    assert refusal(module, Program()) is None


def test_random_numbers(made):
    x = made.given("x", made.tensor(4))
    node = made.call(aten.rand_like.default, made.tensor(4), x)
    module = made.module(node)
    assert refusal(module, Program(("aten::rand_like.",))) is None
    assert refusal(module, object()) is None  # it runs the operators of the graph
    node.kwargs = {"generator": torch.Generator()}
    assert "a generator of its own" in refusal(module, Program(("aten::rand_like.",)))


def test_few_launches(made):
    module = made.module(made.given("x", made.tensor(4)))
    assert "only 2 launches" in refusal(module, Program(steps=2)) and refusal(module, Program(steps=3)) is None
