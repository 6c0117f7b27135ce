"""The same model and training step in PyTorch, as its users would write it: the peer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from shapes import Shape
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel


def _activated(activation: str, hidden: torch.Tensor) -> torch.Tensor:
    """The MLP's inside, from what its first layer makes."""
    if activation == "gelu":
        return functional.gelu(hidden, approximate="tanh")
    if activation == "relu":
        return functional.relu(hidden)
    assert activation == "swiglu"
    gate, passed = hidden.chunk(2, dim=-1)
    return functional.silu(gate) * passed


def _norm(shape: Shape) -> nn.Module:
    kind = {"layernorm": nn.LayerNorm, "rmsnorm": nn.RMSNorm}[shape.parts.norm]
    return kind(shape.n_embd, eps=1e-5, elementwise_affine=shape.parts.norm_affine)


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        parts, width = shape.parts, shape.n_embd
        self.heads, self.activation = shape.n_head, parts.activation
        self.ln_1, self.ln_2 = _norm(shape), _norm(shape)
        self.c_attn = nn.Linear(width, 3 * width, parts.attn_bias)
        self.attn_proj = nn.Linear(width, width, parts.attn_bias)
        self.c_fc = nn.Linear(width, shape.hidden_dim, parts.mlp_bias)
        self.mlp_proj = nn.Linear(shape.mlp_dim, width, parts.mlp_bias)

    def heads_of(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values, each [B, heads, T, head width]."""
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.c_attn(self.ln_1(x)).split(width, dim=2)
        )
        return q, k, v

    def after_attention(self, x: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        x = x + self.attn_proj(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.mlp_proj(_activated(self.activation, self.c_fc(self.ln_2(x))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.heads_of(x)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.after_attention(x, mixed)


class TorchGPT(nn.Module):
    """vocabulary: rows of wte and of the head; a GPU's users make them a multiple of 64."""

    def __init__(self, shape: Shape, vocabulary: int | None = None) -> None:
        super().__init__()
        rows, parts = vocabulary or shape.vocab_size, shape.parts
        self.wte = nn.Embedding(rows, shape.n_embd)
        self.wpe = nn.Embedding(shape.block_size, shape.n_embd)
        self.ln_emb = _norm(shape) if parts.embedding_norm else nn.Identity()
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.n_layer))
        self.ln_f = _norm(shape) if parts.final_norm else nn.Identity()
        self.lm_head = nn.Linear(shape.n_embd, rows, bias=False)
        if parts.tie_embeddings:
            self.lm_head.weight = self.wte.weight
        for table in (self.wte, self.wpe, self.lm_head):
            nn.init.normal_(table.weight, std=parts.init_std)

    def embedded(self, tokens: torch.Tensor, begin: int, end: int) -> torch.Tensor:
        """What the first block reads of tokens [B, T] at positions from begin to end."""
        x: torch.Tensor = self.ln_emb(self.wte(tokens) + self.wpe.weight[begin:end])
        return x

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Of what the last block makes."""
        logits: torch.Tensor = self.lm_head(self.ln_f(x))
        return logits

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embedded(tokens, 0, tokens.shape[1])
        for block in self.blocks:
            x = block(x)
        logits = self.logits(x)
        return functional.cross_entropy(logits.float().view(-1, logits.shape[-1]), targets.view(-1))


def gpu_bytes_in_use() -> int:
    """Of the first GPU's memory, by all processes, this one's context included."""
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def training_step(
    shape: Shape, precision: str, mode: str, clips: bool, threads: int, device: str = "cpu"
) -> Callable[[], float]:
    """A function that does one step and returns the loss.

    precision: "fp32", or "bf16" by autocast, with float32 parameters and moments as Andrea has
    them; mode: "eager", "compiled", or "pure", compiled and with parameters and moments in bfloat16
    as well; clips: whether the gradient's norm is computed and limited. On a GPU bf16 has flash
    attention, and the batch is there already.
    """
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    on_gpu = device != "cpu"
    model = TorchGPT(shape, -(-shape.vocab_size // 64) * 64 if on_gpu else None).to(device)
    if mode == "pure":
        model = model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    loss_of = model if mode == "eager" else torch.compile(model)
    size = (2, shape.batch_size, shape.block_size)
    x, y = torch.randint(0, shape.vocab_size, size, device=device)
    by_autocast = precision == "bf16" and mode != "pure"

    def attention() -> AbstractContextManager[object]:
        if on_gpu and precision == "bf16":
            return sdpa_kernel(SDPBackend.FLASH_ATTENTION)
        return nullcontext()

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=by_autocast), attention():
            loss = loss_of(x, y)
        loss.backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.item())

    return step
