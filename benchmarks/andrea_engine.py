"""Andrea as one of the engines that are measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from shapes import Shape

import andrea


def _model(shape: Shape, precision: str, threads: int) -> andrea.GPT:
    andrea.set_num_threads(threads)
    config = andrea.ModelConfig(
        vocab_size=shape.vocab_size,
        block_size=shape.block_size,
        n_layer=shape.n_layer,
        n_head=shape.n_head,
        n_embd=shape.n_embd,
    )
    return andrea.GPT(config, device="cpu", precision=precision, seed=0)


def training_step(shape: Shape, precision: str, threads: int) -> Callable[[], float]:
    """A function that does one step, gradient clipping included, and returns the loss."""
    model = _model(shape, precision, threads)
    inputs, targets = np.random.default_rng(0).integers(
        0, shape.vocab_size, (2, shape.batch_size, shape.block_size), dtype=np.int32
    )
    return lambda: model.train_step(inputs, targets, learning_rate=3e-4)


class DecodedSequence:
    """A decoder of one sequence."""

    def __init__(self, shape: Shape, precision: str, threads: int) -> None:
        self._decoder = _model(shape, precision, threads).decoder()

    def reset(self) -> None:
        self._decoder.reset()

    def feed(self, tokens: Sequence[int]) -> int:
        return int(self._decoder.feed([tokens])[0].argmax())
