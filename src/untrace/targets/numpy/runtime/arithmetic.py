"""Numbers: integers and bits, where NumPy has other corner cases than JAX, and numbers of other types."""

from __future__ import annotations

import numpy as np

from untrace.python.helpers import helper


@helper("np", last="_divided")
def _divided(x, y):
    """Integers divided towards zero; by zero -1."""
    whole = np.floor_divide(x, np.where(y == 0, 1, y).astype(x.dtype))
    whole = whole + ((whole * y != x) & ((x < 0) != (y < 0))).astype(x.dtype)
    return np.where(y == 0, np.array(-1).astype(x.dtype), whole)[()]


@helper("np", last="_remainder")
def _remainder(x, y):
    """What is left of integers divided towards zero; all of it where that is by zero."""
    return np.where(y == 0, x, np.fmod(x, np.where(y == 0, 1, y).astype(x.dtype)))[()]


@helper("np", last="_sign")
def _sign(x):
    """The sign of floats, of zeros as well."""
    return np.where(x == 0, x, np.sign(x))[()]


@helper("np", last="_rounded")
def _rounded(x):
    """Rounded to whole numbers, halves away from zero."""
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(1, x), whole).astype(x.dtype)[()]


@helper("np", last="_as_integers")
def _as_integers(x, dtype):
    """Floats as integers: those outside become the nearest, NaN becomes 0."""
    info = np.iinfo(dtype)
    wide = np.trunc(np.asarray(x, np.float64))
    inside = (wide > float(info.min)) & (wide < float(info.max))
    found = np.where(inside, wide, 0.0).astype(dtype)
    found = np.where(wide >= float(info.max), np.array(info.max, dtype), found)
    return np.where(wide <= float(info.min), np.array(info.min, dtype), found)[()]


@helper("np", last="_shifted_left")
def _shifted_left(x, y):
    """Bits shifted; all of them out where there are not so many."""
    inside = (y >= 0) & (y < 8 * x.dtype.itemsize)
    return np.where(inside, x << np.where(inside, y, 0).astype(x.dtype), 0).astype(x.dtype)[()]


@helper("np", last="_shifted_right")
def _shifted_right(x, y):
    """Bits shifted to the right, with zeros before them."""
    inside = (y >= 0) & (y < 8 * x.dtype.itemsize)
    bits = np.dtype(f"u{x.dtype.itemsize}")
    return np.where(inside, x.view(bits) >> np.where(inside, y, 0).astype(bits), 0).astype(bits).view(x.dtype)[()]


@helper("np", last="_shifted_right_with_sign")
def _shifted_right_with_sign(x, y):
    """Bits shifted to the right, with the first of them before them."""
    most = 8 * x.dtype.itemsize - 1
    bits = np.dtype(f"i{x.dtype.itemsize}")
    return (x.view(bits) >> np.where((y >= 0) & (y <= most), y, most).astype(bits)).view(x.dtype)


@helper("np", last="_leading_zeros")
def _leading_zeros(x):
    """How many zeros integers begin with."""
    bits = 8 * x.dtype.itemsize
    found = np.full(np.shape(x), bits, x.dtype)
    for place in range(bits):
        found = np.where((x.view(f"u{x.dtype.itemsize}") >> place) & 1, bits - 1 - place, found).astype(x.dtype)
    return found[()]


@helper("np", last="_complex")
def _complex(x, y, dtype):
    """Complex numbers of two parts, infinities and zeros of either sign among them."""
    out = np.empty(np.broadcast_shapes(np.shape(x), np.shape(y)), dtype)
    out.real, out.imag = x, y
    return out[()]


@helper("np", last="_total_order")
def _total_order(x):
    """Integers in the order of floats: -NaN, -inf, ..., -0, 0, ..., inf, NaN."""
    bits = x.view(f"i{x.dtype.itemsize}")
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)


@helper("np", last="_reduced_precision")
def _reduced_precision(x, exponent, mantissa, to_exponent, to_mantissa):
    """Floats, of so many bits of an exponent and a mantissa, rounded as if they had fewer; what is too small becomes 0."""
    kind = np.dtype(f"u{x.dtype.itemsize}").type
    bits = x.view(kind)
    sign = bits & kind(1 << (exponent + mantissa))
    if to_mantissa < mantissa:
        last = kind(1 << (mantissa - to_mantissa))
        bits = (bits + (last // kind(2) - kind(1)) + (bits & last) // last) & ~(last - kind(1))
    if to_exponent < exponent:
        bias, to_bias = (1 << (exponent - 1)) - 1, (1 << (to_exponent - 1)) - 1
        infinite = kind(((1 << exponent) - 1) << mantissa)
        size = bits & infinite
        bits = np.where(size > kind((bias + to_bias) << mantissa), sign | infinite, bits)
        bits = np.where(size <= kind((bias - to_bias) << mantissa), sign, bits)
    return np.where(np.isnan(x), x, bits.view(x.dtype))[()]
