"""From which size on a text is for: where it would read or cut otherwise than the original it refuses."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import untrace


def _from_behind(u):
    return u[-3] * 2


def _static(u):
    return u[5] * 2


def _all_but_some(u):
    return u[:-4].sum()


def _cut(u):
    return lax.slice(u, (1,), (5,)) * 2


@pytest.mark.parametrize(
    "program, least", [(_from_behind, 3), (_static, 6), (_all_but_some, 4), (_cut, 5)], ids=lambda p: str(p)[:14]
)
def test_a_smaller_array_is_refused_where_the_text_means_something_else(program, least):
    d = untrace.decompile(program, target="numpy")(np.arange(9, dtype=np.float32))
    for n in range(2, 12):
        u = np.arange(n, dtype=np.float32) + 1
        if n < least:
            with pytest.raises(TypeError, match=r"written for u: f32\[n\]"):
                d(u)
        else:
            np.testing.assert_array_equal(d(u), program(jnp.asarray(u)))


def test_each_size_has_its_own():
    def f(u, v):
        return u[3] * 2 + v[-2]

    d = untrace.decompile(f, target="numpy")(np.ones(6, np.float32), np.ones(5, np.float32))
    assert 'least={"n": 4}' in d.source
    assert d(np.ones(4, np.float32), np.ones(2, np.float32)) == 3
    with pytest.raises(TypeError, match="written for"):
        d(np.ones(3, np.float32), np.ones(5, np.float32))


def test_what_holds_for_all_sizes_says_nothing_of_them():
    d = untrace.decompile(lambda u: u[1:] - u[:-1], target="numpy")(np.ones(9, np.float32))
    assert "least=" not in d.source.split("\n\n\ndef _")[0]
