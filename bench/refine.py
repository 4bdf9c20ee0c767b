"""Lets scripted editors go over the texts of programs: what is taken, and what gets in that should not.

    python bench/refine.py                            the zoo and zoo2
    python bench/refine.py --of ../shared/zoo --only rnn --json OUT.json

Of each program, in a process of its own: three honest editors (one formats anew, one renames all variables, one puts what
is read once where it is read) go over the text: the share of their answers that is taken, and the tokens before and
after. Then functions of it get hostile answers (`refine_editors`): such as would do something else than compute, and such as
are another program. None of the first kind may be taken, nor have done anything (a file that they try to make must not
be there); one of the second kind that is taken has to give the same bits as the text, itself and its derivative, on drawn
inputs. The last line reads `N passed, M failed`; M counts what got in, and programs that are not measured.
"""

from __future__ import annotations

import collections
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import refine_editors as editors
from _common import Record, child_main
from guards import SHARED, arguments, measured_rows, program
from readability import count_tokens

_FOREIGN, _WRONG = 12, 12  # answers of a program


def measure(options: dict[str, Any], record: Record) -> None:
    import untrace
    from untrace.python import helpers
    from untrace.refine.functions import places, text_of

    record.put(stage="build")
    fn, args, kwargs, (nums, names) = program(options, "")  # the process that judges imports their classes
    os.chdir(options["work"])
    record.put(stage="decompile")
    text = untrace.decompile(fn, static_argnums=nums, static_argnames=names)(*args, **kwargs)
    every = places(text.source)
    record.put(stage="honest", level=text.proof.level, functions=len(every))
    honest: dict[str, Any] = {}
    for name, editor in editors.HONEST.items():
        refined = text.refine(lambda function, editor=editor: editor(str(function)))
        honest[name] = {
            "taken": sum(a.taken for a in refined.answers),
            "refused": sum(bool(a.why) for a in refined.answers),
            "whys": [str(a) for a in refined.answers if a.why],
            "tokens": [count_tokens(helpers.parted(t.source)[0]) for t in (text, refined)],
        }
    record.put(stage="hostile", honest=honest)
    seed = len(text.source)
    source = random.Random(seed)
    parts = {name: text_of(text.source, place) for name, place in every.items()}
    answers: dict[str, list[tuple[str, str, str]]] = {name: [] for name in parts}  # kind, what, answer
    for _ in range(_FOREIGN):
        name = source.choice(list(parts))
        answers[name].append(("foreign", *source.choice(list(editors.foreign(parts[name])))))
    per = max(1, -(-_WRONG // len(parts)))
    for name in source.sample(list(parts), min(len(parts), _WRONG)):
        answers[name] += [("wrong", what, answer) for what, answer in editors.wrong(parts[name], seed, per)]
    counts: collections.Counter[str] = collections.Counter()
    bad: list[str] = []
    harmless: list[str] = []
    left = {name: list(reversed(some)) for name, some in answers.items()}
    while any(left.values()):

        def hostile(function: Any) -> str | None:
            return left[function.name].pop()[2] if left[function.name] else None

        refined = text.refine(hostile, tries=_FOREIGN + _WRONG, seconds=20.0)
        for answer in refined.answers:
            known = [
                (kind, what) for kind, what, given in answers[answer.function] if given.strip("\n") == answer.after
            ]
            if answer.after == answer.before or not known:
                counts["failed or empty"] += 1
                continue
            kind, what = known[0]
            counts[kind] += 1
            if answer.taken:
                counts[f"{kind} taken"] += 1
                harmless.append(f"{answer.function}: {what}\n{answer.after}")
                if kind == "foreign" or not _same(text, refined, args, kwargs, nums, names):
                    bad.append(f"{answer.function}: {what}: taken\n{answer.after}")
    if os.path.exists("CANARY"):
        bad.append("an answer ran: the file that it makes is there")
    record.put(stage="done", counts=dict(counts), bad=bad, harmless=harmless)


def _same(text: Any, refined: Any, args: Any, kwargs: Any, nums: Any, names: Any) -> bool:
    from untrace import verify

    return bool(
        verify(
            getattr(refined.module, refined.name), getattr(text.module, text.name),
            static_argnums=tuple(nums), static_argnames=tuple(names),
        )(*args, **kwargs)
    )  # fmt: skip


def main() -> int:
    parser = arguments((__doc__ or "").splitlines()[0], 900.0)
    parser.set_defaults(of=[str(SHARED / "zoo"), str(SHARED / "zoo2")])
    options = parser.parse_args()
    total: collections.Counter[str] = collections.Counter()
    sums: dict[str, collections.Counter[str]] = {name: collections.Counter() for name in editors.HONEST}
    failed = passed = 0
    for row in measured_rows(__file__, options):
        if "counts" not in row:
            failed += 1
            print(f"{row['name']:44} not measured ({row.get('stage')}): {str(row.get('error'))[:160]}", flush=True)
            continue
        passed += sum(row["counts"].get(kind, 0) for kind in ("foreign", "wrong")) - len(row["bad"])
        failed += len(row["bad"])
        total.update(row["counts"])
        said = []
        for name, found in row["honest"].items():
            before, after = found["tokens"]
            sums[name].update(taken=found["taken"], refused=found["refused"], before=before, after=after)
            said.append(f"{name} {found['taken']} taken, {found['refused']} refused")
        print(f"{row['name']:44} {'; '.join(said)}; {json.dumps(row['counts'])}", flush=True)
        for what in row["bad"]:
            print(f"    GOT IN: {what[:600]}", flush=True)
    for name, found in sums.items():
        answers = found["taken"] + found["refused"]
        if answers:
            share = found["taken"] / answers
            print(
                f"{name}: {found['taken']} of {answers} taken ({share:.1%}), tokens {found['before']} -> {found['after']}"
            )
    print(json.dumps(dict(total)))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--child":
        sys.path.insert(0, str(Path(__file__).parent))
        child_main(measure, sys.argv[2])
    sys.exit(main())
