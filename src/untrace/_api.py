"""The public verbs: decompile, from_jaxpr, and the Decompiled that they give."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from untrace import _html, jax_compat
from untrace._errors import OptionError
from untrace._garbage import no_collections
from untrace._options import ALLOWED, WORDS, Options
from untrace.capture.function import Captured
from untrace.driver.attempts import Result, write_and_prove
from untrace.driver.sizes import Call, written_for_sizes
from untrace.driver.steps import Step, steps_of
from untrace.module.interface.entry import FlatEntry
from untrace.module.interface.signature import static_arguments
from untrace.prove.load import LoadedText, load_text
from untrace.prove.report import Proof
from untrace.prove.saving import save_module
from untrace.prove.source_map import SourceMap
from untrace.python import helpers
from untrace.refine.context import argument_types, author_sources, moved_lines, traced_calls
from untrace.refine.editing import Answers, edited
from untrace.refine.functions import Editor
from untrace.refine.judge import Text
from untrace.refine.sizes import TracedCall
from untrace.targets.jax.rules.table import JAX

if TYPE_CHECKING:
    from untrace.driver.in_c import InC
    from untrace.driver.translated import Translated

__all__ = ["Decompiled", "decompile", "from_jaxpr", "rule", "steps"]

rule = JAX.user_rule
"""Decorator: teaches untrace how a primitive is written, `@untrace.rule("my_primitive")`.

The function gets the writer, the operands as expressions and every parameter by keyword, and returns an expression:
`w.lax(name, *args, **kwargs)`, `w.jnp(...)`, `w.jax(...)`, or a node of `untrace.python.tree`.
"""


@dataclass(eq=False)
class Decompiled:
    """A JAX function as text, and what was proven of it. Calling it runs the *text*, not the original.

    `source`: a whole importable module. `name`: its entry function. `proof`: `print(d.proof)` reads as one line.
    `jaxpr`: the captured ClosedJaxpr of the original. `timings`: seconds of each step (capture, write, load, retrace,
    compare). `arrays`: the constants over 1 KB, which `save` puts into an `.npz` beside the module. `callables`: Python
    functions (of callbacks, policies) that have no text, by the name of what stands for each in the module; calling
    this object uses them, a saved module needs `module.NAME.function = ...` before its first call. `answers`: what came of
    each answer of an editor, see `refine`.
    """

    source: str
    name: str
    proof: Proof
    jaxpr: Any
    arrays: dict[str, np.ndarray] = field(repr=False, default_factory=dict)
    timings: dict[str, float] = field(repr=False, default_factory=dict)
    notes: tuple[str, ...] = ()
    callables: dict[str, Callable[..., Any]] = field(repr=False, default_factory=dict)
    _origins: list[Any] = field(repr=False, default_factory=list)
    _module: LoadedText | None = field(repr=False, default=None)
    _translate: Callable[[str], Translated | InC] | None = field(repr=False, default=None)
    _mapped: Callable[[LoadedText], SourceMap] | None = field(repr=False, default=None)
    answers: Answers = field(repr=False, default_factory=Answers)
    _calls: tuple[TracedCall, ...] = field(repr=False, default=())

    @property
    def module(self) -> LoadedText:
        """The text as an executed module (compiled once)."""
        if self._module is None:
            self._module = load_text(self.source, self.name, self.arrays, self.callables)
        return self._module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the text on the original's arguments; returns the original's pytree."""
        return getattr(self.module, self.name)(*args, **kwargs)

    def _repr_html_(self) -> str:
        """For notebooks: what was proven, and the highlighted source."""
        return _html.written(self.name, [str(self.proof), *self.notes], *helpers.parted(self.source))

    def origin(self, line: int) -> str:
        """`file.py:12 (function)` of the user's statement behind a line of `source` (1-based), "" where there is none."""
        found = self._origins[line - 1] if 0 < line <= len(self._origins) else ""
        return found if isinstance(found, str) else jax_compat.user_line(found)

    @cached_property
    def source_map(self) -> SourceMap:
        """Which expressions of `source` compute which equations of the program, and which of the author's those were.

        Made when it is first asked for, by tracing the text once more. Raises OptionError of what came from PyTorch.
        """
        if self._mapped is None:
            raise OptionError("what came from PyTorch has no source map; its comments have the author's statements")
        return self._mapped(self.module)

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> str:
        """Writes the module to `path`, and its large constants to an `.npz` beside it; returns the path.

        Each file appears whole or not at all. Raises OutputExistsError where one exists, unless `overwrite`.
        """
        return save_module(path, self.source, self.arrays, overwrite)

    def refine(self, editor: Editor, *, tries: int = 1, seconds: float = 60.0) -> Decompiled:
        """The text after an editor went over its functions, where only what is proven stays; `print(d.answers)` says what was
        taken, what was refused, and why.

        editor: any callable that takes a function's text, a `str` that knows its types, callers, and the author's source
        (`untrace.FunctionText`), and gives another one, or None. It may rename variables, say the same otherwise, take
        lines together. An answer is parsed first, and refused, before anything of it runs, unless it consists of words of the
        text and of what computes in `jax`, `jax.numpy`, `jax.lax` and their like: no new imports, decisions or globals, nothing that
        computes in decorators and defaults. Then it is traced, in a process of its own, with at most `seconds` for it, at all
        sizes at which the text was proven and at one more: it must come back as the same jaxpr, or be as much as was proven
        of the text, itself and its derivative. Where it is refused, the editor may try again, `tries` times in all.

        Raises OptionError where the text cannot be traced in another process.
        """
        text = Text(self.source, self.name, self.arrays, self.proof.level, self._calls)
        types = argument_types(self.source, self.name, self.arrays, self._calls)
        authors = author_sources(self.source_map) if self._mapped is not None else {}
        source, answers = edited(text, editor, types, authors, seconds, tries)
        origins = moved_lines(self.source, source, self._origins)
        return dataclasses.replace(self, source=source, answers=answers, _module=None, _origins=origins)

    def to(self, target: str) -> Translated | InC:
        """The same program for another target: "numpy", "torch", "mpi4py" or "c". Its derivatives are written
        out there, but for those calls of the function's own that PyTorch has as well.

        Raises OptionError for a target that is not there yet, UnsupportedPrimitiveError for what the target cannot express.
        """
        _check_target(target)
        if self._translate is None:
            raise OptionError("what came as a jaxpr is written for JAX only")
        return self._translate(target)


_TARGETS = ("numpy", "torch", "mpi4py", "c")


def _check_target(target: str) -> None:
    if target not in _TARGETS:
        known = ", ".join(map(repr, _TARGETS))
        raise OptionError(f"the target {target!r} is not there yet; this version has 'jax' and {known}")


def decompile(
    fn: Callable[..., Any],
    *,
    style: str = "idiomatic",
    standalone: bool = False,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    prove: bool = True,
    simplify: bool = True,
    comments: str = "some",
    annotations: str = "none",
    reroll: str = "loop",
    sizes: str = "infer",
    also: Sequence[Any] = (),
    guard: bool = True,
    derivatives: str = "auto",
    allow: Sequence[str] = ALLOWED,
    target: str = "jax",
) -> Callable[..., Any]:
    """A function of `fn`'s arguments that gives its source: `decompile(fn)(*args, **kwargs) -> Decompiled`.

    Arguments are arrays, pytrees of them, or `jax.ShapeDtypeStruct`s; only shapes and dtypes matter, and the shapes only as
    far as the program changes with them.

    style: "idiomatic", names, functions and library calls come back; "exact", one statement per equation.
    standalone: pytree classes of libraries are not imported but replaced by twins that the module defines.
    static_argnums, static_argnames: arguments with fixed Python values, as in `jax.jit`.
    prove: trace the written text again and compare; `False` leaves `proof.level` "unproven".
    simplify: in idiomatic style, rewrites that keep every bit (no `* 1.0`); without them the proof is the same jaxpr.
    comments: "full", "some" or "none": shapes and places of the original source beside the statements; "none" leaves out
        the docstrings of functions as well.
    annotations: "jaxtyping" annotates parameters and results (`Float[Array, "8 128"]`); "none" does not.
    reroll: "scan" makes a `lax.scan` over stacked parameters of calls that go through a list of them, where "loop" writes
        a Python loop. That is another program: it is proven by running both.

    sizes: "infer" traces the function at other sizes as well: numbers that follow the arguments' sizes are written so
        (`x.shape[0]`), and the text holds for them; "fixed" writes it for the sizes of the example.
    also: further arguments of other sizes for which the text has to hold: each a tuple of arguments, a dict of keyword
        arguments, or a single argument that is neither.
    guard: the written function refuses what it was not written for (other dtypes, trees, static fields, sizes that
        cannot follow, devices where they matter) with a TypeError, and makes arrays of Python's numbers; `False` leaves that out.
    derivatives: "auto": a derivative that the function calls (`jax.grad`, `value_and_grad`, `vjp`, `jvp`, `linearize`) stays a
        call of a function of the text, and what was handed over as a derivative (`decompile(jax.grad(loss))`) is written out;
        "called": that stays a call as well; "written": all are written out.
    allow: the transformations of its own that the text has to allow, of "grad" and "vmap". Where one is left out, so are the
        rules of functions (`jax.custom_vjp`, `custom_jvp`, `custom_vmap`) that only it would use, and the text refuses it with a
        NotImplementedError: a program of libraries that is run as it is gets much shorter. Derivatives and maps that the
        function itself calls keep what they need.
    target: "jax", or "numpy", "torch", "mpi4py" or "c": then it is a Translated, or an InC, that comes, see `Decompiled.to`.

    Raises OptionError, CaptureError (the function cannot be traced), UnsupportedPrimitiveError, ProofError.
    """
    options = _options(
        style, standalone, prove, simplify, comments, annotations, reroll, sizes, guard, derivatives, allow
    )

    job = _Job(fn, static_argnums, static_argnames, also, options)
    if target != "jax":
        _check_target(target)
        return lambda *args, **kwargs: _translated(job, args, kwargs, target)

    def decompile_on(*args: Any, **kwargs: Any) -> Decompiled:
        with no_collections():
            found = _decompiled(*_written(job, args, kwargs))
        found._translate = lambda target: _translated(job, args, kwargs, target)
        return found

    return decompile_on


@dataclass(frozen=True, slots=True)
class _Job:
    """What is to be written of which function; the fields are `decompile`'s."""

    function: Callable[..., Any]
    static_argnums: int | Sequence[int]
    static_argnames: str | Sequence[str]
    also: Sequence[Any]
    options: Options


def _translated(job: _Job, args: tuple[Any, ...], kwargs: dict[str, Any], target: str) -> Translated | InC:
    """The text for another target than JAX, whose rules are imported when they are first asked for."""
    nums, names = static_arguments(job.function, args, job.static_argnums, job.static_argnames)
    if target == "c":
        from untrace.driver.in_c import written_in_c

        call = Call(job.function, args, kwargs, nums, names, False, note_arguments=True)
        with no_collections():
            return written_in_c(call, job.options, [call.with_arguments(more) for more in job.also])
    from untrace.driver.translate import targets, translated

    keeps = targets()[target].keeps_calls and job.options.prove
    derivatives = job.options.derivatives if keeps else "written"
    call = Call(job.function, args, kwargs, nums, names, keeps, derivatives, note_arguments=True)
    with no_collections():
        return translated(target, call, job.options, [call.with_arguments(more) for more in job.also])


def _written(job: _Job, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Captured, Result, dict[str, float]]:
    """The capture, the text of it with its proof, and how long each step took."""
    start = time.perf_counter()
    options = job.options
    nums, names = static_arguments(job.function, args, job.static_argnums, job.static_argnames)
    noted = options.style == "idiomatic" and options.prove
    call, captured = Call(job.function, args, kwargs, nums, names, noted, options.derivatives).with_capture()
    timings = {"capture": time.perf_counter() - start}
    others = [call.with_arguments(more) for more in job.also]
    return captured, written_for_sizes(call, captured, options, timings, others), timings


def steps(
    fn: Callable[..., Any],
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    also: Sequence[Any] = (),
    **options: Any,
) -> Callable[..., Iterator[Step]]:
    """What each pass makes of the text of `fn`: `steps(fn)(*args, **kwargs)` gives a Step for each, in their order.

    options: those of `decompile`, in its style "idiomatic"; its text is the last step's. Each text is written anew, with all
    that had to be taken back for the proof taken back from the start. Raises what `decompile` raises, and OptionError where
    the text is of style "exact", which has no passes.
    """
    job = _Job(fn, static_argnums, static_argnames, also, _options(**options))

    def steps_on(*args: Any, **kwargs: Any) -> Iterator[Step]:
        with no_collections():
            _, result, _ = _written(job, args, kwargs)
        if result.attempt is None:
            raise OptionError(
                f'the text of this function is of style "exact", which has no passes: {"; ".join(result.notes)}'
            )
        return steps_of(result.attempt, result.written.source)

    return steps_on


def _options(
    style: str = "idiomatic",
    standalone: bool = False,
    prove: bool = True,
    simplify: bool = True,
    comments: str = "some",
    annotations: str = "none",
    reroll: str = "loop",
    sizes: str = "infer",
    guard: bool = True,
    derivatives: str = "auto",
    allow: Sequence[str] = ALLOWED,
) -> Options:
    """Raises OptionError for a word that is not known."""
    given = {"style": style, "comments": comments, "annotations": annotations, "reroll": reroll, "sizes": sizes}
    given["derivatives"] = derivatives
    for option, word in given.items():
        if word not in WORDS[option]:
            known = ", ".join(map(repr, WORDS[option]))
            raise OptionError(f"{option}={word!r} is not known; this version has {known}")
    for word in (allow,) if isinstance(allow, str) else allow:
        if word not in ALLOWED:
            known = ", ".join(map(repr, ALLOWED))
            raise OptionError(f"allow={allow!r}: {word!r} is not known; this version has {known}, in a tuple")
    allowed = tuple(word for word in ALLOWED if word in allow)
    return Options(
        style, standalone, prove, simplify, comments, annotations, reroll, sizes, guard, derivatives, allowed
    )


def from_jaxpr(
    closed_jaxpr: Any,
    *,
    name: str = "decompiled",
    style: str = "idiomatic",
    prove: bool = True,
    simplify: bool = True,
    comments: str = "some",
    annotations: str = "none",
    guard: bool = True,
    allow: Sequence[str] = ALLOWED,
) -> Decompiled:
    """The source of a ClosedJaxpr: a function of its flat inputs that returns the tuple of its outputs. Options as of
    `decompile`.

    Raises CaptureError where `closed_jaxpr` is no jaxpr, UnsupportedPrimitiveError, ProofError.
    """
    from untrace._errors import CaptureError

    if not jax_compat.is_jaxpr(closed_jaxpr):
        raise CaptureError(
            f"from_jaxpr needs a ClosedJaxpr (what jax.make_jaxpr gives), not a {type(closed_jaxpr).__name__}"
        )
    jaxpr, consts = jax_compat.open_jaxpr(closed_jaxpr)
    if len(consts) != len(jaxpr.constvars):
        raise CaptureError("from_jaxpr needs a closed jaxpr: this one has constants without values")
    avals = tuple(v.aval for v in jaxpr.invars)
    outs = tuple(v.aval for v in jaxpr.outvars)
    captured = Captured(closed_jaxpr, closed_jaxpr, (), avals, {}, {}, outs, name)
    options = _options(style, False, prove, simplify, comments, annotations, guard=guard, allow=allow)
    timings = {"capture": 0.0}
    with no_collections():
        return _decompiled(captured, write_and_prove(captured, FlatEntry(), name, options, timings), timings)


def _decompiled(captured: Captured, result: Result, timings: dict[str, float]) -> Decompiled:
    written = result.written
    every = tuple(dict.fromkeys((*result.notes, *written.notes)))
    # What the text has to be given, or leaves out, is part of what was proven.
    proof = dataclasses.replace(result.proof, notes=tuple(dict.fromkeys((*result.proof.notes, *written.notes))))
    return Decompiled(
        written.source, written.name, proof, captured.jaxpr, written.arrays, timings, every,
        written.callables, written.origins, result.module, None, result.source_map, Answers(), traced_calls(result.captured),
    )  # fmt: skip
