"""A transformer block of flax.nnx, as a function of its state."""

import jax
import jax.numpy as jnp
from flax import nnx


class Block(nnx.Module):
    def __init__(self, width, rngs):
        self.norm1 = nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, width, decode=False, rngs=rngs)
        self.norm2 = nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm1(x))
        hidden = jax.nn.gelu(self.up(self.norm2(x)))
        return x + self.down(hidden)


def build():
    graph, state = nnx.split(Block(8, nnx.Rngs(0)))
    params = nnx.to_pure_dict(state)

    def forward(params, x):
        nnx.replace_by_pure_dict(state, params)
        return nnx.merge(graph, state)(x)

    return forward, (params, jnp.ones((2, 6, 8)))
