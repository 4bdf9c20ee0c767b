"""Caches of keys and values as arguments: state in and out, of any length, compared with PyTorch."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'untrace[torch]' (Python 3.11)")
if importlib.util.find_spec("torchax") is None:  # not imported here: by itself it does not load under PyTorch 2.13
    pytest.skip("torchax is not installed: pip install 'untrace[torch]'", allow_module_level=True)

import jax  # noqa: E402
from torch import nn  # noqa: E402

import untrace  # noqa: E402
from untrace.torch.bridge import numpy_of  # noqa: E402


class Layer:
    def __init__(self):
        self.keys = self.values = None


class Cache:
    """As those of transformers: layers with keys and values, which a module fills."""

    def __init__(self, layers=2):
        self.layers = [Layer() for _ in range(layers)]

    def update(self, number, keys, values):
        layer = self.layers[number]
        layer.keys = keys if layer.keys is None else torch.cat([layer.keys, keys], 1)
        layer.values = values if layer.values is None else torch.cat([layer.values, values], 1)
        return layer.keys, layer.values


class Attention(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number
        self.qkv = nn.Linear(6, 18)

    def forward(self, x, cache):
        q, k, v = self.qkv(x).chunk(3, -1)
        k, v = cache.update(self.number, k, v)
        return x + torch.softmax(q @ k.transpose(1, 2) / 6**0.5, -1) @ v


class Decoder(nn.Module):
    """Gives the new tokens back, and the cache in its argument."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Attention(0), Attention(1)])

    def forward(self, x, cache):
        for layer in self.layers:
            x = layer(x, cache)
        return x


class Listed(nn.Module):
    """Adds to a list that it is given."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, past):
        past.append(self.fc(x))
        return sum(past)


def test_a_cache_comes_back_behind_the_result_and_may_be_of_any_length():
    torch.manual_seed(0)
    model = Decoder().eval()
    cache = Cache()
    with torch.no_grad():
        model(torch.randn(3, 5, 6), cache)
    x = torch.randn(3, 1, 6)
    written = untrace.from_torch(model)(x, cache)
    assert cache.layers[0].keys.shape == (3, 5, 6)  # the caller's is left as it was
    notes = written.proof.notes
    assert any("output[1][0][0]" in n for n in notes), notes
    assert any("gradients" in n and "not compared" not in n for n in notes), notes
    assert any("cache[0][0].shape[1] = cache[0][1].shape[1]" in n for n in notes), notes
    params = written.module.load_params(model.state_dict())
    state = tuple((numpy_of(y.keys), numpy_of(y.values)) for y in cache.layers)
    for _ in range(3):
        with torch.no_grad():
            expected = model(x, cache)
        out, state = jax.jit(written)(params, numpy_of(x), state)
        np.testing.assert_allclose(out, numpy_of(expected), atol=1e-5)
        np.testing.assert_allclose(state[1][1], numpy_of(cache.layers[1].values), atol=1e-5)
    assert state[0][0].shape == (3, 8, 6)


def test_an_empty_cache_is_filled():
    torch.manual_seed(0)
    model, cache, x = Decoder().eval(), Cache(), torch.randn(2, 4, 6)
    written = untrace.from_torch(model)(x, cache)
    assert cache.layers[0].keys is None
    out, state = written(written.module.load_params(model.state_dict()), numpy_of(x))
    with torch.no_grad():
        expected = model(x, cache)
    np.testing.assert_allclose(out, numpy_of(expected), atol=1e-5)
    np.testing.assert_allclose(state[1][0], numpy_of(cache.layers[1].keys), atol=1e-5)


def test_a_list_that_grows_comes_back():
    torch.manual_seed(0)
    model, x, past = Listed().eval(), torch.randn(2, 4), [torch.randn(2, 4)]
    written = untrace.from_torch(model)(x, past)
    out, new = written(written.module.load_params(model.state_dict()), numpy_of(x), [numpy_of(p) for p in past])
    assert len(past) == 1 and len(new) == 2
    with torch.no_grad():
        np.testing.assert_allclose(out, numpy_of(model(x, past)), atol=1e-6)
    np.testing.assert_allclose(new[1], numpy_of(past[1]), atol=1e-6)


def test_caches_of_an_encoder_and_decoder_are_two():
    from untrace.torch import trees

    class Both:
        def __init__(self):
            self.self_attention_cache, self.cross_attention_cache = Cache(2), Cache(1)

    both, zero = Both(), torch.zeros(1, 2)
    for layer in (*both.self_attention_cache.layers, *both.cross_attention_cache.layers):
        layer.keys = layer.values = zero
    assert [len(pair) for pair in trees.cache_layers(both)] == [4, 2]
    made = trees.rebuilt(both, ((1, 2, 3, 4), (5, 6)), lambda value: zero + value)
    assert float(made.cross_attention_cache.layers[0].values.sum()) == 8.0
    assert float(made.self_attention_cache.layers[1].values.sum()) == 12.0
    assert float(both.self_attention_cache.layers[1].values.sum()) == 0.0
