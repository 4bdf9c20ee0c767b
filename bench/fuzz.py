"""Random JAX programs through untrace: a long run of the property tests.

    python bench/fuzz.py --examples 2000 --seed 0

Every example is decompiled, saved, imported and compared with the original: StableHLO, bits,
gradients, determinism (see `tests/roundtrip.py`). Example I of a run can be had again by
`--start I --examples 1` with the same seed. A failing program is made smaller; one program of each
kind of failure is printed and, with `--failures DIR`, saved as a file that runs by itself.
The last line reads `N passed, M failed, K skipped`; skipped are programs that JAX itself refuses.
The exit status is 1 where anything failed.

The examples run in a process of their own, for XLA crashes on some programs. Then a second process
compiles and runs the original alone: where that dies too, the example is skipped, else it failed.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import jax  # noqa: E402
import random_programs  # noqa: E402
import roundtrip  # noqa: E402
import strategies  # noqa: E402


class Run:
    """The counts of a run and the smallest failing program of each kind."""

    def __init__(self, options: argparse.Namespace, directory: Path):
        self.options = options
        self.directory = directory
        self.counts: collections.Counter[str] = collections.Counter()
        self.kinds: collections.Counter[str] = collections.Counter()
        self.smallest: dict[str, random_programs.Program] = {}
        self.details: dict[str, str] = {}
        self.refusals: collections.Counter[str] = collections.Counter()
        self.start = time.perf_counter()

    def load(self, path: Path) -> int:
        """Takes over the counts of a process that died, which `save` left; the next example."""
        data = json.loads(path.read_text())
        for name in ("counts", "kinds", "refusals"):
            getattr(self, name).update(data[name])
        return data["next"]

    def save(self, path: Path, following: int) -> None:
        """Leaves the counts in a file, before each example."""
        names = ("counts", "kinds", "refusals")
        data = {name: dict(getattr(self, name)) for name in names}
        path.write_text(json.dumps({**data, "next": following}))

    def failure(self, program: random_programs.Program) -> roundtrip.Mismatch | None:
        """What is wrong with a program, None where nothing is; raises Refused."""
        options = self.options
        try:
            roundtrip.check(
                program,
                self.directory,
                gradients=not options.no_gradients,
                again=not options.no_again,
                fixpoint=not options.no_fixpoint,
                same_text=options.same_text,
                style=options.style,
            )
        except roundtrip.Mismatch as error:
            return error
        finally:
            for path in self.directory.iterdir():
                path.unlink()
        return None

    def example(self, program: random_programs.Program, name: str) -> None:
        """Checks one program and counts it."""
        try:
            error = self.failure(program)
        except roundtrip.Refused as refusal:
            self.counts["skipped"] += 1
            self.refusals[re.sub(r"\d+", "N", str(refusal))[:90]] += 1
        else:
            self.counts["failed" if error else "passed"] += 1
            if error:
                self.failed(program, error, name)
        done = sum(self.counts.values())
        if done % 25 == 0:
            jax.clear_caches()  # compiled programs would fill the memory
            seconds = time.perf_counter() - self.start
            print(f"{done} examples in {seconds:.0f} s: {self.summary()}", file=sys.stderr)

    def failed(self, program: random_programs.Program, error: roundtrip.Mismatch, name: str) -> None:
        """Keeps the program where it is the first or the smallest of its kind."""
        kind = kind_of(error)
        self.kinds[kind] += 1
        if kind in self.smallest:
            return

        def fails(candidate: random_programs.Program) -> bool:
            try:
                other = self.failure(candidate)
            except Exception:  # refused, or no longer a program
                return False
            return other is not None and kind_of(other) == kind

        small = random_programs.shrunk(program, fails, self.options.shrink)
        self.smallest[kind] = small
        try:
            self.details[kind] = str(self.failure(small) or error)
        except Exception:
            self.details[kind] = str(error)
        print(f"\nFAILED {name} {kind}\n{self.details[kind]}\n{body(small)}", file=sys.stderr)
        if self.options.failures:
            folder = Path(self.options.failures)
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / (re.sub(r"\W+", "_", kind)[:60] + ".py")
            comment = f"# {name}\n" + "".join(f"# {line}\n" for line in self.details[kind].splitlines())
            path.write_text(comment + small.source(), encoding="utf-8")

    def summary(self) -> str:
        """`N passed, M failed, K skipped`."""
        return ", ".join(f"{self.counts[k]} {k}" for k in ("passed", "failed", "skipped"))


def kind_of(error: roundtrip.Mismatch) -> str:
    """A short name that failures with one cause share: numbers and names of values left out."""
    text = re.sub(r"'[^']*'|0x\w+|[\d.]+|\[[^\]]*\]", "N", error.detail)
    return f"{error.kind}: {text[:70]}"


def body(program: random_programs.Program) -> str:
    """The program's own part of its module."""
    return program.source().removeprefix(random_programs.PRELUDE).strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=2000, help="programs (default 2000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="number of the first example")
    parser.add_argument("--size", type=int, default=10, help="most statements at the top")
    parser.add_argument("--style", choices=("exact", "idiomatic"), default="exact")
    parser.add_argument("--x64", action="store_true", help="64-bit mode and types")
    parser.add_argument("--shrink", type=int, default=150, help="most trials for each failure")
    parser.add_argument("--failures", metavar="DIR", help="where to save failing programs")
    for name in ("gradients", "again", "fixpoint"):
        parser.add_argument(f"--no-{name}", action="store_true")
    parser.add_argument("--same-text", action="store_true", help="decompiling the text must give that text again")
    parser.add_argument("--state", help=argparse.SUPPRESS)  # of the process that runs examples
    parser.add_argument("--original", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.original:
        return run_original(options)
    if options.state:
        return run_examples(options)
    return watch(options)


def run_original(options: argparse.Namespace) -> int:
    """Compiles and runs one example without untrace."""
    jax.config.update("jax_enable_x64", options.x64)
    text = f"{options.seed}:{options.start}"
    program = strategies.seeded_program(text, options.size, options.x64)
    module = program.module()
    args, kwargs = program.arguments(module)
    for _ in range(2):  # as often as the check compiles the program; some die at the second time
        jax.clear_caches()
        jax.block_until_ready(jax.jit(module.program)(*args, **kwargs))
    return 0


def watch(options: argparse.Namespace) -> int:
    """Runs the examples in processes of their own, going on behind an example that kills one."""
    command = [sys.executable, __file__, *sys.argv[1:]]
    with tempfile.TemporaryDirectory(prefix="untrace_fuzz_") as directory:
        state = Path(directory) / "state.json"
        Run(options, Path(directory)).save(state, options.start)
        while True:
            done = subprocess.run([*command, "--state", str(state)])
            if done.returncode >= 0:
                return done.returncode
            run = Run(options, Path(directory))
            index = run.load(state)
            one = ["--original", "--start", str(index)]
            alone = subprocess.run([*command, *one])
            name = f"{options.seed}:{index}"
            if alone.returncode < 0:
                run.counts["skipped"] += 1
                run.refusals["the original alone kills the process"] += 1
                print(f"skipped {name}: the original kills the process too", file=sys.stderr)
            else:
                run.counts["failed"] += 1
                run.kinds[f"{name} killed the process with signal {-done.returncode}"] += 1
                print(f"\nFAILED {name}: signal {-done.returncode}", file=sys.stderr)
            run.save(state, index + 1)


def run_examples(options: argparse.Namespace) -> int:
    """Runs the examples from the one on that the state file names."""
    jax.config.update("jax_enable_x64", options.x64)
    with tempfile.TemporaryDirectory(prefix="untrace_fuzz_") as directory:
        run, state = Run(options, Path(directory)), Path(options.state)
        for index in range(run.load(state), options.start + options.examples):
            run.save(state, index)
            text = f"{options.seed}:{index}"
            run.example(strategies.seeded_program(text, options.size, options.x64), text)
    for kind, program in sorted(run.smallest.items(), key=lambda item: -run.kinds[item[0]]):
        print(f"\n{run.kinds[kind]} failed: {run.details[kind]}\n{body(program)}")
    for kind in sorted(run.kinds.keys() - run.smallest.keys()):  # of a process that died later
        print(f"\n{run.kinds[kind]} failed: {kind}")
    for reason, count in run.refusals.most_common(5):
        print(f"{count} skipped: {reason}")
    print(run.summary())
    return 1 if run.counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
