"""Batched beam search over a small decoder-only transformer with a KV cache.

Follows the structure of the T5X / flax examples: `live` beams are still being extended, `finished` beams
have produced EOS; the loop stops early once no live beam can overtake the worst finished one.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

LIBRARY = "jax"
KIND = "decode"
SOURCE = "self"

PAD_ID, EOS_ID, BOS_ID = 0, 1, 2
NEG_INF = np.array(-1.0e7)

Cache = dict[str, jnp.ndarray]


class LMConfig(NamedTuple):
    vocab: int = 40
    d_model: int = 32
    n_heads: int = 4
    n_layers: int = 2
    max_len: int = 16

    def cache_shape(self, batch: int):
        return (batch, self.n_layers, self.max_len, self.n_heads, self.d_model // self.n_heads)


def init_lm(rng, cfg: LMConfig):
    def dense(key, *shape):
        return jax.random.normal(key, shape) / math.sqrt(shape[-2] if len(shape) > 1 else 1)

    def block(key):
        k = jax.random.split(key, 4)
        return dict(
            qkv=dense(k[0], cfg.d_model, 3 * cfg.d_model),
            out=dense(k[1], cfg.d_model, cfg.d_model),
            up=dense(k[2], cfg.d_model, 4 * cfg.d_model),
            down=dense(k[3], 4 * cfg.d_model, cfg.d_model),
            ln1=jnp.ones(cfg.d_model),
            ln2=jnp.ones(cfg.d_model),
        )

    k_emb, k_pos, k_head, k_blocks = jax.random.split(rng, 4)
    return dict(
        embed=jax.random.normal(k_emb, (cfg.vocab, cfg.d_model)),
        pos=0.5 * jax.random.normal(k_pos, (cfg.max_len, cfg.d_model)),
        blocks=jax.vmap(block)(jax.random.split(k_blocks, cfg.n_layers)),
        ln_f=jnp.ones(cfg.d_model),
        head=dense(k_head, cfg.d_model, cfg.vocab),
    )


def rms_norm(x, scale, eps=1e-6):
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps) * scale


def decode_one(params, cfg: LMConfig, ids, index, cache: Cache) -> tuple[jnp.ndarray, Cache]:
    """ids: [n] tokens at position `index`. Returns logits [n, vocab] and the new cache."""
    x = params["embed"][ids] + params["pos"][index]
    visible = jnp.arange(cfg.max_len) <= index

    def layer(x, xs):
        p, k_cache, v_cache = xs  # caches: [n, max_len, heads, head_dim]
        q, k, v = jnp.split(rms_norm(x, p["ln1"]) @ p["qkv"], 3, axis=-1)
        q, k, v = (t.reshape(t.shape[0], cfg.n_heads, -1) for t in (q, k, v))
        k_cache = lax.dynamic_update_slice_in_dim(k_cache, k[:, None], index, axis=1)
        v_cache = lax.dynamic_update_slice_in_dim(v_cache, v[:, None], index, axis=1)
        scores = jnp.einsum("nhd,nthd->nht", q, k_cache) / math.sqrt(q.shape[-1])
        weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-1)
        attended = jnp.einsum("nht,nthd->nhd", weights, v_cache).reshape(x.shape)
        x = x + attended @ p["out"]
        x = x + jax.nn.gelu(rms_norm(x, p["ln2"]) @ p["up"]) @ p["down"]
        return x, (k_cache, v_cache)

    layer_first = jax.tree.map(lambda c: jnp.swapaxes(c, 0, 1), cache)
    x, (k, v) = lax.scan(layer, x, (params["blocks"], layer_first["k"], layer_first["v"]))
    logits = rms_norm(x, params["ln_f"]) @ params["head"]
    return logits, dict(k=jnp.swapaxes(k, 0, 1), v=jnp.swapaxes(v, 0, 1))


class BeamState(NamedTuple):
    cur_index: jnp.ndarray  # scalar
    live_logprobs: jnp.ndarray  # [batch, beams]
    finished_scores: jnp.ndarray  # [batch, beams]
    live_seqs: jnp.ndarray  # [batch, beams, max_len]
    finished_seqs: jnp.ndarray  # [batch, beams, max_len]
    finished_flags: jnp.ndarray  # [batch, beams]
    cache: Any  # leaves [batch, beams, ...]


def length_penalty(alpha: float, length):
    return jnp.power((5.0 + length) / 6.0, alpha)


def flatten_beam_dim(x):
    return x.reshape((x.shape[0] * x.shape[1],) + x.shape[2:])


def unflatten_beam_dim(x, batch, beams):
    assert x.shape[0] == batch * beams
    return x.reshape((batch, beams) + x.shape[1:])


def gather_beams(nested, beam_indices):
    """Reorders axis 1 of every leaf by beam_indices [batch, new_beams]."""
    take = jax.vmap(lambda x, i: jnp.take(x, i, axis=0))
    return jax.tree.map(lambda x: take(x, beam_indices), nested)


def beam_search(tokens_to_logits: Callable, cache, first_ids, *, max_len: int, beams: int, alpha: float = 0.6):
    """Returns (sequences [batch, beams, max_len], scores [batch, beams], steps taken), best beam first."""
    batch = first_ids.shape[0]
    init = BeamState(
        cur_index=jnp.array(0),
        live_logprobs=jnp.tile(jnp.array([0.0] + [NEG_INF] * (beams - 1)), (batch, 1)),
        finished_scores=jnp.full((batch, beams), NEG_INF, jnp.float32),
        live_seqs=jnp.full((batch, beams, max_len), PAD_ID, jnp.int32).at[:, :, 0].set(first_ids[:, None]),
        finished_seqs=jnp.full((batch, beams, max_len), PAD_ID, jnp.int32),
        finished_flags=jnp.zeros((batch, beams), bool),
        cache=jax.tree.map(lambda x: jnp.repeat(x[:, None], beams, axis=1), cache),
    )

    def cond(s: BeamState):
        best_live = s.live_logprobs[:, 0] / length_penalty(alpha, max_len)
        worst_finished = jnp.min(jnp.where(s.finished_flags, s.finished_scores, NEG_INF), axis=1)
        return (s.cur_index < max_len - 1) & ~jnp.all(worst_finished > best_live)

    def body(s: BeamState) -> BeamState:
        ids = lax.dynamic_index_in_dim(s.live_seqs, s.cur_index, axis=2, keepdims=False)
        logits, flat_cache = tokens_to_logits(
            flatten_beam_dim(ids), s.cur_index, jax.tree.map(flatten_beam_dim, s.cache)
        )
        new_cache = jax.tree.map(functools.partial(unflatten_beam_dim, batch=batch, beams=beams), flat_cache)
        candidates = jax.nn.log_softmax(unflatten_beam_dim(logits, batch, beams)).at[..., PAD_ID].set(NEG_INF)
        log_probs = candidates + s.live_logprobs[..., None]
        vocab = log_probs.shape[-1]

        # 2 * beams candidates guarantee at least `beams` that do not end in EOS.
        top_logprobs, top_flat = lax.top_k(log_probs.reshape(batch, beams * vocab), k=2 * beams)
        top_beam, top_ids = top_flat // vocab, top_flat % vocab
        top_seqs = gather_beams(s.live_seqs, top_beam)
        top_seqs = lax.dynamic_update_slice(top_seqs, top_ids[..., None], (0, 0, s.cur_index + 1))
        newly_finished = top_ids == EOS_ID

        live_candidates = top_logprobs + newly_finished * NEG_INF
        _, order = lax.top_k(live_candidates, k=beams)
        live_seqs, live_logprobs, live_beam = gather_beams((top_seqs, live_candidates, top_beam), order)

        scores = top_logprobs / length_penalty(alpha, s.cur_index + 1) + (~newly_finished) * NEG_INF
        pool = (
            jnp.concatenate([s.finished_seqs, top_seqs], axis=1),
            jnp.concatenate([s.finished_scores, scores], axis=1),
            jnp.concatenate([s.finished_flags, newly_finished], axis=1),
        )
        finished_seqs, finished_scores, finished_flags = gather_beams(pool, lax.top_k(pool[1], k=beams)[1])
        return BeamState(
            s.cur_index + 1,
            live_logprobs,
            finished_scores,
            live_seqs,
            finished_seqs,
            finished_flags,
            cache=gather_beams(new_cache, live_beam),
        )

    final = lax.while_loop(cond, body, init)
    # Batch items without a single finished hypothesis fall back on their live beams.
    any_finished = jnp.any(final.finished_flags, axis=1)[:, None]
    sequences = jnp.where(any_finished[..., None], final.finished_seqs, final.live_seqs)
    return sequences, jnp.where(any_finished, final.finished_scores, final.live_logprobs), final.cur_index


def build():
    cfg = LMConfig()
    params = init_lm(jax.random.key(14), cfg)
    # Random weights hardly ever emit EOS: make its logit vary more than the others.
    params["head"] = params["head"].at[:, EOS_ID].multiply(1.8)

    def translate(params, first_ids):
        step = functools.partial(decode_one, params, cfg)
        cache = {name: jnp.zeros(cfg.cache_shape(first_ids.shape[0])) for name in "kv"}
        return beam_search(step, cache, first_ids, max_len=cfg.max_len, beams=3)

    return translate, (params, jnp.array([BOS_ID, 7, 23], jnp.int32))
