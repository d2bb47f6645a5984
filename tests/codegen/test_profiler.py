"""Compiled programs in torch.profiler: a range for each program, and one for each kernel inside it."""

from __future__ import annotations

import json
import re

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile, record_function

import kiln
from kiln.report.node_places import begin_of, line_of, program_name, stack_of

X, W = torch.randn(64, 64), torch.randn(64, 64)
ROWS = 400  # enough that several threads work


def compiled_by_kiln(function, **options):
    """With machine code: the tests' default is the backend eager."""
    return kiln.compile(function, backend="kiln", **options)


def model(x, w):
    hidden = F.gelu(x @ w + 1)
    return torch.softmax(hidden, -1).sum(0)


def profiled(run, **options):
    with profile(activities=[ProfilerActivity.CPU], **options) as found:
        run()
    return found.events()


def inside(event, name):
    """Whether an event lies in a range."""
    while event is not None:
        if event.name == name:
            return True
        event = event.cpu_parent
    return False


def test_a_range_for_each_program_and_kernel():
    compiled = compiled_by_kiln(model)
    x = X.clone().requires_grad_()
    compiled(x, W).sum().backward()
    events = profiled(lambda: compiled(x, W).sum().backward())
    ranges = [event.name for event in events if event.name.startswith("kiln program")]
    line = model.__code__.co_firstlineno + 1
    assert [name.split(" #")[0] for name in ranges] == [
        f"kiln program forward model (test_profiler.py:{line})",
        f"kiln program backward model (test_profiler.py:{line + 1})",  # it begins with the last line
    ]
    kernels = [event for event in events if re.match(r"kiln_\w+_\d+", event.name)]
    assert any("gelu" in event.name and inside(event, ranges[0]) for event in kernels)
    assert any("gelu_backward" in event.name and inside(event, ranges[1]) for event in kernels)
    assert all(inside(event, ranges[0]) or inside(event, ranges[1]) for event in kernels)
    assert all(event.cpu_time_total >= 0 for event in kernels)
    products = [event for event in events if event.name == "aten::mm"]
    assert products and all(inside(event, ranges[0]) or inside(event, ranges[1]) for event in products)


def test_a_range_of_the_users_contains_the_program():
    compiled = compiled_by_kiln(lambda x: (x.sin() + 1).sum(0))
    compiled(X)

    def run():
        with record_function("mine"):
            compiled(X)

    kernels = [event for event in profiled(run) if event.name.startswith("kiln_sin")]
    assert len(kernels) == 1 and inside(kernels[0], "mine")


@pytest.mark.parametrize("threads", [1, 2])
def test_kernels_of_several_threads_have_one_range(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        compiled, x = compiled_by_kiln(lambda x: x.exp().sin()), torch.randn(ROWS, 4096)
        compiled(x)
        events = profiled(lambda: compiled(x))
    finally:
        torch.set_num_threads(before)
    assert [event.name for event in events if event.name.startswith("kiln_")] == ["kiln_exp_sin_0"]


def test_memory_is_seen():
    compiled = compiled_by_kiln(lambda x: x.exp() + 1)
    compiled(X)
    events = profiled(lambda: compiled(X), profile_memory=True)
    (program,) = [event for event in events if event.name.startswith("kiln program")]
    assert program.cpu_memory_usage == X.nbytes


def test_all_that_the_profiler_can_note(tmp_path):
    compiled, x = compiled_by_kiln(model), X.clone().requires_grad_()
    compiled(x, W).sum().backward()
    options = {"record_shapes": True, "with_stack": True, "with_flops": True, "profile_memory": True}
    with profile(activities=[ProfilerActivity.CPU], acc_events=True, **options) as found:
        compiled(x, W).sum().backward()
    table = found.key_averages(group_by_input_shape=True).table(row_limit=100, max_name_column_width=100)
    assert "kiln program forward model" in table and "kiln_add_gelu_softmax_0" in table
    path = tmp_path / "trace.json"
    found.export_chrome_trace(str(path))
    names = {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}
    assert "kiln_add_gelu_softmax_0" in names


def test_programs_from_the_cache_have_names(tmp_path, monkeypatch):
    monkeypatch.setenv("KILN_CACHE_DIR", str(tmp_path))
    for _ in range(2):
        kiln.reset()
        compiled = compiled_by_kiln(lambda x: x.tanh() * 3)
        compiled(X)
        names = [event.name for event in profiled(lambda: compiled(X)) if event.name.startswith("kiln")]
        assert names[0].startswith("kiln program inference ") and names[1] == "kiln_tanh_mul_0"


def test_graphs_that_are_not_lowered_have_a_range(monkeypatch):
    from kiln.codegen import pipeline

    def refuse(self):
        raise pipeline.CannotLower("no reason")

    monkeypatch.setattr(pipeline.Lowering, "run", refuse)
    with kiln.config.patch(cache=False):
        compiled = compiled_by_kiln(lambda x: x.sin())
        compiled(X)
    names = [event.name for event in profiled(lambda: compiled(X))]
    assert names[0].startswith("kiln program inference") and "aten::sin" in names


def test_a_range_ends_when_an_operator_raises():
    def program(x, index):
        return x.sin()[index]

    compiled = compiled_by_kiln(program)
    compiled(X, torch.tensor([1]))

    def run():
        with pytest.raises(IndexError):
            compiled(X, torch.tensor([1000]))
        torch.ones(3).cos()

    events = profiled(run)
    (cosine,) = [event for event in events if event.name == "aten::cos"]
    assert cosine.cpu_parent is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_kernels_on_a_gpu_have_their_names():
    compiled, x = compiled_by_kiln(lambda x: (x.exp() + 1).sum(0)), torch.randn(512, 512, device="cuda")
    compiled(x)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        compiled(x)
        torch.cuda.synchronize()
    launched = {event.name: event for event in found.events() if event.device_type.name == "CPU"}
    on_gpu = [event.name for event in found.events() if event.device_type.name == "CUDA"]
    kernels = [name for name in on_gpu if name.startswith("kiln_exp_add_sum")]
    assert kernels and all(launched[name].device_time_total > 0 for name in kernels)
    assert any(name.startswith("kiln program inference") for name in launched)


# ---- names -----------------------------------------------------------------------------------------------------------


def graph_with(trace):
    graph = torch.fx.Graph()
    node = graph.call_function(torch.ops.aten.sin.default, (graph.placeholder("x"),))
    node.meta["stack_trace"] = trace
    graph.output((node,))
    return torch.fx.GraphModule({}, graph), node


def test_the_users_own_lines():
    library = torch.nn.functional.__file__
    trace = f'File "{library}", line 3, in call\n  File "/home/me/model.py", line 7, in Net.forward\n    y = relu(x)\n'
    module, node = graph_with(trace + f'File "{library}", line 9, in relu')
    assert [place.line for place in stack_of(node)] == [3, 7, 9]
    assert line_of(node).file == begin_of(module).file == "/home/me/model.py"
    first, second = program_name(module, "forward"), program_name(module, "forward")
    assert first.startswith("kiln program forward Net.forward (model.py:7)") and first != second


@pytest.mark.parametrize("trace", [None, "", "nonsense", 'File "cut'])
def test_graphs_without_source(trace):
    module, node = graph_with(trace)
    assert stack_of(node) == [] and line_of(node) is None
    assert program_name(module, "backward").startswith("kiln program backward sin")


def test_a_name_is_a_string():
    program = kiln._native.OperatorProgram(1, 1, [], [0], lambda arguments: arguments)
    assert program.name == ""
    program.name = "größer"
    assert program.name == "größer"
    for wrong in (3, None, "\udc80"):
        with pytest.raises((TypeError, UnicodeEncodeError)):
            program.name = wrong
    with pytest.raises(TypeError):
        del program.name
    assert program.name == "größer"
