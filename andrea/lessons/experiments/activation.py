"""Activation functions at equal parameters: losses, the functions themselves, and tanh or erf."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from andrea.config import CHOICES, ModelConfig
from andrea.lessons.pictures import DASHES, GREY, PALETTE, Picture
from andrea.planning.sizes import num_parameters

from .curves import Curve, activation_curve
from .drawings import drawing, legend, loss_curves
from .experiment import Contrast, Drawing, Experiment, Table, Variant, lower_loss
from .results import Results
from .settings import is_quick, small_model, training

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMES = CHOICES["activation"]
_DEPTH = {True: 4, False: 8}
_STEPS = {True: 400, False: 3000}
_NATS = 0.01
# Where the functions bend, and a grid of 0.01 for where two of them differ most.
_SHOWN = (-4.0, 3.0)
_GRID = np.linspace(-8.0, 8.0, 1601)


def activation(mode: str, vocab_size: int, steps: int | None = None) -> Experiment:
    """GELU in both forms, ReLU, its square and SwiGLU; MLPs of as many parameters."""
    quick = is_quick(mode)
    train = training(steps or _STEPS[quick])
    variants = tuple(
        Variant(name, _model(name, vocab_size, _DEPTH[quick]), train, {"activation": name})
        for name in _NAMES
    )
    usual = variants[0].model
    spread = usual.init_std * usual.n_embd**0.5
    return Experiment(
        name="activation",
        title="Activation functions at equal parameters",
        claim=(
            "GELU, which lets small negative numbers through in part and has no corner, trains "
            "better than ReLU; its tanh form is as good as the exact one; and a gated MLP "
            "(SwiGLU) of as many parameters is better still."
        ),
        variants=variants,
        contrasts=(
            Contrast(
                f"The loss with gelu is lower than with relu by at least {_NATS} nats",
                lower_loss("gelu", "relu"),
                _NATS,
            ),
            Contrast(
                f"The losses with gelu (tanh form) and gelu_erf differ by at most {_NATS} nats",
                lower_loss("gelu", "gelu_erf"),
                _NATS,
                alike=True,
            ),
            Contrast(
                f"The loss with swiglu is lower than with gelu by at least {_NATS} nats",
                lower_loss("swiglu", "gelu"),
                _NATS,
            ),
            Contrast(
                f"The loss with relu2 is lower than with relu by at least {_NATS} nats",
                lower_loss("relu2", "relu"),
                _NATS,
                decides=False,
            ),
        ),
        seeds=5,
        mode=mode,
        gradient_steps=(0.0, 1.0),
        drawings=(
            Drawing("functions", "The functions, as the engine computes them.", _functions),
            Drawing("derivatives", "Their derivatives, as the engine computes them.", _slopes),
            Drawing("forms", "GELU's tanh form less its exact form.", _forms),
            loss_curves("loss", lambda variant: True),
        ),
        tables=lambda results: (_form_table(),),
        data=lambda results: _data(),
        notes=(
            "swiglu has three matrices where the others have two, and so a width of two thirds; "
            "its curve is that of the gate where the other half is 1.",
            f"The activation's inputs begin with a spread of about init_std x sqrt(n_embd) = "
            f"{spread:.2g}: so close to 0 gelu is nearly a straight line, and relu has its corner.",
        ),
    )


def _model(name: str, vocab_size: int, depth: int) -> ModelConfig:
    """A model with the parameters of one whose MLP is four times as wide as the model."""
    usual = small_model(vocab_size, n_layer=depth)
    if name != "swiglu":
        return small_model(vocab_size, n_layer=depth, activation=name)
    C, M = usual.n_embd, usual.mlp_dim
    # Two matrices and biases M + C; with a gate three, and 2M + C.
    width = round(M * (2 * C + 1) / (3 * C + 2))
    model = small_model(vocab_size, n_layer=depth, activation=name, mlp_dim=width)
    assert abs(num_parameters(model) / num_parameters(usual) - 1) < 0.01
    return model


@cache
def _curve(name: str) -> Curve:
    return activation_curve(name, _GRID)


def form_difference() -> dict[str, float]:
    """Where GELU's two forms, as the engine computes them, differ most, and by how much."""
    tanh, exact = _curve("gelu"), _curve("gelu_erf")
    value = np.abs(tanh.value - exact.value)
    slope = np.abs(tanh.derivative - exact.derivative)
    return {
        "largest_difference": float(value.max()),
        "at": float(tanh.x[value.argmax()]),
        "largest_difference_of_derivatives": float(slope.max()),
        "derivatives_at": float(tanh.x[slope.argmax()]),
    }


def _form_table() -> Table:
    found = form_difference()
    rows = (
        ("value", f"{found['largest_difference']:.2e}", f"{found['at']:.2f}"),
        (
            "derivative",
            f"{found['largest_difference_of_derivatives']:.2e}",
            f"{found['derivatives_at']:.2f}",
        ),
    )
    return Table("GELU: tanh form and exact form", ("", "largest difference", "at x"), rows)


def _data() -> dict[str, Any]:
    every = slice(None, None, 20)
    curves = {
        name: {
            "x": _rounded(_curve(name).x[every]),
            "value": _rounded(_curve(name).value[every]),
            "derivative": _rounded(_curve(name).derivative[every]),
        }
        for name in _NAMES
    }
    return {"gelu_forms": form_difference(), "curves": curves}


def _rounded(numbers: Any) -> list[float]:
    return [float(f"{number:.6g}") for number in numbers]


def _functions(results: Results) -> Picture:
    return _shown("value", "output")


def _slopes(results: Results) -> Picture:
    return _shown("derivative", "derivative")


def _shown(kind: str, label: str) -> Picture:
    def on(figure: Figure) -> None:
        axes = figure.subplots()
        for number, name in enumerate(_NAMES):
            curve = _curve(name)
            within = (curve.x >= _SHOWN[0]) & (curve.x <= _SHOWN[1])
            axes.plot(
                curve.x[within],
                getattr(curve, kind)[within],
                color=PALETTE[number],
                linestyle=DASHES[number],
                label=name,
            )
        axes.axhline(0, color=GREY, linewidth=0.8)
        axes.axvline(0, color=GREY, linewidth=0.8)
        axes.set_ylim(-0.5, 3.0)
        axes.set_xlabel("input of the activation (no unit)")
        axes.set_ylabel(f"{label} (no unit)")
        axes.grid()
        legend(axes)

    return drawing(on)


def _forms(results: Results) -> Picture:
    def on(figure: Figure) -> None:
        axes = figure.subplots()
        tanh, exact = _curve("gelu"), _curve("gelu_erf")
        pairs = (
            ("value", tanh.value - exact.value),
            ("derivative", tanh.derivative - exact.derivative),
        )
        for number, (name, difference) in enumerate(pairs):
            axes.plot(
                tanh.x, difference, color=PALETTE[number], linestyle=DASHES[number], label=name
            )
        axes.set_xlabel("input of the activation (no unit)")
        axes.set_ylabel("tanh form less exact form (no unit)")
        axes.grid()
        legend(axes)

    return drawing(on)
