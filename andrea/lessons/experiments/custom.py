"""Any settings side by side, as the user names them: n_layer=2,4,8."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from andrea.config import ModelConfig
from andrea.errors import ArgumentError, ConfigError
from andrea.lessons.counting import changed_config

from .drawings import gradient_profile, loss_curves
from .experiment import Contrast, Experiment, Measure, Variant, lower_loss
from .run import first_over_last
from .settings import is_quick, small_model, training

_STEPS = {True: 200, False: 1500}
_NATS = 0.02
_MOST = 64
_MODEL = tuple(
    field.name for field in dataclasses.fields(ModelConfig) if field.name != "vocab_size"
)
# Of how a run trains what makes sense for one that neither saves nor stops early.
_TRAINING = (
    "batch_size",
    "learning_rate",
    "steps",
    "warmup",
    "min_ratio",
    "weight_decay",
    "beta1",
    "beta2",
    "eps",
    "max_norm",
    "schedule",
    "decay_share",
)
SETTINGS = (*_MODEL, "mlp_ratio", *_TRAINING)
"""What may be varied."""

_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
Value = int | float | bool | str


def parse_vary(text: str) -> tuple[str, tuple[Value, ...]]:
    """A setting and its values, from words such as "n_layer=2,4,8" or "residual=yes,no".

    Raises:
        ArgumentError: it is not of this form, or there is no such setting.
    """
    name, equals, values = text.partition("=")
    name = name.strip().replace("-", "_")
    parts = [part.strip() for part in values.split(",")]
    if not equals or not all(parts):
        raise ArgumentError(f"{text!r:.100} names no values: write n_layer=2,4,8")
    if name not in SETTINGS:
        raise ArgumentError(f"{name!r:.60} can't be varied; there is {', '.join(SETTINGS)}")
    found = tuple(map(_value, parts))
    if len(set(found)) < len(found):
        raise ArgumentError(f"{text!r:.100} names a value twice")
    return name, found


def custom(
    mode: str,
    vocab_size: int,
    vary: Mapping[str, Sequence[Value]],
    steps: int | None = None,
) -> Experiment:
    """Every combination of the values, beside the first of all.

    Args:
        mode: "quick" or "full".
        vocab_size: of the text's tokenizer.
        vary: values by the names in SETTINGS; one value alone holds for all variants.
        steps: of each run, where `vary` does not say it.

    Raises:
        ArgumentError: there is nothing to compare, or too much.
        ConfigError: a value is refused, or values contradict each other.
    """
    quick = is_quick(mode)
    number = math.prod(map(len, vary.values()))
    if number < 2:
        raise ArgumentError("nothing to compare: name two values or more, --vary n_layer=2,4,8")
    if number > _MOST:
        raise ArgumentError(f"{number} combinations are too many; {_MOST} is the most")
    varied = [name for name, values in vary.items() if len(values) > 1]
    variants = tuple(
        _variant(vocab_size, dict(zip(vary, values, strict=True)), varied, steps or _STEPS[quick])
        for values in itertools.product(*vary.values())
    )
    first, *others = (variant.name for variant in variants)
    return Experiment(
        name="custom",
        title=f"Models that differ in {' and '.join(varied)}",
        claim=f"Beside {first}, the first named:",
        variants=variants,
        contrasts=tuple(
            Contrast(
                f"{other}: a loss lower by at least {_NATS} nats",
                lower_loss(other, first),
                _NATS,
                decides=False,
            )
            for other in others
        ),
        seeds=3 if quick else 5,
        mode=mode,
        measures=(Measure("first/last gradient at start, 10^", first_over_last, 2),),
        drawings=(
            loss_curves("loss", lambda variant: True),
            gradient_profile("gradients-start", 0.0, "variant", lambda variant: True),
        ),
    )


def _variant(
    vocab_size: int, values: Mapping[str, Value], varied: Sequence[str], steps: int
) -> Variant:
    of_model = {name: value for name, value in values.items() if name in _MODEL}
    of_training: dict[str, Any] = {
        name: value for name, value in values.items() if name in _TRAINING
    }
    ratio: Any = values.get("mlp_ratio")
    if ratio is not None and (isinstance(ratio, (bool, str)) or not ratio > 0):
        raise ConfigError(f"mlp_ratio must be a number above 0, got {ratio!r:.60}")
    steps = of_training.pop("steps", steps)
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ConfigError(f"steps must be a whole number, 1 or more, got {steps!r:.60}")
    return Variant(
        ", ".join(f"{name} {values[name]}" for name in varied),
        changed_config(small_model(vocab_size), of_model, mlp_ratio=ratio),
        training(steps, **of_training),
        {name: values[name] for name in varied},
    )


def _value(text: str) -> Value:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
