"""Simplifications: rewrites that give the same bits with less to read (no `* 1.0`, one transpose less).

Unlike lifts they change the program, so they are made on the jaxpr, before it becomes a Program: what the text is then
proven to be is the simplified jaxpr, and that one is compared with the original by what XLA makes of it, or by
running both. Each rewrite is a named function that looks at one equation; each is exact by IEEE arithmetic:

    x * 1.0, x / 1.0 -> x       exact for every x, NaN and -0.0 included
    op(x, broadcast(c)) -> op(x, c)        JAX broadcasts a scalar when it lowers the operation
    op(x, broadcast(y)) -> op(x, y[..., None])    operations broadcast axes of size one
    transpose, reshape, broadcast, convert of themselves, or to the type that is there: composed or dropped
    -(-x) -> x
    sum over axes of size one of a sum -> a reshape     a sum is never -0.0, so adding it to 0.0 changes nothing
    add_any -> add       JAX lowers both to the same operation
    select_n(c, 0, x) -> jnp.where(c, x, 0)
    split into one part -> the array
    jit of a function of JAX that has no public name (a derivative of `jnp.var`) -> its equations

`x + 0.0` is not among them: it turns -0.0 into 0.0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from untrace import jax_compat
from untrace.lift.engine import is_public_call

Literal = jax_compat.LITERAL_TYPE
Rewrite = Callable[["_Body", Any], Any]
REWRITES: dict[str, list[Rewrite]] = {}
# Rewrites after which the program lowers to the same StableHLO.
NEUTRAL = frozenset({"add_any_is_add"})
# Equations whose jaxprs are rewritten as well. Others keep theirs: what they close over or promise is their own.
_TRANSPARENT = frozenset({"jit", "pjit", "scan", "while", "cond", "checkpoint", "remat2", "shard_map", "closed_call"})


def rewrite(*primitives: str) -> Callable[[Rewrite], Rewrite]:
    """Registers a rewrite of equations of these primitives. It gets the body and the equation, and returns None, an atom
    that is the same value, or an equation to put in its place."""

    def register(function: Rewrite) -> Rewrite:
        for name in primitives:
            REWRITES.setdefault(name, []).append(function)
        return function

    return register


class Simplifier:
    """Simplifies jaxprs that may share parts, each once. `counts`: how often each rewrite was made, by name."""

    def __init__(self, only: frozenset[str] | None = None):
        self.only = only
        self.counts: Counter[str] = Counter()
        self._memo: dict[int, Any] = {}
        self._alive: list[Any] = []
        self._public: dict[Any, bool] = {}

    def simplify(self, closed: Any, outermost: bool = True) -> Any:
        """`closed`, simplified and without dead equations; the very same object where nothing was rewritten."""
        found = self._memo.get(id(closed))
        if found is None:
            self._alive.append(closed)
            found = self._memo[id(closed)] = self._simplified(closed, outermost)
        return found

    def _simplified(self, closed: Any, outermost: bool) -> Any:
        jaxpr, consts = jax_compat.open_jaxpr(closed)
        body = _Body(self, jaxpr, outermost)
        self._add_all(body, jaxpr.eqns)
        if not body.changed:
            return closed
        outvars = jax_compat.substituted(jaxpr.outvars, body.substitute)
        return jax_compat.rebuilt_jaxpr(closed, _alive(body.eqns, outvars), outvars)

    def _with_params(self, eqn: Any) -> Any:
        if eqn.primitive.name not in _TRANSPARENT:
            return eqn
        changed = {}
        for key, value in eqn.params.items():
            if jax_compat.is_jaxpr(value):
                new: Any = self.simplify(value, outermost=False)
                if new is not value:
                    changed[key] = new
            elif type(value) is tuple and value and all(jax_compat.is_jaxpr(v) for v in value):
                several = tuple(self.simplify(v, outermost=False) for v in value)
                if any(a is not b for a, b in zip(several, value, strict=True)):
                    changed[key] = several
        return eqn.replace(params={**eqn.params, **changed}) if changed else eqn


    def _add_all(self, body: _Body, eqns: Sequence[Any]) -> None:
        for eqn in eqns:
            kind = self._library_call(eqn)
            if kind == "inline":
                self._inline(body, eqn)
                continue
            new = eqn if kind == "public" else self._with_params(eqn)
            body.changed = body.changed or new is not eqn
            body.add(new)

    def _inline(self, body: _Body, eqn: Any) -> None:
        """Puts the equations of a jitted function in the place of its call."""
        inner, _ = jax_compat.open_jaxpr(eqn.params["jaxpr"])
        names = dict(zip(inner.invars, jax_compat.substituted(eqn.invars, body.substitute), strict=True))
        fresh = []
        for old in inner.eqns:
            new = jax_compat.equation_inside(old, eqn, names)
            outvars = [jax_compat.fresh_variable(v) for v in old.outvars]
            names.update(zip(old.outvars, outvars, strict=True))
            fresh.append(new.replace(outvars=outvars))
        self.counts["inlined_library_function"] += 1
        body.changed = True
        self._add_all(body, fresh)
        results = jax_compat.substituted(jax_compat.substituted(inner.outvars, names), body.substitute)
        for outer, result in zip(eqn.outvars, results, strict=True):
            body.substitute[outer] = result

    def _library_call(self, eqn: Any) -> str:
        """"public" for a call of a function of JAX that has a public form, "inline" for another call of one, else ""."""
        if eqn.primitive.name not in ("jit", "pjit"):
            return ""
        closed = eqn.params["jaxpr"]
        jaxpr, consts = jax_compat.open_jaxpr(closed)
        if not jax_compat.is_library_jaxpr(closed) or consts or eqn.effects:
            return ""
        key = (id(closed), jax_compat.literal_key(eqn))
        found = self._public.get(key)
        if found is None:
            self._alive.append(closed)
            found = self._public[key] = is_public_call(eqn)
        if found:
            return "public"
        whole = self.only is None and not any(type(v) is Literal for v in jaxpr.outvars)
        return "inline" if whole and not any(v in jaxpr.invars for v in jaxpr.outvars) else ""


class _Body:
    """One jaxpr while it is rewritten: the equations so far, and who made a variable."""

    def __init__(self, simplifier: Simplifier, jaxpr: Any, outermost: bool):
        self.simplifier = simplifier
        self.eqns: list[Any] = []
        self.made: dict[Any, Any] = {}
        self.substitute: dict[Any, Any] = {}
        self.changed = False
        self.narrowed: dict[Any, Any] = {}  # broadcast variable -> the same with ones where it repeats
        self._inputs = set(jaxpr.invars) | set(jaxpr.constvars)
        # A result that becomes an input would be forwarded by JAX: another loop or call than before.
        self._fixed = set() if outermost else {v for v in jaxpr.outvars if type(v) is not Literal}

    def add(self, eqn: Any) -> None:
        if self.substitute and any(type(v) is not Literal and v in self.substitute for v in eqn.invars):
            eqn = eqn.replace(invars=jax_compat.substituted(eqn.invars, self.substitute))
            self.changed = True
        for _ in range(8):
            new = self._rewritten(eqn)
            if new is None:
                break
            self.changed = True
            if type(new) is not type(eqn):
                self.substitute[eqn.outvars[0]] = new
                return
            eqn = new
        self.eqns.append(eqn)
        for out in eqn.outvars:
            self.made[out] = eqn

    def _rewritten(self, eqn: Any) -> Any:
        only = self.simplifier.only
        for function in REWRITES.get(eqn.primitive.name, ()):
            if only is not None and function.__name__ not in only:
                continue
            new = function(self, eqn)
            if new is None:
                continue
            if type(new) is not type(eqn):
                forwarded = type(new) is Literal or new in self._inputs
                if not _same_aval(new.aval, eqn.outvars[0].aval) or (forwarded and eqn.outvars[0] in self._fixed):
                    continue
                if type(new) is Literal and np.shape(new.val):
                    continue
            self.simplifier.counts[function.__name__] += 1
            return new
        return None

    def maker(self, atom: Any, *names: str) -> Any:
        """The equation of one of these primitives that computes `atom`, or None."""
        if type(atom) is Literal:
            return None
        eqn = self.made.get(atom)
        return eqn if eqn is not None and eqn.primitive.name in names else None

    def scalar(self, atom: Any) -> Any:
        """The scalar Literal that `atom` is, or is broadcast from; None where it is neither."""
        if type(atom) is Literal:
            return atom if not np.shape(atom.val) else None
        eqn = self.maker(atom, "broadcast_in_dim")
        if eqn is not None and type(eqn.invars[0]) is Literal and not np.shape(eqn.invars[0].val):
            literal = eqn.invars[0]
            return literal if literal.aval.dtype == atom.aval.dtype else None
        return None


def _same_aval(left: Any, right: Any) -> bool:
    return left is right or (
        left.shape == right.shape and left.dtype == right.dtype and left.weak_type == right.weak_type
    )


def _alive(eqns: Sequence[Any], outvars: Sequence[Any]) -> list[Any]:
    live = {v for v in outvars if type(v) is not Literal}
    kept = []
    for eqn in reversed(eqns):
        if eqn.effects or any(v in live for v in eqn.outvars):
            live.update(v for v in eqn.invars if type(v) is not Literal)
            kept.append(eqn)
    return kept[::-1]


def _is_value(literal: Any, number: float) -> bool:
    if literal is None:
        return False
    dtype = literal.aval.dtype
    if not jnp.issubdtype(dtype, jnp.number):
        return False
    return np.asarray(literal.val).astype(dtype).tobytes() == np.asarray(number).astype(dtype).tobytes()


# ------------------------------------------------------------------ the rewrites


@rewrite("add_any", "add_jaxvals")
def add_any_is_add(body: _Body, eqn: Any) -> Any:
    if not jax_compat.is_shaped_array(eqn.outvars[0].aval) or not _numeric(eqn.outvars[0].aval):
        return None
    return eqn.replace(primitive=lax.add_p)


def _numeric(aval: Any) -> bool:
    return isinstance(aval.dtype, np.dtype) and aval.dtype.kind != "V" or jnp.issubdtype(aval.dtype, jnp.number)


@rewrite("mul")
def multiply_by_one(body: _Body, eqn: Any) -> Any:
    x, y = eqn.invars
    if _is_value(body.scalar(y), 1.0):
        return x
    return y if _is_value(body.scalar(x), 1.0) else None


@rewrite("div")
def divide_by_one(body: _Body, eqn: Any) -> Any:
    return eqn.invars[0] if _is_value(body.scalar(eqn.invars[1]), 1.0) else None


@rewrite("mul", "add", "sub", "div")
def arithmetic_of_literals(body: _Body, eqn: Any) -> Any:
    """Single and double precision only: there NumPy rounds as XLA does."""
    x, y = body.scalar(eqn.invars[0]), body.scalar(eqn.invars[1])
    aval = eqn.outvars[0].aval
    if x is None or y is None or str(aval.dtype) not in ("float32", "float64"):
        return None
    left, right = (np.asarray(v.val).astype(aval.dtype) for v in (x, y))
    with np.errstate(all="ignore"):
        value = {"mul": np.multiply, "add": np.add, "sub": np.subtract, "div": np.divide}[eqn.primitive.name](left, right)
    if not np.isfinite(value) or (value != 0 and abs(value) < np.finfo(value.dtype).tiny):
        return None
    literal = jax_compat.literal(value[()], x.aval)
    if not aval.shape:
        return literal
    source = body.maker(eqn.invars[0], "broadcast_in_dim") or body.maker(eqn.invars[1], "broadcast_in_dim")
    if source is None or source.outvars[0].aval.shape != aval.shape:
        return None
    return source.replace(invars=[literal, *source.invars[1:]], outvars=eqn.outvars, source_info=eqn.source_info)


@rewrite("mul", "add", "sub", "div", "max", "min", "pow", "rem", "atan2", "eq", "ne", "lt", "le", "gt", "ge", "and", "or")
def scalar_operand(body: _Body, eqn: Any) -> Any:
    x, y = eqn.invars
    shape = eqn.outvars[0].aval.shape
    for place, other in ((0, y), (1, x)):
        atom = eqn.invars[place]
        if type(atom) is Literal or type(other) is Literal or other.aval.shape != shape or not shape:
            continue
        literal = body.scalar(atom)
        if literal is not None and body.scalar(other) is None:
            strong = jax_compat.literal(np.asarray(literal.val).astype(literal.aval.dtype)[()], literal.aval)
            return eqn.replace(invars=[strong, y] if place == 0 else [x, strong])
    return None


@rewrite("mul", "add", "sub", "div", "max", "min", "eq", "ne", "lt", "le", "gt", "ge", "and", "or")
def implicit_broadcast(body: _Body, eqn: Any) -> Any:
    shape = tuple(eqn.outvars[0].aval.shape)
    for place in (0, 1):
        atom, other = eqn.invars[place], eqn.invars[1 - place]
        wide = body.maker(atom, "broadcast_in_dim")
        if wide is None or len(wide.invars) != 1 or type(wide.invars[0]) is Literal or not wide.invars[0].aval.shape:
            continue
        if type(other) is Literal or tuple(other.aval.shape) != shape or tuple(atom.aval.shape) != shape:
            continue
        inner = dict(zip(map(int, wide.params["broadcast_dimensions"]), wide.invars[0].aval.shape, strict=True))
        narrow = tuple(inner.get(d, 1) for d in range(len(shape)))
        if narrow == shape or wide.params["sharding"] is not None:
            continue
        if atom not in body.narrowed:
            variable = body.narrowed[atom] = jax_compat.fresh_variable(atom, narrow)
            params = {**wide.params, "shape": narrow}
            body.add(wide.replace(params=params, outvars=[variable]))
        variable = body.narrowed[atom]
        variable = body.substitute.get(variable, variable)
        return eqn.replace(invars=[variable, other] if place == 0 else [other, variable])
    return None


@rewrite("neg")
def negated_twice(body: _Body, eqn: Any) -> Any:
    inner = body.maker(eqn.invars[0], "neg")
    return inner.invars[0] if inner is not None else None


@rewrite("convert_element_type")
def same_type(body: _Body, eqn: Any) -> Any:
    x = eqn.invars[0]
    if type(x) is Literal or not jax_compat.is_shaped_array(x.aval):
        return None
    return x if _same_aval(x.aval, eqn.outvars[0].aval) else None


@rewrite("transpose")
def transposed_twice(body: _Body, eqn: Any) -> Any:
    order = tuple(int(i) for i in eqn.params["permutation"])
    if order == tuple(range(len(order))):
        return eqn.invars[0]
    inner = body.maker(eqn.invars[0], "transpose")
    if inner is None:
        return None
    first = inner.params["permutation"]
    whole = tuple(int(first[i]) for i in order)
    if whole == tuple(range(len(whole))):
        return inner.invars[0]
    return eqn.replace(invars=inner.invars, params={**eqn.params, "permutation": whole})


@rewrite("reshape")
def reshaped_twice(body: _Body, eqn: Any) -> Any:
    x = eqn.invars[0]
    if type(x) is Literal or len(eqn.invars) > 1 or eqn.params["dimensions"] is not None:
        return None
    if x.aval.shape == eqn.outvars[0].aval.shape:
        return x
    inner = body.maker(x, "reshape")
    if inner is not None and len(inner.invars) == 1 and inner.params["dimensions"] is None:
        return eqn.replace(invars=inner.invars)
    literal = body.scalar(x)
    source = body.maker(x, "broadcast_in_dim") if literal is not None else None
    if source is not None and len(source.invars) == 1:
        params = {**source.params, "shape": tuple(eqn.outvars[0].aval.shape)}
        return source.replace(params=params, outvars=eqn.outvars, source_info=eqn.source_info)
    return None


@rewrite("broadcast_in_dim")
def broadcast_twice(body: _Body, eqn: Any) -> Any:
    x = eqn.invars[0] if len(eqn.invars) == 1 else None
    if x is None or type(x) is Literal:
        return None
    dims = tuple(int(d) for d in eqn.params["broadcast_dimensions"])
    shape = tuple(eqn.params["shape"])
    if x.aval.shape == shape and dims == tuple(range(len(shape))):
        return x
    inner = body.maker(x, "broadcast_in_dim")
    if inner is None or len(inner.invars) != 1:
        return None
    first = tuple(dims[int(d)] for d in inner.params["broadcast_dimensions"])
    return eqn.replace(invars=inner.invars, params={**eqn.params, "broadcast_dimensions": first})


@rewrite("reduce_sum")
def sum_of_one(body: _Body, eqn: Any) -> Any:
    """`s.reshape(1, n).sum(0)` of a sum `s`: what broadcasting a bias leaves behind in its gradient."""
    x = eqn.invars[0]
    if type(x) is Literal or any(x.aval.shape[a] != 1 for a in eqn.params["axes"]):
        return None
    inner = body.maker(x, "reshape", "broadcast_in_dim")
    if inner is None or len(inner.invars) != 1 or type(inner.invars[0]) is Literal:
        return None
    source = inner.invars[0]
    if body.maker(source, "reduce_sum") is None or source.aval.size != x.aval.size:
        return None
    if _same_aval(source.aval, eqn.outvars[0].aval):
        return source
    return None


@rewrite("select_n")
def where_with_scalar(body: _Body, eqn: Any) -> Any:
    if len(eqn.invars) != 3:
        return None
    which, no, yes = eqn.invars
    if type(which) is Literal or which.aval.dtype != bool:
        return None
    numbers = [body.scalar(no), body.scalar(yes)]
    if (numbers[0] is None) == (numbers[1] is None) or any(type(a) is Literal for a in (no, yes)):
        return None
    from untrace.lift.scalars import python_scalar

    literal = numbers[0] or numbers[1]
    number = python_scalar(literal.val, literal.aval)
    if number is None or isinstance(number, complex):
        return None
    other = yes if numbers[0] is not None else no
    if not jax_compat.is_shaped_array(other.aval) or jax_compat.varying_axes(other.aval):
        return None

    def call(c: Any, x: Any) -> list[Any]:
        return [jnp.where(c, x, number) if numbers[0] is not None else jnp.where(c, number, x)]

    try:
        closed = jax_compat.trace_on_avals(call, [which.aval, other.aval])
    except Exception:  # an aval that `make_jaxpr` does not take
        return None
    jaxpr, consts = jax_compat.open_jaxpr(closed)
    if len(jaxpr.eqns) != 1 or consts or not _same_aval(jaxpr.outvars[0].aval, eqn.outvars[0].aval):
        return None
    inner = jaxpr.eqns[0]
    names = dict(zip(jaxpr.invars, (which, other), strict=True))
    return inner.replace(
        invars=jax_compat.substituted(inner.invars, names), outvars=eqn.outvars, source_info=eqn.source_info
    )


@rewrite("split")
def split_into_one(body: _Body, eqn: Any) -> Any:
    return eqn.invars[0] if len(eqn.outvars) == 1 else None


@rewrite("convert_element_type")
def converted_literal(body: _Body, eqn: Any) -> Any:
    x = eqn.invars[0]
    aval = eqn.outvars[0].aval
    if type(x) is not Literal or np.shape(x.val) or not isinstance(aval.dtype, np.dtype):
        return None
    value = np.asarray(x.val)
    if x.aval.dtype == aval.dtype:  # only a weak type becomes a strong one
        return jax_compat.literal(value.astype(aval.dtype)[()], aval)
    if value.dtype.kind not in "biuf" or aval.dtype.kind != "f" or not np.isfinite(value):
        return None
    # A whole number that both types have: no rounding, so nothing that NumPy and XLA could do differently.
    if abs(float(value)) > 2**10 or float(value) != int(value) or (value == 0 and np.signbit(float(value))):
        return None
    return jax_compat.literal(value.astype(aval.dtype)[()], aval)


@rewrite("gt", "lt", "ge", "le", "eq", "ne")
def comparison_of_literals(body: _Body, eqn: Any) -> Any:
    x, y = eqn.invars
    aval = eqn.outvars[0].aval
    # A weakly typed truth value cannot be written as a literal: Python's are strong to JAX.
    if type(x) is not Literal or type(y) is not Literal or aval.shape or aval.weak_type:
        return None
    left, right = float(np.asarray(x.val)), float(np.asarray(y.val))
    if max(abs(left), abs(right)) > 2**20 or left != left or right != right:
        return None
    found = {"gt": left > right, "lt": left < right, "ge": left >= right, "le": left <= right,
             "eq": left == right, "ne": left != right}[eqn.primitive.name]  # fmt: skip
    return jax_compat.literal(np.bool_(found), aval)


@rewrite("select_n")
def select_by_literal(body: _Body, eqn: Any) -> Any:
    which, *cases = eqn.invars
    if type(which) is not Literal or np.shape(which.val):
        return None
    return cases[int(np.asarray(which.val))]


def simplified(closed: Any, only: frozenset[str] | None = None) -> tuple[Any, Counter[str]]:
    """(`closed` simplified, how often each rewrite was made); the same object where none was."""
    simplifier = Simplifier(only)
    return simplifier.simplify(closed), simplifier.counts


def described(counts: Counter[str]) -> str:
    """The rewrites that were made, in words for the proof."""
    total = sum(counts.values())
    names = ", ".join(f"{name.replace('_', ' ')} ({count})" for name, count in sorted(counts.items()))
    return f"{total} simplification{'' if total == 1 else 's'}: {names}"
