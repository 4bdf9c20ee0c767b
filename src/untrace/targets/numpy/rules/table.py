"""The table of the rules of the NumPy target."""

from __future__ import annotations

from untrace.print.rules import RuleTable

NUMPY = RuleTable("numpy")
rule = NUMPY.rule
