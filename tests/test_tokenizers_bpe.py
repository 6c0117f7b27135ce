"""Byte-level BPE: safe cuts, GPT-2's numbering of bytes, and learning from bounded samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andrea.errors import TokenizerError
from andrea.tokenizers import BPETokenizer, TokenizerTrainer, train_tokenizer
from andrea.tokenizers.choose import SpreadSample

WORDS = (
    "the cat's mat, don't  sit\n\nhere 1234 now...\r\n  if x == 'y':\n\t\t"
    "return naïve 猫 done\u00a0! "
)
BPE = train_tokenizer("bpe", [WORDS * 30], vocab_size=330).tokenizer
# White space of every kind matters for cuts, and what GPT-2's pattern treats specially.
tricky = st.text(st.sampled_from("ab1'st .,\n\r\t\u00a0\u2003\u3000\x1c\x85猫é_"), max_size=80)


@given(before=tricky, after=tricky)
@settings(deadline=None, max_examples=300)
def test_a_safe_cut_changes_no_token(before: str, after: str) -> None:
    cut = BPE.safe_cut(before)
    if cut == len(before):
        return  # no safe place: the cut is at the end and promises nothing
    whole = BPE.encode(before + after)
    parts = [BPE.encode(before[:cut]), BPE.encode(before[cut:] + after)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_safe_cut_is_late_and_never_zero() -> None:
    assert BPE.safe_cut("one two three") == 7
    assert BPE.safe_cut("one two  \n ") == 7
    assert BPE.safe_cut("word") == 4
    assert BPE.safe_cut("   ") == 3
    assert BPE.safe_cut("") == 0


def test_long_text_is_encoded_in_pieces_as_if_whole() -> None:
    text = WORDS * 600
    assert len(text) > 3 << 14
    tokens = BPE.encode(text)
    whole = np.array(BPE._library.encode(text, add_special_tokens=False).ids, dtype=np.int32)
    np.testing.assert_array_equal(tokens, whole)
    assert BPE.decode(BPE.encode("x" * (1 << 16))) == "x" * (1 << 16)


def test_bytes_are_numbered_as_in_gpt2() -> None:
    """'!' is 0 and a space 220 in the published vocabulary, and merges follow from 256 on."""
    tokenizer = BPETokenizer([])
    assert tokenizer.vocab_size == 257
    assert tokenizer.encode("!").tolist() == [0]
    assert tokenizer.encode(" ").tolist() == [220]
    assert tokenizer.encode("\n").tolist() == [198]
    assert sorted(tokenizer.decode_bytes(range(256))) == list(range(256))


def test_the_marker_cannot_be_spelled() -> None:
    for text in ("<|endoftext|>", "<s>", "[UNK]"):
        assert BPE.encode(text).max() < BPE.beginning_of_document
        assert BPE.decode(BPE.encode(text)) == text


def test_8192_merges_make_8449_tokens() -> None:
    generator = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlu"))
    words = ["".join(generator.choice(letters, size=8)) for _ in range(4000)]
    trained = train_tokenizer("bpe", [" ".join(words * 2)], vocab_size=8449)
    assert trained.tokenizer.vocab_size == 8449
    assert "8,449 tokens" in trained.note and "instead" not in trained.note


def test_too_little_text_says_what_was_reached() -> None:
    trained = train_tokenizer("bpe", ["abab abab"], vocab_size=1000)
    reached = trained.tokenizer.vocab_size - 257
    assert 0 < reached < 10
    assert f"{reached} merges instead of 743" in trained.note
    empty = train_tokenizer("bpe", [""], vocab_size=300)
    assert empty.tokenizer.vocab_size == 257 and "0 merges instead of 43" in empty.note


def test_learning_is_deterministic() -> None:
    first, second = (train_tokenizer("bpe", [WORDS * 50], vocab_size=350) for _ in range(2))
    assert first.tokenizer == second.tokenizer


def test_learning_survives_any_text() -> None:
    text = "\x00\ud800 猫" + "".join(chr(code) for code in range(0, 0x30000, 97))
    tokenizer = train_tokenizer("bpe", [text], vocab_size=300).tokenizer
    assert tokenizer.decode(tokenizer.encode("猫\x00")) == "猫\x00"


def test_a_large_text_is_sampled_and_the_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpreadSample, "block", 1000)
    monkeypatch.setattr(SpreadSample, "max_blocks", 8)
    trainer = TokenizerTrainer("bpe", 300)
    for _ in range(100):
        trainer.add(WORDS * 10)
    note = trainer.finish().note
    share = float(note.split("trained on ")[1].split("%")[0])
    assert 3 < share < 9, note


def test_sample_is_bounded_and_spread_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpreadSample, "block", 10)
    monkeypatch.setattr(SpreadSample, "max_blocks", 8)
    sample = SpreadSample()
    for number in range(1000):
        sample.add(f"{number:05d}")
    kept = [int(text) for text in sample.texts()]
    assert len(kept) <= 16
    assert kept == sorted(kept) and kept[0] == 0 and kept[-1] >= 750
    assert sample.num_chars_seen == 5000


def test_sample_of_many_different_words_is_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpreadSample, "block", 100)
    monkeypatch.setattr(SpreadSample, "max_distinct", 500)
    sample = SpreadSample()
    sample.add("".join(f"{number:09d} " for number in range(100)))
    assert len(sample.texts()) < 7
    repeated = SpreadSample()
    repeated.add("always one " * 90)
    assert sum(map(len, repeated.texts())) == 990


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(TokenizerError, match="257 is the least"):
        train_tokenizer("bpe", ["text"], vocab_size=256)
