"""The engine's decoder against whole forward passes of the NumPy reference, and its end of life."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from parity_pair import CASES, Kind, cases, every_kind, pair, random_batch
from reference import gpt
from reference.compare import assert_close


@cases("odd", "head_dim 80")
def test_cached_decoding_gives_the_logits_of_the_whole_sequence(kind: Kind, case: str) -> None:
    """Two sequences of different lengths, fed in pieces."""
    shape, _, spread = CASES[case]
    with pair(kind, shape, spread) as both:
        tokens, _ = random_batch(both.config, (2, 30))
        expected = gpt.logits(both.parameters, both.config, tokens)
        whole = both.engine.logits(tokens)
        decoder = both.engine.decoder(batch_size=2)
        ends = [0, 0]
        for counts in [(5, 1), (1, 1), (0, 7), (1, 0), (12, 20), (1, 1)]:
            pieces = [tokens[s, ends[s] : ends[s] + counts[s]] for s in range(2)]
            logits = decoder.feed(pieces)
            ends = [end + count for end, count in zip(ends, counts, strict=True)]
            for s in range(2):
                last = ends[s] - 1
                assert_close(f"sequence {s}", logits[s], expected[s, last], both.tolerances.logits)
                assert_close(
                    "decoder and whole", logits[s], whole[s, last], both.tolerances.decoding
                )


@every_kind
@pytest.mark.parametrize("length", [1, 5, 12, 13, 30])
def test_greedy_generation_past_block_size(kind: Kind, length: int) -> None:
    """From prompts shorter and longer than the context of 12."""
    with pair(kind, (17, 12, 2, 2, 16), 0.6, seed=2) as both:
        prompt = [(3 * n * n + n) % 17 for n in range(length)]
        tokens = list(both.engine.generate(prompt, max_tokens=40, temperature=0.0))
        assert len(set(tokens)) > 3
        if kind.precision == "fp32":
            assert tokens == gpt.generate(both.parameters, both.config, prompt, 40)
            return
        # Weights as large as these make much of bf16's rounding, so that the engine's own whole
        # pass says which tokens were right: those of the largest logit, or of one about as large.
        for context, token in zip(gpt.contexts(both.config, prompt, tokens), tokens, strict=True):
            last = both.engine.logits([context])[0, -1]
            assert last.max() - last[token] <= 2 * both.tolerances.decoding * np.abs(last).max()


def test_processes_end_in_peace() -> None:
    """Threads of the engine may still be waiting when the interpreter takes the library down."""
    child = (
        "import andrea; andrea.set_num_threads(4);"
        "model = andrea.GPT(andrea.ModelConfig(65, 32, 2, 4, 48));"
        "model.forward_backward([[1] * 32] * 2, [[2] * 32] * 2)"
    )
    for _ in range(4):
        done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr or f"ended by signal {-done.returncode}"
