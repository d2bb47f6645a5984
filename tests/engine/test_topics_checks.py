"""Topics: gradcheck, anomaly mode, saved-tensor hooks, checkpoints, profilers, modes: all that wraps a backward."""

import contextlib
import io
import unittest

import torch
from torch.autograd import Function, detect_anomaly, grad, gradcheck, gradgradcheck
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from tests.engine.topics import error_of, leaf, topics

topic, test_topic = topics()


def _double(*size):
    return torch.rand(*size, dtype=torch.double, requires_grad=True)


# -- gradcheck --------------------------------------------------------------------------------------------------------


@topic
def gradcheck_of_operations():
    x, y = _double(3, 2), _double(2, 2)
    functions = [lambda x, y: x @ y, lambda x, y: (x * y[0]).sin(), lambda x, y: x.sum(0) + y, lambda x, y: x[1:] @ y]
    return [gradcheck(function, (x, y)) for function in functions]


@topic
def gradcheck_of_batched_gradients():
    x = _double(3)
    return gradcheck(lambda x: x.exp() * x, (x,), check_batched_grad=True)


@topic
def gradgradcheck_of_operations():
    x, y = _double(2, 2), _double(2, 2)
    return gradgradcheck(lambda x, y: (x @ y).tanh(), (x, y)), gradgradcheck(lambda x: x.prod(), (x,))


@topic
def gradcheck_of_views_and_in_place():
    def function(x):
        y = x.clone()
        y[0].mul_(2)
        y.t()[1] = x[0] * 3
        return y.select(0, 1).sum() * y

    x = _double(2, 2)
    return gradcheck(function, (x,)), gradgradcheck(function, (x,))


@topic
def gradcheck_that_fails():
    class Wrong(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 3

    found = error_of(gradcheck, Wrong.apply, (_double(2),))
    return found[0], "Jacobian mismatch for output 0 with respect to input 0" in found[1]


@topic
def gradcheck_of_a_function():
    class Cube(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3, x * 2

        @staticmethod
        def backward(ctx, first, second):
            (x,) = ctx.saved_tensors
            return first * 3 * x**2 + second * 2

    x = _double(3)
    return gradcheck(Cube.apply, (x,)), gradgradcheck(Cube.apply, (x,))


@topic
def gradcheck_in_forward_mode_and_fast():
    x = _double(3)
    return gradcheck(torch.sin, (x,), check_forward_ad=True), gradcheck(torch.exp, (x,), fast_mode=True)


@topic
def gradcheck_of_complex_numbers():
    x = torch.rand(2, dtype=torch.cdouble, requires_grad=True)
    return gradcheck(lambda x: x * x.conj() + x.exp(), (x,))


# -- anomaly mode -----------------------------------------------------------------------------------------------------


@topic
def anomaly_finds_nan():
    class Nan(Function):
        @staticmethod
        def forward(ctx, x, fail):
            ctx.fail = fail
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * (float("nan") if ctx.fail else 1), None

    x = leaf(1.0)
    log = []
    for check in (True, False):
        with detect_anomaly(check_nan=check), contextlib.redirect_stderr(io.StringIO()):
            for fail in (False, True):
                log.append(error_of(Nan.apply(x * 2, fail).sum().backward))
    return log


@topic
def nested_anomaly():
    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        def backward(ctx, gradient):
            return Slope.apply(ctx.saved_tensors[0], gradient)

    class Slope(Function):
        @staticmethod
        def forward(ctx, x, gradient):
            return x * 2 * gradient

        @staticmethod
        def backward(ctx, gradient):
            return gradient * float("nan"), gradient

    x = leaf(1.0)
    with detect_anomaly():
        (first,) = grad(Square.apply(x).sum(), x, create_graph=True)
        return error_of(first.sum().backward), first.detach()


@topic
def anomaly_parents():
    x = leaf(1.0, 2.0)
    with detect_anomaly():
        y = x * torch.exp(x)
        (first,) = grad(y.sum(), x, create_graph=True)
        second = grad(first.sum(), x)
    return second, "parent_" in str(sorted(first.grad_fn.metadata)), sorted(y.grad_fn.metadata)


@topic
def anomaly_and_in_place_errors():
    x = leaf(1.0, 2.0)
    with detect_anomaly():
        y = x.exp()
        z = y * 2
        y.add_(1)
        return error_of(z.sum().backward)


@topic
def set_anomaly_between_calls():
    x = torch.zeros(1, requires_grad=True)
    log = []
    for on in (False, True, False):
        with torch.autograd.set_detect_anomaly(on):
            log.append(error_of((x.sqrt() * 0).backward))
    return log, x.grad


# -- saved-tensor hooks -----------------------------------------------------------------------------------------------


def _counting(log):
    def pack(tensor):
        log.append("pack")
        return tensor.clone()

    def unpack(packed):
        log.append("unpack")
        return packed * 2

    return saved_tensors_hooks(pack, unpack)


@topic
def saved_tensor_hooks_by_context():
    log = []
    x = leaf(1.0, 2.0)
    with _counting(log):
        y = x * x
        z = y.exp()
    w = (z * y).sum()
    w.backward(retain_graph=True)
    w.backward()
    return x.grad, log


@topic
def saved_tensor_hooks_nested():
    x = leaf(1.0, 2.0)
    with saved_tensors_hooks(lambda t: t, lambda t: t * 2):
        with saved_tensors_hooks(lambda t: t, lambda t: t * 10):
            y = x * x
        z = y * y
    z.sum().backward()
    return x.grad


@topic
def saved_tensor_hooks_by_node():
    log = []
    x = leaf(1.0, 2.0)
    y = x.pow(2)
    y.grad_fn._raw_saved_self.register_hooks(
        lambda t: (log.append("pack"), t * 2)[1], lambda t: (log.append("un"), t)[1]
    )
    y.sum().backward()
    return x.grad, log, error_of(lambda: y.grad_fn._raw_saved_self.register_hooks(lambda t: t, lambda t: t))


@topic
def saved_tensor_hooks_that_pack_anything():
    x = leaf(1.0, 2.0)
    with saved_tensors_hooks(lambda t: {"values": t.tolist()}, lambda packed: torch.tensor(packed["values"])):
        y = x.exp() * x
    y.sum().backward()
    return x.grad


@topic
def saved_tensor_hooks_with_double_backward():
    log = []
    x = leaf(1.0, 2.0)
    with saved_tensors_hooks(lambda t: (log.append("pack"), t)[1], lambda t: (log.append("unpack"), t)[1]):
        y = (x**3).sum()
        (first,) = grad(y, x, create_graph=True)
    first.sum().backward()
    return x.grad, first, log


@topic
def saved_tensor_hooks_that_fail():
    def fail(value):
        raise ValueError("cannot unpack")

    x = leaf(1.0, 2.0)
    with saved_tensors_hooks(lambda t: t, fail):
        y = x.exp()
    first = error_of(y.sum().backward)
    with saved_tensors_hooks(lambda t: t, lambda t: "text"):
        z = x.exp()
    second = error_of(z.sum().backward)
    return first, second, x.grad


@topic
def saved_tensor_hooks_disabled():
    def enter():
        with disable_saved_tensors_hooks("no hooks here"), saved_tensors_hooks(lambda t: t, lambda t: t):
            pass

    x = leaf(1.0, 2.0)
    with disable_saved_tensors_hooks("no hooks here"):
        (x * x).sum().backward()
    return error_of(enter), x.grad


@topic
def saved_tensor_hooks_of_a_function():
    log = []

    class Kept(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x, x * 2)
            return x * 3

        @staticmethod
        def backward(ctx, gradient):
            first, second = ctx.saved_tensors
            again, _ = ctx.saved_tensors
            return gradient * first + second + again

    x = leaf(1.0, 2.0)
    with _counting(log):
        y = Kept.apply(x)
    y.sum().backward()
    return x.grad, log


@topic
def wrapped_numbers_are_not_packed():
    def fail(value):
        raise RuntimeError("this hook should not be called")

    x = leaf(1.0)
    with saved_tensors_hooks(fail, lambda t: t):
        y = x * 3
    y.backward()
    return x.grad


@topic
def save_on_cpu():
    x = leaf(1.0, 2.0)
    with torch.autograd.graph.save_on_cpu():
        y = (x * x).exp()
    y.sum().backward()
    return x.grad


@topic
def tensors_allowed_to_be_changed():
    x = leaf(1.0, 2.0)
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        y = x * 1
        z = y.exp() * y
        y.zero_()
        z.sum().backward()
    return x.grad


# -- checkpoints ------------------------------------------------------------------------------------------------------


@topic
def checkpoint_counts():
    log = []

    def region(x):
        log.append(torch.is_grad_enabled())
        return x.sin().exp() * x

    x = leaf(1.0, 2.0)
    for use_reentrant in (True, False):
        checkpoint(region, x, use_reentrant=use_reentrant).sum().backward()
    return x.grad, log


@topic
def checkpoint_of_layers():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5), torch.nn.Tanh())
    x = torch.rand(2, 3, requires_grad=True)
    for _ in range(2):
        y = checkpoint(model, x, use_reentrant=False)
        checkpoint(model, y, use_reentrant=False).sum().backward()
    return x.grad, [p.grad for p in model.parameters()]


@topic
def checkpoint_with_hooks_inside():
    log = []

    def region(x):
        y = x.sin()
        y.register_hook(lambda gradient: log.append(gradient.sum()))
        return y.exp()

    x = leaf(1.0, 2.0)
    checkpoint(region, x, use_reentrant=False).sum().backward()
    return x.grad, len(log)


@topic
def checkpoint_twice_with_retain_graph():
    log = []
    x = leaf(1.0, 2.0)
    y = checkpoint(lambda x: (log.append("run"), x.sin().exp())[1], x, use_reentrant=False)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    return x.grad, log


@topic
def reentrant_checkpoints_refuse_inputs():
    x = leaf(1.0, 2.0)
    y = checkpoint(lambda x: x.sin().exp(), x, use_reentrant=True).sum()
    return error_of(grad, y, x), error_of(y.backward, inputs=[x]), x.grad


@topic
def checkpoint_that_differs_when_run_again():
    runs = []

    def region(x):
        runs.append(1)
        return x.sin().exp() if len(runs) == 1 else x.sin()

    x = leaf(1.0, 2.0)
    y = checkpoint(region, x, use_reentrant=False)
    found = error_of(y.sum().backward)
    return found[0], x.grad


# -- modes and profilers ----------------------------------------------------------------------------------------------


@topic
def a_dispatch_mode_sees_the_backward():
    log = []

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            log.append(str(function))
            return function(*args, **(kwargs or {}))

    x = leaf(1.0, 2.0)
    y = (x * x).exp()
    with Names():
        y.sum().backward()
    return x.grad, log


@topic
def a_function_mode_is_left_alone():
    log = []

    class Names(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            log.append(getattr(function, "__name__", ""))
            return function(*args, **(kwargs or {}))

    x = leaf(1.0, 2.0)
    with Names():
        (x * x).sum().backward()
    return x.grad, log


@topic
def profilers():
    x = leaf(1.0, 2.0)
    with torch.profiler.profile() as profile:
        with torch.profiler.record_function("mine"):
            (x * x).sum().backward()
    return x.grad, "mine" in {event.key for event in profile.key_averages()}


@topic
def warnings_in_hooks():
    import warnings

    x = leaf(1.0)
    x.register_hook(lambda gradient: warnings.warn("from a hook", stacklevel=1))
    (x * 2).backward()
    return x.grad


@topic(breaks="tolist")
def printing_in_hooks():
    x = leaf(1.0, 2.0)
    x.register_hook(lambda gradient: print("gradient", gradient.tolist()))
    (x * 2).sum().backward()
    return x.grad


@topic(breaks="a file")
def a_hook_that_saves_to_a_file():
    x = leaf(1.0, 2.0)
    file = io.BytesIO()
    x.register_hook(lambda gradient: torch.save(gradient, file))
    (x * 2).sum().backward()
    file.seek(0)
    return torch.load(file), x.grad


@topic(breaks="numpy")
def numpy_in_hooks():
    x = leaf(1.0, 2.0)
    kept = []
    x.register_hook(lambda gradient: kept.append(gradient.numpy().copy()))
    x.register_hook(lambda gradient: gradient * float(gradient.max()))
    (x * x).sum().backward()
    return x.grad, kept


@topic
def deterministic_algorithms():
    x = leaf(1.0, 2.0)
    index = torch.tensor([0, 1, 0])
    torch.use_deterministic_algorithms(True)
    try:
        x[index].pow(2).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    return x.grad


@topic
def multithreading_disabled():
    x = leaf(1.0, 2.0)
    with torch.autograd.set_multithreading_enabled(False):
        (x * x).sum().backward()
    return x.grad, torch.autograd.is_multithreading_enabled()


@topic
def autocast_and_default_dtype():
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = (x[:, None] @ y[None]).sum()
        z.backward()
    torch.set_default_dtype(torch.float64)
    try:
        (x * y).sum().backward()
    finally:
        torch.set_default_dtype(torch.float32)
    return x.grad, y.grad


@topic
def assertions_about_contexts():
    case = unittest.TestCase()

    class Checked(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            case.assertEqual(len(ctx.saved_tensors), 1)
            case.assertTrue(x.requires_grad)
            case.assertFalse(torch.is_grad_enabled())
            case.assertEqual(ctx.needs_input_grad, (True,))
            with case.assertRaises(ValueError):
                raise ValueError
            with case.assertRaisesRegex(RuntimeError, "boo"):
                raise RuntimeError("boohoo")
            return gradient * x

    x = leaf(1.0, 2.0)
    Checked.apply(x).sum().backward()
    return x.grad
