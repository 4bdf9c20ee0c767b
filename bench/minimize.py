"""Plants faults in large programs and has them made small.

    python bench/minimize.py                     all faults, a process for each
    python bench/minimize.py --only 'nan_.*'     those of such names
    python bench/minimize.py --json OUT.json

Each fault stands in the midst of a program of 200 to 5,000 equations that has nothing to do with it. Goal: at most 5 equations
left, in under 180 seconds. A row says the equations before and after, the candidates that were run, the seconds and the fault.
The last line reads `N passed, M failed`; a fault fails where more is left, it takes longer, or the file that was written does
not show it (of NaNs and infinities: a fresh process runs it).
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import untrace

MOST_EQUATIONS, MOST_SECONDS = 5, 180.0
X = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)


def around(x: Any, count: int, seed: int) -> Any:
    """`count` equations, about, that keep numbers between -2 and 2; each reads some of those before it."""
    generator, values = np.random.default_rng(seed), [x, jnp.cos(x)]
    makes: list[Callable[..., Any]] = [
        lambda a, b: jnp.tanh(a + b), lambda a, b: jnp.sin(a) * b, lambda a, b: jnp.where(a > b, a, b),
        lambda a, b: jnp.tanh(a @ b), lambda a, b: jnp.cos(jnp.cumsum(a, axis=0) - b), lambda a, b: (a + b.T) / 2,
    ]  # fmt: skip
    for _ in range(count // 2):
        first, second = generator.integers(max(0, len(values) - 6), len(values), 2)
        values.append(makes[generator.integers(len(makes))](values[first], values[second]))
    return values[-1] + values[-2] / 2


def inside(fault: Callable[[Any], Any], count: int) -> Callable[[Any], Any]:
    """A program with the fault in its middle."""

    def program(x: Any) -> Any:
        y = around(x, count // 2, 1)
        z = fault(y)
        return around(z, count // 2, 2).sum(), y

    return program


def of_a_loop(fault: Callable[[Any], Any], count: int, steps: int = 12) -> Callable[[Any], Any]:
    """A program with the fault in the turns of a loop."""

    def program(x: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            new = jnp.tanh(around(carry + row, count // 3, 3))
            return new, fault(new)

        carry, rows = lax.scan(step, around(x, count // 3, 1), jnp.ones((steps, 4, 4)) / 9)
        return around(carry + rows.sum(0), count // 3, 2)

    return program


def of_a_while(x: Any) -> Any:
    def turn(state: Any) -> Any:
        n, y = state
        return n + 1, lax.cond(n > 3, lambda v: jnp.sqrt(v - 3), jnp.tanh, around(y, 60, 4))

    return around(lax.while_loop(lambda s: s[0] < 6, turn, (0, around(x, 150, 1)))[1], 150, 2)


@jax.custom_jvp
def safe(x: Any) -> Any:
    return jnp.sqrt(x * x)


safe.defjvp(lambda primals, tangents: (safe(*primals), tangents[0] * primals[0] / (primals[0] * 0)))


def abort(limit: float, x: Any) -> Any:
    if np.abs(x).max() > limit:
        os.abort()
    return x


def stop(x: Any) -> Any:
    raise RuntimeError(f"the largest is {x.max()}")


def sleep(x: Any) -> Any:
    time.sleep(60)
    return x


def sometimes(x: Any) -> Any:
    if os.urandom(1)[0] < 128:
        os.abort()
    return x


def called(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: jax.pure_callback(function, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def slow_to_compile(x: Any) -> Any:
    """LLVM takes long for a comparison of so many keys."""
    return lax.sort([x] * 800, num_keys=800)[0]


def ill_conditioned(x: Any) -> Any:
    return jnp.sin(jnp.exp(x) / 7.0 * 1e7)


def has_sort_of_cumsum(fn: Callable[..., Any], args: Any) -> bool:
    text = str(jax.make_jaxpr(fn)(*args))
    return "sort[" in text and "cumlogsumexp" in text


ABORTS = functools.partial(abort, 0.0)
# name: (the program, the predicate, the options).
FAULTS: dict[str, tuple[Callable[[Any], Any], Any, dict[str, Any]]] = {
    "nan_of_a_logarithm_200": (inside(lambda y: jnp.log(y - 9), 200), "nonfinite()", {}),
    "nan_of_a_logarithm_5000": (inside(lambda y: jnp.log(y - 9), 5000), "nonfinite()", {}),
    "nan_of_a_difference_1000": (inside(lambda y: jnp.exp(y + 99) - jnp.exp(y + 98), 1000), "nonfinite('nan')", {}),
    "nan_of_a_softmax_500": (inside(lambda y: jnp.exp(99 + y) / jnp.exp(99 + y).sum(), 500), "nonfinite('nan')", {}),
    "nan_in_a_loop_600": (of_a_loop(lambda y: jnp.arccos(y * 3), 600), "nonfinite()", {}),
    "nan_in_a_while_and_a_branch_400": (of_a_while, "nonfinite()", {}),
    "nan_of_a_gradient_800": (jax.grad(lambda x: inside(lambda y: jnp.sqrt(y * 0), 400)(x)[0]), "nonfinite()", {}),
    "nan_of_a_custom_rule_400": (jax.grad(lambda x: inside(safe, 200)(x)[0]), "nonfinite()", {}),
    "nan_of_a_mapped_norm_300": (
        jax.vmap(inside(lambda y: y / jnp.linalg.norm(y * 0), 300), in_axes=1, axis_size=4),
        "nonfinite()",
        {"args": (np.stack([X] * 4, 1),)},
    ),
    "overflow_in_a_jitted_function_2000": (inside(jax.jit(lambda y: jnp.exp(90 + y * y)), 2000), "nonfinite()", {}),
    "abort_400": (inside(called(ABORTS), 400), "crashes()", {}),
    "abort_in_a_loop_300": (of_a_loop(called(ABORTS), 300), "crashes()", {}),
    "exception_1000": (inside(called(stop), 1000), "crashes()", {}),
    "hang_200": (inside(called(sleep), 200), "hangs(4)", {}),
    "abort_every_other_time_200": (inside(called(sometimes), 200), "crashes()", {"repeats": 5}),
    "differs_when_jitted_500": (inside(ill_conditioned, 500), "differs('jit', 'eager')", {}),
    "slow_to_compile_300": (inside(slow_to_compile, 300), "compiles_slower_than(1.5)", {}),
    "own_predicate_1000": (
        inside(lambda y: jnp.sort(y) + lax.cumlogsumexp(y), 1000),
        f"{Path(__file__).resolve()}:has_sort_of_cumsum",
        {},
    ),
}


def shows_it(path: Path, predicate: str) -> bool:
    """Whether the written file shows a NaN or an infinity by itself."""
    if not predicate.startswith("nonfinite"):
        return True
    ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    return "nan" in ran.stdout or "inf" in ran.stdout


def measured(name: str) -> dict[str, Any]:
    program, predicate, options = FAULTS[name]
    args = options.pop("args", (X,))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "least.py"
        start = time.monotonic()
        found = untrace.minimize(program, predicate, path=path, **options)(*args)
        seconds = time.monotonic() - start
        now, before = found.equations
        row = {"name": name, "before": before, "now": now, "tried": found.tried, "seconds": round(seconds, 1)}
        row |= {"fault": found.fault, "source": found.source, "shows": shows_it(path, predicate)}
    row["passed"] = now <= MOST_EQUATIONS and seconds < MOST_SECONDS and found.finished and row["shows"]
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression on names")
    parser.add_argument("--json", help="where to write everything measured")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measured(options.child)))
        return 0
    rows = []
    for name in FAULTS:
        if not re.search(options.only, name):
            continue
        ran = subprocess.run([sys.executable, __file__, "--child", name], capture_output=True, text=True)
        lines = ran.stdout.splitlines()
        if ran.returncode or not lines:
            last = ran.stderr.strip().splitlines()[-1:] or [f"exit code {ran.returncode}"]
            row = {"name": name, "passed": False, "failed": last[0]}
            print(f"{name:<38} FAILED: {last[0]}", flush=True)
        else:
            row = json.loads(lines[-1])
            mark = "" if row["passed"] else "  FAILED"
            print(
                f"{name:<38} {row['before']:>5} -> {row['now']:>2} equations  {row['tried']:>4} candidates"
                f"  {row['seconds']:>6.1f} s  {row['fault'][:60]}{mark}",
                flush=True,
            )
        rows.append(row)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1))
    failed = sum(not row["passed"] for row in rows)
    print(f"{len(rows) - failed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
