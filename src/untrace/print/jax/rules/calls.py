"""Calls of functions: jit, checkpoint, plain calls. Source: jax/_src/pjit.py, jax/_src/ad_checkpoint.py, jax/_src/core.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from untrace import jax_compat
from untrace.ir.nodes import Function
from untrace.print.rules import DECLINE, Whole, rule
from untrace.print.tree import Call, Expr, Name, Statement, Text


def result(function: Function, call: Expr) -> Any:
    """A call of a written function, as the outputs of its equation: bare where the function returns one value."""
    return Whole(call) if len(function.results) == 1 else call


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
    options: list[tuple[str, Expr]] = []
    for keyword, shardings in (("in_shardings", in_shardings), ("out_shardings", out_shardings)):
        if not all(jax_compat.is_unspecified(s) for s in shardings):
            specs = tuple(None if jax_compat.is_unspecified(s) else s for s in shardings)
            single = keyword == "out_shardings" and len(specs) == 1
            options.append((keyword, w.source(specs[0] if single else specs)))
    if any(layout is not None for layout in (*in_layouts, *out_layouts)):
        return DECLINE
    donated = tuple(i for i, d in enumerate(donated_invars) if d)
    if donated:
        options.append(("donate_argnums", w.source(donated)))
    if keep_unused:
        options.append(("keep_unused", Text("True")))
    inlined = jax_compat.inline_option(inline)
    if inlined is not False:
        options.append(("inline", w.source(inlined)))
    if compiler_options_kvs:
        options.append(("compiler_options", w.source(dict(compiler_options_kvs))))
    w.module.modules.add("jax")
    decorator: Expr = Text("jax.jit")
    if options:
        w.module.modules.add("functools")
        decorator = Call("functools.partial", [decorator], options)
    key = ("jit", id(jaxpr), decorator.flat())

    def build(written: str) -> Iterator[Statement]:
        yield w.module.define(jaxpr, written, [decorator])

    written = w.module.named(key, "fn" if name == "<lambda>" else name, build)
    return result(jaxpr, Call(written, operands))


@rule("checkpoint", "remat2", "remat")
def checkpoint(
    w: Any, *operands: Any, jaxpr: Function, prevent_cse: Any, differentiated: bool, policy: Any, name: str = "", **rest: Any
) -> Any:
    if differentiated or any(v is not None for v in rest.values()):
        return DECLINE  # what differentiation left behind: `jax.checkpoint` makes only the undifferentiated form
    options: list[tuple[str, Expr]] = []
    if prevent_cse is not True:
        options.append(("prevent_cse", w.source(prevent_cse)))
    if policy is not None:
        options.append(("policy", w.source(policy)))
    hint = jax_compat.function_name(jaxpr.jaxpr)
    if hint and hint != "<lambda>":
        jaxpr.name = hint
    function = Name(w.module.function(jaxpr))
    w.module.modules.add("jax")
    return result(jaxpr, Call(Call("jax.checkpoint", [function], options), operands))


@rule("name")
def name(w: Any, x: Any, *, name: str) -> Any:
    return w.jax("ad_checkpoint.checkpoint_name", x, name)
