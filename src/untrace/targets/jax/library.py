"""Library callees as Python: `jnp.mean(x, axis=-1)`, `x @ w`, `x[..., 1:]`, `x.at[i].add(v)`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from untrace._identifiers import identifier
from untrace.ir.callees import callee_of
from untrace.ir.nodes import Equation, Function, Library, Slot
from untrace.lift.recognise.library import ASSOCIATIVE_SCAN, OF_MATRIX
from untrace.lift.recognise.patterns import Fixed
from untrace.module.rules import DECLINE, JAX, Groups
from untrace.module.sizes import joined
from untrace.python.tree import (
    UNARY,
    Attribute,
    Binary,
    Call,
    Expr,
    Lambda,
    List,
    Name,
    Slice,
    Subscript,
    Text,
    Tuple,
    Unary,
)
from untrace.python.values import Unwritable

_WORD = re.compile(r"[A-Za-z_]\w*")

_BINARY = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@",
    "and_": "&", "or_": "|", "xor": "^", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "lshift": "<<", "rshift": ">>",
}  # fmt: skip
_UNARY = {"neg": "-", "invert": "~"}


def library_call(w: Any, equation: Equation, operands: Sequence[Expr]) -> Expr | Groups:
    """The expression of an equation whose callee is a Library function. Raises Unwritable."""
    callee = callee_of(equation, Library)
    if callee.function is not None:
        write = _associative_scan if callee.name == ASSOCIATIVE_SCAN else _solver
        return write(w, callee, callee.function, operands)
    kind, _, rest = callee.name.partition(".")
    if kind == "vjp":
        return _differentiated(w, rest, equation, operands)
    if kind == "pullback":
        cotangent = operands[1] if len(operands) == 2 else Tuple(operands[1:])
        called = Call(operands[0], [cotangent])
        return called if len(equation.outputs) > 1 else Subscript(called, Text("0"))
    given = callee.args
    if w.sizes is not None and callee.name == "method.reshape":
        given = [given[0], *w.sizes.reshape(operands[0], tuple(equation.inputs[0].aval.shape), tuple(given[1:]))]
    args = [_argument(w, a, operands) for a in given]
    if w.sizes is not None and callee.name == "method.reshape":
        args = [args[0], *joined(args[1:])]
    kwargs: list[tuple[str, Expr]] = []
    if callee.kwargs:
        kwargs = [(k, _argument(w, v, operands)) for k, v in callee.kwargs.items()]
        kwargs.sort(key=lambda pair: pair[0] != "axis")  # as everybody writes it
    if kind == "vmap":
        return _over_axes(w, rest, callee.args, args, kwargs)
    if kind == "transpose":
        w.module.modules.add(rest.partition(".")[0])
        return Call(w.module.helper("_transposed"), [Text(rest), *args], kwargs)
    return _spelled(w, callee.name, args, kwargs)


def _spelled(w: Any, path: str, args: Sequence[Expr], kwargs: Sequence[tuple[str, Expr]]) -> Expr:
    """The expression of the function of a path (see `lift.recognise.library`) on these arguments."""
    kind, _, rest = path.partition(".")
    if kind == "operator":
        if rest == "getitem":
            return Subscript(args[0], _bare(args[1]))
        if rest in _UNARY:
            return Unary(_UNARY[rest], args[0])
        return Binary(args[0], _BINARY[rest], args[1])
    if kind == "attribute":
        return Attribute(args[0], rest)
    if kind == "method":
        return Call(Attribute(args[0], rest), args[1:], kwargs)
    if kind == "at":
        place = Subscript(Attribute(args[0], "at"), args[1])
        return Call(Attribute(place, rest), args[2:], kwargs)
    if kind == "unpack":
        return args[0]
    if kind == "sparse":
        return _of_sparse(w, rest, args, kwargs)
    if kind in ("jvp", "jvps"):
        return _pushed_forward(w, rest, args, kind == "jvps")
    w.module.modules.add(kind)
    return Call(path, args, kwargs)


def _bare(index: Expr) -> Expr:
    """`x[None]` for `x[None,]`."""
    if type(index) is Tuple and len(index.elements) == 1 and type(index.elements[0]) in (Text, Name):
        return index.elements[0]
    return index


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
    args = [_argument(w, a, inside) for a in given]
    kind, _, name = path.partition(".")
    kwargs = [(k, _argument(w, v, inside)) for k, v in callee.kwargs.items()]
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


def _solver(w: Any, callee: Library, matvec: Function, operands: Sequence[Expr]) -> Expr:
    """`jax.scipy.sparse.linalg.cg(matvec, b)[0]`, its function defined before it."""
    from untrace.ir.scans import used_values
    from untrace.module.nested import Body, argument_words, hint_of

    closed = callee.closed
    body = Body(w, matvec, "matvec", zip(matvec.params[:closed], operands[:closed], strict=True))
    (value,) = matvec.params[closed:]
    ((_, word),) = argument_words(matvec, closed)
    body.parameter([value], [hint_of(value) or word or "x"], "x", used_values(matvec))
    body.writer.equations(matvec.equations, matvec.results)
    function = body.finish(body.writer.atom(matvec.results[0]))
    w.module.modules.add("jax")
    kwargs = [(k, w.source(v)) for k, v in callee.kwargs.items()]
    return Subscript(Call(callee.name, [function, *operands[closed:]], kwargs), Text("0"))


def _argument(w: Any, value: Any, operands: Sequence[Expr]) -> Expr:
    kind = type(value)
    if kind is Slot:
        return operands[value.index]
    if isinstance(value, Expr):
        return value
    if kind is Fixed:
        return w.module.numpy_constant(value.constant)
    if kind is tuple:
        shape = w.module.values.shape_of(value)
        if shape is None and w.sizes is not None:
            shape = w.sizes.shape(value)
        if shape is not None:
            return shape
        parts = [_argument(w, v, operands) for v in value]
        return Tuple(parts if w.sizes is None else joined(parts))
    if kind is list:
        return List([_argument(w, v, operands) for v in value])
    if kind is slice:
        parts = [None if v is None else _argument(w, v, operands) for v in (value.start, value.stop, value.step)]
        return Slice(*parts)
    if kind is float:
        size = w.sizes.number(value) if w.sizes is not None and math.isfinite(value) else None
        return number(w, value) if size is None else size
    if value is Ellipsis:
        return Text("...")
    if isinstance(value, np.integer) and type(value) is not np.intp:  # of that type are NumPy's own sizes and axes
        return w.module.values.numpy_scalar(value)
    if isinstance(value, np.dtype):
        return Text("bool") if value == bool else w.module.values.dtype(value)  # noqa: E721
    return w.source(value)


def number(w: Any, value: float) -> Expr:
    """A Python float as a person writes it; infinities and NaN by their names in the target's `jnp`."""
    if math.isfinite(value):
        text = repr(value)
        if len(text) > 6 and text.endswith(".0"):
            digits, zeros = text[:-2].rstrip("0"), len(text[:-2]) - len(text[:-2].rstrip("0"))
            text = f"{digits}e{zeros}" if zeros > 3 else text
        return Text(text, UNARY if text.startswith("-") else 14)
    w.module.modules.add(w.module.namespace)
    name = w.module.namespace
    if value != value:
        return Text(f"{name}.nan")
    return Text(f"{name}.inf") if value > 0 else Text(f"-{name}.inf", UNARY)


def repeated_slots(callee: Library) -> list[int]:
    """Inputs that stand in a call more than once."""
    if not callee.kwargs and all([type(a) is Slot for a in callee.args]):  # as most are
        places = [a.index for a in callee.args]
        if len(set(places)) == len(places):
            return []
    counts: dict[int, int] = {}
    stack: list[Any] = [*callee.args, *callee.kwargs.values()]
    while stack:
        value = stack.pop()
        if type(value) is Slot:
            counts[value.index] = counts.get(value.index, 0) + 1
        elif type(value) is tuple or type(value) is list:
            stack.extend(value)
        elif type(value) is slice:
            stack += [value.start, value.stop, value.step]
    return [index for index, count in counts.items() if count > 1]
