"""What the options beside --resume change of a recorded run: applied, told, or refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .errors import Failure
from .formats import duration
from .texts import STANDARD_INPUT, TextRequest, absolute_sources

if TYPE_CHECKING:
    from andrea.runs.checkpoint import CheckpointInfo
    from andrea.training import TrainConfig, TrainState

_SHAPE = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size")
_TRAINING = (
    "batch_size",
    "accumulate",
    "learning_rate",
    "warmup",
    "weight_decay",
    "seed",
    "eval_every",
    "save_every",
)
_READING = ("text_key", "encoding", "skip_bad")
_RECORDED = {"device": "auto", "precision": "auto", "sample_prompt": None}


class Changes:
    """Applies options to what a run recorded; `told` says what became different, one line each."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.is_text_named = False
        """Whether the user named the text, or how to read it: then it may differ."""

    def train_config(
        self, options: Mapping[str, Any], old: TrainConfig, state: TrainState
    ) -> TrainConfig:
        """The recorded settings with those of the command line; --for is time from now on.

        Raises:
            ConfigError: a setting is out of its range.
        """
        given = {name: options[name] for name in _TRAINING if options[name] is not None}
        if options["steps"] is not None:
            given |= {"steps": options["steps"], "seconds": None}
        elif options["seconds"] is not None:
            given |= {"steps": None, "seconds": state.elapsed + options["seconds"]}
        new = dataclasses.replace(old, **given)
        if new.steps is not None and old.steps is not None:
            self._note("steps", f"{old.steps:,}", f"{new.steps:,}")
        else:
            self._note("length", _length(old), _length(new))
        for name in _TRAINING:
            self._note(name, getattr(old, name), getattr(new, name))
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


def refuse_new_shape(options: Mapping[str, Any], info: CheckpointInfo) -> None:
    """Options of the weights' shape may be repeated beside --resume, but not changed.

    Raises:
        Failure: one of them differs from what was recorded.
    """
    recorded: dict[str, Any] = dict(info.model.to_dict())
    recorded["tokenizer"] = info.tokenizer.get("name", "")
    wanted = {name: options[name] for name in (*_SHAPE, "tokenizer")}
    if wanted["tokenizer"] == "auto":
        wanted["tokenizer"] = None
    if options["preset"] is not None:
        from andrea.planning.shapes import preset_sizes

        for name, size in preset_sizes(options["preset"]).items():
            if size and recorded[name] != size:
                raise Failure(
                    f"--preset {options['preset']} has {name} {size}, this run has "
                    f"{recorded[name]}, and its weights cannot change shape: leave it out, or "
                    "start a new run without --resume"
                )
    for name, value in wanted.items():
        if value is not None and value != recorded[name]:
            flag = "--" + name.replace("_", "-")
            raise Failure(
                f"{flag} is {recorded[name]} in this run and cannot become {value}, since its "
                "weights were made for that: leave it out, or start a new run without --resume"
            )


def _length(config: TrainConfig) -> str:
    return f"{config.steps:,} steps" if config.steps else duration(config.seconds or 0)


def _shown(value: Any) -> str:
    if value is None:
        return "default"
    return f"{value:g}" if isinstance(value, float) else str(value)
