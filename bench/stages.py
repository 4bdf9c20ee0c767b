"""How many lines of each stage of a program are linked with lines of the others, and how many of those links are right.

    python bench/stages.py                      the zoo and zoo2
    python bench/stages.py --of PATH --only rnn --json OUT.json

Linked: of the lines of one stage that compute something, the share with a line of another stage that computes the same; a
line of StableHLO or HLO has to come from an equation at all. Right: the written text is linked by the places where its
equations came from, since simplified equations are others. To see how well that does, the equations of the program are
linked with themselves by place alone, once every third one is gone. Precision is the share of those links that are right,
recall the share of equations that have their right link. The last line reads `N passed, M failed`: a program fails that
cannot be shown.
"""

from __future__ import annotations

import sys
from typing import Any

from _common import Record, child_main
from guards import SHARED, arguments, measured_rows, program

KEYS = ("source", "jaxpr", "text", "stablehlo", "hlo")


def measure(options: dict[str, Any], record: Record) -> None:
    import untrace

    record.put(stage="build")
    fn, args, kwargs, (nums, names) = program(options)
    static = {"static_argnums": nums, "static_argnames": names}
    record.put(stage="stages")
    found = untrace.stages(fn, **static)(*args, **kwargs)
    pairs = {}
    for a in KEYS:
        lines = [line for line in found[a].lines if line.computes]
        for b in KEYS:
            if a != b:
                there = frozenset().union(*[line.computes for line in found[b].lines])
                pairs[f"{a} {b}"] = [sum(bool(line.computes & there) for line in lines), len(lines)]
    record.put(stage="links", pairs=pairs, equations=len(found.computations))
    text = untrace.decompile(fn, style="exact", sizes="fixed", prove=False, guard=False, **static)(*args, **kwargs)
    record.put(links=_links(text))


def _links(text: Any) -> list[int]:
    """(right links, links, equations with their right link, equations) once every third equation is gone, and every fourth
    of the others comes from nowhere."""
    from untrace.provenance.sites import Provenance
    from untrace.tools.stages.matching import Matcher
    from untrace.tools.stages.program import Numbered

    whole = Numbered(text.jaxpr, Provenance())
    kept = [number for number in range(len(whole.equations)) if number % 3]
    others = [whole.equations[number].replace() for number in kept]  # equal ones, which nobody knows
    sites = [whole.origins[number] if place % 4 else () for place, number in enumerate(kept)]
    found = Matcher(whole).behind(others, sites, whole.jaxpr)
    right = sum(number in numbers for number, numbers in zip(kept, found, strict=True))
    return [right, sum(map(len, found)), right, len(kept)]


def main() -> int:
    parser = arguments((__doc__ or "").splitlines()[0], 600.0)
    parser.set_defaults(of=[str(SHARED / "zoo"), str(SHARED / "zoo2")])
    options = parser.parse_args()
    pairs: dict[str, list[int]] = {}
    links = [0, 0, 0, 0]
    passed = failed = 0
    for row in measured_rows(__file__, options):
        if "links" not in row:
            failed += 1
            print(f"{row['name']:36} {row.get('stage')}: {row.get('error')}"[:300], flush=True)
            continue
        passed += 1
        for pair, counts in row["pairs"].items():
            pairs[pair] = [x + y for x, y in zip(pairs.get(pair, [0, 0]), counts, strict=True)]
        links = [x + y for x, y in zip(links, row["links"], strict=True)]
        shares = "  ".join(f"{k} {_share(row['pairs'][f'source {k}'])}" for k in KEYS[1:])
        print(
            f"{row['name']:36} {row['equations']:6} equations; of the source in {shares}; {_said(row['links'])}",
            flush=True,
        )
    print(f"\n{'':12}{''.join(f'{k:>11}' for k in KEYS)}")
    for a in KEYS:
        cells = [_share(pairs.get(f"{a} {b}", [0, 0])) if a != b else "" for b in KEYS]
        print(f"{a:12}{''.join(f'{cell:>11}' for cell in cells)}")
    print(_said(links))
    print(f"{passed} passed, {failed} failed")
    return bool(failed)


def _share(counts: list[int]) -> str:
    return f"{counts[0] / counts[1]:.1%}" if counts[1] else "-"


def _said(links: list[int]) -> str:
    return f"links by place: precision {_share(links[:2])}, recall {_share(links[2:])}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child_main(measure, sys.argv[2])
    sys.exit(main())
