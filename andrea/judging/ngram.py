"""An n-gram model over token ids: what a text's short-range statistics alone are worth.

Interpolated modified Kneser-Ney (Chen & Goodman 1998, section 3), counted with sorting alone. Keys
are exact, not hashes: an n-gram is the number of its first n - 1 tokens times V plus its last one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from andrea.data.token_file import Tokens, release_pages
from andrea.errors import ArgumentError

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]

# At most 110 bytes a token: less than a gigabyte.
MAX_TOKENS = 1 << 23
_SLICE = 1 << 20
_STRETCHES = 256
# Where a text is too small to tell: what a count of 1, 2, 3 and more gives away.
_USUAL_DISCOUNTS = (0.5, 1.0, 1.5)
_LEAST_DISCOUNT = 0.05


@dataclass(frozen=True)
class _Order:
    """The m-grams of one order, by number: sorted by context, then by last token.

    keys: context x V + last token. counts: times seen, or of lower orders the number of different
    tokens before it. totals, left_over: of each context, its counts and the share of probability
    that its discounts leave to the next lower order.
    """

    keys: Integers
    counts: NDArray[np.int32]
    discounts: Reals
    totals: NDArray[np.int32]
    left_over: NDArray[np.float32]


class KneserNey:
    """Probabilities of tokens after up to `order` - 1 others, learned from a text.

    After every context they sum to 1 over the vocabulary; what was never seen has a little, too.
    Beginning-of-document tokens are tokens as any other.
    """

    def __init__(
        self, tokens: Tokens, vocab_size: int, *, order: int = 5, max_tokens: int = MAX_TOKENS
    ) -> None:
        """Count the n-grams of a text, (n,); of a longer one than max_tokens, those of 256
        stretches spread evenly over it.

        Raises:
            ArgumentError: the order is below 1, the text empty, or an id not below vocab_size.
        """
        if order < 1 or len(tokens) == 0:
            raise ArgumentError(f"an n-gram model of order {order} of {len(tokens)} tokens")
        sample = _spread(tokens, max_tokens).astype(np.int32)
        if int(sample.max()) >= vocab_size or int(sample.min()) < 0:
            raise ArgumentError(f"a token id is outside {vocab_size} tokens")
        self.vocab_size = vocab_size
        self.order = order
        self.num_tokens = len(sample)
        self._orders = _count(sample, vocab_size, order)

    def nats(self, tokens: Tokens, first: int = 0) -> Reals:
        """Return -ln p of each token from position `first` on, after the ones before it.

        tokens: (n,), ids below vocab_size. Result: (n - first,).
        """
        ids = np.asarray(tokens, dtype=np.int64)
        n, vocab_size = len(ids), self.vocab_size
        probability = np.full(n, 1.0 / vocab_size)
        # Of the stretch of m - 1 tokens from each position on: its number, -1 where never seen.
        contexts = np.zeros(n + 1, dtype=np.int64)
        for length, order in enumerate(self._orders, start=1):
            starts = n - length + 1
            if starts < 1:
                break
            context = contexts[:starts]
            grams = _find(order.keys, context * vocab_size + ids[length - 1 :])
            grams[context < 0] = -1
            total = np.where(context < 0, 0, order.totals[context])
            count = np.where(grams < 0, 0, order.counts[grams])
            kept = count - order.discounts[np.minimum(count, 3)]
            with np.errstate(divide="ignore", invalid="ignore"):
                mixed = kept / total + order.left_over[context] * probability[length - 1 :]
            seen = total > 0
            probability[length - 1 :][seen] = mixed[seen]
            contexts = grams
        nats: Reals = -np.log(probability[first:])
        return nats


def _spread(tokens: Tokens, max_tokens: int) -> Tokens:
    """A copy of the text, or of stretches spread over it; the joints between them are too few to
    matter."""
    if len(tokens) <= max_tokens:
        sample = np.array(tokens)
    else:
        stretches = min(_STRETCHES, max_tokens)
        length = max_tokens // stretches
        starts = np.linspace(0, len(tokens) - length, stretches, dtype=np.int64)
        sample = np.concatenate([tokens[start : start + length] for start in starts.tolist()])
    release_pages(tokens)
    return sample


def _count(tokens: NDArray[np.int32], vocab_size: int, order: int) -> list[_Order]:
    """All orders from 1 up to the highest that the text is long enough for."""
    found: list[_Order] = []
    # The number of the (m - 1)-gram that begins at each position; of none, there is one.
    numbers: NDArray[np.int32] = np.zeros(len(tokens) + 1, dtype=np.int32)
    keys: Integers = np.zeros(0, dtype=np.int64)
    num_contexts = 1
    highest = min(order, len(tokens))
    for length in range(1, highest + 1):
        starts = len(tokens) - length + 1
        all_keys = numbers[:starts].astype(np.int64)
        all_keys *= vocab_size
        all_keys += tokens[length - 1 :]
        by_key = np.argsort(all_keys).astype(np.int32)
        all_keys = all_keys[by_key]
        is_new = np.ones(starts, dtype=np.bool_)
        np.not_equal(all_keys[1:], all_keys[:-1], out=is_new[1:])
        new_keys = all_keys[is_new]
        del all_keys
        if length > 1:
            # A gram without its first token counts once for each different first token.
            rest = numbers[by_key[is_new] + 1]
            different = np.bincount(rest, minlength=len(keys)).astype(np.int32)
            del rest
            found.append(_smoothed(keys, different, num_contexts, vocab_size))
            num_contexts = len(keys)
        keys = new_keys
        if length < highest:
            numbers = np.empty(starts, dtype=np.int32)
            numbers[by_key] = np.cumsum(is_new, dtype=np.int32) - np.int32(1)
    del by_key, numbers
    first_of_run = np.flatnonzero(is_new).astype(np.int32)
    counts = np.diff(first_of_run, append=np.int32(starts))
    del is_new, first_of_run
    found.append(_smoothed(keys, counts, num_contexts, vocab_size))
    return found


def _smoothed(
    keys: Integers, counts: NDArray[np.int32], num_contexts: int, vocab_size: int
) -> _Order:
    discounts = _discounts(counts)
    totals = np.zeros(num_contexts, dtype=np.int32)
    left_over = np.zeros(num_contexts, dtype=np.float32)
    for start in range(0, len(keys), _SLICE):
        contexts = keys[start : start + _SLICE] // vocab_size
        some = counts[start : start + _SLICE]
        # Keys are sorted: a slice's contexts are neighbours.
        low, high = int(contexts[0]), int(contexts[-1]) + 1
        contexts -= low
        given = np.bincount(contexts, weights=discounts[np.minimum(some, 3)])
        left_over[low:high] += given.astype(np.float32)
        totals[low:high] += np.bincount(contexts, weights=some).astype(np.int32)
    np.divide(left_over, totals, out=left_over, where=totals > 0, casting="same_kind")
    return _Order(keys, counts, discounts, totals, left_over)


def _discounts(counts: NDArray[np.int32]) -> Reals:
    """What is taken from counts of 0, 1, 2, and 3 or more (Chen & Goodman 1998, equation 26)."""
    once, twice, thrice, four_times = (int(np.count_nonzero(counts == n)) for n in (1, 2, 3, 4))
    one, two, more = _USUAL_DISCOUNTS
    if once and twice and thrice and four_times:
        share = once / (once + 2 * twice)
        one = 1 - 2 * share * twice / once
        two = 2 - 3 * share * thrice / twice
        more = 3 - 4 * share * four_times / thrice
    # Small texts give odd estimates; a count never gives away more than itself, nor nothing.
    limited = [min(max(d, _LEAST_DISCOUNT), n) for n, d in enumerate((one, two, more), start=1)]
    return np.array([0.0, *limited])


def _find(keys: Integers, wanted: Integers) -> Integers:
    """Where each wanted key stands, -1 where it doesn't."""
    places = np.searchsorted(keys, wanted)
    places[places == len(keys)] = 0
    found: Any = np.where(keys[places] == wanted, places, -1)
    result: Integers = found
    return result
