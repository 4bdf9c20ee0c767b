"""From a call to its text for another target: captured with all derivatives written out, lifted as for JAX, lowered to what
the target has, written, and run beside the original."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.extend

from untrace import jax_compat
from untrace._errors import ProofError, UnsupportedPrimitiveError, UntraceError
from untrace._forms import Plain, forms_of
from untrace._options import Options
from untrace._pipeline import Attempt, name_of_transformed
from untrace._sizes import Call
from untrace._version import __version__
from untrace.capture.function import Captured
from untrace.capture.sizes.sizes import at_other_sizes
from untrace.capture.sizes.static_fields import with_idle_fields_changed
from untrace.ir.evaluate import rounded_otherwise
from untrace.ir.passes import ALL, NONE, Course, is_strict
from untrace.print.jax.entry import FlatEntry, PytreeEntry
from untrace.print.jax.guard import guarded_by
from untrace.print.jax.module import Manner, Written, write_module
from untrace.prove.load import load_text
from untrace.prove.report import Proof
from untrace.prove.retrace import of_leaves
from untrace.targets.base import Translated
from untrace.targets.check import checked
from untrace.targets.numpy import control, guard, lower, rules, runtime  # noqa: F401  (registers rules and helpers)
from untrace.targets.numpy.rules.table import NUMPY
from untrace.targets.numpy.writer import NumpyModule

TARGETS = ("numpy",)
# Of what they find another target knows nothing: it has the equations instead.
_WITHOUT = frozenset(
    {
        "checkpoints",
        "checkpoints-in-the-forward-pass",
        "associative-scans",
        "solvers",
        "pullbacks",
        "equal-pullbacks",
        "tree-maps",
        "residuals",
    }
)


def translated(target: str, call: Call, options: Options, also: Sequence[Call] = ()) -> Translated:
    """The text for `target`, for all sizes that may differ if one is found that holds for them.

    Raises CaptureError, UnsupportedPrimitiveError for all that the target cannot express at once, ProofError where the
    text does not compute what the original does.
    """
    options = replace(options, derivatives="written", without=options.without | _WITHOUT, reroll="loop")
    captured = call.captured()
    _refuse_classes(captured)
    if options.guard:
        with contextlib.suppress(Exception):  # costs generality, never the result
            captured.idle = with_idle_fields_changed(captured, lambda new: call.on(new).captured())
    others = [more.captured() for more in also]
    if options.sizes == "infer":
        with contextlib.suppress(UntraceError):
            for sized in at_other_sizes(captured, lambda new: call.on(new).captured(), others):
                at = sized.captured
                if at.example is not None:
                    at.idle = at.example.idle
                found = _attempt(target, call.on(sized.dynamic), at, options, [captured, *others])
                if isinstance(found, Translated):
                    return found
    found = _attempt(target, call, captured, options, [captured, *others])
    if not isinstance(found, Translated):
        raise ProofError(
            f"the text of {captured.name} for {target} does not compute what the original does: {found}.\n"
            "This is a bug of untrace, or a program whose results rounding decides (a search that stops at a tolerance). "
            "With prove=False you get the text all the same. The text for JAX is proven by itself."
        )
    return found


def _attempt(
    target: str, call: Call, captured: Captured, options: Options, examples: Sequence[Captured]
) -> Translated | str:
    """The text written from a trace, checked on the examples; what is wrong there otherwise."""
    why = ""
    entry = call.entry(captured)
    if captured.summary:
        captured.name = name_of_transformed(captured.summary, captured.name)
    for course in (ALL, NONE):  # without the passes over statements, where one of them was wrong about a loop
        try:
            written = _write(captured, entry, options, course)
            proofs = [_proof(written, example) for example in examples] if options.prove else [Proof("unproven")]
        except UnsupportedPrimitiveError:
            raise
        except Exception as error:
            if is_strict():
                raise
            why = why or f"{type(error).__name__}: {error}"
            continue
        weakest = next(p for level in ("unproven", "close", "bits") for p in proofs if p.level == level)
        if not options.prove or weakest.at_least("close"):
            written.with_docstring(_head(captured, target, str(weakest)), _head(captured, target, ""))
            return Translated(target, written.source, written.name, weakest, written.arrays, written.notes)
        why = why or weakest.detail
        if is_strict():
            raise ProofError(weakest.detail)
    return why


def _write(captured: Captured, entry: PytreeEntry, options: Options, course: Course) -> Written:
    plain = Plain(captured, captured.name, entry, lifted=True)
    form = next(forms_of(captured, plain, options, compiles=False))
    attempt = Attempt.at(captured, plain, form, captured.name, options, {}, {}, compiles=False)
    program = attempt.lifted_program()
    lower.lowered(program, lambda name: NUMPY.find(name) is not None)
    written = write_module(
        program,
        _head(captured, "numpy", ""),
        standalone=True,
        idiomatic=True,
        comments=options.comments,
        guarded=guarded_by(captured) if options.guard else None,
        manner=Manner(course=course),
        writer=NumpyModule,
    )
    return written


def _refuse_classes(captured: Captured) -> None:
    """Raises UnsupportedPrimitiveError where arguments or results have classes that JAX alone can take apart."""
    keys = [x for x in jax.tree.leaves((captured.args, captured.kwargs)) if jax_compat.is_key(x)]
    if any(jax_compat.key_impl_name(key) != "threefry2x32" for key in keys):
        raise UnsupportedPrimitiveError(
            "this program cannot be written for NumPy: it takes keys of another implementation than threefry2x32"
        )
    trees = [jax.tree.structure(x) for x in (captured.args, captured.kwargs, captured.out_example)]
    for tree in trees:
        if tree.node_data() is None:
            continue
        kind, _ = tree.node_data()
        if kind not in (dict, list, tuple, type(None)) and not hasattr(kind, "_make"):
            raise UnsupportedPrimitiveError(
                f"this program cannot be written for NumPy: it takes or gives a {kind.__module__}.{kind.__qualname__}, "
                "which only JAX knows how to take apart. Give it dicts, lists, tuples or named tuples instead."
            )
        trees += tree.children()


def _proof(written: Written, captured: Captured) -> Proof:
    module = load_text(written.source, written.name, written.arrays)
    leaves = jax.tree.leaves((captured.args, captured.kwargs))
    names = [
        f"result{jax.tree_util.keystr(path)}" for path, _ in jax.tree_util.tree_leaves_with_path(captured.out_example)
    ]
    entry = Plain(captured, captured.name, FlatEntry()).whole.entry
    return checked(
        jax.extend.core.jaxpr_as_fun(captured.jaxpr),
        lambda *given: rounded_otherwise(entry, *given),
        of_leaves(module, written, captured),
        leaves,
        names,
    )


def _head(captured: Captured, target: str, proof: str) -> str:
    """The docstring of a written module."""
    where = captured.where()
    what = captured.summary or f"`{captured.name}`"
    state = " · ".join([f"untrace {__version__}", f"jax {jax.__version__}", f"for {target}", proof or "unproven"])
    return "\n".join(
        [f"{what}{f' ({where})' if where else ''}.", "", state, *([""] if captured.notes else []), *captured.notes]
    )
