"""GPT-2's smaller start of what is added to the residual stream: what it does, and if it helps."""

from __future__ import annotations

from collections.abc import Callable

from .drawings import gradient_profile, loss_curves, stream_profile
from .experiment import Contrast, Experiment, Measure, OfSeed, Variant, lower_loss
from .run import stream_growth
from .settings import is_quick, small_model, training

_DEPTHS = {True: (4, 16), False: (4, 12, 48)}
_STEPS = {True: 200, False: 1500}
# A hundredth of a nat of loss counts; a stream that grows a tenth less does, too.
_NATS, _PERCENT = 0.01, 10.0


def residual_init(mode: str, vocab_size: int, steps: int | None = None) -> Experiment:
    """Projections to the stream start smaller by sqrt(2 n_layer), or like all other weights."""
    quick = is_quick(mode)
    depths, train = _DEPTHS[quick], training(steps or _STEPS[quick])
    variants = tuple(
        Variant(
            _name(depth, scaled),
            small_model(vocab_size, n_layer=depth, scaled_init=scaled),
            train,
            {"blocks": depth, "start": "scaled" if scaled else "unscaled"},
        )
        for depth in depths
        for scaled in (True, False)
    )
    few, many = depths[0], depths[-1]
    return Experiment(
        name="residual-init",
        title="Scaled and unscaled start of the residual projections",
        claim=(
            "Every block adds to the residual stream, so the projections that add to it start "
            "smaller by the square root of their number: the stream then starts equally large at "
            "every depth, and deep models train better."
        ),
        variants=variants,
        contrasts=(
            Contrast(
                f"Before training, {many} unscaled blocks make the stream grow by at least "
                f"{_PERCENT:g}% more than scaled ones",
                _growth_ratio(_name(many, False), _name(many, True)),
                _PERCENT,
                unit="%",
            ),
            Contrast(
                f"Before training, the stream grows over {many} scaled blocks as over {few}: by a "
                f"factor that differs by at most {_PERCENT:g}%",
                _growth_ratio(_name(many, True), _name(few, True)),
                _PERCENT,
                unit="%",
                alike=True,
            ),
            Contrast(
                f"At {many} blocks the loss is lower by at least {_NATS} nats with the scaled "
                "start",
                lower_loss(_name(many, True), _name(many, False)),
                _NATS,
            ),
        ),
        seeds=5,
        mode=mode,
        measures=(Measure("stream after/before blocks", stream_growth, 2),),
        drawings=(
            stream_profile("stream", "start", _at_depth(many)),
            gradient_profile("gradients-start", 0.0, "start", _at_depth(many)),
            loss_curves("loss", _at_depth(many)),
        ),
    )


def _name(depth: int, scaled: bool) -> str:
    return f"{depth} blocks, {'scaled' if scaled else 'unscaled'}"


def _at_depth(depth: int) -> Callable[[Variant], bool]:
    return lambda variant: bool(variant.factors["blocks"] == depth)


def _growth_ratio(variant: str, than: str) -> Callable[[OfSeed], float]:
    def value(runs: OfSeed) -> float:
        one, other = stream_growth(runs[variant]), stream_growth(runs[than])
        if one is None or other is None:
            raise KeyError(variant)
        return 100 * (one / other - 1)

    return value
