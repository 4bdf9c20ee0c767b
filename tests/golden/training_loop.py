"""`train` (training_loop.py:33).

untrace 0.1.0 · jax 0.10.2 · proven: same compiled program
"""

import jax
import jax.numpy as jnp
from jax import lax
from gallery.training_loop import State


@jax.jit
def train_step(state, batch):
    """Args: state: State(params={...}, momentum={...}, step=i32[]);
    batch: (f32[16,4], f32[16,2]).
    Returns: (like state, f32[]).
    """
    params_w2 = state.params["w2"]
    x, y = batch

    # forward
    total = x @ state.params["w1"] + state.params["b1"]
    hidden = jax.nn.relu(total)
    difference = hidden @ params_w2 + state.params["b2"] - y
    loss = jnp.mean(difference**2)

    # backward
    d_difference = 0.03125 * (2.0 * difference)
    d_total = jnp.where(total > 0.0, d_difference @ params_w2.T, 0.0)
    grads = {
        "b1": d_total.sum(axis=0),
        "b2": d_difference.sum(axis=0),
        "w1": x.T @ d_total,
        "w2": hidden.T @ d_difference,
    }
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state.momentum, grads)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, state.params, momentum)
    return State(params=params, momentum=momentum, step=state.step + 1), loss


def train(params, batches):
    """Args: params: {"b1": f32[8], "b2": f32[2], "w1": f32[4,8], "w2": f32[8,2]};
    batches: (f32[5,16,4], f32[5,16,2]).
    Returns: (like params, f32[5]).
    """
    state, losses = lax.scan(
        train_step,
        State(params=params, momentum=jax.tree.map(jnp.zeros_like, params), step=0),
        batches,
    )
    return state.params, losses
