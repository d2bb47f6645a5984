"""Run a program once and note everything about the run that a user could see."""

from __future__ import annotations

import contextlib
import io
import os
import random
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from kiln.exc import RecompileWarning
from kiln.platform.torch_dispatch import count_function_modes
from kiln.testing.compare import numpy

from ..platform.light_dataclass import dataclass

_KILN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARY_PREFIXES = tuple({_KILN + os.sep, *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))})
_LIBRARY_PREFIXES += ("<kiln ",)  # functions that Kiln generated
_DEVICES = ("cpu", "cuda")
_cuda_is_initialized: Callable[[], bool] = torch.cuda.is_initialized


@dataclass
class CallOutcome:
    """What one call did: what it returned or raised, what its backward raised, and what it left in the process."""

    returned: Any = None
    raised: BaseException | None = None
    traceback: list[tuple[str, int]] = field(default_factory=list)
    backward_raised: BaseException | None = None
    warnings: list[tuple[type, str]] = field(default_factory=list)
    stdout: str = ""
    modes: dict[str, Any] = field(default_factory=dict)
    random_states: dict[str, Any] = field(default_factory=dict)


@dataclass
class Outcome:
    """What one run did, call by call, and how it left its arguments, the program, its globals and the user's state."""

    calls: list[CallOutcome] = field(default_factory=list)
    arguments: Any = None
    program: Any = None
    globals: dict[str, Any] = field(default_factory=dict)
    state: Any = None


def observe_call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, backward: bool
) -> CallOutcome:
    """Call a function, then backward through what it returned, and note what there is to see."""
    outcome = CallOutcome()
    stdout = io.StringIO()
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(stdout):
        warnings.simplefilter("always")
        try:
            outcome.returned = function(*args, **kwargs)
        except (
            Exception,
            SystemExit,
            KeyboardInterrupt,
            GeneratorExit,
        ) as error:  # all that a program may raise itself
            outcome.raised = error
            outcome.traceback = user_lines(error)
        outcome.modes = read_modes()
        if backward and outcome.raised is None:
            outcome.backward_raised = run_backward(outcome.returned)
        outcome.random_states = read_random_states()
    outcome.stdout = stdout.getvalue()
    outcome.warnings = [
        (item.category, str(item.message)) for item in caught if not issubclass(item.category, RecompileWarning)
    ]
    return outcome


def user_lines(error: BaseException) -> list[tuple[str, int]]:
    """Function names and line numbers of an exception's traceback, in files of neither Python, torch nor Kiln."""
    lines = [
        (frame.f_code.co_name, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(_LIBRARY_PREFIXES)
    ]
    # How deep an endless recursion gets depends on how deep the stack was before: each line once will do.
    return list(dict.fromkeys(lines)) if isinstance(error, RecursionError) else lines


def run_backward(returned: Any) -> BaseException | None:
    """Backward through all differentiable tensors in a result, weighted so that no gradient cancels by symmetry."""
    outputs = [tensor for tensor in tensors_in(returned) if tensor.requires_grad]
    if not outputs:
        return None
    try:
        torch.autograd.backward(outputs, [_weights(output) for output in outputs])
    except Exception as error:
        return error
    return None


def _weights(tensor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        ramp = torch.arange(tensor.numel(), dtype=torch.float64).add_(1.0).cos_()
        return ramp.reshape(tensor.shape).to(dtype=tensor.dtype, device=tensor.device)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors that a result holds, each once, in the order in which they are met."""
    found: list[torch.Tensor] = []
    seen: set[int] = set()
    pending = [value]
    while pending:
        item = pending.pop()
        if id(item) in seen or isinstance(item, (str, int, float, type, torch.nn.Module)):
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif isinstance(item, (list, tuple, set, frozenset)):
            pending.extend(reversed(list(item)))
        elif isinstance(item, dict):
            pending.extend(reversed(list(item.values())))
        elif isinstance(getattr(item, "__dict__", None), dict) and not callable(item):
            pending.extend(reversed(list(item.__dict__.values())))
    return found


def read_modes() -> dict[str, Any]:
    """The switches of torch that a program can leave behind in another position."""
    modes: dict[str, Any] = {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "default dtype": torch.get_default_dtype(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "torch-function modes": count_function_modes(),
    }
    for device in _DEVICES:
        modes[f"autocast on {device}"] = torch.is_autocast_enabled(device)
        modes[f"autocast dtype on {device}"] = torch.get_autocast_dtype(device)
    modes["autocast blocks open"] = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return modes


def read_random_states() -> dict[str, Any]:
    """The states of all random generators that a program may draw from."""
    states: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "random": hash(random.getstate()),  # 625 numbers, which a message need not show
    }
    if numpy is not None:
        states["numpy"] = numpy.random.get_state(legacy=False)["state"]
    if torch.cuda.is_available() and _cuda_is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def seed_everything(seed: int) -> None:
    """The same start for each run."""
    torch.manual_seed(seed)
    random.seed(seed)
    if numpy is not None:
        numpy.random.seed(seed)


@contextlib.contextmanager
def numbered_from(first: int) -> Iterator[None]:
    """Hooks get the same numbers in each run, which are keys of dictionaries; later ones get none of them again."""
    latest = RemovableHandle.next_id
    RemovableHandle.next_id = first
    try:
        yield
    finally:
        RemovableHandle.next_id = max(latest, RemovableHandle.next_id)


@contextlib.contextmanager
def clean_process() -> Iterator[None]:
    """Whatever a run leaves behind in torch's switches and the random generators is put back afterwards."""
    modes = read_modes()
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    numpy_state = numpy.random.get_state() if numpy is not None else None
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else only the first of the runs would see the warnings that come once
    try:
        yield
    finally:
        torch.set_warn_always(always)
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        if numpy_state is not None:
            numpy.random.set_state(numpy_state)
        torch.set_grad_enabled(modes["grad mode"])
        torch.set_default_dtype(modes["default dtype"])
        if torch.are_deterministic_algorithms_enabled() != modes["deterministic algorithms"]:
            torch.use_deterministic_algorithms(modes["deterministic algorithms"])
        torch.autograd.set_detect_anomaly(modes["anomaly mode"])
        for device in _DEVICES:
            torch.set_autocast_enabled(device, modes[f"autocast on {device}"])
            torch.set_autocast_dtype(device, modes[f"autocast dtype on {device}"])
