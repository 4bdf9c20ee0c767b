"""JAX as a target."""

from __future__ import annotations

from untrace.targets.base import Target
from untrace.targets.jax.writer import JaxModule

TARGET = Target("jax", "JAX", JaxModule)
