"""Every error and warning of Kiln that a user can see, and how each is put into words.

An error begins with the user's own source line, then says what went wrong, then what to do about it. Texts are rendered
only when they are read: a graph break makes an `Unsupported` that is usually thrown away unread.
"""

from __future__ import annotations

import os
import types
from collections.abc import Iterable, Sequence
from typing import Any

_FRAMES_SHOWN_AT_EACH_END = 4

DEFAULT_HINT = (
    "call it outside the compiled function, wrap it with kiln.disable, "
    "or drop fullgraph=True so that Kiln runs this line in plain Python"
)


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The names among `known` that a person who typed `name` may have meant, best first."""
    import difflib  # only needed once something has gone wrong

    return difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A half sentence naming the nearest names, or the known ones where none is near."""
    candidates = sorted(known)
    close = nearest(name, candidates)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    return f"known names: {', '.join(candidates) or 'none'}"


class Location:
    """A line of the user's program: file, line number, function, and (read when first wanted) the source text.

    Not a dataclass: making one takes a tenth of the time in which Kiln is imported.
    """

    __slots__ = ("file", "function", "line", "source")

    def __init__(self, file: str, line: int, function: str = "", source: str | None = None) -> None:
        self.file, self.line, self.function, self.source = file, line, function, source

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Location):
            return NotImplemented
        return (self.file, self.line, self.function) == (other.file, other.line, other.function)

    def __hash__(self) -> int:
        return hash((self.file, self.line, self.function))

    def __repr__(self) -> str:
        return f"Location({self.file!r}, {self.line!r}, {self.function!r}, {self.source!r})"

    @classmethod
    def of_code(cls, code: types.CodeType, line: int | None = None) -> Location:
        """The given line of a code object, or its first one."""
        return cls(code.co_filename, code.co_firstlineno if line is None else line, code.co_name)

    @property
    def text(self) -> str:
        """The source line without its indentation; empty where the source is gone."""
        if self.source is not None:
            return self.source.strip()
        import linecache

        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        where = f"{_short_path(self.file)}:{self.line}"
        if self.function:
            where += f", in {self.function}"
        text = self.text
        return f"{where}:   {text}" if text else where


def _short_path(path: str) -> str:
    """A path as a person would type it from where they are: relative below the working directory, else whole."""
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):  # no working directory any more, or another drive
        return path
    return path if path.startswith("<") or relative.startswith("..") else relative


def innermost(stack: Sequence[Location]) -> int:
    """The place in a stack of the innermost line that is the user's own and not a library's; else of the last."""
    own = [index for index, location in enumerate(stack) if not is_library(location.file)]
    return own[-1] if own else len(stack) - 1


def is_library(path: str) -> bool:
    """Whether a file belongs to an installed package, to the standard library or to Kiln."""
    import sysconfig

    roots = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    return (
        path.startswith((*roots, os.path.dirname(__file__) + os.sep, "<frozen "))
        or f"{os.sep}site-packages{os.sep}" in path
    )


def render_stack(stack: Sequence[Location]) -> str:
    """The user's innermost line first, because that is the one to look at; then what it calls and how it got there."""
    if not stack:
        return ""
    first = innermost(stack)
    lines = [str(stack[first]), *(f"  which calls {location}" for location in stack[first + 1 :])]
    callers = [f"  called from {location}" for location in reversed(stack[:first])]
    hidden = len(callers) - 2 * _FRAMES_SHOWN_AT_EACH_END
    if hidden > 0:
        end = _FRAMES_SHOWN_AT_EACH_END
        callers[end:-end] = [f"  … {hidden} more calls …"]
    return "\n".join(lines + callers)


class KilnError(RuntimeError):
    """The base of all of Kiln's errors."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Subclasses have constructors of their own shape; test runners and worker pools must still be able to send
        # one between processes.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(cls: type[KilnError], args: tuple[Any, ...], state: dict[str, Any]) -> KilnError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class Unsupported(KilnError):
    """A construct that Kiln cannot capture: a graph break, or under `fullgraph=True` the user's error.

    `construct` completes "Kiln cannot capture …", `reason` says why, `hint` is a way out; `stack` holds the user's
    frames, innermost last.
    """

    def __init__(
        self, construct: str, *, reason: str = "", hint: str = DEFAULT_HINT, stack: Sequence[Location] = ()
    ) -> None:
        super().__init__(construct)
        self.construct = construct
        self.reason = reason
        self.hint = hint
        self.stack: tuple[Location, ...] = tuple(stack)

    @property
    def location(self) -> Location | None:
        """The user's innermost line, where it is known."""
        return self.stack[innermost(self.stack)] if self.stack else None

    def add_caller(self, location: Location) -> Unsupported:
        """Note the frame that called the ones known so far, and return the error itself."""
        self.stack = (location, *self.stack)
        return self

    @property
    def summary(self) -> str:
        """One sentence: what, and why."""
        return f"Kiln cannot capture {self.construct}" + (f": {self.reason}" if self.reason else "")

    def __str__(self) -> str:
        hint = _sentence(f"What to do: {self.hint}") if self.hint else ""
        return _paragraphs(render_stack(self.stack), _sentence(self.summary), hint)


def _paragraphs(*parts: str) -> str:
    return "\n".join(part for part in parts if part)


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?", "…")) else text + "."


class UserError(KilnError):
    """Kiln was asked for something that cannot be: the call itself has to change."""

    def __init__(self, message: str, *, hint: str = "", stack: Sequence[Location] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.stack: tuple[Location, ...] = tuple(stack)

    def __str__(self) -> str:
        hint = _sentence(f"What to do: {self.hint}") if self.hint else ""
        return _paragraphs(render_stack(self.stack), _sentence(self.message), hint)


class NotCallable(KilnError, TypeError):
    """`kiln.compile` (or another function of Kiln's) was given something that cannot be called."""

    def __init__(self, value: object, taker: str = "kiln.compile") -> None:
        super().__init__(f"{taker} needs a callable (a function, a method, an nn.Module, …), not {_described(value)}.")


class UnknownBackend(KilnError, ValueError):
    """No backend is registered under this name."""

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        self.name = name
        self.known = tuple(sorted(known))
        super().__init__(
            f"There is no backend called {name!r}: {did_you_mean(name, self.known)} "
            "(kiln.register_backend adds one; a function can also be passed as backend=)"
        )


class UnknownOption(KilnError, TypeError):
    """``options=`` has a name that the backend has no parameter for."""

    def __init__(self, backend: str, option: str, known: Iterable[str]) -> None:
        super().__init__(f"The backend {backend!r} takes no option {option!r}: {did_you_mean(option, known)}")


class UnknownMode(KilnError, ValueError):
    """``mode=`` has a name that is no mode of `kiln.compile`."""

    def __init__(self, mode: object, known: Iterable[str]) -> None:
        super().__init__(f"There is no mode {mode!r}: the modes of kiln.compile are {', '.join(map(repr, known))}")


class InvalidBackend(KilnError, TypeError):
    """A backend that is not callable, or that returned something that is not."""

    def __init__(self, backend: str, returned: object) -> None:
        self.backend = backend
        super().__init__(
            f"The backend {backend!r} returned {_described(returned)}; a backend takes (graph_module, example_inputs) "
            "and must return a callable that takes the same inputs and returns the graph's outputs in a tuple or list."
        )


def _described(value: object) -> str:
    text = repr(value)
    if len(text) > 60:
        text = text[:57] + "…"
    return f"{text} of type {type(value).__name__}"


class BackendError(KilnError):
    """A backend raised while it compiled a graph; the backend's own exception is the `__cause__`."""

    def __init__(self, backend: str, error: BaseException, *, stack: Sequence[Location] = ()) -> None:
        super().__init__(backend, f"{type(error).__name__}: {error}")
        self.backend = backend
        self.stack: tuple[Location, ...] = tuple(stack)
        self.__cause__ = error

    def __str__(self) -> str:
        text = f"The backend {self.backend!r} failed to compile the graph captured here: {self.args[1]}"
        hint = "What to do: try backend='eager' to see whether the program itself runs, then report to the backend."
        return _paragraphs(render_stack(self.stack), text, hint)


class RecompileLimitExceeded(KilnError):
    """A function was compiled for too many different inputs while eager execution was ruled out by `fullgraph=True`."""

    def __init__(self, function: str, limit: int, reasons: Sequence[str], location: Location | None = None) -> None:
        super().__init__(function, limit)
        self.function = function
        self.limit = limit
        self.reasons = tuple(reasons)
        self.location = location

    def __str__(self) -> str:
        return describe_recompiles(self.function, self.limit, self.reasons, self.location)


class RecompileError(KilnError):
    """A function would be compiled again while `kiln.config.error_on_recompile` forbids it."""

    def __init__(self, function: str, reason: str, location: Location | None = None) -> None:
        super().__init__(function, reason)
        self.function = function
        self.reason = reason
        self.location = location

    def __str__(self) -> str:
        text = f"Recompiling function {self.function} (kiln.config.error_on_recompile is on): {self.reason}"
        return _paragraphs(str(self.location or ""), _sentence(text))


class SwitchedOff(KilnError):
    """Something was asked for that is switched off, because Kiln does not know the running torch well enough."""

    def __init__(self, asked: str, reason: str) -> None:
        super().__init__(asked, reason)
        self.asked, self.reason = asked, reason

    def __str__(self) -> str:
        hint = "What to do: install a torch that this Kiln knows, or a newer Kiln; `python -m kiln doctor` says more."
        return f"{self.asked} is switched off: {_sentence(self.reason)}\n{hint}"


class PlatformWarning(UserWarning):
    """The running torch is newer than Kiln knows, or something that Kiln assumes about it does not hold."""


class RecompileWarning(UserWarning):
    """A function met the recompile limit and runs in plain Python from now on."""

    @classmethod
    def about(
        cls, function: str, limit: int, reasons: Sequence[str], location: Location | None = None
    ) -> RecompileWarning:
        """The warning for one function, with the reason of each recompile."""
        text = describe_recompiles(function, limit, reasons, location)
        return cls(f"{text}\nNew inputs of this function run in plain Python from now on.")


def describe_recompiles(function: str, limit: int, reasons: Sequence[str], location: Location | None = None) -> str:
    """Which function was compiled how often, why each time, and what to do about it."""
    lines = [str(location)] if location is not None else []
    times = "once" if limit == 1 else f"{limit} times"
    lines.append(f"{function} was compiled {times} (kiln.config.recompile_limit), and needs compiling again:")
    lines.extend(f"  {number}. {reason}" for number, reason in enumerate(reasons, 1))
    lines.append(
        "What to do: keep what varies out of the function's assumptions (dynamic=True or kiln.mark_dynamic for sizes, "
        "a tensor instead of a Python number), or raise kiln.config.recompile_limit."
    )
    return "\n".join(lines)


class CheckFailed(KilnError):
    """A compiled kernel gives something else than eager, found by ``options={"check": True}``: a bug in Kiln."""

    def __init__(self, difference: str) -> None:
        super().__init__(difference)

    def __str__(self) -> str:
        hint = (
            "This is a bug in Kiln, not in your program; please report it with what kiln.explain(...).save_repro(path) "
            "writes. Until it is fixed: backend='aot_eager'."
        )
        return f"{self.args[0].rstrip()}\n{hint}"


class DriverError(KilnError):
    """The CUDA driver is missing, or refused something; ``number`` is its error, 0 if it is none of the driver's."""

    # Errors of kernels that ran, such as an illegal access: nothing runs on the GPU any more in this process.
    ON_THE_GPU = frozenset({700, 702, 710, 714, 715, 716, 717, 718, 719})

    def __init__(self, message: str, number: int = 0) -> None:
        super().__init__(message, number)
        self.message, self.number = message, number

    @property
    def is_final(self) -> bool:
        """Whether nothing runs on the GPU any more."""
        return self.number in self.ON_THE_GPU

    def __str__(self) -> str:
        return _sentence(self.message)


class UnknownSetting(KilnError, AttributeError):
    """`kiln.config` has no setting of this name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(f"kiln.config has no setting {name!r}: {did_you_mean(name, known)}")


class NotAvailable(KilnError, NotImplementedError):
    """A name of torch's compiler was used, while Kiln stands in for it (`kiln.install`), that Kiln does not have."""

    def __init__(self, name: str, reason: str, hint: str) -> None:
        super().__init__(name, reason, hint)
        self.name = name

    def __str__(self) -> str:
        name, reason, hint = self.args
        return f"Kiln has no {name}: {_sentence(reason)}\n{_sentence(f'What to do: {hint}')}"


class InternalError(KilnError):
    """A bug in Kiln; the exception behind it is the `__cause__`."""

    def __init__(self, doing: str, error: BaseException | None = None, *, stack: Sequence[Location] = ()) -> None:
        super().__init__(doing, f"{type(error).__name__}: {error}" if error is not None else "")
        self.stack: tuple[Location, ...] = tuple(stack)
        self.__cause__ = error

    def __str__(self) -> str:
        doing, cause = self.args
        text = f"Kiln failed while {doing}" + (f": {cause}" if cause else "")
        hint = (
            "This is a bug in Kiln, not in your program; please report it with the program and this traceback. "
            "Until it is fixed: mark the function with kiln.disable, or (without fullgraph=True) let Kiln warn and "
            "run it in plain Python (kiln.config.raise_internal_errors = False)."
        )
        return _paragraphs(render_stack(self.stack), _sentence(text), hint)
