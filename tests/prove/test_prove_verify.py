"""`verify` says whether an edited function is still the same, and where it is not."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import untrace
from untrace._errors import CaptureError
from untrace.prove.verify import verify

X = jnp.linspace(0.5, 2.0, 6).reshape(2, 3)


def original(x, y):
    return {"sum": jnp.sin(x).sum(), "quotient": x / y}


def test_the_same_program_in_other_words():
    def edited(a, b):
        quotient = a / b
        unused = jnp.cos(a)  # noqa: F841
        return dict(quotient=quotient, sum=jnp.sum(jnp.sin(a)))

    result = verify(edited, original)(X, X + 1)
    assert result and result.same
    assert result.proof.level == "jaxpr"
    assert str(result) == f"same: {result.proof}"


def test_the_same_compiled_program():
    result = verify(lambda x: jnp.negative(jnp.negative(x)) * 2, lambda x: x * 2)(X)
    assert result and result.proof.level == "hlo"


def test_the_same_bits():
    result = verify(lambda x: x + x, lambda x: x * 2)(X)
    assert result and result.proof.level in ("hlo", "bits")
    result = verify(lambda x: jnp.minimum(x, x + 0), lambda x: x + 0)(X)
    assert result and result.proof.at_least("bits")


def test_the_sign_of_zero_counts():
    result = verify(lambda x: jnp.where(x > 0, x, -x), jnp.abs)(X)
    assert not result and result.proof.level == "close"
    assert result.differences[0].max_ulp == 0


def test_a_close_function():
    def edited(x, y):
        quotient = x / y
        ordinary = (jnp.abs(quotient) > 1e-3) & (jnp.abs(quotient) < 1e3)
        nearly = jnp.where(ordinary, jnp.nextafter(quotient, jnp.float32(0)), quotient)
        return {"sum": jnp.sin(x).sum(), "quotient": nearly}

    result = verify(edited, original)(X, X + 1)
    assert not result and result.proof.level == "close"
    (difference,) = result.differences
    assert difference.path == "output['quotient']"
    assert difference.max_ulp == 1 and difference.not_finite is None
    assert str(result).startswith("different: checked: close to the original (within 1 ULP on 64")


def test_where_one_is_finite_and_the_other_is_not():
    result = verify(lambda x: jnp.log(jnp.maximum(x, 1e-9)), jnp.log)(X)
    assert not result
    (difference,) = result.differences
    assert difference.path == "output"
    assert difference.not_finite is not None
    text = str(result)
    assert (
        text.startswith("different: ")
        and "output: -20.7232666015625 where the original has -inf, first at index" in text
    )


def test_types_and_structures():
    result = verify(lambda x: x.astype(jnp.float16), lambda x: x)(X)
    assert not result and "float32 against float16" in str(result)
    result = verify(lambda x: (x,), lambda x: [x])(X)
    assert not result and str(result).startswith("not the same: ")
    result = verify(lambda x: jnp.float32(1), lambda x: 1.0)(X)
    assert not result and "weak type" in str(result)


def test_static_arguments():
    def f(n, x, *, mode):
        assert isinstance(n, int) and mode == "a"
        return x**n

    call = verify(lambda n, x, mode: x**n, f, static_argnums=0, static_argnames="mode")
    assert call(3, X, mode="a")
    assert call(3, jax.ShapeDtypeStruct((2,), jnp.float32), mode="a").proof.level == "jaxpr"
    last = verify(lambda x, n: x**n, lambda x, n: x**n, static_argnums=(-1,))
    assert last(X, 3)


def test_pytrees_keyword_arguments_and_keys():
    def f(params, *, key):
        w, b = params["layers"]
        return w @ w.T + b, jax.random.normal(key, (2,))

    args = {"layers": (X, 1.0)}
    result = verify(lambda params, key: f(params, key=key), f)(args, key=jax.random.key(0))
    assert result.proof.level == "jaxpr"
    other = verify(lambda params, key: f(params, key=jax.random.fold_in(key, 1)), f)
    assert not other(args, key=jax.random.key(0))


def test_what_cannot_be_traced():
    def wrong(x):
        return x if x.sum() > 0 else -x

    with pytest.raises(CaptureError, match="the edited function cannot be traced"):
        verify(wrong, jnp.abs)(X)
    with pytest.raises(CaptureError, match="the original function cannot be traced"):
        verify(jnp.abs, wrong)(X)


def test_samples_and_seed():
    def f(x):
        return x

    def g(x):
        return jnp.where(x == 123.0, x + 1, x)

    assert verify(g, f, samples=4)(X).proof.level == "bits"
    # Concrete arguments are the first sample.
    result = verify(g, f, samples=4)(X.at[0, 0].set(123.0))
    assert not result and result.differences[0].worst_sample == 0


def test_custom_rules_count():
    def make(factor):
        f = jax.custom_jvp(lambda x: jnp.sin(x))
        f.defjvp(lambda p, t: (jnp.sin(p[0]), t[0] * factor))
        return f

    result = verify(make(3.0), make(2.0))(1.0)
    assert not result or result.proof.level != "jaxpr"


def test_partial_and_numpy_arguments():
    ones = np.ones((2, 3), np.float32)
    f = functools.partial(original, y=ones)
    assert verify(f, lambda x: original(x, ones.copy()))(ones)


@pytest.mark.parametrize("target", ["numpy", "torch"])
def test_a_text_of_another_target_is_said_to_be_one(target):
    if target == "torch":
        pytest.importorskip("torch")
    fn, x = lambda x: jnp.mean(x * 2.0), jnp.ones((2, 3))
    text = untrace.decompile(fn, target=target)(x)
    with pytest.raises(untrace.CaptureError, match="the edited function computes by another library than JAX"):
        untrace.verify(getattr(text.module, text.name), fn)(x)
