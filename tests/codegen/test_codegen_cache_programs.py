"""Programs from the disk cache: the same results, without lowering and LLVM; whatever happens to the cache, to the disk
or to memory while compiling, there is a program that works."""

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import kiln
from kiln.codegen import graph_compiler, pipeline, program_cache
from kiln.program import disk_cache
from kiln.program.shapes import shape_cache, stored_shapes
from kiln.target.cpu import elf, jit
from kiln.target.cpu.cpu_target import CPU
from kiln.target.cpu.emit import llvm_module


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("KILN_CACHE_DIR", str(folder))
    disk_cache.warn_once.cache_clear()
    yield folder
    kiln.reset()


def function(x, y):
    return torch.softmax((x * y + 1).exp(), -1).sum(0), x @ y.t()


def inputs():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(8, 33, generator=generator) for _ in range(2)]


def traced(program=function, given=None, mode="fake"):
    return make_fx(program, tracing_mode=mode)(*(given or inputs()))


def run(module, given=None):
    return graph_compiler.compile_graph(module)(list(given or inputs()))


def check(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.fixture
def not_compiled(monkeypatch):
    """From now on, what is not in the cache is an error."""

    def forbid():
        def fail(*args, **kwargs):
            raise AssertionError("compiled again")

        monkeypatch.setattr(pipeline, "BegunProgram", fail)

    return forbid


def test_the_second_time_nothing_is_compiled(not_compiled, place):
    first = run(traced())
    check(first, function(*inputs()))
    assert len(list(place.iterdir())) == 1
    not_compiled()
    second = run(traced())
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_a_training_step_in_another_process_needs_neither_lowering_nor_llvm(place):
    program = """
import sys, torch, kiln
from kiln.program import disk_cache as cache
cache.own_files = lambda folders=None: iter(())  # somebody may work on Kiln meanwhile
torch.manual_seed(0)
layers = [torch.nn.Linear, torch.nn.LayerNorm, torch.nn.Linear]
model = torch.nn.Sequential(*[layer(*[16] * (1 + (layer is torch.nn.Linear))) for layer in layers * 3], torch.nn.GELU())
x = torch.randn(4, 16)
compiled = kiln.compile(model, backend="kiln")
loss = (compiled(x) ** 2).sum()
loss.backward()
values = [loss.detach(), *(p.grad for p in model.parameters())]
print(*[part.double().sum().item().hex() for part in values])
model.zero_grad()
(model(x) ** 2).sum().backward()
for value, p in zip(values[1:], model.parameters()):
    torch.testing.assert_close(value, p.grad)
print("llvmlite" in sys.modules, "kiln.lower.lowering" in sys.modules)
"""
    said = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.splitlines())
    assert said[0][0] == said[1][0]
    assert said[0][1] == "True True"
    assert said[1][1] == "False False"


def test_sizes_that_vary(not_compiled):
    def compile_and_run():
        compiled = kiln.compile(function, backend="kiln", dynamic=True)
        for rows in (3, 8, 5):
            given = [torch.randn(rows, 17), torch.randn(rows, 17)]
            check(compiled(*given), function(*given))

    compile_and_run()
    kiln.reset()
    not_compiled()
    compile_and_run()


def test_constants_are_those_of_the_graph_at_hand(not_compiled):
    class Model(torch.nn.Module):
        def __init__(self, value):
            super().__init__()
            self.register_buffer("table", torch.full((4,), value))

        def forward(self, x):
            return ((x + self.table).sin(),)

    given = torch.randn(3, 4)

    def graph(value):
        found = make_fx(Model(value), tracing_mode="fake", _allow_non_fake_inputs=True)(given)
        assert any(node.op == "get_attr" for node in found.graph.nodes)
        return found

    check(run(graph(2.0), [given]), Model(2.0)(given))
    not_compiled()
    check(run(graph(3.0), [given]), Model(3.0)(given))


# ---- keys ------------------------------------------------------------------------------------------------------------


def key(program, *given):
    return program_cache.key_of(traced(program, given), CPU)


def test_what_is_different_has_another_key():
    x = torch.randn(4, 6)
    keys = [
        key(lambda x: x + 1, x),
        key(lambda x: x + 1.0, x),
        key(lambda x: x + True, x),
        key(lambda x: x + 2, x),
        key(lambda x: x - 1, x),
        key(lambda x: x * 0.0, x),
        key(lambda x: x * -0.0, x),
        key(lambda x: x * float("nan"), x),
        key(lambda x: x + 1, x.double()),
        key(lambda x: x + 1, x[:3]),
        key(lambda x: x + 1, x.t()),
        key(lambda x: x + 1, x[:, :3]),
        key(lambda x: (x + 1, x), x),
        key(lambda x: (x + 1, x + 2), x),
        key(lambda x: (x + 2, x + 1), x),
        key(lambda x: x.to(torch.float64), x),
        key(lambda x: x.to(torch.float16), x),
    ]
    assert None not in keys
    assert len(set(keys)) == len(keys)
    assert key(lambda x: x + 1, x) == keys[0]


def test_what_lowering_looks_at_is_in_the_key():
    """Who adds to these has to add to `program_cache.text_of` or `program_cache.key_of`."""
    root = Path(kiln.__file__).parent
    files = [path for part in ("loops", "lower", "codegen") for path in sorted((root / part).rglob("*.py"))]
    later = {"program_cache.py", "launch_errors.py", "kernel_times.py"}  # these see finished programs
    earlier = {"equal_nodes.py", "host_part.py"}  # these change the graph that the key is made of
    in_key = {"measuring.py"}  # its `identity_of` is in the key
    apart = later | earlier | in_key
    files = [path for path in files if path.name not in apart and path.parent.name != "cuda_graphs"]
    text = "\n".join(path.read_text() for path in files)
    assert set(re.findall(r"""\bmeta(?:\[|\.get\()["'](\w+)""", text)) == {"val"}
    assert set(re.findall(r"\bgraph_meta\.(\w+)", text)) == {"changed_inputs", "set_normalizes_by_formula"}
    assert set(re.findall(r"\bconfig\.(\w+)", text)) <= {
        "raise_internal_errors",
        "cache",
        "disable_kernels",  # in the key
    }
    assert set(re.findall(r"\w+_deterministic_algorithms\w*", text)) == {
        "are_deterministic_algorithms_enabled"
    }  # in the key
    assert not re.search(r"environ|is_grad_enabled|is_autocast|\.backends\.", text)  # of `CudaTarget.identity`


def test_the_default_type_is_in_the_key():
    module = traced()
    before = program_cache.key_of(module, CPU)
    torch.set_default_dtype(torch.float64)
    try:
        assert program_cache.key_of(module, CPU) != before
    finally:
        torch.set_default_dtype(torch.float32)
    assert program_cache.key_of(module, CPU) == before


def test_what_text_does_not_tell_is_not_stored(place):
    module = traced()
    node = next(node for node in module.graph.nodes if node.op == "call_function")
    node.kwargs = {**node.kwargs, "strange": lambda: 1}
    assert program_cache.key_of(module, CPU) is None
    with kiln.config.patch(cache=False):
        assert program_cache.key_of(traced(), CPU) is None
        check(run(traced()), function(*inputs()))
    assert not place.exists()


def test_that_a_graph_cannot_be_lowered_is_known_the_next_time(monkeypatch, not_compiled, place):
    def refuse(self):
        raise pipeline.CannotLower("no reason")

    with monkeypatch.context() as patch:
        patch.setattr(pipeline.Lowering, "run", refuse)
        check(run(traced()), function(*inputs()))
    assert len(list(place.iterdir())) == 1
    not_compiled()
    check(run(traced()), function(*inputs()))


# ---- damage, and trouble with the disk -------------------------------------------------------------------------------


def mutate(path, number):
    """Damage of many kinds."""
    generator = random.Random(number)
    data = bytearray(path.read_bytes())
    kind = number % 6
    if kind == 0:
        data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    elif kind == 1:
        del data[generator.randrange(len(data)) :]
    elif kind == 2:
        data[8] += 1 + generator.randrange(200)  # the version of the format
    elif kind == 3:
        data = bytearray(generator.randbytes(generator.randrange(3000)))
    elif kind == 4:
        data += generator.randbytes(5)
    path.write_bytes(bytes(data))
    if kind == 5:
        path.chmod(generator.choice([0o644, 0o666, 0o620]))


def test_damaged_entries_are_made_again(place):
    module, expected = traced(), function(*inputs())
    run(module)
    (path,) = place.iterdir()
    whole = path.read_bytes()
    for number in range(60):
        mutate(path, number)
        check(run(module), expected)
        assert path.read_bytes() == whole
        assert path.stat().st_mode & 0o777 == 0o600


def test_an_entry_that_says_something_else_is_an_error_of_kiln_only_in_tests(place):
    """A checksum that fits, and nonsense within: not damage, but a bug."""
    module = traced()
    for parts in ({}, {"program": b"{}"}, {"program": b"[1, 2"}, {"program": b'{"images": 1, "kernels": []}'}):
        disk_cache.write(program_cache.key_of(module, CPU), parts)
        with pytest.raises((KeyError, ValueError)):
            run(module)
        with kiln.config.patch(raise_internal_errors=False):
            check(run(module), function(*inputs()))
        assert (
            program_cache.load(program_cache.key_of(module, CPU), module, CPU, graph_compiler.EagerGraph(module))
            is not None
        )


@pytest.mark.parametrize("trouble", ["full", "writable by all", "no directory", "read only"])
def test_trouble_with_the_disk(place, trouble, monkeypatch, tmp_path):
    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    if trouble == "full":
        monkeypatch.setattr(disk_cache, "write_file", fail)
    elif trouble == "writable by all":
        place.mkdir()
        place.chmod(0o777)
    elif trouble == "no directory":
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("KILN_CACHE_DIR", str(tmp_path / "file" / "below"))
    else:
        monkeypatch.setenv("KILN_CACHE_DIR", "/proc/1/kiln")
    for _ in range(2):
        if trouble == "writable by all" and not disk_cache.warn_once.cache_info().currsize:
            with pytest.warns(UserWarning, match="others can write"):
                check(run(traced()), function(*inputs()))
        else:
            check(run(traced()), function(*inputs()))
    assert not place.exists() or not list(place.iterdir())


def test_two_processes_that_race(place):
    program = """
import torch, kiln
def f(x, n):
    for k in range(n):
        x = torch.softmax(x * k + 1, -1)
    return x
for n in range(1, 6):
    x = torch.randn(4, 9)
    torch.testing.assert_close(kiln.compile(f, backend="kiln")(x, n), f(x, n))
print("done")
"""
    started = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in started:
        out, said = process.communicate(timeout=240)
        assert out.strip() == "done", said
    assert not list(place.glob(disk_cache.UNFINISHED + "*"))


# ---- memory ----------------------------------------------------------------------------------------------------------

STAGES = {
    "lowering": (pipeline.Lowering, "run"),
    "scheduling": (pipeline, "schedule"),
    "emitting": (llvm_module, "emit_module"),
    "compiling": (jit.Compiler, "compile"),
    "loading": (elf, "load"),
    "planning": (pipeline, "plan_memory"),
    "assembling": (pipeline, "assemble"),
    "packing": (disk_cache, "pack"),
}


@pytest.mark.parametrize("stage", STAGES)
def test_out_of_memory_while_compiling_leaves_eager_usable(stage, monkeypatch, place):
    owner, name = STAGES[stage]

    def fail(*args, **kwargs):
        raise MemoryError

    given, expected = inputs(), function(*inputs())
    with monkeypatch.context() as patch, kiln.config.patch(raise_internal_errors=False):
        patch.setattr(owner, name, fail)
        compiled = kiln.compile(function, backend="kiln")
        check(compiled(*given), expected)
        check(compiled(*given), expected)
    check(function(*given), expected)
    kiln.reset()
    check(kiln.compile(function, backend="kiln")(*given), expected)


# ---- shapes by heart -------------------------------------------------------------------------------------------------


def deep(x):
    for k in range(1, 25):
        x = torch.cat([x[:k].sum(0, keepdim=True).expand(2, -1), x * k])
    return x


def test_shapes_are_known_in_the_next_process(place, monkeypatch):
    monkeypatch.setattr(shape_cache, "_answers", {})
    x = torch.randn(3, 30)
    first = kiln.compile(deep, backend="aot_eager")(x)
    learnt = dict(shape_cache._answers)
    kiln.reset()
    shape_cache._answers.clear()
    asked = []
    plain = shape_cache.answer_of
    monkeypatch.setattr(shape_cache, "answer_of", lambda *args: asked.append(plain(*args)) or asked[-1])
    assert torch.equal(kiln.compile(deep, backend="aot_eager")(x), first)
    known = {question: answer for question, answer in learnt.items() if answer is not None}
    assert len(known) > 50
    assert not any(asked)
    assert all(shape_cache._answers[question] == answer for question, answer in known.items())


def test_answers_are_written_and_read_whole():
    question = (
        torch.ops.aten.add.Tensor,
        torch.float32,
        False,
        2,
        torch.Size([2, 3]),
        (3, 1),
        None,
        float,
        -0.0,
        complex,
    )
    question += (1 + 2j, str, "x", torch.device("cpu"), torch.strided, torch.channels_last, (list, 2), True, 1)
    made = shape_cache.TensorAnswer((2, 3), (3, 1), 4, torch.bfloat16, torch.device("cpu"), (False, True), 0)
    answers = {question: shape_cache.Answer(tuple, (made, None)), ("other",): shape_cache.Answer(None, (made,))}
    found = dict(map(stored_shapes.decode_pair, stored_shapes.json.loads(stored_shapes.dump(answers))))
    assert found == answers
    kinds = [[type(part) for part in one] for one in (next(iter(found)), question)]
    assert kinds[0] == kinds[1]


@pytest.mark.parametrize(
    "text", [b"", b"[", b"{}", b"[[1]]", b'[[["t","nn"],[null]]]', b'[[["?",1],[null]]]', b'[[["("],[null,[1]]]]']
)
def test_answers_that_are_not_as_they_are_written(text):
    before = dict(shape_cache._answers)
    assert stored_shapes.load({"answers": text}) == {}
    assert shape_cache._answers == before
