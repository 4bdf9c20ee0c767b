"""How fast the C that untrace writes is, beside CasADi's C of the same functions, beside XLA, and called from Python.

    pip install casadi==3.8.2 scipy-openblas32
    python bench/c_speed.py [--only PATTERN] [--repeats 151] [--json OUT]

Times are those of one call, taken in a loop in C, so that nothing of Python's is in them: both texts of a pair are compiled with
`-O3 -march=native`, each in a file of its own, and run in turn; a figure is the median of the repeats, a ratio that of the ratios
of neighbours. One thread; float64. Before that the two results are compared (1e-10 of the largest number). Lines are those of
the C file, `compile` is the compiler's time for it. The pendulum is there twice: by its mass matrix,
and by derivatives of its energies, which each side takes itself.

Then a network of two layers of 1,024 beside XLA on one core, by the text's own products and, where scipy-openblas32 is, by that
BLAS; and functions of less than 1,000 operations called from Python: `.compile(reuse=True)` beside a jitted call, both from NumPy's
arrays to a result that is there. The exit status is 1 where a goal of the table is missed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
os.environ["OPENBLAS_NUM_THREADS"] = "1"
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.environ["JAX_ENABLE_X64"] = "1"

import _c_programs  # noqa: E402
import jax  # noqa: E402
import numpy as np  # noqa: E402

import untrace  # noqa: E402
from untrace.targets.c.compiled import NATIVE, compiler  # noqa: E402

TOLERANCE = 1e-10
SHARE = 5  # how often CasADi's lines and compile time are to be ours, for six links
SECONDS = 0.001  # that one repeat takes
LOOP = """
#include <time.h>
void *given[16];
DECLARED
double seconds(long turns)
{
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (long turn = 0; turn < turns; turn++) {
        CALL;
    }
    clock_gettime(CLOCK_MONOTONIC, &b);
    return (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
}
"""
CASADI = (
    "int f(const double **, double **, long long *, double *, int);",
    "f((const double **)given[0], (double **)given[1], given[2], given[3], 0)",
)


class Timed:
    """A function of C with its arguments. `lines`: of its file; `compile`: seconds that the compiler takes for it."""

    def __init__(
        self, folder: Path, source: str, declared: str, call: str, given: Sequence[int], flags: Sequence[str],
        libraries: Sequence[str] = (),
    ):  # fmt: skip
        folder.mkdir(exist_ok=True)
        (folder / "f.c").write_text(source)
        (folder / "loop.c").write_text(LOOP.replace("DECLARED", declared).replace("CALL", call))
        start = time.perf_counter()
        self._cc(folder, *flags, "-c", "-fPIC", "f.c", "-o", "f.o")
        self.compile = time.perf_counter() - start
        self.lines = len(source.splitlines())
        self._cc(folder, "-O1", "-shared", "-fPIC", "loop.c", "f.o", "-o", "timed.so", "-lm", *libraries)
        library = ctypes.CDLL(str(folder / "timed.so"))
        library.seconds.restype, library.seconds.argtypes = ctypes.c_double, [ctypes.c_long]
        places = (ctypes.c_void_p * 16).in_dll(library, "given")
        for place, address in enumerate(given):
            places[place] = address
        self._seconds = library.seconds
        self._seconds(10)
        self.turns = max(1, int(SECONDS / max(self._seconds(20) / 20, 1e-9)))

    @staticmethod
    def _cc(folder: Path, *words: str) -> None:
        subprocess.run([compiler(), *words], cwd=folder, check=True)

    def once(self) -> float:
        """Seconds of one call, of many."""
        return self._seconds(self.turns) / self.turns


def ours(
    folder: Path, fn: Callable[..., Any], args: Sequence[Any], flags: Sequence[str] = (), libraries: Sequence[str] = ()
) -> tuple[Timed, np.ndarray]:
    """The text of a function in C, and its result."""
    text = untrace.decompile(fn, target="c")(*args)
    made = text.compile(native=True)
    values = jax.tree.map(np.asarray, made(*args))
    kept = [word.value if isinstance(word, ctypes.c_void_p) else word for word in made.prepared._given]
    assert all(isinstance(word, int) for word in kept)
    folder.mkdir(exist_ok=True)
    (folder / f"{text.name}.h").write_text(text.header)
    call = f"{text.name}({', '.join([f'given[{k}]' for k in range(len(kept))])})"
    timed = Timed(folder, text.source, f'#include "{text.name}.h"', call, kept, (*NATIVE, *flags), libraries)
    timed.kept = made  # its memory
    return timed, np.concatenate([np.ravel(v) for v in jax.tree.leaves(values)])


def theirs(folder: Path, function: Any, args: Sequence[np.ndarray]) -> tuple[Timed, np.ndarray]:
    """CasADi's C of a function, and its result."""
    folder.mkdir(exist_ok=True)
    here = os.getcwd()
    os.chdir(folder)
    try:
        function.generate("f.c")
    finally:
        os.chdir(here)
    inputs = [np.ascontiguousarray(a, np.float64) for a in args]
    outputs = [np.zeros(function.nnz_out(k)) for k in range(function.n_out())]
    arg = (ctypes.c_void_p * function.sz_arg())(*[a.ctypes.data for a in inputs])
    res = (ctypes.c_void_p * function.sz_res())(*[a.ctypes.data for a in outputs])
    iw, w = np.zeros(function.sz_iw() + 1, np.int64), np.zeros(function.sz_w() + 1)
    addresses = [ctypes.addressof(arg), ctypes.addressof(res), iw.ctypes.data, w.ctypes.data]
    timed = Timed(folder, (folder / "f.c").read_text(), *CASADI, addresses, NATIVE)
    timed.kept = inputs, outputs, arg, res, iw, w
    return timed, np.concatenate(outputs)


def compared(one: Callable[[], float], other: Callable[[], float], repeats: int) -> tuple[float, float, float]:
    """The medians of both, in seconds, and of their ratio, taken in turn."""
    rows = [(one(), other()) for _ in range(repeats)]
    return (
        statistics.median([a for a, _ in rows]),
        statistics.median([b for _, b in rows]),
        statistics.median([a / b for a, b in rows]),
    )


def beside_casadi(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    print(f"{'':24}{'ours':>9}{'CasADi':>9}{'ratio':>8}{'goal':>6}{'lines':>13}{'compile':>16}")
    for number, pair in enumerate(_c_programs.pairs()):
        if not re.search(options.only, pair.name):
            continue
        mine, found = ours(folder / f"ours_{number}", pair.fn, pair.args)
        other, expected = theirs(folder / f"casadi_{number}", pair.casadi(), pair.args)
        assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max(), (pair.name, found, expected)
        a, b, ratio = compared(mine.once, other.once, options.repeats)
        row = {
            "name": pair.name, "ours": a, "theirs": b, "ratio": ratio, "goal": pair.goal, "lines": mine.lines,
            "their_lines": other.lines, "compile": mine.compile, "their_compile": other.compile,
        }  # fmt: skip
        row["reached"] = ratio <= pair.goal
        if "6" in pair.name and "Jacobian" in pair.name:
            shares = other.lines / mine.lines, other.compile / mine.compile
            row["reached"] = row["reached"] and min(shares) >= SHARE
        rows.append(row)
        print(
            f"{pair.name:24}{a * 1e9:6.0f} ns{b * 1e9:6.0f} ns{ratio:8.2f}{pair.goal:6.1f}{mine.lines:6}{other.lines:7}"
            f"{mine.compile:8.2f}{other.compile:6.2f} s{'' if row['reached'] else '   missed'}",
            flush=True,
        )
    return rows


def _call_of_xla(fn: Callable[..., Any], args: Sequence[Any]) -> Callable[[], float]:
    def once() -> float:
        start = time.perf_counter()
        jax.block_until_ready(fn(*args))
        return time.perf_counter() - start

    once()
    return once


def beside_xla(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """A network of large layers."""
    rng = np.random.default_rng(0)
    params = [((rng.normal(size=(1024, 1024)) / 32).astype(np.float32), np.zeros(1024, np.float32)) for _ in range(2)]
    rows: list[dict[str, Any]] = []
    jitted = jax.jit(_c_programs.mlp)
    for batch in (1, 32):
        x = rng.normal(size=(batch, 1024)).astype(np.float32)
        for word, flags, libraries in [("", (), ()), *_blas()]:
            name = f"MLP, {batch} row{'s' if batch > 1 else ''}{word}"
            if not re.search(options.only, name):
                continue
            mine, found = ours(folder / f"mlp_{batch}{bool(word)}", _c_programs.mlp, (params, x), flags, libraries)
            given = jax.device_put((params, x))
            assert np.abs(found - np.ravel(jitted(*given))).max() <= 1e-5
            a, b, ratio = compared(mine.once, _call_of_xla(jitted, given), max(options.repeats // 3, 5))
            rows.append({"name": name, "ours": a, "theirs": b, "ratio": ratio, "goal": 1.3, "reached": ratio <= 1.3})
            print(
                f"{name:24}{a * 1e6:6.0f} us{b * 1e6:6.0f} us{ratio:8.2f}{1.3:6.1f}{'' if ratio <= 1.3 else '   missed'}"
            )
    return rows


def _blas() -> list[tuple[str, Sequence[str], Sequence[str]]]:
    """How a text is compiled with scipy-openblas32, whose functions have names of their own."""
    try:
        import scipy_openblas32 as blas
    except ImportError:
        print("without scipy-openblas32: no products by a BLAS")
        return []
    library = str(next(Path(blas.get_lib_dir()).glob("libscipy_openblas*.so")))
    flags = ("-DUNTRACE_BLAS", "-Dcblas_sgemm=scipy_cblas_sgemm", f"-I{blas.get_include_dir()}")
    return [(", BLAS", flags, (library, f"-Wl,-rpath,{blas.get_lib_dir()}"))]


def called_from_python(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Small functions, with arguments that are NumPy's."""
    rows: list[dict[str, Any]] = []
    small = [pair for pair in _c_programs.pairs() if pair.name in ("pendulum 2", "pendulum 4", "EKF step")]
    for pair in small:
        name = f"{pair.name}, called"
        if not re.search(options.only, name):
            continue
        made, jitted = untrace.decompile(pair.fn, target="c")(*pair.args).compile(reuse=True), jax.jit(pair.fn)

        def once(fn: Callable[..., Any], args: Sequence[Any] = pair.args) -> float:
            start = time.perf_counter()
            for _ in range(100):
                jax.block_until_ready(fn(*args))
            return (time.perf_counter() - start) / 100

        def mine(made: Any = made, args: Sequence[Any] = pair.args) -> float:
            start = time.perf_counter()
            for _ in range(100):
                made(*args)
            return (time.perf_counter() - start) / 100

        once(jitted)
        a, b, ratio = compared(mine, lambda jitted=jitted, once=once: once(jitted), options.repeats)
        rows.append({"name": name, "ours": a, "theirs": b, "ratio": ratio, "goal": 0.1, "reached": ratio <= 0.1})
        print(f"{name:24}{a * 1e6:6.1f} us{b * 1e6:6.1f} us{ratio:8.2f}{0.1:6.1f}{'' if ratio <= 0.1 else '   missed'}")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="a regular expression for the names of programs")
    parser.add_argument("--repeats", type=int, default=151)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = beside_casadi(options, folder) + beside_xla(options, folder) + called_from_python(options)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return int(not all(row["reached"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
