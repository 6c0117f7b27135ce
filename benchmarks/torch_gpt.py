"""The same model and training step in PyTorch, as its users would write it: the peer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from shapes import Shape
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.attn_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

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
        hidden = functional.gelu(self.c_fc(self.ln_2(x)), approximate="tanh")
        return x + self.mlp_proj(hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.heads_of(x)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.after_attention(x, mixed)


class TorchGPT(nn.Module):
    """vocabulary: rows of wte; a GPU's users make them a multiple of 64."""

    def __init__(self, shape: Shape, vocabulary: int | None = None) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary or shape.vocab_size, shape.n_embd)
        self.wpe = nn.Embedding(shape.block_size, shape.n_embd)
        self.blocks = nn.ModuleList(Block(shape.n_embd, shape.n_head) for _ in range(shape.n_layer))
        self.ln_f = nn.LayerNorm(shape.n_embd)
        nn.init.normal_(self.wte.weight, std=0.02)
        nn.init.normal_(self.wpe.weight, std=0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.ln_f(x) @ self.wte.weight.t()
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
