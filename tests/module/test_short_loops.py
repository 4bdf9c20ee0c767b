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
