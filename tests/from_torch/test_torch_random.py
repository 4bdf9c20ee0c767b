"""Random numbers of PyTorch: drawn with keys of JAX, and handed to PyTorch so that the two can be compared."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'untrace[torch]' (Python 3.11)")
if importlib.util.find_spec("torchax") is None:  # not imported here: by itself it does not load under PyTorch 2.13
    pytest.skip("torchax is not installed: pip install 'untrace[torch]'", allow_module_level=True)

import torch.nn.functional as F  # noqa: E402
from torch import distributions, nn  # noqa: E402

import untrace  # noqa: E402
from untrace.torch import randomness  # noqa: E402
from untrace.torch.bridge import torchax  # noqa: E402
from untrace.torch.environment import environment  # noqa: E402

COUNT = 4000
DRAWS = {
    "normal_": lambda x: x.normal_(2.0, 3.0),
    "uniform_": lambda x: x.uniform_(-1.0, 3.0),
    "exponential_": lambda x: x.exponential_(4.0),
    "cauchy_": lambda x: x.cauchy_().atan(),
    "log_normal_": lambda x: x.log_normal_(0.0, 0.5),
    "geometric_": lambda x: x.geometric_(0.3),
    "random_": lambda x: x.random_(0, 10),
    "bernoulli_": lambda x: x.bernoulli_(0.3),
    "bernoulli": lambda x: torch.bernoulli(x + 0.3),
    "normal": lambda x: torch.normal(x + 1, x + 2.0),
    "normal_size": lambda x: torch.normal(1.0, 2.0, (COUNT,)),
    "poisson": lambda x: torch.poisson(x + 3),
    "multinomial": lambda x: torch.multinomial(x.reshape(-1, 10) + torch.arange(10.0), 2),
    "multinomial_again": lambda x: torch.multinomial(x.reshape(-1, 10) + torch.arange(10.0), 3, replacement=True),
    "gumbel": lambda x: F.gumbel_softmax(x.reshape(-1, 10)).max(-1)[0],
    "rrelu": lambda x: F.rrelu(x - 1, training=True),
    "rsample": lambda x: distributions.Normal(x + 1, x + 2).rsample(),
    "categorical": lambda x: distributions.Categorical(logits=x.reshape(-1, 10)).sample(),
    "gamma": lambda x: distributions.Gamma(x + 2, x + 1).sample(),
    "beta": lambda x: distributions.Beta(x + 2, x + 1).sample(),
}


@pytest.mark.parametrize("case", DRAWS)
def test_numbers_have_pytorchs_distribution(case, monkeypatch):
    monkeypatch.setattr(distributions.Distribution, "_validate_args", False)
    torch.manual_seed(0)
    theirs = DRAWS[case](torch.zeros(COUNT)).float().numpy()
    torchax()
    env = environment()
    with env:
        ours = np.asarray(env.t2j_iso(DRAWS[case](torch.zeros(COUNT)).float()))
    assert ours.shape == theirs.shape
    most = max(0.12, 6 / ours.size**0.5) * (theirs.std() + 1e-3)
    assert abs(ours.mean() - theirs.mean()) < most
    assert abs(ours.std() - theirs.std()) < most
    assert len(np.unique(ours)) > len(np.unique(theirs)) / 2


class Encoder(nn.Module):
    """A variational autoencoder with torch.distributions."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 8), nn.Linear(4, 6)
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        mean, log_std = self.encode(self.drop(x)).chunk(2, -1)
        q = distributions.Normal(mean, log_std.exp())
        z = q.rsample()
        return self.decode(z), distributions.kl_divergence(q, distributions.Normal(0.0, 1.0)).sum()


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 6, 2, dropout=0.4, batch_first=True)
        self.channels = nn.Dropout1d(0.5)
        self.attention = nn.MultiheadAttention(6, 2, dropout=0.3, batch_first=True)

    def forward(self, x):
        x = self.channels(self.lstm(x)[0])
        y, weights = self.attention(x, x, x)
        return F.scaled_dot_product_attention(x, y, y, dropout_p=0.2 if self.training else 0.0), weights


class Choices(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(4, 3)
        self.never, self.always = nn.Dropout(0.0), nn.Dropout(1.0)

    def forward(self, x):
        chosen = F.gumbel_softmax(self.score(x), tau=0.7, hard=True)
        noise = torch.empty(3).exponential_()
        return self.never(chosen) * noise + self.always(chosen), torch.rand_like(x)


@pytest.mark.parametrize("model", [Encoder, Layers, Choices])
def test_training_is_compared_with_the_same_numbers(model):
    torch.manual_seed(0)
    x = torch.randn(3, 5, 4) if model is Layers else torch.randn(3, 4 if model is Choices else 6)
    written = untrace.from_torch(model().train())(x)
    notes = written.proof.notes
    assert "PyTorch was given the random numbers that JAX drew" in notes
    gaps = [float(n.partition("within ")[2].split()[0]) for n in notes if "within" in n]
    assert len(gaps) == 2 and max(gaps) < 5e-5, notes


def test_other_draws_are_noticed():
    draws = [randomness.Draw("bernoulli", np.ones((2, 3), bool))]
    with randomness.replayed(draws):
        np.testing.assert_array_equal(F.dropout(torch.ones(2, 3)), np.full((2, 3), 2.0))
    for wrong in (
        [],
        draws * 2,
        [randomness.Draw("rand", np.ones((2, 3)))],
        [randomness.Draw("bernoulli", np.ones(5))],
    ):
        with pytest.raises(randomness.Unaligned), randomness.replayed(wrong):
            F.dropout(torch.ones(2, 3))
