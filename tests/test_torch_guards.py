"""The guard of a module of PyTorch's: what PyTorch refuses or computes otherwise, the written module refuses."""

from __future__ import annotations

import importlib.util

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'untrace[torch]' (Python 3.11)")
if importlib.util.find_spec("torchax") is None:  # not imported here: by itself it does not load under PyTorch 2.13
    pytest.skip("torchax is not installed: pip install 'untrace[torch]'", allow_module_level=True)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import untrace  # noqa: E402
from untrace.torch.bridge import numpy_of  # noqa: E402

REFUSED = r"this was written for .*not for .*Decompile the original"


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 6)
        self.out = nn.Linear(6, 3)

    def forward(self, ids, weights):
        return self.out((self.table(ids) * weights[..., None]).mean(1))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Classifier()


@pytest.fixture(scope="module")
def written(model):
    return untrace.from_torch(model)(torch.randint(0, 9, (2, 5)), torch.randn(2, 5))


@pytest.mark.parametrize("rows, length", [(2, 5), (7, 3), (1, 5), (1, 1), (4, 1)])
def test_sizes_follow_from_one_on(model, written, rows, length):
    ids, weights = torch.randint(0, 9, (rows, length)), torch.randn(rows, length)
    out = written(written.module.load_params(model.state_dict()), numpy_of(ids), numpy_of(weights))
    np.testing.assert_allclose(out, numpy_of(model(ids, weights).detach()), atol=1e-6)


def test_other_types_and_trees_are_refused(model, written):
    params = written.module.load_params(model.state_dict())
    ids, weights = jnp.zeros((2, 5), int), jnp.ones((2, 5))
    written(params, ids, weights)
    for given in (
        (params, ids, weights.astype(jnp.bfloat16)),
        (params, ids.astype(jnp.int8), weights),
        (params, ids, weights[:, :4]),
        ({**params, "table": {"weight": jnp.ones((5, 6))}}, ids, weights),  # where ids beyond it would be clipped
        ({**params, "another": jnp.ones(3)}, ids, weights),
        ({"table": params["table"]}, ids, weights),
        (jax.tree.map(lambda x: x.astype(jnp.bfloat16), params), ids, weights),
    ):
        with pytest.raises(TypeError, match=REFUSED):
            written(*given)


class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(4, 4)

    def forward(self, x):
        h = x[:, 0]
        for step in range(1, x.shape[1]):
            h = torch.tanh(self.cell(h) + x[:, step])
        return h if x.shape[0] > 1 else -h


def test_what_is_another_program_elsewhere_is_refused():
    model = Steps()
    d = untrace.from_torch(model)(torch.randn(2, 3, 4))
    params = d.module.load_params(model.state_dict())
    assert d(params, jnp.ones((5, 3, 4))).shape == (5, 4)
    for x in (jnp.ones((2, 4, 4)), jnp.ones((2, 1, 4)), jnp.ones((1, 3, 4))):  # the last is not proven: it has a sign
        with pytest.raises(TypeError, match=REFUSED):
            d(params, x)


class Halved(nn.Module):
    def forward(self, x):
        return F.interpolate(F.avg_pool2d(x, 2), scale_factor=2) + x


def test_sizes_that_have_to_be_halved_stay_multiples():
    d = untrace.from_torch(Halved())(torch.randn(2, 3, 8, 12))
    assert d({}, jnp.ones((1, 3, 10, 4))).shape == (1, 3, 10, 4)
    for shape in ((2, 3, 9, 12), (2, 3, 8, 7)):
        with pytest.raises(TypeError, match=REFUSED):
            d({}, jnp.ones(shape))


def test_random_numbers_and_state(model):
    training = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5)).train()
    d = untrace.from_torch(training)(torch.randn(4, 3))
    params, buffers = d.module.load_params(training.state_dict())
    out, _ = d(params, buffers, jax.random.key(1), jnp.ones((6, 3)))
    assert out.shape == (6, 3)
    with pytest.raises(TypeError, match=REFUSED):
        d(params, buffers, jax.random.key(1, impl="rbg"), jnp.ones((6, 3)))
    with pytest.raises(TypeError, match=REFUSED):
        d(params, {}, jax.random.key(1), jnp.ones((6, 3)))


def test_without_a_guard_there_is_none(model):
    given = torch.randint(0, 9, (2, 5)), torch.randn(2, 5)
    plain = untrace.from_torch(model, guard=False)(*given)
    assert "_checked" not in plain.source
    assert "_checked" in untrace.from_torch(model, style="exact")(*given).source
    assert "prng" not in untrace.from_torch(model)(*given).source.split("def _type_of")[0]  # it draws nothing
