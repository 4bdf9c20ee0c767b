"""Loops of the author's whose turns hand nothing on: what each gives goes into a list, a dict or a sum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from roundtrip import saved

import untrace

W = jnp.eye(4) * 0.5 + 0.1
B = jnp.linspace(-1.0, 1.0, 4)
X = jnp.linspace(-1.0, 1.0, 20).reshape(5, 4)
LAYER = {"w": W, "b": B}


def attention(heads, x):
    outs = []
    for h in heads:
        q, k, v = x @ h["q"], x @ h["k"], x @ h["v"]
        scores = jax.nn.softmax(q @ k.T / jnp.sqrt(q.shape[-1]))
        outs.append(scores @ v)
    return jnp.concatenate(outs, axis=-1)


def grouped(q, k, v):
    outs = []
    for g in range(2):
        own = q[:, 2 * g : 2 * g + 2]
        scores = jnp.einsum("thd,sd->hts", own, k[:, g])
        outs.append(jnp.einsum("hts,sd->thd", jax.nn.softmax(scores, -1), v[:, g]))
    return jnp.concatenate(outs, axis=1)


def windows(x, weights):
    rows = []
    for t in range(0, 4, 2):
        part = x[t : t + 2]
        part = part - part.mean(0)
        rows.append(jnp.abs(jnp.fft.rfft(part * weights, axis=0)).sum(1))
    return jnp.stack(rows)


def losses(params, xs, targets):
    found = []
    for p, x, target in zip(params, xs, targets, strict=True):
        error = x @ p["w"] + p["b"] - target
        error = error / jnp.linalg.norm(error)
        found.append(jnp.mean(error**2))
    return sum(found), found


def towers(params, xs):
    feats = []
    for p, x in zip(params, xs, strict=True):
        y = (x - x.mean()) / jnp.sqrt(x.var() + 1e-5)
        feats.append(jax.nn.relu(y @ p["w"]))
    return sum(feats) / 3 + params[0]["b"]


def momentum(params, grads, velocity):
    new_params, new_velocity = [], []
    for (w, b), (dw, db), (vw, vb) in zip(params, grads, velocity, strict=True):
        vw = 0.9 * vw + dw
        vb = 0.9 * vb + db
        new_params.append((w - 0.1 * vw, b - 0.1 * vb))
        new_velocity.append((vw, vb))
    return new_params, new_velocity


def adam(params, grads, mu):
    new_params, new_mu = [], []
    for p, g, m in zip(params, grads, mu, strict=True):
        m = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, m, g)
        p = jax.tree.map(lambda a, b: a - 0.01 * b, p, m)
        new_params.append(p)
        new_mu.append(m)
    return new_params, new_mu


def patches(x, weights):
    outs = []
    for i in range(2):
        for j in range(3):
            p = x[2 * i : 2 * i + 2, j : j + 2]
            h = jax.nn.gelu(p @ weights[j])
            outs.append(h.sum())
    return jnp.stack(outs)


def table(a, b):
    rows = []
    for i in range(3):
        row = []
        for j in range(3):
            s = jnp.dot(a[i], b[j])
            s = s / (1.0 + jnp.abs(s))
            row.append(s * s)
        rows.append(row)
    return jnp.array(rows)


def embedded(p, inputs):
    found = {}
    for name, x in inputs.items():
        h = jnp.tanh(x @ p["w"])
        found[name] = h / (jnp.linalg.norm(h, axis=-1, keepdims=True) + 1e-6)
    return found


def in_their_order(inputs, w):
    outs = []
    for name in inputs:
        h = jnp.tanh(inputs[name] @ w)
        outs.append(h / (jnp.linalg.norm(h) + 1e-6))
    return jnp.concatenate(outs)


def by_their_names(p, x):
    for name in ("conv1", "conv2"):
        x = jnp.tanh(x @ p[name])
        x = x - x.mean(axis=-1, keepdims=True)
    return x


def normed(x, kernels):
    norms = []
    for k in kernels:
        x = jnp.convolve(x, k, mode="same")
        x = x / jnp.linalg.norm(x)
        norms.append(jnp.abs(jnp.diff(x)).sum())
    return jnp.stack(norms), x


def rotated(params, x):
    h = x
    for w, b in params[:-1]:
        outputs = jnp.dot(w, h) + b
        h = relu(outputs)
    last, bias = params[-1]
    return jnp.dot(last, h) + bias


def stencil(u):
    lap = 0.0
    for axis in range(2):
        up = jnp.roll(u, 1, axis)
        down = jnp.roll(u, -1, axis)
        lap = lap + (up - 2 * u + down) / 0.01
    return u + 0.1 * lap


def relu(x):
    return jnp.maximum(0, x)


HEADS = [{n: W * i for n in "qkv"} for i in (1.0, 2.0)]
PAIRS = [(W * i, B) for i in (1.0, 2.0, 3.0)]
INPUTS = {"text": X[:2], "audio": X[:3], "image": X[2:]}
PROGRAMS = [
    (attention, (HEADS, X), ["    outs = []\n    for h in heads:\n", '        v = x @ h["v"]\n', "outs.append(scores @ v)"]),
    (
        grouped,
        (X.reshape(5, 4, 1), X[:, :2, None], X[:, 2:, None]),
        ["    for g in range(2):\n        own = q[:, 2 * g : 2 * g + 2]\n", "        outs.append(jnp.einsum("],
    ),
    (windows, (X, X[:2]), ["    for t in range(0, 4, 2):\n        part = x[t : t + 2]\n        part = part - part.mean("]),
    (
        losses,
        ([LAYER] * 3, [X] * 3, [X + 1.0] * 3),
        ["        found.append(jnp.mean((error / jnp.linalg.norm(error)) ** 2))\n", "    return sum(found), found\n"],
    ),
    (towers, ([LAYER] * 3, [X] * 3), ['feats.append(jax.nn.relu(y @ p["w"]))\n    return sum(feats) / 3.0 + ']),
    (
        momentum,
        (PAIRS, PAIRS, PAIRS),
        [
            "    for (w, b), (dw, db), (vw, vb) in zip(params, grads, velocity):\n        vw = 0.9 * vw + dw\n",
            "        new_params.append((w - 0.1 * vw, b - 0.1 * vb))\n        new_velocity.append((vw, vb))\n",
        ],
    ),
    (
        adam,
        ([LAYER] * 3, [LAYER] * 3, [LAYER] * 3),
        [
            "    for p, g, m in zip(params, grads, mu):\n"
            "        m = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, m, g)\n"
            "        p = jax.tree.map(lambda a, b: a - 0.01 * b, p, m)\n"
            "        new_params.append(p)\n        new_mu.append(m)\n"
        ],
    ),
    (
        patches,
        (X, [W[:2]] * 3),
        ["    outs = []\n    for i in range(2):\n        for j, weight in enumerate(weights):\n", "            outs.append(h.sum())\n"],
    ),
    (table, (X[:3], X[1:4]), ["    rows = []\n    for i in range(3):\n        row = []\n        for j in range(3):\n", "        rows.append(row)\n"]),
    (embedded, ({"w": W}, INPUTS), ["    found = {}\n    for name, x in inputs.items():\n", "        found[name] = h / ("]),
    (in_their_order, (INPUTS, W), ['    for name in ("audio", "image", "text"):\n', "        outs.append(h / "]),
    (by_their_names, ({"conv1": W, "conv2": W}, X), ['    for name in ("conv1", "conv2"):\n        x = jnp.tanh(x @ p[name])\n']),
    (normed, (B, [B[:3]] * 3), ["    for k in kernels:\n        x = jnp.convolve(x, k, mode=\"same\")\n        x = x / jnp.linalg.norm(x)\n"]),
    (stencil, (X,), ["    lap = 0.0\n    for axis in range(2):\n        up = jnp.roll(u, 1, axis=axis)\n        down = "]),
    (rotated, (PAIRS, B), ["    h = x\n    for w, b in params[:-1]:\n        outputs = w @ h + b\n"]),
]  # fmt: skip


@pytest.mark.parametrize(("program", "args", "lines"), PROGRAMS, ids=[p.__name__ for p, *_ in PROGRAMS])
def test_the_loop_is_the_authors(program, args, lines, tmp_path):
    found = untrace.decompile(program)(*args)
    assert found.proof.at_least("hlo"), found.proof
    written, text = saved(found, tmp_path)
    for line in lines:
        assert line in text, text
    ours, theirs = jax.jit(written)(*args), jax.jit(program)(*args)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_dict_in_another_order_is_gone_through_as_it_was_traced(tmp_path):
    """JAX sorts the keys of a dict where it traces; a call without `jax.jit` has them as they are."""
    turned = dict(reversed(INPUTS.items()))
    for program, args in ((embedded, ({"w": W}, turned)), (in_their_order, (turned, W))):
        written, _ = saved(untrace.decompile(program)(*args), tmp_path)
        ours, theirs = written(*args), jax.jit(program)(*args)
        for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)


def test_a_map_over_leaves_in_a_loop_is_no_loop():
    """Its leaves are not the turns of the loop that it stands in."""

    def clipped(params, states):
        new = []
        for state in states:
            new.append(jax.tree.map(lambda p, s: jnp.clip(jnp.tanh(p) - s.sum(), -1.0, jnp.cos(s)), params, state))
        return new

    state = {"w": W, "b": B}
    text = untrace.decompile(clipped)(state, [state]).source
    assert "for " not in text.split("def _type_of")[0], text
