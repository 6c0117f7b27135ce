"""Models in and out of `transformers` itself: the same logits, the same greedy text."""

from __future__ import annotations

import json
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from andrea.formats.hf import HFFolder, export_hf
from andrea.formats.weights import Weights
from andrea.sampling import SamplingConfig
from andrea.tokenizers import CarriedTokenizer
from andrea.writing import generate_text
from extras import needs
from reference.compare import assert_close
from small_weights import (
    EXPRESSED,
    KINDS,
    TEXT,
    model_of,
    small_tokenizer,
    small_weights,
    some_tokens,
)

pytestmark = needs("torch", "transformers", extra="interchange")
if find_spec("torch") is not None and find_spec("transformers") is not None:
    import torch
    import transformers

TOLERANCE = 1e-4
GREEDY = SamplingConfig(temperature=0)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", module="torch")


def their_logits(model: Any, tokens: Any) -> Any:
    with torch.no_grad():
        return model(torch.tensor(tokens.astype(np.int64))).logits.numpy()


def compare(weights: Weights, theirs: Any, name: str) -> None:
    """Logits to 1e-4, relative and absolute, and greedy continuations token by token."""
    ours = model_of(weights)
    config = weights.config
    tokens = some_tokens(config.vocab_size, config.block_size)
    measured, expected = ours.logits(tokens), their_logits(theirs, tokens)
    assert_close(f"{name} logits", measured, expected, TOLERANCE)
    assert np.abs(measured - expected).max() < TOLERANCE
    seen: set[int] = set()
    for prompt in tokens[:, :10].reshape(4, 5):
        greedy = list(ours.generate(prompt, max_tokens=config.block_size - 5, temperature=0))
        with torch.no_grad():
            written = theirs.generate(
                torch.tensor(prompt[None].astype(np.int64)),
                attention_mask=torch.ones(1, 5, dtype=torch.int64),
                max_new_tokens=config.block_size - 5,
                do_sample=False,
                eos_token_id=None,
            )
        assert written[0, 5:].tolist() == greedy
        seen.update(greedy)
    assert len(seen) > 2


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_loads_what_andrea_writes(kind: str, tmp_path: Path) -> None:
    tokenizer = small_tokenizer(kind)
    weights = small_weights(tokenizer)
    export_hf(weights, tmp_path / "hf")
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "hf").eval()
    compare(weights, theirs, "exported")

    # Text to text.
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert len(reader) == tokenizer.vocab_size
    assert reader.eos_token_id == reader.bos_token_id == tokenizer.beginning_of_document
    for text in (TEXT, "  double  spaces.\r\n\n", "'quoted' don't"):
        assert reader.encode(text) == tokenizer.encode(text).tolist()
        assert reader.decode(reader.encode(text)) == text
    prompt = "the café"
    inputs = reader(prompt, return_tensors="pt")
    assert list(inputs) == ["input_ids", "attention_mask"]
    # By its own words: transformers 5 does so without, 4 doesn't.
    described = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text("utf-8"))
    assert described["model_input_names"] == list(inputs)
    longest = weights.config.block_size - inputs["input_ids"].shape[1]
    written = theirs.generate(**inputs, max_new_tokens=longest, do_sample=False, pad_token_id=0)
    model = model_of(weights)
    ours = "".join(generate_text(model, tokenizer, prompt, max_tokens=longest, sampling=GREEDY))
    assert reader.decode(written[0], skip_special_tokens=True) == prompt + ours


@pytest.mark.parametrize("dialect", list(EXPRESSED.values()), ids=list(EXPRESSED))
def test_transformers_loads_other_dialects(dialect: dict[str, Any], tmp_path: Path) -> None:
    """Of their activation, MLP and head, with zeros and ones for what is missing."""
    weights = small_weights(small_tokenizer("byte"), **dialect)
    export_hf(weights, tmp_path / "hf")
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "hf").eval()
    compare(weights, theirs, "exported")


@pytest.mark.parametrize("activation", ["gelu_new", "gelu_pytorch_tanh", "gelu", "relu", "relu2"])
def test_andrea_reads_other_dialects(activation: str, tmp_path: Path) -> None:
    """With a head of its own and an MLP of any width, all parameters at random."""
    torch.manual_seed(5)
    config = transformers.GPT2Config(
        vocab_size=257,
        n_positions=24,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_inner=52,
        activation_function=activation,
        tie_word_embeddings=False,
        initializer_range=0.2,
    )
    theirs = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    theirs.save_pretrained(tmp_path / "hf")
    with HFFolder(tmp_path / "hf", with_tokenizer=False) as folder:
        found = folder.weights
        assert (found.config.mlp_dim, found.config.tie_embeddings) == (52, False)
        compare(found, theirs, "imported")


@pytest.mark.parametrize("is_sharded", [False, True])
def test_andrea_reads_what_transformers_writes(is_sharded: bool, tmp_path: Path) -> None:
    """Its own GPT-2 with all parameters at random, in one file or in shards, with a tokenizer."""
    torch.manual_seed(3)
    config = transformers.GPT2Config(
        vocab_size=257,
        n_positions=24,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=256,
        eos_token_id=256,
        resid_pdrop=0.0,
    )
    theirs = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    theirs.save_pretrained(tmp_path / "hf", max_shard_size="20KB" if is_sharded else "5GB")
    assert (tmp_path / "hf" / "model.safetensors.index.json").exists() == is_sharded
    export_hf(small_weights(small_tokenizer("byte")), tmp_path / "other")
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path / "other")
    reader.save_pretrained(tmp_path / "hf")
    with HFFolder(tmp_path / "hf") as folder:
        compare(folder.weights, theirs, "imported")
        assert folder.weights.tokenizer == small_tokenizer("byte")


def test_half_precision_is_read(tmp_path: Path) -> None:
    """bfloat16 and float16 weights compute the same as transformers' that are widened."""
    for dtype in (torch.bfloat16, torch.float16):
        weights = small_weights(small_tokenizer("byte"))
        export_hf(weights, tmp_path / f"{dtype}-in")
        theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / f"{dtype}-in")
        theirs.to(dtype).save_pretrained(tmp_path / f"{dtype}")
        theirs.float().eval()
        with HFFolder(tmp_path / f"{dtype}", with_tokenizer=False) as folder:
            compare(folder.weights, theirs, f"{dtype}".removeprefix("torch."))


def test_a_tokenizer_of_another_pattern_is_kept(tmp_path: Path) -> None:
    """One trained with the library itself, as newer models' are, with two special tokens."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?\p{L}+|\s+|[^\s\p{L}\p{N}]+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([TEXT], trainer)
    reader = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>"
    )
    end = reader.eos_token_id
    size = made.get_vocab_size() + 7  # a padded vocabulary
    config = transformers.GPT2Config(
        vocab_size=size, n_positions=24, n_embd=32, n_layer=1, n_head=4, eos_token_id=end
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "hf")
    reader.save_pretrained(tmp_path / "hf")
    with HFFolder(tmp_path / "hf") as folder:
        tokenizer = folder.weights.tokenizer
        assert isinstance(tokenizer, CarriedTokenizer)
        assert (tokenizer.vocab_size, tokenizer.beginning_of_document) == (size, end)
        for text in (TEXT, "  12345 naïve", "a</s>b"):
            ids = tokenizer.encode(text).tolist()
            assert ids == reader.encode(text, add_special_tokens=False)
            assert tokenizer.decode(ids) == reader.decode(ids, skip_special_tokens=True)
        export_hf(folder.weights, tmp_path / "out")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert again.encode(TEXT) == reader.encode(TEXT) and again.eos_token_id == end
