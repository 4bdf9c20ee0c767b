"""Llama-style decoder: prefill a prompt into a KV cache, then decode token by token in a scan."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    vocab_size: int = 48
    dim: int = 32
    n_layers: int = 2
    n_heads: int = 4
    n_kv_heads: int = 2
    ffn_dim: int = 64
    max_seq_len: int = 16
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.dim // self.n_heads


class KVCache(NamedTuple):
    k: jax.Array  # [layers, batch, max_seq, kv_heads, head_dim]
    v: jax.Array

    @classmethod
    def create(cls, cfg: ModelConfig, batch: int, dtype=jnp.float32) -> "KVCache":
        buffer = jnp.zeros((cfg.n_layers, batch, cfg.max_seq_len, cfg.n_kv_heads, cfg.head_dim), dtype)
        return cls(buffer, buffer)

    def update(self, layer: int, pos: jax.Array, k: jax.Array, v: jax.Array) -> "KVCache":
        def write(buffer, new):
            return jax.lax.dynamic_update_slice(buffer, new[None].astype(buffer.dtype), (layer, 0, pos, 0, 0))

        return KVCache(write(self.k, k), write(self.v, v))


def init_params(key: jax.Array, cfg: ModelConfig) -> Params:
    def normal(k, *shape):
        return jax.random.normal(k, shape) * shape[0] ** -0.5

    k_embed, k_head, *layer_keys = jax.random.split(key, cfg.n_layers + 2)
    kv_dim, layers = cfg.n_kv_heads * cfg.head_dim, []
    for layer_key in layer_keys:
        ks = jax.random.split(layer_key, 7)
        layers.append(
            {
                "attn": {
                    "wq": normal(ks[0], cfg.dim, cfg.dim),
                    "wk": normal(ks[1], cfg.dim, kv_dim),
                    "wv": normal(ks[2], cfg.dim, kv_dim),
                    "wo": normal(ks[3], cfg.dim, cfg.dim),
                },
                "mlp": {
                    "gate": normal(ks[4], cfg.dim, cfg.ffn_dim),
                    "up": normal(ks[5], cfg.dim, cfg.ffn_dim),
                    "down": normal(ks[6], cfg.ffn_dim, cfg.dim),
                },
                "attn_norm": jnp.ones(cfg.dim),
                "mlp_norm": jnp.ones(cfg.dim),
            }
        )
    return {
        "embed": jax.random.normal(k_embed, (cfg.vocab_size, cfg.dim)),
        "layers": layers,
        "final_norm": jnp.ones(cfg.dim),
        "lm_head": normal(k_head, cfg.dim, cfg.vocab_size),
    }


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    variance = jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)
    return (x * jax.lax.rsqrt(variance + eps)).astype(x.dtype) * weight


def apply_rope(x: jax.Array, positions: jax.Array, theta: float) -> jax.Array:
    """Rotates half-split feature pairs of x [batch, seq, heads, head_dim] by position."""
    inv_freq = theta ** (-jnp.arange(0, x.shape[-1], 2) / x.shape[-1])
    angles = positions[:, None, None].astype(jnp.float32) * inv_freq
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    x1, x2 = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1)


def attention(p: Params, x: jax.Array, cache: KVCache, layer: int, pos: jax.Array, cfg: ModelConfig):
    (b, t, _), positions = x.shape, pos + jnp.arange(x.shape[1])
    q = apply_rope((x @ p["wq"]).reshape(b, t, cfg.n_heads, cfg.head_dim), positions, cfg.rope_theta)
    k = apply_rope((x @ p["wk"]).reshape(b, t, cfg.n_kv_heads, cfg.head_dim), positions, cfg.rope_theta)
    v = (x @ p["wv"]).reshape(b, t, cfg.n_kv_heads, cfg.head_dim)
    cache = cache.update(layer, pos, k, v)
    q = q.reshape(b, t, cfg.n_kv_heads, cfg.n_heads // cfg.n_kv_heads, cfg.head_dim)
    scores = jnp.einsum("btkgd,bskd->bkgts", q, cache.k[layer]) * cfg.head_dim**-0.5
    causal = jnp.arange(cfg.max_seq_len)[None, :] <= positions[:, None]
    scores = jnp.where(causal, scores, jnp.finfo(scores.dtype).min)
    out = jnp.einsum("bkgts,bskd->btkgd", jax.nn.softmax(scores, axis=-1), cache.v[layer])
    return out.reshape(b, t, cfg.dim) @ p["wo"], cache


def forward(params: Params, tokens: jax.Array, cache: KVCache, pos, cfg: ModelConfig):
    """Runs tokens [batch, seq] starting at `pos`; returns last-position logits and the cache."""
    h = params["embed"][tokens]
    for i, layer in enumerate(params["layers"]):
        attn_out, cache = attention(layer["attn"], rms_norm(h, layer["attn_norm"], cfg.norm_eps), cache, i, pos, cfg)
        h = h + attn_out
        z, mlp = rms_norm(h, layer["mlp_norm"], cfg.norm_eps), layer["mlp"]
        h = h + (jax.nn.silu(z @ mlp["gate"]) * (z @ mlp["up"])) @ mlp["down"]
    return rms_norm(h[:, -1], params["final_norm"], cfg.norm_eps) @ params["lm_head"], cache


def sample_token(key: jax.Array, logits: jax.Array, temperature: float = 1.0, top_k: int | None = None) -> jax.Array:
    if temperature == 0.0:
        return jnp.argmax(logits, axis=-1)
    if top_k is not None:
        logits = jnp.where(logits < jax.lax.top_k(logits, top_k)[0][..., -1:], -jnp.inf, logits)
    return jax.random.categorical(key, logits / temperature, axis=-1)


def generate(params, prompt, key, *, cfg: ModelConfig, max_new_tokens: int, temperature: float = 0.0, top_k=None):
    """Decodes max_new_tokens after the prompt [batch, seq]; temperature 0 is greedy."""
    batch, prompt_len = prompt.shape
    logits, cache = forward(params, prompt, KVCache.create(cfg, batch), 0, cfg)

    def decode_step(carry, step_key):
        logits, cache, pos = carry
        token = sample_token(step_key, logits, temperature, top_k)
        logprob = jnp.take_along_axis(jax.nn.log_softmax(logits), token[:, None], axis=-1)[:, 0]
        logits, cache = forward(params, token[:, None], cache, pos, cfg)
        return (logits, cache, pos + 1), (token, logprob)

    init = (logits, cache, jnp.int32(prompt_len))
    _, (tokens, logprobs) = jax.lax.scan(decode_step, init, jax.random.split(key, max_new_tokens))
    return {"tokens": jnp.concatenate([prompt, tokens.T], axis=1), "logprob": logprobs.sum(axis=0)}


def build():
    cfg = ModelConfig()
    k_params, k_prompt, k_sample = jax.random.split(jax.random.key(7), 3)

    def generate_both(params, prompt, key):
        decode = functools.partial(generate, params, prompt, key, cfg=cfg, max_new_tokens=6)
        return {"greedy": decode(), "sampled": decode(temperature=0.8, top_k=8)}

    return generate_both, (
        init_params(k_params, cfg),
        jax.random.randint(k_prompt, (2, 5), 0, cfg.vocab_size),
        k_sample,
    )
