"""Functions with their own derivative rules keep them, however they are reached."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import untrace
from untrace import jax_compat
from untrace.jaxprs.expand.expand import Expander

X = np.array([1.0, 2.0, 4.0], np.float32)


@jax.custom_jvp
def tripled(x: Any) -> Any:
    return x * 3


@tripled.defjvp
def _tripled_jvp(primals: Any, tangents: Any) -> Any:
    return tripled(*primals), tangents[0] * 30


shared = jax.jit(lambda x: tripled(x) + 1)


@jax.custom_jvp
def outer(x: Any) -> Any:
    return jnp.sin(x)


@outer.defjvp
def _outer_jvp(primals: Any, tangents: Any) -> Any:
    return outer(*primals), middle(*primals) * tangents[0]


@jax.custom_jvp
def middle(x: Any) -> Any:
    return jnp.cos(x)


@middle.defjvp
def _middle_jvp(primals: Any, tangents: Any) -> Any:
    return middle(*primals), shared(primals[0]) * tangents[0]


def test_a_function_met_deep_in_rules_first_has_its_own_rule() -> None:
    """`shared` stands in a rule of a rule, where rules end, and later in the program itself."""
    d = untrace.decompile(lambda x: outer(x) + shared(x))(1.5)
    assert d.proof.level == "jaxpr"
    assert float(jax.grad(d)(1.5)) == float(jax.grad(lambda x: outer(x) + shared(x))(1.5))


def test_cotangents_of_integers_that_were_batched() -> None:
    """A mapped rule hands out arrays of float0, with which no public function can compute."""

    @jax.custom_vjp
    def pick(x: Any, i: Any) -> Any:
        return x[i]

    def fwd(x: Any, i: Any) -> Any:
        return pick(x, i), (x, i)

    def bwd(residuals: Any, ct: Any) -> Any:
        x, i = residuals
        _, back = jax.vjp(jax.vmap(lambda x, i: x * i, in_axes=(0, None)), x, i)
        return back(jnp.broadcast_to(ct, x.shape))

    pick.defvjp(fwd, bwd)
    d = untrace.decompile(pick)(X, 1)
    assert d.proof.level == "jaxpr"
    np.testing.assert_array_equal(jax.grad(d)(X, 1), jax.grad(pick)(X, 1))


def test_tangents_of_integers_that_were_given() -> None:
    @jax.custom_jvp
    def both(x: Any, i: Any) -> Any:
        return x * 2, i + 1

    @both.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        zeros = np.zeros(np.shape(primals[1]), jax.dtypes.float0)
        return both(*primals), (tangents[0] * 5, zeros)

    d = untrace.decompile(both)(X, np.int32(1))
    assert d.proof.level == "jaxpr"
    ours, theirs = (jax.jvp(lambda x, f=f: f(x, np.int32(1))[0], (X,), (X,)) for f in (d, both))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_dead_tangents_of_booleans_inside_a_rule() -> None:
    """A `jvp` in the function that a rule differentiates leaves broadcasts of float0 that nobody reads."""

    def plain(x: Any) -> Any:
        jax.jvp(lambda y: (y, jnp.zeros((1, 4), bool)), (x,), (x,))
        return x

    f = jax.custom_jvp(plain)
    f.defjvp(lambda xs, ts: (plain(*xs), ts[0] * 5))
    d = untrace.decompile(f, style="exact")(X)
    assert d.proof.level == "jaxpr"
    np.testing.assert_array_equal(jax.jvp(d, (X,), (X,))[1], X * 5)


def refusing() -> Any:
    """A rule with symbolic zeros that refuses to be differentiated by its second argument."""

    @jax.custom_vjp
    def scaled(x: Any, s: Any) -> Any:
        return x * s

    def fwd(x: Any, s: Any) -> Any:
        assert not s.perturbed
        return scaled(x.value, s.value), (s.value, x.perturbed)

    def bwd(residuals: Any, ct: Any) -> Any:
        s, perturbed = residuals
        return (ct * s * 7 if perturbed else None), None

    scaled.defvjp(fwd, bwd, symbolic_zeros=True)
    return scaled


def test_a_rule_that_refuses_an_argument_keeps_the_rest() -> None:
    function = refusing()
    d = untrace.decompile(function)(2.0, 3.0)
    assert d.proof.level == "jaxpr", d.proof
    assert not any("left out" in note for note in d.notes)
    assert float(jax.grad(d)(2.0, 3.0)) == float(jax.grad(function)(2.0, 3.0)) == 21
    with pytest.raises(ValueError, match="cannot be differentiated"):
        jax.grad(d, argnums=1)(2.0, 3.0)


def test_the_same_refusing_rule_twice_is_traced_once() -> None:
    """A refused attempt resets what the rule left behind in JAX; it must not be asked for again."""
    function = refusing()
    closed = jax.make_jaxpr(function)(2.0, 3.0)
    from untrace.jaxprs.expand.expand import Expander

    expander = Expander()
    (eqn,) = jax_compat.open_jaxpr(closed)[0].eqns
    assert expander.vjp_of(eqn) is expander.vjp_of(eqn)


def test_written_jaxprs_follow_the_caches() -> None:
    """A jaxpr that outlives `jax.clear_caches()` has other inner functions than those traced anew."""

    def function(x: Any) -> Any:
        solve = lambda matvec, b: jnp.where(b > 1, b / 2, b * 0.5)  # noqa: E731
        solved = jax.lax.custom_linear_solve(lambda v: v * 2, x, solve, solve)
        return jnp.where(x > 1, solved, x)

    d = untrace.decompile(function)(1.5)
    assert "_jaxpr(" in d.source
    jax.jit(d).lower(1.5)
    jax.clear_caches()
    texts = [jax.jit(f).lower(1.5).as_text().count("func.func") for f in (d, function)]
    assert texts[0] == texts[1]


@jax.custom_vjp
def frugal(x: Any, y: Any) -> Any:
    return x * y


def _frugal_fwd(x: Any, y: Any) -> Any:
    """With symbolic zeros a rule is told which operands are differentiated, and may do less for the others."""
    return x.value * y.value, (x.value, y.value if y.perturbed else None)


def _frugal_bwd(residuals: Any, cotangent: Any) -> Any:
    x, y = residuals
    return (100 * cotangent, None) if y is None else (y * cotangent, x * cotangent)


frugal.defvjp(_frugal_fwd, _frugal_bwd, symbolic_zeros=True)


@pytest.mark.parametrize("style", ["exact", "idiomatic"])
def test_a_rule_is_the_one_for_the_operands_that_the_program_differentiates(style: str) -> None:
    def function(x: Any) -> Any:
        one = jax.jit(lambda x: frugal(x, 3.0 + jnp.floor(jax.lax.stop_gradient(x))))(x)
        return one + frugal(x, x)

    d = untrace.decompile(function, style=style)(1.5)
    assert d.proof.at_least("hlo")
    assert float(jax.grad(function)(1.5)) == 103.0
    assert float(jax.grad(d)(1.5)) == 103.0
    assert float(jax.jit(jax.grad(d))(1.5)) == 103.0


@jax.custom_jvp
def held(x: Any, time: Any) -> Any:
    return x * time


@functools.partial(held.defjvp, symbolic_zeros=True)
def held_jvp(primals: Any, tangents: Any) -> Any:
    (x, time), (x_dot, time_dot) = primals, tangents
    if type(time_dot) is not jax.custom_derivatives.SymbolicZero:
        raise RuntimeError("the time cannot be differentiated")
    return held(x, time), 7.0 * x_dot


@pytest.mark.parametrize("style", ["exact", "idiomatic"])
def test_a_forward_rule_that_refuses_some_tangents_is_written_for_the_others(style: str) -> None:
    def function(x: Any, time: Any) -> Any:
        return jax.lax.fori_loop(0, 2, lambda i, x: held(x, 1.0 + i * 0.5) + jax.jit(held)(x, time), x)

    d = untrace.decompile(function, style=style)(1.5, 2.0)
    assert d.proof.at_least("hlo") and "_no_rule" not in d.source
    for transform in (jax.jacfwd, lambda f: jax.jit(jax.jacfwd(f))):
        assert float(transform(d)(1.5, 2.0)) == float(transform(function)(1.5, 2.0))
    with pytest.raises(ValueError, match="cannot be differentiated"):
        jax.jacfwd(d, argnums=1)(1.5, 2.0)


def test_calls_that_are_differentiated_by_other_operands_have_other_rules() -> None:
    @jax.custom_jvp
    def once(x: Any, y: Any) -> Any:
        return x * y

    @functools.partial(once.defjvp, symbolic_zeros=True)
    def once_jvp(primals: Any, tangents: Any) -> Any:
        zeros = [type(t) is jax.custom_derivatives.SymbolicZero for t in tangents]
        if not any(zeros):
            raise RuntimeError("by one of them alone")
        dot = 5.0 * tangents[0] if zeros[1] else 3.0 * tangents[1]
        return once(*primals), dot

    def function(x: Any) -> Any:
        return once(x, 2.0) + once(4.0, x)

    d = untrace.decompile(function)(1.5)
    assert float(jax.grad(function)(1.5)) == float(jax.grad(d)(1.5)) == 8.0


def test_the_cotangent_has_the_name_that_the_author_gave_it():
    @jax.custom_vjp
    def clipped(x, limit):
        return x * 1.5

    def clipped_bwd(limit, gradient):
        return jnp.clip(gradient, -limit, limit), None

    clipped.defvjp(lambda x, limit: (x * 1.5, limit), clipped_bwd)
    text = untrace.decompile(lambda x: clipped(x, jnp.float32(0.5)) + x)(jnp.ones(3)).source
    assert "def clipped_bwd(limit, gradient):" in text
    assert "jnp.clip(gradient, -limit, limit)" in text


TABLE = np.array([3.0, 5.0, 7.0], np.float32)


def scaled(c: Any) -> Any:
    """`sin(x) * c`, whose rule calls the function itself and reads what that closes over."""

    @jax.custom_jvp
    def f(x: Any) -> Any:
        return jnp.sin(x) * c

    @f.defjvp
    def f_jvp(primals: Any, tangents: Any) -> Any:
        return f(*primals), f(*primals) * tangents[0] * (c + 2)

    return f


def scaled_backwards(c: Any) -> Any:
    """The same with a rule for the reverse mode; both parts of that read `c`."""

    @jax.custom_vjp
    def f(x: Any) -> Any:
        return jnp.sin(x) * c

    f.defvjp(lambda x: (f(x), x * c), lambda saved, g: (g * saved * (c + 2),))
    return f


def backwards_of_an_argument(x: Any, y: Any) -> Any:
    f = scaled_backwards(y)
    return f(x) + f(x + 1)


def backwards_in_a_loop(x: Any, y: Any) -> Any:
    z = jnp.cos(y)
    return jax.lax.scan(lambda c, _: (scaled_backwards(z)(c), None), x, None, length=2)[0]


def backwards_of_a_constant_in_a_loop(x: Any, y: Any) -> Any:
    return jax.lax.scan(lambda c, _: (scaled_backwards(TABLE)(c) * y, None), x, None, length=2)[0]


def of_a_constant(x: Any, y: Any) -> Any:
    return scaled(TABLE)(x) * y


def of_an_argument(x: Any, y: Any) -> Any:
    return scaled(y)(x)


def of_an_argument_in_a_loop(x: Any, y: Any) -> Any:
    return jax.lax.scan(lambda c, _: (scaled(y)(c), None), x, None, length=2)[0]


@pytest.mark.parametrize("style", ["exact", "idiomatic"])
@pytest.mark.parametrize(
    "function",
    [
        of_a_constant,
        of_an_argument,
        of_an_argument_in_a_loop,
        backwards_of_an_argument,
        backwards_in_a_loop,
        backwards_of_a_constant_in_a_loop,
    ],
)
def test_a_rule_calls_its_own_function_over_what_that_closes_over(function: Any, style: str) -> None:
    """JAX keeps no more of such a value in the rule than a tracer whose trace is over."""
    d = untrace.decompile(function, style=style)(X, X + 1)
    assert d.proof.level == "jaxpr"
    assert d.source.count("@jax.custom_") == 1
    gradients = [jax.grad(lambda x, y, g=g: g(x, y).sum()) for g in (function, d)]
    assert [float(a) for a in gradients[0](X, X + 1)] == [float(a) for a in gradients[1](X, X + 1)]


def test_a_rule_that_reads_what_its_function_does_not_is_left_out() -> None:
    """Nothing in the equation says what such a value is."""

    def function(x: Any, y: Any) -> Any:
        @jax.custom_jvp
        def f(x: Any) -> Any:
            return jnp.sin(x)

        f.defjvps(lambda t, ans, x: t * y)
        return f(x)

    d = untrace.decompile(function, style="exact")(X, X)
    assert any("reads a traced value that the function does not read" in note for note in d.notes)
    assert np.array_equal(d(X, X), function(X, X))


@pytest.mark.parametrize("style", ["exact", "idiomatic"])
@pytest.mark.parametrize("table", [None, TABLE])
def test_a_forward_rule_that_is_not_run_under_remat(table: Any, style: str) -> None:
    """Every call wraps the author's rule anew; it is one rule all the same."""

    @jax.custom_vjp
    def f(x: Any) -> Any:
        return jnp.exp(x) if table is None else jnp.exp(x) * table

    def fwd(x: Any) -> Any:
        y = f(x)
        return y, (x, y)

    f.defvjp(fwd, lambda saved, g: (g * saved[0] * saved[1],), optimize_remat=True)
    d = untrace.decompile(lambda x: f(x) + f(2 * x), style=style)(X)
    assert d.proof.level == "jaxpr"
    assert d.source.count("optimize_remat=True") == 1
    gradients = [jax.grad(lambda x, g=g: g(x).sum()) for g in (d, lambda x: f(x) + f(2 * x))]
    assert np.array_equal(gradients[0](X), gradients[1](X))


@jax.custom_vjp
def halved_until_small(x: Any) -> Any:
    return jax.lax.while_loop(lambda y: y > 0.1, lambda y: 0.5 * y, x)


def _halved_fwd(x: Any) -> Any:
    y = halved_until_small(x)
    return y, (x, y)


halved_until_small.defvjp(_halved_fwd, lambda saved, g: (g * saved[1] / saved[0],))


@pytest.mark.parametrize("style", ["exact", "idiomatic"])
def test_a_mapped_rule_calls_its_own_function(style: str) -> None:
    """Mapped anew at every level it is the same rule; its loop, whose elements stop apart, works in the rule as well."""

    def gradient(x: Any) -> Any:
        return jax.grad(lambda x: jax.vmap(halved_until_small)(x).sum())(x)

    d = untrace.decompile(gradient, style=style)(X)
    assert d.source.count("@jax.custom_vjp") <= 1 and "_no_rule" not in d.source, d.source
    assert not any("another form" in note for note in d.notes)
    second = [jax.grad(lambda x, g=g: g(x).sum())(X) for g in (gradient, d)]
    assert np.array_equal(*second)


@pytest.mark.usefixtures("written_out")
def test_sums_of_cotangents_in_rules_are_plain_sums():
    @jax.custom_vjp
    def f(x):
        return jnp.sin(x) * x

    f.defvjp(lambda x: (f(x), x), lambda x, d: (jax.grad(lambda x: jnp.vdot(d, jnp.sin(x) * x))(x),))
    x = jnp.linspace(-1.0, 1.0, 5)
    found = untrace.decompile(f)(x)
    assert found.proof.level == "hlo" and "add_jaxvals" not in found.source, found.source
    np.testing.assert_array_equal(jax.grad(lambda x: found(x).sum())(x), jax.grad(lambda x: f(x).sum())(x))
    plain = untrace.decompile(f, simplify=False)(x)
    assert plain.proof.level == "jaxpr" and "add_jaxvals" in plain.source, plain.source


def test_a_choice_in_a_rule_of_a_number_that_has_a_type_is_a_call() -> None:
    @jax.custom_jvp
    def product(x, y):
        return jnp.where(y == 0.0, jnp.zeros((), x.dtype), x * y)

    product.defjvp(lambda p, t: (product(*p), t[0] * p[1] + t[1] * p[0]))
    text = untrace.decompile(product)(X, X).source
    assert "return jnp.where(y == 0.0, np.float32(0.0), x * y)" in text, text


def test_the_rule_of_a_public_function_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from untrace.jaxprs.expand.expand import Expander

    traced = []
    rule_of = Expander.jvp_of
    monkeypatch.setattr(Expander, "jvp_of", lambda self, eqn: traced.append(eqn) or rule_of(self, eqn))
    written = untrace.decompile(lambda x: jax.nn.relu(x) * 2.0)(jnp.arange(3.0))
    assert "jax.nn.relu(x)" in written.source and not traced


def test_the_rule_of_a_public_function_is_written_where_its_call_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    from untrace.lift.recognise.engine import Lifter

    monkeypatch.setattr(Lifter, "lift", lambda self, program: program)
    written = untrace.decompile(lambda x: jax.nn.relu(x) * 2.0)(x := jnp.array([-1.0, 0.0, 3.0]))
    assert "jax.nn.relu" not in written.source and "defjvp" in written.source
    assert jax.grad(lambda x: written(x).sum())(x).tolist() == [0.0, 0.0, 2.0]


def test_rules_of_jax_are_not_traced_for_a_text_that_calls_its_functions(monkeypatch):
    """`jax.nn.softplus` calls a function with a rule that no public name leads to."""
    traced = []
    jvp_of = Expander.jvp_of
    monkeypatch.setattr(Expander, "jvp_of", lambda self, eqn: traced.append(eqn) or jvp_of(self, eqn))
    x = jnp.arange(3.0)
    text = untrace.decompile(jax.nn.softplus)(x)
    assert text.proof.level == "jaxpr" and not traced
    assert (jax.grad(lambda x: text(x).sum())(x) == jax.grad(lambda x: jax.nn.softplus(x).sum())(x)).all()


def residual(potentials: Any, cost: Any, weights: Any) -> Any:
    f, g = potentials
    plan = jnp.exp((f[:, None] + g - cost) / 0.25)
    return plan.sum(axis=1) - jnp.exp(weights), plan.sum(axis=0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def potentials(cost: Any, weights: Any, scale: float) -> Any:
    return weights * scale + cost.sum(), cost[0] * 2.0


def _potentials_fwd(cost: Any, weights: Any, scale: float) -> Any:
    found = potentials(cost, weights, scale)
    return found, (found, cost, weights)


def _potentials_bwd(scale: float, saved: Any, cotangents: Any) -> Any:
    found, cost, weights = saved
    _, pullback = jax.vjp(lambda c, w: residual(found, c, w), cost, weights)
    return pullback(cotangents)


potentials.defvjp(_potentials_fwd, _potentials_bwd)


def test_a_derivative_in_the_rule_of_a_function_with_a_fixed_argument_stays_a_call() -> None:
    # Each trace makes rules of its own there, and the forward rule calls the function again.
    def loss(cost: Any) -> Any:
        f, g = potentials(jnp.sin(cost), X, 1.5)
        return f.sum() + (g * 2.0).sum()

    written = untrace.decompile(lambda cost: jax.grad(loss)(cost) * 2.0)(X[:, None] * X)
    assert "jax.vjp(residual" in written.source and "jax.grad(loss)" in written.source, written.source
    assert written.proof.at_least("hlo")


def test_an_array_in_a_mapped_loop_of_a_rule() -> None:
    def distance(params, p):
        return jnp.sqrt(jnp.sum(p[jnp.array([0, 2])] ** 2)) - params["r"] + p[1] * params["h"]

    def march(params, origin, direction):
        def body(carry):
            t, i = carry
            return t + distance(params, origin + t * direction), i + 1

        start = distance(params, origin), 0
        return lax.while_loop(lambda c: (c[1] < 8) & (jnp.abs(c[0]) > 1e-3), body, start)[0]

    depth = jax.custom_vjp(march)

    def backward(saved, cotangent):
        _, pullback = jax.vjp(lambda params, o, d: distance(params, o + saved[3] * d), *saved[:3])
        return pullback(cotangent)

    depth.defvjp(lambda *args: (march(*args), (*args, march(*args))), backward)

    def loss(params, origin, directions):
        return jnp.mean(jax.vmap(lambda d: depth(params, origin, d))(directions))

    args = {"h": jnp.float32(0.1), "r": jnp.float32(0.5)}, jnp.ones(3), jnp.ones((5, 3))
    d = untrace.decompile(lambda *args: jax.value_and_grad(loss)(*args))(*args)
    assert d.proof.level == "jaxpr", d.proof
    for got, want in zip(jax.tree.leaves(d(*args)), jax.tree.leaves(jax.value_and_grad(loss)(*args)), strict=True):
        assert jnp.allclose(got, want, rtol=1e-5)


def test_what_a_rule_maps_and_differentiates_are_calls() -> None:
    def score(theta: Any, x: Any) -> Any:
        return jnp.sum(jnp.tanh(theta * x) ** 2)

    @jax.custom_jvp
    def estimate(theta: Any, xs: Any) -> Any:
        return jax.vmap(score, in_axes=(None, 0))(theta, xs).mean()

    @estimate.defjvp
    def estimate_jvp(primals: Any, tangents: Any) -> Any:
        theta, xs = primals
        scores = jax.vmap(jax.grad(score), in_axes=(None, 0))(theta, xs)
        _, along = jax.jvp(lambda t: score(t, xs[0]), (theta,), (tangents[0],))
        return estimate(theta, xs), jnp.clip(scores, -1.0, 1.0).mean(axis=0) @ tangents[0] + 0.1 * along

    args = jnp.ones(3), jnp.ones((5, 3))
    step = lambda *args: jax.value_and_grad(estimate)(*args)  # noqa: E731
    d = untrace.decompile(step)(*args)
    assert "jax.vmap(jax.grad(score), in_axes=(None, 0))(theta, xs)" in d.source, d.source
    assert "jax.jvp(" in d.source and d.source.count("jnp.tanh") == 1, d.source
    assert "jax.value_and_grad(estimate)(" in d.source and "def custom_jvp" not in d.source, d.source
    assert d.proof.level == "jaxpr", d.proof
    for got, want in zip(d(*args), step(*args), strict=True):
        assert jnp.allclose(got, want, rtol=1e-6)


def test_a_rule_that_is_traced_again_is_remembered_as_it_was() -> None:
    closed = jax.make_jaxpr(outer)(X)
    (eqn,) = closed.jaxpr.eqns
    first, *_ = jax_compat.custom_jvp_rule(eqn)
    again, *_ = jax_compat.custom_jvp_rule(eqn, again=True)
    after, *_ = jax_compat.custom_jvp_rule(eqn)
    assert again.jaxpr is not first.jaxpr and after.jaxpr is first.jaxpr
