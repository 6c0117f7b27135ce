"""`Decoder.forget`: one sequence is emptied, and the others go on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import andrea
from andrea.errors import ArgumentError, DTypeError

V, BLOCK_SIZE = 31, 12


@pytest.fixture(scope="module")
def model() -> andrea.GPT:
    config = andrea.ModelConfig(vocab_size=V, block_size=BLOCK_SIZE, n_layer=2, n_head=2, n_embd=20)
    model = andrea.GPT(config, seed=4, precision="fp32")
    for view in model.parameters().values():
        view *= 10.0  # so that every token and position matters
    model.refresh()
    return model


def test_the_others_go_on_and_the_place_is_as_new(model: andrea.GPT) -> None:
    prompts = [[1, 2, 3], [4, 5], [6]]
    decoder, untouched, new = (model.decoder(3) for _ in range(3))
    for one in (decoder, untouched):
        logits = one.feed(prompts)
    decoder.forget(1)
    assert decoder.lengths == [3, 0, 1]
    kept = decoder.feed([[], [], []])
    assert not kept[1].any() and (kept[[0, 2]] == logits[[0, 2]]).all()

    others = [[7], [], [8, 9]]
    assert (decoder.feed(others)[[0, 2]] == untouched.feed(others)[[0, 2]]).all()
    again = [[], [10, 11, 12], []]
    assert (decoder.feed(again)[1] == new.feed(again)[1]).all()
    assert decoder.lengths == [4, 3, 3]


def test_a_place_that_held_a_longer_sequence_shows_nothing_of_it(model: andrea.GPT) -> None:
    """Its keys and values fill the context, and it slid: none of them is seen again."""
    decoder, new = model.decoder(2), model.decoder(2)
    decoder.feed([np.arange(BLOCK_SIZE), []])
    decoder.feed([[1], [2]])
    decoder.forget(0)
    new.feed([[], [2]])
    for token in range(2 * BLOCK_SIZE):
        found, expected = (one.feed([[token], []]) for one in (decoder, new))
        assert (found == expected).all()
        assert decoder.lengths == new.lengths


def test_nothing_is_forgotten_twice(model: andrea.GPT) -> None:
    decoder = model.decoder()
    decoder.forget(0)
    expected = decoder.feed([[1, 2]])
    for _ in range(2):
        decoder.forget(0)
        assert decoder.lengths == [0]
    assert (decoder.feed([[1, 2]]) == expected).all()


NO_SEQUENCES = {-1: ArgumentError, 2: ArgumentError, 2**40: ArgumentError} | dict.fromkeys(
    [0.5, None, "0"], DTypeError
)


@pytest.mark.parametrize(("sequence", "error"), NO_SEQUENCES.items())
def test_a_sequence_that_is_not_there(model: andrea.GPT, sequence: Any, error: type) -> None:
    decoder = model.decoder(2)
    logits = decoder.feed([[1], [2, 3]])
    with pytest.raises(error, match="sequence must be"):
        decoder.forget(sequence)
    assert decoder.lengths == [1, 2]
    assert (decoder.feed([[], []]) == logits).all()
