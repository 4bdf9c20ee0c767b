"""LoRA: one AdamW step on low-rank adapters of a frozen two-layer transformer.

The language-model loss takes the frozen weights first and the adapters second: `argnums=1`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

LIBRARY = "jax"
KIND = "train_step"
SOURCE = "self"
DERIVATIVES = ("value_and_grad lm_loss",)
VOCAB, LENGTH, WIDTH, HEADS, LAYERS, RANK, ALPHA = 32, 10, 16, 2, 2, 2, 4.0


class AdamState(NamedTuple):
    count: jax.Array
    mean: list
    variance: list


def rms_norm(x, scale):
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6) * scale


def lora_dense(x, weight, adapter):
    return x @ weight + (ALPHA / RANK) * (x @ adapter["a"]) @ adapter["b"]


def attention(base, adapters, x):
    def heads(y):
        return y.reshape(*y.shape[:-1], HEADS, WIDTH // HEADS)

    queries = heads(lora_dense(x, base["query"], adapters["query"]))
    keys = heads(x @ base["key"])
    values = heads(lora_dense(x, base["value"], adapters["value"]))
    scores = jnp.einsum("bqhd,bkhd->bhqk", queries, keys) * (WIDTH // HEADS) ** -0.5
    causal = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), dtype=bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, values).reshape(x.shape) @ base["out"]


def language_model(base, adapters, tokens):
    x = base["embedding"][tokens]
    for block, adapter in zip(base["blocks"], adapters, strict=True):
        x = x + attention(block, adapter, rms_norm(x, block["norm1"]))
        x = x + jax.nn.silu(rms_norm(x, block["norm2"]) @ block["up"]) @ block["down"]
    return rms_norm(x, base["final_norm"]) @ base["embedding"].T


def lm_loss(base, adapters, tokens, loss_mask):
    logits = language_model(base, adapters, tokens[:, :-1])
    log_probs = jax.nn.log_softmax(logits)
    token_log_probs = jnp.take_along_axis(log_probs, tokens[:, 1:, None], axis=-1)[..., 0]
    mask = loss_mask[:, 1:]
    return -jnp.sum(token_log_probs * mask) / jnp.maximum(jnp.sum(mask), 1.0)


def adamw(grads, state, params, learning_rate=1e-3, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.01):
    count = state.count + 1
    mean = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mean, grads)
    variance = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g**2, state.variance, grads)

    def apply(param, m, v):
        m_hat = m / (1 - b1**count)
        v_hat = v / (1 - b2**count)
        return param - learning_rate * (m_hat / (jnp.sqrt(v_hat) + eps) + weight_decay * param)

    return jax.tree.map(apply, params, mean, variance), AdamState(count, mean, variance)


def finetune_step(base, adapters, opt_state, tokens, loss_mask):
    loss, grads = jax.value_and_grad(lm_loss, argnums=1)(base, adapters, tokens, loss_mask)
    adapters, opt_state = adamw(grads, opt_state, adapters)
    return adapters, opt_state, loss


def init_base(key):
    keys = iter(jax.random.split(key, 1 + 6 * LAYERS))

    def normal(*shape):
        return jax.random.normal(next(keys), shape) / jnp.sqrt(shape[0])

    def block():
        square = {name: normal(WIDTH, WIDTH) for name in ("query", "key", "value", "out")}
        mlp = {"up": normal(WIDTH, 2 * WIDTH), "down": normal(2 * WIDTH, WIDTH)}
        return {**square, **mlp, "norm1": jnp.ones(WIDTH), "norm2": jnp.ones(WIDTH)}

    blocks = [block() for _ in range(LAYERS)]
    return {"embedding": normal(VOCAB, WIDTH), "blocks": blocks, "final_norm": jnp.ones(WIDTH)}


def init_adapters(key):
    def adapter(key):
        a_key, b_key = jax.random.split(key)
        a = jax.random.normal(a_key, (WIDTH, RANK)) / jnp.sqrt(WIDTH)
        # Not zeros: an adapter some steps into its training, so that both factors have a gradient.
        return {"a": a, "b": 0.02 * jax.random.normal(b_key, (RANK, WIDTH))}

    keys = jax.random.split(key, (LAYERS, 2))
    return [{"query": adapter(keys[layer, 0]), "value": adapter(keys[layer, 1])} for layer in range(LAYERS)]


def build():
    adapters = init_adapters(jax.random.key(1))
    zeros = jax.tree.map(jnp.zeros_like, adapters)
    tokens = jax.random.randint(jax.random.key(2), (3, LENGTH), 0, VOCAB)
    loss_mask = (jnp.arange(LENGTH) >= jnp.array([[2], [4], [3]])).astype(jnp.float32)
    opt_state = AdamState(jnp.array(0), zeros, zeros)
    return finetune_step, (init_base(jax.random.key(0)), adapters, opt_state, tokens, loss_mask)
