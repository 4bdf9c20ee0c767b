"""Times the applications of the JaxDecompiler paper before and after decompiling.

    python bench/paper.py [--style idiomatic] [--runs 10] [--numbers 33554432] [--only REGEX] [--json OUT] [--oracle] [--cpu]

P. Pochelu, "JaxDecompiler: Redefining Gradient-Informed Software Design" (2024), arXiv:2403.10571,
compares three applications, written anew here:

  train, infer   an MLP of `layers` square tanh layers of `units` units on `points` points: the
                 gradient of the mean squared error, and the prediction
  sort           map-reduce: every device of a `pmap` sorts a chunk, sorted chunks are merged in
                 pairs; 32 M numbers in the paper, `--numbers` here (2**20 unless told otherwise)
  simulate       molecules joined pairwise by springs, moved downhill: Python calls the decompiled
                 value-and-gradient of one spring for every pair, in every step

What is timed "after" is the saved text, imported again. Both sides run in one process, in turns,
each first in every other run; a run repeats a short call until it lasts 20 ms. Milliseconds, mean
and standard deviation of the runs; the ratio, after / before, is that of the runs of one turn.
Goals: jitted 1.00 within noise (two standard errors, or 2 %: it is the same program), unjitted at
most 1.0, and at most 0.5 for the simulation, whose original traces a gradient in every call.

In style exact the MLP's inference misses the second goal where its layers are many and small: it has
one `lax` call for each equation, and JAX dispatches a bare primitive in Python. The original's `jnp`
functions are jitted, each one call of compiled code: `x @ w + b` is two of them, and three primitives.
Style idiomatic writes those functions again.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from _common import (
    Record,
    child_main,
    compare_bits,
    host_leaves,
    mark,
    run_child,
    write,
    write_json,
)

NOISE = 0.02
SHORTEST_RUN = 0.02  # seconds


# ---------------------------------------------------------------- the applications


@dataclasses.dataclass(frozen=True)
class Application:
    """What to decompile, and how it is used.

    `use(fn)` is one call to be timed: `fn` is `function`, or the written one, or either jitted.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    use: Callable[[Callable[..., Any]], Any]


def predict(params: list[tuple[Any, Any]], inputs: Any) -> Any:
    """f32[points, units]: the MLP's output; `params` is a list of (weights, bias)."""
    import jax.numpy as jnp

    for weights, bias in params:
        inputs = jnp.tanh(inputs @ weights + bias)
    return inputs


def mean_squared_error(params: list[tuple[Any, Any]], inputs: Any, targets: Any) -> Any:
    """f32[]: the training loss of `predict`."""
    import jax.numpy as jnp

    return jnp.mean((predict(params, inputs) - targets) ** 2)


def mlp(points: int, units: int, layers: int, train: bool) -> Application:
    """Training (the gradient with respect to all parameters) or inference of an MLP."""
    import jax

    keys = jax.random.split(jax.random.key(0), layers + 2)
    params = [
        (jax.random.normal(key, (units, units)) / math.sqrt(units), jax.numpy.zeros(units)) for key in keys[:layers]
    ]
    inputs = jax.random.normal(keys[-2], (points, units))
    targets = jax.random.normal(keys[-1], (points, units))
    if train:
        function, args = jax.grad(mean_squared_error), (params, inputs, targets)
    else:
        function, args = predict, (params, inputs)
    return Application(function, args, lambda fn: fn(*args))


def sort(devices: int, numbers: int) -> Application:
    """All of `numbers` shuffled numbers sorted, one chunk on each of `devices` devices."""
    import jax
    import jax.numpy as jnp

    def merge(left: Any, right: Any) -> Any:
        at_left = jnp.arange(left.size) + jnp.searchsorted(right, left, side="left")
        at_right = jnp.arange(right.size) + jnp.searchsorted(left, right, side="right")
        merged = jnp.zeros(left.size + right.size, left.dtype)
        return merged.at[at_left].set(left).at[at_right].set(right)

    def map_reduce_sort(values: Any) -> Any:
        parts = jax.pmap(jnp.sort)(values.reshape(devices, -1))
        # Slices, not `parts[i]`: of an array that lives on several devices JAX takes the latter
        # from one device when it runs, and from all of them when it traces.
        while len(parts) > 1:
            parts = jax.vmap(merge)(parts[::2], parts[1::2])
        return parts.reshape(-1)

    values = jax.random.permutation(jax.random.key(1), jnp.arange(float(numbers)))
    return Application(map_reduce_sort, (values,), lambda fn: fn(values))


def spring_energy(first: Any, second: Any, length: Any, stiffness: Any) -> Any:
    """f32[]: the energy of a spring between two points, f32[3] each."""
    import jax.numpy as jnp

    between = first - second
    return 0.5 * stiffness * (jnp.sqrt(jnp.dot(between, between)) - length) ** 2


def simulate(molecules: int, steps: int) -> Application:
    """`steps` steps of gradient descent on the energy of springs between all pairs."""
    import jax

    keys = jax.random.split(jax.random.key(2), molecules)
    start = [jax.random.normal(key, (3,)) for key in keys]
    length, stiffness, rate = 0.5, 20.0, 1e-3

    def descend(energy_and_gradient: Callable[..., Any]) -> list[Any]:
        positions = list(start)
        for _ in range(steps):
            gradients: list[Any] = [0.0] * molecules
            for i in range(molecules):
                for j in range(i + 1, molecules):
                    _, (at_i, at_j) = energy_and_gradient(positions[i], positions[j], length, stiffness)
                    gradients[i] = gradients[i] + at_i
                    gradients[j] = gradients[j] + at_j
            positions = [x - rate * g for x, g in zip(positions, gradients, strict=True)]
        return positions

    function = jax.value_and_grad(spring_energy, argnums=(0, 1))
    return Application(function, (start[0], start[1], length, stiffness), descend)


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table: which application with which settings, on how many host devices."""

    name: str
    builder: str
    settings: dict[str, Any]
    devices: int = 1
    unjitted_goal: float = 1.0


def rows(numbers: int, quick: bool) -> list[Row]:
    """All lines; `quick` keeps each kind and shrinks it to what a test can afford."""
    shapes = {"1Kx1Kx2": (1024, 1024, 2), "16x1Kx128": (16, 1024, 128), "16x8Kx2": (16, 8192, 2)}
    devices, simulations = (1, 2, 4), ((2, 20), (20, 1))
    if quick:
        shapes, devices, simulations = {"8x16x2": (8, 16, 2)}, (2,), ((2, 1),)
        numbers = min(numbers, 1024)
    table = []
    for name, (points, units, layers) in shapes.items():
        for kind in ("train", "infer"):
            settings = {"points": points, "units": units, "layers": layers}
            table.append(Row(f"{kind} {name}", "mlp", {**settings, "train": kind == "train"}))
    for count in devices:
        settings = {"devices": count, "numbers": numbers}
        table.append(Row(f"sort {numbers} on {count}", "sort", settings, devices=count))
    for molecules, steps in simulations:
        settings = {"molecules": molecules, "steps": steps}
        name = f"simulate {molecules} molecules"
        table.append(Row(name, "simulate", settings, unjitted_goal=0.5))
    return table


BUILDERS: dict[str, Callable[..., Application]] = {"mlp": mlp, "sort": sort, "simulate": simulate}


# ---------------------------------------------------------------------- the timing


def time_in_turns(before: Callable[[], Any], after: Callable[[], Any], runs: int) -> tuple[list[float], list[float]]:
    """Seconds per call of both, `runs` runs each; either goes first in every other run."""
    import jax

    def seconds(call: Callable[[], Any], calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            jax.block_until_ready(call())
        return (time.perf_counter() - start) / calls

    for call in (before, after):  # compiles
        seconds(call, 1)
    slower = max(seconds(before, 1), seconds(after, 1), 1e-7)
    calls = max(1, math.ceil(SHORTEST_RUN / slower))
    times: dict[str, list[float]] = {"before": [], "after": []}
    sides = [("before", before), ("after", after)]
    for _ in range(runs):
        for side, call in sides:
            times[side].append(seconds(call, calls))
        sides.reverse()
    return times["before"], times["after"]


def measure(options: dict[str, Any], record: Record) -> None:
    """The child: one application, unjitted and jitted."""
    if options["cpu"]:
        time.perf_counter = time.process_time
    import jax

    record.put(stage="build")
    app = BUILDERS[options["builder"]](**options["settings"])
    record.put(stage="write")
    written = write(app.function, app.args, options["work"], options["oracle"], options["style"])
    record.put(proof=written.proof)
    pairs = {
        "unjitted": (app.function, written.function),
        "jitted": (jax.jit(app.function), jax.jit(written.function)),
    }
    for mode, (original, after) in pairs.items():
        record.put(stage=f"{mode}: bits")
        difference = compare_bits(host_leaves(app.use(original)), host_leaves(app.use(after)))
        bits = "same" if difference.same else f"{difference.detail}, {difference.ulps} ulp"
        record.put(stage=f"{mode}: time")
        first, second = time_in_turns(lambda f=original: app.use(f), lambda f=after: app.use(f), options["runs"])
        record.put(**{mode: statistics_of(first, second), f"{mode}_bits": bits})


def statistics_of(before: list[float], after: list[float]) -> dict[str, float]:
    """Means and standard deviations of both sides, and of the ratio after / before of each run."""
    figures = {}
    ratios = [b / a for a, b in zip(before, after, strict=True)]
    for name, values in (("before", before), ("after", after), ("ratio", ratios)):
        figures[name] = statistics.fmean(values)
        figures[f"{name}_sd"] = statistics.stdev(values) if len(values) > 1 else 0.0
    figures["ratio_error"] = figures["ratio_sd"] / math.sqrt(len(ratios))
    return figures


# ---------------------------------------------------------------------- the parent


def holds(figures: dict[str, float] | None, mode: str, row: Row) -> bool | None:
    """Whether a ratio meets its goal within two standard errors; None where nothing was timed."""
    if figures is None:
        return None
    noise = max(2 * figures["ratio_error"], NOISE)
    if mode == "jitted":
        return abs(figures["ratio"] - 1.0) <= noise
    return figures["ratio"] <= row.unjitted_goal + noise


def print_row(row: Row, data: dict[str, Any]) -> None:
    for mode in ("unjitted", "jitted"):
        figures = data.get(mode)
        goal = "1.00" if mode == "jitted" else f"<= {row.unjitted_goal:.1f}"
        if figures is None:
            print(f"{row.name:<24} {mode:<9} {data.get('error', 'not run')}", flush=True)
            continue
        sides = " ".join(
            f"{1e3 * figures[side]:9.3f} ± {1e3 * figures[side + '_sd']:<8.3f}" for side in ("before", "after")
        )
        ratio = f"{figures['ratio']:7.3f} ± {figures['ratio_sd']:<6.3f}"
        verdict = mark(holds(figures, mode, row))
        bits = data[f"{mode}_bits"]
        print(f"{row.name:<24} {mode:<9} {sides} {ratio} {goal:<6} {verdict:<6} {bits}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--style", choices=("exact", "idiomatic"), default="exact")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--numbers", type=int, default=2**20, help="numbers to sort")
    parser.add_argument("--only", metavar="REGEX", help="lines whose name matches")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the script itself")
    parser.add_argument("--seconds", type=float, default=1800.0, help="limit of each process")
    parser.add_argument("--json", metavar="OUT")
    parser.add_argument("--cpu", action="store_true", help="processor time (all threads), for a machine that is busy")
    parser.add_argument("--oracle", action="store_true", help="the original in place of the written function")
    options = parser.parse_args()
    print(
        f"{'application':<24} {'mode':<9} {'before, ms':>20} {'after, ms':>20} {'after/before':>16}  goal          bits"
    )
    results, missed = [], []
    for row in rows(options.numbers, options.quick):
        if options.only and not re.search(options.only, row.name):
            continue
        settings = {"builder": row.builder, "settings": row.settings, "runs": options.runs}
        settings.update(style=options.style, oracle=options.oracle, cpu=options.cpu)
        data = run_child(__file__, settings, options.seconds, devices=row.devices)
        print_row(row, data)
        verdict = {mode: holds(data.get(mode), mode, row) for mode in ("unjitted", "jitted")}
        missed += [f"{row.name}, {mode}" for mode, good in verdict.items() if not good]
        results.append({"name": row.name, **settings, **data, "holds": verdict})
        tool = "oracle" if options.oracle else "untrace"
        write_json(options.json, {"tool": tool, "python": sys.version.split()[0], "rows": results})
    print(f"goals that do not hold: {'; '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--child":
        child_main(measure, sys.argv[2])
    sys.exit(main())
