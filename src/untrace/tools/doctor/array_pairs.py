"""Repairs of sums, means and other reductions of arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from untrace.ir.types import Data
from untrace.tools.doctor.pair import TWO, Pair


def _norm(x: Data, axis: Data, keepdims: bool) -> Data:
    return jnp.sqrt(jnp.sum(x * x, axis=axis, keepdims=keepdims))


def _norm_slope(x: Data, ct: Data, axis: Data, keepdims: bool) -> Data:
    """The direction of x, 0 where x is 0."""
    size = _norm(x, axis, True)
    direction = x / jnp.where(size == 0, 1.0, size)
    return (ct if keepdims else _with_axes(ct, axis, x)) * direction


def _with_axes(ct: Data, axis: Data, x: Data) -> Data:
    axes = axis if isinstance(axis, tuple) else (axis,)
    return jnp.expand_dims(ct, tuple([a % x.ndim for a in axes]))


def _normalised(x: Data, axis: Data, keepdims: bool) -> Data:
    """The direction of x, 0 where x is 0; the largest of the numbers that are squared is 1."""
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=axis, keepdims=True))
    x = x / jnp.where(largest == 0, 1.0, largest)
    size = _norm(x, axis, True)
    return x / jnp.where(size == 0, 1.0, size)


def _standardised(x: Data, axis: Data, keepdims: bool) -> Data:
    """The distance from the mean in standard deviations, 0 where all are equal."""
    size = jnp.std(x, axis=axis, keepdims=True)
    is_alike = jnp.max(x, axis=axis, keepdims=True) == jnp.min(x, axis=axis, keepdims=True)
    off = jnp.where(is_alike, 0.0, x - jnp.mean(x, axis=axis, keepdims=True))
    return off / jnp.where(size == 0, 1.0, size)


def _variance(x: Data, axis: Data, keepdims: bool) -> Data:
    return jnp.var(x, axis=axis, keepdims=keepdims)


def _std_slope(x: Data, ct: Data, axis: Data, keepdims: bool) -> Data:
    size = jnp.std(x, axis=axis, keepdims=True)
    off = x - jnp.mean(x, axis=axis, keepdims=True)
    off = off - jnp.mean(off, axis=axis, keepdims=True)  # what the mean's own rounding has left
    count = x.size // max(size.size, 1)
    ct = ct if keepdims else _with_axes(ct, axis, x)
    return ct * off / (jnp.where(size == 0, 1.0, size) * count)


def _centred_product(x: Data, y: Data, axis: Data, keepdims: bool) -> Data:
    off = (x - jnp.mean(x, axis=axis, keepdims=True)) * (y - jnp.mean(y, axis=axis, keepdims=True))
    return jnp.mean(off, axis=axis, keepdims=keepdims)


def _masked_softmax(x: Data, m: Data, axis: Data, keepdims: bool) -> Data:
    kept = jnp.where(m == 0, -jnp.inf, x)
    weights = m * jnp.exp(kept - jnp.max(kept, axis=axis, keepdims=True))
    return weights / jnp.sum(weights, axis=axis, keepdims=True)


def _rms(x: Data, axis: Data, keepdims: bool) -> Data:
    return jnp.sqrt(jnp.mean(x * x, axis=axis, keepdims=keepdims))


def _rms_slope(x: Data, ct: Data, axis: Data, keepdims: bool) -> Data:
    size = _rms(x, axis, True)
    count = x.size // max(size.size, 1)
    return (ct if keepdims else _with_axes(ct, axis, x)) * (x / (count * jnp.where(size == 0, 1.0, size)))


def _size(x: Data, axis: Data) -> int:
    """How many numbers are reduced to one."""
    return x.size // max(jnp.sum(x, axis=axis).size, 1)


def _squares_about_mean(x: Data, axis: Data, keepdims: bool) -> Data:
    off = x - jnp.mean(x, axis=axis, keepdims=True)
    return jnp.sum(off * off, axis=axis, keepdims=keepdims)


def _products_about_means(x: Data, y: Data, axis: Data, keepdims: bool) -> Data:
    off = (x - jnp.mean(x, axis=axis, keepdims=True)) * (y - jnp.mean(y, axis=axis, keepdims=True))
    return jnp.sum(off, axis=axis, keepdims=keepdims)


def _cosine(x: Data, y: Data, axis: Data, keepdims: bool) -> Data:
    """The cosine of an angle, of numbers that are made at most 1 first."""
    x, y = (a / jnp.max(jnp.abs(a), axis=axis, keepdims=True) for a in (x, y))
    return jnp.sum(x * y, axis=axis, keepdims=keepdims) / (_norm(x, axis, keepdims) * _norm(y, axis, keepdims))


def _angle(x: Data, y: Data, axis: Data, keepdims: bool) -> Data:
    return jnp.arctan2(_across(x, y, axis, keepdims), _dot(x, y, axis, keepdims))


def _across(x: Data, y: Data, axis: Data, keepdims: bool) -> Data:
    """The size of x times the part of y that is across it; where they are nearly the same, so is that of their difference, which
    is exact."""
    ratio = _dot(x, y, axis, True) / _dot(x, x, axis, True)
    off = y - x * jnp.where(jnp.abs(ratio - 1) < 0.5, 1.0, ratio)
    across = off - x * (_dot(x, off, axis, True) / _dot(x, x, axis, True))
    return _norm(across, axis, keepdims) * _norm(x, axis, keepdims)


def _log_mean_exp(x: Data, axis: Data, keepdims: bool) -> Data:
    """Also where the numbers are nearly the same, and the mean of the exponentials, less the largest, is nearly 1."""
    largest = jnp.max(x, axis=axis, keepdims=True)
    shift = jnp.where(jnp.isfinite(largest), largest, 0.0)
    shift = jax.lax.stop_gradient(shift)
    mean = jnp.mean(jnp.expm1(x - shift), axis=axis, keepdims=keepdims)
    return jnp.reshape(shift, mean.shape) + jnp.log1p(mean)


def _versed(x: Data, y: Data, axis: Data, keepdims: bool) -> Data:
    """1 - cos of the angle between them."""
    across, along = _across(x, y, axis, keepdims), _dot(x, y, axis, keepdims)
    size = jnp.hypot(across, along)
    is_near = (along > 0) & (size < jnp.inf)
    return jnp.where(is_near, across / size * (across / (size + jnp.abs(along))), 1 - _cosine(x, y, axis, keepdims))


def _dot(x: Data, y: Data, axis: Data, keepdims: bool) -> Data:
    return jnp.sum(x * y, axis=axis, keepdims=keepdims)


def _third_moment(x: Data, axis: Data, keepdims: bool) -> Data:
    return jnp.mean((x - jnp.mean(x, axis=axis, keepdims=True)) ** 3, axis=axis, keepdims=keepdims)


def _only(axis: Data) -> int:
    return axis[-1] if isinstance(axis, tuple) else axis


def _log_survival(x: Data, axis: Data, keepdims: bool) -> Data:
    """The logarithms of the running products of 1 - x, of numbers below 1."""
    is_below = jnp.all(x < 1, axis=axis, keepdims=True)
    logs = jnp.cumsum(jnp.log1p(-jnp.where(is_below, x, 0.0)), axis=_only(axis))
    return jnp.where(is_below, logs, jnp.log(jnp.cumprod(1 - x, axis=_only(axis))))


def _log_running_product(x: Data, axis: Data, keepdims: bool) -> Data:
    is_positive = jnp.all(x > 0, axis=axis, keepdims=True)
    logs = jnp.cumsum(jnp.log(jnp.where(is_positive, x, 1.0)), axis=_only(axis))
    return jnp.where(is_positive, logs, jnp.log(jnp.cumprod(x, axis=_only(axis))))


def _lost_of_running_product(x: Data, axis: Data, keepdims: bool) -> Data:
    """1 less the running products of 1 - x, of numbers below 1."""
    is_below = jnp.all(x < 1, axis=axis, keepdims=True)
    lost = -jnp.expm1(jnp.cumsum(jnp.log1p(-jnp.where(is_below, x, 0.0)), axis=_only(axis)))
    return jnp.where(is_below, lost, 1 - jnp.cumprod(1 - x, axis=_only(axis)))


def _growth_of_many(x: Data, axis: Data, keepdims: bool) -> Data:
    is_near = jnp.max(jnp.abs(x), axis=axis, keepdims=True) < 0.5
    logs = jnp.sum(jnp.log1p(jnp.where(is_near, x, 0.0)), axis=axis, keepdims=keepdims)
    return jnp.where(
        jnp.reshape(is_near, logs.shape), jnp.expm1(logs), jnp.prod(1 + x, axis=axis, keepdims=keepdims) - 1
    )


def _effective_size(x: Data, axis: Data, keepdims: bool) -> Data:
    weights = jnp.exp(x - jax.lax.stop_gradient(jnp.max(x, axis=axis, keepdims=True)))
    return jnp.sum(weights, axis=axis, keepdims=keepdims) ** 2 / jnp.sum(
        weights * weights, axis=axis, keepdims=keepdims
    )


def _over_cube(x: Data, axis: Data, keepdims: bool) -> Data:
    """x by the cube of its length; the largest of the numbers that are squared is 1."""
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=axis, keepdims=True))
    x = x / largest
    size = _norm(x, axis, True)
    return x / (size * size * size) / largest / largest


ARRAYS = [
    Pair("growth of many", "the product is nearly 1 for small x",
         [lambda x, axis, keepdims: jnp.prod(1 + x, axis=axis, keepdims=keepdims) - 1],
         _growth_of_many, arrays=True),
    Pair("what a running product leaves of 1", "1 - x keeps nothing of a small x, and the product is nearly 1",
         [lambda x, axis, keepdims: 1 - jnp.cumprod(1 - x, axis=_only(axis))],
         _lost_of_running_product, arrays=True),
    Pair("logarithm of a running sum of exponentials", "exp overflows or underflows before the logarithm undoes it",
         [lambda x, axis, keepdims: jnp.log(jnp.cumsum(jnp.exp(x), axis=_only(axis)))],
         lambda x, axis, keepdims: jax.lax.cumlogsumexp(x, axis=_only(axis)), arrays=True),
    Pair("logarithm of a running product", "1 - x keeps nothing of a small x, and the product underflows",
         [lambda x, axis, keepdims: jnp.log(jnp.cumprod(1 - x, axis=_only(axis)))],
         _log_survival, arrays=True),
    Pair("logarithm of any running product", "the product overflows or underflows",
         [lambda x, axis, keepdims: jnp.log(jnp.cumprod(x, axis=_only(axis)))],
         _log_running_product, arrays=True),
    Pair("effective sample size", "exp overflows or underflows, and inf / inf and 0 / 0 are NaN",
         [lambda x, axis, keepdims: jnp.sum(jnp.exp(x), axis=axis, keepdims=keepdims) ** 2
          / jnp.sum(jnp.exp(2 * x), axis=axis, keepdims=keepdims),
          lambda x, axis, keepdims: jnp.sum(jnp.exp(x), axis=axis, keepdims=keepdims) ** 2
          / jnp.sum(jnp.exp(x) ** 2, axis=axis, keepdims=keepdims)], _effective_size, arrays=True),
    Pair("mean weighted by exponentials", "all exp may underflow, and 0 / 0 is NaN; one that overflows makes inf / inf",
         [lambda x, y, axis, keepdims: jnp.sum(jnp.exp(x) * y, axis=axis, keepdims=keepdims)
          / jnp.sum(jnp.exp(x), axis=axis, keepdims=keepdims)],
         lambda x, y, axis, keepdims: jnp.sum(jax.nn.softmax(x, axis=axis) * y, axis=axis, keepdims=keepdims),
         TWO, arrays=True),
    Pair("vector by the cube of its length", "the cube overflows or underflows where the quotient does not",
         [lambda x, axis, keepdims: x / jnp.sum(x * x, axis=axis, keepdims=True) ** 1.5,
          lambda x, axis, keepdims: x / jnp.sum(x * x, axis=axis) ** 1.5,
          lambda x, axis, keepdims: x / _norm(x, axis, True) ** 3, lambda x, axis, keepdims: x / _norm(x, axis, False) ** 3],
         _over_cube, arrays=True),
    Pair("logsumexp", "exp overflows or underflows before the logarithm undoes it",
         [lambda x, axis, keepdims: jnp.log(jnp.sum(jnp.exp(x), axis=axis, keepdims=keepdims))],
         lambda x, axis, keepdims: jax.scipy.special.logsumexp(x, axis=axis, keepdims=keepdims), arrays=True,
         slopes=[lambda x, ct, axis, keepdims: (ct if keepdims else _with_axes(ct, axis, x)) * jax.nn.softmax(x, axis)]),
    Pair("logmeanexp", "exp overflows or underflows before the logarithm undoes it",
         [lambda x, axis, keepdims: jnp.log(jnp.mean(jnp.exp(x), axis=axis, keepdims=keepdims))],
         _log_mean_exp, arrays=True),
    Pair("log softmax", "softmax underflows to 0 before its logarithm is taken",
         [lambda x, axis, keepdims: jnp.log(jax.nn.softmax(x, axis=axis)),
          lambda x, axis, keepdims: jnp.log(jnp.exp(x) / jnp.sum(jnp.exp(x), axis=axis, keepdims=True)),
          lambda x, axis, keepdims: jnp.log(jnp.exp(x) / jnp.sum(jnp.exp(x), axis=axis)),
          lambda x, axis, keepdims: x - jnp.log(jnp.sum(jnp.exp(x), axis=axis, keepdims=True)),
          lambda x, axis, keepdims: x - jnp.log(jnp.sum(jnp.exp(x), axis=axis))],
         lambda x, axis, keepdims: jax.nn.log_softmax(x, axis=axis), arrays=True),
    Pair("softmax", "exp overflows, and inf / inf is NaN; all exp may underflow, and 0 / 0 is NaN",
         [lambda x, axis, keepdims: jnp.exp(x) / jnp.sum(jnp.exp(x), axis=axis, keepdims=True),
          lambda x, axis, keepdims: jnp.exp(x) / jnp.sum(jnp.exp(x), axis=axis)],
         lambda x, axis, keepdims: jax.nn.softmax(x, axis=axis), arrays=True),
    Pair("masked softmax", "exp overflows, and inf / inf is NaN; a mask comes too late for it",
         [lambda x, m, axis, keepdims: jnp.exp(x) * m / jnp.sum(jnp.exp(x) * m, axis=axis, keepdims=True),
          lambda x, m, axis, keepdims: jnp.exp(x) * m / jnp.sum(jnp.exp(x) * m, axis=axis)],
         _masked_softmax, TWO, arrays=True),
    Pair("root mean square", "at 0 its derivative is 0 * inf",
         [_rms, lambda x, axis, keepdims: jnp.sqrt(jnp.mean(x**2, axis=axis, keepdims=keepdims))],
         _rms, arrays=True, slopes=[_rms_slope]),
    Pair("variance by differences", "the mean of the squares and the square of the mean cancel",
         [lambda x, axis, keepdims: jnp.mean(x * x, axis=axis, keepdims=keepdims)
          - jnp.mean(x, axis=axis, keepdims=keepdims) ** 2], _variance, arrays=True),
    Pair("covariance by differences", "the mean of the products and the product of the means cancel",
         [lambda x, y, axis, keepdims: jnp.mean(x * y, axis=axis, keepdims=keepdims)
          - jnp.mean(x, axis=axis, keepdims=keepdims) * jnp.mean(y, axis=axis, keepdims=keepdims)],
         _centred_product, TWO, arrays=True),
    # Of squares that overflow only where nobody goes the value stays as it is.
    Pair("norm", "at 0 its derivative is 0 * inf",
         [_norm, lambda x, axis, keepdims: jnp.linalg.norm(x, axis=axis, keepdims=keepdims)],
         _norm, arrays=True, slopes=[_norm_slope]),
    Pair("standard deviation", "where all are equal its derivative is 0 * inf",
         [lambda x, axis, keepdims: jnp.std(x, axis=axis, keepdims=keepdims)],
         lambda x, axis, keepdims: jnp.std(x, axis=axis, keepdims=keepdims), arrays=True, slopes=[_std_slope]),
    Pair("normalised", "0 / 0 where x is 0, and the squares overflow or underflow where the quotient does not",
         [lambda x, axis, keepdims: x / _norm(x, axis, True), lambda x, axis, keepdims: x / _norm(x, axis, False),
          lambda x, axis, keepdims: x / jnp.linalg.norm(x, axis=axis),
          lambda x, axis, keepdims: x / jnp.linalg.norm(x, axis=axis, keepdims=True)],
         _normalised, arrays=True),
    Pair("standardised", "0 / 0 where all are equal",
         [lambda x, axis, keepdims: (x - jnp.mean(x, axis=axis)) / jnp.std(x, axis=axis),
          lambda x, axis, keepdims: (x - jnp.expand_dims(jnp.mean(x, axis=axis), axis))
          / jnp.expand_dims(jnp.std(x, axis=axis), axis),
          lambda x, axis, keepdims: (x - jnp.mean(x, axis=axis, keepdims=True)) / jnp.std(x, axis=axis, keepdims=True)],
         _standardised, arrays=True),
    Pair("logarithm of a product of many", "the product overflows or underflows",
         [lambda x, axis, keepdims: jnp.log(jnp.prod(x, axis=axis, keepdims=keepdims))],
         lambda x, axis, keepdims: jnp.sum(jnp.log(jnp.abs(x)), axis=axis, keepdims=keepdims), arrays=True),
    Pair("geometric mean", "the product overflows or underflows",
         [lambda x, axis, keepdims: jnp.prod(x, axis=axis, keepdims=keepdims)
          ** (1.0 / (x.size // max(jnp.sum(x, axis=axis).size, 1)))],
         lambda x, axis, keepdims: jnp.exp(jnp.mean(jnp.log(x), axis=axis, keepdims=keepdims)), arrays=True),
    Pair("weighted logsumexp", "exp overflows or underflows before the logarithm undoes it",
         [lambda x, w, axis, keepdims: jnp.log(jnp.sum(w * jnp.exp(x), axis=axis, keepdims=keepdims))],
         lambda x, w, axis, keepdims: jax.scipy.special.logsumexp(x, axis=axis, b=w, keepdims=keepdims), TWO, arrays=True),
    Pair("squares about the mean", "the sum of the squares and the square of the sum cancel",
         [lambda x, axis, keepdims: jnp.sum(x * x, axis=axis, keepdims=keepdims)
          - jnp.sum(x, axis=axis, keepdims=keepdims) ** 2 / _size(x, axis)], _squares_about_mean, arrays=True),
    Pair("squares about the mean, times their number", "the sum of the squares and the square of the sum cancel",
         [lambda x, axis, keepdims: _size(x, axis) * jnp.sum(x * x, axis=axis, keepdims=keepdims)
          - jnp.sum(x, axis=axis, keepdims=keepdims) ** 2],
         lambda x, axis, keepdims: _size(x, axis) * _squares_about_mean(x, axis, keepdims), arrays=True),
    Pair("products about the means", "the sum of the products and the product of the sums cancel",
         [lambda x, y, axis, keepdims: _dot(x, y, axis, keepdims)
          - jnp.sum(x, axis=axis, keepdims=keepdims) * jnp.sum(y, axis=axis, keepdims=keepdims) / _size(x, axis)],
         _products_about_means, TWO, arrays=True),
    Pair("products about the means, times their number", "the sum of the products and the product of the sums cancel",
         [lambda x, y, axis, keepdims: _size(x, axis) * _dot(x, y, axis, keepdims)
          - jnp.sum(x, axis=axis, keepdims=keepdims) * jnp.sum(y, axis=axis, keepdims=keepdims)],
         lambda x, y, axis, keepdims: _size(x, axis) * _products_about_means(x, y, axis, keepdims), TWO, arrays=True),
    Pair("third moment by powers", "the moments about 0 cancel",
         [lambda x, axis, keepdims: jnp.mean(x**3, axis=axis, keepdims=keepdims)
          - 3 * jnp.mean(x, axis=axis, keepdims=keepdims) * jnp.mean(x * x, axis=axis, keepdims=keepdims)
          + 2 * jnp.mean(x, axis=axis, keepdims=keepdims) ** 3], _third_moment, arrays=True),
    Pair("squared distance by products", "the squares cancel with the products where x is near y",
         [lambda x, y, axis, keepdims: _dot(x, x, axis, keepdims) + _dot(y, y, axis, keepdims) - 2 * _dot(x, y, axis, keepdims),
          lambda x, y, axis, keepdims: _dot(x, x, axis, keepdims) - 2 * _dot(x, y, axis, keepdims) + _dot(y, y, axis, keepdims)],
         lambda x, y, axis, keepdims: jnp.sum((x - y) ** 2, axis=axis, keepdims=keepdims), TWO, arrays=True),
    Pair("angle between vectors", "the arccosine keeps nothing of a small angle",
         [lambda x, y, axis, keepdims: jnp.arccos(
             _dot(x, y, axis, keepdims) / (_norm(x, axis, keepdims) * _norm(y, axis, keepdims))),
          lambda x, y, axis, keepdims: jnp.arccos(
             _dot(x, y, axis, keepdims) / jnp.sqrt(_dot(x, x, axis, keepdims) * _dot(y, y, axis, keepdims))),
          lambda x, y, axis, keepdims: jnp.arccos(_dot(x / _norm(x, axis, keepdims), y / _norm(y, axis, keepdims), axis, keepdims))],
         _angle, TWO, arrays=True),
    Pair("1 - cosine of an angle", "the cosine of a small angle is nearly 1",
         [lambda x, y, axis, keepdims: 1 - _dot(x, y, axis, keepdims) / (_norm(x, axis, keepdims) * _norm(y, axis, keepdims)),
          lambda x, y, axis, keepdims: 1 - _dot(x, y, axis, keepdims)
          / jnp.sqrt(_dot(x, x, axis, keepdims) * _dot(y, y, axis, keepdims)),
          lambda x, y, axis, keepdims: 1 - _dot(x / _norm(x, axis, keepdims), y / _norm(y, axis, keepdims), axis, keepdims)],
         _versed, TWO, arrays=True),
    Pair("cosine of an angle", "the squares overflow or underflow where the quotient does not",
         [lambda x, y, axis, keepdims: _dot(x, y, axis, keepdims)
          / jnp.sqrt(_dot(x, x, axis, keepdims) * _dot(y, y, axis, keepdims))], _cosine, TWO, arrays=True),
]  # fmt: skip
