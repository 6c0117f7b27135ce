"""Everything `andrea train` decides when left alone, and what a run will take: the plan.

The rule for size. A model learns best per operation when it sees about 20 tokens per parameter
(Hoffmann et al. 2022). So: of the ladder's shapes (shapes.py), the one that comes nearest to that
in the time there is, of those with at most 2 parameters per token of the text, since larger ones
learn a text by heart. The rest follows: context by width and text; tokens of a step so that there
are some 6,000 steps; learning rate falling with the square root of the width.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TypeVar

from andrea.config import ModelConfig
from andrea.training.config import TrainConfig

from .choices import Choices, steps_for
from .dialects import preset_sizes
from .memory import Room
from .shapes import shapes
from .sizes import flops_per_token, num_parameters

__all__ = ["DEFAULT_SECONDS", "Choices", "Plan", "needs_speed", "plan", "preset_tokenizer"]

T = TypeVar("T")

DEFAULT_SECONDS = 300.0

TOKENS_PER_PARAMETER = 20
_PARAMETERS_PER_TEXT_TOKEN = 2
# Many small steps beat few large ones as long as the processor is busy with one.
_STEPS = 6000
_TOKENS_PER_STEP = (512, 131072)
# What two cores of an ordinary machine do a second. Runs by steps are sized for five minutes of it,
# so that the same command makes the same model everywhere.
_NOMINAL_SPEED = 7e10
# Evaluations, saves and samples take the rest.
_SHARE_OF_TRAINING = 0.93
_LONGEST_BETWEEN_EVALUATIONS = 600.0
_MANY_EPOCHS = 40
# Of the peak learning rate, where weights go on learning from another text.
_SHARE_OF_RATE = 0.3


def preset_tokenizer(preset: str | None) -> tuple[str, int | None]:
    """Tokenizer and vocabulary that belong to a preset, for `andrea.data.prepare`.

    Raises:
        ConfigError: there is no such preset.
    """
    vocab_size = preset_sizes(preset).get("vocab_size", 0)
    return ("bpe", vocab_size) if vocab_size else ("auto", None)


def needs_speed(choices: Choices) -> bool:
    """Whether the plan depends on what the machine can do."""
    if choices.budgets and choices.seconds is None:
        return False
    return not (choices.fixes_shape and choices.batch_size is not None)


@dataclass(frozen=True)
class Plan:
    """A run before it begins. memory: bytes by kind. notes: why it is so, in sentences.

    What depends on the speed is None until `with_speed`; for runs with a time it is an estimate.
    """

    model: ModelConfig
    train: TrainConfig
    choices: Choices
    memory: dict[str, int]
    train_tokens: int
    notes: tuple[str, ...]
    seconds_per_step: float | None = None

    @property
    def parameters(self) -> int:
        """Trained numbers of the model."""
        return num_parameters(self.model)

    @property
    def flops_per_token(self) -> int:
        """Floating-point operations to train on one token."""
        return flops_per_token(self.model, training=True)

    @property
    def steps(self) -> int | None:
        """Steps of the run."""
        if self.train.seconds is None or self.seconds_per_step is None:
            return self.train.steps
        return max(round(_SHARE_OF_TRAINING * self.train.seconds / self.seconds_per_step), 1)

    @property
    def seconds(self) -> float | None:
        """Seconds of the run."""
        if self.train.steps is None or self.seconds_per_step is None:
            return self.train.seconds
        return self.train.steps * self.seconds_per_step / _SHARE_OF_TRAINING

    @property
    def tokens(self) -> int | None:
        """Tokens that the model will have seen."""
        if self.steps is None:
            return None
        return self.steps * self.train.tokens_per_step(self.model.block_size)

    @property
    def epochs(self) -> float | None:
        """How often it will have seen each token of the text."""
        return None if self.tokens is None else self.tokens / self.train_tokens

    @property
    def tokens_per_second(self) -> float | None:
        """Training speed, without evaluations and saves."""
        if self.seconds_per_step is None:
            return None
        return self.train.tokens_per_step(self.model.block_size) / self.seconds_per_step

    def with_speed(self, seconds_per_step: float) -> Plan:
        """The plan with the measured speed, and with what follows from it.

        Runs by steps keep their settings: they must not depend on the speed.
        """
        known = dataclasses.replace(self, seconds_per_step=seconds_per_step)
        steps = known.steps
        assert steps is not None
        notes = self.notes
        if known.epochs is not None and known.epochs > _MANY_EPOCHS:
            notes += (
                f"text: each token will be seen about {known.epochs:,.0f} times, and more text "
                "would teach more than more time",
            )
        train = self.train
        if train.seconds is not None:
            most = max(round(_LONGEST_BETWEEN_EVALUATIONS / seconds_per_step), 1)
            train = _with_intervals(train, self.choices, steps, most)
        return dataclasses.replace(known, train=train, notes=notes)


def plan(
    choices: Choices,
    *,
    vocab_size: int,
    train_tokens: int,
    flops_per_second: float | None = None,
    memory: int | None = None,
    device: str = "auto",
    precision: str = "auto",
) -> Plan:
    """Plan a run for a tokenized text, keeping what the user chose.

    flops_per_second is the measured speed (machine.measure_flops), memory the bytes that may be
    used on the device (machine.available_memory); without the first, an ordinary machine is
    assumed.

    Raises:
        ConfigError: a choice is out of its range, or choices contradict each other.
        TooLarge: the run does not fit in memory.
    """
    if not choices.budgets:
        choices = dataclasses.replace(choices, seconds=DEFAULT_SECONDS)
    wanted = choices.wanted_tokens(train_tokens)
    seconds, speed = choices.seconds, flops_per_second
    if seconds is None or speed is None:
        seconds, speed = _chosen(seconds, DEFAULT_SECONDS), _NOMINAL_SPEED
    work = _SHARE_OF_TRAINING * seconds * speed
    room = Room(memory, device, precision)
    smallest, *larger = shapes(choices, vocab_size, train_tokens)
    candidates = [
        candidate
        for candidate in larger
        if num_parameters(candidate) <= _PARAMETERS_PER_TEXT_TOKEN * train_tokens
        and room.fits(candidate, 1)
    ]
    model = min([smallest, *candidates], key=lambda shape: _distance(shape, work, wanted))
    tokens = _tokens(model, work, wanted)
    batch_size, accumulate = _batch(choices, model, tokens, train_tokens, room)
    defaults = {
        "batch_size": batch_size,
        "accumulate": accumulate,
        "learning_rate": _learning_rate(model, is_tuning=choices.is_tuning),
    }
    fixed = choices.fixed_training()
    if wanted is not None:
        # Until the steps are known that this takes.
        fixed |= {"steps": 1}
    config = TrainConfig(**{**defaults, **fixed})
    needed = room.check(choices, model, batch_size, accumulate, train_tokens)
    if wanted is not None:
        config = dataclasses.replace(config, steps=steps_for(wanted, config, model))
    steps = config.steps or max(round(tokens / config.tokens_per_step(model.block_size)), 1)
    return Plan(
        model=model,
        train=_with_intervals(config, choices, steps, most=steps),
        choices=choices,
        memory=needed,
        train_tokens=train_tokens,
        notes=_notes(choices, config, steps),
    )


def _tokens(model: ModelConfig, work: float, wanted: int | None) -> float:
    """Tokens that a model sees: the wanted ones, or what so many operations allow."""
    return max(work, 1.0) / flops_per_token(model, training=True) if wanted is None else wanted


def _distance(model: ModelConfig, work: float, wanted: int | None) -> float:
    """How far, as a ratio, the model's tokens per parameter will be from the best."""
    tokens = _tokens(model, work, wanted)
    return abs(math.log(tokens / num_parameters(model) / TOKENS_PER_PARAMETER))


def _batch(
    choices: Choices, model: ModelConfig, tokens: float, train_tokens: int, room: Room
) -> tuple[int, int]:
    """Sequences of a micro-batch, and micro-batches of a step."""
    low, high = _TOKENS_PER_STEP
    tokens_per_step = 2 ** round(math.log2(min(max(tokens / _STEPS, low), high)))
    while tokens_per_step > train_tokens:
        tokens_per_step //= 2
    accumulate = _chosen(choices.accumulate, 1)
    if choices.batch_size is not None:
        return choices.batch_size, accumulate
    batch_size = max(tokens_per_step // model.block_size // max(accumulate, 1), 1)
    while batch_size > 1 and not room.fits(model, batch_size):
        batch_size //= 2
        if choices.accumulate is None:
            accumulate *= 2
    return batch_size, accumulate


def _learning_rate(model: ModelConfig, *, is_tuning: bool) -> float:
    """Peak learning rate: 6e-4 at 768 wide (as GPT-3's), falling with the root of the width.

    Weights that have learned already would lose much of it at that rate.
    """
    rate = 6e-4 * math.sqrt(768 / model.n_embd)
    return float(f"{rate * (_SHARE_OF_RATE if is_tuning else 1):.2g}")


def _with_intervals(config: TrainConfig, choices: Choices, steps: int, most: int) -> TrainConfig:
    """Fill in how often things happen in so many steps; `most`: steps between two evaluations."""
    often = min(max(math.ceil(steps / 20), 10), most)
    return dataclasses.replace(
        config,
        warmup=_chosen(choices.warmup, min(steps // 20, 1000)),
        eval_every=_chosen(choices.eval_every, often),
        save_every=_chosen(choices.save_every, often),
    )


def _notes(choices: Choices, config: TrainConfig, steps: int) -> tuple[str, ...]:
    notes = []
    if not choices.fixes_shape:
        within = "in this time" if choices.seconds is not None else "for a run of this length"
        notes.append(
            f"size: nearest to {TOKENS_PER_PARAMETER} tokens per parameter {within}, "
            f"with at most {_PARAMETERS_PER_TEXT_TOKEN} parameters per token of the text"
        )
    if choices.accumulate is None and config.accumulate > 1:
        notes.append(f"batch: in {config.accumulate} parts, to fit in memory")
    if choices.is_tuning and choices.learning_rate is None:
        notes.append(
            f"rate: {config.learning_rate:g}, {_SHARE_OF_RATE:g} of a new model's, to "
            "keep what the weights have learned"
        )
    if choices.warmup is not None and choices.warmup >= steps:
        notes.append(
            f"warmup: its {choices.warmup:,} steps do not end within the run, which never reaches "
            "the highest learning rate"
        )
    return tuple(notes)


def _chosen(value: T | None, otherwise: T) -> T:
    return otherwise if value is None else value
