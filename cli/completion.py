"""`andrea completion`: prints the script that teaches a shell to complete andrea's commands."""

from __future__ import annotations

import click

from .errors import Failure

_HOW_TO = {
    "bash": 'add to ~/.bashrc:  eval "$(andrea completion bash)"',
    "zsh": 'add to ~/.zshrc:  eval "$(andrea completion zsh)"',
    "fish": "andrea completion fish > ~/.config/fish/completions/andrea.fish",
}


@click.command(
    "completion",
    epilog="\b\n" + "\n".join(f"{shell}: {text}" for shell, text in _HOW_TO.items()),
)
@click.argument("shell", type=click.Choice(sorted(_HOW_TO)))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell."""
    from click.shell_completion import get_completion_class

    completion = get_completion_class(shell)
    if completion is None:
        raise Failure(f"this version of click has no completion for {shell}")
    program = ctx.find_root().command
    click.echo(completion(program, {}, "andrea", "_ANDREA_COMPLETE").source())
