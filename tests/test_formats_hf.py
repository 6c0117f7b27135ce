"""Folders of Hugging Face's GPT-2, read here by safetensors and NumPy alone, and as others write
them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers as library
from safetensors.numpy import load_file, save_file

from andrea.errors import AndreaError, CheckpointError, RunError, TokenizerError
from andrea.formats.hf import HFFolder, export_hf
from andrea.formats.imported import write_run
from andrea.formats.opening import format_of
from andrea.formats.weights import Weights, of_model, of_run
from andrea.runs.folder import RunFolder
from andrea.tokenizers import BPETokenizer, CarriedTokenizer, Tokenizer
from reference import gpt
from reference.compare import assert_close
from small_weights import (
    KINDS,
    TEXT,
    assert_same,
    gpt2_like_tokenizer,
    model_of,
    small_tokenizer,
    small_weights,
    some_tokens,
)

Values = dict[str, Any]


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return small_tokenizer(request.param)


@pytest.fixture
def weights() -> Weights:
    return small_weights(small_tokenizer("byte"))


@pytest.fixture
def folder(weights: Weights, tmp_path: Path) -> Path:
    export_hf(weights, tmp_path / "hf")
    return tmp_path / "hf"


def read(folder: Path) -> Values:
    return dict(json.loads((folder / "config.json").read_text("utf-8")))


def change(folder: Path, file: str = "config.json", **values: Any) -> None:
    path = folder / file
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **values}), "utf-8")


def test_what_is_written_is_gpt2s(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """From the files alone: names, [in, out] weights, no head; the logits are the model's."""
    weights = small_weights(tokenizer)
    export_hf(weights, tmp_path / "hf")
    values = read(tmp_path / "hf")
    assert values["architectures"] == ["GPT2LMHeadModel"] and values["model_type"] == "gpt2"
    assert values["activation_function"] == "gelu_new" and values["tie_word_embeddings"] is True
    assert values["eos_token_id"] == values["bos_token_id"] == tokenizer.vocab_size - 1
    config = weights.config
    assert (values["n_positions"], values["n_head"]) == (config.block_size, config.n_head)
    stored = load_file(tmp_path / "hf" / "model.safetensors")
    assert len(stored) == 2 + 12 * config.n_layer + 2
    assert not any("lm_head" in name for name in stored)
    width = config.n_embd
    assert stored["transformer.h.1.attn.c_attn.weight"].shape == (width, 3 * width)
    assert stored["transformer.h.0.mlp.c_proj.weight"].shape == (4 * width, width)
    parameters = {}
    for name, values_there in stored.items():
        is_linear = values_there.ndim == 2 and ".h." in name
        turned = values_there.T if is_linear else values_there
        parameters[name.removeprefix("transformer.")] = turned.astype(np.float64)
    tokens = some_tokens(config.vocab_size, config.block_size)
    measured = model_of(weights).logits(tokens)
    assert_close("logits", measured, gpt.logits(parameters, config, tokens), 1e-5)


def test_the_tokenizer_makes_the_same_tokens(tokenizer: Tokenizer, tmp_path: Path) -> None:
    export_hf(small_weights(tokenizer), tmp_path / "hf")
    theirs = library.Tokenizer.from_file(str(tmp_path / "hf" / "tokenizer.json"))
    settings = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text("utf-8"))
    marker = settings["eos_token"]
    assert theirs.get_vocab_size() == tokenizer.vocab_size
    assert theirs.token_to_id(marker) == tokenizer.beginning_of_document
    for text in (TEXT, TEXT[:1], "  the", "the\r\n\n  double ", "\t\tcafé🎉"):
        ids = theirs.encode(text).ids
        assert ids == tokenizer.encode(text).tolist(), text
        assert theirs.decode(ids) == text
    marked = theirs.encode(f"the{marker}café").ids
    assert marked.count(tokenizer.vocab_size - 1) == 1
    assert theirs.decode(marked, skip_special_tokens=True) == "thecafé"


def test_it_comes_back_as_it_was(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Weights to the bit, and the tokenizer as Andrea's own kind; through a run's folder, too."""
    weights = small_weights(tokenizer)
    export_hf(weights, tmp_path / "hf")
    with HFFolder(tmp_path / "hf") as read_back:
        assert_same(read_back.weights, weights)
        assert read_back.weights.tokenizer == tokenizer
        assert type(read_back.weights.tokenizer) is type(tokenizer)
        write_run(read_back.weights, tmp_path / "run", origin="hf")
    with RunFolder.open(tmp_path / "run") as run:
        assert run.tokenizer() == tokenizer
        assert_same(of_run(run), weights)
        model = model_of(weights)
        run.load(model)
    export_hf(of_model(model, tokenizer), tmp_path / "again")
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "hf" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_a_marker_that_a_token_spells_is_another(tmp_path: Path) -> None:
    base = BPETokenizer([])
    ids = base.encode("<|endoftext|>").tolist()
    # Each merge adds the next token: the letters, one after the other.
    merges = [(ids[0], ids[1]), *((254 + place, ids[place]) for place in range(2, len(ids)))]
    learned = BPETokenizer(merges)
    assert "<|endoftext|>" in [learned.decode([token]) for token in range(learned.vocab_size)]
    export_hf(small_weights(learned), tmp_path / "hf")
    theirs = library.Tokenizer.from_file(str(tmp_path / "hf" / "tokenizer.json"))
    assert theirs.encode("<|endoftext|>").ids == learned.encode("<|endoftext|>").tolist()
    with HFFolder(tmp_path / "hf") as read_back:
        assert read_back.weights.tokenizer == learned


# ---- folders as others write them


def rewrite(folder: Path, edit: Callable[[Values], None]) -> None:
    """Edit the tensors of a folder."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def shard(folder: Path) -> None:
    """In two files with an index, as large models are."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    files = {f"model-0000{n + 1}-of-00002.safetensors": names[n::2] for n in range(2)}
    for file, of_file in files.items():
        save_file({name: tensors[name] for name in of_file}, folder / file)
    weight_map = {name: file for file, of_file in files.items() for name in of_file}
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")


def test_shards_are_read(folder: Path, weights: Weights) -> None:
    shard(folder)
    assert format_of(folder) == "hf"
    with HFFolder(folder) as read_back:
        assert_same(read_back.weights, weights)


def test_names_of_the_trunk_alone_masks_and_a_tied_head(folder: Path, weights: Weights) -> None:
    """As the first GPT-2 was published, with buffers that are no parameters."""

    def edit(tensors: Values) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = np.tril(np.ones((1, 1, 24, 24), dtype=np.uint8))
        tensors["h.1.attn.masked_bias"] = np.array(-1e4, dtype=np.float32)
        tensors["lm_head.weight"] = tensors["wte.weight"].copy()

    rewrite(folder, edit)
    with HFFolder(folder) as read_back:
        assert_same(read_back.weights, weights)


@pytest.mark.parametrize("dtype", ["F16", "BF16", "F64"])
def test_other_floats_are_converted(dtype: str, folder: Path, weights: Weights) -> None:
    rounded = {}
    header: Values = {}
    data = b""
    for name, values in load_file(folder / "model.safetensors").items():
        if dtype == "BF16":
            bits = (np.ascontiguousarray(values).view(np.uint32) >> 16).astype("<u2")
            stored = bits.tobytes()
            rounded[name] = (bits.astype(np.uint32) << 16).view(np.float32)
        else:
            narrow = values.astype("<f2" if dtype == "F16" else "<f8")
            stored, rounded[name] = narrow.tobytes(), narrow.astype(np.float32)
        place = [len(data), len(data) + len(stored)]
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": place}
        data += stored
    text = json.dumps(header).encode()
    file = len(text).to_bytes(8, "little") + text + data
    (folder / "model.safetensors").write_bytes(file)
    with HFFolder(folder) as read_back:
        found = read_back.weights.parameters
        for name in found:
            expected = rounded[f"transformer.{name}"]
            turned = expected.T if name.startswith("h.") and expected.ndim == 2 else expected
            assert np.array_equal(np.asarray(found[name]), turned), name
    if dtype == "F64":
        with HFFolder(folder) as read_back:
            assert_same(read_back.weights, weights)


def test_a_vocabulary_as_large_as_gpt2s(tmp_path: Path) -> None:
    """50,257 tokens, with merges written either way, or in vocab.json and merges.txt."""
    tokenizer = gpt2_like_tokenizer()
    assert tokenizer.vocab_size == 50257
    weights = small_weights(tokenizer, n_embd=8, n_head=1, n_layer=1)
    folder = tmp_path / "hf"
    export_hf(weights, folder)
    description = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    with HFFolder(folder) as read_back:
        assert read_back.weights.tokenizer == tokenizer
    model = description["model"]
    pairs = [merge.split(" ") for merge in model["merges"]]
    change(folder, "tokenizer.json", model={**model, "merges": pairs})
    with HFFolder(folder) as read_back:
        assert read_back.weights.tokenizer == tokenizer
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]), "utf-8")
    lines = ["#version: 0.2", *model["merges"], ""]
    (folder / "merges.txt").write_text("\n".join(lines), "utf-8")
    with HFFolder(folder) as read_back:
        assert read_back.weights.tokenizer == tokenizer


# ---- refused


def untied(tensors: Values) -> None:
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"] + np.float32(1)


def lost(tensors: Values) -> None:
    del tensors["transformer.h.1.ln_2.bias"]


def unknown(tensors: Values) -> None:
    tensors["transformer.h.0.attn.rotary"] = np.zeros(3, dtype=np.float32)


def narrower(tensors: Values) -> None:
    tensors["transformer.ln_f.bias"] = np.zeros(31, dtype=np.float32)


def turned(tensors: Values) -> None:
    name = "transformer.h.0.mlp.c_fc.weight"
    tensors[name] = np.ascontiguousarray(tensors[name].T)


def whole_numbers(tensors: Values) -> None:
    tensors["transformer.ln_f.bias"] = np.zeros(32, dtype=np.int32)


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (untied, "lm_head.weight is not the token embedding"),
        (lost, "transformer.h.1.ln_2.bias is missing"),
        (unknown, "'transformer.h.0.attn.rotary' is no tensor of a GPT-2"),
        (narrower, r"ln_f.bias is \(31,\), config.json needs \(32,\)"),
        (turned, r"h.0.mlp.c_fc.weight is \(128, 32\), config.json needs \(32, 128\)"),
        (whole_numbers, "is I32; floating point is needed"),
    ],
)
def test_other_tensors_are_refused(edit: Callable[[Values], None], told: str, folder: Path) -> None:
    rewrite(folder, edit)
    with pytest.raises(CheckpointError, match=told):
        HFFolder(folder)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"model_type": "llama"}, "the architecture 'llama'"),
        ({"activation_function": "silu"}, "activation_function 'silu'"),
        ({"activation_function": ["relu"]}, "activation_function .'relu'."),
        ({"activation_function": None}, "activation_function None"),
        ({"tie_word_embeddings": False}, "the tensor lm_head.weight is missing"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings 'no'"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx True"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon 1e-06"),
        ({"n_inner": 64}, r"h.0.mlp.c_fc.weight is \(32, 128\), config.json needs \(32, 64\)"),
        *(({"n_inner": n}, "n_inner ") for n in (0, -128, "128", 128.0, True, [128])),
        ({"n_inner": 10**30}, "mlp_dim must be between"),
        ({"n_layer": 2**31 - 1}, "transformer.h.2.ln_1.weight is missing"),
        ({"n_layer": 3}, "transformer.h.2.ln_1.weight is missing"),
        ({"n_layer": 1}, "h.1.* is no tensor of a GPT-2"),
        ({"n_layer": -1}, "n_layer must be between"),
        ({"n_head": 5}, "n_head must divide n_embd"),
        ({"n_embd": "32"}, "n_embd must be an integer"),
        ({"vocab_size": 258}, "wte.weight is"),
        ({"n_positions": None}, "does not say n_positions"),
    ],
)
def test_other_models_are_refused(values: Values, told: str, folder: Path) -> None:
    change(folder, **values)
    with pytest.raises(CheckpointError, match=told):
        HFFolder(folder)


@pytest.mark.parametrize(
    "shard_name", ["../outside.safetensors", "/etc/x.safetensors", "a\\b.safetensors", "x.bin", 7]
)
def test_an_index_names_files_beside_it(shard_name: Any, folder: Path) -> None:
    shutil.copy(folder / "model.safetensors", folder.parent / "outside.safetensors")
    names = load_file(folder / "model.safetensors")
    index = {"weight_map": dict.fromkeys(names, shard_name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    with pytest.raises(CheckpointError, match="no name of a file beside it"):
        HFFolder(folder)


def test_index_and_shards_must_agree(folder: Path) -> None:
    shard(folder)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text("utf-8"))
    whole = dict(index["weight_map"])
    name = "transformer.wte.weight"
    del index["weight_map"][name]
    path.write_text(json.dumps(index), "utf-8")
    with pytest.raises(CheckpointError, match=f"holds '{name}', which"):
        HFFolder(folder)
    index["weight_map"] = {**whole, "transformer.more": whole[name]}
    path.write_text(json.dumps(index), "utf-8")
    with pytest.raises(CheckpointError, match=r"lacks 'transformer\.more"):
        HFFolder(folder)
    (folder / whole[name]).unlink()
    with pytest.raises(CheckpointError, match="cannot read"):
        HFFolder(folder)


@pytest.mark.parametrize(
    "edit",
    [
        lambda data: data[:-1],
        lambda data: data[:4],
        lambda data: data + b"\0",
        lambda data: b"\xff" * 8 + data[8:],
    ],
    ids=["truncated", "a few bytes", "longer", "a header of 2**64"],
)
def test_a_damaged_file_is_refused(edit: Callable[[bytes], bytes], folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(edit(path.read_bytes()))
    with pytest.raises(CheckpointError, match="truncated or no safetensors"):
        HFFolder(folder)


def test_values_that_are_not_finite_are_refused(folder: Path, tmp_path: Path) -> None:
    def edit(tensors: Values) -> None:
        tensors["transformer.ln_f.bias"][3] = np.nan

    rewrite(folder, edit)
    with HFFolder(folder) as read_back, pytest.raises(CheckpointError, match="not finite"):
        write_run(read_back.weights, tmp_path / "run", origin="hf")


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda d: d.update(decoder={"type": "Fuse"}), "not byte-level"),
        (lambda d: d["model"].update(vocab={}), "no token of the byte 33"),
        (lambda d: d["model"]["vocab"].update({"漢": 255}), "'漢' that is not made of bytes"),
        (lambda d: d["model"]["vocab"].pop("Ā"), "no token of the byte 0"),
        (lambda d: d["model"].update(type="Magic"), "can't be used"),
        (lambda d: d["model"]["vocab"].update({"ĀĀ": 9999}), "tokens up to 9999"),
    ],
)
def test_tokenizers_that_cannot_be_used_are_refused(
    edit: Callable[[Values], Any], told: str, folder: Path
) -> None:
    path = folder / "tokenizer.json"
    description = json.loads(path.read_text("utf-8"))
    edit(description)
    path.write_text(json.dumps(description), "utf-8")
    with pytest.raises(TokenizerError, match=told):
        HFFolder(folder)


def test_a_folder_without_a_tokenizer_is_told(folder: Path, weights: Weights) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match="--tokenizer"):
        HFFolder(folder)
    with HFFolder(folder, with_tokenizer=False) as read_back:
        assert read_back.weights.tokenizer is None


def test_nothing_is_replaced(folder: Path, weights: Weights, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(CheckpointError, match="is there already"):
        export_hf(weights, folder)
    assert before == {path: path.read_bytes() for path in folder.iterdir()}
    write_run(weights, tmp_path / "run", origin="hf")
    with pytest.raises(RunError, match="holds a run already"):
        write_run(weights, tmp_path / "run", origin="hf")


def test_an_export_that_fails_leaves_nothing(
    weights: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("andrea.formats.hf.write_tensor_file", full)
    with pytest.raises(AndreaError, match="No space left"):
        export_hf(weights, tmp_path / "new")
    assert not list(tmp_path.glob("new*"))


def test_a_carried_tokenizer_goes_out_as_it_came(folder: Path, tmp_path: Path) -> None:
    """With a pattern of its own, more ids than tokens, and a marker in the middle."""
    description = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    description["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        ],
    }
    carried = CarriedTokenizer(description, 260, 256)
    weights = small_weights(carried)
    export_hf(weights, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "tokenizer.json").read_text("utf-8")) == description
    with HFFolder(tmp_path / "out") as read_back:
        assert read_back.weights.tokenizer == carried
        write_run(read_back.weights, tmp_path / "run", origin="hf")
    with RunFolder.open(tmp_path / "run") as run:
        assert run.tokenizer() == carried
