"""A peer of decoding: llama.cpp by llama-cpp-python, on a GPT-2 of random weights made by gguf."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
from numpy.typing import NDArray
from shapes import Shape


class _Writer:
    """A GGUF file whose matrices have the precision that is measured; vectors are float32."""

    def __init__(self, path: Path, precision: str) -> None:
        self._file = gguf.GGUFWriter(str(path), "gpt2")
        self._type = {
            "fp32": gguf.GGMLQuantizationType.F32,
            "bf16": gguf.GGMLQuantizationType.BF16,
        }[precision]
        self._rng = np.random.default_rng(0)

    def sizes(self, shape: Shape) -> None:
        self._file.add_context_length(shape.block_size)
        self._file.add_embedding_length(shape.n_embd)
        self._file.add_feed_forward_length(4 * shape.n_embd)
        self._file.add_block_count(shape.n_layer)
        self._file.add_head_count(shape.n_head)
        self._file.add_layer_norm_eps(1e-5)

    def vocabulary(self, size: int) -> None:
        """A file is not read without one; what its tokens are called plays no part."""
        self._file.add_tokenizer_model("gpt2")
        self._file.add_token_list(["<end>", "Ċ", *(f"<{number}>" for number in range(2, size))])
        self._file.add_token_merges(["a b"])
        self._file.add_bos_token_id(0)
        self._file.add_eos_token_id(0)

    def matrix(self, name: str, rows: int, columns: int) -> None:
        values = self._random(rows, columns)
        data = gguf.quants.quantize(values, self._type)
        self._file.add_tensor(f"{name}.weight", data, raw_dtype=self._type)

    def linear(self, name: str, rows: int, columns: int) -> None:
        self.matrix(name, rows, columns)
        self._file.add_tensor(f"{name}.bias", np.zeros(rows, np.float32))

    def norm(self, name: str, width: int) -> None:
        self._file.add_tensor(f"{name}.weight", np.ones(width, np.float32))
        self._file.add_tensor(f"{name}.bias", np.zeros(width, np.float32))

    def positions(self, count: int, width: int) -> None:
        self._file.add_tensor("position_embd.weight", self._random(count, width))

    def finish(self) -> None:
        self._file.write_header_to_file()
        self._file.write_kv_data_to_file()
        self._file.write_tensors_to_file()
        self._file.close()

    def _random(self, rows: int, columns: int) -> NDArray[np.float32]:
        return self._rng.standard_normal((rows, columns), np.float32) * np.float32(0.02)


def write_model(path: Path, shape: Shape, precision: str) -> None:
    """The shape's model, untrained, as a GGUF file."""
    width = shape.n_embd
    writer = _Writer(path, precision)
    writer.sizes(shape)
    writer.vocabulary(shape.vocab_size)
    writer.matrix("token_embd", shape.vocab_size, width)
    writer.positions(shape.block_size, width)
    for number in range(shape.n_layer):
        block = f"blk.{number}"
        writer.norm(f"{block}.attn_norm", width)
        writer.linear(f"{block}.attn_qkv", 3 * width, width)
        writer.linear(f"{block}.attn_output", width, width)
        writer.norm(f"{block}.ffn_norm", width)
        writer.linear(f"{block}.ffn_up", 4 * width, width)
        writer.linear(f"{block}.ffn_down", width, 4 * width)
    writer.norm("output_norm", width)
    writer.matrix("output", shape.vocab_size, width)
    writer.finish()


class DecodedSequence:
    """One sequence of a model that is written, read and deleted here."""

    def __init__(self, shape: Shape, precision: str, threads: int) -> None:
        self._vocab_size = shape.vocab_size
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            write_model(path, shape, precision)
            self._llama = llama_cpp.Llama(
                model_path=str(path),
                n_ctx=shape.block_size,
                n_batch=shape.block_size,
                n_threads=threads,
                n_threads_batch=threads,
                n_gpu_layers=0,
                verbose=False,
            )

    def reset(self) -> None:
        self._llama.reset()

    def feed(self, tokens: Sequence[int]) -> int:
        self._llama.eval(tokens)
        row = llama_cpp.llama_get_logits_ith(self._llama.ctx, -1)
        return int(np.ctypeslib.as_array(row, shape=(self._vocab_size,)).argmax())
