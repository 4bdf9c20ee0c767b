"""`x.at[index].add(y)` and its like for PyTorch: said by their index, right for other sizes, and no writes into a tensor."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import untrace

torch = pytest.importorskip("torch")


def step(u, y):
    v = u.at[1:-1, 0].add(y).at[2].multiply(0.5)
    return v.at[..., 1].set(v[..., 0]), v.at[-1].min(y[0]), v.at[0, 1:].max(2)


def test_updates_of_parts_are_said_by_their_index():
    u, y = np.arange(12, dtype=np.float32).reshape(4, 3), np.float32([3, -4])
    d = untrace.decompile(step, target="torch")(u, y)
    assert "_put(" in d.source and "_scattered" not in d.source
    for found, expected in zip(d(u, y), step(jnp.asarray(u), jnp.asarray(y)), strict=True):
        np.testing.assert_array_equal(found, expected)
    u, y = torch.arange(12.0).reshape(4, 3), torch.tensor([3.0, -4.0])
    before = u.clone()
    mapped = torch.func.vmap(d, in_dims=(None, 0))(u, torch.stack([y, y + 1]))
    for one, all_of in zip(d(u, y + 1), mapped, strict=True):
        assert torch.equal(one, all_of[1])
    found = torch.func.grad(lambda u: (d(u, y)[0] ** 2).sum())(u)
    np.testing.assert_array_equal(found, jax.grad(lambda u: (step(u, y.numpy())[0] ** 2).sum())(u.numpy()))
    assert torch.equal(u, before)


def test_an_update_outside_of_a_smaller_tensor_changes_nothing():
    def f(u):
        return u.at[5].set(1.0), u.at[2:6].add(1.0)

    d = untrace.decompile(f, target="torch", guard=False)(np.arange(8, dtype=np.float32))
    assert "_put(" in d.source
    for n in (8, 6, 5, 3):
        x = np.arange(n, dtype=np.float32)
        for found, expected in zip(d(x), f(jnp.asarray(x)), strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("target", ["torch", "numpy"])
def test_an_update_that_is_moved_inside_is_not_dropped(target):
    def f(u):
        return u.at[5].set(-1.0, mode="clip")

    d = untrace.decompile(f, target=target)(np.arange(8, dtype=np.float32))
    for n in (8, 3):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(np.asarray(d(x)), f(jnp.asarray(x)))


def test_a_scan_of_no_turns_stacks_nothing():
    def f(c):
        return jax.lax.scan(lambda c, _: (c + 1, (c * 2, c > 0)), c, None, length=0)

    last, (doubled, positive) = untrace.decompile(f, target="torch")(np.float32(1))(np.float32(1))
    assert last == 1 and doubled.shape == positive.shape == (0,) and positive.dtype == torch.bool
