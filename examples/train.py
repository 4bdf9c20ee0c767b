import jax
import jax.numpy as jnp


def loss_fn(params, x, y):
    w, b = params
    error = jnp.tanh(x @ w + b) - y
    return jnp.mean(error**2)


def train_step(params, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss
