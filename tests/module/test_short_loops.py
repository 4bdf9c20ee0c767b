"""A loop of the author's is one however short it is, over what he goes through, and no other is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from roundtrip import saved

import untrace

LAYER = {"kernel": jnp.eye(4) * 0.5, "bias": jnp.linspace(-1.0, 1.0, 4)}
X = jnp.linspace(-1.0, 1.0, 4)


def dense(p, x):
    return jnp.tanh(x @ p["kernel"] + p["bias"])


def flax_names(params, x):
    for i in range(2):
        x = dense(params[f"Dense_{i}"], x)
    return x @ params["out"]["kernel"]


def keys_of_one_table(params, x):
    for name in ("stem", "head"):
        x = jnp.tanh(x @ params[f"{name}/w"]) * params[f"{name}/scale"]
    return x


def hostile_keys(params, x):
    for name in ('a"b', "c'd", "e{f}"):
        x = dense(params[name], x)
    return x


def one_after_the_other(params, x):
    for p in params["enc"]:
        x = x + dense(p, x)
    for p in params["dec"]:
        x = x + dense(p, x)
    return x


def nested(params, x):
    for block in params:
        for p in block["layers"]:
            x = dense(p, x)
        x = x * block["scale"]
    return x


def unet(params, x):
    skips = []
    for p in params["down"]:
        x = dense(p, x)
        skips.append(x)
    for p in params["up"]:
        x = dense(p, x + skips.pop())
    return x


def skips_by_zip(params, x):
    h = jnp.sin(x)
    skips = []
    for p in params["down"]:
        h = dense(p, h)
        skips.append(h)
    h = dense(params["mid"], h)
    for p, s in zip(params["up"], reversed(skips), strict=True):
        h = dense(p, h) + s
    return h


def no_loop(params, x):
    return dense(params["b"], dense(params["a"], x))


def twice(p, x):
    return dense(p, dense(p, x))


W = LAYER["kernel"]
U = {"down": [LAYER] * 3, "up": [LAYER] * 3, "mid": LAYER}
PROGRAMS = [
    (
        flax_names,
        {"Dense_0": LAYER, "Dense_1": LAYER, "out": LAYER},
        ["for i in range(2):", 'x = dense(params[f"Dense_{i}"], x)'],
    ),
    (
        keys_of_one_table,
        {"stem/w": W, "stem/scale": X, "head/w": W, "head/scale": X},
        ['for name in ("stem", "head"):', 'params[f"{name}/w"]', 'params[f"{name}/scale"]'],
    ),
    (hostile_keys, {'a"b': LAYER, "c'd": LAYER, "e{f}": LAYER}, ['for name in (\'a"b\', "c\'d", "e{f}"):']),
    (
        one_after_the_other,
        {"enc": [LAYER] * 2, "dec": [LAYER] * 3},
        [f'for p in params["{n}"]:\n        x = x + dense(p, x)\n' for n in ("enc", "dec")],
    ),
    (
        nested,
        [{"layers": [LAYER] * 2, "scale": X}] * 2,
        ['for block in params:\n        for p in block["layers"]:\n            x = dense(p, x)\n        x = x * block'],
    ),
    (
        unet,
        U,
        [
            "    skips = []\n",
            "        x = dense(p, x)\n        skips.append(x)\n",
            'in zip(params["up"], reversed(skips)):\n        x = dense(p, x + x_out)\n    return x\n',
        ],
    ),
    (
        skips_by_zip,
        U,
        ["        skips.append(h)\n", 'for p, s in zip(params["up"], reversed(skips)):\n        h = dense(p, h) + s\n'],
    ),
    (no_loop, {"a": LAYER, "b": LAYER}, ['return dense(params["b"], dense(params["a"], x))']),
    (twice, LAYER, ["return dense(p, dense(p, x))"]),
]


@pytest.mark.parametrize(("program", "params", "lines"), PROGRAMS, ids=[p.__name__ for p, *_ in PROGRAMS])
def test_loops_are_the_authors(program, params, lines, tmp_path):
    found = untrace.decompile(program)(params, X)
    assert found.proof.level == "jaxpr", found.proof
    written, text = saved(found, tmp_path)
    for line in lines:
        assert line in text, text
    if program in (no_loop, twice):
        assert " for " not in text.partition("\ndef _type_of")[0], text
    np.testing.assert_array_equal(jax.jit(written)(params, X), jax.jit(program)(params, X))


def leapfrog(q, p):
    gradient = jax.grad(lambda q: jnp.sum(q**4) + jnp.sum(q[1:] * q[:-1]))
    p = p - 0.05 * gradient(q)
    for _ in range(4):
        q = q + 0.1 * p
        p = p - 0.1 * gradient(q)
    return q, p


def quantised(codebooks, x):
    residual, codes, total = x, [], jnp.zeros_like(x)
    for book in codebooks:
        index = jnp.argmin(jnp.sum((residual[:, None] - book) ** 2, axis=-1), axis=-1)
        chosen = book[index]
        residual = residual - chosen
        total = total + chosen
        codes.append(index)
    return total, jnp.stack(codes, axis=-1)


def dilated(params, x):
    skip = 0.0
    for i, p in enumerate(params):
        past = jnp.pad(x, ((2**i, 0), (0, 0)))[: x.shape[0]]
        h = jnp.tanh(x @ p["now"] + past @ p["past"])
        skip = skip + h @ p["skip"]
        x = x + h @ p["next"]
    return jax.nn.relu(skip)


def decoded(layers, x, caches):
    new_caches = []
    for layer, (keys, values) in zip(layers, caches, strict=True):
        new_keys = jnp.concatenate([keys[1:], (x @ layer["k"])[None]])
        new_values = jnp.concatenate([values[1:], (x @ layer["v"])[None]])
        mask = jnp.arange(new_keys.shape[0]) <= 3
        weights = jax.nn.softmax(jnp.where(mask, new_keys @ x, -1e9))
        x = x + weights @ new_values
        new_caches.append((new_keys, new_values))
    return x, new_caches


def pooled(x):
    return x.reshape(x.shape[0] // 2, 2, -1).mean(1)


def pyramid(a, b):
    loss = 0.0
    for level in range(3):
        loss = loss + jnp.mean(jnp.abs(a - b)) / 2**level
        a, b = pooled(a), pooled(b)
    return loss


def norm(p, state, x):
    mean = x.mean(0)
    return (x - mean) * p["scale"] + p["bias"], {"mean": 0.9 * state["mean"] + 0.1 * mean}


def two_norms(blocks, states, x):
    new_states = []
    for p, s in zip(blocks, states, strict=True):
        h, first = norm(p["norm1"], s["norm1"], x)
        h = jax.nn.relu(h) @ p["w1"]
        h, second = norm(p["norm2"], s["norm2"], h)
        x = x + jax.nn.relu(h) @ p["w2"]
        new_states.append({"norm1": first, "norm2": second})
    return x, new_states


M = jnp.linspace(-1.0, 1.0, 32).reshape(8, 4)
NORM = {"scale": X, "bias": X}
HARDER = [
    (leapfrog, (X, X), ["    for _ in range(4):\n        q = q + 0.1 * p\n        p = p - 0.1 * jax.grad("]),
    (
        quantised,
        ([M[:5]] * 4, M),
        [
            "    for book in codebooks:\n",
            "        total = total + chosen\n        codes.append(index)\n    return total, jnp.stack(codes, axis=-1)\n",
        ],
    ),
    (
        dilated,
        ([{n: W for n in ("now", "past", "skip", "next")}] * 3, M),
        [
            "    skip = 0.0\n    for i, p in enumerate(params):\n        past = jnp.pad(x, ((2**i, 0), (0, 0)))[:x.shape[0]]\n"
        ],
    ),
    (
        decoded,
        ([{"k": W, "v": W}] * 3, X, [(M, M)] * 3),
        [
            "    new_caches = []\n    for layer, (keys, values) in zip(layers, caches):\n",
            "jnp.arange(new_keys.shape[0])",
            "        new_caches.append((new_keys, new_values))\n    return x, new_caches\n",
        ],
    ),
    (pyramid, (M, M), ["    for level in range(3):\n", "/ 2**level\n", "        b = pooled(b)\n    return loss\n"]),
    (
        two_norms,
        ([{"norm1": NORM, "norm2": NORM, "w1": W, "w2": W}] * 3, [{"norm1": {"mean": X}, "norm2": {"mean": X}}] * 3, M),
        ['        h, mean = norm(p["norm1"], s["norm1"], x)\n        h, mean_2 = norm(p["norm2"], s["norm2"], '],
    ),
]


@pytest.mark.parametrize(("program", "args", "lines"), HARDER, ids=[p.__name__ for p, *_ in HARDER])
def test_turns_that_differ_at_their_ends(program, args, lines, tmp_path):
    found = untrace.decompile(program)(*args)
    assert found.proof.at_least("hlo"), found.proof
    written, text = saved(found, tmp_path)
    for line in lines:
        assert line in text, text
    found = jax.tree.leaves(jax.jit(written)(*args)), jax.tree.leaves(jax.jit(program)(*args))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
