"""Sliding-window attention, a checkpointed scan over layers, and the gradient of their loss in bfloat16."""

import jax
import jax.numpy as jnp

LAYERS, HEADS, WIDTH, WINDOW = 3, 2, 16, 4


def attention(layer, x):
    length = x.shape[0]
    q, k, v = jnp.split(x @ layer["qkv"], 3, axis=-1)
    q, k, v = (a.reshape(length, HEADS, -1) for a in (q, k, v))
    scores = jnp.einsum("qhd,khd->hqk", q, k) / jnp.sqrt(q.shape[-1])
    distance = jnp.arange(length)[:, None] - jnp.arange(length)[None, :]
    mask = (distance >= 0) & (distance < WINDOW)
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1)
    return jnp.einsum("hqk,khd->qhd", weights, v).reshape(length, -1) @ layer["out"]


def forward(params, tokens):
    x = params["embedding"][tokens]

    @jax.checkpoint
    def block(x, layer):
        return x + attention(layer, x), None

    x, _ = jax.lax.scan(block, x, params["layers"])
    return x @ params["embedding"].T


def loss(params, tokens, targets):
    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
    logits = forward(params, tokens).astype(jnp.float32)
    log_probs = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(log_probs, targets[:, None], axis=-1).mean()


def build():
    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "embedding": jax.random.normal(keys[0], (32, WIDTH)),
        "layers": {
            "qkv": 0.1 * jax.random.normal(keys[1], (LAYERS, WIDTH, 3 * WIDTH)),
            "out": 0.1 * jax.random.normal(keys[2], (LAYERS, WIDTH, WIDTH)),
        },
    }
    tokens = jnp.arange(8) % 32
    return jax.value_and_grad(loss), (params, tokens, (tokens + 1) % 32)
