"""What each pass and each rewrite is worth: the texts without it, beside the texts with all of them.

    python bench/ablation.py                               both zoos and the gallery; the torch models have passes of their own
    python bench/ablation.py --of ../shared/zoo2 --only vae --json OUT.json
    python bench/ablation.py --passes outline residuals    only these
    python bench/ablation.py --derivatives written
    python bench/ablation.py --count                       only in how many programs each fires: minutes, not hours

Each program is written once with everything, pass by pass, which shows the passes that change its text, and the rewrites
that its proof names; then once more without each of those, in the same process. A row of the table is a pass or a rewrite:
how many programs it fires in, and what these lose without it, in the sum of their tokens and in how many of them the proof
falls to a weaker level or the text is given up for the style exact. What fires nowhere, and what fires in one program only,
is named below the table. `figures` in the JSON file has everything for each program.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

from _common import Record, build_case, child_main, find_cases, run_child, write_json
from guards import ROOT, SHARED
from readability import count_tokens, without_guard

LEVELS = ("unproven", "close", "bits", "hlo", "jaxpr")


def measure(options: dict[str, Any], record: Record) -> None:
    """Records the text with everything, and without each pass and rewrite that changes it."""
    record.put(stage="build")
    fn, args = build_case(options["case"])
    from untrace.driver.steps import CAPTURED, PROVEN, SIMPLIFIED

    record.put(stage="steps")
    steps = list(_api().steps(fn, derivatives=options["derivatives"])(*args))
    fired = [s.name for s in steps if s.diff and s.name not in (CAPTURED, SIMPLIFIED, PROVEN)]
    rewrites = rewrites_in(next(s.why for s in steps if s.name == SIMPLIFIED))
    record.put(fired=fired, rewrites=rewrites)
    if options["count"]:
        return
    record.put(stage="whole", whole=written(fn, args, options["derivatives"], ()))
    found: dict[str, Any] = {}
    record.put(without=found)
    for name in [*fired, *rewrites]:
        if options["passes"] and name not in options["passes"]:
            continue
        record.put(stage=name)
        try:
            found[name] = written(fn, args, options["derivatives"], (name,))
        except Exception as error:  # noqa: BLE001 - what is left cannot do without it
            found[name] = {"error": f"{type(error).__name__}: {error}"[:200]}
        record.put(without=found)


def _api() -> Any:
    from untrace import _api

    return _api


def rewrites_in(why: str) -> list[str]:
    """The rewrites that the proof names, by the names of their functions: `add any is add (2)`."""
    from untrace.lift.rewrite.simplify import REWRITES

    words = re.findall(r"([\w ]+) \(\d+\)", why)
    known = {f.__name__ for functions in REWRITES.values() for f in functions}
    return [name for name in (w.strip().replace(" ", "_") for w in words) if name in known]


def written(fn: Any, args: Any, derivatives: str, without: tuple[str, ...]) -> dict[str, Any]:
    """The text without some passes, in figures."""
    import untrace

    api = _api()
    made = api._options
    try:
        api._options = lambda *a, **k: dataclasses.replace(made(*a, **k), without=frozenset(without))
        found = untrace.decompile(fn, derivatives=derivatives)(*args)
    finally:
        api._options = made
    text, _ = without_guard(found.source)
    exact = any("style exact" in note for note in found.notes)
    return {"tokens": count_tokens(text), "level": found.proof.level, "exact": exact, "lines": text.count("\n")}


def weaker(before: dict[str, Any], after: dict[str, Any]) -> bool:
    return after["exact"] > before["exact"] or LEVELS.index(after["level"]) < LEVELS.index(before["level"])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    everything = [str(SHARED / "zoo"), str(SHARED / "zoo2"), str(ROOT / "tests" / "gallery")]
    parser.add_argument("--of", nargs="*", default=everything, help="folders of programs")
    parser.add_argument("--only", help="a regular expression on names")
    parser.add_argument("--passes", nargs="*", default=[], help="only these passes and rewrites")
    parser.add_argument("--count", action="store_true", help="write nothing without them, only count where they fire")
    parser.add_argument("--derivatives", default="auto", choices=("auto", "called", "written"))
    parser.add_argument("--seconds", type=float, default=1200.0, help="time limit of one program")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", help="where to write everything measured")
    options = parser.parse_args()
    cases = [case for where in options.of for case in find_cases(where, options.only) if case.runs_here]

    def run(case: Any) -> dict[str, Any]:
        asked = {
            "case": str(case.path),
            "derivatives": options.derivatives,
            "passes": options.passes,
            "count": options.count,
        }
        return {"name": case.name, **run_child(__file__, asked, options.seconds, devices=case.devices, x64=case.x64)}

    rows: list[dict[str, Any]] = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(run, cases):
            rows.append(row)
            said = str(row["error"])[:120] if "error" in row else f"{len(row['fired'])} passes change it"
            print(f"{row['name']:44} {said}", flush=True)
            write_json(options.json, {"figures": rows})
    return show(rows)


def show(rows: list[dict[str, Any]]) -> int:
    measured = [row for row in rows if "error" not in row or "whole" in row and row.get("without") is not None]
    fires: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for row in measured:
        for name in row.get("without", [*row["fired"], *row["rewrites"]]):
            fires[name].append(row)
    print(f"{'without':34} {'fires in':>8} {'tokens':>8} {'weaker':>7} {'fails':>6}   of {len(measured)} programs")
    for name, own in sorted(fires.items(), key=lambda item: -len(item[1])):
        pairs = [(row["whole"], row["without"][name]) for row in own if "without" in row]
        good = [(a, b) for a, b in pairs if "error" not in b]
        if not pairs:
            print(f"{name:34} {len(own):8}")
            continue
        lost = sum(b["tokens"] for _, b in good) / max(1, sum(a["tokens"] for a, _ in good)) - 1
        fails = len(pairs) - len(good)
        print(f"{name:34} {len(own):8} {lost:+8.1%} {sum(weaker(a, b) for a, b in good):7} {fails:6}")
    print(
        "\nfires in one program: " + ", ".join(f"{n} ({own[0]['name']})" for n, own in fires.items() if len(own) == 1)
    )
    print("fires in none: " + ", ".join(sorted(set(every()) - set(fires))))
    print(f"{len(measured)} passed, {len(rows) - len(measured)} failed")
    return int(len(measured) < len(rows))


def every() -> list[str]:
    """All passes and rewrites that there are."""
    import untrace.lift
    from untrace.lift.rewrite.simplify import REWRITES
    from untrace.module.passes import PASSES

    passes = [each.name for each in (*untrace.lift.PASSES, *PASSES)]
    return [*passes, *{f.__name__ for functions in REWRITES.values() for f in functions}]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child_main(measure, sys.argv[2])
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
