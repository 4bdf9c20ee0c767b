"""The statements of random programs that hold functions: control flow, calls, custom derivatives,
transformations. Like `operations.py`, one function for each family."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from random_programs import Block, Statement, Type

if TYPE_CHECKING:
    from strategies import Writer

SCALAR = Type((), "float32")
INDEX = Type((), "int32")


def _types(w: Writer, low: int, high: int, kind: str = "") -> list[Type]:
    """Types of operands: of values in scope mostly, so that little needs to be converted."""
    out = []
    for _ in range(w.integer(low, high)):
        found = w.pick(kind or "number")
        if found is None or w.chance(8):
            out.append(Type(w.shape(), "float32"))
        else:
            out.append(Type(found.type.shape, found.type.dtype))
    return out


def _places(start: int, count: int) -> str:
    """`{3}, {4}, ` for the format of a template."""
    return "".join(f"{{{i}}}, " for i in range(start, start + count))


def conditional(w: Writer) -> Statement:
    """`lax.cond` and `lax.switch` with branches of one type."""
    types = _types(w, 0, 2)
    results = _types(w, 1, 2)
    operands = tuple(w.made(t).name for t in types)
    if w.chance(3):
        index = w.made(INDEX)
        blocks = tuple(w.block(types, results) for _ in range(w.integer(1, 4)))
        branches = "".join(f"{{f{i}}}, " for i in range(len(blocks)))
        template = f"lax.switch({{0}}, [{branches}], {_places(1, len(operands))})"
        return Statement(template, (index.name, *operands), blocks=blocks)
    predicate = w.value("bool" if w.chance(2) else "number")
    blocks = (w.block(types, results), w.block(types, results))
    template = f"lax.cond(truth({{0}}), {{f0}}, {{f1}}, {_places(1, len(operands))})"
    return Statement(template, (predicate.name, *operands), blocks=blocks)


def scan(w: Writer) -> Statement:
    """`lax.scan`: any number of carries and inputs, reversed, unrolled, carries forwarded."""
    length = w.choose([3, 2, 1, 4, 0])
    carries, slices, stacked = _types(w, 0, 2), _types(w, 0, 2), _types(w, 0, 2)
    rows = [Type((length, *t.shape), t.dtype) for t in slices]
    operands = tuple(w.made(t).name for t in (*carries, *rows))
    inner = w.block((*carries, *slices), (*carries, *stacked))
    n, m = len(carries), len(slices)
    # `scan` wants f(carry, x) -> (carry, y); the block takes and returns flat values.
    cut = f"lambda c, x: (lambda out: (out[:{n}], out[{n}:]))({{f0}}(*c, *x))"
    options = w.choose(["", "", ", reverse=True", ", unroll=2", ", unroll=True", ", _split_transpose=True"])
    xs = f"({_places(n, m)})" if m else "()"
    template = f"lax.scan({cut}, ({_places(0, n)}), {xs}, length={length}{options})"
    return Statement(template, operands, blocks=(inner,))


def while_loop(w: Writer) -> Statement:
    """`lax.while_loop` that ends: a counter, its limit and often a condition of its own."""
    carries = _types(w, 0, 2)
    operands = tuple(w.made(t).name for t in carries)
    limit = w.made(INDEX)
    inner = w.block((INDEX, *carries), carries)
    condition = w.block((INDEX, *carries), [Type((), "bool")])
    more = w.choose(["", " & {f1}(*c)[0]"])
    test = f"lambda c: (c[0] < jnp.minimum({{0}}, 4)){more}"
    step = "lambda c: (c[0] + 1, *{f0}(*c))"
    template = f"lax.while_loop({test}, {step}, (0, {_places(1, len(carries))}))"
    return Statement(template, (limit.name, *operands), blocks=(inner, condition))


def for_loop(w: Writer) -> Statement:
    """`lax.fori_loop` with static and dynamic limits, `lax.map`, `lax.associative_scan`."""
    if w.chance(3):
        types = _types(w, 1, 2)
        length = w.choose([3, 2, 1])
        operands = tuple(w.made(Type((length, *t.shape), t.dtype)).name for t in types)
        options = w.choose(["", "", ", batch_size=2"])
        template = f"lax.map(lambda x: {{f0}}(*x), ({_places(0, len(operands))}){options})"
        return Statement(template, operands, blocks=(w.block(types),))
    if w.chance(4):
        x = w.value(min_rank=1)
        function = w.choose(["jnp.add", "jnp.maximum", "lambda a, b: a * b + a"])
        reverse = w.choose(["False", "True"])
        return Statement(f"lax.associative_scan({function}, {{0}}, reverse={reverse})", (x.name,))
    carries = _types(w, 1, 2)
    operands = tuple(w.made(t).name for t in carries)
    limit = w.made(INDEX)
    inner = w.block((INDEX, *carries), carries)
    upper = w.choose(["3", "jnp.minimum({0}, 4)", "2, unroll=2"])
    upper, _, options = upper.partition(", unroll")
    options = f", unroll{options}" if options else ""
    body = "lambda i, c: {f0}(jnp.int32(i), *c)"
    start = f"({_places(1, len(carries))})"
    template = f"lax.fori_loop({w.choose(['0', '1', '-1'])}, {upper}, {body}, {start}{options})"
    return Statement(template, (limit.name, *operands), blocks=(inner,))


def definition(w: Writer) -> Statement | None:
    """A function that later statements call: jitted under any name, checkpointed, scoped."""
    from strategies import NAMES

    types = _types(w, 1, 3)
    inner = w.block(types)
    lines = ["{f0}.__name__ = " + _text(w.choose(NAMES))] if w.chance(2) else []
    wrappers = ["jax.jit({f0})"] * 4
    wrappers += [
        "jax.jit({f0}, inline=True)",
        "jax.jit({f0}, keep_unused=True)",
        "jax.checkpoint({f0})",
    ]
    wrappers += [
        "jax.checkpoint({f0}, policy=jax.checkpoint_policies.dots_saveable)",
        "jax.jit(jax.jit({f0}))",
    ]
    wrappers += [
        "jax.checkpoint({f0}, prevent_cse=False)",
        "jax.named_scope(" + _text(w.choose(NAMES)) + ")({f0})",
    ]
    wrappers += [
        "jax.checkpoint(jax.jit({f0}))",
        "jax.jit({f0}, donate_argnums=0)",
        "jax.named_call({f0})",
    ]
    lines.append("{f0} = " + w.choose(wrappers))
    return _define(w, Statement("\n".join(lines), blocks=(inner,), defines=True), inner, types)


def custom_derivative(w: Writer) -> Statement | None:
    """A `custom_jvp` or `custom_vjp` function of floats whose rule is not its true derivative."""
    types = [Type(w.choose([(3,), (), (2, 3)]), w.choose(["float32", "float32", "bfloat16"]))]
    if w.chance(2):
        types.append(SCALAR)
    out = w.choose(types)
    inner = w.block(types, [out], closed=True)
    scale = w.block(types, [out], closed=True)
    n = len(types)
    to_out = f"{out.shape}, {out.dtype!r}"
    head = "{f0} = (lambda g: lambda *xs: g(*xs)[0])({f0})\n"
    if w.chance(2):
        total = " + ".join(f"fit(ts[{i}], {to_out})" for i in range(n))
        rule = w.choose(
            [
                f"({{f0}}_plain(*xs), {{f1}}(*xs)[0] * ({total}))",
                "(lambda p: (p[0], p[1] * 3))(jax.jvp({f0}_plain, xs, ts))",
                f"({{f0}}(*xs), jnp.cos({{f0}}(*xs)) * ({total}))",
                f"({{f0}}_plain(*xs), jnp.zeros({to_out}))",
            ]
        )
        lines = head + "{f0}_plain = {f0}\n{f0} = jax.custom_jvp({f0})\n"
        lines += f"{{f0}}.defjvp(lambda xs, ts: {rule})"
    else:
        residuals = w.choose(["xs", "(xs, {f0}_plain(*xs))", "(xs, {f1}(*xs)[0])", "(xs, jnp.sin(xs[0]))"])
        lines = head + "{f0}_plain = {f0}\n{f0} = jax.custom_vjp({f0})\n"
        saved = "res" if residuals == "xs" else "res[0]"
        extra = "1" if residuals == "xs" else "jnp.sum(res[1])"
        parts = ", ".join(_cotangent(i, t, saved, extra) for i, t in enumerate(types))
        forward = f"lambda *xs: ({{f0}}_plain(*xs), {residuals})"
        lines += f"{{f0}}.defvjp({forward}, lambda res, ct: ({parts},))"
    if w.chance(3):
        lines += "\n{f0} = jax.jit({f0})"
    return _define(w, Statement(lines, blocks=(inner, scale), defines=True), inner, types)


def _cotangent(index: int, type_: Type, saved: str, extra: str) -> str:
    """The cotangent of an argument in a custom_vjp rule: linear in `ct`, of the argument's type."""
    value = f"fit(ct, {type_.shape}, {type_.dtype!r}) * {saved}[{index}] * {extra}"
    return f"({value}).astype({type_.dtype!r})"


def batched(w: Writer) -> Statement:
    """`jax.vmap` of a function, some arguments unbatched, sometimes with a collective inside."""
    types = _types(w, 1, 2)
    size = w.choose([2, 3, 1])
    axes = [w.choose([0, 0, None]) for _ in types]
    if all(a is None for a in axes):
        axes[0] = 0
    full = [t if a is None else Type((size, *t.shape), t.dtype) for t, a in zip(types, axes, strict=True)]
    operands = tuple(w.made(t).name for t in full)
    names = f"({_places(0, len(operands))})"
    inner = w.block(types)
    if w.chance(3):
        axis = _text(w.choose(["i", "batch axis", '"""\nimport os', "jnp", "lambda"]))
        collective = w.choose(["lax.psum", "lax.pmax", "lax.all_gather", "lax.pmean"])
        call = f"lambda *x: {collective}({{f0}}(*x)[0], {axis}) + lax.axis_index({axis})"
        return Statement(
            f"jax.vmap({call}, {tuple(axes)}, axis_name={axis})(*{names})",
            operands,
            blocks=(inner,),
        )
    out = w.choose(["0", "0", "-1"])
    return Statement(f"jax.vmap({{f0}}, {tuple(axes)}, {out})(*{names})", operands, blocks=(inner,))


def differentiated(w: Writer) -> Statement:
    """`grad`, `value_and_grad`, `jvp`, `vjp`, `linearize`, `hessian` of a function of floats."""
    types = _types(w, 1, 2, "float")
    operands = tuple(w.made(t).name for t in types)
    names = f"({_places(0, len(operands))})"
    functions = w.defined()
    fitting = [f for f, wanted in functions if list(wanted) == types]
    blocks: tuple[Block, ...] = ()
    function = "{f0}"
    if fitting and w.chance(2):
        function = f"{{{len(operands)}}}"
        operands = (*operands, w.choose(fitting))
    else:
        blocks = (w.block(types),)
    leaves = f"jax.tree_util.tree_leaves({function}(*x))"
    scalar = f"lambda *x: sum(jnp.sum(fit(o, o.shape, 'float32')) for o in {leaves})"
    every = tuple(range(len(types)))
    floats = f"(lambda *x: tuple(fit(o, o.shape, 'float32') for o in {leaves}))"
    options = [
        f"jax.grad({scalar})(*{names})",
        f"jax.value_and_grad({scalar}, {every})(*{names})",
        f"jax.jvp({floats}, {names}, {names})",
        f"jax.jvp({function}, {names}, {names})[0]",
        f"(lambda p: p[1](jax.tree.map(jnp.ones_like, p[0])))(jax.vjp({floats}, *{names}))",
        f"(lambda p: p[1](*{names}))(jax.linearize({floats}, *{names}))",
        f"jax.hessian({scalar})(*{names})",
        f"jax.jacrev({scalar})(*{names})",
        f"jax.grad(jax.checkpoint({scalar}))(*{names})",
        f"jax.grad(lambda *y: jnp.sum(jax.grad({scalar})(*y)))(*{names})",
        f"jax.vmap(jax.grad({scalar}))(*[jnp.stack([v, v * 2]) for v in {names}])",
    ]
    return Statement(w.choose(options), operands, blocks=blocks)


def custom_reduction(w: Writer) -> Statement:
    """`lax.reduce` and `reduce_window` with a function, `linear_call`, `custom_root`."""
    x = w.value("float", min_rank=1)
    function = w.choose(["lambda a, b: a + b * 2", "lambda a, b: jnp.where(a > b, a, b)", "jnp.hypot"])
    start = w.made(Type((), x.type.dtype))
    ones = (1,) * len(x.type.shape)
    options = [
        f"lax.reduce({{0}}, {{1}}, {function}, (0,))",
        f"lax.reduce_window({{0}}, {{1}}, {function}, {ones}, {ones}, 'VALID')",
        "lax.reduce(({0}, {0}), ({1}, {1}), lambda a, b: (a[0] + b[1], a[1] * b[0]), (0,))",
        "jax.custom_derivatives.linear_call(lambda r, v: v * r, lambda r, v: v * r, {1}, {0})",
        "lax.custom_root(lambda v: v**3 - {1}, {1}, lambda f, v: v * 0.5, lambda g, y: y / g(1.0))",
    ]
    return Statement(w.choose(options), (x.name, start.name))


def _define(w: Writer, statement: Statement, inner: Block, types: list[Type]) -> Statement | None:
    """Appends the definition and returns a first call of it."""
    try:
        w.probe(statement)
    except Exception:
        return None
    w.define(statement, inner.name, tuple(types))
    operands = tuple(w.made(t).name for t in types)
    return Statement(f"{{0}}({_places(1, len(types))})", (inner.name, *operands))


def _text(name: str) -> str:
    """A string as source inside a template."""
    return repr(name).replace("{", "{{").replace("}", "}}")


NESTED: list[Callable[[Writer], Statement | None]] = [
    definition,
    conditional,
    scan,
    while_loop,
    for_loop,
    custom_derivative,
    batched,
    differentiated,
    custom_reduction,
]
