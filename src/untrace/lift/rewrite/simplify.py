"""Simplifications: rewrites that give the same bits with less to read (no `* 1.0`, one transpose less).

Unlike lifts they change the program, so they are made on the jaxpr, before it becomes a Program: what the text is then
proven to be is the simplified jaxpr, and that one is compared with the original by what XLA makes of it, or by
running both. Each rewrite is a named function that looks at one equation; each is exact by IEEE arithmetic:

    x * 1.0, x / 1.0 -> x       exact for every x, NaN and -0.0 included
    op(x, broadcast(c)) -> op(x, c)        JAX broadcasts a scalar when it lowers the operation
    op(x, broadcast(y)) -> op(x, y[..., None])    operations broadcast axes of size one
    products of matrices that sum over other axes than `x @ w` does -> `d @ w.T`, `x.T @ d`
    transpose, reshape, broadcast, convert of themselves, or to the type that is there: composed or dropped
    -(-x) -> x
    sum over axes of size one -> the array without them       XLA adds nothing to the one number
    a sum, and the axes of size one that it leaves taken away -> a sum over those as well
    product that sums nothing -> a multiplication
    add_any -> add       JAX lowers both to the same operation
    select_n(c, 0, x) -> jnp.where(c, x, 0)       and the same of two numbers, and of two arrays
    0 < x -> x > 0
    concatenate of [a[:, None], b[:, None]] -> jnp.stack
    pad by less than nothing -> a slice; with zeros -> jnp.pad
    split into one part -> the array
    part of a number everywhere, its negative -> the number everywhere
    the choices of the derivative of `jnp.minimum`, one over the other -> one choice
    where(c, d, 0) + -where(c, 0, d) -> where(c, d, 0 - d)
    product of two vectors that sums nothing -> jnp.outer
    what a derivative adds at, promised to be in bounds -> dropped where it is not
    slices of one that a mapped index makes -> `x.at[i].get(mode="clip")`, `.at[i].add(v, mode="clip")`
    what is broadcast before a loop, masks too -> broadcast in its body
    the number of a choice, saved for the backward pass -> the truth value that it is made of
    a number that a jitted function gives and nobody reads -> not given
    an array of one number that a loop takes -> that number in its body
    max(x, -inf), x**1.0, x**2 + 0.0, a copy inside -> x
    (x == x) & (x != inf) & (x != -inf) -> jnp.isfinite(x)
    x + -y stays: exact it is, but XLA takes the product in it into another fused operation than in x - y
    a number that a scan gets as a constant -> the number in its body
    what a derivative gathers at known indices -> that part of the array, x[0, 1:3]
    a number that a jitted function, or a choice in it, was passed and hands on -> that number, and no result
    an index that a scan gets ready for a gather -> made in its body, as `x[i]` does
    the transpose of a linear system's operator, as it was batched -> as JAX derives it of the operator
    the derivative of a library function that was mapped -> that of the function on the whole array
    cond over platforms of which only Mosaic's kernels have a branch of their own -> the equations of the other branch
    a call that no public function makes (what `jax.checkpoint` computes for the forward pass) -> its equations
    a call of a function with a rule that nothing needs -> its equations
    jit of a function of JAX that has no public name (a derivative of `jnp.var`) -> its equations
    a rule that gets symbolic zeros, which is written with arrays of them -> one that gets those
    a logarithm that a library computes of a number -> the number
    sum over no axes -> x
    weak types of what a loop carries, or gets as a constant -> strong ones
    what the turn of a loop computes of numbers, before the loop -> computed in its body
    constants with the same bits -> one constant (`equal_constants`)
    what one expression of the author's computes twice -> computed once (`computed_once`)

`x + 0.0` is not among them: it turns -0.0 into 0.0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn

from untrace import jax_compat
from untrace._identity import IdentityMap
from untrace.lift.recognise.pmaps import is_pmap
from untrace.lift.rewrite import interned_constants as equal_constants
from untrace.lift.rewrite.common_subexpressions import computed_once, constants_once
from untrace.lift.rewrite.inlined import RULES, in_its_place, keeps_results
from untrace.lift.rewrite.rematerialised_operands import own_indices, own_selectors
from untrace.provenance.beside import beside
from untrace.provenance.sites import Provenance

Literal = jax_compat.LITERAL_TYPE
Rewrite = Callable[["Body", Any], Any]
REWRITES: dict[str, list[Rewrite]] = {}
EARLY: set[str] = set()
_PUBLIC_CALLS: list[Callable[[Any, Provenance], bool]] = []
# Rewrites after which the program lowers to the same StableHLO.
NEUTRAL = frozenset(
    "add_any_is_add plain_conversion preferred_type sharding_inside_shard_map implicit_pvary "
    "equal_constants instantiated_zeros derived_transpose".split()
)
# Rewrites after which XLA was seen to make the same of a product, but nobody promises it: the first to be taken back.
BOLD = frozenset(
    {"transposed_operand", "transposed_product", "computed_before_a_loop", "strong_loop", "number_of_a_library"}
)
# Of products of batches XLA does not make the same where their operands are swapped.
_OF_ONE = BOLD - {"transposed_operand"}
# Those that take out what JAX puts in again when it traces the text.
IMPLICIT = frozenset({"sharding_inside_shard_map", "implicit_pvary"})
# Those that leave rules out, which a text has for transformations of it.
KEPT_RULES = frozenset(RULES)
# Equations whose jaxprs are rewritten as well. Others keep theirs: what they close over or promise is their own.
_TRANSPARENT = frozenset(
    {"jit", "pjit", "scan", "while", "cond", "checkpoint", "remat2", "shard_map", "closed_call", "vmap"}
)


def rewrite(*primitives: str, early: bool = False) -> Callable[[Rewrite], Rewrite]:
    """Registers a rewrite of equations of these primitives. It gets the body and the equation, and returns None, an atom
    that is the same value, or an equation to put in its place.

    early: also before what is inside the equation is rewritten, for what can be known there by this.
    """

    def register(function: Rewrite) -> Rewrite:
        if early:
            EARLY.add(function.__name__)
        for name in primitives:
            REWRITES.setdefault(name, []).append(function)
        return function

    return register


def public_calls(says: Callable[[Any, Provenance], bool]) -> Callable[[Any, Provenance], bool]:
    """Registers what says of an equation whether it is, as it stands, a call of a public function: those are not inlined."""
    _PUBLIC_CALLS.append(says)
    return says


_NAMELESS: IdentityMap[Any, str] = IdentityMap()


class Known:
    """What is found out of a program's equations while it is simplified, and not asked again where it is simplified in
    another way: where they come from, and which calls are those of public functions."""

    def __init__(self, provenance: Provenance | None = None):
        self.provenance = Provenance() if provenance is None else provenance.shared()
        self._public: dict[Any, bool] = {}

    def is_public_call(self, eqn: Any) -> bool:
        """Whether a function that `public_calls` registered says so, asked once of calls of one jaxpr with the same numbers."""
        closed = eqn.params["jaxpr"]
        key = closed, jax_compat.literal_key(eqn)
        found = self._public.get(key)
        if found is None:
            found = self._public[key] = any(says(eqn, self.provenance) for says in _PUBLIC_CALLS)
        return found


class Simplifier:
    """Simplifies jaxprs that may share parts, each once. `counts`: how often each rewrite was made, by name.

    `only`: the rewrites that may be made, `without`: those that may not. `own`: primitives with a user's rule, which are left alone. `kept`: ids
    of equations that are left alone. `same`: what stands for a constant, by id (`equal_constants.representatives`).
    `apart`: says of two equations that they are parts of different functions, and stay. `instead`: other bodies, which do
    the same, of calls by the ids of their equations. `known`: what was found out when the program was simplified before.
    """

    def __init__(
        self,
        only: frozenset[str] | None = None,
        own: Collection[str] = (),
        kept: Collection[JaxprEqn] = (),
        same: IdentityMap[Any, Any] | None = None,
        apart: Callable[[Any, Any], bool] | None = None,
        without: frozenset[str] = KEPT_RULES,
        instead: Mapping[JaxprEqn, Any] = MappingProxyType({}),
        known: Known | None = None,
    ):
        self.instead = instead
        self.known = Known() if known is None else known
        self.apart = apart
        self.without = without
        self.same = same or IdentityMap()
        self.only = only
        self.own = own
        self.kept = set(kept)
        self.backward = False  # whether what is around the body that is looked at belongs to a backward pass
        self.mapped = False  # whether it is the body of a mapped function
        self.loop: tuple[int, int] | None = None  # of a loop whose body it is, (constants, carries)
        self.choice = False  # whether it is a branch of one, of which JAX hands on no number
        self.counts: Counter[str] = Counter()
        self.provenance = self.known.provenance
        self.selectors: dict[int, Any] = {}  # equations that make the number of a choice of what was saved of it
        self._memo: dict[int, Any] = {}
        self._allowed: dict[Any, tuple[Rewrite, ...]] = {}

    def rewrites(self, name: str, early: bool = False) -> tuple[Rewrite, ...]:
        """Those of a primitive's equations that may be made here; early: and come before what is inside is rewritten."""
        key = name, self.without, early
        found = self._allowed.get(key)
        if found is None:
            only, without = self.only, self.without
            found = self._allowed[key] = tuple(
                function
                for function in ([] if name in self.own else REWRITES.get(name, []))
                if (only is None or function.__name__ in only)
                and function.__name__ not in without
                and (not early or function.__name__ in EARLY)
            )
        return found

    def simplify(self, closed: Any, outermost: bool = True) -> Any:
        """`closed`, simplified and without dead equations; the very same object where nothing was rewritten."""
        found = self._memo.get(closed)
        if found is None:
            found = self._memo[closed] = self._simplified(closed, outermost)
        return found

    def keep(self, eqn: Any) -> None:
        """Leaves an equation alone, which stands in the place of one that is."""
        self.kept.add(eqn)

    def _simplified(self, closed: Any, outermost: bool) -> Any:
        jaxpr, consts = jax_compat.open_jaxpr(closed)
        body = Body(self, jaxpr, outermost, self.choice)
        if any(value in self.same for value in consts):
            found, values = equal_constants.merged(jaxpr, consts, self.same)
            if any(a is not b for a, b in zip(values, consts, strict=True)):
                body.substitute.update(found)
                body.changed = True
                self.counts["equal_constants"] += len(found) or 1
                closed = jax_compat.with_constants(closed, values)
        self._add_all(body, jaxpr.eqns)
        if self.same and body.changed:
            body.eqns = constants_once(body.eqns, set(jaxpr.constvars))
        if self.only is None:
            self._compute_once(body, jax_compat.substituted(jaxpr.outvars, body.substitute))
            body.eqns = own_indices(body)
            body.eqns = own_selectors(body, jaxpr.outvars)
        if not body.changed:
            return closed
        outvars = jax_compat.substituted(jaxpr.outvars, body.substitute)
        return jax_compat.rebuilt_jaxpr(closed, alive(body.eqns, outvars, self.provenance), outvars)

    def _compute_once(self, body: Body, outvars: Sequence[Any]) -> None:
        given = {v for v in outvars if type(v) is not Literal}
        eqns, names = computed_once(alive(body.eqns, outvars, self.provenance), self.kept, given, self.provenance)
        if names:
            body.eqns = eqns = constants_once(eqns)
            body.made.update({out: eqn for eqn in eqns for out in eqn.outvars})
            body.substitute.update(names)
            body.changed = True
            self.counts["computed_once"] += len(names)

    def _with_params(self, eqn: Any) -> Any:
        if eqn.primitive.name not in _TRANSPARENT:
            return eqn
        outside = self.without, self.backward, self.mapped, self.choice, self.loop
        self.loop = jax_compat.scan_counts(eqn) if eqn.primitive.name == "scan" else None
        self.choice = eqn.primitive.name == "cond"
        self.backward = self.backward or in_backward_pass(eqn)
        if eqn.primitive.name == "vmap":
            self.without, self.mapped = self.without | _OF_ONE, True
        new = jax_compat.with_inner_jaxprs(eqn, lambda inner: self.simplify(inner, outermost=False))
        self.without, self.backward, self.mapped, self.choice, self.loop = outside
        return new

    def _add_all(self, body: Body, eqns: Sequence[Any]) -> None:
        for eqn in eqns:
            if _varies(eqn.outvars):
                # Inside shard_map a call of a library function is known by its simplified body, as patterns are.
                inside = Simplifier(IMPLICIT)
                new = inside._with_params(eqn)
                if eqn in self.kept:
                    self.keep(new)
                self.counts.update(inside.counts)
                body.changed = body.changed or new is not eqn
                eqn = new
            if eqn in self.instead and self.only is None:
                eqn = eqn.replace(params={**eqn.params, "jaxpr": self.instead[eqn]})
                self.keep(eqn)
                self.counts["as_called"] += 1
                body.changed = True
            kind = "" if self.only == IMPLICIT else self._library_call(eqn, body.results)
            if kind == "public" and self.only is None and any(_is_known(body, v) for v in eqn.invars):
                kind = "inline"
            elif eqn in self.kept:  # a part of an idiom is as JAX traces it
                kind = "public"
            if kind == "inline":
                self.counts["inlined_library_function"] += 1
                self._inline(body, eqn, eqn.params["jaxpr"], eqn.invars)
                continue
            every = None if self.only == IMPLICIT else self.only is None
            found = None if eqn in self.kept else in_its_place(eqn, body.results, self.without, every)
            if found is not None:
                name, closed, operands = found
                self.counts[name] += 1
                self._inline(body, eqn, closed, operands)
                continue
            if kind != "public":
                eqn = body.early(eqn)
            new = eqn if kind == "public" else self._with_params(eqn)
            body.changed = body.changed or new is not eqn
            body.add(new, kept=eqn in self.kept)

    def _inline(self, body: Body, eqn: Any, closed: Any, operands: Sequence[Any]) -> None:
        """Puts the equations of a jaxpr in the place of the equation that calls it."""
        inner, _ = jax_compat.open_jaxpr(closed)
        names = dict(zip(inner.invars, jax_compat.substituted(operands, body.substitute), strict=True))
        fresh = []
        for old in inner.eqns:
            new = jax_compat.equation_inside(old, eqn, names)
            outvars = [jax_compat.fresh_variable(v) for v in old.outvars]
            names.update(zip(old.outvars, outvars, strict=True))
            fresh.append(new.replace(outvars=outvars))
            if old in self.kept:  # recognised there, and here as well
                self.keep(fresh[-1])
        body.changed = True
        body.add_users(fresh)
        self._add_all(body, fresh)
        results = jax_compat.substituted(jax_compat.substituted(inner.outvars, names), body.substitute)
        for outer, result in zip(eqn.outvars, results, strict=True):
            body.substitute[outer] = result

    def _library_call(self, eqn: Any, results: set[Any]) -> str:
        """ "public" for a call of a function of JAX that has a public form, "inline" for another call of one, else "".

        results: those of the function around it, which are to stay variables of its own.
        """
        if eqn.primitive.name not in ("jit", "pjit"):
            return ""
        closed = eqn.params["jaxpr"]
        jaxpr, consts = jax_compat.open_jaxpr(closed)
        if not jax_compat.is_library_jaxpr(closed) or consts or eqn.effects or is_pmap(eqn):
            return ""
        if self.known.is_public_call(eqn):
            return "public"
        if self.only is not None:
            return ""
        return "inline" if keeps_results(eqn, jaxpr, results) else ""


def _is_known(body: Body, atom: Any) -> bool:
    """Whether a truth value is known: a comparison of two numbers (`jnp.take` asks whether its index is negative)."""
    if type(atom) is Literal:
        return False
    (atom,) = jax_compat.substituted([atom], body.substitute)
    compared = body.maker(atom, "gt", "lt", "ge", "le", "eq", "ne") if type(atom) is not Literal else None
    return compared is not None and not atom.aval.shape and all(type(v) is Literal for v in compared.invars)


class Body:
    """One jaxpr while it is rewritten: the equations so far, and who made a variable."""

    def __init__(self, simplifier: Simplifier, jaxpr: Any, outermost: bool, choice: bool):
        """`choice`: whether it is a branch of one."""
        self.simplifier = simplifier
        self.eqns: list[Any] = []
        self.current: Any = None  # the equation that is looked at
        self.made: dict[Any, Any] = {}
        self.substitute: dict[Any, Any] = {}
        self._of_idioms: set[Any] = set()  # what a library call gives, or computes on its way
        self._jaxpr = jaxpr
        self._uses: Counter[Any] | None = None
        self._users: dict[Any, list[Any]] | None = None
        self.changed = False
        self.narrowed: dict[Any, Any] = {}  # broadcast variable -> the same with ones where it repeats
        self._inputs = set(jaxpr.invars) | set(jaxpr.constvars)
        self.results = {v for v in jaxpr.outvars if type(v) is not Literal}
        # Of a loop: what it carries, and what it stacks of that or of a constant.
        consts, carries = (0, len(jaxpr.outvars)) if simplifier.loop is None else simplifier.loop
        self._handed_on = {v for v in jaxpr.outvars[:carries] if type(v) is not Literal}
        self._not_stacked = set() if simplifier.loop is None else set(jaxpr.invars[: consts + carries])
        self._choice = choice
        self.following: list[Any] = []  # equations that a rewrite has come after the one that it puts in its place
        self.outermost = outermost
        self.summed: set[Any] = set()  # sums over axes of size one
        self.of_turns: dict[Any, Any] = {}  # what the turn of a loop computes -> the constant of the loop that it is

    def add(self, eqn: Any, kept: bool = False) -> None:
        if self.substitute and any(type(v) is not Literal and v in self.substitute for v in eqn.invars):
            eqn = eqn.replace(invars=jax_compat.substituted(eqn.invars, self.substitute))
            self.changed = True
        for _ in range(0 if kept else 8):
            rewrites = self.simplifier.rewrites(eqn.primitive.name)
            new = self._rewritten(eqn, rewrites) if rewrites else None
            if new is None:
                break
            self.changed = True
            if type(new) is not type(eqn):
                self.substitute[eqn.outvars[0]] = new
                return
            eqn = new
            if "jaxpr" in eqn.params and _varies(eqn.outvars):
                inner = Simplifier(IMPLICIT).simplify(eqn.params["jaxpr"], outermost=False)
                eqn = eqn.replace(params={**eqn.params, "jaxpr": inner})
        self.eqns.append(eqn)
        for out in eqn.outvars:
            self.made[out] = eqn
        if kept:
            self._of_idioms.update(eqn.outvars)
        following, self.following = self.following, []
        for later in following:
            self.add(later)

    def in_backward_pass(self, eqn: Any) -> bool:
        """Whether an equation came of a transposition, or stands in a loop that did."""
        return self.simplifier.backward or in_backward_pass(eqn)

    def add_beside(self, other: Any, eqn: Any) -> None:
        """Adds `eqn` after an equation that is there, in whose place it stands: a call that it belongs to stays in one piece."""
        start = len(self.eqns)
        self.add(eqn)
        place = next((i for i in range(start - 1, -1, -1) if self.eqns[i] is other), start)
        if place < start:
            self.eqns[place + 1 : place + 1] = [self.eqns.pop() for _ in range(len(self.eqns) - start)][::-1]

    def early(self, eqn: Any) -> Any:
        """The equation after those rewrites that come before what is inside it is rewritten."""
        rewrites = self.simplifier.rewrites(eqn.primitive.name, early=True)
        if not rewrites:
            return eqn
        known = eqn.replace(invars=jax_compat.substituted(eqn.invars, self.substitute))
        for _ in range(4):
            new = self._rewritten(known, rewrites)
            if new is None:
                break
            eqn = known = new
            self.changed = True
        return eqn

    def _rewritten(self, eqn: Any, rewrites: Sequence[Rewrite]) -> Any:
        self.current = eqn
        for function in rewrites:
            new = function(self, eqn)
            if new is None:
                continue
            if type(new) is not type(eqn) and not self.may_be(eqn.outvars[0], new):
                continue
            self.simplifier.counts[function.__name__] += 1
            return new
        return None

    def may_be(self, variable: Any, atom: Any) -> bool:
        """Whether `atom` may stand in the place of a variable: of its type, and nothing that JAX would hand on then."""
        if not same_aval(atom.aval, variable.aval) or self._is_forwarded(variable, atom):
            return False
        return type(atom) is not Literal or not np.shape(atom.val)

    def _is_forwarded(self, variable: Any, atom: Any) -> bool:
        """Whether JAX would hand `atom` on for a result without the loop or call around it, which were another one then."""
        if self.outermost or variable not in self.results:
            return False
        if type(atom) is Literal:
            return not self._choice
        return atom in self._inputs and (variable in self._handed_on or atom not in self._not_stacked)

    def used_once(self, variable: Any) -> bool:
        """Whether one equation or result needs a variable of the jaxpr, as it was before it was rewritten; or a new one."""
        if self._uses is None:
            atoms = [v for eqn in self._jaxpr.eqns for v in eqn.invars] + list(self._jaxpr.outvars)
            self._uses = Counter(v for v in atoms if type(v) is not Literal)
        return self._uses[variable] <= 1 and not any(v is variable for v in self.substitute.values())

    def users(self, variable: Any) -> Sequence[Any]:
        """The equations that read a variable of the jaxpr, as they were before they were rewritten."""
        if self._users is None:
            self._users = {}
            self.add_users(self._jaxpr.eqns)
        return self._users.get(variable, ())

    def add_users(self, eqns: Sequence[Any]) -> None:
        """Remembers the readers among equations that come into the jaxpr."""
        if self._users is None:
            self.users(None)
        assert self._users is not None
        for eqn in eqns:
            for atom in eqn.invars:
                if type(atom) is not Literal:
                    self._users.setdefault(atom, []).append(eqn)

    def maker(self, atom: Any, *names: str, inside: bool = False) -> Any:
        """The equation of one of these primitives that computes `atom`, or None.

        inside: also one that is a part of an idiom, for a question that takes nothing out of it.
        """
        if type(atom) is Literal:
            return None
        eqn = self.made.get(atom)
        if eqn is None or eqn.primitive.name not in names:
            return None
        if atom in self._of_idioms and not inside:
            return None
        apart = self.simplifier.apart
        return None if apart is not None and self.current is not None and apart(eqn, self.current) else eqn

    def is_of_idiom(self, atom: Any) -> bool:
        """Whether a call of the library that will be recognised gives `atom`, or computes it on its way."""
        return atom in self._of_idioms

    def scalar(self, atom: Any) -> Any:
        """The scalar Literal that `atom` is, or is broadcast from; None where it is neither."""
        if type(atom) is Literal:
            return atom if not np.shape(atom.val) else None
        eqn = self.made.get(atom)
        if eqn is None or eqn.primitive.name != "broadcast_in_dim":
            return None
        if type(eqn.invars[0]) is Literal and not np.shape(eqn.invars[0].val):
            literal = eqn.invars[0]
            return literal if literal.aval.dtype == atom.aval.dtype else None
        return None


def in_backward_pass(eqn: Any) -> bool:
    """Whether an equation came of a transposition: no statement of the author's says in which form it should stand."""
    return "transpose()" in jax_compat.scope_names(jax_compat.equation_source(eqn)[1])


def same_aval(left: Any, right: Any) -> bool:
    return left is right or (
        left.shape == right.shape and left.dtype == right.dtype and left.weak_type == right.weak_type
    )


def alive(eqns: Sequence[Any], outvars: Sequence[Any], provenance: Provenance | None = None) -> list[Any]:
    """The equations that results need, and those with effects; given a `provenance`, also those for leaves of a tree that the
    author maps a function over, where others are needed, and of a function that he calls several times."""
    needed = _needed(eqns, outvars, set())
    if provenance is None or len(needed) == len(eqns):
        return needed
    dead = set(eqns).difference(needed)
    return _needed(eqns, outvars, beside(provenance, needed, dead))


def _needed(eqns: Sequence[Any], outvars: Sequence[Any], anyway: set[JaxprEqn]) -> list[Any]:
    live = {v for v in outvars if type(v) is not Literal}
    kept = []
    for eqn in reversed(eqns):
        if eqn in anyway or eqn.effects or any(v in live for v in eqn.outvars):
            live.update(v for v in eqn.invars if type(v) is not Literal)
            kept.append(eqn)
    return kept[::-1]


def simplified(
    closed: Any,
    only: frozenset[str] | None = None,
    own: Collection[str] = (),
    kept: Collection[JaxprEqn] = (),
    named: IdentityMap[Any, str] = _NAMELESS,
    apart: Callable[[Any, Any], bool] | None = None,
    without: frozenset[str] = KEPT_RULES,
    instead: Mapping[JaxprEqn, Any] = MappingProxyType({}),
    known: Known | None = None,
) -> tuple[Any, Counter[str]]:
    """(`closed` simplified, how often each rewrite was made); the same object where none was.

    named: names of constants that the function knows: those stay apart from others like them of another name.
    apart: says of two equations that they are parts of different functions of the author's.
    without: rewrites that are not made. instead: other bodies that do the same, of calls by their equation.
    known: what was found out when it was simplified before.
    """
    same: IdentityMap[Any, Any] = IdentityMap()
    if only is None or "equal_constants" in only:
        same = equal_constants.representatives(closed, named, _TRANSPARENT)
    simplifier = Simplifier(only, own, kept, same, apart, without, instead, known)
    return simplifier.simplify(closed), simplifier.counts


def _varies(variables: Sequence[Any]) -> bool:
    """Whether a value differs along an axis of a mesh, as inside shard_map."""
    for variable in variables:  # asked of every equation, and a generator takes as long as the rest
        if jax_compat.varying_axes(variable.aval):
            return True
    return False


def is_simplified(
    closed: Any,
    own: Collection[str],
    named: IdentityMap[Any, str],
    apart: Any,
    known: Known | None = None,
    without: frozenset[str] = KEPT_RULES,
) -> bool:
    """Whether `simplified`, with all rewrites but those in `without`, would change anything where no equation is kept."""
    same = equal_constants.representatives(closed, named, _TRANSPARENT)
    simplifier = Simplifier(None, own, (), same, apart, without, known=known)
    simplifier.counts = _StopAtFirst()
    try:
        return simplifier.simplify(closed) is not closed
    except _Changed:
        return True


class _Changed(Exception):
    pass


class _StopAtFirst(Counter[str]):
    def __setitem__(self, name: str, count: int) -> None:
        raise _Changed


def calls_host(closed: Any) -> bool:
    """Whether a program has callbacks, at any depth."""
    return any("callback" in eqn.primitive.name for eqn in jax_compat.equations_in(closed))
