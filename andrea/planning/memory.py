"""Whether a run fits in memory, which one would, and what takes most of it where it ran out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from andrea.config import DIALECT_SETTINGS, PRESETS, ModelConfig
from andrea.errors import ConfigError
from andrea.words import size

from .choices import Choices
from .dialects import dialect_name, preset_dialect
from .shapes import shapes
from .sizes import memory_plan, num_parameters

# Plans made here leave room for the rest of the machine, and for what is measured inexactly.
SHARE_OF_MEMORY = 0.7
# What is proposed to the user must still fit when it is asked for a moment later.
_SHARE_OF_PROPOSALS = 0.9
# Where less than twice the copy is free beside the engine, checkpoints are written without one.
_SHARE_OF_COPY = 0.5


def _divisors(number: int) -> list[int]:
    """All of them, the smallest first; by trial up to the root, since a number may be anything."""
    low = [one for one in range(1, math.isqrt(number) + 1) if number % one == 0]
    return low + [number // one for one in reversed(low) if one * one != number]


class TooLarge(ConfigError):
    """A run needs more than there is; `changes` are settings with which it would fit.

    Settings have the names of Choices; None leaves one out. Empty where nothing helps.
    """

    def __init__(self, text: str, changes: Mapping[str, Any]) -> None:
        super().__init__(text)
        self.changes = dict(changes)


@dataclass(frozen=True)
class Room:
    """A device's free memory in bytes, None where it isn't known, and what models take of it."""

    memory: int | None
    device: str = "auto"
    precision: str = "auto"

    def needed(self, model: ModelConfig, batch_size: int) -> dict[str, int]:
        """Bytes that a run takes, by kind: what the engine trains with, and samples beside it."""
        device, precision = self.device, self.precision
        needed = memory_plan(model, batch_size, device=device, precision=precision)
        # The weights are there, but for copies of them that in some precisions only writing needs.
        # What products work in is there, too: how much of the workspace that is, nobody tells.
        writing = memory_plan(model, 1, use="decoding", device=device, precision=precision)
        samples = writing["total"] - needed["parameters"]
        return {**needed, "samples": samples, "total": needed["total"] + samples}

    def fits(self, model: ModelConfig, batch_size: int, share: float = SHARE_OF_MEMORY) -> bool:
        """Whether training takes no more than this share of the memory."""
        if self.memory is None:
            return True
        return self.needed(model, batch_size)["total"] <= share * self.memory

    def check(
        self,
        choices: Choices,
        model: ModelConfig,
        batch_size: int,
        accumulate: int,
        text_tokens: int,
    ) -> dict[str, int]:
        """Bytes that training takes, by kind.

        Raises:
            TooLarge: they are more than there are.
        """
        needed = self.needed(model, batch_size)
        if self.memory is None or needed["total"] <= self.memory:
            return needed
        changes = self.smaller_batch(model, batch_size, accumulate)
        if changes is None:
            fixed = choices, model, batch_size, accumulate, text_tokens
            changes = self._smaller_model(*fixed) or {}
        text = (
            f"training takes {size(needed['total'])} ({consumers(needed)}), "
            f"{size(self.memory)} are free"
        )
        if not changes:
            text += ", too little for "
            text += "these weights" if choices.is_tuning else "any model"
        raise TooLarge(text, changes)

    def smaller_batch(
        self, model: ModelConfig, batch_size: int, accumulate: int
    ) -> dict[str, Any] | None:
        """The largest smaller batches that fit, more of them, so that a step stays what it is."""
        for smaller in _divisors(batch_size)[-2::-1]:
            if self.fits(model, smaller, _SHARE_OF_PROPOSALS):
                return {
                    "batch_size": smaller,
                    "accumulate": accumulate * (batch_size // smaller),
                }
        return None

    def _smaller_model(
        self,
        choices: Choices,
        model: ModelConfig,
        batch_size: int,
        accumulate: int,
        text_tokens: int,
    ) -> dict[str, Any] | None:
        """The largest smaller model that fits, with the batches that fit then."""
        for change, smaller in _smaller_shapes(choices, model, text_tokens):
            if self.fits(smaller, batch_size, _SHARE_OF_PROPOSALS):
                return {**change, "batch_size": batch_size, "accumulate": accumulate}
            batches = self.smaller_batch(smaller, batch_size, accumulate)
            if batches is not None:
                return {**change, **batches}
        return None


def _smaller_shapes(
    choices: Choices, model: ModelConfig, text_tokens: int
) -> Iterator[tuple[dict[str, Any], ModelConfig]]:
    """Changes of the settings and the models that they give, from large to small.

    They keep the dialect that was asked for, but not the width of its MLP.
    """
    if choices.is_tuning:
        return
    parameters = num_parameters(model)
    own: dict[str, Any] = {"n_layer": None, "n_head": None, "n_embd": None, "block_size": None}
    if choices.mlp_dim is not None:
        own["mlp_dim"] = None
    for name, smaller in _smaller_presets(replace(choices, **own), model.vocab_size):
        if num_parameters(smaller) < parameters:
            yield {**own, "preset": name}, smaller
    if choices.preset is not None:
        # Without the preset its dialect has to be named.
        dialect = dialect_name(preset_dialect(choices.preset))
        if choices.dialect is None and dialect != "gpt2":
            own["dialect"] = dialect
    alone = {name: getattr(choices, name) for name in ("dialect", *DIALECT_SETTINGS)}
    ladder = list(
        shapes(Choices(**{**alone, "mlp_dim": None, **own}), model.vocab_size, text_tokens)
    )
    for smaller in reversed(ladder):
        if num_parameters(smaller) < parameters:
            sizes = {"n_layer": smaller.n_layer, "n_embd": smaller.n_embd}
            context = min(smaller.block_size, model.block_size)
            smaller = replace(smaller, block_size=context)
            yield {**own, **sizes, "block_size": context, "preset": None}, smaller


def _smaller_presets(choices: Choices, vocab_size: int) -> Iterator[tuple[str, ModelConfig]]:
    """The presets of the chosen one's dialect and of no larger vocabulary, from large to small."""
    if choices.preset is None:
        return
    asked = PRESETS[choices.preset]
    found = []
    for name, sizes in PRESETS.items():
        is_of_it = choices.dialect or preset_dialect(name) == preset_dialect(choices.preset)
        if is_of_it and sizes["vocab_size"] <= asked["vocab_size"]:
            shape = {**sizes, "vocab_size": sizes["vocab_size"] or vocab_size}
            dialect = replace(choices, preset=name).model_dialect()
            without = {key: value for key, value in shape.items() if key not in DIALECT_SETTINGS}
            found.append((name, ModelConfig(**without, **dialect)))
    yield from sorted(found, key=lambda one: num_parameters(one[1]), reverse=True)


def copy_fits(parameters: int, free: int | None) -> bool:
    """Whether checkpoints can be written from a copy of the state: 12 bytes a parameter.

    free: bytes of the machine's memory beside the engine's; None where nothing tells.
    """
    return free is None or copy_bytes(parameters) <= _SHARE_OF_COPY * free


def copy_bytes(parameters: int) -> int:
    """Bytes of a parameter and of its two moments, in float32, times the parameters."""
    return 12 * parameters


def consumers(memory: Mapping[str, int]) -> str:
    """The biggest kinds of a memory plan with what they take, at most three, the biggest first."""
    kinds = sorted(
        ((taken, kind) for kind, taken in memory.items() if kind != "total"), reverse=True
    )
    return ", ".join(f"{kind} {size(taken)}" for taken, kind in kinds[:3] if taken)
