"""What a run has told so far, in bounded memory: curves, evaluations, samples, notices, sessions.

Fed by the events of the log, while they come or afterwards; for the report and whoever plots.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .curve import Curve
from .events import Event, Timestamps, finite, log_path, read_events, whole

MAX_SAMPLES = 400
MAX_SAMPLE_CHARACTERS = 6000
MAX_NOTICES = 200
MAX_CHECKPOINTS = 50
MAX_SESSIONS = 200


@dataclass(frozen=True)
class Sample:
    """A text that the model wrote after `step`; coherence: 0 to 100."""

    step: int
    text: str
    prompt: str | None = None
    loss: float | None = None
    coherence: float | None = None


@dataclass(frozen=True)
class NoticeAt:
    """What a guard saw at `step`."""

    step: int
    kind: str
    text: str


@dataclass(frozen=True)
class SavedAt:
    """A checkpoint: the step it holds, the name of its file, its bytes, seconds to write it."""

    step: int
    name: str
    size_bytes: int | None
    seconds: float | None


@dataclass(frozen=True)
class Best:
    """The lowest validation loss: nats per token, and bits per byte of text."""

    step: int
    loss: float
    bits_per_byte: float | None


@dataclass
class Session:
    """One stretch of training: when it began, after which step, when it was last heard of.

    Times are seconds since 1970. reason: why it ended; None where that was not told, as while it
    goes on or when it was killed.
    """

    began: float | None
    first_step: int
    last_step: int
    heard: float | None
    ended: bool = False
    reason: str | None = None

    @property
    def seconds(self) -> float:
        """From its first to its last event."""
        if self.began is None or self.heard is None:
            return 0.0
        return max(self.heard - self.began, 0.0)


@dataclass
class Metrics:
    """All that a run has told.

    model, config, environment, plan, data: as in the newest run.start. loss, learning_rate,
    gradient_norm, tokens_per_second, validation (nats per token), bits_per_byte, and seconds
    (of training, pauses between sessions left out): over steps. skipped: steps without an update,
    outliers: steps far from those before; the newest are in skipped_steps and outlier_steps.
    """

    run_id: str | None = None
    model: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    loss: Curve = field(default_factory=Curve)
    learning_rate: Curve = field(default_factory=Curve)
    gradient_norm: Curve = field(default_factory=Curve)
    tokens_per_second: Curve = field(default_factory=Curve)
    seconds: Curve = field(default_factory=Curve)
    validation: Curve = field(default_factory=Curve)
    bits_per_byte: Curve = field(default_factory=Curve)
    step: int = 0
    best: Best | None = None
    skipped: int = 0
    skipped_steps: deque[int] = field(default_factory=lambda: deque(maxlen=MAX_NOTICES))
    outliers: int = 0
    outlier_steps: deque[int] = field(default_factory=lambda: deque(maxlen=MAX_NOTICES))
    samples: list[Sample] = field(default_factory=list)
    notices: deque[NoticeAt] = field(default_factory=lambda: deque(maxlen=MAX_NOTICES))
    notice_counts: Counter[str] = field(default_factory=Counter)
    checkpoints: deque[SavedAt] = field(default_factory=lambda: deque(maxlen=MAX_CHECKPOINTS))
    checkpoint_count: int = 0
    sessions: list[Session] = field(default_factory=list)
    _seconds_before: float = 0.0
    _sample_stride: int = 1
    _samples_heard: int = 0
    _times: Timestamps = field(default_factory=Timestamps)

    @classmethod
    def from_log(cls, path: Path) -> Metrics:
        """Read the log of a run, given by its folder, a checkpoint in it, or the log itself.

        Raises:
            RunError: there is no log, or it cannot be read.
        """
        metrics = cls()
        for event in read_events(log_path(path)):
            metrics.add(event)
        return metrics

    @property
    def is_ended(self) -> bool:
        """Whether the newest session told that it ended."""
        return bool(self.sessions) and self.sessions[-1].ended

    @property
    def began(self) -> float | None:
        """When the first session began, in seconds since 1970."""
        return self.sessions[0].began if self.sessions else None

    @property
    def heard(self) -> float | None:
        """When the newest event was written, in seconds since 1970."""
        return self.sessions[-1].heard if self.sessions else None

    @property
    def total_seconds(self) -> float:
        """Of all sessions, pauses between them left out."""
        return self._seconds_before + (self.sessions[-1].seconds if self.sessions else 0.0)

    def add(self, event: Event) -> None:
        """Take in an event of the log; what cannot be understood is passed over."""
        kind = event.get("type")
        when = self._times.parse(event.get("ts"))
        if kind == "run.start":
            self._start(event, when)
            return
        if not self.sessions:
            self.sessions.append(Session(when, 0, 0, when))
        session = self.sessions[-1]
        if when is not None and (session.heard is None or when >= session.heard):
            session.heard = when
        if kind == "run.end":
            session.ended = True
            session.reason = _text(event.get("reason"))
            return
        step = whole(event.get("step"))
        if step is None:
            return
        session.ended = False
        if step > self.step:
            self.step = session.last_step = step
        if kind == "run.loss":
            self._step(step, event)
        elif kind == "run.eval":
            self._evaluation(step, event)
        elif kind == "run.sample":
            self._sample(step, event)
        elif kind == "run.notice":
            notice = NoticeAt(step, _text(event.get("kind")) or "", _text(event.get("text")) or "")
            self.notices.append(notice)
            self.notice_counts[notice.kind] += 1
        elif kind == "run.checkpoint":
            self._checkpoint(step, event)

    def _start(self, event: Event, when: float | None) -> None:
        run_id = event.get("run_id")
        resumed = whole(event.get("resumed_step"))
        if self.run_id is not None and run_id != self.run_id:
            self.__init__()  # type: ignore[misc]
        self.run_id = run_id if isinstance(run_id, str) else None
        for name in ("model", "config", "environment", "plan", "data"):
            value = event.get(name)
            # A resume need not say again what has not changed.
            if isinstance(value, dict) and value:
                setattr(self, name, value)
        if self.sessions:
            if when is not None and self.sessions[-1].began == when:
                return  # heard twice: in the log, and as it was written
            self._seconds_before += self.sessions[-1].seconds
            self._take_back(resumed or 0)
        if len(self.sessions) >= MAX_SESSIONS:
            del self.sessions[1]
        self.sessions.append(Session(when, resumed or 0, resumed or 0, when))

    def _take_back(self, step: int) -> None:
        """Forget what came after the step that a resume starts from."""
        if self.step <= step:
            return
        self.step = step
        for curve in (
            self.loss,
            self.learning_rate,
            self.gradient_norm,
            self.tokens_per_second,
            self.seconds,
            self.validation,
            self.bits_per_byte,
        ):
            curve.cut(step)
        self.samples = [sample for sample in self.samples if sample.step <= step]
        while self.notices and self.notices[-1].step > step:
            self.notice_counts[self.notices.pop().kind] -= 1
        while self.checkpoints and self.checkpoints[-1].step > step:
            self.checkpoints.pop()
            self.checkpoint_count -= 1
        while self.skipped_steps and self.skipped_steps[-1] > step:
            self.skipped_steps.pop()
            self.skipped -= 1
        while self.outlier_steps and self.outlier_steps[-1] > step:
            self.outlier_steps.pop()
            self.outliers -= 1
        if self.best is not None and self.best.step > step:
            lowest = min(self.validation.buckets, key=lambda bucket: bucket.low, default=None)
            self.best = None if lowest is None else Best(lowest.first, lowest.low, None)

    def _step(self, step: int, event: Event) -> None:
        # Written out, since it is done at every step of a run: a loop over names takes longer.
        if (value := finite(event.get("loss"))) is not None:
            self.loss.add(step, value)
        if (value := finite(event.get("lr"))) is not None:
            self.learning_rate.add(step, value)
        if (value := finite(event.get("gradient_norm"))) is not None:
            self.gradient_norm.add(step, value)
        if (value := finite(event.get("tokens_per_second"))) is not None:
            self.tokens_per_second.add(step, value)
        session = self.sessions[-1]
        if session.heard is not None and session.began is not None:
            self.seconds.add(step, self._seconds_before + session.heard - session.began)
        if event.get("skipped"):
            self.skipped += 1
            self.skipped_steps.append(step)
        if event.get("outlier"):
            self.outliers += 1
            self.outlier_steps.append(step)

    def _evaluation(self, step: int, event: Event) -> None:
        loss, bits = finite(event.get("score")), finite(event.get("bits_per_byte"))
        if loss is None or event.get("eval", "validation") != "validation":
            return
        self.validation.add(step, loss)
        if bits is not None:
            self.bits_per_byte.add(step, bits)
        if self.best is None or loss < self.best.loss:
            self.best = Best(step, loss, bits)

    def _sample(self, step: int, event: Event) -> None:
        text = _text(event.get("text"))
        if text is None:
            return
        if len(text) > MAX_SAMPLE_CHARACTERS:
            text = text[:MAX_SAMPLE_CHARACTERS] + " ..."
        # One of every stride is kept, and the newest: it gives way to the next one if it is none.
        if self.samples and (self._samples_heard - 1) % self._sample_stride:
            self.samples.pop()
        self.samples.append(
            Sample(
                step,
                text,
                _text(event.get("prompt")),
                finite(event.get("loss")),
                finite(event.get("coherence")),
            )
        )
        self._samples_heard += 1
        if len(self.samples) > MAX_SAMPLES:
            newest = self.samples[-1]
            self._sample_stride *= 2
            self.samples = self.samples[::2]
            if self.samples[-1] is not newest:
                self.samples.append(newest)

    def _checkpoint(self, step: int, event: Event) -> None:
        name = Path(_text(event.get("path")) or "").name
        size = finite(event.get("size_bytes"))
        self.checkpoints.append(
            SavedAt(step, name, None if size is None else int(size), finite(event.get("seconds")))
        )
        self.checkpoint_count += 1


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
