"""What else must work on a GPU, beside eager: autograd, the engine, hooks, checkpoints, autocast, gradient scaling,
second derivatives, users' operators, channels-last, complex numbers, several devices in a graph."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import kiln
from kiln import compiled_autograd
from kiln.testing import check, same
from tests.support.gpu import DEVICE, ON_GPU, needs_gpu

pytestmark = needs_gpu
CLOSE = {"rtol": 2e-4, "atol": 2e-4}
HALF = {"rtol": 2e-2, "atol": 2e-2}


def compiled_by_kiln(function, **options):
    """With machine code: the tests' default is the backend eager."""
    return kiln.compile(function, backend="kiln", **options)


@pytest.fixture(autouse=True)
def exact_products():
    """Products in float32, in eager and compiled."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def tensor(*shape, dtype=torch.float32, grad=False):
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))
    return made.to(DEVICE, dtype).requires_grad_(grad)


def checked(program, *args, **options):
    """Beside eager with the compiled code, twice."""
    return check(program, *args, backend="kiln", calls=2, **{**CLOSE, **options})


class Block(nn.Module):
    def __init__(self, width=32, dropout=0.0):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


def block(**options):
    torch.manual_seed(5)
    return Block(**options).to(DEVICE)


# ---- ahead-of-time autograd ------------------------------------------------------------------------------------------

PROGRAMS = {
    "pointwise": lambda x, y: (x.sin() * y + 1, (x - y).relu()),
    "reductions": lambda x, y: (x.exp().sum(0), y.amax(1), (x * y).mean(), x.var(1), y.norm()),
    "softmax": lambda x, y: F.log_softmax(x @ y.t(), -1).sum() + F.cross_entropy(x, y.argmax(1)),
    "normalized": lambda x, y: F.layer_norm(x, (x.shape[1],)) * F.rms_norm(y, (y.shape[1],)),
    "views": lambda x, y: (x.t()[::2].contiguous(), torch.cat([x, y], 1).chunk(3, 1)[1] * 2, x.unfold(1, 4, 2).sum(-1)),
    "indexing": lambda x, y: (x[:, [0, 2]] * 2, torch.gather(x, 1, y.argsort(1)), x[x > 0].sum() + y.sum()),
    "padding": lambda x, y: (F.pad(x, (1, 2)).cos(), F.pad(y[None], (1, 1), mode="reflect")),
    "scans": lambda x, y: (x.cumsum(1), torch.logcumsumexp(y, 0)),
    "products": lambda x, y: (x @ y.t()).relu() @ x + y,
    "types": lambda x, y: (x.double() + y, x.half() * 2, (y > 0).sum(), (x * 4).int() // 3, x.bfloat16().sum(1)),
    "sorted": lambda x, y: (x.topk(3)[0] * 2, y.sort(0)[0] + 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("grad", [False, True])
def test_programs(name, grad):
    checked(PROGRAMS[name], tensor(16, 24, grad=grad), tensor(16, 24, grad=grad))


@pytest.mark.parametrize("name", ["pointwise", "reductions", "softmax", "normalized"])
def test_sizes_that_vary(name):
    calls = [(tensor(rows, 24, grad=True), tensor(rows, 24)) for rows in (8, 16, 33)]
    check(PROGRAMS[name], calls=calls, backend="kiln", dynamic=True, **CLOSE)


def test_changes_in_place():
    def program(x, y):
        x.mul_(2)
        y[:, 1:].add_(x[:, :-1])
        x.t().sin_()
        return x + y

    checked(program, tensor(6, 8), tensor(6, 8))


def test_a_model_and_its_gradients():
    checked(block(), tensor(4, 10, 32, grad=True))


def test_saved_tensors_are_eagers_no_more():
    model, x = block(), tensor(64, 128, 32, grad=True)
    if not ON_GPU:
        pytest.skip("counts the memory of a GPU")
    compiled, peaks = compiled_by_kiln(model), []
    for run in (model, compiled):
        for _ in range(2):
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            run(x).sum().backward()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] <= peaks[0]


# ---- hooks and the engine --------------------------------------------------------------------------------------------


def test_hooks_on_tensors_and_modules():
    def setup():
        model, told = block(), []
        model.up.register_forward_hook(lambda module, given, found: found * 2)
        model.norm.register_full_backward_hook(lambda module, before, after: told.append(before[0].shape))

        def program(x):
            y = model(x)
            y.register_hook(lambda gradient: gradient * 3)
            return y

        return program, (tensor(4, 32, grad=True),), told

    check(setup=setup, backend="kiln", **CLOSE)


def step(model, x):
    model.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    return loss, [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("compiled_model", [False, True])
def test_the_engine(compiled_model):
    model, x = block(), tensor(8, 32)
    expected = step(model, x)
    found = compiled_by_kiln(model) if compiled_model else model
    captured = kiln.report.counters["engine captures"]
    with compiled_autograd.enable(lambda module: compiled_by_kiln(module)):
        for _ in range(2):
            assert same(step(found, x), expected, **CLOSE)
    assert kiln.report.counters["engine captures"] > captured


def test_the_engine_runs_hooks():
    model, x, told = block(), tensor(8, 32), []
    model.up.weight.register_hook(lambda gradient: gradient * 2)
    model.down.weight.register_post_accumulate_grad_hook(lambda weight: told.append(weight.grad.device.type))
    expected = step(model, x)
    with compiled_autograd.enable(lambda module: compiled_by_kiln(module)):
        assert same(step(model, x), expected, **CLOSE)
    assert told == [DEVICE] * 2


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints(use_reentrant):
    model = block(dropout=0.5)

    def program(x):
        return checkpoint(model, x, use_reentrant=use_reentrant).sum()

    checked(program, tensor(16, 32, grad=True))


# ---- autocast and gradient scaling -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("inside", [False, True])
def test_autocast(dtype, inside):
    model = block()

    def program(x):
        with torch.autocast(DEVICE, dtype, enabled=inside):
            return model(x).float()

    with torch.autocast(DEVICE, dtype, enabled=not inside):
        checked(program, tensor(4, 10, 32, grad=True), **HALF)


@pytest.mark.parametrize("overflows", [False, True])
def test_gradient_scaling(overflows):
    def trained(wrap):
        model = block()
        run, optimizer = wrap(model), torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**120 if overflows else 2.0**10, growth_interval=2)
        losses = []
        for number in range(4):
            optimizer.zero_grad()
            with torch.autocast(DEVICE, torch.float16 if ON_GPU else torch.bfloat16):
                loss = run(tensor(8, 32) + number).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.detach().float())
        return losses, scaler.get_scale(), [parameter.detach() for parameter in model.parameters()]

    eager, found = trained(lambda model: model), trained(compiled_by_kiln)
    assert found[1] == eager[1]
    assert same(found, eager, **HALF)


# ---- derivatives of derivatives --------------------------------------------------------------------------------------


def test_second_derivatives_outside():
    def penalty(run):
        x = tensor(6, 5, grad=True)
        (gradient,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(gradient.square().sum(), x)
        return gradient.detach(), second

    def program(x):
        return (x.sin() * x).exp() + F.softmax(x, -1)

    assert same(penalty(compiled_by_kiln(program)), penalty(program), **CLOSE)


def test_second_derivatives_inside():
    def program(x):
        (gradient,) = torch.autograd.grad((x.tanh() * x).sum(), x, create_graph=True)
        return gradient.square().sum()

    checked(program, tensor(6, 5, grad=True))


# ---- users' operators and subclasses ---------------------------------------------------------------------------------


@torch.library.custom_op("kiln_cuda_test::scaled", mutates_args=())
def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


@scaled.register_fake
def _(x, factor):
    return torch.empty_like(x)


def scaled_backward(ctx, gradient):
    return scaled(gradient, ctx.factor), None


scaled.register_autograd(scaled_backward, setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]))


@torch.library.custom_op("kiln_cuda_test::added_", mutates_args={"x"})
def added_(x: torch.Tensor, y: torch.Tensor) -> None:
    x.add_(y)


def test_operators_of_the_user():
    checked(lambda x: scaled(x.sin(), 3.0).cos() + 1, tensor(8, 9, grad=True))


def test_operators_of_the_user_that_change_inputs():
    def program(x, y):
        z = x * 2
        added_(z, y)
        return z.sin()

    checked(program, tensor(8, 9), tensor(8, 9))


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 3 * x**2


def test_functions_of_the_user():
    checked(lambda x: Cube.apply(x.sin()).sum(0), tensor(8, 9, grad=True))


# ---- layouts ---------------------------------------------------------------------------------------------------------


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Conv2d(16, 8, 1)

    def forward(self, x):
        return F.max_pool2d(self.second(self.norm(self.first(x)).relu()), 2) * 2


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("training", [False, True])
def test_convolutions(layout, training):
    torch.manual_seed(1)
    model = Convolutions().to(DEVICE, memory_format=layout).train(training)
    x = tensor(2, 3, 8, 8).contiguous(memory_format=layout)
    checked(model, x)
    found = compiled_by_kiln(model)(x)
    assert found.is_contiguous(memory_format=layout) == copy.deepcopy(model)(x).is_contiguous(memory_format=layout)


def test_strided_and_offset_inputs():
    base = tensor(20, 30)
    views = base[1:, 3:].t(), base[::2, ::3], base[0].expand(4, 30), base.flatten()[1:]
    for view in views:
        check(lambda x: (x.sin() + 1, x.sum(0)), view, backend="kiln", **CLOSE)


def test_complex_numbers():
    def program(x, y):
        z = torch.complex(x, y)
        return (z * z.conj()).real + z.abs(), torch.view_as_real(z.exp()), torch.fft.fft(x).abs()

    checked(program, tensor(8, 16, grad=True), tensor(8, 16))


# ---- random numbers --------------------------------------------------------------------------------------------------

RANDOM = {
    "dropout": lambda x: F.dropout(x, 0.3) * 2,
    "rand": lambda x: torch.rand_like(x) + torch.randn(16, device=x.device),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "several": lambda x: F.dropout(F.dropout(x.sin(), 0.1) + torch.randn_like(x), 0.5),
    "multinomial": lambda x: torch.multinomial(x.softmax(-1), 2),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_are_eagers(name):
    check(RANDOM[name], tensor(8, 16, grad=name != "multinomial"), backend="kiln", calls=3, rtol=1e-6, atol=1e-6)


# ---- devices, streams and threads ------------------------------------------------------------------------------------


def test_two_devices_in_a_graph():
    def program(x, y):
        moved = (x * 2).cpu() + y
        return moved.to(x.device).sin() + x, moved.sum()

    checked(program, tensor(6, 7, grad=True), torch.randn(6, 7))


def test_numbers_of_the_cpu():
    def program(x, scale):
        return x * scale + torch.tensor(2.0), (x * scale).sum()

    checked(program, tensor(6, 7, grad=True), torch.tensor(1.5))


def test_called_on_the_cpu_and_on_the_gpu():
    compiled = compiled_by_kiln(lambda x: (x.exp() / 2).sum(0))
    for _ in range(2):
        for x in (torch.ones(4, 5), torch.ones(4, 5, device=DEVICE)):
            found = compiled(x)
            assert found.device == x.device and torch.allclose(found, (x.exp() / 2).sum(0))


def test_another_stream():
    if not ON_GPU:
        pytest.skip("needs streams")
    compiled, stream = compiled_by_kiln(lambda x: (x.exp() + 1).sum(-1)), torch.cuda.Stream()
    x = tensor(512, 512)
    expected = (x.exp() + 1).sum(-1)
    compiled(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        found = compiled(x * 1)
    stream.synchronize()
    assert torch.allclose(found, expected)


def test_threads():
    compiled, x, found = compiled_by_kiln(lambda x: (x.sin() * 2).sum()), tensor(64, 64), []
    threads = [threading.Thread(target=lambda: found.append(compiled(x))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(torch.allclose(one, (x.sin() * 2).sum()) for one in found)


# ---- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_training_in_one_function(optimizer):
    def trained(wrap):
        model = block()
        settings = optimizer(model.parameters(), lr=0.01)

        def train(x):
            settings.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            settings.step()
            return loss

        run = wrap(train)
        return [run(tensor(8, 32)).detach() for _ in range(3)], [one.detach() for one in model.parameters()]

    assert same(trained(compiled_by_kiln), trained(lambda train: train), **CLOSE)


def test_inference_mode():
    model, x = block().eval(), tensor(4, 32)
    with torch.inference_mode():
        assert torch.allclose(compiled_by_kiln(model)(x), model(x), **CLOSE)


def test_errors_are_eagers():
    compiled = compiled_by_kiln(lambda x, y: (x + 1) @ y)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        compiled(tensor(3, 4), tensor(3, 4))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_checked_programs():
    compiled = compiled_by_kiln(block(), options={"check": True})
    compiled(tensor(4, 10, 32, grad=True)).sum().backward()
