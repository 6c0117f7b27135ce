"""Every pair of switches in the engine's whole model against the NumPy reference (dialects.py)."""

from __future__ import annotations

import numpy as np
import pytest

import andrea
from dialect_pair import BATCH, LOSS, TOLERANCE, check_dialect_gradients, dialect_pair
from dialects import DIALECTS, SWITCHES, all_pairs, config_of, is_valid, pairs_of
from parity_pair import CPUS, GPUS, Kind, marks, name_of, random_batch
from reference import adamw, gpt
from reference.compare import assert_close

every_dialect = pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(kind, name, id=f"{name_of(kind)}, {name}", marks=marks(kind))
        for kind in [*CPUS, *GPUS]
        for name in DIALECTS
    ],
)


def test_all_pairs_of_values_meet() -> None:
    dialects = list(DIALECTS.values())
    assert all(is_valid(dialect) and list(dialect) == list(SWITCHES) for dialect in dialects)
    met = {pair for dialect in dialects for pair in pairs_of(dialect)}
    assert met == set(all_pairs())
    most = sorted(len(values) for values in SWITCHES.values())[-2:]
    assert most[0] * most[1] <= len(dialects) <= 2 * most[0] * most[1]


def test_all_switches_are_among_them() -> None:
    """But for the two that say how a model starts: test_initialisation.py."""
    assert {*SWITCHES, "scaled_init", "init_std"} == set(andrea.config.DIALECT_SETTINGS)
    for name, values in SWITCHES.items():
        assert len({config_of({name: value}).to_full_dict()[name] for value in values}) > 1
        if name in andrea.config.CHOICES:
            assert values == andrea.config.CHOICES[name]


@every_dialect
def test_loss_logits_and_gradients(kind: Kind, name: str) -> None:
    with dialect_pair(kind, name) as both:
        tokens, targets = random_batch(both.config, BATCH)
        loss, logits, gradients = gpt.loss_and_gradients(
            both.parameters, both.config, tokens, targets
        )
        assert list(both.engine.read("parameters")) == list(gpt.parameter_shapes(both.config))
        assert_close("logits", both.engine.logits(tokens), logits, TOLERANCE[kind.precision])
        measured = both.engine.forward(tokens, targets)
        assert_close("loss", measured, loss, LOSS[kind.precision])
        both.engine.backward(loss_scale=0.5)
        apart = both.engine.read("gradients")
        halves = {tensor: 0.5 * gradient for tensor, gradient in gradients.items()}
        check_dialect_gradients(kind, both, apart, halves)
        # The pass that training uses gives the bits of forward and backward in parts.
        both.engine.zero_gradients()
        assert both.engine.forward_backward(tokens, targets, loss_scale=0.5) == measured
        for tensor, gradient in both.engine.read("gradients").items():
            assert gradient.tobytes() == apart[tensor].tobytes(), tensor


@every_dialect
def test_three_optimizer_steps(kind: Kind, name: str) -> None:
    """The reference takes the engine's gradients, so that steps agree in every precision."""
    options = adamw.AdamWOptions(learning_rate=2e-2, max_norm=0.5, weight_decay=0.5)
    with dialect_pair(kind, name) as both:
        p = both.parameters
        moments = [{tensor: np.zeros_like(value) for tensor, value in p.items()} for _ in range(2)]
        for step in range(1, 4):
            tokens, targets = random_batch(both.config, BATCH, seed=60 + step)
            loss = float(gpt.loss(p, both.config, tokens, targets))
            measured = both.engine.forward_backward(tokens, targets)
            assert_close(f"loss of step {step}", measured, loss, LOSS[kind.precision])
            gradients = {
                tensor: value.astype(np.float64)
                for tensor, value in both.engine.read("gradients").items()
            }
            norm = adamw.adamw_step(p, gradients, *moments, step, options)
            measured_norm = both.engine.step(
                learning_rate=options.learning_rate,
                max_norm=options.max_norm,
                weight_decay=options.weight_decay,
            )
            assert_close(f"norm of step {step}", measured_norm, norm, 1e-6)
            for tensor, value in both.engine.read("parameters").items():
                assert_close(f"{tensor}, value", value, p[tensor], 1e-6)


@every_dialect
def test_decoding(kind: Kind, name: str) -> None:
    """Of two sequences, one passes the context of 8 with its prompt, the other with a token."""
    prompts = [[5, 1, 12, 7, 3], [2, 9, 4, 4, 0, 11, 6, 8, 10, 1, 5]]
    tokens = [[8, 2, 6, 0, 7], [12, 3, 0, 9, 2]]
    with dialect_pair(kind, name) as both:
        contexts = [
            gpt.contexts(both.config, prompt, fed)
            for prompt, fed in zip(prompts, tokens, strict=True)
        ]
        decoder = both.engine.decoder(2)
        fed = prompts
        for step in range(len(tokens[0])):
            logits = decoder.feed(fed)
            fed = [[tokens[s][step]] for s in range(2)]
            for s in range(2):
                context = np.array([contexts[s][step]])
                assert decoder.lengths[s] == context.size
                expected = gpt.logits(both.parameters, both.config, context)[0, -1]
                whole = both.engine.logits(context)[0, -1]
                assert_close(f"sequence {s}", logits[s], expected, TOLERANCE[kind.precision])
                assert_close("decoder and whole", logits[s], whole, TOLERANCE[kind.precision])
