"""The command `andrea`: the group, its version, and the way to the subcommands.

Nothing heavy is imported here or in a command's module: `andrea --help` answers at once.
"""

from __future__ import annotations

import importlib
from typing import Any

import click

from .errors import one_line_errors
from .streams import open_missing_streams

__all__ = ["main"]

# Name of the command -> the module beside this file that defines it as `command`.
_COMMANDS = (
    "train",
    "sample",
    "serve",
    "eval",
    "replay",
    "report",
    "metrics",
    "export",
    "import",
    "info",
    "params",
    "experiment",
    "trace",
    "doctor",
    "prefix",
    "completion",
)


class Program(click.Group):
    """A group that imports a subcommand when it is asked for and tells errors in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The subcommands, in the order a newcomer needs them."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The subcommand of that name, or None."""
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f".{cmd_name}", __name__).command
        return command

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the program, with streams to write to."""
        open_missing_streams()
        return super().main(*args, **extra)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Parse the options of the group, some of which print."""
        with one_line_errors(debug=False):
            return super().make_context(*args, **extra)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The subcommand that is called, or a usage error that names the nearest there is."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            nearest = get_close_matches(args[0], _COMMANDS, 1)
            if not nearest:
                raise
            text = f"{error.message} Did you mean {nearest[0]!r}?"
            raise click.UsageError(text, ctx) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand; failures become one line and an exit code."""
        with one_line_errors(debug=bool(ctx.params.get("debug"))):
            return super().invoke(ctx)


def _print_version(ctx: click.Context, _parameter: click.Parameter, asked: bool) -> None:
    if not asked or ctx.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    from andrea.errors import AndreaError

    try:
        package = version("andrea")
    except PackageNotFoundError:
        package = "(not installed)"
    try:
        import andrea

        engine = f"engine {andrea.engine_version()}"
    except AndreaError as error:
        engine = f"engine unavailable: {error}"
    click.echo(f"andrea {package}, {engine}")
    ctx.exit()


@click.group(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with:  andrea train mybook.txt",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version of the package and of its engine.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Train a GPT on your own text, on this machine, and let it write."""
