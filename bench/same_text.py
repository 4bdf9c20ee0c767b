"""Whether this tree writes the same texts as another revision of it, byte for byte.

    python bench/same_text.py --against REV                        all programs, both styles, derivatives auto and written
    python bench/same_text.py --against REV --of zoo gallery       only these; --only REGEX chooses by name
    python bench/same_text.py --against REV --keep DIR             leaves the texts there, and prints how they differ
    python bench/same_text.py --against REV --repeat               each text twice: does it depend on the run?

The programs are those of this tree for both revisions: the zoos, the gallery, our suite, the fifth of JAX's corpus that
the tests take, the examples, and the models of `torch_zoo.py`. Each is written in a process that has the revision's
`src` before everything else, and fails where another untrace is imported. Compared are the text, its large constants,
and the level of its proof; where both revisions fail with one error, that is the same as well, and is said.
What the revision REV wrote is kept (`--cache`), by its `src`, the program's file and all that is installed: REV writes
each text once. This tree's are written each time.

ALLOWED below names the programs whose text may differ, each with its cause. The last line reads `N same, M different`;
the exit status is 1 where a text differs that is not named there, or varies from run to run.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import difflib
import functools
import hashlib
import importlib.metadata
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import conformance
import torch_zoo
from _check import Corpus, Suite
from _common import Record, build_case, child_main, find_cases, load_module, run_child, write_json
from _worker import CORPUS, SUITE, Worker, sample

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
FOLDERS = {
    "zoo": ROOT.parent / "shared" / "zoo", "zoo2": ROOT.parent / "shared" / "zoo2", "gallery": ROOT / "tests" / "gallery",
}  # fmt: skip
KINDS = (*FOLDERS, "suite", "corpus", "examples", "torch")
# The program and its file.
EXAMPLES = {
    "loss": "loss", "grad_loss": "loss", "train_step": "train", "grad_gpt": "gpt", "swing": "pendulum",
    "unstable_loss": "unstable", "rollout": "rollout",
}  # fmt: skip
STYLES = ("idiomatic", "exact")
DERIVATIVES = ("auto", "written")
BATCH = 20  # small programs that one process writes
WAY = 1  # goes up when what a child records, or how, changes: what is kept of revisions is then written anew

# The programs (`zoo/rnn_vmap_scan`) whose text may differ, each with the cause.
CODES = "JAX numbers the codes of checkify's errors on in a process, so that a text depends on what was traced before"
ALLOWED: dict[str, str] = {
    "suite/linear_transpose_of_function": "jax.linear_transpose stays a call since",
    "zoo2/hessian_newton_cg_pinn": "a function that loops inside differentiate too is defined once",
    "suite/transform_check_left_alone": CODES,
    "suite/transform_checkify": CODES,
    "suite/transform_checkify_every_kind": CODES,
    "suite/transform_checkify_in_scan": CODES,
}


# ------------------------------------------------------------------ in the child


def measure(options: dict[str, Any], record: Record) -> None:
    """Records what the untrace of `options["source"]` writes for each of the programs, in each way."""
    record.put(stage="import")
    import untrace

    found, wanted = Path(untrace.__file__).resolve(), Path(options["source"]).resolve()
    if not found.is_relative_to(wanted):
        raise RuntimeError(f"untrace was imported from {found}, not from {wanted}")
    texts: dict[str, Any] = {}
    for name in options["names"]:
        record.put(stage=name)
        texts[name] = written_texts(options["of"], name, options["ways"])
        record.put(texts=texts)


def written_texts(of: str, name: str, ways: Sequence[str]) -> dict[str, dict[str, str]]:
    """By way, the text, the level of its proof and a digest of its constants, or the error; `unbuilt` where the
    program itself fails."""
    import jax

    try:
        function, args, kwargs, static = build(of, name)
    except Exception as error:
        return {"unbuilt": {"error": said(error)}}
    import untrace

    found: dict[str, dict[str, str]] = {}
    for way in ways:
        style, derivatives = way.split("/")
        jax.clear_caches()  # what was written before must not matter
        try:
            if of == "torch":
                written = untrace.from_torch(function, style=style)(*args, **kwargs)
            else:
                decompile = untrace.decompile(function, style=style, derivatives=derivatives, **static)
                written = decompile(*args, **kwargs)
        except Exception as error:
            found[way] = {"error": said(error)}
            continue
        digest = hashlib.sha256()
        for key, array in sorted(written.arrays.items()):
            digest.update(f"{key} {array.dtype} {array.shape}".encode() + array.tobytes())
        found[way] = {"text": written.source, "proof": written.proof.level, "constants": digest.hexdigest()}
    return found


def build(of: str, name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any], dict[str, Any]]:
    """(function or model, arguments, keyword arguments, which are static) of a program."""
    if of in FOLDERS:
        return *build_case(FOLDERS[of] / f"{name}.py"), {}, {}
    if of == "examples":
        return *example(name), {}, {}
    if of == "torch":
        return *torch_zoo.built(name), {}
    subject = cases_of(of).subject(name)
    if subject.refused:
        raise ValueError(f"JAX itself refuses it: {subject.refused}")
    return subject.fn, subject.args, dict(subject.kwargs), dict(subject.static)


@functools.cache
def cases_of(kind: str) -> Corpus | Suite:
    return Corpus() if kind == "corpus" else Suite()


def example(name: str) -> tuple[Any, tuple[Any, ...]]:
    """A program of `examples/`, at the arguments that the README and the demo take."""
    import jax

    module = load_module(ROOT / "examples" / f"{EXAMPLES[name]}.py", EXAMPLES[name])
    if name == "grad_gpt":
        return jax.grad(module.loss), module.make_args()

    def f32(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, "float32")

    if name == "swing":
        return module.swing, (f32(), f32(), f32())
    if name == "rollout":
        return module.rollout, (f32(4), f32(4, 4))
    if name == "unstable_loss":
        return module.loss, module.arguments()
    args = ((f32(4, 5), f32(5)), f32(3, 4), f32(3, 5))
    return (jax.grad(module.loss) if name == "grad_loss" else getattr(module, name)), args


def said(error: Exception) -> str:
    """The error without addresses, which are others in each run."""
    return re.sub(r"0x[0-9a-f]+", "0x…", f"{type(error).__name__}: {error}")


# ------------------------------------------------------------------ programs


@dataclasses.dataclass(frozen=True)
class Program:
    """A program by kind and name, what its process needs, and a digest of the files that it consists of."""

    of: str
    name: str
    devices: int
    x64: bool
    seal: str

    @property
    def title(self) -> str:
        return f"{self.of}/{self.name}"


def find_programs(kinds: Iterable[str], only: str | None) -> list[Program]:
    """The programs of these kinds; those whose KIND/NAME matches the regex `only`."""
    found = [p for kind in kinds for p in programs_of(kind)]
    return [p for p in found if not only or re.search(only, p.title)]


def programs_of(kind: str) -> Iterator[Program]:
    if kind in FOLDERS:
        helpers = sorted(FOLDERS[kind].glob("_*.py"))
        for c in find_cases(FOLDERS[kind]):
            if c.runs_here:
                yield Program(kind, c.name, c.devices, c.x64, seal_of([c.path, *helpers]))
    elif kind == "examples":
        paths = sorted((ROOT / "examples").glob("*.py"))
        assert {p.stem for p in paths} == set(EXAMPLES.values()), "EXAMPLES must name a program of each file"
        for name, file in EXAMPLES.items():
            yield Program(kind, name, 1, False, seal_of([ROOT / "examples" / f"{file}.py"]))
    elif kind == "torch":
        for name, (file, _) in torch_zoo.MODELS.items():
            yield Program(kind, name, 1, False, seal_of([BENCH / "torch_models" / f"{file}.py"]))
    else:
        worker = Worker()
        try:
            cases = conformance.find_cases(worker, [CORPUS if kind == "corpus" else SUITE])
        finally:
            worker.close()
        seal = seal_of([BENCH / "_check.py", *(sorted((BENCH / "suite").glob("*.py")) if kind == "suite" else ())])
        for case in sample(cases, "1/5") if kind == "corpus" else cases:
            yield Program(kind, case.name, case.setting.devices, case.setting.x64, seal)


def seal_of(paths: Iterable[Path]) -> str:
    return hashlib.sha256(b"\0".join(p.read_bytes() for p in paths)).hexdigest()


def batches(programs: Iterable[Program]) -> Iterator[list[Program]]:
    """Programs that one process writes: small ones that need the same of it; the others by themselves."""
    small = [p for p in programs if p.of in ("suite", "corpus")]
    small.sort(key=lambda p: (p.of, p.devices, p.x64, p.name))
    yield from ([p] for p in programs if p.of not in ("suite", "corpus"))
    for _, group in itertools.groupby(small, lambda p: (p.of, p.devices, p.x64)):
        alike = list(group)
        yield from (alike[i : i + BATCH] for i in range(0, len(alike), BATCH))


# ------------------------------------------------------------------ revisions


@dataclasses.dataclass(frozen=True)
class Revision:
    """A revision's `src`, and the folder where what it writes is kept; `cache` is None where nothing is kept of it."""

    source: Path
    cache: Path | None
    ways: tuple[str, ...]
    seconds: float

    def texts(self, batch: list[Program], turn: int = 0) -> list[dict[str, Any]]:
        """What it writes for each of the programs, which one process takes. turn: of several runs, which nothing is
        kept of but the first, and which have other seeds of Python's hashes."""
        ways = (
            self.ways if batch[0].of != "torch" else tuple(dict.fromkeys(w.split("/")[0] + "/auto" for w in self.ways))
        )
        known = {p: self._kept(p) if turn == 0 else {} for p in batch}
        missing = [p for p in batch if not known[p].keys() >= set(ways) and "unbuilt" not in known[p]]
        while missing:
            written, error = self._run(missing, ways, turn)
            for p in missing[: len(written)]:
                known[p] |= written[p.name]
                self._keep(p, known[p], turn)
            missing = missing[len(written) :]
            if error and missing:  # of a process that died, which nothing is kept of
                known[missing.pop(0)] = {way: {"error": error} for way in ways}
        return [{way: t for way, t in known[p].items() if way in (*ways, "unbuilt")} for p in batch]

    def _run(self, programs: list[Program], ways: Sequence[str], turn: int) -> tuple[dict[str, Any], str]:
        one = programs[0]
        options = {"of": one.of, "names": [p.name for p in programs], "ways": ways, "source": str(self.source)}
        more = {"PYTHONPATH": str(self.source), "PYTHONHASHSEED": str(turn), "JAX_ENABLE_COMPILATION_CACHE": "0"}
        limit = self.seconds * (1 + len(programs) / 10)
        found = run_child(__file__, options, limit, devices=one.devices, x64=one.x64, more=more)
        if found.get("stage") in (None, "import"):
            raise SystemExit(f"{one.title} could not be written: {found.get('error')}")
        return found.get("texts", {}), found.get("error", "")

    def _kept(self, program: Program) -> dict[str, Any]:
        path = self._path(program)
        return json.loads(path.read_text(encoding="utf-8")) if path is not None and path.exists() else {}

    def _keep(self, program: Program, texts: dict[str, Any], turn: int) -> None:
        path = self._path(program)
        if path is not None and turn == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(str(path), texts)

    def _path(self, program: Program) -> Path | None:
        return None if self.cache is None else self.cache / program.of / f"{program.name}-{program.seal[:16]}.json"


def installed() -> str:
    """A digest of Python and of all that is installed, untrace aside: what a text may depend on beside its program."""
    found = {f"{d.metadata['Name']}=={d.version}" for d in importlib.metadata.distributions()}
    names = sorted(n for n in found if not n.lower().startswith("untrace=="))
    return hashlib.sha256("\n".join([sys.version, str(WAY), *names]).encode()).hexdigest()[:16]


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


def unpack(revision: str, folder: Path) -> Path:
    """The `src` of a revision, written to the folder."""
    subprocess.run(["tar", "-x", "-C", str(folder)], input=git("archive", revision, "src"), check=True)
    return folder / "src"


# ------------------------------------------------------------------ the comparison


@dataclasses.dataclass(frozen=True)
class Result:
    """How the texts of a program compare. verdict: same, different, varies, or skipped. details: by way, what is to be
    said of it. old, new: what the revisions wrote."""

    program: Program
    verdict: str
    details: dict[str, str]
    old: dict[str, Any]
    new: dict[str, Any]


def compare(program: Program, old: list[dict[str, Any]], new: list[dict[str, Any]]) -> Result:
    """old, new: what each revision wrote, once or several times."""
    first, second = old[0], new[0]
    if first == second and "unbuilt" in first:
        return Result(program, "skipped", {"": first["unbuilt"]["error"]}, {}, {})
    unstable = {
        f"{word} {way}": "another text in another run"
        for word, runs in (("old", old), ("new", new))
        for way in runs[0]
        if any(run.get(way) != runs[0][way] for run in runs)
    }
    details = {way: how_they_differ(first.get(way, {}), second.get(way, {})) for way in {**first, **second}}
    differ = any(first.get(way) != second.get(way) for way in details)
    verdict = "varies" if unstable else "different" if differ else "same"
    return Result(program, verdict, {w: d for w, d in {**unstable, **details}.items() if d}, first, second)


def how_they_differ(old: dict[str, str], new: dict[str, str]) -> str:
    """In words; "" where they are the same text."""
    if "error" in old or "error" in new:
        if old == new:
            return f"both fail: {old['error'][:160]}"
        return " and ".join(
            f"{word} fails: {side['error'][:160]}" if "error" in side else f"{word} does not"
            for word, side in (("the old one", old), ("the new one", new))
        )
    found = [
        f"{what} {old.get(what)} -> {new.get(what)}"
        for what in ("proof", "constants")
        if old.get(what) != new.get(what)
    ]
    lines = [line[0] for line in diff(old, new)[2:]]
    if lines:
        found.insert(0, f"text: -{lines.count('-')} +{lines.count('+')} lines")
    return "; ".join(found)


def diff(old: dict[str, str], new: dict[str, str], name: str = "") -> list[str]:
    sides = (side.get("text", "").splitlines(keepends=True) for side in (old, new))
    return list(difflib.unified_diff(*sides, f"old/{name}", f"new/{name}"))


def keep(folder: Path, result: Result) -> None:
    """Leaves the texts in the folder, and prints how they differ."""
    for word, texts in (("old", result.old), ("new", result.new)):
        for way, found in texts.items():
            path = folder / word / result.program.of / f"{result.program.name}.{way.replace('/', '.')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(found.get("text", f"# {found.get('error')}\n"), encoding="utf-8")
    for way in result.old:
        name = f"{result.program.title}.{way.replace('/', '.')}.py"
        sys.stdout.writelines(diff(result.old[way], result.new.get(way, {}), name))


def report(result: Result, folder: Path | None) -> None:
    cause = ALLOWED.get(result.program.title)
    word = {"different": "DIFFERENT", "varies": "VARIES"}.get(result.verdict, result.verdict)
    if cause is not None:
        word = "allowed" if result.verdict == "different" else f"{word}, and need not be in ALLOWED"
    print(f"{result.program.title:60} {word}{f': {cause}' if cause and word == 'allowed' else ''}")
    for way, detail in result.details.items():
        print(f"    {way}{': ' if way else ''}{detail}")
    if folder is not None:
        keep(folder, result)
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--against", required=True, metavar="REV", help="the revision to compare with")
    parser.add_argument("--of", nargs="+", choices=KINDS, default=KINDS, help="kinds of programs")
    parser.add_argument("--only", metavar="REGEX", help="programs whose KIND/NAME matches")
    parser.add_argument("--styles", nargs="+", choices=STYLES, default=STYLES)
    parser.add_argument("--derivatives", nargs="+", choices=(*DERIVATIVES, "called"), default=DERIVATIVES)
    parser.add_argument("--repeat", action="store_true", help="write each text twice, also those that are kept")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the texts there and print the differences")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="where the texts of revisions are kept")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2, help="processes at a time")
    parser.add_argument("--seconds", type=float, default=600.0, help="time limit of one program")
    parser.add_argument("--json", help="where to write what was found")
    options = parser.parse_args()
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = options.cache or Path(home) / "untrace" / "same_text"
    ways = tuple(f"{style}/{derivatives}" for style in options.styles for derivatives in options.derivatives)
    # The identity of a `src`, whatever else changed between revisions.
    tree = git("rev-parse", f"{options.against}:src").decode().strip()
    programs = find_programs(options.of, options.only)
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="untrace_same_text_") as folder:
        source = unpack(options.against, Path(folder))
        old = Revision(source, cache / tree / installed(), ways, options.seconds)
        new = Revision(ROOT / "src", None, ways, options.seconds)

        def run(batch: list[Program]) -> list[Result]:
            turns = range(2 if options.repeat else 1)
            sides = [[revision.texts(batch, turn) for turn in turns] for revision in (old, new)]
            return [compare(p, *([run[i] for run in side] for side in sides)) for i, p in enumerate(batch)]

        with concurrent.futures.ThreadPoolExecutor(options.workers) as pool:
            futures = [pool.submit(run, batch) for batch in batches(programs)]
            try:
                for future in futures:
                    for result in future.result():
                        report(result, options.keep)
                        results.append(result)
                    rows = [
                        {"name": r.program.title, "verdict": r.verdict, "details": r.details, "cause": ALLOWED.get(r.program.title)}
                        for r in results
                    ]  # fmt: skip
                    write_json(options.json, {"against": options.against, "rows": rows})
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
    return summarise(results)


def summarise(results: Sequence[Result]) -> int:
    """Prints the counts; the exit status."""
    skipped = [r for r in results if r.verdict == "skipped"]
    failing = [r for r in results if r.verdict == "same" and r.details]
    named = [r for r in results if r.verdict == "different" and r.program.title in ALLOWED]
    same = sum(r.verdict == "same" for r in results)
    different = len(results) - same - len(skipped) - len(named)
    print(f"\n{len(skipped)} cannot be built here, {len(named)} differ by a cause in ALLOWED")
    print(f"of the same, {len(failing)} fail in both revisions, in one way or more")
    print(f"{same} same, {different} different")
    return 1 if different else 0


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--child":
        child_main(measure, sys.argv[2])
    sys.exit(main())
