"""A text of a few thousand characters and models of a few thousand parameters, for tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import andrea
from andrea.data import PreparedData
from andrea.runs.folder import RunFolder
from andrea.tokenizers import Tokenizer, train_tokenizer
from andrea.training import TrainConfig, TrainState, train

TEXT = "".join(f"{number} and {number + 1} make {2 * number + 1}. " for number in range(120))


def small_tokenizer() -> Tokenizer:
    return train_tokenizer("char", [TEXT]).tokenizer


def small_data(train_share: float = 0.9, **changes: Any) -> PreparedData:
    """The text as `prepare` would split it, without files."""
    tokenizer = small_tokenizer()
    cut = round(train_share * len(TEXT))
    data = PreparedData(
        train=tokenizer.encode(TEXT[:cut]).astype(np.uint8),
        validation=tokenizer.encode(TEXT[cut:]).astype(np.uint8),
        tokenizer=tokenizer,
        train_bytes=cut,
        validation_bytes=len(TEXT) - cut,
        documents=1,
        validation_documents=0,
        skipped={},
        notes=(),
        fingerprint="0" * 64,
        cached=False,
    )
    return dataclasses.replace(data, **changes)


def small_model(seed: int = 0, **sizes: Any) -> andrea.GPT:
    vocab_size = small_tokenizer().vocab_size
    shape = {"vocab_size": vocab_size, "block_size": 16, "n_layer": 2, "n_head": 2, "n_embd": 16}
    return andrea.GPT(andrea.ModelConfig(**{**shape, **sizes}), seed=seed)


def small_config(**changes: Any) -> TrainConfig:
    settings = {"batch_size": 4, "learning_rate": 1e-2, "warmup": 3, **changes}
    if "seconds" not in settings:
        settings.setdefault("steps", 20)
    return TrainConfig(**settings)


def small_run(path: Path, config: TrainConfig, model: andrea.GPT, **settings: Any) -> RunFolder:
    return RunFolder.create(
        path, model=model.config, train=config, tokenizer=small_tokenizer(), **settings
    )


def state_bytes(model: andrea.GPT) -> bytes:
    """Parameters and moments, as they are in memory."""
    kinds = (model.parameters(), model.first_moments(), model.second_moments())
    return b"".join(tensor.tobytes() for kind in kinds for tensor in kind.values())


def interrupted_run(
    folder: Path, config: TrainConfig, stops: list[int], model_of: Callable[[int], andrea.GPT]
) -> bytes:
    """The checkpoint of a run that was closed at each stop and resumed by a new model."""
    model, state = model_of(0), TrainState()
    run = small_run(folder, config, model)
    for stop in stops:
        reports = train(model, small_data(), config, run=run, state=state)
        for report in reports:
            if report.step == stop:
                break
        reports.close()
        run.save(model, state)
        run.close()
        model = model_of(77)
        run = RunFolder.open(folder)
        state = run.resume(model)
    with run:
        for _ in train(model, small_data(), run.config, run=run, state=state):
            pass
        return run.checkpoint_path.read_bytes()
