"""PRNG keys of every implementation, typed and raw, and what is drawn from them."""

from __future__ import annotations

import jax
import jax.extend.core.primitives as primitives
import jax.numpy as jnp
from jax import lax

from suite.control import vector
from suite.registry import Program, case

IMPLEMENTATIONS = ("threefry2x32", "rbg", "unsafe_rbg")


def draws(key, n: int = 5):
    """A few draws of different kinds."""
    a, b, c = jax.random.split(key, 3)
    return (
        jax.random.normal(a, (n,)),
        jax.random.uniform(b, (2, n), minval=-1.0),
        jax.random.bits(c, (n,), jnp.uint16),
        jax.random.randint(jax.random.fold_in(c, 7), (3,), 0, 10),
    )


@case("random_bits", "random_split", "random_fold_in", vmap=True)
def key_typed_threefry() -> Program:
    return draws, (jax.random.key(0),)


@case("random_bits", "random_split", "random_fold_in", vmap=True)
def key_typed_rbg() -> Program:
    return draws, (jax.random.key(1, impl="rbg"),)


@case("random_bits", "random_split", "random_fold_in", vmap=True)
def key_typed_unsafe_rbg() -> Program:
    return draws, (jax.random.key(2, impl="unsafe_rbg"),)


@case("random_wrap", "random_unwrap", vmap=True)
def key_raw_threefry() -> Program:
    return draws, (jax.random.PRNGKey(3),)


@case("random_wrap")
def key_raw_wrapped_by_name() -> Program:
    def fn(data):
        return [draws(jax.random.wrap_key_data(data, impl=name)) for name in ("rbg", "unsafe_rbg")]

    return fn, (jnp.arange(4, dtype=jnp.uint32),)


@case("random_seed", vmap=True)
def key_made_inside() -> Program:
    def fn(seed):
        keys = [jax.random.key(seed, impl=name) for name in IMPLEMENTATIONS]
        return [jax.random.normal(key, (2,)) for key in keys], keys

    return fn, (jnp.uint32(5),)


@case("random_seed", "random_unwrap")
def key_from_literal_seed() -> Program:
    def fn(x):
        return x + jax.random.normal(jax.random.PRNGKey(42), x.shape), jax.random.PRNGKey(-1)

    return fn, (vector(),)


@case("random_fold_in", "scan")
def key_fold_in_scan() -> Program:
    def fn(key, xs):
        def body(c, x):
            return c + jax.random.normal(jax.random.fold_in(key, c.astype(int))), c * x

        return lax.scan(body, jnp.float32(0), xs)

    return fn, (jax.random.key(0), vector())


@case("random_split", "scan")
def key_as_carry_and_xs() -> Program:
    def fn(key, keys):
        def body(k, other):
            k, sub = jax.random.split(k)
            return k, (jax.random.uniform(sub), jax.random.bernoulli(other, 0.3), sub)

        return lax.scan(body, key, keys)

    return fn, (jax.random.key(0), jax.random.split(jax.random.key(1), 4))


@case("cond", "while", "random_split")
def key_in_cond_and_while() -> Program:
    def fn(key, n):
        def body(s):
            i, key, x = s
            key, sub = jax.random.split(key)
            x = lax.cond(i % 2 == 0, lambda k: jax.random.normal(k), lambda k: x, sub)
            return i + 1, key, x

        return lax.while_loop(lambda s: s[0] < n, body, (0, key, jnp.float32(0)))

    return fn, (jax.random.key(0, impl="rbg"), jnp.int32(3))


@case("random_wrap", vmap=True)
def key_arrays_and_indexing() -> Program:
    """Keys are sliced, stacked, gathered, selected and reshaped like other arrays."""

    def fn(keys, flag):
        chosen = jnp.where(flag, keys[0], keys[-1])
        moved = keys[jnp.array([2, 0])].reshape(2, 1).T
        stacked = jnp.stack([chosen, keys[1]])
        data = jax.random.wrap_key_data(jax.random.key_data(stacked) + 1)
        return chosen, moved, stacked, data, keys.at[0].set(chosen)

    return fn, (jax.random.split(jax.random.key(0), 3), jnp.bool_(True))


@case("random_unwrap", vmap=True)
def key_data_typed() -> Program:
    def fn(a, b):
        return jax.random.key_data(a), jax.random.key_data(b), a, jax.random.clone(b)

    return fn, (jax.random.key(0), jax.random.key(0, impl="unsafe_rbg"))


@case("random_bits", grad=True)
def key_dropout_gradient() -> Program:
    def fn(key, x):
        keep = jax.random.bernoulli(key, 0.5, x.shape)
        return jnp.where(keep, x / 0.5, 0.0) * x

    return fn, (jax.random.key(0), vector())


@case("jit")
def key_distributions() -> Program:
    def fn(key):
        k = jax.random.split(key, 12)
        return (
            jax.random.gamma(k[0], 2.5, (3,)),
            jax.random.categorical(k[3], jnp.log(jnp.array([0.2, 0.8])), shape=(4,)),
            jax.random.permutation(k[4], 6),
            jax.random.choice(k[5], jnp.arange(5), (2,), replace=False),
            jax.random.truncated_normal(k[6], -1.0, 1.0, (3,)),
            jax.random.multivariate_normal(k[7], jnp.zeros(2), jnp.eye(2)),
            jax.random.gumbel(k[8], (2,), jnp.bfloat16),
            jax.random.exponential(k[9], (2,), jnp.float16),
            jax.random.rademacher(k[11], (4,)),
        )

    return fn, (jax.random.key(0),)


@case("random_gamma", grad=True)
def key_gamma_gradient() -> Program:
    return lambda key, a: jax.random.gamma(key, a), (jax.random.key(3), vector(3) + 1)


@case("random_bits", x64=True)
def key_draws_x64() -> Program:
    def fn(key):
        return jax.random.normal(key, (3,)), jax.random.bits(key, (2,), jnp.uint64)

    return fn, (jax.random.key(0),)


@case("threefry2x32", vmap=True)
def threefry_primitive() -> Program:
    def fn(key, x):
        return primitives.threefry2x32_p.bind(key[0], key[1], x, x + jnp.uint32(1))

    return fn, (jnp.array([1, 2], jnp.uint32), jnp.arange(4, dtype=jnp.uint32))


@case("threefry2x32", "scan")
def threefry_in_scan() -> Program:
    def fn(key, xs):
        def body(c, x):
            a, b = primitives.threefry2x32_p.bind(c[0], c[1], x, x)
            return (a, b), a ^ b

        return lax.scan(body, (key[0], key[1]), xs)

    return fn, (jnp.array([1, 2], jnp.uint32), jnp.arange(4, dtype=jnp.uint32))


@case("threefry2x32", "cond", "jit")
def threefry_in_cond() -> Program:
    def fn(p, x):
        def draw(x):
            return jax.jit(primitives.threefry2x32_p.bind)(x, x + 1, x, x)[0]

        return lax.cond(p, draw, lambda v: v, x)

    return fn, (jnp.bool_(True), jnp.arange(4, dtype=jnp.uint32))


@case("rng_bit_generator", vmap=False)
def rng_bits_each_algorithm() -> Program:
    def fn(key):
        outs = [
            lax.rng_bit_generator(key, (3,), jnp.uint32, algorithm=a)
            for a in (lax.RandomAlgorithm.RNG_DEFAULT, lax.RandomAlgorithm.RNG_PHILOX)
        ]
        return outs, lax.rng_bit_generator(key, (2, 2), jnp.uint8)

    return fn, (jnp.arange(4, dtype=jnp.uint32),)


@case("rng_uniform", deterministic=False)
def rng_uniform_plain() -> Program:
    return lambda a, b: lax.rng_uniform(a, b, (3, 2)), (jnp.float32(0), jnp.float32(1))


@case("rng_uniform", "scan", deterministic=False)
def rng_uniform_in_scan() -> Program:
    def fn(a, xs):
        return lax.scan(lambda c, x: (c, lax.rng_uniform(c, x, (2,))), a, xs)

    return fn, (jnp.float32(0), vector())


@case("rng_uniform", "cond", deterministic=False)
def rng_uniform_in_cond() -> Program:
    def fn(p, a):
        return lax.cond(p, lambda v: lax.rng_uniform(v, v + 5, ()), lambda v: v * 2, a)

    return fn, (jnp.bool_(True), jnp.int32(3))


@case("random_seed", "random_bits")
def key_reused_implementation_config() -> Program:
    def fn(x):
        with jax.default_prng_impl("rbg"):
            return x + jax.random.uniform(jax.random.key(0), x.shape)

    return fn, (vector(),)
