"""What the comparisons share: settings, the engines there are, and undisturbed measurements."""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

from disturbance import Measurement, undisturbed
from processes import ChildError, Engine, Launcher
from rounds import Round, disturbance, median, ratios
from shapes import Shape

LIMITS = "limits"
_TORCH_MODES = ("eager", "compiled")


def say(text: str) -> None:
    """Progress, beside the tables."""
    print(f"# {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Bench:
    """How everything is measured in this run.

    device: "cpu" or "cuda"; precisions: Andrea's in this run; available: all that it has, whose
    limits are measured; disturbed_share: of the cores, beyond which a measurement is repeated,
    `attempts` times at most; clips: whether PyTorch clips gradients too; torch_precisions: those
    PyTorch is tried in; scaling: whether Andrea trains on 1 thread as well.
    """

    launcher: Launcher
    device: str
    threads: int
    precisions: tuple[str, ...]
    available: tuple[str, ...]
    rounds: int
    seconds: float
    disturbed_share: float
    attempts: int
    clips: bool
    torch_precisions: tuple[str, ...]
    with_torch: bool
    with_llama: bool
    scaling: bool

    def limits(self) -> Measurement:
        """Peaks and bandwidth at 1 thread and at all of them; a GPU's once."""
        counts = [1, self.threads] if self.device == "cpu" else [self.threads]
        request = {"task": LIMITS, "precisions": self.available, "threads": counts}
        return self._undisturbed("andrea", request, self.threads)

    def torch_modes(self, precision: str) -> tuple[str, ...]:
        """PyTorch's modes that are tried: "pure" bfloat16 on a GPU only, where it could be best."""
        pure = self.device != "cpu" and precision == "bf16"
        return (*_TORCH_MODES, "pure") if pure else _TORCH_MODES

    def threads_of(self, engine: Engine) -> int:
        return 1 if engine.alone else self.threads

    def measure(self, task: str, engine: Engine, shape: Shape, share: float = 1.0) -> Measurement:
        """One engine training or decoding for that share of the run's seconds.

        Raises:
            ChildError: it can't be measured here.
        """
        request = {
            "task": task,
            "shape": shape.to_dict(),
            "precision": engine.precision,
            "mode": engine.mode,
            "clips": self.clips,
            "threads": self.threads_of(engine),
            "seconds": share * self.seconds,
        }
        return self._undisturbed(engine.kind, request, self.threads_of(engine))

    def _undisturbed(self, kind: str, request: dict[str, Any], threads: int) -> Measurement:
        request = {**request, "device": self.device}
        run = partial(self.launcher.run, kind, request, threads)
        return undisturbed(run, self.disturbed_share, self.attempts)

    def those_that_run(
        self, task: str, engines: list[Engine], shape: Shape
    ) -> tuple[dict[Engine, Measurement], dict[str, str]]:
        """A short measurement of each engine, and why some are left out."""
        found, left_out = {}, {}
        for engine in engines:
            say(f"does it run: {engine.name}")
            try:
                found[engine] = self.measure(task, engine, shape, share=0.25)
            except ChildError as error:
                left_out[engine.name] = str(error)
                say(f"left out: {engine.name}: {error}")
        return found, left_out


def limits_summary(rounds: list[Round]) -> dict[str, Any]:
    """Medians over the rounds of what the machine can do."""
    last = rounds[-1][LIMITS]
    flat: list[Round] = [
        {
            **{f"flops {p}": one[LIMITS]["flops"][p] for p in last["flops"]},
            "bandwidth": one[LIMITS]["bandwidth"],
        }
        for one in rounds
    ]
    return {
        "flops": {
            precision: {count: median(flat, f"flops {precision}", count) for count in by_threads}
            for precision, by_threads in last["flops"].items()
        },
        "bandwidth": {count: median(flat, "bandwidth", count) for count in last["bandwidth"]},
        **disturbance(rounds, LIMITS),
    }


def comparison(rounds: list[Round], above: str, below: str, key: str) -> dict[str, Any]:
    """One figure of two engines, round by round, and its median."""
    by_round = ratios(rounds, above, below, key)
    return {
        "of": above,
        "to": below,
        "figure": key,
        "rounds": by_round,
        "median": statistics.median(by_round),
        "memory": median(rounds, above, "peak_mb") / median(rounds, below, "peak_mb"),
    }


def comparison_line(told: dict[str, Any], what: str) -> str:
    """A comparison in a line, with the extremes of its rounds."""
    by_round = told["rounds"]
    return (
        f"{told['of']} / {told['to']}{what}: {told['median']:.2f} "
        f"({min(by_round):.2f} to {max(by_round):.2f}); memory {told['memory']:.2f}"
    )
