"""What this machine offers: its speed with the engine, measured, and its free memory.

For planning; the numbers steer choices and estimates, never results.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from andrea.config import ModelConfig

from .sizes import flops_per_token

if TYPE_CHECKING:
    from andrea._library import CudaInfo
    from andrea.model import GPT
    from andrea.training.config import TrainConfig

# Large enough for matrix products to run as in a real model, small enough for a step in a blink.
_PROBE_CONFIG = ModelConfig(vocab_size=512, block_size=128, n_layer=2, n_head=4, n_embd=256)
_PROBE_BATCH = 8
# A GPU is full at thousands of tokens only.
_GPU_PROBE_CONFIG = ModelConfig(vocab_size=4096, block_size=512, n_layer=4, n_head=12, n_embd=768)
_GPU_PROBE_BATCH = 16


def measure_flops(*, device: str = "auto", precision: str = "auto", seconds: float = 0.7) -> float:
    """Floating-point operations per second that training reaches here, from a small model."""
    from andrea.model import GPT

    config, batch_size = _PROBE_CONFIG, _PROBE_BATCH
    if is_gpu(device) and not _cuda().simulated:
        config, batch_size = _GPU_PROBE_CONFIG, _GPU_PROBE_BATCH
    model = GPT(config, device=device, precision=precision)
    tokens = _random_tokens(config, batch_size)
    fastest = _time(lambda: model.forward_backward(tokens, tokens), seconds)
    model.close()
    return flops_per_token(config, training=True) * tokens.size / fastest


def probe(model: GPT, config: TrainConfig, *, seconds: float = 1.0) -> float:
    """Seconds of a training step of this model, from a few real ones; then the model is reset.

    A new model ends as it was, initialised from config.seed: not for one that has learned.
    """
    tokens = _random_tokens(model.config, config.batch_size)
    batch = _time(lambda: model.forward_backward(tokens, tokens), seconds)
    update = _time(lambda: model.step(config.learning_rate), seconds / 10)
    model.reset(config.seed)
    return config.accumulate * batch + update


def is_gpu(device: str) -> bool:
    """Whether a device's name means a GPU here; "auto" does where one can be used."""
    return device.startswith("cuda") or (device == "auto" and _cuda().usable)


def available_memory(device: str = "cpu") -> int | None:
    """Bytes that this process may still take on a device; None where nothing tells.

    On the CPU: without swapping, and within the limits of a container and of the process.
    """
    if is_gpu(device):
        cuda = _cuda()
        return (cuda.memory_free or cuda.memory_total) or None
    sources = (_system_memory(), _cgroup_memory(), _process_limit())
    return min((amount for amount in sources if amount is not None), default=None)


def _cuda() -> CudaInfo:
    from andrea._library import cuda_info

    return cuda_info()


def _random_tokens(
    config: ModelConfig, batch_size: int
) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    random = np.random.Generator(np.random.Philox(0))
    return random.integers(config.vocab_size, size=(batch_size, config.block_size), dtype=np.int32)


def _time(work: Callable[[], object], seconds: float) -> float:
    """The shortest time of several calls; the first one, which allocates, only counts alone."""
    start = time.perf_counter()
    work()
    shortest = first = time.perf_counter() - start
    spent, is_first = first, True
    while spent < seconds:
        start = time.perf_counter()
        work()
        last = time.perf_counter() - start
        shortest = last if is_first else min(shortest, last)
        spent, is_first = spent + last, False
    return shortest


def _system_memory() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    except (OSError, ValueError):
        pass
    try:
        # Without a figure for what is free, half of what there is.
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, OSError, ValueError):
        return None


def _cgroup_memory() -> int | None:
    """What a container's limit leaves (cgroup v2); its file cache can be taken back."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit = int((folder / "memory.max").read_text(encoding="ascii"))
        statistics = dict(
            line.split()
            for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines()
        )
        return max(limit - int(statistics["anon"]) - int(statistics.get("kernel", 0)), 0)
    except (OSError, ValueError, KeyError):  # no limit reads "max"
        return None


def _process_limit() -> int | None:
    """What `ulimit -v` leaves to this process."""
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit == resource.RLIM_INFINITY:
            return None
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        return max(limit - pages * os.sysconf("SC_PAGE_SIZE"), 0)
    except (ImportError, OSError, ValueError):
        return None
