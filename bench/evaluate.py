"""Runs programs in the intermediate representation (`untrace.ir.evaluate`), beside the originals.

    python bench/evaluate.py                            the zoo, zoo2, the gallery and our suite
    python bench/evaluate.py --of suite --only control --json OUT.json

Each program is captured and evaluated twice, in a process of its own: as it was captured, and after all lifts, by the
bodies that those have left. Both are compiled, like the original, and compared by bits; a lift may have grouped what XLA
then fuses otherwise, so that its results may differ in the last bits, which is said ("close"). The last line reads
`N passed, M failed`; what differs in more than that, or cannot be run, has failed.
"""

from __future__ import annotations

import collections
import sys
from pathlib import Path
from typing import Any

from _common import Record, child_main, compare_bits, host_leaves
from guards import arguments, measured_rows, program

_CLOSE = 1e-5  # of the largest value of an array


def measure(options: dict[str, Any], record: Record) -> None:
    """Records what the two evaluations give: "same", "close" or the difference."""
    fn, args, kwargs, static = program(options)
    import jax

    from untrace.driver.attempts import interpreter_settings

    with interpreter_settings():
        expected = host_leaves(original(fn, args, kwargs, static))
        for lifted in (False, True):
            stage = "lifted" if lifted else "captured"
            record.put(stage=stage)
            record.put(
                **{
                    stage: verdict(
                        expected, host_leaves(jax.block_until_ready(evaluated(fn, args, kwargs, static, lifted)))
                    )
                }
            )


def original(fn: Any, args: Any, kwargs: Any, static: tuple[Any, Any]) -> Any:
    """What the function gives, compiled."""
    import jax

    nums, names = static
    return jax.jit(fn, static_argnums=nums, static_argnames=names)(*args, **kwargs)


def evaluated(fn: Any, args: Any, kwargs: Any, static: tuple[Any, Any], lifted: bool) -> list[Any]:
    """What the program of a function gives, compiled, on the leaves of its arguments."""
    import jax

    from untrace.capture.function import expand, program_of, trace
    from untrace.ir.evaluate import evaluate
    from untrace.lift import lift
    from untrace.module.interface.entry import entry_of
    from untrace.targets.jax import rules as _rules  # noqa: F401  (registers the rules)
    from untrace.targets.jax.rules.table import JAX

    nums, names = static
    captured = trace(fn, args, kwargs, nums, names, note_calls=lifted)
    expand(captured, JAX.user_names())
    made = program_of(captured, captured.expanded, "f", entry_of(fn, captured, args, kwargs, nums, names))
    if lifted:
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
        found = [str(row.get(stage, row.get("error"))) for stage in ("captured", "lifted")]
        is_good = all(word in ("same", "close") for word in found)
        total["passed" if is_good else "failed"] += 1
        total.update(f"{stage} {word}" for stage, word in zip(("captured", "lifted"), found, strict=True) if is_good)
        if found != ["same", "same"]:
            print(f"{row['name']:44} captured: {found[0][:120]}   lifted: {found[1][:120]}", flush=True)
    print("   ".join(f"{word} {count}" for word, count in sorted(total.items())))
    print(f"{total['passed']} passed, {total['failed']} failed")
    return bool(total["failed"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child_main(measure, sys.argv[2])
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
