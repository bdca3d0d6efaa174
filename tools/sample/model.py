"""The sample model: Llama with a ReLU-gated FFN. For training and measurement."""
import dataclasses

import torch
from torch import nn
from torch.nn import functional as F


@dataclasses.dataclass(frozen=True)
class Config:
    vocab_size: int = 2048
    context_length: int = 256
    dim: int = 256
    block_count: int = 5
    ffn_dim: int = 768
    head_count: int = 8
    kv_head_count: int = 4
    rope_base: float = 10000.0
    norm_epsilon: float = 1e-5

    @property
    def head_dim(self):
        return self.dim // self.head_count


class RMSNorm(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.dim))
        self.epsilon = config.norm_epsilon

    def forward(self, x):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return x * scale * self.weight


class Rope(nn.Module):
    """Rotates the pairs (2i, 2i+1) of each head."""

    def __init__(self, config):
        super().__init__()
        exponent = torch.arange(0, config.head_dim, 2) / config.head_dim
        angle = torch.outer(torch.arange(config.context_length), config.rope_base ** -exponent)
        self.register_buffer("cos", angle.cos()[:, None, :], persistent=False)
        self.register_buffer("sin", angle.sin()[:, None, :], persistent=False)

    def forward(self, x):  # x: [batch, time, head, head_dim]
        even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        cos, sin = self.cos[:x.shape[1]], self.sin[:x.shape[1]]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        kv_dim = config.kv_head_count * config.head_dim
        self.q = nn.Linear(config.dim, config.dim, bias=False)
        self.k = nn.Linear(config.dim, kv_dim, bias=False)
        self.v = nn.Linear(config.dim, kv_dim, bias=False)
        self.output = nn.Linear(config.dim, config.dim, bias=False)
        self.rope = Rope(config)
        size = config.context_length
        mask = torch.full((size, size), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        c = self.config
        batch, time, _ = x.shape
        group = c.head_count // c.kv_head_count
        q = self.rope(self.q(x).view(batch, time, c.head_count, c.head_dim))
        k = self.rope(self.k(x).view(batch, time, c.kv_head_count, c.head_dim))
        v = self.v(x).view(batch, time, c.kv_head_count, c.head_dim)
        # The queries that share a KV head are rows of one matrix.
        q = q.view(batch, time, c.kv_head_count, group, c.head_dim)
        q = q.permute(0, 2, 3, 1, 4).reshape(batch * c.kv_head_count, group * time, c.head_dim)
        k = k.permute(0, 2, 3, 1).reshape(batch * c.kv_head_count, c.head_dim, time)
        v = v.permute(0, 2, 1, 3).reshape(batch * c.kv_head_count, time, c.head_dim)
        mask = self.mask[:time, :time].repeat(group, 1)
        scores = torch.baddbmm(mask, q, k, alpha=c.head_dim ** -0.5)
        y = torch.bmm(scores.softmax(-1), v)
        y = y.view(batch, c.kv_head_count, group, time, c.head_dim)
        return self.output(y.permute(0, 3, 1, 2, 4).reshape(batch, time, c.dim))


class FFN(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.up = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.down = nn.Linear(config.ffn_dim, config.dim, bias=False)

    def forward(self, x):
        """The output, and the activations relu(gate) whose zeros are skipped."""
        activation = F.relu(self.gate(x))
        return self.down(activation * self.up(x)), activation


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attn_norm = RMSNorm(config)
        self.attn = Attention(config)
        self.ffn_norm = RMSNorm(config)
        self.ffn = FFN(config)

    def forward(self, x):
        x = x + self.attn(self.attn_norm(x))
        y, activation = self.ffn(self.ffn_norm(x))
        return x + y, activation


class Model(nn.Module):
    """The output matrix is the token embedding (tied)."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.token_embd = nn.Embedding(config.vocab_size, config.dim)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.block_count))
        self.output_norm = RMSNorm(config)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                residual = name.endswith(("output.weight", "down.weight"))
                std = 0.02 / (2 * config.block_count) ** 0.5 if residual else 0.02
                nn.init.normal_(parameter, std=std)

    def forward(self, ids):
        """Logits [batch, time, vocab], and the FFN activations of each block."""
        x = self.token_embd(ids)
        activations = []
        for block in self.blocks:
            x, activation = block(x)
            activations.append(activation)
        return F.linear(self.output_norm(x), self.token_embd.weight), activations
