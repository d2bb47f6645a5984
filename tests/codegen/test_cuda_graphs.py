"""Programs recorded into CUDA graphs give what eager gives, whatever the user does with results, gradients and memory.

Each test runs with a recorder that stands in for CUDA graphs on the CPU and, where there is a GPU, with CUDA graphs.
"""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import kiln
from kiln._native import RecordedCall
from kiln.codegen.cuda_graphs import recordable, recorded_program
from kiln.report import events
from tests.support.stand_in_recorder import StandInRecorder


class Graphs:
    """Compiles with CUDA graphs on a device, and counts what is recorded."""

    def __init__(self, device: str, recorder: StandInRecorder | None) -> None:
        self.device, self.recorder = device, recorder
        self.before = events.counters["cuda graphs"]

    def compile(self, function: Any, **more: Any) -> Any:
        return kiln.compile(function, **{"backend": "kiln", "options": {"cuda_graphs": True}, "dynamic": False, **more})

    @property
    def records(self) -> int:
        return events.counters["cuda graphs"] - self.before

    def randn(self, *sizes: int, **more: Any) -> torch.Tensor:
        return torch.randn(*sizes, **more).to(self.device)


@pytest.fixture(params=["stand-in", "cuda"])
def graphs(request, monkeypatch):
    monkeypatch.setattr(recordable, "FEWEST_STEPS", 0)  # programs of tests are small
    if request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("needs a GPU")
        yield Graphs("cuda", None)
        torch.cuda.synchronize()
        return
    recorder = StandInRecorder()
    monkeypatch.setattr(recordable, "DEVICES", frozenset({"cpu"}))
    monkeypatch.setattr(recorded_program, "recorder_for", lambda device: recorder)
    yield Graphs("cpu", recorder)
    kiln.reset()


@pytest.fixture
def stand_in(graphs):
    if graphs.recorder is None:
        pytest.skip("looks into the recorder that stands in")
    return graphs.recorder


class Small(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x))).square().mean()


def two_models(graphs: Graphs, model: nn.Module) -> tuple[Any, nn.Module, nn.Module]:
    """The compiled model, what was compiled, and a copy for eager."""
    model = model.to(graphs.device)
    other = copy.deepcopy(model)
    return graphs.compile(model), model, other


def assert_same_gradients(model: nn.Module, other: nn.Module) -> None:
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad)


def close(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other)


# ---- calls ----------------------------------------------------------------------------------------------------------


def test_calls_without_gradients(graphs):
    def f(x, w):
        return torch.sin(x) @ w, (x * 2).sum(-1)

    compiled, w = graphs.compile(f), graphs.randn(8, 3)
    for _ in range(6):
        x = graphs.randn(5, 8)
        close(compiled(x, w), f(x, w))
    assert 1 <= graphs.records <= 2
    if graphs.recorder is not None:
        assert graphs.recorder.replays >= 4


def test_arguments_and_results_are_copied_in_the_turn_of_a_recording(graphs, stand_in, monkeypatch):
    """On another stream the recording's memory may be in use before, and is again afterwards."""
    steps = []

    class Turn:
        def __enter__(self):
            steps.append("enter")

        def __exit__(self, *raised):
            steps.append("leave")

    class Call:
        def __init__(self, *given):
            self.real = RecordedCall(*given)

        def __getattr__(self, name):
            return getattr(self.real, name)

        def __call__(self, arguments):
            steps.append("copies and runs")
            return self.real(arguments)

    stand_in.turn = Turn()
    monkeypatch.setattr(recorded_program, "RecordedCall", Call)
    compiled = graphs.compile(lambda x: torch.sin(x) + 1)
    for _ in range(4):
        x = graphs.randn(50, 64)
        steps.clear()
        close(compiled(x), torch.sin(x) + 1)
    assert steps == ["enter", "copies and runs", "leave"]


def test_arguments_that_move_from_the_beginning_need_one_recording(graphs):
    def f(x, w):
        return torch.sin(x) @ w

    compiled, w = graphs.compile(f), graphs.randn(64, 3)
    for x in [graphs.randn(50, 64) for _ in range(6)]:
        close(compiled(x, w), f(x, w))
    assert graphs.records == 1


def test_small_arguments_that_move_late_need_one_recording(graphs):
    """A position that is changed in place, then another one, beside parameters that never move."""
    embedding = nn.Embedding(40, 16).to(graphs.device)

    def f(token, place, scale):
        return torch.tanh(embedding(token) * scale) + place

    compiled, scale = graphs.compile(f), graphs.randn(100, 16)
    places = torch.zeros(3, 4, dtype=torch.int64, device=graphs.device)  # each at an address of its own
    token = torch.arange(100, device=graphs.device) % 40
    with torch.no_grad():
        for place in places[:, :1].unbind(0):
            for _ in range(4):
                close(compiled(token, place, scale), f(token, place, scale))
                place += 1
    assert graphs.records == 1


def test_small_arguments_that_a_program_changes_are_not_copied(graphs):
    def f(count, x):
        count.add_(1)
        return x * count

    compiled, count, x = graphs.compile(f), torch.zeros(3, device=graphs.device), graphs.randn(3)
    for number in range(5):
        close(compiled(count, x), x * (number + 1))
    close(count, torch.full_like(count, 5.0))


def test_earlier_results_stay(graphs):
    def f(x):
        return x * 2, torch.exp(x)

    compiled = graphs.compile(f)
    inputs = [graphs.randn(4, 4) for _ in range(8)]
    kept = [compiled(x) for x in inputs]
    for x, results in zip(inputs, kept, strict=True):
        close(results, f(x))


def test_results_may_be_changed_in_place(graphs):
    def f(x):
        return torch.sin(x)

    compiled, x = graphs.compile(f), graphs.randn(6)
    for _ in range(5):
        result = compiled(x)
        result.add_(1)
        close(result, torch.sin(x) + 1)


def test_a_result_is_the_next_argument(graphs):
    def f(state, x):
        return torch.tanh(state + x)

    compiled, state = graphs.compile(f), torch.zeros(16, device=graphs.device)
    expected = state
    for _ in range(12):
        x = graphs.randn(16)
        state, expected = compiled(state, x), f(expected, x)
        close(state, expected)


def test_several_sizes(graphs):
    def f(x):
        return (torch.cos(x) * 3).sum(0)

    compiled = graphs.compile(f)
    kept = []
    for step in range(20):
        x = graphs.randn(2 + step % 4, 5)
        kept.append((compiled(x), f(x)))
    for found, expected in kept:
        close(found, expected)
    assert graphs.records >= 4


def test_a_limit(graphs):
    def f(x, n):
        return x * n

    compiled = graphs.compile(f, dynamic=True)
    x = graphs.randn(5)

    def calls() -> None:
        for n in range(2, 9):
            for _ in range(3):
                close(compiled(x, n), x * n)

    with kiln.config.patch(cuda_graph_limit=3):
        reasons = events_of_refusals(calls)
    assert graphs.records == 3 and reasons.count("cuda_graph_limit") == 1


def events_of_refusals(run: Any) -> str:
    """The reasons for which programs are not recorded meanwhile."""
    found: list[str] = []
    watcher = lambda what, detail: found.append(detail) if what == "cuda graphs refused" else None  # noqa: E731
    events.watchers.append(watcher)
    try:
        run()
    finally:
        events.watchers.remove(watcher)
    return "\n".join(found)


def test_numbers_are_part_of_a_recording(graphs):
    def f(x, n):
        return x * n + n

    compiled, x = graphs.compile(f, dynamic=True), graphs.randn(5)
    for n in (3, 4, 3, 4, 3, 4, 5, 3):
        close(compiled(x, n), f(x, n))


def test_zeros_of_either_sign(graphs):
    def f(x, n):
        return x / n

    compiled, x = graphs.compile(f, dynamic=True), graphs.randn(5)
    for n in (2.0, 3.0, 0.0, 0.0, 0.0, -0.0, -0.0, -0.0, 0.0):
        close(compiled(x, n), f(x, n))


def test_layouts(graphs):
    def f(x, y):
        return x * y

    compiled = graphs.compile(f, dynamic=None)
    base = graphs.randn(6, 8)
    for step in range(9):
        x = [base, base.t().contiguous().t(), base[:1].expand(6, 8)][step % 3]
        y = graphs.randn(6, 8)
        close(compiled(x, y), x * y)


def test_an_argument_that_is_returned(graphs):
    def f(x, w):
        return x, w.t(), x * 2

    compiled, w = graphs.compile(f), graphs.randn(3, 4)
    for _ in range(5):
        x = graphs.randn(7)
        found = compiled(x, w)
        assert found[0] is x and found[1].data_ptr() == w.data_ptr()
        close(found[2], x * 2)


# ---- addresses ------------------------------------------------------------------------------------------------------


def test_a_parameter_gets_other_memory(graphs):
    compiled, model, other = two_models(graphs, Small())
    for step in range(9):
        if step in (4, 6):
            for one, two in zip(model.parameters(), other.parameters(), strict=True):
                one.data = one.data * 1.5
                two.data = two.data * 1.5
        x = graphs.randn(3, 8)
        model.zero_grad()
        other.zero_grad()
        compiled(x).backward()
        other(x).backward()
        assert_same_gradients(model, other)


def test_large_arguments_at_several_addresses_are_not_copied(graphs, monkeypatch):
    monkeypatch.setattr(recorded_program, "MOST_COPIED_BYTES", 16)

    def f(x):
        return x * 2

    compiled, inputs = graphs.compile(f), [graphs.randn(100) for _ in range(3)]
    for step in range(18):
        x = inputs[step % 3]
        x.add_(1)
        close(compiled(x), x * 2)
    assert graphs.records == 3


def test_more_addresses_than_recordings(graphs, monkeypatch):
    monkeypatch.setattr(recorded_program, "MOST_COPIED", 0)

    def f(x):
        return x * 2

    compiled, inputs = graphs.compile(f), [graphs.randn(100) for _ in range(9)]
    for step in range(36):
        x = inputs[step % 9]
        close(compiled(x), x * 2)
    assert graphs.records == recorded_program.MOST_ALIKE


# ---- effects on arguments -------------------------------------------------------------------------------------------


def test_buffers_that_change(graphs):
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(6)
            self.register_buffer("seen", torch.zeros(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += x.sum(0)
            return self.norm(x) * self.seen

    compiled, model, other = two_models(graphs, Counts())
    for _ in range(7):
        x = graphs.randn(5, 6)
        close(compiled(x), other(x))
        for one, two in zip(model.buffers(), other.buffers(), strict=True):
            close(one, two)


def test_a_cache_that_is_written_in_place(graphs):
    def step(cache, x, place):
        cache.index_copy_(0, place, x)
        return cache.sum(0) * 2

    compiled = graphs.compile(step)
    cache = torch.zeros(10, 4, device=graphs.device)
    expected = cache.clone()
    with torch.no_grad():
        for place in range(10):
            x, at = graphs.randn(1, 4), torch.tensor([place], device=graphs.device)
            close(compiled(cache, x, at), step(expected, x, at))
            close(cache, expected)
    version = cache._version
    compiled(cache, x, at)
    assert cache._version > version


def test_a_new_cache(graphs):
    def step(cache, x):
        cache.add_(x)
        return cache * 2

    compiled = graphs.compile(step)
    for _ in range(4):
        cache, x = graphs.randn(5), graphs.randn(5)
        expected = cache.clone()
        for _ in range(3):
            close(compiled(cache, x), step(expected, x))
        close(cache, expected)


# ---- training -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("set_to_none", [True, False])
def test_training(graphs, set_to_none):
    compiled, model, other = two_models(graphs, Small())
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (model, other)]
    losses, expected = [], []
    for _ in range(8):
        x = graphs.randn(5, 8)
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)
        loss = compiled(x)
        loss.backward()
        losses.append(loss.detach())
        loss = other(x)
        loss.backward()
        expected.append(loss.detach())
        assert_same_gradients(model, other)
        for optimizer in optimizers:
            optimizer.step()
    close(losses, expected)
    assert graphs.records >= 2  # forward and backward


def test_accumulated_gradients(graphs):
    compiled, model, other = two_models(graphs, Small())
    for _ in range(4):
        model.zero_grad()
        other.zero_grad()
        for _ in range(4):
            x = graphs.randn(5, 8)
            compiled(x).backward()
            other(x).backward()
        assert_same_gradients(model, other)


def test_several_forwards_before_a_backward(graphs):
    compiled, model, other = two_models(graphs, Small())
    for forwards in (1, 1, 2, 2, 2, 3, 7, 2):
        model.zero_grad()
        other.zero_grad()
        inputs = [graphs.randn(5, 8) for _ in range(forwards)]
        sum(compiled(x) * (i + 1) for i, x in enumerate(inputs)).backward()
        sum(other(x) * (i + 1) for i, x in enumerate(inputs)).backward()
        assert_same_gradients(model, other)


def test_backwards_in_another_order(graphs):
    compiled, model, other = two_models(graphs, Small())
    for _ in range(5):
        model.zero_grad()
        other.zero_grad()
        inputs = [graphs.randn(5, 8) for _ in range(2)]
        for call in (compiled, other):
            first, second = call(inputs[0]), call(inputs[1])
            second.backward()
            first.backward()
        assert_same_gradients(model, other)


def test_gradients_that_are_kept(graphs):
    def f(x, w):
        return torch.sin(x @ w).sum()

    compiled, w = graphs.compile(f), graphs.randn(8, 8).requires_grad_()
    kept = []
    for _ in range(9):
        x = graphs.randn(4, 8)
        kept.append((torch.autograd.grad(compiled(x, w), w), torch.autograd.grad(f(x, w), w)))
    for found, expected in kept:
        close(found, expected)


def test_backward_twice(graphs):
    compiled, model, other = two_models(graphs, Small())
    for _ in range(4):
        x = graphs.randn(5, 8)
        for call in (compiled, other):
            loss = call(x)
            loss.backward(retain_graph=True)
            loss.backward()
        assert_same_gradients(model, other)


def test_a_forward_between_two_backwards(graphs):
    compiled, model, other = two_models(graphs, Small())
    for _ in range(4):
        first, second = graphs.randn(5, 8), graphs.randn(5, 8)
        for call in (compiled, other):
            loss = call(first)
            loss.backward(retain_graph=True)
            call(second).backward()
            loss.backward()
        assert_same_gradients(model, other)


def test_second_derivatives(graphs):
    def f(x):
        return torch.sin(x).pow(3).sum()

    compiled = graphs.compile(f)
    for _ in range(4):
        x = graphs.randn(6).requires_grad_()
        for_both = []
        for call in (compiled, f):
            (first,) = torch.autograd.grad(call(x), x, create_graph=True)
            for_both.append((first.detach(), torch.autograd.grad(first.sum(), x)))
        close(*for_both)


def test_hooks(graphs):
    compiled, model, other = two_models(graphs, Small())
    seen: dict[int, list[torch.Tensor]] = {0: [], 1: []}
    for place, each in enumerate((model, other)):
        each.first.weight.register_hook(lambda gradient, place=place: seen[place].append(gradient) or gradient * 2)
    for _ in range(5):
        model.zero_grad()
        other.zero_grad()
        x = graphs.randn(5, 8).requires_grad_()
        for place, call in enumerate((compiled, other)):
            loss = call(x)
            loss.register_hook(lambda gradient, place=place: seen[place].append(gradient))
            loss.backward()
        assert_same_gradients(model, other)
    close(seen[0], seen[1])


def test_a_saved_result_that_the_user_changes(graphs):
    def f(x):
        return torch.exp(x)

    compiled = graphs.compile(f)
    for _ in range(4):
        x = graphs.randn(5).requires_grad_()
        kept = compiled(x)
        (found,) = torch.autograd.grad(kept.sum(), x)
        close(found, torch.exp(x))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_modes_of_autograd(graphs, mode):
    compiled, model, other = two_models(graphs, Small())
    for _ in range(4):
        x = graphs.randn(5, 8)
        with mode():
            found, expected = compiled(x), other(x)
        close(found.detach().clone(), expected.detach().clone())
        assert found.requires_grad == expected.requires_grad and found.is_inference() == expected.is_inference()


def test_autocast(graphs):
    compiled, model, other = two_models(graphs, Small())
    for _ in range(5):
        x = graphs.randn(5, 8)
        model.zero_grad()
        other.zero_grad()
        for call in (compiled, other):
            with torch.autocast(graphs.device, dtype=torch.bfloat16):
                loss = call(x)
            loss.backward()
        for one, two in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(one.grad, two.grad, rtol=2e-2, atol=2e-2)


def test_random_numbers_are_eagers(graphs):
    model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.4), nn.ReLU(), nn.Dropout(0.2)).to(graphs.device)
    other = copy.deepcopy(model)
    compiled = graphs.compile(model)
    x = graphs.randn(6, 8)
    results = []
    for call in (compiled, other):
        torch.manual_seed(3)
        found = []
        for _ in range(6):
            model.zero_grad()
            other.zero_grad()
            y = call(x)
            y.sum().backward()
            each = model if call is compiled else other
            found.append((y.detach().clone(), torch.rand(3, device=graphs.device), each[0].weight.grad.clone()))
        results.append(found)
    for (y, drawn, gradient), (y2, drawn2, gradient2) in zip(*results, strict=True):
        assert torch.equal(y == 0, y2 == 0) and torch.equal(drawn, drawn2)
        close((y, gradient), (y2, gradient2))
    assert graphs.records >= 2


# ---- what is not recorded -------------------------------------------------------------------------------------------


def test_while_the_user_records(graphs, stand_in):
    compiled, x = graphs.compile(torch.sin), graphs.randn(4)
    compiled(x)
    stand_in.recording = True
    for _ in range(3):
        close(compiled(x), torch.sin(x))
    assert stand_in.records == stand_in.replays == 0
    stand_in.recording = False
    close(compiled(x), torch.sin(x))
    assert stand_in.records == stand_in.replays == 1


def test_recording_fails(graphs, stand_in):
    stand_in.fails = RuntimeError("operation not permitted")
    compiled, x = graphs.compile(torch.sin), graphs.randn(4)
    compiled(x)
    reasons = events_of_refusals(lambda: close(compiled(x), torch.sin(x)))
    assert "operation not permitted" in reasons
    stand_in.fails = None
    close(compiled(x), torch.sin(x))
    assert not stand_in.records


def test_programs_with_calls_of_users(graphs):
    @torch.library.custom_op("kiln_test_graphs::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @twice.register_fake
    def _(x):
        return torch.empty_like(x)

    compiled, x = graphs.compile(lambda x: twice(x) + 1), graphs.randn(4)
    reasons = events_of_refusals(lambda: compiled(x))
    assert "kiln_test_graphs.twice" in reasons
    for _ in range(3):
        close(compiled(x), x * 2 + 1)
    assert graphs.records == 0


def test_a_program_of_one_kernel(graphs, monkeypatch):
    """Its launch takes no longer than a recording's."""
    monkeypatch.setattr(recordable, "FEWEST_STEPS", 3)
    compiled, x = graphs.compile(lambda x: torch.sin(x) + 1), graphs.randn(4)
    assert "only 1 launches and calls" in events_of_refusals(lambda: compiled(x))
    for _ in range(3):
        close(compiled(x), torch.sin(x) + 1)
    assert graphs.records == 0


def test_a_tensor_on_another_device():
    """The reason names the tensor; the program runs."""
    compiled, x = kiln.compile(torch.sin, backend="kiln", options={"cuda_graphs": True}), torch.randn(4)
    reasons = events_of_refusals(lambda: close(compiled(x), torch.sin(x)))
    assert "on the device cpu" in reasons


def test_modes_see_the_operations(graphs):
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    compiled, x = graphs.compile(lambda x: torch.sin(x) + 1), graphs.randn(4)
    for _ in range(3):
        compiled(x)
    with Watch():
        compiled(x)
    assert any("sin" in str(each) for each in seen)


# ---- memory ---------------------------------------------------------------------------------------------------------


def test_recordings_die_with_the_compiled_function(graphs, stand_in):
    compiled, x = graphs.compile(lambda x: torch.sin(x) + 1), graphs.randn(4)
    for _ in range(3):
        result = compiled(x)
    assert stand_in.living() == 1
    kept = weakref.ref(compiled)
    del compiled
    kiln.reset()
    gc.collect()
    assert kept() is None and stand_in.living() == 0
    close(result, torch.sin(x) + 1)


def test_a_result_loses_its_memory(graphs):
    """As users of FSDP do with parameters and their gradients."""
    compiled, model, other = two_models(graphs, Small())
    for step in range(7):
        model.zero_grad()
        other.zero_grad()
        x = graphs.randn(5, 8)
        compiled(x).backward()
        other(x).backward()
        assert_same_gradients(model, other)
        if step in (3, 5):
            for parameter in model.parameters():
                parameter.grad.untyped_storage().resize_(0)


def test_threads(graphs):
    model = Small().to(graphs.device)
    other, compiled = copy.deepcopy(model), graphs.compile(model)
    compiled(graphs.randn(5, 8))
    inputs = [graphs.randn(5, 8) for _ in range(4)]
    found: dict[int, list[float]] = {}
    failures: list[BaseException] = []

    def work(place: int) -> None:
        try:
            with torch.no_grad():
                found[place] = [compiled(inputs[place]).item() for _ in range(30)]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for place, x in enumerate(inputs):
        assert found[place] == pytest.approx([other(x).item()] * 30, rel=1e-5)


def test_the_backend_of_operators_alone(graphs):
    compiled, model, other = two_models(graphs, Small())
    compiled = kiln.compile(model, backend="cudagraphs", dynamic=False)
    for _ in range(5):
        model.zero_grad()
        other.zero_grad()
        x = graphs.randn(5, 8)
        compiled(x).backward()
        other(x).backward()
        assert_same_gradients(model, other)
    assert graphs.records >= 2


# ---- modes of kiln.compile ------------------------------------------------------------------------------------------


def test_modes(graphs):
    for mode, is_recorded in (("reduce-overhead", True), ("max-autotune", True), ("default", False)):
        compiled, x = kiln.compile(lambda x: torch.sin(x) * 3, backend="kiln", mode=mode), graphs.randn(4)
        before = graphs.records
        for _ in range(3):
            close(compiled(x), torch.sin(x) * 3)
        assert (graphs.records > before) == is_recorded
    compiled = kiln.compile(torch.sin, backend="kiln", mode="reduce-overhead", options={"cuda_graphs": False})
    before = graphs.records
    for _ in range(3):
        compiled(x)
    assert graphs.records == before


def test_unknown_modes():
    with pytest.raises(kiln.exc.UnknownMode, match="'default', 'reduce-overhead', 'max-autotune'"):
        kiln.compile(torch.sin, mode="fast")
    with pytest.raises(kiln.exc.UnknownOption):
        kiln.compile(torch.sin, backend="eager", mode="reduce-overhead")


def test_explain_has_the_reason():
    found = kiln.explain(lambda x: torch.sin(x) + 1, mode="reduce-overhead")(torch.randn(3))
    assert "A program runs without a CUDA graph: the tensor" in str(found)


# ---- profiles --------------------------------------------------------------------------------------------------------


def test_the_profiler_sees_recorded_programs(graphs):
    x = graphs.randn(8, 8)
    compiled = graphs.compile(lambda x: (x.exp() + 1).sum(0))
    for _ in range(3):
        compiled(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        close(compiled(x), (x.exp() + 1).sum(0))
    names = [event.name for event in found.events()]
    assert [name for name in names if name.startswith("recorded kiln program inference")]
    assert graphs.records == 1


def test_kernels_of_recorded_programs_are_measured(graphs):
    explained = kiln.explain(lambda x: (x.exp() + 1).sum(0), options={"cuda_graphs": True}, profile=True)
    found = explained(graphs.randn(64, 64))
    (times,) = found.profile
    assert any(step.is_kernel and step.name.startswith("kiln_exp_add_sum") for step in times.steps)
    assert graphs.records >= 1
