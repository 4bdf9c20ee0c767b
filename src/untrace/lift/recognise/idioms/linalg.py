"""Products of arrays: `@`, einsum, outer, tensordot; convolutions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from jax import lax

from untrace.ir.nodes import Equation, Literal
from untrace.lift.recognise.beforehand import is_matmul
from untrace.lift.recognise.engine import Guess, Matcher, idiom

_LETTERS = "ijklmnopqrstuvwxyzacdef"
_BATCHED = "bhg"


@idiom("dot_general", small=True)
def _product(m: Matcher, equation: Equation) -> Iterator[Guess]:
    left, right = equation.inputs
    if type(left) is Literal or type(right) is Literal:
        return
    params = equation.origin.params
    options = _precision(params["precision"])
    preferred = params["preferred_element_type"]
    if preferred is None:
        if len(left.aval.shape) <= 2 and len(right.aval.shape) <= 2:
            yield Guess("lax.dot", (left, right), options)
        return  # the products of `jnp` say what type theirs is
    out = equation.origin.outvars[0].aval
    kinds = {left.aval.dtype, right.aval.dtype}
    plain = len(kinds) > 1 or out.dtype in kinds  # else it is the type that was asked for
    for a, b in ((left, right), (right, left)):
        if plain and is_matmul(a.aval.shape, b.aval.shape, out.shape):
            if not options:
                yield Guess("operator.matmul", (a, b))
            yield Guess("jnp.matmul", (a, b), options)
    if plain and _is_dot(left, right, out.shape):
        yield Guess("jnp.dot", (left, right), options)
    if plain:
        yield from _einsum(params["dimension_numbers"], left, right, options)
    with_type = {**options, "preferred_element_type": preferred}
    if is_matmul(left.aval.shape, right.aval.shape, out.shape):
        yield Guess("jnp.matmul", (left, right), with_type)
    yield from _einsum(params["dimension_numbers"], left, right, with_type)


def _is_dot(left: Any, right: Any, shape: tuple[Any, ...]) -> bool:
    """Whether `jnp.dot` is legal and has this shape: the last axis of the one with the last but one of the other, and all axes that are left."""
    a, b = left.aval.shape, right.aval.shape
    if not a or not b:
        return (*a, *b) == tuple(shape)
    place = len(b) - 2 if len(b) > 1 else 0
    return a[-1] == b[place] and (*a[:-1], *b[:place], *b[place + 1 :]) == tuple(shape)


def _precision(precision: Any) -> dict[str, Any]:
    """`precision="highest"`, where one holds for both operands."""
    if precision is None:
        return {}
    if isinstance(precision, tuple) and precision[0] == precision[1]:
        precision = precision[0]
    name = getattr(precision, "name", "")
    return {"precision": name.lower() if isinstance(precision, lax.Precision) else precision}


@idiom("triangular_solve", small=True)
def _triangular_solve(m: Matcher, equation: Equation) -> Iterator[Guess]:
    params = equation.origin.params
    names = ("left_side", "lower", "transpose_a", "conjugate_a", "unit_diagonal")
    yield Guess("lax.linalg.triangular_solve", tuple(equation.inputs), {n: True for n in names if params[n]})


@idiom("select_n")
def _cholesky(m: Matcher, equation: Equation) -> Iterator[Guess]:
    """The factor with zeros above it, as the derivative of `jnp.linalg.cholesky` computes it."""
    factor = m.producer(equation.inputs[2], "cholesky") if len(equation.inputs) == 3 else None
    if factor is not None:
        yield Guess("lax.linalg.cholesky", (factor.inputs[0],), {"symmetrize_input": False})


@idiom("conv_general_dilated", small=True)
def _convolution(m: Matcher, equation: Equation) -> Iterator[Guess]:
    left, right = equation.inputs
    params = equation.origin.params
    numbers = params["dimension_numbers"]
    rank = len(numbers.lhs_spec) - 2
    strides = tuple(int(s) for s in params["window_strides"])
    spatial = "".join("DHW"[-rank:]) if 0 < rank <= 3 else ""
    named: dict[str, Any] = {}
    if spatial:
        named["dimension_numbers"] = (
            _layout(numbers.lhs_spec, "NC" + spatial), _layout(numbers.rhs_spec, "OI" + spatial), _layout(numbers.out_spec, "NC" + spatial)
        )  # fmt: skip
        if named["dimension_numbers"] == ("NC" + spatial, "OI" + spatial, "NC" + spatial):
            del named["dimension_numbers"]
    for name in ("lhs_dilation", "rhs_dilation"):
        if any(n != 1 for n in params[name]):
            named[name] = tuple(int(n) for n in params[name])
    for name in ("feature_group_count", "batch_group_count"):
        if params[name] != 1:
            named[name] = int(params[name])
    named.update(_precision(params["precision"]))
    if params["preferred_element_type"] is not None:
        named["preferred_element_type"] = params["preferred_element_type"]
    pairs = tuple((int(a), int(b)) for a, b in params["padding"])
    words: tuple[Any, ...] = ("SAME", "VALID") if "lhs_dilation" not in named else ()
    if m.lifter.any_size and not _says_same(m, equation):
        words = words[1:]  # "SAME" is another padding for another such size
    for padding in (*words, pairs):
        yield Guess("lax.conv_general_dilated", (left, right, strides, padding), named)


def _says_same(m: Matcher, equation: Equation) -> bool:
    """Whether the author's call has the word: numbers are the same padding for some sizes only."""
    frames = m.site(equation).frames if equation.origin is not None else ()
    node = frames[-1].node if frames else None
    return node is not None and any(isinstance(n, ast.Constant) and n.value == "SAME" for n in ast.walk(node))


def _layout(spec: Any, letters: str) -> str:
    """`NHWC` of the dimensions that batch, feature and space have."""
    found = [""] * len(spec)
    for letter, place in zip(letters, spec, strict=True):
        found[int(place)] = letter
    return "".join(found)


@idiom("transpose", small=True)
def _permuted_product(m: Matcher, equation: Equation) -> Iterator[Guess]:
    """`einsum` and `@` put the axes of the product in the order that was asked for."""
    inside = m.producer(equation.inputs[0], "dot_general")
    if inside is None or any(type(a) is Literal for a in inside.inputs):
        return
    left, right = inside.inputs
    params = inside.origin.params
    options = _precision(params["precision"])
    shape = equation.origin.outvars[0].aval.shape
    for a, b in ((left, right), (right, left)):
        if not options and is_matmul(a.aval.shape, b.aval.shape, shape):
            yield Guess("operator.matmul", (a, b))
    order = [int(i) for i in equation.origin.params["permutation"]]
    if not _exchanges(params["dimension_numbers"], len(left.aval.shape), order):  # else `einsum` exchanges the operands
        yield from _einsum(params["dimension_numbers"], left, right, options, order)


def _exchanges(numbers: Any, rank: int, order: list[int]) -> bool:
    """Whether a permutation of a product only puts the axes of its right operand before those of its left one."""
    (contracted, _), (batched, _) = numbers
    first, second = len(batched), rank - len(contracted)
    return order == [*range(first), *range(second, len(order)), *range(first, second)]


def _einsum(
    numbers: Any, left: Any, right: Any, options: dict[str, Any], order: list[int] | None = None
) -> Iterator[Guess]:
    """The einsum of a dot_general: both operand orders, for jnp may swap them."""
    (lc, rc), (lb, rb) = numbers
    lrank, rrank = len(left.aval.shape), len(right.aval.shape)
    if lrank + rrank > len(_LETTERS):
        return
    letters = iter(_LETTERS)
    names: dict[int, str] = {}
    for i in range(lrank):
        names[i] = next(letters)
    l_text = [names[i] for i in range(lrank)]
    r_text: list[str] = [""] * rrank
    for i, j in zip(lc, rc, strict=True):
        r_text[j] = l_text[i]
    for i, j in zip(lb, rb, strict=True):
        r_text[j] = l_text[i]
    for j in range(rrank):
        r_text[j] = r_text[j] or next(letters)
    out = [l_text[i] for i in lb]
    out += [l_text[i] for i in range(lrank) if i not in lc and i not in lb]
    out += [r_text[j] for j in range(rrank) if j not in rc and j not in rb]
    if order is not None:
        out = [out[i] for i in order]
    for a, b in (((left, l_text), (right, r_text)), ((right, r_text), (left, l_text))):
        spec = _renamed(f"{''.join(a[1])},{''.join(b[1])}->{''.join(out)}", "".join(l_text[i] for i in lb))
        yield Guess("jnp.einsum", (spec, a[0], b[0]), options)


def _renamed(spec: str, batch: str = "") -> str:
    """The same spec with other letters in the order of their appearance: b, h, g for what is batched, else i, j, k, ..."""
    plain, batched = iter(_LETTERS), iter(_BATCHED)
    names: dict[str, str] = {}
    out = []
    for c in spec:
        if c.isalpha():
            if c not in names:
                names[c] = next(batched) if c in batch and len(batch) <= len(_BATCHED) else next(plain)
            c = names[c]
        out.append(c)
    return "".join(out)


@idiom("mul")
def _outer(m: Matcher, equation: Equation) -> Iterator[Guess]:
    site = m.site(equation)
    if site.phase == "forward" and (site.library or ("", ""))[1] in ("mul", "multiply"):
        return  # who writes `x[:, None] * y` means it for any number of axes
    left, right = (m.through(a, "broadcast_in_dim", "reshape") for a in equation.inputs)
    if left is not None and right is not None and type(left) is not Literal and type(right) is not Literal:
        yield Guess("jnp.outer", (left, right))
