"""Programs for a GPU as data and as PTX, made on a machine without one."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

import kiln
from kiln.codegen import graph_compiler, pipeline, program_cache, targets
from kiln.codegen.inspection import Generated
from kiln.codegen.program_description import Describer
from kiln.loops import ir
from kiln.loops.steps import Launch
from kiln.lower.lowering import CannotLower
from kiln.lower.schedule.memory_plan import plan_memory
from kiln.target.cpu.cpu_target import CPU
from kiln.target.cuda import driver
from kiln.target.cuda.cuda_target import CudaTarget
from kiln.target.program_text import program_text
from tests.support.codegen_programs import graph_of
from tests.support.cuda_programs import CUDA, cuda_graph_of

aten = torch.ops.aten
TARGET = CudaTarget(CUDA)
without_gpu = pytest.mark.skipif(driver.is_available(), reason="what a machine without a GPU does")


class Made:
    """A function's graph with the kernels and the description of its program for a GPU."""

    def __init__(self, function, *inputs, **how):
        self.module = cuda_graph_of(function, inputs, **how)
        self.lowering, self.lowered, self.scheduled = pipeline.lower_for(self.module, TARGET, [])
        self.describer = Describer(self.scheduled, plan_memory(self.scheduled, is_for_gpu=True), TARGET)
        self.data = self.describer.run()

    def steps(self, kind):
        return [step for step in self.data["steps"] if step[0] == kind]


# ---- the target ------------------------------------------------------------------------------------------------------


def test_the_target_of_a_graph():
    x = torch.randn(4, 8)
    assert targets.target_of(graph_of(lambda x: x + 1, [x])) is CPU
    found = targets.target_of(cuda_graph_of(lambda x: x + 1, [x]))
    assert isinstance(found, CudaTarget) and found.device == CUDA
    assert targets.target_of(cuda_graph_of(lambda x: x + 1, [x])) is found


@without_gpu
def test_ptx_without_a_gpu():
    made = Made(lambda x, w: F.layer_norm((x + 1).exp(), (64,), w).sum(0), torch.randn(512, 64), torch.randn(64))
    code = TARGET.compile(made.scheduled.kernels)
    assert len(code.places) == len(made.scheduled.kernels)
    for place, name in code.places:
        text = code.images[place].decode()
        assert f".visible .entry {name}(" in text and ".target sm_90" in text
    with pytest.raises(kiln.exc.KilnError, match="no CUDA driver"):
        TARGET.load(code)


# ---- descriptions ----------------------------------------------------------------------------------------------------


def test_launches_as_data():
    made = Made(lambda x, y: (x * y).exp() @ y, torch.randn(128, 128), torch.randn(128, 128))
    (kernel,) = made.scheduled.kernels
    ((_, name, number, pointers, sizes, blocks, threads, shared),) = made.steps("cuda_launch")
    assert name == kernel.name and number == 0 and shared == 0
    assert {source for source, _, _ in pointers[:2]} == {0, 1} and len(pointers) == 3
    assert sizes == [128 * 128] and blocks * threads >= 128 * 128 / 8
    assert made.data["device"] == 0
    assert dict(map(tuple, made.data["aligned"])) == {0: 16, 1: 16}
    assert json.loads(json.dumps(made.data)) == made.data
    assert name == "kiln_mul_exp_0" and "kiln_mul_exp_0(" in program_text(made.data)


def test_each_launch_is_a_step():
    made = Made(lambda x, y: (x.exp(), y.sum(0)), torch.randn(100), torch.randn(64, 64))
    assert len(made.steps("cuda_launch")) == 2 and not made.steps("launch")


def test_blocks_of_sizes_that_vary():
    """Two launches of one kernel, each with blocks of its own length."""
    made = Made(lambda x, y: (x.exp(), y.exp()), torch.randn(1000), torch.randn(3000), dynamic=True)
    first, second = made.steps("cuda_launch")
    assert isinstance(first[5], list) and isinstance(second[5], list) and first[5] != second[5]
    operations = {operation for operation, _, _ in made.data["instructions"]}
    assert "floordiv" in operations


def test_a_program_for_the_cpu_says_nothing_of_devices():
    module = graph_of(lambda x: x.sin(), [torch.randn(100)])
    _, _, scheduled = pipeline.lower_for(module, CPU, [])
    assert not {"device", "aligned"} & Describer(scheduled, plan_memory(scheduled), CPU).run().keys()


def test_results_of_calls_and_memory_that_is_taken_over_are_aligned():
    made = Made(lambda x, w: (x @ w).exp(), torch.randn(256, 256), torch.randn(256, 256))
    (result,) = [step[4][0] for step in made.steps("operator")]
    assert [result, 16] in made.data["aligned"]
    (allocation,) = made.steps("allocate")
    assert allocation[3] == result
    # x is given to the sum of a row's elements (4 bytes at a time), then its memory to a vector of them
    taken = Made(lambda x: torch.softmax(x, -1), torch.randn(512, 512))
    assert dict(map(tuple, taken.data["aligned"])) == {0: 16}


def test_constants_elsewhere():
    made = Made(lambda x: (x * torch.tensor(2.0)).exp(), torch.randn(64, 64))
    assert [kind for kind, _ in made.data["constants"]] == ["tensor"]
    names = [step[1] for step in made.steps("operator")]
    assert names == ["aten::lift_fresh_copy", "aten::mul"]


# ---- kernels that GPUs do not have -----------------------------------------------------------------------------------


def refuse(monkeypatch, wanted):
    """The target has no code for kernels with this operation."""

    def refusal(kernel):
        kinds = {expr.kind for expr in ir.walk(*kernel.roots())}
        return f"no {wanted} on GPUs" if wanted in kinds else None

    monkeypatch.setattr(TARGET, "refusal", refusal)


def test_a_scan_of_few_long_rows_is_atens():
    made = Made(lambda x: torch.cumsum(x * 2, 1) + 1, torch.randn(2, 1 << 20))
    assert all(not reduction.is_scan for kernel in made.scheduled.kernels for reduction in kernel.reductions)
    assert "aten::cumsum" in [step[1] for step in made.steps("operator")]
    assert any("GPU" in reason for reason in made.scheduled.called.values())


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.tanh(),
        lambda x: x.tanh() * 2 + 1,
        lambda x: (x.tanh() * 2) @ x,  # the expression is written for a call
        lambda x: torch.softmax(x.tanh() + 1, -1),
        lambda x: (x.exp().tanh().sum(1), x.tanh() + 1),
        lambda x: (x + 1).tanh().sum(1) + (x @ x + 1).tanh().sum(1),
    ],
)
def test_nodes_of_refused_kernels_are_calls(function, monkeypatch):
    """Those alone: all others stay in kernels."""
    refuse(monkeypatch, "tanh")
    made = Made(function, torch.randn(64, 64))
    assert all(TARGET.refusal(kernel) is None for kernel in made.scheduled.kernels)
    names = {step[1] for step in made.steps("operator")}
    assert "aten::tanh" in names and names <= {"aten::tanh", "aten::mm"}
    assert any("no tanh on GPUs" in reason for reason in made.scheduled.called.values())


def test_a_combination_that_is_refused(monkeypatch):
    def refusal(kernel):
        kinds = {expr.kind for expr in ir.walk(*kernel.roots())}
        return "both at once" if {"tanh", "exp"} <= kinds else None

    monkeypatch.setattr(TARGET, "refusal", refusal)
    made = Made(lambda x: x.tanh().exp().sum(1) + 1, torch.randn(64, 64))
    assert made.scheduled.kernels and all(refusal(kernel) is None for kernel in made.scheduled.kernels)


def test_a_graph_that_is_refused_again_and_again_runs_in_eager(monkeypatch):
    monkeypatch.setattr(TARGET, "refusal", lambda kernel: "nothing at all")
    made = Made(lambda x: torch.softmax(x + 1, -1), torch.randn(8, 8))
    assert not made.scheduled.kernels
    monkeypatch.setattr(pipeline, "MOST_ROUNDS", 1)
    with pytest.raises(CannotLower, match="no code"):
        Made(lambda x: torch.softmax(x + 1, -1), torch.randn(8, 8))


# ---- the cache -------------------------------------------------------------------------------------------------------


def test_what_code_depends_on_is_in_the_key(monkeypatch, tmp_path):
    monkeypatch.setenv("KILN_CACHE_DIR", str(tmp_path / "cache"))
    module = cuda_graph_of(lambda x: x + 1, [torch.randn(4, 8)])
    keys = {program_cache.key_of(module, TARGET), program_cache.key_of(module, CPU)}
    monkeypatch.setattr(driver, "is_available", lambda: True)
    for architecture, version in (("sm_1", 13), ("sm_2", 13), ("sm_2", 12)):  # none that this machine may have
        monkeypatch.setattr(driver, "architecture", lambda device, found=architecture: found)
        monkeypatch.setattr(driver, "version", lambda found=version: found)
        keys.add(program_cache.key_of(module, TARGET))
    torch.use_deterministic_algorithms(True)
    try:
        keys.add(program_cache.key_of(module, TARGET))
    finally:
        torch.use_deterministic_algorithms(False)
    assert None not in keys and len(keys) == 6


class StandIn:
    """A driver that keeps what it is given."""

    def __init__(self, monkeypatch):
        self.loaded = []
        monkeypatch.setattr(driver, "is_available", lambda: True)
        monkeypatch.setattr(driver, "architecture", lambda device: "sm_90")
        monkeypatch.setattr(driver, "version", lambda: 13000)
        monkeypatch.setattr(driver, "link", lambda ptx, device: b"cubin of " + ptx)
        monkeypatch.setattr(driver, "load_module", self.load)
        monkeypatch.setattr(driver, "launcher", lambda: None)

    def load(self, image, device):
        self.loaded.append(image)
        return self

    def function(self, name):
        return 1000 + int(name.rsplit("_", 1)[1])


def test_machine_code_is_stored_and_loaded_again(monkeypatch, tmp_path):
    monkeypatch.setenv("KILN_CACHE_DIR", str(tmp_path / "cache"))
    seen = StandIn(monkeypatch)
    assembled = []

    def assemble(data, handles, constants, otherwise, keep, launcher):
        assembled.append((data, tuple(handles)))
        return otherwise

    monkeypatch.setattr(pipeline, "assemble", assemble)
    monkeypatch.setattr(program_cache, "assemble", assemble)
    module = cuda_graph_of(lambda x: ((x + 1) @ x).sum(0), [torch.randn(64, 64)])
    graph_compiler.compile_graph(module)
    graph_compiler.compile_graph(module)
    (first, again), images = assembled, seen.loaded
    modules = len(images) // 2
    assert images[:modules] == images[modules:] and all(image.startswith(b"cubin of ") for image in images)
    assert first[1] == again[1] == (1000, 1001)
    for name in ("device", "aligned", "steps"):
        assert json.loads(json.dumps(first[0][name])) == again[0][name]


# ---- inspection ------------------------------------------------------------------------------------------------------


def test_what_logs_show():
    made = Made(lambda x: torch.softmax(x, -1), torch.randn(64, 64))
    shown = Generated.of(made.module, made.lowered, made.scheduled, TARGET, {}, program_text(made.data))
    assert ".visible .entry" in shown.artefact("ptx") and "ptx_kernel" in shown.artefact("code")
    assert "16 KB read" in shown.artefact("kernels") or "read" in shown.artefact("kernels")
    module = graph_of(lambda x: x.sin(), [torch.randn(100)])
    _, lowered, scheduled = pipeline.lower_for(module, CPU, [])
    assert Generated.of(module, lowered, scheduled, CPU, {}, "").artefact("ptx").startswith("no PTX: a program for the")


@without_gpu
def test_what_would_run_is_shown_without_a_gpu(capsys):
    module = cuda_graph_of(lambda x: (x.exp() + 1).sum(0), [torch.randn(64, 64)])
    with (
        kiln.config.patch(log={"kernels", "ptx"}, raise_internal_errors=False),
        kiln.report.events.listen() as recording,
    ):
        graph_compiler.compile_graph(module)
    said = capsys.readouterr().err
    assert "[kiln ptx]" in said and ".visible .entry kiln_exp_add_sum_0(" in said
    assert "[kiln kernels]" in said and "kiln_exp_add_sum_0: " in said
    assert "a graph runs operator by operator: DriverError: There is no CUDA driver" in said
    (shown,) = recording.programs
    assert "ptx_kernel" in shown.kernels[0].llvm and shown.target.is_gpu


def test_logs_of_a_program_for_the_cpu(capsys):
    with kiln.config.patch(log={"kernels", "ptx"}):
        kiln.compile(lambda x: x.exp() + 1, backend="kiln")(torch.ones(3))
    said = capsys.readouterr().err
    assert "[kiln ptx] no PTX: a program for the CPU" in said and "kiln_exp_add_0: " in said


# ---- models ----------------------------------------------------------------------------------------------------------


def test_a_layer_of_a_transformer_has_ptx():
    def function(x, w1, b1, w2, b2, gamma, beta):
        normalized = F.layer_norm(x, (64,), gamma, beta)
        inner = F.gelu(torch.addmm(b1, normalized, w1), approximate="tanh")
        return torch.addmm(b2, inner, w2) + x

    shapes = [(256, 64), (64, 256), (256,), (256, 64), (64,), (64,), (64,)]
    made = Made(function, *(torch.randn(shape).bfloat16() for shape in shapes))
    assert [step[1] for step in made.steps("operator")] == ["aten::addmm", "aten::addmm"]
    assert len([step for step in made.scheduled.steps if isinstance(step, Launch)]) == 3
    text = TARGET.assembly(TARGET.llvm({kernel.name: kernel for kernel in made.scheduled.kernels}))
    assert text.count(".entry") == len(made.scheduled.kernels)
