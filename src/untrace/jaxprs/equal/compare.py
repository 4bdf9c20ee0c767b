"""Structural comparison of two jaxprs: the strongest proof level.

Two jaxprs are the same program when they agree up to
  - the names of variables, of `jit` calls, of scopes, and source locations;
  - dead code;
  - strides of one, which slices have or have not;
  - the order of independent equations (effects of one kind keep their order);
  - the order in which closed-over values are handed to `scan`, `while`, `cond`, `remat`, solvers;
  - where that is asked for, the order of what a `scan` carries: XLA may round otherwise then;
  - where that is asked for, `add` for JAX's own `add_any`, which is lowered to the same.

The work is done in three steps, each tried only when the one before says no:
  1. `in_lockstep` walks both equation lists side by side. A re-traced program nearly always has its
     equations in the same order; this costs a few microseconds an equation.
  2. `_match` pairs variables from the outputs and effects backwards. Each pair forces the next, so
     there is no search: it is linear, sees no dead code and does not care for order.
  3. `diagnose` (diagnose.py) finds out *where* they differ, for people and to take lifts back.

Derivative rules (custom_jvp, custom_vjp) are closures in a jaxpr: they are traced on both sides and
the results compared (rules.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from untrace import jax_compat
from untrace.jaxprs.equal.comparer import Comparer, Difference
from untrace.jaxprs.equal.diagnose import difference
from untrace.jaxprs.expand.expand import Expander


@dataclass(frozen=True)
class Comparison:
    """The outcome of a comparison: `difference` is None when the programs are the same.

    `notes` say what the comparison had to take on trust. True in a condition when the same.
    """

    difference: Difference | None
    notes: tuple[str, ...] = ()
    original: Any = None
    reordered: bool = False  # whether some loop carries its values in another order
    added: bool = False  # whether some sum of cotangents is a plain one
    closed_anew: bool = False  # whether some loop closes over a constant more often

    @property
    def equations(self) -> int:
        """The number of equations of the original, those of a shared sub-jaxpr counted once."""
        return count_equations(self.original)

    def __bool__(self) -> bool:
        return self.difference is None


def compare(
    original: Any, written: Any, expander: Expander | None = None, carries: bool = False, sums: bool = False
) -> Comparison:
    """Compares two ClosedJaxprs (see the module's docstring for what may differ).

    expander: what replaced the library primitives of the original, if anything did. carries: whether loops may carry
    their values in another order, and close over a constant more often; sums: whether sums of cotangents may be plain ones.
    """
    expander = expander or Expander()
    comparer = Comparer(expander, carries=carries, sums=sums)
    found = difference(comparer, original, written)
    if found is not None:
        # JAX's elimination also looks into sub-jaxprs and may change how many operands they take.
        try:
            pair = jax_compat.without_dead_code(original), jax_compat.without_dead_code(written)
        except Exception:  # a primitive of a library can have a broken rule
            pair = None
        if pair is not None:
            again = Comparer(expander, carries=carries, sums=sums)
            if again.same(*pair):
                comparer, found = again, None
    notes = tuple(comparer.notes)
    return Comparison(found, notes, original, comparer.reordered, comparer.added, comparer.closed_anew)


def compare_jaxprs(original: Any, written: Any) -> Difference | None:
    """None when two ClosedJaxprs are the same program, else where they differ; see `compare`."""
    return compare(original, written).difference


def count_equations(closed: Any) -> int:
    """Equations of a jaxpr and of all jaxprs in its parameters, each jaxpr counted once."""
    seen: set[Any] = set()
    stack: list[Any] = [closed]
    total = 0
    while stack:
        jaxpr, _ = jax_compat.open_jaxpr(stack.pop())
        if jaxpr in seen:
            continue
        seen.add(jaxpr)
        total += len(jaxpr.eqns)
        for eqn in jaxpr.eqns:
            if not eqn.params:
                continue
            for value in eqn.params.values():
                if jax_compat.is_jaxpr(value):
                    stack.append(value)
                elif type(value) in (tuple, list):
                    stack.extend(v for v in value if jax_compat.is_jaxpr(v))
    return total
