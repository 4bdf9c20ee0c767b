"""Compares written functions with their originals under JAX's transformations.

    python bench/transforms.py ZOO_DIR [--only REGEX] [--transforms jit,grad] [--json OUT]

Every program of the zoo is decompiled (exact, standalone), saved, and imported again from the saved
text, in a process of its own. Then the original and the written function go through the same
transformations, each of them jitted, on the same inputs:

  jit    the function itself
  jvp    forward derivative along one fixed direction
  vmap   a batch of two (the second element's floats differ by an eighth)
  grad   gradient of a fixed weighted sum of all float outputs with respect to all float inputs
  grad2  gradient of the sum of that gradient; forward over reverse where the original does not
         allow reverse twice

A cell says `same` when all bits are equal (any NaN equals any NaN; a missing output or another
dtype is a difference), otherwise how far they are apart; `raises` when both sides raise; `loose`
when only the original does; `slow` when the original ran out of time; `-` when there is nothing to
differentiate. `jaxpr` says that the written function is not the same as the original, but is the
same as `jax.extend.core.jaxpr_as_fun` of the original's jaxpr, which is JAX's own round trip: JAX
differentiates an inner gradient while it runs and a traced one afterwards, and may then add
cotangents in another order, so that no program traced beforehand has the original's bits there.
`same` passes; a difference, or an error or time-out of the written side alone, fails; everything
else is skipped, and listed with its reason and the size of the difference.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from _common import (
    Case,
    Record,
    Written,
    build_case,
    child_main,
    compare_bits,
    find_cases,
    host_leaves,
    run_child,
    short_error,
    stablehlo,
    write,
    write_json,
)

TRANSFORMS = ("jit", "jvp", "vmap", "grad", "grad2")
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


# ----------------------------------------------------------------- the comparison


@dataclasses.dataclass(frozen=True)
class Flat:
    """A function as one of flat lists: the leaves to differentiate and all the others.

    `rebuild(floats, others)` gives back the arguments that the function takes.
    """

    floats: list[Any]
    others: list[Any]
    rebuild: Callable[[list[Any], list[Any]], tuple[Any, ...]]


def split_floats(args: tuple[Any, ...]) -> Flat:
    """The arguments as real floating-point leaves and the rest (integers, keys, complex)."""
    import jax
    import jax.numpy as jnp

    leaves, tree = jax.tree_util.tree_flatten(args)
    real = [not _is_key(x) and jnp.issubdtype(jnp.result_type(x), jnp.floating) for x in leaves]

    def rebuild(floats: list[Any], others: list[Any]) -> tuple[Any, ...]:
        sources = {True: iter(floats), False: iter(others)}
        return jax.tree_util.tree_unflatten(tree, [next(sources[flag]) for flag in real])

    floats = [x for x, flag in zip(leaves, real, strict=True) if flag]
    others = [x for x, flag in zip(leaves, real, strict=True) if not flag]
    return Flat(floats, others, rebuild)


def _is_key(x: Any) -> bool:
    import jax

    return isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def scalar(outputs: Any) -> Any:
    """A fixed weighted sum of all float outputs, f32[] or wider.

    Weighted, because the plain sum of a softmax or of a normalised vector has no gradient, and
    would compare zeros with zeros.
    """
    import jax
    import jax.numpy as jnp

    total = jnp.zeros(())
    for leaf in jax.tree_util.tree_leaves(outputs):
        if _is_key(leaf) or not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            continue
        leaf = jnp.asarray(leaf)
        parts = (leaf.real, leaf.imag) if jnp.iscomplexobj(leaf) else (leaf,)
        weights = jnp.cos(jnp.arange(leaf.size, dtype=jnp.float32)).reshape(leaf.shape)
        for part in parts:
            total = total + jnp.sum(part.astype(jnp.promote_types(part.dtype, "float32")) * weights)
    return total


def directions(floats: list[Any]) -> list[Any]:
    """One tangent for each leaf: numbers between -1 and 1 that depend on the position alone."""
    import jax.numpy as jnp

    tangents = []
    for index, x in enumerate(floats):
        array = jnp.asarray(x)
        steps = jnp.arange(array.size, dtype=jnp.float32).reshape(array.shape)
        tangents.append(jnp.sin(steps + 1.0 + index).astype(array.dtype))
    return tangents


def batch_of_two(x: Any, *, perturb: bool) -> Any:
    """`x` and, where `perturb`, `1.125 * x`, stacked; a weakly typed number stays weakly typed.

    `jax.lax` and not `jnp.stack`: `jnp` would make Python scalars strongly typed, and the function
    would be another one than the one that was decompiled.
    """
    import jax.numpy as jnp
    from jax import lax

    if _is_key(x):
        return jnp.stack([x, x])
    x = jnp.asarray(x)
    second = x * 1.125 if perturb else x
    return lax.concatenate([lax.broadcast(x, (1,)), lax.broadcast(second, (1,))], 0)


def variants(name: str, flat: Flat) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """The ways to apply a transformation, the most demanding first: `(label, transform, inputs)`.

    `transform(fn)` is a function of the inputs. The second way counts only where the original does
    not allow the first. There is none where there is nothing to differentiate.
    """
    import jax

    inputs = (flat.floats, flat.others)

    def of_flat(fn: Callable[..., Any]) -> Callable[..., Any]:
        return lambda floats, others: fn(*flat.rebuild(floats, others))

    def gradient(fn: Callable[..., Any]) -> Callable[..., Any]:
        return jax.grad(lambda floats, others: scalar(of_flat(fn)(floats, others)))

    def directional(of: Callable[..., Any]) -> Callable[..., Any]:
        return lambda floats, others: jax.jvp(lambda floats: of(floats, others), (floats,), (directions(floats),))

    def total_gradient(fn: Callable[..., Any]) -> Callable[..., Any]:
        return lambda floats, others: scalar(gradient(fn)(floats, others))

    if name == "jit":
        yield "jit", of_flat, inputs
    elif name == "vmap" and (flat.floats or flat.others):
        floats = [batch_of_two(x, perturb=True) for x in flat.floats]
        others = [batch_of_two(x, perturb=False) for x in flat.others]
        yield "all inputs", lambda fn: jax.vmap(of_flat(fn)), (floats, others)
        if floats and others:
            yield (
                "float inputs",
                lambda fn: jax.vmap(of_flat(fn), in_axes=(0, None)),
                (floats, flat.others),
            )
    elif flat.floats and name == "jvp":
        yield "jvp", lambda fn: directional(of_flat(fn)), inputs
    elif flat.floats and name == "grad":
        yield "grad", gradient, inputs
    elif flat.floats and name == "grad2":
        yield "grad of grad", lambda fn: jax.grad(total_gradient(fn)), inputs
        yield "jvp of grad", lambda fn: directional(gradient(fn)), inputs


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one side gave: leaves and StableHLO, or the error that was raised."""

    leaves: list[Any] | None = None
    hlo: str = ""
    error: str = ""


def attempt(transformed: Callable[..., Any], inputs: tuple[Any, ...]) -> Outcome:
    """The jitted function's outputs, or whatever it raises in tracing, compiling or running."""
    import jax

    try:
        lowered = jax.jit(transformed).lower(*inputs)
        outputs = jax.block_until_ready(lowered.compile()(*inputs))
        return Outcome(host_leaves(outputs), stablehlo(lowered))
    except Exception as error:  # noqa: BLE001 - whatever is raised is the result
        return Outcome(error=short_error(error))


def compare(name: str, fn: Callable[..., Any], written: Written, flat: Flat, record: Record) -> Any:
    """The cell of one transformation, as a dictionary with `cell`, `status` and the details."""
    cell: dict[str, Any] = {"cell": "-", "status": SKIPPED, "reason": "no float inputs"}
    for label, transform, inputs in variants(name, flat):
        record.put(stage=f"{name}: original")
        original = attempt(transform(fn), inputs)
        record.put(stage=f"{name}: written")
        got = attempt(transform(written.function), inputs)
        cell = judge(original, got)
        cell["variant"] = label
        if cell["status"] == FAILED:
            record.put(stage=f"{name}: jaxpr")
            args = flat.rebuild(flat.floats, flat.others)
            control = attempt(transform(jaxpr_round_trip(fn, args)), inputs)
            cell = excuse(cell, control, got)
        if original.leaves is not None:
            break  # the original allows it: nothing weaker is asked
    return cell


def judge(original: Outcome, got: Outcome) -> dict[str, Any]:
    """The cell for a pair of outcomes."""
    if original.leaves is None:
        return {
            "cell": "raises" if got.leaves is None else "loose",
            "status": SKIPPED,
            "reason": f"the original raises {original.error}",
            "written": _how_it_raises(original, got),
        }
    if got.leaves is None:
        return {"cell": "RAISES", "status": FAILED, "reason": f"only the written: {got.error}"}
    difference = compare_bits(original.leaves, got.leaves)
    details = {"same_hlo": original.hlo == got.hlo}
    if difference.same:
        return {"cell": "same", "status": PASSED, **details}
    size = ""
    if difference.ulps is not None:
        size = f"; max {difference.ulps} ulp, relative {difference.relative:.1e}"
    return {
        "cell": "DIFF" if difference.relative is None else f"{difference.relative:.0e}",
        "status": FAILED,
        "reason": difference.detail + size,
        "ulps": difference.ulps,
        "relative": difference.relative,
        **details,
    }


def jaxpr_round_trip(fn: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., list[Any]]:
    """JAX's own way from a function to its jaxpr and back; it returns the leaves of the outputs."""
    import jax
    from jax.extend.core import jaxpr_as_fun

    of_leaves = jaxpr_as_fun(jax.make_jaxpr(fn)(*args))
    return lambda *inputs: of_leaves(*jax.tree_util.tree_leaves(inputs))


def excuse(cell: dict[str, Any], control: Outcome, got: Outcome) -> dict[str, Any]:
    """The failed cell, or a skipped one where JAX's own round trip gives what the written gives.

    The same bits, or an error on both sides.
    """
    if control.leaves is None or got.leaves is None:
        same = control.leaves is got.leaves
        why = f"JAX's own round trip raises {control.error}"
    else:
        same = compare_bits(control.leaves, got.leaves).same
        why = "same bits as JAX's own round trip"
    if not same:
        return cell
    return {**cell, "cell": "jaxpr", "status": SKIPPED, "reason": f"{cell['reason']}; {why}"}


def _how_it_raises(original: Outcome, got: Outcome) -> str:
    if got.leaves is not None:
        return "does not raise"
    return "raises the same" if got.error == original.error else f"raises {got.error}"


def measure(options: dict[str, Any], record: Record) -> None:
    """The child: writes one program and fills one cell after another of its record."""
    record.put(stage="build", cells={})
    fn, args = build_case(options["path"])
    record.put(stage="write")
    written = write(fn, args, options["work"], options["oracle"])
    record.put(proof=written.proof)
    flat = split_floats(args)
    for name in options["transforms"]:
        start = time.perf_counter()
        cell = compare(name, fn, written, flat, record)
        cell["seconds"] = time.perf_counter() - start
        record.put(cells={**record.data["cells"], name: cell})


# ---------------------------------------------------------------------- the parent


def run_case(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """One row: a cell for each transformation, over as many children as the time limits cost."""
    row: dict[str, Any] = {"case": case.name, "cells": {}}
    start = time.monotonic()
    if not case.runs_here:
        _fill(row, "-", SKIPPED, f"needs {case.python}")
    for name in set(TRANSFORMS).difference(options.transforms):
        row["cells"][name] = {"cell": "-", "status": SKIPPED, "reason": "not asked for"}
    while remaining := [t for t in TRANSFORMS if t not in row["cells"]]:
        settings = {"path": str(case.path), "oracle": options.oracle, "transforms": remaining}
        data = run_child(__file__, settings, options.seconds, devices=case.devices, x64=case.x64)
        row["cells"].update(data.get("cells", {}))
        row["proof"] = data.get("proof", row.get("proof"))
        if "error" not in data:
            continue
        stage = str(data.get("stage"))
        name, _, side = stage.partition(": ")
        if name not in remaining:  # before the first transformation: nothing can be compared
            status = SKIPPED if stage == "build" else FAILED
            cell = "build" if stage == "build" else "WRITE"
            _fill(row, cell, status, f"{stage}: {data['error']}")
        else:  # killed in one transformation: the others still get their turn
            slow = side == "original"
            row["cells"][name] = {
                "cell": "slow" if slow else "SLOW",
                "status": SKIPPED if slow else FAILED,
                "reason": f"{side}: {data['error']}",
            }
    row["seconds"] = time.monotonic() - start
    return row


def _fill(row: dict[str, Any], cell: str, status: str, reason: str) -> None:
    for name in TRANSFORMS:
        row["cells"].setdefault(name, {"cell": cell, "status": status, "reason": reason})


def print_row(row: dict[str, Any]) -> None:
    cells = " ".join(f"{row['cells'][t]['cell']:<8}" for t in TRANSFORMS)
    proof = row.get("proof") or "-"
    print(f"{row['case']:<32} {proof:<8} {cells} {row['seconds']:6.1f}", flush=True)


def print_notes(rows: list[dict[str, Any]]) -> None:
    """Every cell that is not `same` with its reason, failures first; one line for equal reasons."""
    for status in (FAILED, SKIPPED):
        for row in rows:
            by_reason: dict[str, list[str]] = {}
            for name in TRANSFORMS:
                cell = row["cells"][name]
                if cell["status"] == status:
                    written = f"; the written {cell['written']}" if "written" in cell else ""
                    by_reason.setdefault(cell["reason"] + written, []).append(name)
            for reason, names in by_reason.items():
                print(f"  {status} {row['case']} [{', '.join(names)}]: {reason}")


def totals(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """For each transformation, how many cells passed, failed and were skipped."""
    return {
        name: {
            status: sum(row["cells"][name]["status"] == status for row in rows) for status in (PASSED, FAILED, SKIPPED)
        }
        for name in TRANSFORMS
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("zoo", metavar="ZOO_DIR")
    parser.add_argument("--only", metavar="REGEX", help="programs whose file name matches")
    parser.add_argument(
        "--transforms",
        type=lambda text: text.split(","),
        default=TRANSFORMS,
        metavar="NAME,…",
        help="some of " + ", ".join(TRANSFORMS),
    )
    parser.add_argument("--json", metavar="OUT")
    parser.add_argument("--jobs", type=int, default=1, help="programs at a time")
    parser.add_argument("--seconds", type=float, default=600.0, help="limit of each process")
    parser.add_argument("--oracle", action="store_true", help="the original in place of the written function")
    options = parser.parse_args()
    cases = find_cases(options.zoo, options.only)
    if unknown := set(options.transforms).difference(TRANSFORMS):
        parser.error(f"unknown transformations: {', '.join(sorted(unknown))}")
    if not cases:
        parser.error(f"no program in {options.zoo} matches")
    heads = " ".join(f"{t:<8}" for t in TRANSFORMS)
    print(f"{'program':<32} {'proof':<8} {heads} {'seconds':>6}", flush=True)
    rows: list[dict[str, Any]] = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(lambda case: run_case(case, options), cases):
            rows.append(row)
            print_row(row)
            write_json(
                options.json,
                {
                    "tool": "oracle" if options.oracle else "untrace",
                    "python": sys.version.split()[0],
                    "totals": totals(rows),
                    "rows": rows,
                },
            )
    print_notes(rows)
    counts = totals(rows)
    for name, count in counts.items():
        print(f"{name}: " + ", ".join(f"{n} {status}" for status, n in count.items()))
    sums = {s: sum(c[s] for c in counts.values()) for s in (PASSED, FAILED, SKIPPED)}
    print(", ".join(f"{sums[s]} {s}" for s in (PASSED, FAILED, SKIPPED)))
    return 1 if sums[FAILED] else 0


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--child":
        child_main(measure, sys.argv[2])
    sys.exit(main())
