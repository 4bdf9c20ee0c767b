"""Numbers, where PyTorch has other corner cases than JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING

from untrace.python.helpers import helper

if TYPE_CHECKING:
    import torch


@helper("torch", last="_sign", target="torch")
def _sign(x):
    """The sign of floats, of zeros as well; NaN of NaN."""
    return torch.where((x == 0) | torch.isnan(x), x, torch.sign(x))


@helper("torch", last="_rounded", target="torch")
def _rounded(x):
    """Rounded to whole numbers, halves away from zero."""
    whole = torch.trunc(x)
    return torch.where((x - whole).abs() >= 0.5, whole + torch.sign(x), whole)


@helper("torch", last="_divided", target="torch")
def _divided(x, y):
    """Integers divided towards zero; by zero -1."""
    is_minus_one = (y < 0) & (y == -1)  # as which 255 of `uint8` counts as well
    whole = torch.div(x, torch.where((y == 0) | is_minus_one, 1, y), rounding_mode="trunc")
    return torch.where(y == 0, -1, torch.where(is_minus_one, -x, whole))


@helper("torch", last="_remainder", target="torch")
def _remainder(x, y):
    """What is left of integers divided towards zero; all of it where that is by zero."""
    return torch.where(y == 0, x, torch.fmod(x, torch.where((y == 0) | (y < 0) & (y == -1), 1, y)))


@helper("torch", last="_fmod", target="torch")
def _fmod(x, y):
    """What is left of floats divided towards zero, where their quotient is infinite as well: in two steps."""
    part = torch.fmod(x, y * 2.0 ** (1023 if x.dtype == torch.float64 else 127))
    return torch.where(torch.isinf(x / y), torch.fmod(part, y), torch.fmod(x, y))


@helper("torch", last="_as_integers", target="torch")
def _as_integers(x, dtype, least, most):
    """Floats as integers: those outside become the nearest, NaN becomes 0."""
    wide = torch.nan_to_num(x.to(torch.float64), nan=0.0)
    found = torch.where((wide > least) & (wide < most), wide, 0.0).to(dtype)
    found = torch.where(wide >= most, torch.tensor(most, dtype=dtype), found)
    return torch.where(wide <= least, torch.tensor(least, dtype=dtype), found)


@helper("torch", last="_shifted_left", target="torch")
def _shifted_left(x, y, bits):
    """Bits shifted; all of them out where there are not so many."""
    inside = (y >= 0) & (y < bits)
    return torch.where(inside, x << torch.where(inside, y, 0), 0)


@helper("torch", last="_shifted_right", target="torch")
def _shifted_right(x, y, bits):
    """Bits shifted to the right, with zeros before them."""
    inside = (y > 0) & (y < bits)
    by = torch.where(inside, y, 1).to(torch.int64)
    half = (x.to(torch.int64) & ((1 << bits) - 1 if bits < 64 else -1)) >> 1 & (1 << bits - 1) - 1
    found = torch.where(inside, half >> by - 1, 0).to(x.dtype)
    return torch.where(y == 0, x, found)


@helper("torch", last="_shifted_right_with_sign", target="torch")
def _shifted_right_with_sign(x, y, bits):
    """Bits shifted to the right, with the first of them before them."""
    return x >> torch.where((y >= 0) & (y < bits), y, bits - 1)


@helper("torch", last="_ones", target="torch")
def _ones(x, bits):
    """How many bits of integers are set."""
    return sum([x >> place & 1 for place in range(bits)])


@helper("torch", last="_leading_zeros", target="torch")
def _leading_zeros(x, bits):
    """How many zeros integers begin with."""
    found = torch.full_like(x, bits)
    for place in range(bits):
        found = torch.where((x >> place & 1) == 1, bits - 1 - place, found)
    return found


@helper("torch", last="_total_order", target="torch")
def _total_order(x):
    """Integers in the order of floats: -NaN, -inf, ..., -0, 0, ..., inf, NaN."""
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    bits = x.contiguous().view(kind)
    return torch.where(bits < 0, bits ^ torch.iinfo(kind).max, bits)
