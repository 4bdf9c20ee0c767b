"""`untrace.lint`: JAX's sharp bits, from the trace of a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from untrace import jax_compat
from untrace._errors import CaptureError, OptionError
from untrace._locate import closest
from untrace.capture.calls.checkpoints import Checkpoints, noted_checkpoints
from untrace.capture.function import Captured, name_of, trace
from untrace.capture.jaxpr import Importer
from untrace.ir.nodes import Function
from untrace.module.interface.signature import static_arguments
from untrace.tools.lint.findings import LintFinding, LintReport
from untrace.tools.lint.ignores import is_ignored, unknown_rules
from untrace.tools.lint.program import Linted
from untrace.tools.lint.rules.table import NAMES, RULES
from untrace.tools.values import leaf_names


def lint(
    fn: Callable[..., Any],
    *,
    rules: str | Sequence[str] = (),
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
) -> Callable[..., LintReport]:
    """A function of `fn`'s arguments that finds JAX's sharp bits in it: `lint(fn)(*args, **kwargs) -> LintReport`, a sequence of
    findings, each with the line, the cost and the change.

    The function is traced, twice, on the arguments (arrays, pytrees of them, `jax.ShapeDtypeStruct`s); where they have values,
    what its indices depend on is run with these. Only lines of the author's are named, and not those of libraries.
    `# untrace: ignore[rule]` on a line silences a rule there, `# untrace: ignore` all of them.

    rules: names of those that are looked for, all by default. static_argnums, static_argnames: arguments with fixed Python
    values, as in `jax.jit`.

    Raises CaptureError where the function cannot be traced, OptionError for what is no rule.
    """
    chosen = (rules,) if isinstance(rules, str) else tuple(rules)
    for name in chosen:
        if name not in NAMES:
            raise OptionError(f"{name!r} is no rule; the rules are {', '.join(NAMES)}.{closest(name, list(NAMES))}")

    def linted(*args: Any, **kwargs: Any) -> LintReport:
        nums, names = static_arguments(fn, args, static_argnums, static_argnames)
        captured, program = _traced(fn, args, kwargs, nums, names)
        try:
            again = _traced(fn, args, kwargs, nums, names)[1]
        except CaptureError:
            again = None
        leaves = jax.tree.leaves((captured.args, captured.kwargs))
        subject = Linted(captured, program, again, leaves, leaf_names(fn, args, kwargs, nums, names))
        found: list[LintFinding] = []
        for rule in RULES:
            if not chosen or rule.name in chosen:
                found += rule.find(subject)
        return _report(name_of(fn), found, subject)

    return linted


def _traced(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], nums: frozenset[int], names: frozenset[str]
) -> tuple[Captured, Function]:
    """The function traced afresh, so that each call of the author's own functions is on its own line."""
    checkpoints = Checkpoints()
    with jax_compat.fresh_caches()():
        with noted_checkpoints(checkpoints):
            captured = trace(fn, args, kwargs, nums, names)
        return captured, Importer(checkpoints=checkpoints, rules=False).function(captured.jaxpr, captured.name)


def _report(name: str, found: Sequence[LintFinding], subject: Linted) -> LintReport:
    order = {name: number for number, name in enumerate(NAMES)}
    kept = [f for f in found if not is_ignored(f.rule, f.file, f.line, subject.lines.get((f.file, f.line), f.line))]
    kept.sort(key=lambda f: (f.file, f.line, order[f.rule]))
    files = sorted({frame.file for seen in subject.seen for frame in seen.site.user_frames})
    notes = [*subject.notes, *[note for file in files for note in unknown_rules(file, NAMES)]]
    return LintReport(name, tuple(kept), len(found) - len(kept), tuple(notes))
