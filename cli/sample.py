"""`andrea sample RUN`: a trained model writes, streamed to standard output."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .option_kinds import SectionCommand
from .options import best_option, machine_options, run_argument, sampling_options
from .recorded import check_record
from .screen.formats import printable

if TYPE_CHECKING:
    from andrea.model import GPT
    from andrea.sampling import SamplingConfig
    from andrea.tokenizers import Tokenizer

_EPILOG = """\b
andrea sample runs/book --prompt "Once upon a time"
andrea sample runs/book --interactive
"""


@dataclass(frozen=True)
class Writer:
    """A loaded model with the settings of the command line."""

    model: GPT
    tokenizer: Tokenizer
    opening: str
    sampling: SamplingConfig
    max_tokens: int
    seed: int
    stop: tuple[str, ...]

    def write(self, prompt: str | None, num_samples: int = 1) -> None:
        """Write texts to standard output: the first as it grows, the others after it."""
        from andrea.writing import generate_texts

        pieces = generate_texts(
            self.model,
            self.tokenizer,
            self.opening if prompt is None else prompt,
            num_samples=num_samples,
            max_tokens=self.max_tokens,
            sampling=self.sampling,
            seed=self.seed,
            stop=self.stop,
        )
        for number, text in _in_order(pieces, num_samples):
            if text is None:
                if num_samples > 1:
                    title = f"--- {number + 1} of {num_samples} ---"
                    put(f"{title}\n" if number == 0 else f"\n{title}\n")
                put(prompt or "")
            else:
                put(text)
        put("\n")


def _in_order(
    pieces: Iterator[tuple[int, str]], num_samples: int
) -> Iterator[tuple[int, str | None]]:
    """Samples one after the other out of an interleaved stream; None stands before each one."""
    waiting: list[list[str]] = [[] for _ in range(num_samples)]
    ended = [False] * num_samples
    current = 0
    yield 0, None
    for number, piece in pieces:
        waiting[number].append(piece)
        ended[number] = ended[number] or not piece
        while True:
            for text in waiting[current]:
                yield current, text
            waiting[current].clear()
            if not ended[current] or current + 1 == num_samples:
                break
            yield current, "\n"
            current += 1
            yield current, None


def put(text: str) -> None:
    """Write text to standard output at once; a terminal gets no control characters."""
    if sys.stdout.isatty():
        text = printable(text)
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def _load(run: str, options: dict[str, Any]) -> Writer:
    from andrea.judging.glimpse import opening
    from andrea.model import GPT
    from andrea.runs.folder import RunFolder
    from andrea.sampling import SamplingConfig

    sampling = SamplingConfig(
        temperature=options["temperature"],
        top_k=options["top_k"],
        top_p=options["top_p"],
        min_p=options["min_p"],
        repetition_penalty=options["repetition_penalty"],
    )
    with RunFolder.open(Path(run), best=options["best"]) as folder:
        check_record(folder)
        for line in folder.damaged:
            click.echo(f"andrea: {line}; using {folder.checkpoint_path}", err=True)
        tokenizer = folder.tokenizer()
        model = GPT(
            folder.info.model,
            device=options["device"] or "auto",
            precision=options["precision"] or "auto",
        )
        folder.load(model)
        documents = folder.info.record.get("documents")
    default_tokens = 200 if tokenizer.name == "bpe" else 500
    return Writer(
        model,
        tokenizer,
        opening(tokenizer, documents),
        sampling,
        max_tokens=options["tokens"] or default_tokens,
        seed=secrets.randbits(32) if options["seed"] is None else options["seed"],
        stop=tuple(_unescape(text) for text in options["stop"]),
    )


def _unescape(text: str) -> str:
    r"""A stop text typed as \n or \t means the character; in a longer text a backslash is one."""
    plain = text.replace(r"\n", "\n").replace(r"\t", "\t")
    return plain if plain.isspace() else text


def _ask() -> str:
    """The next line of standard input; only a person at a terminal is shown a prompt."""
    if sys.stdin.isatty():
        return input("> ")
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")


def _converse(writer: Writer) -> None:
    """Ask for prompts until the input ends; each is continued by itself."""
    import contextlib

    from andrea.errors import TokenizerError

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (gives input() a history and line editing)
    click.echo(
        "A prompt and Enter: the model goes on from there. Ctrl-C stops it, Ctrl-D ends.", err=True
    )
    while True:
        try:
            prompt = _ask()
        except (EOFError, KeyboardInterrupt):
            click.echo(err=True)
            return
        try:
            writer.write(prompt or None)
        except KeyboardInterrupt:
            put("\n")
        except TokenizerError as error:
            click.echo(f"andrea: {error}", err=True)


@click.command(
    "sample", cls=SectionCommand, short_help="Let a trained model write.", epilog=_EPILOG
)
@run_argument
@best_option
@sampling_options
@machine_options
def command(run: str, **options: Any) -> None:
    """Let the model of RUN write: a run folder, or a checkpoint file."""
    if options["threads"] is not None:
        import andrea

        andrea.set_num_threads(options["threads"])
    writer = _load(run, options)
    if options["interactive"]:
        _converse(writer)
        return
    prompt = options["prompt"]
    if prompt == "-":
        prompt = sys.stdin.read()
    writer.write(prompt, options["num_samples"])
