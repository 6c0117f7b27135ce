"""How wide the MLP should be: at the same width of the model, and at the same parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from andrea.config import ModelConfig
from andrea.lessons.pictures import Picture
from andrea.planning.sizes import flops_per_token, num_parameters
from andrea.words import count

from .drawings import drawing, legend, line, loss_curves
from .experiment import Contrast, Drawing, Experiment, Table, Variant, lower_loss
from .results import Results
from .settings import is_quick, small_model, training

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_RATIOS = (1, 2, 4, 8)
_USUAL = 4
_DEPTH = {True: 4, False: 8}
_STEPS = {True: 400, False: 2500}
_NATS = 0.02
# Two heads leave a width to choose among many, so that equal parameters are equal to 2%.
_HEADS = 2
_WIDTHS = range(32, 257, _HEADS)


def mlp_ratio(mode: str, vocab_size: int, steps: int | None = None) -> Experiment:
    """MLPs of 1, 2, 4 and 8 times the model's width; the model as wide, or as large."""
    quick = is_quick(mode)
    train, depth = training(steps or _STEPS[quick]), _DEPTH[quick]
    usual = small_model(vocab_size, n_layer=depth, n_head=_HEADS)
    variants = []
    for kind in ("parameters", "width"):
        for ratio in _RATIOS:
            if kind == "width" and ratio == _USUAL:
                continue  # it is the same model
            model = (
                _of_width(usual, usual.n_embd, ratio) if kind == "width" else _of_size(usual, ratio)
            )
            factors = {"ratio": ratio, "equal": kind, "n_embd": model.n_embd}
            variants.append(Variant(_name(kind, ratio), model, train, factors))
    others = [ratio for ratio in _RATIOS if ratio != _USUAL]
    base = _name("parameters", _USUAL)
    return Experiment(
        name="mlp-ratio",
        title="The MLP 1, 2, 4 and 8 times as wide as the model",
        claim=(
            "The MLP works in a space four times as wide as the model. For the same number of "
            "parameters, no other ratio is better than that by a difference that counts; for the "
            "same width, a wider MLP is better, and costs more."
        ),
        variants=tuple(variants),
        contrasts=(
            *(
                Contrast(
                    f"At equal parameters, ratio {_USUAL} is no worse than {ratio} by more than "
                    f"{_NATS} nats",
                    lower_loss(base, _name("parameters", ratio)),
                    -_NATS,
                )
                for ratio in others
            ),
            Contrast(
                f"At equal width, ratio {_USUAL} has a loss lower than 1 by at least {_NATS} nats",
                lower_loss(base, _name("width", 1)),
                _NATS,
            ),
            Contrast(
                f"At equal width, ratio 8 has a loss lower than {_USUAL} by at least {_NATS} nats",
                lower_loss(_name("width", 8), base),
                _NATS,
                decides=False,
            ),
        ),
        seeds=4 if quick else 5,
        mode=mode,
        gradient_steps=(0.0, 1.0),
        drawings=(
            _against(
                "ratio",
                "width of the MLP (widths of the model)",
                lambda one: float(one.factors["ratio"]),
            ),
            _against("parameters", "parameters", lambda one: num_parameters(one.model)),
            _against(
                "operations",
                "operations to train on a token (FLOP)",
                lambda one: flops_per_token(one.model, training=True),
            ),
            loss_curves("loss", lambda variant: variant.factors["equal"] == "parameters"),
        ),
        tables=lambda results: (_costs(results),),
    )


def _name(kind: str, ratio: int) -> str:
    return f"ratio {ratio}, equal {kind}"


def _of_width(usual: ModelConfig, n_embd: int, ratio: int) -> ModelConfig:
    sizes = {"n_layer": usual.n_layer, "n_head": _HEADS, "n_embd": n_embd}
    return small_model(usual.vocab_size, **sizes, mlp_dim=ratio * n_embd)


def _of_size(usual: ModelConfig, ratio: int) -> ModelConfig:
    """The model whose parameters are nearest to the usual one's."""
    wanted = num_parameters(usual)
    models = [_of_width(usual, width, ratio) for width in _WIDTHS]
    return min(models, key=lambda model: abs(num_parameters(model) - wanted))


def _costs(results: Results) -> Table:
    """What a nat below the loss of token frequencies takes."""
    rows = []
    for variant in results.experiment.variants:
        loss = results.loss(variant)
        if loss is None:
            continue
        parameters = num_parameters(variant.model)
        flops = flops_per_token(variant.model, training=True)
        gain = results.of(variant)[0].frequencies - loss.mean
        rows.append(
            (
                variant.name,
                f"{variant.model.n_embd}",
                f"{parameters:,}",
                f"{flops / 1e6:.2f}M",
                f"{gain:.3f}",
                f"{1e6 * gain / parameters:.3f}",
                f"{1e6 * gain / flops:.3f}",
            )
        )
    return Table(
        "What is gained over token frequencies, and for what",
        (
            "variant",
            "width",
            "parameters",
            "FLOP/token",
            "nats gained",
            "per 1M parameters",
            "per MFLOP",
        ),
        tuple(rows),
    )


def _against(name: str, label: str, cost: Callable[[Variant], float]) -> Drawing:
    def paint(results: Results) -> Picture:
        def on(figure: Figure) -> None:
            axes = figure.subplots()
            for number, kind in enumerate(("parameters", "width")):
                _curve(axes, number, kind, results, cost)
            axes.xaxis.set_major_formatter(lambda value, _: count(value))
            axes.set_xlabel(label)
            axes.set_ylabel("validation loss (nats per token)")
            axes.grid(axis="y")
            legend(axes)

        return drawing(on)

    return Drawing(
        f"loss-over-{name}", f"Loss after training, by {name}; numbers are ratios.", paint
    )


def _curve(
    axes: Axes, number: int, kind: str, results: Results, cost: Callable[[Variant], float]
) -> None:
    """The variants that are equal in something; that of the usual ratio is equal in both."""
    chosen = [
        one
        for one in results.experiment.variants
        if results.of(one) and (one.factors["equal"] == kind or one.factors["ratio"] == _USUAL)
    ]
    chosen.sort(key=lambda one: int(one.factors["ratio"]))
    if not chosen:
        return
    values = [[run.score for run in results.of(one)] for one in chosen]
    costs = [cost(one) for one in chosen]
    line(axes, number, costs, values, f"equal {kind}")
    for one, x, scores in zip(chosen, costs, values, strict=True):
        place = (x, sum(scores) / len(scores))
        label = str(one.factors["ratio"])
        axes.annotate(label, place, (4, 4), textcoords="offset points", fontsize=8)
