"""A mixture of experts: top-2 routing over SwiGLU experts, every expert computed, weighted by the router."""

import torch
import torch.nn.functional as F
from torch import nn


class Expert(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class MixtureOfExperts(nn.Module):
    def __init__(self, dim=16, hidden=32, experts=4, chosen=2):
        super().__init__()
        self.chosen = chosen
        self.router = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList(Expert(dim, hidden) for _ in range(experts))

    def forward(self, x):
        logits = self.router(x)
        weights, selected = torch.topk(F.softmax(logits, dim=-1), self.chosen, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            share = (weights * (selected == index)).sum(dim=-1, keepdim=True)
            out = out + share * expert(x)
        return out


def build():
    return MixtureOfExperts().eval()


def inputs(batch=2, length=6):
    return (torch.randn(batch, length, 16),)
