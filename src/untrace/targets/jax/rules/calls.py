"""Calls of functions: jit, checkpoint, plain calls. Source: jax/_src/pjit.py, jax/_src/ad_checkpoint.py, jax/_src/core.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from untrace import jax_compat
from untrace.ir.nodes import Function, Value
from untrace.jaxprs.expand.batching import helper_of
from untrace.module import roles
from untrace.module.interface.put_together import rebuilt
from untrace.module.library_calls import with_author_numbers
from untrace.module.rules import DECLINE, Whole
from untrace.python.pytrees import unpack
from untrace.python.statements import Assign, Def, Parameter, Return, Statement
from untrace.python.tree import Attribute, Call, Expr, Lambda, Name, Star, Text, Tuple
from untrace.python.values import Unwritable
from untrace.targets.jax import jitted, pmap, remat
from untrace.targets.jax.rules.callbacks import callable_name
from untrace.targets.jax.rules.table import rule


class Spaced(Assign):
    """A module-level statement that stands apart from the definition before it."""

    __slots__ = ()

    def lines(self, indent: str) -> Iterator[str]:
        yield ""
        yield ""
        yield from super().lines(indent)


def result(function: Function, call: Expr) -> Any:
    """A call of a written function, as the outputs of its equation: bare where the function returns one value."""
    return Whole(call) if len(function.results) == 1 else call


def same_weak_type(atom: Any, param: Value) -> bool:
    """Whether an operand is weakly typed where the parameter that it is for is."""
    return getattr(atom.aval, "weak_type", False) == getattr(param.aval, "weak_type", False)


@rule("jit", "pjit")
def jit(
    w: Any,
    *operands: Any,
    jaxpr: Function,
    in_shardings: Any,
    out_shardings: Any,
    in_layouts: Any,
    out_layouts: Any,
    donated_invars: Any,
    ctx_mesh: Any,
    name: str,
    keep_unused: bool,
    inline: Any,
    compiler_options_kvs: Any,
) -> Any:
    if w.module.idiomatic and not w.retreating and name == "_fun":
        found = pmap.pmap(w, operands, jaxpr)
        if found is not None:
            return found
    operands = tuple(with_author_numbers(w, w.equation, operands, name))
    options: list[tuple[str, Expr]] = []
    for keyword, shardings in (("in_shardings", in_shardings), ("out_shardings", out_shardings)):
        if not all(jax_compat.is_unspecified(s) for s in shardings):
            specs = tuple(None if jax_compat.is_unspecified(s) else s for s in shardings)
            single = keyword == "out_shardings" and len(specs) == 1
            options.append((keyword, w.source(specs[0] if single else specs)))
    if any(layout is not None for layout in (*in_layouts, *out_layouts)):
        return DECLINE
    for_leaves = bool(options)
    if keep_unused:
        options.append(("keep_unused", Text("True")))
    inlined = jax_compat.inline_option(inline)
    if inlined is not False:
        options.append(("inline", w.source(inlined)))
    if compiler_options_kvs:
        options.append(("compiler_options", w.source(dict(compiler_options_kvs))))
    w.module.modules.add("jax")

    def decorated(donated: Sequence[bool]) -> Expr:
        numbers = tuple(i for i, d in enumerate(donated) if d)
        given = [*([("donate_argnums", w.source(numbers))] if numbers else []), *options]
        if given:
            w.module.modules.add("functools")
        return Call("functools.partial", [Text("jax.jit")], given) if given else Text("jax.jit")

    if w.module.idiomatic:
        name = roles.call_name(w.equation, name)
    hint = "fn" if name == "<lambda>" else name
    if w.module.idiomatic and not w.retreating and not for_leaves:
        found = jitted.jit(w, operands, jaxpr, decorated, donated_invars, hint)
        if found is not None:
            return found
    decorator = decorated(donated_invars)
    key = ("jit", jaxpr, decorator.flat())

    def build(written: str) -> Iterator[Statement]:
        yield w.module.define(jaxpr, written, [decorator])

    written = w.module.named(key, hint, build)
    if not w.module.idiomatic and not all(
        same_weak_type(*p) for p in zip(w.equation.inputs, jaxpr.params, strict=True)
    ):
        # A call would trace the function for these operands; a jaxpr that was evaluated again kept its own types.
        w.module.helper("_traced_for")
        types = Tuple([w.aval(p.aval) for p in jaxpr.params])
        return result(jaxpr, Call("_traced_for", [Name(written), types, *operands]))
    return result(jaxpr, Call(written, operands))


@rule("checkpoint", "remat2", "remat")
def checkpoint(
    w: Any,
    *operands: Any,
    jaxpr: Function,
    prevent_cse: Any,
    differentiated: bool,
    policy: Any,
    name: str = "",
    **rest: Any,
) -> Any:
    if any(v is not None for v in rest.values()):
        return DECLINE
    idiomatic = w.module.idiomatic and not w.retreating
    if differentiated and not idiomatic:
        return DECLINE  # what differentiation left behind: `jax.checkpoint` makes only the undifferentiated form
    options = _options(w, prevent_cse, policy)
    if idiomatic:
        return remat.checkpoint(w, operands, jaxpr, options, differentiated)
    hint = jax_compat.function_name(jaxpr.jaxpr)
    if hint and hint != "<lambda>":
        jaxpr.name = hint
    function = Name(w.module.function(jaxpr))
    w.module.modules.add("jax")
    return result(jaxpr, Call(Call("jax.checkpoint", [function], options), operands))


@rule("checkpoint_vjp")
def checkpoint_vjp(
    w: Any, *operands: Any, jaxpr: Function, varied: Sequence[int], prevent_cse: Any, policy: Any, **rest: Any
) -> Any:
    """The derivative of a function that `jax.checkpoint` marked; see `lift/adjoint/checkpoints.py`."""
    if any(v is not None for k, v in rest.items() if k != "name"):
        return DECLINE
    return remat.pulled_back(w, operands, jaxpr, _options(w, prevent_cse, policy), varied)


def _options(w: Any, prevent_cse: Any, policy: Any) -> list[tuple[str, Expr]]:
    """The keyword arguments that `jax.checkpoint` needs."""
    options: list[tuple[str, Expr]] = []
    if prevent_cse is not True:
        options.append(("prevent_cse", w.source(prevent_cse)))
    if policy is not None:
        options.append(("policy", _policy(w, policy)))
    return options


def _policy(w: Any, policy: Any) -> Expr:
    """A policy of JAX by its name, a user's own like the callable of a callback."""
    try:
        return w.source(policy)
    except Unwritable:
        return callable_name(w, policy)


@rule("call", "core_call", "closed_call", "core_closed_call")
def closed_call(w: Any, *operands: Any, call_jaxpr: Function, **params: Any) -> Any:
    """A call that is no jit: bound with the written function, as JAX's own interpreters bind it."""
    if any(v is not None for v in params.values()):
        return DECLINE
    place = w.primitive(w.equation.callee.object)
    w.module.helper("_call")
    return w.call("_call", place, Name(w.module.function(call_jaxpr)), *operands)


@rule("remat_opt")
def remat_opt(w: Any, *operands: Any, fwd_jaxpr: Function, num_consts: int, num_res: int, fun_jaxpr_thunk: Any) -> Any:
    """The forward rule of a custom_vjp that JAX may skip under remat: its body is called, which computes the same."""
    return result(fwd_jaxpr, Call(w.module.function(fwd_jaxpr), operands))


@rule("custom_lin")
def custom_lin(w: Any, *operands: Any, **params: Any) -> Any:
    """The linear part of a custom_vjp under forward mode, which JAX itself refuses to run: only dead ones have a meaning."""
    if any(w.is_live(o) for o in w.equation.outputs) and not _is_dead_everywhere(w.module, "custom_lin"):
        raise Unwritable(
            "JAX cannot run it: it is what a custom_vjp function leaves behind under forward-mode differentiation"
        )
    w.module.modules.add("jnp")
    return Tuple([Call("jnp.zeros", [w.source(tuple(a.shape)), w.module.values.dtype(a.dtype)]) for a in w.out_avals])


def _is_dead_everywhere(module: Any, name: str) -> bool:
    """Whether no equation of this primitive is left when the whole program's dead code is gone, calls and loops included."""
    if module.program is None:
        return False
    alive = jax_compat.without_dead_code(module.program)
    return all(eqn.primitive.name != name for eqn in jax_compat.equations_in(alive))


@rule("composite")
def composite(w: Any, *operands: Any, name: str, attributes: Any, version: int, **bodies: Function) -> Any:
    (jaxpr,) = bodies.values()  # `jaxpr`, or `call_jaxpr` on 0.12
    kwargs = [("name", w.source(name))]
    if version:
        kwargs.append(("version", w.source(version)))
    w.module.modules.add("lax")
    function: Expr = Name(w.module.function(jaxpr))
    if attributes:  # the decomposition is given them too; in the jaxpr they have done their work
        function = Lambda(["*operands", "**attributes"], Call(function, [Star(Name("operands"))]))
    call = Call("lax.composite", [function], kwargs)
    given = [(k, w.source(v)) for k, v in jax_compat.composite_attributes(attributes)]
    if any(not k.isidentifier() for k, _ in given):
        return DECLINE
    return result(jaxpr, Call(call, operands, given))


@rule("ffi_call")
def ffi_call(
    w: Any,
    *operands: Any,
    target_name: str,
    result_avals: Any,
    vmap_method: Any,
    has_side_effect: bool,
    input_layouts: Any,
    output_layouts: Any,
    input_output_aliases: Any,
    custom_call_api_version: int,
    legacy_backend_config: Any,
    attributes: Any,
) -> Any:
    """`jax.ffi.ffi_call(target, result types, ...)(*operands, **attributes)`. Source: jax/_src/ffi.py."""
    w.importing("import jax.ffi")
    several = len(result_avals) != 1
    results = Tuple([w.aval(a) for a in result_avals]) if several else w.aval(result_avals[0])
    options: dict[str, Any] = {}
    if has_side_effect:
        options["has_side_effect"] = True
    if vmap_method is not None:
        options["vmap_method"] = vmap_method
    # The primitive has layouts minor to major, the function takes them major to minor.
    for key, layouts in (("input_layouts", input_layouts), ("output_layouts", output_layouts)):
        turned = jax_compat.ffi_layouts(layouts)
        if turned is None:
            return DECLINE
        options[key] = turned if several or key == "input_layouts" else turned[0]
    if input_output_aliases:
        options["input_output_aliases"] = dict(input_output_aliases)
    if custom_call_api_version != 4:
        options["custom_call_api_version"] = custom_call_api_version
    if legacy_backend_config is not None:
        options["legacy_backend_config"] = legacy_backend_config
    given = [(k, _attribute(w, jax_compat.ffi_attribute(v))) for k, v in attributes]
    call = Call(w.jax("ffi.ffi_call", target_name, results, **options), operands, given)
    return call if several else Whole(call)


def _attribute(w: Any, value: Any) -> Expr:
    """An FFI attribute: a NumPy scalar's type is part of it."""
    return w.module.values.numpy_scalar(value) if isinstance(value, np.generic) else w.source(value)


@rule("custom_vmap_call")
def custom_vmap_call(w: Any, *operands: Any, call: Function, rule: Any, in_tree: Any, out_tree: Any) -> Any:
    """A function with its own batching rule, which is Python and is written like the callable of a callback.

    The rule is given the pytrees that the function was called with, so the written function takes and returns them.
    """
    ours = helper_of(jax_compat.batching_rule(rule))
    if ours is not None:
        helper, reduction = ours
        if reduction is None:
            return Whole(w.call(w.module.helper(helper).text, *operands))
        w.module.modules.add("jnp")
        return Whole(w.call(w.module.helper(helper).text, Text(f"jnp.{reduction.__name__}"), *operands))
    if in_tree.children()[0].num_leaves:
        return DECLINE  # closed-over values, which JAX itself lifts into the operands: there is no call that does
    w.importing("import jax.custom_batching")
    flat = jax_compat.is_flat_call(in_tree, out_tree, len(operands))
    arguments = jax.tree.unflatten(in_tree, range(len(operands)))[1]

    def define(name: str, decorator: str) -> Statement:
        decorators = [Text(decorator)]
        return (
            w.module.define(call, name, decorators)
            if flat
            else _with_trees(w, call, name, decorators, arguments, out_tree)
        )

    def build(name: str) -> Iterator[Statement]:
        if getattr(rule, "__qualname__", "").startswith("sequential_vmap."):
            yield define(name, "jax.custom_batching.sequential_vmap")
            return
        yield define(name, "jax.custom_batching.custom_vmap")
        # A rule that calls its own function keeps the original one: the text is good for these shapes only.
        yield Spaced([], Call(Attribute(Name(name), "def_vmap"), [callable_name(w, jax_compat.batching_rule(rule))]))

    hint = jax_compat.function_name(call.jaxpr) or "fn"
    name = w.module.named(("custom_vmap", call, in_tree, out_tree), hint, build)
    if flat:
        return result(call, Call(name, operands))
    given, start = [], 0
    for argument in arguments:
        count = len(jax.tree.leaves(argument))
        given.append(rebuilt(w, argument, operands[start : start + count]))
        start += count
    w.module.modules.add("jax")
    return Call("jax.tree.leaves", [Call(name, given)])


def _with_trees(
    w: Any, function: Function, name: str, decorators: Sequence[Expr], arguments: Sequence[Any], out_tree: Any
) -> Def:
    """`def name(tree, x): ...` for a function of flat values: its arguments taken apart, its result put together."""
    inner = w.module.writer()
    hints = ["x" if jax.tree_util.all_leaves([a]) else "tree" for a in arguments]
    parameters = [inner.scope.fresh(hint) for hint in hints]
    leaves: list[Expr] = []
    for parameter, example in zip(parameters, arguments, strict=True):
        bind, found = unpack(example, Name(parameter), lambda _: inner.scope.fresh("leaf"), w.module.tree_calls)
        inner.statements.extend(bind)
        leaves.extend(found)
    if any("jax.tree." in line for s in inner.statements for line in s.lines("")):
        w.module.modules.add("jax")
    inner.names.update(zip(function.params, leaves, strict=True))
    inner.equations(function.equations, function.results)
    example = jax.tree.unflatten(out_tree, [0] * out_tree.num_leaves)
    out = rebuilt(inner, example, [inner.atom(r) for r in function.results])
    inner.statements.append(Return(out))
    return Def(name, [Parameter(p) for p in parameters], inner.statements, decorators)


@rule("name")
def name(w: Any, x: Any, *, name: str) -> Any:
    w.importing("from jax.ad_checkpoint import checkpoint_name")  # `import jax` alone does not bind the submodule
    return w.call("checkpoint_name", x, name)
