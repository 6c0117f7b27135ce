"""An imported model as the folder of a run: sampled, judged and trained from as if made here."""

from __future__ import annotations

from pathlib import Path

from andrea.errors import CheckpointError, RunError
from andrea.runs.checkpoint import CheckpointInfo, metadata_of, moment_names, write_checkpoint
from andrea.runs.folder import refuse_used
from andrea.runs.store import CheckpointStore
from andrea.runs.tensorfile import Tensor
from andrea.training import TrainState

from .weights import Weights


def write_run(weights: Weights, path: Path, *, origin: str) -> Path:
    """Make a run's folder with one checkpoint, and return the checkpoint's path.

    Moments are kept where they are known, so that they can be exported again; how it was trained
    isn't, so that no run goes on from here, but new ones begin. origin: the format it came in.

    Raises:
        CheckpointError: there is no tokenizer, it is not the model's, a value is not finite, or the
            disk refuses.
        RunError: the folder holds a run, or cannot be made.
    """
    tokenizer = weights.tokenizer
    if tokenizer is None:
        raise CheckpointError("a run has a tokenizer, but these weights come without one")
    if tokenizer.vocab_size != weights.config.vocab_size:
        raise CheckpointError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, "
            f"the model {weights.config.vocab_size}: they do not belong together"
        )
    refuse_used(path)
    tensors: dict[str, Tensor] = dict(weights.parameters)
    state = None
    if weights.first_moments is not None and weights.second_moments is not None:
        state = TrainState(step=weights.step).to_dict(timed=False)
        for pattern, moments in zip(
            moment_names(), (weights.first_moments, weights.second_moments), strict=True
        ):
            tensors.update({pattern.format(name): moments[name] for name in weights.parameters})
    info = CheckpointInfo(
        weights.config, tokenizer.to_dict(), state=state, record={"imported": origin}
    )
    store = CheckpointStore(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {path}: {error.strerror}") from error
    store.make()
    place = store.path_of(weights.step)
    write_checkpoint(place, tensors, metadata_of(info, weights.step))
    return place
