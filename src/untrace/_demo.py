"""`untrace demo`: the gradient of a GPT's loss as source, with its proof and its times.

The function is that of `examples/gpt.py`; the wheel carries a copy of the file.
"""

from __future__ import annotations

import hashlib
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.extend.core
import numpy as np
from rich.markup import escape
from rich.table import Table

import untrace
from untrace import _locate
from untrace._terminal import Terminal

_REPEATS = 3  # of a measurement of which the median is shown


def run(output: Path, *, full: bool, terminal: Terminal) -> int:
    """Writes the module to `output`, prints it, its proof and its times; the exit code.

    A file at `output` that a person has edited is kept under another name.  The exit code is 0
    when the compiled module computes the same bits as the original, and else 3.
    """
    example = _example_file()
    gpt = _locate.load_module(str(example))
    args = gpt.make_args()
    original = jax.grad(gpt.loss)
    original.__name__ = "grad_loss"
    weights = sum(leaf.size for leaf in jax.tree.leaves(args[0]))
    terminal.tell(
        f"[bold]jax.grad(loss)[/] of a GPT with {len(args[0]['blocks'])} blocks and {weights:,}"
        f" parameters, from {escape(_short(example))}\n"
    )

    with terminal.working("tracing, writing and proving"):
        decompiled = untrace.decompile(original)(*args)
    kept = _keep_edited(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    decompiled.save(output, overwrite=True)
    _remember(output)

    if full:
        terminal.out.file.write(decompiled.source)
    else:
        terminal.show_excerpt(decompiled.source, decompiled.name, str(output))
    if kept is not None:
        terminal.tell(f"\nThe {escape(str(output))} that you edited is now {escape(str(kept))}.")
    lines = decompiled.source.count("\n")
    terminal.tell(f"\nWritten to [bold]{escape(str(output))}[/] ({lines} lines).")
    terminal.tell(f"[bold green]{escape(str(decompiled.proof))}[/]\n")

    with terminal.working("measuring the file against the original"):
        written = _locate.load_function(f"{output}:{decompiled.name}")
        simplified = decompiled.proof.level != "jaxpr"
        rows, agreements = _measure(original, written, args, decompiled.jaxpr, simplified)
    terminal.out.print(_table(rows))
    for agreement in agreements:
        terminal.tell(escape(str(agreement)))
    names = f"{output}:{decompiled.name} {_short(example)}:loss @{_short(example)}:make_args"
    terminal.tell(
        "\nEdit the file, then ask whether it is still the same program:"
        f"\n    {escape(_command())} verify {escape(names)} --grad"
    )
    return 0 if all(a.is_exact for a in agreements if not a.why_loose) else 3


# -- measuring -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Row:
    """Milliseconds of one job; `original` is None for what only untrace does."""

    job: str
    original: float | None
    written: float


@dataclass(frozen=True)
class _Agreement:
    """How the outputs of the two functions compare in one way of running them."""

    how: str
    arrays: int
    same: int
    largest_difference: float
    why_loose: str = ""  # why other bits are no fault; "" where they are one

    @property
    def is_exact(self) -> bool:
        return self.same == self.arrays

    def __str__(self) -> str:
        if self.is_exact:
            return f"Outputs {self.how}: the same bits in all {self.arrays} arrays."
        text = f"Outputs {self.how}: the largest difference is {self.largest_difference:.2g}"
        if self.why_loose:
            return f"{text} ({self.why_loose})."
        return f"{text}; the same bits in {self.same} of {self.arrays} arrays."


def _measure(
    original: Any, written: Any, args: tuple[Any, ...], jaxpr: Any, simplified: bool
) -> tuple[list[_Row], list[_Agreement]]:
    """Times both functions and compares what they return, each compiled only once."""
    both = (original, written)
    rows = [
        _Row("trace", *_medians([_tracing(f, args) for f in both], _REPEATS)),
        _Row("decompile, without the proof", None, *_decompiling_time(original, args, prove=False)),
        _Row("decompile, with the proof", None, *_decompiling_time(original, args, prove=True)),
    ]
    (compiled_original, original_time), (compiled_written, written_time) = (_compile(f, args) for f in both)
    rows.append(_Row("compile", original_time, written_time))
    for how, functions, repeats in (
        ("jitted", (compiled_original, compiled_written), 200),
        ("not jitted", both, _REPEATS),
    ):
        rows.append(_Row(f"run, {how}", *_medians([_running(f, args) for f in functions], repeats)))

    eager = written(*args)
    traced = jax.extend.core.jaxpr_as_fun(jaxpr)(*jax.tree.leaves(args))
    traced = jax.tree.unflatten(jax.tree.structure(eager), traced)
    agreements = [
        _agreement("jitted", compiled_original(*args), compiled_written(*args)),
        # A simplified text has other operations, which round in another way one by one; the proof is
        # about what they compile to.
        replace(
            _agreement("not jitted, against the original as JAX traced it", traced, eager),
            why_loose="simplified: other operations, each rounded by itself" if simplified else "",
        ),
        # Differentiating without a trace, JAX groups the operations in another way than the jaxpr
        # of the same gradient does, and so it rounds in another way.
        replace(
            _agreement("not jitted, against jax.grad", original(*args), eager),
            why_loose="JAX itself rounds a gradient in another way when it is not traced",
        ),
    ]
    return rows, agreements


def _tracing(function: Any, args: tuple[Any, ...]) -> Callable[[], None]:
    def trace() -> None:
        jax.clear_caches()  # also those of JAX's own functions inside
        jax.make_jaxpr(function)(*args)

    return trace


def _running(function: Any, args: tuple[Any, ...]) -> Callable[[], None]:
    return lambda: jax.block_until_ready(function(*args))


def _decompiling_time(function: Any, args: tuple[Any, ...], *, prove: bool) -> list[float]:
    def decompile() -> None:
        jax.clear_caches()
        untrace.decompile(function, prove=prove)(*args)

    return _medians([decompile], _REPEATS)


def _compile(function: Any, args: tuple[Any, ...]) -> tuple[Any, float]:
    """The compiled function, and the milliseconds that XLA took for it (once: it takes seconds)."""
    lowered = jax.jit(function).lower(*args)
    start = time.perf_counter()
    compiled = lowered.compile()
    return compiled, 1000 * (time.perf_counter() - start)


def _medians(jobs: list[Callable[[], None]], repeats: int) -> list[float]:
    """The median time of each job, after a first run of each that is not counted.

    The jobs take turns, so that a busy machine slows them all alike.
    """
    times: list[list[float]] = [[] for _ in jobs]
    for turn in range(repeats + 1):
        for job, taken in zip(jobs, times, strict=True):
            start = time.perf_counter()
            job()
            if turn > 0:
                taken.append(1000 * (time.perf_counter() - start))
    return [statistics.median(taken) for taken in times]


def _agreement(how: str, expected: Any, actual: Any) -> _Agreement:
    if jax.tree.structure(expected) != jax.tree.structure(actual):
        return _Agreement(how, jax.tree.structure(expected).num_leaves, 0, float("nan"))
    pairs = [
        (np.asarray(x), np.asarray(y)) for x, y in zip(jax.tree.leaves(expected), jax.tree.leaves(actual), strict=True)
    ]
    same = [x.dtype == y.dtype and x.tobytes() == y.tobytes() for x, y in pairs]
    largest = max((float(np.max(np.abs(x - y), initial=0)) for x, y in pairs), default=0.0)
    return _Agreement(how, len(pairs), sum(same), largest)


# -- showing ---------------------------------------------------------------------------------------
def _table(rows: list[_Row]) -> Table:
    table = Table(title="Median times in ms", title_justify="left", title_style="bold")
    for header in ("", "original", "written", "ratio"):
        table.add_column(header, justify="right" if header else "left", no_wrap=True)
    trace = rows[0].original or 1.0
    for row in rows:
        # What only untrace does is set against the trace of the original, its natural yardstick.
        ratio = f"{row.written / (row.original or trace):.2f}"
        if row.original is None:
            table.add_row(row.job, "", f"{row.written:.2f}", f"{ratio} x trace")
        else:
            table.add_row(row.job, f"{row.original:.2f}", f"{row.written:.2f}", ratio)
    return table


# -- files -----------------------------------------------------------------------------------------
def _example_file() -> Path:
    """`gpt.py` in the installed package, or in a checkout of the repository."""
    package = Path(__file__).parent
    installed = package / "_examples" / "gpt.py"
    return installed if installed.is_file() else package.parents[1] / "examples" / "gpt.py"


def _keep_edited(output: Path) -> Path | None:
    """Moves a file that a person has edited out of the way; where to, or None."""
    if not output.is_file() or _seal(output) == _digest(output):
        return None
    number = 1
    while (kept := output.with_suffix(f".{number}{output.suffix}")).exists():
        number += 1
    shutil.move(output, kept)
    return kept


def _remember(output: Path) -> None:
    """Notes what was written, so that the next run can tell whether a person has edited it."""
    _seal_file(output).write_text(_digest(output), encoding="utf-8")


def _seal(output: Path) -> str | None:
    seal = _seal_file(output)
    return seal.read_text(encoding="utf-8") if seal.is_file() else None


def _seal_file(output: Path) -> Path:
    return output.with_name(f".{output.name}.sha256")


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _command() -> str:
    """How to call untrace again: `make demo` runs it from an environment that is not active."""
    if shutil.which("untrace"):
        return "untrace"
    called = Path(sys.argv[0]).absolute()
    return "python -m untrace" if called.name == "__main__.py" else _short(called)


def _short(path: Path) -> str:
    """`path` as seen from the current folder where it lies below it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
