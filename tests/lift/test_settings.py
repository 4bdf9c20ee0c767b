"""Numbers that were there before the trace and are no data: of a config, of what a method is of, of a closure, of defaults."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from roundtrip import saved

import untrace

X, Y, W = jnp.linspace(0.1, 1.0, 24).reshape(3, 8), jnp.ones((3, 8)), jnp.eye(8) * 0.5


@dataclasses.dataclass(frozen=True)
class Rates:
    decay: float = 0.125


@dataclasses.dataclass(frozen=True)
class Config:
    dim: int = 8
    heads: int = 4
    eps: float = 1e-3
    rates: Rates = Rates()


def norm(x: Any, cfg: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + cfg.eps)


def split(x: Any, cfg: Any) -> Any:
    return [part.reshape(len(x), cfg.heads, cfg.dim // cfg.heads) for part in (x, jnp.sin(x))]


def loss(w: Any, x: Any, y: Any, cfg: Any) -> Any:
    a, b = split(norm(x @ w, cfg), cfg)
    return jnp.mean(((a + b).reshape(x.shape) - y) ** 2) + cfg.rates.decay * jnp.sum(w * w)


def train_with(cfg: Any) -> Any:
    def train(w: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(w, x, y, cfg)
        return value, w - 0.1 * grads

    return train


def text_of(fn: Any, folder: Path, *args: Any, **options: Any) -> tuple[Any, str]:
    """(the written function, its text), which gives what the original does."""
    function, source = saved(untrace.decompile(fn, **options)(*args), folder)
    for one, other in zip(jax.tree.leaves(jax.jit(fn)(*args)), jax.tree.leaves(jax.jit(function)(*args)), strict=True):
        np.testing.assert_array_equal(one, other)
    return function, source


def run(source: str, name: str) -> Any:
    names: dict[str, Any] = {}
    exec(source, names)
    return names[name]


def test_a_config_that_functions_pass_on(tmp_path: Path) -> None:
    _, source = text_of(train_with(Config()), tmp_path, W, X, Y)
    for line in ("CFG_EPS = 0.001", "CFG_HEADS = 4", "CFG_RATES_DECAY = 0.125"):
        assert f"\n{line}\n" in source, source
    edited = run(source.replace("CFG_EPS = 0.001", "CFG_EPS = 0.25").replace("= 0.125", "= 0.5"), "train")
    expected = train_with(Config(eps=0.25, rates=Rates(0.5)))(W, X, Y)
    for one, other in zip(edited(W, X, Y), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_where_a_number_stands_twice_its_place_tells_which_one_it_is(tmp_path: Path) -> None:
    def halves(x: Any, cfg: Any = Config(dim=16)) -> Any:  # noqa: B008
        return x.reshape(cfg.heads, cfg.dim // cfg.heads)

    _, source = text_of(lambda x: halves(x), tmp_path, jnp.arange(16.0), sizes="fixed")
    assert ".reshape(CFG_HEADS, CFG_DIM // CFG_HEADS)" in source, source


def test_two_configs_of_one_name_have_digits(tmp_path: Path) -> None:
    def both(x: Any) -> Any:
        return norm(x, Config(eps=0.5)) + norm(x, Config(eps=0.25))

    _, source = text_of(both, tmp_path, X)
    assert "CFG" not in source and "0.5" in source and "0.25" in source, source


class Decay(NamedTuple):
    rate: float
    turns: int


def make_update(hyper: Decay, clip: float) -> Any:
    def update(x: Any) -> Any:
        return jax.lax.fori_loop(0, hyper.turns, lambda _, x: x - hyper.rate * jnp.clip(x, -clip, clip), x)

    return update


def test_what_a_function_closes_over(tmp_path: Path) -> None:
    _, source = text_of(make_update(Decay(0.05, 7), 0.5), tmp_path, X)
    for line in ("HYPER_RATE = 0.05", "HYPER_TURNS = 7", "CLIP = 0.5"):
        assert f"\n{line}\n" in source, source
    edited = source.replace("= 0.05", "= 0.1").replace("= 7", "= 3").replace("CLIP = 0.5", "CLIP = 0.75")
    np.testing.assert_allclose(run(edited, "update")(X), make_update(Decay(0.1, 3), 0.75)(X), rtol=1e-6)


class Solver:
    def __init__(self, dt: float, damping: float):
        self.dt, self.damping = dt, damping

    def field(self, x: Any) -> Any:
        return -x - self.damping * x**3

    def step(self, x: Any) -> Any:
        return x + self.dt * self.field(x)


def test_what_a_method_is_of(tmp_path: Path) -> None:
    _, source = text_of(Solver(0.05, 0.3).step, tmp_path, X)
    edited = source.replace("SOLVER_DT = 0.05", "SOLVER_DT = 0.1").replace(
        "SOLVER_DAMPING = 0.3", "SOLVER_DAMPING = 0.7"
    )
    np.testing.assert_allclose(run(edited, "step")(X), Solver(0.1, 0.7).step(X), rtol=1e-6)


def descend(w: Any, x: Any, lr: float = 0.125, turns: int = 3) -> Any:
    def step(w: Any, _: Any) -> Any:
        return w - lr * jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w), None

    return jax.lax.scan(step, w, None, length=turns)[0]


def test_the_entry_s_own_numbers_are_its_parameters(tmp_path: Path) -> None:
    function, source = text_of(descend, tmp_path, W, X)
    assert "def descend(w, x, lr=0.125, turns=3):" in source and "w - lr * " in source and "length=turns" in source, (
        source
    )
    with pytest.raises(ValueError, match="'lr' was 0.125"):
        function(W, X, 0.25)
    edited = run(source.replace("0.125", "0.0625"), "descend")
    np.testing.assert_allclose(edited(W, X), descend(W, X, 0.0625), rtol=1e-6)


def shrink(w: Any, lr: float = 0.125) -> Any:
    return update(update(w, lr), lr)


def update(w: Any, rate: Any) -> Any:
    return jnp.tanh(w) * jnp.exp(w) - rate * jnp.sin(w)


def test_a_number_that_other_functions_have_too_is_the_module_s(tmp_path: Path) -> None:
    _, source = text_of(shrink, tmp_path, W)
    assert "def shrink(w, lr=LR):" in source and "lr != LR" in source, source
    edited = run(source.replace("LR = 0.125", "LR = 0.0625"), "shrink")
    np.testing.assert_allclose(edited(W), shrink(W, 0.0625), rtol=1e-6)


def test_a_variable_that_gets_another_value_is_no_setting(tmp_path: Path) -> None:
    def halved(x: Any, rate: float = 0.5) -> Any:
        x = x * rate
        rate = rate / 2
        return jnp.sin(x) * rate

    _, source = text_of(halved, tmp_path, X)
    assert "RATE" not in source, source


@pytest.mark.parametrize("target", ["numpy", "torch"])
def test_other_targets_have_them_as_well(target: str) -> None:
    if target == "torch":
        pytest.importorskip("torch")
    written = untrace.decompile(make_update(Decay(0.05, 7), 0.5))(X).to(target)
    assert "\nHYPER_RATE = 0.05\n" in written.source and "HYPER_TURNS" in written.source, written.source
    np.testing.assert_allclose(written(np.asarray(X)), make_update(Decay(0.05, 7), 0.5)(X), rtol=1e-6)


class Strict:
    """A config of which no property may be asked."""

    def __init__(self) -> None:
        self.rate = 0.375

    @property
    def shape(self) -> Any:
        raise RuntimeError("it has none")


def test_no_property_of_a_config_is_asked(tmp_path: Path) -> None:
    def scaled(x: Any, cfg: Any) -> Any:
        return x * cfg.rate

    strict = Strict()
    _, source = text_of(lambda x: scaled(x, strict), tmp_path, X)
    assert "x * 0.375" in source, source  # what has a shape is taken for an array


def test_a_parameter_that_is_deleted_disturbs_nothing(tmp_path: Path) -> None:
    def scaled(x: Any, unused: Any, cfg: Any) -> Any:
        del unused
        return norm(x, cfg)

    cfg = Config()
    _, source = text_of(lambda w, x: jax.grad(lambda w: jnp.sum(scaled(x @ w, None, cfg)))(w), tmp_path, W, X)
    assert "CFG_EPS = 0.001" in source and "jax.grad(" in source, source


def test_a_number_times_another_one_is_no_multiple_of_what_it_is_not(tmp_path: Path) -> None:
    def chosen(x: Any) -> Any:
        return jnp.where(x > 0.5, python_s(), OTHER * 3.0)

    _, source = text_of(chosen, tmp_path, X)
    assert "0.55, OTHER * 3.0)" in source, source


OTHER = 0.625


def python_s() -> float:
    return 0.5 + 0.05


def encode(p: Any, x: Any) -> Any:
    return jnp.tanh(x @ p["w"] + p["b"])


def decode(p: Any, x: Any) -> Any:
    return jnp.tanh(x @ p["w"] + p["b"])


def test_functions_of_two_names_that_do_the_same_stay_two(tmp_path: Path) -> None:
    p = {"w": jnp.eye(8), "b": jnp.ones(8)}
    _, source = text_of(lambda p, x: jnp.sum(decode(p, encode(p, x))), tmp_path, p, X)
    assert "decode(p, encode(p, x))" in source, source
