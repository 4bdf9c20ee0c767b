"""`train_step` (optax_adamw_step.py:15).

untrace 0.1.0 · jax 0.10.2 · proven: same compiled program
"""

import jax.numpy as jnp
from optax import EmptyState, ScaleByAdamState


def _weakly_typed(x, dtype):
    """`x` as an array of a type that gives way to that of other arrays, as Python's numbers do."""
    from jax.extend.core import primitives

    return primitives.convert_element_type_p.bind(x, new_dtype=jnp.dtype(dtype), weak_type=True, sharding=None)


def loss(params, x, y):
    """Args: params: {"b": f32[], "w": f32[3]}; x: f32[4,3]; y: f32[4].  Returns: (f32[], f32[4])."""
    prediction = x @ params["w"] + params["b"]
    difference = prediction - y
    return jnp.mean(difference**2), 2.0 * difference


def update_fn(state, d_b, d_w):
    """Args: state: (count=i32[], mu={...}, nu={...}); d_b: f32[]; d_w: f32[3].
    Returns: ({"b": f32[], "w": f32[3]}, {"b": f32[], "w": f32[3]}, i32[], f32[], f32[3]).
    """
    mu = 0.1 * d_b + 0.9 * state.mu["b"]
    mu_2 = 0.1 * d_w + 0.9 * state.mu["w"]
    nu = 0.001 * d_b**2 + 0.999 * state.nu["b"]
    nu_2 = 0.001 * d_w**2 + 0.999 * state.nu["w"]
    count_inc = jnp.where(state.count < 2147483647, state.count + 1, 2147483647)
    difference = 1.0 - 0.9**count_inc
    difference_2 = 1.0 - 0.999**count_inc
    updates = mu / difference / (jnp.sqrt(nu / difference_2 + 0.0) + 1e-08)
    updates_2 = mu_2 / difference / (jnp.sqrt(nu_2 / difference_2 + 0.0) + 1e-08)
    return (
        {"b": mu, "w": mu_2},
        {"b": nu.astype(jnp.float32), "w": nu_2},
        count_inc,
        updates,
        updates_2,
    )


def update(state, params, d_b, d_w):
    """Args: state: (count=i32[], mu={...}, nu={...}); params: {"b": f32[], "w": f32[3]};
    d_b: f32[]; d_w: f32[3].
    Returns: (like params, like params, i32[], f32[], f32[3]).
    """
    mu, nu, count_inc, updates, updates_2 = update_fn(state, d_b, d_w)
    return (
        mu,
        nu,
        count_inc,
        -0.001 * (updates + 0.0001 * params["b"]),
        -0.001 * (updates_2 + 0.0001 * params["w"]),
    )


def train_step(params, state, x, y):
    """Args: params: {"b": f32[], "w": f32[3]};
    state: (ScaleByAdamState(...), EmptyState(), EmptyState()); x: f32[4,3]; y: f32[4].
    Returns: (like params, like state, f32[]).
    """
    # forward
    value, scaled = loss(params, x, y)

    # backward
    d_difference = 0.25 * scaled  # f32[4]  optax_adamw_step.py:12
    d_b = _weakly_typed(d_difference.sum(), jnp.float32)  # optax_adamw_step.py:11
    new_mu, new_nu, count_inc, updates, updates_2 = update(
        state[0], params, d_b, d_difference @ x
    )
    return (
        {"b": params["b"] + updates, "w": params["w"] + updates_2},
        (
            ScaleByAdamState(count=count_inc, mu=new_mu, nu=new_nu),
            EmptyState(),
            EmptyState(),
        ),
        value,
    )
