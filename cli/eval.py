"""`andrea eval RUN [TEXT...]`: how well a model predicts a text, beside others, and what it has by
heart."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .errors import Failure
from .option_kinds import SectionCommand, option
from .options import (
    at_least_0,
    best_option,
    machine_options,
    reading_options,
    run_argument,
    text_argument,
)
from .recorded import check_record
from .screen.display import Display, answer_display
from .texts import STANDARD_INPUT, TextRequest, absolute_sources, prepare_text
from .training.follow import shell_path

if TYPE_CHECKING:
    from andrea.data import PreparedData
    from andrea.judging.chunks import Tokens
    from andrea.judging.evaluate import Judgement
    from andrea.judging.samples import Memorised
    from andrea.model import GPT
    from andrea.runs.folder import RunFolder
    from andrea.tokenizers import Tokenizer

_EPILOG = """\b
andrea eval runs/book                  by the validation text of the run
andrea eval runs/book another-book.txt
"""


@dataclass(frozen=True)
class Subject:
    """What is judged: a text that the model has not seen, and the one it learned from if it is
    there; `missing` says why it is not. leaked: share of a validation text that stands in the
    training text, where that is known."""

    name: str
    is_validation: bool
    tokens: Tokens
    num_bytes: int
    training: PreparedData | None
    missing: str = ""
    leaked: float | None = None


@click.command("eval", cls=SectionCommand, short_help="Judge a model by a text.", epilog=_EPILOG)
@run_argument
@text_argument
@best_option
@option(
    "--windows",
    section="Options",
    type=at_least_0,
    help="Passages of the text to predict, spread evenly; 0: all of it.  "
    "[default: 256, or what makes 65,536 tokens]",
)
@option(
    "--samples",
    section="Options",
    type=at_least_0,
    default=8,
    show_default=True,
    help="Texts to write, to see what the model has by heart; 0: none.",
)
@option("--json", "as_json", section="Options", is_flag=True, help="Print JSON for programs.")
@reading_options
@machine_options
def command(run: str, text: tuple[str, ...], **options: Any) -> None:
    """Tell loss, perplexity and bits per byte of RUN on a text it has not learned from.

    Beside them stand gzip, xz, and two models that count the training text's tokens: so one sees
    whether a loss is good. Without TEXT it is the run's own validation text.
    """
    if options["threads"] is not None:
        import andrea

        andrea.set_num_threads(options["threads"])
    display = answer_display(options["as_json"])
    try:
        facts = _judge(run, text, options, display)
    finally:
        display.close()
    if options["as_json"]:
        click.echo(json.dumps(facts, indent=2))
        return
    from .eval_text import eval_lines

    is_plain = bool(os.environ.get("NO_COLOR"))
    for line in eval_lines(facts, shutil.get_terminal_size().columns):
        is_own = line.startswith(("model ", "verdict ")) and not is_plain
        # click drops styles by itself where standard output is no terminal.
        click.echo(click.style(line, bold=True) if is_own else line)


def _judge(
    run: str, text: tuple[str, ...], options: Mapping[str, Any], display: Display
) -> dict[str, Any]:
    from andrea.judging.evaluate import judge
    from andrea.judging.passages import enough_passages
    from andrea.judging.verdict import verdict
    from andrea.model import GPT
    from andrea.runs.folder import RunFolder

    with RunFolder.open(Path(run), best=options["best"]) as folder:
        check_record(folder)
        subject = _subject(folder, text, options, display)
        tokenizer = folder.tokenizer()
        display.activity("loading the model")
        model = GPT(
            folder.info.model,
            device=options["device"] or "auto",
            precision=options["precision"] or "auto",
        )
        folder.load(model)
        training = None if subject.training is None else subject.training.train
        windows = options["windows"]
        judgement = judge(
            model,
            tokenizer,
            subject.tokens,
            training,
            max_passages=enough_passages(model.config.block_size) if windows is None else windows,
            progress=_told_by(display),
        )
        found = _memorised(model, tokenizer, subject, options["samples"], display)
        return {
            "run": str(folder.path),
            "checkpoint": str(folder.checkpoint_path),
            "step": (folder.info.state or {}).get("step"),
            "damaged": list(folder.damaged),
            "device": model.description,
            "text": {
                "name": subject.name,
                "is_validation": subject.is_validation,
                "bytes": subject.num_bytes,
                "tokens": len(subject.tokens),
                "leaked": subject.leaked,
            },
            "measured": _measured(judgement),
            "scores": {
                score.name: score.to_dict() for score in (judgement.model, *judgement.others)
            },
            "ahead_of": {
                name: {
                    "bits_per_byte": ahead.bits_per_byte,
                    "interval": None if ahead.interval is None else list(ahead.interval),
                }
                for name, ahead in judgement.ahead_of.items()
            },
            "verdict": verdict(judgement),
            "missing": subject.missing,
            "memorised": None if found is None else _overlaps(found),
        }


def _told_by(display: Display) -> Callable[[str, int, int], None]:
    names = {"model": "reading the text", "xz": "compressing the text"}

    def tell(what: str, done: int, total: int) -> None:
        name = names.get(what, f"counting for the {what} model")
        display.activity(name, done / total if total else None)

    return tell


def _subject(
    folder: RunFolder, text: tuple[str, ...], options: Mapping[str, Any], display: Display
) -> Subject:
    """The text to judge by, and the run's own.

    Raises:
        Failure: no text is named and the run's own is not there, or has no validation part.
    """
    tokenizer = folder.tokenizer()
    training, missing = _training(folder, options, display)
    if text:
        request = TextRequest(
            absolute_sources(text),
            options["text_key"],
            options["encoding"],
            bool(options["skip_bad"]),
        )
        data = prepare_text(
            request, display, tokenizer=tokenizer, cache=options["cache"], validation_fraction=0.0
        )
        name = request.describe()
        return Subject(name, False, data.train, data.train_bytes, training, missing)
    if training is None:
        path = shell_path(folder.path)
        raise Failure(f"{missing}: name a text to judge by, andrea eval {path} TEXT")
    name = TextRequest.from_record(folder.info.record).describe()
    repetition = training.repetition
    return Subject(
        name,
        True,
        training.validation,
        training.validation_bytes,
        training,
        leaked=None if repetition is None else repetition.leaked_share,
    )


def _training(
    folder: RunFolder, options: Mapping[str, Any], display: Display
) -> tuple[PreparedData | None, str]:
    """The text that the run learned from, or why it cannot be had."""
    from andrea.errors import DataError, TokenizerError

    if "sources" not in folder.info.record:
        return None, "the run does not say what text it learned from"
    request = TextRequest.from_record(folder.info.record)
    if STANDARD_INPUT in request.sources:
        return None, "the run learned from standard input, which is gone"
    changed = f"{request.describe()} is no longer the text that the run learned from"
    try:
        data = prepare_text(request, display, tokenizer=folder.tokenizer(), cache=options["cache"])
    except DataError as error:
        return None, f"the text that the run learned from cannot be read ({error})"
    except TokenizerError:
        return None, changed  # it has characters that it had not
    if data.fingerprint != folder.info.record.get("fingerprint"):
        return None, changed
    return data, ""


def _memorised(
    model: GPT, tokenizer: Tokenizer, subject: Subject, num_samples: int, display: Display
) -> Memorised | None:
    if subject.training is None or num_samples == 0:
        return None
    from andrea.judging.glimpse import opening
    from andrea.judging.samples import memorised, write_samples

    training = subject.training

    def tell(what: str) -> Callable[[int, int], None]:
        return lambda done, total: display.activity(what, done / total)

    texts = write_samples(
        model,
        tokenizer,
        opening(tokenizer, training.documents),
        num_samples=num_samples,
        tokens_per_byte=len(training.train) / max(training.train_bytes, 1),
        progress=tell("writing samples"),
    )
    return memorised(
        texts, subject.tokens, training.train, tokenizer, tell("looking for them in the text")
    )


def _measured(judgement: Judgement) -> dict[str, Any]:
    return {
        "passages": judgement.passages,
        "of_passages": judgement.all_passages,
        "tokens": judgement.num_tokens,
        "bytes": judgement.num_bytes,
        "least_context": judgement.context,
        "most_context": judgement.block_size,
        "blocks": judgement.blocks,
        "compressed_bytes": judgement.compressed,
        "training_tokens": judgement.training_tokens,
        "counted_tokens": judgement.counted_tokens,
        "chance_bits_per_byte": judgement.uniform,
    }


def _overlaps(found: Memorised) -> dict[str, Any]:
    longest = found.longest
    return {
        "samples": [overlap.num_bytes for overlap in found.samples],
        "unseen": [overlap.num_bytes for overlap in found.unseen],
        "longest": longest.num_bytes,
        "longest_unseen": found.usual,
        "unseen_known": found.known,
        "is_suspicious": found.is_suspicious,
        "passage": longest.passage,
        "place": longest.place,
    }
