"""Copying heads in the initial weights: one that looks back a token, one that finds a match.

A model of two million parameters trained plainly takes hours to find the two-step circuit that
copies text from its prompt (a previous-token head feeding an induction head: Olsson et al. 2022,
arXiv 2209.11895). Here the circuit is written into the initial weights of layers 0 and 1, and
then everything trains as usual; the result stays a plain Llama.
"""

from __future__ import annotations

import math

import torch
from transformers import LlamaForCausalLM


@torch.no_grad()
def seed_copying_heads(model: LlamaForCausalLM, *, seed: int) -> None:
    """Write a previous-token head (layer 0, head 0) and an induction head (layer 1, head 0)."""
    config = model.config
    width, size = config.hidden_size, config.head_dim
    own = width - size  # embeddings live here; the last `size` dimensions carry the previous token
    # Every block starts as a no-op: random writes would drown the small embeddings.
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    generator = torch.Generator().manual_seed(seed)
    embedding = model.model.embed_tokens.weight
    embedding[:, own:] = 0
    embedding[:, 0] = embedding.std() * 4  # a constant that queries and keys can be built from
    rms = embedding.pow(2).mean(dim=1).sqrt().mean()
    constant = embedding[0, 0] / rms

    # Orthonormal rows: `size` directions of the token's identity, none of them the constant.
    basis = torch.linalg.qr(torch.randn(own - 1, size, generator=generator))[0].T
    project = torch.zeros(size, width)
    project[:, 1:own] = basis

    first = model.model.layers[0].self_attn
    half, fast = size // 2, 8  # the slow frequencies cannot tell one step from none
    angle = config.rope_parameters["rope_theta"] ** (-torch.arange(fast) / half)
    strength = math.sqrt(10.0 * math.sqrt(size)) / constant  # 10 nats of attention each
    # RoPE pairs dimension i with i + half; a query turned back by one step peaks at distance one.
    # Rows are added to the random ones: a row that is zero in both query and key never learns.
    key, query = torch.zeros(size, width), torch.zeros(size, width)
    key[:fast, 0] = strength
    query[:fast, 0] = strength * torch.cos(angle)
    query[half : half + fast, 0] = -strength * torch.sin(angle)
    first.k_proj.weight[:size] += key
    first.q_proj.weight[:size] += query
    first.v_proj.weight[:size] = project
    first.o_proj.weight[own:, :size] = torch.eye(size) * rms

    # Matching must not depend on distance: only the frequencies that turn little in 500 tokens.
    second = model.model.layers[1].self_attn
    slow = torch.zeros(size, 1)
    slow[11:half] = slow[half + 11 :] = 1
    gain = math.sqrt(16.0 * math.sqrt(size) / (own * 2 * (half - 11) / size))
    previous = torch.zeros(size, width)
    previous[:, own:] = torch.eye(size)
    second.q_proj.weight[:size] += project * slow * gain * 2
    second.k_proj.weight[:size] += previous * slow * gain * 2
    second.v_proj.weight[:size] = project
    second.o_proj.weight[:, :size] = project.T * rms * 4
