"""One tensor that a module gets twice: `self.attention(normed, normed, mask)` is a call with two arguments.

In a trace both are the same variable. So that the function of the class gets both parameters, the second one is a tensor
object of its own, and what reads it is traced in a name scope that says which argument it was.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax

from untrace import jax_compat
from untrace._identity import IdentityMap
from untrace.ir.nodes import Equation, Passed, Value
from untrace.torch import views

_SCOPE = "untrace_argument_"

Chain = tuple[int, ...]


class Mutated(Exception):
    """Such an argument was written to in place: then the two have to stay one."""


class Arguments:
    """The arguments of one run that are another one's tensor. `names`: (number of the call, parameter) of each."""

    def __init__(self) -> None:
        self.names: list[tuple[int, str]] = []

    def apart(
        self, number: int, forward: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Any, Any, list[Any]]:
        """(args, kwargs) with a tensor object for each parameter, and those that are new."""
        try:
            bound = inspect.signature(forward).bind(*args, **kwargs)
        except (TypeError, ValueError):
            return args, kwargs, []
        seen: IdentityMap[Any, None] = IdentityMap()
        made: list[Any] = []
        for name, value in bound.arguments.items():
            var = jax_compat.tracer_variable(getattr(value, "_elem", None))
            if var is None:
                continue
            if var in seen and hasattr(value, "_env"):
                other = views.link(type(value)(value.jax(), value._env), value, lambda array: array, "alias")
                other.untrace_arguments = (*getattr(value, "untrace_arguments", ()), len(self.names))
                other.untrace_given = value._elem
                self.names.append((number, name))
                bound.arguments[name] = other
                made.append(other)
            seen[var] = None
        return (bound.args, bound.kwargs, made) if made else (args, kwargs, [])

    @staticmethod
    def check(made: Sequence[Any]) -> None:
        if any(t._elem is not t.untrace_given for t in made):
            raise Mutated


@contextlib.contextmanager
def marked(args: Iterable[Any]) -> Iterator[None]:
    """The scope of an operation on such an argument; none where it gets the same tensor under two names."""
    chains: IdentityMap[Any, set[Chain]] = IdentityMap()
    for value in _flat(args):
        var = jax_compat.tracer_variable(getattr(value, "_elem", None))
        if var is not None:
            chains.setdefault(var, set()).add(getattr(value, "untrace_arguments", ()))
    found = sorted({c for several in chains.values() if len(several) == 1 for c in several if c})
    with contextlib.ExitStack() as stack:
        for chain in found:
            stack.enter_context(jax.named_scope(_SCOPE + "_".join(map(str, chain))))
        yield


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _flat(value)
        else:
            yield value


def _chains(scopes: Sequence[str]) -> list[Chain]:
    return [tuple(map(int, s[len(_SCOPE) :].split("_"))) for s in scopes if s.startswith(_SCOPE)]


class Aliases:
    """Values that stand for a second argument. `of`: what each is a name of; `named`: its call and parameter."""

    def __init__(self, names: Sequence[tuple[int, str]]):
        self._names = names
        self._made: dict[tuple[Value, int], Value] = {}
        self.of: dict[Value, Value] = {}
        self.named: dict[Passed, tuple[int, str]] = {}
        self._passed: dict[int, dict[Passed, Passed]] = {}

    def root(self, value: Any) -> Any:
        """The value itself, whatever it was passed as."""
        while value in self.of:
            value = self.of[value]
        return value

    def apart(self, equation: Equation, scopes: Sequence[str], argument_of: Any) -> Equation:
        """The equation with the values that its scopes speak of as arguments of their own.

        argument_of: (number of a call, its parameter) -> the value that was passed.
        """
        known: dict[Value, Value] = {}
        for chain in _chains(scopes):
            value = argument_of(*self._names[chain[-1]])
            if value is None or value not in equation.inputs:
                continue
            made = value
            for number in chain:
                made = self._alias(made, number)
            known[value] = made
        if not known:
            return equation
        inputs = [known.get(a, a) if type(a) is Value else a for a in equation.inputs]
        return Equation(equation.callee, inputs, list(equation.outputs), equation.params, equation.origin)

    def passed_to(self, number: int) -> dict[Passed, Passed]:
        """{argument of this call: the value that is passed for it}."""
        return self._passed.get(number, {})

    def _alias(self, value: Value, number: int) -> Value:
        made = self._made.get((value, number))
        if made is None:
            made = self._made[value, number] = Value(value.aval, self._names[number][1])
            self.of[made] = value
            self.named[made] = self._names[number]
            self._passed.setdefault(self._names[number][0], {})[made] = value
        return made


class Known(dict[Value, Value]):
    """{value: what it is called here}; an argument that is nothing here is what was passed for it."""

    def __init__(self, aliases: Aliases, *content: Any):
        super().__init__(*content)
        self.aliases = aliases

    def of(self, atom: Any) -> Any:
        if type(atom) is not Value:
            return atom
        while atom not in self and atom in self.aliases.of:
            atom = self.aliases.of[atom]
        return self.get(atom, atom)

    def renamed(self, equation: Equation) -> Equation:
        inputs = [self.of(a) for a in equation.inputs]
        outputs = [None if o is None else self.get(o, o) for o in equation.outputs]
        same = all(a is b for a, b in zip((*inputs, *outputs), (*equation.inputs, *equation.outputs), strict=True))
        return equation if same else Equation(equation.callee, inputs, outputs, equation.params, equation.origin)
