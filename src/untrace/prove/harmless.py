"""Which of a program's simplifications XLA takes for the same program.

Some rewrites move what XLA fuses, and with that its rounding: all of them together may then not be proven, although
most would be. Those are found here, by compiling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from untrace.prove import hlo


def harmless_rewrites(
    original: Any, names: Sequence[str], simplify: Callable[[frozenset[str]], Any], args: Sequence[Any]
) -> frozenset[str]:
    """Of the rewrites `names` as many as leave the optimised HLO of a closed jaxpr as it is, the first of them first.

    simplify: the jaxpr after some of them. args: its arguments, or their types. A rewrite that does harm costs about
    twice as many compilations as the number of rewrites can be halved.
    """
    try:
        expected = hlo.optimised_text(original, args)
    except Exception:  # a program that JAX traces but cannot lower here
        expected = ""
    if not expected:
        return frozenset()
    found: frozenset[str] = frozenset()
    todo = [tuple(names)]
    while todo:
        part = todo.pop()
        if _is_same(simplify(found.union(part)), original, args, expected):
            found = found.union(part)
        elif len(part) > 1:
            half = len(part) // 2
            todo += [part[half:], part[:half]]
    return found


def _is_same(form: Any, original: Any, args: Sequence[Any], expected: str) -> bool:
    if form is original:
        return True
    try:
        return hlo.optimised_text(form, args) == expected
    except Exception:  # as above
        return False
