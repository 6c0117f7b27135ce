"""What a person sees when something goes wrong: one line on standard error, and an exit code.

Every command runs inside `one_line_errors`; nothing else in cli/ formats an error.
"""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Iterator
from typing import IO, Any

import click

from andrea.errors import AndreaError

from .screen.formats import printable

EXIT_FAILURE = 1
EXIT_INTERRUPTED = 130  # 128 + SIGINT, the shell's convention
EXIT_TERMINATED = 143  # 128 + SIGTERM


class Failure(click.ClickException):
    """A failure told as `andrea: <text>` with exit code 1; what names of files hold beside letters
    can't steer the terminal."""

    exit_code = EXIT_FAILURE

    def show(self, file: IO[Any] | None = None) -> None:
        """Write the one line to standard error (or to `file`)."""
        message = printable(self.format_message()).replace("\n", " ")
        click.echo(f"andrea: {message}", file=file, err=file is None)


def one_line(text: str) -> str:
    """Join the lines of a message that came from elsewhere into one."""
    return " ".join(text.split())


def _describe_os_error(error: OSError) -> str:
    reason = error.strerror or type(error).__name__
    where = f": {error.filename}" if error.filename is not None else ""
    advice = ""
    if error.errno == errno.ENOSPC:
        advice = "; free some space or choose another folder with --out, what was saved is intact"
    return f"{reason}{where}{advice}"


@contextlib.contextmanager
def one_line_errors(debug: bool) -> Iterator[None]:
    """Turn exceptions into `Failure`; with `debug` let them through with their traceback."""
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
        raise
    except KeyboardInterrupt:
        # The cursor of the terminal stands behind an echoed ^C.
        click.echo("" if not sys.stderr.isatty() else "\n", err=True, nl=False)
        raise SystemExit(EXIT_INTERRUPTED) from None
    except Exception as error:
        if debug:
            raise
        if isinstance(error, AndreaError):
            text = str(error) or type(error).__name__
        elif isinstance(error, OSError):
            text = _describe_os_error(error)
        elif isinstance(error, MemoryError):
            text = "out of memory; smaller numbers need less: of texts, batches, context, width"
        else:
            text = (
                f"unexpected {type(error).__name__}: {error} "
                "(a bug in andrea; `andrea --debug COMMAND ...` shows the traceback)"
            )
        raise Failure(one_line(text)) from error
