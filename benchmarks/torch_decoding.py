"""The peer's decoding: PyTorch with keys and values in a cache that is allocated once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from shapes import Shape
from torch.nn import functional
from torch_gpt import TorchGPT


class DecodedSequence:
    """One sequence, with weights and cache in the precision that is measured."""

    def __init__(self, shape: Shape, precision: str, threads: int, device: str = "cpu") -> None:
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self._model = TorchGPT(shape).eval().to(device, dtype)
        size = (1, shape.n_head, shape.block_size, shape.n_embd // shape.n_head)
        self._caches = [
            (
                torch.zeros(size, dtype=dtype, device=device),
                torch.zeros(size, dtype=dtype, device=device),
            )
            for _ in range(shape.n_layer)
        ]
        self._length = 0
        self._device = device

    def reset(self) -> None:
        self._length = 0

    @torch.inference_mode()
    def feed(self, tokens: Sequence[int]) -> int:
        begin, end = self._length, self._length + len(tokens)
        model = self._model
        x = model.embedded(torch.tensor([tokens], device=self._device), begin, end)
        # A single token sees all positions there are; of several, each sees those up to its own.
        mask = None
        if len(tokens) > 1:
            mask = torch.ones(len(tokens), end, dtype=torch.bool, device=self._device).tril(begin)
        for block, (keys, values) in zip(model.blocks, self._caches, strict=True):
            q, keys[:, :, begin:end], values[:, :, begin:end] = block.heads_of(x)
            mixed = functional.scaled_dot_product_attention(
                q, keys[:, :, :end], values[:, :, :end], attn_mask=mask
            )
            x = block.after_attention(x, mixed)
        self._length = end
        return int(model.logits(x[0, -1]).argmax())
