"""The options of `andrea train` alone: the run, its model, its training and its guards.

Each is a key of a run's config.toml, too (andrea/runconfig.py), but those that name another run.
"""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from ..option_kinds import Amount, ClockTime, Duration, Number, SomePath, WholeNumber, option, stack
from ..options import at_least_0, at_least_1, complete_presets, complete_runs, size_options

_share = Number(most=1)


def _complete_recipes(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from andrea.planning.recipes import RECIPES

    return [CompletionItem(name) for name in RECIPES if name.startswith(incomplete)]


run_options = stack(
    option(
        "--out",
        section="Run",
        type=SomePath(),
        metavar="FOLDER",
        help="Where the run is kept.  [default: runs/TEXT]",
    ),
    option(
        "--resume",
        section="Run",
        type=SomePath(),
        metavar="RUN",
        shell_complete=complete_runs,
        help="Continue this run with all it recorded; options beside it change what they name.",
    ),
    option(
        "--init-from",
        section="Run",
        type=SomePath(),
        metavar="RUN",
        shell_complete=complete_runs,
        help="Begin with the weights of this run, of a checkpoint file, or of a GPT-2 folder of "
        "Hugging Face, and its tokenizer.",
    ),
    option(
        "--config",
        section="Run",
        type=SomePath(),
        metavar="FILE",
        help="Take options from a TOML file such as a run's config.toml; those given here win.",
    ),
    option(
        "--recipe",
        section="Run",
        metavar="NAME",
        shell_complete=_complete_recipes,
        help="Settings that belong together: andrea, as the family's models were trained.",
    ),
)

length_options = stack(
    option(
        "--for",
        "seconds",
        section="Length",
        type=Duration(),
        help="Time to train: 90s, 20m, 1h30m, 2d.  [default: 5m]",
    ),
    option(
        "--until",
        section="Length",
        type=ClockTime(),
        help='Time of day to be done at: 07:30, or "2031-05-06 07:30".',
    ),
    option("--steps", section="Length", type=at_least_1, help="Steps to train."),
    option(
        "--tokens",
        section="Length",
        type=Amount(),
        help="Tokens to train on: 800k, 10M, 1.5G.",
    ),
    option(
        "--epochs",
        section="Length",
        type=Number(positive=True),
        help="How often to see the text; 0.5 is half of it.",
    ),
)

watch_options = stack(
    option(
        "--eval-every",
        section="Watching and saving",
        type=at_least_0,
        metavar="STEPS",
        help="Steps between evaluations; 0: at the end only.  [default: about a 20th of the run]",
    ),
    option(
        "--eval-windows",
        section="Watching and saving",
        type=at_least_1,
        help="Contexts of validation text at most.  [default: 64]",
    ),
    option(
        "--save-every",
        section="Watching and saving",
        type=at_least_0,
        metavar="STEPS",
        help="Steps between checkpoints; 0: at the start and the end only.  [default: about a "
        "20th of the run]",
    ),
    option(
        "--keep",
        "keep_last",
        section="Watching and saving",
        type=at_least_1,
        help="Newest checkpoints to keep, beside the best one.  [default: 2]",
    ),
    option(
        "--sample-prompt",
        section="Watching and saving",
        metavar="TEXT",
        help="What the samples shown while training continue.  [default: a new document]",
    ),
    option(
        "--sample-tokens",
        section="Watching and saving",
        type=at_least_1,
        help="Length of these samples.  [default: some 320 bytes]",
    ),
    option(
        "--report/--no-report",
        section="Watching and saving",
        default=None,
        help="Keep report.html in the run's folder up to date.  [default: on]",
    ),
    option(
        "--tensorboard/--no-tensorboard",
        section="Watching and saving",
        default=None,
        help="Write metrics for TensorBoard, too.  [default: off]",
    ),
)

model_options = stack(
    option(
        "--preset",
        section="Model",
        metavar="NAME",
        shell_complete=complete_presets,
        help="Sizes of a known model: andrea-nano, andrea-12m, andrea-120m, andrea-480m, gpt2 or "
        "microgpt, which has its own dialect, too.",
    ),
    size_options,
)

training_options = stack(
    option("--batch-size", section="Training", type=at_least_1, help="Sequences per batch."),
    option(
        "--accumulate",
        section="Training",
        type=at_least_1,
        help="Batches whose gradients make one step.",
    ),
    option(
        "--learning-rate",
        section="Training",
        type=Number(positive=True),
        help="Highest learning rate.  [default: by the width]",
    ),
    option(
        "--schedule",
        section="Training",
        type=click.Choice(["cosine", "linear", "constant", "wsd"]),
        metavar="NAME",
        help="How it falls: cosine, linear, constant, or wsd, which stays high until the last "
        "part.  [default: cosine]",
    ),
    option(
        "--warmup",
        section="Training",
        type=at_least_0,
        metavar="STEPS",
        help="Steps in which the learning rate rises.  [default: a 20th of the run, 1000 at most]",
    ),
    option(
        "--min-ratio",
        section="Training",
        type=_share,
        help="Last learning rate, as a share of the highest.  [default: 0.1]",
    ),
    option(
        "--decay-share",
        section="Training",
        type=_share,
        help="Share of the run in which wsd falls.  [default: 0.2]",
    ),
    option(
        "--weight-decay",
        section="Training",
        type=Number(),
        help="Decay of matrices.  [default: 0.1]",
    ),
    option("--beta1", section="Training", type=Number(), help="Of AdamW.  [default: 0.9]"),
    option("--beta2", section="Training", type=Number(), help="Of AdamW.  [default: 0.99]"),
    option(
        "--eps", section="Training", type=Number(positive=True), help="Of AdamW.  [default: 1e-8]"
    ),
    option(
        "--max-norm",
        section="Training",
        type=Number(),
        help="Gradients are clipped to this norm; 0: never.  [default: 1]",
    ),
    option(
        "--seed",
        section="Training",
        type=at_least_0,
        help="Of the first weights and the batches.  [default: 0]",
    ),
)

guard_options = stack(
    option(
        "--skip-outliers/--keep-outliers",
        section="Guards",
        default=None,
        help="Do not learn from steps whose loss or gradient is an outlier.  [default: keep]",
    ),
    option(
        "--outlier-z",
        section="Guards",
        type=Number(),
        help="Robust deviations that make an outlier; 0: none is.  [default: 12]",
    ),
    option(
        "--max-skipped",
        section="Guards",
        type=WholeNumber(1),
        help="Steps in a row without an update that end the run.  [default: 10]",
    ),
    option(
        "--early-stop",
        section="Guards",
        type=at_least_0,
        metavar="K",
        help="End after K evaluations in a row above the best; 0: never.  [default: 0]",
    ),
    option(
        "--coherence-gate",
        section="Guards",
        type=Number(most=100),
        help="End after 5 samples in a row that score less; 0: never.  [default: 0]",
    ),
)
