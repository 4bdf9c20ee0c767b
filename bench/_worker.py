"""The parent's side of the conformance benches: cases by name, their results, worker processes.

Nothing here imports JAX. `Worker` is the handle on a process that runs `_check.py`, which does the
work case by case; it survives crashes, and cases that never end.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _common import child_environment

# Both sides are compiled alike, so that quick and plain machine code compares as well as the best.
QUICK_XLA = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
CORPUS, SUITE = 1, 2
STAGES = ("written", "imported", "bits", "stablehlo")


# ------------------------------------------------------------------------ cases


@dataclasses.dataclass(frozen=True)
class Setting:
    """What must be fixed before JAX starts: every case of a worker shares it."""

    devices: int = 1
    x64: bool = False


@dataclasses.dataclass(frozen=True, order=True)
class CaseName:
    """A case without its program: what the parent process, which has no JAX, knows of it."""

    part: int
    name: str
    group: str
    setting: Setting = dataclasses.field(default=Setting(), compare=False)


@dataclasses.dataclass
class Row:
    """The result of a case. `outcome`: "passed", "failed" or "excluded" (JAX itself cannot run it).

    The booleans say which stages were reached and held; `proof` is the tool's own claim.
    """

    part: int
    name: str
    group: str
    outcome: str = "failed"
    reason: str = ""
    written: bool = False
    imported: bool = False
    bits: bool = False
    stablehlo: bool = False
    proof: str = ""
    forms: tuple[str, ...] = ()
    seconds: float = 0.0


def sample(cases: Sequence[CaseName], fraction: str) -> list[CaseName]:
    """A fixed share of the cases of every group, at least one: `fraction` is `"N/M"`.

    Chosen by a hash of the names, so that it is the same in every process, and nearly the same
    on every JAX line.
    """
    part, whole = (int(number) for number in fraction.split("/"))
    groups = collections.defaultdict(list)
    for case in cases:
        groups[case.part, case.group].append(case)
    chosen = []
    for members in groups.values():
        members.sort(key=lambda case: hashlib.sha256(case.name.encode()).digest())
        chosen += members[: -(-len(members) * part // whole)]
    return sorted(chosen)


def case_name(value: Mapping[str, Any]) -> CaseName:
    """The case behind its JSON form."""
    return CaseName(value["part"], value["name"], value["group"], Setting(**value["setting"]))


# ---------------------------------------------------------------------- the processes


@dataclasses.dataclass
class Worker:
    """A process that checks cases one by one, started again when it dies or must be ended.

    python: the interpreter, with the JAX to test on. options: `tool` and `style`.
    seconds: the limit for a case. quick: XLA without its costly optimisations, on both sides.
    """

    python: str = sys.executable
    options: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {"tool": "untrace", "style": "exact"})
    seconds: float = 120.0
    quick: bool = True
    x64: bool = False
    _process: subprocess.Popen[bytes] | None = None
    _setting: Setting | None = None
    _log: Any = None
    _pending: bytes = b""

    def list(self, part: int, setting: Setting = Setting()) -> list[CaseName]:
        """The cases of a part. Raises `RuntimeError` where they cannot be loaded."""
        answer = self._ask(["list", part], setting, 300.0)
        if isinstance(answer, dict):
            raise RuntimeError(answer["error"])
        return [case_name(value) for value in answer]

    def jax_version(self) -> str:
        """The version of JAX that the process has."""
        return self._ask(["version", None], self._setting or Setting(), 300.0)

    def check(self, case: CaseName) -> Row:
        """The row of a case; a crash or a timeout of the process is a failure of the case."""
        start = time.monotonic()
        # The first case of a process also waits for the import of JAX and of its corpus.
        limit = self.seconds + (60.0 if self._process is None else 0.0)
        answer = self._ask(["check", dataclasses.asdict(case)], case.setting, limit)
        if "error" in answer:
            seconds = time.monotonic() - start
            return Row(case.part, case.name, case.group, reason=answer["error"], seconds=seconds)
        return Row(**dict(answer, forms=tuple(answer["forms"])))

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            assert self._process.stdin is not None and self._process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
            self._process.stdout.close()
            self._log.close()
            self._process = None

    def _start(self, setting: Setting) -> None:
        environment = child_environment(setting.devices, setting.x64 or self.x64)
        if self.quick:
            environment["XLA_FLAGS"] += f" {QUICK_XLA}"
        environment["JAX_ENABLE_COMPILATION_CACHE"] = "0"
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self._process = subprocess.Popen(
            [
                self.python,
                str(Path(__file__).resolve().with_name("_check.py")),
                json.dumps(self.options),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            start_new_session=True,
        )
        self._setting, self._pending = setting, b""

    def _ask(self, request: Any, setting: Setting, seconds: float) -> Any:
        if self._process is None or self._setting != setting:
            self.close()
            self._start(setting)
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a dead process is seen when it is read
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        line = self._read_line(time.monotonic() + seconds)
        if line is not None:
            return json.loads(line)
        status = self._process.poll()
        if status is None:
            self.close()
            return {"error": f"time limit: {seconds:.0f} s"}
        self._log.seek(0)
        last = (self._log.read().strip().splitlines() or ["no output"])[-1]
        self.close()
        return {"error": f"the process died with {status}: {last[:200]}"}

    def _read_line(self, deadline: float) -> bytes | None:
        """The next answer, None when the deadline passes or the process ends without one."""
        assert self._process is not None and self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(max(deadline - time.monotonic(), 0.0)):
                    return None
                data = os.read(self._process.stdout.fileno(), 1 << 16)
                if not data:
                    self._process.wait()
                    return None
                self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return line
