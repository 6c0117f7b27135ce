"""Options and arguments that commands share, and those of sampling; a command stacks what it needs.

Those of training alone are in train_options.py.
"""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from .option_kinds import Number, SomePath, WholeNumber, option, stack


def complete_presets(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Names of presets."""
    from andrea.config import PRESETS

    return [CompletionItem(name) for name in PRESETS if name.startswith(incomplete)]


def complete_runs(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Folders: the shell knows them."""
    return [CompletionItem(incomplete, type="dir")]


def complete_runs_and_presets(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Names of presets, and folders."""
    return complete_presets(ctx, param, incomplete) + complete_runs(ctx, param, incomplete)


text_argument = click.argument(
    "text", nargs=-1, type=SomePath(allow_dash=True), metavar="[TEXT...]"
)
run_argument = click.argument("run", type=SomePath(), shell_complete=complete_runs)
run_or_preset_argument = click.argument(
    "what", required=False, metavar="[RUN|PRESET]", shell_complete=complete_runs_and_presets
)

best_option = option(
    "--best",
    section="Run",
    is_flag=True,
    help="Use the checkpoint of the best validation loss, instead of the newest.",
)

at_least_1 = WholeNumber(1)
at_least_0 = WholeNumber(0)

size_options = stack(
    option("--n-layer", section="Model", type=at_least_1, help="Blocks."),
    option("--n-head", section="Model", type=at_least_1, help="Attention heads; divide the width."),
    option("--n-embd", section="Model", type=at_least_1, help="Width."),
    option("--block-size", section="Model", type=at_least_1, help="Context, in tokens."),
)

reading_options = stack(
    option(
        "--text-key",
        section="Data",
        metavar="KEY",
        help="Where the text is in JSON lines or Parquet.  [default: text]",
    ),
    option(
        "--encoding",
        section="Data",
        metavar="NAME",
        help="Of the text, such as latin-1 or utf-16.  [default: strict utf-8]",
    ),
    option(
        "--skip-bad",
        section="Data",
        is_flag=True,
        default=None,
        help="Pass over JSON lines that cannot be read.",
    ),
    option(
        "--cache",
        section="Data",
        type=SomePath(),
        metavar="FOLDER",
        help="Where tokens of texts are kept.  [default: the user's cache folder]",
    ),
)

data_options = stack(
    option(
        "--tokenizer",
        section="Data",
        type=click.Choice(["auto", "byte", "char", "bpe"]),
        help="How text becomes tokens.  [default: auto, by the amount of text]",
    ),
    option(
        "--vocab-size",
        section="Data",
        type=at_least_1,
        help="Of bpe: 256 bytes + merges + 1.",
    ),
    reading_options,
)

device_options = stack(
    option(
        "--device",
        section="Machine",
        metavar="NAME",
        help="auto, cpu, cuda or cuda:N; auto is a GPU where one can be used.  [default: auto]",
    ),
    option(
        "--precision",
        section="Machine",
        metavar="NAME",
        help="auto, fp32 or bf16; auto is bf16 where the device has it.  [default: auto]",
    ),
)

machine_options = stack(
    device_options,
    option(
        "--threads",
        section="Machine",
        type=at_least_1,
        help="Threads of the engine on the CPU.  [default: one per core]",
    ),
)

sampling_options = stack(
    option(
        "--prompt",
        section="Sampling",
        metavar="TEXT",
        help="What the text begins with; - reads it from standard input.  [default: a fresh start]",
    ),
    option(
        "--tokens",
        section="Sampling",
        type=at_least_1,
        help="Longest text, in tokens.  [default: 500; 200 with bpe]",
    ),
    option(
        "--temperature",
        section="Sampling",
        type=Number(),
        default=0.8,
        show_default=True,
        help="0: always the likeliest token; 1: as the model sees it; above: wilder.",
    ),
    option(
        "--top-k",
        section="Sampling",
        type=at_least_0,
        default=0,
        help="Choose among so many of the likeliest tokens.  [default: all]",
    ),
    option(
        "--top-p",
        section="Sampling",
        type=Number(positive=True),
        default=0.95,
        show_default=True,
        help="Choose among the likeliest tokens that hold this probability together.",
    ),
    option(
        "--min-p",
        section="Sampling",
        type=Number(),
        default=0.0,
        help="Leave out tokens less likely than this times the likeliest.  [default: 0]",
    ),
    option(
        "--repetition-penalty",
        section="Sampling",
        type=Number(positive=True),
        default=1.0,
        help="Above 1: makes tokens that were there before less likely.  [default: 1]",
    ),
    option(
        "--seed",
        section="Sampling",
        type=at_least_0,
        help="The same seed writes the same text.  [default: another each time]",
    ),
    option(
        "--stop",
        section="Sampling",
        multiple=True,
        metavar="TEXT",
        help="End before this text; \\n is a new line. May be repeated.",
    ),
    option(
        "--num-samples",
        section="Sampling",
        type=at_least_1,
        default=1,
        help="Texts to write.  [default: 1]",
    ),
    option(
        "--interactive",
        section="Sampling",
        is_flag=True,
        help="Ask for one prompt after the other; Ctrl-D ends.",
    ),
)
