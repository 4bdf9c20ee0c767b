"""Calls of JAX's functions that no other library has: `x.at[i].add(v)`, `jax.vmap(f)(x)`, `jax.vjp(f, x)`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from untrace._identifiers import identifier
from untrace.ir.callees import callee_of
from untrace.ir.nodes import Equation, Function, Library, Slot
from untrace.lift.recognise.library import ASSOCIATIVE_SCAN, OF_MATRIX
from untrace.module.call_arguments import arguments_of, function_of, passed
from untrace.module.library_calls import argument, arguments, spelled
from untrace.module.rules import DECLINE, Groups
from untrace.python.tree import Attribute, Binary, Call, Expr, Lambda, Name, Subscript, Text, Tuple
from untrace.python.values import Unwritable
from untrace.targets.jax.rules.table import JAX

_WORD = re.compile(r"[A-Za-z_]\w*")


def library_call(w: Any, equation: Equation, operands: Sequence[Expr]) -> Expr | Groups:
    """The expression of an equation whose callee is a Library function. Raises Unwritable."""
    callee = callee_of(equation, Library)
    if callee.function is not None:
        if callee.signature is not None:
            return _integrator(w, callee, callee.function, operands)
        write = _associative_scan if callee.name == ASSOCIATIVE_SCAN else _solver
        return write(w, callee, callee.function, operands)
    kind, _, rest = callee.name.partition(".")
    if kind == "vjp":
        return _differentiated(w, rest, equation, operands)
    if kind == "pullback":
        cotangent = operands[1] if len(operands) == 2 else Tuple(operands[1:])
        called = Call(operands[0], [cotangent])
        return called if len(equation.outputs) > 1 else Subscript(called, Text("0"))
    args, kwargs = arguments(w, equation, operands)
    if kind == "vmap":
        return _over_axes(w, rest, callee.args, args, kwargs)
    if kind == "transpose":
        w.module.modules.add(rest.partition(".")[0])
        return Call(w.module.helper("_transposed"), [Text(rest), *args], kwargs)
    if callee.name == "lax.stop_gradient" and not equation.inputs:
        args = [w.array(args[0])]  # else JAX, without a trace, gives a number of Python's back, which has no methods
    return _spelled(w, callee.name, args, kwargs)


def _spelled(w: Any, path: str, args: Sequence[Expr], kwargs: Sequence[tuple[str, Expr]]) -> Expr:
    """The expression of the function of a path (see `lift.recognise.library`) on these arguments."""
    kind, _, rest = path.partition(".")
    if kind == "at":
        place = Subscript(Attribute(args[0], "at"), args[1])
        return Call(Attribute(place, rest), args[2:], kwargs)
    if kind == "sparse":
        return _of_sparse(w, rest, args, kwargs)
    if kind in ("jvp", "jvps"):
        return _pushed_forward(w, rest, args, kind == "jvps")
    return spelled(w, path, args, kwargs)


def _of_sparse(w: Any, name: str, args: Sequence[Expr], kwargs: Sequence[tuple[str, Expr]]) -> Expr:
    """`sparse.BCOO((data, indices), shape=(n, n)) @ x`."""
    w.module.imports.add("from jax.experimental import sparse")
    flags = [(k, v) for k, v in kwargs if k in OF_MATRIX]
    matrix = Call("sparse.BCOO", [Tuple(args[:2])], [("shape", args[2]), *flags])
    if name == "matmul":
        return Binary(matrix, "@", args[3])
    if name == "todense":
        return Call(Attribute(matrix, name))
    return Call(f"sparse.{name}", [matrix, *args[3:]], [(k, v) for k, v in kwargs if k not in OF_MATRIX])


def _pushed_forward(w: Any, path: str, args: Sequence[Expr], several: bool) -> Expr:
    """`jax.jvp(jnp.hypot, (x, y), (x_dot, y_dot))`, in a `jax.vmap` for several tangents."""
    w.module.modules.update({"jax", path.partition(".")[0]})
    primals, tangents = args[: len(args) // 2], args[len(args) // 2 :]
    if not several:
        return Call("jax.jvp", [Text(path), Tuple(primals), Tuple(tangents)])
    taken = {word for a in primals for word in _WORD.findall(a.flat())}
    names = []
    for word in [f"{'xyz'[i] if len(primals) < 4 else f'x{i}'}_dot" for i in range(len(primals))]:
        while word in taken:
            word += "_"
        names.append(word)
    one = Call("jax.jvp", [Text(path), Tuple(primals), Tuple([Name(n) for n in names])])
    return Call(Call("jax.vmap", [Lambda(names, one)], [("out_axes", Text("(None, 0)"))]), tangents)


def _differentiated(w: Any, path: str, equation: Equation, operands: Sequence[Expr]) -> Groups:
    """`jax.vjp(jnp.linalg.cholesky, x)`; a lambda where there are other arguments."""
    w.module.modules.add("jax")
    callee = callee_of(equation, Library)
    sizes: tuple[int, ...] = (len(equation.outputs) - 1, 1)
    varied, given = callee.args
    own_tuple, auxiliary = callee.own_tuple, callee.auxiliary
    settings = [] if auxiliary is None else [("has_aux", Text("True"))]
    sizes = sizes if auxiliary is None else (1, 1, 1)
    primals = [operands[place] for place in varied]
    whole = [a.index for a in given if type(a) is Slot] == list(varied) and len(given) == len(varied)
    if whole and not callee.kwargs and not own_tuple and auxiliary != 0 and path.startswith(("jax.", "jnp.", "lax.")):
        w.module.modules.add(path.partition(".")[0])
        return Groups(Call("jax.vjp", [Text(path), *primals], settings), sizes)
    others = {word for i, o in enumerate(operands) if i not in varied for word in _WORD.findall(o.flat())}
    names = []
    for word in ("x", "y", "z")[: len(varied)]:
        while word in others:
            word += "_"
        names.append(word)
    inside: list[Expr] = list(operands)
    for place, name in zip(varied, names, strict=True):
        inside[place] = Name(name)
    args = [argument(w, a, inside) for a in given]
    kind, _, name = path.partition(".")
    kwargs = [(k, argument(w, v, inside)) for k, v in callee.kwargs.items()]
    if kind == "primitive":
        rule = JAX.find(name)
        assert rule is not None  # of a primitive that has none there is no derivative to spell
        call = rule(w, *args, **callee.kwargs)
        if call is DECLINE:
            raise Unwritable(f"the rule of {name} declines")
    elif kind == "vmap":
        call = _over_axes(w, name, given, args, kwargs)
        called = call.args == [inside[place] for place in varied]
        if called and isinstance(call.func, Expr) and not own_tuple and auxiliary != 0:
            return Groups(Call("jax.vjp", [call.func, *primals], settings), sizes)
    else:
        call = _spelled(w, path, args, kwargs)
    if own_tuple:
        call = Call("tuple", [call])
    elif auxiliary == 0:  # what varies comes first
        call = Subscript(call, Text("::-1"))
    return Groups(Call("jax.vjp", [Lambda(names, call), *primals], settings), sizes)


def _takes_index(path: str) -> bool:
    return path == "operator.getitem" or path.startswith(("lax.dynamic_", "at."))


def _over_axes(
    w: Any, path: str, given: Sequence[Any], args: Sequence[Expr], kwargs: Sequence[tuple[str, Expr]]
) -> Call:
    """`jax.vmap(jax.random.split)(keys)`; a lambda where there are other arguments. given: what is mapped, once for each
    time, and the arguments, which `args` are written."""
    w.module.modules.add("jax")
    axes = 1
    while path.startswith("vmap."):
        axes, path = axes + 1, path.removeprefix("vmap.")
    mapped, args = given[axes - 1], args[axes:]

    def call(function: Expr, given: Sequence[Expr]) -> Call:
        for _ in range(axes):
            function = Call("jax.vmap", [function])
        return Call(function, given)

    if len(mapped) == len(args) and not kwargs and path.startswith(("jax.", "jnp.", "lax.")):
        w.module.modules.add(path.partition(".")[0])
        return call(Text(path), args)
    others = {word for i, a in enumerate(args) if i not in mapped for word in _WORD.findall(a.flat())}
    others.update(word for _, a in kwargs for word in _WORD.findall(a.flat()))
    own = (
        ("key", "x")
        if path.startswith("jax.random.")
        else ("x", "i", "value")
        if _takes_index(path)
        else ("x", "y", "z")
    )
    inside: list[Expr] = list(args)
    names: list[str] = []
    for place in mapped:
        name = own[min(place, len(own) - 1)]
        while name in others or name in names:
            name += "_"
        names.append(name)
        inside[place] = Name(name)
    return call(Lambda(names, _spelled(w, path, inside, kwargs)), [args[place] for place in mapped])


def _associative_scan(w: Any, callee: Library, combine: Function, operands: Sequence[Expr]) -> Expr:
    """`lax.associative_scan(combine, (decays, driven))`, its function defined before it."""
    from untrace.ir.scans import used_values
    from untrace.module.nested import Body, group

    count = len(operands)
    body = Body(w, combine, identifier(combine.name, "combine"), ())
    body.authored = bool(combine.name)
    used = used_values(combine)
    for side, whole in enumerate(combine.facts.wholes):
        values = combine.params[side * count : (side + 1) * count]
        body.parameter(values, [value.hint or whole for value in values], whole, used)
    body.writer.equations(combine.equations, combine.results)
    function = body.finish(group([body.writer.atom(r) for r in combine.results]))
    w.module.modules.add("lax")
    kwargs = [(k, w.source(v)) for k, v in callee.kwargs.items()]
    return Call(callee.name, [function, group(operands)], kwargs)


def _solver(w: Any, callee: Library, function: Function, operands: Sequence[Expr]) -> Expr:
    """`jax.scipy.sparse.linalg.cg(matvec, b)[0]`, its function defined before it."""
    from untrace.ir.scans import used_values
    from untrace.module.nested import Body, argument_words, hint_of

    closed = callee.closed
    body = Body(w, function, "matvec", zip(function.params[:closed], operands[:closed], strict=True))
    (value,) = function.params[closed:]
    ((_, word),) = argument_words(function, closed)
    body.parameter([value], [hint_of(value) or word or "x"], "x", used_values(function))
    body.writer.equations(function.equations, function.results)
    written = body.finish(body.writer.atom(function.results[0]))
    w.module.modules.add("jax")
    kwargs = [(k, w.source(v)) for k, v in callee.kwargs.items()]
    return Subscript(Call(callee.name, [written, *operands[closed:]], kwargs), Text("0"))


def _integrator(w: Any, callee: Library, function: Function, operands: Sequence[Expr]) -> Expr:
    """`ode.odeint(dynamics, state, times, params)`, its function in the module where it closes over nothing."""
    signature = callee.signature
    assert signature is not None
    arguments = arguments_of(signature, function)
    called = function_of(w, w.equation, operands, function, arguments, not signature.closed, signature)
    given, _ = passed(w, operands, arguments, signature)
    w.module.modules.add(callee.name.partition(".")[0])
    return Call(callee.name, [called, *given], [(k, w.source(v)) for k, v in callee.kwargs.items()])
