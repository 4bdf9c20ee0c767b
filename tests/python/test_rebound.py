"""A value that has its author's name again: where it may, and where another value is still read under that name."""

import ast
import random
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import untrace
from untrace.module.merge.choices import renamed
from untrace.provenance.sites import Provenance
from untrace.python.coalesce_names import new_names, rebind_names
from untrace.python.inline_neighbours import words_of
from untrace.python.scope_index import every, own_nodes, words_in
from untrace.python.statements import Assign, Def, For, If, Loop, Parameter, Return, Store
from untrace.python.tree import Attribute, Binary, Call, Lambda, Leaf, Name, Subscript, Symbol, Text, Tuple

pytestmark = pytest.mark.usefixtures("unguarded")

X = np.linspace(-1.0, 1.5, 12, dtype=np.float32).reshape(4, 3)
W = np.linspace(-0.5, 0.5, 9, dtype=np.float32).reshape(3, 3)


def written(fn, *args):
    """The text of `fn`, without its head, after it was run in a module of its own and compared with the original."""
    d = untrace.decompile(fn, comments="none")(*args)
    assert d.proof.at_least("hlo"), f"{d.proof}\n{d.source}"
    assert not any("style exact" in note for note in d.notes)
    module = {}
    exec(compile(d.source, "written", "exec"), module)
    for a, b in zip(jax.tree.leaves(module[d.name](*args)), jax.tree.leaves(fn(*args)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    return d.source


def has(source, lines):
    """Whether these lines follow each other in a text, at some indentation."""
    lines = textwrap.dedent(lines).strip()
    return any(textwrap.indent(lines, " " * n) in source for n in (0, 4, 8, 12))


# ------------------------------------------------------------------ programs


def test_a_parameter_is_bound_again():
    def f(x, w):
        x = jnp.sin(x) + 1
        y = x * x + w
        x = jnp.cos(y) * y
        return x / x.sum()

    source = written(f, X, X)
    assert has(source, "x = jnp.sin(x) + 1.0\ny = x * x + w\nx = jnp.cos(y) * y\nreturn x / x.sum()")


def test_a_value_that_is_returned_keeps_its_name():
    def f(x):
        before = x
        x = jnp.sin(x) * x
        return before, x, x - 1

    assert has(written(f, X), "x_2 = jnp.sin(x) * x\nreturn x, x_2, x_2 - 1.0")


def test_a_list_of_the_values_on_the_way():
    def f(x):
        found = []
        x = jnp.sin(x) * 1.5 + x
        found.append(x)
        x = jnp.sin(x) * 2.5 + x
        found.append(x)
        return found

    assert has(written(f, X), "x = jnp.sin(x) * 1.5 + x\nreturn [x, jnp.sin(x) * 2.5 + x]")


def test_bodies_of_loops():
    def f(x, n):
        def body(c):
            i, x = c
            x = x + jnp.sin(x) * x
            x = x / x.sum()
            return i + 1, x * x.max()

        _, x = lax.while_loop(lambda c: c[0] < n, body, (0, x))
        x = x * x.sum()
        return x - x.max()

    source = written(f, X, 3)
    assert has(source, "i, x = c\nx = x + jnp.sin(x) * x\nx = x / x.sum()\nreturn i + 1, x * x.max()")
    assert has(source, "x = x * x.sum()\nreturn x - x.max()")


def test_bodies_of_scans():
    def f(carry, xs):
        def step(carry, x):
            h, c = carry
            old = h
            h = jnp.tanh(h + x * h)
            c = c * h + old
            c = c - c.sum()
            return (h, c * c), h

        return lax.scan(step, carry, xs)

    source = written(f, (X[0], X[1]), X)
    assert "c = c_" not in source and "h_2 = jnp.tanh(h + x * h)" in source
    assert has(source, "c = c * h_2 + h\nc = c - c.sum()\nreturn (h_2, c * c), h_2")


def test_branches():
    def f(x, p):
        x = x - x.mean()

        def yes(x):
            x = x * x.sum()
            return x + x.max()

        x = lax.cond(p, yes, lambda x: x, x)
        return x * x.sum()

    source = written(f, X, True)
    assert has(source, "x = x * x.sum()\nreturn x + x.max()")
    assert has(source, "x = lax.cond(p, yes, lambda x: x, x)\nreturn x * x.sum()")


def test_what_a_function_inside_reads_keeps_its_name():
    def f(x, xs):
        def step(c, y):
            return c + y * x, None

        c, _ = lax.scan(step, x, xs)
        x = c * c.sum()
        return x + x.sum()

    assert has(written(f, X[0], X), "x_2 = c * c.sum()\nreturn x_2 + x_2.sum()")


def test_layers_in_a_loop():
    def attention(p, x):
        q = x @ p["q"]
        return jax.nn.softmax(q @ x.T) @ x

    def block(p, x):
        x = x + attention(p, x)
        x = x + jax.nn.relu(x @ p["w"])
        return x

    def model(params, x):
        x = x * 2.0
        x = x - x.mean()
        for p in params:
            x = block(p, x)
        x = x / x.std()
        return x, (x**2).sum()

    source = written(model, [{"q": W, "w": W}] * 3, X)
    loop = """
    x = x * 2.0
    x = x - x.mean()
    for p in params:
        x = block(p, x)
    x = x / x.std()
    return x, (x**2).sum()
    """
    assert has(source, loop)
    assert "    x = x + attention(" in source


def test_the_same_variable_of_one_call_only():
    """`h` of two calls are two variables of the author's, of two statements of one call the same one."""

    def layer(x, g):
        h = x - x.mean()
        x = x + jnp.sin(h) * h
        h = x - x.max()
        return x + jnp.cos(h) * h * g

    def f(x):
        a = layer(x, 2.0)
        return layer(a, 3.0) * a

    assert has(written(lambda x: layer(x, 2.0), X), "x = x + jnp.sin(h) * h\nh = x - x.max()")
    gradient = written(jax.grad(lambda x: f(x).sum()), X)
    assert gradient.count(" h = ") == 1


def test_the_backward_part_reads_the_forward_values():
    def f(x, w):
        x = jnp.tanh(x @ w)
        x = jnp.sin(x @ w)
        x = x - x.mean()
        return (x * jnp.exp(x)).sum()

    source = written(jax.grad(f, argnums=(0, 1)), X, W)
    assert "x_2 = jnp.tanh(x @ w)" in source and "    x = " not in source


def test_a_leaf_of_a_tree_is_no_value_of_that_name_later():
    def f(params, x):
        w = params["w"]
        x = x @ w
        w = w * w.sum()
        x = x @ w + w.sum()
        w = params["v"]
        return x @ w + w.sum()

    written(f, {"w": W, "v": W.T}, X)


def test_without_the_source_nothing_is_bound_again():
    scope = {}
    exec("import jax.numpy as jnp\ndef f(x):\n    x = jnp.sin(x) * x\n    return x + x.sum()", scope)
    assert "    x = " not in written(scope["f"], X)


def test_style_exact_binds_every_value_once():
    def f(x):
        x = jnp.sin(x)
        return x * x

    assert "    x = " not in untrace.decompile(f, style="exact")(X).source


# ------------------------------------------------------------------ statements


def expression(node):
    match node:
        case ast.Name():
            return Name(node.id)
        case ast.Lambda():
            return Lambda([a.arg for a in node.args.args], expression(node.body))
        case ast.Call():
            func = node.func.id if isinstance(node.func, ast.Name) else expression(node.func)
            return Call(func, [expression(a) for a in node.args])
        case ast.BinOp():
            return Binary(expression(node.left), "*" if isinstance(node.op, ast.Mult) else "+", expression(node.right))
        case ast.Tuple():
            return Tuple([expression(e) for e in node.elts])
        case ast.Subscript():
            return Subscript(expression(node.value), expression(node.slice))
        case ast.Constant():
            return Text(repr(node.value))
    raise NotImplementedError(ast.dump(node))


def statement(node):
    match node:
        case ast.Assign(targets=[ast.Subscript() as place]):
            return Store(expression(place), expression(node.value))
        case ast.Assign(targets=[target]):
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            return Assign([n.id for n in names], expression(node.value))
        case ast.Expr():
            return Assign([], expression(node.value))
        case ast.Return():
            return Return(expression(node.value))
        case ast.For():
            return For(ast.unparse(node.target), expression(node.iter), list(map(statement, node.body)))
        case ast.While():
            return Loop(expression(node.test), list(map(statement, node.body)))
        case ast.If():
            return If(expression(node.test), list(map(statement, node.body)), list(map(statement, node.orelse)))
        case ast.FunctionDef():
            defaults = [None] * (len(node.args.args) - len(node.args.defaults)) + [*map(expression, node.args.defaults)]
            params = [Parameter(a.arg, default) for a, default in zip(node.args.args, defaults, strict=True)]
            return Def(node.name, params, list(map(statement, node.body)))
    raise NotImplementedError(ast.dump(node))


def function_of(text):
    return statement(ast.parse(textwrap.dedent(text)).body[0])


def renames(function, wishes):
    return new_names(own_nodes(function.body), [p.name for p in function.params], wishes, lambda name, held: True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(x):\n  x_2 = g(x)\n  return x_2", {"x_2": "x"}),
        ("def f(x):\n  x_2 = g(x)\n  return x_2, x", {}),
        ("def f(x):\n  x_2 = g(x)\n  x_3 = g(x_2)\n  return x_3, x_2", {"x_2": "x", "x_3": "x_2"}),
        # Functions and lambdas look their names up when they run.
        ("def f(x):\n  h = lambda: x\n  x_2 = 1\n  return h() + x_2", {}),
        ("def f(x):\n  x_2 = 1\n  def h():\n    return x_2\n  return h", {}),
        ("def f(x):\n  def h(x=x):\n    return x\n  x_2 = 1\n  return h() + x_2", {}),
        ("def f(x):\n  def h(y):\n    def k():\n      return x\n    return k\n  x_2 = 1\n  return h(1) + x_2", {}),
        # A function's own variable of that name is another one.
        ("def f(x):\n  def h(x):\n    x_2 = x\n    return x_2\n  x_2 = h(x)\n  return x_2", {"x_2": "x"}),
        # A variable of the function around this one is not bound here.
        ("def f(y):\n  z = x\n  x_2 = z + y\n  return x_2", {}),
        # In a loop, the next turn reads it again.
        ("def f(x, x_1):\n  for i in y:\n    x_2 = x + i\n    g(x_2)\n  return 1", {}),
        ("def f(x):\n  for i in y:\n    x = x + i\n  x_2 = x\n  return x_2", {"x_2": "x"}),
        ("def f(x):\n  x_2 = x * 2\n  for i in y:\n    x_2 = x_2 + i\n  return x_2", {"x_2": "x"}),
        ("def f(x):\n  x_2 = x * 2\n  for i in y:\n    x_2 = x_2 + x\n  return x_2", {}),
        ("def f(x, p):\n  if p:\n    x_2 = x\n  else:\n    x_2 = 1\n  return x_2", {"x_2": "x"}),
        ("def f(x, p):\n  if p:\n    x_2 = 1\n    y = x_2\n  else:\n    y = 2\n  return y + x", {}),
        ("def f(q):\n  x, x_2 = q\n  return x_2", {}),
        ("def f(x):\n  x_2 = x\n  x[0] = x_2\n  return x_2", {}),
        ("def f(x):\n  while x:\n    x_2 = x\n  return x_2", {}),
    ],
)
def test_which_names_are_free_again(text, expected):
    function = function_of(text)
    assert ast.dump(ast.parse("\n".join(function.lines("")))) == ast.dump(ast.parse(text))
    names = {word for word in words_of(function) if word.partition("_")[0] == "x"}
    assert renames(function, {n: "x" for n in names}) == expected


@pytest.mark.parametrize("seed", range(200))
def test_random_texts_compute_the_same(seed):
    """Every variable wishes for a shared name: what is granted changes no result."""
    rng = random.Random(seed)
    names = {base: [base] for base in "xyz"}
    bound = list("xyz")

    def value_of_some():
        picked = [rng.choice(bound) for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.1:
            return f"(lambda: {picked[0]} + {rng.randint(1, 9)})()"
        return " * 3 + ".join(picked) + f" + {rng.randint(1, 9)}"

    def block(depth):
        lines = []
        for _ in range(rng.randint(2, 6)):
            value = value_of_some()
            if depth < 2 and rng.random() < 0.25:
                lines += ["for _ in range(2):", *["    " + line for line in block(depth + 1)]]
            elif depth and rng.random() < 0.6:
                lines.append(f"{rng.choice(bound)} = {value}")
            else:
                base = rng.choice("xyz")
                name = f"{base}_{len(names[base]) + 1}"
                names[base].append(name)
                bound.append(name)
                lines.append(f"{name} = {value}")
        return lines

    body = [*block(0), f"return {', '.join(rng.sample(bound, 2))}"]
    function = function_of("\n    ".join(["def f(x, y, z):", *body]))
    before = "\n".join(function.lines(""))
    wishes = {n: base for base, family in names.items() for n in family}
    own_nodes(function.body).rename(renames(function, wishes))
    after = "\n".join(function.lines(""))
    results = []
    for text in (before, after):
        scope = {}
        exec(text, scope)
        results.append(scope["f"](2, 3, 5))
    assert results[0] == results[1], f"{before}\n\n{after}"


@pytest.mark.parametrize("seed", range(50))
def test_what_is_read_off_the_tree_is_what_the_text_reads(seed):
    rng = random.Random(seed)
    bound = ["x", "y"]
    hidden = seed % 2 == 1  # whether a variable stands in what is no Name

    def expression():
        one, other = Name(rng.choice(bound)), Name(rng.choice(bound))
        return rng.choice(
            [
                Binary(one, "*", Attribute(other, "x_2")),
                Binary(one, "+", Text("2.5e-3")),
                Call(
                    "jnp.where",
                    [Binary(one, "==", other), one, Text("x_2.y" if hidden else "z.y")],
                    [("x", other), ("y", Text("-1"))],
                ),
                Call(Attribute(one, "sum"), [Name("y")], [("axis", Text("0"))]),
            ]
        )

    statements = []
    for number in range(2, 12):
        statements.append(Assign([f"{rng.choice('xy')}_{number}"], expression()))
        bound.append(statements[-1].targets[0])
    statements.append(Return(Tuple([expression(), Name(rng.choice(bound))])))
    function = Def("f", [Parameter("x"), Parameter("y")], statements)
    own = own_nodes(function.body)
    (parsed,) = ast.parse("\n".join(function.lines(""))).body
    for line, node in zip(every(own.lines), parsed.body, strict=True):
        found = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        assert line.reads | {"jnp"} == found | {"jnp"}
    assert ("x_2" in own.source) == (hidden and "x_2.y" in words_text(function))
    for name in own.names:
        name.symbol.author = name.id.partition("_")[0]
    words = {function: words_of(function)}
    rebind_names([function], Provenance(), words)
    assert words == {function: words_of(function)}


def words_text(function):
    return "\n".join(function.lines(""))


def test_a_variable_in_a_piece_of_source_keeps_its_name():
    leaf = Leaf(Name("params"), (("item", 'f"layer_{x_2}"', 0), ("attribute", "x", 0)))
    for value in (Call("x_2", [Name("y")]), leaf, Text('f"{x_2}"'), Text("x_2.shape")):
        x, x_2 = Name("x"), Name("x_2")
        body = [Assign(["x_2"], Binary(x, "*", Text("2"))), Assign(["y"], value), Return(Binary(x_2, "*", Name("y")))]
        function = Def("f", [Parameter("x")], body)
        assert renames(function, {"x": "x", "x_2": "x"}) == {"x_2": "x"}
        x.symbol.author = x_2.symbol.author = "x"
        rebind_names([function], Provenance())
        assert x_2.id == "x_2"


def test_the_words_of_a_piece_of_source():
    assert words_in("x.y + f(a=b, c==d) * 2e5 + 1j") == ("x", "f", "b", "c", "d")
    assert words_in("""f'layers.{i}' + "it's {j}" + 'a \\' b'""") == ("i",)
    assert words_in("lambda key: random(key, 3)") == ("lambda", "key", "random", "key")


def test_a_name_under_another_name_is_the_same_variable():
    name = Name("x", Symbol(author="x"))
    made = renamed(name, {"x": "y"})
    assert made.id == "y" and made.symbol is name.symbol


def test_what_a_call_gives_is_returned_as_it_is():
    def split(x):
        low, high = jnp.minimum(x, 0.0), jnp.maximum(x, 0.0)
        return jnp.cumsum(jnp.sin(low), axis=1), jnp.cumsum(jnp.cos(high), axis=1)

    def warped(x):
        x = jnp.tanh(x @ W) + jnp.sqrt(jnp.abs(x))
        return split(x - x.mean(axis=0) / jnp.std(x))

    def program(x):
        (low, high), (lower, higher) = warped(x), warped(x + 1.0)
        others = split(x)
        return low @ W + high @ W + lower * higher + others[0] + others[1]

    text = written(program, X)
    assert "    return split(" in text, text
