"""jax.checkpoint with every policy, names, nesting, and what it leaves after differentiation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from suite.control import matrix, vector
from suite.registry import Program, case

POLICIES = jax.checkpoint_policies


def block(w, x):
    """Two layers with named values: something for each policy to save or not."""
    h = checkpoint_name(jnp.sin(x @ w), "hidden")
    y = checkpoint_name(jnp.tanh(h @ w.T), "output")
    return y * jnp.einsum("bi,bi->b", y, y)[:, None]


def program(policy=None, **options) -> Program:
    """Two checkpointed blocks under one policy."""

    def fn(w, x):
        step = jax.checkpoint(block, policy=policy, **options)
        return step(w, step(w, x))

    return fn, (matrix(3, 3), matrix(4, 3))


@case("remat2", "name", grad=True, vmap=True)
def remat_plain() -> Program:
    return program()


@case("remat2", grad=True)
def remat_no_prevent_cse() -> Program:
    return program(prevent_cse=False)


@case("remat2", grad=True)
def remat_everything_saveable() -> Program:
    return program(POLICIES.everything_saveable)


@case("remat2", grad=True)
def remat_nothing_saveable() -> Program:
    return program(POLICIES.nothing_saveable)


@case("remat2", grad=True, vmap=True)
def remat_dots_saveable() -> Program:
    return program(POLICIES.dots_saveable)


@case("remat2", grad=True)
def remat_checkpoint_dots() -> Program:
    return program(POLICIES.checkpoint_dots)


@case("remat2", grad=True, vmap=True)
def remat_dots_no_batch_dims() -> Program:
    return program(POLICIES.dots_with_no_batch_dims_saveable)


@case("remat2", grad=True)
def remat_checkpoint_dots_no_batch_dims() -> Program:
    return program(POLICIES.checkpoint_dots_with_no_batch_dims)


@case("remat2", grad=True)
def remat_save_only_names() -> Program:
    return program(POLICIES.save_only_these_names("hidden"))


@case("remat2", grad=True)
def remat_save_any_names_but() -> Program:
    return program(POLICIES.save_any_names_but_these("hidden", "other"))


@case("remat2", grad=True)
def remat_save_anything_except_names() -> Program:
    return program(POLICIES.save_anything_except_these_names("output"))


@case("remat2", grad=True)
def remat_save_from_both_policies() -> Program:
    policy = POLICIES.save_from_both_policies(POLICIES.dots_saveable, POLICIES.save_only_these_names("hidden"))
    return program(policy)


@case("remat2", grad=True)
def remat_offload_names() -> Program:
    policy = POLICIES.save_and_offload_only_these_names(
        names_which_can_be_saved=["hidden"],
        names_which_can_be_offloaded=[],
        offload_src="device",
        offload_dst="pinned_host",
    )
    return program(policy)


@case("remat2", grad=True)
def remat_user_policy() -> Program:
    """A policy that the user wrote: saves what `sin` makes."""

    def policy(primitive, *_, **__):
        return primitive.name == "sin"

    return program(policy)


@case("remat2", grad=True)
def remat_static_argument() -> Program:
    def fn(x):
        def inner(x, n):
            return jnp.sin(x) ** n

        return jax.checkpoint(inner, static_argnums=(1,))(x, 3)

    return fn, (vector(),)


@case("remat2", "scan", grad=True)
def remat_in_scan() -> Program:
    def fn(w, x):
        step = jax.checkpoint(lambda c, _: (jnp.tanh(c @ w), c.sum()), prevent_cse=False)
        return lax.scan(step, x, None, length=3)

    return fn, (matrix(3, 3), matrix(2, 3))


@case("remat2", "scan", grad=True)
def remat_of_scan() -> Program:
    def fn(w, x):
        def loop(x):
            return lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=3)[0]

        return jax.checkpoint(loop, policy=POLICIES.dots_saveable)(x)

    return fn, (matrix(3, 3), matrix(2, 3))


@case("remat2", "cond", grad=True, vmap=True)
def remat_with_cond() -> Program:
    def fn(p, x):
        def inner(x):
            return lax.cond(p > 0, jnp.sin, jnp.cos, x) * x

        return jax.checkpoint(inner)(x)

    return fn, (jnp.float32(1.0), vector())


@case("remat2", grad=True)
def remat_nested() -> Program:
    def fn(x):
        inner = jax.checkpoint(lambda v: jnp.sin(jnp.sin(v)))
        return jax.checkpoint(lambda v: inner(v) * inner(jnp.cos(v)))(x)

    return fn, (vector(),)


@case("remat2", grad=True)
def remat_gradient_inside() -> Program:
    """A program that is itself a gradient: remat with `differentiated=True`, a barrier in it."""

    def fn(w, x):
        return jax.grad(lambda w: jax.checkpoint(block)(w, x).sum())(w)

    return fn, (matrix(3, 3), matrix(4, 3))


@case("remat2")
def remat_second_gradient() -> Program:
    def fn(x):
        f = jax.checkpoint(lambda v: jnp.sin(v) * v * v)
        return jax.grad(jax.grad(f))(x), jax.hessian(f)(x)

    return fn, (jnp.float32(0.7),)


@case("remat2", "while")
def remat_while_forward() -> Program:
    def fn(x):
        loop = jax.checkpoint(lambda v: lax.while_loop(lambda s: s.sum() < 9, lambda s: s * 1.5, jnp.sin(v) + 1))
        return jax.jvp(loop, (x,), (x,))

    return fn, (vector(),)


@case("name", grad=True, vmap=True)
def name_plain() -> Program:
    return lambda x: checkpoint_name(jnp.sin(x), "activation") * 2, (vector(),)


@case("name", "scan", grad=True)
def name_hostile_in_scan() -> Program:
    def fn(c, xs):
        return lax.scan(lambda c, x: (checkpoint_name(c * x, 'a"\nimport os #\\'), c), c, xs)

    return fn, (jnp.float32(1.0), vector())


@case("name", "cond", vmap=True)
def name_of_pytree_in_cond() -> Program:
    def fn(p, x):
        def yes(v):
            return checkpoint_name({"a": v, "b": [v * 2]}, "tree")

        return lax.cond(p, yes, lambda v: {"a": v + 1, "b": [v]}, x)

    return fn, (jnp.bool_(True), vector())
