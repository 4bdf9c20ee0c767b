"""Comparison of lowered and compiled programs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from untrace import jax_compat
from untrace.prove import hlo

X = jnp.arange(6.0).reshape(2, 3)


def test_names_and_places_do_not_count():
    @jax.jit
    def one(a):
        return {"first": jnp.sin(a)}

    @jax.jit
    def another(b):
        with jax.named_scope("scope"):
            return {"second": jnp.sin(b)}

    def f(x):
        return one(x)["first"] + jnp.linalg.norm(x)

    def g(y):
        return another(y)["second"] + jnp.linalg.norm(y)

    assert hlo.same_stablehlo(f, g, [X])
    assert hlo.same_optimised(f, g, [X])


def test_types_are_enough():
    spec = jax.ShapeDtypeStruct((2, 3), jnp.bfloat16)
    assert hlo.same_stablehlo(jnp.tanh, lambda x: jnp.tanh(x), [spec])


def test_other_programs_differ():
    assert not hlo.same_stablehlo(jnp.sin, jnp.cos, [X])
    assert not hlo.same_stablehlo(lambda x: x * 2.0, lambda x: x * 2.5, [X])
    assert not hlo.same_optimised(lambda x: x * 2.0, lambda x: x * 2.5, [X])
    big = np.random.default_rng(0).normal(size=500).astype(np.float32)
    other = big.copy()
    other[250] = 0
    assert not hlo.same_stablehlo(lambda x: x + big, lambda x: x + other, [big])
    assert not hlo.same_optimised(lambda x: x + big, lambda x: x + other, [big])
    assert hlo.same_optimised(lambda x: jnp.negative(jnp.negative(x)) + big, lambda x: x + big.copy(), [big])
    assert "sine" in hlo.stablehlo_difference(jnp.sin, jnp.cos, [X])


def test_long_integers_are_constants_not_addresses():
    with jax.enable_x64(True):
        f, g = (lambda x, k=k: x + k for k in (123456789012345, 123456789012346))
        assert not hlo.same_stablehlo(f, g, [np.int64(1)])


def test_addresses_of_callbacks_do_not_count():
    def make():
        return lambda x: jax.pure_callback(lambda a: a, jax.ShapeDtypeStruct((2, 3), x.dtype), x)

    assert hlo.same_stablehlo(make(), make(), [X])


def test_the_optimiser_may_make_two_programs_one():
    f, g = lambda x: jnp.negative(jnp.negative(x)) * 2, lambda x: x * 2
    assert not hlo.same_stablehlo(f, g, [X])
    assert hlo.same_optimised(f, g, [X])


def test_what_cannot_be_lowered_is_not_the_same():
    def fails(x):
        raise RuntimeError("never lowered")

    assert not hlo.same_stablehlo(fails, fails, [X])
    assert "never lowered" in hlo.stablehlo_difference(fails, jnp.sin, [X])


def test_dead_results_of_inner_functions_do_not_count():
    """`jit` removes them before it compiles; arguments nobody reads keep their places."""

    @jax.jit
    def with_more(x):
        return x * 2, jnp.sin(x)

    @jax.jit
    def alone(x):
        return x * 2

    assert hlo.same_stablehlo(lambda x: with_more(x)[0], alone, [X])
    assert not hlo.same_stablehlo(lambda x, y: x * 2, lambda x, y: y * 2, [X, X])


def test_the_order_of_independent_instructions_does_not_count():
    text = """HloModule one, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add = f32[] add(%a, %b)
}

ENTRY %main (x: f32[4], y: f32[4]) -> (f32[], f32[4]) {
  %x = f32[4]{0} parameter(0)
  %y = f32[4]{0} parameter(1)
  %zero = f32[] constant(0)
  %total = f32[] reduce(%x, %zero), dimensions={0}, to_apply=%sum
  %sine = f32[4]{0} sine(%y)
  ROOT %both = (f32[], f32[4]) tuple(%total, %sine)
}
"""
    lines = text.splitlines()
    moved = "\n".join([*lines[:11], lines[13], *lines[11:13], *lines[14:]])
    renamed = text.replace("%total", "%t.7").replace("%sum", "%region_0.3").replace("main", "entry")
    normal = hlo.normalise_optimised(text)
    for same in (moved, renamed):
        assert hlo.normalise_optimised(same) == normal
    for old, new in (
        ("sine(%y)", "sine(%x)"),
        ("constant(0)", "constant(1)"),
        ("add(%a", "multiply(%a"),
        ("sine(", "cosine("),
    ):
        assert hlo.normalise_optimised(text.replace(old, new)) != normal, (old, new)


def test_the_order_of_factors_does_not_count():
    text = "HloModule m\n\nENTRY %main (x: f32[], y: f32[]) -> f32[] {{\n  %x = f32[] parameter(0)\n  %y = f32[] parameter(1)\n"
    text += "  ROOT %r = f32[] {}\n}}\n"
    product, swapped, total, other, difference, negative = (
        hlo.normalise_optimised(text.format(t))
        for t in (
            "multiply(%x, %y)",
            "multiply(%y, %x)",
            "add(%x, %y)",
            "add(%y, %x)",
            "subtract(%x, %y)",
            "subtract(%y, %x)",
        )
    )
    assert product == swapped
    assert len({product, total, other, difference, negative}) == 5


def test_effects_keep_their_order():
    text = """HloModule one

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %one = () custom-call(%x), custom_call_target="one", custom_call_has_side_effect=true
  %two = () custom-call(%x), custom_call_target="two", custom_call_has_side_effect=true
  ROOT %sine = f32[4]{0} sine(%x)
}
"""
    lines = text.splitlines()
    swapped = "\n".join([*lines[:4], lines[5], lines[4], *lines[6:]])
    once = "\n".join([*lines[:5], *lines[6:]])
    twice = "\n".join([*lines[:5], *lines[4:]])
    assert len({hlo.normalise_optimised(t) for t in (text, swapped, once, twice)}) == 4


def test_functions_of_different_arguments_differ_where_jit_drops_the_others():
    args = (jnp.ones(3), jnp.ones(3))
    assert hlo.same_optimised(lambda x, y: jnp.sin(x), lambda x, y: jnp.sin(x), args)
    assert not hlo.same_optimised(lambda x, y: jnp.sin(x), lambda x, y: jnp.sin(y), args)


def test_xla_stops_where_its_hlo_is_optimised():
    """What is compared is what the whole compilation has, before it has an order; what else the process compiles is
    compiled to its end."""

    def f(x):
        return jnp.tanh(x @ x.T).sum()

    lowered, options = hlo._lower(f, [X], False, "stopped"), hlo._options()
    (stopped,) = hlo._optimised(lowered, "jit_stopped", options, jax_compat.prepared_compilation(lowered, options))
    (whole,) = jax_compat.prepared_compilation(lowered, dict(hlo._QUICKLY))()
    texts = [jax_compat.text_of_modules([module]).replace("is_scheduled=true, ", "") for module in (stopped, whole)]
    assert hlo.normalise_optimised(texts[0]) == hlo.normalise_optimised(texts[1])
    lowered = hlo._lower(f, [X], False, "given_up")
    with jax_compat.stopped_before_code("jit_given_up") as found:
        assert jax.jit(lambda x: x + 1.0)(X).shape == X.shape
        with pytest.raises(jax.errors.JaxRuntimeError):
            lowered.compile()
    assert len(found) == 1
    np.testing.assert_allclose(jax.jit(f)(X), f(X), rtol=1e-6)


def test_what_other_threads_compile_meanwhile_is_compiled():
    from jax._src import compiler

    class Lowered:
        def compile(self, options):
            with ThreadPoolExecutor(1) as other:
                self.found = other.submit(jax.jit(lambda x: x + 41.0), X).result()
            return hlo._lower(jnp.sin, [X], False, "prepared").compile(options)

    before = compiler.backend_compile_and_load, compiler._get_cache_key
    lowered = Lowered()
    prepared = jax_compat.prepared_compilation(lowered, dict(hlo._QUICKLY))
    assert (lowered.found == X + 41.0).all()
    assert (compiler.backend_compile_and_load, compiler._get_cache_key) == before
    assert "sine" in jax_compat.text_of_modules(prepared())
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        jax_compat.prepared_compilation(hlo._lower(jnp.sin, [X], False, "prepared"), {"xla_of_tomorrow": True})()


@pytest.fixture
def apart(monkeypatch):
    """The programs that are compiled by themselves."""
    compiled = []
    normalised = hlo._normalised
    monkeypatch.setattr(hlo, "_normalised", lambda program: compiled.append(program) or normalised(program))
    return compiled


def test_two_programs_are_compiled_side_by_side(apart):
    def f(x, y):
        return jnp.sin(x) @ x.T * 1.0 + y, jnp.negative(jnp.negative(x))

    def same(x, y):
        return jnp.sin(x) @ x.T + y, x

    x, y = jnp.ones((3, 3)), jnp.zeros((3, 3))
    assert hlo.same_optimised(f, same, [x, y])
    assert not apart
    for other in (
        lambda x, y: (jnp.sin(x) @ x.T + y * 2.0, x),
        lambda x, y: (jnp.sin(x) @ x.T + x, x),  # of the same types, but of another argument
        lambda x, y: (jnp.sin(y) @ y.T + x, y),
        lambda x, y: same(x, y)[::-1],
        lambda x, y: (same(x, y)[0], same(x, y)[0]),
    ):
        assert not hlo.same_optimised(f, other, [x, y])


@pytest.fixture
def compiled(monkeypatch):
    """What XLA is called for."""
    calls = []
    optimised = hlo._optimised
    monkeypatch.setattr(hlo, "_optimised", lambda *args: calls.append(args) or optimised(*args))
    return calls


def test_what_is_begun_is_compiled_once(compiled, apart):
    answer = hlo.OptimisedAlike(lambda x: x * 1.0, lambda x: x, [X])
    assert answer() and answer()
    assert len(compiled) == 1 and not apart


def test_programs_that_compute_constants_are_functions_side_by_side(apart):
    """In one function they would share them, and XLA could make them part of one of both."""
    x = jnp.ones((2, 3, 4))

    def f(x):
        frequencies = jax.lax.pow(10000.0 * jnp.ones(4), jax.lax.iota(jnp.float32, 4))
        return jnp.sin(x * frequencies) * 1.0

    def g(x):
        frequencies = jax.lax.pow(10000.0 * jnp.ones(4), jax.lax.iota(jnp.float32, 4))
        return jnp.sin(x * frequencies)

    assert hlo.same_optimised(f, g, [x])
    assert not apart
    assert not hlo.same_optimised(f, lambda x: g(x) * 2.0, [x])
    assert not hlo.same_optimised(lambda x, y: (f(x), y), lambda x, y: (g(y), x), [x, x])
    assert hlo.same_optimised(lambda x, y, z: (f(z), x), lambda x, y, z: (g(z), x), [x, x, x])  # one is read by neither
    assert not hlo.same_optimised(lambda x, y: f(y), lambda x, y: f(x), [x, x])
    big = jnp.arange(60.0).reshape(3, 4, 5)
    frequencies = lambda: jax.lax.exp(jax.lax.iota(jnp.float32, 5))  # noqa: E731
    assert hlo.same_optimised(lambda x: frequencies() * big * x * 1.0, lambda x: frequencies() * big * x, [big])
    assert not hlo.same_optimised(lambda x: frequencies() * big * x, lambda x: frequencies() * (big + 1) * x, [big])


def test_an_original_is_begun_before_there_is_anything_to_compare_it_with(compiled):
    def f(x):
        return jnp.sin(x * lax.exp(lax.iota(jnp.float32, 3))) * 1.0

    def g(x):
        return jnp.sin(x * lax.exp(lax.iota(jnp.float32, 3)))

    assert hlo.begin_alone(jax.make_jaxpr(jnp.sin)(X), [X]) is None
    original = jax.make_jaxpr(f)(X)
    first = hlo.begin_alone(original, [X], always=True)
    assert hlo.OptimisedAlike(original, jax.make_jaxpr(g)(X), [X], first=first)()
    assert len(compiled) == 2
    assert not hlo.OptimisedAlike(original, jax.make_jaxpr(jnp.sin)(X), [X], first=first)()
    assert len(compiled) == 3


def test_halves_of_a_program_are_compared():
    text = """HloModule m

ENTRY %main (a: f32[], b: f32[], c: f32[], d: f32[]) -> (f32[], f32[]) {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  %c = f32[] parameter(2)
  %d = f32[] parameter(3)
  %one = f32[] constant(1)
  %sum = f32[] add(%a, %one)
  %left = f32[] subtract(%sum, %b)
  %sum.1 = f32[] add(%c, {})
  %right = f32[] subtract({})
  ROOT %both = (f32[], f32[]) tuple(%left, %right)
}}
"""
    assert hlo.same_halves(text.format("%one", "%sum.1, %d"), 2)
    for operands in (("%d", "%sum.1, %d"), ("%one", "%d, %sum.1"), ("%one", "%sum.1, %c"), ("%one", "%sum, %d")):
        assert not hlo.same_halves(text.format(*operands), 2)


def test_called_halves_are_told_by_their_texts_first():
    text = """HloModule m

%sum (s: f32[], t: f32[]) -> f32[] {{
  %s = f32[] parameter(0)
  %t = f32[] parameter(1)
  ROOT %add = f32[] add(%s, %t)
}}

%most (s.1: f32[], t.1: f32[]) -> f32[] {{
  %s.1 = f32[] parameter(0)
  %t.1 = f32[] parameter(1)
  ROOT %max = f32[] maximum(%s.1, %t.1)
}}

%f (p: f32[4], q: f32[4]) -> f32[] {{
  %p = f32[4]{{0}} parameter(0)
  %q = f32[4]{{0}} parameter(1)
  %product = f32[4]{{0}} multiply(%p, %q)
  %zero = f32[] constant(0)
  ROOT %total = f32[] reduce(%product, %zero), dimensions={{0}}, to_apply=%sum
}}

%g (p.1: f32[4], q.1: f32[4]) -> f32[] {{
  %p.1 = f32[4]{{0}} parameter(0)
  %q.1 = f32[4]{{0}} parameter(1)
  %product.1 = f32[4]{{0}} multiply({})
  %zero.1 = f32[] constant(0)
  ROOT %total.1 = f32[] reduce({}, %zero.1), dimensions={{0}}, to_apply={}
}}

ENTRY %main (a: f32[4], b: f32[4], c: f32[4], d: f32[4]) -> (f32[], f32[]) {{
  %a = f32[4]{{0}} parameter(0)
  %b = f32[4]{{0}} parameter(1)
  %c = f32[4]{{0}} parameter(2)
  %d = f32[4]{{0}} parameter(3)
  %left = f32[] call(%a, %b), to_apply=%f
  %right = f32[] call(%c, %d), to_apply=%g
  ROOT %both = (f32[], f32[]) tuple(%left, %right)
}}
"""
    for at_once, at_all, *operands in (
        (True, True, "%p.1, %q.1", "%product.1", "%sum"),
        (False, True, "%q.1, %p.1", "%product.1", "%sum"),  # the order of factors
        (False, False, "%p.1, %p.1", "%product.1", "%sum"),
        (False, False, "%p.1, %q.1", "%q.1", "%sum"),
        (False, False, "%p.1, %q.1", "%product.1", "%most"),
    ):
        assert hlo._same_halves(text.format(*operands), 2, in_order=True) == at_once, operands
        assert hlo.same_halves(text.format(*operands), 2) == at_all, operands
    # Of computations that are not there nothing is known.
    unknown = text.replace("to_apply=%sum", "to_apply=%one").format("%p.1, %q.1", "%product.1", "%two")
    assert not hlo.same_halves(unknown, 2)


def test_programs_lowered_in_one_context_say_the_same() -> None:
    def f(x: Any) -> Any:
        return jnp.sin(x) @ x.T

    x = jnp.ones((3, 4))
    closed = jax.make_jaxpr(f)(x)
    texts = {jax_compat.lowered(closed, [x], False, "f").as_text() for _ in range(25)}
    assert len(texts) == 1


@pytest.mark.parametrize(
    "constant, alone",
    [
        (lambda: -jnp.ones(5) * 2, False),
        (lambda: jnp.log(jnp.full(5, 3.0)).sum() / jnp.sqrt(jnp.full(5, 2.0)), False),
        (lambda: jnp.sin(jnp.arange(5.0)), True),
        (lambda: jnp.cumsum(jnp.full(5, 3.0)), True),
    ],
)
def test_only_dear_constants_need_functions_of_their_own(constant: Any, alone: bool) -> None:
    assert hlo._computes_constants(jax.make_jaxpr(lambda x: x + constant())(jnp.ones(5))) is alone


def test_a_guess_that_fails_leaves_tracebacks_as_they_were() -> None:
    with jax_compat.unfiltered_tracebacks(), pytest.raises(TypeError):
        jnp.dot(jnp.ones(3), jnp.ones(4))
    with pytest.raises(TypeError) as error:
        jax.jit(lambda x: jnp.dot(x, jnp.ones(4)))(jnp.ones(3))
    assert error.value.__notes__
