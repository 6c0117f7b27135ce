"""Skip connections: what they do to gradients, and whether deep models learn without them."""

from __future__ import annotations

from collections.abc import Callable

from .drawings import gradient_profile, loss_curves, loss_over
from .experiment import Contrast, Experiment, Measure, OfSeed, larger, lower_loss
from .run import Run, first_over_last
from .settings import is_quick, training
from .switched import Switch, at_depth

_DEPTHS = {True: (2, 6, 12), False: (2, 4, 8, 12, 24, 48)}
_STEPS = {True: 200, False: 400}
# A tenth of a nat is some 4% of the loss of such models; a power of ten is not to be overlooked.
_NATS, _POWERS = 0.1, 1.0
_SKIP = Switch("residual", "skip connections", "with", "without")


def residual(mode: str, vocab_size: int, steps: int | None = None) -> Experiment:
    """With and without skip connections at several depths, all else equal."""
    quick = is_quick(mode)
    depths, train = _DEPTHS[quick], training(steps or _STEPS[quick])
    few, many = depths[0], depths[-1]
    skipping, plain = (_SKIP.name(many, is_on) for is_on in (True, False))
    return Experiment(
        name="residual",
        title="With and without skip connections",
        claim=(
            "Skip connections let the gradient reach the early blocks, so that deep models learn; "
            "without them it fades on its way, and the deeper the model, the less it learns."
        ),
        variants=_SKIP.variants(vocab_size, depths, train),
        contrasts=(
            Contrast(
                f"Before training, the gradient of the first of {many} blocks, beside that of the "
                f"last, is at least {10**_POWERS:.0f} times as large with skip connections as "
                "without",
                larger(first_over_last, skipping, plain),
                _POWERS,
                unit=" powers of ten",
            ),
            Contrast(
                f"The same at the end of training: at least {10**_POWERS:.0f} times",
                larger(_at_end, skipping, plain),
                _POWERS,
                unit=" powers of ten",
            ),
            Contrast(
                f"At {many} blocks the loss with skip connections is lower by at least {_NATS} "
                "nats",
                lower_loss(skipping, plain),
                _NATS,
            ),
            Contrast(
                f"From {few} to {many} blocks, what skip connections gain grows by at least "
                f"{_NATS} nats",
                _growth(few, many),
                _NATS,
            ),
            Contrast(
                f"With skip connections, {many} blocks are no worse than {few} by more than "
                f"{_NATS} nats",
                lower_loss(skipping, _SKIP.name(few, True)),
                -_NATS,
            ),
        ),
        seeds=4 if quick else 5,
        mode=mode,
        measures=(
            Measure("first/last at start, 10^", first_over_last, 2),
            Measure("at the end, 10^", _at_end, 2),
        ),
        drawings=(
            gradient_profile("gradients-start", 0.0, "skip connections", at_depth(many)),
            gradient_profile("gradients-end", 1.0, "skip connections", at_depth(many)),
            loss_over("blocks", "skip connections"),
            loss_curves("loss", at_depth(many)),
        ),
    )


def _growth(few: int, many: int) -> Callable[[OfSeed], float]:
    gains = [lower_loss(_SKIP.name(depth, True), _SKIP.name(depth, False)) for depth in (few, many)]

    def value(runs: OfSeed) -> float:
        return gains[1](runs) - gains[0](runs)

    return value


def _at_end(run: Run) -> float | None:
    return first_over_last(run, at_end=True)
