"""`untrace.minimize`: the smallest program that still has a fault."""

from __future__ import annotations

import ast
import os
import shlex
import sys
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from untrace import _html, jax_compat
from untrace._api import Decompiled, decompile, from_jaxpr
from untrace._errors import OptionError, UntraceError
from untrace.ir.types import Data
from untrace.prove.sample import is_concrete
from untrace.prove.saving import save_module
from untrace.tools.minimize.case import Case, without_arguments
from untrace.tools.minimize.predicates import Predicate, predicate_of
from untrace.tools.minimize.reductions import REDUCTIONS, values_simplified
from untrace.tools.minimize.runner import Runner, environment, portable, settings_here
from untrace.tools.minimize.search import OutOfTime, Search

_SLOWER, _LEAST = 4.0, 5.0  # a candidate's limit: so many times what the program itself takes, and seconds
_MOST_NUMBERS = 64  # of an argument that is written out in the file


@dataclass(eq=False)
class Minimal:
    """The smallest program that was found. Calling it runs its text on `args`.

    `source`: a module that needs nothing but JAX and NumPy. `name`: its function. `args`: what it is called with, flat.
    `equations`: how many it has, and the original had. `predicate`: what holds of it. `finished`: whether nothing smaller was
    found in the end; else the time was over, or it was interrupted. `tried`: how many candidates were run.
    """

    source: str
    name: str
    args: tuple[Data, ...]
    equations: tuple[int, int]
    predicate: str
    fault: str
    finished: bool
    tried: int
    _text: Decompiled = field(repr=False)
    _arrays: dict[str, np.ndarray] = field(repr=False, default_factory=dict)

    def __call__(self) -> Any:
        """The results of the program, a tuple. Of a crash it crashes."""
        return self._text(*self.args)

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> str:
        """Writes the module to `path`, a `.py` file, and large arrays to an `.npz` beside it; returns the path.

        Raises OutputExistsError where one exists, unless `overwrite`, and OptionError.
        """
        return save_module(path, self.source, self._arrays, overwrite)

    @property
    def _found(self) -> str:
        now, before = self.equations
        end = "" if self.finished else "; the search was ended before it was through"
        return f"{before} equations before, {now} now; {self.tried} candidates were run{end}"

    def __str__(self) -> str:
        return f"{self.source}\n# {self._found}"

    def _repr_html_(self) -> str:
        """For notebooks: what was found, and the highlighted source."""
        return _html.written(self.name, [f"{self.predicate}: {self.fault}", self._found], self.source)


def minimize(
    fn: Callable[..., Any],
    predicate: Predicate | Callable[..., object] | str,
    *,
    path: str | os.PathLike[str] | None = None,
    seconds: float = 60.0,
    budget: float = 600.0,
    repeats: int = 1,
    progress: Callable[[str], None] | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
) -> Callable[..., Minimal]:
    """A function of `fn`'s arguments that gives the smallest program for which `predicate` holds: `minimize(fn, p)(*args)`.

    predicate: `untrace.crashes()`, `hangs(seconds)`, `nonfinite()`, `differs(left, right)`, `compiles_slower_than(seconds)`, or
        one of these as a string; or a function of (function, list of its arguments), or `file.py:name` of one. It has to hold
        for the same reason: the same exception and message but for numbers and names, the same signal, a NaN and not an infinity.
    path: a `.py` file where the best program so far always is; it is replaced.
    seconds: the limit of one run, in a process of its own that is replaced after a crash; of candidates it is less where the
        program itself takes less. budget: of all.
    repeats: how often a candidate is run before it counts as sound, for faults that do not always show.
    progress: is called with a sentence for each smaller program.

    Equations are left out, with the values that they had in their place, calls and bodies of loops opened, loops shortened, arrays
    and numbers made smaller. An interrupt (Ctrl-C) ends the search with the best program so far.

    Raises CaptureError where `fn` cannot be traced, OptionError where the predicate does not hold of the program itself, or an
    argument is no value.
    """
    wanted = predicate_of(predicate)
    if repeats < 1 or seconds <= 0:
        raise OptionError(f"repeats={repeats} and seconds={seconds} must be positive")

    def minimize_on(*args: Any, **kwargs: Any) -> Minimal:
        case = _captured(fn, args, kwargs, static_argnums, static_argnames)
        before = case.size[0]
        with Runner(seconds) as runner:
            found_by, fault = _fault(runner, wanted, case, repeats)
            # What is smaller takes no longer; but a loop without its end would.
            runner.seconds = found_by.limit or min(seconds, _SLOWER * runner.longest + _LEAST)

            def told(best: Case) -> None:
                if path is not None:
                    _written(best, found_by, fault, before, os.fspath(path)).save(path, overwrite=True)
                if progress is not None:
                    progress(f"{best.size[0]} of {before} equations, {search.tried} candidates")

            search = Search(runner, found_by, case, fault, repeats, time.monotonic() + budget, told)
            finished = _searched(search)
            found = _written(search.best, found_by, fault, before, "" if path is None else os.fspath(path))
            found = _more_readable(search, found, "" if path is None else os.fspath(path))
        found.finished, found.tried = finished, search.tried
        if path is not None:
            found.save(path, overwrite=True)
        return found

    return minimize_on


def _fault(runner: Runner, predicate: Predicate, case: Case, repeats: int) -> tuple[Predicate, Hashable]:
    """The fault of the program itself, and the predicate that sees it. Raises OptionError where there is none."""
    for way in (predicate, predicate.eagerly()):
        for _ in range(repeats if way is not None else 0):
            fault = way.signature(runner, case) if way is not None else None
            if way is not None and fault is not None:
                return way, fault
    why = predicate.why_not(runner, case)
    raise OptionError(
        f"{predicate.words} does not hold of the program itself, with these arguments and in {runner.seconds:g} seconds"
        f"{f' ({why})' if why else ''}: there is nothing to minimize"
    )


def _captured(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
    static_argnums: int | Sequence[int], static_argnames: str | Sequence[str],
) -> Case:  # fmt: skip
    """The program as it was traced, and the leaves of its arguments that it reads."""
    text = decompile(
        fn, style="exact", prove=False, guard=False, static_argnums=static_argnums, static_argnames=static_argnames
    )(*args, **kwargs)
    jaxpr, _ = jax_compat.open_jaxpr(text.jaxpr)
    leaves = [x for x in jax.tree.leaves((args, kwargs)) if is_concrete(x) or jax_compat.is_key(x)]
    if len(leaves) != len(jaxpr.invars):
        raise OptionError(
            f"minimize needs the values of the arguments: {len(jaxpr.invars)} arrays, not {len(leaves)} and types of others"
        )
    return without_arguments(Case(text.jaxpr, tuple(leaves)))


def _searched(search: Search) -> bool:
    """Whether the search came to an end by itself."""
    try:
        while any(reduction(search) for reduction in REDUCTIONS):
            pass
        values_simplified(search)
    except (OutOfTime, KeyboardInterrupt):
        return False
    return True


def _more_readable(search: Search, found: Minimal, path: str) -> Minimal:
    """The program as text of the idiomatic style, where that has the fault as well."""
    best = search.best
    try:
        text = from_jaxpr(best.closed, name=best.name, prove=False, guard=False, comments="none")
        other = Case(best.closed, best.args, best.name)
        other.__dict__["text"] = text
        if not search.has_fault(other):
            return found
    except (UntraceError, OutOfTime, KeyboardInterrupt):
        return found
    return _written(other, search.predicate, search.fault, found.equations[1], path)


def _written(case: Case, predicate: Predicate, fault: object, before: int, path: str) -> Minimal:
    text = case.text
    now = case.size[0]
    said = _said(fault)
    head = [
        f"The smallest program found for which {predicate.words} holds: {said}.",
        "",
        f"    python {shlex.quote(os.path.basename(path) or 'minimal.py')}",
        "",
        f"{', '.join(environment())}; {now} of {before} equations.",
    ]
    arrays = dict(text.arrays)
    values = []
    for place, value in enumerate(map(portable, case.args)):
        values.append(_literal(value, f"argument_{place}", arrays))
    body = [
        "ARGS = (",
        *[f"    {v}," for v in values],
        ")",
        "",
        'if __name__ == "__main__":',
        *[f"    {line}" for line in predicate.shown(text.name)],
    ]
    source = _module(text.source, "\n".join(head), body)
    return Minimal(source, text.name, case.args, (now, before), predicate.words, said, False, 0, text, arrays)


def _said(fault: object) -> str:
    """A fault's signature in words."""
    return ", ".join(str(part) for part in fault if str(part)) if isinstance(fault, tuple) else str(fault)


def _literal(value: Data, name: str, arrays: dict[str, np.ndarray]) -> str:
    """The source of an argument; a large one goes into `arrays`."""
    if isinstance(value, (bool, int, float, complex)):
        return _number(value)
    if isinstance(value, tuple):
        return f"jax.random.wrap_key_data({_literal(value[1], name, arrays)}, impl={value[0]!r})"
    dtype = f"np.{value.dtype}" if hasattr(np, value.dtype.name) else f"jnp.{value.dtype}"
    if value.dtype == bool:
        dtype = "bool"
    if value.size > _MOST_NUMBERS:
        arrays[name] = value
        return f'np.load(os.path.splitext(__file__)[0] + ".npz")[{name!r}].view({dtype})'
    if value.size > 1 and (value == value.flat[0]).all():
        return f"np.full({value.shape}, {_number(value.flat[0])}, {dtype})"
    return f"np.array({_numbers(value)}, {dtype})" if value.size else f"np.zeros({value.shape}, {dtype})"


def _numbers(value: np.ndarray) -> str:
    if value.ndim:
        return f"[{', '.join(_numbers(part) for part in value)}]"
    return _number(value[()])


def _number(number: Data) -> str:
    """The shortest source that gives the number again, in its own precision."""
    if isinstance(number, (complex, np.complexfloating)):
        return f"complex({_number(number.real)}, {_number(number.imag)})"
    text = str(number)
    return f'float("{text}")' if text.lstrip("-") in ("nan", "inf") else text


def _module(source: str, head: str, body: Sequence[str]) -> str:
    """A written module with another docstring and `body` at its end, and the imports that this needs."""
    tree = ast.parse(source)
    lines = source.splitlines()
    text = "\n".join(body)
    imports = {lines[n.lineno - 1]: _module_of(n) for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom))}
    wanted = {"jax": "import jax", "jnp": "import jax.numpy as jnp", "np": "import numpy as np", "os": "import os"}
    settings = [f'jax.config.update("{name}", {value!r})' for name, value in settings_here().items()]
    imports |= {
        line: line.split()[1] for name, line in wanted.items() if f"{name}." in text or settings and name == "jax"
    }
    kept = [n for n in tree.body if not isinstance(n, (ast.Import, ast.ImportFrom))][
        ast.get_docstring(tree) is not None :
    ]
    first = min([kept[0].lineno, *[d.lineno for d in getattr(kept[0], "decorator_list", [])]])
    ours = sorted(line for line, module in imports.items() if module.partition(".")[0] in sys.stdlib_module_names)
    theirs = sorted((line for line in imports if line not in ours), key=lambda line: (line.startswith("from"), line))
    safe = head.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    blank = [""] if ours and theirs else []
    parts = [
        f'"""{safe}\n"""',
        "",
        *ours,
        *blank,
        *theirs,
        *([""] if settings else []),
        *settings,
        "",
        "",
        *lines[first - 1 :],
        "",
        "",
        *body,
        "",
    ]
    return "\n".join(parts)


def _module_of(node: ast.Import | ast.ImportFrom) -> str:
    return (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
