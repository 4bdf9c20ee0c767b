"""Captures what JAX keeps as closures: the derivative rules of `custom_jvp` and `custom_vjp`.

A rule is traced here into a jaxpr, so that it can be written and `jax.grad` of the written function equals
`jax.grad` of the original. A function is recognised by its rule (the function object, its static arguments, the types
it is called with): two calls of one function are one Function here, and a rule that calls its own function (as relu's
does) comes to an end. Source: `jax/_src/custom_derivatives.py`, `process_custom_jvp_call` and
`process_custom_vjp_call` in `jax/_src/interpreters/partial_eval.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from untrace import jax_compat

if TYPE_CHECKING:
    from untrace.capture.jaxpr import Importer

Capture = Callable[["Importer", Any], Mapping[str, Any]]
# Rules inside rules inside rules: what the third derivative and those after it would need. The numbers of rules grow
# exponentially there (the reverse pass of a solver differentiates its own loops), so they end here, with a note.
MAX_DEPTH = 2

CAPTURES: dict[str, Capture] = {}


def capture(name: str) -> Callable[[Capture], Capture]:
    """Registers how the parameters of one primitive are captured."""

    def register(function: Capture) -> Capture:
        if name in CAPTURES:
            raise ValueError(f"a second capture for {name!r}")
        CAPTURES[name] = function
        return function

    return register


@capture("custom_jvp_call")
def custom_jvp_call(importer: Importer, eqn: Any) -> Mapping[str, Any]:
    """{call_jaxpr: Function, jvp: Function or None, num_consts, symbolic_zeros, out_zeros}.

    `jvp` maps (primals without the closed-over ones, their tangents) to (primals out, tangents out whose
    `out_zeros` entry is False).
    """
    params = eqn.params
    key = jax_compat.rule_key(eqn, params["jvp_jaxpr_fun"])
    found = importer.rules.get(key)
    if found is not None:
        return found
    name = jax_compat.function_name(params["call_jaxpr"]) or "custom_jvp"
    out = importer.rules[key] = {
        "call_jaxpr": importer.function(params["call_jaxpr"], name),
        "num_consts": params["num_consts"],
        "symbolic_zeros": params["symbolic_zeros"],
        "jvp": None,
        "out_zeros": (),
    }

    def trace_rule(allowed: bool) -> None:
        trace = (lambda: importer.expander.jvp_of(eqn)) if allowed else None
        rule, out_zeros = _guarded(importer, name, "jvp", trace) or (None, ())
        out["jvp"] = rule and importer.function(rule, name + "_jvp")
        out["out_zeros"] = out_zeros

    importer.later(trace_rule)
    return out


@capture("custom_vjp_call")
def custom_vjp_call(importer: Importer, eqn: Any) -> Mapping[str, Any]:
    """{call_jaxpr, fwd, bwd: Functions (fwd and bwd None where they cannot be traced), res_forwards, ct_zeros, ...}.

    `fwd` maps the primals to (residuals that are not inputs, primals out); `res_forwards[i]` is the index of the input
    that residual i is, or None; `bwd` maps (all residuals, cotangents) to the cotangents whose `ct_zeros` is False;
    operands whose `perturbed` is False must not be differentiated.
    """
    params = eqn.params
    key = (jax_compat.rule_key(eqn, params["fwd_jaxpr_thunk"], params["bwd"]), importer.expander.perturbed_of(eqn))
    found = importer.rules.get(key)
    if found is not None:
        return found
    name = jax_compat.function_name(params["call_jaxpr"]) or "custom_vjp"
    primal = importer.function(params["call_jaxpr"], name)
    primal.extra["paths"] = jax_compat.rule_argument_names(params["fwd_jaxpr_thunk"])
    out = importer.rules[key] = {
        "call_jaxpr": primal,
        "num_consts": params["num_consts"],
        "symbolic_zeros": params["symbolic_zeros"],
        "fwd": None,
        "bwd": None,
    }

    def trace_rules(allowed: bool) -> None:
        trace = (lambda: importer.expander.vjp_of(eqn)) if allowed else None
        rules = _guarded(importer, name, "vjp", trace)
        if rules is not None:
            fwd, forwards, bwd, zeros, perturbed = rules
            out.update(
                fwd=importer.function(fwd, name + "_fwd"),
                bwd=importer.function(bwd, name + "_bwd"),
                res_forwards=forwards,
                ct_zeros=zeros,
                perturbed=perturbed,
            )
            out["bwd"].extra["paths"] = jax_compat.rule_argument_names(params["bwd"])

    importer.later(trace_rules)
    return out


def _guarded(importer: Importer, name: str, kind: str, trace: Callable[[], Any] | None) -> Any:
    """The result of `trace`, or None with a note: a rule is user code, and may refuse to be traced on its own."""
    if trace is None:
        importer.note(
            f"derivative rules are written {MAX_DEPTH} deep: differentiating more often through {name} raises an error"
        )
        return None
    try:
        return trace()
    except Exception as error:  # user code: anything may be raised
        first_line = (str(error).strip().splitlines() or [""])[0][:200]
        importer.note(
            f"the {kind} rule of {name} could not be traced by itself ({type(error).__name__}: {first_line}); "
            "it is left out, so differentiating through it raises an error"
        )
        return None


@capture("pallas_call")
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


@capture("linear_call")
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


@capture("call_hi_primitive")
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
