"""The config.toml of a run: everything that was settled, so that the run can be repeated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from andrea.config import ModelConfig
    from andrea.runs.folder import RunFolder
    from andrea.tokenizers import Tokenizer
    from andrea.training import TrainConfig

# Fields of TrainConfig whose option has another name.
_KEYS = {"seconds": "for", "keep_last": "keep"}
# What the run's record holds under the name of its key.
_RECORDED = (
    "init_from",
    "sample_prompt",
    "sample_tokens",
    "report",
    "tensorboard",
    "text_key",
    "encoding",
    "skip_bad",
    "device",
    "precision",
)
_TITLE = """\
The configuration of an Andrea run, with all that was chosen for it.
andrea train --config THIS_FILE repeats the run; options beside it win.
"""


def settled(
    model: ModelConfig, train: TrainConfig, tokenizer: Tokenizer, record: Mapping[str, Any]
) -> dict[str, Any]:
    """A run's settings by the keys of a configuration file; None where there is nothing to say."""
    from andrea.tokenizers import TOKENIZER_NAMES

    values = {_KEYS.get(name, name): value for name, value in train.to_dict().items()}
    values |= model.to_dict()
    values |= {name: record.get(name) for name in _RECORDED}
    values["text"] = list(record.get("sources", ()))
    # One that came with weights comes with them again.
    values["tokenizer"] = tokenizer.name if tokenizer.name in TOKENIZER_NAMES else None
    return values


def write(
    run: RunFolder, tokenizer: Tokenizer, description: str, options: Mapping[str, Any]
) -> None:
    """Write the file into the run's folder; `description` says what the device turned out to be.

    Raises:
        ConfigError: the disk refuses.
    """
    from andrea.runconfig import write_config
    from andrea.runs.folder import CONFIG_NAME

    values = settled(run.info.model, run.config, tokenizer, run.info.record)
    values |= {"threads": options["threads"], "cache": options["cache"]}
    remarks = {
        "for": "seconds; a time cannot be repeated to the bit, a number of steps can",
        "device": f"was {description}",
        "text": "" if values["text"] else "the language reference that Python carries",
    }
    write_config(run.path / CONFIG_NAME, values, title=_TITLE, remarks=remarks)
