"""Serving below HTTP: sequences in one decoder, texts out of tokens, the thread that writes."""

from __future__ import annotations

import queue
import threading
from typing import Any

import numpy as np
import pytest

import andrea
from andrea.errors import AndreaError, OutOfMemoryError, StateError
from andrea.sampling import SamplingConfig
from andrea.serving.batch import Batch
from andrea.serving.errors import RequestError
from andrea.serving.text import GrowingText, Piece, Wish
from andrea.serving.writer import BatchWriter
from andrea.writing import generate_texts
from patience import PATIENCE
from served_model import BLOCK_SIZE, byte_model, byte_tokenizer

TOKENIZER = byte_tokenizer()
NEW_DOCUMENT = TOKENIZER.beginning_of_document


@pytest.fixture(scope="module")
def model() -> andrea.GPT:
    return byte_model()


def wish(prompt: str = "To be", max_tokens: int = 20, **changes: Any) -> Wish:
    return Wish(tuple(TOKENIZER.encode(prompt).tolist()), max_tokens, **changes)


# ---- the batch


@pytest.mark.parametrize("block_size", [16, 300])
def test_sequences_come_and_go_and_see_what_they_would_see_alone(block_size: int) -> None:
    """Beside each one that joined is a decoder of its own; chunks of prompts, slides of the
    context and places that others left all happen on the way."""
    model, random = byte_model(block_size), np.random.default_rng(1)
    batch = Batch(model, 3)
    alone: dict[int, andrea.Decoder] = {}
    feeds: dict[int, list[int]] = {}
    joins = 0
    for _ in range(120):
        while len(batch) < batch.most and random.random() < 0.6:
            length = int(random.integers(1, block_size + 1))
            prompt = random.integers(0, 257, length).tolist()
            number = batch.join(prompt)
            alone[number], feeds[number] = model.decoder(1), prompt
            joins += 1
        if not len(batch):
            continue
        found = batch.logits()
        for number, logits in found.items():
            expected = alone[number].feed([np.array(feeds[number], dtype=np.int32)])[0]
            np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
            if random.random() < 0.1:
                batch.leave(number)
            else:
                token = int(random.integers(0, 257))
                batch.append(number, token)
                feeds[number] = [token]
    assert joins > 3 * batch.most  # each place had several, one after the other


def test_a_batch_has_no_room_beyond_its_sequences(model: andrea.GPT) -> None:
    """Places that were left are enough, while one sequence stays from the first token on."""
    batch = Batch(model, 2)
    first = batch.join([1, 2])
    for token in range(20):
        other = batch.join([token])
        assert set(batch.logits()) == {first, other}
        with pytest.raises(IndexError):
            batch.join([1])
        batch.leave(other)
        batch.append(first, token)


def test_a_long_prompt_does_not_hold_up_the_others() -> None:
    batch = Batch(byte_model(1024), 2)
    first = batch.join([1])
    batch.logits()
    batch.append(first, 2)
    second = batch.join([3] * 600)
    told = []
    for token in range(3):
        told.append(set(batch.logits()))
        batch.append(first, token)
    assert told == [{first}, {first}, {first, second}]


# ---- texts


def written(model: andrea.GPT, one: Wish) -> list[Piece]:
    """The pieces of a text that grows alone."""
    growing, batch = GrowingText(one, TOKENIZER), Batch(model, 1)
    number = batch.join(one.prompt)
    pieces: list[Piece] = []
    while not pieces or pieces[-1].reason is None:
        token, piece = growing.grow(batch.logits()[number])
        pieces.append(piece)
        batch.append(number, token)
    return pieces


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.5])
def test_a_text_is_what_andrea_sample_would_write(model: andrea.GPT, temperature: float) -> None:
    sampling = SamplingConfig(temperature, top_p=0.95)
    found = generate_texts(
        model, TOKENIZER, "To be", num_samples=2, max_tokens=100, sampling=sampling, seed=3
    )
    expected = ["", ""]
    for index, piece in found:
        expected[index] += piece
    for stream in range(2):
        pieces = written(model, wish(max_tokens=100, sampling=sampling, seed=3, stream=stream))
        assert text_of(pieces) == expected[stream]


def test_a_stop_text_is_never_shown(model: andrea.GPT) -> None:
    whole = text_of(written(model, wish(max_tokens=60, seed=1, bias={NEW_DOCUMENT: -100.0})))
    stop = whole[20:23]
    pieces = written(
        model,
        wish(max_tokens=60, seed=1, bias={NEW_DOCUMENT: -100.0}, stop=(stop,), alternatives=0),
    )
    assert text_of(pieces) == whole[: whole.index(stop)]
    assert pieces[-1].reason == "stop"
    offsets = [odds.offset for piece in pieces for odds in piece.odds]
    assert offsets == sorted(offsets) and max(offsets) < whole.index(stop)


def test_reasons(model: andrea.GPT) -> None:
    pieces = written(model, wish(max_tokens=5, bias={NEW_DOCUMENT: -100.0}))
    assert [piece.reason for piece in pieces] == [None] * 4 + ["length"]
    pieces = written(model, wish(max_tokens=5, bias={NEW_DOCUMENT: 100.0}))
    assert [(piece.text, piece.reason, piece.num_tokens) for piece in pieces] == [("", "stop", 1)]


def test_odds_are_the_models(model: andrea.GPT) -> None:
    """Whatever bias, penalty and temperature make of them."""
    one = wish(
        max_tokens=12,
        alternatives=3,
        sampling=SamplingConfig(2.0, top_k=50),
        bias={65: 5.0, NEW_DOCUMENT: -100.0},
        presence_penalty=1.0,
    )
    odds = [odds for piece in written(model, one) for odds in piece.odds]
    assert len(odds) == 12
    tokens = [*one.prompt, *(each.token for each in odds)]
    logits = model.logits(np.array([tokens[:-1]]))[0, len(one.prompt) - 1 :].astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    for each, row in zip(odds, expected, strict=True):
        assert each.logprob == pytest.approx(row[each.token], abs=1e-4)
        best = np.argsort(-row)[:3]
        assert [token for token, _ in each.alternatives] == best.tolist()
        np.testing.assert_allclose([p for _, p in each.alternatives], row[best], atol=1e-4)


def test_bias_and_penalties_reach_what_is_written() -> None:
    def tokens(**changes: Any) -> list[int]:
        """What is written where the model has no preference, in order of bias."""
        one = wish(max_tokens=30, sampling=SamplingConfig(0.0), **changes)
        growing = GrowingText(one, TOKENIZER)
        return [growing.grow(np.zeros(257, dtype=np.float32))[0] for _ in range(30)]

    assert tokens(bias={65: 1.0}) == [65] * 30
    # One that was written pays 2 once, however often it is written again.
    assert tokens(bias={65: 10.0, 66: 9.0}, presence_penalty=2.0)[:4] == [65, 66, 65, 65]
    often = tokens(bias={65: 50.0, 66: 49.5, 67: 49.0}, frequency_penalty=2.0)
    assert {often.count(token) for token in (65, 66, 67)} == {10}


def test_letters_of_several_tokens_come_out_whole(model: andrea.GPT) -> None:
    letters = "é€😀"
    growing = GrowingText(
        wish(max_tokens=9, alternatives=0, sampling=SamplingConfig(0.0)), TOKENIZER
    )
    pieces = []
    for value in letters.encode("utf-8"):
        logits = np.zeros(257, dtype=np.float32)
        logits[value] = 50.0
        pieces.append(growing.grow(logits)[1])
    assert [piece.text for piece in pieces] == ["", "é", "", "", "€", "", "", "", "😀"]
    odds = [odds for piece in pieces for odds in piece.odds]
    assert [each.offset for each in odds] == [0, 0, 1, 1, 1, 2, 2, 2, 2]
    assert bytes(each.token for each in odds).decode("utf-8") == letters


# ---- the thread


class Reader:
    """Takes what a writer delivers."""

    def __init__(self) -> None:
        self._queue: queue.Queue[tuple[int, Piece | Exception]] = queue.Queue()
        self.texts: dict[int, str] = {}
        self.ends: dict[int, str | Exception] = {}

    def deliver(self, index: int, piece: Piece | Exception) -> None:
        self._queue.put((index, piece))

    def read(self) -> Piece | Exception:
        index, piece = self._queue.get(timeout=PATIENCE)
        if isinstance(piece, Exception):
            self.ends[index] = piece
            return piece
        self.texts[index] = self.texts.get(index, "") + piece.text
        if piece.reason is not None:
            self.ends[index] = piece.reason
        return piece

    def read_to_the_end(self, count: int) -> None:
        while len(self.ends) < count:
            self.read()

    @property
    def is_silent(self) -> bool:
        return self._queue.empty()


def endless(**changes: Any) -> Wish:
    return wish(max_tokens=10**9, bias={NEW_DOCUMENT: -100.0}, **changes)


def writer_of(model: andrea.GPT, parallel: int = 2, queue: int = 2) -> BatchWriter:
    return BatchWriter(model, TOKENIZER, parallel=parallel, queue=queue)


def test_many_texts_at_once_are_what_each_is_alone(model: andrea.GPT) -> None:
    wishes = [
        wish("abcdefgh"[: 1 + number % 8] * (1 + number), 5 + 7 * number % 60, seed=number)
        for number in range(7)
    ]
    wishes = [one for one in wishes if len(one.prompt) <= BLOCK_SIZE]
    reader = Reader()
    with writer_of(model, parallel=3, queue=10) as writer:
        writer.submit(wishes, reader.deliver)
        reader.read_to_the_end(len(wishes))
    for number, one in enumerate(wishes):
        assert reader.texts[number] == text_of(written(model, one)), number


def test_a_text_is_the_same_whoever_comes_and_goes_beside_it(model: andrea.GPT) -> None:
    """Others join, end and are cancelled all the while; the text goes far past the context."""
    one = wish("Whether", 5 * BLOCK_SIZE, seed=4, bias={NEW_DOCUMENT: -100.0})
    reader = Reader()
    with writer_of(model, parallel=3, queue=2) as writer:
        writer.submit([one], reader.deliver)
        for turn in range(12):
            ended, cancelled = Reader(), Reader()
            writer.submit([wish("x" * (1 + 5 * turn), 1 + turn, seed=turn)], ended.deliver)
            ticket = writer.submit([endless()], cancelled.deliver)
            ended.read_to_the_end(1)
            cancelled.read()
            writer.cancel(ticket)
        reader.read_to_the_end(1)
    assert reader.texts[0] == text_of(written(model, one))


def test_more_than_fits_is_refused_until_there_is_room(model: andrea.GPT) -> None:
    readers = [Reader() for _ in range(3)]
    with writer_of(model, parallel=2, queue=1) as writer:
        first = writer.submit([endless(), endless()], readers[0].deliver)
        readers[0].read()
        writer.submit([wish()], readers[1].deliver)
        with pytest.raises(RequestError, match="1 wait") as refused:
            writer.submit([wish()], readers[2].deliver)
        assert refused.value.status == 429
        assert (writer.num_writing, writer.num_waiting) == (2, 1)
        writer.cancel(first)
        readers[1].read_to_the_end(1)
        writer.submit([wish()], readers[2].deliver)
        readers[2].read_to_the_end(1)
        assert readers[1].texts == readers[2].texts == {0: text_of(written(model, wish()))}


def test_what_is_cancelled_is_not_written(model: andrea.GPT) -> None:
    reader, other = Reader(), Reader()
    with writer_of(model, parallel=1, queue=4) as writer:
        first = writer.submit([endless()], reader.deliver)
        reader.read()
        waiting = writer.submit([endless()], other.deliver)
        writer.cancel(waiting)
        writer.cancel(first)
        last = Reader()
        writer.submit([wish()], last.deliver)
        last.read_to_the_end(1)
        assert other.is_silent and (writer.num_writing, writer.num_waiting) == (0, 0)


def test_one_whose_reader_fails_stops_alone(model: andrea.GPT) -> None:
    called = []

    def deliver(index: int, piece: Piece | Exception) -> None:
        called.append(index)
        raise RuntimeError("the loop is closed")

    reader = Reader()
    with writer_of(model) as writer:
        writer.submit([endless()], deliver)
        writer.submit([wish(max_tokens=40, seed=2)], reader.deliver)
        reader.read_to_the_end(1)
    assert called == [0]
    assert reader.texts[0] == text_of(written(model, wish(max_tokens=40, seed=2)))


def test_an_engine_that_fails_ends_texts_and_goes_on(
    model: andrea.GPT, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, later = Reader(), Reader()
    with writer_of(model) as writer:
        writer.submit([endless(), endless()], reader.deliver)
        reader.read()

        def fail(_self: Batch) -> Any:
            monkeypatch.undo()
            raise OutOfMemoryError("no room")

        monkeypatch.setattr(Batch, "logits", fail)
        reader.read_to_the_end(2)
        assert all(isinstance(end, OutOfMemoryError) for end in reader.ends.values())
        writer.submit([wish()], later.deliver)
        later.read_to_the_end(1)
    assert later.texts[0] == text_of(written(model, wish()))


def test_damaged_weights_are_told() -> None:
    model = byte_model()
    next(iter(model.parameters().values()))[:] = np.nan
    model.refresh()
    reader = Reader()
    with writer_of(model) as writer:
        writer.submit([wish()], reader.deliver)
        reader.read_to_the_end(1)
    assert isinstance(reader.ends[0], AndreaError) and "damaged" in str(reader.ends[0])


def test_closing_tells_everybody(model: andrea.GPT) -> None:
    reader = Reader()
    writer = writer_of(model, parallel=1, queue=2)
    writer.submit([endless(), endless()], reader.deliver)
    reader.read()
    writer.close()
    reader.read_to_the_end(2)
    assert all(isinstance(end, StateError) for end in reader.ends.values())
    with pytest.raises(StateError, match="stopping"):
        writer.submit([wish()], reader.deliver)
    writer.close()
    assert not any(thread.name == "writer" for thread in threading.enumerate())


def test_no_tokens_are_wanted(model: andrea.GPT) -> None:
    reader = Reader()
    with writer_of(model) as writer:
        writer.submit([wish(max_tokens=0)], reader.deliver)
        reader.read_to_the_end(1)
    assert (reader.texts, reader.ends) == ({0: ""}, {0: "length"})
