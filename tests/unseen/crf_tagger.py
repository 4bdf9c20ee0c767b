"""Linear-chain CRF on top of an iterated dilated CNN (ID-CNN-CRF, Strubell et al. 2017) for BIO tagging.

Transitions that the BIO scheme forbids (O -> I-PER, B-LOC -> I-PER, ...) are masked with a large negative
constant in both training and decoding.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax

LIBRARY = "optax"
KIND = "train_step"
SOURCE = "self"

Params = dict[str, Any]

ENTITY_TYPES = ("PER", "LOC", "ORG")
TAGS = ["O"] + [f"{prefix}-{ent}" for ent in ENTITY_TYPES for prefix in "BI"]
TAG_TO_ID = {tag: i for i, tag in enumerate(TAGS)}
K = len(TAGS)
IMPOSSIBLE = -1e4


@dataclasses.dataclass(frozen=True)
class TaggerConfig:
    vocab_size: int = 120
    embed_dim: int = 24
    hidden_dim: int = 32
    dilations: tuple[int, ...] = (1, 2, 4)
    num_iterations: int = 2
    dropout: float = 0.15


class Batch(NamedTuple):
    tokens: Array  # [B, T] int32, 0 is padding
    tags: Array  # [B, T] int32
    lengths: Array  # [B] int32


def bio_constraints() -> tuple[np.ndarray, np.ndarray]:
    """Returns additive masks ([K, K] for transitions, [K] for starts)."""

    def allowed(prev: str, nxt: str) -> bool:
        return not nxt.startswith("I-") or prev[2:] == nxt[2:]

    trans = np.array([[0.0 if allowed(a, b) else IMPOSSIBLE for b in TAGS] for a in TAGS], np.float32)
    return trans, trans[TAG_TO_ID["O"]]


TRANSITION_MASK, START_MASK = bio_constraints()


def init_params(key: Array, cfg: TaggerConfig) -> Params:
    k_embed, k_proj, k_conv, k_out, k_crf = jax.random.split(key, 5)
    he = jax.nn.initializers.he_normal(in_axis=(0, 1), out_axis=2)
    glorot = jax.nn.initializers.glorot_uniform()
    conv_keys = jax.random.split(k_conv, len(cfg.dilations))
    H = cfg.hidden_dim
    return {
        "embed": 0.1 * jax.random.normal(k_embed, (cfg.vocab_size, cfg.embed_dim)),
        "proj": {"w": glorot(k_proj, (cfg.embed_dim, H)), "b": jnp.zeros(H)},
        "convs": [{"kernel": he(k, (3, H, H)), "bias": jnp.zeros(H)} for k in conv_keys],
        "out": {"w": glorot(k_out, (H, K)), "b": jnp.zeros(K)},
        "crf": {"transitions": 0.1 * jax.random.normal(k_crf, (K, K)), "start": jnp.zeros(K), "end": jnp.zeros(K)},
    }


def emissions(params: Params, cfg: TaggerConfig, tokens: Array, mask: Array, rng: Array | None = None) -> Array:
    """[B, T] token ids -> [B, T, K] unary scores. Dropout is applied when a key is given."""
    x = jnp.take(params["embed"], tokens, axis=0)
    if rng is not None:
        keep = jax.random.bernoulli(rng, 1.0 - cfg.dropout, x.shape)
        x = jnp.where(keep, x / (1.0 - cfg.dropout), 0.0)
    x = x @ params["proj"]["w"] + params["proj"]["b"]
    for _ in range(cfg.num_iterations):
        residual = x
        for conv, dilation in zip(params["convs"], cfg.dilations):
            x = lax.conv_general_dilated(
                x * mask[..., None],
                conv["kernel"],
                (1,),
                "SAME",
                rhs_dilation=(dilation,),
                dimension_numbers=("NWC", "WIO", "NWC"),
            )
            x = jax.nn.relu(x + conv["bias"])
        x = x + residual
    return x @ params["out"]["w"] + params["out"]["b"]


def constrained(crf: Params) -> tuple[Array, Array, Array]:
    return crf["transitions"] + TRANSITION_MASK, crf["start"] + START_MASK, crf["end"]


def length_mask(batch: Batch) -> Array:
    return jnp.arange(batch.tokens.shape[1])[None, :] < batch.lengths[:, None]


def crf_log_partition(crf: Params, unary: Array, mask: Array) -> Array:
    """Forward algorithm for one sequence: unary [T, K], mask [T] -> scalar."""
    transitions, start, end = constrained(crf)

    def step(alpha, inputs):
        emit, valid = inputs
        new = jax.nn.logsumexp(alpha[:, None] + transitions, axis=0) + emit
        return jnp.where(valid, new, alpha), None

    alpha, _ = lax.scan(step, start + unary[0], (unary[1:], mask[1:]))
    return jax.nn.logsumexp(alpha + end)


def crf_path_score(crf: Params, unary: Array, tags: Array, mask: Array) -> Array:
    transitions, start, end = constrained(crf)
    emit = jnp.take_along_axis(unary, tags[:, None], axis=-1)[:, 0]
    pairwise = transitions[tags[:-1], tags[1:]]
    return start[tags[0]] + jnp.sum(emit * mask) + jnp.sum(pairwise * mask[1:]) + end[tags[jnp.sum(mask) - 1]]


def viterbi_decode(crf: Params, unary: Array, mask: Array) -> tuple[Array, Array]:
    """Best path of one sequence; padded positions carry on the last tag and are to be ignored."""
    transitions, start, end = constrained(crf)

    def forward(score, inputs):
        emit, valid = inputs
        candidates = score[:, None] + transitions
        new = jnp.max(candidates, axis=0) + emit
        backptr = jnp.where(valid, jnp.argmax(candidates, axis=0), jnp.arange(K))
        return jnp.where(valid, new, score), backptr

    score, backptrs = lax.scan(forward, start + unary[0], (unary[1:], mask[1:]))
    best_last = jnp.argmax(score + end)
    first, rest = lax.scan(lambda tag, backptr: (backptr[tag], tag), best_last, backptrs, reverse=True)
    return jnp.concatenate([first[None], rest]), jnp.max(score + end)


def mean_nll(params: Params, cfg: TaggerConfig, batch: Batch, rng: Array | None = None) -> Array:
    mask = length_mask(batch)
    unary = emissions(params, cfg, batch.tokens, mask, rng)
    log_z = jax.vmap(partial(crf_log_partition, params["crf"]))(unary, mask)
    gold = jax.vmap(crf_path_score, in_axes=(None, 0, 0, 0))(params["crf"], unary, batch.tags, mask)
    return jnp.mean(log_z - gold)


def predict(params: Params, cfg: TaggerConfig, batch: Batch) -> tuple[Array, Array]:
    mask = length_mask(batch)
    unary = emissions(params, cfg, batch.tokens, mask)
    paths, scores = jax.vmap(partial(viterbi_decode, params["crf"]))(unary, mask)
    return jnp.where(mask, paths, TAG_TO_ID["O"]), scores


def make_train_step(cfg: TaggerConfig, tx: optax.GradientTransformation):
    def train_step(params: Params, opt_state: optax.OptState, batch: Batch, rng: Array):
        nll, grads = jax.value_and_grad(mean_nll)(params, cfg, batch, rng)
        updates, opt_state = tx.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        paths, scores = predict(params, cfg, batch)
        accuracy = jnp.mean(paths == batch.tags, where=length_mask(batch))
        metrics = {"nll": nll, "accuracy": accuracy, "grad_norm": optax.global_norm(grads), "viterbi": scores}
        return params, opt_state, metrics, paths

    return train_step


def build():
    cfg = TaggerConfig()
    schedule = optax.warmup_cosine_decay_schedule(1e-3, 3e-3, warmup_steps=10, decay_steps=200)

    def decay_mask(params):
        return jax.tree.map(lambda p: p.ndim > 1, params)

    tx = optax.chain(optax.clip_by_global_norm(5.0), optax.adamw(schedule, weight_decay=1e-2, mask=decay_mask))
    params = init_params(jax.random.key(0), cfg)
    rng = np.random.default_rng(1)
    lengths = np.array([14, 9, 11, 1, 14, 6], np.int32)
    tokens, tags = np.zeros((2, 6, 14), np.int32)
    for row, n in enumerate(lengths):
        tokens[row, :n] = rng.integers(1, cfg.vocab_size, n)
        for pos in range(0, n - 1, 4):
            ent = ENTITY_TYPES[rng.integers(len(ENTITY_TYPES))]
            tags[row, pos : pos + 2] = TAG_TO_ID[f"B-{ent}"], TAG_TO_ID[f"I-{ent}"]
    batch = Batch(jnp.asarray(tokens), jnp.asarray(tags), jnp.asarray(lengths))
    return make_train_step(cfg, tx), (params, tx.init(params), batch, jax.random.key(2))
