"""Andrea as one of the engines that are measured, on a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

import numpy as np
from shapes import Shape

import andrea
from andrea._library import cuda_info


def _model(shape: Shape, precision: str, threads: int, device: str) -> andrea.GPT:
    andrea.set_num_threads(threads)
    config = andrea.ModelConfig(
        vocab_size=shape.vocab_size,
        block_size=shape.block_size,
        n_layer=shape.n_layer,
        n_head=shape.n_head,
        n_embd=shape.n_embd,
        **asdict(shape.parts),
    )
    return andrea.GPT(config, device=device, precision=precision, seed=0)


def gpu_bytes_in_use() -> int:
    """Of the first GPU's memory, by all processes, this one's context included."""
    info = cuda_info()
    return info.memory_total - info.memory_free


def training_step(
    shape: Shape, precision: str, threads: int, device: str = "cpu"
) -> Callable[[], float]:
    """A function that does one step, gradient clipping included, and returns the loss."""
    model = _model(shape, precision, threads, device)
    inputs, targets = np.random.default_rng(0).integers(
        0, shape.vocab_size, (2, shape.batch_size, shape.block_size), dtype=np.int32
    )
    return lambda: model.train_step(inputs, targets, learning_rate=3e-4)


class DecodedSequence:
    """A decoder of one sequence."""

    def __init__(self, shape: Shape, precision: str, threads: int, device: str = "cpu") -> None:
        self._decoder = _model(shape, precision, threads, device).decoder()

    def reset(self) -> None:
        self._decoder.reset()

    def feed(self, tokens: Sequence[int]) -> int:
        return int(self._decoder.feed([tokens])[0].argmax())
