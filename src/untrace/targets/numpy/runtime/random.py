"""Threefry: a key is an array of two words."""

from __future__ import annotations

import numpy as np

from untrace.python.helpers import helper


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


@helper("np", last="_counted")
def _counted(shape):
    """The places of the elements of an array as two words each."""
    places = np.arange(np.prod(shape, dtype=np.uint64), dtype=np.uint64).reshape(shape)
    return (places >> 32).astype(np.uint32), places.astype(np.uint32)


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
def _random_bits(key, shape, width=32):
    """Random words of so many bits."""
    high, low = _words(key, shape)
    return (high.astype(np.uint64) << 32) | low if width == 64 else (high ^ low).astype(f"u{width // 8}")


@helper("np", needs=("_words",), last="_split")
def _split(key, shape):
    """New keys."""
    return np.stack(_words(key, shape), -1)


@helper("np", needs=("_threefry", "_seeded"), last="_folded_in")
def _folded_in(key, number):
    """The key with a number in it."""
    words = _seeded(number)
    return np.stack(_threefry(key[..., 0], key[..., 1], words[..., 0], words[..., 1]), -1)


@helper("np", needs=("_threefry",), last="_words_together")
def _words_together(key, count):
    """Words for each key, of which the first half is counted beside the second."""
    numbers = np.arange(count + count % 2, dtype=np.uint32)
    numbers[count:] = 0
    parts = _threefry(key[..., :1], key[..., 1:], *np.split(numbers, 2))
    return np.concatenate(parts, -1)[..., :count]


@helper("np", needs=("_words_together",), last="_random_bits_together")
def _random_bits_together(key, shape, width=32):
    """Random words of so many bits, as with `jax_threefry_partitionable` off."""
    size = int(np.prod(shape))
    bits = _words_together(key, -(-width * size // 32))
    if width == 64:
        high, low = np.split(bits.astype(np.uint64), 2, -1)
        bits = (high << 32) | low
    elif width < 32:
        parts = bits[..., None] >> np.arange(0, 32, width, dtype=np.uint32)
        bits = parts.reshape(*bits.shape[:-1], -1)[..., :size].astype(f"u{width // 8}")
    return bits.reshape(key.shape[:-1] + tuple(shape))


@helper("np", needs=("_words_together",), last="_split_together")
def _split_together(key, shape):
    """New keys, as with `jax_threefry_partitionable` off."""
    return _words_together(key, 2 * int(np.prod(shape))).reshape((*key.shape[:-1], *shape, 2))
