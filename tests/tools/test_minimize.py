"""The smallest case of a fault: found, the same fault, and a file that shows it by itself."""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import untrace
from untrace.tools.minimize.predicates import predicate_of
from untrace.tools.minimize.search import fewer

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def layers(x: Any, count: int = 6) -> Any:
    for n in range(count):
        x = jnp.tanh(x * (1 + n)) + jnp.cumsum(x, axis=1) / (n + 2)
    return x


def with_a_logarithm(x: Any) -> Any:
    y = layers(x)
    return layers(jnp.log(y - y.max()) * 2.0).sum(), y


def in_a_loop(x: Any, steps: int = 9) -> Any:
    def step(carry: Any, row: Any) -> Any:
        carry = lax.cond(row.sum() > 100, jnp.cos, lambda c: c * 1e12, carry) + row
        return carry, jnp.sin(carry)

    return lax.scan(step, layers(x), jnp.ones((steps, *x.shape)))


def run_alone(path: str) -> Any:
    return subprocess.run([sys.executable, path], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""})


def test_a_nan_is_one_equation_and_its_file_shows_it(tmp_path: Any) -> None:
    found = untrace.minimize(with_a_logarithm, untrace.nonfinite(), path=tmp_path / "least.py")(X)
    now, before = found.equations
    assert now == 1 and before > 50 and found.finished
    assert "jnp.log(" in found.source and all(np.size(a) == 1 for a in found.args)
    alone = run_alone(str(tmp_path / "least.py"))
    assert alone.returncode == 0 and "nan" in alone.stdout, alone
    assert f"jax {jax.__version__}" in found.source


def test_an_overflow_in_the_turns_of_a_loop() -> None:
    found = untrace.minimize(in_a_loop, "nonfinite('inf')")(X)
    assert found.equations[0] <= 2 and "scan" not in found.source, found.source
    assert found.args and all(np.isfinite(a).all() for a in found.args)
    assert any(np.isinf(y).any() for y in jax.tree.leaves(found()))


def test_an_own_predicate_in_a_file(tmp_path: Any) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "import jax\n\ndef holds(fn, args):\n    text = str(jax.make_jaxpr(fn)(*args))\n"
        "    return 'tanh' in text and 'cumsum' in text\n"
    )
    found = untrace.minimize(layers, f"{file}:holds")(X)
    assert found.equations[0] == 2 and {"tanh", "cumsum"} <= set(
        found.source.replace("(", " ").replace(".", " ").split()
    )


def abort_on_large(limit: float, x: Any) -> Any:
    if (x > limit).any():
        os.abort()
    return x


def raise_on_large(x: Any) -> Any:
    if (x > 0.5).any():
        raise ValueError(f"{x.max()} is too large")
    return x


def called_back(function: Any, x: Any) -> Any:
    y = layers(x)
    z = jax.pure_callback(function, jax.ShapeDtypeStruct(y.shape, y.dtype), jnp.tanh(y))
    return layers(z)


@pytest.mark.parametrize(
    "function", [functools.partial(abort_on_large, 0.5), raise_on_large], ids=["abort", "exception"]
)
def test_a_process_that_dies_and_an_exception(function: Any) -> None:
    pytest.importorskip("cloudpickle")
    found = untrace.minimize(functools.partial(called_back, function), untrace.crashes())(X)
    assert found.equations[0] == 1 and "pure_callback" in found.source, found.source
    assert ("died, -6" in found.fault) == isinstance(function, functools.partial), found.fault


def sleep(x: Any) -> Any:
    time.sleep(30)
    return x


def test_what_never_ends() -> None:
    pytest.importorskip("cloudpickle")

    def program(x: Any) -> Any:
        z = jax.pure_callback(sleep, jax.ShapeDtypeStruct(x.shape, x.dtype), jnp.tanh(jnp.cumsum(x)))
        return jnp.sin(z) + z

    found = untrace.minimize(program, untrace.hangs(2.0), budget=60)(X)
    # On a machine that is busy the time is over before the last equation is gone.
    assert found.fault == "hangs" and "pure_callback" in found.source and found.equations[0] < found.equations[1], (
        found.source
    )


def ill_conditioned(x: Any) -> Any:
    """A compiler makes a product of the quotient; the sine of so large a number is another one then."""
    return layers(jnp.sin(layers(x) / 7.0 * 1e7))


def test_what_jit_computes_otherwise() -> None:
    found = untrace.minimize(ill_conditioned, untrace.differs("jit", "eager"))(X)
    assert found.equations[0] <= 3 and "sin(" in found.source, found.source
    assert "print('jit', jax.jit(" in found.source and "print('eager', " in found.source, found.source


def test_a_fault_that_is_not_there_is_said() -> None:
    with pytest.raises(untrace.OptionError, match=r"nonfinite\(\) does not hold of the program itself"):
        untrace.minimize(layers, untrace.nonfinite)(X)


def test_a_predicate_of_a_module_beside_the_script(tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "own_predicates.py").write_text(
        "def holds(fn, args):\n    return bool((fn(*args)[0] > 0).any())\n\n\ndef stumbles(fn, args):\n    return 1 / 0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    predicates = importlib.import_module("own_predicates")
    assert untrace.minimize(layers, predicates.holds)(X).equations[0] <= 1
    with pytest.raises(untrace.OptionError, match=r"it raised ZeroDivisionError: division by zero"):
        untrace.minimize(layers, predicates.stumbles)(X)


def test_time_that_is_over_leaves_the_best_so_far(tmp_path: Any) -> None:
    found = untrace.minimize(with_a_logarithm, untrace.nonfinite(), path=tmp_path / "least.py", budget=0.0)(X)
    assert not found.finished and found.equations[0] == found.equations[1]
    assert "nan" in run_alone(str(tmp_path / "least.py")).stdout


def test_words_for_predicates() -> None:
    assert predicate_of("hangs(2)") == untrace.hangs(2) and predicate_of("crashes") == untrace.crashes()
    for wrong in (
        "hangs(open('x'))",
        "nonfinite('zero')",
        "hangs(-1)",
        "differs('jit', {'jax_nope': 1})",
        "nothing",
        "none.py:holds",
        "differs('left')",
    ):
        with pytest.raises(untrace.OptionError):
            predicate_of(wrong)


def test_delta_debugging_finds_pairs_that_are_far_apart() -> None:
    asked: list[int] = []

    def has_fault(items: Any) -> bool:
        asked.append(len(items))
        return {17, 801} <= set(items)

    assert fewer(range(1000), has_fault) == [17, 801]
    assert len(asked) < 120


def test_the_settings_of_the_process_hold(tmp_path: Any) -> None:
    with jax.enable_x64(True):
        with pytest.raises(untrace.OptionError, match="does not hold"):
            untrace.minimize(lambda x: x * 2.0, untrace.nonfinite())(jnp.array([1e200]))
        found = untrace.minimize(lambda x: (x * x * 2.0).sum(), untrace.nonfinite(), path=tmp_path / "wide.py")(
            jnp.array([1.0, 1e200])
        )
    assert 'jax.config.update("jax_enable_x64", True)' in found.source and "float64" in found.source, found.source
    assert "inf" in run_alone(str(tmp_path / "wide.py")).stdout


def test_arguments_of_narrow_types(tmp_path: Any) -> None:
    path = tmp_path / "narrow.py"
    untrace.minimize(lambda x: x / (x - x), untrace.nonfinite(), path=path)(jnp.ones(2, jnp.bfloat16))
    assert "inf" in run_alone(str(path)).stdout
