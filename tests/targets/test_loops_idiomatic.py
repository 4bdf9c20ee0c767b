"""Loops, branches and functions with derivative rules in idiomatic style: the text, its proof, its bits, its gradient."""

import ast
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import untrace


def written(fn, *args, level="jaxpr", gradient=True):
    """The text of `fn`, after its proof, its results and its gradient were compared with the original's."""
    d = untrace.decompile(fn, style="idiomatic", simplify=False)(*args)
    assert d.proof.level == level, f"{d.proof}\n{d.source}"
    assert_same(jax.jit(d.__call__)(*args), jax.jit(fn)(*args))
    if gradient:
        assert_same(gradient_of(d, args), gradient_of(fn, args))
    return d.source


def gradient_of(fn, args):
    def total(*args):
        leaves = [x for x in jax.tree.leaves(fn(*args)) if jnp.issubdtype(x.dtype, jnp.floating)]
        return sum(jnp.sum(jnp.sin(x)) for x in leaves)

    places = tuple(
        i for i, a in enumerate(args) if all(jnp.issubdtype(x.dtype, jnp.floating) for x in jax.tree.leaves(a))
    )
    return jax.jit(jax.grad(total, argnums=places))(*args)


def assert_same(left, right):
    left, right = jax.tree.leaves(left), jax.tree.leaves(right)
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def body_of(source, name):
    """The text of a function of the module, wherever it stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return ast.unparse(node)
    raise AssertionError(f"no function {name} in\n{source}")


def words(source):
    return set(re.findall(r"[A-Za-z_]\w*", source))


X = jnp.asarray(np.linspace(-1.0, 1.5, 12, dtype=np.float32).reshape(4, 3))
W = jnp.asarray(np.linspace(-0.5, 0.5, 9, dtype=np.float32).reshape(3, 3))
B = jnp.asarray(np.array([0.1, -0.2, 0.3], np.float32))


# ------------------------------------------------------------------ scan


def rnn(weight, bias, inputs):
    def step(hidden, token):
        hidden = jnp.tanh(token @ weight + hidden + bias)
        return hidden, hidden * 2.0

    return lax.scan(step, jnp.zeros(3), inputs)


def test_scan_is_a_nested_step_over_what_it_closes_over():
    source = written(rnn, W, B, X)
    assert "def step(hidden, token):" in source
    assert "lax.scan(step, " in source
    step = body_of(source, "step")
    assert {"weight", "bias"} <= words(step)
    assert "bind" not in source and "carry_item" not in source


def test_scan_with_several_carries_and_inputs_takes_them_apart():
    def counted(weight, tokens, gains):
        def step(carry, pair):
            hidden, energy = carry
            token, gain = pair
            hidden = jnp.tanh(token @ weight + hidden) * gain
            return (hidden, energy + hidden.sum()), (hidden, energy)

        return lax.scan(step, (jnp.zeros(3), 0.0), (tokens, gains), reverse=True, unroll=2)

    source = written(counted, W, X, jnp.arange(4.0))
    assert "def step(carry, pair):" in source
    assert "hidden, energy = carry" in source
    assert "token, gain = pair" in source
    assert "reverse=True" in source and "unroll=2" in source


def test_scan_without_inputs_says_its_length():
    def decay(x):
        return lax.scan(lambda value, _: (value * 0.5, value), x, None, length=5)

    source = written(decay, B)
    assert "length=5" in source
    assert "lambda" in source or "def step(" in source


def test_constants_are_closed_over_in_any_order():
    def swapped(a, b, x):
        def step(carry, row):
            left = row @ a
            return jnp.tanh(carry * b + left), None

        return lax.scan(step, b, x)[0]

    # The backward scan's constants come in another order than its body uses them.
    source = written(
        jax.value_and_grad(lambda a, b, x: swapped(a, b, x).sum(), argnums=(0, 1)), W, B, X, gradient=False
    )
    assert "scan_p" not in source and "ShapeDtypeStruct" not in source
    assert "reverse=True" in source
    assert re.search(r"def step_bwd\(", source)


def test_carries_that_nothing_reads_are_underscores():
    def last(x):
        def step(carry, row):
            total, _ = carry
            return (total + row, row), None

        (total, _), _ = lax.scan(step, (x[0], x[0]), x)
        return total

    source = written(last, X)
    assert re.search(r"total, _ = carry", source)


def test_a_carry_that_the_body_forwards_is_still_proven():
    """`lax.scan` would make another equation of it; the transposition of a scan makes such carries."""

    def program(x, y):
        def step(carry, row):
            a, b = carry
            return (a + row * b, b), a

        jaxpr = jax.make_jaxpr(lambda a, b, row: step((a, b), row))(x, y, x)
        from untrace import jax_compat

        eqn = jax.make_jaxpr(lambda x, y: lax.scan(lambda c, r: ((c[0] + r * c[1], c[1] * 1.0), c[0]), (x, y), X))(
            x, y
        ).eqns[-1]
        opened, _ = jax_compat.open_jaxpr(jaxpr)
        body = eqn.params["jaxpr"]
        flat = jax.make_jaxpr(lambda a, b, row: (a + row * b, b, a))(x, y, x)
        flat = flat if not jax_compat.is_open(body) else jax_compat.open_jaxpr(flat)[0]
        assert len(opened.outvars) == 3
        return eqn.primitive.bind(x, y, X, **{**eqn.params, "jaxpr": flat})

    written(program, B, B * 2.0, gradient=False)


def test_slices_that_are_given_back_unchanged():
    def program(x):
        return lax.scan(lambda total, row: (total + row, (row, total)), x[0], x)

    written(program, X)


def test_integers_and_weak_types_in_the_carry():
    def program(x):
        def step(carry, row):
            count, total = carry
            return (count + 1, total + row.sum()), count

        return lax.scan(step, (0, 0.0), x)

    written(program, X)


def test_nested_scans_keep_their_names_apart():
    def program(x, gain):
        def outer(total, row):
            def inner(total, value):
                return total + value * gain, total

            total, history = lax.scan(inner, total, row)
            return total, history

        return lax.scan(outer, 0.0, x)

    source = written(program, X, jnp.float32(2.0))
    assert "def outer(total, row):" in source
    assert "def inner(total, value):" in source


def test_map_is_a_scan_without_carry():
    def program(x, w):
        return lax.map(lambda row: jnp.tanh(row @ w) + row, x)

    source = written(program, X, W)
    assert "lax.map(" in source and "scan" not in source.replace("lax.map", "")


def test_reversed_map_stays_a_scan():
    def program(x):
        return lax.scan(lambda _, row: (None, jnp.sin(row)), None, x, reverse=True)[1]

    source = written(program, X)
    assert "lax.scan(" in source and "reverse=True" in source


def test_what_a_backward_loop_needs_stays_together():
    def loss(weight, xs):
        def step(hidden, x):
            gate = jax.nn.sigmoid(x @ weight)
            hidden = gate * jnp.tanh(hidden + x) + jnp.sin(hidden) * jnp.cos(x @ weight)
            return hidden, hidden.sum()

        return lax.scan(step, jnp.zeros(3), xs)[1].sum()

    source = written(jax.grad(loss), W, X, gradient=False)
    assert len(re.findall(r"^ +residuals = \(", source, re.MULTILINE)) == 1
    assert "= residuals" in body_of(source, "step_bwd")


# ------------------------------------------------------------------ fori_loop, while_loop


def test_fori_loop_with_known_bounds():
    def program(x):
        return lax.fori_loop(2, 7, lambda i, y: y * 0.5 + i, x)

    source = written(program, B)
    assert "lax.fori_loop(2, 7, " in source and "scan" not in source


def test_fori_loop_with_a_bound_that_is_computed():
    def program(x, count):
        def body(i, state):
            y, z = state
            return y + x[i % 3], z * 2.0

        return lax.fori_loop(0, count, body, (x, x))

    source = written(program, B, jnp.int32(4), gradient=False)
    assert "lax.fori_loop(0, count, body, (x, x))" in source
    assert "def body(i, state):" in source and "y, z = state" in source


def test_a_counter_that_is_needed_afterwards_is_no_fori_loop():
    def program(x):
        (i, y), _ = lax.scan(lambda c, _: ((c[0] + 1, c[1] * 0.5), None), (0, x), None, length=3)
        return i, y

    source = written(program, B)
    assert "fori_loop" not in source


def test_a_counter_that_the_body_uses_one_later():
    def program(x):
        def step(carry, _):
            i, y = carry
            i = i + 1
            return (i, y * i), None

        (_, y), _ = lax.scan(step, (0, x), None, length=3)
        return y

    assert "fori_loop" not in written(program, B)


def test_while_loop_with_named_state():
    def newton(target):
        def unfinished(state):
            guess, steps = state
            return (jnp.abs(guess * guess - target) > 1e-3) & (steps < 20)

        def improve(state):
            guess, steps = state
            return 0.5 * (guess + target / guess), steps + 1

        return lax.while_loop(unfinished, improve, (target, 0))

    source = written(newton, jnp.float32(7.0), gradient=False)
    assert "def unfinished(state):" in source and "def improve(state):" in source
    assert source.count("guess, steps = state") == 2
    assert "lax.while_loop(unfinished, improve, (target, 0))" in source


def test_while_loop_of_one_value_takes_lambdas():
    def program(x):
        return lax.while_loop(lambda y: y < 100.0, lambda y: y * 3.0, x)

    source = written(program, jnp.float32(0.5), gradient=False)
    assert "lax.while_loop(lambda y: y < 100.0, lambda y: y * 3.0, x)" in source


# ------------------------------------------------------------------ branches


def test_cond_with_lambdas_over_what_is_around():
    def program(x, limit):
        return lax.cond(x.sum() > limit, lambda: x * 2.0, lambda: x - limit)

    source = written(program, B, jnp.float32(0.1))
    assert "lax.cond(x.sum() > limit, lambda: x * 2.0, lambda: x - limit)" in source


def test_cond_with_the_functions_and_operands_of_the_author():
    def program(x, y):
        def grow(value):
            bigger = value * 2.0
            return bigger + jnp.sin(bigger)

        def shrink(value):
            smaller = value * 0.5
            return smaller - jnp.cos(smaller)

        return lax.cond(x[0] > 0, grow, shrink, y)

    source = written(program, B, B)
    assert "def grow(" in source and "def shrink(" in source
    assert re.search(r"lax\.cond\(x\[0\] > 0.*, grow, shrink", source)


def test_switch_over_named_branches():
    def program(index, x):
        def double():
            return x * 2.0

        def negate():
            return -x

        def keep():
            return x

        return lax.switch(index, [double, negate, keep])

    source = written(program, jnp.int32(1), B)
    assert "lax.switch(index, [double, negate, keep])" in source


def test_branches_with_several_results_and_numbers():
    def program(flag, x):
        return lax.cond(flag, lambda: (x, 1.0), lambda: (x * 2.0, 0.0))

    written(program, jnp.asarray(True), B)


def test_branches_that_get_a_number_or_one_value_twice():
    def program(x):
        return lax.cond(x[0] > 0, lambda a, b, c: a * b + c, lambda a, b, c: a - c, x, x, 2.0)

    written(program, B)


def test_branches_that_give_back_their_operand():
    def program(x, y):
        return lax.cond(x[0] > 0, lambda: (x, y), lambda: (y, y))

    written(program, B, B * 2.0)


def test_cond_inside_a_scan_inside_a_while():
    def program(x, y):
        def unfinished(state):
            return state[1] < 3

        def work(state):
            total, count = state

            def step(total, row):
                total = lax.cond(row[0] > 0, lambda: total + row, lambda: total - y)
                return total, None

            return lax.scan(step, total, x)[0], count + 1

        return lax.while_loop(unfinished, work, (y, 0))[0]

    written(program, X, B, gradient=False)


# ------------------------------------------------------------------ solvers


def richardson(matvec, b):
    return lax.fori_loop(0, 60, lambda _, x: x + 0.3 * (b - matvec(x)), b)


def test_custom_linear_solve_with_its_functions_beside_it():
    def program(matrix, b):
        def times(x):
            return matrix @ x + 2.0 * x

        return lax.custom_linear_solve(times, b, richardson, richardson, symmetric=True)

    source = written(program, W @ W.T, B)
    assert "def times(x):" in source and "symmetric=True" in source
    call = r"lax\.custom_linear_solve\(\s*times, b, richardson, richardson, symmetric=True\s*\)"
    assert re.search(call, source)
    assert source.count("def richardson") == 1 and "linear_solve_p" not in source


def test_custom_linear_solve_with_its_own_transpose():
    def program(matrix, b):
        return lax.custom_linear_solve(
            lambda x: matrix @ x,
            b,
            lambda _, y: jnp.linalg.solve(matrix, y),
            lambda _, y: jnp.linalg.solve(matrix.T, y),
        )

    source = written(program, W @ W.T + jnp.eye(3) * 3.0, B)
    assert "symmetric" not in source


# ------------------------------------------------------------------ functions


@jax.custom_vjp
def clipped(x, limit):
    return x * 1.5


def _clipped_fwd(x, limit):
    return x * 1.5, (limit, jnp.sin(x))


def _clipped_bwd(saved, g):
    limit, sine = saved
    return jnp.clip(g, -limit, limit) * sine, None


clipped.defvjp(_clipped_fwd, _clipped_bwd)


def test_custom_vjp_with_the_authors_parameters():
    source = written(lambda x, limit: clipped(x, limit) + x, B, jnp.float32(0.5))
    assert "def clipped(x, limit):" in source
    assert "def clipped_fwd(x, limit):" in source
    assert "limit" in words(body_of(source, "clipped_bwd"))


@jax.custom_jvp
def softened(value, scale):
    return jnp.tanh(value * scale)


@softened.defjvp
def _softened_jvp(primals, tangents):
    value, scale = primals
    value_dot, scale_dot = tangents
    out = softened(value, scale)
    return out, value_dot * scale * 0.5 + scale_dot


def test_custom_jvp_with_tangents_named_after_primals():
    source = written(lambda x, s: softened(x, s) * 2.0, B, jnp.float32(0.5))
    assert "def softened(value, scale):" in source
    rule = body_of(source, "softened_jvp")
    assert {"value", "scale", "value_dot", "scale_dot"} <= words(rule)


def test_checkpoint_is_a_decorator():
    @jax.checkpoint
    def block(x, weight):
        return jnp.tanh(x @ weight) + x

    def program(x, weight):
        return block(block(x, weight), weight)

    source = written(program, X, W)
    assert "@jax.checkpoint\ndef block(x, weight):" in source
    assert source.count("def block") == 1


def test_gradient_through_checkpoint_writes_no_types():
    @jax.checkpoint
    def block(x, weight):
        return jnp.tanh(x @ weight) + x

    source = written(jax.grad(lambda w, x: block(x, w).sum()), W, X, gradient=False)
    assert "ShapeDtypeStruct" not in source


def test_jitted_functions_keep_their_name_and_parameters():
    @jax.jit
    def attention(query, keys):
        scores = query @ keys.T
        return jax.nn.softmax(scores) @ keys

    source = written(lambda q, k: attention(q, k) + attention(k, q), X, X * 2.0)
    assert "@jax.jit\ndef attention(query, keys):" in source
    assert source.count("@jax.jit") == 1


def test_the_exact_style_is_not_touched():
    d = untrace.decompile(rnn, style="exact")(W, B, X)
    assert "def step(carry, x):" in d.source
    assert d.proof.level == "jaxpr"


@pytest.mark.parametrize("transform", [jax.grad, jax.hessian], ids=["grad", "hessian"])
def test_derivatives_of_loops_need_no_bind(transform):
    def loss(weight):
        return rnn(weight, B, X)[1].sum()

    source = written(transform(loss), W, gradient=False)
    assert "scan_p" not in source and "_jaxpr" not in source


def test_a_batched_loop():
    def program(weight, xs):
        return jax.vmap(lambda x: rnn(weight, B, x)[1])(xs)

    source = written(program, W, jnp.stack([X, X * 0.5]))
    assert "def step(hidden, token):" in source


def test_what_becomes_a_gradient_begins_as_zeros_like_its_primal():
    def loss(w, x):
        return -jnp.mean(jax.lax.scan(lambda h, x: (jnp.tanh(h @ w + x), None), jnp.zeros(3), x)[0])

    w, x = jnp.ones((3, 3)), jnp.ones((5, 3))
    found = untrace.decompile(jax.grad(loss))(w, x)
    assert "jnp.zeros_like(w)" in found.source and "lax.neg" not in found.source
    np.testing.assert_array_equal(found(w, x), jax.jit(jax.grad(loss))(w, x))


def test_products_of_vectors_in_a_backward_loop_are_outer_products():
    def loss(w, xs):
        return jax.lax.scan(lambda h, x: (jnp.tanh(h @ w + x), None), jnp.ones(3), xs)[0].sum()

    text = untrace.decompile(jax.grad(loss))(0.1 * jnp.ones((3, 3)), jnp.ones((5, 3))).source
    assert "jnp.outer(" in text and 'einsum("i,j->ij"' not in text, text


def test_a_loop_that_begins_at_a_number_is_the_authors():
    """The number is of a weak type, which the first addition makes strong: nothing that the text need say."""

    def running(xs):
        return jax.lax.scan(lambda total, x: (total + x, total * 2.0), 0.0, xs)

    found = untrace.decompile(running)(jnp.ones(5))
    assert found.proof.level == "jaxpr" and ", 0.0, xs)" in found.source, found.source
