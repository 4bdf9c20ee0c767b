"""The round-trip table: untrace, JaxDecompiler and jax_sourceror on JAX's own primitive corpus.

    python bench/peers.py --old OLD_PYTHON --new NEW_PYTHON [--sourceror CHECKOUT]

The peers are neither shipped nor fetched by this script. The reader makes two environments, one
with a JAX that the peers were made for (they are of early 2024) and one with today's:

    python3.10 -m venv peers_old
    peers_old/bin/pip install jaxdecompiler==0.0.7 'jax==0.4.23' 'jaxlib==0.4.23' 'numpy<2' \\
        'scipy<1.13' absl-py mpi4py mpich
    python3.11 -m venv peers_new
    peers_new/bin/pip install jaxdecompiler==0.0.7 'jax>=0.10' absl-py mpi4py mpich

(what JaxDecompiler writes imports mpi4py, hence the last two). jax_sourceror is on no package
index: `git clone https://github.com/dlwh/jax_sourceror`, install `equinox` and `ast-comments` into
both environments, and pass the checkout as `--sourceror`. untrace runs under this interpreter.

A peer's case is right when the text that it writes imports and, jitted, gives the same bits and
dtypes as the original. No more is asked of a peer: pytrees are flattened for it, weak types and
what the text imports are not looked at, and StableHLO is a column of its own. What untrace must
hold is more: see `conformance.py`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from _common import write_json
from _worker import CORPUS, Row, Worker
from conformance import Progress, as_json, choose, count, mean_of_groups, run_cases

# ------------------------------------------------------- the tools, in a worker process

HEADER = "import jax\nimport jax.numpy as jnp\nfrom jax import lax\n\n\n"


def jaxdecompiler_writer(options: Mapping[str, Any]) -> Any:
    """JaxDecompiler: its lines for the jaxpr, saved as it saves them itself."""
    import jax
    from _check import Outcome
    from JaxDecompiler import decompiler

    def write(subject: Any, directory: Path) -> Any:
        path = directory / "written.py"
        try:
            lines = decompiler.decompiler(jax.make_jaxpr(subject.fn)(*subject.args))
            path.write_text("".join(f"{line}\n" for line in flat(lines)), encoding="utf-8")
        finally:
            # It adds entries to the params of equations that JAX has in its caches.
            jax.clear_caches()
        return Outcome(path, "f", flat=True)

    return write


def sourceror_writer(options: Mapping[str, Any]) -> Any:
    """jax_sourceror from a checkout: its text under the imports that it takes for granted."""
    source = Path(options["checkout"])
    sys.path.insert(0, str(source / "src" if (source / "src").is_dir() else source))
    import jax
    from _check import Outcome
    from jax_sourceror import sourcerize

    def write(subject: Any, directory: Path) -> Any:
        def program(*args: Any) -> Any:
            return subject.fn(*args)

        path = directory / "written.py"
        try:
            path.write_text(HEADER + sourcerize(program)(*subject.args), encoding="utf-8")
        finally:
            jax.clear_caches()
        return Outcome(path, "program", flat=True)

    return write


def flat(lines: Sequence[Any]) -> list[str]:
    """The lines of nested lists of lines, in order."""
    result = []
    for line in lines:
        result += [line] if isinstance(line, str) else flat(line)
    return result


# --------------------------------------------------------------------- the comparison


@dataclass(frozen=True)
class Entry:
    """A row of the table: a tool in an environment."""

    tool: str
    python: str
    options: Mapping[str, Any]

    def worker(self, seconds: float) -> Worker:
        """A process of that environment."""
        return Worker(self.python, self.options, seconds=seconds)


def entries(options: argparse.Namespace) -> list[Entry]:
    """The rows that the options ask for."""
    found = []
    for tool in ("jaxdecompiler", "sourceror"):
        checkout = options.sourceror if tool == "sourceror" else None
        if tool == "sourceror" and not checkout:
            continue
        for python in (options.old, options.new):
            if python:
                function = f"peers:{tool}_writer"
                settings = {"tool": function, "style": "peer", "checkout": checkout}
                found.append(Entry(tool, executable(python), settings))
    if not options.no_untrace:
        found.append(Entry("untrace", sys.executable, {"tool": "untrace", "style": "exact"}))
    return found


def executable(python: str) -> str:
    """The absolute path of an interpreter. Raises `SystemExit` where there is none."""
    found = shutil.which(os.path.expanduser(python))
    if not found:
        raise SystemExit(f"{python}: no such interpreter; see --help for how to make it")
    return os.path.abspath(found)


def measure(entry: Entry, options: argparse.Namespace) -> tuple[str, list[Row]]:
    """The version of JAX and the rows of all cases of an entry."""
    worker = entry.worker(options.seconds)
    try:
        cases = choose(worker.list(CORPUS), options.only, options.sample)
        version = worker.jax_version()
    finally:
        worker.close()
    print(f"{entry.tool}, JAX {version}: {len(cases)} cases", file=sys.stderr)
    rows = run_cases(cases, lambda: entry.worker(options.seconds), options.jobs, Progress(len(cases)))
    if entry.tool != "untrace":  # the same measure for a peer everywhere: the bits
        rows = [replace(row, outcome="passed") if row.bits else row for row in rows]
    return version, rows


def markdown(results: Sequence[tuple[Entry, str, list[Row]]]) -> str:
    """The table of the README."""
    lines = [
        "| tool | JAX | cases | written | imported | same StableHLO | right | mean of groups |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for entry, version, rows in results:
        counts = count(rows)
        tried = max(counts["cases"] - counts["excluded"], 1)
        mean = mean_of_groups(rows, "passed") or 0.0
        right = f"{counts['passed']} ({100 * counts['passed'] / tried:.1f} %)"
        cells = [entry.tool, version, tried, counts["written"], counts["imported"]]
        cells += [counts["stablehlo"], right, f"{mean:.1f} %"]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(lines)


def main() -> int:
    """Measures every tool that was given and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", metavar="PYTHON", help="with the peers' own JAX")
    parser.add_argument("--new", metavar="PYTHON", help="with today's JAX and the peers")
    parser.add_argument("--sourceror", metavar="CHECKOUT", help="a clone of jax_sourceror")
    parser.add_argument("--no-untrace", action="store_true", help="measure the peers only")
    parser.add_argument("--sample", metavar="N/M", help="a fixed share of every group")
    parser.add_argument("--only", metavar="REGEX", help="cases whose GROUP/NAME matches")
    parser.add_argument("--json", metavar="OUT", help="write all rows to a file")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--seconds", type=float, default=60.0, help="limit for a case")
    options = parser.parse_args()
    results, data = [], []
    for entry in entries(options):
        try:
            version, rows = measure(entry, options)
        except (RuntimeError, subprocess.SubprocessError) as error:
            print(f"{entry.tool} in {entry.python}: {error}", file=sys.stderr)
            return 1
        results.append((entry, version, rows))
        data.append(as_json(rows, {"tool": entry.tool, "jax": version}))
        write_json(options.json, {"runs": data})
    print(markdown(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
