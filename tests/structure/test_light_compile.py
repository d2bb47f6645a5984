"""A process that compiles with Kiln does not load torch's own compiler: its import takes longer than most compilations.

Programs run in fresh processes with an empty disk cache. Graphs for GPUs are graphs for the CPU whose fake tensors are
moved: nothing of them is run.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.structure.imports import ROOT

HEAVY = ("torch._dynamo", "torch._inductor", "torch.onnx", "triton")
PRELUDE = """
import sys
import torch
from torch import nn
import torch.nn.functional as F
import kiln

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.bags = nn.Embedding(64, 16), nn.EmbeddingBag(64, 16, mode="sum")
        self.norm, self.last = nn.LayerNorm(16), nn.Linear(16, 64)
        self.inner, self.outer = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.bags(tokens).unsqueeze(1)
        x = x + self.outer(F.gelu(self.inner(self.norm(x)), approximate="tanh"))
        heads = x.view(4, 8, 2, 8).transpose(1, 2)
        x = x + F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).reshape(4, 8, 16)
        pairs = torch.bmm(x, x.transpose(1, 2)).relu().mean()
        return F.cross_entropy(self.last(F.dropout(x, 0.1)).flatten(0, 1).float(), targets.flatten()) + pairs

def loss(model):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(torch.zeros(4, 8, dtype=torch.int64), torch.zeros(4, 8, dtype=torch.int64))
"""
ON_CPU = """
loss(kiln.compile(Model())).backward()
"""
FOR_GPU = """
from kiln.aot.captured_graphs import compile_captured
from kiln.aot.compilation import Compilers
from kiln.aot.partition.partitioners import min_cut_partition
from kiln.codegen.graph_compiler import prepare_joint
from kiln.codegen.pipeline import choose_calls, lower_for
from kiln.codegen.targets import target_of
from kiln.program.graph_device import device_of_graph

CUDA = torch.device("cuda", 0)
graphs = {}

def move(value):
    if isinstance(value, torch.Tensor):
        with value.fake_mode:
            whole = torch.empty(value.untyped_storage().nbytes() // value.itemsize, dtype=value.dtype, device=CUDA)
            return whole.as_strided(value.shape, value.stride(), value.storage_offset())
    return type(value)(map(move, value)) if isinstance(value, (list, tuple)) else value

def prepare(module):
    for node in module.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = move(node.meta["val"])
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": CUDA}
    prepare_joint(module)

def partition(module, inputs, **how):
    graphs["forward"], graphs["backward"] = min_cut_partition(module, inputs, **how)
    return graphs["forward"], graphs["backward"]

def backend(module, examples):
    def compiler(module, examples):
        return module.forward

    compile_captured(module, examples, Compilers(compiler, compiler, compiler, partition, prepare=prepare))
    return module.forward

loss(kiln.compile(Model(), backend=backend))
for module in graphs.values():  # as in the thread of a backward pass, when nothing is captured any more
    assert device_of_graph(module) == CUDA
    calls = [str(node.target) for node in module.graph.nodes]
    choose_calls(module, target_of(module), False)
    print("CHOSEN", calls != [str(node.target) for node in module.graph.nodes])
    assert lower_for(module, target_of(module), [])[2].kernels
"""
TELL = f"""
print("LOADED", *(name for name in {HEAVY!r} if name in sys.modules))
"""


def run(program: str, folder: object) -> list[str]:
    """What a program prints in a fresh process with an empty cache."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "KILN_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("program", [ON_CPU, FOR_GPU], ids=["cpu", "gpu"])
def test_compiling_does_not_load_torchs_compiler(program, tmp_path):
    said = run(PRELUDE + program + TELL, tmp_path)
    assert said[-1] == "LOADED"
    assert program is ON_CPU or "CHOSEN True" in said  # new nodes were written, and their values found


def test_fakes_outside_of_a_compilation(tmp_path):
    program = """
from kiln.program.shapes.fake_tensors import make_mode

mode = make_mode()
with mode:
    x = torch.empty(3, 4, dtype=torch.bfloat16)
    F.gelu(x.relu() + torch.empty_like(x), approximate="tanh").softmax(0).sum()
"""
    assert run(PRELUDE + program + TELL, tmp_path) == ["LOADED"]
