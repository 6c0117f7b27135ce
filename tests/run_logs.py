"""Logs of runs as `andrea train` writes them, of any length, for tests of what reads them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

RUN_ID = "0123456789abcdef"
BEGAN = datetime(2026, 11, 29, 22, 15, tzinfo=timezone.utc)
MODEL = {"vocab_size": 66, "block_size": 64, "n_layer": 2, "n_head": 2, "n_embd": 64}
CONFIG = {"batch_size": 8, "accumulate": 2, "learning_rate": 0.002, "steps": 40, "seed": 7}

Event = dict[str, Any]


def loss_at(step: int) -> float:
    return 4.2 / (1 + 0.1 * step) + 1.5


def event(kind: str, second: float, /, **fields: Any) -> Event:
    time = (BEGAN + timedelta(seconds=second)).isoformat(timespec="milliseconds")
    return {"type": kind, "run_id": RUN_ID, "ts": time.replace("+00:00", "Z"), **fields}


def start(second: float = 0.0, **fields: Any) -> Event:
    schema = "unfirehose/1.0/training-run"
    return event("run.start", second, schema=schema, model=MODEL, config=CONFIG, **fields)


def step_event(step: int, second: float | None = None, **changes: Any) -> Event:
    fields = {
        "step": step,
        "loss": loss_at(step),
        "lr": 0.002 - 0.00001 * step,
        "gradient_norm": 1 + 1 / step,
        "tokens_per_second": 1000.0 + step,
    }
    return event("run.loss", step if second is None else second, **{**fields, **changes})


def evaluation(step: int, second: float | None = None, **changes: Any) -> Event:
    fields = {"eval": "validation", "score": loss_at(step) + 0.1, "bits_per_byte": loss_at(step)}
    at = step + 0.5 if second is None else second
    return event("run.eval", at, step=step, **{**fields, **changes})


def sample(step: int, text: str, second: float | None = None, **more: Any) -> Event:
    at = step + 0.6 if second is None else second
    return event("run.sample", at, step=step, text=text, loss=loss_at(step), **more)


def whole_run(steps: int = 40, every: int = 10) -> list[Event]:
    """A run that went well: evaluations, samples and checkpoints at every tenth step."""
    events = [start(), event("run.checkpoint", 0.1, step=0, path="x/step-0", size_bytes=100)]
    for step in range(1, steps + 1):
        events.append(step_event(step))
        if step % every == 0:
            events.append(evaluation(step, best=True))
            events.append(sample(step, f"text after {step}", prompt="Once", coherence=20.0 + step))
            path = f"runs/x/checkpoints/step-{step:08}.safetensors"
            events.append(
                event("run.checkpoint", step + 0.7, step=step, path=path, size_bytes=900, seconds=1)
            )
    events.append(event("run.end", steps + 1, final_loss=loss_at(steps), wall_ms=41_000))
    return events


def write_log(folder: Path, events: Iterable[Event]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.jsonl"
    log.write_text("".join(json.dumps(one) + "\n" for one in events), encoding="utf-8")
    return log
