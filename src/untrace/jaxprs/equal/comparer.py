"""Whether two jaxprs are the same function of their inputs; how that is found out stands in `compare`."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from untrace import jax_compat
from untrace._identity import IdentityMap
from untrace.jaxprs.equal import rules
from untrace.jaxprs.equal.carries import reordered
from untrace.jaxprs.equal.closures import permuted_operands
from untrace.jaxprs.equal.values import Values, same_constant
from untrace.jaxprs.expand.expand import Expander

Literal = jax_compat.LITERAL_TYPE
DropVar = jax_compat.DROP_TYPE

Pairs = list[tuple[Any, Any]]

# What adds up cotangents, as JAX's lines call it.
SUMS = frozenset({"add_any", "add_jaxvals"})
# Call-like primitives whose `name` says only what the called function was called.
_NAMED_CALLS = frozenset({"jit", "pjit", "closed_call", "core_call", "remat_call", "xla_pmap", "custom_lin"})
# Parameters that say where an equation came from.
_LABELS = frozenset({"debug_info", "name_and_src_info", "name_stack", "logging_record"})
# Python callables that a text cannot hold, so that the written program has its own.
_CALLBACKS = frozenset(
    {
        ("pure_callback", "callback"),
        ("io_callback", "callback"),
        ("debug_callback", "callback"),
        ("custom_vmap_call", "rule"),
        ("custom_partitioning", "partition"),
        ("custom_partitioning", "propagate_user_sharding"),
        ("custom_partitioning", "infer_sharding_from_operands"),
        ("custom_transpose_call", "transpose"),
    }
)


@dataclass(frozen=True)
class Difference:
    """One place where two programs differ, in words and in equations.

    `path` leads from the outermost equation of the original to the innermost one that has no
    counterpart; it is empty when the difference lies in arguments or outputs of the whole program.
    `written_path` is the same on the written side, as far as a counterpart is known. `all_paths`
    has one path for every equation that could be told to differ on its own, `path` first.
    """

    why: str
    path: tuple[Any, ...] = ()
    written_path: tuple[Any, ...] = ()
    all_paths: tuple[tuple[Any, ...], ...] = ()

    @property
    def all_differences(self) -> tuple[Any, ...]:
        """The innermost equation of each path."""
        return tuple(p[-1] for p in self.all_paths if p)

    def __str__(self) -> str:
        return self.why


@dataclass
class Side:
    """One jaxpr with what a comparison looks up in it."""

    closed: Any
    invars: Sequence[Any]
    outvars: Sequence[Any]
    eqns: Sequence[Any]
    consts: dict[Any, Any]

    @classmethod
    def of(cls, closed: Any) -> Side:
        jaxpr, consts = jax_compat.open_jaxpr(closed)
        # An open Jaxpr of 0.10 has constvars without values: they are inputs then.
        constvars = jaxpr.constvars if len(consts) == len(jaxpr.constvars) else []
        invars = list(jaxpr.invars)
        if len(consts) != len(jaxpr.constvars):
            invars = [*jaxpr.constvars, *invars]
        known = dict(zip(constvars, consts, strict=True))
        return cls(closed, invars, jaxpr.outvars, jaxpr.eqns, known)

    def constant(self, atom: Any) -> tuple[Any, Any] | None:
        """(value, aval) of a Literal, a constvar, or a number that is converted to its own dtype; None for other variables."""
        if type(atom) is Literal:
            return atom.val, atom.aval
        if atom in self.consts:
            return self.consts[atom], atom.aval
        return self.numbers.get(atom)

    @functools.cached_property
    def numbers(self) -> dict[Any, tuple[Any, Any]]:
        """What equations give that convert a number to its own dtype, which JAX does not do where the number is at hand."""
        return {
            e.outvars[0]: (e.invars[0].val, e.outvars[0].aval)
            for e in self.eqns
            if e.primitive.name == "convert_element_type"
            and type(e.invars[0]) is Literal
            and e.invars[0].aval.dtype == e.outvars[0].aval.dtype
        }


def are_same_callables(pairs: Iterable[tuple[str, tuple[Any, ...]]]) -> bool:
    """Whether the Python functions that a text may have to be given (of callbacks, policies) are the same in several traces:
    (name of the parameter, its values)."""
    values = Comparer().values
    given = {name for _, name in _CALLBACKS} | {"policy"}
    return all(
        all(values.same(first, other) for other in others)
        for name, (first, *others) in pairs
        if name in given and callable(first)
    )


@dataclass
class Comparer:
    """One comparison: what was found equal is remembered by identity."""

    expander: Expander = field(default_factory=Expander)
    notes: dict[str, None] = field(default_factory=dict)
    rule_depth: int = 0
    carries: bool = False
    sums: bool = False
    reordered: bool = False
    added: bool = False
    closed_anew: bool = False

    def __post_init__(self) -> None:
        self._known: dict[tuple[int, int, int], bool] = {}
        self._closures: dict[tuple[int, ...], Pairs | None] = {}
        self._constants: IdentityMap[Any, IdentityMap[Any, bool]] = IdentityMap()
        self.traced_rules = rules.TracedRules(self.expander)
        self.values = Values(self.same)

    def note(self, text: str) -> None:
        self.notes[text] = None

    # ------------------------------------------------------------ whole jaxprs

    def same(self, original: Any, written: Any) -> bool:
        """Whether two jaxprs are the same function of their inputs in order."""
        if original is written:
            return True
        # Deep inside rules, rules are taken on trust: that must not be remembered for elsewhere.
        key = (original, written, self.rule_depth)
        known = self._known.get(key)
        if known is None:
            a, b = Side.of(original), Side.of(written)
            known = self.interface(a, b) is None and (self.in_lockstep(a, b) or self._matches(a, b))
            self._known[key] = known
        return known

    def forget(self) -> None:
        """Drops what was found under assumptions about rules that no longer hold."""
        self._known.clear()
        self._closures.clear()

    @staticmethod
    def interface(a: Side, b: Side) -> str | None:
        """How the types of inputs and outputs differ, in words; None when they agree."""
        for kind, left, right in (
            ("input", a.invars, b.invars),
            ("output", a.outvars, b.outvars),
        ):
            if len(left) != len(right):
                return f"the original has {len(left)} {kind}s, the written program has {len(right)}"
            for i, (x, y) in enumerate(zip(left, right, strict=True)):
                if not same_aval(x.aval, y.aval):
                    return (
                        f"{kind} {i} is {describe_aval(x.aval)} in the original and "
                        f"{describe_aval(y.aval)} in the written program"
                    )
        return None

    def in_lockstep(self, a: Side, b: Side) -> bool:
        """Whether the equations are the same one by one. The loop is flat: it runs 10^5 times."""
        if len(a.eqns) != len(b.eqns):
            return False
        env = dict(zip(a.invars, b.invars, strict=True))
        literal, get, same_params = Literal, env.get, self._same_params
        for ea, eb in zip(a.eqns, b.eqns, strict=True):
            if ea.primitive is not eb.primitive:
                return False
            xs, ys = ea.invars, eb.invars
            if len(xs) != len(ys):
                return False
            for x, y in zip(xs, ys, strict=True):
                if type(x) is literal or get(x) is not y:
                    if not self.same_constants(a, x, b, y):
                        return False
            if ea.params and not same_params(ea, eb):
                return False
            os, ps = ea.outvars, eb.outvars
            if len(os) != len(ps):
                return False
            for o, p in zip(os, ps, strict=True):
                if o.aval is not p.aval and not same_aval(o.aval, p.aval):
                    return False
                env[o] = p
            if ea.ctx is not eb.ctx and not jax_compat.same_context(ea.ctx, eb.ctx):
                return False
            if (ea.effects or eb.effects) and not _same_effects(ea, eb):
                return False
        for x, y in zip(a.outvars, b.outvars, strict=True):
            if type(x) is literal or get(x) is not y:
                if not self.same_constants(a, x, b, y):
                    return False
        return True

    def same_constants(self, a: Side, x: Any, b: Side, y: Any) -> bool:
        """Whether two atoms are constants of the same value. A Literal may equal a constvar."""
        if type(x) is Literal and type(y) is Literal:
            u, v = x.val, y.val
            # Most literals are numbers; 0.0, NaN and all that is out of the ordinary go on below.
            if x.aval is y.aval and type(u) is type(v) and isinstance(u, (int, float)):
                if u == v and u != 0:
                    return True
            return same_constant(u, x.aval, v, y.aval)
        left, right = a.constant(x), b.constant(y)
        if left is None or right is None:
            return False
        beside = self._constants.setdefault(left[0], IdentityMap())
        known = beside.get(right[0])
        if known is None or left[1] is not right[1]:
            known = beside[right[0]] = self._same_values(left, right)
        return known

    def _same_values(self, left: tuple[Any, Any], right: tuple[Any, Any]) -> bool:
        if jax_compat.is_tracer(left[0]) and jax_compat.is_tracer(right[0]):
            self.note("a derivative rule closes over a traced value; it is taken to be the same value")
            return same_aval(left[1], right[1])
        if jax_compat.is_tracer(left[0]) or jax_compat.is_tracer(right[0]):
            return False
        return same_constant(left[0], left[1], right[0], right[1])

    # ------------------------------------------------------------ equations

    def _same_params(self, ea: Any, eb: Any) -> bool:
        return self.differing_param(ea, eb) is None

    def differing_param(self, ea: Any, eb: Any) -> str | None:
        """The first parameter in which two equations of one primitive differ, None for none."""
        pa, pb = ea.params, eb.params
        if pa is pb:
            return None
        if len(pa) != len(pb):
            return "params"
        same = self.values.same
        for key, u in pa.items():
            try:
                v = pb[key]
            except KeyError:
                return key
            if u is v or same_simple(u, v):
                continue
            if not self._may_differ(ea, key, u, v) and not same(u, v):
                return key
        if ea.primitive.name in rules.RULE_PARAMS:
            return rules.differing_rule(self, ea, eb)
        return None

    def _may_differ(self, eqn: Any, key: str, u: Any, v: Any) -> bool:
        """Whether a parameter is a label, or a callable compared elsewhere or not at all."""
        name = eqn.primitive.name
        if key in _LABELS or (key == "name" and name in _NAMED_CALLS):
            return True
        if key in rules.RULE_PARAMS.get(name, ()):
            return True
        if name == "reduce" and key == "computation":  # its jaxpr is a parameter as well
            return True
        if name == "slice" and key == "strides":  # strides of one are what no strides mean
            return all(s is None or all(int(n) == 1 for n in s) for s in (u, v))
        if (name, key) in _CALLBACKS:
            if not self.values.same(u, v):
                self.note(
                    f"`{key}` of {name} is a Python function, which cannot be compared; it is taken to be the same"
                )
            return True
        return False

    def same_head(self, ea: Any, eb: Any) -> bool:
        """Whether two equations agree in all but operands and parameters."""
        return (
            (ea.primitive is eb.primitive or self._is_sum(ea, eb))
            and len(ea.outvars) == len(eb.outvars)
            and all(map(same_aval, (o.aval for o in ea.outvars), (p.aval for p in eb.outvars)))
            and jax_compat.same_context(ea.ctx, eb.ctx)
            and _same_effects(ea, eb)
        )

    def _is_sum(self, ea: Any, eb: Any) -> bool:
        found = self.sums and ea.primitive.name in SUMS and eb.primitive.name == "add"
        self.added |= found
        return found

    # ------------------------------------------------------------ from the outputs backwards

    def _matches(self, a: Side, b: Side) -> bool:
        fixed = list(zip(a.invars, b.invars, strict=True))
        return self._match(a, b, fixed, frozenset(), frozenset()) is not None

    def _match(self, a: Side, b: Side, fixed: Pairs, free_a: frozenset[Any], free_b: frozenset[Any]) -> Pairs | None:
        """Which inputs in `free_a` and `free_b` have to be the same for the two to be; None when they are not whatever those
        are. `fixed` pairs the other inputs beforehand.
        """
        pairing = Pairing(self, a, b, free_a, free_b)
        pairing.fix(fixed)
        first, second = ordered_effects(a.eqns), ordered_effects(b.eqns)
        if first.keys() != second.keys():
            return None
        for key, eqns in first.items():
            others = second[key]
            if len(eqns) != len(others) or not all(map(pairing.pair_equations, eqns, others)):
                return None
        pairing.todo += zip(a.outvars, b.outvars, strict=True)
        return list(pairing.free) if pairing.run() else None

    def operand_pairs(self, ea: Any, eb: Any) -> Pairs | None:
        """Which operands must be the same for two equations to be; None when they cannot be."""
        key = self.differing_param(ea, eb)
        if key is None:
            if len(ea.invars) != len(eb.invars):
                return None
            return list(zip(ea.invars, eb.invars, strict=True))
        return permuted_operands(self, ea, eb)

    def closure_pairs(self, ja: Any, jb: Any, free: tuple[int, int]) -> list[tuple[int, int]] | None:
        """Which of the first `free` inputs (closed-over values) of two jaxprs stand for each other.

        The inputs after those are paired in order. Values that are not used appear in no pair.
        """
        key = (ja, jb, *free, self.rule_depth)
        if key not in self._closures:
            self._closures[key] = self._closure_pairs(Side.of(ja), Side.of(jb), free)
        return self._closures[key]

    def _closure_pairs(self, a: Side, b: Side, free: tuple[int, int]) -> list[tuple[int, int]] | None:
        own_a, own_b = a.invars[free[0] :], b.invars[free[1] :]
        outs = [o.aval for o in a.outvars], [o.aval for o in b.outvars]
        if len(own_a) != len(own_b) or len(outs[0]) != len(outs[1]):
            return None
        if not all(map(same_aval, *outs)):
            return None
        fixed = list(zip(own_a, own_b, strict=True))
        if not all(same_aval(x.aval, y.aval) for x, y in fixed):
            return None
        free_a, free_b = a.invars[: free[0]], b.invars[: free[1]]
        found = self._match(a, b, fixed, frozenset(free_a), frozenset(free_b))
        if found is None:
            return None
        places = {v: i for i, v in enumerate(free_a)}, {v: j for j, v in enumerate(free_b)}
        pairs = sorted((places[0][x], places[1][y]) for x, y in found)
        return pairs if self.is_one_to_one(pairs) else None

    def is_one_to_one(self, pairs: Collection[tuple[int, int]]) -> bool:
        """Whether pairs of values that two bodies close over are one to one, or need not be."""
        if len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs):
            return True
        self.closed_anew |= self.carries
        return self.carries


class Pairing:
    """The state of one `_match`: pairs of variables and the pairs still to be followed. `complete`: whether all fitted."""

    complete = False

    def __init__(self, comparer: Comparer, a: Side, b: Side, free_a: Any, free_b: Any) -> None:
        self.comparer, self.a, self.b = comparer, a, b
        self.free_a, self.free_b = free_a, free_b
        self.to_b: dict[Any, Any] = {}
        self.to_a: dict[Any, Any] = {}
        self.free: dict[tuple[Any, Any], None] = {}  # pairs of inputs that have to be the same outside
        self.todo: Pairs = []
        self.paired: dict[Any, Any] = {}  # equation of the first -> of the second
        self.paired_back: set[Any] = set()
        self.made_a = {o: e for e in a.eqns for o in e.outvars}
        self.made_b = {o: e for e in b.eqns for o in e.outvars}

    def fix(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        for x, y in pairs:
            self.to_b[x] = y
            self.to_a[y] = x

    def run(self) -> bool:
        """Follows every pair to its operands; False as soon as two things do not fit."""
        comparer, a, b = self.comparer, self.a, self.b
        to_b, to_a, todo = self.to_b, self.to_a, self.todo
        while todo:
            x, y = todo.pop()
            if type(x) is Literal or type(y) is Literal or x in a.consts or y in b.consts:
                if not comparer.same_constants(a, x, b, y):
                    return False
                continue
            known = to_b.get(x)
            if known is y:
                continue
            again = known is not None or y in to_a
            if x in self.free_a and y in self.free_b and same_aval(x.aval, y.aval):
                # What one closes over once the other may close over twice: constants, as it turns out outside.
                self.free[x, y] = None
                if not again:
                    self.fix([(x, y)])
                continue
            ea, eb = self.made_a.get(x), self.made_b.get(y)
            if again or ea is None or eb is None:
                return False
            if not self.pair_equations(ea, eb) or to_b.get(x) is not y:
                return False
        return True

    def pair_equations(self, ea: Any, eb: Any) -> bool:
        """Pairs the outputs of two equations and queues their operands; False if they differ."""
        partner = self.paired.get(ea)
        if partner is not None:
            return partner is eb
        if eb in self.paired_back:
            return False
        outvars = ea.outvars
        operands = self._operands(ea, eb)
        if operands is None and self.comparer.carries:
            for other in reordered(ea, eb):
                outvars, operands = other.outvars, self._operands(other, eb)
                self.comparer.reordered |= operands is not None
        if operands is None:
            return False
        self.paired[ea] = eb
        self.paired_back.add(eb)
        self.fix(
            (o, p)
            for o, p in zip(outvars, eb.outvars, strict=True)
            if type(o) is not DropVar and type(p) is not DropVar
        )
        self.todo += operands
        return True

    def _operands(self, ea: Any, eb: Any) -> Pairs | None:
        return self.comparer.operand_pairs(ea, eb) if self.comparer.same_head(ea, eb) else None


def ordered_effects(eqns: Sequence[Any]) -> dict[Any, list[Any]]:
    """The equations with effects, by the kind of effect, in program order."""
    found: dict[Any, list[Any]] = {}
    for eqn in eqns:
        if eqn.effects:
            for key in {jax_compat.ordering_effect(e) for e in eqn.effects}:
                if key is not None:
                    found.setdefault(key, []).append(eqn)
    return found


def _same_effects(ea: Any, eb: Any) -> bool:
    # Which ref is read or written follows from the operands.
    if not ea.effects and not eb.effects:
        return True
    kind = jax_compat.effect_kind
    return {kind(e) for e in ea.effects} == {kind(e) for e in eb.effects}


_SIMPLE = frozenset({int, str, bool})


def same_simple(u: Any, v: Any) -> bool:
    """True for equal ints, strings and tuples of them; False says nothing."""
    kind = type(u)
    if kind is not type(v):
        return False
    if kind in _SIMPLE:
        return u == v
    if kind is tuple and len(u) == len(v):
        return all(x is y or (type(x) is int and type(y) is int and x == y) for x, y in zip(u, v))  # noqa: B905
    return False


def same_aval(left: Any, right: Any) -> bool:
    """Whether two abstract values agree in all they say: shape, dtype, weak type, sharding...

    ShapedArrays are interned in 0.10 and 0.12, so identity is equality; others define `==`.
    """
    if left is right:
        return True
    try:
        return type(left) is type(right) and bool(left == right)
    except Exception:  # `==` of a library's aval
        return False


def describe_aval(aval: Any) -> str:
    text = aval.str_short(True) if hasattr(aval, "str_short") else str(aval)
    return text + (" (weakly typed)" if getattr(aval, "weak_type", False) else "")
