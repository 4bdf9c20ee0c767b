"""Measures what decompiling costs beside what tracing costs, in time and memory.

    python bench/speed.py [--zoo ZOO_DIR | --no-zoo] [--sizes 100,1000] [--style STYLE] [--json OUT] [--oracle]
    python bench/speed.py --profile 10000

Straight-line programs of 100 to 100,000 equations (scalar-free `jax.lax` calls: the cheapest
equations that JAX can trace, and so the worst case for whatever is done beside tracing), then the
programs of the zoo. Each program runs in a process of its own; in it every repeat first traces the
original with cold caches and then decompiles it with cold caches, so that both meet the same state
of the machine. Medians over the repeats, in milliseconds:

  trace   `jax.make_jaxpr` of the original
  write   from the jaxpr to the text
  proof   import of the text, its trace, the comparison
  total   the whole of `untrace.decompile`, its own trace included

`peak` is the process's largest resident size, and what it was after the first trace alone. The
exponents say how a figure grows with the number of equations: 1.00 is linear. That of the time is of
processor time, whatever the clock of the table (a busy machine delays the long programs most), and
the trace's own stands beside it. That of memory is of what came on top of the process after one small
program, from 10,000 equations on: less than that fits into what the process had taken already.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import dataclasses
import gc
import io
import math
import pstats
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from _common import Record, build_case, child_main, find_cases, mark, run_child, write_json

ZOO = Path(__file__).resolve().parents[2] / "shared" / "zoo"
SIZES = (100, 1_000, 10_000, 30_000, 100_000)
WRITE_GOAL = 1.0
# By style: total / trace of straight-line programs, of how many equations on, and in the median over the zoo.
TOTAL_GOALS = {"exact": (4.0, 0, 2.5), "idiomatic": (8.0, 10_000, 4.0)}
MEMORY_GOAL = 2 * 2**30  # bytes
# Per-equation cost may grow by a quarter over two decades (the garbage collector, cache misses)
# and still be called linear: 10 ** (2 * 0.05).
LINEAR_GOAL = 1.05


# -------------------------------------------------------------------- the programs


def straight_line(equations: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """`(fn, args)` of a function of two f32[8] that traces to exactly `equations` equations.

    Eleven elementwise operations in turn, each on the last value and, where it takes two, on one
    of the sixteen before it, so that values live for different lengths of time.
    """
    import jax.numpy as jnp
    from jax import lax

    operations = (
        lax.add, lax.sin, lax.mul, lax.tanh, lax.sub, lax.neg,
        lax.max, lax.cos, lax.add, lax.abs, lax.min,
    )  # fmt: skip
    binary = {lax.add, lax.mul, lax.sub, lax.max, lax.min}

    def program(x: Any, y: Any) -> Any:
        window = [x, y]
        for index in range(equations):
            operation = operations[index % len(operations)]
            if operation in binary:
                value = operation(window[-1], window[-1 - (index * 7) % len(window)])
            else:
                value = operation(window[-1])
            window = [*window[-15:], value]
        return window[-1]

    return program, (jnp.linspace(-1.0, 1.0, 8), jnp.linspace(0.5, 2.0, 8))


def count_equations(jaxpr: Any) -> int:
    """The number of equations, those of nested jaxprs included, as often as they are called."""
    count = 0
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        count += 1
        for value in eqn.params.values():
            for item in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(item, "eqns") or hasattr(getattr(item, "jaxpr", None), "eqns"):
                    count += count_equations(item)
    return count


# ----------------------------------------------------------------- one measurement


@dataclasses.dataclass(frozen=True)
class Sample:
    """One repeat: seconds for each part; `trace_cpu` and `total_cpu` of processor time."""

    trace: float
    write: float
    proof: float
    total: float
    trace_cpu: float
    total_cpu: float
    parts: dict[str, float]


def peak_bytes() -> int:
    """The largest resident size that this process has had, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def cold(call: Callable[[], Any]) -> tuple[float, float, Any]:
    """`(wall seconds, processor seconds, result)` of `call()` with JAX's caches emptied before."""
    import jax

    jax.clear_caches()
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    result = call()
    return time.perf_counter() - wall, time.process_time() - cpu, result


def decompiler(
    fn: Callable[..., Any], args: Sequence[Any], oracle: bool, style: str, prove: bool = True
) -> Callable[[], Any]:
    """A call that decompiles `fn`; with `oracle`, one that traces it and does nothing else."""
    if oracle:
        import jax

        return lambda: jax.make_jaxpr(fn)(*args)
    import untrace

    return lambda: untrace.decompile(fn, style=style, prove=prove)(*args)


def take_sample(fn: Callable[..., Any], args: Sequence[Any], oracle: bool, style: str) -> Sample:
    """One repeat of the original's trace and of the whole of decompiling it, side by side."""
    import jax

    trace, trace_cpu, _ = cold(lambda: jax.make_jaxpr(fn)(*args))
    total, total_cpu, decompiled = cold(decompiler(fn, args, oracle, style))
    parts = dict(getattr(decompiled, "timings", {}))
    if parts:
        writing = parts.get("write", 0.0)
        proof = sum(parts.get(part, 0.0) for part in ("load", "retrace", "compare"))
    else:  # no timings: what is left after the trace, with and without the proof
        del decompiled
        unproven, _, _ = cold(decompiler(fn, args, oracle, style, prove=False))
        writing, proof = max(unproven - trace, 0.0), max(total - unproven, 0.0)
    return Sample(trace, writing, proof, total, trace_cpu, total_cpu, parts)


def measure(options: dict[str, Any], record: Record) -> None:
    """The child: all repeats of one program."""
    if options["cpu"]:
        # The clock that untrace's own timings read as well.
        time.perf_counter = time.process_time
    import jax

    record.put(stage="build")
    if "path" in options:
        fn, args = build_case(options["path"])
    else:
        fn, args = straight_line(options["equations"])
    small, small_args = straight_line(20)
    decompiler(small, small_args, options["oracle"], options["style"])()  # pays for imports and first uses
    base = peak_bytes()
    record.put(stage="trace", base_bytes=base)
    equations = count_equations(jax.make_jaxpr(fn)(*args))
    record.put(equations=equations, trace_peak_bytes=peak_bytes(), stage="decompile")
    samples: list[Sample] = []
    deadline = time.monotonic() + options["budget"]
    while not samples or (len(samples) < options["repeats"] and time.monotonic() < deadline):
        samples.append(take_sample(fn, args, options["oracle"], options["style"]))
        record.put(peak_bytes=peak_bytes(), **summarise(samples))


def summarise(samples: list[Sample]) -> dict[str, Any]:
    """The medians of a program's repeats; ratios are medians of the ratios of each repeat."""
    parts = sorted({name for s in samples for name in s.parts})
    return {
        "repeats": len(samples),
        "trace": statistics.median(s.trace for s in samples),
        "write": statistics.median(s.write for s in samples),
        "proof": statistics.median(s.proof for s in samples),
        "total": statistics.median(s.total for s in samples),
        "write_ratio": statistics.median(s.write / s.trace for s in samples),
        "total_ratio": statistics.median(s.total / s.trace for s in samples),
        "cpu_ratio": statistics.median(s.total_cpu / s.trace_cpu for s in samples),
        "trace_cpu": statistics.median(s.trace_cpu for s in samples),
        "total_cpu": statistics.median(s.total_cpu for s in samples),
        "parts": {n: statistics.median(s.parts.get(n, 0.0) for s in samples) for n in parts},
    }


# ---------------------------------------------------------------------- the parent

HEAD = (
    f"{'program':<32} {'eqns':>7} {'trace':>9} {'write':>9} {'proof':>9} {'total':>9} "
    f"{'w/trace':>8} {'t/trace':>8} {'cpu t/t':>8} {'us/eqn':>7} {'peak (after trace)':>18}"
)


def print_row(row: dict[str, Any]) -> None:
    if "total" not in row:
        print(f"{row['name']:<32} {row.get('error', 'not run')}", flush=True)
        return
    times = " ".join(f"{1e3 * row[key]:9.2f}" for key in ("trace", "write", "proof", "total"))
    ratios = " ".join(f"{row[key]:8.2f}" for key in ("write_ratio", "total_ratio", "cpu_ratio"))
    each = 1e6 * row["total"] / max(row["equations"], 1)
    peak = f"{row['peak_bytes'] / 2**20:.0f} ({row['trace_peak_bytes'] / 2**20:.0f}) MiB"
    print(f"{row['name']:<32} {row['equations']:7} {times} {ratios} {each:7.1f} {peak:>18}")
    if row["parts"]:
        parts = ", ".join(f"{name} {1e3 * value:.2f}" for name, value in row["parts"].items())
        print(f"{'':<32} {parts}")
    if "error" in row:
        print(f"{'':<32} after {row['repeats']} repeats: {row['error']}")
    sys.stdout.flush()


def exponent(rows: Sequence[dict[str, Any]], value: Callable[[dict[str, Any]], float], least: int = 1_000) -> float:
    """The slope of log(value) over log(equations) by least squares: 1 is linear growth.

    Only programs of `least` equations or more count: below, fixed costs hide the growth. NaN where
    there are fewer than two.
    """
    points = [(math.log(r["equations"]), math.log(max(value(r), 1e-9))) for r in rows if r["equations"] >= least]
    if len(points) < 2:
        return math.nan
    slope, _ = statistics.linear_regression(*zip(*points, strict=True))
    return slope


def verdicts(
    straight: list[dict[str, Any]], zoo: list[dict[str, Any]], style: str
) -> list[tuple[str, float, str, bool | None]]:
    """`(what, figure, goal, whether it holds)` for each goal; None where it was not measured."""

    def at_most(what: str, figures: list[float], limit: float, text: str, pick: Any = max) -> Any:
        if not figures or any(math.isnan(f) for f in figures):
            return what, math.nan, text, None
        figure = pick(figures)
        return what, figure, text, figure <= limit

    write_ratios = [r["write_ratio"] for r in straight]
    straight_goal, least, zoo_goal = TOTAL_GOALS[style]
    totals = [r["total_ratio"] for r in straight if r["equations"] >= least]
    growth = [exponent(straight, lambda r: r["total_cpu"])]
    of_trace = exponent(straight, lambda r: r["trace_cpu"])
    memory_growth = [exponent(straight, lambda r: r["peak_bytes"] - r["base_bytes"], least=10_000)]
    peaks = [r["peak_bytes"] for r in straight if r["equations"] >= 100_000]
    zoo_write = [r["write_ratio"] for r in zoo]
    zoo_total = [r["total_ratio"] for r in zoo]
    median = statistics.median
    return [
        at_most("straight-line: write / trace, worst", write_ratios, WRITE_GOAL, "<= 1"),
        at_most("straight-line: total / trace, worst", totals, straight_goal, f"<= {straight_goal:g}"),
        at_most(f"straight-line: growth (trace {of_trace:.2f})", growth, LINEAR_GOAL, "linear, <= 1.05"),
        at_most("straight-line: growth of memory", memory_growth, LINEAR_GOAL, "linear, <= 1.05"),
        at_most("100,000 equations: peak in bytes", peaks, MEMORY_GOAL, "< 2 GiB"),
        at_most("zoo: write / trace, median", zoo_write, WRITE_GOAL, "<= 1", median),
        at_most("zoo: total / trace, median", zoo_total, zoo_goal, f"<= {zoo_goal:g}", median),
    ]


def run(options: argparse.Namespace) -> int:
    """Measures everything that the options name, prints it, and gives the exit status."""
    settings = {
        "repeats": options.repeats,
        "budget": options.budget,
        "oracle": options.oracle,
        "cpu": options.cpu,
        "style": options.style,
    }
    straight: list[dict[str, Any]] = []
    zoo: list[dict[str, Any]] = []
    clock = "processor" if options.cpu else "wall"
    print(f"{clock} times in milliseconds, medians", HEAD, sep="\n", flush=True)
    for size in options.sizes:
        data = run_child(__file__, {**settings, "equations": size}, options.seconds)
        straight.append({"name": f"straight line, {size:,}", **data})
        print_row(straight[-1])
    for case in find_cases(options.zoo, options.only) if options.zoo else ():
        if case.runs_here:
            data = run_child(
                __file__,
                {**settings, "path": str(case.path)},
                options.seconds,
                devices=case.devices,
                x64=case.x64,
            )
            zoo.append({"name": case.name, **data})
            print_row(zoo[-1])
    results = verdicts([r for r in straight if "total" in r], [r for r in zoo if "total" in r], options.style)
    print()
    for what, figure, goal, holds in results:
        print(f"{what:<40} {figure:>14,.2f}   goal {goal:<16} {mark(holds)}")
    missing = [r["name"] for r in straight + zoo if "total" not in r or "error" in r]
    if missing:
        print(f"not measured in full: {', '.join(missing)}")
    write_json(
        options.json,
        {
            "tool": "oracle" if options.oracle else "untrace",
            "clock": clock,
            "python": sys.version.split()[0],
            "straight_line": straight,
            "zoo": zoo,
            "goals": [
                {"what": what, "figure": figure, "goal": goal, "holds": holds} for what, figure, goal, holds in results
            ],
        },
    )
    return 1 if missing or any(holds is False for *_, holds in results) else 0


def profile(equations: int, oracle: bool, style: str, lines: int = 45) -> None:
    """Prints cProfile's hottest functions of decompiling one straight-line program.

    Times under the profiler are two to four times the real ones; the order is what counts. By own
    time first, then by time including callees.
    """
    import jax

    fn, args = straight_line(equations)
    small, small_args = straight_line(20)
    decompiler(small, small_args, oracle, style)()
    trace, _, _ = cold(lambda: jax.make_jaxpr(fn)(*args))
    total, _, decompiled = cold(decompiler(fn, args, oracle, style))
    print(f"without the profiler: trace {1e3 * trace:.1f} ms, total {1e3 * total:.1f} ms")
    for name, seconds in getattr(decompiled, "timings", {}).items():
        print(f"  {name:<10} {1e3 * seconds:9.1f} ms {1e6 * seconds / equations:8.2f} us/equation")
    del decompiled
    profiler = cProfile.Profile()
    cold(lambda: profiler.runcall(decompiler(fn, args, oracle, style)))
    for order in ("tottime", "cumulative"):
        with contextlib.redirect_stdout(io.StringIO()) as text:
            pstats.Stats(profiler).sort_stats(order).print_stats(lines)
        print(text.getvalue())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sizes",
        type=lambda text: [int(size) for size in text.split(",") if size],
        default=SIZES,
        metavar="N,N,…",
        help="equations of the straight-line programs (default: 100,1000,10000,100000)",
    )
    zoo = parser.add_mutually_exclusive_group()
    zoo.add_argument(
        "--zoo",
        metavar="ZOO_DIR",
        default=ZOO if ZOO.is_dir() else None,
        help="the zoo (default: shared/zoo beside the checkout, where there is one)",
    )
    zoo.add_argument("--no-zoo", dest="zoo", action="store_const", const=None)
    parser.add_argument("--only", metavar="REGEX", help="zoo programs whose file name matches")
    parser.add_argument("--style", choices=sorted(TOTAL_GOALS), default="exact")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--cpu",
        action="store_true",
        help="processor time instead of wall time, for a machine that others use",
    )
    parser.add_argument("--budget", type=float, default=60.0, help="seconds after which no repeat is begun")
    parser.add_argument("--seconds", type=float, default=900.0, help="limit of each process")
    parser.add_argument("--json", metavar="OUT")
    parser.add_argument("--profile", type=int, metavar="N", help="profile one program of N equations instead")
    parser.add_argument("--oracle", action="store_true", help="trace only, in place of decompiling")
    options = parser.parse_args()
    if options.profile is not None:
        profile(options.profile, options.oracle, options.style)
        return 0
    return run(options)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--child":
        child_main(measure, sys.argv[2])
    sys.exit(main())
