"""`allow`: rules of functions that only a transformation of the text would use are left out, and it is refused then."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.custom_batching import custom_vmap

import untrace
from untrace import OptionError

NOT_ALLOWED = "written without the rules that jax"


@jax.custom_vjp
def clipped(x, bound):
    return x


def clipped_fwd(x, bound):
    return x, bound


def clipped_bwd(bound, cotangent):
    return jnp.clip(cotangent, -bound, bound), None


clipped.defvjp(clipped_fwd, clipped_bwd)


@jax.custom_jvp
def soft_abs(x):
    return jnp.sqrt(x * x + 1e-3)


@soft_abs.defjvp
def soft_abs_jvp(primals, tangents):
    return soft_abs(*primals), jnp.sign(primals[0]) * tangents[0]


@custom_vmap
def solve(matrix, vector):
    return jnp.linalg.solve(matrix, vector)


@solve.def_vmap
def solve_all(size, in_batched, matrix, vector):
    return jax.vmap(lambda v: jnp.linalg.solve(matrix, v))(vector), True


def model(w, x):
    return jnp.sum(soft_abs(clipped(x @ w, 0.5)))


def solved(w, x):
    return solve(w, x[0]).sum() + model(w, x)


def step(w, x):
    loss, grads = jax.value_and_grad(model)(w, x)
    return w - 0.1 * grads, loss, soft_abs(w).sum()


def looped(w, x):
    return jax.lax.fori_loop(0, 3, lambda i, w: w + model(w, x) * jax.jit(soft_abs)(w), w)


W, X = jnp.eye(3), jnp.arange(12.0).reshape(4, 3)


def written(function, *allow, **options):
    return untrace.decompile(function, allow=allow, **options)(W, X)


@pytest.mark.parametrize("function", [model, looped])
def test_rules_that_nothing_asks_for_are_left_out(function):
    whole, d = written(function, "grad", "vmap"), written(function, "vmap")
    assert "custom_" in whole.source and "custom_" not in d.source.split("\n\n\ndef _")[0]
    assert d.proof.at_least("hlo") and whole.proof.level == "jaxpr"
    assert (np.asarray(d(W, X)) == np.asarray(function(W, X))).all()


@pytest.mark.parametrize("around", [lambda f: f, jax.jit])
def test_what_is_not_allowed_is_refused(around):
    d = written(model, "vmap")
    for transform in (jax.grad, jax.value_and_grad, jax.jacfwd, jax.hessian):
        with pytest.raises(NotImplementedError, match=f"{NOT_ALLOWED}.grad"):
            transform(around(d.module.model))(W, X)
    several = jnp.stack([X, 2 * X])
    assert (jax.vmap(around(d.module.model), (None, 0))(W, several) == jax.vmap(model, (None, 0))(W, several)).all()


@pytest.mark.parametrize("around", [lambda f: f, jax.jit])
def test_mapping_alone_is_refused(around):
    d = written(solved, "grad")
    assert "solve_all" not in d.source and "def clipped_bwd" in d.source
    with pytest.raises(NotImplementedError, match=f"{NOT_ALLOWED}.vmap"):
        jax.vmap(around(d.module.solved), (None, 0))(W, jnp.stack([X, X]))
    # Forward and reverse mode map over tangents, and not over the program.
    plain = jax.grad(lambda w: jnp.linalg.solve(w, X[0]).sum() + model(w, X))(W)
    for grad in (jax.grad(around(d.module.solved)), jax.jit(jax.grad(d.module.solved))):
        np.testing.assert_allclose(grad(W, X), plain, rtol=1e-5)


def test_neither_is_allowed():
    d = written(solved)
    assert "_fwd" not in d.source and "solve_all" not in d.source
    assert "without rules for jax.grad and jax.vmap" in d.source
    with pytest.raises(NotImplementedError, match=NOT_ALLOWED):
        jax.grad(d.module.solved)(W, X)
    with pytest.raises(NotImplementedError, match=f"{NOT_ALLOWED}.vmap"):
        jax.vmap(d.module.solved, (None, 0))(W, jnp.stack([X, X]))


def test_the_derivative_that_the_program_calls_keeps_its_rules():
    d = written(step)
    assert "def clipped_bwd" in d.source and d.source.count("def soft_abs(") == 1
    assert d.proof.level == "jaxpr"
    for ours, theirs in zip(d(W, X), step(W, X), strict=True):
        assert (ours == theirs).all()


def test_a_derivative_that_is_written_out_was_made_by_the_rule():
    d = untrace.decompile(jax.grad(model), allow=())(W, X)
    assert (d(W, X) == jax.grad(model)(W, X)).all()


def test_nothing_is_refused_where_nothing_is_left_out():
    d = untrace.decompile(lambda w, x: jnp.sum(jax.nn.relu(x @ w)), allow=())(W, X)
    assert "_refuses" not in d.source
    assert jax.grad(d)(W, X).shape == W.shape


def test_without_a_guard_the_head_says_it():
    d = written(model, "vmap", guard=False)
    assert "_refuses" not in d.source and "without rules for jax.grad" in d.source
    assert "jax.grad of it is not that of the original" in str(d.notes) + str(d.proof.notes)


def test_the_text_holds_at_other_sizes_and_can_be_edited():
    d = untrace.decompile(model, allow=(), also=[(jnp.ones((5, 2)), jnp.ones((3, 5)))])(W, X)
    assert d(jnp.ones((5, 2)), jnp.ones((3, 5))) == model(jnp.ones((5, 2)), jnp.ones((3, 5)))
    refined = d.refine(lambda text: text.replace("1.0 * ", "") + "\n")
    assert "_refuses" in refined.source


def test_a_text_that_refuses_is_written_again():
    text = written(model).module.model
    again = untrace.decompile(text)(W, X)
    assert again(W, X) == model(W, X)
    with pytest.raises(NotImplementedError):
        jax.grad(again.module.model)(W, X)


def test_of_a_jaxpr():
    d = untrace.from_jaxpr(jax.make_jaxpr(model)(W, X), allow=["vmap"])
    assert "_fwd" not in d.source
    with pytest.raises(NotImplementedError, match=f"{NOT_ALLOWED}.grad"):
        jax.grad(lambda w: d(w, X)[0])(W)


@pytest.mark.parametrize("allow", ["grad", ("jvp",), ("grad", "pmap")])
def test_words_that_are_not_known(allow):
    if allow == "grad":  # a word is no tuple of its letters
        assert "solve_all" not in untrace.decompile(solved, allow=allow)(W, X).source
        return
    with pytest.raises(OptionError, match="is not known"):
        untrace.decompile(model, allow=allow)


def test_an_edited_text_is_compared_without_what_it_refuses():
    text = written(model).module.model
    assert untrace.verify(text, model)(W, X).proof.at_least("hlo")


def test_functions_of_the_host_are_not_called_for_the_proof():
    calls = []

    def on_the_host(x):
        calls.append(x)
        return np.sin(x)

    def function(w, x):
        return jax.pure_callback(on_the_host, jax.ShapeDtypeStruct((), jnp.float32), model(w, x)) + soft_abs(w).sum()

    d = written(function)
    assert "def clipped_bwd" not in d.source and d.proof.level == "hlo" and not calls
    assert d(W, X) == function(W, X)
