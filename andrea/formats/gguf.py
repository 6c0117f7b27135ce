"""GGUF, the file of llama.cpp: a GPT-2 in float32, float16, bfloat16 or blocks of 8 bits.

Written with the `gguf` package, an extra. Vectors and positions stay float32, as llama.cpp has it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from andrea.config import ModelConfig
from andrea.errors import CheckpointError, TokenizerError
from andrea.runs.tensorfile import Tensor
from andrea.tokenizers import (
    BPETokenizer,
    ByteTokenizer,
    CarriedTokenizer,
    CharTokenizer,
    Tokenizer,
)
from andrea.tokenizers.bpe import byte_symbols

from .gpt2 import as_gpt2
from .new_folder import refuse_existing
from .tokenizer_json import is_gpt2_split, marker_of, stored_merges, symbol_merges, token_symbols
from .weights import Weights, tensor_shapes

PRECISIONS = ("f32", "f16", "bf16", "q8_0")

_NAMES = {
    "wte": "token_embd",
    "wpe": "position_embd",
    "lm_head": "output",
    "ln_f": "output_norm",
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5


def gguf_name(name: str) -> str:
    """llama.cpp's name of a tensor."""
    if not name.startswith("h."):
        layer, (part, _, kind) = "", name.rpartition(".")
        return f"{_NAMES[part]}.{kind}"
    _, layer, rest = name.split(".", 2)
    part, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{_NAMES[part]}.{kind}"


@dataclass(frozen=True)
class _Vocabulary:
    """Texts of tokens in GPT-2's characters for bytes, llama.cpp's kinds of them, and merges."""

    tokens: list[str]
    kinds: list[int]
    merges: list[tuple[str, str]]


def export_gguf(weights: Weights, path: Path, *, precision: str = "f32", name: str = "") -> None:
    """Write a file for llama.cpp in one of PRECISIONS; `name` is the model's, for people.

    Raises:
        CheckpointError: the package isn't installed, there is something at `path`, the model is no
            GPT-2, a value doesn't fit the precision, or the disk refuses.
        TokenizerError: llama.cpp can't make the tokens of these weights' tokenizer.
    """
    library = _package()
    if precision not in PRECISIONS:
        raise CheckpointError(
            f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r:.20}"
        )
    weights = as_gpt2(weights, "llama.cpp's GPT-2", tie_embeddings=(False,), mlp_dim=None)
    tokenizer = weights.tokenizer
    if tokenizer is None:
        raise CheckpointError("a GGUF file has a tokenizer, but these weights come without one")
    vocabulary = _vocabulary(tokenizer)
    refuse_existing(path)
    with _new_file(path) as unfinished:
        writer = library.GGUFWriter(unfinished, "gpt2")
        try:
            _describe(writer, library, weights.config, precision, name or path.stem)
            _add_vocabulary(writer, tokenizer, vocabulary)
            types = _types(library, weights.config, precision)
            for tensor_name, kind in types.items():
                shape = tensor_shapes(weights.config)[tensor_name]
                size = int(np.prod(library.quant_shape_to_byte_shape(shape, kind)))
                writer.add_tensor_info(gguf_name(tensor_name), shape, np.float32, size, kind)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for tensor_name, kind in types.items():
                values = _encoded(library, weights.parameters[tensor_name], tensor_name, kind)
                writer.write_tensor_data(values)
        finally:
            writer.close()


def _package() -> Any:
    try:
        import gguf
    except ImportError as error:
        raise CheckpointError(
            "GGUF files need the package gguf: pip install 'andrea[gguf]'"
        ) from error
    # It tells people what it does.
    logging.getLogger("gguf").setLevel(logging.WARNING)
    return gguf


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[Path]:
    unfinished = path.with_name(path.name + ".tmp")
    try:
        yield unfinished
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _describe(writer: Any, library: Any, config: ModelConfig, precision: str, name: str) -> None:
    file_type = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16"}
    writer.add_name(name)
    writer.add_block_count(config.n_layer)
    writer.add_context_length(config.block_size)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(config.mlp_dim)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(1e-5)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(library.LlamaFileType[file_type.get(precision, "MOSTLY_Q8_0")])
    if precision == "q8_0":
        writer.add_quantization_version(library.GGML_QUANT_VERSION)


def _add_vocabulary(writer: Any, tokenizer: Tokenizer, vocabulary: _Vocabulary) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.kinds)
    writer.add_token_merges([" ".join(pair) for pair in vocabulary.merges])
    writer.add_bos_token_id(tokenizer.beginning_of_document)
    writer.add_eos_token_id(tokenizer.beginning_of_document)
    writer.add_add_bos_token(False)


def _types(library: Any, config: ModelConfig, precision: str) -> dict[str, Any]:
    """The type of each tensor in the file, in the order of the engine's table."""
    kinds = library.GGMLQuantizationType
    found = {}
    for name, shape in tensor_shapes(config).items():
        kind = kinds[precision.upper()]
        if len(shape) == 1 or name == "wpe.weight":
            kind = kinds.F32
        elif kind == kinds.Q8_0 and shape[-1] % library.GGML_QUANT_SIZES[kind][0]:
            kind = kinds.F16
        found[name] = kind
    return found


def _encoded(library: Any, tensor: Tensor, name: str, kind: Any) -> NDArray[Any]:
    values = np.ascontiguousarray(tensor, dtype=np.float32)
    if kind == library.GGMLQuantizationType.F16:
        largest = max(float(values.max()), -float(values.min()))
        if largest > float(np.finfo(np.float16).max):
            raise CheckpointError(f"{name} has values up to {largest:g}, too large for float16")
    encoded: NDArray[Any] = library.quantize(values, kind)
    return encoded


# ---- what llama.cpp's only byte-level tokenizer, GPT-2's, can be told


def _vocabulary(tokenizer: Tokenizer) -> _Vocabulary:
    if isinstance(tokenizer, CarriedTokenizer):
        return _carried(tokenizer)
    if isinstance(tokenizer, BPETokenizer):
        merges = symbol_merges(tokenizer)
    elif isinstance(tokenizer, CharTokenizer):
        merges = _character_merges(tokenizer.characters)
    elif isinstance(tokenizer, ByteTokenizer):
        merges = []
    else:
        raise TokenizerError(f"llama.cpp has no {tokenizer.name} tokenizer")
    if not merges:
        # llama.cpp reads no vocabulary without merges. This one joins bytes that UTF-8 never has.
        last = byte_symbols()[255]
        merges = [(last, last)]
    tokens = [*token_symbols(tokenizer), marker_of(tokenizer)]
    kinds = [*([_NORMAL] * (len(tokens) - 1)), _CONTROL]
    return _Vocabulary(tokens, kinds, merges)


def _character_merges(characters: str) -> list[tuple[str, str]]:
    """Merges that join the bytes of each character, and nothing else.

    UTF-8's first bytes are no second ones, so that each merge begins at a character's start.
    """
    symbols = byte_symbols()
    merges: dict[tuple[str, str], None] = {}
    for character in characters:
        data = [symbols[byte] for byte in character.encode()]
        for end in range(1, len(data)):
            merges["".join(data[:end]), data[end]] = None
    return list(merges)


def _carried(tokenizer: CarriedTokenizer) -> _Vocabulary:
    description = tokenizer.description
    if not is_gpt2_split(description):
        raise TokenizerError(
            "llama.cpp is told GPT-2's way of splitting text here; this tokenizer.json has another"
        )
    tokens = [f"[UNUSED{number}]" for number in range(tokenizer.vocab_size)]
    kinds = [_UNUSED] * tokenizer.vocab_size
    for content, number in tokenizer.vocabulary().items():
        tokens[number], kinds[number] = content, _NORMAL
    for token in description.get("added_tokens") or ():
        kinds[token["id"]] = _CONTROL if token.get("special") else _USER_DEFINED
    merges = stored_merges(description["model"]) or []
    return _Vocabulary(tokens, kinds, [(left, right) for left, right in merges])
