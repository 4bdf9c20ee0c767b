"""Instances of one class that run different parts of its code: one function, with a test for each part."""

from __future__ import annotations

import importlib.util
import re

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'untrace[torch]' (Python 3.11)")
if importlib.util.find_spec("torchax") is None:
    pytest.skip("torchax is not installed: pip install 'untrace[torch]'", allow_module_level=True)

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import untrace  # noqa: E402
from untrace.torch.bridge import numpy_of  # noqa: E402


def written(model, *inputs):
    """The text of a model, which gives PyTorch's outputs."""
    made = untrace.from_torch(model)(*inputs)
    assert made.proof.at_least("bits")
    with torch.no_grad():
        wanted = model(*inputs)
    loaded = made.module.load_params(model.state_dict())
    found = made(*(loaded if type(loaded) is tuple else (loaded,)), *[numpy_of(x) for x in inputs])
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(ours, numpy_of(theirs), rtol=1e-4, atol=1e-5)
    return made.source.split("# PyTorch's tensors")[0]


def function(text, name):
    """One function of a text, without comments."""
    found = re.search(rf"^def {name}\(.*?(?=^def |\Z)", text, re.M | re.S)
    assert found is not None, f"{name} is none of {functions(text)}"
    return re.sub(r"\s*# .*", "", found[0])


def functions(text):
    return re.findall(r"^def ([a-z]\w*)\(", text, re.M)


class Attention(nn.Module):
    """Of itself or of a memory, with a bias that it makes, is given, or does not have."""

    def __init__(self, width, has_bias=False, is_causal=False):
        super().__init__()
        self.is_causal = is_causal
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        if has_bias:
            self.bias = nn.Embedding(16, 1)

    def forward(self, x, memory=None, bias=None):
        states = x if memory is None else memory
        q, k, v = self.q(x), self.k(states), self.v(states)
        scores = q @ k.transpose(1, 2)
        if bias is None and hasattr(self, "bias"):
            place = torch.arange(x.shape[1])
            bias = self.bias(place[None, :] - place[:, None] + 8)[..., 0]
        if bias is not None:
            scores = scores + bias
        if self.is_causal:
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
            scores = scores.masked_fill(~mask, -1e9)
        return scores.softmax(-1) @ v, bias


class Layer(nn.Module):
    def __init__(self, width, has_bias, is_decoder):
        super().__init__()
        self.is_decoder = is_decoder
        self.attention = Attention(width, has_bias, is_causal=is_decoder)
        if is_decoder:
            self.cross = Attention(width)

    def forward(self, x, memory=None, bias=None):
        out, bias = self.attention(x, bias=bias)
        x = x + out
        if self.is_decoder:
            x = x + self.cross(x, memory)[0]
        return torch.tanh(x), bias


class EncoderDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleList([Layer(4, i == 0, False) for i in range(2)])
        self.decoder = nn.ModuleList([Layer(4, i == 0, True) for i in range(2)])

    def forward(self, x, y):
        bias = None
        for layer in self.encoder:
            x, bias = layer(x, bias=bias)
        bias = None
        for layer in self.decoder:
            y, bias = layer(y, x, bias)
        return y


def test_encoder_decoder_cross_and_self_attention_are_one_function():
    torch.manual_seed(0)
    text = written(EncoderDecoder().eval(), torch.randn(2, 5, 4), torch.randn(2, 3, 4))
    assert sorted(functions(text)) == ["attention", "encoder_decoder", "layer"]
    attention = function(text, "attention")
    assert "memory=None" in attention and "bias=None" in attention and "is_causal=False" in attention
    assert "states = x if memory is None else memory" in attention
    assert 'if "bias" in params:' in attention and "if is_causal:" in attention
    assert attention.count('params["q"]["weight"]') == attention.count('params["k"]["weight"]') == 1
    layer = function(text, "layer")
    assert layer.count("attention(") == 2
    # A result that only the first layer's caller reads.
    assert re.search(r"x, _ = layer\(\s*params\[\"encoder\"\]\[\"1\"\]", function(text, "encoder_decoder"))


class Window(nn.Module):
    def __init__(self, shift):
        super().__init__()
        self.shift = shift
        self.mix = nn.Linear(6, 6)

    def forward(self, x):
        rolled = torch.roll(x, -self.shift, 1) if self.shift > 0 else x
        mixed = torch.sigmoid(self.mix(rolled)) * 2
        if self.shift > 0:
            mixed = torch.roll(mixed, self.shift, 1)
        return x + mixed


def test_what_some_wrap_around_a_value():
    torch.manual_seed(0)
    text = written(nn.Sequential(Window(0), Window(2)), torch.randn(3, 6))
    window = function(text, "window")
    assert functions(text).count("window") == 1 and "window_2" not in text
    assert window.count("if shift > 0") == 2 and re.search(r"shift=\d", window)
    assert window.count('params["mix"]["weight"]') == 1


class Norm(nn.Module):
    def __init__(self, data_format):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4))
        self.data_format = data_format

    def forward(self, x):
        if self.data_format == "channels_last":
            return F.layer_norm(x, (4,), self.weight)
        centred = x - x.mean(1, keepdim=True)
        spread = (centred * centred).mean(1, keepdim=True)
        return centred / torch.sqrt(spread + 1e-6) * self.weight[:, None]


class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = Norm("channels_first"), Norm("channels_last")

    def forward(self, x):
        return self.last(self.first(x).transpose(1, 2))


def test_a_word_that_chooses():
    torch.manual_seed(0)
    norm = function(written(Norms(), torch.randn(2, 4, 7)), "norm")
    assert re.search(r'if data_format == "channels_(first|last)":', norm)


class Gated(nn.Module):
    """The last one's first result is not read."""

    def __init__(self):
        super().__init__()
        self.gate, self.keep, self.skip = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        z = torch.tanh(self.gate(x)) * x
        return x + self.keep(z), self.skip(z)


class Skips(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Gated() for _ in range(3)])

    def forward(self, x):
        skips = []
        for layer in self.layers:
            x, skip = layer(x)
            skips.append(skip)
        return torch.stack(skips).sum(0)


def test_a_result_that_is_not_read_is_given_all_the_same():
    torch.manual_seed(0)
    text = written(Skips(), torch.randn(2, 4))
    assert functions(text) == ["gated", "skips"]
    assert re.search(r"return x \+ .+, .+", function(text, "gated"))
    assert " if " not in function(text, "gated")


def buckets(x, bidirectional):
    found = 0
    if bidirectional:
        found = (x > 0).float() * 8
        x = x.abs()
    else:
        x = -torch.minimum(x, torch.zeros_like(x))
    small = torch.log1p(x) * 3
    return found + torch.where(x < 4, small, torch.sqrt(small + 1) + torch.tanh(x))


class Distances(nn.Module):
    def forward(self, x):
        return buckets(x, True) * 2 + buckets(x * 3, False) + buckets(x + 1, True) + buckets(x - 1, False)


def test_the_flag_of_a_helper_is_the_condition_of_its_if():
    text = written(Distances(), torch.randn(5, 3))
    assert functions(text).count("buckets") == 1 and "buckets_2" not in text
    assert "bidirectional" in function(text, "buckets").partition("\n")[0]


class Either(nn.Module):
    """Two ways that have nothing in common."""

    def __init__(self, kind):
        super().__init__()
        self._kind = kind
        self.weight = nn.Parameter(torch.rand(4))

    def forward(self, x):
        if self._kind:
            return torch.fft.rfft(x * self.weight).abs().cumsum(-1).mean(-1, keepdim=True).expand(x.shape) + torch.sin(
                x
            )
        return (
            torch.sort(x, -1)[0].roll(1, -1).clamp(-1, 1).pow(3).sub(self.weight.prod()).logsumexp(0, keepdim=True) + x
        )


def test_the_authors_if_between_two_ways():
    torch.manual_seed(0)
    text = written(nn.Sequential(Either(0), Either(1)), torch.randn(3, 4))
    assert functions(text) == ["either", "sequential"]
    assert "kind=False" in text and "    if kind:" in function(text, "either")
    assert 'either(params["0"], input), kind=True)' in text
