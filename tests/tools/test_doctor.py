"""`untrace.doctor` on small functions with known faults, and on healthy ones that look alike."""

from __future__ import annotations

import json
import linecache
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import untrace
from untrace import cli
from untrace.tools.doctor import tape
from untrace.tools.doctor.samples import samples_of

VECTOR = np.array([0.5, 1.25, -0.75, 2.0], np.float32)


def softplus(x):
    e = jnp.exp(x)
    return jnp.log(1 + e)


def variance(x):
    m = jnp.mean(x)
    return jnp.mean(x * x) - m * m


def guarded(x):
    return jnp.sum(jnp.where(x > 0, jnp.sqrt(x), 0.0))


def stepped(x):
    return jnp.round(x) * 2


def repaired(diagnosis: untrace.Diagnosis) -> types.ModuleType:
    module = types.ModuleType("repaired")
    exec(compile(diagnosis.source or "", "repaired.py", "exec"), module.__dict__)
    return module


def line_of(finding: untrace.Finding) -> str:
    number = int(finding.place.split(":")[1].split(" ")[0])
    return linecache.getline(__file__, number).strip()


@pytest.fixture(scope="module")
def slope() -> untrace.Diagnosis:
    return untrace.doctor(jax.grad(softplus))(1.0)


def test_the_papers_example_is_found_and_repaired(slope):
    (finding,) = slope.findings
    assert not slope
    assert (finding.cause, finding.symptom, finding.severity) == ("overflow", "nan", "error")
    assert line_of(finding) == "e = jnp.exp(x)" and finding.place.endswith("(softplus)")
    assert finding.statement in slope.text.split("\n")[finding.line - 1]
    assert finding.repaired is not None and "jax.nn.sigmoid(x)" in finding.repaired
    assert repaired(slope).softplus(100.0) == 1.0


def test_the_repaired_slope_is_right_over_all_of_float32(slope):
    exponents = np.arange(1 << 8) << 23
    bits = (exponents[:, None] + np.linspace(0, (1 << 23) - 1, 64).astype(int)).astype(np.uint32).reshape(-1)
    sizes = bits.view(np.float32)
    x = np.concatenate([sizes, -sizes])
    x = x[np.isfinite(x)]
    found = np.asarray(jax.vmap(repaired(slope).softplus)(x), np.float64)
    with np.errstate(over="ignore"):
        wanted = 1 / (1 + np.exp(-x.astype(np.float64)))
    tiny = float(np.finfo(np.float32).tiny)
    unit = np.spacing(np.maximum(wanted, tiny).astype(np.float32)).astype(np.float64)
    off = np.where((wanted < tiny) & (found <= tiny), 0, np.abs(found - wanted) / unit)
    assert off.max() <= 2


def test_what_is_given_is_the_example_where_it_goes_wrong():
    (finding,) = untrace.doctor(jax.grad(softplus))(100.0).findings
    assert finding.example == "x = 100."


def test_variance_by_differences():
    found = untrace.doctor(variance)(VECTOR)
    (finding,) = found.findings
    assert finding.cause == "cancellation"
    assert line_of(finding) == "return jnp.mean(x * x) - m * m"
    shifted = VECTOR + 1000
    assert np.allclose(repaired(found).variance(shifted), np.var(shifted.astype(np.float64)), rtol=1e-6)
    assert repaired(found).variance(np.ones(7, np.float32)) == 0  # of other sizes too


def test_the_branch_that_is_not_taken():
    found = untrace.doctor(jax.grad(guarded))(VECTOR)
    (finding,) = found.findings
    assert (finding.cause, finding.symptom) == ("nan-rescue", "nan")
    assert "not taken" in finding.detail
    slopes = np.asarray(repaired(found).guarded(VECTOR))
    assert slopes[2] == 0 and np.isfinite(slopes).all()


def test_a_dead_gradient():
    (finding,) = untrace.doctor(jax.grad(stepped))(1.3).findings
    assert finding.cause == "dead gradient" and line_of(finding) == "return jnp.round(x) * 2"
    assert finding.repaired is None


def test_a_dead_gradient_of_an_array():
    def quantised(weights, inputs):
        return jnp.sum(inputs * jnp.clip(jnp.round(weights * 32), -128, 127) / 32)

    (finding,) = untrace.doctor(jax.grad(quantised))(jnp.array([0.3, -1.1]), jnp.array([2.0, 0.5])).findings
    assert finding.cause == "dead gradient" and "jnp.round(weights * 32)" in line_of(finding)


def test_masks_and_labels_stay_masks_and_labels():
    made = samples_of([jnp.array([0.3, -1.2, 2.0, 5.0]), jnp.array([1.0, 0.0, 1.0, 0.0])])
    scores, mask = (np.asarray(x) for x in made.leaves)
    assert np.isin(mask[made.near], (0.0, 1.0)).all() and made.near.sum() > 60
    assert len(np.unique(mask[made.near], axis=0)) > 8 and not np.isin(scores[made.near], (0.0, 1.0)).all()
    # One 1 may be a direction, or an axis.
    direction = np.asarray(samples_of([jnp.array([0.0, 0.0, 1.0])]).leaves[0])
    assert not np.isin(direction, (0.0, 1.0)).all(axis=1)[:50].all()


def test_a_repair_in_a_loop():
    def summed(x):
        return jax.lax.fori_loop(0, 3, lambda _, c: c / 8 + jnp.log(1 + jnp.exp(c)), x)

    found = untrace.doctor(summed)(1.0)
    assert [f.cause for f in found.findings] == ["overflow"]
    assert "jnp.logaddexp" in (found.source or "")
    assert np.isfinite(repaired(found).summed(100.0))


def test_a_limit_stands_where_there_is_no_value():
    def entropy(p):
        return -jnp.sum(p * jnp.log(p))

    found = untrace.doctor(entropy)(np.array([0.25, 0.75], np.float32))
    assert [f.cause for f in found.findings] == ["nan-rescue"]
    assert repaired(found).entropy(np.array([0, 1], np.float32)) == 0


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.logaddexp(x, 0.0),
        lambda x: jnp.exp(-0.5 * x * x),
        lambda x: x**3 - 2 * x + 1,
        lambda x: jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1.0)), 0.0),
        jax.grad(lambda x: jnp.sqrt(1 + x * x)),
    ],
    ids=["softplus", "gauss", "cubic", "double where", "slope"],
)
def test_nothing_is_wrong(function):
    found = untrace.doctor(function)(0.75)
    assert found and not found.findings and found.source is None
    assert "nothing wrong" in str(found)


def test_numbers_that_stand_for_others_are_no_fault():
    """cos(pi) is -1, whatever pi is rounded to."""
    assert untrace.doctor(lambda step, steps: 0.5 * (1 + jnp.cos(jnp.pi * jnp.minimum(step / steps, 1.0))))(30.0, 100.0)


def test_what_nobody_has_a_better_way_for_is_told_where_it_is_common():
    def survival(x, a, b):
        return -jnp.expm1(b * jnp.log1p(-(x**a)))

    assert untrace.doctor(survival)(0.1, 3.0, 2.0)


def test_the_squares_of_a_derivatives_rule_are_not_the_authors():
    assert untrace.doctor(jax.grad(lambda y, x: jnp.arctan2(y, 2.0 + jnp.abs(x))))(1.0, 2.0)
    found = untrace.doctor(jax.grad(lambda x: jnp.log(1 + x * x)))(0.5)  # which overflows itself
    assert [f.severity for f in found.findings] == ["far"]


def test_an_error_that_is_absorbed_is_none():
    assert untrace.doctor(lambda x: jnp.exp(x) - 1 + 5)(1.0)


def test_a_number_that_is_lost_beside_one_that_matters_is_not_to_blame():
    def f(x):
        e = jnp.exp(x * jnp.array([1.0, -1000.0]))
        return jnp.sum(e) - (1.0 + x)

    (finding,) = [f for f in untrace.doctor(f)(0.1).findings if f.severity in ("error", "warning")]
    assert finding.cause == "cancellation"


def test_a_difference_of_inputs_is_their_own():
    assert untrace.doctor(lambda x, y: x - y)(3.0, 2.0)


def test_half_precision_and_integers():
    found = untrace.doctor(lambda x, n: softplus(x) + n)(jnp.bfloat16(1), 3)
    assert [f.cause for f in found.findings] == ["overflow"] and found.precision == "bfloat16"


def test_types_alone_are_enough():
    assert untrace.doctor(softplus)(jax.ShapeDtypeStruct((3,), jnp.float32)).findings


def test_loops_that_are_too_long_are_refused(monkeypatch):
    monkeypatch.setattr(tape, "MOST_STEPS", 50)

    def long(x):
        return jax.lax.fori_loop(0, 100, lambda _, c: jnp.sin(c), x)

    with pytest.raises(untrace.CaptureError, match="Give it smaller arguments"):
        untrace.doctor(long)(1.0)


def test_json_and_html(slope):
    read = json.loads(slope.to_json())
    assert read["findings"][0]["cause"] == "overflow" and read["findings"][0]["error"] == "inf"
    assert read["ranges"] and "arrays" not in read
    page = slope._repr_html_()
    assert "&gt;" in page or "&lt;" in page or "&#x27;" in page or "&quot;" in page
    assert "<script" not in page


def test_the_module_is_saved_and_nothing_is_overwritten(slope, tmp_path):
    path = slope.save(tmp_path / "slope.py")
    assert path is not None and "jax.nn.sigmoid" in (tmp_path / "slope.py").read_text()
    with pytest.raises(untrace.OutputExistsError):
        slope.save(tmp_path / "slope.py")


def test_the_command_line(tmp_path, capsys):
    (tmp_path / "model.py").write_text("import jax.numpy as jnp\n\ndef loss(x):\n    return jnp.log(1 + jnp.exp(x))\n")
    target = f"{tmp_path / 'model.py'}:loss"
    assert cli.main(["doctor", target, "f32[]", "--grad", "-o", str(tmp_path / "out.py")]) == 1
    assert "overflow" in capsys.readouterr().out and "sigmoid" in (tmp_path / "out.py").read_text()
    (tmp_path / "healthy.py").write_text("def loss(x):\n    return x * 2\n")
    assert cli.main(["doctor", f"{tmp_path / 'healthy.py'}:loss", "f32[]", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []


def test_a_derivative_that_is_nan_where_all_are_zero():
    found = untrace.doctor(jax.grad(lambda x: jnp.sum(jnp.abs(x) ** 3) ** (1 / 3)))(jnp.array([1.0, 2.0, -2.0]))
    assert [f.cause for f in found.findings] == ["nan-rescue"]
    assert untrace.doctor(lambda x, y: x / y)(1.0, 2.0)  # which is no derivative


def test_arrays_that_are_equal_and_matrices_that_turn_nothing():
    def between(u, v, t):
        angle = jnp.arccos(jnp.dot(u, v))
        return (jnp.sin((1 - t) * angle) * u + jnp.sin(t * angle) * v) / jnp.sin(angle)

    found = untrace.doctor(between)(jnp.array([1.0, 0.0, 0.0, 0.0]), jnp.full(4, 0.5), 0.25)
    assert "[1. 0. 0. 0.], v = [1. 0. 0. 0.]" in str(found), found
    turn = jnp.array([[0.0, -1.0], [1.0, 0.0]])
    found = untrace.doctor(jax.grad(lambda r: jnp.arccos(jnp.trace(r) / 2) ** 2))(turn)
    assert "[[1. 0.] [0. 1.]]" in str(found), found


def test_what_has_no_value_where_it_is_asked():
    def heat(x):
        t = x * jnp.arange(3.0)
        return jnp.sum(t / (jnp.exp(t) - 1))

    (found, *_) = untrace.doctor(heat)(0.5).findings
    assert found.severity == "error" and found.cause == "nan-rescue", found


def test_bits_of_a_number_are_those_of_its_type():
    found = untrace.doctor(lambda x: jnp.log(jax.scipy.special.gamma(x)))(60.0)
    assert "overflow" in [f.cause for f in found.findings]
