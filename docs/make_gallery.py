"""Writes docs/gallery.md: each program of tests/gallery beside its jaxpr and what untrace writes of it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import jax

import untrace

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import accept  # noqa: E402


def main() -> None:
    parts = [
        "# Gallery\n\nPrograms, what JAX traces of them, and what untrace writes back.\n"
        "Each text is proven when it is written; the first lines of each say what was proven, and with which JAX.\n"
        "The programs are in `tests/gallery`; this page is made by `python docs/make_gallery.py`.\n"
    ]
    for name in accept.names():
        source = (ROOT / "tests" / "gallery" / f"{name}.py").read_text(encoding="utf-8")
        found, function, args = accept.written(name)
        jaxpr = str(jax.make_jaxpr(function)(*args)).splitlines()
        lines = len(jaxpr)
        shown = "\n".join(line[:100] for line in jaxpr[:30]) + ("\n..." if lines > 30 else "")
        title = name.replace("_", " ").capitalize()
        more = ""
        if re.search(r"jax\.(value_and_)?grad\(", found.source):
            out = untrace.decompile(function, derivatives="written")(*args)
            more = f'With `derivatives="written"` ({out.proof.sentence}):\n\n```python\n{out.source.strip()}\n```\n\n'
        parts.append(
            f"## {title}\n\n```python\n{source.strip()}\n```\n\n"
            f"untrace writes ({found.proof.sentence}):\n\n```python\n{found.source.strip()}\n```\n\n{more}"
            f"<details><summary>`print(jax.make_jaxpr(...))`: {lines} lines</summary>\n\n```\n{shown}\n```\n\n</details>\n"
        )
    (ROOT / "docs" / "gallery.md").write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
