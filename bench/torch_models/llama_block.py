"""The block of the torchax experiment: one Llama layer that keeps its keys and values in a cache."""

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return normed.type_as(x) * self.weight


class KVCache(nn.Module):
    def __init__(self, batch, length, heads, head_dim, dtype):
        super().__init__()
        shape = (batch, heads, length, head_dim)
        self.register_buffer("k_cache", torch.zeros(shape, dtype=dtype))
        self.register_buffer("v_cache", torch.zeros(shape, dtype=dtype))

    def forward(self, positions, k, v):
        self.k_cache[:, :, positions] = k
        self.v_cache[:, :, positions] = v
        return self.k_cache, self.v_cache


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.kv_cache = None

    def rotate(self, x, freqs_cis):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        rotated = torch.view_as_real(pairs * freqs_cis[None, :, None, :]).flatten(3)
        return rotated.type_as(x)

    def forward(self, x, freqs_cis, mask, positions):
        batch, length, dim = x.shape
        q, k, v = self.wqkv(x).chunk(3, dim=-1)
        q = q.view(batch, length, self.heads, self.head_dim)
        k = k.view(batch, length, self.heads, self.head_dim)
        v = v.view(batch, length, self.heads, self.head_dim)
        q = self.rotate(q, freqs_cis)
        k = self.rotate(k, freqs_cis)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        k, v = self.kv_cache(positions, k, v)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out = out.transpose(1, 2).reshape(batch, length, dim)
        return self.wo(out)


class FeedForward(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class TransformerBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attention = Attention(dim, heads)
        self.feed_forward = FeedForward(dim, 3 * dim)
        self.attention_norm = RMSNorm(dim)
        self.ffn_norm = RMSNorm(dim)

    def forward(self, x, freqs_cis, mask, positions):
        h = x + self.attention(self.attention_norm(x), freqs_cis, mask, positions)
        return h + self.feed_forward(self.ffn_norm(h))


DIM, HEADS, BLOCK_SIZE = 256, 4, 2048


def build(dtype=torch.float32):
    block = TransformerBlock(DIM, HEADS).to(dtype)
    block.attention.kv_cache = KVCache(1, BLOCK_SIZE, HEADS, DIM // HEADS, dtype)
    return block.eval()


def build_bf16():
    return build(torch.bfloat16)


def inputs(length=1, dtype=torch.float32):
    positions = torch.arange(length)
    angles = torch.outer(positions.float(), 1.0 / 10000 ** (torch.arange(0, 64, 2) / 64))
    mask = torch.ones(BLOCK_SIZE, BLOCK_SIZE, dtype=torch.bool).tril()[None, None, :length]
    return (
        torch.randn(1, length, DIM, dtype=dtype),
        torch.polar(torch.ones_like(angles), angles),
        mask,
        positions,
    )


def inputs_bf16(length=1):
    return inputs(length, torch.bfloat16)
