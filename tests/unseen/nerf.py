"""Minimal NeRF: one optimisation step on a batch of rays.

Follows Mildenhall et al. (2020) without the hierarchical fine network: stratified samples along
each ray, a skip-connected MLP for density and colour, and alpha compositing on a white background.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

NUM_POSITION_FREQS = 4
NUM_DIRECTION_FREQS = 2
HIDDEN_WIDTH = 32
TRUNK_DEPTH = 4
SKIP_LAYER = 2
NEAR, FAR = 2.0, 6.0


class RayBatch(NamedTuple):
    origins: jax.Array  # [rays, 3]
    directions: jax.Array  # [rays, 3], not necessarily unit length
    colors: jax.Array  # [rays, 3]


class TrainState(NamedTuple):
    step: jax.Array
    params: dict[str, Any]
    opt_state: optax.OptState


def positional_encoding(x: jax.Array, num_freqs: int) -> jax.Array:
    """Concatenates x with sin/cos features at octave frequencies along the last axis."""
    bands = 2.0 ** jnp.arange(num_freqs)
    angles = (x[..., None, :] * bands[:, None]).reshape(*x.shape[:-1], -1)
    return jnp.concatenate([x, jnp.sin(angles), jnp.cos(angles)], axis=-1)


def init_dense(key: jax.Array, fan_in: int, fan_out: int) -> dict[str, jax.Array]:
    kernel = jax.nn.initializers.glorot_uniform()(key, (fan_in, fan_out))
    return {"kernel": kernel, "bias": jnp.zeros(fan_out)}


def dense(layer: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return x @ layer["kernel"] + layer["bias"]


def init_nerf(key: jax.Array) -> dict[str, Any]:
    pos_dim = 3 * (1 + 2 * NUM_POSITION_FREQS)
    dir_dim = 3 * (1 + 2 * NUM_DIRECTION_FREQS)
    *trunk_keys, k_sigma, k_feat, k_view, k_rgb = jax.random.split(key, TRUNK_DEPTH + 4)
    trunk = []
    for i, k in enumerate(trunk_keys):
        fan_in = pos_dim if i == 0 else HIDDEN_WIDTH + (pos_dim if i == SKIP_LAYER else 0)
        trunk.append(init_dense(k, fan_in, HIDDEN_WIDTH))
    return {
        "trunk": trunk,
        "sigma": init_dense(k_sigma, HIDDEN_WIDTH, 1),
        "feature": init_dense(k_feat, HIDDEN_WIDTH, HIDDEN_WIDTH),
        "view": init_dense(k_view, HIDDEN_WIDTH + dir_dim, HIDDEN_WIDTH // 2),
        "rgb": init_dense(k_rgb, HIDDEN_WIDTH // 2, 3),
    }


def apply_nerf(params: dict[str, Any], points: jax.Array, viewdirs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns (rgb, raw density) for points [..., 3] seen from unit viewdirs [..., 3]."""
    encoded = positional_encoding(points, NUM_POSITION_FREQS)
    h = encoded
    for i, layer in enumerate(params["trunk"]):
        if i == SKIP_LAYER:
            h = jnp.concatenate([h, encoded], axis=-1)
        h = jax.nn.relu(dense(layer, h))
    sigma = dense(params["sigma"], h)[..., 0]
    view = jnp.concatenate([dense(params["feature"], h), positional_encoding(viewdirs, NUM_DIRECTION_FREQS)], axis=-1)
    view = jax.nn.relu(dense(params["view"], view))
    return jax.nn.sigmoid(dense(params["rgb"], view)), sigma


def stratified_depths(key: jax.Array, num_rays: int, num_samples: int) -> jax.Array:
    edges = jnp.linspace(NEAR, FAR, num_samples + 1)
    jitter = jax.random.uniform(key, (num_rays, num_samples))
    return edges[:-1] + jitter * (edges[1:] - edges[:-1])


def composite(rgb: jax.Array, sigma: jax.Array, depths: jax.Array, ray_norm: jax.Array):
    """Volume rendering quadrature along the sample axis, composited onto white."""
    deltas = jnp.diff(depths, axis=-1, append=jnp.full_like(depths[..., :1], 1e10))
    alpha = 1.0 - jnp.exp(-jax.nn.relu(sigma) * deltas * ray_norm)
    transmittance = jnp.cumprod(1.0 - alpha[..., :-1] + 1e-10, axis=-1)
    transmittance = jnp.concatenate([jnp.ones_like(alpha[..., :1]), transmittance], axis=-1)
    weights = alpha * transmittance
    acc = jnp.sum(weights, axis=-1)
    color = jnp.sum(weights[..., None] * rgb, axis=-2) + (1.0 - acc)[..., None]
    return color, {"depth": jnp.sum(weights * depths, axis=-1), "acc": acc}


def render_rays(params, key, rays: RayBatch, num_samples: int):
    depths = stratified_depths(key, rays.origins.shape[0], num_samples)
    ray_norm = jnp.linalg.norm(rays.directions, axis=-1, keepdims=True)
    points = rays.origins[:, None, :] + rays.directions[:, None, :] * depths[..., None]
    viewdirs = jnp.broadcast_to((rays.directions / ray_norm)[:, None, :], points.shape)
    rgb, sigma = apply_nerf(params, points, viewdirs)
    return composite(rgb, sigma, depths, ray_norm)


def make_train_step(optimizer: optax.GradientTransformation, num_samples: int = 16):
    def loss_fn(params, key, rays):
        predicted, aux = render_rays(params, key, rays, num_samples)
        mse = jnp.mean(jnp.square(predicted - rays.colors))
        return mse, {"psnr": -10.0 * jnp.log10(mse), "mean_depth": jnp.mean(aux["depth"]), "acc": jnp.mean(aux["acc"])}

    def train_step(state: TrainState, key: jax.Array, rays: RayBatch):
        (loss, metrics), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params, key, rays)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = dict(metrics, loss=loss, grad_norm=optax.global_norm(grads))
        return TrainState(state.step + 1, params, opt_state), metrics

    return train_step


def build():
    k_init, k_dir, k_col, k_step = jax.random.split(jax.random.key(0), 4)
    params = init_nerf(k_init)
    optimizer = optax.adam(optax.exponential_decay(5e-4, transition_steps=1000, decay_rate=0.1), eps=1e-7)
    state = TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))
    directions = jnp.array([0.0, 0.0, -1.0]) + 0.2 * jax.random.normal(k_dir, (24, 3))
    rays = RayBatch(jnp.tile(jnp.array([[0.0, 0.0, 4.0]]), (24, 1)), directions, jax.random.uniform(k_col, (24, 3)))
    return make_train_step(optimizer), (state, k_step, rays)
