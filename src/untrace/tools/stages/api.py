"""`untrace.stages`: one function through every stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from untrace import jax_compat
from untrace._api import Decompiled, decompile
from untrace._errors import OptionError, UntraceError
from untrace._garbage import no_collections
from untrace.capture.function import name_of
from untrace.provenance.sites import Provenance
from untrace.tools import render
from untrace.tools.probe import VALUE
from untrace.tools.stages.compiled import hlo_stage, stablehlo_stage
from untrace.tools.stages.matching import Matcher
from untrace.tools.stages.model import Stage
from untrace.tools.stages.program import Numbered
from untrace.tools.stages.shown import Stages
from untrace.tools.stages.texts import author_stage, jaxpr_stage, written_stage
from untrace.tools.watch import watch

_MOST_VALUES = 4  # arrays of one line


def stages(
    fn: Callable[..., Any],
    *,
    values: bool = False,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    **options: Any,
) -> Callable[..., Stages]:
    """A function of `fn`'s arguments that gives every stage of `fn`, side by side: `stages(fn)(*args, **kwargs) -> Stages`.

    The stages are the author's source; the jaxpr and what untrace writes, of the function inside and after each of `grad`,
    `vmap`, `jit` and their like, in the order in which they were composed; StableHLO; the HLO that XLA makes of it here.
    Which lines stand for the same computations is known of each: by JAX's own marks up to the last instruction in a fused
    kernel. `print` shows it by the author's lines, `.save("page.html")` as one page for a browser.

    fn: a JAX function. args: arrays, pytrees of them, or `jax.ShapeDtypeStruct`s.
    values: run the function, statement by statement (`untrace.watch`), and show what each line gives.
    options: of `decompile`, which writes the text.

    Raises what `decompile` raises of the outermost function, and OptionError for what is no such option. Where an inner
    function cannot stand alone, a note says so.
    """
    if options.get("target", "jax") != "jax":
        raise OptionError("stages shows the text for JAX; target= does not go with it")
    if isinstance(fn, Decompiled):
        raise OptionError("stages takes the function itself, and not what was written of it")
    options = {"comments": "none", "guard": False, **options}

    def write(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Decompiled:
        written = decompile(function, static_argnums=static_argnums, static_argnames=static_argnames, **options)
        return written(*args, **kwargs)

    def stages_on(*args: Any, **kwargs: Any) -> Stages:
        return _stages(fn, args, kwargs, write, values)

    return stages_on


Write = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Decompiled]


def _stages(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], write: Write, with_values: bool
) -> Stages:
    texts: list[tuple[str, Decompiled]] = []
    notes: list[str] = []
    for level in _levels(fn, args, kwargs):
        try:
            texts.append((level.title, write(level.function, level.args, level.kwargs)))
        except UntraceError as error:
            if level.function is fn:
                raise
            notes.append(f"{level.title} does not stand alone: {str(error).splitlines()[0]}")
    title, text = texts[-1]
    provenance = Provenance()
    with no_collections():
        program = Numbered(jax_compat.inside_jit(text.jaxpr), provenance)
        matcher = Matcher(program)
        shown: list[Stage] = [author_stage(program)]
        for number, (label, inner) in enumerate(texts[:-1]):
            other = Numbered(jax_compat.inside_jit(inner.jaxpr), provenance)
            known = matcher.behind(other.equations, other.origins, other.jaxpr)
            shown.append(jaxpr_stage(f"jaxpr{number}", f"jaxpr of {label}", other, known))
            shown.append(written_stage(f"text{number}", f"{label}, written", inner, matcher, provenance, {}))
        more = f" of {title}" if len(texts) > 1 else ""
        values = _values(text, args, kwargs, notes) if with_values else {}
        shown.append(jaxpr_stage("jaxpr", f"jaxpr{more}", program))
        shown.append(
            written_stage("text", f"{title}, written" if more else "written", text, matcher, provenance, values)
        )
        avals = [v.aval for v in jax_compat.open_jaxpr(program.jaxpr)[0].invars]
        lowered = jax_compat.lowered(jax_compat.with_marks(program.jaxpr), avals, True, text.name, places=True)
        shown += [stablehlo_stage(lowered), hlo_stage(lowered.compile().as_text())]
    if text.proof.level == "unproven":
        notes.append(f"the written text is not proven to be the function: {text.proof}")
    return Stages(title, tuple(_without_repetition(shown)), program.computations(), tuple(notes))


@dataclass(frozen=True, slots=True)
class _Level:
    """A function with its arguments, and what it is called: `grad(vmap(f))`."""

    title: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def _levels(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[_Level]:
    """The function inside all transformations, and after each of them."""
    found = jax_compat.inside_transformation(fn, args, kwargs)
    if found is None:
        return [_Level(name_of(fn), fn, args, kwargs)]
    inner = _levels(found.function, found.args, found.kwargs)
    return [*inner, _Level(f"{found.how}({inner[-1].title})", fn, args, kwargs)]


def _without_repetition(shown: Sequence[Stage]) -> Iterator[Stage]:
    """The stages, of which those that say what one before says point to that."""
    known: dict[object, str] = {}
    for stage in shown:
        body = stage.text
        if stage.language == "python" and stage.key != "source":
            body = body.split('"""', 2)[-1]  # without the head, which says what the function was called
        same = known.setdefault((stage.language, body), stage.title)
        yield stage if same == stage.title else replace(stage, same_as=same)


def _values(
    text: Decompiled, args: tuple[Any, ...], kwargs: dict[str, Any], notes: list[str]
) -> dict[int, tuple[str, ...]]:
    """What the last run of each line of the text gave."""
    try:
        watched = watch(text, turns=1)(*args, **kwargs)
    except UntraceError as error:
        notes.append(f"there are no values: {str(error).splitlines()[0]}")
        return {}
    found: dict[int, dict[str, str]] = {}
    for record in watched.records():
        if record.kind == VALUE:
            found.setdefault(record.line, {})[record.name] = render.described(record)
    return {
        line: tuple([f"{name}  {said}" for name, said in list(names.items())[:_MOST_VALUES]])
        for line, names in found.items()
    }
