"""Where two jaxprs differ, once it is known that they do.

Every equation of the original is looked for in the written program: same primitive, same operands,
same parameters. The *first ones missing*, those whose operands are all there, are what went wrong;
what depends on them is missing only in consequence. Independent mistakes are thus all found in one
pass, and each can be taken back on its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from untrace import jax_compat
from untrace.jaxprs.equal import rules
from untrace.jaxprs.equal.comparer import (
    SUMS,
    Comparer,
    Difference,
    Literal,
    Side,
    describe_aval,
    same_aval,
)

# More places than this are not reported: the programs have little in common then.
_MOST = 1000


def difference(comparer: Comparer, original: Any, written: Any) -> Difference | None:
    """None where two jaxprs are the same, else where they differ."""
    if comparer.same(original, written):
        return None
    a, b = Side.of(original), Side.of(written)
    mismatch = comparer.interface(a, b)
    if mismatch and (len(a.invars) != len(b.invars) or mismatch.startswith("input")):
        return Difference(mismatch)
    found = diagnose(comparer, a, b)
    return found if found.path or not mismatch else Difference(mismatch)


def diagnose(comparer: Comparer, a: Side, b: Side) -> Difference:
    """The first difference between two jaxprs that are known not to be the same."""
    # What is computed twice is one value first: else each of a pair may be laid over the other's partner, and what takes
    # them seems to differ. Where that finds nothing, the two differ in which of the pair is taken.
    for merged in (True, False):
        search = _Search(comparer, a, b, merged)
        search.number_original()
        search.match_written()
        missing = search.first_missing()
        if missing:
            break
    else:
        return _outputs_differ(search)
    found = [_explain(search, eqn) for eqn in missing[:_MOST]]
    # An equation with a counterpart that differs in one thing tells more than one without.
    first = found[0]
    paths = tuple(p for d in found for p in (d.all_paths or (d.path,)))
    return Difference(first.why, first.path, first.written_path, paths)


@dataclass
class _Search:
    """Numbers stand for values: equal numbers, equal values. `merged`: whether equations that compute the same give the
    same numbers."""

    comparer: Comparer
    a: Side
    b: Side
    merged: bool
    numbers_a: dict[Any, int] = field(default_factory=dict)
    numbers_b: dict[Any, int] = field(default_factory=dict)
    constants: dict[Any, int] = field(default_factory=dict)
    count: int = 0
    # (primitive, operand numbers) -> equations of the original, of the written program left over
    waiting: dict[Any, list[Any]] = field(default_factory=dict)
    unmatched: dict[Any, list[Any]] = field(default_factory=dict)
    partner: dict[JaxprEqn, Any] = field(default_factory=dict)
    keys_a: dict[JaxprEqn, tuple[int, ...]] = field(default_factory=dict)

    def kind(self, eqn: Any) -> Any:
        """The primitive, or one that is taken for the same."""
        return lax.add_p if self.comparer.sums and eqn.primitive.name in SUMS else eqn.primitive

    def fresh(self) -> int:
        self.count += 1
        return self.count

    def _number(self, side: Side, numbers: dict[Any, int], atom: Any) -> int:
        constant = side.constant(atom)
        if constant is None:
            return numbers[atom]
        key = _constant_key(*constant)
        if key not in self.constants:
            self.constants[key] = self.fresh()
        return self.constants[key]

    def operands(self, side: Side, numbers: dict[Any, int], atoms: Any) -> tuple[int, ...]:
        return tuple(
            numbers[x] if type(x) is not Literal and x in numbers else self._number(side, numbers, x) for x in atoms
        )

    def number_original(self) -> None:
        for x, y in zip(self.a.invars, self.b.invars, strict=True):
            self.numbers_a[x] = self.numbers_b[y] = self.fresh()
        for eqn in self.a.eqns:
            key = self.operands(self.a, self.numbers_a, eqn.invars)
            self.keys_a[eqn] = key
            waiting = self.waiting.setdefault((self.kind(eqn), key), [])
            alike = next((e for e in waiting if self._same(e, eqn)), None) if self.merged and not eqn.effects else None
            waiting.append(eqn)
            for i, out in enumerate(eqn.outvars):
                self.numbers_a[out] = self.fresh() if alike is None else self.numbers_a[alike.outvars[i]]

    def match_written(self) -> None:
        used: set[JaxprEqn] = set()
        for eqn in self.b.eqns:
            key = (self.kind(eqn), self.operands(self.b, self.numbers_b, eqn.invars))
            candidates = self.waiting.get(key, ())
            alike = next((c for c in candidates if c not in used and self._same(c, eqn)), None)
            if alike is not None:
                used.add(alike)
                self.partner[alike] = eqn
            elif self.merged and not eqn.effects:
                alike = next((c for c in candidates if self._same(c, eqn)), None)
            if alike is None:
                self.unmatched.setdefault(key, []).append(eqn)
            for i, other in enumerate(eqn.outvars):
                self.numbers_b[other] = self.fresh() if alike is None else self.numbers_a[alike.outvars[i]]

    def _same(self, ea: Any, eb: Any) -> bool:
        comparer = self.comparer
        return comparer.same_head(ea, eb) and comparer.differing_param(ea, eb) is None

    def first_missing(self) -> list[Any]:
        """Live equations of the original without a partner, while their operands have one."""
        live = live_equations(self.a)
        missing_vars: set[Any] = set()
        found = []
        for eqn in self.a.eqns:
            if eqn in self.partner:
                continue
            if eqn in live and not any(type(x) is not Literal and x in missing_vars for x in eqn.invars):
                found.append(eqn)
            missing_vars.update(eqn.outvars)
        return found


def _constant_key(value: Any, aval: Any) -> Any:
    if jax_compat.is_tracer(value) or jax_compat.is_ref(value):
        return id(value)
    head = (str(getattr(aval, "dtype", "")), tuple(getattr(aval, "shape", ())))
    if jax_compat.is_key(value):
        return (*head, np.asarray(jax.random.key_data(value)).tobytes())
    array = np.asarray(value)
    with np.errstate(all="ignore"):
        return (*head, array.astype(getattr(aval, "dtype", array.dtype)).tobytes())


def live_equations(side: Side) -> set[JaxprEqn]:
    """The equations that outputs or effects depend on."""
    needed = {x for x in side.outvars if type(x) is not Literal}
    live: set[JaxprEqn] = set()
    for eqn in reversed(side.eqns):
        effectful = any(jax_compat.ordering_effect(e) is not None for e in eqn.effects)
        if effectful or any(o in needed for o in eqn.outvars):
            live.add(eqn)
            needed.update(x for x in eqn.invars if type(x) is not Literal)
    return live


def _outputs_differ(search: _Search) -> Difference:
    """Every equation has a partner: the difference is in what is returned, shared, or ordered."""
    a, b = search.a, search.b
    outs_a = search.operands(a, search.numbers_a, a.outvars)
    outs_b = search.operands(b, search.numbers_b, b.outvars)
    made = {o: e for e in a.eqns for o in e.outvars}
    for i, (x, y) in enumerate(zip(outs_a, outs_b, strict=False)):
        if x != y:
            atom = a.outvars[i]
            eqn = None if type(atom) is Literal else made.get(atom)
            path = () if eqn is None else (eqn,)
            return Difference(f"output {i} is another value{_where(eqn)}", path, (), (path,))
    left_over = [e for eqns in search.unmatched.values() for e in eqns]
    effectful = [e for e in left_over if e.effects]
    if effectful:
        name = effectful[0].primitive.name
        return Difference(
            f"the written program has an effect that the original has not: {name}",
            written_path=(effectful[0],),
        )
    for eqn in a.eqns:
        if any(jax_compat.ordering_effect(e) is not None for e in eqn.effects):
            return Difference(
                f"effects happen in another order, or on other values{_where(eqn)}",
                (eqn,),
                (),
                ((eqn,),),
            )
    return Difference("a value that is computed twice in one program is shared in the other")


def _explain(search: _Search, ea: Any) -> Difference:
    """How the nearest equation of the written program differs from `ea`."""
    candidates = search.unmatched.get((search.kind(ea), search.keys_a[ea]), ())
    for eb in candidates:
        if search.comparer.same_head(ea, eb):
            return _same_operands(search.comparer, ea, eb)
    where = _where(ea)
    name = ea.primitive.name
    for eb in candidates:
        return Difference(_head_differs(ea, eb) + where, (ea,), (eb,), ((ea,),))
    same_kind = [e for key, es in search.unmatched.items() if key[0] is search.kind(ea) for e in es]
    for eb in same_kind:
        place = _operand_differs(search, ea, eb)
        if place is not None:
            return Difference(f"{place} of {name} is another value{where}", (ea,), (eb,), ((ea,),))
    why = f"no equation of the written program does what {name} does here{where}"
    return Difference(why, (ea,), (), ((ea,),))


def _operand_differs(search: _Search, ea: Any, eb: Any) -> str | None:
    """`operand 1` when it alone differs between two equations that could be meant to be one."""
    first = search.keys_a[ea]
    second = search.operands(search.b, search.numbers_b, eb.invars)
    if len(first) != len(second) or not search.comparer.same_head(ea, eb):
        return None
    differing = [i for i, (x, y) in enumerate(zip(first, second, strict=True)) if x != y]
    if len(differing) != 1:
        return None
    i = differing[0]
    x, y = search.a.constant(ea.invars[i]), search.b.constant(eb.invars[i])
    if x is not None and y is not None:
        return f"operand {i} ({_brief(x[0])} in the original, {_brief(y[0])} as written)"
    return f"operand {i}"


def _head_differs(ea: Any, eb: Any) -> str:
    name = ea.primitive.name
    for o, p in zip(ea.outvars, eb.outvars, strict=False):
        if not same_aval(o.aval, p.aval):
            return f"{name} gives {describe_aval(o.aval)} in the original and {describe_aval(p.aval)} as written"
    if len(ea.outvars) != len(eb.outvars):
        return f"{name} has {len(ea.outvars)} outputs in the original, {len(eb.outvars)} as written"
    if not jax_compat.same_context(ea.ctx, eb.ctx):
        return f"{name} is bound under other settings (mesh, compute type or metadata)"
    return f"{name} has other effects"


def _same_operands(comparer: Comparer, ea: Any, eb: Any) -> Difference:
    """Two equations that agree in all but parameters: which one, and where inside it."""
    name = ea.primitive.name
    key = comparer.differing_param(ea, eb)
    if key is None:  # found to be the same later on, under another pairing
        return Difference(f"{name} is used in another way{_where(ea)}", (ea,), (eb,), ((ea,),))
    if key in rules.RULE_PARAMS.get(name, ()):
        part = _explain_rules(comparer, ea, eb)
        if part is not None:
            return _inside(f"the {part[0]} rule", ea, eb, part[1])
        why = f"the derivative rule ({key}) of {name} has another form{_where(ea)}"
        return Difference(why, (ea,), (eb,), ((ea,),))
    u, v = ea.params.get(key), eb.params.get(key)
    for left, right in _inner_pairs(u, v):
        inner = difference(comparer, left, right)
        if inner is not None:
            return _inside(key, ea, eb, inner)
    why = f"{key} of {name} is {_brief(u)} in the original and {_brief(v)} as written{_where(ea)}"
    return Difference(why, (ea,), (eb,), ((ea,),))


def _inside(part: str, ea: Any, eb: Any, inner: Difference) -> Difference:
    """`inner`, a difference in a jaxpr of two equations, as a difference around those."""
    paths = tuple((ea, *p) for p in (inner.all_paths or (inner.path,)))
    why = f"inside {part} of {ea.primitive.name}: {inner.why}"
    return Difference(why, (ea, *inner.path), (eb, *inner.written_path), paths)


def _inner_pairs(left: Any, right: Any) -> list[tuple[Any, Any]]:
    """The pairs of jaxprs that a differing parameter holds."""
    found: list[tuple[Any, Any]] = []

    def collect(u: Any, v: Any) -> None:
        if jax_compat.is_jaxpr(u) and jax_compat.is_jaxpr(v):
            found.append((u, v))
        elif isinstance(u, (tuple, list)) and isinstance(v, (tuple, list)):
            for x, y in zip(u, v, strict=False):
                collect(x, y)
        elif isinstance(u, dict) and isinstance(v, dict):
            for k in u.keys() & v.keys():
                collect(u[k], v[k])

    collect(left, right)
    return found


def _brief(value: Any) -> str:
    if getattr(value, "shape", None) == () and not jax_compat.is_key(value):
        value = np.asarray(value).item()
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _where(eqn: Any) -> str:
    line = jax_compat.user_line(eqn) if eqn is not None else ""
    return f" ({line})" if line else ""


def _explain_rules(comparer: Comparer, ea: Any, eb: Any) -> tuple[str, Difference] | None:
    """(which rule, how it differs) of two custom-derivative equations whose rules differ."""
    rules = comparer.traced_rules
    first, second = rules.of(ea), rules.of(eb)
    pair = (rules.key(ea), rules.key(eb))
    rules.explaining.add(pair)
    comparer.rule_depth += 1
    comparer.forget()
    try:
        for (name, a), (_, b) in zip(first.jaxprs, second.jaxprs, strict=False):
            found = difference(comparer, a, b)
            if found is not None:
                return name, found
    finally:
        comparer.rule_depth -= 1
        rules.explaining.discard(pair)
        comparer.forget()
    return None
