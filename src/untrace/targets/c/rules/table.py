"""The table of the C target's rules.

A rule gets the builder, the operands as Arrays and every parameter of the primitive by keyword. It returns the results as
Arrays, which may be computed where they are read; what needs loops of its own writes them. It declines, with a sentence,
what it cannot express.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from untrace.targets.c.arrays import Array

Rule = Callable[..., Array | Sequence[Array]]


class Declined(Exception):
    """Something that C, or this target, has no words for; the message says what."""


class Rules:
    """The rules by the names of primitives. A second one for a name raises."""

    def __init__(self) -> None:
        self._rules: dict[str, Rule] = {}
        self._of_complex: dict[str, Rule] = {}

    def rule(self, *names: str) -> Callable[[Rule], Rule]:
        def register(function: Rule) -> Rule:
            for name in names:
                if name in self._rules:
                    raise ValueError(f"a second C rule for {name!r}: {function.__qualname__}")
                self._rules[name] = function
            return function

        return register

    def rule_of_complex(self, *names: str) -> Callable[[Rule], Rule]:
        """Registers what is written where an operand or a result is complex: no other rule is asked there."""

        def register(function: Rule) -> Rule:
            self._of_complex |= dict.fromkeys(names, function)
            return function

        return register

    def find(self, name: str, is_complex: bool = False) -> Rule | None:
        return (self._of_complex if is_complex or name not in self._rules else self._rules).get(name)

    def names(self) -> list[str]:
        return sorted({*self._rules, *self._of_complex})


C = Rules()
rule, rule_of_complex = C.rule, C.rule_of_complex
