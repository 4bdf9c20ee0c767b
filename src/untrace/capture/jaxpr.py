"""From a jaxpr to the IR.

Every jaxpr becomes one `Function`, by identity: what JAX shares stays shared. Parameters that hold jaxprs hold Functions
afterwards; the rules of `custom_jvp` and `custom_vjp`, which JAX keeps as closures, are traced here (`custom_rules`).
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from untrace import jax_compat
from untrace._identity import IdentityMap
from untrace.capture import custom_rules
from untrace.capture.calls.checkpoints import Checkpoints
from untrace.capture.calls.derivative_calls import CALLED, CALLS, LATER
from untrace.capture.calls.vmaps import VMAP
from untrace.ir.bodies import CHECKPOINTS
from untrace.ir.nodes import Cond, Constant, Equation, Function, Literal, Primitive, Scan, Value, While
from untrace.ir.structured import Checkpoint, CustomRule, Map, Pullback, Transformed
from untrace.jaxprs.expand.expand import Expander

_JITS = ("jit", "pjit")


def _scan(importer: Importer, eqn: Any) -> Imported:
    consts, carries = jax_compat.scan_counts(eqn)
    params = importer.params(eqn)
    return Scan(eqn.primitive, params["jaxpr"], consts, carries), _without(params, "jaxpr")


def _while(importer: Importer, eqn: Any) -> Imported:
    keys = "cond_jaxpr", "body_jaxpr", "cond_nconsts", "body_nconsts"
    params = importer.params(eqn)
    return While(eqn.primitive, *[params[key] for key in keys]), _without(params, *keys)


def _cond(importer: Importer, eqn: Any) -> Imported:
    params = importer.params(eqn)
    return Cond(eqn.primitive, params["branches"]), _without(params, "branches")


def _map(importer: Importer, eqn: Any) -> Imported:
    given = eqn.params
    function = importer.params(eqn)["jaxpr"]
    return Map(eqn.primitive, function, given["in_axes"], given["out_axes"], given["signature"]), {}


def _derivative(importer: Importer, eqn: Any) -> Imported:
    return Transformed(eqn.primitive, importer.params(eqn)["jaxpr"], eqn.params["derivative"]), {}


def _later(importer: Importer, eqn: Any) -> Imported:
    return Pullback(eqn.primitive, eqn.params["later"].derivative), {}


def _checkpoint(importer: Importer, eqn: Any) -> Imported:
    params = importer.params(eqn)
    how = Checkpoint(differentiated=params["differentiated"])
    return Transformed(eqn.primitive, params["jaxpr"], how), _without(params, "jaxpr", "differentiated")


def _without(params: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    return {key: value for key, value in params.items() if key not in keys}


# A callee with its bodies, and the other parameters.
Imported = tuple[Primitive, Mapping[str, Any]]
# Of JAX's primitives, by name.
_STRUCTURED: dict[str, Callable[[Importer, Any], Imported]] = {
    "scan": _scan, "while": _while, "cond": _cond, **dict.fromkeys(CHECKPOINTS, _checkpoint),
    "custom_jvp_call": lambda importer, eqn: (custom_rules.custom_jvp_call(importer, eqn), {}),
    "custom_vjp_call": lambda importer, eqn: (custom_rules.custom_vjp_call(importer, eqn), {}),
}  # fmt: skip
# Of those that stand for the author's calls.
_CALLS: dict[Any, Callable[[Importer, Any], Imported]] = {
    VMAP: _map, **dict.fromkeys((*CALLS.values(), CALLED), _derivative), **dict.fromkeys(LATER.values(), _later),
}  # fmt: skip


def _identity(closed: Any) -> Any:
    """Two ClosedJaxprs may share a Jaxpr and differ in their constants."""
    jaxpr, consts = jax_compat.open_jaxpr(closed)
    return closed if consts else jaxpr


def _types(closed: Any) -> Any:
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    return tuple([v.aval for v in jaxpr.invars]), tuple([v.aval for v in jaxpr.outvars])


class Importer:
    """Converts jaxprs, each once.

    rules: whether derivative rules are captured with the functions that have them. is_public: whether a `custom_jvp_call`
    is one of a public function, whose rule is captured when `capture_rest` is called, if ever. keeps_calls: whether rules
    have calls of the derivatives that they ask for; keeps_maps: of `jax.vmap`.
    """

    def __init__(
        self,
        expander: Expander | None = None,
        checkpoints: Checkpoints | None = None,
        rules: bool = True,
        is_public: Callable[[Any], bool] = lambda eqn: False,
        keeps_calls: bool = False,
        keeps_maps: bool = False,
    ) -> None:
        # The program's own: what it has replaced is then seen to be the same thing inside a rule.
        self.expander = expander or Expander()
        self.checkpoints = checkpoints or Checkpoints()
        self._functions: dict[Any, Function] = {}
        self._constants: IdentityMap[Any, Constant] = IdentityMap()
        self._primitives: dict[Any, Primitive] = {}
        self._later: deque[tuple[int, Callable[[bool], None]]] = deque()
        self._depth = 0
        self._notes: list[str] = []
        self.rule_notes: list[str] = []  # those of derivative rules
        self._program: Any = None
        self._jitted: dict[Any, list[Any]] = {}  # jaxprs of jitted functions, by their types
        self._copies: dict[Any, list[Any]] = {}  # those in conditions that may be copies of others
        self._takes_rules = rules
        self.is_public = is_public
        self.keeps_calls, self.keeps_maps = keeps_calls, keeps_maps
        self._rest: dict[CustomRule, tuple[int, Callable[[bool], None]]] = {}
        self.rules: dict[Any, CustomRule] = {}  # by `jax_compat.rule_key`

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
        self._capture_rules()
        return entry

    def _capture_rules(self) -> None:
        while self._later:
            self._depth, work = self._later.popleft()
            work(self._depth <= custom_rules.MAX_DEPTH)
        self._depth = 0

    def capture_rest(self, functions: Iterable[Function]) -> bool:
        """Captures the rules of public functions, where one is called in the place of the public function.

        False where no equation of `functions` is such a call.
        """
        if not self._rest or not any(e.callee in self._rest for f in functions for e in f.equations):
            return False
        self._later.extend(self._rest.values())
        self._rest = {}
        self._capture_rules()
        return True

    @functools.cached_property
    def outside(self) -> Mapping[Any, Any]:
        """For the inputs of all bodies in the program what they are outside."""
        return custom_rules.variables_outside(self._program) if self._program is not None else {}

    def later(self, work: Callable[[bool], None], public: CustomRule | None = None) -> None:
        """Puts off `work(allowed)`, the capture of a rule, until everything on this level is captured.

        allowed: whether rules this deep inside rules are captured at all. public: the callee, of a public function.
        """
        if self._takes_rules and public is not None:
            self._rest[public] = self._depth + 1, work
        elif self._takes_rules:
            self._later.append((self._depth + 1, work))

    def note(self, sentence: str) -> None:
        if sentence not in self._notes:
            self._notes.append(sentence)

    def function(self, closed: Any, name: str) -> Function:
        """The Function of a ClosedJaxpr (or an open Jaxpr without constants); the same one for the same object."""
        jaxpr, consts = jax_compat.open_jaxpr(closed)
        key = _identity(closed)
        found = self._functions.get(key)
        if found is None:
            found = self._functions[key] = Function(name, (), [], (), closed)
            self._fill(found, jaxpr, consts)
        return found

    def _note_jitted(self, closed: Any) -> None:
        """Remembers the jaxpr of a jitted function, which may be a copy in a condition whose Function it then shares."""
        key = _types(closed)
        for copy, condition in self._copies.get(key, ()):
            found = self._functions.get(_identity(copy))
            if found is not None and found.jaxpr is copy and jax_compat.is_pruned_copy(copy, closed):
                self._functions[_identity(closed)] = found
                self._note_pruned(self._functions[_identity(condition)])
                found.jaxpr, found.equations = closed, []
                self._fill(found, *jax_compat.open_jaxpr(closed))
        self._jitted.setdefault(key, []).append(closed)

    def _share_copies(self, condition: Any) -> None:
        """Gives the jitted functions in a loop's condition the Functions that they are without dead code.

        `lax.while_loop` eliminates dead code in a condition where a value is only handed on by the body; such a condition
        is `pruned`. JAX lowers a copy and the function itself, which it has without dead code as well by then, as one.
        """
        todo, pruned = [condition], False
        while todo:
            for eqn in jax_compat.open_jaxpr(todo.pop())[0].eqns:
                if eqn.primitive.name not in _JITS or _identity(eqn.params["jaxpr"]) in self._functions:
                    continue
                copy = eqn.params["jaxpr"]
                whole = next(
                    (j for j in self._jitted.get(_types(copy), ()) if jax_compat.is_pruned_copy(copy, j)), None
                )
                if whole is not None:
                    self._functions[_identity(copy)] = self._functions[_identity(whole)]
                    pruned = True
                else:
                    self._copies.setdefault(_types(copy), []).append((copy, condition))
                    todo.append(copy)
        if pruned:
            self._note_pruned(self.function(condition, "while"))

    def _note_pruned(self, condition: Function) -> None:
        condition.facts = replace(condition.facts, pruned=True)

    def constant(self, value: Any, aval: Any) -> Constant:
        found = self._constants.get(value)
        if found is None:
            found = self._constants[value] = Constant(value, aval)
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
        plain = jax_compat.PLAIN_TYPES
        for eqn in jaxpr.eqns:
            inputs = [self.literal(v) if type(v) is literal else env[v] for v in eqn.invars]
            params = eqn.params
            prim = eqn.primitive
            make = _STRUCTURED.get(prim.name) or _CALLS.get(prim)
            if make is not None:
                callee, params = make(self, eqn)
            else:
                for value in params.values():
                    if type(value) not in plain:
                        params = self.params(eqn)
                        break
                callee = primitives.get(prim)
                if callee is None:
                    callee = primitives[prim] = Primitive(prim)
            outputs: list[Value | None] = []
            for var in eqn.outvars:
                if type(var) is drop:
                    outputs.append(None)
                else:
                    value = env[var] = Value(var.aval)
                    outputs.append(value)
            equations.append(Equation(callee, inputs, outputs, params, eqn))
        function.results = [self.literal(v) if type(v) is literal else env[v] for v in jaxpr.outvars]

    def literal(self, var: Any) -> Literal | Constant:
        if np.ndim(var.val):  # array-valued literals (JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS)
            return self.constant(var.val, var.aval)
        return Literal(var.val, var.aval)

    def params(self, eqn: Any) -> Mapping[str, Any]:
        """The parameters of an equation, with Functions for jaxprs."""
        params = eqn.params
        special = custom_rules.CAPTURES.get(eqn.primitive.name)
        if special is not None:
            return special(self, eqn)
        if eqn.primitive.name in _JITS:
            self._note_jitted(params["jaxpr"])
        elif eqn.primitive.name == "while":
            self.function(params["body_jaxpr"], "while")  # first, for what it calls is whole
            self._share_copies(params["cond_jaxpr"])
        name = str(params.get("name") or eqn.primitive.name)
        changed = jax_compat.with_other_jaxprs(params, lambda closed: self.function(closed, name))
        if changed is not params and eqn.primitive.name in CHECKPOINTS:
            self._note_checkpoint(eqn, changed["jaxpr"])
        return changed

    def _note_checkpoint(self, eqn: Any, body: Function) -> None:
        """Notes of what the body of an equation is the derivative."""
        transposed = self.checkpoints.of(eqn)
        if transposed is not None:
            name = jax_compat.function_name(transposed.function)
            name = name if name.isidentifier() else "checkpointed"
            body.transposed = self.function(transposed.function, name), transposed
