"""The family's checkpoint in all its layouts, written and read here by NumPy and struct alone."""

from __future__ import annotations

import dataclasses
import filecmp
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from andrea.config import DIALECTS, PRESETS, ModelConfig
from andrea.errors import ArgumentError, CheckpointError, ConfigError
from andrea.formats.family import LAYOUTS, FamilyFile, export_family, layout_name
from andrea.formats.imported import write_run
from andrea.formats.weights import Weights, of_run
from andrea.planning.sizes import num_parameters
from andrea.runs.folder import RunFolder
from andrea.tokenizers import BPETokenizer
from reference import gpt
from reference.compare import assert_close
from small_weights import assert_same, model_of, small_tokenizer, small_weights, some_tokens

# MODEL.md's table: of the 120M shape, parameters by layout.
COUNTS = {
    "tied, all biases, norms with gain and bias": 92_331_264,
    "tied, MLP bias only, norms with gain and bias": 92_294_400,
    "untied head, no biases, norms without parameters": 98_698_752,
    "untied head, no biases, norms with gain and bias": 98_737_152,
    "untied head, all biases, norms with gain and bias": 98_820_096,
}
MICROGPT = "untied head, no biases, norms without parameters"
DIALECTS_OF_LAYOUTS: dict[str, dict[str, Any]] = dict(
    zip(
        COUNTS,
        (
            {},
            dict(attn_bias=False),
            DIALECTS["microgpt"],
            dict(attn_bias=False, mlp_bias=False, tie_embeddings=False),
            dict(tie_embeddings=False),
        ),
        strict=True,
    )
)
ORDERS = ("layers", "kinds", "head-first")


@pytest.fixture
def weights() -> Weights:
    return small_weights(small_tokenizer("char"), moments=True)


def in_order(config: ModelConfig, order: str) -> list[str]:
    """Names of the tensors that there are, written out."""
    kinds = "ln_1.weight ln_1.bias attn.c_attn.weight attn.c_attn.bias attn.c_proj.weight "
    kinds += "attn.c_proj.bias ln_2.weight ln_2.bias mlp.c_fc.weight mlp.c_fc.bias "
    kinds += "mlp.c_proj.weight mlp.c_proj.bias"
    layers = range(config.n_layer)
    if order == "kinds":
        blocks = [f"h.{layer}.{kind}" for kind in kinds.split() for layer in layers]
    else:
        blocks = [f"h.{layer}.{kind}" for layer in layers for kind in kinds.split()]
    blocks = [*blocks, "ln_f.weight", "ln_f.bias"]
    blocks.insert(0 if order == "head-first" else len(blocks), "lm_head.weight")
    there = gpt.parameter_shapes(config)
    return [name for name in ("wte.weight", "wpe.weight", *blocks) if name in there]


def flat(tensors: Any, names: list[str]) -> NDArray[np.float32]:
    return np.concatenate([np.asarray(tensors[name]).reshape(-1) for name in names])


def shape_of(config: ModelConfig) -> ModelConfig:
    """A model's sizes alone, which is all that a caller needs to know."""
    sizes = (config.vocab_size, config.block_size, config.n_layer, config.n_head, config.n_embd)
    return ModelConfig(*sizes)


def blank(path: Path, count: int, step: int = 1) -> Path:
    """A file of zeros, which take no room on the disk."""
    with path.open("wb") as file:
        file.write(struct.pack("<ii", step, count))
        file.truncate(8 + 12 * count)
    return path


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("layout", list(COUNTS))
def test_the_familys_file_is_as_published(layout: str, order: str, tmp_path: Path) -> None:
    """int32 step, int32 n, then weights, m and v: the bytes themselves; and back, bit for bit,
    with the layout found by n."""
    dialect = DIALECTS_OF_LAYOUTS[layout]
    weights = small_weights(small_tokenizer("char"), moments=True, **dialect)
    path = tmp_path / "model.bin"
    export_family(weights, path, order=order)
    names = in_order(weights.config, order)
    assert sorted(names) == sorted(gpt.parameter_shapes(weights.config))
    parts = (weights.parameters, weights.first_moments, weights.second_moments)
    count = flat(weights.parameters, names).size
    expected = struct.pack("<ii", 123, count) + b"".join(flat(p, names).tobytes() for p in parts)
    assert path.read_bytes() == expected
    assert len(expected) == 8 + 12 * count

    shape = shape_of(weights.config)
    with FamilyFile(path, shape, weights.tokenizer, order=order) as read_back:
        assert layout_name(read_back.weights.config) == layout
        assert_same(read_back.weights, weights)
        write_run(read_back.weights, tmp_path / "run", origin="andrea")
    with RunFolder.open(tmp_path / "run") as run:
        assert run.state().step == 123
        assert_same(of_run(run), weights)
        export_family(of_run(run), tmp_path / "again.bin", order=order)
    assert (tmp_path / "again.bin").read_bytes() == expected


def test_weights_alone_have_zeros_for_moments(weights: Weights, tmp_path: Path) -> None:
    alone = dataclasses.replace(weights, first_moments=None, second_moments=None)
    export_family(alone, tmp_path / "model.bin")
    data = (tmp_path / "model.bin").read_bytes()
    step, count = struct.unpack_from("<ii", data)
    assert step == 0 and data[8 + 4 * count :] == bytes(8 * count)


# ---- the published files


def test_layouts_of_the_120m_shape_are_found_by_their_counts(tmp_path: Path) -> None:
    """Files of their true sizes, of nothing but zeros and a number at the end of each part."""
    shape = ModelConfig(**PRESETS["andrea-120m"])
    for layout, count in COUNTS.items():
        path = blank(tmp_path / "model.bin", count)
        if layout == MICROGPT:
            assert path.stat().st_size == 1_184_385_032
        with path.open("r+b") as file:
            for part in (1, 2, 3):
                file.seek(8 + 4 * part * count - 4)
                file.write(struct.pack("<f", part))
        with FamilyFile(path, shape) as opened:
            found = opened.weights
            last = "ln_f.bias" if found.config.tie_embeddings else "lm_head.weight"
            parts = (found.parameters, found.first_moments, found.second_moments)
            assert [np.asarray(p[last]).reshape(-1)[-1] for p in parts if p] == [1, 2, 3]
            assert layout_name(found.config) == layout
            assert found.config.dialect() == DIALECTS_OF_LAYOUTS[layout]


def test_a_file_as_the_published_12m_one_goes_in_and_out(tmp_path: Path) -> None:
    """Of its true size, 153 MB, and of random numbers: the same to the byte."""
    count, path = 12_780_288, tmp_path / "model.bin"
    numbers = np.random.default_rng(0).random(3 * count, dtype=np.float32)
    path.write_bytes(struct.pack("<ii", 41_300, count) + numbers.tobytes())
    assert path.stat().st_size == 153_363_464
    tokenizer = BPETokenizer((pair // 256, pair % 256) for pair in range(2305 - 257))
    with FamilyFile(path, ModelConfig(**PRESETS["andrea-12m"]), tokenizer) as opened:
        assert opened.weights.config.dialect() == DIALECTS["microgpt"]
        write_run(opened.weights, tmp_path / "run", origin="andrea")
    with RunFolder.open(tmp_path / "run") as run:
        export_family(of_run(run), tmp_path / "again.bin")
    assert filecmp.cmp(path, tmp_path / "again.bin", shallow=False)


# ---- what the ancestor computes


def ancestor(matrices: Mapping[str, NDArray[Any]], n_head: int, tokens: list[int]) -> list[Any]:
    """microgpt, token by token with cached keys and values, as its published program does it:
    logits after each token."""

    def norm(x: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(x * (np.mean(x * x) + 1e-5) ** -0.5)

    cache: dict[str, list[NDArray[Any]]] = {}
    found = []
    for position, token in enumerate(tokens):
        x = norm(matrices["wte"][token] + matrices["wpe"][position])
        for layer in range(sum(name.endswith(".wq") for name in matrices)):
            w = {name.split(".")[1]: m for name, m in matrices.items() if name[:2] == f"{layer}."}
            before, x = x, norm(x)
            keys, values = (cache.setdefault(f"{layer}.{part}", []) for part in "kv")
            keys.append(w["wk"] @ x)
            values.append(w["wv"] @ x)
            query, mixed = np.split(w["wq"] @ x, n_head), []
            for head in range(n_head):
                k = np.array([np.split(key, n_head)[head] for key in keys])
                v = np.array([np.split(value, n_head)[head] for value in values])
                scores = np.exp(k @ query[head] / len(query[head]) ** 0.5)
                mixed.append(scores / scores.sum() @ v)
            x = before + w["wo"] @ np.concatenate(mixed)
            x = x + w["fc2"] @ np.maximum(w["fc1"] @ norm(x), 0)
        found.append(matrices["lm_head"] @ x)
    return found


def test_a_file_of_the_ancestor_computes_what_the_ancestor_does(tmp_path: Path) -> None:
    """Its matrices, each [out, in], one after the other; nothing else of Andrea's is used."""
    rng = np.random.default_rng(2)
    vocab_size, block_size, n_layer, n_head, width = 257, 10, 2, 4, 16
    shapes = {"wte": (vocab_size, width), "wpe": (block_size, width)}
    for layer in range(n_layer):
        shapes |= {f"{layer}.{name}": (width, width) for name in ("wq", "wk", "wv", "wo")}
        shapes |= {f"{layer}.fc1": (4 * width, width), f"{layer}.fc2": (width, 4 * width)}
    shapes["lm_head"] = (vocab_size, width)
    matrices = {
        name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()
    }
    numbers = np.concatenate([matrix.reshape(-1) for matrix in matrices.values()])
    data = struct.pack("<ii", 7, numbers.size) + numbers.tobytes() + bytes(8 * numbers.size)
    (tmp_path / "model.bin").write_bytes(data)

    shape = ModelConfig(vocab_size, block_size, n_layer, n_head, width)
    with FamilyFile(tmp_path / "model.bin", shape, small_tokenizer("byte")) as opened:
        measured = model_of(opened.weights)
        tokens = some_tokens(vocab_size, block_size)
        exact = {name: matrix.astype(np.float64) for name, matrix in matrices.items()}
        expected = [ancestor(exact, n_head, row.tolist()) for row in tokens]
    assert_close("logits", measured.logits(tokens), np.array(expected), 1e-5)
    likeliest = np.array(expected).argmax(-1)
    assert np.array_equal(measured.logits(tokens).argmax(-1), likeliest)


# ---- what the count does not tell


def test_what_is_known_of_the_dialect_goes_before_the_layouts(tmp_path: Path) -> None:
    """A count tells which tensors there are; an activation or a kind of norm has none."""
    tokenizer = small_tokenizer("char")
    own: dict[str, Any] = {**DIALECTS["microgpt"], "activation": "relu2", "final_norm": True}
    weights = small_weights(tokenizer, moments=True, **own)
    export_family(weights, tmp_path / "model.bin")
    shape = shape_of(weights.config)
    with FamilyFile(tmp_path / "model.bin", shape, tokenizer) as opened:
        assert opened.weights.config.dialect() == DIALECTS["microgpt"]
    known = dict(activation="relu2", final_norm=True)
    with FamilyFile(tmp_path / "model.bin", shape, tokenizer, known=known) as opened:
        assert_same(opened.weights, weights)
    with FamilyFile(tmp_path / "model.bin", weights.config, tokenizer) as opened:
        assert_same(opened.weights, weights)
    with pytest.raises(ConfigError, match="the model has no norm"):
        FamilyFile(
            tmp_path / "model.bin",
            shape,
            known=dict(norm="rmsnorm", norm_position="none", final_norm=False),
        )


def test_a_dialect_of_no_layout_goes_and_comes_with_its_own_configuration(tmp_path: Path) -> None:
    tokenizer = small_tokenizer("char")
    own: dict[str, Any] = dict(
        norm="rmsnorm", activation="swiglu", embedding_norm=True, tie_embeddings=False
    )
    weights = small_weights(tokenizer, moments=True, **own)
    export_family(weights, tmp_path / "model.bin", order="kinds")
    with FamilyFile(tmp_path / "model.bin", weights.config, tokenizer, order="kinds") as opened:
        assert_same(opened.weights, weights)
        assert layout_name(opened.weights.config) == "a layout of its own"


def test_a_count_that_two_layouts_have_is_told(tmp_path: Path) -> None:
    """9 n_layer + 2 tokens: a head is as large as the MLP's biases and the norms."""
    shape = ModelConfig(20, 8, 2, 2, 8)
    config = ModelConfig(20, 8, 2, 2, 8, **DIALECTS["microgpt"])
    path = blank(tmp_path / "model.bin", num_parameters(config))
    with pytest.raises(CheckpointError, match=r"more than one layout of .* has so many: tied, MLP"):
        FamilyFile(path, shape)
    with FamilyFile(path, shape, known=dict(tie_embeddings=False)) as opened:
        assert opened.weights.config == config


def test_another_shape_is_told_with_all_counts(weights: Weights, tmp_path: Path) -> None:
    export_family(weights, tmp_path / "model.bin")
    count = num_parameters(weights.config)
    wrong = dataclasses.replace(weights.config, n_layer=3)
    with pytest.raises(CheckpointError) as told:
        FamilyFile(tmp_path / "model.bin", wrong)
    assert f"has {count:,} parameters" in str(told.value)
    assert "n_layer 3, n_head 4, n_embd 32, mlp_dim 128" in str(told.value)
    for layout, dialect in DIALECTS_OF_LAYOUTS.items():
        needed = num_parameters(dataclasses.replace(wrong, **dialect))
        assert f"{needed:,} {layout}" in str(told.value)
    assert [layout.name for layout in LAYOUTS] == list(COUNTS)


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda data: data[:-4], "is truncated or no checkpoint"),
        (lambda data: data + b"\0", "need 8 [+] 12 x"),
        (lambda data: data[:7], "7 bytes, too few"),
        (lambda data: b"", "0 bytes, too few"),
        (lambda data: struct.pack("<i", -1) + data[4:], "step -1"),
        (lambda data: data[:4] + struct.pack("<i", -5) + data[8:], "-5 parameters"),
        (lambda data: data[:4] + struct.pack("<i", 2**31 - 1) + data[8:], "is truncated or no"),
    ],
)
def test_damaged_files_of_the_family(
    edit: Callable[[bytes], bytes], told: str, weights: Weights, tmp_path: Path
) -> None:
    path = tmp_path / "model.bin"
    export_family(weights, path)
    path.write_bytes(edit(path.read_bytes()))
    with pytest.raises(CheckpointError, match=told):
        FamilyFile(path, weights.config)


def test_a_shape_of_many_layers_takes_no_memory(tmp_path: Path) -> None:
    path = blank(tmp_path / "model.bin", 1000)
    with pytest.raises(CheckpointError, match="no layout of"):
        FamilyFile(path, ModelConfig(2**31 - 1, 8, 2**31 - 1, 1, 2**29 - 1))


def test_an_unknown_order_is_refused(weights: Weights, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="layers, kinds, head-first"):
        export_family(weights, tmp_path / "model.bin", order="rows")
    assert not list(tmp_path.iterdir())
    export_family(weights, tmp_path / "model.bin")
    with pytest.raises(ArgumentError, match="layers, kinds, head-first"):
        FamilyFile(tmp_path / "model.bin", weights.config, order="rows")
