"""Backwards whose programs are begun while the forward's kernels are compiled (`graph_compiler.BackwardsAhead`).

On the CPU nothing is begun: here its target says that it compiles aside, and does so.
"""

from __future__ import annotations

import threading

import pytest
import torch

import kiln
from kiln.codegen import graph_compiler
from kiln.codegen.pipeline import BegunProgram
from kiln.lower.lowering import CannotLower
from kiln.report import events
from kiln.target.compile_queue import begin_all
from kiln.target.cpu import jit
from kiln.target.cpu.cpu_target import CPU, CpuTarget
from kiln.target.target import MachineCode, modules_of, places_of


class AsideTarget(CpuTarget):
    """Compiles for the CPU, in threads, from the moment it is told of kernels."""

    compiles_aside = True

    def begin(self, kernels):
        images = begin_all((self.llvm(module) for module in modules_of(kernels)), jit.compile_object)
        return lambda: MachineCode(tuple(images()), places_of(kernels))


@pytest.fixture
def steps(monkeypatch, tmp_path):
    """What begins and what is finished, in order, by the number of nodes of its graph's kind."""
    found = []
    begin, finish = BegunProgram.begin, BegunProgram.finish

    def name(program):
        return "backward" if any("tangent" in node.name for node in program.module.graph.nodes) else "forward"

    def beginning(self):
        found.append(f"begin {name(self)}")
        return begin(self)

    def finishing(self):
        found.append(f"finish {name(self)}")
        return finish(self)

    monkeypatch.setattr(BegunProgram, "begin", beginning)
    monkeypatch.setattr(BegunProgram, "finish", finishing)
    monkeypatch.setattr(graph_compiler, "target_of", lambda module: AsideTarget())
    monkeypatch.setenv("KILN_CACHE_DIR", str(tmp_path))
    kiln.reset()
    with kiln.config.patch(cache=False):
        yield found
    kiln.reset()


def loss(x, w):
    return torch.sin(torch.softmax(x @ w, 1)).square().sum()


def inputs():
    torch.manual_seed(0)
    return torch.randn(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)


def check(given):
    expected = inputs()
    loss(*expected).backward()
    torch.testing.assert_close([each.grad for each in given], [each.grad for each in expected])


def test_the_backward_begins_before_the_forward_is_finished(steps):
    given = inputs()
    result = kiln.compile(loss, backend="kiln")(*given)
    assert steps == ["begin forward", "begin backward", "finish forward"]
    torch.testing.assert_close(result, loss(*inputs()))
    result.backward()
    assert steps[3:] == ["finish backward"]
    check(given)


def test_other_gradients_are_compiled_when_they_are_asked_for(steps):
    x, w = inputs()
    (found,) = torch.autograd.grad(kiln.compile(loss, backend="kiln")(x, w), [w])
    assert steps[3:] == ["begin backward", "finish backward"]
    y, v = inputs()
    torch.testing.assert_close(found, torch.autograd.grad(loss(y, v), [v])[0])


def test_gradients_that_are_not_asked_for(steps):
    kiln.compile(loss, backend="kiln")(*inputs())
    for thread in threading.enumerate():
        if thread.name == "kiln-compile":
            thread.join(60)  # it ends by itself


def test_without_gradients_nothing_begins(steps):
    with torch.no_grad():
        kiln.compile(loss, backend="kiln")(*inputs())
    assert steps == ["begin forward", "finish forward"]


@pytest.mark.parametrize("error", [CannotLower("not today"), RuntimeError("a mistake")])
def test_a_backward_that_cannot_be_lowered(steps, monkeypatch, error):
    begin = BegunProgram.begin

    def failing(self):
        begin(self)
        if steps[-1] == "begin backward":
            raise error

    monkeypatch.setattr(BegunProgram, "begin", failing)
    given = inputs()
    with kiln.config.patch(raise_internal_errors=False):
        kiln.compile(loss, backend="kiln")(*given).backward()
    check(given)
    assert steps == ["begin forward", "begin backward", "finish forward"]


def test_errors_show_where_the_backward_is_compiled(steps, monkeypatch):
    begin = BegunProgram.begin

    def failing(self):
        begin(self)
        if steps[-1] == "begin backward":
            raise RuntimeError("a mistake")

    monkeypatch.setattr(BegunProgram, "begin", failing)
    with kiln.config.patch(raise_internal_errors=True):
        result = kiln.compile(loss, backend="kiln")(*inputs())
        with pytest.raises(RuntimeError, match="a mistake"):
            result.backward()


def test_errors_of_threads_show_where_the_backward_is_compiled(steps, monkeypatch):
    compile_object, count = jit.compile_object, []

    def failing(text):
        count.append(text)
        if "begin backward" in steps:
            raise jit.CompileError("a mistake")
        return compile_object(text)

    given = inputs()
    with monkeypatch.context() as patch, kiln.config.patch(raise_internal_errors=False):
        patch.setattr(jit, "compile_object", failing)
        result = kiln.compile(loss, backend="kiln")(*given)
        result.backward()
    assert count
    check(given)


def test_recordings_hear_of_the_backward(steps):
    with events.listen():
        kiln.compile(loss, backend="kiln")(*inputs()).backward()
    assert steps == ["begin forward", "finish forward", "begin backward", "finish backward"]


@pytest.mark.parametrize("options", [{"check": True}, {"autotune": True}])
def test_checks_and_measurements_wait(steps, options):
    given = inputs()
    kiln.compile(loss, backend="kiln", options=options)(*given).backward()
    assert steps == ["begin forward", "finish forward", "begin backward", "finish backward"]
    check(given)


def test_a_program_in_the_cache(steps, monkeypatch):
    with kiln.config.patch(cache=True):
        for _ in range(2):
            kiln.reset()
            given = inputs()
            kiln.compile(loss, backend="kiln")(*given).backward()
            check(given)
    assert steps == ["begin forward", "begin backward", "finish forward", "finish backward"]


def test_the_cpu_has_no_cores_to_spare():
    assert not CPU.compiles_aside
