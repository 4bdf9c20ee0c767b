"""The table of the JAX target's rules."""

from __future__ import annotations

from untrace.module.rules import RuleTable

JAX = RuleTable("jax")
rule = JAX.rule
