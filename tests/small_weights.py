"""A small model with every tensor at random, and the tokenizers that formats must carry."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import andrea
from andrea.formats.weights import Weights, tensor_shapes
from andrea.tokenizers import BPETokenizer, ByteTokenizer, CharTokenizer, Tokenizer, train_tokenizer
from reference import gpt

TEXT = (
    "It's the café's \t naïve jalapeño; 漢字 and emoji 🎉, don't  double   spaces.\r\n\n"
    "You've 12,345 ways—'quoted' “curly” ones… \u00a0and <|endofteXt|>.\n"
) * 9

KINDS = ("bpe", "byte", "char")

# The least of tensors that GPT-2's formats can fill up.
LEAST = {"norm_affine": False, "attn_bias": False, "mlp_bias": False}
# What a GPT-2 of transformers can be, each setting at least once at another value than GPT-2's.
EXPRESSED: dict[str, dict[str, Any]] = {
    "gelu_erf, narrow": dict(activation="gelu_erf", mlp_dim=40, init_std=0.08),
    "relu, untied": dict(activation="relu", tie_embeddings=False),
    "relu2, without biases": dict(activation="relu2", attn_bias=False, mlp_bias=False),
    "no biases, plain norms, wide, untied": dict(LEAST, mlp_dim=200, tie_embeddings=False),
}


def small_tokenizer(kind: str) -> Tokenizer:
    if kind == "byte":
        return ByteTokenizer()
    if kind == "char":
        return CharTokenizer(TEXT)
    return train_tokenizer("bpe", [TEXT], vocab_size=300).tokenizer


def gpt2_like_tokenizer() -> BPETokenizer:
    """As many tokens as GPT-2's own has: 50,000 merges, of two bytes each."""
    return BPETokenizer((pair // 256, pair % 256) for pair in range(50_000))


def small_config(vocab_size: int, **sizes: Any) -> andrea.ModelConfig:
    shape: dict[str, Any] = {"block_size": 24, "n_layer": 2, "n_head": 4, "n_embd": 32}
    return andrea.ModelConfig(vocab_size, **{**shape, **sizes})


def small_weights(
    tokenizer: Tokenizer, *, moments: bool = False, seed: int = 0, **sizes: Any
) -> Weights:
    config = small_config(tokenizer.vocab_size, **sizes)
    rng = np.random.default_rng(seed)
    # Far enough apart that the likeliest token is never in doubt.
    parameters = {
        name: values.astype(np.float32)
        for name, values in gpt.init_parameters(config, rng, spread=0.2).items()
    }
    if not moments:
        return Weights(config, parameters, tokenizer)
    first, second = (
        {name: rng.random(shape, dtype=np.float32) for name, shape in tensor_shapes(config).items()}
        for _ in range(2)
    )
    return Weights(config, parameters, tokenizer, first, second, step=123)


def model_of(weights: Weights) -> andrea.GPT:
    model = andrea.GPT(weights.config, device="cpu", precision="fp32")
    for name, values in model.parameters().items():
        values[...] = np.asarray(weights.parameters[name])
    model.refresh()
    return model


def assert_same(found: Weights, wanted: Weights) -> None:
    """Bit for bit."""
    assert found.config == wanted.config and found.step == wanted.step
    for kind in ("parameters", "first_moments", "second_moments"):
        ours, theirs = getattr(found, kind), getattr(wanted, kind)
        assert (ours is None) == (theirs is None), kind
        for name in tensor_shapes(wanted.config) if theirs is not None else ():
            assert np.asarray(ours[name]).tobytes() == np.asarray(theirs[name]).tobytes(), name


def some_tokens(vocab_size: int, length: int) -> NDArray[np.int32]:
    return np.random.default_rng(7).integers(0, vocab_size, (2, length)).astype(np.int32)
