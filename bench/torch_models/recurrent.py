"""Language models on an LSTM and on a GRU, two layers each."""

import torch
from torch import nn


class LSTMModel(nn.Module):
    def __init__(self, vocab=50, dim=16, hidden=24):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.lstm = nn.LSTM(dim, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, vocab)

    def forward(self, tokens):
        x = self.embedding(tokens)
        out, (hidden, cell) = self.lstm(x)
        return self.head(out), hidden, cell


class GRUModel(nn.Module):
    def __init__(self, vocab=50, dim=16, hidden=24):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.gru = nn.GRU(dim, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, vocab)

    def forward(self, tokens, state):
        x = self.embedding(tokens)
        out, state = self.gru(x, state)
        return {"logits": self.head(out), "state": state}


def build():
    return LSTMModel().eval()


def build_gru():
    return GRUModel().eval()


def inputs(batch=2, length=5):
    return (torch.randint(0, 50, (batch, length)),)


def inputs_gru(batch=2, length=5):
    return torch.randint(0, 50, (batch, length)), torch.randn(2, batch, 24)
