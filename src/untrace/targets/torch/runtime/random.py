"""Threefry: a key is a tensor of two words, each an int64 below 2**32."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from untrace.python.helpers import helper

if TYPE_CHECKING:
    import torch


@helper(last="_threefry", target="torch")
def _threefry(a, b, x, y):
    """Two words of random bits for a key of two words and a count of two."""
    mask = 0xFFFFFFFF
    keys = (a, b, a ^ b ^ 0x1BD11BDA)
    x, y = (x + a) & mask, (y + b) & mask
    for turn in range(5):
        for bits in ((13, 15, 26, 6), (17, 29, 16, 24))[turn % 2]:
            x = (x + y) & mask
            y = ((y << bits | y >> 32 - bits) & mask) ^ x
        x, y = (x + keys[(turn + 1) % 3]) & mask, (y + keys[(turn + 2) % 3] + turn + 1) & mask
    return x, y


@helper("torch", "math", last="_counted", target="torch")
def _counted(shape):
    """The places of the elements of a tensor as two words each."""
    places = torch.arange(math.prod(shape)).reshape(shape)
    return places >> 32, places & 0xFFFFFFFF


@helper("torch", last="_seeded", target="torch")
def _seeded(seed, wide=False):
    """The key of a seed."""
    bits = seed.to(torch.int64)
    high = bits >> 32 & 0xFFFFFFFF if wide else torch.zeros_like(bits)
    return torch.stack([high, bits & 0xFFFFFFFF], -1)


@helper(needs=("_threefry", "_counted"), last="_words", target="torch")
def _words(key, shape):
    """Two tensors of words for each key, each element by its place."""
    first, second = [key[..., i].reshape(key.shape[:-1] + (1,) * len(shape)) for i in (0, 1)]
    return _threefry(first, second, *_counted(shape))


@helper(needs=("_words",), last="_random_bits", target="torch")
def _random_bits(key, shape, width=32):
    """Random words of so many bits."""
    high, low = _words(key, shape)
    return (high ^ low) & (1 << width) - 1


@helper("torch", needs=("_words",), last="_split", target="torch")
def _split(key, shape):
    """New keys."""
    return torch.stack(_words(key, shape), -1)


@helper("torch", needs=("_threefry", "_seeded"), last="_folded_in", target="torch")
def _folded_in(key, number, wide=False):
    """The key with a number in it."""
    words = _seeded(number, wide)
    return torch.stack(_threefry(key[..., 0], key[..., 1], words[..., 0], words[..., 1]), -1)


@helper("torch", needs=("_threefry",), last="_words_together", target="torch")
def _words_together(key, count):
    """Words for each key, of which the first half is counted beside the second."""
    numbers = torch.arange(count + count % 2)
    numbers = torch.where(numbers < count, numbers, 0)
    parts = _threefry(key[..., :1], key[..., 1:], *numbers.chunk(2))
    return torch.cat(parts, -1)[..., :count]


@helper("torch", "math", needs=("_words_together",), last="_random_bits_together", target="torch")
def _random_bits_together(key, shape, width=32):
    """Random words of so many bits, as with `jax_threefry_partitionable` off."""
    size = math.prod(shape)
    bits = _words_together(key, -(-width * size // 32))
    if width < 32:
        parts = bits[..., None] >> torch.arange(0, 32, width) & (1 << width) - 1
        bits = parts.reshape(*bits.shape[:-1], -1)[..., :size]
    return bits.reshape(key.shape[:-1] + tuple(shape))


@helper("math", needs=("_words_together",), last="_split_together", target="torch")
def _split_together(key, shape):
    """New keys, as with `jax_threefry_partitionable` off."""
    return _words_together(key, 2 * math.prod(shape)).reshape((*key.shape[:-1], *shape, 2))
