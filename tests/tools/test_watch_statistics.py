"""The statistics of arrays, beside what Python says of their elements one by one."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from untrace.tools import statistics as module
from untrace.tools.statistics import precision, statistics

FLOATS = [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
NUMBERS = st.one_of(
    st.floats(width=32), st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 1e-40, -1e-7, 1e-310])
)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(FLOATS), st.lists(NUMBERS, max_size=12), st.integers(1, 5))
@example(np.float64, [0.0, 0.0, 0.0, 1e-310], 1)  # so narrow that bins / width is infinite
def test_floats(dtype, numbers, piece):
    with np.errstate(all="ignore"):
        array = np.array(numbers, np.float64).astype(dtype)
    before = module._PIECE
    module._PIECE = piece  # several pieces
    try:
        found = statistics(array)
    finally:
        module._PIECE = before
    each = [float(x) for x in array]
    finite = [x for x in each if math.isfinite(x)]
    least = float(ml_dtypes.finfo(dtype).smallest_normal)
    assert found.size == len(each)
    assert found.nans == sum(map(math.isnan, each))
    assert (found.plus_infs, found.minus_infs) == (each.count(math.inf), each.count(-math.inf))
    signs = [math.copysign(1, x) for x in each if x == 0]
    assert (found.zeros, found.minus_zeros) == (signs.count(1), signs.count(-1))
    assert found.subnormals == sum(0 < abs(x) < least for x in each)
    assert found.is_finite == (len(finite) == len(each))
    if finite:
        assert (found.least, found.most) == (min(finite), max(finite))
        scale = sum(map(abs, finite))
        assert found.mean == pytest.approx(math.fsum(finite) / len(finite), abs=1e-12 * scale + 1e-300)
    else:
        assert found.mean is found.least is found.most is None
    if found.histogram:
        assert sum(found.histogram) == len(finite)


def test_other_dtypes():
    ints = statistics(np.array([[3, 0], [-2, 9]], np.int8))
    assert (ints.least, ints.most, ints.mean, ints.zeros) == (-2, 9, 2.5, 1)
    assert statistics(np.array([2**63], np.uint64)).most == 2**63
    flags = statistics(np.array([True, False, True, True]))
    assert (flags.mean, flags.zeros) == (0.75, 0)
    both = statistics(np.array([3 + 4j, complex(math.nan, 0), 0, complex(0, math.inf)], np.complex64))
    assert (both.most, both.least, both.nans, both.plus_infs, both.zeros) == (5.0, 0.0, 1, 1, 1)
    assert statistics(np.array([1, -2], ml_dtypes.int4)).least == -2
    assert statistics(np.zeros((0, 3), np.float32)).size == 0


def test_bars_need_numbers_that_differ():
    assert statistics(np.ones(10)).bars == ""
    assert statistics(np.arange(3.0)).bars == ""
    assert statistics(np.array([0.0] * 7 + [8.0])).bars == "█▁▁▁▁▁▁▂"


@pytest.mark.parametrize(
    ("dtype", "bits"), [(np.float32, 24), (ml_dtypes.bfloat16, 8), (np.complex64, 24), (np.int32, None)]
)
def test_precision(dtype, bits):
    assert precision(np.dtype(dtype)) == bits
