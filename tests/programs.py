"""Programs for the tests of single passes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from untrace.capture import function
from untrace.capture.function import Captured
from untrace.ir.nodes import Program


def program_of(captured: Captured, name: str, signature: Any, own: Collection[str] = ()) -> Program:
    """The Program of what was traced, without library primitives but those in `own`."""
    function.expand(captured, own)
    return function.program_of(captured, captured.expanded, name, signature)
