"""Captures what JAX keeps as closures: the derivative rules of `custom_jvp` and `custom_vjp`.

A rule is traced here into a jaxpr, so that it can be written and `jax.grad` of the written function equals
`jax.grad` of the original. A function is recognised by its rule (the function object, its static arguments, the types
it is called with): two calls of one function are one Function here, and a rule that calls its own function (as relu's
does) comes to an end. Source: `jax/_src/custom_derivatives.py`, `process_custom_jvp_call` and
`process_custom_vjp_call` in `jax/_src/interpreters/partial_eval.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from untrace import jax_compat
from untrace.capture.calls.differentiated import Asked, called_derivatives
from untrace.capture.calls.unfolding import gives_back
from untrace.capture.calls.vmaps import folded, noted_vmaps
from untrace.ir.nodes import Function
from untrace.ir.structured import CustomRule, JvpRule, VjpRule
from untrace.jaxprs.expand.expand import Expander
from untrace.provenance.whose import kind_of_called


class Importer(Protocol):
    """What a rule asks of who imports its equation (`jaxpr.Importer`)."""

    rules: dict[Any, CustomRule]
    rule_notes: list[str]  # what was noted of rules
    expander: Expander
    keeps_calls: bool
    keeps_maps: bool
    is_public: Callable[[Any], bool]

    @property
    def outside(self) -> Mapping[Any, Any]: ...
    def function(self, closed: Any, name: str) -> Function: ...
    def constant(self, value: Any, aval: Any) -> Any: ...
    def later(self, work: Callable[[bool], None], public: CustomRule | None = None) -> None: ...
    def note(self, sentence: str) -> None: ...


# Rules inside rules inside rules: what the third derivative and those after it would need. The numbers of rules grow
# exponentially there (the reverse pass of a solver differentiates its own loops), so they end here, with a note.
MAX_DEPTH = 2


def custom_jvp_call(importer: Importer, eqn: Any) -> CustomRule:
    """The callee of such an equation, which gets its rule later."""
    params = eqn.params
    key = (jax_compat.rule_key(eqn, params["jvp_jaxpr_fun"]), _refused(importer, eqn))
    found = importer.rules.get(key)
    if found is not None:
        return found
    name = jax_compat.function_name(params["call_jaxpr"]) or "custom_jvp"
    function = importer.function(params["call_jaxpr"], name)
    callee = importer.rules[key] = CustomRule(eqn.primitive, function, params["num_consts"], params["symbolic_zeros"])

    def trace() -> Any:
        rule, *rest = importer.expander.jvp_of(eqn)
        if _is_authors(params["jvp_jaxpr_fun"]):
            again = lambda: jax_compat.custom_jvp_rule(eqn, True, importer.expander.perturbed_of(eqn))[:1]  # noqa: E731
            (rule,) = _with_calls(importer, [rule], again, True)
        rule, tracers = jax_compat.traced_constants_as_inputs(rule)
        return rule, *rest, _places(importer, eqn, tracers)

    def trace_rule(allowed: bool) -> None:
        callee.is_deep = not allowed
        found = _guarded(importer, name, "jvp", trace if allowed else None)
        if found is not None:
            rule, *rest = found
            callee.rule = JvpRule(importer.function(rule, name + "_jvp"), *rest)

    importer.later(trace_rule, callee if importer.is_public(eqn) else None)
    return callee


def _refused(importer: Importer, eqn: Any) -> tuple[bool, ...] | None:
    """Which operands a rule with symbolic zeros takes tangents of, where it refuses those of others: another call of the
    function may be differentiated by others."""
    if importer.expander.perturbed_of(eqn) is None:
        return None
    with contextlib.suppress(Exception):  # user code: anything may be raised
        *_, perturbed = importer.expander.jvp_of(eqn)
        return None if all(perturbed) else tuple(perturbed)
    return None


def _note_paths(function: Function, rule: Any) -> None:
    function.facts = replace(function.facts, rule_paths=jax_compat.rule_argument_names(rule) or ())


def custom_vjp_call(importer: Importer, eqn: Any) -> CustomRule:
    """The callee of such an equation, which gets its rules later."""
    params = eqn.params
    key = (jax_compat.rule_key(eqn, params["fwd_jaxpr_thunk"], params["bwd"]), importer.expander.perturbed_of(eqn))
    found = importer.rules.get(key)
    if found is not None:
        return found
    name = jax_compat.function_name(params["call_jaxpr"]) or "custom_vjp"
    primal = importer.function(params["call_jaxpr"], name)
    _note_paths(primal, params["fwd_jaxpr_thunk"])
    callee = importer.rules[key] = CustomRule(eqn.primitive, primal, params["num_consts"], params["symbolic_zeros"])

    def trace() -> Any:
        fwd, forwards, bwd, *rest = importer.expander.vjp_of(eqn)
        perturbed = importer.expander.perturbed_of(eqn)
        again = lambda: jax_compat.custom_vjp_rules(eqn, perturbed)[:3:2]  # noqa: E731
        fwd, bwd = _with_calls(importer, [fwd, bwd], again, _is_authors(params["bwd"]))
        fwd, tracers = jax_compat.traced_constants_as_inputs(fwd)
        bwd, others = jax_compat.traced_constants_as_inputs(bwd)
        return fwd, forwards, bwd, *rest, _places(importer, eqn, tracers), _places(importer, eqn, others)

    def trace_rules(allowed: bool) -> None:
        callee.is_deep = not allowed
        rules = _guarded(importer, name, "vjp", trace if allowed else None)
        if rules is not None:
            fwd, forwards, bwd, *rest = rules
            first = importer.function(fwd, name + "_fwd")
            second = importer.function(bwd, name + "_bwd")
            callee.rule = VjpRule(first, second, forwards, *rest)
            _note_paths(second, params["bwd"])

    importer.later(trace_rules)
    return callee


def _is_authors(rule: Any) -> bool:
    """Whether the author wrote a rule, and no library."""
    return kind_of_called(jax_compat.function_of_rule(rule)) == "user"


def _with_calls(
    importer: Importer, plain: Sequence[Any], trace: Callable[[], Sequence[Any]], maps: bool
) -> Sequence[Any]:
    """The jaxprs of rules with the calls of derivatives that they make, where those come back, and of `jax.vmap`, if `maps`.
    trace: traces them again."""
    differentiated = importer.keeps_calls and any(map(jax_compat.is_differentiated, plain))
    mapped = maps and importer.keeps_maps and any(map(jax_compat.is_mapped, plain))
    if not differentiated and not mapped:
        return plain
    context = called_derivatives(False) if differentiated else contextlib.nullcontext(Asked())
    with contextlib.suppress(Exception):
        with jax_compat.fresh_caches()(), noted_vmaps() as vmaps, context as asked:
            found = list(map(importer.expander.closed, trace()))
        pairs = list(zip(plain, found, strict=True))
        # Rules in these rules are traced for the comparison, as they are.
        if not all(gives_back(a, b, importer.expander) for a, b in pairs):
            return plain
        whole = [folded(b, a, vmaps, importer.expander, gives_back) for a, b in pairs] if maps else found
        if asked.kept or any(a is not b for a, b in zip(whole, found, strict=True)):
            return whole  # else the functions in it are the ones that are known
    return plain


def _places(importer: Importer, eqn: Any, tracers: Sequence[Any]) -> tuple[int, ...]:
    """Which operands of an equation the values are that its rule closes over.

    Such a value belongs to the function around, whose trace is over: it is known by its variable. Raises TypeError where
    the function itself does not close over one.
    """
    operands: dict[Any, int] = {}
    for place, atom in enumerate(eqn.invars[: eqn.params["num_consts"]] if tracers else ()):
        while type(atom) is not jax_compat.LITERAL_TYPE and operands.setdefault(atom, place) == place:
            if atom not in importer.outside:
                break
            atom = importer.outside[atom]
    variables = [jax_compat.variable_of(tracer) for tracer in tracers]
    if not all(v in operands for v in variables):
        raise TypeError("it reads a traced value that the function does not read")
    return tuple(operands[v] for v in variables)


def variables_outside(closed: Any) -> dict[Any, Any]:
    """For the inputs of all bodies in a program what they are outside: variables, or literals."""
    found: dict[Any, Any] = {}
    for eqn in jax_compat.equations_in(closed):
        for body, operands in _bodies(eqn):
            for variable, atom in zip(jax_compat.open_jaxpr(body)[0].invars, operands, strict=False):
                found.setdefault(variable, atom)
    return found


def _bodies(eqn: Any) -> list[tuple[Any, Sequence[Any]]]:
    """The jaxprs of an equation that take its operands as they are, each with those that it takes."""
    name, params, operands = eqn.primitive.name, eqn.params, eqn.invars
    if name == "cond":
        return [(branch, operands[1:]) for branch in params["branches"]]
    if name == "while":
        first, second = params["cond_nconsts"], params["body_nconsts"]
        carry = operands[first + second :]
        return [
            (params["cond_jaxpr"], [*operands[:first], *carry]),
            (params["body_jaxpr"], [*operands[first : first + second], *carry]),
        ]
    if name in ("scan", "jit", "pjit", "remat2", "checkpoint"):
        return [(params["jaxpr"], operands)]
    return []


def _guarded(importer: Importer, name: str, kind: str, trace: Callable[[], Any] | None) -> Any:
    """The result of `trace`, or None with a note: a rule is user code, and may refuse to be traced on its own."""
    if trace is None:
        _note(
            importer,
            f"derivative rules are written {MAX_DEPTH} deep: differentiating more often through {name} raises an error",
        )
        return None
    try:
        return trace()
    except Exception as error:  # user code: anything may be raised
        first_line = (str(error).strip().splitlines() or [""])[0][:200]
        _note(
            importer,
            f"the {kind} rule of {name} could not be traced by itself ({type(error).__name__}: {first_line}); "
            "it is left out, so differentiating through it raises an error",
        )
        return None


def _note(importer: Importer, sentence: str) -> None:
    importer.note(sentence)
    importer.rule_notes.append(sentence)


def pallas_call(importer: Importer, eqn: Any) -> Mapping[str, Any]:
    """The parameters with the kernel and the index maps as Functions: `index_maps`, one a block, beside `grid_mapping`.

    Source: `pallas_call_p`, jax/_src/pallas/pallas_call.py; `GridMapping`, `BlockMapping`, jax/_src/pallas/core.py.
    """
    params = dict(eqn.params)
    name = params.get("name") or jax_compat.function_name(params["jaxpr"]) or "kernel"
    params["jaxpr"] = importer.function(params["jaxpr"], name)
    blocks = params["grid_mapping"].block_mappings
    params["index_maps"] = tuple(importer.function(b.index_map_jaxpr, f"{name}_block") for b in blocks)
    return params


def linear_call(importer: Importer, eqn: Any) -> Mapping[str, Any]:
    """{callee, transpose: Functions, transpose_consts: Constants, num_callee_consts, num_res}.

    `transpose` maps (its constants, residuals, cotangents) to cotangents of the linear operands.
    """
    params = eqn.params
    name = jax_compat.function_name(params["callee"]) or "linear"
    closed, consts = params["transpose_thunk"]()
    return {
        "callee": importer.function(params["callee"], name),
        "transpose": importer.function(closed, name + "_transpose"),
        "transpose_consts": tuple(importer.constant(c, jax_compat.typeof(c)) for c in consts),
        "num_callee_consts": params["num_callee_consts"],
        "num_res": params["num_res"],
    }


def call_hi_primitive(importer: Importer, eqn: Any) -> Mapping[str, Any]:
    """The parameters, and for a `custom_root` that is written as one: `root`, `f`, `solve` and `tangent_solve`."""
    params = dict(eqn.params)
    root = importer.expander.root_of(eqn)
    if root is not None:
        params["root"] = root
        for name in ("f", "solve", "tangent_solve"):
            closed = getattr(root, name)
            params[name] = importer.function(closed, jax_compat.function_name(closed) or name)
    return params


# How the parameters of other primitives are captured, by name.
CAPTURES: dict[str, Callable[[Importer, Any], Mapping[str, Any]]] = {
    "pallas_call": pallas_call, "linear_call": linear_call, "call_hi_primitive": call_hi_primitive,
}  # fmt: skip
