"""GGUF files in llama.cpp itself: the same tokens, the same probabilities, the same greedy text."""

from __future__ import annotations

import gc
import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import andrea
from andrea.formats.gguf import PRECISIONS, export_gguf, gguf_name
from andrea.formats.tokenizer_json import to_tokenizer_json
from andrea.formats.weights import Weights, of_model, tensor_shapes
from andrea.sampling import SamplingConfig
from andrea.tokenizers import CarriedTokenizer, Tokenizer, train_tokenizer
from andrea.writing import generate_text
from extras import needs
from patience import PATIENCE
from reference import activations, gpt
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

pytestmark = needs("gguf", "xllamacpp", extra="interchange")
if find_spec("gguf") is not None and find_spec("xllamacpp") is not None:
    import gguf
    import xllamacpp

GREEDY = SamplingConfig(temperature=0)

# Texts that GPT-2's rules split in every way they have.
SPLITS = (
    TEXT,
    "",
    " one space before",
    "  two,   three \t\t tabs\n\n\n lines \r\n",
    "tail  ",
    "don't DON'T he'll 'LL we've 'd 's",
    "1234567 3.14 ½ ² Ⅷ ٣",
    "the café 漢字 🎉🎉 \u00a0… x\u3000y\u2003z \x0b\x0c\x1c\x85",
    "e\u0301 नमस्ते สวัสดี İ ᾠ 🏳️‍🌈👩‍👩‍👧 _a-b_ #$%",
    "a\u0000b \x7f\u200b\ufeff",
    "[UNUSED3] <|endofteXt|> <s>",
)


class LlamaCpp:
    """llama.cpp with a model, asked over the HTTP interface of its own server."""

    def __init__(self, path: Path, *, is_exact: bool) -> None:
        settings = xllamacpp.CommonParams()
        settings.model.path = str(path)
        settings.n_ctx, settings.n_parallel = 0, 1  # one sequence, as long as the model's context
        settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
        settings.warmup = settings.fit_params = False
        settings.verbosity = -1
        if is_exact:  # not as it is used: keys and values in float32, too
            settings.cache_type_k = settings.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
            off = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
            settings.flash_attn_type = off
        self.server = xllamacpp.Server(settings)
        address = self.server.listening_address.removeprefix("http://")
        self.connection = http.client.HTTPConnection(address, timeout=PATIENCE)

    def ask(self, path: str, **question: Any) -> dict[str, Any]:
        self.connection.request(
            "POST", path, json.dumps(question), {"Content-Type": "application/json"}
        )
        response = self.connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
        assert response.status == 200, answer
        return answer

    def tokens(self, text: str) -> list[int]:
        """As of a prompt: with what it would put before the text, too."""
        tokens: list[int] = self.ask("/tokenize", content=text, add_special=True)["tokens"]
        return tokens

    def write(self, prompt: str | list[int], max_tokens: int) -> dict[str, Any]:
        """The likeliest tokens after a prompt."""
        return self.ask(
            "/completion",
            prompt=prompt,
            n_predict=max_tokens,
            temperature=0,
            cache_prompt=False,
            return_tokens=True,
        )

    def log_probabilities(self, context: list[int], vocab_size: int, shown: int) -> Any:
        """Of each token after a context, in nats; `shown` is any token that is a text of its own.

        llama.cpp leaves probabilities out of an answer that ends within a character, so that the
        answer is made to be `shown`, after its probabilities were found.
        """
        answer = self.ask(
            "/completion",
            prompt=context,
            n_predict=1,
            temperature=0,
            cache_prompt=False,
            n_probs=vocab_size,
            logit_bias=[[shown, 1e3]],
        )
        assert answer["tokens_evaluated"] == len(context)
        likeliest = answer["completion_probabilities"][0]["top_logprobs"]
        assert len(likeliest) == vocab_size
        found = np.full(vocab_size, np.nan)
        for entry in likeliest:
            found[entry["id"]] = entry["logprob"]
        return found


@contextmanager
def llama_cpp(
    weights: Weights, folder: Path, precision: str = "f32", *, is_exact: bool = False
) -> Iterator[LlamaCpp]:
    """llama.cpp with these weights, exported."""
    path = folder / f"{precision}.gguf"
    export_gguf(weights, path, precision=precision)
    program = LlamaCpp(path, is_exact=is_exact)
    try:
        yield program
    finally:
        program.connection.close()
        del program.server
        gc.collect()


def stored_parameters(path: Path, weights: Weights) -> dict[str, Any]:
    """What a file's numbers stand for, by our names."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    found = {}
    for name, shape in tensor_shapes(weights.config).items():
        tensor = tensors[gguf_name(name)]
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        found[name] = values.reshape(shape).astype(np.float64)
    return found


def gelu_of_a_table(name: str, x: Any) -> Any:
    """llama.cpp looks GELU up in a table of float16 by float16."""
    assert name == "gelu"
    half = activations.gelu_forward(x.astype(np.float16).astype(np.float64)).astype(np.float16)
    return np.where(x <= -10, 0.0, np.where(x >= 10, x, half.astype(np.float64)))


# Relative to the largest log-probability, beyond what the weights themselves lost. llama.cpp rounds
# the other factor of each product, too: to float16, bfloat16, or blocks of 8 bits.
TOLERANCES = {"f32": 2e-4, "f16": 1e-3, "bf16": 1e-2, "q8_0": 4e-2}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_are_the_same(
    kind: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(small_weights(small_tokenizer(kind)), kind, precision, tmp_path, monkeypatch)


def test_another_dialect_has_the_same_probabilities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head of its own and a narrow MLP, with zeros and ones for biases and norms."""
    weights = small_weights(small_tokenizer("byte"), **LEAST, mlp_dim=52, tie_embeddings=False)
    compare(weights, "dialect", "f32", tmp_path, monkeypatch)


def test_rows_that_no_block_fits_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 24 numbers are float16 in a file of blocks of 32; rows of 96 are blocks."""
    weights = small_weights(small_tokenizer("byte"), n_embd=24)
    compare(weights, "narrow", "q8_0", tmp_path, monkeypatch)


def compare(
    weights: Weights, kind: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log-probabilities after contexts of some lengths."""
    tokenizer = weights.tokenizer
    assert tokenizer is not None
    tokens = some_tokens(tokenizer.vocab_size, weights.config.block_size)
    shown = int(tokenizer.encode("e")[0])
    lengths = (1, 2, 5, 11, 17, 23)
    with llama_cpp(weights, tmp_path, precision, is_exact=True) as program:
        found = np.stack(
            [
                program.log_probabilities(row[:length].tolist(), tokenizer.vocab_size, shown)
                for row in tokens
                for length in lengths
            ]
        )
    stored = stored_parameters(tmp_path / f"{precision}.gguf", weights)
    with monkeypatch.context() as patch:
        patch.setattr(activations, "forward", gelu_of_a_table)
        logits = gpt.logits(stored, weights.config, tokens)[:, np.array(lengths) - 1]
    expected = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    expected = expected.reshape(found.shape)
    assert_close(f"{kind} {precision}", found, expected, TOLERANCES[precision])


def words_tokenizer() -> Tokenizer:
    """BPE with merges over spaces, digits and bytes within characters."""
    return train_tokenizer(
        "bpe", ["\n".join(SPLITS) * 3, "   \n\n  12 12 "], vocab_size=600
    ).tokenizer


def carried_tokenizer() -> Tokenizer:
    """GPT-2's way of splitting, a second special token, and a vocabulary with room."""
    described = to_tokenizer_json(words_tokenizer())
    end = len(described["model"]["vocab"])
    described["model"]["vocab"]["<pad>"] = end
    described["added_tokens"].append(
        {**described["added_tokens"][0], "id": end, "content": "<pad>"}
    )
    return CarriedTokenizer(described, end + 5, end - 1)


TOKENIZERS = {
    "byte": lambda: small_tokenizer("byte"),
    "char": lambda: small_tokenizer("char"),
    "bpe": words_tokenizer,
    "carried": carried_tokenizer,
}


def mixed_texts(alphabet: str, number: int) -> list[str]:
    rng = np.random.default_rng(5)
    return ["".join(rng.choice(list(alphabet), rng.integers(1, 60))) for _ in range(number)]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_tokens_are_the_same(kind: str, tmp_path: Path) -> None:
    """Of a prompt: nothing before it, nothing after, and the texts of tokens come back."""
    tokenizer = TOKENIZERS[kind]()
    texts = [*SPLITS, *mixed_texts("".join(SPLITS), 100)]
    if kind == "char":
        texts = [TEXT, *mixed_texts(TEXT, 100)]
    with llama_cpp(small_weights(tokenizer), tmp_path) as program:
        for text in texts:
            tokens = tokenizer.encode(text).tolist()
            assert program.tokens(text) == tokens, text
            assert program.ask("/detokenize", tokens=tokens)["content"] == text
        # Spelled out, the token between documents is that token there, and text here.
        around = [tokenizer.encode(text).tolist() for text in "ab"]
        spelled_out = [*around[0], tokenizer.beginning_of_document, *around[1]]
        assert program.tokens("a<|endoftext|>b") == spelled_out


PASSAGE = (
    "It's the café's  double   space,\n\n  “naïve” jalapeño; 漢字 and emoji 🎉.\r\n"
    "\tYou've 12,345 ways, don't; 12.\n"
)


@cache
def one_that_knows_the_passage(kind: str) -> Weights:
    """A model that has the passage by heart, so that no rounding changes what it writes."""
    tokenizer = small_tokenizer(kind)
    end = tokenizer.beginning_of_document
    tokens = tokenizer.encode(PASSAGE).tolist()
    batch = np.array([[end, *tokens, end], [*tokens, end, tokens[0]]])
    config = andrea.ModelConfig(
        tokenizer.vocab_size, block_size=len(tokens) + 8, n_layer=2, n_head=2, n_embd=64
    )
    model = andrea.GPT(config, device="cpu", precision="fp32", seed=1)
    loss = np.inf
    for _ in range(300):
        if loss < 0.003:
            break
        loss = model.train_step(batch[:, :-1], batch[:, 1:], 3e-3)
    assert loss < 0.003
    return of_model(model, tokenizer)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_text_is_the_same(kind: str, precision: str, tmp_path: Path) -> None:
    weights = one_that_knows_the_passage(kind)
    tokenizer = weights.tokenizer
    assert tokenizer is not None
    model = model_of(weights)
    end = tokenizer.beginning_of_document
    room = weights.config.block_size
    with llama_cpp(weights, tmp_path, precision) as program:
        # Text to text, until the document ends.
        for last in ("It's", "café's", "double", "漢字", "You"):
            length = PASSAGE.index(last) + len(last)  # the end of a token, of any kind
            prompt = PASSAGE[:length]
            ours = "".join(
                generate_text(model, tokenizer, prompt, max_tokens=room, sampling=GREEDY)
            )
            assert ours == PASSAGE[length:]
            theirs = program.write(prompt, room)
            assert theirs["content"] == ours and theirs["stop_type"] == "eos"
        # Token by token: from the token between documents alone, and cut off by a count.
        assert program.write([end], room)["content"] == PASSAGE
        tokens = tokenizer.encode(PASSAGE).tolist()
        cut = program.write(tokens[:7], 5)
        assert (
            cut["tokens"]
            == tokens[7:12]
            == list(model.generate(tokens[:7], max_tokens=5, temperature=0))
        )
        assert cut["stop_type"] == "limit"
