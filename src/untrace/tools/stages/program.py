"""The program whose stages are shown: its equations by number, where they came from, and what each costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from untrace import jax_compat
from untrace._identity import IdentityMap
from untrace.provenance.sites import Provenance, Site
from untrace.tools.stages.model import NOTHING, Computation

Equation = Any  # JAX's own


@dataclass(frozen=True)
class Numbered:
    """A jaxpr whose equations, those of inner jaxprs once each, are counted in the order of its text."""

    jaxpr: Any
    provenance: Provenance

    @cached_property
    def equations(self) -> Sequence[Equation]:
        return jax_compat.numbered_equations(self.jaxpr)

    @cached_property
    def _numbers(self) -> IdentityMap[Equation, int]:
        return IdentityMap((eqn, number) for number, eqn in enumerate(self.equations))

    @cached_property
    def _bodies(self) -> list[list[tuple[list[int], bool]]]:
        """For each equation the numbers of those in each of its bodies, and whether that is a library's."""
        found = []
        for eqn in self.equations:
            inner = []
            for jaxpr in jax_compat.jaxprs_in(eqn):
                numbers = [self._numbers[e] for e in jax_compat.open_jaxpr(jaxpr)[0].eqns if e in self._numbers]
                inner.append((numbers, jax_compat.is_library_jaxpr(jaxpr)))
            found.append(inner)
        return found

    @cached_property
    def _outwards(self) -> list[int]:
        """The numbers with those of each body before the equations that it is of: bodies may be shared."""
        found: dict[int, None] = {}
        stack = [(number, False) for number in reversed(range(len(self.equations)))]
        while stack:
            number, is_done = stack.pop()
            if is_done:
                found[number] = None
            elif number not in found:
                stack.append((number, True))
                stack += [(inner, False) for numbers, _ in self._bodies[number] for inner in numbers]
        return list(found)

    @cached_property
    def inside(self) -> list[frozenset[int]]:
        """For each equation those in its bodies, at any depth."""
        found = [NOTHING] * len(self.equations)
        for number in self._outwards:
            direct = [n for numbers, _ in self._bodies[number] for n in numbers]
            found[number] = frozenset(direct).union(*[found[n] for n in direct])
        return found

    @cached_property
    def origins(self) -> list[tuple[Site, ...]]:
        """For each equation the places that it came from. What stands in a library's body, which JAX traces once for all its
        callers, came from where those did, as does what has no place of its own."""
        return self._with_callers(lambda site, is_library: is_library or not site.frames)

    @cached_property
    def sites(self) -> list[tuple[Site, ...]]:
        """The same, where only places of the author's count."""
        return self._with_callers(lambda site, is_library: is_library or not site.user_frames)

    def _with_callers(self, is_theirs: Callable[[Site, bool], bool]) -> list[tuple[Site, ...]]:
        found: list[tuple[Site, ...]] = [(self.provenance.site(eqn),) for eqn in self.equations]
        callers: dict[int, list[int]] = {}
        for number in reversed(self._outwards):
            if number in callers:
                found[number] = tuple(dict.fromkeys(site for outer in callers[number] for site in found[outer]))
            for numbers, is_library in self._bodies[number]:
                for inner in numbers:
                    if is_theirs(found[inner][0], is_library):
                        callers.setdefault(inner, []).append(number)
        return found

    def number_of(self, eqn: Equation) -> int | None:
        """The number of an equation; None of one that is none of these."""
        return self._numbers.get(eqn)

    @cached_property
    def turns(self) -> list[int]:
        """How often each equation is computed: once, or once in each turn of the loops around it that are counted."""
        found = [0] * len(self.equations)
        for eqn in jax_compat.open_jaxpr(self.jaxpr)[0].eqns:
            found[self._numbers[eqn]] = 1
        for number in reversed(self._outwards):
            eqn = self.equations[number]
            length = eqn.params.get("length") if eqn.primitive.name == "scan" else 1
            for numbers, _ in self._bodies[number]:
                for inner in numbers:
                    found[inner] += found[number] * (length if isinstance(length, int) else 1)
        return found

    def computations(self) -> tuple[Computation, ...]:
        found = []
        for number, eqn in enumerate(self.equations):
            site = self.sites[number][0] if self.sites[number] else None
            types = ", ".join(v.aval.str_short(short_dtypes=True) for v in eqn.outvars)
            flops = 0 if self._bodies[number] else flops_of(eqn) * self.turns[number]
            found.append(
                Computation(
                    number,
                    str(eqn.primitive.name),
                    types,
                    site.line if site else "",
                    site is not None and site.phase == "backward",
                    flops,
                    self.inside[number],
                )  # fmt: skip
            )
        return tuple(found)


_FREE = frozenset(
    "broadcast_in_dim concatenate convert_element_type copy copy_p device_put dynamic_slice dynamic_update_slice "
    "gather iota pad reshape rev slice squeeze stop_gradient transpose bitcast_convert_type expand_dims split "
    "optimization_barrier select_n and or not xor eq ne lt le gt ge".split()
)


def flops_of(eqn: Equation) -> int:
    """Floating-point operations of one equation by its definition, exponentials and such counted as one each; 0 of what only
    moves or chooses, and of integers."""
    name = eqn.primitive.name
    size = max((_size(v) for v in eqn.outvars), default=0)
    if name in _FREE or not eqn.outvars or not any(_is_inexact(v) for v in (*eqn.outvars, *eqn.invars)):
        return 0
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        shape = eqn.invars[0].aval.shape
        return 2 * size * math.prod(shape[d] for d in contracted)
    if name == "conv_general_dilated":
        kernel, spec = eqn.invars[1].aval.shape, eqn.params["dimension_numbers"].rhs_spec
        return 2 * size * math.prod(kernel[d] for d in spec[1:])
    if name.startswith(("reduce_", "arg", "cum", "scatter", "sort")):
        return max((_size(v) for v in eqn.invars[-1:] if name.startswith("scatter")), default=_size(eqn.invars[0]))
    return size


def _size(atom: Any) -> int:
    return math.prod(getattr(atom.aval, "shape", ()))


def _is_inexact(atom: Any) -> bool:
    dtype = getattr(atom.aval, "dtype", None)
    return dtype is not None and jax_compat.has_tangent(atom.aval)
