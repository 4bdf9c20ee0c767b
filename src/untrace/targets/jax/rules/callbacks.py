"""Host callbacks and debugging effects, written as the public call that made them.

A Python callable is no part of a jaxpr. It is imported where it has a public place, copied where its source is
self-contained, imported from the user's module where that is possible and allowed, and otherwise a function of the
module that calls what the reader sets: `add.function = counter.add`. In this process `Decompiled` sets it.
Source: jax/_src/callback.py, jax/_src/debugging.py.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from untrace import jax_compat
from untrace._places import place_of
from untrace.capture.callables import CallableSource, describe_callable, stand_in
from untrace.capture.callbacks import CallbackInfo, callback_of
from untrace.module.interface.callback_arguments import callback_arguments
from untrace.module.interface.put_together import rebuilt
from untrace.module.rules import DECLINE, Whole
from untrace.python.statements import Lines
from untrace.python.tree import Attribute, Call, Expr, Lambda, Name, Text, Tuple
from untrace.targets.jax import custom_root
from untrace.targets.jax.rules.table import rule


def callable_name(w: Any, function: Callable[..., Any]) -> Expr:
    """The name under which the written module has `function`; its definition or import is added now."""
    module = w.module
    found = module.callables.get(id(function))
    if found is None:
        found = module.callables[id(function)] = _define(module, function)
        module.kept.append(function)
    return found


def _define(module: Any, function: Callable[..., Any]) -> Expr:
    taken = module.scope.names()
    source = describe_callable(function, taken, from_user_modules=not module.standalone)
    if source.kind == "import":
        return _imported(module, source)
    definitions: Sequence[str] = source.definitions
    if source.kind == "parameter":
        definitions = [stand_in(source.name, source.reason)]
        module.missing[source.name] = function
        module.notes.append(
            f"the Python function {_described(function)} could not be written ({source.reason}): "
            f"set {source.name}.function of the module to it before the first call"
        )
    module.notes.extend(source.notes)
    module.modules.update(alias for _, alias in source.imports)  # `np` and the like, spelled as everywhere
    for text in definitions:
        for node in ast.parse(text).body:
            for name in _bound_names(node):
                module.scope.claim_parameter(name)
        module.definitions.append(Lines("\n\n" + text))
    return Name(source.name)


def _imported(module: Any, source: CallableSource) -> Expr:
    """A function of a public module, or of the user's own, under a name that nothing hides."""
    root, *inside = source.module.split(".")
    if root == "builtins":
        return Text(source.name)
    if root == "jax":
        module.modules.add(source.module)
        return Text(f"{source.module}.{source.name}")
    if root == "numpy" and not inside:
        module.modules.add("np")
        return Text(f"np.{source.name}")
    first, *rest = source.name.split(".")
    name = module.scope.fresh(first)
    module.imports.add(f"from {source.module} import {first}{'' if name == first else f' as {name}'}")
    if source.reason:
        module.notes.append(f"the Python function {source.name} is imported from {source.module}, for {source.reason}")
    found: Expr = Name(name)
    for part in rest:
        found = Attribute(found, part)
    return found


def _described(function: Callable[..., Any]) -> str:
    """A callable in words: its name, and where it was defined."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{name} ({place_of(code.co_filename, code.co_firstlineno)})" if code is not None else str(name)


def _bound_names(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    return [t.id for t in getattr(node, "targets", ()) if isinstance(t, ast.Name)]


def _function(w: Any, info: CallbackInfo) -> Expr:
    function = info.flat_function() if info.flat_reason else info.function
    assert function is not None  # of a flat one that there is no function for, the rule declines
    return callable_name(w, function)


def _options(w: Any, options: Mapping[str, Any]) -> list[tuple[str, Expr]]:
    return [(k, w.source(v)) for k, v in options.items() if v is not None and v is not False]


def _called(w: Any, operands: Sequence[Any], path: str, options: Sequence[str], gives: bool = True) -> Any:
    """A call of the public function `path`. gives: whether it gives arrays, one bare, and several as a tuple: JAX asks the
    callable for leaves only."""
    info = callback_of(w.equation.origin)
    if info.option_clash:
        return DECLINE
    args, kwargs = callback_arguments(info, operands, w.source)
    w.module.modules.add("jax.experimental" if path.startswith("jax.experimental.") else "jax")
    own = _options(w, {name: getattr(info, name) for name in options})
    avals = [w.aval(a) for a in info.result_avals]
    given = [avals[0] if len(avals) == 1 else Tuple(avals)] if gives else []
    call = Call(path, [_function(w, info), *given, *args], [*own, *kwargs])
    return Whole(call) if gives and len(avals) == 1 else call


@rule("pure_callback")
def pure_callback(w: Any, *operands: Any, **params: Any) -> Any:
    return _called(w, operands, "jax.pure_callback", ("sharding", "vmap_method"))


@rule("io_callback")
def io_callback(w: Any, *operands: Any, **params: Any) -> Any:
    return _called(w, operands, "jax.experimental.io_callback", ("sharding", "ordered"))


@rule("debug_callback")
def debug_callback(w: Any, *operands: Any, **params: Any) -> Any:
    return _called(w, operands, "jax.debug.callback", ("ordered", "partitioned"), gives=False)


@rule("debug_print")
def debug_print(w: Any, *operands: Any, **params: Any) -> Any:
    info = callback_of(w.equation.origin)
    if info.option_clash or info.flat_reason:
        return DECLINE
    args, kwargs = callback_arguments(info, operands, w.source)
    w.module.modules.add("jax")
    options = _options(
        w,
        {
            "ordered": info.ordered,
            "partitioned": info.partitioned,
            "skip_format_check": info.skip_format_check,
            "use_logging": info.logging,
        },
    )
    call = Call("jax.debug.print", [w.source(info.fmt), *args], [*options, *kwargs])
    if info.print_options:
        w.module.helper("_with_printoptions")
        w.module.modules.add("np")
        thunk = Lambda([], call)
        return Call("_with_printoptions", [thunk], [(k, w.source(v)) for k, v in info.print_options.items()])
    return call


@rule("check")
def check(w: Any, *operands: Any, err_tree: Any, debug: bool) -> Any:
    """`checkify.check`, as the call that raises an error value: `checkify.check_error(error)`."""
    error = jax.tree.unflatten(err_tree, [0] * err_tree.num_leaves)
    w.importing("from jax.experimental import checkify")
    built = rebuilt(w, error, operands)
    if not debug:
        return Call("checkify.check_error", [built])
    w.module.modules.update(("jax", "np"))
    w.module.helper("_primitive")
    # `debug_check` makes the error itself; the primitive takes one, and has no public name.
    found = Lambda(["x"], Call("checkify.check", [Name("x"), Text('""')]))
    primitive = Call("_primitive", [Text('"check"'), found, Call("np.bool_", [Text("True")])])
    options = [("err_tree", Call("jax.tree.structure", [built])), ("debug", Text("True"))]
    return Call(Attribute(primitive, "bind"), operands, options)


@rule("call_hi_primitive")
def call_hi_primitive(w: Any, *operands: Any, _prim: Any, **params: Any) -> Any:
    """A high-level primitive of JAX 0.12, as the public function that binds it (`hi_primitives` proves which)."""
    from untrace.jaxprs.expand.hi_primitives import Operand as HiOperand
    from untrace.jaxprs.expand.hi_primitives import hi_primitive_call
    from untrace.module.rules import Whole

    if "root" in params:
        functions = {name: params[name] for name in ("f", "solve", "tangent_solve")}
        return custom_root.custom_root(w, operands, params["root"], functions, _prim.has_aux)
    if jax_compat.is_root_map(w.equation.origin):
        return custom_root.derivative(w, operands, _prim.transposed) if w.root_map else DECLINE
    found = hi_primitive_call(w.equation.origin)
    if found is None:
        return DECLINE

    def argument(value: Any) -> Expr:
        if isinstance(value, HiOperand):
            return operands[value.index]
        if type(value) is tuple and any(isinstance(v, HiOperand) for v in value):
            return Tuple([argument(v) for v in value])
        return w.source(value)

    w.module.modules.add(found.path.split(".")[0])
    kwargs = [(k, argument(v)) for k, v in found.kwargs.items()]
    args: list[Expr] = [operands[i] for i in found.positions]
    if not found.vmaps:
        call = Call(found.path, args, kwargs)
    else:
        w.module.modules.update(("jax", "functools"))
        function: Expr = Text(found.path)
        if kwargs:
            function = Call("functools.partial", [function], kwargs)
        for axes in reversed(found.vmaps):
            function = Call("jax.vmap", [function], [("in_axes", w.source(axes))])
        call = Call(function, args)
    return call if found.sequence else Whole(call)
