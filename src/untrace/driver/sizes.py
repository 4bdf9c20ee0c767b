"""One text for arguments of all sizes, where there is one: written from a trace at sizes that stand for nothing else, and
proven at the user's own."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from untrace import jax_compat
from untrace._errors import CaptureError, ProofError, UntraceError
from untrace._options import Options
from untrace.capture.fixed_parts import Around, around
from untrace.capture.function import Captured, trace
from untrace.capture.sizes.sizes import Arguments, Sized, at_other_sizes
from untrace.capture.sizes.static_fields import with_idle_fields_changed
from untrace.driver.attempts import Result, prove_again, write_and_prove
from untrace.ir.passes import is_strict
from untrace.jaxprs.equal.comparer import are_same_callables
from untrace.module.interface.entry import PytreeEntry, entry_of


@dataclass(frozen=True, slots=True)
class Call:
    """A function and the arguments that it is to be written for, `static_...` as `capture.function.trace` takes them."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    static_argnums: Container[int]
    static_argnames: Iterable[str]
    note_calls: bool
    derivatives: str = "written"
    note_arguments: bool = False

    def with_capture(self) -> tuple[Call, Captured]:
        """This call without what is no array in its arguments, and its capture; without numbers in trees, too, where it can
        only be traced so."""
        call = self._around(False)
        try:
            return call, call.captured()
        except CaptureError:
            narrower = self._around(True)
            if len(jax.tree.leaves((narrower.args, narrower.kwargs))) == len(jax.tree.leaves((call.args, call.kwargs))):
                raise
            with contextlib.suppress(CaptureError):
                return narrower, narrower.captured()
            raise

    def _around(self, numbers: bool) -> Call:
        static = self.static_argnums, frozenset(self.static_argnames)
        function, args, kwargs = around(self.function, self.args, self.kwargs, static, numbers)
        return dataclasses.replace(self, function=function, args=args, kwargs=dict(kwargs))

    def captured(self, afresh: bool = False, sure: bool = False) -> Captured:
        """See `trace`."""
        nums, names = self.static_argnums, self.static_argnames
        how = afresh, self.derivatives, sure, self.note_arguments
        return trace(self.function, self.args, self.kwargs, nums, names, self.note_calls, *how)

    def plain(self) -> Captured:
        """The trace alone, without the calls in it."""
        return trace(self.function, self.args, self.kwargs, self.static_argnums, self.static_argnames)

    def asked(self) -> frozenset[str]:
        """What is asked of devices, by functions too that JAX has traced before."""
        with jax_compat.fresh_caches()():
            return trace(self.function, self.args, self.kwargs, self.static_argnums, self.static_argnames).asked

    def entry(self, captured: Captured) -> PytreeEntry:
        nums, names = self.static_argnums, frozenset(self.static_argnames)
        return entry_of(self.function, captured, self.args, self.kwargs, nums, names)

    def with_arguments(self, arguments: Any) -> Call:
        """The same function on other arguments: a tuple of them, a dict of keyword arguments, or a single one."""
        args, kwargs = arguments if type(arguments) is tuple else (arguments,), {}
        if isinstance(arguments, dict):
            args, kwargs = (), arguments
        if isinstance(self.function, Around):
            args = tuple(a if i in self.static_argnums else self.function.without(a) for i, a in enumerate(args))
            kwargs = {k: v if k in self.static_argnames else self.function.without(v) for k, v in kwargs.items()}
        return dataclasses.replace(self, args=args, kwargs=kwargs)

    def on(self, dynamic: Arguments) -> Call:
        """The same call with other arguments in the place of those that are traced."""
        rest = iter(dynamic[0])
        args = tuple(a if i in self.static_argnums else next(rest) for i, a in enumerate(self.args))
        return dataclasses.replace(self, args=args, kwargs={**self.kwargs, **dynamic[1]})


def written_for_sizes(
    call: Call, captured: Captured, options: Options, timings: dict[str, float], also: Sequence[Call] = ()
) -> Result:
    """The text for all sizes that may differ, as many as are proven; else the text for the example's own.

    also: calls for which it has to hold as well. Raises ProofError where no text holds for them and the example.
    """
    others = [(more, more.captured()) for more in also]
    with jax_compat.unfiltered_tracebacks():  # what is raised from here on is ours, or tells what a size may not be
        return _written_for_sizes(call, captured, options, timings, others)


def _written_for_sizes(
    call: Call,
    captured: Captured,
    options: Options,
    timings: dict[str, float],
    others: Sequence[tuple[Call, Captured]],
) -> Result:
    general: Result | None = None
    if options.guard:
        with readable_or_not():
            captured.idle = with_idle_fields_changed(captured, lambda new: call.on(new).plain())
    if options.sizes == "infer" and options.style == "idiomatic" and options.prove:
        traces = [other for _, other in others]
        afresh = captured.caches is not contextlib.nullcontext  # as the example had to be
        with readable_or_not():
            noted = captured.noted
            for sized in at_other_sizes(
                captured, lambda new: call.on(new).captured(afresh, noted), lambda new: call.on(new).plain(), traces
            ):
                if not are_same_callables(sized.objects):
                    break  # which function the text calls on the host would be a matter of belief
                if options.guard:
                    _ask(call, captured, sized.captured)
                result = _attempt(call, sized, options, timings)
                if result is not None and all(_holds(result, *other, options, timings) for other in others):
                    if not result.lost_calls:
                        return result
                    general = general or result
    if others and general is not None:
        return general
    if others:
        raise ProofError(
            f"no text for {captured.name} was proven for the example and for `also` at once: its program changes with the "
            "sizes (a loop over one, a decision on one), or it was asked for with fixed sizes. Write it for each, without also=."
        )
    if options.guard:
        _ask(call, captured)
    result = write_and_prove(captured, call.entry(captured), captured.name, options, timings)
    # Calls that only the example's own sizes keep are worth more than other sizes: a derivative that is one follows an edit.
    return result if general is None or not result.lost_calls else general


def _ask(call: Call, captured: Captured, other: Captured | None = None) -> None:
    """Adds what the function asks of devices where JAX had traced parts of it before; `other` may know that already."""
    if captured.asked_all:
        return
    if other is not None and other.asked_all:
        captured.asked |= other.asked
    else:
        with readable_or_not():
            captured.asked |= call.asked()
    captured.asked_all = True


@contextlib.contextmanager
def readable_or_not() -> Iterator[None]:
    """A fault in what finds out about other arguments, or what a class of the user's makes of them, costs generality and
    never the result."""
    try:
        yield
    except Exception:
        if is_strict():
            raise


def _holds(result: Result, call: Call, captured: Captured, options: Options, timings: dict[str, float]) -> bool:
    proof = prove_again(result.written, captured, call.entry(captured), options, timings)
    return proof.at_least("bits")


def _attempt(call: Call, sized: Sized, options: Options, timings: dict[str, float]) -> Result | None:
    captured = sized.captured
    if captured.example is not None:
        captured.idle, captured.asked = captured.example.idle, captured.example.asked
    entry = call.on(sized.dynamic).entry(captured)
    with contextlib.suppress(UntraceError), readable_or_not():
        return write_and_prove(captured, entry, captured.name, options, timings)
    return None
