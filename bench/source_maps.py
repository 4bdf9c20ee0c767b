"""How much of each program is on the source map of its text.

    python bench/source_maps.py                      the zoo
    python bench/source_maps.py --of PATH --only rnn

Counted are the equations of the program that the text comes back as, those that something needs, in all inner jaxprs: how
many have an expression of the text, and how many of the author's. Derivative rules are not counted.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from _common import Record, build_case, child_main, find_cases, run_child

ZOO = Path(__file__).resolve().parent.parent.parent / "shared" / "zoo"


def measure(options: dict[str, Any], record: Record) -> None:
    import untrace
    from untrace import jax_compat

    fn, args = build_case(options["path"])
    d = untrace.decompile(fn)(*args)
    found = d.source_map
    live = jax_compat.without_dead_code(found.jaxpr)
    total = sum(1 for _ in _equations(live))
    spans = sum(1 for entry in found if entry.calls)
    record.put(total=total, mapped=len(found), spans=spans, authors=sum(1 for e in found if e.author is not None))


def _equations(jaxpr: Any) -> Any:
    from untrace import jax_compat

    for eqn in jax_compat.open_jaxpr(jaxpr)[0].eqns:
        yield eqn
        for inner in jax_compat.jaxprs_in(eqn):
            yield from _equations(inner)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", type=Path, default=ZOO)
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=300.0)
    options = parser.parse_args()
    sums = [0, 0, 0]
    for case in find_cases(options.of, options.only):
        row = run_child(__file__, {"path": str(case.path)}, options.seconds, devices=case.devices, x64=case.x64)
        if "total" not in row:
            print(f"{case.name:36} {row.get('why') or row.get('error') or row}"[:150], flush=True)
            continue
        numbers = [row["total"], min(row["spans"], row["total"]), min(row["authors"], row["total"])]
        sums = [a + b for a, b in zip(sums, numbers, strict=True)]
        print(f"{case.name:36} {row['total']:6} equations {row['mapped']:6} mapped {row['spans']:6} in the text "
              f"{row['authors']:6} in the source", flush=True)  # fmt: skip
    print(
        f"{sums[0]} equations, {sums[1] / max(sums[0], 1):.1%} in the text, {sums[2] / max(sums[0], 1):.1%} in the source"
    )
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child_main(measure, sys.argv[2])
    sys.exit(main())
