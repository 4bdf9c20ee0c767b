"""Where things come from: what JAX keeps of the function that a jaxpr was traced from, tracebacks and name stacks of equations."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from untrace._places import place_of
from untrace.jax_compat.inner_jaxprs import JaxprRewriter, bodies_in, equations_in, with_inner_jaxprs
from untrace.jax_compat.jax_code import jax_folder
from untrace.jax_compat.jaxprs import open_jaxpr
from untrace.jax_compat.rebuilding import rebuilt_jaxpr, substituted
from untrace.jax_compat.values import variable_of

# Parts of the paths of what is installed, and nobody's own.
INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_MOST_FRAMES = 100


def function_name(closed: Any) -> str:
    """The `__name__` of the function a jaxpr was traced from, "" where JAX did not keep it."""
    jaxpr, _ = open_jaxpr(closed)
    info = getattr(jaxpr, "debug_info", None)
    return (getattr(info, "func_name", None) or "") if info is not None else ""


def user_line(eqn: Any) -> str:
    """`file.py:12 (function)` of the user's statement behind an equation, "" where JAX did not keep it.

    (Not of a library's that the user has installed, but where no code of the user's own has called it.)
    """
    if eqn is None or eqn.source_info is None:
        return ""
    from jax._src import source_info_util  # the only place that tells user frames from JAX's own

    frames = [*itertools.islice(source_info_util.user_frames(eqn.source_info.traceback), _MOST_FRAMES)]
    own = next((f for f in frames if f and not any(part in f.file_name for part in INSTALLED)), None)
    return source_info_util.summarize(eqn.source_info) if own is None else source_info_util._summarize_frame(own)


def equation_inside(eqn: Any, outer: Any, substitute: dict[Any, Any]) -> Any:
    """`eqn` as it stands where `outer` stood: its operands replaced, `outer`'s traceback, both name stacks.

    The user's line of a library primitive is that of the equation which it replaces, not of our trace of it. Where it
    stood before, `inner_traceback` still tells.
    """
    info = outer.source_info
    stack = info.name_stack
    if eqn.source_info is not None and stack is not None:
        stack = stack + eqn.source_info.name_stack
    return eqn.replace(
        invars=substituted(eqn.invars, substitute),
        source_info=_moved_source()(info.traceback, stack, inner_traceback(eqn)) if info is not None else None,
    )


def with_source_of(eqn: Any, other: Any) -> Any:
    """`eqn` as if it had been made where `other` was."""
    return eqn if other is None else eqn.replace(source_info=other.source_info)


def copy_of_equation(eqn: Any, effects: bool = True) -> Any:
    """Another equation with the effects of `eqn`, or with none, of which nobody knows where it was made. None of None."""
    if eqn is None:
        return None
    return eqn.replace(source_info=None) if effects else eqn.replace(source_info=None, effects=frozenset())


def at_source(eqn: Any) -> contextlib.AbstractContextManager[None]:
    """A context in which what is traced was made where `eqn` was, as in JAX's own `eval_jaxpr`."""
    from jax._src import source_info_util  # whose context has no public counterpart

    if eqn is None or eqn.source_info is None:
        return contextlib.nullcontext()
    stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    return source_info_util.user_context(eqn.source_info.traceback, name_stack=stack)


@functools.cache
def _moved_source() -> Any:
    from jax._src import source_info_util

    class MovedSource(source_info_util.SourceInfo):
        """The source of an equation that stands in another function now; `inner` is its traceback before."""

        def __init__(self, traceback: Any, name_stack: Any, inner: Any):
            super().__init__(traceback, name_stack)
            self.inner = inner

        def replace(self, *, traceback: Any = None, name_stack: Any = None) -> Any:
            stack = self.name_stack if name_stack is None else name_stack
            return MovedSource(traceback or self.traceback, stack, self.inner)

    return MovedSource


def inner_traceback(eqn: Any) -> Any:
    """The traceback of an equation in the function that it was traced for, also where that was inlined since."""
    info = eqn.source_info
    return None if info is None else getattr(info, "inner", None) or info.traceback


def before_it_moved(eqn: Any) -> Any:
    """An equation with the place that it had in the function that it was traced for, where that was inlined since; else the
    very same."""
    inner = inner_traceback(eqn)
    if inner is None or inner is eqn.source_info.traceback:
        return eqn
    from jax._src import source_info_util

    return eqn.replace(source_info=source_info_util.SourceInfo(inner, eqn.source_info.name_stack))


# What JAX says of a function that was traced; a name may have "at" in it.
_PLACE = re.compile(r"(?P<name>.*) at (?P<file>.*):(?P<line>\d+)$", re.DOTALL)


def function_source(closed: Any) -> str:
    """`model.py:6` of the function that a jaxpr was traced from, without its folders; "" where JAX does not know."""

    jaxpr, _ = open_jaxpr(closed)
    info = getattr(jaxpr, "debug_info", None)
    match = _PLACE.match(getattr(info, "func_src_info", None) or "")
    return place_of(match["file"], match["line"]) if match else ""


def jaxpr_name(closed: Any) -> str:
    """The name of the Python function that a jaxpr was traced from, "" where JAX does not know."""
    if closed is None:
        return ""
    jaxpr, _ = open_jaxpr(closed)
    info = getattr(jaxpr, "debug_info", None)
    return getattr(info, "func_name", None) or ""


def equation_source(eqn: Any) -> tuple[Any, Any]:
    """(traceback, name stack) of an equation; both are hashable, equal for equal places. (None, ()) without either."""
    info = eqn.source_info
    if info is None:
        return None, ()
    stack = getattr(info, "name_stack", None)
    return info.traceback, stack.stack if stack is not None else ()


def raw_frames(traceback: Any) -> tuple[Sequence[Any], Sequence[int]]:
    """(code objects, instruction offsets in bytes) of jaxlib's traceback, innermost first; empty where there is none."""
    return traceback.raw_frames() if traceback is not None else ((), ())


def scope_names(stack: Any) -> tuple[str, ...]:
    """The entries of a name stack as strings: scopes as they are, transformations as `jvp()`, `transpose()`, `vmap()`.

    Source: `Scope` and `Transform`, jax/_src/source_info_util.py.
    """
    return tuple(f"{e.name}()" if type(e).__name__ == "Transform" else str(getattr(e, "name", e)) for e in stack)


def argument_names(closed: Any) -> Sequence[str] | None:
    """The names that JAX keeps of a jaxpr's inputs, as paths (`params['w']`), "" for values that were closed over.

    None where there are none (after a transformation). Source: DebugInfo, jax/_src/core.py.
    """
    jaxpr, _ = open_jaxpr(closed)
    names = getattr(getattr(jaxpr, "debug_info", None), "arg_names", None)
    return [n or "" for n in names] if names is not None and len(names) == len(jaxpr.invars) else None


def rule_argument_names(rule: Any) -> Sequence[str] | None:
    """The same for the inputs of a derivative rule's forward function: those of the function itself, without what it
    closes over and without arguments that are not differentiated. The jaxpr of a `custom_vjp` function has none."""
    names = getattr(getattr(rule, "debug_info", None), "arg_names", None)
    return [n or "" for n in names] if names is not None else None


def result_paths(closed: Any) -> Sequence[str] | None:
    """Where the outputs of a jaxpr stand in what its function returned, as paths (`result[0]['x']`); None if not known."""
    jaxpr, _ = open_jaxpr(closed)
    paths = getattr(getattr(jaxpr, "debug_info", None), "result_paths", None)
    return list(paths) if paths is not None and len(paths) == len(jaxpr.outvars) and all(paths) else None


def function_place(closed: Any) -> tuple[str, int, str] | None:
    """(file, line, name) of the function that a jaxpr was traced from; None where JAX does not know."""

    jaxpr, _ = open_jaxpr(closed)
    info = getattr(jaxpr, "debug_info", None)
    match = _PLACE.match(getattr(info, "func_src_info", None) or "")
    return (match["file"], int(match["line"]), match["name"]) if match else None


def is_body_of_fori_loop(closed: Any) -> bool:
    """Whether a jaxpr was traced from the body of a `fori_loop`, also where JAX made a `scan` of the loop."""
    jaxpr, _ = open_jaxpr(closed)
    return getattr(getattr(jaxpr, "debug_info", None), "traced_for", None) == "fori_loop"


def is_library_jaxpr(closed: Any) -> bool:
    """Whether a jaxpr was traced from a function of JAX itself."""

    jaxpr, _ = open_jaxpr(closed)
    return _is_place_in_jax(getattr(getattr(jaxpr, "debug_info", None), "func_src_info", None) or "")


@functools.lru_cache(4096)
def _is_place_in_jax(place: str) -> bool:
    match = _PLACE.match(place)
    return match is not None and match["file"].startswith(jax_folder())


def is_mapped(closed: Any) -> bool:
    """Whether a program has equations that `jax.vmap` batched, outside of what is differentiated."""
    bodies = bodies_in(closed, lambda eqn: not _transforms_around(eqn))
    return any(_transforms_around(eqn)[:1] == ["vmap()"] for jaxpr in bodies for eqn in jaxpr.eqns)


def _transforms_around(eqn: Any) -> list[str]:
    """The transformations that an equation was made in, the outermost first."""
    scopes = equation_source(eqn)[1]
    return [s for s in scope_names(scopes) if s in ("vmap()", "jvp()", "transpose()")] if scopes else []


def is_differentiated(closed: Any) -> bool:
    """Whether a program has equations that differentiation made."""
    return any(
        not {"jvp()", "transpose()"}.isdisjoint(scope_names(equation_source(eqn)[1] or ()))
        for eqn in equations_in(closed)
    )


def body_names(closed: Any) -> tuple[Any, tuple[str, ...], tuple[str, ...] | None] | None:
    """(what function a jaxpr is of, the paths of its inputs, those of its results), None where JAX does not know.

    The paths of the results alone are None where a loop was batched.
    """
    info = open_jaxpr(closed)[0].debug_info
    if info is None or info.arg_names is None or callable(info.result_paths):
        return None
    paths = tuple(info.result_paths) if info.result_paths is not None else None
    return (info.traced_for, info.func_src_info), tuple(info.arg_names), paths


def body_place(closed: Any) -> tuple[str, str] | None:
    """What function a jaxpr is of, as in `body_names`, where JAX knows that much."""
    info = open_jaxpr(closed)[0].debug_info
    return None if info is None else (info.traced_for, info.func_src_info)


@contextlib.contextmanager
def as_called() -> Iterator[None]:
    """Inside, equations say where Python is, and not that they are part of a derivative which JAX takes."""
    from jax._src import source_info_util

    state = source_info_util._source_info_context
    before, stack = state.context, source_info_util.current_name_stack()
    names = scope_names(stack.stack)
    count = next((i for i, name in enumerate(names) if name in ("jvp()", "transpose()")), len(names))
    state.context = type(before)(None, type(stack)(stack.stack[:count]))
    try:
        yield
    finally:
        state.context = before


@contextlib.contextmanager
def unfiltered_tracebacks() -> Iterator[None]:
    """Inside, JAX leaves tracebacks as they are: filtering one costs ten times a small trace that fails.

    Source: `api_boundary` in jax/_src/traceback_util.py, which reads the files of the whole stack before it looks at what
    is set.
    """
    from jax._src import config, traceback_util

    before = traceback_util._is_under_reraiser
    traceback_util._is_under_reraiser = lambda e: True
    try:
        with config.traceback_filtering("off"):
            yield
    finally:
        traceback_util._is_under_reraiser = before


@contextlib.contextmanager
def one_traceback() -> Iterator[None]:
    """Inside a function that is being traced, all its equations get one traceback: to take one each costs a fourteenth of a
    trace. What JAX traces to a jaxpr of its own meanwhile, which it may keep, has tracebacks as ever.

    Source: `current` and `reset_name_stack` in jax/_src/source_info_util.py; with that every trace begins.
    """
    from jax._src import source_info_util

    scope, reset = source_info_util._source_info_context, source_info_util.reset_name_stack
    outside = scope.context

    @contextlib.contextmanager
    def reset_all() -> Iterator[None]:
        before = scope.context
        scope.context = source_info_util.SourceInfo(outside.traceback, before.name_stack)
        try:
            with reset():
                yield
        finally:
            scope.context = before

    source_info_util.reset_name_stack = reset_all
    scope.context = outside.replace(traceback=source_info_util.current().traceback)
    try:
        yield
    finally:
        scope.context, source_info_util.reset_name_stack = outside, reset


# Programs are numbered so that what JAX and XLA make of each equation can be told: a scope of that name is around what
# is lowered from it, and XLA hands that on through fusion.
_SCOPE = "untrace_equation_"
_MARK = re.compile(rf"(?:^|/){_SCOPE}(\d+)(?=[/:]|$)")


class _Numbered(JaxprRewriter):
    """Counts the equations of a program, those of each inner jaxpr once, and gives them what `source` makes of the number."""

    def __init__(self, source: Callable[[int], Any]) -> None:
        super().__init__()
        self.equations: list[Any] = []
        self._source = source

    def rewritten(self, closed: Any) -> Any:
        jaxpr, _ = open_jaxpr(closed)
        eqns = []
        for eqn in jaxpr.eqns:
            marked = eqn.replace(source_info=self._source(len(self.equations)))
            self.equations.append(eqn)
            eqns.append(with_inner_jaxprs(marked, self.jaxpr))
        return rebuilt_jaxpr(closed, eqns, jaxpr.outvars)


def numbered_equations(closed: Any) -> list[Any]:
    """The equations of a program and of its inner jaxprs, each once: the place in the list is the number of an equation."""
    numbered = _Numbered(_scoped)
    numbered.jaxpr(closed)
    return numbered.equations


def with_marks(closed: Any) -> Any:
    """The same program with the number of each equation as its scope, in the place of the author's scopes and lines."""
    return _Numbered(_scoped).jaxpr(closed)


def _scoped(number: int) -> Any:
    from jax._src import source_info_util

    stack = source_info_util.NameStack((source_info_util.Scope(f"{_SCOPE}{number}"),))
    return source_info_util.SourceInfo(None, stack)


def marks_in(names: Iterable[str]) -> set[int]:
    """The numbers of equations in names of operations, `jit(f)/untrace_equation_3/while/body/untrace_equation_7/add`:
    of each name the innermost one."""
    found = [_MARK.findall(name) for name in names]
    return {int(marks[-1]) for marks in found if marks}


def printed_with_marks(closed: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The lines of JAX's own text of a program, each with the numbers of the equations that stand on it, without those in
    which they stand.

    Source: `pp_eqn` in jax/_src/core.py, which keeps an equation's traceback beside its text and never looks into it.
    """
    from jax._src import source_info_util

    stack = source_info_util.NameStack()
    marked = _Numbered(lambda number: source_info_util.SourceInfo(_Mark(number), stack)).jaxpr(closed)
    spans: list[list[tuple[int, int, Any]]] = []
    text = marked.pretty_print(use_color=False, source_map=spans)
    for line, found in zip(text.split("\n"), spans, strict=False):
        yield line, tuple(dict.fromkeys(int(mark) for _, _, mark in found if isinstance(mark, _Mark)))


class _Mark(int):
    """The number of an equation where JAX has a traceback."""


def inside_jit(closed: Any) -> Any:
    """The program inside of `jax.jit`, where that is all that a jaxpr calls, with the same inputs and results."""
    jaxpr, consts = open_jaxpr(closed)
    if len(jaxpr.eqns) != 1 or consts or jaxpr.eqns[0].primitive.name not in ("jit", "pjit"):
        return closed
    (eqn,) = jaxpr.eqns
    if list(eqn.invars) != list(jaxpr.invars) or list(eqn.outvars) != list(jaxpr.outvars):
        return closed
    return inside_jit(eqn.params["jaxpr"])


@contextlib.contextmanager
def intercepted_sources(see: Callable[[Any], None]) -> Iterator[None]:
    """Calls `see(traceback)` each time that JAX asks where an equation is made, or something else that is traced.

    Source: `current`, jax/_src/source_info_util.py, which every trace asks.
    """
    from jax._src import source_info_util

    util: Any = source_info_util  # of which a function is replaced
    before = util.current

    def current() -> Any:
        info = before()
        see(info.traceback)
        return info

    # JAX keeps its own frames out of what it says of equations: this one, which is the innermost, stands for one of them.
    current.__code__ = current.__code__.replace(
        co_filename=before.__code__.co_filename, co_qualname=before.__qualname__
    )
    util.current = current
    try:
        yield
    finally:
        util.current = before


def looks_for_leaks() -> bool:
    """Whether JAX checks that nothing holds the tracers of a function that it has left."""
    import jax

    return bool(getattr(jax.config, "jax_check_tracer_leaks", False))


def origin_of(tracer: Any) -> tuple[Any, Any]:
    """(the variable of the jaxpr being traced that a tracer stands for, the traceback of the equation that made it), also for
    one of a mapped or differentiated function; None for what there is not.

    Source: `DynamicJaxprTracer`, `BatchTracer`, `JVPTracer`, `LinearizeTracer` in jax/_src/interpreters.
    """
    from jax._src import core
    from jax._src.interpreters import ad, batching, partial_eval

    while not isinstance(tracer, partial_eval.DynamicJaxprTracer):
        if isinstance(tracer, batching.BatchTracer):
            tracer = tracer.val
        elif isinstance(tracer, (ad.JVPTracer, ad.LinearizeTracer)):
            tracer = tracer.primal
        else:
            return None, None
    info, atom = tracer._line_info, variable_of(tracer)
    return atom if isinstance(atom, core.Var) else None, info.traceback if info is not None else None
