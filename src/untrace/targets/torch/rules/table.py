"""The table of the rules of the PyTorch target."""

from __future__ import annotations

from untrace.module.rules import RuleTable

TORCH = RuleTable("torch")
rule = TORCH.rule
