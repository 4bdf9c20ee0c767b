"""How many lines of each stage of a program are linked with lines of the others, and how many of those links are right.

    python bench/stages.py                      the zoo
    python bench/stages.py --of PATH --only rnn

Linked: of the lines of one stage that compute something, the share with a line of another stage that computes the same; a
line of StableHLO or HLO has to come from an equation at all. Right: the written text is linked by the places where its
equations came from, since simplified equations are others. To see how well that does, the equations of the program are
linked with themselves by place alone, once every third one is gone. Precision is the share of those links that are right,
recall the share of equations that have their right link.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from _common import Record, build_case, child_main, find_cases, run_child

ZOO = Path(__file__).resolve().parent.parent.parent / "shared" / "zoo"
KEYS = ("source", "jaxpr", "text", "stablehlo", "hlo")


def measure(options: dict[str, Any], record: Record) -> None:
    import untrace

    fn, args = build_case(options["path"])
    found = untrace.stages(fn)(*args)
    pairs = {}
    for a in KEYS:
        lines = [line for line in found[a].lines if line.computes]
        for b in KEYS:
            if a != b:
                there = frozenset().union(*[line.computes for line in found[b].lines])
                pairs[f"{a} {b}"] = [sum(bool(line.computes & there) for line in lines), len(lines)]
    record.put(pairs=pairs, links=_links(fn, args), equations=len(found.computations))


def _links(fn: Any, args: Any) -> list[int]:
    """(right links, links, equations with their right link, equations) by place alone, once every third equation is gone."""
    import untrace
    from untrace.provenance.sites import Provenance
    from untrace.tools.stages.program import Matcher, Numbered

    program = Numbered(untrace.decompile(fn, simplify=False)(*args).jaxpr, Provenance())
    kept = [number for number in range(len(program.equations)) if number % 3]
    others = [program.equations[number].replace() for number in kept]  # equal ones, which nobody knows
    found = Matcher(program).behind(others, [program.origins[number] for number in kept])
    right = sum(number in numbers for number, numbers in zip(kept, found, strict=True))
    return [right, sum(map(len, found)), right, len(kept)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", type=Path, default=ZOO)
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=600.0)
    options = parser.parse_args()
    pairs: dict[str, list[int]] = {}
    links = [0, 0, 0, 0]
    for case in find_cases(options.of, options.only):
        row = run_child(__file__, {"path": str(case.path)}, options.seconds, devices=case.devices, x64=case.x64)
        if "pairs" not in row:
            print(f"{case.name:36} {row.get('why') or row.get('error') or row}"[:150], flush=True)
            continue
        for pair, counts in row["pairs"].items():
            pairs[pair] = [x + y for x, y in zip(pairs.get(pair, [0, 0]), counts, strict=True)]
        links = [x + y for x, y in zip(links, row["links"], strict=True)]
        shares = "  ".join(f"{k} {_share(row['pairs'][f'source {k}'])}" for k in KEYS[1:])
        print(
            f"{case.name:36} {row['equations']:6} equations; of the source in {shares}; {_said(row['links'])}",
            flush=True,
        )
    print(f"\n{'':12}{''.join(f'{k:>11}' for k in KEYS)}")
    for a in KEYS:
        cells = [_share(pairs.get(f"{a} {b}", [0, 0])) if a != b else "" for b in KEYS]
        print(f"{a:12}{''.join(f'{cell:>11}' for cell in cells)}")
    print(_said(links))
    return 0


def _share(counts: list[int]) -> str:
    return f"{counts[0] / counts[1]:.1%}" if counts[1] else "-"


def _said(links: list[int]) -> str:
    return f"links by place: precision {_share(links[:2])}, recall {_share(links[2:])}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child_main(measure, sys.argv[2])
    sys.exit(main())
