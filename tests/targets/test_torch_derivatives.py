"""Derivatives that the author called, in texts for PyTorch: they stay calls where PyTorch's derivative is JAX's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import untrace

torch = pytest.importorskip("torch")

RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def loss_fn(params, x, y):
    h = jnp.tanh(x @ params["w"] + params["b"])
    return jnp.mean((h - y) ** 2)


def train_step(params, x, y, lr):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    return jax.tree.map(lambda p, g: p - lr * g, params, grads), loss


def with_aux(params, x, y):
    def loss(p):
        h = jnp.tanh(x @ p["w"])
        return jnp.mean((h - y) ** 2), h

    (value, h), grads = jax.value_and_grad(loss, has_aux=True)(params)
    return value, h.sum(), grads


def two_arguments(params, x, y):
    return jax.grad(loss_fn, argnums=(0, 1))(params, x, y)


def clipped(params, xs, ys):
    grads = jax.vmap(jax.grad(loss_fn), in_axes=(None, 0, 0))(params, xs, ys)
    norms = jnp.sqrt(jnp.sum(grads["b"] ** 2, axis=-1))
    return grads["b"] * jnp.minimum(1.0, 1.0 / norms)[:, None]


def hvp(params, v, x, y):
    return jax.jvp(jax.grad(lambda p: loss_fn(p, x, y)), (params,), (v,))[1]


def newton(x):
    def f(x):
        return jnp.sum(jnp.cos(x) * x**2)

    return jax.hessian(f)(x) @ jax.grad(f)(x)


def jacobians(x):
    return jax.jacrev(jnp.sin)(x) @ jax.jacfwd(lambda x: x**3)(x)


def pulled(x):
    y, pull = jax.vjp(lambda x: {"a": jnp.sin(x), "b": x * 2.0}, x)
    return pull(y), y["b"]


def descended(params, x, y):
    def step(params, _):
        loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

    return jax.lax.scan(step, params, length=3)


PARAMS = {"w": floats(3, 4), "b": floats(4)}
V = {"w": floats(3, 4), "b": floats(4)}
X, Y = floats(5, 3), floats(5, 4)
KEPT = {
    "train_step": (train_step, (PARAMS, X, Y, np.float32(0.1)), "grads, loss = torch.func.grad_and_value(loss_fn)(params, x, y)"),
    "with_aux": (with_aux, (PARAMS, X, Y), "grads, (value, h) = torch.func.grad_and_value(loss, has_aux=True)(params)"),
    "two_arguments": (two_arguments, (PARAMS, X, Y), "torch.func.grad(loss_fn, argnums=(0, 1))(params, x, y)"),
    "clipped": (clipped, (PARAMS, X, Y), "torch.func.vmap(torch.func.grad(loss_fn), in_dims=(None, 0, 0))("),
    "hvp": (hvp, (PARAMS, V, X, Y), "torch.func.jvp("),
    "newton": (newton, (X[0],), "torch.func.hessian("),
    "jacobians": (jacobians, (X[0],), "torch.func.jacrev(torch.sin)(x) @ torch.func.jacfwd(function)(x)"),
    "pulled": (pulled, (X[0],), "torch.func.vjp("),
    "descended": (descended, (PARAMS, X, Y), "torch.func.grad_and_value(loss_fn)("),
}  # fmt: skip


def assert_same(text: Any, function: Any, args: Any) -> None:
    expected, found = function(*args), text(*args)
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(b.detach().numpy(), a, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", KEPT)
def test_a_derivative_stays_a_call(name: str) -> None:
    function, args, line = KEPT[name]
    text = untrace.decompile(function, target="torch")(*args)
    assert text.proof.at_least("close"), text.proof
    assert line in text.source, text.source
    assert_same(text, function, args)


def test_an_edit_of_the_loss_is_what_is_trained() -> None:
    text = untrace.decompile(train_step, target="torch")(*KEPT["train_step"][1])
    edited: dict[str, Any] = {}
    exec(text.source.replace("(h - y) ** 2", "(h - y) ** 4"), edited)

    def loss(params, x, y):
        return jnp.mean((jnp.tanh(x @ params["w"] + params["b"]) - y) ** 4)

    expected = jax.grad(loss)(PARAMS, X, Y)
    tensors = jax.tree.map(torch.from_numpy, (PARAMS, X, Y))
    params, _ = edited["train_step"](*tensors, 1.0)
    for name in PARAMS:
        np.testing.assert_allclose(PARAMS[name] - params[name].numpy(), expected[name], rtol=1e-3, atol=1e-5)


@jax.custom_vjp
def twice(x):
    return x * x


twice.defvjp(lambda x: (twice(x), x), lambda x, d: (jnp.clip(d * x, -1.0, 1.0),))


@pytest.mark.parametrize(
    "loss",
    [lambda x: jnp.sum(jnp.abs(x)), lambda x: jnp.sum(twice(x)), lambda x: jnp.sum(twice(x) * jnp.sin(x))],
    ids=["abs", "a_rule", "a_rule_of_many"],
)
def test_it_is_written_out_where_pytorch_has_another(loss: Any) -> None:
    def program(x):
        return jax.grad(loss)(x)

    x = np.float32([0.0, -2.0, 3.0, 0.5])
    text = untrace.decompile(program, target="torch")(x)
    assert "torch.func" not in text.source
    assert_same(text, program, (x,))


def test_what_is_stopped_has_no_derivative() -> None:
    def program(x):
        return jax.grad(lambda x: jnp.sum(x * jax.lax.stop_gradient(jnp.sin(x))))(x)

    text = untrace.decompile(program, target="torch")(X[0])
    assert "torch.func.grad" in text.source and ".detach()" in text.source
    assert_same(text, program, (X[0],))


def test_it_is_written_out_where_that_is_asked_for() -> None:
    text = untrace.decompile(train_step, target="torch", derivatives="written")(*KEPT["train_step"][1])
    assert "torch.func" not in text.source
    handed_over = untrace.decompile(jax.grad(loss_fn), target="torch")(PARAMS, X, Y)
    assert "torch.func" not in handed_over.source


TIES = np.float32([0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 6.0, -6.0, 3.0, -3.0])  # where two cases of a function meet
KINKED = {
    "maximum": lambda x: jnp.maximum(x, 0.0), "minimum": lambda x: jnp.minimum(x, 1.0), "clip": lambda x: jnp.clip(x, -1.0, 1.0),
    "clamp": lambda x: jax.lax.clamp(-1.0, x, 1.0), "of_two": lambda x: jnp.maximum(x, jnp.ones_like(x)), "max": jnp.max,
    "cummax": jax.lax.cummax, "prod": jnp.prod, "cumprod": jnp.cumprod, "sort": lambda x: jnp.sort(x) * jnp.arange(10.0),
    "where": lambda x: jnp.where(x > 0, x, 0.0), "segment_max": lambda x: jax.ops.segment_max(x, jnp.arange(10) // 2, 5),
    "windows": lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2,), (1,), "VALID"), "norm": lambda x: jnp.linalg.norm(0 * x),
    "root": jnp.sqrt, "power": lambda x: x**2, "xlogy": lambda x: jax.scipy.special.xlogy(x, x), "remainder": lambda x: x % 2.0,
    "logaddexp": lambda x: jnp.logaddexp(x, x), "sinc": jnp.sinc, "round": jnp.round, "log_sigmoid": jax.nn.log_sigmoid,
} | {
    name: getattr(jax.nn, name)
    for name in "relu relu6 hard_tanh leaky_relu elu selu celu softplus silu gelu hard_sigmoid hard_swish soft_sign".split()
}  # fmt: skip


@pytest.mark.parametrize("name", KINKED)
def test_a_derivative_is_jaxs_where_two_cases_meet(name: str) -> None:
    def program(x):
        return jax.grad(lambda x: jnp.sum(KINKED[name](x)))(x)

    text = untrace.decompile(program, target="torch", sizes="fixed")(TIES)
    expected = np.asarray(program(TIES))
    np.testing.assert_allclose(text(TIES).detach().numpy(), expected, rtol=1e-4, atol=1e-5, err_msg=text.source)
    if name in ("maximum", "clip", "of_two", "relu", "where"):
        assert "torch.func.grad" in text.source


def _derivative_of_text(function, x):
    scope: dict[str, Any] = {}
    exec(untrace.decompile(function)(x).to("torch").source, scope)
    return torch.func.grad(scope[function.__name__])(torch.tensor(np.asarray(x))).numpy()


def test_a_solution_has_its_derivative_by_the_matrix():
    """JAX does not follow the factors, whose derivative it takes by the product."""

    def solved(x):
        return x @ jnp.linalg.solve(jnp.outer(x, x) + 3.0 * jnp.eye(4), x)

    def inverted(x):
        return jnp.sum(jnp.linalg.inv(jnp.outer(x, x) + 3.0 * jnp.eye(4)) ** 2)

    x = floats(4)
    for function in (solved, inverted):
        np.testing.assert_allclose(_derivative_of_text(function, x), jax.grad(function)(x), rtol=1e-3, atol=1e-5)


def test_what_is_stopped_beside_a_solver_stays_stopped():
    def loss(x):
        a = jnp.outer(x, x) + 3.0 * jnp.eye(4)
        return jnp.sum(jax.lax.stop_gradient(a) @ jnp.linalg.solve(a, x))

    x = floats(4)
    np.testing.assert_allclose(_derivative_of_text(loss, x), jax.grad(loss)(x), rtol=1e-3, atol=1e-5)


def test_notes_say_whose_rule_is_not_in_the_text():
    @jax.custom_jvp
    def straight(x):
        return jnp.round(x)

    straight.defjvp(lambda primals, tangents: (straight(*primals), tangents[0]))
    text = untrace.decompile(lambda x: jnp.sum(jax.nn.relu(straight(x))))(floats(3)).to("torch")
    assert any("`straight`" in note and "relu" not in note for note in text.notes)


def test_a_choice_is_no_python_bool():
    def program(x, flag):
        def first(i, x):
            return jnp.where(i == 0, x, 2.0 * x)

        return jax.lax.cond(flag, lambda x: first(jnp.int32(0), x), lambda x: first(jnp.int32(1), x), x)

    x = floats(3)
    text = untrace.decompile(program)(x, True).to("torch")
    np.testing.assert_allclose(text(x, False), program(x, False))


def test_what_pytorch_warns_of_is_not_written():
    import warnings

    def program(x):
        return jax.nn.softmax(x)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = untrace.decompile(program)(floats(2, 3)).to("torch")
        text(floats(2, 3))
    assert "dim=-1" in text.source


def test_a_call_that_pytorch_cannot_go_back_through_is_written_otherwise():
    """`torch.vander` writes over what its own derivative needs."""

    def powers(x):
        return jnp.vander(x, 4)

    text = untrace.decompile(powers, target="torch")(np.float32([0.5, -1.0, 2.0]))
    x = torch.tensor([0.3, 1.5, -0.7], requires_grad=True)
    getattr(text.module, text.name)(x).sum().backward()
    expected = jax.grad(lambda x: powers(x).sum())(np.float32([0.3, 1.5, -0.7]))
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-6)


def test_the_first_of_equal_largest_numbers_in_a_window_has_its_derivative():
    """PyTorch shares it among them: zeros after a relu are many."""

    def loss(w, x):
        pooled = jax.lax.reduce_window(jax.nn.relu(x * w), -jnp.inf, jax.lax.max, (2, 2), (2, 2), "VALID")
        return jnp.sum(pooled**2)

    def step(w, x):
        return w - 0.1 * jax.grad(loss)(w, x)

    w, x = np.ones((2, 4), np.float32), np.float32([[1, 1, 2, 0], [1, 0, 2, 2]])
    text = untrace.decompile(step, target="torch")(w, x)
    np.testing.assert_allclose(text(w, x).numpy(), step(w, x), rtol=1e-6)


def test_a_cotangent_that_is_a_number_beside_one_that_is_an_array():
    def program(x):
        (y, _), back = jax.vjp(lambda x: (jnp.sin(x), x.sum()), x)
        return back((jnp.ones_like(x), 2.0))[0] + y

    x = np.float32([0.1, 0.2, 0.3])
    text = untrace.decompile(program, target="torch")(x)
    assert "torch.func.vjp" in text.source, text.source
    np.testing.assert_allclose(text(x), program(x), rtol=1e-6)
