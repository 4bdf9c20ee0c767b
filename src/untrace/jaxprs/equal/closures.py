"""Operands of control flow whose order means nothing: the values that a body closes over.

JAX hands them to `scan`, `while`, `cond`... in the order in which the body first uses them, so a
program with its statements in another order gets them in another order too.
"""

from __future__ import annotations

from typing import Any

from untrace import jax_compat
from untrace.jaxprs.equal.protocols import ClosureComparer

Indices = list[tuple[int, int]]


def permuted_operands(comparer: ClosureComparer, ea: Any, eb: Any) -> list[tuple[Any, Any]] | None:
    """Pairs of operands that must be equal for two control-flow equations to be, or None.

    Asked only when the equations are not the same with their operands in order.
    """
    places = permuted_places(comparer, ea, eb)
    return None if places is None else [(ea.invars[i], eb.invars[j]) for i, j in places]


def may_be_permuted(eqn: Any) -> bool:
    """Whether an equation has operands whose order means nothing."""
    return eqn.primitive.name in _RULES


def permuted_places(comparer: ClosureComparer, ea: Any, eb: Any) -> Indices | None:
    """The same by their places among the operands."""
    rule = _RULES.get(ea.primitive.name)
    return None if rule is None else rule(comparer, ea, eb)


def _others_agree(comparer: ClosureComparer, ea: Any, eb: Any, *ignored: str) -> bool:
    pa, pb = ea.params, eb.params
    if pa.keys() != pb.keys():
        return False
    return all(comparer.values.same(pa[k], pb[k]) for k in pa if k not in ignored)


def _shifted(pairs: Indices, first: int, second: int) -> Indices:
    return [(i + first, j + second) for i, j in pairs]


def _in_order(first: int, second: int, eqn: Any, other: Any) -> Indices | None:
    """The operands from `first` (`second`) on, pairwise."""
    n, m = len(eqn.invars) - first, len(other.invars) - second
    return [(first + i, second + i) for i in range(n)] if n == m else None


def _scan(comparer: ClosureComparer, ea: Any, eb: Any) -> Indices | None:
    (consts, carry), (consts_b, carry_b) = jax_compat.scan_counts(ea), jax_compat.scan_counts(eb)
    if carry != carry_b:
        return None
    ignored = ("jaxpr", "num_consts", "ft_in")
    if not _others_agree(comparer, ea, eb, *ignored):
        return None
    found = comparer.closure_pairs(ea.params["jaxpr"], eb.params["jaxpr"], (consts, consts_b))
    rest = _in_order(consts, consts_b, ea, eb)
    return None if found is None or rest is None else found + rest


def _while(comparer: ClosureComparer, ea: Any, eb: Any) -> Indices | None:
    ignored = ("cond_jaxpr", "body_jaxpr", "cond_nconsts", "body_nconsts")
    if not _others_agree(comparer, ea, eb, *ignored):
        return None
    pa, pb = ea.params, eb.params
    found: Indices = []
    first = second = 0
    for part in ("cond", "body"):
        free = (pa[f"{part}_nconsts"], pb[f"{part}_nconsts"])
        pairs = comparer.closure_pairs(pa[f"{part}_jaxpr"], pb[f"{part}_jaxpr"], free)
        if pairs is None:
            return None
        found += _shifted(pairs, first, second)
        first, second = first + free[0], second + free[1]
    rest = _in_order(first, second, ea, eb)
    return None if rest is None else found + rest


def _cond(comparer: ClosureComparer, ea: Any, eb: Any) -> Indices | None:
    """All branches take the same operands; how many of them are closed over is not recorded."""
    if not _others_agree(comparer, ea, eb, "branches"):
        return None
    branches, branches_b = ea.params["branches"], eb.params["branches"]
    if len(branches) != len(branches_b):
        return None
    free = (len(ea.invars) - 1, len(eb.invars) - 1)
    found: set[tuple[int, int]] = set()
    for left, right in zip(branches, branches_b, strict=True):
        pairs = comparer.closure_pairs(left, right, free)
        if pairs is None:
            return None
        found.update(pairs)
    if not comparer.is_one_to_one(found):
        return None
    return [(0, 0), *_shifted(sorted(found), 1, 1)]


def _remat(comparer: ClosureComparer, ea: Any, eb: Any) -> Indices | None:
    if not _others_agree(comparer, ea, eb, "jaxpr"):
        return None
    free = (len(ea.invars), len(eb.invars))
    return comparer.closure_pairs(ea.params["jaxpr"], eb.params["jaxpr"], free)


def _solver(comparer: ClosureComparer, ea: Any, eb: Any) -> Indices | None:
    """custom_linear_solve, custom_root: the constants of each function, then the operands."""
    if not _others_agree(comparer, ea, eb, "jaxprs", "const_lengths"):
        return None
    pa, pb = ea.params, eb.params
    found: Indices = []
    first = second = 0
    counts = zip(pa["const_lengths"], pb["const_lengths"], strict=True)
    for (n, m), left, right in zip(counts, pa["jaxprs"], pb["jaxprs"], strict=True):
        if (left is None) != (right is None):
            return None
        if left is not None:
            pairs = comparer.closure_pairs(left, right, (n, m))
            if pairs is None:
                return None
            found += _shifted(pairs, first, second)
        first, second = first + n, second + m
    rest = _in_order(first, second, ea, eb)
    return None if rest is None else found + rest


def _custom_root(comparer: ClosureComparer, ea: Any, eb: Any) -> Indices | None:
    """JAX 0.12's `custom_root`, and the `g` in its `tangent_solve`: their functions are objects of Python."""
    roots = comparer.expander.root_of(ea), comparer.expander.root_of(eb)
    a, b = roots
    if a is None or b is None:
        return _root_map(comparer, ea, eb)
    if a.size != b.size or jax_compat.hi_primitive(ea).has_aux != jax_compat.hi_primitive(eb).has_aux:
        return None
    found: Indices = [(a.counts[1] + i, b.counts[1] + i) for i in range(a.size)]
    for place, name in enumerate(("f", "solve", "tangent_solve")):
        pairs = comparer.closure_pairs(getattr(a, name), getattr(b, name), (a.counts[place], b.counts[place]))
        if pairs is None:
            return None
        found += _shifted(pairs, a.starts()[place], b.starts()[place])
    return found


def _root_map(comparer: ClosureComparer, ea: Any, eb: Any) -> Indices | None:
    a, b = jax_compat.root_map_function(ea), jax_compat.root_map_function(eb)
    if a is None or b is None or a[1] != b[1]:
        return None
    found = comparer.closure_pairs(a[0], b[0], (a[2], b[2]))
    rest = _in_order(a[2], b[2], ea, eb)
    return None if found is None or rest is None else found + rest


_RULES = {
    "call_hi_primitive": _custom_root,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "remat2": _remat,
    "checkpoint": _remat,
    "custom_linear_solve": _solver,
    "linear_solve": _solver,
    "custom_root": _solver,
}
