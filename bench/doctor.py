"""What `untrace.doctor` finds of the functions in `doctor_cases.py` and `doctor_fresh.py`, and what it says of healthy ones.

    python bench/doctor.py [--only NAME ...] [--fresh] [--quick]

Of a faulty function: found, the statement, the cause, a repair, and its worst error on the case's points in ULP (of the
textbook's result in float64). Of a healthy one: whether anything was found. --fresh: only those that were frozen before the
doctor was run on them, which else are counted by themselves as well. --quick leaves the healthy ones out.
"""

from __future__ import annotations

import argparse
import inspect
import time

import doctor_cases as cases
import doctor_fresh
import doctor_healthy  # noqa: F401  # fills the list
import jax
import numpy as np

import untrace

KEYS = ("found", "statement", "cause", "repaired")


def is_fresh(case: cases.Case) -> bool:
    return hasattr(doctor_fresh, case.name)


def marked_line(function) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if "# <-" in line)


def worst_error(case: cases.Case, source: str) -> float:
    """The worst error of a repaired module on the points of its case, in ULP of float32; a subnormal result may be zero."""
    module: dict = {}
    exec(compile(source, case.name, "exec"), module)
    found = module[case.marked.__name__]
    worst = 0.0
    for point in case.points:
        args = [np.asarray(x, np.float32) for x in point]
        values = np.asarray(found(*args), np.float64)
        with np.errstate(all="ignore"):
            wanted = np.asarray(case.textbook(*[a.astype(np.float64) for a in args]))
        unit = np.spacing(np.maximum(np.abs(wanted), np.finfo(np.float32).tiny).astype(np.float32)).astype(np.float64)
        off = np.abs(values - wanted) / unit
        off = np.where(
            (np.abs(wanted) < np.finfo(np.float32).tiny) & (np.abs(values) <= np.finfo(np.float32).tiny), 0, off
        )
        worst = max(worst, float(np.max(np.where(np.isnan(off), np.inf, off))))
    return worst


def examine(case: cases.Case) -> tuple[dict[str, bool], str]:
    start = time.perf_counter()
    found = untrace.doctor(case.function)(*case.args)
    line = marked_line(case.marked)
    here = [f for f in found.findings if f":{line} " in f.place]
    error = worst_error(case, found.source) if found.source else np.inf
    right = {
        "found": bool(found.findings),
        "statement": bool(here),
        "cause": any(f.cause in case.causes for f in here),
        "repaired": error <= 4,
    }
    said = "; ".join(f"{f.severity} {f.cause} {f.place.split(' ')[0].split(':')[-1]}" for f in found.findings)
    missing = " ".join(key for key, value in right.items() if not value)
    repairs = ", ".join(found.repairs)
    text = f"{case.name:28} line {line}: {said or '-'} | {repairs or '-'} | {error:.3g} ULP"
    return right, f"{text} | {time.perf_counter() - start:.1f} s" + (f" | MISSING {missing}" if missing else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--fresh", action="store_true")
    options = parser.parse_args()
    faulty, healthy = [
        [c for c in every if (not options.only or c.name in options.only) and (not options.fresh or is_fresh(c))]
        for every in (cases.FAULTY, cases.HEALTHY)
    ]
    found: dict[str, dict[str, bool]] = {}
    for case in faulty:
        try:
            right, text = examine(case)
        except Exception as error:  # a bench goes on
            right, text = {}, f"{case.name}: {type(error).__name__}: {error}"
        found[case.name] = right
        print(text, flush=True)
    alarms: list[cases.Case] = []
    for case in [] if options.quick else healthy:
        try:
            diagnosis = untrace.doctor(case.function)(*case.args)
            alarm = "; ".join(
                f"{f.severity} {f.cause} `{f.statement}`: {f.detail} for {f.example}" for f in diagnosis.findings
            )
        except Exception as error:
            alarm = f"{type(error).__name__}: {error}"
        if alarm:
            alarms.append(case)
            print(f"ALARM {case.name}: {alarm}", flush=True)
    for what, chosen in (("fresh", is_fresh), ("all", lambda case: True))[: 1 if options.fresh else 2]:
        counted = [found[c.name] for c in faulty if chosen(c)]
        counts = [f"{sum(right.get(key, False) for right in counted)} {key}" for key in KEYS]
        print(f"{jax.__version__}, {what}: {len(counted)} faulty: {', '.join(counts)}")
        print(f"{sum(map(chosen, healthy))} healthy: {sum(map(chosen, alarms))} false alarms")


if __name__ == "__main__":
    main()
