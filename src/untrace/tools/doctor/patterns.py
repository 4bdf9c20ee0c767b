"""What the two sides of a repair trace to, and where the first of them is found in a program.

A pattern is never written as equations: the function that says what is written is traced, and so is its derivative, as JAX
differentiates it. Terms (`terms`) make the ways of writing the same alike, and either order of a sum or a product will do.
"""

from __future__ import annotations

import functools
import math
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from untrace import jax_compat
from untrace.capture.jaxpr import Importer
from untrace.ir.liveness import needed_for
from untrace.ir.nodes import Atom, Equation, Function, Literal, Primitive, Value
from untrace.ir.types import Data
from untrace.tools.doctor.better import Better
from untrace.tools.doctor.matching import Affine, Bound, Matcher, Parted, Pattern
from untrace.tools.doctor.pair import Pair
from untrace.tools.doctor.pairs import PAIRS, ZERO_DIVIDEND, ZERO_FACTOR
from untrace.tools.doctor.series import series_patterns
from untrace.tools.doctor.tape import is_float
from untrace.tools.doctor.terms import (
    PRODUCTS,
    SUMS,
    Gap,
    Operand,
    Term,
    Terms,
    bodies_of,
    inlined,
    is_product_of_vectors,
    is_widening,
    with_bodies,
)

_FEW = 4  # operations
_LARGEST = 400  # terms of a pattern: nobody writes more of them in one expression


@dataclass(frozen=True, slots=True)
class Match:
    """A pattern that ends at an equation of a program, what its holes are there, and the number that it is multiplied by.
    `moves`: what picks and places numbers after it, the first first: `log(softmax(x)[i])` is `log_softmax(x)[i]`.
    `beside`: what else is in the sum or product that it is in.
    `inside`: the loops and choices around it, each as the number of an equation and of a body."""

    pattern: Pattern
    anchor: Equation
    bound: Sequence[Affine]
    factor: float = 1.0
    moves: tuple[Equation, ...] = ()
    beside: Parted | None = None
    inside: tuple[tuple[int, int], ...] = ()

    @property
    def name(self) -> str:
        return self.pattern.name


def place_of_match(function: Function, match: Match) -> tuple[int, ...]:
    """Where a match ends: the numbers of the equations and bodies on the way to it."""
    for number, body in match.inside:
        function = bodies_of(function.equations[number].callee)[body]
    return (*[n for pair in match.inside for n in pair], function.equations.index(match.anchor))


def matches_in(function: Function, derivatives: frozenset[str] | None, only: Pair | None = None) -> list[Match]:
    """Every place in `function`, whose calls are inlined, where something is written that can be repaired; the largest
    patterns first. derivatives: derivatives of what is written are looked for too, where what is differentiated has these
    operations. only: of this pair."""
    terms = Terms(function)
    names = Names(terms.operations, derivatives, only)
    elementwise, arrays = _elementwise(names), _array_patterns(function, names)
    makers = terms.once(function.equations)
    found: list[Match] = []
    for number, equation in enumerate(function.equations):
        for place, body in enumerate(bodies_of(equation.callee)):
            found += [
                replace(match, inside=((number, place), *match.inside)) for match in matches_in(body, derivatives, only)
            ]
        value = equation.outputs[0] if len(equation.outputs) == 1 else None
        if value is None or not is_float(value.aval.dtype):
            continue
        if only is ZERO_FACTOR or only is ZERO_DIVIDEND:
            found += _before_zero(terms, equation, only)
            continue
        factor, inner = terms.factor(value)
        moves, moved = terms.unmoved(value)
        starts: list[tuple[float, tuple[Equation, ...], Operand | None]] = [(1.0, (), value)]
        starts += [(factor, (), inner)] * (factor != 1.0) + [(1.0, moves, moved)]
        normal = terms.term(inner) if inner is not None else None
        if equation.callee.name == "mul" and type(normal) is Term and any(type(a) is Term for a in normal.args):
            # Of `x * rsqrt(y)` the root is no value that could be bound.
            starts.append((1.0, (), Term("mul", tuple(equation.inputs))))
        for times, behind, start in starts:
            root = terms.term(start) if start is not None else None
            if type(root) is not Term or start is None:
                continue
            shape = behind[0].inputs[0].aval.shape if behind else value.aval.shape
            patterns = [*elementwise.get(root.name, ()), *arrays.get((root.name, value.aval.dtype), ())]
            for pattern in patterns:
                matcher = Matcher(pattern, terms, value.aval.dtype, shape)
                bound = next(
                    (b for b in matcher.matches(pattern.root, start, {}) if len(b) == len(pattern.holes)), None
                )
                if bound is not None:
                    found.append(Match(pattern, equation, _in_order(pattern, bound), times, behind))
        found += _parted_in(terms, equation, value, elementwise, arrays)
        if only is None or not only.known:
            found += [Match(p, equation, [*map(Affine, of)]) for p, of in series_patterns(makers, terms, equation)]
    # What is a norm as it stands is no multiple of a root mean square.
    plain = {m.anchor for m in found if m.pattern.pair.arrays and _is_plainly(m)}
    found = [m for m in found if not m.pattern.pair.arrays or m.anchor not in plain or _is_plainly(m)]
    return sorted(found, key=lambda match: (-match.pattern.size, not _is_plainly(match)))


def _before_zero(terms: Terms, equation: Equation, pair: Pair) -> Iterator[Match]:
    """A product with either factor, or a quotient with its dividend, as what may be zero."""
    if equation.callee.name != ("mul" if pair is ZERO_FACTOR else "div"):
        return
    root = Term(equation.callee.name, tuple(equation.inputs))
    for place, part in enumerate(("", ", the other factor") if pair is ZERO_FACTOR else ("",)):
        pattern = Pattern(pair, part, terms, root, (), pair.better, pair.better, 1, True, frozenset())
        first, second = equation.inputs[place], equation.inputs[1 - place]
        yield Match(pattern, equation, (Affine(first), Affine(second)))


def _is_plainly(match: Match) -> bool:
    """Whether it is what the pattern says, doubled or halved perhaps, and no other multiple of it: a norm is one of a root
    mean square."""
    part, _ = math.frexp(abs(match.factor * (match.beside.factor if match.beside is not None else 1.0)))
    return math.isclose(part, 0.5, rel_tol=1e-6) or math.isclose(part, 1.0, rel_tol=1e-6)


def _array_patterns(function: Function, names: Names) -> Mapping[object, Sequence[Pattern]]:
    """Patterns of the reductions in a program, and of running ones: by the terms that they end in, and their types."""
    reduced = {
        (e.inputs[0].aval.shape, e.inputs[0].aval.dtype, tuple(e.params["axes"])): None
        for e in function.equations
        if e.callee.name in ("reduce_sum", "reduce_prod", "reduce_max") and is_float(e.inputs[0].aval.dtype)
    }
    reduced |= {
        (e.inputs[0].aval.shape, e.inputs[0].aval.dtype, (0,)): None
        for e in function.equations
        if is_product_of_vectors(e)
    }
    reduced |= {
        (e.inputs[0].aval.shape, e.inputs[0].aval.dtype, (int(e.params["axis"]),)): None
        for e in function.equations
        if e.callee.name in ("cumsum", "cumprod") and is_float(e.inputs[0].aval.dtype)
    }
    # Sums of short numbers are computed in longer ones.
    short = {e.inputs[0].aval.dtype for e in function.equations if is_widening(e)}
    reduced |= {(shape, dtype, axes): None for shape, _, axes in reduced for dtype in short}
    found: dict[object, list[Pattern]] = {}
    for shape, dtype, axes in reduced:
        for pattern in _of_arrays(jax.ShapeDtypeStruct(shape, dtype), axes, names):
            found.setdefault((pattern.root.name, dtype), []).append(pattern)
    return found


# ---------------------------------------------------------------- tracing


@dataclass(frozen=True, slots=True)
class Names:
    """The operations of a program, and those of what is differentiated in it; None of what is no derivative. What is in neither
    need not be looked for, and traced before: most of what is written needs a logarithm, or a root."""

    own: frozenset[str]
    derivatives: frozenset[str] | None
    only: Pair | None

    def ways(self, pair: Pair) -> Iterator[tuple[int, bool]]:
        """Which ways of writing a pair may be in the program, and whether their derivatives may be."""
        slopes = self.derivatives is not None and not pair.is_derivative
        names = self.own | self.derivatives if self.derivatives is not None and slopes else self.own
        names |= {"sqrt"} if names & {"rsqrt", "pow"} else set()
        for number, needed in enumerate(_needed(pair) if self.only in (None, pair) else ()):
            if needed <= names:
                yield number, slopes


@functools.cache
def _needed(pair: Pair) -> Sequence[frozenset[str]]:
    """The operations that each way of writing a pair has, whatever the shapes are: those that are written in one way only."""
    kinds = jax.ShapeDtypeStruct((3,) if pair.arrays else (), np.float32)
    options = {"axis": 0, "keepdims": False} if pair.arrays else {}
    found = []
    for written in pair.written:
        function = traced(functools.partial(written, **options), [_hole_type(k, kinds) for k in pair.holes], pair.name)
        names = Terms(function).operations if function is not None else frozenset()
        found.append(names & EVERY)
    return found


# What there is one name for, in a program and in its terms. Products of matrices are sums of arrays too.
EVERY = frozenset(
    "sqrt exp log log1p expm1 sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh erf erfc lgamma logistic cbrt"
    " reduce_max reduce_prod".split()
)


def _elementwise(names: Names) -> Mapping[str, Sequence[Pattern]]:
    number = jax.ShapeDtypeStruct((), np.float32)
    found: dict[str, list[Pattern]] = {}
    for pair in PAIRS:
        for way, slopes in () if pair.arrays else names.ways(pair):
            for pattern in _patterns(pair, way, number, None, slopes):
                found.setdefault(pattern.root.name, []).append(pattern)
    return found


def _of_arrays(array: jax.ShapeDtypeStruct, axes: tuple[int, ...], names: Names) -> Iterator[Pattern]:
    for pair in PAIRS:
        for way, slopes in names.ways(pair) if pair.arrays else ():
            for keepdims in (False, True):
                yield from _patterns(pair, way, array, (axes, keepdims), slopes)


def _hole_type(kind: str, number: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(number.shape, np.bool_) if kind == "bool" else number


@functools.lru_cache(8192)
def _patterns(
    pair: Pair, way: int, aval: jax.ShapeDtypeStruct, reduced: tuple[tuple[int, ...], bool] | None, derivatives: bool
) -> Sequence[Pattern]:
    """One way of writing a pair, and its derivatives. reduced: the axes of an array, and whether they are kept."""
    options: dict[str, object] = {}
    if reduced is not None:
        axes, keepdims = reduced
        options = {"axis": axes[0] if len(axes) == 1 else axes, "keepdims": keepdims}
    avals = [_hole_type(kind, aval) for kind in pair.holes]
    better = functools.partial(pair.better, **options) if options else pair.better
    slopes = [functools.partial(s, **options) if s is not None and options else s for s in pair.slopes]
    ruled = _ruled(better, slopes, len(avals), not pair.arrays) if any(slopes) else better
    written = functools.partial(pair.written[way], **options)
    function = traced(written, avals, pair.name)
    if function is None:  # not for these shapes
        return ()
    found = [_pattern(pair, "", function, better, ruled)]
    out = jax.ShapeDtypeStruct(function.results[0].aval.shape, function.results[0].aval.dtype)
    for place in [i for i, a in enumerate(avals) if derivatives and is_float(a.dtype)]:
        slope = slopes[place] if place < len(slopes) else None
        right = slope or _pulled(better, place)
        part = f", its derivative by operand {place}" if len(avals) > 1 else ", its derivative"
        pulled = traced(_pulled(written, place), [*avals, out], pair.name)
        if pulled is not None:
            found.append(_pattern(pair, part, pulled, right, right))
            # What is differentiated itself has 1 for the cotangent.
            one = _with_one(right, out, not pair.arrays)
            found.append(_pattern(pair, part, _of_one(pulled), one, one))
    return [pattern for pattern in found if pattern is not None]


def _of_one(function: Function) -> Function:
    """A function with 1 for its last operand."""
    *params, last = function.params
    one = Literal(np.ones((), last.aval.dtype)[()], jax.core.ShapedArray((), last.aval.dtype))
    equations = [
        Equation(e.callee, [one if a is last else a for a in e.inputs], e.outputs, e.params, e.origin)
        for e in function.equations
    ]
    return Function(function.name, params, equations, function.results)


def _ruled(
    better: Callable[..., Data], slopes: Sequence[Callable[..., Data] | None], holes: int, elementwise: bool
) -> Callable[..., Data]:
    """A better way of writing whose derivatives are those that its pair has."""
    ruled = jax.custom_vjp(lambda *args: better(*args))

    def back(args: tuple[Data, ...], ct: Data) -> tuple[Data, ...]:
        own = [slopes[i] if i < len(slopes) else None for i in range(holes)]
        found = [(slope or _pulled(better, i))(*args[:holes], ct) for i, slope in enumerate(own)]
        return (*found, *map(jnp.zeros_like, args[holes:]))  # the difference of two holes is no third

    ruled.defvjp(lambda *args: (better(*args), args), back)
    return lambda *args: ruled(*jnp.broadcast_arrays(*args)) if elementwise else ruled(*args)


def _pulled(function: Callable[..., Data], place: int) -> Callable[..., Data]:
    def pulled(*args: Data) -> Data:
        *inputs, cotangent = args

        def of_one(x: Data) -> Data:
            return function(*inputs[:place], x, *inputs[place + 1 :])

        return jax.vjp(of_one, inputs[place])[1](cotangent)[0]

    return pulled


def _with_one(function: Callable[..., Data], out: jax.ShapeDtypeStruct, elementwise: bool) -> Callable[..., Data]:
    def with_one(*args: Data) -> Data:
        shape = jnp.broadcast_shapes(*[jnp.shape(x) for x in args]) if elementwise else out.shape
        dtype = next(jnp.result_type(x) for x in args if is_float(jnp.result_type(x)))
        return function(*args, jnp.ones(shape, dtype))

    return with_one


def _pattern(
    pair: Pair, part: str, function: Function, better: Callable[..., Data], ruled: Callable[..., Data]
) -> Pattern | None:
    if type(function.results[0]) is not Value:
        return None
    terms = Terms(function)
    root = terms.term(function.results[0])
    if type(root) is not Term:
        return None
    size = _size(terms, root) - (terms.factor(root)[0] != 1.0)
    if not 1 < size < _LARGEST:
        return None
    used = _leaves(terms, root)
    # A hole that the derivative does not need is bound to nothing: then the pattern does not say what to write.
    if not all(hole in used for hole in function.params):
        return None
    heads, gap = _heads(terms, root), pair.gap and not part
    return Pattern(pair, part, terms, root, function.params, better, ruled, size, not pair.arrays, heads, gap)


def traced(function: Callable[..., Data], avals: Sequence[Data], name: str) -> Function | None:
    """What a function of flat arrays traces to, its calls inlined; None where it is none of such types."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            closed = jax.make_jaxpr(function)(*avals)
    except Exception:  # a pair need not be a legal call for every type
        return None
    return inlined(Importer(rules=False).function(closed, name))


def _heads(terms: Terms, root: Term) -> frozenset[str]:
    return terms.heads(root, root.name in SUMS) if root.name in SUMS + PRODUCTS else frozenset()


def _size(terms: Terms, root: Operand) -> int:
    """How many terms there are in one, each as often as it stands there; no more than one too many are counted."""
    size, stack = 0, [root]
    while stack and size <= _LARGEST:
        term = terms.term(stack.pop())
        if type(term) is Term:
            size += 1
            stack.extend(term.args)
    return size


def _leaves(terms: Terms, x: Operand) -> set[Operand]:
    term = terms.term(x)
    if type(term) is Term:
        return {leaf for a in term.args for leaf in _leaves(terms, a)}
    return set() if isinstance(term, float) else {term}


# ---------------------------------------------------------------- matching


def _in_order(pattern: Pattern, bound: Bound) -> list[Affine]:
    return [bound[hole] for hole in pattern.holes]


def _parted_in(
    terms: Terms,
    equation: Equation,
    value: Value,
    elementwise: Mapping[str, Sequence[Pattern]],
    arrays: Mapping[object, Sequence[Pattern]],
) -> Iterator[Match]:
    """Patterns that are some of the parts of a sum or a product, in any order."""
    term = terms.term(value)
    names = next((n for n in (SUMS, PRODUCTS) if type(term) is Term and term.name in n), ())
    heads = terms.heads(value, names is SUMS)
    for name in names:
        for pattern in [*elementwise.get(name, ()), *arrays.get((name, value.aval.dtype), ())]:
            if pattern.pair.is_derivative or not pattern.heads <= heads:
                continue
            matcher = Matcher(pattern, terms, value.aval.dtype, value.aval.shape)
            for parted in matcher.parted(pattern.root, value, {}, False):
                if len(parted.bound) == len(pattern.holes) and all(
                    x is None or not isinstance(x, (float, Term)) and x not in terms.inner for x, _ in parted.rest
                ):
                    yield Match(pattern, equation, _in_order(pattern, parted.bound), parted.factor, (), parted)
                    break


def replaced(function: Function, match: Match, with_rule: bool = False) -> Function | None:
    """The function with the better way of writing in the place of what was matched; None where that is no function of
    what stands there. with_rule: what is written has the derivatives that its pair says: it is to be differentiated."""
    if match.inside:
        (number, place), *rest = match.inside
        outer = function.equations[number]
        bodies = list(bodies_of(outer.callee))
        inner = replaced(bodies[place], replace(match, inside=tuple(rest)), with_rule)
        if inner is None:
            return None
        bodies[place] = inner
        whole = Equation(with_bodies(outer.callee, bodies), outer.inputs, outer.outputs, outer.params, outer.origin)
        equations = [whole if n == number else e for n, e in enumerate(function.equations)]
        return Function(function.name, function.params, equations, function.results, function.jaxpr)
    avals = [jax.ShapeDtypeStruct(a.atom.aval.shape, a.atom.aval.dtype) for a in match.bound]
    out = match.anchor.outputs[0]
    assert out is not None
    shape = match.moves[0].inputs[0].aval.shape if match.moves else out.aval.shape

    write = match.pattern.ruled if with_rule else match.pattern.better

    rest = match.beside.rest if match.beside is not None else ()
    others = [x for x, _ in rest if x is not None and not isinstance(x, (float, Term))]
    is_sum = match.beside is not None and match.beside.is_sum
    gap = _gap(function, match)
    others += [] if gap is None else [x for x, _ in gap.items]
    avals += [jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in others]

    def typed(*args: Data) -> Data:
        holes = [_moved_by(x, a) for x, a in zip(args, match.bound, strict=False)]
        if gap is not None:
            left = args[len(args) - len(gap.items) :]
            parts = [_moved_by(x, Affine(a, times)) for x, (a, times) in zip(left, gap.items, strict=True)]
            parts += [gap.number] if gap.number or not parts else []
            holes.append(functools.reduce(operator.add, parts))
        found = write(*holes)
        found = found if match.factor == 1.0 else match.factor * found
        more = iter(args[len(match.bound) :])
        for x, count in rest:
            found = _beside(found, count if x is None else next(more), count, x is None or is_sum)
        found = found if jnp.result_type(found) == out.aval.dtype else jnp.asarray(found, out.aval.dtype)
        return found if jnp.shape(found) == shape else jnp.broadcast_to(found, shape)

    body = traced(typed, avals, match.pattern.pair.name)
    if body is None:
        return None
    new = Value(body.results[0].aval)
    better = Better(body, typed)
    call = Equation(
        Primitive(better), [*[a.atom for a in match.bound], *others], [new], {"better": better}, match.anchor.origin
    )
    # What only moves a zero makes places for the same again, and what is a few operations may be repaired in its turn.
    put = _opened(call) if match.pattern.pair.is_derivative or _is_plain(body) else ([call], new)
    for move in match.moves:
        after = Value(_out(move).aval)
        inputs = [put[1], *move.inputs[1:]]
        put = ([*put[0], Equation(move.callee, inputs, [after], move.params, move.origin)], after)
    place = function.equations.index(match.anchor)
    known = {*function.params, *[o for e in function.equations[:place] for o in e.outputs]}
    if any(type(a) is Value and a not in known for a in call.inputs):
        return None  # the same is computed, but later
    equations = [*function.equations[:place], *put[0]]
    for e in function.equations[place + 1 :]:
        inputs = [put[1] if a is out else a for a in e.inputs]
        changed = any(a is out for a in e.inputs)
        equations.append(Equation(e.callee, inputs, e.outputs, e.params, e.origin) if changed else e)
    results = [put[1] if r is out else r for r in function.results]
    return without_dead(Function(function.name, function.params, equations, results, function.jaxpr))


def _gap(function: Function, match: Match) -> Gap | None:
    """What the difference of the first two holes is, where they are sums that have something in common."""
    if not match.pattern.gap:
        return None
    terms, (one, other, *_) = Terms(function), match.bound
    shifts = [(one.shift, 1.0), (other.shift, -1.0)]
    return terms.difference([(one.atom, one.scale), (other.atom, -other.scale), *shifts])


def _moved_by(x: Data, by: Affine) -> Data:
    x = x if by.scale == 1.0 else by.scale * x
    return x if by.shift == 0.0 else x + by.shift


def _beside(found: Data, x: Data, count: float, is_sum: bool) -> Data:
    """What a sum or a product gives with one of its other parts."""
    if is_sum:
        return found + x if count == 1.0 or isinstance(x, float) else found - x if count == -1.0 else found + count * x
    for _ in range(abs(int(count))):
        found = found * x if count > 0 else found / x
    return found


def _out(equation: Equation) -> Value:
    (out,) = equation.outputs
    assert out is not None
    return out


def _is_plain(body: Function) -> bool:
    """Whether a better way of writing is a few operations of what it is given, and no function that has a name."""
    plain = all(type(e.callee) is Primitive and all(type(a) is Value for a in e.inputs) for e in body.equations)
    return plain and len(body.equations) <= _FEW


def _opened(call: Equation) -> tuple[list[Equation], Atom]:
    """The equations of a better way of writing, as if they had been made where it stands, and their result."""
    callee = call.callee
    assert type(callee) is Primitive
    body = callee.object.body
    env: dict[Value, Atom] = dict(zip(body.params, call.inputs, strict=True))
    equations: list[Equation] = []

    def read(atom: Atom) -> Atom:
        return env[atom] if type(atom) is Value else atom

    for equation in body.equations:
        outputs = [None if o is None else Value(o.aval) for o in equation.outputs]
        origin = jax_compat.with_source_of(equation.origin, call.origin)
        inputs = [read(a) for a in equation.inputs]
        equations.append(Equation(equation.callee, inputs, outputs, equation.params, origin))
        env.update((o, x) for o, x in zip(equation.outputs, outputs, strict=True) if o is not None and x is not None)
    return equations, read(body.results[0])


def without_dead(function: Function) -> Function:
    """The function without equations whose results nobody needs."""
    kept = needed_for(function, function.results, effects=True)
    return Function(function.name, function.params, kept, function.results, function.jaxpr)
