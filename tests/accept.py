"""Shows how the written form of the gallery's programs changed, and keeps the new one: `python tests/accept.py [NAME ...]`.

With `--check` nothing is kept; the exit status is 1 where something changed.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.metadata
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
GOLDEN = HERE / "golden"


def names() -> list[str]:
    return sorted(p.stem for p in (HERE / "gallery").glob("[a-z]*.py"))


def written(name: str):
    """The Decompiled of a program of the gallery, the program, and its arguments."""
    sys.path.insert(0, str(HERE))
    try:
        module = importlib.import_module(f"gallery.{name}")
    finally:
        sys.path.pop(0)
    import untrace

    function, args = module.build()
    return untrace.decompile(function)(*args), function, args


def golden(name: str) -> str:
    path = GOLDEN / f"{name}.py"
    return path.read_text(encoding="utf-8") if path.exists() else ""


LIBRARIES = ("diffrax", "equinox", "flax", "jax", "optax")


def versions() -> dict[str, str]:
    """What the texts depend on: another JAX or Flax traces to other equations."""
    found = {}
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def accepted_versions() -> dict[str, str]:
    path = GOLDEN / "versions.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def main(argv: list[str]) -> int:
    check = "--check" in argv
    chosen = [a for a in argv if not a.startswith("-")] or names()
    changed = []
    for name in chosen:
        old, new = golden(name), written(name)[0].source
        if old == new:
            continue
        changed.append(name)
        sys.stdout.writelines(
            difflib.unified_diff(old.splitlines(True), new.splitlines(True), f"golden/{name}.py", "written now")
        )
        if not check:
            (GOLDEN / f"{name}.py").write_text(new, encoding="utf-8", newline="\n")
    if not check:
        text = json.dumps(versions(), indent=2, sort_keys=True) + "\n"
        (GOLDEN / "versions.json").write_text(text, encoding="utf-8", newline="\n")
    print(f"{len(changed)} of {len(chosen)} changed" + (": " + ", ".join(changed) if changed else ""))
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
