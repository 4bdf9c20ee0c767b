"""Small modules as people write them, each written once and run at other sizes, a batch of one among them."""

from __future__ import annotations

import importlib.util
import math
import re

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'untrace[torch]' (Python 3.11)")
if importlib.util.find_spec("torchax") is None:  # not imported here: by itself it does not load under PyTorch 2.13
    pytest.skip("torchax is not installed: pip install 'untrace[torch]'", allow_module_level=True)

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import untrace  # noqa: E402
from untrace.torch import trees  # noqa: E402
from untrace.torch.bridge import numpy_of  # noqa: E402
from untrace.torch.capture import capture  # noqa: E402


class Encoder(nn.Module):
    """PyTorch's own encoder layers, a padding mask, an average over what is there."""

    def __init__(self, dim=8):
        super().__init__()
        self.dim = dim
        self.embed = nn.Embedding(20, dim, padding_idx=0)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(dim, 2, 16, batch_first=True), 2)

    def forward(self, ids):
        pad = ids == 0
        x = self.encoder(self.embed(ids) * math.sqrt(self.dim), src_key_padding_mask=pad)
        keep = (~pad).unsqueeze(-1).float()
        return (x * keep).sum(1) / keep.sum(1).clamp(min=1)


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(5, 8)

    def forward(self, x, edge_index, batch, num_graphs=2):
        src, dst = edge_index
        messages = self.lin(x)[src]
        out = torch.zeros(x.size(0), messages.size(-1))
        out.index_add_(0, dst, messages)
        deg = torch.zeros(x.size(0)).scatter_add_(0, dst, torch.ones(dst.size(0)))
        out = out / deg.clamp(min=1).unsqueeze(-1)
        pooled = torch.full((num_graphs, out.size(1)), float("-inf"))
        return pooled.scatter_reduce(0, batch[:, None].expand_as(out), out, reduce="amax")


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.EmbeddingBag(30, 6, mode="mean")

    def forward(self, text, offsets):
        return self.embedding(text, offsets)


class Separable(nn.Module):
    """Depthwise convolution, squeeze and excite, hard activations."""

    def __init__(self):
        super().__init__()
        self.depthwise = nn.Conv2d(4, 4, 3, 2, 1, groups=4, bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.gate = nn.Sequential(nn.Conv2d(4, 2, 1), nn.ReLU(inplace=True), nn.Conv2d(2, 4, 1), nn.Hardsigmoid())

    def forward(self, x):
        x = F.hardswish(self.bn(self.depthwise(x)))
        return torch.flatten(self.pool(x * self.gate(self.pool(x))), 1)


class Choices(nn.Module):
    """topk, gather, where, cumsum; an axis of size one goes."""

    def __init__(self):
        super().__init__()
        self.score = nn.Linear(6, 1)

    def forward(self, x, lengths):
        batch, n, d = x.shape
        scores = self.score(x).squeeze(-1)
        valid = torch.arange(n)[None, :] < lengths[:, None]
        values, index = torch.where(valid, scores, torch.full_like(scores, -1e4)).topk(3, dim=-1)
        picked = torch.gather(x, 1, index.unsqueeze(-1).expand(-1, -1, d))
        return torch.cumsum(picked, dim=1), torch.softmax(values, -1)


class Keywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({"left": nn.Linear(4, 4), "right": nn.Linear(4, 4)})

    def forward(self, x, **kwargs):
        out = self.parts["left"](x)
        if kwargs.get("context") is not None:
            out = out + self.parts["right"](kwargs["context"])
        return F.normalize(out, dim=-1) if kwargs.get("normalize", False) else out


class Cached(nn.Module):
    """A cache of keys and values as people pass it: in, and one step longer out."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x, past=None):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=1), torch.cat([past[1], v], dim=1)
        return F.scaled_dot_product_attention(q, k, v), (k, v)


def tokens(n):
    return torch.cat([torch.randint(1, 20, (n, 5)), torch.zeros(n, 2, dtype=torch.long)], 1)


r = torch.randn
CASES = {
    "encoder": (Encoder, lambda n: ((tokens(n),), {})),
    "graph": (Graph, lambda n: ((r(3 * n, 5), torch.randint(0, 3 * n, (2, 7)), torch.arange(3 * n) // (2 * n)), {})),
    "bag": (Bag, lambda n: ((torch.randint(0, 30, (5 * n,)), torch.arange(n) * 4), {})),
    "separable": (Separable, lambda n: ((r(n, 4, 8, 8 + 4 * n),), {})),
    "choices": (Choices, lambda n: ((r(n, 7, 6), torch.randint(4, 7, (n,))), {})),
    "keywords": (Keywords, lambda n: ((r(n, 4),), {"context": r(n, 4), "normalize": True})),
    "cached": (Cached, lambda n: ((r(n, 1, 8), (r(n, 3, 8), r(n, 3, 8))), {})),
    "transposed": (
        lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 4, 2, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU(True)),
        lambda n: ((r(n, 4, 3, 3),), {}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_written_once_and_run_at_other_sizes(name):
    torch.manual_seed(0)
    build, inputs = CASES[name]
    model = build().eval()
    args, kwargs = inputs(2)
    written = untrace.from_torch(model)(*args, **kwargs)
    gaps = [float(note.partition("within ")[2].split()[0]) for note in written.proof.notes if "within" in note]
    # The bias of a score under a softmax has the gradient zero: what is there is the rounding of either side.
    assert len(gaps) == 2 and gaps[0] < 1e-5 and gaps[1] < 5e-5, written.proof.notes
    for n in (5, 1):
        args, kwargs = inputs(n)
        found = capture(model, args, kwargs)
        ours = jax.tree.leaves(jax.jit(written)(*found.args))
        with torch.no_grad():
            theirs = jax.tree.leaves(trees.plain(model(*args, **kwargs), numpy_of))
        for own, wanted in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(own, wanted, rtol=1e-4, atol=2e-6)


def test_attention_of_pytorch_reads_as_one_would_write_it():
    torch.manual_seed(0)
    written = untrace.from_torch(nn.MultiheadAttention(8, 2, batch_first=True).eval())(
        r(2, 5, 8), r(2, 3, 8), r(2, 3, 8)
    )
    assert "w_q, w_k, w_v = jnp.split(" in written.source
    assert "jax.nn.softmax(" in written.source and "lax." not in written.source.split("# PyTorch's tensors")[0]


def test_a_height_and_a_width_that_meet_after_strides():
    """With 41 and 43 as sizes that stand for nothing else, both are 11 after two strides: the text must not mix them."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 3, 2, 1), nn.Conv2d(2, 2, 3, 2, 1), nn.Flatten(2)).eval()
    written = untrace.from_torch(net)(r(1, 1, 16, 16))
    x = r(2, 1, 24, 40)
    with torch.no_grad():
        wanted = net(x)
    ours = written(written.module.load_params(net.state_dict()), numpy_of(x))
    np.testing.assert_allclose(ours, numpy_of(wanted), rtol=1e-4, atol=1e-5)


class Translator(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(20, 8)
        self.transformer = torch.nn.Transformer(8, 2, 1, 1, 16, batch_first=True)

    def forward(self, source, target):
        mask = torch.nn.Transformer.generate_square_subsequent_mask(target.size(1))
        return self.transformer(self.words(source), self.words(target), tgt_mask=mask, src_key_padding_mask=source == 0)


def test_a_mask_whose_values_pytorch_looks_at_for_a_hint():
    torch.manual_seed(0)
    model = Translator().eval()
    source, target = torch.tensor([[1, 2, 3, 0], [4, 5, 6, 7]]), torch.tensor([[1, 2, 3], [3, 2, 1]])
    written = untrace.from_torch(model)(source, target)
    assert written.proof.at_least("bits")
    assert any(
        float(re.search(r"within ([\d.e+-]+)", n)[1]) < 1e-5 for n in written.proof.notes if "on the example" in n
    )
