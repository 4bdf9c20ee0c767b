"""Writes docs/targets.md: what the target NumPy does with each family of primitives, and where NumPy differs from JAX.

python docs/make_targets.py            writes it
python docs/make_targets.py --check    says whether it is up to date
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from untrace.ir.bodies import RULED_CALLS
from untrace.ir.calls import CALLED
from untrace.python import helpers
from untrace.targets.jax.rules.table import JAX
from untrace.targets.numpy import target  # noqa: F401  (registers the rules)
from untrace.targets.numpy.rules.elementwise import _FUNCTIONS, _OPERATORS, _SPECIAL
from untrace.targets.numpy.rules.table import NUMPY

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "targets.md"
sys.path.insert(0, str(ROOT / "tests"))

from numpy_differences import DIFFERENCES, NOT_KEPT  # noqa: E402

FAMILIES = {
    "elementwise": "Elementwise", "shapes": "Shapes", "indexing": "Indices", "reductions": "Reductions and windows",
    "products": "Products, convolutions, Fourier transforms", "linalg": "Linear algebra", "sorting": "Orders",
    "random": "Keys and random bits", "control": "Loops and branches",
}  # fmt: skip
METHODS = (
    "all",
    "any",
    "argmax",
    "argmin",
    "max",
    "min",
    "prod",
    "reshape",
    "squeeze",
    "sum",
    "swapaxes",
    "transpose",
    "view",
)
MODULES = ("scipy.linalg", "scipy.special")  # as they are imported
NOISE = frozenset({"astype", "clip"})  # casts, and the mode of an index
CONTROL = {"scan": "`for`", "while": "`while`", "cond": "`if`, `elif`, `else`"}


def words(rule: Callable[..., Any]) -> Iterator[str]:
    """The strings that a rule's code mentions, those that it closes over among them."""
    codes: list[types.CodeType] = [rule.__code__]
    used: list[str] = []
    while codes:
        code = codes.pop()
        used += code.co_names
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
        yield from (c for c in code.co_consts if isinstance(c, str) and c != rule.__doc__)
    closed = inspect.getclosurevars(rule)
    yield from (v for v in closed.nonlocals.values() if isinstance(v, str))
    for function in [
        rule.__globals__.get(name) for name in sorted(set(used))
    ]:  # what it leaves to a function of the same file
        same = isinstance(function, types.FunctionType) and function.__module__ == rule.__module__
        if same and function is not rule and str(function.__annotations__.get("return")).startswith("Expr"):
            yield from words(function)


def spelled(name: str) -> str:
    """What is written for a primitive: an operator, functions, helpers."""
    if name in _OPERATORS:
        return f"`{_OPERATORS[name]}`"
    if name in _FUNCTIONS:
        return f"`np.{_FUNCTIONS[name]}`"
    if name in _SPECIAL:
        return f"`scipy.special.{_SPECIAL[name]}`"
    if name in CONTROL:
        return CONTROL[name]
    rule = NUMPY.find(name)
    assert rule is not None
    found = [w for w in dict.fromkeys(words(rule)) if w not in NOISE or name == "clamp"]
    known = set(helpers.names_at_end())
    own = [f"`{w}`" for w in found if w in known]
    own += [f"`{w}`" for w in found if w.startswith("scipy.") and w not in MODULES]
    own += [f"`np.{w}`" for w in found if w not in (*known, *METHODS) and _is_numpys(w)]
    own += ["`np.fft`"] * ("fft." in found)
    closed = [v for v in inspect.getclosurevars(rule).nonlocals.values() if v in METHODS]
    own += [f"`.{w}`" for w in found if w in (closed or METHODS)]
    return ", ".join(own) or "itself, or a method of the array"


def _is_numpys(path: str) -> bool:
    found: Any = np
    for part in path.split("."):
        found = getattr(found, part, None)
    return callable(found) and not isinstance(found, type)


def page() -> str:
    families: dict[str, dict[str, list[str]]] = {}
    for name in NUMPY.names():
        rule = NUMPY.find(name)
        assert rule is not None
        family = rule.__module__.rpartition(".")[2]
        families.setdefault(family, {}).setdefault(spelled(name), []).append(name)
    parts = [
        "# Targets\n\nWhat `untrace.decompile(fn, target=...)` and `d.to(...)` write beside JAX. "
        "This page is made by `python docs/make_targets.py`, from the rules and from the tests.\n\n## NumPy\n\n"
        "Calls of `jnp` are calls of `np` where NumPy's function gives what JAX's gives, which is tried on the types of that call. "
        "What is left is written by primitive. A helper, `_like_this`, stands at the end of the module where it is used. "
        "A rule knows every parameter of its primitive; what it cannot express, and each primitive that no table below has, is "
        "refused before anything is written, with your lines. `jit`, `checkpoint`, `custom_jvp`, `custom_vjp` and other calls "
        "become functions of the module, solvers of linear equations their body, derivatives what they compute.\n"
    ]
    for family, title in FAMILIES.items():
        rows = sorted(families.pop(family).items(), key=lambda row: row[1])
        lines = [
            f"| {', '.join(f'`{n}`' for n in names)} | {text.replace('|', chr(92) + '|')} |" for text, names in rows
        ]
        parts.append(f"### {title}\n\n| primitives | written as |\n|---|---|\n" + "\n".join(lines) + "\n")
    assert not families, families
    lowered = {*CALLED, *RULED_CALLS, "custom_linear_solve"}
    no_primitives = {
        n for n in JAX.names() if JAX.find(n).__module__.rpartition(".")[2] in ("differentiated", "mapped")
    }
    refused = [n for n in JAX.names() if NUMPY.find(n) is None and n not in lowered | no_primitives]
    parts.append(
        "### Refused\n\nOf the primitives that have a rule for JAX: " + ", ".join(f"`{n}`" for n in refused) + ".\n"
    )
    rows = [f"| {d.name} | {d.jax} | {d.numpy} | {d.kept} |" for d in DIFFERENCES]
    parts.append(
        "### Where NumPy means something else\n\nEach row is a test in `tests/targets/test_numpy_differences.py`: what one "
        "would write in NumPy gives something else there, the text gives what JAX gives.\n\n"
        "| | JAX | NumPy | how it is kept |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )
    rest = "\n".join(f"- {what}: {why}." for what, why in NOT_KEPT)
    parts.append(f"Not kept, and within what the proof calls `close`:\n\n{rest}\n")
    carried = [n for n in sorted(helpers.names_at_end()) if _is_ours(n)]
    lines = [f"| `{n}` | {(helpers.function(n).__doc__ or '').strip().splitlines()[0]} |" for n in carried]
    parts.append("### Helpers\n\n| helper | what it gives |\n|---|---|\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def _is_ours(name: str) -> bool:
    return name in helpers._FUNCTIONS and helpers.function(name).__module__.startswith("untrace.targets.numpy.runtime")


def main() -> int:
    text = page()
    if sys.argv[1:] == ["--check"]:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
            return 0
        print("docs/targets.md is not what the rules say: run `python docs/make_targets.py`")
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
