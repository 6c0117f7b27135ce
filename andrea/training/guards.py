"""What a run is guarded against: bad steps, learning nothing, over-fit, incoherent samples.

Pure functions for the training loop, over what TrainState remembers: a resumed run judges as the
uninterrupted one would.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .reports import Notice

if TYPE_CHECKING:
    from .config import TrainConfig
    from .reports import Evaluation
    from .state import TrainState

WINDOW = 64
"""Steps that say what is usual."""
MIN = 20
"""Steps before which none is judged."""
SHIFT_AFTER = 8
"""Outliers in a row that are taken for a new level: what is usual is then measured afresh."""
NOT_LEARNING_AFTER = 200
"""Steps after the warm-up when the loss is compared with that of knowing frequencies alone."""
OVER_FIT_AFTER = 3
"""Evaluations in a row above the best that are told as over-fitting."""
INCOHERENT_IN_ROW = 5
"""Samples in a row below the coherence gate that end a run."""

# Where a curve is flatter than this, the deviation is taken to be as large, or it cries wolf.
_FLATTEST_LOSS = 0.01
_FLATTEST_NORM = 0.1
# Of a normal distribution, standard deviation over median absolute deviation.
_NORMAL = 1.4826
# Every outlier is in the log; the user hears of the first ones, then of one in so many.
_FIRST_TOLD = 10
_TOLD_EVERY = 100

_FLOAT32 = struct.Struct("f")


class Limits(NamedTuple):
    """The largest loss (nats) and gradient norm of a step that is no outlier; float32 values,
    since that is what a device compares with."""

    loss: float
    norm: float

    def for_step(self, config: TrainConfig) -> dict[str, float]:
        """The arguments of `model.step` that make it leave out an update, where the run wants
        that."""
        if not config.skip_outliers:
            return {}
        return {"skip_loss_above": self.loss, "skip_norm_above": self.norm}


@dataclass(frozen=True)
class Verdict:
    """What a step was. skipped: nothing was updated. outlier: its robust z-score, None where it is
    none. notices: what the user should hear."""

    skipped: bool
    outlier: float | None
    notices: tuple[Notice, ...] = ()


class _Usual(NamedTuple):
    """The middle of recent values, and how far they are from it."""

    median: float
    deviation: float  # as a standard deviation

    @classmethod
    def of(cls, values: list[float], flattest: float, least: float) -> _Usual:
        """Robust against outliers among the values (Hampel 1974); the median is the upper one."""
        middle = len(values) // 2
        median = sorted(values)[middle]
        spread = sorted([abs(value - median) for value in values])[middle]
        return cls(median, _NORMAL * max(spread, flattest * abs(median), least))

    def limit(self, z: float) -> float:
        return _as_float32(self.median + z * self.deviation)

    def z(self, value: float) -> float:
        return (value - self.median) / self.deviation


def _as_float32(value: float) -> float:
    try:
        rounded: float = _FLOAT32.unpack(_FLOAT32.pack(value))[0]
    except OverflowError:
        return math.inf
    return rounded


def _usual_loss(state: TrainState) -> _Usual:
    # A loss near 0 is near 0 by a hundredth of a nat, or the deviation would be nothing.
    return _Usual.of(state.recent_losses, _FLATTEST_LOSS, 0.01)


def _usual_norm(state: TrainState) -> _Usual:
    return _Usual.of(state.recent_norms, _FLATTEST_NORM, 1e-6)


def limits(state: TrainState, config: TrainConfig) -> Limits:
    """What loss and gradient norm of the next step may be; infinite while nothing is known, or
    where config.outlier_z is 0.

    A limit is median + z x 1.4826 x median absolute deviation of the recent values.
    """
    if config.outlier_z == 0 or len(state.recent_losses) < MIN:
        return Limits(math.inf, math.inf)
    z = config.outlier_z
    return Limits(_usual_loss(state).limit(z), _usual_norm(state).limit(z))


def judge(
    state: TrainState, config: TrainConfig, loss: float, norm: float, limits: Limits
) -> Verdict:
    """What the step was that state.step counts already; the state remembers it.

    Args:
        loss: of the step, in nats, as the engine told it.
        norm: of its gradient, before clipping.
        limits: as they were before the step, and as the engine got them.
    """
    if not (math.isfinite(loss) and math.isfinite(norm)):
        state.skipped += 1
        state.skipped_in_row += 1
        text = f"step {state.step} was skipped: its loss or gradient is not finite"
        return Verdict(True, None, (Notice("skipped", text),))
    state.skipped_in_row = 0
    if loss > limits.loss or norm > limits.norm:
        return _outlier(state, config, loss, norm)
    state.outliers_in_row = 0
    for recent, value in ((state.recent_losses, loss), (state.recent_norms, norm)):
        recent.append(value)
        del recent[:-WINDOW]
    return Verdict(False, None)


def _outlier(state: TrainState, config: TrainConfig, loss: float, norm: float) -> Verdict:
    state.outliers += 1
    state.outliers_in_row += 1
    usual_loss, usual_norm = _usual_loss(state), _usual_norm(state)
    z_of_loss, z_of_norm = usual_loss.z(loss), usual_norm.z(norm)
    if z_of_loss >= z_of_norm:
        seen = f"its loss, {loss:.3g}, is far above the usual {usual_loss.median:.3g}"
    else:
        seen = f"its gradient norm, {norm:.3g}, is far above the usual {usual_norm.median:.3g}"
    done = "was skipped" if config.skip_outliers else "is an outlier"
    text = f"step {state.step} {done}: {seen}"
    if state.outliers == _FIRST_TOLD:
        text += f"; from now on one in {_TOLD_EVERY} of those is told"
    is_told = state.outliers <= _FIRST_TOLD or state.outliers % _TOLD_EVERY == 0
    notices = [Notice("outlier", text)] if is_told else []
    if state.outliers_in_row == SHIFT_AFTER:
        state.outliers_in_row = 0
        state.recent_losses.clear()
        state.recent_norms.clear()
        text = f"{SHIFT_AFTER} outliers in a row: step {state.step} begins a new level"
        notices.append(Notice("outlier", f"{text}, and what is usual is measured afresh"))
    return Verdict(config.skip_outliers, max(z_of_loss, z_of_norm), tuple(notices))


def after_evaluation(
    state: TrainState, config: TrainConfig, evaluation: Evaluation
) -> tuple[list[Notice], str | None]:
    """What an evaluation says: notices, and why the run should end now, or None.

    state.best_loss and best_step count the evaluation already.
    """
    if evaluation.is_best or state.best_loss is None:
        state.evaluations_above_best = 0
        return [], None
    state.evaluations_above_best += 1
    times = state.evaluations_above_best
    best = f"its best, {state.best_loss:.4f} at step {state.best_step}"
    notices = []
    if times == OVER_FIT_AFTER:
        text = f"validation loss was above {best}, in {times} evaluations in a row: the model"
        notices.append(Notice("over-fit", f"{text} over-fits; the best checkpoint is kept"))
    if 0 < config.early_stop <= times:
        return notices, f"validation loss was not below {best}, in {times} evaluations in a row"
    return notices, None


def learning_is_judged(state: TrainState, config: TrainConfig) -> bool:
    """Whether `not_learning` has something to say after this step: once in a run."""
    return state.step == config.warmup + NOT_LEARNING_AFTER and len(state.recent_losses) > 0


def mean_recent_loss(state: TrainState) -> float:
    """Of the recent steps that were no outliers, in nats."""
    return math.fsum(state.recent_losses) / len(state.recent_losses)


def not_learning(
    state: TrainState, config: TrainConfig, mean_recent_loss: float, unigram_entropy: float
) -> Notice | None:
    """A hint where the loss is not below the entropy of the tokens' frequencies, both in nats:
    all that was learned then is which tokens are frequent. Nothing where it is not the step for it.
    """
    if not learning_is_judged(state, config) or mean_recent_loss < unigram_entropy:
        return None
    return Notice(
        "not learning",
        f"after {state.step} steps the loss, {mean_recent_loss:.3f}, is not below "
        f"{unigram_entropy:.3f}, which knowing each token's frequency gives: "
        f"try another learning rate than {config.learning_rate:g}, or look at the text",
    )


def after_sample(
    state: TrainState, config: TrainConfig, score: float
) -> tuple[list[Notice], str | None]:
    """What a sample's coherence (0 to 100) says: notices, and why the run should end, or None."""
    gate = config.coherence_gate
    if score >= gate:
        state.incoherent = 0
        return [], None
    state.incoherent += 1
    times = state.incoherent
    text = f"the sample after step {state.step} has coherence {score:.0f}, below {gate:g}"
    notice = Notice("incoherent", f"{text} ({times} of {INCOHERENT_IN_ROW} that end the run)")
    if times < INCOHERENT_IN_ROW:
        return [notice], None
    return [notice], f"{times} samples in a row had a coherence below {gate:g}"
