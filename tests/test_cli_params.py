"""`andrea params`: the counts of presets and runs, what a change does, and what is refused."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from andrea import PRESETS
from andrea.cli import main
from andrea.lessons import count_parameters
from andrea.runs.folder import RunFolder
from andrea.training import TrainState
from cli_process import Shell, checkpoints
from extras import needs
from small_runs import small_config, small_model, small_run


def asked(*words: str | Path, columns: int = 80) -> Any:
    typed = [str(word) for word in ("params", *words)]
    return CliRunner().invoke(main, typed, env={"COLUMNS": str(columns)})


def shown(*words: str | Path, columns: int = 80) -> str:
    result = asked(*words, columns=columns)
    assert result.exit_code == 0, result.output
    return str(result.output)


def facts(*words: str | Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(shown(*words, "--json"))
    return told


def cells(output: str, first: str) -> list[str]:
    """The cells of a table's row behind its name."""
    found = re.search(rf"^ ?{re.escape(first)}  +(.*)$", output, re.MULTILINE)
    assert found, f"no row {first} in:\n{output}"
    return re.split(r"  +", found[1])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of batches of 4, its first checkpoint written."""
    path = tmp_path_factory.mktemp("params") / "run"
    model = small_model(mlp_dim=24)
    with small_run(path, small_config(), model) as folder:
        folder.save(model, TrainState())
    return path


# ---- counts


@pytest.mark.parametrize(
    ("words", "count"),
    [
        # The bars, and the design's table of layouts.
        (("andrea-120m",), 92_331_264),
        (("andrea-120m", "--dialect", "microgpt"), 98_698_752),
        (("andrea-120m", "--no-attn-bias"), 92_294_400),
        (("andrea-120m", "--untied"), 98_820_096),
        (("andrea-120m", "--no-tie-embeddings", "--no-bias"), 98_737_152),
    ],
)
def test_parameters(words: tuple[str, ...], count: int) -> None:
    told = facts(*words)
    assert (told["changed"] or told["model"])["parameters"] == count
    assert told["model"]["parameters"] == 92_331_264
    assert f"{count:,}" in cells(shown(*words), "all")
    if len(words) == 1:
        assert told["changed"] is None and told["difference"] is None
    else:
        assert told["difference"]["parameters"] == count - 92_331_264


@pytest.mark.parametrize("name", PRESETS)
def test_it_agrees_with_info(name: str) -> None:
    told = facts(name)
    info = json.loads(CliRunner().invoke(main, ["info", name, "--json"]).output)
    model = told["model"]
    same = ("config", "dialect", "norms", "parameters", "batch_size", "memory")
    assert {key: model[key] for key in same} == {key: info[key] for key in same}
    work = info["flops_per_token"]
    assert {key: model["flops_per_token"][key] for key in work} == work
    assert [{key: row[key] for key in info["table"][0]} for row in model["table"]] == info["table"]
    assert told["vocab_size_from_text"] == (PRESETS[name]["vocab_size"] == 0)
    assert ("is the text's; 257 tokens here" in shown(name)) == told["vocab_size_from_text"]


def test_the_table_of_one_model() -> None:
    output = shown("andrea-120m", columns=200)
    assert cells(output, "norms")[0].startswith("25 (layer norm): 2 x 12 in the blocks")
    assert "wte.weight (tied): 6,488,832 parameters counted once" in output
    assert "7,087,872 parameters: attention 2,362,368, MLP 4,722,432, norms 3,072" in output
    assert cells(output, "attention") == ["28,348,416", "30.7%"]
    assert cells(output, "h.*.mlp.c_fc.weight") == [
        *("4 n_embd x n_embd", "3072 x 768", "2,359,296", "x 12", "28,311,552", "30.7%"),
    ]
    assert cells(output, "ln_f.bias") == ["n_embd", "768", "768", "768", "0.00083%"]
    head = cells(output, "head")
    # 2 V C of a forward pass of 201,682,944: the design's operations per token.
    assert head == ["13.0M", "38.9M", "6.4%", "2 vocab_size n_embd"]
    narrow = shown("andrea-120m")
    assert cells(narrow, "h.*.mlp.c_fc.weight") == [
        *("4 n_embd x n_embd", "x 12", "28,311,552", "30.7%"),
    ]


def test_a_change_beside_what_was() -> None:
    output = shown("andrea-120m", "--mlp-ratio", "2", "--untied")
    assert "mlp_dim 1,536 (was 3,072), tie_embeddings off (was on)" in output
    mlp = 12 * (2 * 1536 * 768 + 1536 + 768)
    all_of_it = 92_331_264 - 56_669_184 + mlp + 8449 * 768
    share = f"{mlp / all_of_it:.1%}"
    assert cells(output, "MLP")[:4] == ["56,669,184", "61.4%", f"{mlp:,}", share]
    assert cells(output, "MLP")[4:] == [f"-{56_669_184 - mlp:,}", "-50.0%"]
    assert cells(output, "all")[2] == f"{all_of_it:,}"
    assert cells(output, "head") == ["0", "0%", "6,488,832", "9.2%", "+6,488,832", "new"]
    assert cells(output, "embeddings") == ["7,275,264", "7.9%", "7,275,264", "10.3%", "0"]
    assert cells(output, "lm_head.weight") == ["6,488,832", "+6,488,832"]
    assert cells(output, "h.*.mlp.c_fc.bias") == ["36,864", "18,432", "-18,432"]
    assert "h.*.attn" not in output and "13 other tensors stay as they are" in output
    told = " ".join(output.split())
    assert "lm_head.weight (untied): 6,488,832 parameters of its own; was: wte.weight" in told
    wide = shown("andrea-120m", "--mlp-ratio", "2", columns=200)
    assert cells(wide, "h.*.mlp.c_fc.weight")[:3] == [
        "mlp_dim x n_embd",
        "3072 x 768",
        "1536 x 768",
    ]
    assert cells(wide, "output head") == ["wte.weight (tied): 6,488,832 parameters counted once"], (
        "what stays is told once"
    )


def test_a_change_of_nothing() -> None:
    output = shown("gpt2", "--mlp-ratio", "4", "--norm", "layernorm", "--n-layer", "12")
    assert "nothing: that is what it has" in output and "other tensors" not in output
    assert facts("gpt2", "--bias")["difference"]["settings"] == {}


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize(
    "words",
    [
        ("andrea-480m",),
        ("gpt2", "--dialect", "microgpt", "--activation", "swiglu", "--norm-affine"),
        ("andrea-480m", "--n-layer", "96", "--n-embd", "12288", "--batch-size", "8"),
        ("microgpt", "--norm-position", "none", "--no-embedding-norm", "--dialect", "gpt2"),
    ],
)
def test_it_fits(words: tuple[str, ...], columns: int) -> None:
    lines = shown(*words, columns=columns).splitlines()
    assert max(map(len, lines)) <= columns
    assert all(line == line.rstrip() for line in lines)


def test_what_a_narrow_terminal_does_without() -> None:
    page = shown("andrea-120m", columns=60)
    assert max(map(len, page.splitlines())) <= 76, "the table of tensors has names and arithmetic"
    operations = page[page.index("FLOP a token") :].splitlines()[:5]
    assert max(map(len, operations)) <= 60 and len(set(map(len, operations))) == 1
    assert operations[0].split() == ["FLOP", "a", "token", "forward", "training"]


# ---- runs


def test_a_run_and_its_checkpoint(run: Path) -> None:
    with RunFolder.open(run) as folder:
        config = folder.info.model
    told = facts(run)
    assert told["model"] == count_parameters(config, 4).to_dict(), "batches as it trains"
    assert told["run"] == str(run) and "preset" not in told
    (checkpoint,) = checkpoints(run)
    assert facts(checkpoint)["model"]["parameters"] == told["model"]["parameters"]
    output = shown(run, "--n-layer", "4", "--batch-size", "1")
    assert cells(output, "parameters")[:3] == ["this run", "share", "changed"]
    assert "with 1 sequence of 16 tokens a batch" in output
    changed = facts(run, "--n-embd", "32")["changed"]["config"]
    assert (changed["n_embd"], changed["mlp_dim"]) == (32, 24), "a width of its own stays"
    changed = facts(run, "--n-embd", "32", "--mlp-ratio", "2.5")["changed"]["config"]
    assert changed["mlp_dim"] == 80
    assert facts(run, "--dialect", "gpt2")["changed"]["dialect"]["mlp_dim"] == 64


# ---- pictures


@needs("matplotlib", extra="plots")
def test_a_picture_is_drawn(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "shares.svg"
    path.write_text("an older one", "utf-8")
    output = shown(run, "--untied", "--picture", path)
    assert output.endswith(f"\n\nwrote {path}\n")
    drawn = path.read_text("utf-8")
    assert ">this run</text>" in drawn and ">changed</text>" in drawn
    assert facts(run, "--picture", tmp_path / "shares.png")["model"], "nothing but JSON"
    assert (tmp_path / "shares.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_there_is_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.font_manager", raising=False)
    result = asked("microgpt", "--picture", tmp_path / "a.svg")
    assert result.exit_code == 1
    *table, line = result.output.splitlines()
    assert cells("\n".join(table), "all")
    assert line == ("andrea: pictures need matplotlib: install it with pip install 'andrea[plots]'")
    assert not (tmp_path / "a.svg").exists()


# ---- what is refused


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("nope",), "nope is neither a run's folder nor a preset; the presets are andrea-nano"),
        (("./nope",), "nope"),
        (("book.txt",), "book.txt"),
        (("gpt2", "--n-head", "5"), "n_head must divide n_embd: n_embd is 768, n_head is 5"),
        (("gpt2", "--mlp-ratio", "1e300"), "mlp_ratio 1e+300 makes an MLP 7.68e+302 wide"),
        (("gpt2", "--mlp-dim", "99999999999"), "mlp_dim must be between 0 and 2**31 - 1"),
        (("gpt2", "--batch-size", "99999999999"), "batch_size must be between 1 and 2147483647"),
        (("gpt2", "--device", "tpu"), "device is 'tpu'"),
        (("gpt2", "--precision", "fp8"), "fp8"),
        (("gpt2", "--picture", "a.jpg"), "a picture is .svg or .png by its name"),
        (
            ("gpt2", "--norm-position", "none", "--no-final-norm", "--no-norm-affine"),
            "norm_affine is False, but the model has no norm",
        ),
    ],
)
def test_bad_input_is_one_line(words: tuple[str, ...], told: str, tmp_path: Path) -> None:
    assert told in Shell(tmp_path).refuse("params", *words)


@needs("matplotlib", extra="plots")
def test_a_picture_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    line = asked("microgpt", "--picture", tmp_path / "no" / "a.svg").output.splitlines()[-1]
    assert line.startswith("andrea: No such file or directory: ")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "Missing argument 'PRESET|RUN'"),
        (("gpt2", "--untied", "--tie-embeddings"), "--untied and --tie-embeddings contradict"),
        (("gpt2", "--mlp-ratio", "2", "--mlp-dim", "3"), "give one of --mlp-ratio and --mlp-dim"),
        (("gpt2", "--mlp-ratio", "0"), "0 must be a number above 0"),
        (("gpt2", "--mlp-ratio", "nan"), "nan must be a number above 0"),
        (("gpt2", "--n-layer", "0"), "0 must be a whole number, 1 or more"),
        (("gpt2", "--activation", "tanh"), "'tanh' is not one of"),
        (("gpt2", "--picture", ""), "the path is empty"),
    ],
)
def test_wrong_usage(words: tuple[str, ...], told: str) -> None:
    result = asked(*words)
    assert result.exit_code == 2 and told in result.output
