"""mg_op_cached_attention_forward: decoding gives what attention over the whole sequence gives."""

from __future__ import annotations

import numpy as np
import pytest

from ops.device import Device, Written, output
from reference import ops
from reference.bfloat16 import UNIT
from reference.compare import assert_close

# As in test_attention.py, if the probabilities are rounded here too.
TOLERANCE = {"fp32": 1e-6, "bf16": 1.0 * UNIT}


@pytest.mark.parametrize("head_dim", [1, 3, 8, 17, 32, 64, 80])
@pytest.mark.parametrize(
    "sizes",
    [[1] * 9, [9], [4, 1, 3, 1], [70, 1, 2]],
    ids=["one by one", "at once", "mixed", "after a prompt"],
)
def test_sequences_fed_in_turn(
    device: Device, rng: np.random.Generator, head_dim: int, sizes: list[int]
) -> None:
    """Sequence 2 is one token behind sequence 0; sequence 1 of the three is never fed."""
    NH, sequences, capacity = 2, 3, sum(sizes)
    C = NH * head_dim
    qkv = device.rounded(rng.standard_normal((sequences, capacity, 3 * C), np.float32))
    expected, _ = ops.attention_forward(qkv.astype(float), NH)
    cache = device.opaque("cache_bytes", sequences, capacity, C)
    done = 0
    for size in sizes:
        rows = [(0, t) for t in range(done, done + size)]
        rows += [(2, t) for t in range(max(0, done - 1), done + size - 1)]
        which, positions = np.array(rows, np.int32).T.copy()
        out, cache_values = device.run(
            "cached_attention_forward",
            output(len(rows), C),
            cache,
            qkv[which, positions],
            which,
            positions,
            len(rows),
            capacity,
            C,
            NH,
        )
        cache = Written(cache_values)
        tolerance = TOLERANCE[device.precision]
        assert_close("out", out, expected[which, positions], tolerance, device.unit)
        done += size


def test_a_position_written_again_is_forgotten(device: Device, rng: np.random.Generator) -> None:
    NH, C, capacity = 1, 8, 4
    old, new = device.rounded(rng.standard_normal((2, 1, capacity, 3 * C), np.float32))
    cache = device.opaque("cache_bytes", 1, capacity, C)
    positions = np.arange(capacity, dtype=np.int32)
    which = np.zeros(capacity, np.int32)
    for qkv in (old, new):
        out, cache_values = device.run(
            "cached_attention_forward",
            output(capacity, C),
            cache,
            qkv[0],
            which,
            positions,
            capacity,
            capacity,
            C,
            NH,
        )
        cache = Written(cache_values)
    expected = ops.attention_forward(new.astype(float), NH)[0][0]
    assert_close("out", out, expected, TOLERANCE[device.precision], device.unit)
