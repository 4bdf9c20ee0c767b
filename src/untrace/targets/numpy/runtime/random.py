"""Threefry: a key is an array of two words."""

from __future__ import annotations

import numpy as np

from untrace.print.jax.runtime import helper


@helper("np", last="_threefry")
def _threefry(a, b, x, y):
    """Two words of random bits for a key of two words and a count of two."""
    a, b, x, y = [np.asarray(word, np.uint32) for word in (a, b, x, y)]
    keys = (a, b, a ^ b ^ np.uint32(0x1BD11BDA))
    x, y = x + a, y + b
    for turn in range(5):
        for bits in ((13, 15, 26, 6), (17, 29, 16, 24))[turn % 2]:
            x = x + y
            y = ((y << np.uint32(bits)) | (y >> np.uint32(32 - bits))) ^ x
        x, y = x + keys[(turn + 1) % 3], y + keys[(turn + 2) % 3] + np.uint32(turn + 1)
    return x, y


@helper("np", last="_seeded")
def _seeded(seed):
    """The key of a seed."""
    bits = np.asarray(seed).astype(np.int64) if np.asarray(seed).dtype.itemsize < 8 else np.asarray(seed)
    high = (bits >> 32) & 0xFFFFFFFF if np.asarray(seed).dtype.itemsize == 8 else np.zeros_like(bits)
    return np.stack([high, bits & 0xFFFFFFFF], -1).astype(np.uint32)


@helper("np", needs=("_threefry",), last="_words")
def _words(key, shape):
    """Two arrays of words for each key, each element by its place."""
    places = np.arange(np.prod(shape, dtype=np.int64)).reshape(shape)
    first, second = [key[..., i].reshape(key.shape[:-1] + (1,) * len(shape)) for i in (0, 1)]
    return _threefry(first, second, (places >> 32).astype(np.uint32), (places & 0xFFFFFFFF).astype(np.uint32))


@helper("np", needs=("_words",), last="_random_bits")
def _random_bits(key, shape):
    """Random words of 32 bits."""
    high, low = _words(key, shape)
    return high ^ low


@helper("np", needs=("_words",), last="_split")
def _split(key, shape):
    """New keys."""
    return np.stack(_words(key, shape), -1)


@helper("np", needs=("_threefry", "_seeded"), last="_folded_in")
def _folded_in(key, number):
    """The key with a number in it."""
    words = _seeded(number)
    return np.stack(_threefry(key[..., 0], key[..., 1], words[..., 0], words[..., 1]), -1)
