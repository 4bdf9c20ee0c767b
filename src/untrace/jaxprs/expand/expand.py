"""Replaces primitives of other libraries by plain JAX, so that a module needs no other import.

A library may bind primitives of its own (equinox, lineax and so diffrax and optimistix; any user's
`jax.extend.core.Primitive`). The equation of such a primitive is replaced by the equations of the
function that its *lowering* traces (`mlir.lower_fun`: what a jitted program runs), or, where the
lowering is written in MLIR, of its `impl`. They are spliced in place, not called, because that is
what lowering does: the StableHLO stays the same, but for operations whose results nobody uses (JAX
removes those from plain equations, and cannot look into a library's).

What the program *computes* is kept; how it *transforms* is kept in this way:

* differentiation: where the library's own rules give another derivative than JAX's of the
  implementation (the implicit derivative of a solve), the expansion keeps them: as
  `jax.lax.custom_linear_solve`, or as a `jax.custom_jvp` with the library's rule (see
  `linear_solve.py` and `derivatives.py`); a library's `jax.custom_jvp` whose rule gives what JAX
  derives of its function is that function;
* refusals (`nonbatchable`, `nondifferentiable_backward`, a missing rule) are lost, and the notes
  say so;
* batching: the implementation is batched by JAX's rules; where the library's own give other values,
  it is a function with a batching rule (see `batching.py`).

JAX 0.12 has primitives that are objects (`call_hi_primitive[_prim=...]`, jax/_src/hijax.py). The
public call that makes the same equation is found by `hi_primitives.hi_primitive_call`, or is that
of `custom_root.py`; only where there is none is the object replaced by its `expand`, which is its
lowering as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import JaxprEqn

from untrace import jax_compat
from untrace._identity import IdentityMap
from untrace.jaxprs.expand.batching import batched_function
from untrace.jaxprs.expand.custom_root import Root, custom_root_of
from untrace.jaxprs.expand.derivatives import LibraryRules
from untrace.jaxprs.expand.expansion import spliced
from untrace.jaxprs.expand.hi_primitives import hi_primitive_call
from untrace.jaxprs.expand.one_device import on_one_device

# Primitives of untrace's own, which stand for calls that the author made: `vmaps` and `differentiated`, which take them out.
OURS: set[Any] = set()
# Their jaxprs have no place for constants of their own (0.12 does not tell open jaxprs by their
# class).
_OPEN_BODIES = {"checkpoint", "remat2", "shard_map", "pallas_call", "run_state", "xla_pmap"}

# What is lost of a primitive whose implementation alone is not the whole story.
_LOST = {
    "nonbatchable": "vmap over it is no longer refused",
    "nontraceable": "transforming it is no longer refused",
    "nondifferentiable_backward": "reverse-mode differentiation through it is no longer refused",
}


def expand_library_primitives(closed: Any, keep: Collection[str] = ()) -> tuple[Any, tuple[str, ...]]:
    """(`closed` with every library primitive replaced by plain JAX, sentences that say what was
    replaced).

    closed: ClosedJaxpr. keep: names of primitives to leave alone (those that have a user's rule).
    The very same object comes back when nothing was replaced, at any depth: jaxprs that are shared
    by identity stay shared. A primitive that can neither be traced through its lowering nor its
    `impl` stays, with a note that has the reason. Nothing is raised.
    """
    expander = Expander(keep)
    return expander.closed(closed), expander.notes


class Expander:
    """Expands many jaxprs that may share parts; each part is expanded once.

    For jaxprs that only exist once a rule is called (custom derivatives): expand those with the
    same object.
    """

    def __init__(self, keep: Collection[str] = (), derivatives: bool = True, one_device: bool = False):
        """one_device: whether what runs on the devices of a mesh becomes a program for one."""
        self._keep = frozenset(keep)
        self._one_device = one_device
        self._rules = LibraryRules(self, Expander(keep, False, one_device)) if derivatives else None
        self._library: dict[Any, bool] = {}
        self._memo: dict[Any, Any] = {}
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._failures: dict[str, str] = {}
        self._traced_rules: IdentityMap[Any, tuple[Any, Exception | None]] = IdentityMap()
        # `jax_compat.perturbed_operands` of the program.
        self.perturbed: IdentityMap[Any, tuple[bool, ...]] = IdentityMap()
        self._roots: dict[JaxprEqn, Root | None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """One sentence for each primitive that was replaced or could not be, by name."""
        notes = []
        for (name, library, how), count in sorted(self._counts.items()):
            times = "" if count == 1 else f" ({count} times)"
            whose = f"{library}'s" if library else "the"
            note = f"{whose} primitive `{name}`{times} is written as its implementation"
            lost = f"; {_LOST[name]}" if name in _LOST else ""
            notes.append(f"{note} {how}".rstrip() + lost)
        for name, reason in sorted(self._failures.items()):
            notes.append(f"the primitive `{name}` could not be expanded: {reason}")
        return tuple(notes)

    def closed(self, closed: Any) -> Any:
        """`closed` without library primitives; the same object when it has none."""
        return self._jaxpr(closed, has_home=True)

    def rule(self, closed: Any, tangent: Sequence[bool]) -> Any:
        """`closed`, a derivative rule, without library primitives; `tangent` says which operands
        are tangents.
        """
        return self._rebuild(closed, has_home=True, tangent=tangent)

    def closed_but(self, closed: Any, kept: Sequence[Any]) -> Any:
        """`closed`, in which the objects in `kept` stay (only there: elsewhere the same ones may be expanded)."""
        return self._rebuild(closed, has_home=True, kept=IdentityMap((one, None) for one in kept))

    # ------------------------------------------------------------ derivative rules of an equation

    def jvp_of(self, eqn: Any) -> tuple[Any, list[bool], list[bool]]:
        """`jax_compat.custom_jvp_rule`, expanded. Raises what the rule raises."""

        def trace() -> Any:
            closed, zeros, perturbed = jax_compat.custom_jvp_rule(eqn, perturbed=self.perturbed_of(eqn))
            closed = self.closed(closed)
            if self._failures and self._broken_map(closed):
                closed = jax_compat.without_dead_code(closed)  # what nobody runs harms nobody
                if reason := self._broken_map(closed):
                    raise TypeError(reason)
            return closed, zeros, perturbed

        return self._once(eqn.params["jvp_jaxpr_fun"], trace)

    def _broken_map(self, closed: Any) -> str:
        """Why a rule cannot run that applies the derivative of a root's function to what that does not accept.

        JAX finds out only when it runs the rule (see `custom_root.py`): "" where nothing is wrong.
        """
        jaxpr, _ = jax_compat.open_jaxpr(closed)
        for eqn in jaxpr.eqns:
            inner = map(self._broken_map, jax_compat.jaxprs_in(eqn))
            reason = self._failures.get(jax_compat.primitive_label(eqn)) if jax_compat.is_root_map(eqn) else None
            if reason := reason or next(filter(None, inner), ""):
                return reason
        return ""

    def vjp_of(self, eqn: Any) -> tuple[Any, list[int | None], Any, list[bool], list[bool]]:
        """`jax_compat.custom_vjp_rules`, expanded. Raises what the rules raise."""

        def trace() -> Any:
            forward, forwards, backward, *rest = jax_compat.custom_vjp_rules(eqn, self.perturbed_of(eqn))
            return self.closed(forward), forwards, self.closed(backward), *rest

        return self._once(eqn.params["fwd_jaxpr_thunk"], trace)

    def perturbed_of(self, eqn: Any) -> tuple[bool, ...] | None:
        """Which operands of a function with a rule are differentiated with the program, where its rule asks that."""
        return self.perturbed.get(jax_compat.rule_holder(eqn))

    def _once(self, rule: Any, trace: Callable[[], Any]) -> Any:
        """A rule is traced when it is captured, and again when it is compared: the second time for
        nothing, and some forget their trees on the way.
        """
        if rule not in self._traced_rules:
            try:
                self._traced_rules[rule] = trace(), None
            except Exception as error:  # a rule is user code: anything may be raised
                self._traced_rules[rule] = None, error
        found, refusal = self._traced_rules[rule]
        if refusal is not None:
            raise refusal
        return found

    def root_of(self, eqn: Any) -> Root | None:
        """The functions of a `custom_root` that can be written as the public call, expanded; None for all others."""
        if jax_compat.hi_primitive(eqn) is None:
            return None
        if eqn not in self._roots:
            self._roots[eqn] = custom_root_of(eqn, self)
        return self._roots[eqn]

    # ------------------------------------------------------------ one jaxpr

    def _jaxpr(self, closed: Any, has_home: bool) -> Any:
        found = self._memo.get(closed)
        if found is None:
            found = self._rebuild(closed, has_home)
            self._memo[closed] = self._memo[found] = found
        return found

    def _rebuild(self, closed: Any, has_home: bool, tangent: Sequence[bool] = (), kept: Collection[Any] = ()) -> Any:
        jaxpr, _ = jax_compat.open_jaxpr(closed)
        moving = {v for v, t in zip(jaxpr.invars, tangent, strict=False) if t}
        used = self._used(jaxpr) if moving else None
        if not has_home or jax_compat.is_open(closed):
            has_home = False
        eqns: list[Any] = []
        substitute: dict[Any, Any] = {}
        constvars: list[Any] = []
        consts: list[Any] = []
        changed = False
        for eqn in jaxpr.eqns:
            linear = [type(v) is not jax_compat.LITERAL_TYPE and v in moving for v in eqn.invars] if moving else ()
            if any(linear):
                assert used is not None  # where something moves
                moving.update(eqn.outvars)
                eqn = jax_compat.with_unused_dropped(eqn, used)
            body, copies, own = None, (), ()
            if self._may_expand(eqn):
                used = self._used(jaxpr) if used is None else used
                stays = bool(kept) and jax_compat.hi_primitive(eqn) in kept
                body = None if stays else self._expansion(eqn, linear, used)
                copies, own = constants_of(body, eqn)
                if own and not has_home:
                    body = self._expansion(eqn, linear, used, wrap=True)
                    copies, own = constants_of(body, eqn)
            if body is not None:
                constvars += [var for var, _ in own]
                consts += [value for _, value in own]
                eqns += [*copies, *spliced(eqn, jax_compat.open_jaxpr(body)[0], substitute)]
                changed = True
                continue
            new = self._with_params(eqn)
            if substitute and any(type(v) is not jax_compat.LITERAL_TYPE and v in substitute for v in new.invars):
                new = new.replace(invars=jax_compat.substituted(new.invars, substitute))
            changed = changed or new is not eqn
            eqns.append(new)
        if not changed:
            return closed
        outvars = jax_compat.substituted(jaxpr.outvars, substitute)
        return jax_compat.rebuilt_jaxpr(closed, eqns, outvars, constvars, consts)

    def _with_params(self, eqn: Any) -> Any:
        """`eqn` with the jaxprs in its parameters expanded; the same object when there is nothing
        to do.
        """
        has_home = eqn.primitive.name not in _OPEN_BODIES
        return jax_compat.with_inner_jaxprs(eqn, lambda closed: self._jaxpr(closed, has_home))

    # ------------------------------------------------------------ one equation

    def is_library(self, primitive: Any) -> bool:
        """Whether equations of `primitive` are to be expanded."""
        found = self._library.get(primitive)
        if found is None:
            kept = primitive.name in self._keep or primitive in OURS
            found = not kept and not jax_compat.is_jax_primitive(primitive)
            self._library[primitive] = found
        return found

    def _used(self, jaxpr: Any) -> set[Any]:
        """The variables of a jaxpr that a result or an equation reads, but for library equations
        whose own results nobody reads.
        """
        literal = jax_compat.LITERAL_TYPE
        used = {v for v in jaxpr.outvars if type(v) is not literal}
        for eqn in reversed(jaxpr.eqns):
            idle = not eqn.effects and used.isdisjoint(eqn.outvars) and self._may_expand(eqn)
            if not idle:
                used.update(v for v in eqn.invars if type(v) is not literal)
        return used

    def _may_expand(self, eqn: Any) -> bool:
        is_mapped = self._one_device and eqn.primitive.name == "shard_map"
        is_own = jax_compat.hi_primitive(eqn) is not None or self.is_library(eqn.primitive)
        return is_mapped or is_own or self._has_derived_rule(eqn)

    def _has_derived_rule(self, eqn: Any) -> bool:
        return self._rules is not None and self._rules.is_derived(eqn)

    def _expansion(self, eqn: Any, linear: Sequence[bool], used: Collection[Any] | None, wrap: bool = False) -> Any:
        """ClosedJaxpr that `eqn` stands for, itself expanded; None where the equation stays as it
        is.

        `linear`: which operands are tangents, in a derivative rule. `used`: the variables that are
        read, where any may be expanded. `wrap`: as one call of a jitted function, which can hold
        constants where an open jaxpr cannot.
        """
        if self._has_derived_rule(eqn):
            return self._jaxpr(eqn.params["call_jaxpr"], has_home=True)
        primitive = eqn.primitive
        keeps_rule, how_else = True, ""
        prim = jax_compat.hi_primitive(eqn)
        if prim is not None:
            name = jax_compat.primitive_label(eqn)
            if type(prim).__name__ in self._keep or primitive.name in self._keep:
                return None
            if hi_primitive_call(eqn) or self.root_of(eqn):
                return None
            library = "JAX" if type(prim).__module__.startswith("jax.") else ""
            candidates = [jax_compat.hi_primitive_function(prim)]
        elif self.is_library(primitive):
            name, library = primitive.name, jax_compat.library_of(primitive)
            moving = any(linear) or self._rules is None
            batched = batched_function(eqn, moving)
            if batched is not None:
                candidates, keeps_rule = [batched], not moving
            else:
                candidates = implementations(primitive, eqn.params)
        elif self._one_device and primitive.name == "shard_map":
            name, library, keeps_rule, how_else = primitive.name, "JAX", False, "on one device"
            candidates = [on_one_device(eqn)]
        else:
            return None
        reason = "it has neither a traceable lowering nor an `impl`"
        for function in candidates:
            if wrap:
                function = jax.jit(function)
            try:
                # Weak types are put right outside of what keeps a rule: what is inside stays alive.
                closed = _traced(function, eqn, ())
                # The library lets JAX run it, which compiles it as it is.
                if prim is None and _is_only(closed, primitive):
                    return None
                custom = None
                if self._rules and keeps_rule:
                    custom = self._rules.function_for(eqn, closed, linear)
                if custom or not _has_types_of(closed, eqn):
                    closed = _traced(custom[0] if custom else function, eqn, used)
                how = custom[1] if custom else how_else
            except Exception as error:  # the library's code: anything may be raised
                reason = f"{type(error).__name__}: {_first_line(error)}"
                continue
            self._counts[name, library, how] += 1
            return self._jaxpr(closed, has_home=True)
        self._failures[name] = reason
        return None


def implementations(
    primitive: Any, params: Mapping[str, Any], other_platforms: bool = False
) -> list[Callable[..., list[Any]]]:
    """Functions of the flat operands that compute a primitive's results, the most faithful first; with what a platform that
    has no code of its own for it lowers it to, if `other_platforms`."""
    found: list[Callable[..., list[Any]]] = []
    for of_platform in (True, False) if other_platforms else (True,):
        lowering = jax_compat.lowering_function(primitive, of_platform)
        if lowering is not None:
            found.append(lambda *args, lowering=lowering: _as_list(lowering[0](*args, **params), lowering[1]))
    impl = getattr(primitive, "impl", None)
    if impl is not None:
        found.append(lambda *args: _as_list(impl(*args, **params), primitive.multiple_results))
    return found


def _as_list(result: Any, several: bool) -> list[Any]:
    return list(result) if several else [result]


def _traced(function: Callable[..., list[Any]], eqn: Any, used: Collection[Any] | None = None) -> Any:
    """ClosedJaxpr of `function` on the equation's operands, with the equation's result types.

    Raises TypeError where the implementation's types are not those of the primitive (but for weak
    types of results in `used`, which are put right: a value's weak type decides how later code
    promotes it).
    """
    avals = [v.aval for v in eqn.outvars]
    read = [used is None or v in used for v in eqn.outvars]

    def run(*args: Any) -> list[Any]:
        results = list(function(*args))
        if len(results) != len(avals):
            raise TypeError(f"{len(results)} results where the primitive has {len(avals)}")
        for i, (result, aval) in enumerate(zip(results, avals, strict=True)):
            shape, dtype = getattr(aval, "shape", None), getattr(aval, "dtype", None)
            if np.shape(result) != shape or jax_compat.dtype_of(result) != dtype:
                raise TypeError(f"result {i} is not of the primitive's type {aval}")
            weak = bool(getattr(aval, "weak_type", False))
            if read[i] and jax_compat.is_weak(result) != weak:
                results[i] = jax_compat.with_weak_type(result, weak)
        return results

    return jax_compat.trace_on_avals(run, [v.aval for v in eqn.invars], eqn.ctx)


def _has_types_of(closed: Any, eqn: Any) -> bool:
    """Whether the results of a jaxpr are weakly typed where those of `eqn` are."""
    outs = [(v.aval, w.aval) for v, w in zip(jax_compat.open_jaxpr(closed)[0].outvars, eqn.outvars, strict=True)]
    return all(getattr(a, "weak_type", 0) == getattr(b, "weak_type", 0) for a, b in outs)


def constants_of(body: Any, eqn: Any) -> tuple[list[Any], list[tuple[Any, Any]]]:
    """(equations that copy the scalar constants of `body`, its other constants and their values).

    Lowering puts the constants of an inlined function where it stands, and those of a program at
    the program's beginning.
    """
    copies: list[Any] = []
    own: list[tuple[Any, Any]] = []
    if body is None:
        return copies, own
    jaxpr, consts = jax_compat.open_jaxpr(body)
    for var, value in zip(jaxpr.constvars, consts, strict=True):
        copy = jax_compat.copy_of_scalar(var, value, eqn)
        if copy is None:
            own.append((var, value))
        else:
            copies.append(copy)
    return copies, own


def _is_only(closed: Any, primitive: Any) -> bool:
    """Whether a jaxpr is nothing but an equation of a primitive, in jitted functions or not."""
    while len(eqns := jax_compat.open_jaxpr(closed)[0].eqns) == 1 and eqns[0].primitive is not primitive:
        inner = eqns[0].params.get("jaxpr")
        if not jax_compat.is_jaxpr(inner):
            return False
        closed = inner
    return len(eqns) == 1


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]
