"""What damage of files has once got wrong, each with the right outcome."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import andrea
from andrea.errors import AndreaError, CheckpointError, ConfigError, RunError, TokenizerError
from andrea.formats.safetensors_file import SafetensorsFolder
from andrea.formats.tokenizer_json import to_tokenizer_json
from andrea.runs import Checkpoint, CheckpointInfo, save_checkpoint
from andrea.runs.incident_file import read_incident
from andrea.runs.log import newest_run_id, rewind
from andrea.tokenizers import CarriedTokenizer, tokenizer_from_dict
from andrea.training import TrainConfig, TrainState
from cli_process import TINY_RUN, Shell
from fuzz.checkpoints import seal, split
from fuzz.incidents import IncidentFile
from small_runs import small_config, small_model, small_tokenizer
from small_weights import small_tokenizer as small_tokenizer_of


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint.safetensors"
    model = small_model()
    train, state = small_config().to_dict(), TrainState(step=3).to_dict(timed=False)
    save_checkpoint(
        path, model, CheckpointInfo(model.config, small_tokenizer().to_dict(), train, state)
    )
    return path


def with_metadata(path: Path, **entries: str) -> None:
    """The checkpoint with other metadata and a checksum that fits."""
    header, data = split(path.read_bytes())
    header["__metadata__"].update(entries)
    path.write_bytes(seal(header, data))


def complaint(error: pytest.ExceptionInfo[AndreaError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("values", [True, 3.5, 7, None, "steps", ["steps"]])
def test_settings_that_are_no_table(values: Any) -> None:
    for read, kind in (
        (TrainConfig.from_dict, ConfigError),
        (TrainState.from_dict, CheckpointError),
        (andrea.ModelConfig.from_dict, ConfigError),
    ):
        with pytest.raises(kind, match="must be named values"):
            read(values)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", "3"),
        ("step", {"name": 3}),
        ("step", True),
        ("step", -1),
        ("step", 10**30),
        ("elapsed", float("nan")),
        ("best_loss", "low"),
        ("best_step", 1.5),
        ("recent_losses", 2.5),
        ("recent_losses", [2.5, None]),
        ("told", [1]),
        ("told", "over-fit"),
    ],
)
def test_a_state_of_other_types(name: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=f"the training state's {name} can't be"):
        TrainState.from_dict({"step": 3, name: value})


def test_every_field_of_a_state_comes_back() -> None:
    state = TrainState(step=9, elapsed=2.5, best_loss=1.5, best_step=6, told=["over-fit"])
    state.recent_losses, state.recent_norms = [2.5, 2.25], [1.0, 0.5]
    values = json.loads(json.dumps(state.to_dict(timed=True)))
    assert TrainState.from_dict(values) == state


@pytest.mark.parametrize("step", [None, "7", {"step": 7}, [7]])
def test_a_log_whose_steps_are_no_numbers(tmp_path: Path, step: Any) -> None:
    path = tmp_path / "log.jsonl"
    odd = {"type": "run.loss", "run_id": "mine", "step": step, "resumed_step": step}
    late = {"type": "run.loss", "run_id": "mine", "step": 8}
    lines = [json.dumps(entry) + "\n" for entry in (odd, late)]
    path.write_text("".join(lines))
    rewind(path, "mine", 7)
    assert path.read_text() == lines[0]


def test_a_log_with_deep_lines_and_odd_names(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    start = '{"type": "run.start", "run_id": "mine"}\n'
    odd = '{"type": "run.start", "run_id": ["other"]}\n'
    deep = '"run.start"' + "[" * 100_000 + "\n"
    path.write_text(start + odd + deep)
    assert newest_run_id(path) == "mine"
    rewind(path, "mine", 7)
    assert path.read_text() == start + odd + deep


def test_a_log_that_is_a_folder_has_no_run(tmp_path: Path) -> None:
    assert newest_run_id(tmp_path) is None


@pytest.mark.parametrize("name", ["model", "tokenizer", "train", "state", "record"])
@pytest.mark.parametrize("value", ["[" * 100_000, "true", "[1]", "9" * 5000, '"text"', "", "\n"])
def test_metadata_that_is_no_record(saved: Path, name: str, value: str) -> None:
    with_metadata(saved, **{name: value})
    with pytest.raises(CheckpointError, match="has metadata that can't be read") as caught:
        Checkpoint(saved)
    assert len(complaint(caught)) < 1000


@pytest.mark.parametrize("steps", ["", "-1", "1.5", "\u0663", "9" * 5000, "many\n"])
def test_optimizer_steps_that_are_no_count(saved: Path, steps: str) -> None:
    with_metadata(saved, optimizer_steps=steps)
    with (
        Checkpoint(saved) as checkpoint,
        pytest.raises(CheckpointError, match="how many steps its optimizer did"),
    ):
        checkpoint.load(small_model(), moments=True)


@pytest.mark.parametrize(
    ("name", "value", "seen"),
    [
        ("vocab_size", 2**28, "wte.weight is"),
        ("block_size", 2**28, "wpe.weight is"),
        ("n_layer", 60_000, "h.2.ln_1.weight is missing"),
        ("n_embd", 2**20, "wte.weight is"),
    ],
)
def test_a_model_that_its_tensors_cannot_fill(
    saved: Path, name: str, value: int, seen: str
) -> None:
    """It is refused before anybody makes memory for it."""
    config = {**small_model().config.to_dict(), name: value}
    with_metadata(saved, model=json.dumps(config))
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(saved)
    assert seen in complaint(caught)


def test_messages_with_line_ends_of_the_file_are_one_line(saved: Path) -> None:
    with_metadata(saved, andrea_checkpoint="\n")
    with pytest.raises(CheckpointError, match=r"a checkpoint of format '\\n'") as caught:
        Checkpoint(saved)
    complaint(caught)
    header, data = split(saved.read_bytes())
    header["wte.weight"]["dtype"] = "\n"
    saved.write_bytes(seal(header, data))
    with pytest.raises(CheckpointError, match="truncated, altered or no checkpoint") as caught:
        Checkpoint(saved)
    complaint(caught)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_could_not_be_saved_again(saved: Path, value: str) -> None:
    with_metadata(saved, record=f'{{"number": [{value}]}}')
    with pytest.raises(CheckpointError, match=f"can't be read: {value} is not finite"):
        Checkpoint(saved)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", "7"),
        ("step", 0),
        ("learning_rate", "nan"),
        ("learning_rate", None),
        ("gradients", [["wte.weight", "nan", 0]]),
        ("gradients", [["wte.weight", 1.5, -1]]),
        ("gradients", [["wte.weight", 1.5]]),
        ("record", [1]),
        ("losses", None),
        ("state", 7),
    ],
)
def test_an_incident_with_odd_facts(tmp_path: Path, name: str, value: Any) -> None:
    incidents = IncidentFile(tmp_path)
    path = tmp_path / "step-00000007.npz"
    path.write_bytes(incidents.with_facts(lambda facts: {**facts, name: value}))
    with pytest.raises(RunError, match="is damaged or no incident") as caught:
        read_incident(path)
    complaint(caught)


@pytest.mark.parametrize("name", ["best_loss", "best_step"])
def test_a_best_loss_and_its_step_come_together(name: str) -> None:
    with pytest.raises(CheckpointError, match="has a best loss without its step, or a step"):
        TrainState.from_dict({"step": 3, name: 2})


# ---- a tokenizer.json on which its library aborts, panics or goes on for ever

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
DOUBLED = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}


def in_sequence(part: str, *steps: Any) -> dict[str, Any]:
    names = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}
    return {part: {"type": "Sequence", names[part]: list(steps)}}


@pytest.mark.parametrize(
    ("part", "model", "told"),
    [
        # It is cut off each token's bytes, in the middle of a character, and the process aborts.
        ({}, {"continuing_subword_prefix": "\0"}, "continuing_subword_prefix is '\\\\x00'"),
        ({}, {"continuing_subword_prefix": "##"}, "continuing_subword_prefix is '##'"),
        ({}, {"end_of_word_suffix": "</w>"}, "end_of_word_suffix is '</w>'"),
        ({}, {"dropout": 0.1}, "other tokens each time"),
        ({}, {"type": "WordLevel"}, "its model is not BPE"),
        ({}, {"vocab": ["a"]}, "it has no vocabulary"),
        ({"model": 7}, {}, "its model is not BPE"),
        # Each step makes a text longer, until there is no memory for it: another abort.
        (in_sequence("normalizer", *[DOUBLED] * 40), {}, "could make a text 1099511627776 times"),
        (in_sequence("pre_tokenizer", *[BYTES] * 30), {}, "turns text into bytes 30 times"),
        ({"pre_tokenizer": None}, {}, "turns text into bytes 0 times"),
        (in_sequence("normalizer", *[{"type": "NFC"}] * 99), {}, "normalizer has more than 64"),
        # A table whose offsets lead anywhere: it aborts.
        (
            {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}},
            {},
            "its normalizer has a step 'Precompiled'",
        ),
        ({"normalizer": {"type": "Magic"}}, {}, "its normalizer has a step 'Magic'"),
        ({"normalizer": ["NFC"]}, {}, "its normalizer has a step"),
        ({"normalizer": {**DOUBLED, "pattern": {"String": ""}}}, {}, "replaces nothing"),
        (in_sequence("pre_tokenizer", {"type": "FixedLength", "length": 0}, BYTES), {}, "length 0"),
    ],
)
def test_a_tokenizer_that_its_library_cannot_bear(
    part: dict[str, Any], model: dict[str, Any], told: str
) -> None:
    described = to_tokenizer_json(small_tokenizer_of("bpe"))
    described |= {"model": described["model"] | model, **part}
    with pytest.raises(TokenizerError, match=told) as caught:
        CarriedTokenizer(described, 300, 299)
    complaint(caught)


@pytest.mark.parametrize("tokens", [[], ["<|endoftext|>"]])
def test_a_template_without_a_place_for_the_text(tokens: list[str]) -> None:
    """The library would leave the text out, or panic: what goes around a text is not asked for."""
    end = [{"SpecialToken": {"id": "end", "type_id": 0}}]
    added = {"end": {"id": "end", "ids": [299], "tokens": tokens}}
    template = {"type": "TemplateProcessing", "single": end, "pair": end, "special_tokens": added}
    described = to_tokenizer_json(small_tokenizer_of("bpe"))
    tokenizer = CarriedTokenizer(described | {"post_processor": template}, 300, 299)
    expected = CarriedTokenizer(described, 300, 299).encode("one text")
    assert tokenizer.encode("one text").tolist() == expected.tolist() != []


def test_numbers_of_a_tokenizer_that_could_not_be_saved() -> None:
    described = to_tokenizer_json(small_tokenizer_of("bpe"))
    for part in ("post_processor", "notes"):
        with pytest.raises(TokenizerError, match="not JSON compliant") as caught:
            CarriedTokenizer(described | {part: {"number": float("nan")}}, 300, 299)
        complaint(caught)


@pytest.mark.parametrize("characters", ["ba", "aab"])
def test_characters_that_would_get_other_numbers(characters: str) -> None:
    with pytest.raises(TokenizerError, match="characters are not in order, once each"):
        tokenizer_from_dict({"name": "char", "characters": characters})


@pytest.mark.parametrize("shard", ["\n.safetensors", "\ud800.safetensors", "\0.safetensors"])
def test_shards_whose_names_cannot_be_said(tmp_path: Path, shard: str) -> None:
    index = {"weight_map": {"transformer.wte.weight": shard}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="no name of a file beside it") as caught:
        SafetensorsFolder(tmp_path)
    complaint(caught)


def test_two_tokens_of_one_number() -> None:
    described = to_tokenizer_json(small_tokenizer_of("bpe"))
    described["model"]["vocab"]["ĀĀ"] = described["model"]["vocab"]["a"]
    with pytest.raises(TokenizerError, match="gives one number, 64, to two tokens: 'a' and 'ĀĀ'"):
        CarriedTokenizer(described, 300, 299)


def test_a_pattern_that_never_ends_is_told_of_the_text() -> None:
    endless = {"type": "Split", "pattern": {"Regex": "(a+a+)+b"}, "behavior": "Isolated"}
    splitters = in_sequence("pre_tokenizer", {**endless, "invert": False}, BYTES)
    described = to_tokenizer_json(small_tokenizer_of("bpe")) | splitters
    tokenizer = CarriedTokenizer(described, 300, 299)
    assert tokenizer.decode(tokenizer.encode("aab")) == "aab"
    with pytest.raises(TokenizerError, match="can't make tokens of this text") as caught:
        tokenizer.encode("a" * 60)
    complaint(caught)


# ---- what the commands read of a run


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    made = Shell(tmp_path_factory.mktemp("findings"))
    made.succeed("train", "book.txt", *TINY_RUN, "--steps", "1", "--out", "run")
    return made


def with_entry(shell: Shell, out: str, entry: str, **values: Any) -> str:
    """A copy of the run whose newest checkpoint says something else, with a fitting checksum."""
    folder = shell.folder / out
    shutil.copytree(shell.folder / "run", folder)
    for path in folder.glob("checkpoints/*"):
        header, _ = split(path.read_bytes())
        metadata = json.loads(header["__metadata__"][entry])
        metadata.update(values)
        kept = {name: value for name, value in metadata.items() if value != "absent"}
        with_metadata(path, **{entry: json.dumps(kept)})
    return out


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sample_prompt", {"text": "The"}),
        ("sources", "book.txt"),
        ("sources", [1]),
        ("device", None),
        ("precision", 32),
        ("documents", "1"),
        ("num_bytes", -1),
        ("sample_tokens", 2.5),
        ("encoding", ["utf-8"]),
        ("skip_bad", "no"),
        ("tensorboard", 1),
    ],
)
def test_a_record_of_other_kinds(shell: Shell, name: str, value: Any) -> None:
    out = with_entry(shell, f"odd-{name}-{type(value).__name__}", "record", **{name: value})
    for command in (("info", out), ("sample", out), ("train", "--resume", out, "--steps", "2")):
        assert f"its record has {name}" in shell.refuse(*command)


def test_a_record_with_half_of_the_text_s_facts(shell: Shell) -> None:
    out = with_entry(shell, "half", "record", documents="absent")
    assert "its record has no documents" in shell.refuse("info", out)


def test_settings_without_a_length(shell: Shell) -> None:
    out = with_entry(shell, "endless", "train", steps="absent")
    assert "either steps or seconds" in shell.refuse("info", out)
    assert "either steps or seconds" in shell.refuse("train", "--resume", out)
    # Sampling needs none of them.
    assert len(shell.succeed("sample", out, "--tokens", "5")) > 1
