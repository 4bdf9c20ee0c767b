"""Workers: processes that run candidates, and are replaced when one crashed or hangs."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import jax
import numpy as np

from untrace import jax_compat
from untrace._errors import OptionError
from untrace._processes import Ended, Process, Silent
from untrace.ir.types import Data
from untrace.tools.minimize.case import Case
from untrace.tools.minimize.worker import Answer, Request

# With what JAX has by itself.
_SETTINGS: Mapping[str, object] = {
    "jax_enable_x64": False, "jax_default_matmul_precision": None, "jax_default_prng_impl": "threefry2x32",
    "jax_threefry_partitionable": True, "jax_numpy_dtype_promotion": "standard",
}  # fmt: skip
WORKER = Path(__file__).with_name("worker.py")
_STARTS = 120.0  # seconds in which a process has to import JAX


@dataclass(frozen=True, slots=True)
class Ran:
    """The outputs, as NumPy's arrays ((implementation, words) of keys); `seconds` of a compilation, what a predicate said."""

    outputs: tuple[Data, ...] = ()
    seconds: float = 0.0
    holds: bool = False


@dataclass(frozen=True, slots=True)
class Raised:
    """A Python exception. kind: its type's name."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Died:
    """The process ended. code: its exit status, negative for a signal. said: the end of what it printed to stderr."""

    code: int
    said: str


@dataclass(frozen=True, slots=True)
class TimedOut:
    """No answer in `seconds`."""

    seconds: float


Outcome: TypeAlias = Ran | Raised | Died | TimedOut


class _Worker:
    def __init__(self, python: str) -> None:
        try:
            self._process = Process([python, "-P", str(WORKER)])
        except OSError as error:
            raise OptionError(f"the Python {python!r} does not start: {error}") from error
        self._running: int | None = None  # the process that runs candidates

    def begin(self) -> None:
        """Waits until it can be asked. Raises OptionError where it cannot start."""
        if self._running is None:
            ready = self._answer(_STARTS)
            if not isinstance(ready, dict) or "process" not in ready:
                raise OptionError(f"the Python that runs candidates, with JAX, does not start: {ready}")
            self._running = ready["process"]
            self._process.forget()

    def ask(self, request: Request, seconds: float) -> Answer | Died | TimedOut:
        assert self._running is not None
        try:
            self._process.send(request)
        except Ended as error:
            return self._died(error.code, error.said)
        answer = self._answer(seconds)
        if isinstance(answer, TimedOut):
            os.kill(self._running, signal.SIGKILL)
            self._running = None
            late = self._answer(_STARTS)
            while isinstance(late, dict) and "died" not in late:
                late = self._answer(_STARTS)  # it had just come to its end
        elif isinstance(answer, dict) and "died" in answer:
            return self._died(answer["died"], self._process.said())
        return answer

    def _answer(self, seconds: float) -> Answer | Died | TimedOut:
        try:
            return self._process.answer(seconds)
        except Silent:
            return TimedOut(seconds)
        except Ended as error:
            return self._died(error.code, error.said)

    def _died(self, code: int, said: str) -> Died:
        self._running = None
        return Died(code, said)

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive

    def close(self) -> None:
        if self._running is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._running, signal.SIGKILL)
        self._process.close()


@dataclass
class Runner:
    """Runs candidates. seconds: the limit of one run. `runs` counts them, `longest` is what an answer took at most, in seconds."""

    seconds: float = 60.0
    runs: int = 0
    longest: float = 0.0
    _workers: dict[str, _Worker] = field(default_factory=dict, repr=False)
    _folder: tempfile.TemporaryDirectory[str] = field(
        default_factory=lambda: tempfile.TemporaryDirectory(prefix="untrace_minimize_"), repr=False
    )

    def run(
        self,
        case: Case,
        how: str = "jit",
        settings: Mapping[str, object] | None = None,
        python: str = "",
        predicate: str | bytes = "",
        seconds: float | None = None,
    ) -> Outcome:
        """What a worker makes of a candidate. how: "jit", "eager" (operation by operation), "compile" or "predicate".
        settings: of jax.config. python: the executable, with JAX; this one by default."""
        self.runs += 1
        path = os.path.join(self._folder.name, "candidate.py")
        case.text.save(path, overwrite=True)
        request: Request = {
            "path": path, "name": case.text.name, "args": [portable(a) for a in case.args], "how": how,
            "callables": _pickled(case.text.callables), "settings": {**settings_here(), **(settings or {})}, "predicate": predicate,
            "places": [] if python else [place or os.getcwd() for place in sys.path],
        }  # fmt: skip
        python = python or sys.executable
        worker = self._workers.get(python)
        if worker is None or not worker.is_alive:
            worker = self._workers[python] = _Worker(python)
        worker.begin()
        start = time.monotonic()
        answer = worker.ask(request, self.seconds if seconds is None else seconds)
        self.longest = max(self.longest, time.monotonic() - start)
        if isinstance(answer, (Died, TimedOut)):
            return answer
        if "raised" in answer:
            return Raised(*answer["raised"])
        return Ran(tuple(answer.get("outputs", ())), answer.get("seconds", 0.0), bool(answer.get("holds")))

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()
        self._folder.cleanup()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def settings_here() -> dict[str, object]:
    """What is set in jax.config, of what a program's numbers depend on; nothing that is as JAX has it by itself."""
    return {name: value for name, usual in _SETTINGS.items() if (value := getattr(jax.config, name, usual)) != usual}


def _pickled(callables: Mapping[str, Callable[..., object]]) -> dict[str, bytes]:
    """Functions of callbacks, which have no text, for another process. Raises OptionError where they cannot go there."""
    if not callables:
        return {}
    try:
        import cloudpickle
    except ImportError:
        raise OptionError(
            f"the callback {next(iter(callables))} goes to another process with cloudpickle: pip install 'untrace[minimize]'"
        ) from None
    return {name: cloudpickle.dumps(function) for name, function in callables.items()}


def portable(value: Data) -> Data:
    """A value that another process takes: a NumPy array, a Python number, (implementation, words) of a key."""
    if isinstance(value, (bool, int, float, complex)):
        return value
    if jax_compat.is_key(value):
        return str(jax_compat.key_impl_name(value)), np.asarray(jax_compat.key_data(value))
    return np.asarray(value)


def from_portable(value: Data) -> Data:
    """The value again, in this process."""
    import jax

    return jax.random.wrap_key_data(value[1], impl=value[0]) if isinstance(value, tuple) else value


def environment() -> Sequence[str]:
    """What a report says of where it was found."""
    import jax

    device = jax.devices()[0]
    return (
        f"Python {sys.version.split()[0]}", f"jax {jax.__version__}", f"jaxlib {importlib.metadata.version('jaxlib')}",
        f"numpy {np.__version__}", f"{device.platform} ({device.device_kind})", *_flags(),
    )  # fmt: skip


def _flags() -> Sequence[str]:
    return [f"{name}={os.environ[name]}" for name in ("XLA_FLAGS", "JAX_ENABLE_X64") if os.environ.get(name)]
