"""The public verbs: decompile, from_jaxpr, and the Decompiled that they give."""

from __future__ import annotations

import dataclasses
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from untrace import jax_compat
from untrace._errors import OptionError, OutputExistsError, ProofError
from untrace.capture.function import Captured, program_of, trace
from untrace.ir.nodes import walk_functions
from untrace.lift import lift
from untrace.print.jax import rules as _rules  # noqa: F401  (registers the rules)
from untrace.print.jax.entry import FlatEntry, PytreeEntry, entry_of
from untrace.print.jax.module import Written, write_module
from untrace.print.jax.signature import static_arguments
from untrace.print.rules import JAX
from untrace.prove import retrace
from untrace.prove.load import LoadedText, load_text, save_arrays
from untrace.prove.report import Proof

STYLES = ("exact", "idiomatic")
__all__ = ["Decompiled", "decompile", "from_jaxpr", "rule"]

rule = JAX.user_rule
"""Decorator: teaches untrace how a primitive is written, `@untrace.rule("my_primitive")`.

The function gets the writer, the operands as expressions and every parameter by keyword, and returns an expression:
`w.lax(name, *args, **kwargs)`, `w.jnp(...)`, `w.jax(...)`, or a node of `untrace.print.tree`.
"""


@dataclass(eq=False)
class Decompiled:
    """A JAX function as text, and what was proven of it. Calling it runs the *text*, not the original.

    `source`: a whole importable module. `name`: its entry function. `proof`: `print(d.proof)` reads as one line.
    `jaxpr`: the captured ClosedJaxpr of the original. `timings`: seconds of each step (capture, write, load, retrace,
    compare). `arrays`: the constants over 1 KB, which `save` puts into an `.npz` beside the module. `callables`: Python
    functions (of callbacks, policies) that have no text, by the name of what stands for each in the module; calling
    this object uses them, a saved module needs `module.NAME.function = ...` before its first call.
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

    @property
    def module(self) -> LoadedText:
        """The text as an executed module (compiled once)."""
        if self._module is None:
            self._module = load_text(self.source, self.name, self.arrays, self.callables)
        return self._module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the text on the original's arguments; returns the original's pytree."""
        return getattr(self.module, self.name)(*args, **kwargs)

    def origin(self, line: int) -> str:
        """`file.py:12 (function)` of the user's statement behind a line of `source` (1-based), "" where there is none."""
        return jax_compat.user_line(self._origins[line - 1]) if 0 < line <= len(self._origins) else ""

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> str:
        """Writes the module to `path`, and its large constants to an `.npz` beside it; returns the path.

        Each file appears whole or not at all. Raises OutputExistsError where one exists, unless `overwrite`.
        """
        path = os.fspath(path)
        if not path.endswith(".py"):
            raise OptionError(f"a module is saved as a .py file, not as {path!r}")
        data = path[:-3] + ".npz"
        targets = [path, data] if self.arrays else [path]
        if not overwrite:
            for target in targets:
                if os.path.exists(target):
                    raise OutputExistsError(f"{target} exists; pass overwrite=True (on the command line --force) to replace it")
        folder = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(folder):
            raise OptionError(f"there is no folder {folder} to save into")
        if self.arrays:  # first the data: a module without its data is worse than data without a module
            _write_atomically(data, lambda temporary: save_arrays(temporary, self.arrays))
        _write_atomically(path, lambda temporary: _write_text(temporary, self.source))
        return path

    def to(self, target: str) -> Any:
        """The same program for another target. None but JAX is there yet: raises OptionError."""
        raise OptionError(f"the target {target!r} is not there yet; this version writes JAX only")


def _write_text(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)


def _write_atomically(path: str, write: Callable[[str], None]) -> None:
    """`write` fills a temporary file in the same folder, which then takes the place of `path` in one step."""
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(os.path.abspath(path)), prefix=".untrace_", suffix=".tmp")
    os.close(handle)
    try:
        write(temporary)
        mode = os.stat(path).st_mode if os.path.exists(path) else 0o666 & ~_umask()
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def decompile(
    fn: Callable[..., Any],
    *,
    style: str = "exact",
    standalone: bool = False,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    prove: bool = True,
) -> Callable[..., Decompiled]:
    """A function of `fn`'s arguments that gives its source: `decompile(fn)(*args, **kwargs) -> Decompiled`.

    Arguments are arrays, pytrees of them, or `jax.ShapeDtypeStruct`s; only shapes and dtypes matter.

    style: "exact", one statement per equation.
    standalone: pytree classes of libraries are not imported but replaced by twins that the module defines.
    static_argnums, static_argnames: arguments with fixed Python values, as in `jax.jit`.
    prove: trace the written text again and compare; `False` leaves `proof.level` "unproven".

    Raises OptionError, CaptureError (the function cannot be traced), UnsupportedPrimitiveError, ProofError.
    """
    if style not in STYLES:
        raise OptionError(f"style={style!r} is not known; this version has {', '.join(map(repr, STYLES))}")
    def decompile_on(*args: Any, **kwargs: Any) -> Decompiled:
        start = time.perf_counter()
        nums, names = static_arguments(fn, args, static_argnums, static_argnames)
        captured = trace(fn, args, kwargs, nums, names)
        timings = {"capture": time.perf_counter() - start}
        entry = entry_of(fn, captured, args, kwargs, nums, names)
        return _write_and_prove(captured, entry, captured.name, standalone, prove, timings, style)

    return decompile_on


def from_jaxpr(closed_jaxpr: Any, *, name: str = "decompiled", prove: bool = True) -> Decompiled:
    """The source of a ClosedJaxpr: a function of its flat inputs that returns the tuple of its outputs.

    Raises CaptureError where `closed_jaxpr` is no jaxpr, UnsupportedPrimitiveError, ProofError.
    """
    from untrace._errors import CaptureError

    if not jax_compat.is_jaxpr(closed_jaxpr):
        raise CaptureError(f"from_jaxpr needs a ClosedJaxpr (what jax.make_jaxpr gives), not a {type(closed_jaxpr).__name__}")
    jaxpr, consts = jax_compat.open_jaxpr(closed_jaxpr)
    if len(consts) != len(jaxpr.constvars):
        raise CaptureError("from_jaxpr needs a closed jaxpr: this one has constants without values")
    avals = tuple(v.aval for v in jaxpr.invars)
    outs = tuple(v.aval for v in jaxpr.outvars)
    captured = Captured(closed_jaxpr, closed_jaxpr, (), avals, {}, {}, outs, name)
    return _write_and_prove(captured, FlatEntry(), name, False, prove, {"capture": 0.0})


# How often statements that did not come back as they were are written again as a `bind`.
_ROUNDS = 12


def _write_and_prove(
    captured: Captured, entry: PytreeEntry | FlatEntry, name: str, standalone: bool, prove: bool, timings: dict[str, float], style: str = "exact"
) -> Decompiled:
    with _deep_recursion(), _no_collections():
        start = time.perf_counter()
        program = program_of(captured, name, entry, JAX.user_names())
        timings["write"] = time.perf_counter() - start
        idiomatic = style == "idiomatic"
        plain = [(f, f.equations) for f in walk_functions(program.entry)] if idiomatic else []
        forced: frozenset[int] = frozenset()
        refused: frozenset[int] = frozenset()
        lifted = False
        for _ in range(_ROUNDS):
            start = time.perf_counter()
            if idiomatic and not lifted:
                for function, equations in plain:
                    function.equations = equations
                lift(program, refused)
                lifted = True
            timings["lift"] = timings.get("lift", 0.0) + time.perf_counter() - start
            start = time.perf_counter()
            written = write_module(program, _docstring(captured, name), forced, standalone, idiomatic)
            timings["write"] += time.perf_counter() - start
            if not prove:
                return _decompiled(written, captured, Proof("unproven", "prove=False"), program.notes, timings, None)
            outcome = retrace.prove_text(written, captured, timings)
            # Of each chain of suspects the innermost that was not tried yet.
            tried = forced & refused if idiomatic else forced
            suspects = {next((i for i in chain if i not in tried), None) for chain in outcome.suspects} - {None}
            if outcome.proof is not None or not suspects:
                break
            # First the lift of a suspect is taken back; if its exact form is wrong as well, it becomes a `bind`.
            if idiomatic and not suspects <= refused:
                refused |= suspects
                lifted = False
            else:
                forced |= suspects
        proof = outcome.proof
        if proof is None and outcome.module is not None:
            proof = retrace.weaker(outcome.module, written, captured, outcome.why)
        if proof is None or not proof.at_least("bits"):
            raise ProofError(
                f"the text written for {name} is not proven to be the same program: "
                f"{proof.detail if proof else outcome.why}\n"
                "This is a bug of untrace. With prove=False you get the text all the same."
            )
        return _decompiled(written, captured, proof, program.notes, timings, outcome.module)


def _decompiled(
    written: Written, captured: Captured, proof: Proof, notes: Sequence[str], timings: dict[str, float], module: Any
) -> Decompiled:
    every = tuple(dict.fromkeys((*notes, *written.notes)))
    # What the text has to be given, or leaves out, is part of what was proven.
    proof = dataclasses.replace(proof, notes=tuple(dict.fromkeys((*proof.notes, *written.notes))))
    return Decompiled(
        written.source, written.name, proof, captured.jaxpr, written.arrays, timings, every,
        written.callables, written.origins, module,
    )  # fmt: skip


def _docstring(captured: Captured, name: str) -> str:
    from untrace import __version__

    where = jax_compat.function_source(captured.jaxpr)
    lines = [f"`{name}`{f' ({where})' if where else ''}, written back by untrace {__version__} from JAX {jax.__version__}."]
    return "\n".join([*lines, *(["", *captured.notes] if captured.notes else [])])


class _no_collections:
    """Puts off the cyclic garbage collector, which would walk all live nodes again and again: a third of the time."""

    def __enter__(self) -> None:
        self._was_enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *exc: object) -> None:
        if self._was_enabled:
            gc.enable()


class _deep_recursion:
    """Lets nested programs nest: writing and comparing recurse once for each level of nesting."""

    def __enter__(self) -> None:
        self._limit = sys.getrecursionlimit()
        sys.setrecursionlimit(max(self._limit, 20_000))

    def __exit__(self, *exc: object) -> None:
        sys.setrecursionlimit(self._limit)


