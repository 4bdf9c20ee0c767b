"""PyTorch modules as JAX source: behaviour, weights, structure, errors. Needs the extra `untrace[torch]`."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import json
import subprocess
import sys
import textwrap

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


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.rand(dim))

    def forward(self, x):
        mean_square = x.pow(2).mean(-1, keepdim=True)
        return x * torch.rsqrt(mean_square + self.eps) * self.weight


class Mixer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = RMSNorm(dim)
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x):
        hidden = F.silu(self.up(self.norm(x)))
        return x + self.down(hidden)


class Model(nn.Module):
    def __init__(self, vocab=11, dim=8, depth=2):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Mixer(dim) for _ in range(depth))
        self.norm = RMSNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


TOKENS = torch.tensor([[1, 4, 2], [9, 0, 3]])


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Model().eval()


@pytest.fixture(scope="module")
def written(model):
    return untrace.from_torch(model)(TOKENS)


def reference(module, *args, **kwargs):
    with torch.no_grad():
        return module(*args, **kwargs)


def near(ours, theirs, tolerance=1e-5):
    theirs = numpy_of(theirs.float()) if theirs.dtype == torch.bfloat16 else numpy_of(theirs)
    ours = np.asarray(ours, theirs.dtype)
    assert ours.shape == theirs.shape
    scale = max(1.0, np.abs(theirs).max(initial=0.0))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * scale)


def functions_of(source):
    return [n.name for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)]


# ---------------------------------------------------------------- the text


def test_one_function_per_class(written):
    names = functions_of(written.source)
    assert names.count("rms_norm") == names.count("mixer") == names.count("model") == 1
    assert not [n for n in names if n.startswith(("rms_norm_", "mixer_"))]


def test_text_reads_like_the_module(written):
    assert "def model(params, tokens):" in written.source
    assert "def mixer(params, x):" in written.source
    assert "hidden = jax.nn.silu(" in written.source
    assert "# class Mixer, test_torch.py:" in written.source
    assert "for i in range(2):" in written.source  # the layers of the ModuleList
    assert "mean_square = x.pow(2).mean(-1, keepdim=True)" in written.source  # PyTorch's statement, as a comment


def test_comments_can_be_left_out(model, written):
    bare = untrace.from_torch(model, comments="none", prove=False)(TOKENS)
    assert "x.pow(2)" not in bare.source
    full = untrace.from_torch(model, comments="full")(TOKENS)
    assert full.source.count("#") >= written.source.count("#") > bare.source.count("#")


def test_proof_says_how_far_pytorch_is(written):
    assert written.proof.at_least("bits")
    assert "against PyTorch" in written.proof.notes[0] and "autograd" in written.proof.notes[1]
    assert written.proof.notes[0].split()[-1] in written.source.split('"""')[1]


def test_same_bytes_again(model, written):
    assert untrace.from_torch(model)(TOKENS).source == written.source


def test_origin_is_the_author(written):
    lines = written.source.split("\n")
    line = next(i for i, text in enumerate(lines, 1) if text.strip().startswith("mean_square ="))
    number = next(i for i, text in enumerate(open(__file__), 1) if text.strip().startswith("mean_square ="))
    assert written.origin(line) == f"test_torch.py:{number}"


# ---------------------------------------------------------------- weights


def test_state_dict_by_name(model, written):
    params = written.module.load_params(model.state_dict())
    assert params["layers"]["1"]["norm"]["weight"].shape == (8,)
    assert "head" not in params  # tied to the embedding, and there once
    near(written(params, jnp.asarray(TOKENS)), reference(model, TOKENS))


def test_wrong_weights_are_listed(model, written):
    state = dict(model.state_dict())
    del state["layers.0.up.bias"]
    state["extra"] = torch.zeros(2)
    state["norm.weight"] = torch.zeros(9)
    state["layers.1.down.weight"] = state["layers.1.down.weight"].double()
    with pytest.raises(ValueError) as caught:
        written.module.load_params(state)
    message = str(caught.value)
    assert "missing: layers.0.up.bias (float32 (16,))" in message
    assert "unexpected: extra" in message
    assert "norm.weight is float32 (9,), not float32 (8,)" in message
    assert "layers.1.down.weight is float64 (8, 16), not float32 (8, 16)" in message


def save_safetensors(path, tensors):
    kinds = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int64": "I64"}
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in tensors.items():
        raw = numpy_of(tensor).tobytes()
        kind = kinds[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_saved_module_needs_no_torch(tmp_path, model, written):
    written.save(tmp_path / "written.py")
    save_safetensors(tmp_path / "model.safetensors", model.state_dict())
    program = """
        import sys
        for name in ("torch", "torchax", "untrace", "safetensors"):
            sys.modules[name] = None
        import numpy as np, written
        params = written.load_params("model.safetensors")
        np.save("out.npy", written.model(params, np.array([[1, 4, 2], [9, 0, 3]])))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], cwd=tmp_path, check=True)
    near(np.load(tmp_path / "out.npy"), reference(model, TOKENS))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_from_a_file(tmp_path, dtype):
    torch.manual_seed(2)
    module, x = nn.Linear(4, 3).to(dtype), torch.randn(2, 4, dtype=dtype)
    d = untrace.from_torch(module)(x)
    save_safetensors(tmp_path / "model.safetensors", module.state_dict())
    params = d.module.load_params(tmp_path / "model.safetensors")
    assert str(params["weight"].dtype) == str(dtype).removeprefix("torch.")
    near(d(params, jnp.asarray(numpy_of(x))).astype(jnp.float32), reference(module, x).float(), 2e-2)
    state = {"weight": module.weight.float().T.contiguous(), "other": module.bias.detach()}
    save_safetensors(tmp_path / "wrong.safetensors", state)
    with pytest.raises(ValueError, match=r"(?s)missing: bias.*unexpected: other") as caught:
        d.module.load_params(tmp_path / "wrong.safetensors")
    assert "weight is float32 (4, 3), not" in str(caught.value)


def test_jit_grad_vmap(model, written):
    params = written.module.load_params(model.state_dict())
    tokens = jnp.asarray(TOKENS)
    near(jax.jit(written)(params, tokens), reference(model, TOKENS))
    gradient = jax.grad(lambda p: jnp.sum(written(p, tokens) ** 2))(params)
    (model(TOKENS) ** 2).sum().backward()
    near(gradient["layers"]["0"]["up"]["weight"], model.layers[0].up.weight.grad)
    model.zero_grad()
    both = jax.vmap(written, in_axes=(None, 0))(params, jnp.stack([tokens, tokens]))
    near(both[1], reference(model, TOKENS))


# ---------------------------------------------------------------- behaviour


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.25)

    def forward(self, images):
        return self.dropout(F.relu(self.bn(self.conv(images))))


def test_batch_norm_in_both_modes():
    torch.manual_seed(1)
    module, images = Small().eval(), torch.randn(4, 3, 6, 6)
    module.dropout.p = 0.0
    d = untrace.from_torch(module)(images)
    params, buffers = d.module.load_params(module.state_dict())
    near(d(params, buffers, jnp.asarray(images)), reference(module, images))

    module.train()
    d = untrace.from_torch(module)(images)
    params, buffers = d.module.load_params(module.state_dict())
    out, buffers = d(params, buffers, jnp.asarray(images))
    near(out, reference(module, images))  # and changes the module's own statistics
    near(buffers["bn"]["running_mean"], module.bn.running_mean)
    near(buffers["bn"]["running_var"], module.bn.running_var)
    assert int(buffers["bn"]["num_batches_tracked"]) == 1


def test_dropout_takes_a_key():
    module, images = Small().train(), torch.randn(4, 3, 6, 6)
    d = untrace.from_torch(module)(images)
    assert "def small(params, buffers, key, images):" in d.source
    assert any("outputs within" in n for n in d.proof.notes)
    assert "PyTorch was given the random numbers that JAX drew" in d.proof.notes
    params, buffers = d.module.load_params(module.state_dict())
    outs = [np.asarray(d(params, buffers, jax.random.key(i), jnp.asarray(images))[0]) for i in (0, 0, 1)]
    assert (outs[0] == outs[1]).all() and (outs[0] != outs[2]).any()
    unseen = module.eval()
    assert 0.15 < np.mean((outs[0] == 0) & (numpy_of(reference(unseen, images)) > 0.2)) + 0.1


class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, 4, 3))
        self.plain = torch.zeros(2)

    def forward(self, position, x):
        self.keys[:, position] = x
        self.plain += 1
        return {"seen": self.keys.sum(-1), "count": self.plain[0]}


def test_caches_are_state_in_and_out():
    module = Cache()
    example = (torch.tensor([0]), torch.ones(1, 1, 3))
    d = untrace.from_torch(module)(*example)
    _, buffers = d.module.load_params(module.state_dict())
    for step in range(3):
        out, buffers = d({}, buffers, jnp.array([step]), jnp.full((1, 1, 3), step + 1.0))
    assert out["count"] == 3
    np.testing.assert_array_equal(out["seen"], [[3.0, 6.0, 9.0, 0.0]])
    assert not module.keys.any() and not module.plain.any()  # the module itself is as it was


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        with torch.no_grad():
            kept = torch.tanh(self.first(x)) * 2
            kept += 1
        return self.third(kept + self.second(x).detach()) * kept


def test_no_gradient_where_pytorch_has_none():
    torch.manual_seed(4)
    module, x = Frozen(), torch.randn(2, 3)
    d = untrace.from_torch(module)(x)
    params = d.module.load_params(module.state_dict())
    near(d(params, jnp.asarray(x)), reference(module, x))
    gradient = jax.grad(lambda p: jnp.sum(d(p, jnp.asarray(x)) ** 2))(params)
    (module(x) ** 2).sum().backward()
    near(gradient["third"]["weight"], module.third.weight.grad)
    for name in ("first", "second"):
        assert getattr(module, name).weight.grad is None
        assert not np.asarray(gradient[name]["weight"]).any()


class Tied(nn.Module):
    """Integers in, weights that two layers share, a list of results, an attention with a mask and dropout in training."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids, mask=None):
        x = self.table(ids)
        y = F.scaled_dot_product_attention(x, x, x, attn_mask=mask, dropout_p=0.5 if self.training else 0.0)
        return [self.head(y), ids.sum(-1), y.argmax(-1)]


def test_tied_weights_integers_and_attention_masks():
    torch.manual_seed(5)
    module, ids = Tied().eval(), torch.tensor([[1, 2, 6], [0, 3, 3]])
    mask = torch.ones(3, 3, dtype=torch.bool).tril()
    d = untrace.from_torch(module)(ids, mask=mask)
    params = d.module.load_params(module.state_dict())
    assert list(params) == ["table"]  # once
    assert d.module.load_params({"head.weight": module.head.weight}).keys() == params.keys()
    logits, sums, best = d(params, jnp.asarray(ids.numpy()), jnp.asarray(mask.numpy()))
    expected = reference(module, ids, mask)
    near(logits, expected[0])
    assert sums.dtype == jnp.int32 and best.dtype == jnp.int32
    np.testing.assert_array_equal(sums, expected[1].numpy())
    np.testing.assert_array_equal(best, expected[2].numpy())

    trained = untrace.from_torch(module.train())(ids, mask=mask)
    assert "def tied(params, key, ids, mask):" in trained.source
    one, other = (
        trained(params, jax.random.key(i), jnp.asarray(ids.numpy()), jnp.asarray(mask.numpy())) for i in (0, 1)
    )
    assert (np.asarray(one[0]) != np.asarray(other[0])).any()


class Rotary(nn.Module):
    def forward(self, x, table):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * table[: x.shape[1]]).flatten(-2).type_as(x)


def test_complex_rotary_follows_the_length():
    x, table = torch.randn(2, 5, 4), torch.polar(torch.ones(8, 2), torch.randn(8, 2))
    d = untrace.from_torch(Rotary())(x, table)
    for length in (5, 3, 8):
        x = torch.randn(2, length, 4)
        near(d({}, jnp.asarray(x), jnp.asarray(table.numpy())), reference(Rotary(), x, table))


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    extra: torch.Tensor | None = None


class Kwargs(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x, *, scale=None, double=False):
        out = self.linear(x)
        if scale is not None:
            out = out * scale
        out = out * 2 if double else out
        return Output(out)


def test_keywords_and_dataclasses():
    module, x, scale = Kwargs(), torch.randn(5, 3), torch.rand(2)
    d = untrace.from_torch(module)(x, scale=scale, double=True)
    assert "def kwargs(params, x, scale):" in d.source
    out = d(d.module.load_params(module.state_dict()), jnp.asarray(x), jnp.asarray(scale))
    assert list(out) == ["logits"]
    near(out["logits"], reference(module, x, scale=scale, double=True).logits)


class Views(nn.Module):
    def forward(self, x, index):
        y = x.clone()
        y[:, 0] = 5.0
        y[0].add_(1.0)
        first, rest = y[:, :1], y[:, 1:]
        angle = torch.view_as_complex(torch.stack([rest, rest * 2], dim=-1))
        return torch.cat([first, (angle * 1j).real, x[index]], dim=0 if x.shape[1] == 0 else 1)


def test_views_in_place_and_complex():
    x, index = torch.randn(3, 4), torch.tensor([2, 0, 1])
    d = untrace.from_torch(Views())(x, index)
    near(d({}, jnp.asarray(x), jnp.asarray(index)), reference(Views(), x, index))
    assert "outputs within 0.0e+00" in d.proof.notes[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    torch.manual_seed(2)
    module = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU()).to(dtype)
    x = torch.randn(4, 8, dtype=dtype)
    d = untrace.from_torch(module)(x)
    params = d.module.load_params(module.state_dict())
    assert params["0"]["weight"].dtype == str(dtype).removeprefix("torch.")
    near(d(params, jnp.asarray(numpy_of(x))).astype(jnp.float32), reference(module, x).float(), 2e-2)


def test_library_layers():
    torch.manual_seed(3)
    module = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(2, 5, 8)
    d = untrace.from_torch(module)(x)
    near(d(d.module.load_params(module.state_dict()), jnp.asarray(x)), reference(module, x))


# ---------------------------------------------------------------- errors, tools


class Unknown(nn.Module):
    def forward(self, x):
        return torch.special.airy_ai(x)


def test_missing_operation_says_what_to_do():
    with pytest.raises(untrace.UnsupportedPrimitiveError) as caught:
        untrace.from_torch(Unknown())(torch.rand(3))
    message = str(caught.value)
    assert "special_airy_ai" in message and "test_torch.py:" in message
    assert "return torch.special.airy_ai(x)" in message and "@untrace.torch_op(" in message


class Area(nn.Module):
    def forward(self, x):
        return F.interpolate(x, size=2, mode="area")


def test_missing_option_of_an_operation_says_what_to_do():
    with pytest.raises(untrace.UnsupportedPrimitiveError) as caught:
        untrace.from_torch(Area())(torch.rand(1, 1, 4, 4))
    message = str(caught.value)
    assert "`torch.nn.functional.interpolate` in test_torch.py:" in message and "with mode='area'" in message
    assert 'F.interpolate(x, size=2, mode="area")' in message and "@untrace.torch_op(" in message


def test_operation_can_be_taught():
    from untrace.torch.ops import table

    untrace.torch_op(torch.special.i1)(lambda x: jax.scipy.special.i1(x))

    class Taught(nn.Module):
        def forward(self, x):
            return torch.special.i1(x)

    try:
        x = torch.rand(3)
        d = untrace.from_torch(Taught())(x)
        near(d({}, jnp.asarray(x)), reference(Taught(), x))
    finally:
        table.ADDED.clear()


class Branching(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x


def test_decisions_on_data_are_refused():
    with pytest.raises(untrace.CaptureError, match=r"test_torch\.py:\d+"):
        untrace.from_torch(Branching())(torch.rand(3))


class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3, dtype=torch.cfloat))

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(x)[..., :3] @ self.weight, n=4)


def test_gradients_of_complex_parameters():
    torch.manual_seed(0)
    d = untrace.from_torch(Spectral())(torch.randn(2, 6))
    assert float(d.proof.notes[1].partition("within ")[2].split()[0]) < 1e-5


class Several(nn.Module):
    def forward(self, x):
        return {"first": x.exp(), "second": x.sum()}


def test_each_output_is_spoken_of():
    d = untrace.from_torch(Several())(torch.randn(3))
    assert "by output: output['first'] " in d.source.replace("\n", " ") and "output['second']" in d.source


class Ties(nn.Module):
    def forward(self, x):
        return x * 2


def test_a_meaning_that_is_not_pytorch_s_is_warned_of(monkeypatch):
    from untrace.torch.ops import table

    monkeypatch.setattr(
        table, "ADDED", [(torch.Tensor.mul, lambda x, y: x * 3, {}), (torch.Tensor.__mul__, lambda x, y: x * 3, {})]
    )
    untrace.torch.environment.environment.cache_clear()
    try:
        with pytest.warns(UserWarning, match="further from PyTorch than rounding goes"):
            untrace.from_torch(Ties())(torch.rand(3))
    finally:
        untrace.torch.environment.environment.cache_clear()


def test_not_a_module():
    with pytest.raises(untrace.CaptureError, match="not a function"):
        untrace.from_torch(torch.relu)(torch.rand(3)) if False else untrace.from_torch(lambda x: x)(torch.rand(3))


def test_annotation_adds_comments_only(model):
    text = untrace.annotate_torch(model, prove=False)(TOKENS)
    original = open(__file__, encoding="utf-8").read()
    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(original))
    line = next(x for x in text.split("\n") if x.strip().startswith("mean_square = x.pow(2)"))
    assert "# mean_square = " in line and "jnp" in line or ".mean(" in line.partition("#")[2]
