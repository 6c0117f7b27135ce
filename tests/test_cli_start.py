"""`andrea` itself: help, version, completion, what is imported, and how errors are told."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import andrea
from andrea.cli import main
from andrea.cli.errors import one_line_errors
from andrea.config import PRESETS
from andrea.errors import DataError, RunError
from andrea.tokenizers import TOKENIZER_NAMES
from cli_process import Shell

TRAIN_OPTIONS = [
    "--out",
    "--preset",
    "--n-layer",
    "--n-head",
    "--n-embd",
    "--block-size",
    "--batch-size",
    "--accumulate",
    "--steps",
    "--for",
    "--learning-rate",
    "--warmup",
    "--weight-decay",
    "--seed",
    "--device",
    "--precision",
    "--threads",
    "--tokenizer",
    "--vocab-size",
    "--eval-every",
    "--save-every",
    "--resume",
    "--text-key",
    "--encoding",
    "--skip-bad",
    "--sample-prompt",
]
SAMPLE_OPTIONS = [
    "--prompt",
    "--tokens",
    "--temperature",
    "--top-k",
    "--top-p",
    "--min-p",
    "--repetition-penalty",
    "--seed",
    "--stop",
    "--num-samples",
    "--interactive",
]


COMMANDS = (
    *("train", "sample", "serve", "eval", "replay", "report", "metrics", "export", "import"),
    *("info", "params", "experiment", "trace", "doctor", "prefix", "completion"),
)


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(main, arguments)


def declared(command: str) -> dict[str, click.Option]:
    found = main.get_command(click.Context(main), command)  # type: ignore[attr-defined]
    return {name: option for option in found.params for name in option.opts}


@pytest.mark.parametrize("arguments", [("--help",), ("-h",), ()])
def test_help_names_the_commands(arguments: tuple[str, ...]) -> None:
    output = invoke(*arguments).output
    for command in COMMANDS:
        assert f"\n  {command} " in output


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_commands_fits_80_columns(command: str) -> None:
    result = invoke(command, "-h")
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 80


def test_examples_stand_under_a_title() -> None:
    assert '\nExamples:\n  andrea sample runs/book --prompt "Once' in invoke("sample", "-h").output
    assert "Examples" not in invoke("report", "-h").output


@pytest.mark.parametrize(
    ("command", "names"), [("train", TRAIN_OPTIONS), ("sample", SAMPLE_OPTIONS)]
)
def test_fixed_option_names(command: str, names: list[str]) -> None:
    assert set(names) <= set(declared(command))
    help_page = invoke(command, "--help").output
    assert [name for name in names if f"{name} " not in help_page] == []


def test_lists_written_out_match_the_package() -> None:
    options = declared("train")
    assert tuple(options["--tokenizer"].type.choices) == TOKENIZER_NAMES  # type: ignore[attr-defined]
    assert all(name in (options["--preset"].help or "") for name in PRESETS)


def test_version_names_package_and_engine() -> None:
    version = andrea.engine_info()["version"]
    assert invoke("--version").output == f"andrea {andrea.__version__}, engine {version}\n"


def test_start_imports_nothing_heavy() -> None:
    code = "import sys, andrea.cli as c; c.main(['train', '--help'], standalone_mode=False);"
    code += (
        "print(*(m for m in ('numpy', 'rich', 'tokenizers', 'andrea.model') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell: str) -> None:
    result = invoke("completion", shell)
    assert result.exit_code == 0, result.output
    assert "_ANDREA_COMPLETE" in result.output


def test_completion_completes(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    words = {"COMP_WORDS": "andrea train --pres", "COMP_CWORD": "2"}
    output = shell.succeed(_ANDREA_COMPLETE="bash_complete", **words)
    assert "--preset" in output and "--precision" not in output
    words = {"COMP_WORDS": "andrea info andrea-1", "COMP_CWORD": "2"}
    output = shell.succeed(_ANDREA_COMPLETE="bash_complete", **words)
    assert "andrea-12m" in output and "andrea-480m" not in output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("train", "--steps", "0"), "1 or more"),
        (("train", "--n-layer", "two"), "not a valid integer"),
        (("train", "--for", "soon"), "is not a duration"),
        (("train", "--for", "0m"), "no time at all"),
        (("train", "--learning-rate", "nan"), "above 0"),
        (("train", "--steps", "3", "--for", "3s"), "give one of them"),
        (("train", "--tokenizer", "words"), "not one of"),
        (("train", "--stpes", "3"), "--steps"),
        (("sample",), "Missing argument"),
        (("prefxi", "x"), "No such command 'prefxi'. Did you mean 'prefix'?"),
        (("qqq", "x"), "No such command 'qqq'.\n"),
    ],
)
def test_usage_errors_exit_2(arguments: tuple[str, ...], complaint: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert complaint in result.output


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (DataError("no text\nin there"), "no text in there"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x"), "No space left on device: x; free"),
        (MemoryError(), "out of memory"),
        (KeyError("key"), "unexpected KeyError: 'key' (a bug in andrea; `andrea --debug"),
    ],
)
def test_errors_are_one_line(error: Exception, line: str) -> None:
    with pytest.raises(click.ClickException) as caught, one_line_errors(debug=False):
        raise error
    assert caught.value.exit_code == 1
    assert caught.value.format_message().startswith(line)
    assert "\n" not in caught.value.format_message()


def test_debug_shows_the_traceback() -> None:
    with pytest.raises(KeyError), one_line_errors(debug=True):
        raise KeyError("key")
    assert isinstance(invoke("--debug", "sample", "nothing").exception, RunError)
    assert isinstance(invoke("sample", "nothing").exception, SystemExit)


def test_info_of_a_preset() -> None:
    output = invoke("info", "andrea-120m").output
    assert "92,331,264" in output and "3 n_embd x n_embd" in output
    facts = json.loads(invoke("info", "andrea-120m", "--json").output)
    assert sum(row["total"] for row in facts["table"]) == facts["parameters"] == 92_331_264
    assert facts["memory"]["training"]["total"] > 4 * 4 * facts["parameters"]
    assert facts["flops_per_token"]["training"] > 6 * 85_054_464


def test_info_of_nothing_shows_presets_and_machine() -> None:
    output = invoke("info").output
    assert all(name in output for name in PRESETS)
    assert andrea.instruction_set() in output
    facts = json.loads(invoke("info", "--json").output)
    assert facts["machine"]["threads"] == andrea.get_num_threads()


def test_info_of_an_unknown_name_lists_the_presets() -> None:
    result = invoke("info", "andrea-13m")
    assert result.exit_code == 1
    assert all(name in result.output for name in PRESETS)
