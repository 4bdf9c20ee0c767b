"""An encoder-decoder as in T5 and BART: self- and cross-attention, causal and padding masks, tied head."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def split(self, x):
        batch, length, dim = x.shape
        return x.view(batch, length, self.heads, dim // self.heads).transpose(1, 2)

    def forward(self, x, context, mask):
        q = self.split(self.query(x))
        k = self.split(self.key(context))
        v = self.split(self.value(context))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(~mask, -1e9)
        weights = F.softmax(scores, dim=-1)
        merged = (weights @ v).transpose(1, 2).flatten(2)
        return self.out(merged)


class FeedForward(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.inner = nn.Linear(dim, hidden)
        self.outer = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.outer(F.relu(self.inner(x)))


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attention = MultiHeadAttention(dim, heads)
        self.norm1 = nn.LayerNorm(dim)
        self.feed_forward = FeedForward(dim, 2 * dim)
        self.norm2 = nn.LayerNorm(dim)

    def forward(self, x, mask):
        normed = self.norm1(x)
        x = x + self.attention(normed, normed, mask)
        return x + self.feed_forward(self.norm2(x))


class DecoderLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attention = MultiHeadAttention(dim, heads)
        self.norm1 = nn.LayerNorm(dim)
        self.cross_attention = MultiHeadAttention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.feed_forward = FeedForward(dim, 2 * dim)
        self.norm3 = nn.LayerNorm(dim)

    def forward(self, x, memory, causal_mask, memory_mask):
        normed = self.norm1(x)
        x = x + self.attention(normed, normed, causal_mask)
        x = x + self.cross_attention(self.norm2(x), memory, memory_mask)
        return x + self.feed_forward(self.norm3(x))


class Seq2Seq(nn.Module):
    def __init__(self, vocab=60, dim=32, heads=4, layers=2, longest=32):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim, padding_idx=0)
        self.position = nn.Embedding(longest, dim)
        self.encoder = nn.ModuleList(EncoderLayer(dim, heads) for _ in range(layers))
        self.decoder = nn.ModuleList(DecoderLayer(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.embedding.weight

    def embed(self, tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.embedding(tokens) + self.position(positions)

    def forward(self, source, target):
        source_mask = (source != 0)[:, None, None, :]
        memory = self.embed(source)
        for layer in self.encoder:
            memory = layer(memory, source_mask)
        length = target.shape[1]
        causal_mask = torch.ones(length, length, dtype=torch.bool, device=target.device).tril()
        x = self.embed(target)
        for layer in self.decoder:
            x = layer(x, memory, causal_mask, source_mask)
        return self.head(self.norm(x))


def build():
    return Seq2Seq().eval()


def inputs(batch=2, source=7, target=5):
    tokens = torch.randint(1, 60, (batch, source))
    tokens[0, -2:] = 0
    return tokens, torch.randint(1, 60, (batch, target))
