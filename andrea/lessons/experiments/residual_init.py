"""GPT-2's smaller start of what is added to the residual stream: what it does, and if it helps."""

from __future__ import annotations

from .drawings import gradient_profile, loss_curves, stream_profile
from .experiment import Contrast, Experiment, Measure, larger, lower_loss
from .run import stream_growth
from .settings import is_quick, training
from .switched import Switch, at_depth

_DEPTHS = {True: (4, 16), False: (4, 12, 48)}
_STEPS = {True: 200, False: 1500}
# A hundredth of a nat of loss counts; a stream that grows a tenth less does, too.
_NATS, _PERCENT = 0.01, 10.0
_START = Switch("scaled_init", "start", "scaled", "unscaled")


def residual_init(mode: str, vocab_size: int, steps: int | None = None) -> Experiment:
    """Projections to the stream start smaller by sqrt(2 n_layer), or like all other weights."""
    quick = is_quick(mode)
    depths, train = _DEPTHS[quick], training(steps or _STEPS[quick])
    few, many = depths[0], depths[-1]
    scaled, unscaled = (_START.name(many, is_on) for is_on in (True, False))
    return Experiment(
        name="residual-init",
        title="Scaled and unscaled start of the residual projections",
        claim=(
            "Every block adds to the residual stream, so the projections that add to it start "
            "smaller by the square root of their number: the stream then starts equally large at "
            "every depth, and deep models train better."
        ),
        variants=_START.variants(vocab_size, depths, train),
        contrasts=(
            Contrast(
                f"Before training, {many} unscaled blocks make the stream grow by at least "
                f"{_PERCENT:g}% more than scaled ones",
                larger(stream_growth, unscaled, scaled, by=_percent_more),
                _PERCENT,
                unit="%",
            ),
            Contrast(
                f"Before training, the stream grows over {many} scaled blocks as over {few}: by a "
                f"factor that differs by at most {_PERCENT:g}%",
                larger(stream_growth, scaled, _START.name(few, True), by=_percent_more),
                _PERCENT,
                unit="%",
                alike=True,
            ),
            Contrast(
                f"At {many} blocks the loss is lower by at least {_NATS} nats with the scaled "
                "start",
                lower_loss(scaled, unscaled),
                _NATS,
            ),
        ),
        seeds=5,
        mode=mode,
        measures=(Measure("stream after/before blocks", stream_growth, 2),),
        drawings=(
            stream_profile("stream", "start", at_depth(many)),
            gradient_profile("gradients-start", 0.0, "start", at_depth(many)),
            loss_curves("loss", at_depth(many)),
        ),
    )


def _percent_more(one: float, other: float) -> float:
    return 100 * (one / other - 1)
