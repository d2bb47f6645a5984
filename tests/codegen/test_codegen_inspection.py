"""Looking inside: what ``kiln.explain`` and the logs tell of kernels, programs that run on their own, checked runs."""

import re
import runpy

import pytest
import torch

import kiln
from kiln.codegen.repro import distance
from kiln.target.llvm.math import functions as vector_math
from kiln.testing import same

X = torch.linspace(-2, 2, 64 * 48).reshape(64, 48)
W = torch.linspace(-1, 1, 48 * 16).reshape(48, 16)


def program(x, w):
    y = torch.softmax((x @ w).exp() + 1, 1)
    return y, y.sum(0)


def test_kernels_with_their_bytes():
    found = kiln.explain(lambda x, y: (x * y + 1).relu())(X, X[0])
    (made,) = found.programs
    (kernel,) = made.kernels
    assert kernel.bytes_read == X.nbytes + X[0].nbytes and kernel.bytes_written == X.nbytes
    assert "relu" in kernel.text and "for i0 in range(64):" in kernel.text
    assert kernel.name == "kiln_mul_add_relu_0"
    assert "define void @kiln_mul_add_relu_0(" in kernel.llvm and "kiln_mul_add_relu_0:" in kernel.assembly
    assert not made.called and set(made.times) >= {"lowering", "LLVM"}
    assert same(found.result, (X * X[0] + 1).relu())


def test_explanation_in_words():
    found = kiln.explain(program)(X, W)
    text = str(found)
    assert "Program 1: 2 kernels (2 launches): " in text and "1 call of ATen" in text
    assert "ATen runs mm_default: aten.mm.default: no lowering" in text
    assert f"{X.shape[0] * W.shape[1] * 4 / 1e3:.3g} kB" in text and " ms  LLVM" in text


def test_what_was_stored_is_still_explained():
    for _ in range(2):
        assert len(kiln.explain(program)(X, W).programs) == 1


def test_a_graph_that_is_not_lowered_is_told(monkeypatch):
    from kiln.codegen import pipeline

    def refuse(self):
        raise pipeline.CannotLower("no reason")

    monkeypatch.setattr(pipeline.Lowering, "run", refuse)
    with kiln.config.patch(cache=False):
        found = kiln.explain(program)(X, W)
    assert found.not_lowered == ["no reason"] and "operator by operator: no reason" in str(found)
    assert same(found.result, program(X, W))


def test_logs(capsys):
    with kiln.config.patch(log={"ir", "kernels"}):
        kiln.compile(lambda x: x.sin() * 2, backend="kiln")(X)
    said = capsys.readouterr().err
    assert "[kiln kernels] 1 kernel (1 launch): " in said and "(sin(primals_1[i0]) * 2.0)" in said
    assert "[kiln code]" not in said and "define" not in said
    with kiln.config.patch(log={"code"}):
        kiln.compile(lambda x: x.cos() * 2, backend="kiln")(X)
    said = capsys.readouterr().err
    assert "define void @kiln_cos_mul_0(" in said and "retq" in said and "    kiln_cos_mul_0(i0, " in said


# ---- programs on their own -------------------------------------------------------------------------------------------

WITH_REPRO = {
    "program": (program, (X, W), None),
    "dynamic": (lambda x: x.reshape(-1) * x.shape[0], (X,), True),
    "constant": (lambda x: x + torch.tensor([1.0, 2.0, 3.0]).repeat(16), (X,), None),
    "infinity": (lambda x: x.masked_fill(x > 0, -torch.inf).double(), (X,), None),
    "strided": (lambda x, i: x.t()[i].bfloat16(), (X, torch.tensor([3, 1])), None),
    "random": (lambda x: torch.nn.functional.dropout(x, 0.5) + torch.randn(48), (X,), None),
    "gradients": (lambda x, w: torch.nn.functional.gelu(x @ w).mean(), (X, W.clone().requires_grad_()), None),
}


@pytest.mark.parametrize("name", WITH_REPRO)
def test_a_program_on_its_own(name, tmp_path, capsys):
    function, args, dynamic = WITH_REPRO[name]
    found = kiln.explain(function, dynamic=dynamic)(*args)
    path = tmp_path / "repro.py"
    found.save_repro(path)
    text = path.read_text()
    assert "class Graph1(torch.nn.Module):" in text and re.search(r"# def kiln_\w+_0\(", text)
    runpy.run_path(str(path), run_name="__main__")
    said = capsys.readouterr().out
    assert said.startswith("Graph1: ") and "from eager's" in said
    assert float(said.split("at most ")[1].split()[0]) < 1e-4


def test_nothing_to_write(tmp_path):
    def numbers(x):
        yield x

    with pytest.raises(kiln.exc.UserError, match="nothing was compiled"):
        kiln.explain(numbers)(X).save_repro(tmp_path / "repro.py")


def test_what_a_repro_calls_a_difference():
    nan, inf = float("nan"), float("inf")
    one = torch.tensor([1.0, nan, inf, -0.0])
    assert distance(one, torch.tensor([1.5, nan, inf, 0.0])) == 0.5
    for other in (torch.tensor([1.0, 2.0, inf, 0.0]), torch.tensor([1.0, nan, -inf, 0.0])):
        assert distance(one, other) == inf


# ---- checked runs ----------------------------------------------------------------------------------------------------


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(20, 48)
        self.norm = torch.nn.LayerNorm(48)
        self.batch = torch.nn.BatchNorm1d(48)
        self.last = torch.nn.Linear(48, 10)

    def forward(self, places, labels):
        hidden = torch.nn.functional.gelu(self.norm(self.embedding(places)))
        hidden = torch.nn.functional.dropout(self.batch(hidden), 0.1)
        return torch.nn.functional.cross_entropy(self.last(hidden), labels)


PLACES, LABELS = torch.arange(30) % 20, torch.arange(30) % 10


def test_memory_that_nobody_wrote_to_is_not_compared():
    def wrapped(x):
        return torch.nn.functional.pad(x, (3, 2), mode="circular") + 1  # which begins with memory of any content

    x = torch.arange(84, dtype=torch.int32).reshape(1, 7, 12)
    for _ in range(3):
        torch.full((4000,), 7)  # so that there is some
        assert same(kiln.compile(wrapped, backend="kiln", options={"check": True})(x), wrapped(x))


def test_a_checked_training_step():
    eager, net = Net(), Net()
    losses = []
    for module in (eager, kiln.compile(net, backend="kiln", options={"check": True})):
        torch.manual_seed(1)
        losses.append(module(PLACES, LABELS))
        losses[-1].backward()
    assert same(*losses)
    for one, other in zip(eager.parameters(), net.parameters(), strict=True):
        assert same(one.grad, other.grad)
    assert same(eager.batch.running_var, net.batch.running_var)


def test_checked_sizes_that_vary():
    checked = kiln.compile(program, backend="kiln", dynamic=True, options={"check": True})
    for count in (5, 17, 64):
        assert same(checked(X[:count], W), program(X[:count], W))


def test_checked_sizes_that_are_parts_of_others():
    """A backward that is given a gradient of s + 1 columns, and nothing that has s."""
    x = X[:5].clone().requires_grad_()
    checked = kiln.compile(
        lambda x: torch.diag_embed(x, 1).cos(), backend="kiln", dynamic=True, options={"check": True}
    )
    checked(x).sum().backward()
    assert same(x.grad, -torch.sin(x.detach()))


def attention(x, w):
    query, key, value = (part.unflatten(1, (2, 8)).transpose(0, 1) for part in (x @ w).split(16, 1))
    return torch.nn.functional.scaled_dot_product_attention(query, key, value).sum()


def test_checked_inputs_that_lie_otherwise():
    """What is saved for backward is saved without the memory around it."""
    given = [X.clone().requires_grad_(), W.repeat(1, 3).requires_grad_()]
    kiln.compile(attention, backend="kiln", options={"check": True})(*given).backward()
    found = [one.grad.clone() for one in given]
    for one in given:
        one.grad = None
    attention(*given).backward()
    assert same(found, [one.grad for one in given])


def test_checked_results_can_be_changed():
    x = X.clone().requires_grad_()
    result = kiln.compile(lambda x: x.sin().t(), backend="kiln", options={"check": True})(x)
    result.mul_(2)
    result.sum().backward()
    assert same(x.grad, 2 * X.cos())
    saved = kiln.compile(lambda x: x.exp().t(), backend="kiln", options={"check": True})(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.mul_(2).sum().backward()


def test_checked_memory_that_holds_anything():
    checked = kiln.compile(lambda x: (torch.empty_like(x), x + 1), backend="kiln", options={"check": True})
    torch.full_like(X, 7.0)
    assert same(checked(X)[1], X + 1)


def test_checked_calls_whose_fakes_are_wrong():
    """The workspace of an LSTM has no size before it runs."""
    lstm = torch.nn.LSTM(48, 8)
    checked = kiln.compile(lstm, backend="kiln", options={"check": True})
    assert same(checked(X)[0], lstm(X)[0])


def off_by_a_little(name):
    right = vector_math.SHORT[name]
    return lambda vector, x: vector.mul(right(vector, x), 1.01)


def test_the_first_kernel_that_differs_is_named(monkeypatch):
    monkeypatch.setitem(vector_math.SHORT, "exp", off_by_a_little("exp"))
    checked = kiln.compile(lambda x: (x.exp().sum(0), x + 1), backend="kiln", options={"check": True})
    with pytest.raises(
        kiln.exc.CheckFailed, match=r"kiln_exp_sum_add_0 differs from eager in sum.*48 of 48 elements"
    ) as raised:
        checked(X)
    assert "It stands for: " in str(raised.value) and "exp(" in str(raised.value)


def test_a_difference_within_an_operator_is_found(monkeypatch):
    """The parts of a large sum stand for no node: their kernel is compared with what it means."""
    monkeypatch.setitem(vector_math.SHORT, "exp", off_by_a_little("exp"))
    large = torch.linspace(-1, 1, 100_000)
    checked = kiln.compile(lambda x: x.exp().sum(), backend="kiln", options={"check": True})
    with pytest.raises(kiln.exc.CheckFailed, match="kiln_exp_sum_0 differs from what its loops mean"):
        checked(large)


def test_sums_that_cancel_are_no_difference():
    checked = kiln.compile(lambda x: (x.sin().sum(), (x * 1e6).sum()), backend="kiln", options={"check": True})
    for x in (X, torch.linspace(-1, 1, 100_001)):
        checked(x)
        checked(x.bfloat16())
    x = torch.linspace(-1, 1, 5).requires_grad_()
    softmax = kiln.compile(lambda x: torch.softmax(x, 0, dtype=torch.float64), backend="kiln", options={"check": True})
    softmax(x).sum().backward()  # zero, but for rounding


def test_a_difference_in_backward_is_found(monkeypatch):
    x = X.clone().requires_grad_()
    checked = kiln.compile(lambda x: x.sin().sum(), backend="kiln", options={"check": True})
    result = checked(x)
    right = vector_math.LONG["cos"]
    monkeypatch.setitem(vector_math.LONG, "cos", lambda vector, x: vector.mul(right(vector, x), 1.01))
    vector_math.function_text.cache_clear()
    try:
        with pytest.raises(kiln.exc.CheckFailed, match="cos"):
            result.backward()
    finally:
        vector_math.function_text.cache_clear()


def test_tensors_of_other_classes_are_left_to_eager():
    class Mine(torch.Tensor):
        pass

    given = X.as_subclass(Mine)
    checked = kiln.compile(lambda x: x * 2, backend="kiln", options={"check": True})
    assert same(checked(given), given * 2)
