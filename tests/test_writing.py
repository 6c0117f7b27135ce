"""Text in, text out: with a scripted model for exact cuts, and a real one."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from andrea.errors import ArgumentError, TokenizerError
from andrea.sampling import SamplingConfig
from andrea.tokenizers import ByteTokenizer
from andrea.writing import generate_text, generate_texts
from small_runs import small_model, small_tokenizer

GREEDY = SamplingConfig(temperature=0.0)


class ScriptedModel:
    """Says one text per sequence, byte by byte, whatever it is fed; then begins a new document."""

    def __init__(self, *scripts: str) -> None:
        self.config = SimpleNamespace(vocab_size=257)
        self.scripts = [script.encode() for script in scripts]
        self.prompts: list[list[int]] = []

    def decoder(self, batch_size: int) -> ScriptedModel:
        assert batch_size == len(self.scripts)
        self.positions = [-1] * batch_size
        return self

    def feed(self, tokens: Sequence[Any]) -> Any:
        if self.positions[0] == -1:
            self.prompts = [list(map(int, new)) for new in tokens]
        logits = np.zeros((len(tokens), 257), dtype=np.float32)
        for index, new in enumerate(tokens):
            self.positions[index] += len(new) > 0
            script, position = self.scripts[index], self.positions[index]
            logits[index, script[position] if position < len(script) else 256] = 9.0
        return logits


def pieces(script: str, **settings: Any) -> list[str]:
    settings.setdefault("max_tokens", 100)
    model: Any = ScriptedModel(script)
    return list(generate_text(model, ByteTokenizer(), "p", sampling=GREEDY, **settings))


def test_characters_come_whole() -> None:
    text = "naïve 東京 🙂!"
    assert pieces(text) == list(text)


def test_a_character_cut_off_by_the_end_is_marked() -> None:
    assert pieces("a🙂", max_tokens=3) == ["a", "\ufffd"]


def test_ends_where_a_new_document_begins() -> None:
    assert "".join(pieces("one", max_tokens=50)) == "one"


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (["\n\n"], "Ham: who?\nOphelia: I."),
        (["."], "Ham: who?\nOphelia: I"),
        (["Oph", "?"], "Ham: who"),
        (["I.\n\nHam: yes"], "Ham: who?\nOphelia: I.\n\nHam"),
        (["absent", ""], "Ham: who?\nOphelia: I.\n\nHam"),
        ([], "Ham: who?\nOphelia: I.\n\nHam"),
    ],
)
def test_stops_before_a_stop_string(stop: list[str], expected: str) -> None:
    assert "".join(pieces("Ham: who?\nOphelia: I.\n\nHam", stop=stop)) == expected


def test_an_empty_prompt_starts_a_document() -> None:
    model: Any = ScriptedModel("x")
    list(generate_text(model, ByteTokenizer(), "", max_tokens=3, sampling=GREEDY))
    assert model.prompts == [[256]]
    list(generate_text(model, ByteTokenizer(), "ab", max_tokens=3, sampling=GREEDY))
    assert model.prompts == [[97, 98]]


def test_samples_of_a_batch_end_one_by_one() -> None:
    model: Any = ScriptedModel("long text", "ab", "x.y")
    got = list(
        generate_texts(
            model,
            ByteTokenizer(),
            "p",
            num_samples=3,
            max_tokens=6,
            sampling=GREEDY,
            stop=["."],
        )
    )
    texts = ["".join(piece for sample, piece in got if sample == index) for index in range(3)]
    assert texts == ["long t", "ab", "x"]
    ends = [sample for sample, piece in got if piece == ""]
    assert ends == [2, 1, 0], "each sample ends once, with an empty piece"
    assert [sample for sample, _ in got][-1] == 0


def test_real_samples_do_not_depend_on_their_number() -> None:
    model, tokenizer = small_model(), small_tokenizer()

    def texts(count: int) -> list[str]:
        out = [""] * count
        for index, piece in generate_texts(
            model, tokenizer, "1 and ", num_samples=count, max_tokens=30, seed=3
        ):
            out[index] += piece
        return out

    four = texts(4)
    assert texts(2) == four[:2]
    assert four[0] == "".join(generate_text(model, tokenizer, "1 and ", max_tokens=30, seed=3))
    assert len(set(four)) == 4


def test_mistakes_are_told_at_the_call() -> None:
    model, tokenizer = small_model(), small_tokenizer()
    with pytest.raises(ArgumentError, match="max_tokens"):
        generate_text(model, tokenizer, "1", max_tokens=-1)
    with pytest.raises(TokenizerError, match="é"):
        generate_text(model, tokenizer, "é", max_tokens=1)
