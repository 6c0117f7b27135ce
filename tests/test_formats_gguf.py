"""GGUF files for llama.cpp, read back with the gguf package and computed with NumPy."""

from __future__ import annotations

import dataclasses
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers as library

from andrea.errors import CheckpointError, TokenizerError
from andrea.formats.gguf import export_gguf, gguf_name
from andrea.formats.tokenizer_json import to_tokenizer_json
from andrea.formats.weights import tensor_shapes
from andrea.tokenizers import BPETokenizer, CarriedTokenizer
from extras import needs
from reference import gpt
from reference.compare import assert_close
from small_weights import (
    KINDS,
    LEAST,
    TEXT,
    model_of,
    small_tokenizer,
    small_weights,
    some_tokens,
)

pytestmark = needs("gguf", extra="gguf")
if find_spec("gguf") is not None:
    import gguf

# Relative to the largest logit; a block of 8 bits rounds by 1/254 of its largest value.
TOLERANCES = {"f32": 1e-5, "f16": 5e-3, "bf16": 5e-2, "q8_0": 5e-2}


def fields(reader: Any) -> dict[str, Any]:
    return {name: field.contents() for name, field in reader.fields.items()}


@pytest.mark.parametrize("precision", list(TOLERANCES))
def test_tensors_are_those_of_the_model(precision: str, tmp_path: Path) -> None:
    weights = small_weights(small_tokenizer("byte"))
    config = weights.config
    path = tmp_path / "model.gguf"
    export_gguf(weights, path, precision=precision)
    assert list(tmp_path.iterdir()) == [path]
    reader = gguf.GGUFReader(path)
    values = fields(reader)
    assert values["general.architecture"] == "gpt2"
    assert values["gpt2.block_count"] == config.n_layer
    assert values["gpt2.context_length"] == config.block_size
    assert values["gpt2.embedding_length"] == config.n_embd
    assert values["gpt2.feed_forward_length"] == 4 * config.n_embd
    assert values["gpt2.attention.head_count"] == config.n_head
    assert values["gpt2.attention.layer_norm_epsilon"] == pytest.approx(1e-5)
    file_type = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}
    assert values["general.file_type"] == file_type[precision]
    names = {gguf_name(name): name for name in tensor_shapes(config)}
    parameters = {}
    for tensor in reader.tensors:
        shape = tensor_shapes(config)[names[tensor.name]]
        is_matrix = len(shape) == 2 and tensor.name != "position_embd.weight"
        assert tensor.tensor_type.name == (precision.upper() if is_matrix else "F32"), tensor.name
        assert tuple(tensor.shape.tolist()) == shape[::-1]
        found = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        parameters[names[tensor.name]] = found.astype(np.float64)
    assert set(parameters) == set(tensor_shapes(config))
    tokens = some_tokens(config.vocab_size, config.block_size)
    measured = gpt.logits(parameters, config, tokens)
    expected = model_of(weights).logits(tokens)
    assert_close(f"{precision} logits", measured, expected, TOLERANCES[precision])


def test_a_gpt2_of_another_dialect_has_all_tensors(tmp_path: Path) -> None:
    """llama.cpp asks for every bias and gain, and takes a head of its own and an MLP of any width:
    with those the file computes what the model does."""
    weights = small_weights(small_tokenizer("byte"), **LEAST, mlp_dim=52, tie_embeddings=False)
    config = weights.config
    export_gguf(weights, tmp_path / "model.gguf")
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    assert fields(reader)["gpt2.feed_forward_length"] == 52
    full = dataclasses.replace(config, norm_affine=True, attn_bias=True, mlp_bias=True)
    names = {gguf_name(name): name for name in gpt.parameter_shapes(full)}
    assert names["output.weight"] == "lm_head.weight"
    found = {names[t.name]: np.array(t.data, np.float64) for t in reader.tensors}
    assert {name: t.shape for name, t in found.items()} == gpt.parameter_shapes(full)
    tokens = some_tokens(config.vocab_size, config.block_size)
    measured = model_of(weights).logits(tokens)
    assert_close("logits", measured, gpt.logits(found, full, tokens), 1e-5)


def test_rows_that_no_block_fits_are_float16(tmp_path: Path) -> None:
    """As llama.cpp's own converter has it: 8 bits come in blocks of 32."""
    export_gguf(
        small_weights(small_tokenizer("byte"), n_embd=24), tmp_path / "m.gguf", precision="q8_0"
    )
    kinds = {t.name: t.tensor_type.name for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    assert kinds["token_embd.weight"] == kinds["blk.0.attn_qkv.weight"] == "F16"
    assert kinds["blk.0.ffn_down.weight"] == "Q8_0"  # 4 x 24 is 3 blocks


def as_llama_cpp(values: dict[str, Any]) -> library.Tokenizer:
    """GPT-2's tokenizer from a file's tokens and merges, as llama.cpp makes it."""
    described = to_tokenizer_json(small_tokenizer("byte"))
    tokens = values["tokenizer.ggml.tokens"]
    merges = [merge.split(" ") for merge in values["tokenizer.ggml.merges"]]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    # llama.cpp asks for no token where a merge has made none yet.
    for left, right in merges:
        vocabulary.setdefault(left + right, len(vocabulary))
    model = {**described["model"], "vocab": vocabulary, "merges": merges}
    for left, right in merges:
        for part in (left, right):
            model["vocab"].setdefault(part, len(vocabulary))
    return library.Tokenizer.from_str(json.dumps({**described, "added_tokens": [], "model": model}))


@pytest.mark.parametrize("kind", KINDS)
def test_llama_cpp_can_make_the_tokens(kind: str, tmp_path: Path) -> None:
    tokenizer = small_tokenizer(kind)
    export_gguf(small_weights(tokenizer), tmp_path / "model.gguf")
    values = fields(gguf.GGUFReader(tmp_path / "model.gguf"))
    assert (values["tokenizer.ggml.model"], values["tokenizer.ggml.pre"]) == ("gpt2", "gpt-2")
    assert len(values["tokenizer.ggml.tokens"]) == tokenizer.vocab_size
    assert len(set(values["tokenizer.ggml.tokens"])) == tokenizer.vocab_size
    assert len(values["tokenizer.ggml.merges"]) > 0  # without any it is no vocabulary there
    kinds = values["tokenizer.ggml.token_type"]
    assert kinds == [1] * (tokenizer.vocab_size - 1) + [3]
    end = tokenizer.beginning_of_document
    assert values["tokenizer.ggml.eos_token_id"] == values["tokenizer.ggml.bos_token_id"] == end
    assert values["tokenizer.ggml.add_bos_token"] is False
    theirs = as_llama_cpp(values)
    for text in (TEXT, "the café", "🎉🎉漢字", "\u00a0…"):
        ids = theirs.encode(text).ids
        assert ids == tokenizer.encode(text).tolist(), text


def test_a_carried_tokenizer(tmp_path: Path) -> None:
    """GPT-2's way of splitting goes, with other ids and a padded vocabulary; others are refused."""
    described = to_tokenizer_json(small_tokenizer("bpe"))
    size = len(described["model"]["vocab"])
    end = size - 1
    carried = CarriedTokenizer(described, size + 3, end)
    export_gguf(small_weights(carried), tmp_path / "model.gguf")
    values = fields(gguf.GGUFReader(tmp_path / "model.gguf"))
    assert values["tokenizer.ggml.token_type"] == [1] * end + [3] + [5] * 3
    assert len(set(values["tokenizer.ggml.tokens"])) == size + 3
    assert values["tokenizer.ggml.eos_token_id"] == end
    assert as_llama_cpp(values).encode(TEXT).ids == carried.encode(TEXT).tolist()
    other = {**described, "pre_tokenizer": {**described["pre_tokenizer"], "use_regex": False}}
    with pytest.raises(TokenizerError, match="way of splitting text"):
        export_gguf(small_weights(CarriedTokenizer(other, size, end)), tmp_path / "no.gguf")
    assert not (tmp_path / "no.gguf").exists()


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    weights = small_weights(small_tokenizer("byte"))
    with pytest.raises(CheckpointError, match="f32, f16, bf16, q8_0"):
        export_gguf(weights, tmp_path / "m.gguf", precision="q4_0")
    np.asarray(weights.parameters["h.0.mlp.c_fc.weight"])[3, 4] = 1e6
    with pytest.raises(CheckpointError, match=r"h\.0\.mlp\.c_fc\.weight has values up to 1e\+06"):
        export_gguf(weights, tmp_path / "m.gguf", precision="f16")
    assert not list(tmp_path.iterdir())
    export_gguf(weights, tmp_path / "m.gguf")
    before = (tmp_path / "m.gguf").read_bytes()
    with pytest.raises(CheckpointError, match="is there already"):
        export_gguf(weights, tmp_path / "m.gguf")
    assert (tmp_path / "m.gguf").read_bytes() == before


@pytest.mark.parametrize(
    "own",
    [
        dict(activation="relu"),
        dict(activation="gelu_erf"),
        dict(activation="swiglu"),
        dict(norm="rmsnorm"),
        dict(norm_position="post"),
        dict(residual=False),
        dict(final_norm=False),
        dict(embedding_norm=True),
    ],
    ids=lambda own: next(iter(own)),
)
def test_what_llama_cpps_gpt2_has_not_is_refused(own: dict[str, Any], tmp_path: Path) -> None:
    weights = small_weights(small_tokenizer("byte"), **own)
    ((setting, value),) = own.items()
    told = f"llama.cpp's GPT-2 can't hold this model: its {setting} is {value},"
    with pytest.raises(CheckpointError, match=told):
        export_gguf(weights, tmp_path / "m.gguf")
    assert not list(tmp_path.iterdir())


def test_the_marker_is_no_merge() -> None:
    """A merge stands in where there are none; it joins bytes that no text has."""
    last = bytes([255])
    for text in (TEXT, "ÿ"):
        assert last not in text.encode()
    assert BPETokenizer([]).encode("ÿ").size == 2
