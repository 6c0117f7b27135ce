"""A run's full configuration as a TOML file: `andrea train --config run.toml` repeats the run.

Its keys are the options of `andrea train`, in sections; paths are relative to the file.
"""

from __future__ import annotations

import contextlib
import datetime
import difflib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from andrea.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# More than a configuration can have; a text named by mistake shall not be parsed.
_MOST_BYTES = 1 << 20
_STANDARD_INPUT = "-"

Kind = tuple[Callable[[Any], bool], str]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and value != "" and "\0" not in value


WHOLE: Kind = (_is_whole, "a whole number")
NUMBER: Kind = (_is_number, "a number")
TEXT: Kind = (_is_text, "text in quotes")
PATH: Kind = (_is_path, "a path in quotes")
PATHS: Kind = (
    lambda value: isinstance(value, list) and all(map(_is_path, value)),
    'a list of paths such as ["book.txt"]',
)
FLAG: Kind = (lambda value: isinstance(value, bool), "true or false")
DURATION: Kind = (
    lambda value: _is_number(value) or _is_text(value),
    'seconds, or a time in quotes such as "20m"',
)
AMOUNT: Kind = (
    lambda value: _is_whole(value) or _is_text(value),
    'a whole number, or one in quotes such as "10M"',
)
CLOCK: Kind = (
    lambda value: _is_text(value) or isinstance(value, (datetime.time, datetime.datetime)),
    'a time of day in quotes such as "07:30"',
)

# Sections and keys in the order of the file.
SECTIONS: dict[str, dict[str, Kind]] = {
    "run": {
        "out": PATH,
        "recipe": TEXT,
        "init_from": PATH,
        "for": DURATION,
        "until": CLOCK,
        "steps": WHOLE,
        "tokens": AMOUNT,
        "epochs": NUMBER,
        "eval_every": WHOLE,
        "eval_windows": WHOLE,
        "save_every": WHOLE,
        "keep": WHOLE,
        "sample_prompt": TEXT,
        "sample_tokens": WHOLE,
        "report": FLAG,
        "tensorboard": FLAG,
    },
    "model": {
        "preset": TEXT,
        "n_layer": WHOLE,
        "n_head": WHOLE,
        "n_embd": WHOLE,
        "block_size": WHOLE,
        "dialect": TEXT,
        "norm": TEXT,
        "norm_affine": FLAG,
        "norm_position": TEXT,
        "residual": FLAG,
        "activation": TEXT,
        "mlp_dim": WHOLE,
        "bias": FLAG,
        "attn_bias": FLAG,
        "mlp_bias": FLAG,
        "tie_embeddings": FLAG,
        "final_norm": FLAG,
        "embedding_norm": FLAG,
        "scaled_init": FLAG,
        "init_std": NUMBER,
    },
    "training": {
        "batch_size": WHOLE,
        "accumulate": WHOLE,
        "learning_rate": NUMBER,
        "schedule": TEXT,
        "warmup": WHOLE,
        "min_ratio": NUMBER,
        "decay_share": NUMBER,
        "weight_decay": NUMBER,
        "beta1": NUMBER,
        "beta2": NUMBER,
        "eps": NUMBER,
        "max_norm": NUMBER,
        "seed": WHOLE,
    },
    "guards": {
        "skip_outliers": FLAG,
        "outlier_z": NUMBER,
        "max_skipped": WHOLE,
        "early_stop": WHOLE,
        "coherence_gate": NUMBER,
    },
    "data": {
        "text": PATHS,
        "tokenizer": TEXT,
        "vocab_size": WHOLE,
        "text_key": TEXT,
        "encoding": TEXT,
        "skip_bad": FLAG,
        "cache": PATH,
    },
    "machine": {"device": TEXT, "precision": TEXT, "threads": WHOLE},
}
_SECTION_OF = {key: section for section, keys in SECTIONS.items() for key in keys}


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The values of a configuration file by key, without their sections; paths are absolute.

    Values have the type that SECTIONS tells, times of a day are text; whether they are in range is
    for whoever uses them.

    Raises:
        ConfigError: the file cannot be read, is no TOML, or has an unknown key or a wrong type.
    """
    file = Path(path)
    parsed = _parse(file)
    values: dict[str, Any] = {}
    for section, content in parsed.items():
        if not isinstance(content, dict):
            raise ConfigError(f"{file}: {_misplaced(section)}")
        if section not in SECTIONS:
            known = ", ".join(f"[{name}]" for name in SECTIONS)
            nearest = difflib.get_close_matches(section, SECTIONS, n=1, cutoff=0.5)
            hint = f"did you mean [{nearest[0]}]?" if nearest else f"there are {known}"
            raise ConfigError(f"{file}: unknown section [{section}]; {hint}")
        for key, value in content.items():
            if key not in SECTIONS[section]:
                raise ConfigError(f"{file}: [{section}] {_unknown(key)}")
            values[key] = _checked(file, section, key, value)
    return values


def _parse(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            data = opened.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror or error}") from error
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"{file} is too long to be the configuration of a run")
    try:
        # Names of files need not be UTF-8.
        return tomllib.loads(data.decode("utf-8", "surrogateescape").replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is no TOML: {' '.join(str(error).split())}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is no TOML that can be read: {error}") from error


def _checked(file: Path, section: str, key: str, value: Any) -> Any:
    kind = SECTIONS[section][key]
    is_right, expected = kind
    if not is_right(value):
        raise ConfigError(f"{file}: [{section}] {key} must be {expected}, got {_shown(value)}")
    if kind is PATH:
        return os.path.join(file.parent.absolute(), value)
    if kind is PATHS:
        folder = file.parent.absolute()
        return [text if text == _STANDARD_INPUT else os.path.join(folder, text) for text in value]
    if kind is CLOCK and not isinstance(value, str):
        form = "%H:%M" if isinstance(value, datetime.time) else "%Y-%m-%d %H:%M"
        return value.strftime(form)
    return value


def _misplaced(key: str) -> str:
    if key in _SECTION_OF:
        return f"{key} belongs in [{_SECTION_OF[key]}]"
    return f"{key} stands in no section and is no key; did you mean {_nearest(key)}?"


def _unknown(key: str) -> str:
    if key in _SECTION_OF:
        return f"{key} belongs in [{_SECTION_OF[key]}]"
    return f"has no key {key!r}; did you mean {_nearest(key)}?"


def _nearest(key: str) -> str:
    # Options are written with hyphens, keys without.
    nearest = difflib.get_close_matches(key.replace("-", "_"), _SECTION_OF, n=1, cutoff=0.0)[0]
    return f"{nearest} in [{_SECTION_OF[nearest]}]"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def write_config(
    path: str | os.PathLike[str],
    values: Mapping[str, Any],
    *,
    title: str = "",
    remarks: Mapping[str, str] | None = None,
) -> None:
    """Write values by key into their sections, atomically; None is left out.

    title: comment lines at the top. remarks: comments by key.

    Raises:
        ConfigError: a key is unknown, or the disk refuses.
    """
    import tomlkit

    for key in values:
        if key not in _SECTION_OF:
            raise ConfigError(f"a configuration {_unknown(key)}")
    document = tomlkit.document()
    for line in title.splitlines():
        document.add(tomlkit.comment(line))
    for section, keys in SECTIONS.items():
        table = tomlkit.table()
        for key in keys:
            if values.get(key) is None:
                continue
            table.add(key, values[key])
            if remarks and remarks.get(key):
                table[key].comment(remarks[key])
        if table:
            document.add(section, table)
    _write(Path(path), tomlkit.dumps(document).encode("utf-8", "surrogateescape"))


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    try:
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
