"""Library functions that JAX keeps as a call: `jit[name=_where]`, `custom_jvp_call[name=relu]`.

The name of the call says which public function to try; what is static in it is read off its body.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from untrace import jax_compat
from untrace._identity import IdentityMap
from untrace.ir.nodes import Constant, Equation, Literal, Value
from untrace.lift.recognise import library, signatures
from untrace.lift.recognise.engine import Guess, Matcher, idiom
from untrace.lift.recognise.idioms.random import over_keys
from untrace.lift.recognise.idioms.reductions import axis_arguments, said_axis
from untrace.lift.recognise.scalars import python_scalar

Reader = Callable[[Matcher, Equation, Any], Iterator[Guess]]
_READERS: dict[str, Reader] = {}


def reader(*names: str) -> Callable[[Reader], Reader]:
    """Registers how the arguments of library calls of these names are read; gets the call's jaxpr."""

    def register(function: Reader) -> Reader:
        for name in names:
            _READERS[name] = function
        return function

    return register


# The calls whose operands are all their arguments, in order.
_PLAIN = {
    "_where": "jnp.where", "remainder": "operator.mod", "floor_divide": "operator.floordiv", "silu": "jax.nn.silu",
    "relu": "jax.nn.relu", "relu6": "jax.nn.relu6", "gelu": "jax.nn.gelu", "elu": "jax.nn.elu", "selu": "jax.nn.selu",
    "celu": "jax.nn.celu", "leaky_relu": "jax.nn.leaky_relu", "mish": "jax.nn.mish", "hard_tanh": "jax.nn.hard_tanh",
    "soft_sign": "jax.nn.soft_sign", "squareplus": "jax.nn.squareplus", "log_sigmoid": "jax.nn.log_sigmoid",
    "softplus": "jax.nn.softplus", "hard_sigmoid": "jax.nn.hard_sigmoid", "hard_silu": "jax.nn.hard_silu",
    "logaddexp": "jnp.logaddexp", "logaddexp2": "jnp.logaddexp2", "nan_to_num": "jnp.nan_to_num", "outer": "jnp.outer",
    "inv": "jnp.linalg.inv", "solve": "jnp.linalg.solve", "det": "jnp.linalg.det", "slogdet": "jnp.linalg.slogdet",
    "trace": "jnp.trace", "kron": "jnp.kron", "tril": "jnp.tril", "triu": "jnp.triu", "isclose": "jnp.isclose",
    "allclose": "jnp.allclose", "sinc": "jnp.sinc", "cross": "jnp.cross", "hypot": "jnp.hypot", "ravel": "jnp.ravel",
    "float_power": "jnp.float_power", "deg2rad": "jnp.deg2rad", "rad2deg": "jnp.rad2deg", "vdot": "jnp.vdot",
    "cosh": "jnp.cosh", "sinh": "jnp.sinh", "fmod": "jnp.fmod", "fmax": "jnp.fmax", "fmin": "jnp.fmin",
    "heaviside": "jnp.heaviside", "square": "jnp.square", "power": "operator.pow", "multi_dot": "jnp.linalg.multi_dot",
    "logit": "jax.scipy.special.logit", "xlogy": "jax.scipy.special.xlogy", "xlog1py": "jax.scipy.special.xlog1py",
    "entr": "jax.scipy.special.entr", "ndtr": "jax.scipy.special.ndtr", "ndtri": "jax.scipy.special.ndtri",
    "log_ndtr": "jax.scipy.special.log_ndtr", "expit": "jax.scipy.special.expit", "betaln": "jax.scipy.special.betaln",
    "absolute": "jnp.abs", "i0": "jnp.i0", "i0e": "jax.scipy.special.i0e", "erf": "jax.scipy.special.erf",
    "log2": "jnp.log2", "log10": "jnp.log10", "isposinf": "jnp.isposinf", "isneginf": "jnp.isneginf", "arctan2": "jnp.arctan2",
    "divmod": "jnp.divmod", "ldexp": "jnp.ldexp", "frexp": "jnp.frexp", "modf": "jnp.modf", "copysign": "jnp.copysign",
    "right_shift": "operator.rshift", "bitwise_count": "jnp.bitwise_count", "digitize": "jnp.digitize",
    "fold_in": "jax.random.fold_in", "_normalize": "jax.nn.standardize", "dot_product_attention": "jax.nn.dot_product_attention",
}  # fmt: skip


# Of a shorter derivative it reads better what it computes.
_LONG_DERIVATIVE = 20
# Equations: what is shorter reads as well where it was batched.
_SHORT = 4
# They are the same functions of whole arrays.
_BROADCAST = frozenset(("_where", "clip"))


@idiom("jit", "pjit", "custom_jvp_call", "custom_vjp_call")
def named_call(m: Matcher, equation: Equation) -> Iterator[Guess]:
    """The public functions that a call's name points to."""
    params = equation.origin.params
    closed = params.get("jaxpr") or params.get("call_jaxpr")
    name = str(params.get("name") or jax_compat.jaxpr_name(closed) or "")
    if closed is None or not name:
        return
    jaxpr = jax_compat.open_jaxpr(closed)[0]
    inputs = tuple(equation.inputs)
    ours = jax_compat.is_library_jaxpr(closed)  # else the name is the author's, and says nothing of the operands
    paths = library.paths_of(closed, name) if ours else ()
    raw = tuple([m.through(a, "random_wrap") or a for a in inputs])  # what a person passes who uses raw keys
    own = tuple([a for a in inputs if type(a) is not Constant])  # the tables of a function are its own
    for operands in dict.fromkeys((raw, inputs, own)):
        if name in _PLAIN:
            yield Guess(_PLAIN[name], operands)
            if any(type(a) is Literal and not a.aval.weak_type for a in operands):  # `x % jnp.uint32(128)`
                yield Guess(_PLAIN[name], tuple([_typed(a) if type(a) is Literal else a for a in operands]))
        if not ours:
            continue
        if name in _READERS and operands is not own:
            for guess in _read(_READERS[name], m, equation, jaxpr):
                swapped = [operands[inputs.index(a)] if a in inputs else a for a in guess.args]
                yield Guess(guess.path, tuple(swapped), guess.kwargs)
        facts = signatures.Facts(jaxpr.eqns, [a.aval for a in operands], [v.aval for v in equation.origin.outvars])
        for path in paths:
            yield from signatures.guesses(path, operands, facts)
        names = jax_compat.argument_names(jaxpr) or ()
        for path in paths:
            yield from signatures.guesses_by_name(path, operands, names, facts)
    if ours:
        yield from _derivatives(equation, name, closed, paths)
        yield from _mapped(equation, name, closed, paths)


def _derivatives(equation: Equation, name: str, closed: Any, paths: Sequence[str]) -> Iterator[Guess]:
    """`jax.jvp(jnp.hypot, (x, y), (x_dot, y_dot))`: all the equations of a derivative that JAX has no rule for."""
    inputs = tuple(equation.inputs)
    primals, tangents = inputs[: len(inputs) // 2], inputs[len(inputs) // 2 :]
    if len(primals) != len(tangents) or len(equation.outputs) != 2:
        return
    if len(list(jax_compat.equations_in(closed))) < _LONG_DERIVATIVE:
        return
    more = {len(t.aval.shape) - len(p.aval.shape) for p, t in zip(primals, tangents, strict=True)}
    kind = {0: "jvp", 1: "jvps"}.get(more.pop()) if len(more) == 1 else None
    if kind is not None:
        for path in paths:
            yield Guess(f"{kind}.{path}", inputs, words=(name, f"{name}_dot"))


def _mapped(equation: Equation, name: str, closed: Any, paths: Sequence[str]) -> Iterator[Guess]:
    """`jax.vmap(jnp.interp)(x, xs, ys)`: a call that was batched, of a function that takes no axis of its own for that."""
    inputs, outputs = equation.inputs, [v.aval for v in equation.origin.outvars]
    if name in _BROADCAST or not all(map(jax_compat.is_shaped_array, [*outputs, *[a.aval for a in inputs]])):
        return
    # What else it gives may be saved for a backward pass, and be none of each element's.
    size = outputs[0].shape[:1] if outputs else ()
    places = [i for i, a in enumerate(inputs) if type(a) is not Literal and a.aval.shape[:1] == size]
    some = len(list(itertools.islice(jax_compat.equations_in(closed), _SHORT)))
    if not size or not places or some < _SHORT:
        return
    jaxpr = jax_compat.open_jaxpr(closed)[0]
    paths = [_PLAIN[name]] if name in _PLAIN else paths
    for mapped in [places, *([p] for p in places if len(places) > 1)]:
        ones = tuple([Value(_element(a.aval)) if i in mapped else a for i, a in enumerate(inputs)])
        given = [_element(a) if a.shape[:1] == size else a for a in outputs]
        facts = signatures.Facts(jaxpr.eqns, [a.aval for a in ones], given)
        whole = IdentityMap(zip(ones, inputs, strict=True))
        known = {ones[i] for i in mapped}
        for path in [p for p in paths if not p.startswith("operator.")]:
            plain = [Guess(path, ones)] if name in _PLAIN else []
            for guess in [*plain, *signatures.guesses(path, ones, facts)]:
                listed = any(type(a) is list for a in guess.args)  # of which `jax.vmap` would map every part
                if not listed and not any(v in whole for v in guess.kwargs.values()):
                    where = tuple([i for i, a in enumerate(guess.args) if a in known])
                    args = [whole.get(a, a) for a in guess.args]
                    yield Guess(f"vmap.{path}", (where, *args), guess.kwargs)


def _element(aval: Any) -> Any:
    """The type of one element along the first axis."""
    return aval.update(shape=aval.shape[1:])


def _read(read: Reader, m: Matcher, equation: Equation, jaxpr: Any) -> list[Guess]:
    """What a reader guesses. The insides of JAX differ between its lines: operands that a reader does not know are none
    of its business, and the function's signature has its turn."""
    try:
        return list(read(m, equation, jaxpr))
    except (IndexError, ValueError):
        return []


def _first(jaxpr: Any, *names: str) -> Any:
    """The first equation of one of these primitives, also inside inner calls; None where there is none."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in names:
            return eqn
        for key in ("jaxpr", "call_jaxpr"):
            inner = eqn.params.get(key)
            if inner is not None:
                found = _first(jax_compat.open_jaxpr(inner)[0], *names)
                if found is not None:
                    return found
    return None


def _out(equation: Equation) -> Any:
    return equation.origin.outvars[0].aval


@reader("_where")
def _where(m: Matcher, equation: Equation, jaxpr: Any) -> Iterator[Guess]:
    """`jnp.where(c, np.float32(1.0), 0.0)`: a number that says of which type the result is, or is of an array's type."""
    which, *cases = equation.inputs
    if not any(type(c) is Literal for c in cases):
        return
    yield Guess("jnp.where", (which, *[_typed(c) if type(c) is Literal else c for c in cases]))


def _typed(literal: Literal) -> Any:
    aval = literal.aval
    return python_scalar(literal.value, aval) if aval.weak_type else aval.dtype.type(literal.value)


@reader("clip")
def _clip(m: Matcher, equation: Equation, jaxpr: Any) -> Iterator[Guess]:
    x, *bounds = equation.inputs
    yield Guess("jnp.clip", (x, *bounds))
    if len(bounds) == 2:
        yield Guess("method.clip", (x, *bounds[::-1]))  # which asks for the upper one first
    if len(bounds) == 1:
        yield Guess("jnp.clip", (x,), {"min": bounds[0]})
        yield Guess("jnp.clip", (x,), {"max": bounds[0]})


@reader("_var", "_std", "std", "var")
def _var(m: Matcher, equation: Equation, jaxpr: Any) -> Iterator[Guess]:
    x, name = equation.inputs[0], equation.origin.params["name"].removeprefix("_")
    inside = _first(jaxpr, "reduce_sum")
    if inside is None:
        return
    rank = len(x.aval.shape)
    keepdims = len(_out(equation).shape) == rank
    for kwargs in axis_arguments(inside.params["axes"], rank, keepdims and rank > 0, said_axis(m, equation)):
        yield Guess("method." + name, (x,), kwargs)
        yield Guess("method." + name, (x,), {**kwargs, "ddof": 1})


@reader("norm")
def _norm(m: Matcher, equation: Equation, jaxpr: Any) -> Iterator[Guess]:
    x = equation.inputs[0]
    rank = len(x.aval.shape)
    yield Guess("jnp.linalg.norm", (x,))
    inside = _first(jaxpr, "reduce_sum", "reduce_max", "reduce_min")
    if inside is not None:
        keepdims = len(_out(equation).shape) == rank
        for kwargs in axis_arguments(inside.params["axes"], rank, keepdims, said_axis(m, equation)):
            yield Guess("jnp.linalg.norm", (x,), kwargs)
            yield Guess("jnp.linalg.norm", (x,), {"ord": 1, **kwargs})


@reader("softmax", "log_softmax", "_softmax", "logsumexp", "standardize", "_reduce_logsumexp", "_reduce_logmeanexp")
def _along_axis(m: Matcher, equation: Equation, jaxpr: Any) -> Iterator[Guess]:
    x = equation.inputs[0]
    name = equation.origin.params.get("name", "").removeprefix("_").removeprefix("reduce_")
    inside = _first(jaxpr, "reduce_max", "reduce_sum", "reduce_mean")
    rank = len(x.aval.shape)
    if inside is not None:
        keepdims = name.startswith("log") and name != "log_softmax" and len(_out(equation).shape) == rank
        for kwargs in axis_arguments(inside.params["axes"], rank, keepdims, said_axis(m, equation)):
            yield Guess("jax.nn." + name, (x,), kwargs)


@reader("_one_hot")
def _one_hot(m: Matcher, equation: Equation, jaxpr: Any) -> Iterator[Guess]:
    x, out = equation.inputs[0], _out(equation)
    inside = _first(jaxpr, "iota")
    if inside is not None:
        size = int(inside.params["shape"][inside.params["dimension"]])
        yield Guess("jax.nn.one_hot", (x, size))
        yield Guess("jax.nn.one_hot", (x, size), {"dtype": out.dtype})


@reader("_take", "take", "take_along_axis")
def _take(m: Matcher, equation: Equation, jaxpr: Any) -> Iterator[Guess]:
    x, index = equation.inputs[:2]
    inside = _first(jaxpr, "gather")
    if inside is None:
        return
    along = equation.origin.params["name"] == "take_along_axis"
    name = "jnp.take_along_axis" if along else "jnp.take"
    shape, out = x.aval.shape, _out(equation).shape
    rank = len(shape)
    numbers = inside.params["dimension_numbers"]
    axes = [d for d in range(rank) if not along or d >= len(out) or out[d] != shape[d]]
    axes = [d for d in axes if d in numbers.collapsed_slice_dims] or axes
    mode = str(inside.params["mode"]).rpartition(".")[2].lower().removesuffix("_or_drop")
    for axis in reversed(axes):
        named = {"axis": axis - rank if axis == rank - 1 and axis else axis}
        yield Guess(name, (x, index), named)
        if along or mode in ("fill", "clip"):
            yield Guess(name, (x, index), {**named, "mode": mode})
    yield Guess(name, (x, index))


@reader("_roll_static", "_roll_dynamic", "roll")
def _roll(m: Matcher, equation: Equation, jaxpr: Any) -> Iterator[Guess]:
    x = equation.inputs[0]
    shape = x.aval.shape
    back = [e for e in jaxpr.eqns if e.primitive.name == "split" and len(e.params["sizes"]) == 2][::-1]
    if back:  # the derivative, which is no roll where something is -0.0
        along = [(int(e.params["axis"]), int(e.params["sizes"][0])) for e in back]
        turned = [_nearest(first, shape[axis]) for axis, first in along]
        if len(along) == 1:
            yield Guess("transpose.jnp.roll", (x, turned[0]), {"axis": along[0][0]})
        else:
            yield Guess("transpose.jnp.roll", (x, tuple(turned)), {"axis": tuple([axis for axis, _ in along])})
        return
    starts = {e.outvars[0]: e.params["start_indices"] for e in jaxpr.eqns if e.primitive.name == "slice"}
    shifts: list[int] = []
    axes: list[int] = []
    for join in jaxpr.eqns:
        if join.primitive.name == "concatenate" and join.invars[0] in starts:
            axis = int(join.params["dimension"])
            shifts.append(_nearest(shape[axis] - int(starts[join.invars[0]][axis]), shape[axis]))
            axes.append(axis)
    if len(axes) == 1:
        yield Guess("jnp.roll", (x, shifts[0]), {"axis": axes[0]})
        yield Guess("jnp.roll", (x, shifts[0]))
    elif axes:
        halves = axes == list(range(len(shape))) and all(abs(s) == n // 2 for s, n in zip(shifts, shape, strict=True))
        if halves and (m.site(equation).library or ("", ""))[1] != "roll":
            yield Guess("jnp.fft.fftshift", (x,))
            yield Guess("jnp.fft.ifftshift", (x,))
        yield Guess("jnp.roll", (x, tuple(shifts)), {"axis": tuple(axes)})


def _nearest(shift: int, size: int) -> int:
    """A shift along an axis of that size as one would write it: -1, not `size - 1`."""
    shift %= size
    return shift - size if shift > size // 2 else shift


@idiom("reshape")
def _roll_of_all(m: Matcher, equation: Equation) -> Iterator[Guess]:
    call = m.producer(equation.inputs[0], "jit", "pjit")
    if call is not None and call.origin.params.get("name") == "_roll_static":
        x = m.through(call.inputs[0], "reshape")
        if x is not None:
            for guess in _roll(m, call, jax_compat.open_jaxpr(call.origin.params["jaxpr"])[0]):
                yield Guess("jnp.roll", (x, guess.args[1]))


@reader("_pad")
def _pad(m: Matcher, equation: Equation, jaxpr: Any) -> Iterator[Guess]:
    x, *values = equation.inputs
    inside = _first(jaxpr, "pad")
    if inside is None:
        return
    widths = tuple((int(a), int(b)) for a, b, _ in inside.params["padding_config"])
    options = list(dict.fromkeys([widths[0][0] if len({w for pair in widths for w in pair}) == 1 else widths, widths]))
    for width in options:
        yield Guess("jnp.pad", (x, width))
        if values:
            yield Guess("jnp.pad", (x, width), {"constant_values": values[0]})


@reader("cumsum", "cumprod", "_cumsum", "cumulative_sum", "_cumulative_sum")
def _cumulative(m: Matcher, equation: Equation, jaxpr: Any) -> Iterator[Guess]:
    x = equation.inputs[0]
    inside = _first(jaxpr, "cumsum", "cumprod")
    if inside is not None:
        name = inside.primitive.name
        yield Guess("jnp." + name, (x,), {"axis": int(inside.params["axis"])})
        yield Guess("jnp." + name, (x,))


@reader("sort", "argsort", "_argsort", "_sort")
def _sort(m: Matcher, equation: Equation, jaxpr: Any) -> Iterator[Guess]:
    x = equation.inputs[0]
    inside = _first(jaxpr, "sort")
    name = equation.origin.params["name"].removeprefix("_")
    if inside is not None:
        axis = int(inside.params["dimension"])
        rank = len(x.aval.shape)
        yield Guess("jnp." + name, (x,))
        yield Guess("jnp." + name, (x,), {"axis": axis if axis < rank - 1 else -1})
        yield Guess("jnp." + name, (x,), {"axis": axis, "descending": True})


@reader("searchsorted", "_searchsorted")
def _searchsorted(m: Matcher, equation: Equation, jaxpr: Any) -> Iterator[Guess]:
    a, v = equation.inputs[:2]
    for kwargs in ({}, {"side": "right"}, {"method": "sort"}, {"method": "compare_all"}):
        yield Guess("jnp.searchsorted", (a, v), kwargs)


@reader("_uniform", "_normal", "_gumbel", "_exponential", "_laplace", "_truncated_normal", "_normal_real", "_cauchy")
def _random(m: Matcher, equation: Equation, jaxpr: Any) -> Iterator[Guess]:
    for guess in _drawn(equation):
        yield over_keys(equation.inputs[0], guess)


def _one_shape(equation: Equation) -> tuple[int, ...]:
    """The shape of what is drawn, of what each key gives where there are several."""
    return tuple(int(n) for n in _out(equation).shape)[len(equation.inputs[0].aval.shape) :]


def _drawn(equation: Equation) -> Iterator[Guess]:
    key, *rest = equation.inputs
    out = _out(equation)
    name = "jax.random." + equation.origin.params["name"].removeprefix("_").removesuffix("_real")
    shape = _one_shape(equation)
    kwargs: dict[str, Any] = {} if str(out.dtype) == "float32" else {"dtype": out.dtype}
    if name.endswith("uniform"):
        if len(rest) == 2:
            if not shape and not kwargs:
                yield Guess(name, (key,))
            yield Guess(name, (key, shape), kwargs)
            yield Guess(name, (key, shape), {**kwargs, "maxval": rest[1]})
            yield Guess(name, (key, shape), {**kwargs, "minval": rest[0]})
            yield Guess(name, (key, shape), {**kwargs, "minval": rest[0], "maxval": rest[1]})
        return
    if name.endswith("truncated_normal"):
        yield Guess(name, (key, *rest, shape), kwargs)
        return
    if not shape and not kwargs:
        yield Guess(name, (key,))
    yield Guess(name, (key, shape), kwargs)
    yield Guess(name, (key, shape), {"dtype": out.dtype})


@reader("_bernoulli")
def _bernoulli(m: Matcher, equation: Equation, jaxpr: Any) -> Iterator[Guess]:
    key, p = equation.inputs
    shape = _one_shape(equation)
    if not shape:
        yield over_keys(key, Guess("jax.random.bernoulli", (key,)))
    yield over_keys(key, Guess("jax.random.bernoulli", (key, p)))
    yield over_keys(key, Guess("jax.random.bernoulli", (key, p, shape)))


@reader("_randint")
def _randint(m: Matcher, equation: Equation, jaxpr: Any) -> Iterator[Guess]:
    key, low, high = equation.inputs
    shape = _one_shape(equation)
    yield over_keys(key, Guess("jax.random.randint", (key, shape, low, high)))
    yield over_keys(key, Guess("jax.random.randint", (key, shape, low, high), {"dtype": _out(equation).dtype}))


@reader("_shuffle", "_permutation", "permutation", "_categorical", "categorical", "_choice")
def _permutation(m: Matcher, equation: Equation, jaxpr: Any) -> Iterator[Guess]:
    name = equation.origin.params["name"].removeprefix("_").replace("shuffle", "permutation")
    yield Guess("jax.random." + name, tuple(equation.inputs))


@reader("_cho_solve")
def _cholesky_solve(m: Matcher, equation: Equation, jaxpr: Any) -> Iterator[Guess]:
    factor, right = equation.inputs
    for lower in (True, False):
        yield Guess("jax.scipy.linalg.cho_solve", ((factor, lower), right))


@reader("_linspace")
def _linspace(m: Matcher, equation: Equation, jaxpr: Any) -> Iterator[Guess]:
    yield Guess("jnp.linspace", (*equation.inputs, int(_out(equation).shape[0])))


@reader("_einsum")
def _einsum(m: Matcher, equation: Equation, jaxpr: Any) -> Iterator[Guess]:
    from untrace.lift.recognise.idioms.linalg import _einsum as guesses

    inside = [e for e in jaxpr.eqns if e.primitive.name == "dot_general"]
    if len(inside) == 1 and len(equation.inputs) == 2:
        left, right = equation.inputs
        final = _first(jaxpr, "transpose")
        order = [int(i) for i in final.params["permutation"]] if final is not None else None
        numbers = inside[0].params["dimension_numbers"]
        swapped = inside[0].invars[0] is jaxpr.invars[1]
        pair = (right, left) if swapped else (left, right)
        yield from guesses(numbers, *pair, {}, order)


@reader("tril", "triu")
def _triangle(m: Matcher, equation: Equation, jaxpr: Any) -> Iterator[Guess]:
    x = equation.inputs[0]
    name = "jnp." + equation.origin.params["name"]
    offset = _first(jaxpr, "add")
    yield Guess(name, (x,))
    if offset is not None and type(offset.invars[1]) is jax_compat.LITERAL_TYPE:
        k = int(offset.invars[1].val)
        yield Guess(name, (x,), {"k": k})
        yield Guess(name, (x,), {"k": k + 1})


@reader("fft", "_fft")
def _fft(m: Matcher, equation: Equation, jaxpr: Any) -> Iterator[Guess]:
    x = equation.inputs[0]
    inside = _first(jaxpr, "fft")
    if inside is None:
        return
    name = "jnp.fft." + inside.params["fft_type"].name.lower()
    count = len(inside.params["fft_lengths"])
    if count == 1:
        yield Guess(name, (x,))
        for axis in range(len(x.aval.shape)):
            yield Guess(name, (x,), {"axis": axis})
    if count == 2:
        yield Guess(name + "2", (x,))
    yield Guess(name + "n", (x,))


@reader("top_k", "_top_k")
def _top_k(m: Matcher, equation: Equation, jaxpr: Any) -> Iterator[Guess]:
    inside = _first(jaxpr, "top_k")
    if inside is not None:
        yield Guess("lax.top_k", (equation.inputs[0], int(inside.params["k"])))
