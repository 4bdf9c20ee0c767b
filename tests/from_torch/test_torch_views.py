"""Operations in place and views: who writes to one tensor writes to all that share its memory, as in PyTorch."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'untrace[torch]' (Python 3.11)")
if importlib.util.find_spec("torchax") is None:  # not imported here: by itself it does not load under PyTorch 2.13
    pytest.skip("torchax is not installed: pip install 'untrace[torch]'", allow_module_level=True)

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from untrace.torch.bridge import array_of, numpy_of  # noqa: E402
from untrace.torch.environment import environment  # noqa: E402


class Numbers:
    """Tensors of the same numbers each time, of PyTorch or on JAX."""

    def __init__(self, on_jax):
        self.wrap = (lambda x: environment().tensor(array_of(x))) if on_jax else (lambda x: x)

    def r(self, *shape):
        random = np.random.default_rng(sum(shape) + len(shape))
        return self.wrap(torch.from_numpy(random.standard_normal(shape, dtype=np.float32)))

    def i(self, most, *shape):
        return self.wrap(torch.from_numpy(np.random.default_rng(sum(shape) + most).integers(0, most, shape)))

    def b(self, *shape):
        return self.r(*shape) > 0


def both(run):
    """What `run(x, numbers)` leaves in x, in PyTorch and on JAX."""
    found = []
    for on_jax in (False, True):
        numbers = Numbers(on_jax)
        if on_jax:
            with environment() as env:
                x = numbers.r(4, 5) + 0
                run(x, numbers)
                found.append(np.asarray(env.t2j_iso(x)))
        else:
            x = numbers.r(4, 5) + 0
            run(x, numbers)
            found.append(numpy_of(x))
    np.testing.assert_allclose(found[1], found[0], rtol=2e-6, atol=2e-6)


IN_PLACE = {
    "add_": (2.0,), "sub_": (2.0,), "mul_": (2.0,), "div_": (2.0,), "pow_": (2,), "clamp_": (-1, 1), "clamp_min_": (0,),
    "clamp_max_": (0,), "zero_": (), "fill_": (3.0,), "exp_": (), "neg_": (), "abs_": (), "sin_": (), "cos_": (),
    "tanh_": (), "sigmoid_": (), "relu_": (), "floor_": (), "ceil_": (), "round_": (), "reciprocal_": (), "square_": (),
    "erf_": (), "expm1_": (), "remainder_": (2.0,), "fmod_": (2.0,), "floor_divide_": (2.0,), "cumsum_": (0,),
    "tril_": (), "triu_": (), "nan_to_num_": (), "fill_diagonal_": (0.0,), "logical_not_": (), "multiply_": (2.0,),
    "copy_": (lambda n: n.r(5),), "masked_fill_": (lambda n: n.b(4, 5), -1.0), "addcmul_": (lambda n: n.r(4, 5), lambda n: n.r(5)),
    "index_add_": (0, lambda n: n.i(4, 6), lambda n: n.r(6, 5)), "index_fill_": (1, lambda n: n.i(5, 2), 9.0),
    "scatter_": (1, lambda n: n.i(5, 4, 1), lambda n: n.r(4, 1)), "scatter_add_": (0, lambda n: n.i(4, 2, 5), lambda n: n.r(2, 5)),
    "lerp_": (lambda n: n.r(4, 5) * 2, 0.3), "index_put_": (lambda n: (n.i(4, 1),), lambda n: n.r(1, 5)),
    "t_": (), "transpose_": (0, 1), "unsqueeze_": (0,), "squeeze_": (),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name):
    def run(x, numbers):
        getattr(x, name)(*[a(numbers) if callable(a) else a for a in IN_PLACE[name]])

    both(run)


VIEWS = {
    "slice": lambda x: x[:, 1:3], "step": lambda x: x[::2, 1], "select": lambda x: x.select(0, 2), "narrow": lambda x: x.narrow(1, 1, 2),
    "transposed": lambda x: x.t(), "part of transposed": lambda x: x[:, 1:3].t()[1], "flat": lambda x: x.view(-1)[3:7],
    "two views": lambda x: x[1:][0, 1:3], "reshaped": lambda x: x.view(2, 10)[:, 4:], "chunk": lambda x: x.chunk(2, 1)[1],
    "split": lambda x: x.split(3)[1], "unbind": lambda x: x.unbind(0)[2], "unsqueezed": lambda x: x.unsqueeze(0)[0, 1],
    "diagonal": lambda x: x.diagonal(), "permuted": lambda x: x.permute(1, 0)[2], "movedim": lambda x: x.movedim(0, 1)[0],
    "unflattened": lambda x: x.unflatten(0, (2, 2))[1], "windows": lambda x: x.unfold(1, 2, 2)[0, 0],
    "flattened": lambda x: x.flatten()[::2], "reshape that is a view": lambda x: x.reshape(20)[5:7],
    "reshape that copies": lambda x: x.t().reshape(-1), "contiguous that copies": lambda x: x.t().contiguous(),
    "contiguous that is one": lambda x: x.contiguous(), "all": lambda x: x[...], "attribute": lambda x: x.T,
    "detached": lambda x: x.detach(), "complex": lambda x: torch.view_as_complex(x.view(2, 5, 2)).real,
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("write", ["mul_", "fill_"])
def test_a_write_to_a_view_is_one_to_its_source(name, write):
    both(lambda x, _: getattr(VIEWS[name](x), write)(3.0))


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_sees_what_is_written_to_its_source(name):
    def run(x, _):
        view = VIEWS[name](x)
        x.mul_(2)
        view.add_(1)
        x += 1
        x[0, 0] = view.sum()

    both(run)


OPTIONS = {
    "relu": lambda x: F.relu(x, inplace=True), "relu by place": lambda x: F.relu(x[1:], True), "layer": nn.ReLU(inplace=True),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2, inplace=True), "hardswish": nn.Hardswish(inplace=True),
    "hardtanh": nn.Hardtanh(inplace=True), "dropout": nn.Dropout(inplace=True).eval(), "silu": lambda x: F.silu(x, inplace=True),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_the_option_inplace(name):
    """A block that adds its input to what `nn.ReLU(inplace=True)` made of it adds the rectified input."""

    def run(x, _):
        out = OPTIONS[name](x)
        x += 1
        out.mul_(2)
        x[0, 0] = out.sum()

    both(run)


def test_dropout_in_evaluation_is_its_input():
    both(lambda x, _: F.dropout(x, training=False).add_(1))


ITEMS = {
    "column": lambda x, n: x.__setitem__((slice(None), 0), 5.0), "where": lambda x, n: x.__setitem__(x > 0, 0.0),
    "rows": lambda x, n: x.__setitem__(n.i(4, 1), n.r(1, 5)), "pairs": lambda x, n: x.__setitem__((n.i(4, 3), n.i(5, 3)), 1.0),
    "last from first": lambda x, n: x.__setitem__((..., -1), x[..., 0]), "mask of rows": lambda x, n: x.__setitem__(n.b(4), 2.0),
}  # fmt: skip


@pytest.mark.parametrize("name", ITEMS)
def test_items(name):
    both(ITEMS[name])


def test_type_as_leaves_its_tensor_alone():
    with environment():
        x = Numbers(True).r(3)
        assert x.type_as(x.half()).dtype == torch.float16
        assert x.dtype == torch.float32
