"""Dialects in the formats of GPT-2: what they can hold computes the same, the rest is refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from andrea.config import DIALECTS, ModelConfig
from andrea.errors import CheckpointError
from andrea.formats.gpt2 import as_gpt2
from andrea.formats.hf import HFFolder, export_hf
from andrea.formats.llmc import LlmcFile, export_llmc
from andrea.formats.weights import Weights, tensor_shapes
from dialects import DIALECTS as PAIRWISE
from reference import gpt
from reference.compare import assert_close
from small_weights import (
    EXPRESSED,
    LEAST,
    assert_same,
    model_of,
    small_tokenizer,
    small_weights,
    some_tokens,
)

Dialect = dict[str, Any]

# Names in transformers' ACT2FN.
ACTIVATIONS = {"gelu_new": "gelu", "gelu": "gelu_erf", "relu": "relu", "relu2": "relu2"}
# Setting -> a value of it that no GPT-2 has, and what that needs beside it.
REFUSED: dict[str, Dialect] = {
    "norm": dict(norm="rmsnorm"),
    "norm_position": dict(norm_position="post"),
    "residual": dict(residual=False),
    "activation": dict(activation="swiglu", mlp_dim=128),
    "final_norm": dict(final_norm=False),
    "embedding_norm": dict(embedding_norm=True),
}
Export = Callable[[Weights, Path], None]
EXPORTS: dict[str, tuple[str, Export]] = {
    "hf": ("a GPT-2 of Hugging Face", export_hf),
    "llmc": ("llm.c", export_llmc),
}


def weights_of(dialect: Dialect) -> Weights:
    return small_weights(small_tokenizer("byte"), **dialect)


def logits_of_folder(folder: Path, tokens: Any) -> Any:
    """What the files alone say, computed by NumPy: transformers' names, [in, out] weights."""
    values = json.loads((folder / "config.json").read_text("utf-8"))
    config = ModelConfig(
        vocab_size=values["vocab_size"],
        block_size=values["n_positions"],
        n_layer=values["n_layer"],
        n_head=values["n_head"],
        n_embd=values["n_embd"],
        mlp_dim=values["n_inner"] or 0,
        activation=ACTIVATIONS[values["activation_function"]],
        tie_embeddings=values["tie_word_embeddings"],
    )
    parameters = {}
    for stored, tensor in load_file(folder / "model.safetensors").items():
        turned = tensor.T if tensor.ndim == 2 and ".h." in stored else tensor
        parameters[stored.removeprefix("transformer.")] = turned.astype(np.float64)
    assert {name: t.shape for name, t in parameters.items()} == gpt.parameter_shapes(config)
    return gpt.logits(parameters, config, tokens)


@pytest.mark.parametrize("name", list(EXPRESSED))
def test_transformers_can_hold_it(name: str, tmp_path: Path) -> None:
    """From the files alone the logits are the model's; and what comes back computes the same bits
    as the model that has zeros for biases and ones for gains."""
    weights = weights_of(EXPRESSED[name])
    export_hf(weights, tmp_path / "hf")
    tokens = some_tokens(weights.config.vocab_size, weights.config.block_size)
    expected = logits_of_folder(tmp_path / "hf", tokens)
    measured = model_of(weights).logits(tokens)
    assert_close(f"{name}, logits", measured, expected, 1e-5)
    with HFFolder(tmp_path / "hf") as opened:
        assert_same(opened.weights, as_gpt2(weights, "", **{s: None for s in EXPRESSED[name]}))
        assert_close(f"{name}, imported", model_of(opened.weights).logits(tokens), expected, 1e-5)
        export_hf(opened.weights, tmp_path / "again")
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "hf" / file).read_bytes() == (tmp_path / "again" / file).read_bytes()


def test_a_deviation_that_cannot_be_meant_is_left_out(tmp_path: Path) -> None:
    """It is of new models; this one has learned."""
    weights = weights_of({})
    export_hf(weights, tmp_path / "hf")
    path = tmp_path / "hf" / "config.json"
    values = json.loads(path.read_text("utf-8"))
    for deviation in (0, -1, "0.02", None, 1e9):
        path.write_text(json.dumps({**values, "initializer_range": deviation}), "utf-8")
        with HFFolder(tmp_path / "hf") as opened:
            assert_same(opened.weights, weights)


@pytest.mark.parametrize("setting", list(REFUSED))
@pytest.mark.parametrize("format_name", list(EXPORTS))
def test_what_gpt2_has_not_is_refused(format_name: str, setting: str, tmp_path: Path) -> None:
    """In one line that names the setting, and before anything is written."""
    what, export = EXPORTS[format_name]
    weights = weights_of(REFUSED[setting])
    value = REFUSED[setting][setting]
    with pytest.raises(CheckpointError) as told:
        export(weights, tmp_path / "out")
    assert str(told.value).startswith(f"{what} can't hold this model: its {setting} is {value},")
    assert "\n" not in str(told.value) and not list(tmp_path.iterdir())


def test_no_other_dialect_passes_for_a_gpt2(tmp_path: Path) -> None:
    """Of models in which all settings meet: those with something that no GPT-2 has."""
    refused = 0
    for dialect in PAIRWISE.values():
        weights = weights_of(dialect)
        if not weights.config.dialect().keys() & (REFUSED.keys() - {"activation"}):
            continue
        for what, export in EXPORTS.values():
            with pytest.raises(CheckpointError, match=f"{what} can't hold this model"):
                export(weights, tmp_path / "out")
        refused += 1
    assert refused > len(PAIRWISE) // 2 and not list(tmp_path.iterdir())


def test_llmc_holds_what_zeros_and_ones_can_fill(tmp_path: Path) -> None:
    """Its reader computes a GPT-2, with the same logits."""
    weights = weights_of(LEAST)
    export_llmc(weights, tmp_path / "model.bin")
    full = dataclasses.replace(weights.config, norm_affine=True, attn_bias=True, mlp_bias=True)
    with LlmcFile(tmp_path / "model.bin", weights.tokenizer) as opened:
        assert opened.weights.config == full
        found = {n: np.array(t, np.float64) for n, t in opened.weights.parameters.items()}
    tokens = some_tokens(full.vocab_size, full.block_size)
    assert_close("logits", model_of(weights).logits(tokens), gpt.logits(found, full, tokens), 1e-5)
    for name, tensor in found.items():
        if name not in weights.parameters:
            assert np.all(tensor == (0 if name.endswith(".bias") else 1)), name


@pytest.mark.parametrize("setting", ["mlp_dim", "tie_embeddings", "activation"])
def test_llmc_has_one_mlp_and_one_head(setting: str, tmp_path: Path) -> None:
    own = dict(mlp_dim=64, tie_embeddings=False, activation="relu")
    with pytest.raises(CheckpointError, match=rf"llm\.c can't hold this model: its {setting} is"):
        export_llmc(weights_of({setting: own[setting]}), tmp_path / "model.bin")


def test_weights_are_loaded_into_their_own_dialect_alone() -> None:
    """How a new model starts is no part of what it computes."""
    weights = weights_of(DIALECTS["microgpt"])
    model = model_of(weights_of({**DIALECTS["microgpt"], "init_std": 0.5, "scaled_init": True}))
    weights.load(model)
    assert sorted(model.parameters()) == sorted(tensor_shapes(weights.config))
    for name, tensor in model.parameters().items():
        assert np.array_equal(tensor, weights.parameters[name])
    with pytest.raises(CheckpointError, match=r"have activation relu, but the model has .* gelu"):
        weights.load(model_of(weights_of({**DIALECTS["microgpt"], "activation": "gelu"})))
