"""Programs written for NumPy: the text as a fresh module, without JAX, beside the original."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import strategies
from jax import lax
from target_programs import PARAMS, PROGRAMS, X, Y, floats, loss

import untrace


@pytest.fixture(scope="module", params=list(PROGRAMS))
def written(request: Any) -> Any:
    function, args = PROGRAMS[request.param]
    return function, args, untrace.decompile(function, target="numpy")(*args)


def test_the_text_computes_what_the_original_does(written: Any) -> None:
    function, args, text = written
    assert text.proof.at_least("close"), text.proof
    expected, found = function(*args), text(*args)
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        assert isinstance(b, np.ndarray | np.generic)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        step = float(jnp.finfo(a.dtype).eps) if jnp.issubdtype(a.dtype, jnp.inexact) else 0.0
        wide = np.complex128 if jnp.issubdtype(a.dtype, jnp.complexfloating) else np.float64
        np.testing.assert_allclose(np.asarray(a).astype(wide), b.astype(wide), rtol=max(2e-5, 2 * step), atol=2e-6)


def test_the_text_knows_nothing_of_jax(written: Any) -> None:
    imports = [line for line in written[2].source.splitlines() if line.startswith(("import ", "from "))]
    allowed = (
        "import numpy as np",
        "import scipy",
        "import ml_dtypes",
        "import functools",
        "from typing",
        "import math",
    )
    assert all(line.startswith(allowed) for line in imports), imports


def test_it_runs_where_jax_is_not_installed(tmp_path: Path) -> None:
    text = untrace.decompile(jax.grad(loss), target="numpy")(PARAMS, X, Y)
    text.save(tmp_path / "model.py")
    np.savez(tmp_path / "inputs.npz", w=PARAMS["w"], b=PARAMS["b"], x=X, y=Y)
    program = """
        import sys
        for name in ("jax", "jaxlib", "untrace", "ml_dtypes", "torch"):
            sys.modules[name] = None
        import numpy as np
        import model
        i = np.load("inputs.npz")
        grads = model.grad_loss({"w": i["w"], "b": i["b"]}, i["x"], i["y"])
        np.savez("outputs.npz", **grads)
    """
    environment = {**os.environ, "PYTHONPATH": ""}
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], cwd=tmp_path, check=True, env=environment)
    found = np.load(tmp_path / "outputs.npz")
    for name, grad in jax.grad(loss)(PARAMS, X, Y).items():
        np.testing.assert_allclose(found[name], grad, rtol=1e-5, atol=1e-7)


def test_other_sizes_are_followed_and_other_arguments_refused() -> None:
    text = untrace.decompile(jax.grad(loss), target="numpy")(PARAMS, X, Y)
    x, y = floats(8, 3), floats(8, 4)
    expected = jax.grad(loss)(PARAMS, x, y)
    np.testing.assert_allclose(text(PARAMS, x, y)["w"], expected["w"], rtol=1e-5, atol=1e-7)
    with pytest.raises(TypeError, match="written for"):
        text(PARAMS, floats(8, 2), y)
    with pytest.raises(TypeError, match="written for"):
        text({"w": PARAMS["w"]}, x, y)
    with pytest.raises(TypeError, match="written for"):
        text(PARAMS, x.astype(np.int32), y)


def test_many_arguments_are_checked_by_a_hash() -> None:
    params = {f"layer_{i:02}": {"kernel/w": np.eye(3, dtype=np.float32), "bias": (floats(3),)} for i in range(20)}

    def program(params, x):
        for layer in params.values():
            x = jnp.tanh(x @ layer["kernel/w"] + layer["bias"][0])
        return x

    text = untrace.decompile(program, target="numpy", sizes="fixed")(params, floats(3))
    assert "params: #" in text.source
    assert text(params, X[0]).shape == (3,)
    with pytest.raises(TypeError, match="written for params"):
        text({**params, "layer_00": {"kernel/w": floats(3, 3), "bias": floats(3)}}, X[0])


def test_names_of_helpers_are_not_the_authors() -> None:
    def _sign(x):
        return jnp.where(x > 0, 2 * x, x * x) + 1

    def program(x):
        _rounded = jnp.tanh(_sign(x) + _sign(x + 1.0))
        return lax.sign(_rounded) * lax.round(x) + _rounded

    text = untrace.decompile(program, target="numpy")(floats(5))
    np.testing.assert_allclose(text(X[0]), program(X[0]), rtol=1e-5)


def test_it_does_not_ask_where_jax_runs() -> None:
    text = untrace.decompile(lambda x: x * jax.device_count(), target="numpy")(floats(3))
    assert any("device_count = " in note for note in text.notes)
    assert "jax" not in text.source.split('"""', 2)[2]


def test_numbers_and_wide_arrays_become_what_jax_makes_of_them() -> None:
    text = untrace.decompile(loss, target="numpy")(PARAMS, X, Y)
    found = text(PARAMS, X.astype(np.float64), Y)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, loss(PARAMS, X, Y), rtol=1e-5)


def on_the_host(x):
    drawn = lax.rng_bit_generator(jnp.zeros(4, jnp.uint32), (4,))[1]
    return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((4,), np.float32), x) + drawn


def test_what_numpy_has_not_is_refused_with_the_authors_lines() -> None:
    with pytest.raises(untrace.UnsupportedPrimitiveError) as raised:
        untrace.decompile(on_the_host, target="numpy")(floats(4))
    assert "pure_callback" in str(raised.value) and "rng_bit_generator" in str(raised.value)  # all of it at once
    assert str(raised.value).count("test_numpy.py") == 2


def test_a_text_that_computes_something_else_is_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from untrace.targets.numpy.rules.table import NUMPY

    monkeypatch.setitem(NUMPY._rules, "rsqrt", lambda w, x, **_: w.np("sqrt", x))
    with pytest.raises(untrace.ProofError, match="result differs by .* at sampled input"):
        untrace.decompile(lambda x: lax.rsqrt(x) + 1.0, target="numpy")(floats(3))


def test_a_loop_that_may_never_end_is_tried_where_it_does() -> None:
    def collatz(n):
        def turn(state):
            n, turns = state
            return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), turns + 1

        return lax.while_loop(lambda state: state[0] != 1, turn, (n, 0))[1]

    text = untrace.decompile(collatz, target="numpy", sizes="fixed")(np.int32(6))
    assert text.proof.at_least("bits") and "on 16 sampled" not in str(text.proof)
    assert text(np.int32(27)) == 111


def test_a_call_that_numpy_understands_otherwise_is_not_spelled_the_same() -> None:
    def program(x, i):
        return jnp.sum(x > 0), x[i], jnp.sign(x), jnp.mean(x), jnp.arange(10)[i]

    text = untrace.decompile(program, target="numpy")(X, np.int32(4))
    assert "np.mean(x)" in text.source or "x.mean()" in text.source
    for given in (2, -1, 7, -9):  # the last, clamped
        found, expected = text(X, np.int32(given)), jax.jit(program)(X, np.int32(given))
        for a, b in zip(expected, found, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_a_random_program_is_close_or_refused(seed: int) -> None:
    program = strategies.seeded_program(str(seed), size=6)
    module = program.module()
    args, kwargs = program.arguments(module)
    try:
        text = untrace.decompile(module.program, target="numpy", sizes="fixed")(*args, **kwargs)
    except untrace.UnsupportedPrimitiveError:
        return  # what is written, and what is not, is counted by bench/targets.py
    assert text.proof.at_least("close")
    found = jax.tree.leaves(text(*args, **kwargs))
    expected = jax.tree.leaves(jax.eval_shape(module.program, *args, **kwargs))  # JAX cannot run all of them eagerly
    assert [(a.shape, a.dtype) for a in found] == [(a.shape, a.dtype) for a in expected]


def test_an_unknown_target_is_one_clear_sentence() -> None:
    with pytest.raises(untrace.OptionError, match="'fortran' is not there yet"):
        untrace.decompile(loss, target="fortran")
    with pytest.raises(untrace.OptionError, match="not there yet"):
        untrace.decompile(loss)(PARAMS, X, Y).to("fortran")


def test_a_text_for_jax_goes_to_numpy() -> None:
    text = untrace.decompile(loss)(PARAMS, X, Y).to("numpy")
    assert text.target == "numpy"
    assert "np.tanh(x @ params" in text.source


def test_names_and_keys_from_outside_are_no_code() -> None:
    hostile = {'a"]; import os; os.abort() #': floats(2), "b\n": floats(2)}

    def program(params):
        return sum(jnp.sum(v) for v in params.values())

    program.__name__ = "f(x): import os #"
    text = untrace.decompile(program, target="numpy")(hostile)
    np.testing.assert_allclose(text(hostile), program(hostile), rtol=1e-5)


def test_the_command_line_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from untrace.cli import main

    source = tmp_path / "model.py"
    source.write_text("import jax.numpy as jnp\ndef f(x):\n    return jnp.sin(x) * 2\n")
    assert main(["show", f"{source}:f", "f32[3]", "--to", "numpy"]) == 0
    assert "np.sin(x) * 2.0" in capsys.readouterr().out


def _edges(u, k, places):
    u = u.at[0].set(u[1]).at[-1].set(u[-2]).at[1:-1].add(0.5 * u[:-2])
    u = u.at[np.array([2, 2, 3])].add(1.0).at[places].multiply(2.0)  # twice at one place; `places` may lie outside
    return u, k.at[:, 1].multiply(2).at[0, 0].min(-1).at[..., 0].set(7)


def test_updates_of_parts_are_said_by_their_index():
    args = (np.arange(8, dtype=np.float32), np.ones((3, 4), np.int32), np.array([-1, 5, 11, -20], np.int32))
    d = untrace.decompile(_edges, target="numpy", sizes="fixed")(*args)
    assert "np.s_[1:7]" in d.source or "np.s_[1:-1]" in d.source
    assert d.source.count("= _put(") + d.source.count(" _put(") >= 3 and "np.minimum" in d.source
    for found, expected in zip(d(*args), _edges(jnp.asarray(args[0]), jnp.asarray(args[1]), args[2]), strict=True):
        np.testing.assert_array_equal(found, expected)
    before = args[0].copy()
    d(*args)
    np.testing.assert_array_equal(args[0], before)  # the argument is not what is changed


def test_an_update_outside_of_a_smaller_array_changes_nothing():
    def f(u):
        return u.at[5].set(1.0), u.at[2:6].add(1.0), u.at[np.array([1, 7])].add(1.0)

    d = untrace.decompile(f, target="numpy", guard=False)(np.arange(8, dtype=np.float32))
    for n in (8, 6, 5, 3):
        x = np.arange(n, dtype=np.float32)
        for found, expected in zip(d(x), f(jnp.asarray(x)), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_singular_values_of_infinite_numbers_are_waited_for_by_nobody():
    """LAPACK does not come back from them, neither for JAX nor for NumPy."""
    x = np.float32([[1, 2, 0], [0, 1, 1]])
    d = untrace.decompile(lambda x: jnp.linalg.svd(x, full_matrices=False)[1], target="numpy", sizes="fixed")(x)
    np.testing.assert_allclose(d(x), jnp.linalg.svd(x, full_matrices=False)[1], rtol=1e-6)


def test_an_infinity_of_the_authors_has_no_methods():
    def accepted(change):
        change = jnp.where(jnp.isnan(change), -jnp.inf, change)
        return jnp.clip(jnp.exp(change), max=1.0)

    d = untrace.decompile(lambda x: jax.grad(accepted)(x).sum(), target="numpy", prove=False)(np.float32(-0.5))
    np.testing.assert_allclose(d(np.float32(-0.5)), jax.grad(accepted)(-0.5), rtol=1e-6)
