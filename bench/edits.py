"""Makes the same edit in the author's source and in the written text, and compares the two programs.

    python bench/edits.py                           fifty edits; each has to agree
    python bench/edits.py --derivatives written     the control, of the thirty that differentiate: none may agree
    python bench/edits.py --self-check              the author's source in the place of the text: each has to agree
    python bench/edits.py --only "gpt|decay" --json OUT.json --keep DIR

An edit is what a maintainer does: to a train step, a solver or a sampler that differentiates another activation, a term or
a clip in the loss, one more layer, another constant (thirty, `edits/_table.py`); to a simulation, a network, a sampler or a
solver that does not another constant, boundary, window or number of steps, one more term or layer (twenty,
`edits/_forward.py`). It is one transformation of a syntax tree (`edits/_rewrite.py`), made by the same code in both sources.
Both edited programs are loaded afresh and called with the example's arguments. Of each edit one of these comes:

  agrees         all results are the same, up to rounding: the loss and what was updated by its derivatives; the detail
                 says where the text had to be edited at more places than the author's source
  differs        they are not; the detail says which, and whether the loss agrees
  no such place  the text has no place, or no clear one, for this edit
  fails          the edited text cannot be loaded or run
  BAD EDIT       it is no edit of the author's program, or does not change its results clearly: where the program has a
                 loss, that and another result as well
  not measured   the program cannot be built or decompiled, or its text differs before any edit

The option `derivatives` goes to `untrace.decompile` where it has it; the texts of one that has not are the written ones.
The control leaves the twenty out: how derivatives are written is no matter of theirs.
The last line reads `N passed, M failed`. The exit code is 0 only if all agree (with `written`: if none does) and no edit is bad.
"""

from __future__ import annotations

import argparse
import ast
import collections
import inspect
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _common import (
    Record,
    build_case,
    child_main,
    find_cases,
    host_leaves,
    load_module,
    run_child,
    short_error,
    write_json,
)
from edits._forward import FORWARD
from edits._rewrite import NoSuchPlace, edited
from edits._table import DIFFERENTIATED, Edit, Program

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
FOLDERS = {"own": ROOT / "bench" / "edits", "zoo": SHARED / "zoo", "zoo2": SHARED / "zoo2"}
CLEARLY = 10  # an edit has to change the results by this many tolerances

Leaves = dict[str, np.ndarray]  # by the way to each in the result


# ------------------------------------------------------------------ in the child


def measure(options: dict[str, Any], record: Record) -> None:
    """Records what came of each edit of one program."""
    record.put(stage="build")
    program = next(p for p in DIFFERENTIATED + FORWARD if p.name == options["name"])
    path = Path(options["case"])
    fn, args = build_case(path)
    before = results(fn, args)
    record.put(stage="decompile", has_option=takes_derivatives())
    source = path.read_text(encoding="utf-8")
    work = Path(options["work"])
    if options["self_check"]:
        text, name = source, "build"
    else:
        text, name, notes = written(fn, args, work, options["derivatives"])
        record.put(notes=notes)
    sides = Sides(program, args, before, path, source, text, name, work)
    record.put(stage="as it was")
    apart = differing(before, results(*sides.text_call("as_it_was", text)), program.tolerance)
    if apart:
        raise ValueError(f"the text differs before any edit: {', '.join(apart)[:160]}")
    rows = []
    for number, edit in enumerate(program.edits):
        record.put(stage=edit.words)
        if edit.words in options["edits"]:
            outcome, detail = sides.outcome(edit, number)
            rows.append((edit.words, outcome, detail))
            record.put(rows=rows)
    record.put(sources=sides.sources)


def written(
    fn: Callable[..., Any], args: tuple[Any, ...], work: Path, derivatives: str
) -> tuple[str, str, tuple[str, ...]]:
    """The text of the function, the name of the entry in it, and what untrace has to say of it."""
    import untrace

    settings = {"derivatives": derivatives} if takes_derivatives() else {}
    decompiled = untrace.decompile(fn, **settings)(*args)
    path = work / "written_module.py"
    decompiled.save(path)
    return path.read_text(encoding="utf-8"), decompiled.name, tuple(decompiled.notes)


def takes_derivatives() -> bool:
    import untrace

    return "derivatives" in inspect.signature(untrace.decompile).parameters


class Sides:
    """The two sources of one program, edited and run side by side."""

    def __init__(
        self,
        program: Program,
        args: tuple[Any, ...],
        before: Leaves,
        path: Path,
        source: str,
        text: str,
        name: str,
        work: Path,
    ) -> None:
        self.program, self.args, self.before, self.path = program, args, before, path
        self.source, self.text, self.name, self.work = source, text, name, work
        self.sources = {"text.py": ast.unparse(ast.parse(text)) + "\n"}

    def outcome(self, edit: Edit, number: int) -> tuple[str, str]:
        tolerance = self.program.tolerance
        try:
            author, places = edited(self.source, edit.how)
            self.sources[f"{number}.author.py"] = author
            expected = results(*self.built(self.loaded(f"author_{number}", author)))
        except Exception as error:
            return "BAD EDIT", f"of the author's program: {short_error(error)}"
        if any(not np.all(np.isfinite(x)) for x in expected.values() if x.dtype.kind == "f"):
            return "BAD EDIT", "the author's program gives numbers that are not finite"
        changed = differing(self.before, expected, tolerance, CLEARLY)
        loss = [way for way in expected if self.is_loss(way)]
        has_loss = self.program.loss is not None
        if not changed:
            return "BAD EDIT", "it does not change the results of the author's program"
        if has_loss and not any(way in changed for way in loss):
            return "BAD EDIT", f"it changes {len(changed)} results of the author's program, but not the loss"
        if has_loss and all(way in loss for way in changed):
            return "BAD EDIT", "it changes the loss of the author's program, but no other result"
        try:
            text, places_in_text = edited(self.text, edit.how)
            self.sources[f"{number}.text.py"] = text
        except NoSuchPlace as error:
            return "no such place", str(error)
        try:
            got = results(*self.text_call(f"text_{number}", text))
        except Exception as error:  # whatever an edited program raises is a result
            return "fails", short_error(error)
        apart = differing(expected, got, tolerance)
        more = "" if places_in_text <= places else f"; at {places_in_text} places of the text, {places} of the author's"
        if not apart and not has_loss:
            return "agrees", f"{len(changed)} of {len(expected)} results changed{more}"
        if not apart:
            return "agrees", f"loss and {len(changed) - len(set(loss) & set(changed))} other results changed{more}"
        wrong = [f"{way} by {gap:.0e}" for way, gap in apart.items() if not self.is_loss(way)]
        word = "wrong" if any(way in apart for way in loss) else "right"
        others = len(expected) - len(loss)
        if not has_loss:
            return "differs", f"{len(wrong)} of {others} results wrong: {', '.join(wrong)}"
        return "differs", f"loss {word}, {len(wrong)} of {others} others wrong: {', '.join(wrong)}"

    def is_loss(self, way: str) -> bool:
        return self.program.loss is not None and re.match(self.program.loss, way) is not None

    def loaded(self, name: str, source: str) -> types.ModuleType:
        """The source as a fresh module; what an author's file reads beside it is found."""
        path = self.work / f"{name}.py"
        path.write_text(source, encoding="utf-8")
        return load_module(path, f"edited_{name}")

    def text_call(self, name: str, text: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        module = self.loaded(name, text)
        return self.built(module) if self.name == "build" else (getattr(module, self.name), self.args)

    def built(self, module: types.ModuleType) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The author's function, and the example's arguments as the classes of this copy of his module."""
        import jax

        fn, args = module.build()
        return fn, jax.tree.unflatten(jax.tree.structure(tuple(args)), jax.tree.leaves(self.args))


def results(fn: Callable[..., Any], args: tuple[Any, ...]) -> Leaves:
    import jax

    found = jax.jit(fn)(*args)
    ways = [jax.tree_util.keystr(way) for way, _ in jax.tree_util.tree_leaves_with_path(found)]
    return dict(zip(ways, host_leaves(found), strict=True))


def differing(expected: Leaves, got: Leaves, tolerance: float | None, times: float = 1) -> dict[str, float]:
    """By way, how far apart results are that are not close: of the largest value of both."""
    if list(expected) != list(got):
        return dict.fromkeys(sorted(set(expected) ^ set(got)) or list(expected), float("inf"))
    import jax.numpy as jnp

    apart = {}
    for way, one in expected.items():
        gap, limit = distance(one, got[way]), 0.0
        if jnp.issubdtype(one.dtype, jnp.inexact):
            limit = times * (tolerance or 100 * float(jnp.finfo(one.dtype).eps))
        if gap > limit:
            apart[way] = gap
    return apart


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference of two arrays, of the largest value of both; infinite for other types."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    kind = np.complex128 if one.dtype.kind == "c" else np.float64
    a, b = one.astype(kind), other.astype(kind)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    finite = np.isfinite(a)
    gap = float(np.max(np.abs(a - b)[finite], initial=0.0))
    return gap / max(float(np.max(np.abs([a, b])[:, finite], initial=0.0)), 1e-30) if gap else 0.0


# ------------------------------------------------------------------ the table


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--derivatives", choices=("auto", "called", "written"), default="auto")
    parser.add_argument("--self-check", action="store_true", help="the author's source in the place of the text")
    parser.add_argument("--only", help="a regular expression on `program: edit`")
    parser.add_argument("--seconds", type=float, default=600.0, help="time limit of one program")
    parser.add_argument("--json", help="where to write everything measured")
    parser.add_argument("--keep", help="a folder for both edited sources of each edit, and the text as it was")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    is_control = options.derivatives == "written" and not options.self_check
    for program in DIFFERENTIATED if is_control else DIFFERENTIATED + FORWARD:
        wanted = [e.words for e in program.edits if re.search(options.only or "", f"{program.name}: {e.words}")]
        if wanted:
            rows += rows_of(program, wanted, options)
            write_json(options.json, {"derivatives": options.derivatives, "rows": rows})
    counts = collections.Counter(row["outcome"] for row in rows)
    width = max((len(row["edit"]) for row in rows), default=0)
    print()
    for row in rows:
        print(f"{row['program']:32} {row['edit']:{width}}  {row['outcome']}")
    print(f"\n{len(rows)} edits: " + ", ".join(f"{n} {outcome}" for outcome, n in counts.most_common()))
    if not is_control and not options.self_check and not any(row["has_option"] for row in rows):
        print("untrace.decompile has no option `derivatives`: these are the written ones")
    passed = (
        len(rows) - counts["agrees"] - counts["BAD EDIT"] - counts["not measured"] if is_control else counts["agrees"]
    )
    print(f"{passed} passed, {len(rows) - passed} failed" + " (the control: none may agree)" * is_control)
    return 0 if rows and passed == len(rows) else 1


def rows_of(program: Program, wanted: list[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """What came of the edits of one program, in a process of its own; told as it comes."""
    case = find_cases(FOLDERS[program.folder], rf"^{program.name}\.py$")[0]
    asked = {
        "name": program.name,
        "case": str(case.path),
        "edits": wanted,
        "derivatives": options.derivatives,
        "self_check": options.self_check,
    }
    data = run_child(__file__, asked, options.seconds, devices=case.devices, x64=case.x64)
    found = {words: (outcome, detail) for words, outcome, detail in data.get("rows", [])}
    rows = []
    for note in data.get("notes", []):
        print(f"{program.name}: of the text: {note[:300]}", flush=True)
    for words in wanted:
        outcome, detail = found.get(words, ("not measured", str(data.get("error"))))
        print(f"{program.name}: {words}: {outcome}: {detail[:200]}", flush=True)
        row = {"program": program.name, "edit": words, "outcome": outcome, "detail": detail}
        rows.append({**row, "has_option": data.get("has_option", False)})
    if options.keep:
        folder = Path(options.keep) / program.name
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.py"):
            old.unlink()
        for name, source in data.get("sources", {}).items():
            (folder / name).write_text(source, encoding="utf-8")
    return rows


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--child":
        child_main(measure, sys.argv[2])
    sys.exit(main())
