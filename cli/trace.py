"""`andrea trace RUN --text "..."`: one token followed through one block, and what all blocks do."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from .dialect_options import dialect_options, given_switches
from .errors import Failure
from .info import preset_config, refuse_unknown
from .option_kinds import SectionCommand, SomePath, option
from .options import at_least_0, at_least_1, best_option, complete_runs, complete_runs_and_presets
from .recorded import check_record
from .screen.display import Display, answer_display
from .screen.formats import count

if TYPE_CHECKING:
    from andrea.config import ModelConfig
    from andrea.lessons.lens import LogitLens
    from andrea.lessons.trace import StreamNorms, TokenTrace
    from andrea.lessons.trace_start import Start
    from andrea.model import GPT
    from andrea.tokenizers import Tokenizer

# Sixteen bytes: the shortest context of a preset.
_TEXT = "The cat sat down"
# A product with the head for each of them and each block.
_MOST_POSITIONS = 32
_TOP = 8
_EPILOG = """\b
andrea trace runs/book --text "The cat sat on the" --block 2
andrea trace runs/book --text "The cat sat on the" --token 1 --out cat
andrea trace --untrained andrea-nano
"""


@dataclass(frozen=True)
class Subject:
    """The model that is looked at, and whose it is: a run's, or one that has learned nothing."""

    model: GPT
    tokenizer: Tokenizer
    about: dict[str, Any]


@dataclass(frozen=True)
class Findings:
    """What there is to show.

    about: whose model it is, and where it ran. start: of untrained models.
    """

    about: dict[str, Any]
    config: ModelConfig
    tokenizer: Tokenizer
    ascii_only: bool
    trace: TokenTrace
    norms: StreamNorms
    lens: LogitLens
    start: Start | None

    @property
    def labels(self) -> list[str]:
        """The texts of the tokens, to be read one by one."""
        return [self.name_of(token) for token in self.trace.tokens]

    def name_of(self, token: int) -> str:
        """The text of a token id, to be read by itself."""
        from andrea.lessons.trace_tokens import token_labels

        if token >= self.tokenizer.vocab_size:
            return f"#{token}"  # of a vocabulary that was made larger than it is
        return token_labels(self.tokenizer, [token], ascii_only=self.ascii_only)[0]

    def text_of(self, token: int) -> str:
        """The text of a token id, as it is."""
        return self.tokenizer.decode([token]) if token < self.tokenizer.vocab_size else ""

    @property
    def lens_row(self) -> int:
        """Which of the lens's positions is the traced token's."""
        return list(self.lens.positions).index(self.trace.position)


@click.command(
    "trace",
    cls=SectionCommand,
    short_help="Follow one token through a block of a model.",
    epilog=_EPILOG,
)
@click.argument("run", required=False, shell_complete=complete_runs, metavar="[RUN]")
@option(
    "--text",
    section="Run",
    metavar="TEXT",
    help="The text to read; - reads it from standard input.  "
    f'[default: "{_TEXT}" for an untrained model]',
)
@option(
    "--block",
    section="Run",
    type=int,
    default=0,
    metavar="I",
    show_default=True,
    help="The block to look into; -1 is the last.",
)
@option(
    "--token",
    section="Run",
    type=int,
    default=-1,
    metavar="J",
    help="The token to follow, by its place in the text; -1 is the last.  [default: -1]",
)
@best_option
@option(
    "--untrained",
    section="Model",
    metavar="PRESET|RUN",
    shell_complete=complete_runs_and_presets,
    help="Instead of RUN, a model that has learned nothing: of a preset, or as RUN's was.",
)
@option(
    "--seed",
    section="Model",
    type=at_least_0,
    help="Of an untrained model's weights.  [default: 0, or the run's]",
)
@dialect_options
@option(
    "--out",
    section="Options",
    type=SomePath(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Write pictures (attention.svg, stream.svg, lens.svg) and trace.json there.",
)
@option("--json", "as_json", section="Options", is_flag=True, help="Print JSON for programs.")
@option(
    "--device",
    section="Machine",
    metavar="NAME",
    help="cpu, or a GPU: cuda, cuda:N, which needs CuPy.  [default: cpu]",
)
@option(
    "--precision",
    section="Machine",
    metavar="NAME",
    help="fp32 or bf16.  [default: fp32]",
)
@option(
    "--threads",
    section="Machine",
    type=at_least_1,
    help="Threads of the engine on the CPU.  [default: one per core]",
)
def command(run: str | None, **options: Any) -> None:
    """Show a token's way through one block of RUN, a run folder or checkpoint file, step by step.

    The residual stream before, norms, queries, keys and values, attention, MLP, the stream after;
    for all blocks, how much they add; and what the model would predict if it stopped after each.
    """
    if options["threads"] is not None:
        import andrea

        andrea.set_num_threads(options["threads"])
    with contextlib.closing(answer_display(options["as_json"])) as display:
        subject = _subject(run, options, display)
        text = _text(run, options)
        display.activity("following the text through all blocks")
        findings = _follow(subject, text, options["block"], options["token"])
    if options["as_json"]:
        click.echo(json.dumps(facts_of(findings), indent=2, allow_nan=False))
    else:
        _show(findings)
    if options["out"] is not None:
        _write(findings, options["out"], tell=not options["as_json"])


def _subject(run: str | None, options: Mapping[str, Any], display: Display) -> Subject:
    untrained = options["untrained"]
    if (not run) == (not untrained):
        raise click.UsageError("name a RUN, or a model with --untrained PRESET")
    for name in ("dialect", "bias", *given_switches(options), "seed"):
        is_preset = untrained is not None and not os.path.exists(untrained)
        if options.get(name) is not None and not (is_preset or (name == "seed" and untrained)):
            flag = "--" + name.replace("_", "-")
            raise Failure(f"{flag} is for a model of --untrained PRESET; a run has its own")
    from andrea.config import PRESETS

    if run is not None:
        if run in PRESETS and not os.path.exists(run):
            raise Failure(
                f"{run} is a preset, which has learned nothing: andrea trace --untrained {run}"
            )
        return _of_run(run, options, display, trained=True)
    if untrained not in PRESETS or os.path.exists(untrained):
        refuse_unknown(untrained)
        return _of_run(untrained, options, display, trained=False)
    from andrea.tokenizers import ByteTokenizer

    config = preset_config(untrained, options["dialect"], given_switches(options))
    model = _model(config, options, display, seed=options["seed"] or 0)
    return Subject(model, ByteTokenizer(), {"untrained": untrained, "seed": options["seed"] or 0})


def _of_run(path: str, options: Mapping[str, Any], display: Display, *, trained: bool) -> Subject:
    from andrea.runs.folder import RunFolder

    with RunFolder.open(Path(path), best=options["best"]) as folder:
        check_record(folder)
        about: dict[str, Any]
        if trained:
            model = _model(folder.info.model, options, display)
            folder.load(model)
            step = (folder.info.state or {}).get("step")
            about = {"run": str(folder.path), "step": step, "damaged": list(folder.damaged)}
        else:
            seed = options["seed"]
            if seed is None:
                seed = folder.config.seed if folder.info.train else 0
            model = _model(folder.info.model, options, display, seed=seed)
            about = {"untrained": str(folder.path), "seed": seed}
        return Subject(model, folder.tokenizer(), about)


def _model(config: ModelConfig, options: Mapping[str, Any], display: Display, seed: int = 0) -> GPT:
    from andrea.model import GPT
    from andrea.planning.sizes import num_parameters

    # The weights of a large one take the engine a minute.
    display.activity(f"making a model of {count(num_parameters(config))} parameters")
    return GPT(
        config,
        device=options["device"] or "cpu",
        precision=options["precision"] or "fp32",
        seed=seed,
    )


def _text(run: str | None, options: Mapping[str, Any]) -> str:
    text: str | None = options["text"]
    if text == "-":
        try:
            return sys.stdin.read()
        except UnicodeDecodeError as error:
            raise Failure("standard input is no text in the terminal's encoding") from error
    if text is None and run is not None:
        raise Failure(f'give a text to read: andrea trace {run} --text "..."')
    return _TEXT if text is None else text


def _follow(subject: Subject, text: str, block: int, token: int) -> Findings:
    from andrea.lessons.lens import logit_lens
    from andrea.lessons.trace import stream_norms, trace_token
    from andrea.lessons.trace_start import measure_start

    model, tokenizer = subject.model, subject.tokenizer
    tokens = tokenizer.encode(text)
    with np.errstate(invalid="ignore", over="ignore"):
        norms = stream_norms(model, tokens)
    _refuse_overflow(norms)
    trace = trace_token(model, tokens, block, token)
    lens = logit_lens(model, tokens, _spread(len(tokens), trace.position), top=_TOP)
    return Findings(
        about={**subject.about, "device": model.device, "precision": model.precision},
        config=model.config,
        tokenizer=tokenizer,
        ascii_only=not (sys.stdout.encoding or "ascii").lower().startswith("utf"),
        trace=trace,
        norms=norms,
        lens=lens,
        start=(
            measure_start(norms, lens, model.config.vocab_size)
            if "untrained" in subject.about
            else None
        ),
    )


def _refuse_overflow(norms: StreamNorms) -> None:
    """Refuse a model whose numbers are too large for the engine's, which are infinite then."""
    for block in range(len(norms.middle)):
        lengths = (norms.attention[block], norms.mlp[block], norms.stream[block + 1])
        if not all(np.isfinite(length).all() for length in lengths):
            raise Failure(
                f"in block {block} numbers overflow, so that there is nothing to follow: the model "
                "has diverged, or its first weights are too large"
            )


def _spread(num_tokens: int, position: int) -> list[int]:
    """Positions to predict from, evenly over the text, and the traced one among them."""
    number = min(num_tokens, _MOST_POSITIONS)
    return sorted({position, *(place * num_tokens // number for place in range(number))})


def _show(findings: Findings) -> None:
    from .trace_text import trace_lines

    width = shutil.get_terminal_size().columns
    is_plain = bool(os.environ.get("NO_COLOR"))
    for line, is_title in trace_lines(findings, width):
        click.echo(click.style(line, bold=True) if is_title and not is_plain else line)


def facts_of(findings: Findings) -> dict[str, Any]:
    """All of it as plain data; keys and values of other tokens are left out."""
    tokens, lens = findings.trace.tokens, findings.lens
    texts = {token: findings.text_of(token) for token in {*tokens.tolist(), *lens.tokens.flat}}
    likeliest = [[[texts[token] for token in row] for row in depth] for depth in lens.tokens]
    return {
        **findings.about,
        "config": findings.config.to_full_dict(),
        "text": [{"token": token, "text": texts[token]} for token in tokens.tolist()],
        "trace": _plain(findings.trace, without=("keys", "values", "tokens")),
        "norms": _plain(findings.norms),
        "lens": {**_plain(lens), "texts": likeliest},
        "start": _plain(findings.start),
    }


def _plain(value: Any, without: tuple[str, ...] = ()) -> Any:
    """A dataclass as a dictionary, arrays as lists, and what is no number as null."""
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {
            name: _plain(getattr(value, name), without) for name in names if name not in without
        }
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and value != value else value


def _write(findings: Findings, folder: Path, *, tell: bool) -> None:
    from andrea.lessons import trace_pictures

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "trace.json"]
    text = json.dumps(facts_of(findings), indent=2, allow_nan=False)
    paths[0].write_text(text + "\n", encoding="utf-8")
    trace, row = findings.trace, findings.lens_row
    label = findings.labels[trace.position]
    pictures = {
        "attention": trace_pictures.draw_attention(trace, findings.labels),
        "stream": trace_pictures.draw_stream(findings.norms, trace.position, label),
        "lens": trace_pictures.draw_lens(
            findings.lens, row, findings.config.vocab_size, label, findings.name_of
        ),
    }
    paths += trace_pictures.write_pictures(folder, pictures)
    if tell:
        click.echo(f"\nwrote {', '.join(str(path) for path in paths)}")
