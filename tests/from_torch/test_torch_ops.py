"""The operations that `from_torch` writes its own way, each against PyTorch on the same numbers, outputs and gradients."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'untrace[torch]' (Python 3.11)")
if importlib.util.find_spec("torchax") is None:  # not imported here: by itself it does not load under PyTorch 2.13
    pytest.skip("torchax is not installed: pip install 'untrace[torch]'", allow_module_level=True)

import torch.nn.functional as F  # noqa: E402

from untrace.torch.bridge import array_of, numpy_of, torchax  # noqa: E402
from untrace.torch.environment import environment  # noqa: E402


def r(*shape):
    """The same numbers for the same shape, here and inside torchax (which has a `torch.randn` of its own)."""
    random = np.random.default_rng(sum(shape) + len(shape))
    return torch.from_numpy(random.standard_normal(shape, dtype=np.float32))


def i(most, *shape):
    """Indices below `most`, the same for the same shape."""
    return as_given(torch.from_numpy(np.random.default_rng(sum(shape) + most).integers(0, most, shape)))


def as_given(tensor):
    """Replaced where the tensors are to be JAX's."""
    return tensor


def multi_head(query, key, **options):
    return F.multi_head_attention_forward(
        query, key, key, 8, 2, r(24, 8), r(24), None, None, False, 0.0, r(8, 8), r(8), training=False, **options
    )


MATRIX = torch.tensor([[4.0, -1.0, 0.5], [1.0, 5.0, -2.0], [-0.5, 2.0, 6.0]])
MASK = torch.tensor([[True, False, True], [False, False, True]])
CASES = {
    "linear": lambda: F.linear(r(2, 3), r(4, 3), r(4)),
    "addmm": lambda: torch.addmm(r(3), r(2, 4), r(4, 3), beta=0.5, alpha=2.0),
    "embedding": lambda: F.embedding(torch.tensor([[1, 0], [2, 2]]), r(3, 4), padding_idx=0),
    "layer_norm": lambda: F.layer_norm(r(2, 3, 4), (3, 4), r(3, 4), r(3, 4)),
    "rms_norm": lambda: F.rms_norm(r(2, 4), (4,), r(4)),
    "group_norm": lambda: F.group_norm(r(2, 6, 5), 3, r(6), r(6)),
    "softmax": lambda: F.softmax(r(2, 5), dim=0),
    "softmax_dtype": lambda: r(2, 5).half().softmax(-1, dtype=torch.float32),
    "log_softmax": lambda: r(2, 5).log_softmax(-1),
    "gelu": lambda: F.gelu(r(7)),
    "gelu_tanh": lambda: F.gelu(r(7), approximate="tanh"),
    "silu": lambda: F.silu(r(7)),
    "elu": lambda: F.elu(r(7), 0.5),
    "leaky_relu": lambda: F.leaky_relu(r(7), 0.2),
    "softplus": lambda: F.softplus(r(7), beta=2),
    "sigmoid_int": lambda: torch.sigmoid(torch.tensor([1, -2])),
    "sdpa": lambda: F.scaled_dot_product_attention(r(2, 3, 4, 8), r(2, 3, 5, 8), r(2, 3, 5, 8)),
    "sdpa_causal": lambda: F.scaled_dot_product_attention(r(2, 4, 8), r(2, 4, 8), r(2, 4, 8), is_causal=True),
    "sdpa_mask": lambda: F.scaled_dot_product_attention(r(2, 8), r(3, 8), r(3, 8), attn_mask=MASK),
    "sdpa_bias": lambda: F.scaled_dot_product_attention(r(2, 8), r(3, 8), r(3, 8), attn_mask=r(2, 3), scale=0.3),
    "sdpa_gqa": lambda: F.scaled_dot_product_attention(r(1, 4, 3, 8), r(1, 2, 3, 8), r(1, 2, 3, 8), enable_gqa=True),
    "one_hot": lambda: F.one_hot(torch.tensor([2, 0, 1]), 4),
    "cross_entropy": lambda: F.cross_entropy(r(4, 5), torch.tensor([1, 0, -100, 4])),
    "cross_entropy_images": lambda: F.cross_entropy(r(2, 5, 3), torch.tensor([[1, 0, 2], [4, 4, 0]]), reduction="none"),
    "cross_entropy_weights": lambda: F.cross_entropy(r(4, 5), torch.tensor([1, 0, -100, 4]), weight=r(5).abs()),
    "cross_entropy_smooth": lambda: F.cross_entropy(
        r(2, 5, 3), torch.tensor([[1, 0, -100], [4, 4, 0]]), weight=r(5).abs(), label_smoothing=0.1
    ),
    "cross_entropy_probabilities": lambda: F.cross_entropy(r(4, 5), r(5, 4).T.softmax(-1), label_smoothing=0.2),
    "mse_loss": lambda: F.mse_loss(r(4), r(5)[:4]),
    "mean": lambda: r(2, 3, 4).mean((0, 2), keepdim=True),
    "histc": lambda: torch.histc(r(40), bins=7, min=-1, max=2),
    "histc_integers": lambda: torch.histc(torch.tensor([0.0, 3.0, 1.0, 3.0, 4.0]), bins=4, min=0, max=3),
    "var": lambda: torch.var(r(3, 4), dim=1),
    "var_biased": lambda: r(3, 4).var(0, False),
    "std": lambda: r(3, 4).std(dim=1, correction=0),
    "chunk": lambda: torch.cat(r(2, 7).chunk(3, -1)[::-1], -1),
    "split": lambda: torch.cat(r(2, 7).split([1, 2, 4], -1)[::-1], -1),
    "split_even": lambda: torch.stack(r(6, 2).split(2)),
    "unbind": lambda: r(3, 4).unbind(1)[2],
    "where": lambda: torch.where(MASK, r(2, 3), 0.5),
    "stack": lambda: torch.stack([r(2), r(3)[:2]], dim=-1),
    "outer": lambda: torch.outer(r(2), r(3)),
    "polar": lambda: torch.polar(r(3).abs(), r(4)[:3]),
    "topk": lambda: torch.topk(r(2, 6), 3)[0],
    "topk_smallest": lambda: torch.topk(r(6, 2), 3, dim=0, largest=False)[0],
    "repeat_interleave": lambda: r(2, 3).repeat_interleave(2, dim=1),
    "masked_fill": lambda: r(2, 3).masked_fill(MASK, -1e9),
    "pow": lambda: r(5) ** 3.0,
    "rpow": lambda: 2.0 ** r(5),
    "rsub": lambda: 1 - r(5),
    "rdiv": lambda: 1.0 / r(5),
    "triu": lambda: torch.triu(r(3, 4), 1),
    "tril": lambda: r(3, 4).tril(-1),
    "arange": lambda: torch.arange(2, 9, 3),
    "arange_float": lambda: torch.arange(0, 1, 0.25),
    "full": lambda: torch.full((2, 3), 7),
    "zeros_ones": lambda: torch.zeros(2, 3) + torch.ones((2, 3)),
    "conv1d": lambda: F.conv1d(r(2, 3, 8), r(4, 3, 3), r(4), padding="same"),
    "conv2d": lambda: F.conv2d(r(2, 4, 7, 6), r(6, 2, 3, 2), r(6), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2),
    "conv3d": lambda: F.conv3d(r(1, 2, 4, 4, 4), r(3, 2, 2, 2, 2)),
    "conv_transpose1d": lambda: F.conv_transpose1d(r(1, 2, 5), r(2, 3, 4), r(3), stride=2, padding=1),
    "conv_transpose2d": lambda: F.conv_transpose2d(r(2, 3, 4, 5), r(3, 2, 3, 3), stride=2, padding=1, output_padding=1),
    "conv_transpose_groups": lambda: F.conv_transpose2d(r(2, 4, 4, 5), r(4, 3, 3, 2), r(6), stride=2, groups=2),
    "conv_transpose3d": lambda: F.conv_transpose3d(r(1, 2, 3, 4, 2), r(2, 3, 2, 2, 2), stride=2),
    "max_pool_dilated": lambda: F.max_pool2d(r(1, 2, 9, 8), 3, 2, padding=1, dilation=2),
    "max_pool3d": lambda: F.max_pool3d(r(1, 2, 4, 4, 4), 2),
    "avg_pool_ceil": lambda: F.avg_pool2d(r(1, 2, 6, 7), 3, 2, padding=1, ceil_mode=True),
    "avg_pool_ceil_valid": lambda: F.avg_pool2d(
        r(1, 2, 6, 7), 3, 2, padding=1, ceil_mode=True, count_include_pad=False
    ),
    "max_pool": lambda: F.max_pool2d(r(1, 2, 7, 7), 3, 2, padding=1),
    "max_pool_ceil": lambda: F.max_pool2d(r(1, 2, 6, 6), 3, 2, ceil_mode=True),
    "max_pool1d": lambda: F.max_pool1d(r(1, 2, 7), 2),
    "avg_pool": lambda: F.avg_pool2d(r(1, 2, 6, 6), 3, 2, padding=1),
    "avg_pool_valid": lambda: F.avg_pool2d(r(1, 2, 6, 6), 3, 2, padding=1, count_include_pad=False),
    "adaptive_avg_pool": lambda: F.adaptive_avg_pool2d(r(1, 2, 7, 5), (3, 2)),
    "adaptive_avg_pool_1": lambda: F.adaptive_avg_pool2d(r(1, 2, 7, 5), 1),
    "nearest": lambda: F.interpolate(r(1, 2, 3, 4), scale_factor=2),
    "nearest_odd": lambda: F.interpolate(r(1, 2, 4), size=7),
    "bilinear": lambda: F.interpolate(r(1, 2, 3, 4), scale_factor=2, mode="bilinear"),
    "bilinear_corners": lambda: F.interpolate(r(1, 2, 3, 4), size=(5, 7), mode="bilinear", align_corners=True),
    "bilinear_down": lambda: F.interpolate(r(1, 2, 7, 8), size=(3, 4), mode="bilinear"),
    "linear_down": lambda: F.interpolate(r(1, 2, 9), scale_factor=0.4, mode="linear"),
    "trilinear": lambda: F.interpolate(r(1, 1, 3, 4, 2), size=(5, 3, 4), mode="trilinear"),
    "bicubic": lambda: F.interpolate(r(1, 2, 5, 4), size=(7, 3), mode="bicubic"),
    "bicubic_corners": lambda: F.interpolate(r(1, 2, 5, 4), size=(7, 9), mode="bicubic", align_corners=True),
    "embedding_bag": lambda: F.embedding_bag(i(5, 3, 4), r(5, 6)),
    "embedding_bag_max": lambda: F.embedding_bag(i(5, 3, 4), r(5, 6), mode="max"),
    "embedding_bag_offsets": lambda: F.embedding_bag(i(5, 7), r(5, 6), torch.tensor([0, 3, 3])),
    "embedding_bag_offsets_max": lambda: F.embedding_bag(i(5, 7), r(5, 6), torch.tensor([0, 3, 3]), mode="max"),
    "embedding_bag_padding": lambda: F.embedding_bag(i(5, 3, 4), r(5, 6), padding_idx=1),
    "embedding_bag_last_offset": lambda: F.embedding_bag(
        i(5, 7), r(5, 6), torch.tensor([0, 3, 7]), padding_idx=1, include_last_offset=True
    ),
    "embedding_bag_weights": lambda: F.embedding_bag(i(5, 3, 4), r(5, 6), per_sample_weights=r(3, 4), mode="sum"),
    "gather": lambda: r(3, 4).gather(1, i(4, 3, 2)),
    "gather_part": lambda: r(3, 4).gather(0, i(3, 2, 3)),
    "take_along_dim": lambda: torch.take_along_dim(r(3, 4), i(4, 3, 2), 1),
    "scatter": lambda: r(3, 4).scatter(1, i(4, 3, 1), 2.0),
    "scatter_rows": lambda: r(3, 4).scatter(0, torch.tensor([[0, 1, 2, 0]]), r(2, 4)),
    "scatter_add": lambda: r(3, 4).scatter_add(1, i(4, 3, 6), r(3, 6)),
    "scatter_mean": lambda: r(3, 4).scatter_reduce(0, i(3, 6, 4), r(6, 4), "mean"),
    "scatter_mean_others": lambda: r(3, 4).scatter_reduce(0, i(3, 6, 4), r(6, 4), "mean", include_self=False),
    "scatter_max": lambda: r(3, 4).scatter_reduce(1, i(4, 3, 6), r(3, 6), "amax"),
    "scatter_min_others": lambda: r(3, 4).scatter_reduce(1, i(4, 3, 6), r(3, 6), "amin", include_self=False),
    "scatter_product": lambda: r(3, 4).scatter_reduce(1, i(4, 3, 6), r(3, 6), "prod"),
    "multi_head": lambda: multi_head(r(5, 2, 8), r(3, 2, 8))[0],
    "multi_head_weights": lambda: multi_head(r(5, 2, 8), r(3, 2, 8), average_attn_weights=False)[1],
    "multi_head_masks": lambda: multi_head(
        r(3, 2, 8), r(3, 2, 8), attn_mask=~torch.ones(3, 3, dtype=torch.bool).tril(),
        key_padding_mask=torch.tensor([[False, False, True], [False, False, False]]),
    )[0],
    "multi_head_single": lambda: multi_head(r(5, 8), r(3, 8))[0],
    "instance_norm": lambda: F.instance_norm(r(2, 3, 4, 4), weight=r(3), bias=r(3)),
    "hardswish": lambda: F.hardswish(r(9) * 3),
    "hardsigmoid": lambda: F.hardsigmoid(r(9) * 3),
    "relu6": lambda: F.relu6(r(9) * 5),
    "mish": lambda: F.mish(r(9)),
    "rrelu": lambda: F.rrelu(r(9)),
    "adaptive_max": lambda: F.adaptive_max_pool2d(r(1, 2, 7, 5), (3, 2)),
    "adaptive_max_even": lambda: F.adaptive_max_pool1d(r(1, 2, 6), 3),
    "adaptive_avg_even": lambda: F.adaptive_avg_pool2d(r(1, 2, 6, 4), (3, 2)),
    "adaptive_avg_1": lambda: F.adaptive_avg_pool1d(r(1, 2, 7), 3),
    "det": lambda: torch.det(r(3, 3)),
    "angle": lambda: torch.complex(r(3), r(4)[:3]).angle(),
    "quantile": lambda: r(5, 4).quantile(0.3, dim=0),
    "hann_window": lambda: torch.hann_window(8) * r(8),
    "new_tensor": lambda: r(3).new_tensor([1.0, 2.0]),
    "view_dtype": lambda: r(4).view(torch.int32),
    "flatten": lambda: r(2, 3, 4).flatten(1),
    "batch_norm": lambda: F.batch_norm(r(4, 3, 5), r(3), r(3).abs(), r(3), r(4)[:3]),
    "batch_norm_train": lambda: F.batch_norm(r(4, 3, 5), None, None, r(3), training=True),
    "grouped_mm": lambda: F.grouped_mm(
        r(16, 16).bfloat16(), r(2, 16, 16).bfloat16(), offs=torch.tensor([8, 16], dtype=torch.int32)
    ).float(),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_operation(case, monkeypatch):
    """The case is run twice: as it is, and with every random tensor on JAX."""
    try:
        expected = numpy_of(CASES[case]())
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"PyTorch itself cannot run this here: {error}")
    env, own = environment(), torchax().tensor.Tensor
    here = r

    def on_jax(*shape):
        return own(array_of(here(*shape)), env)

    constants = {"MASK": own(array_of(MASK), env)}
    monkeypatch.setitem(globals(), "r", on_jax)
    monkeypatch.setitem(globals(), "as_given", lambda tensor: own(array_of(tensor), env))
    for name, value in constants.items():
        monkeypatch.setitem(globals(), name, value)
    with env:
        found = np.asarray(env.t2j_iso(CASES[case]()))
    assert found.shape == expected.shape
    tolerance = 2e-2 if "grouped" in case or "half" in case else 2e-6 * max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=2e-6 if tolerance < 1e-2 else 2e-2, atol=tolerance)
    if expected.dtype.kind == "f":
        assert found.dtype == expected.dtype


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "batch_first": True}, {"bidirectional": True, "bias": False}]
)
def test_recurrent(kind, options):
    import untrace

    torch.manual_seed(0)
    module = getattr(torch.nn, kind)(3, 4, **options)
    x = r(2, 5, 3)
    d = untrace.from_torch(module)(x)
    assert d.proof.at_least("bits")
    out = d(d.module.load_params(module.state_dict()), array_of(x))
    with torch.no_grad():
        expected = module(x)
    np.testing.assert_allclose(out[0], numpy_of(expected[0]), atol=2e-6)
    last = expected[1][0] if kind == "LSTM" else expected[1]
    np.testing.assert_allclose(out[1][0] if kind == "LSTM" else out[1], numpy_of(last), atol=2e-6)


# Where a function has a kink, PyTorch's choice of the slope; at zero norms are differentiable there, with zero.
KINKS = {
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "relu6": lambda x: F.relu6(x + 3),
    "ReLU6": lambda x: torch.nn.ReLU6()(x),
    "logsigmoid": F.logsigmoid,
    "bce_with_logits": lambda x: F.binary_cross_entropy_with_logits(x, torch.ones_like(x), reduction="none"),
    "norm": lambda x: x.norm(dim=-1),
    "norm_1": lambda x: (x + 0.5).norm(p=1, dim=-1, keepdim=True),
    "norm_3": lambda x: torch.linalg.vector_norm(x + 0.5, 3.0, dim=(0, 1)),
    "norm_inf": lambda x: torch.norm(x + 0.5, float("inf"), 0),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x.flip(0), dim=-1),
    "cdist": lambda x: torch.cdist(x, x),
    "std": lambda x: x.std(dim=-1),
}


def ctc(x, targets, *lengths, **options):
    """Nine steps of two sequences. PyTorch's gradient is that of the scores before the softmax."""
    scores = (x.reshape(-1)[:, None] * torch.tensor([[1.0, -2.0, 0.5, 1.5, 0.3, -1.0]]).to(x.device)).reshape(9, 2, 3)
    return F.ctc_loss(scores.log_softmax(-1), targets, *lengths, **options)


def unpooled(x, *sizes, rank=2, **options):
    """The largest values of windows where they came from, and one of the places."""
    pooled, places = getattr(F, f"max_pool{rank}d")(x, *sizes, return_indices=True, **options)
    assert tuple(places.shape) == tuple(pooled.shape)
    return getattr(F, f"max_unpool{rank}d")(pooled * 2, places, *sizes, **options)


# Reductions of which the derivative is not PyTorch's by itself.
REDUCTIONS = {
    **{
        f"index_reduce_{kind}{'' if own else '_alone'}": lambda x, kind=kind, own=own: x.index_reduce(
            1, as_given(torch.tensor([0, 2, 0])), x.flip(1).exp(), kind, include_self=own
        )
        for kind in ("prod", "mean", "amax", "amin")
        for own in (True, False)
    },
    **{
        f"segment_{kind}": lambda x, kind=kind: torch.segment_reduce(
            x.exp(), kind, lengths=torch.tensor([1, 0, 2]), initial=0.5
        )
        for kind in ("sum", "mean", "max", "min", "prod")
    },
    "segment_offsets": lambda x: torch.segment_reduce(x, "mean", offsets=torch.tensor([0, 1, 3])),
    "stft": lambda x: torch.view_as_real(
        torch.stft(x.repeat(1, 8), 8, 2, window=torch.hann_window(8), return_complex=True)
    ),
    "stft_whole": lambda x: torch.view_as_real(
        torch.stft(
            x.reshape(-1).repeat(4), 8, win_length=6, window=torch.ones(6), center=False, normalized=True,
            onesided=False, return_complex=True,
        )
    ),
    "istft": lambda x: torch.istft(
        torch.stft(x.repeat(1, 8), 8, 2, window=torch.hann_window(8), return_complex=True).abs() + 0j, 8, 2,
        window=torch.hann_window(8), length=20,
    ),
    "cov": lambda x: torch.cov(x),
    "gaussian_nll_loss": lambda x: F.gaussian_nll_loss(x, x.flip(0), x.abs() + 1, full=True),
    **{
        f"scatter_product{'' if own else '_alone'}": lambda x, own=own: x.scatter_reduce(
            1, as_given(torch.tensor([[0, 2, 0], [1, 1, 1], [2, 0, 1]])), x.flip(1).exp(), "prod", include_self=own
        )
        for own in (True, False)
    },
    "scatter_product_zero": lambda x: (x + 0.3).scatter_reduce(0, as_given(torch.tensor([[0, 2, 0], [1, 0, 0], [0, 1, 0]])), x + 0.3, "prod"),
    "ctc_loss": lambda x: ctc(x, as_given(torch.tensor([[1, 2, 2], [2, 1, 0]])), [9, 7], [3, 2], reduction="none"),
    "ctc_loss_mean": lambda x: ctc(x, as_given(torch.tensor([2, 1, 1, 2, 1])), (9, 8), (1, 4)),
    "ctc_loss_sum": lambda x: ctc(x, as_given(torch.tensor([[0, 2], [2, 0]])), [9, 9], [2, 1], blank=1, reduction="sum"),
    "ctc_loss_impossible": lambda x: ctc(
        x, as_given(torch.tensor([[1, 1], [2, 0]])), [2, 9], [2, 0], reduction="none", zero_infinity=True
    ),
    "ctc_loss_single": lambda x: F.ctc_loss(
        x.log_softmax(-1), as_given(torch.tensor([1, 2])), as_given(torch.tensor(3)), as_given(torch.tensor(2))
    ),
    "max_pool_indices": lambda x: unpooled(x.reshape(1, 1, 3, 3), 2, 1),
    "max_pool_indices_padded": lambda x: unpooled(x.reshape(1, 3, 3), 3, 2, padding=1),
    "max_pool_indices_dilated": lambda x: F.max_pool1d(x, 2, 1, dilation=2, return_indices=True)[0],
    "max_unpool_size": lambda x: F.max_unpool1d(x, as_given(torch.tensor([[0, 3, 4], [2, 1, 6], [5, 0, 6]])), 2, output_size=(7,)),
    "max_unpool_3d": lambda x: unpooled(x.reshape(-1)[:8].reshape(1, 1, 2, 2, 2), 2, 2, rank=3),
    "lstsq": lambda x: torch.linalg.lstsq(x[:, :2] + MATRIX[:, :2], x.flip(0)).solution,
    "lstsq_wide": lambda x: torch.linalg.lstsq(x[:2] + MATRIX[:2], x[:2])[0],
    "lstsq_batch": lambda x: torch.linalg.lstsq(torch.stack([x + MATRIX, x - MATRIX])[..., :2], torch.stack([x, x]))[0],
    "lstsq_vectors": lambda x: torch.linalg.lstsq(torch.stack([x + MATRIX, x - MATRIX]), torch.stack([x[0], x[1]]))[0],
    "lstsq_residuals": lambda x: torch.linalg.lstsq(x[:, :2] + MATRIX[:, :2], x, driver="gels").residuals,
    "combinations": lambda x: torch.combinations(x[0]),
    "combinations_repeated": lambda x: torch.combinations(x[0], r=3, with_replacement=True),
}  # fmt: skip


@pytest.mark.parametrize("case", REDUCTIONS)
def test_reductions_and_their_gradients(case):
    """Also of what PyTorch has and JAX has not: losses over alignments, pooling backwards, least squares."""
    found, expected, values = gradients(
        REDUCTIONS[case], np.arange(1.0, 10.0, dtype=np.float32).reshape(3, 3) % 4 - 1.3
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(*values, rtol=1e-5, atol=1e-5)


def test_vander():
    x = torch.tensor([1.0, 2.0, 3.0])
    env, own = environment(), torchax().tensor.Tensor
    for options in ({}, {"N": 5}, {"N": 2, "increasing": True}):
        with env:
            found = env.t2j_iso(torch.vander(own(array_of(x), env), **options))
        np.testing.assert_array_equal(found, numpy_of(torch.vander(x, **options)))


@pytest.mark.parametrize("case", KINKS)
def test_gradients_at_kinks(case):
    found, expected, _ = gradients(
        KINKS[case], np.array([[0.0, 0.0, 0.0], [1.0, 0.0, -1.0], [0.5, -3.0, 2.0]], np.float32)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def gradients(function, points):
    """The gradient of a weighted sum of the results by JAX and by PyTorch, and the results of both."""
    import jax
    import jax.numpy as jnp

    given = torch.tensor(points, requires_grad=True)
    out = function(given)
    weights = np.arange(1.0, out.numel() + 1, dtype=np.float32).reshape(out.shape)
    (out * torch.from_numpy(weights)).sum().backward()
    env, own = environment(), torchax().tensor.Tensor

    def ours(x):
        with env:
            result = env.t2j_iso(function(own(x, env)))
        return (result * weights).sum(), result

    found, result = jax.grad(ours, has_aux=True)(jnp.asarray(points))
    return found, numpy_of(given.grad), (result, numpy_of(out.detach()))
