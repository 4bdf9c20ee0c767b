"""What `untrace.doctor` finds of the functions in `doctor_cases.py` and the eight `doctor_fresh` files, and of healthy ones.

    python bench/doctor.py [--only NAME ...] [--fresh] [--fresh2] [--fresh3] [--fresh4] [--fresh5] [--fresh6] [--fresh7]
        [--fresh8] [--quick]

Of a faulty function: found, the statement, the cause, a repair, and its worst error on the case's points in ULP (of the
textbook's result in float64). Of a healthy one: whether anything was found. --fresh to --fresh8: only those that were frozen
before the doctor was run on them, which else are counted by themselves as well. --quick leaves the healthy ones out.
"""

from __future__ import annotations

import argparse
import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any

import doctor_cases as cases
import doctor_fresh
import doctor_fresh2
import doctor_fresh3
import doctor_fresh4
import doctor_fresh5
import doctor_fresh6
import doctor_fresh7
import doctor_fresh8
import doctor_healthy  # noqa: F401  # fills the list
import jax
import jax.numpy as jnp
import numpy as np

import untrace

KEYS = ("found", "statement", "cause", "repaired")


GROUPS: dict[str, Callable[[cases.Case], bool]] = {
    "fresh": lambda case: hasattr(doctor_fresh, case.name),
    "fresh2": lambda case: hasattr(doctor_fresh2, case.name),
    "fresh3": lambda case: hasattr(doctor_fresh3, case.name),
    "fresh4": lambda case: hasattr(doctor_fresh4, case.name),
    "fresh5": lambda case: hasattr(doctor_fresh5, case.name),
    "fresh6": lambda case: hasattr(doctor_fresh6, case.name),
    "fresh7": lambda case: hasattr(doctor_fresh7, case.name),
    "fresh8": lambda case: hasattr(doctor_fresh8, case.name),
    "all": lambda case: True,
}


def typed(case: cases.Case, args: Sequence[Any]) -> Sequence[Any]:
    """Numbers of the case's type; those of JAX's own are as they are."""
    return args if case.dtype == np.float32 else [jnp.asarray(x, case.dtype) for x in args]


def marked_line(function) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if "# <-" in line)


def worst_error(case: cases.Case, source: str) -> float:
    """The worst error of a repaired module on the points of its case, in ULP of its type; a subnormal result may be zero."""
    module: dict = {}
    exec(compile(source, case.name, "exec"), module)
    found = module[case.marked.__name__]
    info = jnp.finfo(case.dtype)
    tiny, eps, most = float(info.tiny), float(info.eps), float(info.max)
    wide = np.longdouble if case.dtype == np.float64 else np.float64
    worst = 0.0
    for point in case.points:
        args = [jnp.asarray(x, case.dtype) for x in point]
        try:
            values = np.asarray(found(*args)).astype(wide)
        except TypeError:  # its guard: it was written for other sizes
            return np.inf
        with np.errstate(all="ignore"):
            wanted = np.asarray(case.textbook(*[np.asarray(a).astype(wide) for a in args]))
            unit = eps * 2.0 ** np.floor(np.log2(np.clip(np.abs(wanted), tiny, most)))
            off = np.abs(values - wanted) / unit
        off = np.where((np.abs(wanted) < tiny) & (np.abs(values) <= tiny), 0, off)
        worst = max(worst, float(np.max(np.where(np.isnan(off), np.inf, off))))
    return worst


def examine(case: cases.Case) -> tuple[dict[str, bool], str]:
    start = time.perf_counter()
    found = untrace.doctor(case.function)(*typed(case, case.args))
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
    parser.add_argument("--fresh2", action="store_true")
    parser.add_argument("--fresh3", action="store_true")
    parser.add_argument("--fresh4", action="store_true")
    parser.add_argument("--fresh5", action="store_true")
    parser.add_argument("--fresh6", action="store_true")
    parser.add_argument("--fresh7", action="store_true")
    parser.add_argument("--fresh8", action="store_true")
    options = parser.parse_args()
    asked = [group for group in GROUPS if getattr(options, group, False)] or ["all"]
    faulty, healthy = [
        [c for c in every if (not options.only or c.name in options.only) and any(GROUPS[g](c) for g in asked)]
        for every in (cases.FAULTY, cases.HEALTHY)
    ]
    found: dict[str, dict[str, bool]] = {}
    for case in faulty:
        try:
            with jax.enable_x64(case.dtype == np.float64):
                right, text = examine(case)
        except Exception as error:  # a bench goes on
            right, text = {}, f"{case.name}: {type(error).__name__}: {error}"
        found[case.name] = right
        print(text, flush=True)
    alarms: list[cases.Case] = []
    for case in [] if options.quick else healthy:
        try:
            with jax.enable_x64(case.dtype == np.float64):
                diagnosis = untrace.doctor(case.function)(*typed(case, case.args))
            alarm = "; ".join(
                f"{f.severity} {f.cause} `{f.statement}`: {f.detail} for {f.example}" for f in diagnosis.findings
            )
        except Exception as error:
            alarm = f"{type(error).__name__}: {error}"
        if alarm:
            alarms.append(case)
            print(f"ALARM {case.name}: {alarm}", flush=True)
    for what, chosen in [(g, GROUPS[g]) for g in (GROUPS if asked == ["all"] else asked)]:
        counted = [found[c.name] for c in faulty if chosen(c)]
        counts = [f"{sum(right.get(key, False) for right in counted)} {key}" for key in KEYS]
        print(f"{jax.__version__}, {what}: {len(counted)} faulty: {', '.join(counts)}")
        print(f"{sum(map(chosen, healthy))} healthy: {sum(map(chosen, alarms))} false alarms")


if __name__ == "__main__":
    main()
