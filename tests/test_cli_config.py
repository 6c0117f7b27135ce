"""`andrea train --config`: a run repeated to the bit, what wins over what, and what is refused."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
import time
from pathlib import Path
from typing import Any

import click
import pytest

from andrea.cli import main
from andrea.cli.errors import Failure
from andrea.cli.screen.formats import next_moment, parse_count
from andrea.cli.training import changes, new_run
from andrea.cli.training.settings import command_with, key_of, settle
from andrea.errors import ConfigError
from andrea.runconfig import SECTIONS, read_config
from andrea.runs.folder import RunFolder
from andrea.training import TrainConfig, TrainState
from andrea.training.schedule import SCHEDULES
from cli_process import TINY_RUN, Shell
from small_runs import small_config


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(tmp_path_factory.mktemp("config"))


def program() -> click.Context:
    """Around a command's own: with its options for help, which click keeps from the first one."""
    return main.make_context("andrea", ["train"])


def train_command() -> click.Command:
    command = main.get_command(click.Context(main), "train")
    assert command is not None
    return command


def settled(*words: str) -> dict[str, Any]:
    """The options that a run would have."""
    command = train_command()
    with command.make_context("train", list(words), parent=program()) as context:
        return settle(context, context.params)


def newest(run: Path) -> Path:
    with RunFolder.open(run) as opened:
        return opened.checkpoint_path


# ---- repeated to the bit


def test_a_run_is_repeated_to_the_bit(shell: Shell) -> None:
    odd = ("--schedule", "wsd", "--beta2", "0.95", "--seed", "3", "--sample-prompt", "The é")
    odd += ("--accumulate", "2", "--skip-outliers", "--eval-windows", "2", "--keep", "1")
    shell.succeed("train", "book.txt", *TINY_RUN, "--steps", "5", *odd, "--out", "first")
    config = shell.folder / "first" / "config.toml"
    shell.succeed("train", "--config", "first/config.toml", "--out", "again")
    assert newest(shell.folder / "again").name == "step-00000005.safetensors"
    assert (
        newest(shell.folder / "first").read_bytes() == newest(shell.folder / "again").read_bytes()
    )
    assert config.read_bytes() == (shell.folder / "again" / "config.toml").read_bytes()

    # Every setting of the run stands in the file.
    written = read_config(config)
    with RunFolder.open(shell.folder / "first") as run:
        train = run.config.to_dict() | {"for": None, "keep": 1}
        model = run.info.model.to_dict()
    for name, value in (train | model).items():
        if name not in ("seconds", "keep_last"):
            assert written.get(name) == value, name
    assert written["text"] == [str(shell.folder / "book.txt")]
    assert (written["tokenizer"], written["precision"]) == ("char", "fp32")
    entry = json.loads((shell.folder / "first" / "log.jsonl").read_text().splitlines()[0])
    assert entry["environment"]["device"] == "cpu" and entry["environment"]["threads"] >= 1
    assert entry["plan"]["steps"] == 5 and entry["plan"]["memory"]["total"] > 0
    assert entry["data"]["documents"] == 1 and entry["data"]["vocab_size"] == model["vocab_size"]

    # A resumed run has the settings that it has now.
    shell.succeed("train", "--resume", "again", "--steps", "6", "--max-norm", "2", "--no-report")
    changed = read_config(shell.folder / "again" / "config.toml")
    expected = written | {"steps": 6, "max_norm": 2.0, "report": False}
    assert changed == expected


# ---- what wins


def write(folder: Path, text: str) -> str:
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


FILE = """
[run]
for = "20m"
keep = 3
report = false
[model]
n_layer = 2
n_head = 4
n_embd = 64
block_size = 32
[training]
batch_size = 5
[data]
text = ["book.txt"]
tokenizer = "bpe"
vocab_size = 300
skip_bad = true
"""


def test_a_file_says_what_was_not_typed(tmp_path: Path) -> None:
    path = write(tmp_path, FILE)
    options = settled("--config", path, "--batch-size", "7", "--report")
    assert (options["seconds"], options["keep_last"], options["batch_size"]) == (1200.0, 3, 7)
    assert options["text"] == (str(tmp_path / "book.txt"),)
    assert options["report"] is True and options["skip_bad"] is True
    assert options["learning_rate"] is None


def test_what_is_typed_takes_the_place_of_what_it_contradicts(tmp_path: Path) -> None:
    path = write(tmp_path, FILE)
    assert settled("--config", path, "--steps", "9")["seconds"] is None
    other = settled("other.txt", "--config", path)
    assert other["text"] == ("other.txt",)
    preset = settled("--config", path, "--preset", "andrea-nano")
    for name in ("n_layer", "n_head", "n_embd", "block_size", "tokenizer", "vocab_size"):
        assert preset[name] is None, name
    wider = settled("--config", path, "--n-embd", "96")
    assert (wider["n_embd"], wider["n_head"], wider["n_layer"]) == (96, None, 2)
    assert settled("--config", path, "--tokenizer", "char")["vocab_size"] is None
    assert settled("--config", path, "--init-from", "x")["n_layer"] is None


def test_a_recipe_stands_below_both(tmp_path: Path) -> None:
    path = write(tmp_path, "[training]\nwarmup = 5\n[run]\nrecipe = 'andrea'\n")
    options = settled("--config", path, "--learning-rate", "0.1")
    assert (options["learning_rate"], options["warmup"], options["beta2"]) == (0.1, 5, 0.999)
    assert (options["steps"], options["sample_tokens"]) == (200_000, 420)
    timed = settled("--recipe", "andrea", "--for", "1h", "--preset", "andrea-nano")
    assert (timed["steps"], timed["seconds"], timed["block_size"]) == (None, 3600.0, None)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[run]\nsteps = 3\nfor = 3", "for and steps both say when to end"),
        ("[run]\nsteps = 0", "steps: 0 must be a whole number, 1 or more"),
        ("[run]\nfor = -3", "for: -3 must be a number of seconds above 0"),
        ("[run]\nfor = nan", "for: nan must be a number of seconds above 0"),
        ('[run]\nfor = "soon"', "for: 'soon' is not a duration"),
        ("[training]\nmin_ratio = 2", "min_ratio: 2 must be a number between 0 and 1"),
        ("[training]\nlearning_rate = inf", "learning_rate: inf must be a number above 0"),
        ('[training]\nschedule = "sine"', "schedule: 'sine' is not one of"),
        ("[training]\nlearning_rte = 1", "did you mean learning_rate in [training]?"),
    ],
)
def test_mistakes_in_the_file_are_told_with_its_name(text: str, told: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        settled("--config", path)
    assert str(caught.value).startswith(f"{path}: ") and told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_key_at_the_shell(shell: Shell) -> None:
    write(shell.folder, "[model]\nn_layers = 2\n")
    line = shell.refuse("train", "--config", "run.toml")
    assert line == "andrea: run.toml: [model] has no key 'n_layers'; did you mean n_layer in " + (
        "[model]?\n"
    )
    assert "no recipe is called 'x'" in shell.refuse("train", "--recipe", "x")


@pytest.mark.parametrize("name", ["config", "recipe", "init-from"])
def test_a_resumed_run_has_its_own_settings(name: str) -> None:
    with pytest.raises(click.UsageError, match=f"--{name} is for a new run"):
        settled("--resume", "runs/x", f"--{name}", "y")


# ---- options and keys are the same


def test_every_option_is_a_key_and_every_key_an_option() -> None:
    keys = [key for section in SECTIONS.values() for key in section]
    assert len(keys) == len(set(keys))
    options = {key_of(parameter) for parameter in train_command().params}
    # What names another run is not a setting of this one.
    assert options == set(keys) | {"resume", "config"}


def test_schedules_are_those_of_the_library() -> None:
    schedule = next(p for p in train_command().params if p.name == "schedule")
    assert isinstance(schedule.type, click.Choice)
    assert list(schedule.type.choices) == list(SCHEDULES)


def test_nothing_has_a_default_that_would_win_over_a_file() -> None:
    options = settled()
    assert set(options.values()) <= {None, ()}


def test_the_help_tells_the_defaults_of_the_library() -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(TrainConfig)}
    words = {"keep": False, "cosine": "cosine"}
    told = {}
    for parameter in train_command().params:
        text = re.search(r"\[default: (\S+)\]", getattr(parameter, "help", None) or "")
        # 5m is said of seconds, where the library has no default.
        if parameter.name in defaults and text and text[1] != "5m":
            told[parameter.name] = words.get(text[1], text[1])
    assert len(told) > 12
    for name, value in told.items():
        assert type(defaults[name])(value) == defaults[name], name


# ---- when to end


@pytest.mark.parametrize(
    "pair",
    [("--steps", "3", "--for", "3s"), ("--tokens", "1M", "--epochs", "2"), ("--until", "07:30")],
)
def test_one_budget_is_enough(pair: tuple[str, ...]) -> None:
    if len(pair) == 2:
        pair += ("--for", "1h")
    with pytest.raises(click.UsageError, match="both say when to end: give one of them"):
        settled(*pair)


@pytest.mark.parametrize(
    ("text", "number"),
    [("5000", 5000), ("800k", 800_000), ("10M", 10**7), ("1.5G", 1_500_000_000), ("1.2345k", None)]
    + [("1_000", 1000), ("1,000", 1000), ("2B", 2 * 10**9), ("0.5k", 500), ("1t", 10**12)]
    + [(bad, None) for bad in ("", "0", "k", "-5", "1e6", "10 M tokens", "0.0001k", "9" * 6000)],
)
def test_counts(text: str, number: int | None) -> None:
    if number is not None:
        assert parse_count(text) == number
        return
    with pytest.raises(ValueError):
        parse_count(text)


NOW = datetime.datetime(2031, 5, 6, 7, 30)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("07:31", datetime.datetime(2031, 5, 6, 7, 31)),
        ("7:29", datetime.datetime(2031, 5, 7, 7, 29)),
        ("07:30", datetime.datetime(2031, 5, 7, 7, 30)),
        ("2031-12-24 18:00", datetime.datetime(2031, 12, 24, 18)),
        ("2031-12-24T18:00", datetime.datetime(2031, 12, 24, 18)),
    ],
)
def test_until_is_the_next_time_a_clock_shows_it(text: str, moment: datetime.datetime) -> None:
    assert next_moment(text, NOW) == moment.timestamp()


@pytest.mark.parametrize("text", ["", "25:00", "7", "noon", "2031-05-06 07:30", "07:30:10"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        next_moment(text, NOW)


def test_a_time_of_day_may_stand_in_the_file(tmp_path: Path) -> None:
    options = settled("--config", write(tmp_path, "[run]\nuntil = 2131-05-06T07:30:00\n"))
    assert options["until"] == datetime.datetime(2131, 5, 6, 7, 30).timestamp()
    assert options["seconds"] is None


def test_seconds_until_a_moment() -> None:
    moment = time.time() + 1000
    assert 900 < changes.seconds_until(moment) <= 1000
    with pytest.raises(Failure, match="it is past "):
        changes.seconds_until(time.time() - 1)


def test_a_run_until_a_time_of_day_has_what_is_left(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it begins: however long the text took."""
    left = iter([9.0, 2.5, 9.0, 1.5])
    for module in (changes, new_run):
        monkeypatch.setattr(module, "seconds_until", lambda _moment: next(left))
    monkeypatch.chdir(shell.folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(shell.folder / ".cache"))
    typed = ["train", "book.txt", *TINY_RUN, "--out", "until", "--until", "07:30"]
    assert main.main(typed, standalone_mode=False) == 0
    assert read_config(shell.folder / "until" / "config.toml")["for"] == 2.5
    resumed = ["train", "--resume", "until", "--until", "07:30"]
    assert main.main(resumed, standalone_mode=False) == 0
    with RunFolder.open(shell.folder / "until") as run:
        # The first session used up its time.
        assert 4.0 <= (run.config.seconds or 0) < 5.0
    assert next(left, None) is None


def test_tokens_and_epochs_at_the_shell(shell: Shell) -> None:
    output = shell.succeed("train", "book.txt", *TINY_RUN, "--tokens", "0.5k", "--out", "counted")
    assert re.search(r"^training +8 steps of 4 x 16 tokens: 512 tokens", output, re.MULTILINE)
    output = shell.succeed("train", "--resume", "counted", "--tokens", "600", "--max-norm", "0")
    assert re.findall(r"^changed +(.*)$", output, re.MULTILINE) == [
        "steps: 8 -> 10",
        "max norm: 1 -> 0",
    ]
    assert re.search(
        r"^rate +the next step has learning rate 0\.\d+, it would", output, re.MULTILINE
    )
    with RunFolder.open(shell.folder / "counted") as run:
        assert run.state().step == 10
    line = shell.refuse("train", "--resume", "counted", "--epochs", "0.01")
    assert "has done its 1 steps; to go on" in line


def test_a_jump_of_the_learning_rate_is_told() -> None:
    old = small_config(steps=100, warmup=0, schedule="linear", min_ratio=0.0, learning_rate=0.5)
    state = TrainState(step=50)
    longer = dataclasses.replace(old, steps=200)
    told = changes.rate_change(old, longer, state)
    assert told == "the next step has learning rate 0.375, it would have been 0.25"
    assert changes.rate_change(old, dataclasses.replace(old, seed=4), state) is None
    assert changes.rate_change(longer, dataclasses.replace(longer, steps=201), state) is None
    other = dataclasses.replace(old, schedule="constant")
    assert "0.5, it would have been 0.25" in (changes.rate_change(old, other, state) or "")


# ---- commands that are proposed


def proposed(words: list[str], changes: dict[str, Any]) -> str:
    with train_command().make_context("train", list(words), parent=program()):
        return command_with(changes)


def test_a_proposal_is_what_was_typed_with_the_changes() -> None:
    words = ["my book.txt", "--batch-size", "32", "--steps=5", "--accumulate=2", "--report"]
    assert proposed(words, {"batch_size": 8, "accumulate": 8}) == (
        "andrea train 'my book.txt' --steps=5 --report --batch-size 8 --accumulate 8"
    )
    assert proposed(words, {"batch_size": None, "keep_last": 1}) == (
        "andrea train 'my book.txt' --steps=5 --accumulate=2 --report --keep 1"
    )
    assert proposed(["--keep", "3", "--", "-x.txt", "-"], {"keep_last": 1}) == (
        "andrea train ./-x.txt - --keep 1"
    )


def test_what_does_not_fit_is_refused_with_what_does(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    from andrea.planning import machine

    typed = ("train", "book.txt", "--n-layer", "2", "--n-embd", "64", "--block-size", "64")
    typed += ("--batch-size", "64", "--steps", "2", "--out", "fitting")
    monkeypatch.setattr(machine, "available_memory", lambda device="cpu": 13_000_000)
    line = shell.refuse(*typed)
    assert re.search(r"training takes [\d.]+ MB \(activations .*\), 13\.0 MB are free; ", line)
    command = line.partition("this fits: andrea ")[2].split()
    # How small depends on the machine: each thread has its workspace.
    *_, batch, size, parts, count = command
    assert (batch, parts) == ("--batch-size", "--accumulate")
    assert int(size) * int(count) == 64 and 1 <= int(size) < 64
    shell.succeed(*command)
    line = shell.refuse("train", "--resume", "fitting", "--steps", "3", "--batch-size", "64")
    assert "this fits: andrea train --resume fitting --steps 3 --batch-size " in line


def test_a_full_disk_is_told_before_the_run(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    from andrea.planning import disk

    monkeypatch.setattr(disk, "free_disk", lambda folder: 1_000_000)
    typed = ("train", "book.txt", *TINY_RUN, "--steps", "20", "--save-every", "1", "--out", "full")
    line = shell.refuse(*typed, "--keep", "9")
    assert "11 checkpoints of " in line and "1.0 MB are free; this fits: andrea train" in line
    kept = int(line.split()[-1])
    assert 1 <= kept < 9 and line.split()[-2] == "--keep"
    monkeypatch.setattr(disk, "free_disk", lambda folder: 100_000)
    assert "free some space, choose another folder with --out" in shell.refuse(*typed)
    assert not (shell.folder / "full").exists()


def test_a_lack_of_memory_names_what_takes_it(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    import andrea.model

    class Refusing:
        def __init__(self, *_arguments: Any, **_settings: Any) -> None:
            raise error

    monkeypatch.setattr(andrea.model, "GPT", Refusing)
    error: Exception = andrea.OutOfMemoryError("the engine found no 80 MB of memory")
    typed = ("train", "book.txt", *TINY_RUN, "--steps", "2", "--out", "none")
    line = shell.refuse(*typed)
    assert "no 80 MB of memory: the biggest consumers are " in line
    assert re.search(r"are \w+ [\d.]+ KB, \w+ [\d.]+ KB, \w+ [\d.]+ KB; this needs less: ", line)
    assert line.endswith("--batch-size 2 --accumulate 2\n")
    error = MemoryError()
    assert "out of memory: the biggest consumers are " in shell.refuse(*typed)
    line = shell.refuse(*typed, "--batch-size", "1")
    assert "a smaller --block-size or model needs less" in line
