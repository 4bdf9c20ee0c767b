"""How much of the programs can be written for another target, and how close the text comes to the original.

    python bench/targets.py                              NumPy: the zoo, zoo2, the gallery and our suite
    python bench/targets.py --of suite --only control --json OUT.json
    python bench/targets.py --target c                   the same for C, whose texts compile without a warning

Each program is written in a process of its own. A row says `bits` or `close` (with what the proof says), `refused` (what the
target has not, in one sentence), or `failed`: the text is wrong, or there is a fault of ours. The last lines count them, and
name the primitives for which programs were refused.
"""

from __future__ import annotations

import collections
import re
import sys
from pathlib import Path
from typing import Any

from _common import Record, child_main
from guards import arguments, measured_rows, program


def measure(options: dict[str, Any], record: Record) -> None:
    """Records the level of the text for the target, or why there is none."""
    fn, args, kwargs, (nums, names) = program(options)
    import untrace

    try:
        write = untrace.decompile(fn, target=options["target"], static_argnums=nums, static_argnames=names)
        text = write(*args, **kwargs)
    except untrace.UnsupportedPrimitiveError as error:
        record.put(level="refused", detail=str(error), missing=re.findall(r"`(\w+)`", str(error)))
        return
    except (untrace.ProofError, untrace.CaptureError, untrace.UntraceError) as error:
        record.put(level="failed", detail=f"{type(error).__name__}: {error}")
        return
    if options["target"] == "c":
        from untrace.targets.c.compiled import STRICT, CompilerError, build

        try:
            build(text.program, (*STRICT, "-O1"))
        except CompilerError as error:
            record.put(level="failed", detail=f"warnings: {error}", source=text.source)
            return
    record.put(level=text.proof.level, detail=str(text.proof), source=text.source)


def main() -> int:
    total: collections.Counter[str] = collections.Counter()
    missing: collections.Counter[str] = collections.Counter()
    for row in measured_rows(__file__, arguments((__doc__ or "").splitlines()[0], 300.0, ("numpy", "c"))):
        level = row.get("level", "failed")
        total[level] += 1
        missing.update(set(row.get("missing", ())))
        detail = " ".join(str(row.get("detail") or row.get("error")).split())
        print(f"{row['name']:44} {level:8} {detail[:160]}", flush=True)
    print("   ".join(f"{word} {count}" for word, count in sorted(total.items())))
    if missing:
        print("refused for: " + ", ".join(f"{name} {count}" for name, count in missing.most_common()))
    return bool(total["failed"] or total["unproven"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child_main(measure, sys.argv[2])
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
