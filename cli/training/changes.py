"""What the options beside --resume change of a recorded run: applied, told, or refused."""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..dialect_options import given_switches
from ..errors import Failure
from ..screen.formats import duration
from ..texts import STANDARD_INPUT, TextRequest, absolute_sources

if TYPE_CHECKING:
    from andrea.config import ModelConfig
    from andrea.runs.checkpoint import CheckpointInfo
    from andrea.training import TrainConfig, TrainState

_SHAPE = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size")
_TRAINING = (
    "batch_size",
    "accumulate",
    "learning_rate",
    "schedule",
    "warmup",
    "min_ratio",
    "decay_share",
    "weight_decay",
    "beta1",
    "beta2",
    "eps",
    "max_norm",
    "seed",
    "eval_every",
    "eval_windows",
    "save_every",
    "keep_last",
    "skip_outliers",
    "outlier_z",
    "max_skipped",
    "early_stop",
    "coherence_gate",
)
_READING = ("text_key", "encoding", "skip_bad")
_RECORDED = {
    "device": "auto",
    "precision": "auto",
    "sample_prompt": None,
    "sample_tokens": None,
    "report": None,
    "tensorboard": None,
}


class Changes:
    """Applies options to what a run recorded; `told` says what became different, one line each."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.is_text_named = False
        """Whether the user named the text, or how to read it: then it may differ."""

    def train_config(
        self, options: Mapping[str, Any], old: TrainConfig, state: TrainState
    ) -> TrainConfig:
        """The recorded settings with those of the command line; --for and --until are time from
        now on, and of --tokens and --epochs the steps are not known yet: see `with_length`.

        Raises:
            ConfigError: a setting is out of its range.
            Failure: the time of --until is over.
        """
        given = {name: options[name] for name in _TRAINING if options[name] is not None}
        seconds = options["seconds"]
        if options["until"] is not None:
            seconds = seconds_until(options["until"])
        if options["steps"] is not None:
            given |= {"steps": options["steps"], "seconds": None}
        elif seconds is not None:
            given |= {"steps": None, "seconds": state.elapsed + seconds}
        new = dataclasses.replace(old, **given)
        for name in _TRAINING:
            self._note(name, getattr(old, name), getattr(new, name))
        return new

    def with_length(
        self,
        options: Mapping[str, Any],
        old: TrainConfig,
        new: TrainConfig,
        state: TrainState,
        model: ModelConfig,
        text_tokens: int,
    ) -> TrainConfig:
        """The new settings with the steps that --tokens and --epochs make of the whole run, and
        with the time that is left until --until now that the text is there."""
        from andrea.planning.choices import Choices, steps_for

        wanted = Choices(tokens=options["tokens"], epochs=options["epochs"])
        tokens = wanted.wanted_tokens(text_tokens)
        if tokens is not None:
            steps = steps_for(tokens, new, model)
            new = dataclasses.replace(new, steps=steps, seconds=None)
        if options["until"] is not None:
            seconds = state.elapsed + seconds_until(options["until"])
            new = dataclasses.replace(new, seconds=round(seconds, 3))
        # First of all that is told.
        told, self.told = self.told, []
        if new.steps is not None and old.steps is not None:
            self._note("steps", f"{old.steps:,}", f"{new.steps:,}")
        else:
            self._note("length", _length(old), _length(new))
        self.told += told
        return new

    def text_request(
        self, options: Mapping[str, Any], old: Mapping[str, Any], path: str
    ) -> TextRequest:
        """The recorded text, or the one that was named, read as recorded or as asked.

        Raises:
            Failure: the recorded text cannot be read again.
        """
        reading = {name: options[name] for name in _READING if options[name] is not None}
        self.is_text_named = bool(options["text"] or reading)
        for name, value in reading.items():
            self._note(name, old.get(name), value)
        if options["text"]:
            sources = absolute_sources(options["text"])
            recorded = {name: old[name] for name in _READING if name in old}
            return TextRequest(sources, **(recorded | reading))
        request = TextRequest.from_record(old)
        if STANDARD_INPUT in request.sources:
            raise Failure(
                f"{path} learned from standard input, which cannot be read again: give the text, "
                f"andrea train --resume {path} TEXT"
            )
        return dataclasses.replace(request, **reading)

    def record(self, options: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
        """What the run records from now on, its text aside."""
        new = dict(old)
        for name, default in _RECORDED.items():
            before = old.get(name, default)
            new[name] = before if options[name] is None else options[name]
            self._note(name, before, new[name])
        return new

    def _note(self, name: str, old: Any, new: Any) -> None:
        if old != new:
            self.told.append(f"{name.replace('_', ' ')}: {_shown(old)} -> {_shown(new)}")


def refuse_new_shape(
    options: Mapping[str, Any],
    info: CheckpointInfo,
    what: str = "this run",
    way_out: str = "start a new run without --resume",
) -> None:
    """Options of the weights' shape and dialect may be repeated beside --resume, but not changed.

    Raises:
        Failure: one of them differs from what was recorded.
    """
    recorded: dict[str, Any] = dict(info.model.to_full_dict())
    recorded["tokenizer"] = info.tokenizer.get("name", "")
    wanted = {name: options[name] for name in (*_SHAPE, "tokenizer")}
    if wanted["tokenizer"] == "auto":
        wanted["tokenizer"] = None
    given = given_switches(options)
    for flag, settings in _named(options, info.model):
        for name, value in settings.items():
            if name not in given and recorded[name] != value:
                raise Failure(
                    f"{flag} has {name} {_shown(value)}, {what} "
                    f"{_has(what)} {_shown(recorded[name])}, and weights cannot change shape: "
                    f"leave it out, or {way_out}"
                )
    for name, value in (wanted | given).items():
        if value is not None and value != recorded[name]:
            flag = "--" + name.replace("_", "-")
            raise Failure(
                f"{flag} is {_shown(recorded[name])} in {what} and cannot become "
                f"{_shown(value)}, since the weights were made for that: leave it out, or {way_out}"
            )


def _named(options: Mapping[str, Any], model: ModelConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    """What --preset and --dialect ask for: sizes, and a whole dialect."""
    from andrea.config import DIALECT_SETTINGS, ModelConfig
    from andrea.planning.dialects import chosen_dialect, preset_sizes

    preset, dialect = options["preset"], options["dialect"]
    if preset is not None:
        sizes = {name: size for name, size in preset_sizes(preset).items() if name in _SHAPE}
        yield f"--preset {preset}", {name: size for name, size in sizes.items() if size}
    if preset is not None or dialect is not None:
        sizes = {name: getattr(model, name) for name in _SHAPE}
        asked = ModelConfig(**sizes, **chosen_dialect(preset, dialect, {})).to_full_dict()
        if preset is None:
            del asked["mlp_dim"]  # a size, of which a dialect says nothing
        flag = f"--preset {preset}" if dialect is None else f"--dialect {dialect}"
        yield flag, {name: asked[name] for name in DIALECT_SETTINGS if name in asked}


def _has(what: str) -> str:
    return "has" if what.startswith("this") else "have"


def rate_change(old: TrainConfig, new: TrainConfig, state: TrainState) -> str | None:
    """What the learning rate does at the next step that it would not have done; None: nothing.

    Another length moves the run to another place of its schedule.
    """
    before, after = _next_rate(old, state), _next_rate(new, state)
    if abs(after - before) <= 0.01 * max(after, before):
        return None
    return f"the next step has learning rate {after:.3g}, it would have been {before:.3g}"


def _next_rate(config: TrainConfig, state: TrainState) -> float:
    from andrea.training.schedule import schedule_of

    progress = config.budget.progress(state.step, state.elapsed, closing=0.0)
    return config.learning_rate * schedule_of(config).factor(state.step, progress)


def seconds_until(moment: float) -> float:
    """Seconds from now until a moment in seconds since 1970.

    Raises:
        Failure: it is over.
    """
    seconds = moment - time.time()
    if seconds <= 0:
        when = datetime.datetime.fromtimestamp(moment)
        raise Failure(f"it is past {when:%H:%M}: preparing the run took until now")
    return seconds


def _length(config: TrainConfig) -> str:
    return f"{config.steps:,} steps" if config.steps else duration(config.seconds or 0)


def _shown(value: Any) -> str:
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
