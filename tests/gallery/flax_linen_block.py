"""A transformer block of flax.linen."""

import flax.linen as nn
import jax
import jax.numpy as jnp


class MLP(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x):
        hidden = nn.gelu(nn.Dense(self.width)(x))
        return nn.Dense(x.shape[-1])(hidden)


class Block(nn.Module):
    heads: int = 2

    @nn.compact
    def __call__(self, x):
        attended = nn.MultiHeadDotProductAttention(self.heads)(nn.LayerNorm()(x))
        x = x + attended
        return x + MLP(32)(nn.LayerNorm()(x))


def build():
    block = Block()
    x = jnp.ones((2, 6, 8))
    variables = block.init(jax.random.key(0), x)
    return block.apply, (variables, x)
