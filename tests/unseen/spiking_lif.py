"""
Recurrent spiking network trained by surrogate gradients (SuperSpike, Zenke & Ganguli 2018).

Two populations: a recurrent layer of adaptive leaky integrate-and-fire cells (ALIF) reads latency
coded input spikes, and a layer of non-spiking leaky integrators reads the recurrent layer. The
loss is the cross entropy of the maximum-over-time membrane potential, plus activity penalties.

Times are in ms, potentials dimensionless (threshold 1, rest 0).
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax, random

LIBRARY = "jax"
KIND = "train_step"
SOURCE = "self"


# ------------------------------------------------------------------ spike nonlinearity
@partial(jax.custom_vjp, nondiff_argnums=(1,))
def spike(v, beta):
    """Heaviside forward, fast-sigmoid derivative backward."""
    return (v > 0).astype(v.dtype)


def _spike_fwd(v, beta):
    return spike(v, beta), v


def _spike_bwd(beta, v, g):
    return (g / (1.0 + beta * jnp.abs(v)) ** 2,)


spike.defvjp(_spike_fwd, _spike_bwd)


# ------------------------------------------------------------------ model
class Constants(NamedTuple):
    n_in: int = 20
    n_rec: int = 32
    n_out: int = 4
    dt: float = 1.0
    tau_mem: float = 10.0
    tau_syn: float = 5.0
    tau_adapt: float = 60.0
    adapt_strength: float = 0.2
    beta: float = 10.0
    rate_target: float = 0.05
    reg_rate: float = 2.0
    reg_weight: float = 1e-4

    @property
    def decays(self):
        return {
            "mem": jnp.exp(-self.dt / self.tau_mem),
            "syn": jnp.exp(-self.dt / self.tau_syn),
            "adapt": jnp.exp(-self.dt / self.tau_adapt),
        }


class Cell(NamedTuple):
    v: jax.Array
    i_syn: jax.Array
    adapt: jax.Array
    z: jax.Array


class Readout(NamedTuple):
    v: jax.Array
    i_syn: jax.Array


class AdamState(NamedTuple):
    count: jax.Array
    m: dict
    v: dict


def init_weights(key, c: Constants):
    k_in, k_rec, k_out = random.split(key, 3)
    return {
        "w_in": random.normal(k_in, (c.n_in, c.n_rec)) * 1.2 / jnp.sqrt(c.n_in),
        "w_rec": random.normal(k_rec, (c.n_rec, c.n_rec)) * 0.5 / jnp.sqrt(c.n_rec),
        "w_out": random.normal(k_out, (c.n_rec, c.n_out)) / jnp.sqrt(c.n_rec),
        "b_out": jnp.zeros(c.n_out),
    }


def alif_step(cell: Cell, drive, w_rec, c: Constants):
    d = c.decays
    no_autapse = w_rec * (1.0 - jnp.eye(c.n_rec))
    i_syn = d["syn"] * cell.i_syn + drive + cell.z @ no_autapse
    adapt = d["adapt"] * cell.adapt + (1.0 - d["adapt"]) * cell.z
    # the reset is not differentiated through
    v = d["mem"] * cell.v * (1.0 - lax.stop_gradient(cell.z)) + (1.0 - d["mem"]) * i_syn
    threshold = 1.0 + c.adapt_strength * c.tau_adapt * adapt
    return Cell(v, i_syn, adapt, spike(v - threshold, c.beta))


def readout_step(out: Readout, z, w, b, c: Constants):
    d = c.decays
    i_syn = d["syn"] * out.i_syn + z @ w
    return Readout(d["mem"] * out.v + (1.0 - d["mem"]) * (i_syn + b), i_syn)


def run_network(weights, spikes_in, c: Constants):
    """spikes_in: (T, n_in) for a single example."""
    zeros = jnp.zeros(c.n_rec)
    init = (Cell(zeros, zeros, zeros, zeros), Readout(jnp.zeros(c.n_out), jnp.zeros(c.n_out)))
    drive = 4.0 * spikes_in @ weights["w_in"]  # the input projection does not depend on the state

    def step(carry, drive_t):
        cell, out = carry
        cell = alif_step(cell, drive_t, weights["w_rec"], c)
        out = readout_step(out, cell.z, weights["w_out"], weights["b_out"], c)
        return (cell, out), (cell.z, out.v)

    _, (z, v_out) = lax.scan(step, init, drive)
    return z, v_out


def loss_fn(weights, spikes_in, labels, c: Constants):
    z, v_out = jax.vmap(run_network, in_axes=(None, 0, None))(weights, spikes_in, c)
    logits = v_out.max(axis=1)
    log_p = jax.nn.log_softmax(logits)
    nll = -jnp.mean(jnp.take_along_axis(log_p, labels[:, None], axis=1))
    rate = z.mean(axis=(0, 1))
    rate_penalty = jnp.sum(jnp.square(jax.nn.relu(rate - c.rate_target)) + jnp.square(jax.nn.relu(0.01 - rate)))
    l2 = jtu.tree_reduce(lambda acc, w: acc + jnp.sum(w**2), weights, 0.0)
    accuracy = jnp.mean(jnp.argmax(logits, axis=1) == labels)
    aux = {"nll": nll, "accuracy": accuracy, "rate": rate, "silent": jnp.mean(rate == 0.0)}
    return nll + c.reg_rate * rate_penalty + c.reg_weight * l2, aux


# ------------------------------------------------------------------ optimiser
def adam_init(params):
    zeros = jtu.tree_map(jnp.zeros_like, params)
    return AdamState(jnp.zeros([], jnp.int32), zeros, zeros)


def adam_update(grads, state: AdamState, params, lr, b1=0.9, b2=0.999, eps=1e-8):
    count = state.count + 1
    m = jtu.tree_map(lambda m, g: b1 * m + (1 - b1) * g, state.m, grads)
    v = jtu.tree_map(lambda v, g: b2 * v + (1 - b2) * g * g, state.v, grads)
    c1, c2 = 1 - b1**count, 1 - b2**count
    new = jtu.tree_map(lambda p, m, v: p - lr * (m / c1) / (jnp.sqrt(v / c2) + eps), params, m, v)
    return new, AdamState(count, m, v)


def train_step(weights, opt: AdamState, spikes_in, labels, *, c: Constants, lr=2e-3, clip=1.0):
    (loss, aux), grads = jax.value_and_grad(loss_fn, has_aux=True)(weights, spikes_in, labels, c)
    norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in jtu.tree_leaves(grads)))
    grads = jtu.tree_map(lambda g: g * jnp.minimum(1.0, clip / (norm + 1e-6)), grads)
    weights, opt = adam_update(grads, opt, weights, lr)
    return weights, opt, dict(aux, loss=loss, grad_norm=norm)


# ------------------------------------------------------------------ data
def latency_code(x, n_steps, tau=15.0, threshold=0.2):
    """Stronger inputs fire earlier; inputs below the threshold never fire."""
    t_fire = jnp.where(x > threshold, tau * jnp.log(x / jnp.maximum(x - threshold, 1e-6)), n_steps)
    t_fire = jnp.clip(t_fire, 0, n_steps).astype(jnp.int32)
    return jax.nn.one_hot(t_fire, n_steps, axis=0)


def build():
    c = Constants()
    k_proto, k_label, k_jitter, k_init = random.split(random.PRNGKey(1), 4)
    prototypes = random.uniform(k_proto, (c.n_out, c.n_in))
    labels = random.randint(k_label, (8,), 0, c.n_out)
    x = jnp.clip(prototypes[labels] + 0.05 * random.normal(k_jitter, (8, c.n_in)), 0.0, 1.0)
    spikes_in = jax.vmap(partial(latency_code, n_steps=40))(x)
    weights = init_weights(k_init, c)
    return partial(train_step, c=c), (weights, adam_init(weights), spikes_in, labels)
