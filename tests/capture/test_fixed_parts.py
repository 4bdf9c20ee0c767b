"""Arguments that hold more than arrays: functions, words and numbers that Python decides on."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from roundtrip import saved

import untrace

X = jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    weight: Any
    activation: Any
    rate: Any = 0.5
    is_trained: Any = False


def applied(layer: Layer, x: Any) -> Any:
    return layer.activation(x @ layer.weight)


def trained(layer: Layer, x: Any) -> Any:
    grads = jax.grad(lambda w: jnp.sum(layer.activation(x @ w) ** 2))(layer.weight)
    return {"loss": jnp.sum(grads), "layers": [dataclasses.replace(layer, weight=layer.weight - 0.5 * grads)]}


def decided(layer: Layer, x: Any) -> Any:
    y = applied(layer, x)
    return y if layer.is_trained else y * (1.0 - layer.rate)


def layer_of(activation: Any, **fields: Any) -> Layer:
    return Layer(jnp.arange(6.0).reshape(3, 2) / 6, activation, **fields)


def written(fn: Any, folder: Path, *args: Any) -> tuple[Any, str]:
    """(the written function, its text), which gives what the original does, eagerly."""
    function, source = saved(untrace.decompile(fn)(*args), folder)
    expected, found = fn(*args), function(*args)
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        if hasattr(one, "dtype"):
            np.testing.assert_allclose(one, other, rtol=1e-6)
        else:
            assert one is other or one == other
    return function, source


def test_a_function_in_a_tree_is_what_it_was_or_the_text_refuses(tmp_path: Path) -> None:
    function, source = written(applied, tmp_path, layer_of(jax.nn.silu), X)
    assert "jax.nn.silu(x @ " in source, source
    with pytest.raises(TypeError, match="this was written for .*silu.* not for .*tanh"):
        function(layer_of(jnp.tanh), X)
    np.testing.assert_allclose(
        function(layer_of(None), X), applied(layer_of(jax.nn.silu), X), rtol=1e-6
    )  # taken out already


def test_functions_without_names_are_told_apart_by_what_they_do(tmp_path: Path) -> None:
    def times(factor: float) -> Any:
        return lambda x: x * factor

    function, _ = written(applied, tmp_path, layer_of(times(2.0)), X)
    np.testing.assert_array_equal(function(layer_of(times(2.0)), X), applied(layer_of(times(2.0)), X))
    for other in (times(3.0), lambda x: x * 2.0 + 1.0):
        with pytest.raises(TypeError, match="this was written for"):
            function(layer_of(other), X)


class Scale:
    def __init__(self, factor: float):
        self.factor = factor

    def __call__(self, x: Any) -> Any:
        return x * self.factor

    def halved(self, x: Any) -> Any:
        return x * self.factor / 2


@pytest.mark.parametrize("activation", [Scale, lambda f: Scale(f).halved, lambda f: functools.partial(jnp.multiply, f)])
def test_objects_and_methods_are_told_apart_by_what_they_hold(activation: Any, tmp_path: Path) -> None:
    function, _ = written(applied, tmp_path, layer_of(activation(2.0)), X)
    np.testing.assert_array_equal(function(layer_of(activation(2.0)), X), applied(layer_of(activation(2.0)), X))
    with pytest.raises(TypeError, match="this was written for"):
        function(layer_of(activation(3.0)), X)


def test_arguments_by_name(tmp_path: Path) -> None:
    function, _ = written(trained, tmp_path, layer_of(jax.nn.silu), X)
    assert function(x=X, layer=layer_of(jax.nn.silu))["layers"][0].activation is jax.nn.silu


def test_a_result_that_is_the_argument_with_other_arrays_has_them_again(tmp_path: Path) -> None:
    function, _ = written(trained, tmp_path, layer_of(jax.nn.silu), X)
    assert function(layer_of(jax.nn.silu), X)["layers"][0].activation is jax.nn.silu


def test_numbers_of_a_tree_are_fixed_where_python_decides_on_one(tmp_path: Path) -> None:
    function, _ = written(decided, tmp_path, layer_of(jax.nn.silu, rate=0.25), X)
    with pytest.raises(TypeError, match="not for .*True"):
        function(layer_of(jax.nn.silu, rate=0.25, is_trained=True), X)
    with pytest.raises(TypeError, match=r"not for .*0\.75"):
        function(layer_of(jax.nn.silu, rate=0.75), X)


def test_a_dict_of_settings(tmp_path: Path) -> None:
    def stacked(x: Any, config: dict[str, Any]) -> Any:
        for _ in range(config["layers"]):
            x = {"tanh": jnp.tanh, "sin": jnp.sin}[config["activation"]](x)
        return x

    function, _ = written(stacked, tmp_path, X, {"layers": 2, "activation": "sin"})
    with pytest.raises(TypeError, match="not for .*tanh"):
        function(X, {"layers": 2, "activation": "tanh"})
    with pytest.raises(TypeError, match="not for .*3"):
        function(X, {"layers": 3, "activation": "sin"})


def test_other_rows_follow_all_the_same(tmp_path: Path) -> None:
    function, _ = written(applied, tmp_path, layer_of(jax.nn.silu), X)
    more = jnp.linspace(-2.0, 2.0, 15).reshape(5, 3)
    np.testing.assert_allclose(function(layer_of(jax.nn.silu), more), applied(layer_of(jax.nn.silu), more), rtol=1e-6)


def test_further_arguments_to_hold_for() -> None:
    layer, more = layer_of(jax.nn.silu), jnp.ones((4, 3))
    d = untrace.decompile(applied, also=[(layer, more)])(layer, X)
    np.testing.assert_allclose(d(layer, more), applied(layer, more), rtol=1e-6)


def test_a_function_in_a_result_that_no_argument_has_is_refused() -> None:
    with pytest.raises(untrace.CaptureError, match="none of its arguments"):
        untrace.decompile(lambda layer, x: layer_of(jnp.tanh))(layer_of(jax.nn.silu), X)


def test_an_equinox_step(tmp_path: Path) -> None:
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.Sequential(
        [eqx.nn.MLP(3, 4, 4, 1, key=jax.random.key(0)), eqx.nn.Dropout(0.5, inference=True), eqx.nn.Lambda(jnp.tanh)]
    )

    def loss(model: Any, x: Any) -> Any:
        return jnp.mean(jax.vmap(model)(x) ** 2)

    @eqx.filter_jit
    def step(model: Any, x: Any) -> Any:
        value, grads = eqx.filter_value_and_grad(loss)(model, x)
        return value, grads, eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads))

    written(step, tmp_path, model, X)
