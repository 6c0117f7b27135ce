"""Samples and how much of them a model has by heart, beside unseen text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from andrea import GPT
from andrea.judging.memorisation import Overlap
from andrea.judging.samples import Memorised, memorised, unseen_texts, write_samples
from andrea.tokenizers import train_tokenizer
from andrea.training import train
from small_runs import TEXT, small_config, small_data, small_model


@pytest.fixture(scope="module")
def trained() -> GPT:
    model = small_model()
    for _ in train(model, small_data(), small_config(steps=200)):
        pass
    return model


def test_samples_are_of_the_asked_number_and_size(trained: GPT) -> None:
    data = small_data()
    told: list[tuple[int, int]] = []
    texts = write_samples(
        trained,
        data.tokenizer,
        "12 and",
        num_samples=3,
        tokens_per_byte=1.0,
        progress=lambda *done: told.append(done),
    )
    assert len(texts) == len(set(texts)) == 3
    assert all(len(text) <= 600 for text in texts) and max(map(len, texts)) == 600
    assert told[-1][0] <= told[-1][1] == 1800
    again = write_samples(trained, data.tokenizer, "12 and", num_samples=3, tokens_per_byte=1.0)
    assert again == texts


def test_quotations_are_told_from_chance(shakespeare: Path) -> None:
    text = shakespeare.read_text("utf-8")
    tokenizer = train_tokenizer("byte", ["a"]).tokenizer
    training = tokenizer.encode(text[:800_000]).astype(np.uint16)
    unseen = tokenizer.encode(text[900_000:]).astype(np.uint16)
    quoting = [text[800_000:800_300] + text[5000:5300], text[810_000:810_600]]
    found = memorised(quoting, unseen, training, tokenizer)
    assert found.is_suspicious and found.longest == found.samples[0]
    assert 300 <= found.longest.num_bytes < 320 and 4980 <= found.longest.place <= 5000
    assert found.known == 0 and 10 < found.usual < 60
    fair = memorised(quoting[1:], unseen, training, tokenizer)
    assert not fair.is_suspicious
    alone = memorised(quoting, None, training, tokenizer)
    assert alone.unseen == () and alone.usual == 0 and not alone.is_suspicious


def test_text_that_is_no_news_is_noticed(shakespeare: Path) -> None:
    text = shakespeare.read_text("utf-8")[:100_000]
    tokenizer = train_tokenizer("byte", ["a"]).tokenizer
    training = tokenizer.encode(text).astype(np.uint16)
    seen = np.concatenate([training[50_000:], tokenizer.encode("#" * 50_000)])
    found = memorised(["x" * 500] * 10, seen, training, tokenizer)
    assert found.known == 5
    # So short that it says nothing.
    assert memorised(["x" * 20] * 10, seen, training, tokenizer).known == 0


def test_the_yardstick_is_as_long_as_the_samples() -> None:
    data = small_data()
    texts = ["é" * 10, "a" * 33, ""]
    stretches = unseen_texts(texts, data.train, data.tokenizer)
    assert [len(stretch) for stretch in stretches] == [20, 33, 0]
    assert all(stretch in TEXT for stretch in stretches)
    middle = (len(data.train) - 33) // 2
    assert TEXT[middle : middle + 33] == stretches[1]
    whole = unseen_texts(["a" * 10_000] * 2, data.train, data.tokenizer)
    assert whole == [TEXT[: len(data.train)]] * 2


def test_twice_as_much_as_unseen_text_is_suspicious() -> None:
    def of(size: int) -> Overlap:
        return Overlap(size, 0, 0, "x" * size)

    assert not Memorised((of(40), of(10)), (of(20), of(5))).is_suspicious
    assert Memorised((of(41), of(10)), (of(20), of(5))).is_suspicious
