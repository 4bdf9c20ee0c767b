"""One program for each simplification, and more where one does not say enough."""

from __future__ import annotations

import functools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import primitives


def spread(x):
    """Its gradient has helpers without a public name, whose static arguments are literals."""
    return jnp.var(x, axis=-1).sum()


def inside(function):
    """`function` inside shard_map, its first argument varying over the axis of a mesh."""

    def call(x, y):
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
        spec = jax.sharding.PartitionSpec
        return jax.shard_map(function, mesh=mesh, in_specs=(spec("data"), spec()), out_specs=spec("data"))(x, y)

    return call


def looped(x):
    """The primal loop of its gradient gets 0.5 twice: once for each of the steps."""

    def total(x):
        step = lambda c, _: (jnp.abs(c) ** 1.5 + jnp.abs(x) ** 1.5, None)  # noqa: E731
        return jnp.sum(lax.scan(step, x, length=3)[0])

    return jax.grad(total)(x)


def indexed(x):
    """A loop that reads, and in its gradient adds, at places that do not change."""
    order = jnp.argsort(x[0])

    def step(row, _):
        return jnp.sin(row)[order] * row, None

    return lax.scan(step, x[1], length=3)[0].sum()


def counted(most, x):
    """A loop whose end is known only once numbers are: `most` is computed outside."""
    return lax.while_loop(lambda c: c[0] < most, lambda c: (c[0] + 1.0, c[1] * most), (jnp.float32(0.0), x))[1]


def closing_over(wide, x):
    return lax.scan(lambda carry, _: (jnp.abs(carry) * 0.5 + wide, None), x, length=3)[0]


def summed(x, ys):
    """What the loop sums up comes to the loop of its gradient as a number that never changes."""
    step = lambda c, y: ((jnp.abs(c[0]) + y, c[1] + jnp.max(jnp.abs(c[0]))), None)  # noqa: E731
    return lax.scan(step, (x[0], jnp.float32(0.0)), ys)[0][1]


def empty_number():
    memory = {"memory_space": jax.memory.Space.Device}
    return primitives.empty2_p.bind(dtype=jnp.dtype("float32"), **memory)


def kicked(x, step=0.5):
    """The gradient of a loop: what a turn computes of numbers, and of a step, JAX takes out, once for each time."""

    def force(x):
        apart = jnp.sin(x)[:, None] - jnp.sin(x)[None, :]
        return ((1.0 - jnp.eye(3)) * apart / (jnp.abs(apart) + jnp.eye(3)) ** 1.5).sum(axis=1)

    def turn(x, _):
        x = x + 0.25 * step * force(x)
        return x + 0.25 * step * force(x), None

    return jnp.sum(lax.scan(turn, x, length=4)[0])


def handing_on(x, y):
    """Branches that both give an operand back, as the derivative of a choice on JAX 0.10 has them."""
    branches = tuple(jax.make_jaxpr(lambda a, b, f=f: (f(a) * b, b))(x, y) for f in (jnp.sin, jnp.cos))
    scaled, same = primitives.cond_p.bind((y[0, 0] > 0).astype(jnp.int32), x, y, branches=branches)
    return scaled - same


def chosen(x, y):
    """A loop that chooses in a choice: what was chosen is saved for the backward pass, from both."""
    sine = lambda c: jnp.where(y > 0, jnp.sin(c), c)  # noqa: E731
    inner = lambda c: lax.cond(y > c[0], sine, lambda c: c * c, c)  # noqa: E731

    def step(c, row):
        c = lax.cond(row[0] > 0, lambda c: inner(c) * row, lambda c: -c, c)
        return lax.switch(row[1].astype(jnp.int32), [lambda c: c * y, jnp.cos, lambda c: c + row], c), None

    return jnp.sum(lax.scan(step, x[0], x)[0])


def returns(rewards):
    """A loop from 0.0 carries a number of a weak type, and so does that of its gradient."""

    def step(later, reward):
        alive = reward > 0
        later = alive * jnp.sin(reward + 0.5 * later) + (1.0 - alive) * later
        return later, later

    return jnp.sum(lax.scan(step, 0.0, rewards, reverse=True)[1])


def density(x):
    """A library's density of a normal distribution, which computes with numbers what is one number."""
    names = {"jnp": jnp}
    text = "def log_prob(x):\n    return jnp.sum(-0.5 * x**2 - jnp.log(jnp.sqrt(6.2831855) * 5.0))"
    exec(compile(text, "/lib/site-packages/library/density.py", "exec"), names)
    return names["log_prob"](x)


@jax.custom_jvp
def scaled(x, y):
    return x * y


@functools.partial(scaled.defjvp, symbolic_zeros=True)
def _scaled_jvp(primals, tangents):
    """The rule calls its own function, and leaves out what is zero."""
    (x, y), (x_dot, y_dot) = primals, tangents
    parts = [d * v for d, v in ((x_dot, y), (y_dot, x)) if type(d) is not jax.custom_derivatives.SymbolicZero]
    return scaled(x, y), sum(parts[1:], parts[0])


def masked(x, y):
    """A loop that chooses by a mask with fewer axes than what it chooses between."""
    mask = jnp.array([True, False, True])
    return jax.lax.scan(lambda c, _: (jnp.where(mask, jnp.sin(c) * y, -1.0), None), x, None, length=3)[0]


def _mapped_rows(x, y):
    """The gradient of what a mapped index reads."""
    rows = jnp.array([1, 0, 1])
    return jax.grad(lambda v: jnp.sum(jax.vmap(lambda i: v[i])(rows) ** 2 * y.sum()))(x)


def solving(x, y):
    """Systems with several right-hand sides, each turn of a loop one."""

    def step(solution, row):
        solution = jnp.linalg.solve(jnp.eye(3) + jnp.outer(row, row), solution)
        return solution, solution.sum()

    return lax.scan(step, y.T, x)[1].sum()


# The name of a rewrite, and a function in whose trace it is made.
CASES = {
    "add_any_is_add": lambda x, y: primitives.add_jaxvals_p.bind(x, y),
    "multiply_by_one": lambda x, y: lax.mul(lax.mul(x, jnp.ones((2, 3))), y),
    "divide_by_one": lambda x, y: lax.div(x, jnp.ones((2, 3))) + y,
    "arithmetic_of_literals": lambda x, y: x * lax.div(lax.full((2, 3), 1.0), lax.full((2, 3), 3.0)) + y,
    "scalar_operand": lambda x, y: lax.sub(x, lax.full((2, 3), 0.3)) * y,
    "implicit_broadcast": lambda x, y: lax.mul(lax.broadcast_in_dim(jnp.sum(y, 1), (2, 3), (0,)), x),
    "negated_twice": lambda x, y: -(-x) + y,  # noqa: B002
    "negated_literal": lambda x, y: lax.neg(lax.full((2, 3), 3)).astype(jnp.float32) * x + y * lax.neg(jnp.ones((2, 3))),
    "same_type": lambda x, y: lax.neg(x) * y,  # its `neg` is made a conversion, see `_traced`
    "plain_conversion": lambda x, y: lax.convert_element_type(x, jnp.bfloat16) + y.astype(jnp.bfloat16),
    "preferred_type": lambda x, y: lax.dot_general(x, y.T, (((1,), (0,)), ((), ()))),
    "power_of_one": lambda x, y: lax.integer_pow(x, 1) * y,
    "one_index": lambda x, y: jax.grad(lambda v: (v.take(1, axis=1) ** 2).sum() + v.take(0, axis=0).sum())(x) + y,
    "add_zero_of_integers": lambda x, y: y * (0 + x.astype(jnp.int32) + jnp.zeros((2, 3), jnp.int32)),
    "subtract_zero": lambda x, y: lax.sub(x, jnp.zeros((2, 3))) * y,
    "and_true": lambda x, y: jnp.where((x > y) & jnp.ones((2, 3), bool), x, y),
    "batched_function": lambda x, y: jax.vmap(jax.nn.relu)(x) + y,
    "taken": lambda x, y: jax.grad(lambda v: (v.take(1, axis=1) * v.take(jnp.array([0, 1, -1]), axis=1).sum(1)).sum())(x) * y,
    "where_of_arrays": lambda x, y: lax.select(x > y, x, y * 2.0),
    "where_of_numbers": lambda x, y: x * lax.select(jnp.sum(x) > 0, np.float32(2.0), np.float32(-0.0))
    + lax.select(x > y, jnp.full((2, 3), 2.0), jnp.ones((2, 3))),
    "number_second": lambda x, y: jnp.where(lax.lt(np.float32(0.5), jnp.sum(x)), x, y),
    "padded": lambda x, y: lax.pad(x, np.float32(0.0), ((0, 0, 0), (0, 2, 0))) * lax.pad(y, np.float32(0.0), ((0, 0, 0), (2, 0, 0))),
    "whole_slice": lambda x, y: jax.grad(lambda a: jnp.sum(jnp.sin(jnp.pad(a, 1))[1:3, 2:] * y))(x) + y,
    "read_at_places": lambda x, y: _mapped_rows(x, y) + y,
    "added_at_places": lambda x, y: _mapped_rows(y, x) * y,
    "summed_at_once": lambda x, y: jax.grad(lambda b: jnp.sum(jnp.sin(x[None] * b.sum() + b) * y))(y[0]) + x,
    "axes_taken_back": lambda x, y: lax.squeeze(lax.broadcast_in_dim(x, (2, 1, 3, 1), (0, 2)), (1, 3)) + y,
    "cut": lambda x, y: lax.pad(x, np.float32(0.0), ((-1, 0, 0), (0, -1, 0))) + y[1:, :2],
    "stacked": lambda x, y: jax.vmap(lambda a, b: jnp.array([a[0] + b[1], a[1], b[2]]))(x, y),
    "split_into_one": lambda x, y: lax.split(x, (3,), 1)[0] + y,
    "converted_number": lambda x, y: x * y - lax.convert_element_type(lax.broadcast(0.5, (2, 3)), jnp.float32),
    "converted_literal": lambda x, y: jax.grad(spread)(x) + y,
    "comparison_of_literals": lambda x, y: jax.grad(spread)(x) - y,
    "select_by_literal": lambda x, y: jax.grad(spread)(x) * y,
    "transposed_twice": lambda x, y: lax.transpose(lax.transpose(x, (1, 0)), (1, 0)) - y,
    "reshaped_twice": lambda x, y: lax.reshape(lax.reshape(x, (6,)), (3, 2)) + y.T,
    "squeezed_number": lambda x, y: lax.squeeze(lax.broadcast_in_dim(2.0, (1, 2, 3), ()), (0,)) + x * y,
    "new_axes": lambda x, y: lax.reshape(x, (2, 1, 3)) + y,
    "broadcast_twice": lambda x, y: lax.broadcast_in_dim(lax.broadcast_in_dim(x, (1, 2, 3), (1, 2)), (4, 2, 3), (0, 1, 2)) - y,
    "sum_of_one": lambda x, y: lax.reduce_sum(lax.reshape(jnp.sum(x, 0), (1, 3)), (0,)) * y
    + lax.reduce_sum(lax.slice(x, (0, 1), (2, 2)), (1,))[:, None],
    "sharding_inside_shard_map": inside(
        lambda x, y: jax.grad(lambda a: jnp.sum(jnp.sin(a).sum(1) * a[:, 0]))(x) + y
    ),
    "implicit_pvary": inside(lambda x, y: x * y + 2.0),
    "indices_of_a_loop": lambda x, y: jax.grad(indexed)(x) + y,
    "carry_that_stays": lambda x, y: jax.grad(lambda x: summed(x, y))(x),
    "constants_of_a_loop": lambda x, y: looped(x) + y,
    "computed_before_a_loop": lambda x, y: jax.grad(lambda a: kicked(a[0]))(x) + y,
    "instantiated_zeros": scaled,
    "number_of_a_library": lambda x, y: density(x) + y,
    "types_of_constants": lambda x, y: jax.grad(lambda a: kicked(a, 0.5 * (x[0, 0] > 0)))(y[0]) + x,
    "strong_loop": lambda x, y: jax.grad(returns)(x[0]) + y,
    "where_with_scalar": lambda x, y: lax.select(x > y, x, jnp.zeros((2, 3))),
    "transposed_operand": lambda x, y: lax.dot_general(x, y, (((1,), (1,)), ((), ()))),
    "transposed_product": lambda x, y: jax.grad(lambda w: jnp.sum(jnp.sin(x @ w.T)))(y),
    "product_of_nothing": lambda x, y: jax.grad(lambda a: jnp.sin(a[0] @ y[0]))(x)
    + lax.dot_general(x[0, 1], y, (((), ()), ((), ()))),
    "put_back": lambda x, y: jax.grad(lambda a: jnp.sum(jnp.sin(a) / jnp.sin(a).sum(1, keepdims=True) * y))(x),
    "least_bound": lambda x, y: lax.max(np.float32(-np.inf), x) + lax.min(y, np.float32(np.inf)),
    "finite": lambda x, y: jnp.where((x == x) & (x != jnp.inf) & (x != -jnp.inf), x, y),
    "copied": lambda x, y: lax.copy_p.bind(x) * y,
    "first_power": lambda x, y: lax.pow(x, jnp.ones((2, 3))) + y,
    "empty": lambda x, y: x + lax.broadcast_in_dim(empty_number(), (2, 3), ()) * y,
    "square_and_zero": lambda x, y: lax.square(x) + jnp.zeros((2, 3)) - y,
    "square_of_zero": lambda x, y: lax.square(jnp.zeros((2, 3))) + lax.square(x) - y,
    "part_of_number": lambda x, y: lax.slice(jnp.ones((4, 3)), (1, 0), (3, 3)) * x + y,
    "share_of_a_choice": lambda x, y: lax.div(
        lax.select(x > y, jnp.ones((2, 3)), jnp.zeros((2, 3))), lax.select(x == y, jnp.full((2, 3), 2.0), jnp.ones((2, 3)))
    ) * x,
    "broadcasts_of_a_loop": lambda x, y: closing_over(jnp.broadcast_to(y[0], (2, 3)), x),
    "masks_of_a_loop": lambda x, y: jax.grad(lambda a: masked(a, y).sum())(x) + y,
    "dropped_outside": lambda x, y: jax.grad(lambda a: jnp.sin(a[jnp.array([1, 0, -1])]).sum())(x) * y,
    "outer_product": lambda x, y: jax.grad(lambda w: jnp.sin(x[0] @ w).sum())(jnp.ones((3, 3)))[:2] + y,
    "choice_of_negative": lambda x, y: jax.grad(lambda a: jax.nn.logsumexp(jnp.abs(a), axis=1).sum())(x) + y,
    "unread_number": lambda x, y: jax.jit(lambda a: (0, jnp.sin(a)))(x)[1] * y,
    "numbers_of_a_while": lambda x, y: counted(lax.mul(np.float32(2.0), np.float32(1.5)), x) + y,
    "part_that_was_set": lambda x, y: jax.grad(lambda a: jnp.sin(x.at[1, 1:].set(a[0, 1:])).sum())(y) * x,
    "one_place": lambda x, y: jax.grad(lambda a: jnp.sin(x.at[jnp.argmin(y[:, 0])].set(a[0])).sum())(y) - x,
    "saved_choice": lambda x, y: jax.grad(chosen)(x, y[0, 0]) + y,
    "choice_made_again": lambda x, y: jax.grad(chosen)(x, y[0, 0]) - y,
    "handed_on": handing_on,
    "derived_transpose": lambda x, y: jax.grad(solving)(x, y) + y,
}  # fmt: skip
