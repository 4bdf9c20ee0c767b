"""A small but whole GPT in plain JAX: embedding, two blocks, layer norm, cross-entropy.

`untrace demo` decompiles the gradient of `loss`.  Parameters are a dict of arrays; there is no
framework and no class.  In the shapes, `length` is the number of tokens in a text and `width` the
size of the vector that stands for one token.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

VOCABULARY = 64
LENGTH = 16
WIDTH = 32
HEADS = 4
BLOCKS = 2
BATCH = 4


def layer_norm(x, params):
    """`x` with mean 0 and variance 1 along its last axis, then scaled and shifted."""
    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.var(x, axis=-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * params["scale"] + params["shift"]


def causal_attention(x, params):
    """What each token gathers from the tokens before it and from itself; like `x`."""
    length, width = x.shape
    heads_shape = (length, HEADS, width // HEADS)
    query = (x @ params["query"]).reshape(heads_shape)
    key = (x @ params["key"]).reshape(heads_shape)
    value = (x @ params["value"]).reshape(heads_shape)

    scores = jnp.einsum("qhd,khd->hqk", query, key) / jnp.sqrt(width // HEADS)
    is_past = jnp.tril(jnp.ones((length, length), dtype=bool))
    weights = jax.nn.softmax(jnp.where(is_past, scores, -1e9), axis=-1)
    gathered = jnp.einsum("hqk,khd->qhd", weights, value).reshape(length, width)
    return gathered @ params["out"]


def mlp(x, params):
    """Two dense layers with a GELU between them, applied to each token; like `x`."""
    return jax.nn.gelu(x @ params["up"] + params["up_bias"]) @ params["down"] + params["down_bias"]


def block(x, params):
    """One transformer block: attention between the tokens, then an MLP on each; like `x`."""
    x = x + causal_attention(layer_norm(x, params["attention_norm"]), params["attention"])
    return x + mlp(layer_norm(x, params["mlp_norm"]), params["mlp"])


def logits(params, tokens):
    """Scores of the next token after each of `tokens`: i32[length] -> f32[length, vocabulary]."""
    x = params["token_embedding"][tokens] + params["position_embedding"]
    for block_params in params["blocks"]:
        x = block(x, block_params)
    return layer_norm(x, params["final_norm"]) @ params["token_embedding"].T


def loss(params, tokens, targets):
    """Mean cross-entropy of the next tokens; `tokens` and `targets` are i32[batch, length]."""
    log_probabilities = jax.nn.log_softmax(jax.vmap(logits, in_axes=(None, 0))(params, tokens))
    of_targets = jnp.take_along_axis(log_probabilities, targets[..., None], axis=-1)
    return -jnp.mean(of_targets)


def make_params(key):
    """Random parameters, as the dict that `loss` takes."""
    matrix_keys = iter(jax.random.split(key, 2 + 6 * BLOCKS))

    def matrix(rows, columns):
        return 0.02 * jax.random.normal(next(matrix_keys), (rows, columns))

    def norm():
        return {"scale": jnp.ones(WIDTH), "shift": jnp.zeros(WIDTH)}

    def make_block():
        return {
            "attention_norm": norm(),
            "attention": {name: matrix(WIDTH, WIDTH) for name in ("query", "key", "value", "out")},
            "mlp_norm": norm(),
            "mlp": {
                "up": matrix(WIDTH, 4 * WIDTH),
                "up_bias": jnp.zeros(4 * WIDTH),
                "down": matrix(4 * WIDTH, WIDTH),
                "down_bias": jnp.zeros(WIDTH),
            },
        }

    return {
        "token_embedding": matrix(VOCABULARY, WIDTH),
        "position_embedding": matrix(LENGTH, WIDTH),
        "blocks": [make_block() for _ in range(BLOCKS)],
        "final_norm": norm(),
    }


def make_args():
    """Arguments for `loss`: seeded parameters and a batch of random text."""
    params_key, text_key = jax.random.split(jax.random.key(0))
    text = jax.random.randint(text_key, (BATCH, LENGTH + 1), 0, VOCABULARY)
    return make_params(params_key), text[:, :-1], text[:, 1:]
