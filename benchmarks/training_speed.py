"""Training speed of Andrea, and of PyTorch where it is installed, in turn in one run.

Each measurement is a fresh process; the two alternate (A B A B ...), so that a machine that changes
its speed changes it for both. Told are medians, and the ratio round by round.

usage: python benchmarks/training_speed.py [--shape tiny] [--rounds 5] [--threads N]
                                           [--torch-python PATH]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from shapes import SHAPES, Shape


def andrea_step(
    shape: Shape, inputs: np.ndarray, targets: np.ndarray, threads: int
) -> Callable[[], float]:
    import andrea

    andrea.set_num_threads(threads)
    config = andrea.ModelConfig(
        vocab_size=shape.vocab_size,
        block_size=shape.block_size,
        n_layer=shape.n_layer,
        n_head=shape.n_head,
        n_embd=shape.n_embd,
    )
    model = andrea.GPT(config, device="cpu", precision="fp32", seed=0)
    return lambda: model.train_step(inputs, targets, learning_rate=3e-4)


def measure(engine: str, shape: Shape, threads: int, seconds: float) -> dict[str, float]:
    """Steps for that many seconds after two to warm up: tokens/s by the median step, peak MB."""
    rng = np.random.default_rng(0)
    inputs, targets = rng.integers(
        0, shape.vocab_size, (2, shape.batch_size, shape.block_size), dtype=np.int32
    )
    if engine == "torch":
        from torch_gpt import training_step

        step = training_step(shape, inputs, targets, threads)
    else:
        step = andrea_step(shape, inputs, targets, threads)
    step()
    step()
    times: list[float] = []
    while sum(times) < seconds or len(times) < 5:
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"tokens_per_second": shape.tokens / statistics.median(times), "peak_mb": peak}


def in_a_process(python: str, engine: str, arguments: argparse.Namespace) -> dict[str, float]:
    command = [python, __file__, "--child", engine, "--shape", arguments.shape]
    command += ["--threads", str(arguments.threads), "--seconds", str(arguments.seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def has_torch(python: str) -> bool:
    return subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument(
        "--torch-python", default=sys.executable, help="a Python that has PyTorch and NumPy"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        shape = SHAPES[arguments.shape]
        result = measure(arguments.child, shape, arguments.threads, arguments.seconds)
        print(json.dumps(result))
        return
    with_torch = has_torch(arguments.torch_python)
    print(f"{arguments.shape}, {arguments.threads} threads, tokens/s")
    rows: list[tuple[float, float]] = []
    peaks: dict[str, float] = {}
    for number in range(1, arguments.rounds + 1):
        ours = in_a_process(sys.executable, "andrea", arguments)
        line, peaks["andrea"] = (
            f"{number}  andrea {ours['tokens_per_second']:8.0f}",
            ours["peak_mb"],
        )
        if with_torch:
            theirs = in_a_process(arguments.torch_python, "torch", arguments)
            rows.append((ours["tokens_per_second"], theirs["tokens_per_second"]))
            peaks["torch"] = theirs["peak_mb"]
            line += f"  torch {rows[-1][1]:8.0f}  ratio {rows[-1][0] / rows[-1][1]:.2f}"
        else:
            rows.append((ours["tokens_per_second"], float("nan")))
        print(line, flush=True)
    print(f"median  andrea {statistics.median(a for a, _ in rows):8.0f}", end="")
    if with_torch:
        print(f"  torch {statistics.median(b for _, b in rows):8.0f}", end="")
        print(f"  ratio {statistics.median(a / b for a, b in rows):.2f}", end="")
    print("\npeak memory, MB: " + ", ".join(f"{name} {peak:.0f}" for name, peak in peaks.items()))
    if not with_torch:
        print(f"{Path(arguments.torch_python).name} has no torch: Andrea alone was measured")


if __name__ == "__main__":
    main()
