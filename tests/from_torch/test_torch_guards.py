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


class Positions(nn.Module):
    """Tokens and a table of 16 positions; `read` takes its rows for a length."""

    def __init__(self, read):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(9, 6), nn.Embedding(16, 6)
        self.register_buffer("position_ids", torch.arange(16)[None], persistent=False)
        self.read = read

    def forward(self, tokens):
        return self.wte(tokens) + self.read(self, tokens.shape[1])


class Grid(nn.Module):
    """A table with a row for each place of an image."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(400, 6)

    def forward(self, image):
        height, width = image.shape[1:3]
        return image + self.table(torch.arange(height)[:, None] * width + torch.arange(width))


class Cached(nn.Module):
    """Positions behind those of a cache."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 6)

    def forward(self, new, old):
        start = old.shape[1]
        return torch.cat([old, new + self.table(torch.arange(start, start + new.shape[1]))], 1)


class Stored(nn.Module):
    """A buffer of 16 places that is written to from the fourth on."""

    def __init__(self):
        super().__init__()
        self.register_buffer("store", torch.zeros(2, 16, 6))

    def forward(self, x):
        self.store[:, torch.arange(x.shape[1]) + 3] = x
        return self.store.sum(1)


READ = {
    "embedding": (lambda m, n: m.wpe(torch.arange(n)), 16),
    "functional": (lambda m, n: F.embedding(torch.arange(n), m.wpe.weight), 16),
    "index": (lambda m, n: m.wpe.weight[torch.arange(n)], 16),
    "index_select": (lambda m, n: m.wpe.weight.index_select(0, torch.arange(n)), 16),
    "gather": (lambda m, n: m.wpe.weight.gather(0, torch.arange(n)[:, None].expand(-1, 6)), 16),
    "slice": (lambda m, n: m.wpe.weight[:n], 16),
    "buffer": (lambda m, n: m.wpe(m.position_ids[:, :n]), 16),
    "offset": (lambda m, n: m.wpe(torch.arange(n) + 2), 14),
    "of a mask": (lambda m, n: m.wpe(torch.ones(1, n, dtype=torch.int32).cumsum(1) + 1), 14),
    "two apart": (lambda m, n: m.wpe(torch.arange(n) * 2), 8),
    "distances": (lambda m, n: m.wpe(torch.arange(n)[:, None] - torch.arange(n) + 8).sum(1), 8),
}


def _same_as(model, d, *inputs):
    params = d.module.load_params(model.state_dict())
    out = d(params, *map(numpy_of, inputs))
    np.testing.assert_allclose(out, numpy_of(model(*inputs).detach()), atol=1e-5)


def _refused(model, d, match, *inputs):
    with pytest.raises(TypeError, match=match):
        d(d.module.load_params(model.state_dict()), *map(numpy_of, inputs))


@pytest.mark.parametrize("read, most", READ.values(), ids=READ)
def test_no_more_positions_than_the_table_has(read, most):
    torch.manual_seed(0)
    model = Positions(read)
    d = untrace.from_torch(model)(torch.randint(0, 9, (2, 5)))
    _same_as(model, d, torch.randint(0, 9, (3, most)))
    beyond = torch.randint(0, 9, (3, most + 1))
    with pytest.raises((IndexError, RuntimeError)):
        model(beyond)
    _refused(model, d, rf"this was written for tokens: i32\[.*m ≤ {most}\), not for i32\[3,{most + 1}\]", beyond)


def _bucket(n):
    """T5's: exact for near places, then by the logarithm, up to a last one."""
    distance = (torch.arange(n) - torch.arange(n)[:, None]).abs()
    far = 4 + (torch.log(distance.float() / 4) / 3 * 4).int()
    return torch.where(distance < 4, distance, far.clamp(max=7))


SATURATED = {
    "clamped": lambda m, n: m.wpe((torch.arange(n) - torch.arange(n)[:, None]).abs().clamp(max=12)).sum(1),
    "buckets": lambda m, n: m.wpe(_bucket(n)).sum(1),
    "modulo": lambda m, n: m.wpe(torch.arange(n) % 16),
    "no table": lambda m, n: torch.arange(n)[:, None] / n,
}


@pytest.mark.parametrize("read", SATURATED.values(), ids=SATURATED)
def test_indices_that_stay_inside_limit_nothing(read):
    torch.manual_seed(0)
    model = Positions(read)
    d = untrace.from_torch(model)(torch.randint(0, 9, (2, 5)))
    assert "most={" not in d.source.split("def _checked")[0]
    _same_as(model, d, torch.randint(0, 9, (3, 40)))


def test_a_table_for_two_sizes_is_read_up_to_what_was_shown():
    torch.manual_seed(0)
    model = Grid()
    d = untrace.from_torch(model, also=[torch.randn(2, 20, 20, 6)])(torch.randn(2, 4, 5, 6))
    _same_as(model, d, torch.randn(30, 20, 20, 6))
    _refused(model, d, "height ≤ 20, width ≤ 20", torch.randn(2, 20, 21, 6))


def test_positions_behind_a_cache():
    torch.manual_seed(0)
    model = Cached()
    d = untrace.from_torch(model)(torch.randn(2, 4, 6), torch.randn(2, 5, 6))
    for new, old in ((1, 15), (15, 1), (6, 10)):
        _same_as(model, d, torch.randn(3, new, 6), torch.randn(3, old, 6))
    _refused(model, d, "≤ 15", torch.randn(2, 1, 6), torch.randn(2, 16, 6))
    _refused(model, d, "≤ 15", torch.randn(2, 16, 6), torch.randn(2, 1, 6))


def test_no_more_is_written_than_a_buffer_has_places():
    d = untrace.from_torch(Stored())(torch.randn(2, 5, 6))
    params, buffers = d.module.load_params(Stored().state_dict())
    assert d(params, buffers, jnp.ones((2, 13, 6)))[0].sum() == 2 * 13 * 6
    with pytest.raises(TypeError, match="n ≤ 13"):
        d(params, buffers, jnp.ones((2, 14, 6)))


class OfRows(nn.Module):
    """What `compute` makes of an array."""

    def __init__(self, compute):
        super().__init__()
        self.compute = compute

    def forward(self, x):
        return self.compute(x, x.shape[0])


DECIDED = {
    "all but five": lambda x, n: x[: n - 5],
    "three of three": lambda x, n: x[: (n - 3) // 3 * 3],
    "a third": lambda x, n: x[n // 3],
    "a power of two": lambda x, n: x[: 1 << (n.bit_length() - 1)],
    "at most five": lambda x, n: x[: min(n, 5)],
    "at least eight": lambda x, n: x.sum() / max(n, 8),
    "from five on": lambda x, n: x * 2 if n > 4 else x * 3,
    "up to thirty": lambda x, n: x * 2 if n <= 30 else x * 3,
    "a fraction": lambda x, n: x * (0.5 if n > 4 else 0.7),
    "odd": lambda x, n: x * 2 if n % 2 else x * 3,
    "a window": lambda x, n: x.unfold(0, min(n, 4), 1).sum(1),
}


@pytest.mark.parametrize("rows", [9, 18])
@pytest.mark.parametrize("compute", DECIDED.values(), ids=DECIDED)
def test_no_size_is_taken_at_which_pytorch_computes_something_else(compute, rows):
    model = OfRows(compute)
    d = untrace.from_torch(model)(torch.arange(rows) + 1.0)
    taken = []
    for n in (*range(1, 13), 17, 18, 29, 30, 31, 40):
        x = torch.arange(n) + 1.0
        try:
            found = d({}, numpy_of(x))
        except TypeError as error:
            assert "was written for" in str(error)
            continue
        taken.append(n)
        np.testing.assert_allclose(found, numpy_of(model(x)), rtol=1e-6)
    assert rows in taken


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, n: x * 2 if n > x.shape[1] else x * 3,
        lambda x, n: x[: min(x.shape)] * 2,
        lambda x, n: x * 2 if n * x.shape[1] > 200 else x * 3,
        lambda x, n: F.avg_pool2d(x[None], min(x.shape[1], 3), 1),  # PyTorch raises at two rows, JAX does not
    ],
)
def test_nothing_is_taken_at_which_two_sizes_decide_otherwise(compute):
    model = OfRows(compute)
    d = untrace.from_torch(model)(torch.randn(5, 6))
    for shape in [(5, 6), (6, 5), (13, 7), (7, 13), (2, 24), (24, 2), (1, 1), (20, 20), (5, 60), (60, 6)]:
        x = torch.randn(shape)
        try:
            found = d({}, numpy_of(x))
        except TypeError as error:
            assert "was written for" in str(error) and shape != (5, 6)
            continue
        np.testing.assert_allclose(found, numpy_of(model(x)), rtol=1e-5)


def test_the_sizes_at_which_a_decision_is_another_one_are_said():
    source = untrace.from_torch(OfRows(DECIDED["from five on"]))(torch.arange(9.0)).source
    assert 'least={"n": 5}' in source and "most=" not in source.split("def _")[0]
    assert 'most={"n": ' in untrace.from_torch(OfRows(DECIDED["up to thirty"]))(torch.arange(9.0)).source


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
