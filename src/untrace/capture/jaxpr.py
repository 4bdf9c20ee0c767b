"""From a jaxpr to the IR.

Every jaxpr becomes one `Function`, by identity: what JAX shares stays shared. Parameters that hold jaxprs hold Functions
afterwards; the rules of `custom_jvp` and `custom_vjp`, which JAX keeps as closures, are traced here (`custom_rules`).
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from untrace import jax_compat
from untrace.capture import custom_rules
from untrace.capture.expand import Expander
from untrace.ir.nodes import Constant, Equation, Function, Literal, Primitive, Value

# Parameter types that can never hold a jaxpr: most parameters, so they are passed over first.
_PLAIN = {int, float, bool, str, type(None), np.dtype, np.int64, complex, bytes}


class Importer:
    """Converts jaxprs, each once."""

    def __init__(self, expander: Expander | None = None) -> None:
        # The program's own: what it has replaced is then seen to be the same thing inside a rule.
        self.expander = expander or Expander()
        self._functions: dict[int, Function] = {}
        self._constants: dict[int, Constant] = {}
        self._primitives: dict[int, Primitive] = {}
        self._keep: list[Any] = []  # ids are only unique while the objects live
        self._later: deque[tuple[int, Callable[[bool], None]]] = deque()
        self._depth = 0
        self._notes: list[str] = []
        self._program: Any = None
        self.rules: dict[Any, dict[str, Any]] = {}  # captured custom rules, by `jax_compat.rule_key`

    @property
    def notes(self) -> list[str]:
        """Sentences for the proof."""
        return [*self.expander.notes, *self._notes]

    @property
    def constants(self) -> list[Constant]:
        """Every array that was met, each once."""
        return list(self._constants.values())

    def program(self, closed: Any, name: str) -> Function:
        """The Function of a whole program, with its derivative rules, theirs, and so on.

        The rules are captured level by level: a function that is met both in the program and deep inside
        rules is one Function, and must have the rules that the program needs.
        """
        self._program = closed
        entry = self.function(closed, name)
        while self._later:
            self._depth, work = self._later.popleft()
            work(self._depth <= custom_rules.MAX_DEPTH)
        self._depth = 0
        return entry

    @functools.cached_property
    def outside(self) -> Mapping[Any, Any]:
        """For the inputs of all bodies in the program what they are outside."""
        return custom_rules.variables_outside(self._program) if self._program is not None else {}

    def later(self, work: Callable[[bool], None]) -> None:
        """Puts off `work(allowed)`, the capture of a rule, until everything on this level is captured.

        allowed: whether rules this deep inside rules are captured at all.
        """
        self._later.append((self._depth + 1, work))

    def note(self, sentence: str) -> None:
        if sentence not in self._notes:
            self._notes.append(sentence)

    def function(self, closed: Any, name: str) -> Function:
        """The Function of a ClosedJaxpr (or an open Jaxpr without constants); the same one for the same object."""
        jaxpr, consts = jax_compat.open_jaxpr(closed)
        # Two ClosedJaxprs may share a Jaxpr and differ in their constants.
        key = id(closed) if consts else id(jaxpr)
        found = self._functions.get(key)
        if found is None:
            self._keep.append(closed)
            found = self._functions[key] = Function(name, (), [], (), closed)
            self._fill(found, jaxpr, consts)
        return found

    def constant(self, value: Any, aval: Any) -> Constant:
        found = self._constants.get(id(value))
        if found is None:
            self._keep.append(value)
            found = self._constants[id(value)] = Constant(value, aval)
        return found

    def _fill(self, function: Function, jaxpr: Any, consts: Any) -> None:
        env: dict[Any, Any] = {}
        # An open jaxpr may have variables for constants without the constants: those are inputs like the others.
        inputs = list(jaxpr.invars) if consts else [*jaxpr.constvars, *jaxpr.invars]
        if consts:
            for var, const in zip(jaxpr.constvars, consts, strict=True):
                env[var] = self.constant(const, var.aval)
        params = []
        for var in inputs:
            value = env[var] = Value(var.aval)
            params.append(value)
        function.params = params
        equations = function.equations
        primitives = self._primitives
        literal, drop = jax_compat.LITERAL_TYPE, jax_compat.DROP_TYPE
        plain = _PLAIN
        for eqn in jaxpr.eqns:
            inputs = [self.literal(v) if type(v) is literal else env[v] for v in eqn.invars]
            params = eqn.params
            for value in params.values():
                if type(value) not in plain:
                    params = self._params(eqn, params)
                    break
            outputs: list[Value | None] = []
            for var in eqn.outvars:
                if type(var) is drop:
                    outputs.append(None)
                else:
                    value = env[var] = Value(var.aval)
                    outputs.append(value)
            prim = eqn.primitive
            callee = primitives.get(id(prim))
            if callee is None:
                callee = primitives[id(prim)] = Primitive(prim)
            equations.append(Equation(callee, inputs, outputs, params, eqn))
        function.results = [self.literal(v) if type(v) is literal else env[v] for v in jaxpr.outvars]

    def literal(self, var: Any) -> Literal | Constant:
        if np.ndim(var.val):  # array-valued literals (JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS)
            return self.constant(var.val, var.aval)
        return Literal(var.val, var.aval)

    def _params(self, eqn: Any, params: Mapping[str, Any]) -> Mapping[str, Any]:
        special = custom_rules.CAPTURES.get(eqn.primitive.name)
        if special is not None:
            return special(self, eqn)
        changed = None
        for key, value in params.items():
            if type(value) in _PLAIN:
                continue
            new = self._convert(value, eqn)
            if new is not value:
                if changed is None:
                    changed = dict(params)
                changed[key] = new
        return params if changed is None else changed

    def _convert(self, value: Any, eqn: Any) -> Any:
        """`value` with its jaxprs replaced by Functions; the very same object when it holds none."""
        if jax_compat.is_jaxpr(value):
            return self.function(value, str(eqn.params.get("name") or eqn.primitive.name))
        if type(value) in (tuple, list):
            new = [self._convert(v, eqn) for v in value]
            if any(a is not b for a, b in zip(new, value, strict=True)):
                return type(value)(new)
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            new = [self._convert(v, eqn) for v in value]
            if any(a is not b for a, b in zip(new, value, strict=True)):
                return type(value)(*new)
        elif type(value) is dict:
            new_items = {k: self._convert(v, eqn) for k, v in value.items()}
            if any(new_items[k] is not value[k] for k in value):
                return new_items
        return value
