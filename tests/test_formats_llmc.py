"""llm.c's files, written and read here by NumPy and struct alone."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from andrea.errors import CheckpointError, DataError
from andrea.formats.llmc import (
    LlmcFile,
    export_llmc,
    magic_of,
    read_tokens,
    write_tokens,
)
from andrea.formats.opening import format_of
from andrea.formats.raw import float32_to_bfloat16
from andrea.formats.weights import Weights
from reference import bfloat16
from small_weights import small_tokenizer, small_weights


@pytest.fixture
def weights() -> Weights:
    return small_weights(small_tokenizer("char"), moments=True)


def by_kind(weights: Weights) -> list[str]:
    """Names, one kind of all layers after the other, written out."""
    kinds = "ln_1.weight ln_1.bias attn.c_attn.weight attn.c_attn.bias attn.c_proj.weight "
    kinds += "attn.c_proj.bias ln_2.weight ln_2.bias mlp.c_fc.weight mlp.c_fc.bias "
    kinds += "mlp.c_proj.weight mlp.c_proj.bias"
    layers = range(weights.config.n_layer)
    blocks = [f"h.{layer}.{kind}" for kind in kinds.split() for layer in layers]
    return ["wte.weight", "wpe.weight", *blocks, "ln_f.weight", "ln_f.bias"]


def flat(tensors: object, names: list[str]) -> NDArray[np.float32]:
    return np.concatenate([np.asarray(tensors[name]).reshape(-1) for name in names])  # type: ignore[index]


@pytest.mark.parametrize(("precision", "version"), [("f32", 3), ("bf16", 5)])
def test_llmcs_file_is_its_own(
    precision: str, version: int, weights: Weights, tmp_path: Path
) -> None:
    """The header of 256 int32, a vocabulary padded to 128s, one kind of all layers at a time."""
    path = tmp_path / "model.bin"
    export_llmc(weights, path, precision=precision)
    config, data = weights.config, path.read_bytes()
    header = np.frombuffer(data[:1024], dtype="<i4")
    padded = 128
    assert config.vocab_size < padded and magic_of(path) == "model" and format_of(path) == "llmc"
    shape = [config.block_size, config.vocab_size, config.n_layer, config.n_head, config.n_embd]
    assert header[:8].tolist() == [20240326, version, *shape, padded] and not header[8:].any()
    wte = np.asarray(weights.parameters["wte.weight"])
    rows = np.zeros((padded - config.vocab_size, config.n_embd), dtype=np.float32)
    values = np.concatenate(
        [wte.reshape(-1), rows.reshape(-1), flat(weights.parameters, by_kind(weights)[1:])]
    )
    if precision == "bf16":
        assert data[1024:] == bfloat16.to_bits(values).astype("<u2").tobytes()
    else:
        assert data[1024:] == values.tobytes()

    with LlmcFile(path, weights.tokenizer) as read_back:
        assert read_back.weights.config == config
        assert read_back.weights.first_moments is None
        for name, tensor in read_back.weights.parameters.items():
            expected = np.asarray(weights.parameters[name])
            if precision == "bf16":
                expected = bfloat16.rounded(expected)
            assert np.array_equal(np.asarray(tensor), expected), name
        export_llmc(read_back.weights, tmp_path / "again.bin", precision=precision)
    assert (tmp_path / "again.bin").read_bytes() == data


def test_rounding_to_bfloat16() -> None:
    """To nearest, ties to even; infinities and NaN stay what they are."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal(10_000).astype(np.float32)
    ties = (np.arange(64, dtype=np.uint32) << 16 | 0x3F808000).view(np.float32)
    values = np.concatenate(
        [values, ties, np.array([0.0, -0.0, np.inf, -np.inf, 3.4e38], np.float32)]
    )
    back = (float32_to_bfloat16(values).astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(back, bfloat16.rounded(values))
    nan = float32_to_bfloat16(np.array([np.nan], np.float32))
    assert np.isnan(bfloat16.from_bits(nan)).all()


def header_with(place: int, value: int) -> Callable[[bytes], bytes]:
    return lambda data: data[: 4 * place] + struct.pack("<i", value) + data[4 * place + 4 :]


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda data: data[:-2], "is truncated or damaged"),
        (lambda data: data + b"\0\0", "is truncated or damaged"),
        (lambda data: data[:1023], "the header alone"),
        (header_with(0, 7), "begins with 7"),
        (header_with(1, 4), "version 4, Andrea reads 3"),
        (header_with(2, -24), "block_size must be between"),
        (header_with(3, 0), "vocab_size must be between"),
        (header_with(4, 2**31 - 1), "is truncated or damaged"),
        (header_with(5, 5), "n_head must divide n_embd"),
        (header_with(6, 2**31 - 4), "too large for the usual mlp_dim"),
        (header_with(6, 2**29 - 4), "is truncated or damaged"),
        (header_with(7, 3), "padded to 3"),
        (header_with(7, 256), "is truncated or damaged"),
    ],
)
def test_damaged_models_of_llmc(
    edit: Callable[[bytes], bytes], told: str, weights: Weights, tmp_path: Path
) -> None:
    path = tmp_path / "model.bin"
    export_llmc(weights, path)
    path.write_bytes(edit(path.read_bytes()))
    with pytest.raises(CheckpointError, match=told):
        LlmcFile(path)


def test_tokens_of_llmc(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    tokens = np.arange(1000, dtype=np.int32) % 257
    write_tokens(path, [tokens[:300], tokens[300:]], len(tokens))
    data = path.read_bytes()
    header = np.frombuffer(data[:1024], dtype="<i4")
    assert header[:3].tolist() == [20240520, 1, 1000] and not header[3:].any()
    assert data[1024:] == tokens.astype("<u2").tobytes() and magic_of(path) == "tokens"
    assert np.array_equal(read_tokens(path, 257), tokens)
    with pytest.raises(DataError, match="token 256, but the vocabulary has 256"):
        read_tokens(path, 256)
    for damaged, told in (
        (data[:-1], "need 3,024"),
        (data[:1000], "the header alone"),
        (header_with(2, -1)(data), "-1 tokens"),
        (header_with(1, 7)(data), "version 7"),
        (header_with(0, 20240326)(data), "begins with 20240326"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=told):
            read_tokens(path, 257)
    with pytest.raises(DataError, match="65,536"):
        write_tokens(tmp_path / "wide.bin", [np.array([65_536])], 1)
    assert not (tmp_path / "wide.bin").exists()
