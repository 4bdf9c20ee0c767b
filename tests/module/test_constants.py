"""Constants: what they are called, and when equal ones are one."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

import untrace
from untrace.capture.closed_over import names_of
from untrace.lift.naming.constants import content
from untrace.lift.rewrite.simplify import simplified
from untrace.prove.hlo import normalise_stablehlo, same_stablehlo

X = jnp.arange(3.0)
LOOKUP = jnp.array([2.0, 3.0, 5.0])


def _written(function, *args, **options):
    return untrace.decompile(function, **options)(*(args or (X,)))


class Layer:
    def __init__(self):
        self.weights = jnp.array([0.5, 0.25, 0.125])
        self.inner = {"bias": jnp.array([1.0, 2.0, 4.0])}
        self.offsets = [jnp.array([7.0, 8.0, 9.5])]

    @property
    def forbidden(self):
        raise AssertionError("a property of the user's was called")

    def __getattr__(self, name):
        raise AttributeError(name)

    def __call__(self, x):
        return x * self.weights + self.inner["bias"] * self.offsets[0]

    def method(self, x):
        return x * self.weights


def test_constants_have_the_names_by_which_the_function_knows_them():
    scale = jnp.array([1.5, 2.5, 3.5])

    def scaled(x):
        return x * scale + LOOKUP

    source = _written(scaled).source
    assert "\nscale = jnp.array([1.5, 2.5, 3.5]" in source
    assert "\nLOOKUP = jnp.array([2.0, 3.0, 5.0]" in source
    assert "const_" not in source


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, lambda f: jax.vmap(f, axis_size=3), jax.checkpoint])
def test_names_are_found_through_transformations_and_objects(wrap):
    layer = Layer()
    source = _written(wrap(lambda x: layer(x))).source
    for name in ("weights", "inner_bias", "offsets_0"):
        assert f"{name} = jnp.array(" in source, source


def test_names_of_bound_methods_and_partial_arguments():
    layer = Layer()
    assert "weights = jnp.array([0.5, 0.25, 0.125]" in _written(layer.method).source

    def shifted(shift, gain, x):
        return x * gain + shift

    bound = functools.partial(shifted, jnp.array([3.0, 4.0, 6.0]), jnp.array([9.0, 8.0, 6.0]))
    source = _written(bound).source
    assert "\nshift = jnp.array([3.0, 4.0, 6.0]" in source
    assert "\ngain = jnp.array([9.0, 8.0, 6.0]" in source


def test_a_path_is_as_long_as_it_must_be():
    first, second = np.array([1.0, 2.0, 3.0], np.float32), np.array([3.0, 2.0, 1.0], np.float32)
    model = {"encoder": {"dense": {"kernel": first}}, "decoder": {"dense": {"kernel": second}}, "rate": X}

    def apply(x):
        return model, x

    names = names_of(apply, [first, second, X])
    assert [names[a] for a in (first, second, X)] == ["encoder_dense_kernel", "decoder_dense_kernel", "model_rate"]
    assert names_of(apply, [first])[first] == "dense_kernel"


def test_an_array_of_numpy_is_known_again_after_a_conversion():
    knots = np.array([0.1, 0.2, 0.7])  # 64 bits: JAX closes over another array
    assert "\nknots = jnp.array([0.1, 0.2, 0.7]" in _written(lambda x: x * knots).source
    twice = [np.array([0.1, 0.2, 0.7]), np.array([0.1, 0.2, 0.7])]
    value = np.array([0.1, 0.2, 0.7], np.float32)
    assert names_of(lambda x: x * twice[0], [value]) == {}  # which of the two, nobody can say


def test_nobodys_code_is_called():
    class Trap(dict):
        def items(self):
            raise AssertionError

        def __iter__(self):
            raise AssertionError

        def __eq__(self, other):
            raise AssertionError

        __hash__ = None

    class Slotted:
        __slots__ = ("kept", "empty")

    found, trap = Slotted(), Trap(inside=LOOKUP)
    found.kept = trap
    loop = [found]
    loop.append(loop)
    assert names_of(lambda: loop, [LOOKUP])[LOOKUP] == "kept_inside"


CONTENTS = {
    "zeros_2x6": np.zeros((2, 6), np.float32),
    "ones_3": np.ones(3, np.float32),
    "zeros_2_int": np.zeros(2, np.int32),
    "identity_3": np.eye(3, dtype=np.float32),
    "arange_5": np.arange(5),
    "index_4": np.array([4]),
    "indices_0_2": np.array([0, 2]),
    "empty_0x3": np.zeros((0, 3), np.float32),
    "all_false_3": np.zeros(3, bool),
    "y_axis": np.array([0.0, 1.0, 0.0]),
    "mask": np.array([True, False]),
    "indices": np.array([[0, 2], [1, 7]]),
    "integers": np.array([[0, -2], [1, 7]]),
    "matrix_2x2": np.array([[0.5, 2.0], [1.0, 7.0]]),
    "coefficients_2": np.array([-0.0, 0.0]),  # not zeros: a minus counts
}


@pytest.mark.parametrize("name", CONTENTS)
def test_names_by_content(name):
    value = CONTENTS[name]
    assert content(value, jax.core.ShapedArray(value.shape, value.dtype))[1] == name


def test_a_constant_made_inside_is_called_what_its_author_calls_it():
    def smoothed(x):
        window = np.array([0.25, 0.5, 0.125], np.float32)
        return x * window

    assert "\nwindow = jnp.array([0.25, 0.5, 0.125]" in _written(smoothed).source


def many(x):
    """The same table four times, two of them in a function of its own, and in a loop twice."""
    inner = jax.jit(lambda y: y * np.array([0.5, 1.5, 7.0], np.float32) + np.array([0.5, 1.5, 7.0], np.float32))
    x = inner(x) - jnp.array([0.5, 1.5, 7.0]) * x @ jnp.array([0.5, 1.5, 7.0])
    return x + jnp.zeros(3)


def test_equal_constants_are_one():
    simple = _written(many)
    assert simple.source.count("[0.5, 1.5, 7.0]") == 1
    assert ".copy()" not in simple.source
    assert "equal constants" in simple.proof.detail
    assert simple.proof.level in ("hlo", "bits")
    plain = _written(many, simplify=False)
    assert plain.proof.level == "jaxpr"
    assert plain.source.count("[0.5, 1.5, 7.0]") == 4
    exact = _written(many, style="exact")
    assert exact.proof.level == "jaxpr"
    assert exact.source.count("const.copy()") == 3
    for found in (simple, plain, exact):
        assert np.asarray(found(X)).tobytes() == np.asarray(jax.jit(many)(X)).tobytes()


def test_equal_constants_lower_to_the_same_program():
    original = jax.make_jaxpr(many)(X)
    target, counts = simplified(original, frozenset({"equal_constants"}))
    assert counts["equal_constants"] >= 2
    assert same_stablehlo(*(jax.extend.core.jaxpr_as_fun(j) for j in (original, target)), [X])
    other = jax.make_jaxpr(lambda x: many(x) * jnp.array([0.5, 1.5, 7.5]))(X)
    assert not same_stablehlo(*(jax.extend.core.jaxpr_as_fun(j) for j in (original, other)), [X])


def test_what_the_function_knows_by_name_stays_apart():
    weights, scale = jnp.array([0.5, 1.5, 7.0]), jnp.array([0.5, 1.5, 7.0])
    source = _written(lambda x: x * weights + scale).source
    assert "\nweights = jnp.array([0.5, 1.5, 7.0]" in source
    assert "\nscale = jnp.array([0.5, 1.5, 7.0]" in source


def test_other_bits_and_other_types_stay_apart():
    def close(x):
        y = x * np.array([0.0, 1.0, 2.0], np.float32) + np.array([-0.0, 1.0, 2.0], np.float32)
        return (
            y,
            x.astype(jnp.int32) + np.array([0, 1, 2], np.int32),
            x.astype(jnp.uint32) + np.array([0, 1, 2], np.uint32),
        )

    original = jax.make_jaxpr(close)(X)
    assert simplified(original, frozenset({"equal_constants"}))[0] is original


def test_a_loop_that_takes_an_array_twice_is_proven():
    def step(carry, _):
        return carry * np.array([0.5, 1.5, 7.0], np.float32) + np.array([0.5, 1.5, 7.0], np.float32), None

    found = _written(lambda x: jax.lax.scan(step, x, None, length=3)[0])
    assert found.proof.at_least("hlo")
    assert found.source.count("coefficients_3") >= 2 and "const_" not in found.source


def test_constants_in_stablehlo_are_compared_by_value():
    text = (
        "func.func public @main(%arg0: tensor<2xf32>) {\n  {first}\n  {second}\n"
        "  %0 = stablehlo.add %arg0, %{a} : tensor<2xf32>\n  %1 = stablehlo.multiply %0, %{b} : tensor<2xf32>\n}"
    )

    def program(one, two, a, b):
        lines = [f"%{n} = stablehlo.constant dense<{v}> : tensor<2xf32>" for n, v in (("cst", one), ("cst_0", two))]
        return normalise_stablehlo(
            text.replace("{first}", lines[0]).replace("{second}", lines[1]).replace("{a}", a).replace("{b}", b)
        )

    assert program(1.0, 1.0, "cst", "cst_0") == program(1.0, 2.0, "cst", "cst")
    assert program(1.0, 2.0, "cst", "cst_0") == program(2.0, 1.0, "cst_0", "cst")
    assert program(1.0, 2.0, "cst", "cst_0") != program(1.0, 2.0, "cst_0", "cst")
    assert program(1.0, 2.0, "cst", "cst_0") != program(1.0, 2.5, "cst", "cst_0")


@pytest.mark.parametrize(
    "value", [complex(-0.0, 0.0), complex(0.0, -0.0), complex(float("inf"), -2.5), complex(1.5, float("nan"))]
)
def test_weakly_typed_complex_numbers_stay_weak(value: complex) -> None:
    """`-0.0 + 0j` is no number of Python's with these bits: it is written as `complex(-0.0, 0.0)`."""
    d = untrace.decompile(lambda x: x + value, style="exact")(1j)
    assert d.proof.level == "jaxpr" and "complex(" in d.source, d.source
    assert np.asarray(d(1j)).tobytes() == np.asarray(jnp.add(1j, value)).tobytes()


def test_an_array_that_is_split_stays_one_constant() -> None:
    def fn(x: Any) -> Any:
        left, right = jax.lax.split(LOOKUP, (1, 2))
        return jnp.sin(LOOKUP) + x, left, right

    d = untrace.decompile(fn, style="exact")(1.0)
    scope: dict[str, Any] = {}
    exec(compile(d.source, "split.py", "exec"), scope)
    lowered = [jax.jit(f).lower(1.0).as_text() for f in (fn, scope["fn"])]
    assert lowered[0].count("stablehlo.constant") == lowered[1].count("stablehlo.constant")


def test_an_array_without_a_name_is_not_called_what_it_is_multiplied_with():
    def cost(state):
        return 0.5 * (state @ (jnp.array([1.0, 10.0, 0.1, 0.1]) * state))

    d = untrace.decompile(jax.vmap(jax.hessian(cost)))(jnp.ones((5, 4)))
    assert "coefficients_4 = jnp.array([1.0, 10.0, 0.1, 0.1]" in d.source and "state_2" not in d.source, d.source


@pytest.mark.parametrize("value", [2.38383, -0.5, 0.0, -0.0, 3])
def test_a_weakly_typed_array_of_one_number_is_full_of_it(value: float) -> None:
    weak = jnp.full((2, 3), value)
    written = _written(lambda x: (x * weak, weak), jnp.ones(3, jnp.bfloat16))
    assert written.proof.level == "jaxpr"
    assert f"jnp.full((2, 3), {value!r})" in written.source and ".bind(" not in written.source
    for left, right in zip(written(jnp.ones(3, jnp.bfloat16)), (jnp.ones(3, jnp.bfloat16) * weak, weak), strict=True):
        assert (left.dtype, left.weak_type) == (right.dtype, right.weak_type)
        assert np.asarray(left).tobytes() == np.asarray(right).tobytes()


def test_an_infinity_is_a_number_of_numpys() -> None:
    def least(x: Any) -> Any:
        return jax.lax.scan(lambda best, y: (jnp.minimum(best, y), best), jnp.float32(jnp.inf), x)

    d = untrace.decompile(least)(jnp.ones(3))
    assert "np.float32(np.inf)" in d.source and "[()]" not in d.source.partition("def _type_of")[0], d.source


def test_a_number_whose_gradient_is_stopped_is_an_array_without_a_trace_too():
    """The dropout of equinox stops that of its probability."""

    def dropped(x, key):
        keep = 1.0 - jax.lax.stop_gradient(0.1)
        return jnp.where(jax.random.bernoulli(key, keep, x.shape), x / keep, 0.0)

    def step(x, key):
        return jax.grad(lambda x: (dropped(x, key) ** 2).sum())(x)

    x, key = jnp.arange(6.0), jax.random.key(0)
    for function in (dropped, step):
        for options in ({}, {"simplify": False}, {"style": "exact"}):
            d = untrace.decompile(function, **options)(x, key)
            assert (d(x, key) == function(x, key)).all() and (jax.jit(d)(x, key) == jax.jit(function)(x, key)).all()
