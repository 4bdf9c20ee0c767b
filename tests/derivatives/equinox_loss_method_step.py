"""Masked sequence autoencoder in equinox: the loss is a method of the module, differentiated in the module itself.

`eqx.filter_value_and_grad` of the method; dropout keys for each sequence, and optax over the arrays of the module.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

LIBRARY = "equinox"
KIND = "train_step"
SOURCE = "self"
DERIVATIVES = ("value_and_grad loss",)
FEATURES, HIDDEN, CODE, LENGTH = 4, 8, 5, 6

optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))


class GRU(eqx.Module):
    input_weight: jax.Array
    hidden_weight: jax.Array
    bias: jax.Array
    hidden_size: int = eqx.field(static=True)

    def __init__(self, inputs, hidden_size, key):
        input_key, hidden_key = jax.random.split(key)
        self.input_weight = jax.random.normal(input_key, (inputs, 3 * hidden_size)) / jnp.sqrt(inputs)
        self.hidden_weight = jax.random.normal(hidden_key, (hidden_size, 3 * hidden_size)) / jnp.sqrt(hidden_size)
        self.bias = jnp.zeros(3 * hidden_size)
        self.hidden_size = hidden_size

    def __call__(self, hidden, x):
        input_gates = jnp.split(x @ self.input_weight + self.bias, 3)
        hidden_gates = jnp.split(hidden @ self.hidden_weight, 3)
        reset = jax.nn.sigmoid(input_gates[0] + hidden_gates[0])
        update = jax.nn.sigmoid(input_gates[1] + hidden_gates[1])
        candidate = jnp.tanh(input_gates[2] + reset * hidden_gates[2])
        return update * hidden + (1.0 - update) * candidate


class Dense(eqx.Module):
    weight: jax.Array
    bias: jax.Array

    def __init__(self, inputs, outputs, key):
        self.weight = jax.random.normal(key, (inputs, outputs)) / jnp.sqrt(inputs)
        self.bias = jnp.zeros(outputs)

    def __call__(self, x):
        return x @ self.weight + self.bias


class SequenceAutoencoder(eqx.Module):
    encoder: GRU
    decoder: GRU
    to_code: Dense
    to_hidden: Dense
    readout: Dense
    drop_rate: float = eqx.field(static=True)

    def __init__(self, key, drop_rate=0.2):
        keys = jax.random.split(key, 5)
        self.encoder = GRU(FEATURES, HIDDEN, keys[0])
        self.decoder = GRU(FEATURES, HIDDEN, keys[1])
        self.to_code = Dense(HIDDEN, CODE, keys[2])
        self.to_hidden = Dense(CODE, HIDDEN, keys[3])
        self.readout = Dense(HIDDEN, FEATURES, keys[4])
        self.drop_rate = drop_rate

    def encode(self, sequence):
        start = jnp.zeros(self.encoder.hidden_size)
        hidden, _ = jax.lax.scan(lambda h, x: (self.encoder(h, x), None), start, sequence)
        return self.to_code(hidden)

    def decode(self, code):
        def step(carry, _):
            hidden, x = carry
            hidden = self.decoder(hidden, x)
            x = self.readout(hidden)
            return (hidden, x), x

        start = (jnp.tanh(self.to_hidden(code)), jnp.zeros(FEATURES))
        _, sequence = jax.lax.scan(step, start, length=LENGTH)
        return sequence

    def reconstruct(self, sequence, key):
        code = self.encode(sequence)
        keep = jax.random.bernoulli(key, 1.0 - self.drop_rate, code.shape)
        return self.decode(jnp.where(keep, code / (1.0 - self.drop_rate), 0.0)), code

    def loss(self, sequences, mask, key):
        keys = jax.random.split(key, sequences.shape[0])
        outputs, codes = jax.vmap(self.reconstruct)(sequences, keys)
        errors = jnp.mean((outputs - sequences) ** 2, axis=-1)
        reconstruction = jnp.sum(errors * mask) / jnp.sum(mask)
        return reconstruction + 1e-3 * jnp.mean(jnp.abs(codes)), codes


def train_step(model, opt_state, sequences, mask, key):
    value_and_grad = eqx.filter_value_and_grad(SequenceAutoencoder.loss, has_aux=True)
    (loss, codes), grads = value_and_grad(model, sequences, mask, key)
    updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), opt_state, {"loss": loss, "code_std": jnp.std(codes)}


def build():
    model = SequenceAutoencoder(jax.random.key(0))
    opt_state = optimizer.init(eqx.filter(model, eqx.is_array))
    sequences = jnp.cumsum(0.3 * jax.random.normal(jax.random.key(1), (3, LENGTH, FEATURES)), axis=1)
    mask = (jnp.arange(LENGTH) < jnp.array([[6], [4], [5]])).astype(jnp.float32)
    return train_step, (model, opt_state, sequences, mask, jax.random.key(2))
