"""One function for the instances of a class: other constants, a part that only some have, one tensor passed twice."""

from __future__ import annotations

import importlib.util
import re

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'untrace[torch]' (Python 3.11)")
if importlib.util.find_spec("torchax") is None:  # not imported here: by itself it does not load under PyTorch 2.13
    pytest.skip("torchax is not installed: pip install 'untrace[torch]'", allow_module_level=True)

import jax  # noqa: E402
import numpy as np  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import untrace  # noqa: E402
from untrace.module.merge import instances  # noqa: E402
from untrace.torch import bridge  # noqa: E402
from untrace.torch.bridge import numpy_of  # noqa: E402


def functions(source):
    return re.findall(r"^def ([a-z]\w*)\(", source.split("# PyTorch's tensors")[0], re.M)


def agrees(written, model, *inputs):
    with torch.no_grad():
        wanted = model(*inputs)
    loaded = written.module.load_params(model.state_dict())
    loaded = loaded if type(loaded) is tuple else (loaded,)
    found = written(*loaded, *[numpy_of(x) for x in inputs])
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=False):
        np.testing.assert_allclose(ours, numpy_of(theirs), rtol=1e-4, atol=1e-5)


class Block(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        out = self.norm(self.conv(x))
        out += self.shortcut(x)
        return F.relu(out)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.layers = nn.Sequential(Block(4, 4, 1), Block(4, 8, 2))

    def forward(self, images):
        return self.layers(self.stem(images))


def test_strides_and_a_shortcut_are_one_function():
    torch.manual_seed(0)
    model, images = Net().eval(), torch.randn(2, 3, 8, 8)
    written = untrace.from_torch(model)(images)
    assert sorted(functions(written.source)) == ["batch_norm2d", "block", "conv2d", "net"]
    assert re.search(r"def block\(params, buffers, x, stride=\(\d, \d\)\):", written.source)
    assert '"shortcut" in params' in written.source
    block = written.source[written.source.index("def block(") :].partition("# class")[0]
    assert "stride: a tuple" in block and '"norm": ' in block
    assert written.proof.at_least("bits")
    agrees(written, model, images)


def test_new_buffers_of_a_part_that_only_some_have():
    torch.manual_seed(0)
    model, images = Net().train(), torch.randn(2, 3, 8, 8)
    written = untrace.from_torch(model)(images)
    assert sorted(functions(written.source)) == ["batch_norm2d", "block", "conv2d", "net"]
    assert "**new_shortcut" in written.source
    assert any("outputs within" in n for n in written.proof.notes)


class Attention(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(8, 8)
        self.both = nn.Linear(8, 16)

    def forward(self, x, context, mask):
        batch, length, dim = x.shape
        q = self.query(x).view(batch, length, self.heads, dim // self.heads).transpose(1, 2)
        k, v = self.both(context).view(batch, -1, self.heads, 2 * dim // self.heads).transpose(1, 2).chunk(2, -1)
        scores = (q @ k.transpose(-2, -1)).masked_fill(~mask, -1e9)
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, dim)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention(2)
        self.cross = Attention(2)

    def forward(self, x, memory, memory_mask):
        mask = memory_mask[:, None, None, :]
        length = x.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        x = x + self.attention(x, x, causal)
        return x + self.cross(x, memory, mask)


def test_a_tensor_that_is_passed_twice_is_two_arguments():
    torch.manual_seed(0)
    model = Layer().eval()
    inputs = torch.randn(2, 5, 8), torch.randn(2, 7, 8), torch.ones(2, 7, dtype=torch.bool)
    written = untrace.from_torch(model)(*inputs)
    assert functions(written.source).count("attention") == 1
    assert "attention_2" not in written.source
    assert re.search(r'attention\(params\["attention"\], x, x, causal\)', written.source)
    agrees(written, model, *inputs)


def test_what_the_caller_makes_of_a_tensor_stays_there():
    """`memory_mask[:, None, None, :]` is the layer's, though two broadcasts in a row could be one."""
    torch.manual_seed(0)
    inputs = torch.randn(2, 5, 8), torch.randn(2, 7, 8), torch.ones(2, 7, dtype=torch.bool)
    written = untrace.from_torch(Layer().eval())(*inputs)
    layer = written.source[written.source.index("def layer(") :]
    assert re.search(r"mask(_\d)? = memory_mask\[:, None, None", layer)


class Doubles(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x, y):
        y += 1
        return x * self.weight * y


class WritesTo(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Doubles()

    def forward(self, x):
        z = x * 2
        return self.inner(z, z)


def test_an_argument_that_is_written_to_stays_one():
    torch.manual_seed(0)
    model, x = WritesTo().eval(), torch.randn(4, 3)
    written = untrace.from_torch(model)(x)
    agrees(written, model, x)


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.few, self.many = Attention(2), Attention(4)

    def forward(self, x, mask):
        return self.many(self.few(x, x, mask), x, mask)


def test_a_number_has_the_name_of_the_attribute():
    torch.manual_seed(0)
    model, inputs = Heads().eval(), (torch.randn(2, 5, 8), torch.ones(5, 5, dtype=torch.bool))
    written = untrace.from_torch(model)(*inputs)
    assert re.search(r"def attention\(params, x, context, mask, heads=\d", written.source), written.source
    agrees(written, model, *inputs)


class Folds(nn.Module):
    def __init__(self, parts):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(parts, 1))

    def forward(self, x):
        return torch.stack([a * self.weight for a in x.reshape(3, 2, 12).unbind(0)]).reshape(x.shape) + x.shape[0]


class Widths(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = Folds(2), Folds(2)

    def forward(self, x):
        return self.other(self.one(x).reshape(8, 9))


def test_a_number_that_is_a_size_of_an_argument_is_read_off_it():
    torch.manual_seed(0)
    model, x = Widths().eval(), torch.randn(6, 12)
    written = untrace.from_torch(model)(x)
    assert re.search(r"def folds\(params, x\):", written.source), written.source
    assert "x.shape[0]" in written.source
    agrees(written, model, x)


def test_what_is_not_proven_is_taken_back(monkeypatch):
    def wrong(module, entry):
        assert instances_share(module, entry)
        for definition in module.definitions:
            for parameter in definition.params:
                if parameter.name == "stride":
                    parameter.default = instances.Name("None")
        return True

    instances_share = instances.share
    monkeypatch.setattr(instances, "share", wrong)
    monkeypatch.setattr(instances, "share_alike", wrong)  # which comes next
    torch.manual_seed(0)
    model, images = Net().eval(), torch.randn(2, 3, 8, 8)
    written = untrace.from_torch(model)(images)
    assert "block_2" in functions(written.source)
    assert written.proof.at_least("bits")
    agrees(written, model, images)


class Reads(nn.Module):
    def forward(self, x):
        first = x[:, 0]
        a = torch.sin(first)
        x[:, 0] = 1.0
        return a + first * first, x


def test_a_view_is_computed_once_and_again_after_a_write():
    model, x = Reads().eval(), torch.randn(4, 3)
    with torch.no_grad():
        wanted = model(x.clone())
    written = untrace.from_torch(model)(x.clone())
    found = written({}, jax.numpy.asarray(numpy_of(x)))
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, numpy_of(theirs), rtol=1e-5)
    assert written.source.count("[:, 0]") <= 6


class Dense(nn.Module):
    """As GPT-2's: the width that comes out stands beside the sizes of the input, unless it is the same."""

    def __init__(self, wide, narrow):
        super().__init__()
        self.narrow = narrow
        self.weight = nn.Parameter(torch.randn(wide, narrow))

    def forward(self, x):
        size_out = x.size()[:-1] + (self.narrow,)
        return (x.reshape(-1, x.size(-1)) @ self.weight).view(size_out)


class Widening(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.same, self.down = Dense(4, 12), Dense(12, 12), Dense(12, 4)

    def forward(self, x):
        return self.down(torch.tanh(self.same(self.up(x))))


def test_the_shape_of_the_input_and_one_of_another_width_are_one_function():
    torch.manual_seed(0)
    model, x = Widening().eval(), torch.randn(2, 3, 4)
    written = untrace.from_torch(model)(x)
    assert [n for n in functions(written.source) if n.startswith("dense")] == ["dense"], written.source
    agrees(written, model, x)


def test_both_ways_of_a_recurrent_layer_are_one_function():
    torch.manual_seed(0)
    model, x = nn.LSTM(3, 4, bidirectional=True).eval(), torch.randn(5, 2, 3)
    written = untrace.from_torch(model)(x)
    assert functions(written.source).count("lstm_layer") == 1 and "lstm_layer_2" not in written.source
    assert "reverse=True" in written.source


class Pools(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 6, 3, padding=1)
        self.third = nn.Conv2d(6, 2, 3, padding=1)

    def forward(self, images):
        x = F.max_pool2d(self.first(images), 2)
        x = F.max_pool2d(self.second(x), 2)
        return F.avg_pool2d(self.third(x), 2)


def test_pooling_that_repeats_is_a_function_and_layers_name_what_they_get_x():
    torch.manual_seed(0)
    model, images = Pools().eval(), torch.randn(2, 3, 16, 16)
    written = untrace.from_torch(model)(images)
    assert sorted(functions(written.source)) == ["conv2d", "max_pool2d", "pools"]
    assert "def conv2d(params, x)" in written.source and "def max_pool2d(x)" in written.source
    assert "lax.add, (1, 1, 2, 2)" in written.source.partition("def pools(")[2]
    agrees(written, model, images)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, num_layers=2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(8, 5, num_layers=2)

    def forward(self, x):
        return self.gru(self.lstm(x)[0])


def test_layers_and_directions_of_a_recurrent_network_are_one_function():
    torch.manual_seed(0)
    model, x = Tagger().eval(), torch.randn(2, 6, 3)
    written = untrace.from_torch(model)(x)
    # A GRU of few operations stands where it is used.
    assert sorted(set(functions(written.source)) - {"gru"}) == ["gru_layer", "lstm", "lstm_layer", "tagger"]
    assert 'def lstm_layer(params, xs, h, c, layer="l0", reverse=False):' in written.source
    assert 'params[f"weight_ih_{layer}"]' in written.source and 'layer="l1_reverse"' in written.source
    assert "params: a dict of arrays" in written.source and "reverse: bool" in written.source
    agrees(written, model, x)
    assert any("gradients" in n for n in written.proof.notes)


class ConvNorm(nn.Sequential):
    def __init__(self, channels, width, size, stride=1, groups=1):
        conv = nn.Conv2d(channels, width, size, stride, (size - 1) // 2, groups=groups, bias=False)
        super().__init__(conv, nn.BatchNorm2d(width), nn.ReLU6())


class InvertedResidual(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        self.use_residual = stride == 1 and channels == width
        hidden = 2 * channels
        self.conv = nn.Sequential(
            ConvNorm(channels, hidden, 1), ConvNorm(hidden, hidden, 3, stride, hidden),
            nn.Conv2d(hidden, width, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x):
        return x + self.conv(x) if self.use_residual else self.conv(x)


class Mobile(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = ConvNorm(3, 4, 3, 2)
        self.blocks = nn.Sequential(InvertedResidual(4, 4, 1), InvertedResidual(4, 6, 2), InvertedResidual(6, 6, 1))

    def forward(self, images):
        return self.blocks(self.stem(images))


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_residual_that_only_some_instances_have(mode):
    torch.manual_seed(0)
    model, images = Mobile().train(mode == "train"), torch.randn(2, 3, 16, 16)
    written = untrace.from_torch(model)(images)
    expected = ["batch_norm2d", "conv2d", "conv_norm", "inverted_residual", "mobile"]
    assert sorted(functions(written.source)) == expected
    assert "x + out if use_residual else out" in written.source
    conv_norm = written.source.partition("def conv_norm(")[2].partition("\ndef ")[0]
    assert conv_norm.startswith("params, buffers, x, ") or conv_norm.lstrip().startswith("params, buffers, x, ")
    assert conv_norm.count("#") == 1  # the class; the statements around are those of its callers
    gaps = [float(n.partition("within ")[2].split()[0]) for n in written.proof.notes if "within" in n]
    assert len(gaps) == 2 and max(gaps) < 1e-4, written.proof.notes


def test_values_that_have_a_name_in_one_of_two_functions_only():
    """What is folded into one expression depends on how long its numbers are."""
    from untrace.module.merge.alignment import Aligned, Different
    from untrace.python.statements import Assign, Def, Parameter, Return
    from untrace.python.tree import Binary, Call, Name, Text

    def made(named, number):
        product = Call("jnp.dot", [Name("x"), Text(number)])
        body = [Assign(["y"], product)] if named else []
        body.append(Return(Binary(Call("jnp.tanh", [Name("y") if named else product]), "*", Text("2.0"))))
        return Def("f", [Parameter("x")], body)

    for left, right in [(True, False), (False, True)]:
        with pytest.raises(Different):
            Aligned(made(left, "3"), made(right, "4"))
        found = Aligned(made(left, "3"), made(right, "4"), folded=True)
        assert [(a.flat(), b.flat()) for _, a, b in found.constants] == [("3", "4")]
    with pytest.raises(Different):
        Aligned(made(True, "3"), Def("g", [Parameter("x")], [Return(Name("x"))]), folded=True)


def test_functions_are_numbered_without_gaps():
    """`block_3` was the base of the one that `block_2` became a part of; a variable `head` is read beside `head_2`."""
    from types import SimpleNamespace

    from untrace.module.merge.renumber import number_again
    from untrace.python.statements import Assign, Def
    from untrace.python.tree import Call, Name

    definitions = [Def(name, [], []) for name in ("block", "block_3", "layer_4", "head_2", "sum_2")]
    local = {d.name: d for d in definitions}
    empty = dict.fromkeys(("modules", "imports", "helpers", "constants"), ())
    module = SimpleNamespace(definitions=definitions, local_definitions=local, callees={}, **empty)
    entry = [Assign(["head"], Call("block_3", [Name("x")])), Assign(["y"], Call("head_2", [Name("head")]))]
    number_again(module, entry)
    assert [d.name for d in definitions] == ["block", "block_2", "layer", "head_2", "sum_2"]
    assert {name: d.name for name, d in local.items()} == {d.name: d.name for d in definitions}
    assert [s.value.func for s in entry] == ["block_2", "head_2"]


class CausalLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.proj = nn.Linear(8, 8)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 2, d // 2).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.proj(y.transpose(1, 2).reshape(b, t, d))


class CausalNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(CausalLayer() for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_products_inside_of_pytorchs_attention_are_no_turns_of_the_authors_loop():
    """C++ calls back for each view around a product of batches, from one place: frames go back there and no loop turns."""
    torchax = bridge.torchax()
    states, apply = torchax.extract_jax(CausalNet().eval())
    d = untrace.decompile(lambda states, x: apply(states, (x,)), guard=False)(states, np.ones((2, 6, 8), np.float32))
    assert d.source.count("\ndef ") == 2 and "layers.{i}" in d.source, d.source
    assert d.proof.at_least("hlo")
