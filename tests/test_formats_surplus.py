"""Tensors that a model has no place for: what other programs are known to add is passed over,
everything else is refused by its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from andrea.config import DIALECTS
from andrea.errors import CheckpointError
from andrea.formats.exporting import export_checkpoint
from andrea.formats.hf import HFFolder, export_hf
from andrea.formats.imported import write_run
from andrea.formats.llmc import LlmcFile, export_llmc
from andrea.formats.weights import Weights, of_run
from andrea.runs.checkpoint import Checkpoint
from andrea.runs.folder import RunFolder
from andrea.runs.tensorfile import TensorFile, write_tensor_file
from small_weights import assert_same, small_tokenizer, small_weights

Tensors = dict[str, Any]
Edit = Callable[[Tensors], None]


def one_line(open_it: Callable[[], object]) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_it()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---- checkpoints of Andrea's own, as a program may write them: their checksum is right


def checkpoint_with(path: Path, edit: Edit, **sizes: Any) -> Path:
    """A checkpoint with moments, of two blocks, whose tensors were edited."""
    weights = small_weights(small_tokenizer("byte"), moments=True, **sizes)
    written = write_run(weights, path, origin="andrea")
    with TensorFile(written) as file:
        metadata = dict(file.metadata)
    tensors = load_file(written)
    edit(tensors)
    write_tensor_file(written, tensors, metadata)
    return written


def with_zeros(name: str, *shape: int) -> Edit:
    return lambda tensors: tensors.update({name: np.zeros(shape, np.float32)})


def without(name: str) -> Edit:
    return lambda tensors: tensors.pop(name)


MICROGPT = DIALECTS["microgpt"]


@pytest.mark.parametrize(
    ("edit", "sizes", "told"),
    [
        # What the dialect has no place for, though a GPT-2 has.
        (with_zeros("h.0.attn.c_attn.bias", 96), MICROGPT, "'h.0.attn.c_attn.bias' is no tensor"),
        (with_zeros("h.1.ln_1.weight", 32), MICROGPT, "'h.1.ln_1.weight' is no tensor"),
        (with_zeros("lm_head.weight", 257, 32), {}, "'lm_head.weight' is no tensor"),
        (with_zeros("ln_emb.weight", 32), {}, "'ln_emb.weight' is no tensor"),
        # A block more than the configuration says, and names that are none.
        (with_zeros("h.2.ln_1.weight", 32), {}, "'h.2.ln_1.weight' is no tensor"),
        (with_zeros("h.00.ln_1.weight", 32), {}, "'h.00.ln_1.weight' is no tensor"),
        (with_zeros("rotary", 1), {}, "'rotary' is no tensor"),
        (with_zeros("optimizer.m.rotary", 1), {}, "'optimizer.m.rotary' is no tensor"),
        (with_zeros("a" * 300, 1), {}, "'" + "a" * 79 + " is no tensor"),
        # What is missing or of another shape is told before anybody makes memory, too.
        (without("h.0.ln_2.bias"), {}, "h.0.ln_2.bias is missing, the model needs (32,)"),
        (without("optimizer.v.wpe.weight"), {}, "optimizer.v.wpe.weight is missing, the model"),
        (with_zeros("h.0.ln_2.bias", 31), {}, "h.0.ln_2.bias is (31,), the model needs (32,)"),
    ],
)
def test_a_checkpoint_has_the_tensors_of_its_model_alone(
    edit: Edit, sizes: dict[str, Any], told: str, tmp_path: Path
) -> None:
    path = checkpoint_with(tmp_path / "run", edit, **sizes)
    assert told in one_line(lambda: Checkpoint(path))
    assert told in one_line(lambda: RunFolder.open(tmp_path / "run"))


def test_moments_without_a_state_are_refused(tmp_path: Path) -> None:
    """Weights alone are all that such a file may hold: nobody would read the rest."""
    path = tmp_path / "weights.safetensors"
    weights = small_weights(small_tokenizer("byte"))
    export_checkpoint(weights, path)
    with RunFolder.open(path) as run:
        assert_same(of_run(run), weights)
        metadata = dict(run.checkpoint.tensors.metadata)
    tensors = load_file(path)
    tensors["optimizer.m.ln_f.bias"] = np.zeros(32, np.float32)
    write_tensor_file(path, tensors, metadata)
    assert "'optimizer.m.ln_f.bias' is no tensor" in one_line(lambda: Checkpoint(path))


# ---- folders of Hugging Face


@pytest.fixture
def weights() -> Weights:
    return small_weights(small_tokenizer("byte"))


@pytest.fixture
def folder(weights: Weights, tmp_path: Path) -> Path:
    export_hf(weights, tmp_path / "hf")
    return tmp_path / "hf"


def rewrite(folder: Path, edit: Edit) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


MASK = np.tril(np.ones((1, 1, 24, 24), dtype=bool))


@pytest.mark.parametrize("prefix", ["transformer.", ""])
@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.float32, np.float16])
def test_buffers_of_older_versions_are_passed_over(
    dtype: type, prefix: str, folder: Path, weights: Weights
) -> None:
    """The causal mask and its number, in whatever type; and a head that is the embedding."""

    def edit(tensors: Tensors) -> None:
        for name in list(tensors):
            tensors[prefix + name.removeprefix("transformer.")] = tensors.pop(name)
        for layer in range(2):
            tensors[f"{prefix}h.{layer}.attn.bias"] = MASK.astype(dtype)
            tensors[f"{prefix}h.{layer}.attn.masked_bias"] = np.array(-1e4, np.float16)
        tensors["lm_head.weight"] = tensors[f"{prefix}wte.weight"].copy()

    rewrite(folder, edit)
    with HFFolder(folder) as read_back:
        assert_same(read_back.weights, weights)


def stored(name: str, values: Any) -> Edit:
    return lambda tensors: tensors.update({f"transformer.{name}": np.asarray(values)})


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        # Under a buffer's name, but no causal mask: attention would be another.
        (stored("h.0.attn.bias", np.ones_like(MASK)), "h.0.attn.bias' is no causal mask"),
        (stored("h.0.attn.bias", 2.0 * MASK), "h.0.attn.bias' is no causal mask"),
        (stored("h.0.attn.bias", MASK[0, 0]), "h.0.attn.bias' is no causal mask"),
        (stored("h.0.attn.bias", MASK[..., :23, :23]), "h.0.attn.bias' is no causal mask"),
        (stored("h.0.attn.bias", np.zeros(96, np.float32)), "h.0.attn.bias' is no causal mask"),
        (
            stored("h.1.attn.masked_bias", np.float32(np.nan)),
            "h.1.attn.masked_bias' is no mask's num",
        ),
        (stored("h.1.attn.masked_bias", MASK), "h.1.attn.masked_bias' is no mask's number"),
        # Of a block that the model doesn't have.
        (stored("h.2.attn.bias", MASK), "'transformer.h.2.attn.bias' is no tensor of a GPT-2"),
        (stored("h.00.attn.bias", MASK), "'transformer.h.00.attn.bias' is no tensor of a GPT-2"),
        (stored("h.2.ln_1.weight", np.ones(32)), "'transformer.h.2.ln_1.weight' is no tensor of"),
        (stored("h.0.attn.q.bias", np.ones(32)), "'transformer.h.0.attn.q.bias' is no tensor of"),
        # The head has its name beside the trunk, not in it.
        (
            lambda tensors: stored("lm_head.weight", tensors["transformer.wte.weight"])(tensors),
            "'transformer.lm_head.weight' is no tensor of a GPT-2",
        ),
        # One name with the trunk's and one without are two tensors.
        (
            lambda tensors: tensors.update({"ln_f.bias": np.zeros(32, np.float32)}),
            "'ln_f.bias' is no tensor of a GPT-2",
        ),
    ],
)
def test_other_surplus_of_a_folder_is_refused(edit: Edit, told: str, folder: Path) -> None:
    rewrite(folder, edit)
    assert told in one_line(lambda: HFFolder(folder))


# ---- llm.c, whose vocabulary is padded with rows of zeros


@pytest.mark.parametrize(("precision", "width"), [("f32", 4), ("bf16", 2)])
def test_rows_that_no_token_has_are_zeros(
    precision: str, width: int, weights: Weights, tmp_path: Path
) -> None:
    path = tmp_path / "model.bin"
    export_llmc(weights, path, precision=precision)
    data = bytearray(path.read_bytes())
    padding = 1024 + width * weights.config.n_embd * weights.config.vocab_size
    last = 1024 + width * weights.config.n_embd * 384 - 1
    data[padding + width - 1] = data[last] = 0x80  # -0, which is 0
    path.write_bytes(data)
    LlmcFile(path).close()
    data[last] = 0x3F
    path.write_bytes(data)
    told = one_line(lambda: LlmcFile(path))
    assert "wte.weight has numbers in rows 257 to 383, which no token has" in told
