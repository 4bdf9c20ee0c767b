"""What a text for another target is worth: run beside the original, on the example and on sampled inputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

import jax
import numpy as np
from jax.typing import DTypeLike

from untrace import jax_compat
from untrace._errors import UnsupportedPrimitiveError
from untrace.ir.nodes import Equation, Function, While, functions_called
from untrace.ir.types import Data, Parameter
from untrace.prove.report import Proof
from untrace.prove.run import close_ulps, same_bits, type_difference, ulps
from untrace.prove.sample import CannotSample, LeafType, distinct, is_concrete, sample_inputs

SAMPLES = 16
_EDGES = (3, 4, 5, 7)  # of eight samples those with edge values, as `sample_inputs` draws them
_CONSTANT = (1, 2)  # those of zeros and of ones: matrices have no factors of their own there, logarithms cancel
_FACTORS = frozenset({"cholesky", "lu", "qr", "geqrf", "householder_product", "eigh", "eig", "svd", "triangular_solve"})
_EXPLAINED = 64  # times what one rounding of everything moves a result by, several may move it
# The same of integers, and of a type of 16 bits, of which 64 units are a sixteenth or a half of the number.
_EXPLAINED_NARROW = 4
# Of the samples those where a number that may be a place in an array is outside of it, on either side.
_OUTSIDE = (8, 9)
_LINES = 300_000  # of Python that a text runs on a sampled input


class Endless(Exception):
    """A text has not come to its end within some time: one that runs outside of Python raises it by itself."""


@jax_compat.quiet_callbacks()
def checked(
    original: Callable[..., Data],
    rounded: Callable[..., Data],
    text: Callable[..., Data],
    leaves: Sequence[Data],
    names: Sequence[str],
    program: Function | None = None,
) -> Proof:
    """`bits`, `close` or `unproven`, from running a text and its original (jitted) on flat leaves, the original's own first.

    close: to the last digits of each result's largest number, or as far apart as the original and `rounded` are, which
    computes the same with another rounding; how far that is, in units in the last place, is said. On edge values, and
    where the original overflows, that explains less: where results differ there, a note says so; but integers of integers
    are the same. program: the original's, of which is asked whether it `may_not_end`, whether it factors matrices (those of
    equal numbers are singular, or not, as it rounds), and whether it leaves the order of equal numbers open. Raises
    UnsupportedPrimitiveError where running a text does.
    """
    worst, where, edges, moved, count, exact, agreed = 0.0, "", 0, 0, 0, True, not names
    is_example = all(map(is_concrete, leaves))
    has_open_orders = program is not None and _runs(
        program, lambda e: leaves_an_order_open(e.callee.name, e.params, len(e.inputs))
    )
    has_open_loops = program is not None and may_not_end(program)
    has_factors = program is not None and _runs(program, _factors)
    has_svd = program is not None and _runs(program, lambda equation: equation.callee.name == "svd")
    of_integers = all(_is_integer(LeafType.of(x).dtype) for x in leaves)
    try:
        for number, inputs in enumerate(sample_inputs(leaves, samples=SAMPLES)):
            if number and (has_open_loops and has_extremes(inputs) or has_svd and not _is_finite(inputs)):
                continue
            if number in _OUTSIDE:
                inputs = _outside(inputs, -1 if number % 2 else 1)
            if has_open_orders:
                generator = np.random.default_rng(number)
                inputs = [distinct(x, generator) for x in inputs]
            found = _within(
                None if is_example and not number else _LINES, text, [jax_compat.as_numpy(x) for x in inputs]
            )
            if found is None:  # a loop that may never end, and then in the original neither, which nothing could stop
                continue
            try:
                expected = jax.block_until_ready(jax.tree.leaves(original(*inputs)))
            except Exception:  # the user's program may refuse an input
                continue
            if isinstance(found, Exception):
                raise found
            count += 1
            is_edge = number % 8 in _EDGES
            results = [jax_compat.as_numpy(x) for x in expected]
            overflows = number and not all(
                np.isfinite(r).all() for r in results if jax.dtypes.issubdtype(r.dtype, np.inexact)
            )
            for place, (name, y, wanted) in enumerate(zip(names, found, results, strict=True)):
                types = type_difference(wanted, np.asarray(y))
                if types:
                    return Proof("unproven", f"{name}: {types}")
                given = np.asarray(y)
                if same_bits(wanted, given):
                    agreed = True
                    continue
                exact = False
                apart, is_alike = _distance(wanted, given)
                if is_alike and apart <= close_ulps(wanted.dtype):
                    agreed = True
                    if apart > worst:
                        worst, where = apart, name
                elif (
                    is_edge
                    and not (of_integers and _is_integer(wanted.dtype))
                    or (is_alike or has_factors)
                    and number in _CONSTANT
                    or overflows
                    and not is_alike
                ):
                    edges += 1
                elif _explains(_distance(wanted, jax_compat.as_numpy(rounded(*inputs)[place]))[0], apart, wanted.dtype):
                    moved += 1
                else:
                    return Proof(
                        "unproven", f"{name} differs by {ulps(apart)} of its largest number at sampled input {number}"
                    )
    except CannotSample as error:
        return Proof("unproven", str(error))
    except UnsupportedPrimitiveError:  # there is no right text of this
        raise
    except Exception as error:  # the text is wrong in some way: that is what this is for
        return Proof("unproven", f"the text raises {type(error).__name__}: {error}")
    if not count:
        return Proof("unproven", "the original runs on none of the sampled inputs")
    if not agreed:
        return Proof("unproven", "the results are close on none of the sampled inputs")
    on = f"on {count} sampled inputs"
    open_orders = ["on numbers that are not equal: the original leaves the order of equal ones open"] * has_open_orders
    if exact:
        return Proof("bits", on, tuple(open_orders))
    notes = [f"on edge values (overflow, NaN, subnormals, all zeros or ones) {edges} results differ"] if edges else []
    if moved:
        notes.insert(0, f"{moved} results are further apart, as another rounding of the original's own operations is")
    in_which = f" of the largest number in {where}" if where else ""
    return Proof("close", f"within {ulps(max(worst, 1.0))}{in_which}, {on}", (*open_orders, *notes))


def _outside(inputs: Sequence[Data], sign: int) -> list[Data]:
    """Inputs whose integers that are no arrays are just outside of the longest axis, where its places are counted from 0 (sign:
    1), or from its end (-1)."""
    size = max([n for x in inputs for n in np.shape(x)], default=0)
    number = size if sign > 0 else -size - 1
    found = list(inputs)
    for place, value in enumerate(inputs):
        dtype = np.dtype(np.int32) if type(value) is int else getattr(value, "dtype", np.dtype(bool))
        if size and not np.shape(value) and jax.dtypes.issubdtype(dtype, np.integer):
            if jax.numpy.iinfo(dtype).min <= number <= jax.numpy.iinfo(dtype).max:
                found[place] = number if type(value) is int else value * 0 + number
    return found


def may_not_end(function: Function) -> bool:
    """Whether a loop in it ends when its numbers say so: of the least integer JAX's own `gcd` never does, and nothing could
    stop it."""
    return _runs(function, lambda equation: type(equation.callee) is While)


def _factors(equation: Equation) -> bool:
    return equation.callee.name in _FACTORS


def leaves_an_order_open(primitive: str, params: Mapping[str, Parameter], operands: int) -> bool:
    """Whether the places of equal elements may be any: JAX promises none, and gives one here and another elsewhere."""
    is_unstable = primitive == "sort" and not params["is_stable"] and operands > params["num_keys"]
    return is_unstable or primitive == "approx_top_k"


def _runs(function: Function, is_one: Callable[[Equation], bool]) -> bool:
    """Whether one of its equations, or of those of the functions that it calls, is one."""
    seen = {function}
    stack = [function]
    while stack:
        for equation in stack.pop().equations:
            if is_one(equation):
                return True
            inner = [body for body in functions_called(equation) if body not in seen]
            seen.update(inner)  # a derivative rule may call the function that it is of
            stack += inner
    return False


def has_extremes(inputs: Sequence[Data]) -> bool:
    """Whether there are integers among them that are the largest or the least of their type, or next to these."""
    for array in map(jax_compat.as_numpy, inputs):
        if jax.dtypes.issubdtype(array.dtype, np.integer):
            info = jax.numpy.iinfo(array.dtype)
            if np.any((array >= info.max - 1) | ((array <= info.min + 1) & (info.min < 0))):
                return True
    return False


def _is_finite(inputs: Sequence[Data]) -> bool:
    """Whether all numbers are: of a matrix with an infinite one LAPACK's singular values may not come, and stop for nobody."""
    arrays = map(jax_compat.as_numpy, inputs)
    return all(np.isfinite(a).all() for a in arrays if jax.dtypes.issubdtype(a.dtype, np.inexact))


def _is_integer(dtype: DTypeLike) -> bool:
    return jax.dtypes.issubdtype(dtype, np.integer) or dtype == np.bool_  # keys are no types of NumPy


def _explains(rounding: float, apart: float, dtype: np.dtype) -> bool:
    """Whether results may be so far apart where another rounding of everything moves them by `rounding`.

    Where that leaves no digit, as of the inverse of a singular matrix, infinities and NaN are as likely as any number.
    """
    is_inexact = jax.dtypes.issubdtype(dtype, np.inexact)
    times = _EXPLAINED if is_inexact and jax.numpy.finfo(dtype).bits > 16 else _EXPLAINED_NARROW
    return apart <= times * rounding or is_inexact and rounding * float(jax.numpy.finfo(dtype).eps) >= 1


class _TooLong(BaseException):
    """More lines have run than a text may have."""


def _within(lines: int | None, text: Callable[..., Data], inputs: Sequence[np.ndarray]) -> Data | Exception | None:
    """What a text gives, or raises; None where it has not come to its end within so many lines of Python."""
    left, before = lines, sys.gettrace()

    def trace(frame: FrameType, event: str, arg: object) -> Callable[..., Data]:
        nonlocal left
        if left is not None:
            left -= 1
            if left < 0:
                raise _TooLong
        return trace

    if lines is not None:
        sys.settrace(trace)
    try:
        return text(*inputs)
    except (_TooLong, Endless):
        return None
    except Exception as error:
        return error
    finally:
        sys.settrace(before)


def _distance(wanted: np.ndarray, given: np.ndarray) -> tuple[float, bool]:
    """(how far apart two arrays are, in units in the last place of the largest finite number; whether they are infinite or
    NaN at the same places). Of integers: how far at most; False where they differ."""
    if not jax.dtypes.issubdtype(wanted.dtype, np.inexact):
        if np.array_equal(wanted, given):
            return 0.0, True
        apart = np.abs(wanted.astype(np.float64) - given.astype(np.float64)).max(initial=1.0)
        return float(apart), False  # at least 1, which float64 does not see of large ones
    wide = np.complex128 if np.iscomplexobj(wanted) else np.float64
    a, b = wanted.astype(wide), given.astype(wide)
    finite = np.isfinite(a)
    is_alike = np.array_equal(finite, np.isfinite(b)) and np.array_equal(a[~finite], b[~finite], equal_nan=True)
    if not is_alike:
        return np.inf, False
    info = jax.numpy.finfo(wanted.dtype)
    a, b = a[finite], b[finite]
    unit = float(info.eps) * np.abs(a).max(initial=0.0)
    is_small = np.maximum(np.abs(a), np.abs(b)) < info.tiny  # which XLA makes zeros
    apart = float(np.where(is_small, 0.0, np.abs(a - b)).max(initial=0.0))
    return (apart / unit if unit else np.inf) if apart else 0.0, True
