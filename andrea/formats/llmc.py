"""llm.c's files: models of version 3 (float32) and 5 (bfloat16), and token files of version 1.

A header of 256 int32, then GPT-2's tensors, one kind of all layers after the other; the vocabulary
is padded to a multiple of 128 with rows that no token has.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from andrea.closing import Closing
from andrea.config import ModelConfig
from andrea.errors import CheckpointError, ConfigError, DataError
from andrea.runs.tensorfile import Tensor
from andrea.tokenizers import Tokenizer

from .family import ordered
from .gpt2 import as_gpt2
from .raw import BFLOAT16, FLOAT32, INT32, LARGEST_INT32, RawFile, raw_writer
from .weights import Weights, tensor_shapes

_MODEL_MAGIC = 20240326
_TOKENS_MAGIC = 20240520
_HEADER_INTS = 256
_HEADER = 4 * _HEADER_INTS
_PADDED_TO = 128
_VERSIONS: dict[int, np.dtype[Any]] = {3: FLOAT32, 5: BFLOAT16}
_TOKENS_VERSION = 1
_TOKEN = np.dtype("<u2")
_MOST_TOKENS = 1 << 16
_TOGETHER = 1 << 20


def magic_of(path: Path) -> str:
    """What an llm.c file holds, by its first number: "model", "tokens", or "" if it is none."""
    try:
        with path.open("rb") as file:
            number = int.from_bytes(file.read(4), "little")
    except OSError:
        return ""
    return {_MODEL_MAGIC: "model", _TOKENS_MAGIC: "tokens"}.get(number, "")


def is_tokens(path: Path) -> bool:
    """Whether a file holds tokens of llm.c."""
    return magic_of(path) == "tokens"


class LlmcFile(Closing):
    """A model of llm.c, open for reading; `weights` are read from it while it is open.

    Raises:
        CheckpointError: the file can't be read, is of another version, or has another size than its
            header asks for.
    """

    def __init__(self, path: Path, tokenizer: Tokenizer | None = None) -> None:
        self._file = RawFile(path)
        try:
            header = _header(self._file, _MODEL_MAGIC, "model")
            version = header[1]
            if version not in _VERSIONS:
                raise CheckpointError(
                    f"{path} is of version {version}, Andrea reads 3 (float32) and 5 (bfloat16)"
                )
            dtype = _VERSIONS[version]
            block_size, vocab_size, n_layer, n_head, n_embd, padded = header[2:8]
            try:
                config = ModelConfig(vocab_size, block_size, n_layer, n_head, n_embd)
            except ConfigError as error:
                raise CheckpointError(f"{path} has a damaged header: {error}") from error
            if padded < vocab_size:
                raise CheckpointError(
                    f"{path} has a damaged header: {vocab_size} tokens, padded to {padded}"
                )
            self._check_size(config, padded, dtype.itemsize, version)
            self._check_padding(config, padded, dtype)
            self.weights = Weights(config, self._tensors(config, padded, dtype), tokenizer)
        except BaseException:
            self.close()
            raise

    def _check_size(self, config: ModelConfig, padded: int, width: int, version: int) -> None:
        # By arithmetic alone: a damaged header may ask for any number of layers.
        n = config.n_embd
        count = (padded + config.block_size) * n + 2 * n + config.n_layer * (12 * n * n + 13 * n)
        need, have = _HEADER + width * count, self._file.size
        if have != need:
            raise CheckpointError(
                f"{self._file.path} has {have:,} bytes, but its header (version {version}, "
                f"{count:,} parameters) needs {need:,}: it is truncated or damaged"
            )

    def _check_padding(self, config: ModelConfig, padded: int, dtype: np.dtype[Any]) -> None:
        used, width = config.vocab_size, config.n_embd
        offset = _HEADER + dtype.itemsize * used * width
        if np.asarray(self._file.tensor(offset, (padded - used, width), dtype)).any():
            raise CheckpointError(
                f"{self._file.path} is altered: wte.weight has numbers in rows {used} to "
                f"{padded - 1}, which no token has"
            )

    def _tensors(self, config: ModelConfig, padded: int, dtype: np.dtype[Any]) -> dict[str, Tensor]:
        shapes = tensor_shapes(config)
        offset = _HEADER
        tensors: dict[str, Tensor] = {}
        for name in ordered(shapes, "kinds"):
            tensors[name] = self._file.tensor(offset, shapes[name], dtype)
            rows = padded if name == "wte.weight" else shapes[name][0]
            offset += dtype.itemsize * rows * int(np.prod(shapes[name][1:], dtype=np.int64))
        return tensors

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()


def _header(file: RawFile, magic: int, what: str) -> list[int]:
    if file.size < _HEADER:
        raise CheckpointError(
            f"{file.path} has {file.size:,} bytes, the header alone of an llm.c {what} {_HEADER:,}"
        )
    header = [int(number) for number in file.numbers(0, _HEADER_INTS, INT32)]
    if header[0] != magic:
        raise CheckpointError(f"{file.path} is no llm.c {what}: it begins with {header[0]}")
    return header


def export_llmc(weights: Weights, path: Path, *, precision: str = "f32") -> None:
    """Write a model for llm.c: version 3 of precision "f32", version 5 of "bf16".

    Raises:
        CheckpointError: there is no such version, the model is no GPT-2, or the disk refuses.
    """
    versions = {"f32": 3, "bf16": 5}
    if precision not in versions:
        raise CheckpointError(f"llm.c's models are f32 or bf16, not {precision!r:.20}")
    weights = as_gpt2(weights, "llm.c")
    version = versions[precision]
    config, dtype = weights.config, _VERSIONS[version]
    padded = -(-config.vocab_size // _PADDED_TO) * _PADDED_TO
    header = np.zeros(_HEADER_INTS, dtype=INT32)
    header[:8] = [
        _MODEL_MAGIC,
        version,
        config.block_size,
        config.vocab_size,
        config.n_layer,
        config.n_head,
        config.n_embd,
        padded,
    ]
    with raw_writer(path) as writer:
        writer.numbers(header)
        for name in ordered(tensor_shapes(config), "kinds"):
            writer.tensor(weights.parameters[name], dtype)
            if name == "wte.weight":
                missing = (padded - config.vocab_size, config.n_embd)
                writer.numbers(np.zeros(missing, dtype=dtype))


# ---- tokens


def read_tokens(path: Path, vocab_size: int) -> NDArray[np.uint16]:
    """The tokens of an llm.c token file: a read-only memory map, (n,).

    Raises:
        DataError: the file can't be read, isn't one of version 1, has another size than its header
            says, or holds an id outside the vocabulary.
    """
    try:
        with RawFile(path) as file:
            header = _header(file, _TOKENS_MAGIC, "token file")
            version, count, have = header[1], header[2], file.size
    except CheckpointError as error:
        raise DataError(str(error)) from error
    if version != _TOKENS_VERSION:
        raise DataError(f"{path} is of version {version}, Andrea reads token files of version 1")
    need = _HEADER + _TOKEN.itemsize * count
    if count < 1 or have != need:
        raise DataError(
            f"{path} has {have:,} bytes, but its header says {count:,} tokens, which need {need:,}"
        )
    tokens: NDArray[np.uint16] = np.memmap(
        path, dtype=np.uint16, mode="r", offset=_HEADER, shape=(count,)
    )
    for start in range(0, count, _TOGETHER):
        highest = int(tokens[start : start + _TOGETHER].max())
        if highest >= vocab_size:
            raise DataError(
                f"{path} holds token {highest}, but the vocabulary has {vocab_size}: "
                "another tokenizer made it"
            )
    return tokens


def write_tokens(path: Path, parts: Iterable[NDArray[Any]], count: int) -> None:
    """Write `count` tokens, in parts, as an llm.c token file.

    Raises:
        DataError: there are more than the file can count, or an id above 65,535.
        CheckpointError: the disk refuses.
    """
    if not 1 <= count <= LARGEST_INT32:
        raise DataError(f"an llm.c token file has 1 to {LARGEST_INT32:,} tokens, not {count:,}")
    header = np.zeros(_HEADER_INTS, dtype=INT32)
    header[:3] = [_TOKENS_MAGIC, _TOKENS_VERSION, count]
    written = 0
    with raw_writer(path) as writer:
        writer.numbers(header)
        for part in parts:
            if part.size and not 0 <= int(part.min()) <= int(part.max()) < _MOST_TOKENS:
                raise DataError(f"an llm.c token is 0 to 65,535, not {int(part.max()):,}")
            writer.numbers(part.astype(_TOKEN))
            written += part.size
        if written != count:
            raise DataError(f"{count:,} tokens were announced, {written:,} came")
