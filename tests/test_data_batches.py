"""Batches: a pure function of (seed, n), each window once an epoch; fixed evaluation windows."""

from __future__ import annotations

import math
import mmap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andrea.data import BatchSampler, EvaluationWindows, bits_per_byte
from andrea.data.permutation import mix, permute
from andrea.data.token_file import mapping_of, release_pages
from andrea.errors import ArgumentError, DataError

SMAPS = Path("/proc/self/smaps")


def reads_at_random(path: Path) -> bool:
    """Whether the system was told so of a mapped file."""
    mappings = SMAPS.read_text().split("VmFlags:")
    (index,) = [number for number, text in enumerate(mappings) if str(path) in text]
    return " rr" in mappings[index + 1].split("\n")[0]


@pytest.mark.skipif(not SMAPS.exists(), reason="the system does not list a process's mappings")
@pytest.mark.parametrize(("memory", "expected"), [(1500, True), (3000, False)])
def test_a_file_that_does_not_stay_in_memory_is_not_read_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int, expected: bool
) -> None:
    np.save(tmp_path / "tokens.npy", np.arange(500, dtype=np.uint16))
    tokens = np.load(tmp_path / "tokens.npy", mmap_mode="r")
    monkeypatch.setattr("andrea.data.batches._physical_memory", lambda: memory)
    sampler = BatchSampler(tokens, 2, 8)
    assert reads_at_random(tmp_path / "tokens.npy") == expected
    inputs, targets = sampler.batch(0)
    np.testing.assert_array_equal(inputs + 1, targets)


@given(size=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
@settings(deadline=None, max_examples=60)
def test_permute_is_a_permutation(size: int, key: int) -> None:
    keys = np.full(size, key, dtype=np.uint64)
    places = permute(np.arange(size, dtype=np.uint64), size, keys)
    np.testing.assert_array_equal(np.sort(places), np.arange(size))


def test_permute_shuffles_and_depends_on_the_key() -> None:
    size = 10_000
    indices = np.arange(size, dtype=np.uint64)
    orders = [permute(indices, size, np.full(size, key, dtype=np.uint64)) for key in range(3)]
    assert not np.array_equal(orders[0], orders[1])
    for order in orders:
        # A random order keeps one item in place on average, and has no correlation with the index.
        assert np.count_nonzero(order == indices) < 10
        assert abs(np.corrcoef(order.astype(float), indices.astype(float))[0, 1]) < 0.05
        assert np.count_nonzero(np.abs(np.diff(order.astype(np.int64))) == 1) < 20


@pytest.mark.parametrize("index", range(5))
def test_every_place_is_equally_likely(index: int) -> None:
    """Over many keys, where an index of 5 goes is uniform (chi-squared, 4 degrees of freedom)."""
    keys = mix(np.arange(5000, dtype=np.uint64))
    places = permute(np.full(5000, index, dtype=np.uint64), 5, keys)
    counts = np.bincount(places.astype(np.int64), minlength=5)
    assert ((counts - 1000) ** 2 / 1000).sum() < 18.5  # p = 0.001


def test_shapes_types_and_shift() -> None:
    tokens = np.arange(1000, dtype=np.uint16)
    inputs, targets = BatchSampler(tokens, 3, 8, seed=1).batch(5)
    for array in (inputs, targets):
        assert array.shape == (3, 8) and array.dtype == np.int32 and array.flags.c_contiguous
    np.testing.assert_array_equal(inputs + 1, targets)
    np.testing.assert_array_equal(np.diff(inputs, axis=1), 1)


@given(
    length=st.integers(2, 400),
    block_size=st.integers(1, 20),
    batch_size=st.integers(1, 9),
    seed=st.integers(-(2**63), 2**64 - 1),
)
@settings(deadline=None, max_examples=80)
def test_each_window_once_an_epoch(
    length: int, block_size: int, batch_size: int, seed: int
) -> None:
    if length < block_size + 1:
        length = block_size + 1
    sampler = BatchSampler(np.arange(length), batch_size, block_size, seed)
    size = sampler.windows_per_epoch
    for epoch in range(3):
        starts = np.sort(sampler.sequences(epoch * size, size)[0][:, 0])
        assert starts[0] < block_size
        np.testing.assert_array_equal(np.diff(starts), block_size)
        # Nearly all of the text is used: what is left at both ends is shorter than two windows.
        assert length - 1 - size * block_size < 2 * block_size


def test_batches_are_pure_and_depend_on_the_seed() -> None:
    tokens = np.arange(5000, dtype=np.int32)
    sampler, other = BatchSampler(tokens, 4, 16, seed=7), BatchSampler(tokens, 4, 16, seed=7)
    later = sampler.batch(1000)
    for n in (3, 0, 77):
        other.batch(n)
    np.testing.assert_array_equal(later[0], other.batch(1000)[0])
    assert not np.array_equal(later[0], BatchSampler(tokens, 4, 16, seed=8).batch(1000)[0])


@pytest.mark.parametrize("fine", [1, 2, 8])
def test_accumulation_sees_the_same_rows(fine: int) -> None:
    """16 micro-batches of 1 row, 8 of 2 and 2 of 8 make one batch of 16, across epochs too."""
    tokens = np.arange(30 * 8 + 5)
    coarse = BatchSampler(tokens, 16, 8, seed=3)
    sampler = BatchSampler(tokens, fine, 8, seed=3)
    parts = 16 // fine
    for n in range(6):  # 96 rows, 29 windows an epoch
        micro = [sampler.batch(n * parts + part) for part in range(parts)]
        for side in (0, 1):
            np.testing.assert_array_equal(
                np.concatenate([pair[side] for pair in micro]), coarse.batch(n)[side]
            )


def test_epochs_differ_in_order_and_offset() -> None:
    sampler = BatchSampler(np.arange(64 * 50), 10, 64)
    size = sampler.windows_per_epoch
    epochs = [sampler.sequences(number * size, size)[0][:, 0] for number in range(8)]
    assert len({int(starts.min()) for starts in epochs}) > 4
    assert len({tuple(starts // 64) for starts in epochs}) == 8
    assert sampler.epoch(0) == 0 and sampler.epoch(size) == 10


def test_one_window_is_enough() -> None:
    sampler = BatchSampler(np.arange(9, dtype=np.uint8), 4, 8)
    assert sampler.windows_per_epoch == 1
    inputs, targets = sampler.batch(123456789)
    np.testing.assert_array_equal(inputs, np.tile(np.arange(8), (4, 1)))
    np.testing.assert_array_equal(targets, inputs + 1)


def test_large_token_ids_and_large_row_numbers() -> None:
    tokens = np.full(100, 2**31 - 1, dtype=np.uint32)
    inputs, _ = BatchSampler(tokens, 2, 8).batch(2**55)
    assert (inputs == 2**31 - 1).all()


def test_sampler_refusals() -> None:
    with pytest.raises(DataError, match="has 8 tokens, a context of 8 needs 9"):
        BatchSampler(np.arange(8), 1, 8)
    for batch_size, block_size in ((0, 8), (1, 0)):
        with pytest.raises(ArgumentError):
            BatchSampler(np.arange(100), batch_size, block_size)
    with pytest.raises(ArgumentError, match="counted from 0"):
        BatchSampler(np.arange(100), 1, 8).batch(-1)


def test_memory_mapped_tokens_give_the_same_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("andrea.data.batches._RELEASE_AFTER_WINDOWS", 10)
    tokens = np.arange(40_000, dtype=np.uint16)
    np.save(tmp_path / "tokens.npy", tokens)
    mapped = BatchSampler(np.load(tmp_path / "tokens.npy", mmap_mode="r"), 8, 32)
    plain = BatchSampler(tokens, 8, 32)
    for n in range(20):
        np.testing.assert_array_equal(mapped.batch(n)[0], plain.batch(n)[0])


def test_all_windows_are_evaluated_if_they_are_few() -> None:
    tokens = np.arange(27)
    windows = EvaluationWindows(tokens, batch_size=3, block_size=8)
    batches = list(windows.batches())
    assert windows.num_windows == 4 and windows.num_targets == 26
    assert [inputs.shape for inputs, _ in batches] == [(3, 8), (1, 8)]
    inputs, targets = batches[-1]
    assert inputs.dtype == targets.dtype == np.int32
    assert inputs.tolist() == [[24, 25, 0, 0, 0, 0, 0, 0]]
    assert targets.tolist() == [[25, 26, -1, -1, -1, -1, -1, -1]]
    seen = np.concatenate([targets[targets >= 0] for _, targets in batches])
    np.testing.assert_array_equal(seen, tokens[1:])


def test_evaluation_windows_are_evenly_spaced() -> None:
    windows = EvaluationWindows(np.arange(100_001), 64, 10, max_windows=50)
    starts = np.concatenate([inputs[:, 0] for inputs, _ in windows.batches()])
    assert windows.num_windows == 50 and windows.num_targets == 500
    np.testing.assert_array_equal(starts, np.arange(50) * 2000)


@given(
    length=st.integers(2, 200),
    batch_size=st.integers(1, 7),
    block_size=st.integers(1, 30),
    most=st.integers(1, 20),
)
@settings(deadline=None, max_examples=80)
def test_evaluation_counts(length: int, batch_size: int, block_size: int, most: int) -> None:
    tokens = np.arange(length)
    windows = EvaluationWindows(tokens, batch_size, block_size, most)
    counted = 0
    for inputs, targets in windows.batches():
        real = targets >= 0
        np.testing.assert_array_equal(targets[real], inputs[real] + 1)
        counted += int(real.sum())
    assert counted == windows.num_targets > 0
    assert windows.num_windows <= most


def test_mean_loss_weighs_by_counted_targets() -> None:
    tokens = np.arange(1, 28)
    windows = EvaluationWindows(tokens, batch_size=3, block_size=8)

    def loss(inputs: np.ndarray, targets: np.ndarray) -> float:
        return float(targets[targets >= 0].mean())

    assert windows.mean_loss(loss) == pytest.approx(tokens[1:].mean())


def test_evaluation_refusals() -> None:
    with pytest.raises(DataError, match="has 1 tokens and needs 2"):
        EvaluationWindows(np.arange(1), 1, 8)
    for wrong in ((0, 8, 1), (1, 0, 1), (1, 8, 0)):
        with pytest.raises(ArgumentError):
            EvaluationWindows(np.arange(100), *wrong)


def test_bits_per_byte() -> None:
    # A uniform guess over 256 bytes costs 8 bits a byte; two-byte tokens at that loss cost 4.
    assert bits_per_byte(math.log(256), 1000, 1000) == pytest.approx(8)
    assert bits_per_byte(math.log(256), 500, 1000) == pytest.approx(4)
    with pytest.raises(ArgumentError):
        bits_per_byte(1.0, 10, 0)


def test_a_stretch_of_a_token_file_is_known_to_lie_in_it(tmp_path: Path) -> None:
    """So that its pages are given back, as those of the whole file are."""
    np.save(tmp_path / "tokens.npy", np.arange(5000, dtype=np.uint16))
    tokens = np.load(tmp_path / "tokens.npy", mmap_mode="r")
    mapping = mapping_of(tokens)
    assert isinstance(mapping, mmap.mmap)
    assert mapping_of(tokens[100:200][::2]) is mapping_of(np.asarray(tokens)) is mapping
    assert mapping_of(np.array(tokens)) is None
    for stretch in (tokens, tokens[10:], np.array(tokens)):
        release_pages(stretch)
        assert stretch[-1] == 4999
