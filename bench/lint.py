"""What `untrace.lint` finds of the functions in `lint_cases.py`: each rule where it is, and where it is not.

    python bench/lint.py [--only RULE ...] [--zoo FOLDER [NAME ...]]

Of a function that has a rule: whether it is found, on the line. Of one that looks alike: whether the rule is silent.
--zoo: prints the findings of programs instead, each of them a file with `build()` that gives a function and its arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import inspect
import io
import sys
import time
from collections import Counter
from pathlib import Path

import jax
import lint_cases as cases

import untrace


def marked_line(function) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if "# <-" in line)


def judge(case: cases.Case) -> str:
    """What is wrong with the findings of a case; "" where nothing is."""
    with contextlib.redirect_stdout(io.StringIO()):
        found = untrace.lint(case.function, static_argnums=case.static)(*case.args)
    own = [f for f in found if f.rule == case.rule]
    if case.has:
        line = marked_line(case.marked)
        return "" if line in [f.line for f in own] else f"not found; there are {[(f.rule, f.line) for f in found]}"
    return "" if not own else f"a false alarm: {own[0]}"


def zoo(folder: Path, names: list[str]) -> None:
    sys.path.insert(0, str(folder))
    for path in sorted(folder.glob("[a-z]*.py")):
        if names and path.stem not in names:
            continue
        start = time.perf_counter()
        try:
            jax.config.update("jax_enable_x64", "\nX64 = True" in path.read_text())
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[path.stem] = module
            spec.loader.exec_module(module)
            function, args = module.build()
            found = str(untrace.lint(function)(*args))
        except Exception as error:  # a bench goes on
            found = f"{type(error).__name__}: {str(error)[:200]}"
        print(f"{path.stem}, {time.perf_counter() - start:.1f} s\n{found}\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--zoo", nargs="+", default=[])
    options = parser.parse_args()
    if options.zoo:
        return zoo(Path(options.zoo[0]), options.zoo[1:])
    right: Counter[tuple[str, bool]] = Counter()
    whole: Counter[tuple[str, bool]] = Counter()
    for case in cases.CASES:
        if options.only and case.rule not in options.only:
            continue
        try:
            wrong = judge(case)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        whole[case.rule, case.has] += 1
        right[case.rule, case.has] += not wrong
        if wrong:
            print(f"{case.rule} {case.marked.__name__}: {wrong}", flush=True)
    for rule in dict.fromkeys(rule for rule, _ in whole):
        print(
            f"{rule:18} {right[rule, True]} of {whole[rule, True]} found,"
            f" silent on {right[rule, False]} of {whole[rule, False]} that look alike"
        )
    print(f"{jax.__version__}: {sum(right.values())} of {sum(whole.values())} are right")


if __name__ == "__main__":
    main()
