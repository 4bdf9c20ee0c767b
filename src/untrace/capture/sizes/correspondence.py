"""What differs between traces of one program at several sizes: the numbers that follow the sizes, and nothing else."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from untrace import jax_compat
from untrace._identity import IdentityMap
from untrace.ir.signatures import Derivative


class Different(Exception):
    """Two traces that are not the same program at different sizes."""


@dataclass(frozen=True, slots=True)
class Correspondence:
    """Numbers of a trace, and what stands in their places in the same program traced at other sizes.

    `integers`: all integers, whole floats too (a mean divides by a size). `fractions`: other floats, where they differ;
    `constants`: where they do not.
    `pairs`: (equation of the first trace, those in its place in the others) of all equations. `objects`: the same of
    parameters that are no data, by the name of the parameter. `others`: all such parameters of the first trace.
    """

    integers: dict[int, set[tuple[int, ...]]] = field(default_factory=dict)
    fractions: dict[float, set[tuple[float, ...]]] = field(default_factory=dict)
    constants: set[float] = field(default_factory=set)
    pairs: list[tuple[Any, ...]] = field(default_factory=list)
    objects: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    others: IdentityMap[Any, None] = field(default_factory=IdentityMap)

    def numbers(self) -> set[float]:
        """All numbers of the first trace."""
        return {*self.integers, *self.fractions, *self.constants}

    def following(self) -> dict[int, tuple[int, ...]] | None:
        """{integer that follows the sizes: what it is in the other traces}; None where one stands for several."""
        found = {n: seen for n, seen in self.integers.items() if any(set(s) != {n} for s in seen)}
        if any(len(seen) > 1 for seen in found.values()):
            return None
        return {n: next(iter(seen)) for n, seen in found.items()}


def correspondence(first: Any, *others: Any) -> Correspondence:
    """How the numbers of closed jaxprs correspond, place by place. Raises Different where they differ in anything else."""
    found = Correspondence()
    seen: set[tuple[int, ...]] = set()
    stack: list[tuple[Any, ...]] = [(first, *others)]

    def look(values: Sequence[Any], name: str = "") -> None:
        one = values[0]
        if jax_compat.is_jaxpr(one):
            stack.append(tuple(values))
        elif isinstance(one, (bool, str, bytes, enum.Enum, np.dtype)) or one is None:
            if any(v != one for v in values[1:]):
                raise Different
        elif isinstance(one, (int, np.integer)):
            found.integers.setdefault(int(one), set()).add(tuple(int(v) for v in values[1:]))
        elif jax_compat.is_array_type(one):
            if any(type(v) is not type(one) or v.dtype != one.dtype for v in values[1:]):
                raise Different
            look([v.shape for v in values])
        elif type(one) is Derivative:  # whose function stands for itself: in the jaxprs of its equation
            if any(type(v) is not Derivative or v.signature.transform != one.signature.transform for v in values[1:]):
                raise Different
            look([jax.tree.leaves((v.signature.args, v.signature.out, v.jacobian)) for v in values])
        elif isinstance(one, (tuple, list)):
            if any(type(v) is not type(one) or len(v) != len(one) for v in values[1:]):
                raise Different
            for items in zip(*values, strict=True):
                look(items, name)
        elif isinstance(one, dict):
            for key in one:
                look([v[key] for v in values], name)
        elif isinstance(one, (float, np.floating)) or isinstance(one, np.ndarray) and not one.ndim:
            numbers = [np.asarray(v) for v in values]
            if all(n.dtype.kind in "iuf" and np.isfinite(n) and n == int(n) for n in numbers):
                look([int(n) for n in numbers])
            elif any(n.tobytes() != numbers[0].tobytes() for n in numbers):
                if any(n.dtype.kind != "f" or not np.isfinite(n) for n in numbers):
                    raise Different
                found.fractions.setdefault(float(one), set()).add(tuple(float(n) for n in numbers[1:]))
            elif numbers[0].dtype.kind == "f" and np.isfinite(numbers[0]):
                found.constants.add(float(one))
        else:
            found.others[one] = None
            if not all(v is one for v in values[1:]):
                found.objects.append((name, tuple(values)))

    while stack:
        traces = stack.pop()
        key = tuple(id(t) for t in traces)
        if key in seen:
            continue
        seen.add(key)
        opened = [jax_compat.open_jaxpr(t) for t in traces]
        jaxprs = [jaxpr for jaxpr, _ in opened]
        variables, constants = zip(*[_constants(*o) for o in opened], strict=True)
        if any(len(j.eqns) != len(jaxprs[0].eqns) for j in jaxprs) or any(
            len(c) != len(constants[0]) for c in constants
        ):
            raise Different
        for same in zip(*constants, strict=True):
            if any(
                c is not same[0] and (np.shape(c) != np.shape(same[0]) or not np.array_equal(c, same[0]))
                for c in same[1:]
            ):
                raise Different
        numbers: list[dict[Any, int]] = [{} for _ in jaxprs]  # the variables of each, as they come

        def bound(atoms: Sequence[Any], numbers: list[dict[Any, int]] = numbers) -> None:
            for known, atom in zip(numbers, atoms, strict=True):
                known[atom] = len(known)
            shapes = [getattr(a.aval, "shape", ()) for a in atoms]
            if any(s is not shapes[0] for s in shapes[1:]):
                look([tuple(s) for s in shapes])
            if any(getattr(a.aval, "dtype", None) != getattr(atoms[0].aval, "dtype", None) for a in atoms[1:]):
                raise Different

        def read(atoms: Sequence[Any], numbers: list[dict[Any, int]] = numbers) -> None:
            literals = [type(a) is jax_compat.LITERAL_TYPE for a in atoms]
            if any(literals):
                if not all(literals):
                    raise Different
                look([a.val for a in atoms])
            elif len({known[a] for known, a in zip(numbers, atoms, strict=True)}) > 1:
                raise Different

        for inputs in zip(*[[*own, *j.invars] for own, j in zip(variables, jaxprs, strict=True)], strict=True):
            bound(inputs)
        for eqns in zip(*[j.eqns for j in jaxprs], strict=True):
            one = eqns[0]
            if any(e.primitive is not one.primitive or len(e.invars) != len(one.invars) for e in eqns):
                raise Different
            found.pairs.append(eqns)
            for atoms in zip(*[e.invars for e in eqns], strict=True):
                read(atoms)
            for outputs in zip(*[e.outvars for e in eqns], strict=True):
                bound(outputs)
            for name in one.params:
                look([e.params[name] for e in eqns], name)
        if len({len(j.outvars) for j in jaxprs}) > 1:
            raise Different
        for results in zip(*[j.outvars for j in jaxprs], strict=True):
            read(results)
    return found


def _constants(jaxpr: Any, values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The variables and the values of the constants that something reads: of others JAX keeps some, or none, as it happens."""
    if not jaxpr.constvars:
        return [], []
    atoms = [*jaxpr.outvars, *[a for e in jaxpr.eqns for a in e.invars]]
    known = {a for a in atoms if type(a) is not jax_compat.LITERAL_TYPE}
    kept = [var in known for var in jaxpr.constvars]
    return list(itertools.compress(jaxpr.constvars, kept)), list(itertools.compress(values, kept))
