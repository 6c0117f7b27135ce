"""Skip connections: what they do to gradients, and whether deep models learn without them."""

from __future__ import annotations

from collections.abc import Callable

from .drawings import gradient_profile, loss_curves, loss_over
from .experiment import Contrast, Experiment, Measure, OfSeed, Variant, larger, lower_loss
from .run import Run, first_over_last
from .settings import is_quick, small_model, training

_DEPTHS = {True: (2, 6, 12), False: (2, 4, 8, 12, 24, 48)}
_STEPS = {True: 200, False: 400}
# A tenth of a nat is some 4% of the loss of such models; a power of ten is not to be overlooked.
_NATS, _POWERS = 0.1, 1.0


def residual(mode: str, vocab_size: int, steps: int | None = None) -> Experiment:
    """With and without skip connections at several depths, all else equal."""
    quick = is_quick(mode)
    depths, train = _DEPTHS[quick], training(steps or _STEPS[quick])
    variants = tuple(
        Variant(
            _name(depth, skip),
            small_model(vocab_size, n_layer=depth, residual=skip),
            train,
            {"blocks": depth, "skip connections": "with" if skip else "without"},
        )
        for depth in depths
        for skip in (True, False)
    )
    few, many = depths[0], depths[-1]
    return Experiment(
        name="residual",
        title="With and without skip connections",
        claim=(
            "Skip connections let the gradient reach the early blocks, so that deep models learn; "
            "without them it fades on its way, and the deeper the model, the less it learns."
        ),
        variants=variants,
        contrasts=(
            Contrast(
                f"Before training, the gradient of the first of {many} blocks, beside that of the "
                f"last, is at least {10**_POWERS:.0f} times as large with skip connections as "
                "without",
                larger(first_over_last, _name(many, True), _name(many, False)),
                _POWERS,
                unit=" powers of ten",
            ),
            Contrast(
                f"The same at the end of training: at least {10**_POWERS:.0f} times",
                larger(_at_end, _name(many, True), _name(many, False)),
                _POWERS,
                unit=" powers of ten",
            ),
            Contrast(
                f"At {many} blocks the loss with skip connections is lower by at least {_NATS} "
                "nats",
                lower_loss(_name(many, True), _name(many, False)),
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
                lower_loss(_name(many, True), _name(few, True)),
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
            gradient_profile("gradients-start", 0.0, "skip connections", _at_depth(many)),
            gradient_profile("gradients-end", 1.0, "skip connections", _at_depth(many)),
            loss_over("blocks", "skip connections"),
            loss_curves("loss", _at_depth(many)),
        ),
    )


def _name(depth: int, skip: bool) -> str:
    return f"{depth} blocks, {'with' if skip else 'without'}"


def _at_depth(depth: int) -> Callable[[Variant], bool]:
    return lambda variant: bool(variant.factors["blocks"] == depth)


def _growth(few: int, many: int) -> Callable[[OfSeed], float]:
    gains = [lower_loss(_name(depth, True), _name(depth, False)) for depth in (few, many)]

    def value(runs: OfSeed) -> float:
        return gains[1](runs) - gains[0](runs)

    return value


def _at_end(run: Run) -> float | None:
    return first_over_last(run, at_end=True)
