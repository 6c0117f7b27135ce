"""A peer of decoding: llama.cpp, built as xllamacpp, on a GPT-2 of random weights made by gguf.

The package has llama.cpp's server and no call for a single token, so that a sequence is two
questions to it, and the times are those that it takes itself: neither HTTP nor JSON is in them.
"""

from __future__ import annotations

import http.client
import json
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import xllamacpp
from measurement import Speeds
from numpy.typing import NDArray
from shapes import Shape

# As llama.cpp names them; the best first.
_INSTRUCTIONS = {"avx512bf16": "AVX512_BF16", "avx512": "AVX512", "avx2": "AVX2"}


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


def built() -> dict[str, str]:
    """The package's version, and the instruction set that it was compiled for."""
    parts = xllamacpp.get_system_info()
    found = [isa for isa, flag in _INSTRUCTIONS.items() if f"{flag} = 1" in parts]
    isa = found[0] if found else "generic"
    return {"version": f"xllamacpp {xllamacpp.__version__}, {isa}", "isa": isa}


class DecodedSequence:
    """One sequence of a model that is written, read and deleted here."""

    def __init__(self, shape: Shape, precision: str, threads: int) -> None:
        self._shape = shape
        settings = xllamacpp.CommonParams()
        settings.n_ctx, settings.n_parallel = shape.block_size, 1
        # A prompt is multiplied at once, as it is by the other engines.
        settings.n_batch = settings.n_ubatch = shape.block_size
        settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
        settings.n_gpu_layers = 0
        # Sequences that ended are neither kept nor copied.
        settings.cache_ram_mib = settings.n_ctx_checkpoints = 0
        settings.fit_params = False
        settings.verbosity = -1
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            write_model(path, shape, precision)
            settings.model.path = str(path)
            self._server = xllamacpp.Server(settings)
        address = self._server.listening_address.removeprefix("http://")
        self._connection = http.client.HTTPConnection(address)

    def speeds(self) -> Speeds:
        """Of one sequence: see measurement.Speeds.

        The answer to a prompt of P tokens has A tokens after P + A - 1 steps: the prompt's last
        gives the first of them, and what the last of them says is not asked.
        """
        early, late = self._shape.early_positions, self._shape.late_positions
        first = self._ask([0], early, is_new=True)
        times = first["timings"]
        early_speed = early / (times["prompt_ms"] + times["predicted_ms"])
        prompt = [0, *first["tokens"][: early - 1]]
        prompt += self._shape.middle_tokens
        times = self._ask(prompt, late, is_new=False)["timings"]
        if (times["cache_n"], times["predicted_n"]) != (early, late):
            raise RuntimeError(f"llama.cpp did other steps than it was asked for: {times}")
        prompt_speed = times["prompt_n"] / times["prompt_ms"]
        late_speed = (late - 1) / times["predicted_ms"]
        return 1e3 * early_speed, 1e3 * prompt_speed, 1e3 * late_speed

    def _ask(self, prompt: list[int], count: int, *, is_new: bool) -> dict[str, Any]:
        """The likeliest `count` tokens after a prompt; only its end is fed unless it is new."""
        question = {
            "prompt": prompt,
            "n_predict": count,
            "samplers": ["top_k"],
            "top_k": 1,
            "ignore_eos": True,
            "cache_prompt": not is_new,
            "return_tokens": True,
        }
        kind = {"Content-Type": "application/json"}
        self._connection.request("POST", "/completion", json.dumps(question), kind)
        response = self._connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
        if response.status != 200:
            raise RuntimeError(f"llama.cpp: {answer}")
        return answer
