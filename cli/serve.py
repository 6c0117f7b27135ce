"""`andrea serve RUN`: a trained model behind the OpenAI interface, and a page to try it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .errors import one_line
from .option_kinds import SectionCommand, WholeNumber, option, stack
from .options import at_least_0, at_least_1, best_option, machine_options, run_argument
from .recorded import check_record

if TYPE_CHECKING:
    import socket

    from andrea.model import GPT
    from andrea.runs.folder import RunFolder
    from andrea.serving.requests import Served

_EPILOG = """\b
andrea serve runs/book
andrea serve runs/book --port 9000 --parallel 16 --chat plain
"""

_serving_options = stack(
    option(
        "--host",
        section="Serving",
        default="127.0.0.1",
        show_default=True,
        metavar="ADDRESS",
        help="Where to listen; the usual one is for this machine alone, 0.0.0.0 for all.",
    ),
    option(
        "--port",
        section="Serving",
        type=at_least_0,
        default=8080,
        show_default=True,
        help="Where to listen; 0 takes a free one.",
    ),
    option(
        "--name",
        section="Serving",
        metavar="NAME",
        help="What clients call the model.  [default: the name of the run's folder]",
    ),
    option(
        "--chat",
        section="Serving",
        type=click.Choice(["transcript", "plain"]),
        default="transcript",
        show_default=True,
        help="How messages become a text to go on with: as lines with roles, or nothing added.",
    ),
    option(
        "--parallel",
        section="Serving",
        type=at_least_1,
        default=8,
        show_default=True,
        help="Texts that are written at once.",
    ),
    option(
        "--queue",
        section="Serving",
        type=at_least_0,
        default=64,
        show_default=True,
        help="Texts that may wait for their turn; more are refused with 429.",
    ),
    option(
        "--max-tokens",
        section="Serving",
        type=at_least_1,
        default=4096,
        show_default=True,
        help="The longest text that a request may ask for, in tokens.",
    ),
    option(
        "--grace",
        section="Serving",
        type=WholeNumber(0),
        default=30,
        show_default=True,
        metavar="SECONDS",
        help="What is being written when the server is stopped may take so long to end.",
    ),
)


def _load(run: str, options: dict[str, Any]) -> tuple[GPT, Served, RunFolder]:
    from andrea.judging.glimpse import opening
    from andrea.model import GPT
    from andrea.runs.folder import RunFolder
    from andrea.serving.chat import TEMPLATES
    from andrea.serving.requests import Served

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
    served = Served(
        name=options["name"] or folder.path.resolve().name,
        tokenizer=tokenizer,
        block_size=model.config.block_size,
        opening=opening(tokenizer, folder.info.record.get("documents")),
        template=TEMPLATES[options["chat"]],
        most_tokens=options["max_tokens"],
        most_texts=options["parallel"],
    )
    return model, served, folder


def _hosts(listener: socket.socket, named: str) -> tuple[str, ...] | None:
    """The names that requests may be addressed to."""
    from andrea.serving.app import LOCAL_NAMES
    from andrea.serving.server import is_loopback

    if not is_loopback(listener):
        return None
    return (*LOCAL_NAMES, named.lower(), f"[{named.lower()}]")


@click.command(
    "serve",
    cls=SectionCommand,
    short_help="Let programs use a model, by the OpenAI interface.",
    epilog=_EPILOG,
)
@run_argument
@best_option
@_serving_options
@machine_options
def command(run: str, **options: Any) -> None:
    """Answer completions and chat completions with the model of RUN, and show a page to try it.

    RUN is a run folder, or a checkpoint file. Ctrl-C stops.
    """
    from andrea.serving.server import address_of, is_loopback, listen, require_parts, serve

    require_parts()
    from andrea.serving.app import Service
    from andrea.serving.writer import BatchWriter

    if options["threads"] is not None:
        import andrea

        andrea.set_num_threads(options["threads"])
    # First: a port that is taken is told before a large model is loaded.
    with listen(options["host"], options["port"]) as listener:
        model, served, folder = _load(run, options)
        writer = BatchWriter(
            model, served.tokenizer, parallel=options["parallel"], queue=options["queue"]
        )
        service = Service(
            served,
            writer,
            hosts=_hosts(listener, options["host"]),
            on_error=lambda error: click.echo(
                f"andrea: a request failed: {one_line(f'{type(error).__name__}: {error}')}",
                err=True,
            ),
        )
        address = address_of(listener)
        if not is_loopback(listener):
            click.echo(
                "andrea: whoever reaches this machine can use the model: there is no password",
                err=True,
            )

        def tell_stop() -> None:
            waiting = writer.num_writing + writer.num_waiting
            if waiting:
                texts = "1 text is" if waiting == 1 else f"{waiting} texts are"
                click.echo(
                    f"andrea: stopping once {texts} written; Ctrl-C again ends at once", err=True
                )

        with writer:
            step = folder.state().step
            at_step = f", step {step:,}" if step else ""
            click.echo(f"{served.name} ({folder.path}{at_step}) on {model.device}")
            click.echo(f"page       {address}/")
            click.echo(f"interface  {address}/v1 (OpenAI); Ctrl-C stops")
            serve(service, listener, grace_seconds=options["grace"], on_stop=tell_stop)
