"""Loops and branches in Python's own words: `for`, `while` and `if`."""

from __future__ import annotations

from untrace.targets.eager import control
from untrace.targets.numpy.rules.table import rule

rule("scan")(control.scan)
rule("while")(control.while_)
rule("cond")(control.cond)
