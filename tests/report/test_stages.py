"""``KILN_LOG=stages``: the stages that a call went through, with sizes and times; results are eager's."""

from __future__ import annotations

import re

import pytest
import torch

import kiln
from kiln.report import events, stages
from kiln.testing import check

CODE = ["load", "lowering", "fusion and loops", "memory plan", "LLVM", "native program", "disk cache"]
NAMES = ["frame", "capture", "backend", "aot trace", "partition", "program", *CODE, "guards", "entry"]
NAMES += ["backward pass", "walk", "trace", "compile", "run", "backward"]
LINE = re.compile(rf"^ +\d+\.\d ms  ( *)({'|'.join(NAMES)})\b(?:[^:]|:\d)*(?:: (.*))?$")


def program(x):
    return (torch.relu(x) * 2).sum()


def broken(x):
    y = x + 1
    kiln.graph_break()
    return y * 2


def listings(text: str) -> list[list[tuple[int, str, str]]]:
    """For each list that was printed, its lines: depth, name and sizes."""
    found: list[list[tuple[int, str, str]]] = []
    for line in text.splitlines():
        if line.startswith("[kiln stages] "):
            found.append([])
        elif (match := LINE.match(line)) is not None:
            found[-1].append((len(match[1]) // 2, match[2], match[3] or ""))
    return found


def names(listing: list[tuple[int, str, str]]) -> list[str]:
    return [name for _, name, _ in listing]


@pytest.fixture
def no_disk_cache():
    with kiln.config.patch(cache=False):
        yield


def test_a_call_and_its_backward(capsys, no_disk_cache):
    with kiln.config.patch(log={"stages"}):
        check(program, torch.randn(8, requires_grad=True), backend="kiln", graphs=1)
    frame, backward = listings(capsys.readouterr().err)
    assert frame[0][:2] == (0, "frame")
    assert names(frame) == NAMES[: NAMES.index("entry") + 1]
    assert names(backward) == ["backward", "program", *CODE]
    sizes = {name: text for _, name, text in frame}
    assert re.fullmatch(r"3 nodes", sizes["capture"]) and re.fullmatch(r"\d+ guards", sizes["guards"])
    assert re.fullmatch(r"\d+ forward nodes, \d+ backward nodes, \d+ bytes saved", sizes["partition"])
    assert re.fullmatch(r"[1-9]\d* kernels, 0 calls of ATen", sizes["fusion and loops"])
    assert re.fullmatch(r"[1-9]\d+ bytes", sizes["LLVM"])
    depths = {name: depth for depth, name, _ in frame}
    chosen = ("capture", "backend", "aot trace", "program", "LLVM", "entry")
    assert [depths[name] for name in chosen] == [1, 1, 2, 2, 3, 1]


def test_a_served_call_goes_through_no_stage(capsys):
    compiled = kiln.compile(program, backend="eager")
    x = torch.randn(8)
    with kiln.config.patch(log={"stages"}):
        first = compiled(x)
        assert len(listings(capsys.readouterr().err)) == 1
        assert compiled(x).equal(first) and first.equal(program(x))
        assert capsys.readouterr().err == ""


def test_each_frame_of_a_broken_function_has_its_list(capsys):
    with kiln.config.patch(log={"stages"}):
        check(broken, torch.randn(4), backend="eager", graphs=2, breaks=1)
    found = listings(capsys.readouterr().err)
    assert [names(listing)[0] for listing in found] == ["frame"] * len(found) and len(found) >= 2
    assert sum("backend" in names(listing) for listing in found) == 2


def test_a_pass_of_the_engine(capsys):
    def gradients(run):
        x = torch.arange(4.0, requires_grad=True)
        run(lambda: program(x * x).backward())
        return x.grad

    def compiler(graph):
        return kiln.compile(graph, backend="eager")

    def compiled(backward):
        with kiln.compiled_autograd.enable(compiler):
            backward()

    kiln.reset()
    expected = gradients(lambda backward: backward())
    with kiln.config.patch(log={"stages"}):
        assert gradients(compiled).equal(expected)
        first = listings(capsys.readouterr().err)
        assert gradients(compiled).equal(expected)
        second = listings(capsys.readouterr().err)
    assert names(first[0])[:5] == ["backward pass", "walk", "trace", "compile", "run"]
    assert {"frame", "capture", "guards", "entry"} <= set(names(first[0]))
    assert re.fullmatch(r"\d+ nodes, \d+ tensors", first[0][1][2])
    assert [names(listing) for listing in second] == [["backward pass", "walk", "run"]]


def test_cached_programs_are_loaded(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("KILN_CACHE_DIR", str(tmp_path))
    x = torch.randn(6)
    for expected in ("0 cached programs", "1 cached programs"):
        kiln.reset()
        with kiln.config.patch(log={"stages"}):
            assert torch.allclose(kiln.compile(program, backend="kiln")(x), program(x))
        (frame,) = listings(capsys.readouterr().err)
        assert dict((name, sizes) for _, name, sizes in frame)["load"] == expected
        assert ("LLVM" in names(frame)) == (expected[0] == "0")


def test_nothing_is_recorded_unless_somebody_asks(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a record that nobody wants")

    monkeypatch.setattr(stages, "Stage", refuse)
    x = torch.randn(3)
    assert kiln.compile(program, backend="eager")(x).equal(program(x))


def test_explain_has_the_stages():
    explanation = kiln.explain(program)(torch.randn(5))
    (frame,) = explanation.stages
    assert frame.name == events.FRAME and frame.seconds >= sum(stage.seconds for stage in frame.inner)
    assert explanation.times == [(frame.subject, frame.seconds)] and explanation.seconds == frame.seconds
    assert "program" in str(frame.subject) and "capture" in [stage.name for stage in frame.inner]


def test_stages_nest_and_survive_errors():
    with stages.collected() as found:
        with pytest.raises(ValueError):
            with stages.stage("outer"), stages.stage("inner", "of it") as inner:
                inner.sizes["things"] = 2
                raise ValueError
        with stages.stage("next"):
            pass
    assert [stage.name for stage in found] == ["outer", "next"]
    assert [stage.name for stage in found[0].completed()] == ["inner", "outer"]
    assert "inner of it: 2 things" in "\n".join(found[0].lines())
    assert stages.stage("off") is stages.stage("off")
