"""Models that are not GPT-2's, as a user chooses them: options, files, runs; what is refused."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from andrea import PRESETS, ConfigError, ModelConfig
from andrea.cli import main
from andrea.cli.dialect_options import ALL_BIASES, SWITCHES, given_switches
from andrea.cli.training.settings import settle
from andrea.config import CHOICES, DIALECT_SETTINGS, DIALECTS
from andrea.runconfig import SECTIONS, read_config
from andrea.runs.folder import RunFolder
from cli_process import TINY_RUN, Shell, checkpoints
from extras import needs
from native_build import REPOSITORY
from served_model import Server

# As far from GPT-2 as can be.
ODD = ("--norm", "rmsnorm", "--norm-position", "post", "--activation", "swiglu", "--no-bias")
ODD += ("--mlp-bias", "--no-tie-embeddings", "--embedding-norm", "--no-final-norm")
ODD += ("--mlp-dim", "24", "--no-scaled-init", "--init-std", "0.05")
ODD_DIALECT = {
    "mlp_dim": 24,
    "norm": "rmsnorm",
    "norm_position": "post",
    "activation": "swiglu",
    "attn_bias": False,
    "tie_embeddings": False,
    "final_norm": False,
    "embedding_norm": True,
    "scaled_init": False,
    "init_std": 0.05,
}
STEPS = 6
PAGE = REPOSITORY / "docs" / "dialects.md"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A run of an odd dialect, a checkpoint every three steps."""
    shell = Shell(tmp_path_factory.mktemp("dialects"))
    typed = ("--steps", str(STEPS), "--save-every", "3", "--keep", "9", "--out", "odd")
    output = shell.call("train", "book.txt", *TINY_RUN, *ODD, *typed)
    assert row(output, "dialect") == (
        "RMSNorm, norms after the sublayers, a norm after the embeddings, no norm before the head, "
        "SwiGLU, MLP 24 wide, no biases in attention, untied head, initial deviation 0.05, "
        "projections that start unscaled"
    )
    return shell


def row(output: str, name: str) -> str:
    found = re.search(rf"^{name} +(.*)$", output, re.MULTILINE)
    return found[1] if found else ""


def train_command() -> click.Command:
    command = main.get_command(click.Context(main), "train")
    assert command is not None
    return command


def settled(*words: str) -> dict[str, Any]:
    """The options that a run would have."""
    program = main.make_context("andrea", ["train"])
    command = train_command()
    with command.make_context("train", list(words), parent=program) as context:
        return settle(context, context.params)


def chosen(*words: str) -> dict[str, Any]:
    """What the options would say of the dialect."""
    return given_switches(settled(*words))


def info(*words: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["info", *words, "--json"])
    assert result.exit_code == 0, result.output
    facts: dict[str, Any] = json.loads(result.output)
    return facts


def shown(*words: str, columns: int = 200) -> str:
    result = CliRunner().invoke(main, ["info", *words], env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result.output


# ---- options


def test_options_keys_and_settings_are_the_same() -> None:
    assert set(SWITCHES) == set(DIALECT_SETTINGS)
    options = {option.name: option for option in train_command().params}
    choices = {name: options[name].type.choices for name in CHOICES}  # type: ignore[attr-defined]
    assert {name: tuple(names) for name, names in choices.items()} == CHOICES
    assert tuple(options["dialect"].type.choices) == tuple(DIALECTS)  # type: ignore[attr-defined]
    assert {"dialect", "bias", *SWITCHES} <= set(SECTIONS["model"])
    for command in ("train", "info"):
        page = CliRunner().invoke(main, [command, "--help"]).output
        section = page.partition("\nDialect:\n")[2].partition("\n\n")[0]
        assert all(f" {word}" in section for word in ("--norm NAME", "--[no-]tie-embeddings"))
        assert section.count("\n") < 22, "a help page is to be read"


def test_one_switch_wins_over_all_biases() -> None:
    assert chosen("--no-bias") == {"attn_bias": False, "mlp_bias": False}
    assert chosen("--no-bias", "--mlp-bias") == {"attn_bias": False, "mlp_bias": True}
    assert chosen() == {}
    assert set(ALL_BIASES) < set(SWITCHES)


FILE = """
[model]
n_embd = 64
mlp_dim = 100
dialect = "microgpt"
activation = "swiglu"
attn_bias = true
"""


def test_what_is_typed_wins_over_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(FILE, "utf-8")
    of_the_file = {"activation": "swiglu", "attn_bias": True, "mlp_dim": 100}
    config = ("--config", str(path))
    assert chosen(*config) == of_the_file and settled(*config)["dialect"] == "microgpt"
    assert chosen(*config, "--norm", "layernorm") == {**of_the_file, "norm": "layernorm"}
    assert chosen(*config, "--dialect", "gpt2") == {"mlp_dim": 100}, "a width is no dialect"
    assert chosen(*config, "--no-bias") == {
        "activation": "swiglu",
        "mlp_dim": 100,
        "attn_bias": False,
        "mlp_bias": False,
    }
    assert chosen(*config, "--n-embd", "32") == {"activation": "swiglu", "attn_bias": True}
    for typed in (("--preset", "andrea-12m"), ("--init-from", "x")):
        assert chosen(*config, *typed) == {} and settled(*config, *typed)["dialect"] is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("norm_affine = 1", "[model] norm_affine must be true or false, got 1"),
        ('norm = "batchnorm"', "norm: 'batchnorm' is not one of 'layernorm', 'rmsnorm'"),
        ("mlp_dim = 0", "mlp_dim: 0 must be a whole number, 1 or more"),
        ("init_std = -1", "init_std: -1 must be a number above 0"),
        ("normaffine = true", "did you mean norm_affine in [model]?"),
    ],
)
def test_mistakes_in_a_file(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f"[model]\n{text}\n", "utf-8")
    with pytest.raises(ConfigError) as caught:
        settled("--config", str(path))
    assert told in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (
            ("--norm", "rmsnorm", "--norm-position", "none", "--no-final-norm"),
            "norm is 'rmsnorm', but the model has no norm",
        ),
        (("--init-std", "101"), "init_std must be between 1e-30 and 100, got 101.0"),
        (("--mlp-dim", str(2**40)), "mlp_dim must be between 0 and 2**31 - 1"),
    ],
)
def test_what_cannot_be_is_refused_before_the_text_is_read(
    shell: Shell, typed: tuple[str, ...], told: str
) -> None:
    assert told in shell.refuse("train", "there-is-no-such-text.txt", *typed)


# ---- runs


def test_the_run_is_of_that_dialect(shell: Shell) -> None:
    with RunFolder.open(shell.folder / "odd") as run:
        assert run.info.model.dialect() == ODD_DIALECT
    start = json.loads((shell.folder / "odd" / "log.jsonl").read_text("utf-8").splitlines()[0])
    assert {name: start["model"][name] for name in ODD_DIALECT} == ODD_DIALECT
    page = (shell.folder / "odd" / "report.html").read_text("utf-8")
    assert "<dt>norm position</dt><dd>post</dd>" in page and "<dt>MLP width</dt><dd>24</dd>" in page


def test_it_goes_on_as_if_it_had_never_stopped(shell: Shell) -> None:
    shell.call("train", "--config", "odd/config.toml", "--out", "twin")
    files = checkpoints(shell.folder / "odd")
    assert [path.name[5:13] for path in files] == ["00000000", "00000003", "00000006"]
    whole = {path.name: path.read_bytes() for path in files}
    twins = checkpoints(shell.folder / "twin")
    assert {path.name: path.read_bytes() for path in twins} == whole, "repeated to the bit"
    config = (shell.folder / "twin" / "config.toml").read_bytes()
    assert config == (shell.folder / "odd" / "config.toml").read_bytes()
    written = read_config(shell.folder / "odd" / "config.toml")
    assert {name: written[name] for name in ODD_DIALECT} == ODD_DIALECT

    twins[-1].unlink()
    repeated = ("--norm", "rmsnorm", "--no-final-norm", "--mlp-dim", "24", "--no-attn-bias")
    output = shell.call("train", "--resume", "twin", *repeated)
    assert row(output, "dialect").startswith("RMSNorm, norms after") and not row(output, "changed")
    resumed = {path.name: path.read_bytes() for path in checkpoints(shell.folder / "twin")}
    assert resumed == whole


def test_it_writes_is_judged_and_is_shown(shell: Shell) -> None:
    assert shell.call("sample", "odd", "--tokens", "20", "--prompt", "The ").startswith("The ")
    judged = json.loads(shell.call("eval", "odd", "--json"))
    assert 3.0 < judged["scores"]["model"]["loss"] < 4.5, "some 44 characters, hardly learned"
    output = shell.call("info", "odd")
    assert "2 mlp_dim x n_embd" in output and "is lm_head.weight (untied)" in output
    facts = json.loads(shell.call("info", "odd", "--json"))
    assert facts["config"] == facts["config"] | ODD_DIALECT
    assert facts["norms"]["number"] == 3


@needs("starlette", "uvicorn", extra="serve")
def test_it_is_served(shell: Shell) -> None:
    with Server(shell, shell.folder / "odd") as server:
        body = {"prompt": "The ", "max_tokens": 12, "temperature": 0, "logprobs": 1}
        status, _, told = server.ask("/v1/completions", body)
        assert status == 200 and len(told["choices"][0]["logprobs"]["tokens"]) >= 1


REFUSED = [
    (("--norm", "layernorm"), "--norm is rmsnorm in {} and cannot become layernorm"),
    (("--bias",), "--attn-bias is off in {} and cannot become on"),
    (("--mlp-dim", "48"), "--mlp-dim is 24 in {} and cannot become 48"),
    (("--init-std", "0.02"), "--init-std is 0.05 in {} and cannot become 0.02"),
    (("--dialect", "gpt2"), "--dialect gpt2 has norm layernorm, {} "),
    (("--dialect", "microgpt"), "--dialect microgpt has norm_affine off, {} "),
    (("--preset", "microgpt"), "--preset microgpt has n_head 4, {} "),
]


@pytest.mark.parametrize(("typed", "told"), REFUSED)
def test_a_dialect_cannot_change(shell: Shell, typed: tuple[str, ...], told: str) -> None:
    line = shell.refuse("train", "--resume", "odd", "--steps", "9", *typed)
    assert told.format("this run") in line and "or start a new run without --resume" in line
    line = shell.refuse("train", "book.txt", "--init-from", "odd", *typed)
    assert told.format("these weights") in line and "or leave out --init-from" in line


def test_a_dialect_comes_with_weights(shell: Shell) -> None:
    typed = ("--steps", "1", "--activation", "swiglu", "--out", "tuned")
    output = shell.call("train", "book.txt", "--init-from", "odd", *typed)
    assert "SwiGLU" in row(output, "dialect")
    with RunFolder.open(shell.folder / "tuned") as run:
        assert run.info.model.dialect() == ODD_DIALECT


def test_a_preset_with_another_dialect_may_be_named_again(shell: Shell) -> None:
    typed = ("--preset", "microgpt", "--n-layer", "2", "--activation", "gelu", "--bias")
    output = shell.call("train", "book.txt", *typed, "--steps", "2", "--out", "micro")
    assert row(output, "dialect").startswith("RMSNorm without gain, a norm after the embeddings")
    with RunFolder.open(shell.folder / "micro") as run:
        own = {**DIALECTS["microgpt"], "attn_bias": True, "mlp_bias": True, "activation": "gelu"}
        assert run.info.model == ModelConfig(
            **{**PRESETS["microgpt"], **own, "vocab_size": run.info.model.vocab_size, "n_layer": 2}
        )
    again = ("--dialect", "microgpt", "--activation", "gelu", "--bias", "--steps", "3")
    shell.call("train", "--resume", "micro", *again)
    line = shell.refuse("train", "--resume", "micro", "--dialect", "microgpt", "--steps", "4")
    assert "--dialect microgpt has activation relu, this run has gelu" in line


def test_a_run_of_gpt2s_dialect_says_nothing_of_it(shell: Shell) -> None:
    """And its files are those of Andreas that knew no other: what is missing is GPT-2's."""
    output = shell.call("train", "book.txt", *TINY_RUN, "--steps", "1", "--out", "plain")
    assert not row(output, "dialect")
    with RunFolder.open(shell.folder / "plain") as run:
        said = json.loads(run.checkpoint.tensors.metadata["model"])
    assert set(said) == {"vocab_size", "block_size", "n_layer", "n_head", "n_embd"}
    written = read_config(shell.folder / "plain" / "config.toml")
    assert not set(written) & {"dialect", "bias", *SWITCHES}


# ---- andrea info


@pytest.mark.parametrize(
    ("words", "count"),
    [
        # The design's table of layouts.
        (("andrea-120m",), 92_331_264),
        (("andrea-120m", "--no-attn-bias"), 92_294_400),
        (("andrea-120m", "--dialect", "microgpt"), 98_698_752),
        (("andrea-120m", "--no-tie-embeddings", "--no-bias"), 98_737_152),
        (("andrea-120m", "--no-tie-embeddings"), 98_820_096),
        (("andrea-12m", "--dialect", "microgpt"), 12_780_288),
        (("gpt2",), 124_439_808),
    ],
)
def test_info_of_a_preset_in_a_dialect(words: tuple[str, ...], count: int) -> None:
    facts = info(*words)
    assert facts["parameters"] == sum(row["total"] for row in facts["table"]) == count
    assert f"{count:,}" in shown(*words)


def test_info_says_the_dialect() -> None:
    output = shown("andrea-120m", "--dialect", "microgpt")
    assert "dialect      microgpt: RMSNorm without gain" in output
    assert "norms        25 (RMSNorm): 1 after the embeddings, 2 x 12 in the blocks" in output
    assert "lm_head.weight          8449 x 768" in output
    assert "dialect      GPT-2's" in shown("andrea-120m")
    gated = shown("andrea-120m", "--activation", "swiglu")
    assert "n_layer n_embd (4 n_embd + 3 mlp_dim)" in gated and "mlp_dim 2,048" in gated
    assert "2 mlp_dim x n_embd" in gated
    facts = info("microgpt", "--mlp-dim", "5")["dialect"]
    assert facts["name"] == "microgpt" and (facts["mlp_dim"], facts["norm"]) == (5, "rmsnorm")
    for columns in (80, 200):
        lines = shown("andrea-480m", "--dialect", "microgpt", columns=columns).splitlines()
        assert max(map(len, lines)) <= columns


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--no-bias",), "andrea: --no-bias needs a preset: andrea info andrea-12m --no-bias"),
        (("runs/x", "--norm", "rmsnorm"), "--norm is for a preset, which runs/x is not"),
        (
            ("gpt2", "--norm-position", "none", "--no-final-norm", "--no-norm-affine"),
            "norm_affine is False, but the model has no norm",
        ),
    ],
)
def test_info_refuses(words: tuple[str, ...], told: str) -> None:
    result = CliRunner().invoke(main, ["info", *words])
    assert result.exit_code == 1 and told in result.output and result.output.count("\n") == 1


# ---- the page


@pytest.mark.skipif(not PAGE.is_file(), reason="no pages beside the tests")
def test_the_tables_of_the_page_are_the_packages() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text("utf-8").splitlines()
        if line.startswith("|")
    ]
    told = {name: cells[1] for cells in rows for name in re.findall(r"`(\w+)`", cells[0])}
    assert set(DIALECT_SETTINGS) <= set(told)
    for name, values in CHOICES.items():
        assert tuple(re.findall(r"`(\w+)`", told[name])) == values
    for setting in dataclasses.fields(ModelConfig):
        if isinstance(setting.default, bool):
            expected = "on, off" if setting.default else "off, on"
            assert told[setting.name] == expected, setting.name
    presets = {cells[0].strip("`"): cells[1:] for cells in rows if len(cells) == 7}
    for name, sizes in PRESETS.items():
        *numbers, vocabulary, count = presets[name]
        keys = ("n_layer", "n_head", "n_embd", "block_size")
        assert numbers == [str(sizes[key]) for key in keys]
        assert vocabulary == (str(sizes["vocab_size"]) if sizes["vocab_size"] else "from the text")
        assert not count or count == f"{info(name)['parameters']:,}"
    layouts = [cells for cells in rows if len(cells) == 2 and cells[1][0].isdigit()]
    assert len(layouts) == 5
    for options, count in layouts:
        assert count == f"{info('andrea-120m', *options.strip('`').split())['parameters']:,}"
