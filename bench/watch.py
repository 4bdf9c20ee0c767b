"""Watches programs, statement by statement, and compares the values with those of the originals.

    python bench/watch.py                            the zoo, zoo2, the gallery and our suite
    python bench/watch.py --of suite --only control --json OUT.json
    python bench/watch.py --sample 1/2               a half of the programs, the same each time
    python bench/watch.py --memory                   how much memory 10,000 and 100,000 statements take

Of each program, in a process of its own: the original's jaxpr is evaluated one operation after the other, and each value
that `untrace.watch` records has to be one of the values there, bit for bit. (A jitted run rounds otherwise, for XLA fuses.)
Where the proof is of a simplified program, or of one whose library primitives were expanded, other values are counted and
are no failure. Then one statement of the text is made to deviate by a thousandth, and `compare` has to name its line first.
Beside this: the seconds that a second run takes, whole and without what watches, by record. The last line reads
`N passed, M failed`.
"""

from __future__ import annotations

import collections
import dataclasses
import random
import re
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _common import Record, child_main
from guards import arguments, measured_rows, program

_LEVELS = ("jaxpr",)  # at which every value has to be one of the original's
_TRIES = 3


class Digests:
    """An observer that notes every value of an evaluation by its bits."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def note(self, values: Sequence[Any]) -> None:
        import hashlib

        import jax
        import numpy as np

        from untrace import jax_compat

        for value in jax.tree.leaves(list(values)):
            if jax_compat.is_ref(value) or not hasattr(value, "dtype") and not isinstance(value, (int, float, complex)):
                continue
            data = np.ascontiguousarray(np.asarray(jax_compat.as_numpy(value))).tobytes()
            self.found.add(hashlib.blake2b(data, digest_size=8).hexdigest())

    def enter(self, equation: Any, function: Any, args: Sequence[Any], turn: Any) -> None:
        self.note(args)

    def leave(self) -> None: ...

    def replaces(self, equation: Any, inputs: Sequence[Any]) -> None: ...

    def computed(self, equation: Any, outputs: Sequence[Any]) -> None:
        import numpy as np

        from untrace.ir.nodes import Literal

        self.note(outputs)
        self.note([np.asarray(x.value, x.aval.dtype) for x in equation.inputs if type(x) is Literal])


class Nobody(Digests):
    """An observer that notes nothing."""

    def note(self, values: Sequence[Any]) -> None: ...


def measure(options: dict[str, Any], record: Record) -> None:
    import jax
    import jax.numpy as jnp

    import untrace
    from untrace import jax_compat
    from untrace.capture.jaxpr import Importer
    from untrace.ir.stepwise import evaluate_stepwise

    record.put(stage="build")
    fn, args, kwargs, (nums, names) = program(options)
    static = {"static_argnums": nums, "static_argnames": names}
    record.put(stage="decompile")
    text = untrace.decompile(fn, guard=False, **static)(*args, **kwargs)
    record.put(stage="watch", level=text.proof.level, proof=str(text.proof))
    watch = untrace.watch(text, turns=4, **static)
    watched = watch(*args, **kwargs)
    start = time.perf_counter()
    watched = watch(*args, **kwargs)
    whole = time.perf_counter() - start

    record.put(stage="original", records=len(watched))
    leaves = leaves_of(args, kwargs, nums, names)
    original = Importer(rules=False).function(text.jaxpr, "original")
    seen = Digests()
    seen.note(leaves)
    # A result that is a number of the jaxpr's own has JAX's dtype as an array.
    outputs = [x if jax_compat.is_jax_array(x) else jnp.asarray(x) for x in evaluate_stepwise(original, leaves, seen)]
    seen.note(outputs)
    start = time.perf_counter()
    evaluate_stepwise(original, leaves, Nobody())
    plain = time.perf_counter() - start
    other = [r for r in watched if r.digest not in seen.found]
    results = Digests()
    results.note(jax.tree.leaves(watched.result))
    wanted = Digests()
    wanted.note(outputs)
    record.put(
        other=len(other), others=[f"{r.place}: {r.shown_name} {r.type} {r.statement[:60]}" for r in other[:6]],
        same_results=results.found <= wanted.found, seconds=whole, plain=plain,
    )  # fmt: skip
    record.put(stage="plant", planted=planted(text, watched, watch_of(static), args, kwargs))


def watch_of(static: dict[str, Any]) -> Any:
    import untrace

    return lambda text: untrace.watch(text, turns=4, **static)


def leaves_of(args: Any, kwargs: Any, nums: Any, names: Any) -> list[Any]:
    """The leaves of the traced arguments, as arrays."""
    import jax
    import jax.numpy as jnp

    from untrace import jax_compat

    nums = (nums,) if isinstance(nums, int) else tuple(nums)
    names = (names,) if isinstance(names, str) else tuple(names)
    traced = [x for i, x in enumerate(args) if i not in nums], {k: v for k, v in kwargs.items() if k not in names}
    return [x if jax_compat.is_ref(x) else jnp.asarray(x) for x in jax.tree.leaves(traced)]


def planted(text: Any, watched: Any, watch: Any, args: Any, kwargs: Any) -> str:
    """ "right" where a deviation in a statement is found on its line, else what is found; "none" of a text without a statement
    to deviate."""
    lines = text.source.split("\n")
    places = []
    seen: set[int] = set()
    for record in watched:
        number = record.line - 1
        if record.line in seen:  # what is 0 the first time deviates in its derivative first
            continue
        seen.add(record.line)
        found = re.fullmatch(r"(\s+)(\w+) = (.+)", lines[number])
        is_whole = found and " ".join(lines[number].split()) == record.statement and record.name == found[2]
        most = record.statistics.most
        if is_whole and record.kind == "value" and record.type[0] == "f" and most and record.statistics.is_finite:
            places.append((number, found, record.line))
    random.Random(0).shuffle(places)
    for number, found, line in places[:_TRIES]:
        changed = [*lines]
        changed[number] = f"{found[1]}{found[2]} = ({found[3]}) * 1.001"
        edited = dataclasses.replace(text, source="\n".join(changed), _module=None)
        try:
            again = watch(edited)(*args, **kwargs)
        except Exception:  # the program's own check of what it computes
            continue
        first = watched.compare(again).first
        if first is None:
            continue  # what rounds the deviation away: bfloat16's eight bits
        return "right" if first.left.line == line else f"{lines[number].strip()}: found {first}"
    return "none"


# ---------------------------------------------------------------- memory


def memory() -> None:
    """Prints the most memory that the process held after 1,000 to 100,000 statements of a loop, and the time by statement, of
    which part is the operations' own."""
    import jax.numpy as jnp
    from jax import lax

    import untrace
    from untrace.capture.jaxpr import Importer
    from untrace.ir.stepwise import evaluate_stepwise

    def long(x: Any, n: int) -> Any:
        def turn(x: Any, _: Any) -> Any:
            y = jnp.sin(x)
            x = y * 1.01
            return x, None

        return lax.scan(turn, x, length=n)[0]

    x = jnp.ones(1000)
    for turns in (500, 5_000, 50_000):
        text = untrace.decompile(lambda x, turns=turns: long(x, turns), guard=False, sizes="fixed")(x)
        start = time.perf_counter()
        watched = untrace.watch(text, turns=turns, records=1000, keep=1 << 20)(x)
        seconds = time.perf_counter() - start
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        start = time.perf_counter()
        evaluate_stepwise(Importer(rules=False).function(text.jaxpr, "original"), [x], Nobody())
        plain = time.perf_counter() - start
        each = f"{1e3 * seconds / turns / 2:.2f} ms by statement, {1e3 * plain / turns / 2:.2f} ms of it the operations"
        print(f"{2 * turns:7} statements: {len(watched)} records, at most {most:.0f} MiB, {each}", flush=True)


def main() -> int:
    parser = arguments((__doc__ or "").splitlines()[0], 900.0)
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args()
    if options.memory:
        memory()
        return 0
    total: collections.Counter[str] = collections.Counter()
    costs: list[float] = []
    for row in measured_rows(__file__, options):
        problems = []
        if "same_results" not in row or "error" in row:
            problems.append(f"{row.get('stage')}: {row.get('error')}")
        else:
            costs.append((row["seconds"] - row["plain"]) / max(row["records"], 1))
            total["records"] += row["records"]
            total["other values"] += row["other"]
            if row["level"] in _LEVELS and "simplified" not in row["proof"]:
                total["held to all values"] += 1
                if row["other"]:
                    problems.append(
                        f"{row['other']} of {row['records']} values are none of the original's: {row['others']}"
                    )
                if not row["same_results"]:
                    problems.append("the results are not the original's")
            planted = str(row.get("planted"))
            total[f"planted {planted if planted in ('right', 'none') else 'wrong'}"] += 1
            if planted not in ("right", "none"):
                problems.append(f"planted: {planted}")
        total["failed" if problems else "passed"] += 1
        known = f"{row.get('records')} records, {row.get('other')} other, {row.get('seconds', 0):.2f} s"
        print(f"{row['name']:44} {known}  {row.get('level')}  {'; '.join(problems)[:600]}", flush=True)
    if costs:
        costs.sort()
        print(f"overhead by record: median {1e3 * statistics.median(costs):.2f} ms, most {1e3 * costs[-1]:.2f} ms")
    print("   ".join(f"{word} {count}" for word, count in sorted(total.items())))
    print(f"{total['passed']} passed, {total['failed']} failed")
    return bool(total["failed"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child_main(measure, sys.argv[2])
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
