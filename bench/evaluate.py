"""Runs programs in the intermediate representation (`untrace.ir.evaluate`), beside the originals.

    python bench/evaluate.py                            the zoo, zoo2, the gallery and our suite
    python bench/evaluate.py --of suite --only control --json OUT.json

Each program is captured and evaluated three times, in a process of its own: as it was captured; after all lifts, by the
bodies that those have left; and so with the author's calls of `jax.vmap`, `jax.grad` and their like as calls, where it has
some. All are compiled, like the original, and compared by bits; a lift may have grouped what XLA then fuses otherwise, so
that its results may differ in the last bits, which is said ("close"). The last line reads `N passed, M failed`; what
differs in more than that, or cannot be run, has failed.
"""

from __future__ import annotations

import collections
import sys
from pathlib import Path
from typing import Any

from _common import Record, child_main, compare_bits, host_leaves
from guards import arguments, measured_rows, program

_CLOSE = 1e-5  # of the largest value of an array
STAGES = ("captured", "lifted", "called")


def measure(options: dict[str, Any], record: Record) -> None:
    """Records what the evaluations give: "same", "close" or the difference."""
    import jax

    from untrace.driver.attempts import interpreter_settings

    with interpreter_settings():
        expected = host_leaves(original(*program(options)))
        for stage in STAGES:
            record.put(stage=stage)
            found = evaluated(*program(options), stage)  # with other arguments, which may be references that it changes
            if found is not None:
                record.put(**{stage: verdict(expected, host_leaves(jax.block_until_ready(found)))})


def original(fn: Any, args: Any, kwargs: Any, static: tuple[Any, Any]) -> Any:
    """What the function gives, compiled."""
    import jax

    nums, names = static
    return jax.jit(fn, static_argnums=nums, static_argnames=names)(*args, **kwargs)


def evaluated(fn: Any, args: Any, kwargs: Any, static: tuple[Any, Any], stage: str) -> list[Any] | None:
    """What the program of a function gives, compiled, on the leaves of its arguments; None where it has no such stage."""
    import jax

    from untrace.capture.function import expand, program_of, trace
    from untrace.driver.forms import with_calls_found
    from untrace.ir.evaluate import evaluate
    from untrace.lift import lift
    from untrace.module.interface.entry import entry_of
    from untrace.targets.jax import rules as _rules  # noqa: F401  (registers the rules)
    from untrace.targets.jax.rules.table import JAX

    nums, names = static
    derivatives = "called" if stage == "called" else "written"
    captured = trace(fn, args, kwargs, nums, names, note_calls=stage != "captured", derivatives=derivatives)
    expand(captured, JAX.user_names())
    jaxpr = captured.expanded
    if stage == "called":
        jaxpr = with_calls_found(captured, folds=True)
        if jaxpr is captured.expanded:
            return None
    made = program_of(captured, jaxpr, "f", entry_of(fn, captured, args, kwargs, nums, names))
    if stage != "captured":
        lift(made)
    leaves = jax.tree.leaves((captured.args, captured.kwargs))
    return jax.jit(lambda *given: evaluate(made.entry, *given))(*leaves)


def verdict(expected: list[Any], found: list[Any]) -> str:
    import numpy as np

    difference = compare_bits(expected, found)
    if difference.same:
        return "same"
    if difference.relative is not None and difference.relative <= _CLOSE and np.isfinite(difference.relative):
        return "close"
    return difference.detail or "different"


def main() -> int:
    total: collections.Counter[str] = collections.Counter()
    for row in measured_rows(__file__, arguments((__doc__ or "").splitlines()[0], 300.0).parse_args()):
        found = {stage: str(row.get(stage, row.get("error"))) for stage in STAGES if stage in row or "error" in row}
        is_good = all(word in ("same", "close") for word in found.values())
        total["passed" if is_good else "failed"] += 1
        total.update(f"{stage} {word}" for stage, word in found.items() if is_good)
        if set(found.values()) != {"same"}:
            print(f"{row['name']:44} " + "   ".join(f"{k}: {v[:120]}" for k, v in found.items()), flush=True)
    print("   ".join(f"{word} {count}" for word, count in sorted(total.items())))
    print(f"{total['passed']} passed, {total['failed']} failed")
    return bool(total["failed"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child_main(measure, sys.argv[2])
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
