"""``kiln.explain``, the logs of ``KILN_LOG``, progress on a terminal, and the words of errors."""

import io
import os
import subprocess
import sys
import time

import pytest
import torch

import kiln
from kiln.report import progress
from kiln.testing import same

X = torch.arange(6.0).reshape(2, 3)


def helper(x):
    print("hello", end="")
    return x + 1


def program(x, n=3):
    y = torch.sin(x) * n
    y = helper(y)
    if y.sum() > 0:
        return y - 1
    return y + 1


@pytest.fixture
def explanation(capsys):
    return kiln.explain(program)(X, 4)


def test_explanation_as_an_object(explanation):
    assert same(explanation.result, program(X, 4))
    assert explanation.graph_count == len(explanation.graphs) == 4
    assert explanation.op_count == 6  # sin, mul; add; sum, gt; sub
    assert explanation.break_count == 2
    first, second = explanation.breaks
    assert first.location.file == __file__ and first.location.line == helper.__code__.co_firstlineno + 1
    assert "print" in first.reason and first.advice
    assert second.location.line == program.__code__.co_firstlineno + 3 and "torch.where" in second.advice
    assert explanation.seconds > 0 and len(explanation.times) >= 4
    assert "L['n'] == 4" in explanation.guards[0][1]
    assert all("def " in check and "def " in run for _, check, run in explanation.code)


def test_explanation_in_words(explanation):
    text = str(explanation)
    assert text.startswith("program: 4 graphs, 6 operations, 2 graph breaks; compiled in ")
    assert "test_explain.py:" in text and 'print("hello", end="")' in text and "if y.sum() > 0:" in text
    assert text.count("What to do: ") == 2 and text.count("Reason: ") == 2
    assert "Graph 1, 2 operations:" in text and "torch.sin" in text
    assert "L['x'] Tensor float32[2, 3] on cpu" in text
    assert "Time to compile:" in text and "Code of program" in text


def test_explain_takes_what_compile_takes():
    class Net(torch.nn.Module):
        def forward(self, x):
            return x.relu() + 1

    assert kiln.explain(Net())(X).op_count == 2
    assert kiln.explain(kiln.compile(Net()))(X).op_count == 2
    compiled = kiln.compile(lambda x: x + 1)
    compiled(X)
    assert kiln.explain(compiled)(X).graph_count == 1, "compiled anew"
    assert "1 graph, 1 operation, 0 graph breaks" in str(kiln.explain(torch.sin)(X))
    sized = kiln.explain(lambda x: x * x.shape[0], dynamic=True)(X)
    assert any("[any, any]" in line for line in sized.guards[0][1])


def test_explain_what_is_not_compiled():
    def numbers(x):
        yield x

    found = kiln.explain(numbers)(X)
    assert found.graph_count == 0 and "generator" in found.skips[0][1]
    assert "Not compiled, runs in plain Python" in str(found)


def test_explain_a_second_call_and_a_recompile():
    explain = kiln.explain(lambda x, how: x + len(how))
    assert explain(X, "a").graph_count == 1
    assert explain(X, "a").graph_count == 0
    again = explain(X, "bb")
    assert again.recompiles[0][1] == "L['how'] == 'a', 'bb' seen"
    assert "Compiled again" in str(again)


def test_guards_in_words():
    def f(x, options, items, how):
        return x * options["scale"] + len(items) if how else x

    (_, guards), *_ = kiln.explain(f)(X, {"scale": 2.5}, [1, 2], True).guards
    for words in ["L['how'] == True", "L['items'] length: 2 expected", "L['options']['scale'] == 2.5"]:
        assert words in guards, guards


# -- logs -----------------------------------------------------------------------------------------------------------

SCRIPT = """
import torch, kiln

def f(x, n):
    y = torch.sin(x) * n
    kiln.graph_break("here")
    return y + 1

compiled = kiln.compile(f)
compiled(torch.ones(3), 2)
compiled(torch.ones(3), "ab" and 3)
"""


def run_script(tmp_path, log):
    path = tmp_path / "logged.py"
    path.write_text(SCRIPT)
    environment = {**os.environ, "KILN_LOG": log}
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, env=environment, timeout=120, check=True
    )
    return done.stdout, done.stderr


@pytest.mark.parametrize(
    ("artefact", "words"),
    [
        ("graph", "torch.sin"),
        ("guards", "L['n'] == 2"),
        ("breaks", "kiln.graph_break('here')"),
        ("code", "def _k_function"),
        ("recompiles", "L['n'] == 2, 3 seen"),
        ("trace", " ms"),
    ],
)
def test_each_artefact_can_be_logged(artefact, words, capsys):
    def f(x, n):
        y = torch.sin(x) * n
        kiln.graph_break("here")
        return y + 1

    compiled = kiln.compile(f, backend="eager")
    with kiln.config.patch(log={artefact}):
        compiled(X, 2)
        compiled(X, 3)
    output, error = capsys.readouterr()
    assert output == ""
    assert words in error and "test_explain.py" in error
    assert all(line.startswith(f"[kiln {artefact}]") for line in error.splitlines() if line.startswith("[kiln"))


def test_environment_variable(tmp_path):
    output, error = run_script(tmp_path, "graph,breaks")
    assert output == "" and "[kiln graph]" in error and "[kiln breaks]" in error and "[kiln guards]" not in error
    output, error = run_script(tmp_path, "")
    assert (output, error) == ("", "")
    output, error = run_script(tmp_path, "graf")
    assert "unknown artefact 'graf', did you mean 'graph'" in error


# -- progress -------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


def slow_backend(graph_module, example_inputs):
    time.sleep(0.3)
    return graph_module.forward


@pytest.mark.parametrize(("terminal", "delay", "shown"), [(True, 0.05, True), (True, 5.0, False), (False, 0.05, False)])
def test_progress(monkeypatch, terminal, delay, shown):
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "DELAY", delay)
    monkeypatch.setenv("TERM", "xterm")

    def takes_its_time(x):
        return x + 1

    assert same(kiln.compile(takes_its_time, backend=slow_backend)(X), X + 1)
    assert ("takes_its_time" in stream.getvalue()) == shown


# -- every way out is named -----------------------------------------------------------------------------------------

REFUSED = {
    "value": lambda x: x.sum().item(),
    "branch": lambda x: x + 1 if x.sum() > 0 else x,
    "list": lambda x: x.tolist(),
    "print": lambda x: print(x),
    "numpy": lambda x: x.numpy(),
    "nonzero": lambda x: x.nonzero(),
    "open": lambda x: open(os.devnull).close(),
    "backward": lambda x: x.requires_grad_().sum().backward(create_graph=True),
    "disabled": kiln.disable(lambda x: x),
    "native": lambda x: time.monotonic(),
    "break": lambda x: kiln.graph_break("as asked"),
    "text": lambda x: str(x),
    "storage": lambda x: x.untyped_storage(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_names_construct_line_and_way_out(name):
    refused = REFUSED[name]

    def f(x):
        y = x + 1
        return refused(y)  # the line

    with pytest.raises(kiln.exc.Unsupported) as caught:
        kiln.compile(f, fullgraph=True)(X)
    error = caught.value
    text = str(error)
    assert "Kiln cannot capture" in text and "What to do: " in text and "test_explain.py:" in text
    assert error.construct and error.location is not None and error.hint
    assert any(location.text.endswith("# the line") for location in error.stack) or name == "disabled"


def test_an_exported_graph_refuses_other_sizes():
    x = torch.arange(6.0).reshape(2, 3)
    graph = kiln.export(lambda x: x * x.shape[0])(x).graph_module
    torch.testing.assert_close(graph(x), (x * 2,))
    with pytest.raises(kiln.exc.UserError, match="size 0 of l_x is 2 in it, and 4 here"):
        graph(torch.ones(4, 3))


def test_an_exported_graph_is_general_in_the_sizes_that_it_takes():
    def program(x):
        if x.shape[0] > 8:
            return x - 1
        return x * x.shape[0]

    graph = kiln.export(program, dynamic=True)(torch.ones(2, 3)).graph_module
    names = [node.target for node in graph.graph.nodes if node.op == "placeholder"]
    assert names == ["l_x_size_0", "l_x"]
    torch.testing.assert_close(graph(4, torch.ones(4, 5)), (program(torch.ones(4, 5)),))
    with pytest.raises(kiln.exc.UserError, match="exported for other inputs"):
        graph(3, torch.ones(4, 5))  # another size than the tensor has
    with pytest.raises(kiln.exc.UserError, match="was assumed of its sizes"):
        graph(9, torch.ones(9, 5))  # the other branch
