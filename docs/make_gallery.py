"""Writes docs/gallery.md: each program of tests/gallery beside its jaxpr and what untrace writes of it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import jax

import untrace
from untrace.python import helpers

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "bench")]

import accept  # noqa: E402
from readability import count_tokens  # noqa: E402

# One sentence on each line, as in all documents.
# ruff: noqa: E501
NOT_WELL = """\
## What it does not do well yet

Each text is proven, whatever it looks like. These are the programs whose texts one would not have written so:

- **Derivatives of long programs, written out.** A gradient that you ask for is two to three times as long as what it is the gradient of: 1.9 × in the median of 46 programs that we develop on, 2.3 × in the median of 22 others (3.1 and 6.7 × under `derivatives="written"`). Ask for `derivatives="called"` where a call of `jax.grad` is enough.
- **Solvers and simulators of libraries.** What a differential equation solver, a nonlinear solver or a physics engine does inside is written in full, with the rules for its derivatives: thousands of lines where your source has five. `allow=()` leaves those rules out that nothing uses, most of the text (a diffrax SDE has 700 lines then, not 3,700). Only functions of JAX itself, and of libraries that JAX calls by a public name, come back as calls; of those that take a function of yours `jax.experimental.ode.odeint` of an array, `cg` and `bicgstab` do, `odeint` of a tree, `gmres`, `jax.scipy.optimize.minimize` and `jet` do not.
- **Loops that Python unrolled, where the turns differ.** Turns that do the same become a loop over what differs. Those of which one leaves something out that the others need stay as they are, and so do those that go through the rows of an array, those of a `while`, those of which some are chosen by an `if`, those in which a function is defined that closes over what the turn goes through, and triangles (`for j in range(i)`).
- **Trees that a program takes apart by hand.** Where parameters go through functions as separate arrays, so do they in the text: `parts`, `parts_2`, `parts_3` instead of one tree.
- **Pullbacks that cross a loop.** A pullback of `jax.vjp` that a `scan` or a `while` closes over is written out: JAX itself puts its residuals into the loop.
- **Names of what was never named.** Most of what is inside an expression of yours gets the name of what it is (`total`, `difference`, `d_logits`); in long derivatives numbers follow: `d_total_4`.
- **Sizes on which a program depends.** A Python loop over a length, or a decision on one, makes another program of each size. The text is written for that size and refuses the others.
- **Time.** Writing takes about twelve times as long as tracing, in the median, proof and all; long derivatives up to half a minute, the longest over one.
"""


def main() -> None:
    parts: list[tuple[float, str]] = []
    for name in accept.names():
        source = (ROOT / "tests" / "gallery" / f"{name}.py").read_text(encoding="utf-8")
        found, function, args = accept.written(name)
        jaxpr = str(jax.make_jaxpr(function)(*args)).splitlines()
        lines = len(jaxpr)
        shown = "\n".join(line[:100] for line in jaxpr[:30]) + ("\n..." if lines > 30 else "")
        title = name.replace("_", " ").capitalize()
        ratio = count_tokens(helpers.parted(found.source)[0]) / count_tokens(source)
        more = ""
        if re.search(r"jax\.(value_and_)?grad\(", found.source):
            out = untrace.decompile(function, derivatives="written")(*args)
            more = f'With `derivatives="written"` ({out.proof.sentence}):\n\n```python\n{out.source.strip()}\n```\n\n'
        text = (
            f"## {title}\n\n```python\n{source.strip()}\n```\n\n"
            f"untrace writes ({found.proof.sentence}; {ratio:.1f} × the tokens):\n\n```python\n{found.source.strip()}\n```\n\n{more}"
            f"<details><summary>`print(jax.make_jaxpr(...))`: {lines} lines</summary>\n\n```\n{shown}\n```\n\n</details>\n"
        )
        parts.append((ratio, text))
    head = (
        "# Gallery\n\nPrograms, what JAX traces of them, and what untrace writes back, the shortest text first, measured by its author's.\n"
        "Each text is proven when it is written; the first lines of each say what was proven, and with which JAX.\n"
        "The programs are in `tests/gallery`; this page is made by `python docs/make_gallery.py`, and ends with what untrace does not do well yet.\n"
    )
    page = [head, *[text for _, text in sorted(parts)], NOT_WELL]
    (ROOT / "docs" / "gallery.md").write_text("\n".join(page), encoding="utf-8")


if __name__ == "__main__":
    main()
