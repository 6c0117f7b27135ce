"""What the user fixed of a run; a plan keeps it and chooses the rest."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from andrea.config import DIALECT_SETTINGS, ModelConfig
from andrea.errors import ConfigError
from andrea.training.config import TrainConfig

from .dialects import chosen_dialect

_BUDGETS = ("steps", "seconds", "tokens", "epochs")
_OF_TRAINING = tuple(field.name for field in dataclasses.fields(TrainConfig))


@dataclass(frozen=True)
class Choices:
    """What the user fixed of a run; None leaves it to the plan.

    Names are those of ModelConfig and TrainConfig; preset is a name in andrea.PRESETS, dialect one
    in andrea.config.DIALECTS, over whose settings those win that are given one by one. One of
    steps, seconds, tokens (to learn from, seen again ones included) and epochs (how often each
    token of the text is seen) says how long. is_tuning: the weights have learned already.
    """

    preset: str | None = None
    n_layer: int | None = None
    n_head: int | None = None
    n_embd: int | None = None
    block_size: int | None = None
    dialect: str | None = None
    mlp_dim: int | None = None
    norm: str | None = None
    norm_affine: bool | None = None
    norm_position: str | None = None
    residual: bool | None = None
    activation: str | None = None
    attn_bias: bool | None = None
    mlp_bias: bool | None = None
    tie_embeddings: bool | None = None
    final_norm: bool | None = None
    embedding_norm: bool | None = None
    scaled_init: bool | None = None
    init_std: float | None = None
    batch_size: int | None = None
    accumulate: int | None = None
    steps: int | None = None
    seconds: float | None = None
    tokens: int | None = None
    epochs: float | None = None
    learning_rate: float | None = None
    schedule: str | None = None
    warmup: int | None = None
    min_ratio: float | None = None
    decay_share: float | None = None
    weight_decay: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    max_norm: float | None = None
    seed: int = 0
    eval_every: int | None = None
    eval_windows: int | None = None
    save_every: int | None = None
    keep_last: int | None = None
    outlier_z: float | None = None
    skip_outliers: bool | None = None
    max_skipped: int | None = None
    early_stop: int | None = None
    coherence_gate: float | None = None
    is_tuning: bool = False

    @property
    def fixes_shape(self) -> bool:
        """Whether depth and width are given."""
        return self.preset is not None or None not in (self.n_layer, self.n_embd)

    @property
    def budgets(self) -> list[str]:
        """What is given of steps, seconds, tokens and epochs."""
        return [name for name in _BUDGETS if getattr(self, name) is not None]

    def model_dialect(self) -> dict[str, Any]:
        """What is given of the model's dialect, by ModelConfig's names.

        Raises:
            ConfigError: there is no such preset or dialect.
        """
        given = {name: getattr(self, name) for name in DIALECT_SETTINGS}
        return chosen_dialect(self.preset, self.dialect, given)

    def fixed_training(self) -> dict[str, Any]:
        """What is given of TrainConfig's fields."""
        given = {name: getattr(self, name, None) for name in _OF_TRAINING}
        return {name: value for name, value in given.items() if value is not None}

    def wanted_tokens(self, train_tokens: int) -> int | None:
        """Tokens to learn from, where that or the epochs are given.

        Raises:
            ConfigError: tokens or epochs are not above 0, or more than one budget is given.
        """
        if len(self.budgets) > 1:
            raise ConfigError(
                "give one of steps, seconds, tokens and epochs, to say how long to train: "
                f"{' and '.join(self.budgets)} contradict each other"
            )
        wanted = self.tokens if self.epochs is None else self.epochs * train_tokens
        if wanted is None:
            return None
        if not (wanted > 0 and math.isfinite(wanted)):
            raise ConfigError(f"{self.budgets[0]} must be above 0, got {wanted:g}")
        return math.ceil(wanted)


def steps_for(tokens: int, config: TrainConfig, model: ModelConfig) -> int:
    """Steps that see at least so many tokens."""
    return max(-(-tokens // config.tokens_per_step(model.block_size)), 1)
