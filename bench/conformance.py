"""JAX's own primitive corpus, and what it never reaches, through untrace and back.

    python bench/conformance.py                          both parts, all cases
    python bench/conformance.py --part 1 --sample 1/5    a fixed fifth of every group
    python bench/conformance.py --only scatter_add --failures 20
    python bench/conformance.py --again OUT.json         what failed in an earlier run

Part 1 is `jax._src.internal_test_util.test_harnesses`, as the installed JAX has it; part 2 is
`bench/suite`, whose cases are compared under `grad` and `vmap` as well where they allow it.

A case passes when untrace writes it, the saved text imports (nothing but jax, numpy and the
standard library), jitted it gives the same bits (any NaN equal to any NaN), dtypes, weak types,
pytree and printed text as the original, and it lowers to the same StableHLO once locations, module
and symbol names are stripped (and equal private functions, which JAX shares or not by its caches,
are one). Cases that JAX itself cannot trace or run on the CPU are excluded
and listed with its reason. Both sides are compiled without XLA's costly optimisations unless
`--optimise` asks for them. The last line reads `N passed, M failed, K skipped`; the exit status is
1 where anything failed.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from _common import write_json
from _worker import CORPUS, STAGES, SUITE, CaseName, Row, Setting, Worker, sample

# Enough for every case of the suite; listing them must not fail on a missing device.
LISTING = Setting(devices=4)


def find_cases(worker: Worker, parts: Sequence[int]) -> list[CaseName]:
    """The cases of the parts, by part and name; a part that cannot be loaded raises."""
    cases = []
    for part in parts:
        cases += worker.list(part, LISTING if part == SUITE else Setting())
    return sorted(cases)


def choose(cases: Iterable[CaseName], only: str | None, fraction: str | None) -> list[CaseName]:
    """The cases whose group or name matches `only`, and of those the share `fraction`."""
    chosen = [c for c in cases if not only or re.search(only, f"{c.group}/{c.name}")]
    return sample(chosen, fraction) if fraction else sorted(chosen)


def run_cases(
    cases: Sequence[CaseName],
    make_worker: Callable[[], Worker],
    jobs: int,
    report: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """The rows of all cases, by part and name; `jobs` workers take them from one queue.

    `report` is called for every row as it comes, never twice at a time.
    """
    waiting: queue.SimpleQueue[CaseName] = queue.SimpleQueue()
    # A worker starts anew for every setting: equal ones one after the other.
    for case in sorted(cases, key=lambda c: (c.part, c.setting.x64, c.setting.devices, c.name)):
        waiting.put(case)
    rows: list[Row] = []
    lock = threading.Lock()
    stop = threading.Event()

    def work() -> None:
        worker = make_worker()
        try:
            while not stop.is_set():
                try:
                    case = waiting.get_nowait()
                except queue.Empty:
                    return
                row = worker.check(case)
                with lock:
                    rows.append(row)
                    report(row)
        finally:
            worker.close()

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(work) for _ in range(jobs)]
        try:
            for future in futures:
                future.result()
        finally:
            stop.set()  # an interrupt reaches this thread only
    return sorted(rows, key=lambda row: (row.part, row.name))


# ----------------------------------------------------------------------- the report


def count(rows: Iterable[Row]) -> dict[str, int]:
    """How many cases were tried, excluded, and held each stage."""
    rows = list(rows)
    tried = [row for row in rows if row.outcome != "excluded"]
    counts = {"cases": len(rows), "excluded": len(rows) - len(tried)}
    counts |= {name: sum(getattr(row, name) for row in tried) for name in STAGES}
    counts["jaxpr"] = sum(row.proof == "jaxpr" for row in tried)
    counts["passed"] = sum(row.outcome == "passed" for row in tried)
    return counts


def by_group(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of every group, by name of the group."""
    groups = collections.defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
    return dict(sorted(groups.items()))


def mean_of_groups(rows: Iterable[Row], what: str) -> float | None:
    """The mean over groups of the share of tried cases that hold `what`, in percent."""
    shares = []
    for members in by_group(rows).values():
        counts = count(members)
        tried = counts["cases"] - counts["excluded"]
        if tried:
            shares.append(100.0 * counts[what] / tried)
    return sum(shares) / len(shares) if shares else None


def table(rows: Sequence[Row]) -> str:
    """The counts of every group, their sum, and the mean of groups."""
    columns = ["cases", "excluded", *STAGES, "jaxpr", "passed"]
    lines = [f"{'group':<28}" + "".join(f"{name:>10}" for name in columns)]

    def add(name: str, cells: Iterable[object]) -> None:
        lines.append(f"{name[:27]:<28}" + "".join(f"{cell!s:>10}" for cell in cells))

    for group, members in by_group(rows).items():
        counts = count(members)
        add(group, (counts[name] for name in columns))
    total = count(rows)
    add("all", (total[name] for name in columns))
    tried = max(total["cases"] - total["excluded"], 1)
    add("all, %", ("", "", *(f"{100 * total[name] / tried:.2f}" for name in columns[2:])))
    means = [mean_of_groups(rows, name) for name in columns[2:]]
    add("mean of groups, %", ("", "", *("-" if m is None else f"{m:.2f}" for m in means)))
    return "\n".join(lines)


def reasons(rows: Iterable[Row], names: int) -> str:
    """The reasons of some rows, the commonest first, each with at most `names` of its cases."""
    groups = collections.defaultdict(list)
    for row in rows:
        # An error of untrace goes on with params and places after the primitive's name.
        groups[re.sub(r"0x[0-9a-f]+|\d+", "N", row.reason.split(" [")[0][:120])].append(row)
    lines = []
    for members in sorted(groups.values(), key=lambda members: -len(members)):
        lines.append(f"{len(members):6d}  {members[0].reason}")
        lines += [f"          {row.group}/{row.name}"[:160] for row in members[:names]]
        if len(members) > names:
            lines.append(f"          … and {len(members) - names} more")
    return "\n".join(lines)


def closing_line(rows: Iterable[Row]) -> str:
    """`N passed, M failed, K skipped`; skipped are the cases that JAX itself cannot run."""
    outcomes = collections.Counter(row.outcome for row in rows)
    passed, failed, skipped = (outcomes[name] for name in ("passed", "failed", "excluded"))
    return f"{passed} passed, {failed} failed, {skipped} skipped"


def print_report(rows: Sequence[Row], names: int) -> None:
    """Prints tables, exclusions and failures of every part, and the closing line."""
    for part, title in ((CORPUS, "JAX's primitive corpus"), (SUITE, "the suite")):
        members = [row for row in rows if row.part == part]
        if not members:
            continue
        print(f"\nPart {part}: {title}\n{table(members)}")
        excluded = [row for row in members if row.outcome == "excluded"]
        if excluded:
            print(f"\nExcluded, JAX itself cannot run them:\n{reasons(excluded, names)}")
        proofs = collections.Counter(row.proof for row in members if row.written)
        print("\nproof levels:", ", ".join(f"{k or '-'} {n}" for k, n in proofs.most_common()))
        weaker = [
            dataclasses.replace(row, reason=f"proof level {row.proof}")
            for row in members
            if row.written and row.proof != "jaxpr"
        ]
        if weaker:
            print(reasons(weaker, names))
    failed = [row for row in rows if row.outcome == "failed"]
    if failed:
        print(f"\nFailed:\n{reasons(failed, names)}")
    print(f"\n{closing_line(rows)}")


def as_json(rows: Sequence[Row], about: Mapping[str, Any]) -> dict[str, Any]:
    """What `--json` writes: `about`, the counts of each part and group, every row."""
    parts = {}
    for part in sorted({row.part for row in rows}):
        members = [row for row in rows if row.part == part]
        parts[str(part)] = {
            "counts": count(members),
            "mean_of_groups": {what: mean_of_groups(members, what) for what in (*STAGES, "jaxpr", "passed")},
            "groups": {name: count(group) for name, group in by_group(members).items()},
        }
    return {**about, "parts": parts, "rows": [dataclasses.asdict(row) for row in rows]}


class Progress:
    """Says on standard error how far a run is, every few seconds, and calls `save(rows)` then."""

    def __init__(self, total: int, save: Callable[[list[Row]], None] = lambda rows: None) -> None:
        self.total, self.save = total, save
        self.rows: list[Row] = []
        self.start = self.last = time.monotonic()

    def __call__(self, row: Row) -> None:
        self.rows.append(row)
        now = time.monotonic()
        if now - self.last > 15 or len(self.rows) == self.total:
            self.last = now
            failed = sum(row.outcome == "failed" for row in self.rows)
            print(
                f"{len(self.rows)}/{self.total} cases, {failed} failed, {now - self.start:.0f} s",
                file=sys.stderr,
                flush=True,
            )
            self.save(self.rows)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--style", choices=("exact", "idiomatic"), default="exact")
    parser.add_argument("--part", type=int, choices=(CORPUS, SUITE), help="only one part")
    parser.add_argument("--sample", metavar="N/M", help="a fixed share of every group")
    parser.add_argument("--only", metavar="REGEX", help="cases whose GROUP/NAME matches")
    parser.add_argument("--again", metavar="OUT", help="cases that failed in an earlier --json")
    parser.add_argument("--x64", action="store_true", help="in 64-bit mode (JAX_ENABLE_X64)")
    parser.add_argument("--json", metavar="OUT", help="write counts and all rows to a file")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2, help="processes")
    parser.add_argument("--seconds", type=float, default=120.0, help="limit for a case")
    parser.add_argument("--optimise", action="store_true", help="XLA's usual optimisations")
    parser.add_argument("--failures", type=int, default=3, help="names printed for each reason")
    options = parser.parse_args(arguments)
    if options.sample and not re.fullmatch(r"[1-9]\d*/[1-9]\d*", options.sample):
        parser.error(f"--sample {options.sample}: give a share such as 1/5")
    return options


def main() -> int:
    """Runs what the command line asks for; 0 when nothing failed."""
    options = parse()
    start = time.monotonic()

    def make_worker() -> Worker:
        return Worker(
            options={"tool": "untrace", "style": options.style},
            seconds=options.seconds,
            quick=not options.optimise,
            x64=options.x64,
        )

    lister = make_worker()
    try:
        everything = find_cases(lister, [options.part] if options.part else [CORPUS, SUITE])
        version = lister.jax_version()
    finally:
        lister.close()
    cases = choose(everything, options.only, options.sample)
    if options.again:
        with open(options.again, encoding="utf-8") as file:
            rows = json.load(file)["rows"]
        failed = {(row["part"], row["name"]) for row in rows if row["outcome"] == "failed"}
        cases = [case for case in cases if (case.part, case.name) in failed]
    print(f"JAX {version}, {len(cases)} of {len(everything)} cases, style {options.style}")
    about = {"jax": version, "style": options.style, "x64": options.x64}

    def save(rows: list[Row]) -> None:
        seconds = time.monotonic() - start
        write_json(options.json, as_json(rows, {**about, "seconds": seconds}))

    rows = run_cases(cases, make_worker, options.jobs, Progress(len(cases), save))
    save(rows)
    seconds = time.monotonic() - start
    print(f"{seconds:.0f} s")
    print_report(rows, options.failures)
    return 1 if any(row.outcome == "failed" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
