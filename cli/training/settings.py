"""What a run is told: the options that were typed, over a configuration file, over a recipe."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import click

from ..dialect_options import ALL_BIASES, SWITCHES
from ..errors import Failure
from ..option_kinds import WORDS

# One of these says when a run ends.
BUDGETS = ("seconds", "until", "steps", "tokens", "epochs")
_SHAPE = ("preset", "init_from", "n_layer", "n_head", "n_embd", "block_size")
_DIALECT = ("dialect", "bias", *SWITCHES)
# What is given on one side -> what the sides below have no say in any more.
_EXCLUDES: dict[str, tuple[str, ...]] = {
    **{name: BUDGETS for name in BUDGETS},
    "preset": (*_SHAPE, *_DIALECT, "tokenizer", "vocab_size"),
    "init_from": (*_SHAPE, *_DIALECT, "tokenizer", "vocab_size"),
    "n_embd": ("n_head", "mlp_dim"),
    # The MLP's width is a size.
    "dialect": tuple(name for name in _DIALECT if name != "mlp_dim"),
    "bias": ALL_BIASES,
    "tokenizer": ("vocab_size",),
}
_ALONE = ("config", "recipe", "init_from")


def settle(context: click.Context, typed: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a run, with what a file and a recipe say where nothing was typed.

    Raises:
        UsageError: options contradict each other.
        ConfigError: the file cannot be used, or there is no such recipe.
    """
    budgets = [name for name in BUDGETS if typed[name] is not None]
    if len(budgets) > 1:
        flags = " and ".join(flag_of(context, name) for name in budgets)
        raise click.UsageError(f"{flags} both say when to end: give one of them")
    if typed["resume"] is not None:
        for name in _ALONE:
            if typed[name] is not None:
                raise click.UsageError(
                    f"{flag_of(context, name)} is for a new run; --resume goes on with what the "
                    "run recorded, and with the options beside it"
                )
    options = dict(typed)
    if options["config"] is not None:
        _fill(options, _from_file(context, options["config"]))
    if options["recipe"] is not None:
        from andrea.planning.recipes import recipe

        _fill(options, recipe(options["recipe"]))
    return options


def _fill(options: dict[str, Any], below: Mapping[str, Any]) -> None:
    """Take from the side below what no side above has a say in."""
    given = [name for name, value in options.items() if value not in (None, ())]
    excluded = {name for above in given for name in (above, *_EXCLUDES.get(above, ()))}
    options |= {name: value for name, value in below.items() if name not in excluded}


def _from_file(context: click.Context, path: str) -> dict[str, Any]:
    """The values of a configuration file by the names of the options, checked as if typed."""
    from andrea.errors import ConfigError
    from andrea.runconfig import read_config

    parameters = {key_of(parameter): parameter for parameter in context.command.params}
    values: dict[str, Any] = {}
    for key, value in read_config(path).items():
        parameter = parameters[key]
        try:
            converted = parameter.type_cast_value(context, value)
        except click.BadParameter as error:
            raise ConfigError(f"{path}: {key}: {error.message}") from error
        assert parameter.name is not None
        values[parameter.name] = converted
    budgets = [name for name in BUDGETS if name in values]
    if len(budgets) > 1:
        keys = " and ".join(key for key in parameters if parameters[key].name in budgets)
        raise ConfigError(f"{path}: {keys} both say when to end: leave one of them")
    return values


def key_of(parameter: click.Parameter) -> str:
    """An option's key in a configuration file: --batch-size is batch_size, TEXT is text."""
    if isinstance(parameter, click.Option):
        return parameter.opts[0].removeprefix("--").replace("-", "_")
    return parameter.name or ""


def flag_of(context: click.Context, name: str) -> str:
    """An option as it is typed."""
    return next(parameter.opts[0] for parameter in context.command.params if parameter.name == name)


def command_with(changes: Mapping[str, Any]) -> str:
    """The command that runs, as it was typed, with other values of some options; None: without it.

    To be pasted into a shell.
    """
    context = click.get_current_context()
    words = _without(context, list(context.meta[WORDS]), changes)
    for name, value in changes.items():
        if value is not None:
            words += [flag_of(context, name), str(value)]
    return shlex.join([*context.command_path.split(), *words])


def _without(context: click.Context, words: list[str], changes: Mapping[str, Any]) -> list[str]:
    """The typed words without these options and their values."""
    flags = {flag_of(context, name) for name in changes}
    kept: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        if word == "--":
            # Behind it options would be texts; texts that look like options become paths.
            texts = words[position + 1 :]
            kept += [f"./{text}" if text[:1] == "-" and text != "-" else text for text in texts]
            break
        if word in flags:
            position += 1
        elif word.partition("=")[0] not in flags:
            kept.append(word)
        position += 1
    return kept


def refusal(error: object, changes: Mapping[str, Any], what: str = "this fits") -> Failure:
    """A refusal that ends with the command that would do, where there is one."""
    return Failure(f"{error}; {what}: {command_with(changes)}" if changes else str(error))
