"""Damaged models of other programs: folders of Hugging Face, llm.c's files, the family's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from andrea.config import DIALECTS, ModelConfig
from andrea.formats.family import FamilyFile, export_family
from andrea.formats.hf import HFFolder, export_hf
from andrea.formats.llmc import LlmcFile, export_llmc, read_tokens, write_tokens
from andrea.formats.tokenizer_json import to_tokenizer_json
from andrea.formats.weights import Weights, tensor_shapes
from andrea.tokenizers import CarriedTokenizer, Tokenizer, tokenizer_from_dict
from small_weights import small_tokenizer, small_weights

from .damage import damage_bytes, damage_json, odd_value


def _weights(**dialect: Any) -> Weights:
    sizes = dict(block_size=8, n_layer=2, n_embd=8, n_head=2)
    return small_weights(small_tokenizer("bpe"), **sizes, **dialect)


def _check(weights: Weights) -> None:
    """All that may be said of a model that was accepted: its tensors are there and are read."""
    for name, shape in tensor_shapes(weights.config).items():
        assert np.asarray(weights.parameters[name]).shape == shape, name


class HubFolder:
    """A folder whose config.json, tokenizer.json, index or tensors are damaged."""

    def __init__(self, place: Path) -> None:
        weights, folder = _weights(), place / "hub"
        self.good = folder
        export_hf(weights, folder)
        names = [f"transformer.{name}" for name in weights.parameters]
        weight_map = dict.fromkeys(names, "model.safetensors")
        index = json.dumps({"metadata": {}, "weight_map": weight_map})
        (folder / "model.safetensors.index.json").write_text(index, "utf-8")

    def case(self, random: Random, folder: Path) -> str:
        copy = folder / "case"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.good, copy)
        files = ["config.json", "tokenizer.json", "model.safetensors.index.json"]
        file = random.choice([*files, "tokenizer.json", "model.safetensors"])
        path = copy / file
        if file.endswith(".json") and random.random() < 0.8:
            damaged = damage_json(random, json.loads(path.read_bytes()))
            path.write_text(json.dumps(damaged), "utf-8")
        else:
            path.write_bytes(damage_bytes(random, path.read_bytes()))
        with HFFolder(copy) as opened:
            _check(opened.weights)
            _check_tokenizer(opened.tokenizer)
        return "read"


# Of config.json: what decides the model, and what else may stand there in files of others.
_KEYS: dict[str, tuple[Any, ...]] = {
    "activation_function": ("gelu_new", "gelu", "relu2", "silu", "swiglu", "GELU"),
    "n_inner": (13, 0, -13, 2**31 - 1, 2**64, 13.0),
    "tie_word_embeddings": (True, False, "false", 0),
    "initializer_range": (0.02, 1e-30, 1e-46, -1, "0.02"),
    "layer_norm_epsilon": (1e-5, 1e-6, 0, -1),
    "n_embd": (8, 16, -8),
    "n_layer": (2, 2**31 - 1),
}


class HubDialect:
    """A folder of a GPT-2 with another activation, MLP and head, whose config.json says odd things:
    refused, or a model of what it says and of the tensors that are there."""

    def __init__(self, place: Path) -> None:
        self.folder = place / "dialect"
        own = dict(activation="relu2", mlp_dim=13, tie_embeddings=False, mlp_bias=False)
        export_hf(_weights(**own), self.folder)
        self.config = self.folder / "config.json"
        self.values = json.loads(self.config.read_bytes())

    def case(self, random: Random, folder: Path) -> str:
        values = dict(self.values)
        for key in random.sample(list(_KEYS), random.choice((1, 1, 2))):
            value = random.choice(_KEYS[key])
            values[key] = value if random.random() < 0.7 else odd_value(random)
        self.config.write_text(json.dumps(values), "utf-8")
        with HFFolder(self.folder) as opened:
            _check(opened.weights)
            assert opened.weights.config.mlp_dim == 13 == values["n_inner"]
            assert opened.weights.config.tie_embeddings is values["tie_word_embeddings"] is False
            assert values["activation_function"] in ("gelu_new", "gelu", "relu2")
        return "read"


def _check_tokenizer(tokenizer: Tokenizer) -> None:
    """One that was accepted makes tokens of the vocabulary, whatever the text."""
    tokens = tokenizer.encode("It's 12 naïve 漢字 🎉\n")
    assert tokens.size == 0 or 0 <= tokens.min() <= tokens.max() < tokenizer.vocab_size
    tokenizer.decode(tokens)


class LlmcFiles:
    """A model file, or one of tokens."""

    def __init__(self, folder: Path) -> None:
        export_llmc(_weights(), folder / "model.bin", precision="bf16")
        write_tokens(folder / "tokens.bin", [np.arange(500) % 257], 500)
        self.model = (folder / "model.bin").read_bytes()
        self.tokens = (folder / "tokens.bin").read_bytes()

    def case(self, random: Random, folder: Path) -> str:
        path = folder / "case.bin"
        if random.random() < 0.5:
            path.write_bytes(damage_bytes(random, self.model))
            with LlmcFile(path) as opened:
                _check(opened.weights)
            return "read"
        path.unlink(missing_ok=True)  # a map of it may still be open
        path.write_bytes(damage_bytes(random, self.tokens))
        assert int(read_tokens(path, 257).max()) < 257
        return "read"


class FamilyFiles:
    """The family's checkpoint, which has nothing but two numbers to check, and a shape that may be
    another one's."""

    def __init__(self, folder: Path) -> None:
        self.good = []
        for number, dialect in enumerate(({}, DIALECTS["microgpt"])):
            weights, path = _weights(**dialect), folder / f"{number}.bin"
            export_family(weights, path)
            self.good.append((weights.config, path.read_bytes()))

    def case(self, random: Random, folder: Path) -> str:
        path = folder / "case.bin"
        config, data = random.choice(self.good)
        sizes = config.to_dict()
        for name in config.dialect():
            del sizes[name]
        if random.random() < 0.5:
            path.write_bytes(damage_bytes(random, data))
        else:
            path.write_bytes(data)
            name = random.choice(list(sizes))
            sizes[name] = random.choice((0, -1, 1, 2 * sizes[name], 2**29, 2**31 - 1, 2**31))
        with FamilyFile(path, ModelConfig.from_dict(sizes)) as opened:
            _check(opened.weights)
            # Of another shape, maybe, in which another layout has as many numbers.
            count = int.from_bytes(path.read_bytes()[4:8], "little")
            assert sum(t.size for t in opened.weights.parameters.values()) == count
        return "read"


def _variants() -> list[dict[str, Any]]:
    """Files of one vocabulary whose texts go through other steps, as models in use have them."""
    described = to_tokenizer_json(small_tokenizer("bpe"))
    bytes_alone = {**described["pre_tokenizer"], "use_regex": False}
    words = {
        "type": "Split",
        "pattern": {"Regex": r"\p{N}{1,3}| ?\p{L}+|\s+(?!\S)|\s+"},
        "behavior": "Isolated",
        "invert": False,
    }
    digits = {"type": "Digits", "individual_digits": True}
    end = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    template = {
        "type": "TemplateProcessing",
        "single": [end, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            "<|endoftext|>": {"id": "<|endoftext|>", "ids": [299], "tokens": ["<|endoftext|>"]}
        },
    }
    replace = {"type": "Replace", "pattern": {"String": "\r\n"}, "content": "\n"}
    return [
        described,
        described
        | {
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, replace]},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [words, digits, bytes_alone]},
            "post_processor": template,
        },
        described | {"normalizer": {"type": "ByteLevel"}, "pre_tokenizer": words},
    ]


class CarriedRecord:
    """A tokenizer.json in a checkpoint: refused, or one that makes tokens of its vocabulary."""

    def __init__(self, _folder: Path) -> None:
        self.good = [CarriedTokenizer(one, 304, 299).to_dict() for one in _variants()]

    def case(self, random: Random, folder: Path) -> str:
        tokenizer = tokenizer_from_dict(_damaged(random, random.choice(self.good)))
        _check_tokenizer(tokenizer)
        assert tokenizer_from_dict(json.loads(json.dumps(tokenizer.to_dict()))) == tokenizer
        return "read"


def _damaged(random: Random, record: dict[str, Any]) -> Any:
    """A damaged record, half the time beside its vocabulary, which is nearly all of it."""
    if random.random() < 0.5:
        return damage_json(random, record)
    description = record["description"]
    model = dict(description["model"])
    large = {name: model.pop(name) for name in ("vocab", "merges")}
    damaged = damage_json(random, description | {"model": model})
    if isinstance(damaged, dict) and isinstance(damaged.get("model"), dict):
        damaged["model"] = large | damaged["model"]
    return record | {"description": damaged}
