"""The table of the rules of the NumPy target."""

from __future__ import annotations

from untrace.module.rules import RuleTable

NUMPY = RuleTable("numpy")
rule = NUMPY.rule
