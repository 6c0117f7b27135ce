"""AdamW and gradient clipping in NumPy, over dicts of parameters.

The truth for the engine's optimizer step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .ops import Array


@dataclass(frozen=True)
class AdamWOptions:
    """Hyper-parameters of a step; the defaults are those of andrea.GPT.step.

    max_norm 0 means no clipping, skip_loss_above and skip_norm_above 0 no limit.
    """

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    max_norm: float = 1.0
    skip_loss_above: float = 0.0
    skip_norm_above: float = 0.0


def global_norm(gradients: dict[str, Array]) -> float:
    """L2 norm of all gradients together."""
    return float(np.sqrt(sum((gradient**2).sum() for gradient in gradients.values())))


def adamw_step(
    parameters: dict[str, Array],
    gradients: dict[str, Array],
    first_moments: dict[str, Array],
    second_moments: dict[str, Array],
    step: int,
    options: AdamWOptions,
    loss: float = 0.0,
) -> float:
    """Update parameters and moments in place and return the gradient norm before clipping.

    step counts from 1. Decoupled weight decay of matrices only (Loshchilov & Hutter 2019, as
    PyTorch's AdamW writes it); clipping by the global norm comes before the moments. A norm that is
    not finite, or a norm or loss above its limit, changes nothing.
    """
    norm = global_norm(gradients)
    limits = ((norm, options.skip_norm_above), (loss, options.skip_loss_above))
    if not np.isfinite(norm) or any(0 < limit < value for value, limit in limits):
        return norm
    scale = options.max_norm / norm if 0 < options.max_norm < norm else 1.0
    for name, parameter in parameters.items():
        gradient = gradients[name] * scale
        m, v = first_moments[name], second_moments[name]
        m[...] = options.beta1 * m + (1 - options.beta1) * gradient
        v[...] = options.beta2 * v + (1 - options.beta2) * gradient**2
        if parameter.ndim >= 2:
            parameter *= 1 - options.learning_rate * options.weight_decay
        m_hat = m / (1 - options.beta1**step)
        v_hat = v / (1 - options.beta2**step)
        parameter -= options.learning_rate * m_hat / (np.sqrt(v_hat) + options.eps)
    return norm
