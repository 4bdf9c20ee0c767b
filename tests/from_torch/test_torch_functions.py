"""Subclasses of `torch.autograd.Function` keep their own derivatives."""

from __future__ import annotations

import importlib.util

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'untrace[torch]' (Python 3.11)")
if importlib.util.find_spec("torchax") is None:  # not imported here: by itself it does not load under PyTorch 2.13
    pytest.skip("torchax is not installed: pip install 'untrace[torch]'", allow_module_level=True)

from torch import nn  # noqa: E402

import untrace  # noqa: E402


class Rounded(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return torch.round(x * scale) / scale

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= ctx.scale).to(grad.dtype), None


class Swapped(torch.autograd.Function):
    """Two results, an integer beside the floats, and a context that is set up apart."""

    @staticmethod
    def forward(x, index, y):
        return y[index] * 2, x * 3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.index = inputs[1]
        ctx.length = inputs[2].shape[0]

    @staticmethod
    def backward(ctx, first, second):
        d_y = torch.zeros(ctx.length, first.shape[1]).index_add(0, ctx.index, first)
        return -second, None, d_y * 5


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -grad


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x, index):
        x = Rounded.apply(Reversed.apply(self.first(x)), 16.0)
        y, x = Swapped.apply(x, index, x * self.second.weight.sum())
        return self.second(torch.tanh(x)) + self.second(y).sum()


def test_functions_of_the_author_keep_their_derivatives():
    torch.manual_seed(0)
    apply = torch.autograd.Function.apply
    model = Model()
    written = untrace.from_torch(model.eval())(torch.randn(5, 6), torch.tensor([0, 2, 2]))
    gaps = [float(n.partition("within ")[2].split()[0]) for n in written.proof.notes if "within" in n]
    assert len(gaps) == 2 and max(gaps) < 1e-5, written.proof.notes
    assert written.source.count("@jax.custom_vjp") == 3
    assert "def rounded(x):" in written.source and "def rounded_bwd(x, " in written.source
    assert torch.autograd.Function.apply == apply  # PyTorch is as it was


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def test_functions_that_write_to_their_arguments_are_refused():
    class Writes(nn.Module):
        def forward(self, x):
            return Dirty.apply(x + 1)

    with pytest.raises(untrace.UntraceError, match="mark_dirty"):
        untrace.from_torch(Writes())(torch.randn(3))
