"""Programs under the engine: what they give beside eager, how often they are traced and compiled."""

from __future__ import annotations

import torch

import kiln
from kiln.testing import same


class CountingCompiler:
    """Compiles backward graphs with Kiln, and counts the graphs that its backend gets."""

    def __init__(self, fullgraph=True, dynamic=True, inner="eager"):
        self.options = {"fullgraph": fullgraph, "dynamic": dynamic}
        self.inner = kiln.backends.lookup_backend(inner)
        self.modules, self.graphs = [], []

    def __call__(self, module):
        self.modules.append(module)
        return kiln.compile(module, backend=self.backend, **self.options)

    def backend(self, graph, inputs):
        self.graphs.append(graph)
        return self.inner(graph, inputs)


def captures():
    return kiln.report.counters["engine captures"]


def beside_eager(program, wrap=lambda program: program, **options):
    """A program's values are eager's; gives how many backward passes were traced, and how many graphs compiled."""
    kiln.reset()
    torch.manual_seed(7)
    expected = list(program())
    torch.manual_seed(7)
    compiler, before = CountingCompiler(**options), captures()
    handed = kiln.report.counters["engine handed over"]
    with kiln.compiled_autograd.enable(compiler):
        actual = list(wrap(program)())
    tolerance = {} if options.get("inner", "eager") == "eager" else {"rtol": 1e-5, "atol": 1e-6}
    assert same(expected, actual, **tolerance)
    assert kiln.report.counters["engine handed over"] == handed, "torch's engine did it"
    return captures() - before, len(compiler.graphs)
