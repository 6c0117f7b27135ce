"""What it costs to keep a log, a report and a live display: training with them beside bare steps.

    python benchmarks/overhead.py [--shape tiny] [--rounds 5] [--steps 200]

In turn, in one process: steps alone (training.step.StepWork), and the same steps in a run folder
with log, report.html and the live display of a terminal; no evaluations, no checkpoints on the way.
Two figures: how much longer a step takes, and the share of time spent outside of the steps' work
(the first also has what other threads take from the engine, and the noise of the machine).
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from machine import machine, machine_line
from rich.console import Console
from shapes import Shape, shape_of

import andrea
from andrea.cli.screen.display import Progress
from andrea.cli.screen.live_display import LiveDisplay
from andrea.data import PreparedData
from andrea.reporting.writer import ReportWriter
from andrea.runs import RunFolder
from andrea.tokenizers.byte import ByteTokenizer
from andrea.training import TrainConfig, TrainState, guards, train
from andrea.training.step import StepWork

FIRST = 10  # steps that are not counted


def data_of(shape: Shape) -> PreparedData:
    tokens = np.random.default_rng(0).integers(shape.vocab_size, size=1 << 20).astype(np.uint16)
    return PreparedData(
        train=tokens,
        validation=tokens[:0],
        tokenizer=ByteTokenizer(),
        train_bytes=len(tokens),
        validation_bytes=0,
        documents=1,
        validation_documents=0,
        skipped={},
        notes=(),
        fingerprint="",
        cached=False,
        validation_wanted=False,
    )


def model_of(shape: Shape) -> andrea.GPT:
    sizes = {name: getattr(shape, name) for name in ("block_size", "n_layer", "n_embd", "n_head")}
    vocab_size = ByteTokenizer().vocab_size
    return andrea.GPT(andrea.ModelConfig(vocab_size=vocab_size, **sizes), device="cpu")


def bare(shape: Shape, data: PreparedData, config: TrainConfig, steps: int) -> float:
    """Seconds of a step by itself."""
    work = StepWork(model_of(shape), data.train, config)
    limits = guards.limits(TrainState(), config)
    for step in range(FIRST):
        work.do(step, config.learning_rate, limits)
    start = time.perf_counter()
    for step in range(FIRST, FIRST + steps):
        work.do(step, config.learning_rate, limits)
    return (time.perf_counter() - start) / steps


def watched(
    shape: Shape, data: PreparedData, config: TrainConfig, steps: int, folder: Path
) -> tuple[float, float]:
    """Seconds of a step in a run that is logged and shown, and those of its work alone."""
    model = model_of(shape)
    inside, real = 0.0, StepWork.do

    def timed(self: StepWork, *arguments: object) -> tuple[float, float]:
        nonlocal inside
        start = time.perf_counter()
        told = real(self, *arguments)  # type: ignore[arg-type]
        inside += time.perf_counter() - start
        return told

    StepWork.do = timed  # type: ignore[method-assign,assignment]
    started = 0.0
    try:
        with (
            open(os.devnull, "w") as nowhere,
            RunFolder.create(
                folder, model=model.config, train=config, tokenizer=data.tokenizer
            ) as run,
            ReportWriter(folder) as report_page,
        ):
            run.subscribe(report_page)
            display = LiveDisplay(Console(file=nowhere, force_terminal=True, width=120, height=40))
            for report in train(model, data, config, run=run):
                display.progress(
                    Progress(
                        step=report.step,
                        steps=report.steps,
                        fraction=report.progress,
                        loss=report.loss,
                        tokens_per_second=report.tokens_per_second,
                        seconds_left=report.seconds_left,
                        learning_rate=report.learning_rate,
                        gradient_norm=report.gradient_norm,
                    )
                )
                if report.step == FIRST:
                    started, inside = time.perf_counter(), 0.0
                if report.step == FIRST + steps:
                    break
            seconds = time.perf_counter() - started
            display.close()
    finally:
        StepWork.do = real  # type: ignore[method-assign]
    return seconds / steps, inside / steps


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shape", default="tiny")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    shape, data = shape_of(arguments.shape), None
    data = data_of(shape)
    config = TrainConfig(
        batch_size=shape.batch_size, learning_rate=1e-3, steps=1_000_000, seed=1, eval_every=0
    )
    print(machine_line(machine()))
    print(f"{arguments.shape}: {shape}, {arguments.steps} steps a round")
    longer, outside = [], []
    for number in range(1, arguments.rounds + 1):
        alone = bare(shape, data, config, arguments.steps)
        with tempfile.TemporaryDirectory() as folder:
            whole, work = watched(shape, data, config, arguments.steps, Path(folder) / "run")
        longer.append(whole / alone - 1)
        outside.append((whole - work) / whole)
        print(
            f"round {number}: step {1e3 * alone:.3f} ms alone, {1e3 * whole:.3f} ms watched, "
            f"{1e6 * (whole - work):.0f} us of it outside of the work"
        )
    print(
        f"medians: {statistics.median(longer):+.2%} longer, "
        f"{statistics.median(outside):.2%} outside of the work"
    )


if __name__ == "__main__":
    main()
