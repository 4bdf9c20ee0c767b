"""Integers of the author's module in indices and in arithmetic of sizes: written by their names, where the source says so."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import untrace

HOP = 2
WIDTH = 8
HALF = WIDTH // 2


def cut(v: Any) -> Any:
    quarter = HALF // 2
    return (
        v[HOP:].sum() / (HOP * v.size),
        v[: v.shape[0] - HOP] + v[-HOP],
        v[:HALF].at[quarter + 1].set(1.0),
        jnp.arange(v.shape[0] * WIDTH),
        jnp.arange((v.shape[0] - WIDTH) // HALF + 1),
        v[2:],
    )


def test_they_have_the_modules_names():
    source = untrace.decompile(cut)(np.arange(16.0, dtype=np.float32)).source
    for part in (
        "v[HOP:].sum() / (v.shape[0] * HOP)", "v[:-HOP] + v[-HOP]", "v[:HALF].at[HALF // 2 + 1].set(1.0)",
        "jnp.arange(v.shape[0] * WIDTH)", "HALF = WIDTH // 2", "v[2:]",
        "jnp.arange((v.shape[0] - WIDTH) // HALF + 1)",  # not `(v.shape[0] - 4) // 4`, which is the same
    ):  # fmt: skip
        assert part in source, source
