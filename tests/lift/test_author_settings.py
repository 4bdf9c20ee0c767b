"""Numbers that an object of the author's module holds, a dataclass, a named tuple, a class or a dict, have names."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from roundtrip import saved

import untrace

X = np.linspace(0.1, 1.0, 4, dtype=np.float32)


@dataclasses.dataclass(frozen=True)
class Config:
    clip: float = 0.2
    turns: int = 3

    @property
    def computed(self) -> float:
        raise AssertionError("nothing of the author's is run")


class Rates(NamedTuple):
    lr: float = 0.05
    decay: float = 0.9


class Discounts:
    gamma = 0.99


CFG, RATES, OPTIONS = Config(), Rates(), {"eps": 1e-6, "x; y": 0.7}


def clipped(r: Any, a: Any, clip: float = CFG.clip) -> Any:
    return jnp.minimum(r * a, jnp.clip(r, 1 - clip, 1 + clip) * a)


def averaged(m: Any, g: Any, rates: Rates) -> Any:
    return rates.decay * m + (1 - rates.decay) * g


def loss(r: Any, a: Any) -> Any:
    x = clipped(r, a) + averaged(r, a, RATES) * RATES.lr
    for _ in range(CFG.turns):
        x = jnp.sin(x) * Discounts.gamma + OPTIONS["eps"] * x
    return x + jnp.zeros(CFG.turns).sum() + CFG.clip * x.size


def test_what_an_object_of_the_module_holds_is_called_after_both(tmp_path: Path) -> None:
    function, source = saved(untrace.decompile(loss)(X, X), tmp_path)
    np.testing.assert_array_equal(function(X, X), loss(X, X))
    for line in (
        "CFG_CLIP = 0.2",
        "RATES_DECAY = 0.9",
        "RATES_LR = 0.05",
        "DISCOUNTS_GAMMA = 0.99",
        "OPTIONS_EPS = 1e-06",
    ):
        assert f"\n{line}\n" in source, source
    assert "jnp.clip(r, 1 - CFG_CLIP, 1 + CFG_CLIP)" in source and "in range(CFG_TURNS):" in source, source
    assert "0.9 *" not in source and "CFG_CLIP * r.shape[0]" in source, source


def test_an_edit_of_one_is_the_edit_of_the_authors(monkeypatch: pytest.MonkeyPatch) -> None:
    edited, count = re.subn(
        "^RATES_DECAY = 0.9$", "RATES_DECAY = 0.8", untrace.decompile(loss)(X, X).source, flags=re.M
    )
    assert count == 1
    module: dict[str, Any] = {}
    exec(edited, module)
    monkeypatch.setitem(globals(), "RATES", Rates(decay=0.8))
    np.testing.assert_allclose(module["loss"](X, X), loss(X, X), rtol=1e-6)


def test_what_is_computed_or_has_no_name_has_digits() -> None:
    def other(x: Any) -> Any:
        return x * 0.25 + OPTIONS["x; y"] * x

    source = untrace.decompile(other)(X).source
    assert "x * 0.25" in source and "0.7 * x" in source, source


def test_a_name_that_the_module_has_for_something_else_is_not_taken() -> None:
    class CFG:  # noqa: N801
        lr = 0.05

    globals()["SETTINGS"] = CFG
    globals()["SETTINGS_LR"] = 0.3
    try:
        source = untrace.decompile(lambda x: SETTINGS.lr * x)(X).source  # noqa: F821
    finally:
        del globals()["SETTINGS"], globals()["SETTINGS_LR"]
    assert "0.05 * x" in source, source


def test_a_method_that_is_given_one(tmp_path: Path) -> None:
    def kept(x: Any) -> Any:
        return (x - 0.5).clip(-CFG.clip, CFG.clip) * jnp.array([0.0] + [CFG.clip] * 3)

    function, source = saved(untrace.decompile(kept)(X), tmp_path)
    np.testing.assert_array_equal(function(X), kept(X))
    assert "(x - 0.5).clip(-CFG_CLIP, CFG_CLIP)" in source and "[0.0, CFG_CLIP, CFG_CLIP, CFG_CLIP]" in source, source


def cost(x: Any, w: float) -> Any:
    return w * CFG.clip * jnp.dot(x, x)


def test_a_product_with_what_calls_give_differently(tmp_path: Path) -> None:
    def costs(x: Any) -> Any:
        return cost(x, RATES.lr), cost(x, 100.0)

    function, source = saved(untrace.decompile(costs)(X), tmp_path)
    np.testing.assert_array_equal(function(X), costs(X))
    assert "return w * CFG_CLIP * (x @ x)" in source and "cost(x, RATES_LR), cost(x, 100.0)" in source, source
