"""Losses that need an algorithm of their own: the sum over all alignments of a sequence with its labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def table() -> list[tuple[Any, Callable[..., Any], dict[str, Any]]]:
    """(function of PyTorch, implementation, options)."""
    import torch
    from torch.nn import functional as F

    return [(F.ctc_loss, ctc_loss, {}), (torch.ctc_loss, _ctc_loss, {})]


# The logarithm of no probability: an infinity has no gradient.
_NEVER = -1e30


def _ctc_loss(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: int = 1,
    zero_infinity: bool = False,
) -> Any:  # fmt: skip
    words = ("none", "mean", "sum")
    return ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, words[reduction], zero_infinity)


def ctc_loss(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:  # fmt: skip
    """log_probs: [time, batch, class], or [time, class]; targets: [batch, label], or all labels in one row.

    Source: Graves et al., Connectionist Temporal Classification (2006), equations 6 to 8.
    """
    single = log_probs.ndim == 2
    if single:
        log_probs = log_probs[:, None]
    input_lengths, target_lengths = jnp.asarray(input_lengths), jnp.asarray(target_lengths)
    if single:
        targets, input_lengths, target_lengths = targets[None], input_lengths.reshape(1), target_lengths.reshape(1)
    elif targets.ndim == 1:  # the labels of each sequence behind those of the one before
        starts = jnp.cumsum(target_lengths) - target_lengths
        places = starts[:, None] + jnp.arange(targets.shape[0])
        targets = targets[jnp.minimum(places, targets.shape[0] - 1)]
    batch, length = targets.shape
    # A blank before, between and behind the labels.
    labels = jnp.full((batch, 2 * length + 1), blank, targets.dtype).at[:, 1::2].set(targets)
    emitted = jnp.take_along_axis(log_probs, labels[None], axis=2)
    skips = jnp.pad(labels[:, 2:] != labels[:, :-2], ((0, 0), (2, 0)))  # the blank between other labels may be left out

    def step(alpha: Any, inputs: Any) -> Any:
        log_prob, time = inputs
        before = jnp.pad(alpha, ((0, 0), (2, 0)), constant_values=_NEVER)
        skipped = jnp.where(skips, before[:, :-2], _NEVER)
        ways = jnp.logaddexp(jnp.logaddexp(alpha, before[:, 1:-1]), skipped)
        return jnp.where((time < input_lengths)[:, None], ways + log_prob, alpha), None

    first = jnp.where(jnp.arange(2 * length + 1) < 2, emitted[0], _NEVER)
    alpha, _ = lax.scan(step, first, (emitted[1:], jnp.arange(1, log_probs.shape[0])))
    # A sequence ends with its last label or with the blank behind it.
    ends = 2 * target_lengths[:, None] + jnp.array([0, -1])
    last = jnp.where(ends >= 0, jnp.take_along_axis(alpha, jnp.maximum(ends, 0), axis=1), _NEVER)
    losses = -jax.nn.logsumexp(last, axis=1)
    losses = jnp.where(losses > -0.1 * _NEVER, 0.0 if zero_infinity else jnp.inf, losses)
    if reduction == "none":
        return losses[0] if single else losses
    return jnp.sum(losses) if reduction == "sum" else jnp.mean(losses / jnp.maximum(target_lengths, 1))
