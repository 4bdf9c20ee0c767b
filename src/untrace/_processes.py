"""Python processes that answer messages, and may hang or die of them."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

_TAIL = 4000  # characters that are kept of what a process printed


class Silent(Exception):
    """No answer has come in time."""


class Ended(Exception):
    """The process is no longer there. code: its exit status, negative for a signal. said: the end of what it printed."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(f"exit status {code}")
        self.code, self.said = code, said


class Process:
    """A process that has a pipe of multiprocessing.connection as its stdin, and one as its stdout. Raises OSError where it does
    not start."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests = Connection(os.dup(self._process.stdin.fileno()), readable=False)
        self._answers = Connection(os.dup(self._process.stdout.fileno()), writable=False)
        self._said = b""
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        while data := os.read(self._process.stderr.fileno(), _TAIL):
            self._said = (self._said + data)[-_TAIL:]

    def send(self, message: object) -> None:
        """Raises Ended."""
        try:
            self._requests.send(message)
        except OSError:
            raise self._ended() from None

    def answer(self, seconds: float) -> Any:
        """The next message that it sends. Raises Silent, Ended."""
        try:
            if self._answers.poll(seconds):
                return self._answers.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        raise Silent

    def _ended(self) -> Ended:
        return Ended(self._process.wait(), self.said())

    def said(self) -> str:
        """The end of what it has printed to stderr."""
        time.sleep(0.05)  # for the last of it
        return self._said.decode(errors="replace")

    def forget(self) -> None:
        """What it has printed so far is not said again."""
        self._said = b""

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
