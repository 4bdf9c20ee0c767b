"""What functions that the author maps or differentiates take and give, and what is asked of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import jax

from untrace.ir.types import Code, Data, Jaxpr, PyTree, Variable
from untrace.ir.values import Atom, Constant, Literal

Arguments: TypeAlias = tuple[tuple[PyTree, ...], Mapping[str, PyTree]]


def arguments_at(args: Arguments, place: int) -> Iterator[tuple[int | str, PyTree, range]]:
    """(place or keyword, tree, places of its leaves among a function's parameters) of each argument; the first leaf of all is
    at `place`."""
    positional, keywords = args
    for key, example in [*enumerate(positional), *sorted(keywords.items())]:
        count = len(jax.tree.leaves(example))
        yield key, example, range(place, place + count)
        place += count


@dataclass(frozen=True, eq=False, slots=True)
class MapSignature:
    """What a mapped function takes and gives: pytrees for one element, `(args, kwargs)` and the result.

    closed: how many values it closes over, which are the first parameters of its jaxpr. name: of its class, if it is
    an object that is called. names: of its parameters, where no jaxpr has them.
    """

    args: Arguments
    out: PyTree
    closed: int
    name: str
    names: tuple[str, ...] = ()

    def stands_alone(self, operands: Sequence[Atom]) -> bool:
        """Whether it can be a function of the module, which knows the arrays that it closes over."""
        known = all(type(x) is Constant for x in operands[: self.closed])
        return known and not any(type(x) is Literal for x in operands)


@dataclass(frozen=True, eq=False, slots=True)
class DerivativeSignature:
    """What a differentiated function takes and gives, and what is asked of it.

    args: `((args), {kwargs})` of abstract values, without those that it closes over; out: its whole result, `(value, aux)`
    where it `has_aux`. closed: how many values it closes over, which are the first parameters of its jaxpr. name: of its
    class, if it is an object that is called. argnums: places in `args`, one or several as they were given; None for all.
    """

    transform: str  # as in `jax_compat.DerivativeCall`
    args: Arguments
    out: PyTree
    closed: int
    name: str
    argnums: int | tuple[int, ...] | None
    has_aux: bool
    names: tuple[str, ...] = ()
    options: tuple[str, ...] = ()  # "holomorphic", "allow_int"
    around: bool = False  # whether it is the `vjp` of a call of the author's, who has no name but for the value

    def stands_alone(self, operands: Sequence[Atom]) -> bool:
        """Whether the function can be one of the module, which knows the constants that it closes over."""
        return all(type(x) in (Constant, Literal) for x in operands[: self.closed])

    @property
    def places(self) -> tuple[int, ...]:
        """The arguments that are differentiated."""
        if self.argnums is None:
            return tuple(range(len(self.args[0])))
        several = (self.argnums,) if isinstance(self.argnums, int) else self.argnums
        return tuple([n % len(self.args[0]) for n in several])

    @property
    def value(self) -> PyTree:
        """What is differentiated of the result."""
        return self.out[0] if self.has_aux else self.out

    @property
    def gradients(self) -> PyTree:
        """Like the gradients that come back: one argument, or a tuple of them."""
        args = self.args[0]
        return args[self.places[0]] if isinstance(self.argnums, int) else tuple([args[p] for p in self.places])

    def split(self, leaves: Sequence[Data]) -> Arguments:
        return jax.tree.unflatten(jax.tree.structure(self.args), list(leaves))


CallSignature: TypeAlias = MapSignature | DerivativeSignature


@dataclass(slots=True)
class WrittenOut:
    """What a call is without the call, of one very jaxpr: `plain`, and for a call whose pullback comes later the tree of it,
    whose leaves are the last results of `plain`."""

    jaxpr: Jaxpr
    plain: Jaxpr
    later: PyTree = None
    residuals: Sequence[Variable] = ()  # what the pullback holds: those results of `plain`


@dataclass(eq=False, slots=True, repr=False)
class Derivative:
    """What all equations of one call share. `body`: what was made of the jaxpr that they had last. `jacobian`:
    what comes back of one, with abstract values. `code`: of the author's function."""

    signature: DerivativeSignature
    body: WrittenOut | None = None
    jacobian: PyTree = None
    code: Code = None


Flat: TypeAlias = Callable[..., Sequence[Data]]  # a function of leaves, which gives leaves
