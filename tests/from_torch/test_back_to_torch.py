"""What came from PyTorch goes back to it: the text for PyTorch beside the module, with its weights by name."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'untrace[torch]' (Python 3.11)")
if importlib.util.find_spec("torchax") is None:  # not imported here: by itself it does not load under PyTorch 2.13
    pytest.skip("torchax is not installed: pip install 'untrace[torch]'", allow_module_level=True)

import untrace  # noqa: E402


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(7, 4)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])
        self.norm = torch.nn.BatchNorm1d(4)
        self.out = torch.nn.Linear(4, 7, bias=False)
        self.out.weight = self.table.weight

    def forward(self, tokens: Any) -> Any:
        x = self.table(tokens)
        for layer in self.layers:
            x = x + torch.nn.functional.gelu(layer(x))
        return self.out(self.norm(x))


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def text(model: Any) -> Any:
    return untrace.from_torch(model)(torch.arange(6)).to("torch")


def test_both_compile_in_the_process_that_wrote_the_text(model: Any, text: Any) -> None:
    tokens = torch.tensor([1, 5, 5, 0])
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens), model(tokens))
    params, buffers = text.module.load_params(model.state_dict())
    compiled = torch.compile(getattr(text.module, text.name), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(params, buffers, tokens), model(tokens))


def test_outputs_and_gradients_are_the_modules(model: Any, text: Any) -> None:
    assert text.proof.at_least("close")
    assert "jax" not in text.source.partition('"""\n\n')[2]
    tokens = torch.tensor([1, 5, 5, 0])  # of another length, and of PyTorch's own type for integers
    params, buffers = text.module.load_params(model.state_dict())
    for part in (params["table"], *params["layers"].values(), params["norm"]):
        for tensor in part.values():
            tensor.requires_grad_()
            tensor.grad = None
    ours = getattr(text.module, text.name)(params, buffers, tokens)
    torch.testing.assert_close(ours, model(tokens))
    ours.pow(2).sum().backward()
    alone = Net().eval()
    alone.load_state_dict({k: v.detach() for k, v in model.state_dict().items()})
    alone(tokens).pow(2).sum().backward()
    torch.testing.assert_close(params["table"]["weight"].grad, alone.table.weight.grad)
    torch.testing.assert_close(params["layers"]["1"]["weight"].grad, alone.layers[1].weight.grad)
    torch.testing.assert_close(params["norm"]["bias"].grad, alone.norm.bias.grad)


def test_weights_that_do_not_fit_are_said(text: Any, model: Any) -> None:
    state = dict(model.state_dict())
    state["more"] = state.pop("norm.bias")
    with pytest.raises(ValueError, match=r"missing: norm.bias(.|\n)*unexpected: more"):
        text.module.load_params(state)


def test_it_goes_to_numpy_as_well(model: Any) -> None:
    text = untrace.from_torch(model)(torch.arange(6)).to("numpy")
    assert text.proof.at_least("close")
    assert "import torch" not in text.source
