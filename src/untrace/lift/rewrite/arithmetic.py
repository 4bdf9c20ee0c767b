"""The rewrites of `simplify`, each exact by IEEE arithmetic. Every one has a case in tests/lift/test_simplify.py."""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from untrace import jax_compat
from untrace.jaxprs.equal.comparer import Comparer
from untrace.lift.naming.numbers import said_number
from untrace.lift.rewrite.call_bodies import on_operands
from untrace.lift.rewrite.rematerialised_operands import INDEXED
from untrace.lift.rewrite.simplify import Body, rewrite, same_aval
from untrace.provenance.sites import is_in_loop

Literal = jax_compat.LITERAL_TYPE


def is_value(literal: Any, number: float) -> bool:
    if literal is None:
        return False
    dtype = literal.aval.dtype
    if not jnp.issubdtype(dtype, jnp.number):
        return False
    return np.asarray(literal.val).astype(dtype).tobytes() == np.asarray(number).astype(dtype).tobytes()


def is_of_a_turn(body: Body, eqn: Any) -> bool:
    """Whether an operation is of one turn of an author's loop: what is done in the others stands there too, `0.9 * total` also
    where the total is zero at first."""
    site = body.simplifier.provenance.site(eqn)
    return not body.in_backward_pass(eqn) and not site.by_jvp and is_in_loop(site.frames)


@rewrite("add_any", "add_jaxvals")
def add_any_is_add(body: Body, eqn: Any) -> Any:
    aval = eqn.outvars[0].aval
    if not jax_compat.is_shaped_array(aval) or not _numeric(aval):
        return None
    # A sum of cotangents has the weak type of the first, the sum of a weak and a strong number is strong.
    if aval.weak_type != all(v.aval.weak_type for v in eqn.invars):
        return None
    return eqn.replace(primitive=lax.add_p)


def _numeric(aval: Any) -> bool:
    return isinstance(aval.dtype, np.dtype) and aval.dtype.kind != "V" or jnp.issubdtype(aval.dtype, jnp.number)


@rewrite("mul")
def multiply_by_one(body: Body, eqn: Any) -> Any:
    """Not by `MASS = 1.0`, which its author may want to be another number."""
    x, y = eqn.invars
    if is_value(body.scalar(y), 1.0):
        return None if _is_made_weak(body, x) or _is_said(body, eqn, 1.0) else x
    is_one = is_value(body.scalar(x), 1.0) and not _is_made_weak(body, y)
    return y if is_one and not _is_said(body, eqn, 1.0) else None


def _is_said(body: Body, eqn: Any, value: float) -> bool:
    """Whether a number that an operation takes has a name of the author's, or is another one in another turn of a loop."""
    if is_of_a_turn(body, eqn):
        return True
    site, avals = body.simplifier.provenance.site(eqn), [v.aval for v in (*eqn.invars, *eqn.outvars)]
    if said_number(site, eqn.primitive.name, avals, value) is not None:
        return True
    frame = site.frames[-1] if site.frames and not site.by_jvp and not body.in_backward_pass(eqn) else None
    match None if frame is None or frame.library else frame.node:
        case ast.BinOp(left=left, op=op, right=right) if type(op) is _OPERATORS.get(eqn.primitive.name):
            return not _is_digits(left) and not _is_digits(right)
    return False


_OPERATORS = {"add": ast.Add, "sub": ast.Sub, "mul": ast.Mult, "div": ast.Div, "integer_pow": ast.Pow}


def _is_digits(node: ast.expr) -> bool:
    while isinstance(node, ast.UnaryOp):
        node = node.operand
    return isinstance(node, ast.Constant)


def _is_made_weak(body: Body, atom: Any) -> bool:
    """Whether a value was converted to a weak type for an operation with a number, as only that does: `is_zero * 1.0`."""
    made = body.maker(atom, "convert_element_type", inside=True)
    return made is not None and bool(made.params["weak_type"])


@rewrite("integer_pow")
def power_of_one(body: Body, eqn: Any) -> Any:
    return eqn.invars[0] if eqn.params["y"] == 1 and not _is_said(body, eqn, 1) else None


@rewrite("sub")
def subtract_zero(body: Body, eqn: Any) -> Any:
    """x - 0.0 is x, also for -0.0; x + 0.0 is not."""
    x, y = eqn.invars
    is_zero = is_value(body.scalar(y), 0.0) and not _is_made_weak(body, x)
    return x if is_zero and not _is_said(body, eqn, 0) else None


@rewrite("add")
def add_zero_of_integers(body: Body, eqn: Any) -> Any:
    """x + 0 is x for integers, which have no -0: sums of Python's begin so."""
    aval = eqn.outvars[0].aval
    if not jnp.issubdtype(aval.dtype, jnp.integer):
        return None
    for x, y in (eqn.invars, eqn.invars[::-1]):
        if type(x) is not Literal and same_aval(x.aval, aval) and is_value(body.scalar(y), 0):
            return None if _is_said(body, eqn, 0) else x
    return None


@rewrite("and")
def and_true(body: Body, eqn: Any) -> Any:
    aval = eqn.outvars[0].aval
    if aval.dtype != bool:
        return None
    for x, y in (eqn.invars, eqn.invars[::-1]):
        literal = body.scalar(y)
        if literal is not None and bool(np.asarray(literal.val)) and type(x) is not Literal:
            if x.aval.shape == aval.shape:
                return x
            if not aval.shape or len(x.aval.shape) != len(aval.shape):
                return None
            wide = body.maker(y, "broadcast_in_dim")
            if wide is None:
                return None
            params = {**wide.params, "shape": tuple(aval.shape), "broadcast_dimensions": tuple(range(len(aval.shape)))}
            return wide.replace(invars=[x], params=params, outvars=eqn.outvars, source_info=eqn.source_info)
    return None


@rewrite("div")
def divide_by_one(body: Body, eqn: Any) -> Any:
    x, y = eqn.invars
    is_one = is_value(body.scalar(y), 1.0) and not _is_made_weak(body, x)
    return x if is_one and not _is_said(body, eqn, 1.0) else None


def _number(body: Body, atom: Any) -> Any:
    """The scalar Literal that `atom` is, or is broadcast from, or the negative of one: `-jnp.mean(x)` begins with it.

    Alone a negated number stays: where several equations take it, it is a variable to them.
    """
    negated = body.maker(atom, "neg")
    if negated is None or type(negated.invars[0]) is not Literal or np.shape(negated.invars[0].val):
        return body.scalar(atom)
    literal = negated.invars[0]
    return jax_compat.literal(np.negative(np.asarray(literal.val).astype(literal.aval.dtype))[()], literal.aval)


_WRITTEN = 8  # characters, at most, of a number that somebody wrote: more were computed


@rewrite("mul", "add", "sub", "div")
def arithmetic_of_literals(body: Body, eqn: Any) -> Any:
    """Single and double precision, where NumPy rounds as XLA does; integers wrap around in both, but for division.

    `1.0 - 0.9` of two single numbers stays: it is 0.100000024, which says nothing of the 0.9 beside it.
    """
    x, y = _number(body, eqn.invars[0]), _number(body, eqn.invars[1])
    aval = eqn.outvars[0].aval
    whole = aval.dtype.kind in "iu" and aval.dtype.itemsize in (1, 2, 4, 8) and eqn.primitive.name != "div"
    if x is None or y is None or not whole and str(aval.dtype) not in ("float32", "float64"):
        return None
    left, right = (np.asarray(v.val).astype(aval.dtype) for v in (x, y))
    operation = {"mul": np.multiply, "add": np.add, "sub": np.subtract, "div": np.divide}[eqn.primitive.name]
    words = [str(v[()]) for v in (left, right)]
    with np.errstate(all="ignore"):
        value = operation(left, right)
        is_rounded = not whole and operation(float(words[0]), float(words[1])).astype(value.dtype) != value
    if is_rounded and max(map(len, words)) <= _WRITTEN or is_of_a_turn(body, eqn):
        return None
    if not whole and (not np.isfinite(value) or (value != 0 and abs(value) < np.finfo(value.dtype).tiny)):
        return None
    literal = jax_compat.literal(value[()], x.aval)
    if not aval.shape:
        return literal
    source = body.maker(eqn.invars[0], "broadcast_in_dim") or body.maker(eqn.invars[1], "broadcast_in_dim")
    if source is None or source.outvars[0].aval.shape != aval.shape:
        return None
    return source.replace(invars=[literal, *source.invars[1:]], outvars=eqn.outvars, source_info=eqn.source_info)


ELEMENTWISE = (
    "mul", "add", "sub", "div", "max", "min", "pow", "rem", "atan2", "eq", "ne", "lt", "le", "gt", "ge", "and", "or",
)  # fmt: skip


@rewrite(*ELEMENTWISE)
def scalar_operand(body: Body, eqn: Any) -> Any:
    x, y = eqn.invars
    shape = eqn.outvars[0].aval.shape
    for place, other in ((0, y), (1, x)):
        atom = eqn.invars[place]
        if type(atom) is Literal or type(other) is Literal or other.aval.shape != shape or not shape:
            continue
        literal = body.scalar(atom)
        # What is there as an array for something else is that array here as well.
        is_free = literal is not None and body.scalar(other) is None and is_scalar_to_all(body, atom)
        if is_free and not (
            type(atom) is not Literal and body.maker(atom, "broadcast_in_dim") and is_of_a_turn(body, eqn)
        ):
            strong = jax_compat.literal(np.asarray(literal.val).astype(literal.aval.dtype)[()], literal.aval)
            return eqn.replace(invars=[strong, y] if place == 0 else [x, strong])
    return None


def is_scalar_to_all(body: Body, atom: Any) -> bool:
    """Whether the equations that take a number that was made an array may take the number."""
    return all(user.primitive.name in (*ELEMENTWISE, "broadcast_in_dim") for user in body.users(atom))


_BROADCASTING = ("mul", "add", "sub", "div", "max", "min", "eq", "ne", "lt", "le", "gt", "ge", "and", "or")


@rewrite(*_BROADCASTING)
def implicit_broadcast(body: Body, eqn: Any) -> Any:
    shape = tuple(eqn.outvars[0].aval.shape)
    for place in (0, 1):
        atom, other = eqn.invars[place], eqn.invars[1 - place]
        if type(other) is Literal or tuple(other.aval.shape) != shape or tuple(atom.aval.shape) != shape:
            continue
        variable = atom if _is_taken_whole(body, eqn, atom) else narrowed(body, atom)
        if variable is atom:
            continue
        return eqn.replace(invars=[variable, other] if place == 0 else [other, variable])
    return None


def _is_taken_whole(body: Body, eqn: Any, atom: Any) -> bool:
    """Whether a cotangent is there as a whole: then it is added like those of the layers before, which are no broadcasts."""
    if type(atom) is Literal or not body.in_backward_pass(eqn):
        return False
    return any(user.primitive.name not in (*_BROADCASTING, "add_any") for user in body.users(atom))


def narrowed(body: Body, atom: Any) -> Any:
    """What `atom` is broadcast from, with axes of size one where it repeats; `atom` itself where it is not."""
    wide = body.maker(atom, "broadcast_in_dim")
    if wide is None or len(wide.invars) != 1 or type(wide.invars[0]) is Literal or not wide.invars[0].aval.shape:
        return atom
    shape = tuple(atom.aval.shape)
    inner = dict(zip(map(int, wide.params["broadcast_dimensions"]), wide.invars[0].aval.shape, strict=True))
    narrow = tuple(inner.get(d, 1) for d in range(len(shape)))
    if narrow == shape or wide.params["sharding"] is not None:
        return atom
    if atom not in body.narrowed:
        variable = body.narrowed[atom] = jax_compat.fresh_variable(atom, narrow)
        body.add_beside(wide, wide.replace(params={**wide.params, "shape": narrow}, outvars=[variable]))
    variable = body.narrowed[atom]
    return body.substitute.get(variable, variable)


@rewrite("neg")
def negated_twice(body: Body, eqn: Any) -> Any:
    inner = body.maker(eqn.invars[0], "neg")
    return inner.invars[0] if inner is not None else None


@rewrite("neg")
def negated_literal(body: Body, eqn: Any) -> Any:
    literal = body.scalar(eqn.invars[0])
    if literal is None or str(literal.aval.dtype) not in ("int32", "int64", "float32", "float64"):
        return None
    with np.errstate(all="ignore"):
        value = np.negative(np.asarray(literal.val).astype(literal.aval.dtype))
    negative = jax_compat.literal(value[()], literal.aval)
    source = body.maker(eqn.invars[0], "broadcast_in_dim")
    if source is None:
        return negative
    return source.replace(invars=[negative, *source.invars[1:]], outvars=eqn.outvars, source_info=eqn.source_info)


@rewrite("convert_element_type")
def same_type(body: Body, eqn: Any) -> Any:
    x = eqn.invars[0]
    if type(x) is Literal or not jax_compat.is_shaped_array(x.aval):
        return None
    return x if same_aval(x.aval, eqn.outvars[0].aval) else None


def loop_constants(eqn: Any) -> list[tuple[Any, Any]]:
    """(parameter of the body, what is passed for it) of those constants of a loop that its body does not give back."""
    count, _ = jax_compat.scan_counts(eqn)
    jaxpr, _ = jax_compat.open_jaxpr(eqn.params["jaxpr"])
    results = {v for v in jaxpr.outvars if type(v) is not Literal}
    return [(p, v) for p, v in zip(jaxpr.invars[:count], eqn.invars[:count], strict=True) if p not in results]


def choice_of_two(body: Body, atom: Any) -> tuple[Any, Any, Any] | None:
    """(what is asked, what there is where it is not so, where it is) of `select_n` or a call of `jnp.where`."""
    made = body.maker(atom, "select_n", "jit", "pjit")
    if made is None or len(made.invars) != 3:
        return None
    if made.primitive.name == "select_n":
        which, no, yes = made.invars
    elif jax_compat.jaxpr_name(made.params["jaxpr"]) == "_where":
        which, yes, no = made.invars
    else:
        return None
    return which, no, yes


@rewrite("concatenate")
def stacked(body: Body, eqn: Any) -> Any:
    """Arrays that each get the axis along which they are joined, as `jax.vmap` of `jnp.array([x, y])` leaves them."""
    axis = int(eqn.params["dimension"])
    if any(e.primitive.name in INDEXED and e.invars[1] is eqn.outvars[0] for e in body.users(eqn.outvars[0])):
        return None  # the indices of `x[i, j]`
    parts = []
    for atom in eqn.invars:
        wide = body.maker(atom, "broadcast_in_dim")
        if (
            wide is None
            or len(wide.invars) != 1
            or type(wide.invars[0]) is Literal
            or jax_compat.varying_axes(atom.aval)
        ):
            return None
        shape, dims = atom.aval.shape, [int(d) for d in wide.params["broadcast_dimensions"]]
        if shape[axis] != 1 or dims != [d for d in range(len(shape)) if d != axis] or len(shape) < 2:
            return None
        if wide.invars[0].aval.shape != tuple(n for d, n in enumerate(shape) if d != axis):
            return None
        parts.append(wide.invars[0])
    if len(parts) < 2:
        return None
    closed = jax_compat.trace_library_call(lambda *xs: [jnp.stack(xs, axis=axis)], [p.aval for p in parts])
    jaxpr, consts = jax_compat.open_jaxpr(closed)
    if len(jaxpr.eqns) != 1 or consts or not same_aval(jaxpr.outvars[0].aval, eqn.outvars[0].aval):
        return None  # an older `jnp.stack`, which does what is there
    return on_operands(jaxpr.eqns[0], closed, parts, eqn)


@rewrite("split")
def split_into_one(body: Body, eqn: Any) -> Any:
    return eqn.invars[0] if len(eqn.outvars) == 1 else None


@rewrite("convert_element_type")
def converted_literal(body: Body, eqn: Any) -> Any:
    x = eqn.invars[0]
    return _converted(x, eqn.outvars[0].aval) if type(x) is Literal and not np.shape(x.val) else None


@rewrite("convert_element_type")
def converted_number(body: Body, eqn: Any) -> Any:
    """An array that is one number everywhere is made of the number in the type that it is to have."""
    wide = body.maker(eqn.invars[0], "broadcast_in_dim")
    number = body.scalar(eqn.invars[0]) if wide is not None and len(wide.invars) == 1 else None
    if number is None or eqn.params["sharding"] is not None or wide.params["sharding"] is not None:
        return None
    literal = _converted(number, eqn.outvars[0].aval.update(shape=()))
    return None if literal is None else wide.replace(invars=[literal], outvars=eqn.outvars, source_info=eqn.source_info)


def _converted(literal: Any, aval: Any) -> Any:
    """A number in another type, where that is exact: no rounding that NumPy and XLA could do differently; else None."""
    if not isinstance(aval.dtype, np.dtype):
        return None
    value = np.asarray(literal.val)
    if literal.aval.dtype == aval.dtype:  # only a weak type becomes a strong one
        return jax_compat.literal(value.astype(aval.dtype)[()], aval)
    if not jnp.issubdtype(aval.dtype, jnp.floating) or value.dtype.kind not in "biuf":
        return None
    with np.errstate(all="ignore"):
        there = value.astype(aval.dtype)
        back = there.astype(value.dtype)
    return jax_compat.literal(there[()], aval) if back.tobytes() == value.tobytes() else None


@rewrite("convert_element_type")
def plain_conversion(body: Body, eqn: Any) -> Any:
    """A sharding over no mesh says nothing."""
    if eqn.params["sharding"] is None or not jax_compat.is_trivial_sharding(eqn.params["sharding"]):
        return None
    return eqn.replace(params={**eqn.params, "sharding": None})


@rewrite("dot_general")
def preferred_type(body: Body, eqn: Any) -> Any:
    """What the product is by default: float32 of float32. Then it is what `x @ y` makes."""
    out = eqn.outvars[0].aval
    if eqn.params["preferred_element_type"] is not None or any(type(v) is Literal for v in eqn.invars):
        return None
    if any(v.aval.dtype != out.dtype or v.aval.weak_type for v in eqn.invars) or out.weak_type:
        return None
    return eqn.replace(params={**eqn.params, "preferred_element_type": np.dtype(out.dtype)})


@rewrite("gt", "lt", "ge", "le", "eq", "ne")
def comparison_of_literals(body: Body, eqn: Any) -> Any:
    x, y = eqn.invars
    aval = eqn.outvars[0].aval
    # A weakly typed truth value cannot be written as a literal: Python's are strong to JAX.
    if aval.shape or aval.weak_type:
        return None
    found = _compared(eqn)
    return None if found is None else jax_compat.literal(np.bool_(found), aval)


_MIRRORED = {"gt": lax.lt_p, "lt": lax.gt_p, "ge": lax.le_p, "le": lax.ge_p, "eq": lax.eq_p, "ne": lax.ne_p}


@rewrite(*_MIRRORED)
def number_second(body: Body, eqn: Any) -> Any:
    """`x > 0` for `0 < x`: Python asks the array first."""
    x, y = eqn.invars
    if body.scalar(x) is None or np.shape(getattr(x, "val", ())) or body.scalar(y) is not None:
        return None
    return eqn.replace(primitive=_MIRRORED[eqn.primitive.name], invars=[y, x])


def _compared(eqn: Any) -> bool | None:
    """What a comparison of two small numbers gives."""
    x, y = eqn.invars
    if type(x) is not Literal or type(y) is not Literal or np.shape(x.val) or np.shape(y.val):
        return None
    if np.iscomplexobj(x.val) or np.iscomplexobj(y.val):
        return None
    left, right = float(np.asarray(x.val)), float(np.asarray(y.val))
    if any(not np.isinf(v) and not abs(v) <= 2**20 for v in (left, right)):
        return None
    return {"gt": left > right, "lt": left < right, "ge": left >= right, "le": left <= right,
            "eq": left == right, "ne": left != right}[eqn.primitive.name]  # fmt: skip


@rewrite("select_n")
def select_by_literal(body: Body, eqn: Any) -> Any:
    which, *cases = eqn.invars
    if type(which) is not Literal:
        # A weakly typed truth value is no literal, but what it says is known.
        compared = body.maker(which, "gt", "lt", "ge", "le", "eq", "ne")
        which = _compared(compared) if compared is not None and not which.aval.shape else None
    elif np.shape(which.val):
        return None
    else:
        which = np.asarray(which.val)
    return None if which is None else cases[int(which)]


@rewrite("broadcast_in_dim", "reshape", "reduce_sum", "dot_general", "convert_element_type", "iota", "split", "squeeze")
def sharding_inside_shard_map(body: Body, eqn: Any) -> Any:
    """Over axes that are all manual nothing is sharded, and a sharding over them is what none means."""
    key = next((k for k in ("sharding", "out_sharding") if eqn.params.get(k) is not None), None)
    if key is None or not jax_compat.is_manual_sharding(eqn.params[key]):
        return None
    return eqn.replace(params={**eqn.params, key: None})


_VARYING_ALIKE = (
    "add", "sub", "mul", "div", "max", "min", "pow", "rem", "atan2", "eq", "ne", "lt", "le", "gt", "ge", "and", "or",
    "select_n", "dot_general",
)  # fmt: skip


@rewrite(*_VARYING_ALIKE)
def implicit_pvary(body: Body, eqn: Any) -> Any:
    """JAX itself casts an operand that is the same everywhere, where another one varies over the axes of a mesh."""
    out = jax_compat.varying_axes(eqn.outvars[0].aval)
    if not out or not any(jax_compat.varying_axes(v.aval) == out and not body.maker(v, "pvary") for v in eqn.invars):
        return None
    for place, atom in enumerate(eqn.invars):
        if eqn.primitive.name == "select_n" and place == 0:
            continue
        cast = body.maker(atom, "pvary")
        plain = cast.invars[0] if cast is not None else _converted_number(body, atom)
        if plain is not None:
            return eqn.replace(invars=[*eqn.invars[:place], plain, *eqn.invars[place + 1 :]])
    return None


def _converted_number(body: Body, atom: Any) -> Any:
    """The number that was cast first and converted then, as 0.12 does with Python's; None for anything else."""
    converted = body.maker(atom, "convert_element_type")
    cast = body.maker(converted.invars[0], "pvary") if converted is not None else None
    if cast is None or type(cast.invars[0]) is not Literal or np.shape(cast.invars[0].val):
        return None
    dtype = atom.aval.dtype
    return jax_compat.literal(np.asarray(cast.invars[0].val).astype(dtype)[()], jax.core.ShapedArray((), dtype))


@lru_cache(256)
def _equation_of(name: str, aval: Any, settings: Any) -> Any:
    """The one equation of a `jax.nn` function of one array; None where it has others, or constants, or is none.

    settings: those of JAX under which it is traced.
    """
    try:
        closed = jax_compat.trace_library_call(lambda a: [getattr(jax.nn, name)(a)], [aval])
    except Exception:  # not a function of one array
        return None
    jaxpr, consts = jax_compat.open_jaxpr(closed)
    return jaxpr.eqns[0] if len(jaxpr.eqns) == 1 and not consts else None


@rewrite("custom_jvp_call")
def batched_function(body: Body, eqn: Any) -> Any:
    """`jax.nn.relu` under `vmap`: the same elementwise function, of which only the rule was batched."""
    call = eqn.params["call_jaxpr"]
    name = jax_compat.jaxpr_name(call)
    if (
        not hasattr(jax.nn, name or "")
        or len(eqn.invars) != 1
        or type(eqn.invars[0]) is Literal
        or len(eqn.outvars) != 1
        or not jax_compat.has_batched_rule(eqn)
    ):
        return None
    x = eqn.invars[0]
    public = _equation_of(name, x.aval, jax_compat.trace_settings())
    if public is None or public.primitive is not eqn.primitive:
        return None
    comparer = Comparer()
    if not comparer.same(call, public.params["call_jaxpr"]) or comparer.differing_param(eqn, public) is None:
        return None
    return public.replace(invars=[x], outvars=eqn.outvars, source_info=eqn.source_info)


@rewrite("custom_jvp_call")
def instantiated_zeros(body: Body, eqn: Any) -> Any:
    """`@f.defjvp` for `symbolic_zeros=True`: a written rule makes arrays of them all, as JAX does by itself."""
    if not eqn.params["symbolic_zeros"]:
        return None
    try:
        _, zeros, perturbed = jax_compat.custom_jvp_rule(eqn)
    except Exception:  # a rule is user code: anything may be raised
        return None
    return None if any(zeros) or not all(perturbed) else jax_compat.with_dense_zeros(eqn)
