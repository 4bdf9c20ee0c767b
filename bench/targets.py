"""How much of the programs can be written for another target, and how close the text comes to the original.

    python bench/targets.py                              NumPy: the zoo, zoo2, the gallery and our suite
    python bench/targets.py --of suite --only control --json OUT.json
    python bench/targets.py --target c                   the same for C, whose texts compile without a warning
    python bench/targets.py --target c --corpus --sample 300 --seed 7 --cc clang --sanitize
    python bench/targets.py --zoo ../shared/zoo          programs and their gradients, with tokens and times
    python bench/targets.py --torch-zoo                  PyTorch's models as JAX, and as PyTorch again
    python bench/targets.py --corpus                     JAX's corpus of primitives, and our suite
    python bench/targets.py --corpus --sample 300 --seed 1 --only '^1/(sort|fft)/'

`--target NAME` (again for several) takes others than NumPy.

Programs are written in processes of their own. A row says `bits` or `close` (with what the proof says), `refused` (what the
target has not, in one sentence), or `failed`: the text is wrong, or there is a fault of ours. The last lines count them, and
name the primitives for which programs were refused. With `--zoo`, a program's gradient is that of the sum of its inexact
results by all inexact arguments, where JAX has one; tokens are those of the text without the target's helpers, and their
ratio to the author's is for programs whose code is in their file; times are of one call, of the text and of the jitted
original.

With `--corpus`, a text is called on the case's own arguments, which the proof has seen as well, and compared with the jitted
original element by element. It agrees where no number is further than 4 units in the last place away, from the original or
from the original in float64, of which XLA's own `erfc` is further; where it is no further from that than the original itself
is, in eps of the largest number of the result; or, where the program has sums and products of up to n terms (products of
arrays, factors of matrices and Fourier transforms among them), than n times the type's eps. A complex number is measured as one,
by its modulus. What is too small for a normal number counts as zero: XLA flushes it. Cases that JAX itself cannot run are
left out. The exit status is 1 where a text was written that does not agree.

With `--cc CC` (of C), each text, its example and its tables are compiled by that compiler under the warnings of
`compiled.STRICT`, and its exported symbols looked at; with `--sanitize` as well, it runs on the case's arguments and on
edge values under address and undefined-behaviour sanitizers, floats that do not fit integers among them. What they say is
counted by kind in the last lines; the exit status is 1 where they say something.
"""

from __future__ import annotations

import argparse
import collections
import random
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _common import Record, child_main, find_cases, run_child, setting, write_json
from guards import arguments, measured_rows, program

CHUNK = 25  # cases that one process takes


def measure(options: dict[str, Any], record: Record) -> None:
    """Records what came of one program, of a program and its gradient, or of some cases of the corpus."""
    if "cases" in options:
        import _target_check

        _target_check.measure_cases(options, record)
    elif "module" in options:
        import _torch_round_trip

        _torch_round_trip.measure_module(options["module"], record)
    elif "path" in options:
        import _target_check

        _target_check.measure_program(options, record)
    else:
        fn, args, kwargs, (nums, names) = program(options)
        import _target_check

        made = _target_check.written(fn, args, kwargs, options["target"], nums, names)
        record.put(**made.row, **_target_check.in_c(made, args, kwargs, options))


# ------------------------------------------------------------------ folders of programs


def programs(options: argparse.Namespace, target: str) -> int:
    """Prints a row for each program; 1 where one of them failed."""
    total: collections.Counter[str] = collections.Counter()
    missing: collections.Counter[str] = collections.Counter()
    rows: list[dict[str, Any]] = []
    for row in measured_rows(__file__, options, asked_of(options, target)):
        rows.append(row)
        level = row.get("level", "failed")
        total[level] += 1
        missing.update(set(row.get("missing", ())))
        print(f"{row['name']:44} {level:8} {said(row)[:160]}", flush=True)
    print("   ".join(f"{word} {count}" for word, count in sorted(total.items())))
    print_missing(missing)
    return bool(total["failed"] or total["unproven"]) | print_checks(rows, options)


def asked_of(options: argparse.Namespace, target: str) -> dict[str, Any]:
    """What every child is asked for."""
    return {"target": target, "cc": options.cc, "sanitize": options.sanitize}


def said(row: dict[str, Any]) -> str:
    """What is known of a row, on one line."""
    return " ".join(str(row.get("detail") or row.get("error")).split())


def print_missing(missing: collections.Counter[str]) -> None:
    if missing:
        print("refused for: " + ", ".join(f"{name} {count}" for name, count in missing.most_common()))


def print_checks(rows: Sequence[dict[str, Any]], options: argparse.Namespace) -> bool:
    """Prints what the checks of texts in C said, by kind; whether that is anything."""
    texts = [(row["name"], row["c"]) for row in rows if "c" in row]
    if not options.cc:
        return False
    said: dict[tuple[str, str], list[tuple[int, str, str]]] = collections.defaultdict(list)
    for name, found in texts:
        for what in ("warnings", "findings"):
            for kind, (count, first) in found.get(what, {}).items():
                said[what, kind].append((count, name, first))
        for symbol in found.get("exports", ()):
            said["exports", symbol].append((1, name, symbol))
        if "failed" in found:
            said["checks", "failed"].append((1, name, found["failed"]))
    for (what, kind), places in sorted(said.items()):
        names = ", ".join(name for _, name, _ in places[:4])
        print(
            f"{what}: {kind[:100]}: {sum(n for n, _, _ in places)} in {len(places)} texts ({names}), {places[0][2][:160]}"
        )
    for name, found in texts:
        if found.get("endless") or found.get("apart", 0.0) > 0:
            print(
                f"{name}: {'no time for all samples' if found.get('endless') else str(found['apart']) + ' ULP apart'}"
            )
    ran = sum("findings" in found for _, found in texts)
    print(f"{options.cc}: {len(texts)} texts compiled, {ran} run under sanitizers, {len(said)} kinds of complaints")
    return bool(said)


# ------------------------------------------------------------------ a zoo, with gradients


def zoo(options: argparse.Namespace, target: str) -> int:
    """Prints how close each program and its gradient come, with tokens and times; 1 where one of them failed."""
    print(f"{'program':34} {'of':8} {'level':8} {'tokens':>7} {'author':>7} {'text':>9} {'jitted':>9}  {target}")
    rows: list[dict[str, Any]] = []
    for case in find_cases(options.zoo, options.only):
        if not case.runs_here:
            continue
        source = case.path.read_text(encoding="utf-8")
        asked = {**asked_of(options, target), "path": str(case.path), "own": setting(source, "SOURCE", "") == "self"}
        found = run_child(__file__, asked, options.seconds, devices=case.devices, x64=case.x64)
        for of in ("forward", "gradient"):
            row = found.get(of)
            if row is None and of == "forward" or row is None and "no_gradient" not in found:
                row = {"level": "failed", "detail": str(found.get("error"))}
            row = row or {"level": "-", "detail": found["no_gradient"]}
            rows.append({"name": case.name, "of": of, **row})
            tokens, author = row.get("tokens"), row.get("author")
            ratio = f"{tokens / author:.2f}" if tokens and author else "-"
            times = [f"{1e3 * row[k]:.2f} ms" if k in row else "-" for k in ("text_seconds", "jitted_seconds")]
            print(
                f"{case.name:34} {of:8} {row['level']:8} {tokens or '-':>7} {ratio:>7} {times[0]:>9} {times[1]:>9}  "
                f"{said(row)[:120]}",
                flush=True,
            )
            write_json(options.json, {"rows": rows})
    for of in ("forward", "gradient"):
        counts = collections.Counter(r["level"] for r in rows if r["of"] == of)
        print(f"{of}: " + "   ".join(f"{word} {count}" for word, count in sorted(counts.items())))
    print_missing(collections.Counter(name for row in rows for name in set(row.get("missing", ()))))
    return any(row["level"] in ("failed", "unproven") for row in rows) | print_checks(rows, options)


# ------------------------------------------------------------------ models of PyTorch, there and back

NEAR = 1e-5  # of the largest number of a tensor, or ROUNDED units in the last place where that is more
ROUNDED = 4


def torch_zoo(options: argparse.Namespace) -> int:
    """Prints how far each model of PyTorch is from what it is after JAX; 1 where one is not within NEAR. Gradients that are zero, and in
    the model itself made of rounding, are not compared; how many there are is said."""
    from torch_zoo import MODELS

    print(f"{'model':20} {'level':8} {'outputs':>8} {'gradients':>9} {'of':>12}")
    total: collections.Counter[str] = collections.Counter()
    for name in [n for n in MODELS if re.search(options.only or "", n)]:
        found = run_child(__file__, {"module": name}, options.seconds)
        row = found.get("row") or {"level": "failed", "detail": str(found.get("error"))}
        bound = max(NEAR, ROUNDED * row.get("eps", 0.0))
        near = max(row.get("outputs", 1.0), row.get("gradients", 1.0)) <= bound
        total["near" if near else row["level"] if "outputs" not in row else "far"] += 1
        numbers = [f"{row[k]:.1e}" if k in row else "-" for k in ("outputs", "gradients")]
        print(
            f"{name:20} {row['level']:8} {numbers[0]:>8} {numbers[1]:>9} {row.get('parameters', '-'):>12}  "
            f"{said(row)[:120]}",
            flush=True,
        )
    print("   ".join(f"{word} {count}" for word, count in sorted(total.items())))
    return set(total) != {"near"}


# ------------------------------------------------------------------ the corpus


def corpus(options: argparse.Namespace, target: str) -> int:
    """Prints the table of the corpus and of our suite, and all that is missed; 1 where a text does not agree."""
    from _worker import CORPUS, SUITE, Worker
    from conformance import find_cases as cases_of_parts

    worker = Worker()
    try:
        found = cases_of_parts(worker, [CORPUS, SUITE])
    finally:
        worker.close()
    cases = [c for c in found if not options.only or re.search(options.only, f"{c.part}/{c.group}/{c.name}")]
    if options.sample and int(options.sample) < len(cases):
        cases = sorted(random.Random(options.seed).sample(cases, int(options.sample)))
    print(f"{target}: {len(cases)} of {len(found)} cases", flush=True)
    rows: list[dict[str, Any]] = []
    waiting = sorted(cases, key=lambda c: (c.setting.x64, c.setting.devices, c.part, c.name))
    while waiting:
        same = [c for c in waiting if c.setting == waiting[0].setting][:CHUNK]
        asked = {
            **asked_of(options, target),
            "seconds": options.seconds,
            "cases": [[c.part, c.group, c.name] for c in same],
        }
        done = run_child(
            __file__,
            asked,
            60 + options.seconds * len(same),
            devices=same[0].setting.devices,
            x64=same[0].setting.x64,
        )
        new = done.get("rows", [])
        if len(new) < len(same):  # the process died of the next one
            case = same[len(new)]
            why = str(done.get("error", "the process ended"))
            new.append({"part": case.part, "group": case.group, "name": case.name, "level": "failed", "detail": why})
        rows += new
        waiting = waiting[len(new) :]
        write_json(options.json, {"target": target, "rows": rows})
        print(f"{len(rows)}/{len(cases)}", file=sys.stderr, flush=True)
    for part, title in ((CORPUS, "JAX's corpus of primitives"), (SUITE, "our suite")):
        members = [row for row in rows if row["part"] == part]
        if members:
            print(f"\n{title}\n{table(members)}")
    misses = [row for row in rows if row["level"] != "excluded" and not row.get("agrees")]
    for row in sorted(misses, key=lambda row: (row["level"], row["group"], row["name"])):
        level = "apart" if "agrees" in row else row["level"]
        print(f"{level:8} {row['group']}/{row['name']}: {said(row)[:300]}")
    print_missing(collections.Counter(name for row in rows for name in set(row.get("missing", ()))))
    wrong = sum(row.get("agrees") is False for row in rows)
    tried = [row for row in rows if row["level"] != "excluded"]
    agree = sum(bool(row.get("agrees")) for row in tried)
    print(f"{agree} of {len(tried)} agree ({100 * agree / max(1, len(tried)):.1f} %), {wrong} written and apart")
    return bool(wrong) | print_checks(rows, options)


def table(rows: list[dict[str, Any]]) -> str:
    """By group: cases tried, written, run, of the same bits, that agree; the most units in the last place between two
    numbers of those that agree by that, and beside it how many agree by the bound of sums."""
    columns = ("tried", "written", "runs", "bits", "agree")
    lines = [f"{'':28}" + "".join(f"{c:>9}" for c in columns) + f"{'max ULP':>9}{'as sums':>9}"]
    groups: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for row in rows:
        if row["level"] != "excluded":
            groups[row["group"]].append(row)
    for name, members in [*sorted(groups.items()), ("all", [row for some in groups.values() for row in some])]:
        counts = [
            len(members),
            sum("source_lines" in row for row in members),
            sum("agrees" in row for row in members),
            sum(bool(row.get("bits")) for row in members),
            sum(bool(row.get("agrees")) for row in members),
        ]
        near = [row["ulps"] for row in members if row.get("agrees") and not row.get("as_sum")]
        sums = sum(bool(row.get("as_sum")) for row in members)
        lines.append(f"{name[:27]:28}" + "".join(f"{n:>9}" for n in counts) + f"{max(near, default=0):>9.3g}{sums:>9}")
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = arguments((__doc__ or "").splitlines()[0], 300.0)
    parser.add_argument("--target", action="append", help="its name; again for several (numpy)")
    parser.add_argument("--corpus", action="store_true", help="JAX's corpus of primitives, and our suite")
    parser.add_argument(
        "--seed", type=int, default=0, help="with --corpus, --sample is a number of cases, drawn with it"
    )
    parser.add_argument("--torch-zoo", action="store_true", help="PyTorch's models as JAX, and as PyTorch again")
    parser.add_argument("--zoo", help="a folder of programs, each with its gradient, tokens and times")
    parser.add_argument("--cc", help="checks of texts in C by this compiler: its warnings, exported symbols")
    parser.add_argument("--sanitize", action="store_true", help="and sanitizers, on edge values too")
    return parser.parse_args()


def main() -> int:
    options = parse()
    if options.torch_zoo:
        return int(torch_zoo(options))
    run = corpus if options.corpus else zoo if options.zoo else programs
    return max([int(run(options, target)) for target in options.target or ["numpy"]])


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    if sys.argv[1:2] == ["--child"]:
        child_main(measure, sys.argv[2])
    sys.exit(main())
