"""Sizes that PyTorch's source reads off its inputs are read off them in the written text as well."""

from __future__ import annotations

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'untrace[torch]' (Python 3.11)")
if importlib.util.find_spec("torchax") is None:  # not imported here: by itself it does not load under PyTorch 2.13
    pytest.skip("torchax is not installed: pip install 'untrace[torch]'", allow_module_level=True)

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import untrace  # noqa: E402
from untrace.torch.bridge import numpy_of  # noqa: E402


def positions(length, width):
    angles = torch.outer(torch.arange(length).float(), 0.1 ** torch.arange(width).float())
    return torch.sin(angles) + torch.cos(angles) / width


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)

    def forward(self, x):
        batch, length, dim = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.wqkv(x).chunk(3, -1))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.transpose(1, 2).reshape(batch, length, dim)


class Model(nn.Module):
    def __init__(self, vocab=13, dim=8, heads=2):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.attention = Attention(dim, heads)
        self.head = nn.Linear(dim, vocab)

    def forward(self, tokens):
        x = self.embedding(tokens) + positions(tokens.shape[1], 8)
        h = self.attention(x).flatten(0, 1)
        return self.head(h).view(*tokens.shape, -1)


def gap(ours, theirs):
    theirs = numpy_of(theirs)
    assert ours.shape == theirs.shape
    return float(np.abs(np.asarray(ours, np.float32) - theirs).max() / np.abs(theirs).max())


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Model().eval()


@pytest.fixture(scope="module")
def written(model):
    return untrace.from_torch(model)(torch.randint(0, 13, (2, 5)))


def test_batch_and_length_are_not_built_in(written):
    assert "batch, length, _ = x.shape" in written.source
    assert "def positions(length)" in written.source
    assert "positions(tokens.shape[1])" in written.source
    assert "any sizes: tokens.shape[0]; tokens.shape[1]; all others are built in" in written.source


def test_other_sizes_agree_with_pytorch(model, written):
    params = written.module.load_params(model.state_dict())
    for shape in (1, 3), (4, 9), (2, 5):
        tokens = torch.randint(0, 13, shape)
        with torch.no_grad():
            assert gap(jax.jit(written)(params, jnp.asarray(tokens.numpy())), model(tokens)) < 1e-5


def test_jit_grad_vmap_and_without_guard_bfloat16_at_other_sizes(model, written):
    params = written.module.load_params(model.state_dict())
    tokens = torch.randint(0, 13, (3, 4, 7))
    ids = jnp.asarray(tokens.numpy())
    out = jax.jit(jax.vmap(written, (None, 0)))(params, ids)
    with torch.no_grad():
        assert gap(out, torch.stack([model(t) for t in tokens])) < 1e-5
    ours = jax.grad(lambda p: jnp.sum(jnp.sin(written(p, ids[0]))))(params)
    model.zero_grad()
    model(tokens[0]).sin().sum().backward()
    assert gap(ours["attention"]["wqkv"]["weight"], model.attention.wqkv.weight.grad) < 1e-5
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    with pytest.raises(TypeError, match="this was written for params"):  # what PyTorch computes then, is not known
        written(half, ids[0])
    plain = untrace.from_torch(model, guard=False)(tokens[0])
    with torch.no_grad():
        assert gap(plain(half, ids[0]), model(tokens[0])) < 0.1


def test_also_proves_a_second_set_of_shapes(model):
    example, other = torch.randint(0, 13, (2, 5)), torch.randint(0, 13, (3, 9))
    written = untrace.from_torch(model, also=[other])(example)
    assert any("the same text at tokens i32[3,9]: against PyTorch" in note for note in written.proof.notes)
    assert written.proof.at_least("hlo")


class Unrolled(nn.Module):
    """One step for each place: another length is another program."""

    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(4, 4)

    def forward(self, x):
        h = x[:, 0]
        for t in range(1, x.shape[1]):
            h = torch.tanh(self.cell(h) + x[:, t])
        return h.reshape(x.shape[0], 2, 2)


def test_a_loop_over_a_length_builds_it_in():
    torch.manual_seed(0)
    model = Unrolled().eval()
    written = untrace.from_torch(model)(torch.randn(2, 3, 4))
    assert "any sizes: x.shape[0]; all others are built in" in written.source
    params = written.module.load_params(model.state_dict())
    x = torch.randn(6, 3, 4)
    with torch.no_grad():
        assert gap(written(params, jnp.asarray(x.numpy())), model(x)) < 1e-5


def test_also_that_no_text_can_hold_is_an_error():
    with pytest.raises(untrace.ProofError, match="changes with them"):
        untrace.from_torch(Unrolled().eval(), also=[torch.randn(2, 4, 4)])(torch.randn(2, 3, 4))


class Pair(nn.Module):
    """Two lengths that happen to be equal in the example, and one size that two inputs share."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(4, 4, bias=False)

    def forward(self, query, context):
        length = query.size(1)
        scores = self.mix(query) @ context.transpose(1, 2) / math_sqrt(query.shape[-1])
        pooled = scores.softmax(-1) @ context
        return pooled.reshape(len(query) * length, 4), torch.arange(context.shape[1] + 1)


def math_sqrt(x):
    return x**0.5


def test_sizes_that_are_equal_by_chance_stay_apart():
    torch.manual_seed(0)
    model = Pair().eval()
    written = untrace.from_torch(model)(torch.randn(3, 3, 4), torch.randn(3, 3, 4))
    params = written.module.load_params(model.state_dict())
    query, context = torch.randn(2, 5, 4), torch.randn(2, 7, 4)
    ours = written(params, jnp.asarray(query.numpy()), jnp.asarray(context.numpy()))
    with torch.no_grad():
        for a, b in zip(ours, model(query, context), strict=True):
            assert gap(a, b) < 1e-5
    assert "query.shape[0] = context.shape[0]" in written.source


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, images):
        x = F.interpolate(self.norm(self.down(images)), scale_factor=2)
        n, c, h, w = x.shape
        return x.reshape(n, c, h * w).transpose(1, 2)


def test_images_of_other_heights_and_widths():
    torch.manual_seed(0)
    model = Images().eval()
    written = untrace.from_torch(model)(torch.randn(2, 3, 8, 8))
    params = written.module.load_params(model.state_dict())
    images = torch.randn(5, 3, 12, 20)
    with torch.no_grad():
        assert gap(written(params, jnp.asarray(images.numpy())), model(images)) < 1e-5
    assert "any sizes: images.shape[0]; images.shape[2]; images.shape[3]" in written.source


def test_without_a_proof_sizes_are_the_example_s(model):
    written = untrace.from_torch(model, prove=False, comments="none")(torch.randint(0, 13, (2, 5)))
    assert ".shape" not in written.source.split("# PyTorch's tensors")[0]
