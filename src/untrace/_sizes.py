"""One text for arguments of all sizes, where there is one: written from a trace at sizes that stand for nothing else, and
proven at the user's own."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any

from untrace._errors import UntraceError
from untrace._pipeline import Options, Result, head_of_module, write_and_prove
from untrace.capture.function import Captured, trace
from untrace.capture.sizes import Arguments, Sized, at_other_sizes
from untrace.capture.static_fields import with_idle_fields_changed
from untrace.print.jax.entry import PytreeEntry, entry_of


@dataclass(frozen=True, slots=True)
class Call:
    """A function and the arguments that it is to be written for, `static_...` as `capture.function.trace` takes them."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    static_argnums: Container[int]
    static_argnames: Iterable[str]
    note_calls: bool

    def captured(self) -> Captured:
        return trace(
            self.function, self.args, self.kwargs, self.static_argnums, self.static_argnames, self.note_calls
        )

    def entry(self, captured: Captured) -> PytreeEntry:
        nums, names = self.static_argnums, frozenset(self.static_argnames)
        return entry_of(self.function, captured, self.args, self.kwargs, nums, names)

    def on(self, dynamic: Arguments) -> Call:
        """The same call with other arguments in the place of those that are traced."""
        rest = iter(dynamic[0])
        args = tuple(a if i in self.static_argnums else next(rest) for i, a in enumerate(self.args))
        return dataclasses.replace(self, args=args, kwargs={**self.kwargs, **dynamic[1]})


def written_for_sizes(call: Call, captured: Captured, options: Options, timings: dict[str, float]) -> Result:
    """The text for all sizes that may differ, as many as are proven; else the text for the example's own."""
    if options.guard:
        captured.extra["idle_fields"] = with_idle_fields_changed(captured, lambda dynamic: call.on(dynamic).captured())
    if options.sizes == "infer" and options.style == "idiomatic" and options.prove:
        for sized in at_other_sizes(captured, lambda dynamic: call.on(dynamic).captured()):
            result = _attempt(call, sized, options, timings)
            if result is not None:
                return result
    return write_and_prove(captured, call.entry(captured), captured.name, options, timings)


def _attempt(call: Call, sized: Sized, options: Options, timings: dict[str, float]) -> Result | None:
    captured = sized.captured
    captured.extra["idle_fields"] = captured.example.extra.get("idle_fields") if captured.example else None
    entry = call.on(sized.dynamic).entry(captured)
    try:
        return write_and_prove(captured, entry, captured.name, options, timings)
    except UntraceError:
        return None
    except Exception:  # a fault in what reads sizes off shapes costs generality, never the result
        if os.environ.get("UNTRACE_STRICT"):
            raise
        return None
