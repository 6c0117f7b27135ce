"""`andrea trace`: the page, its JSON and pictures, untrained models, and what is refused."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner
from rich.cells import cell_len

import andrea
from andrea.cli import main, trace
from andrea.cli.screen.display import QuietDisplay
from andrea.errors import LibraryError
from andrea.lessons import (
    LogitLens,
    StreamNorms,
    draw_attention,
    draw_lens,
    logit_lens,
    measure_start,
    stream_norms,
    token_labels,
    trace_token,
)
from andrea.lessons.trace_tokens import signs
from andrea.tokenizers import ByteTokenizer
from andrea.training import TrainState
from cli_process import Shell
from extras import needs
from small_runs import small_config, small_model, small_run, small_tokenizer
from small_weights import small_tokenizer as any_tokenizer

TEXT = "7 and 8 make 15"
MODEL = {"n_layer": 3, "init_std": 0.3}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "run"
    model = small_model(5, **MODEL)
    with small_run(path, small_config(seed=5), model) as folder:
        folder.save(model, TrainState())
    return path


def asked(*words: str | Path, columns: int = 80, **settings: Any) -> Any:
    """The result of `andrea trace`, called in this process."""
    runner = CliRunner(**settings)
    typed = ["trace", *map(str, words)]
    return runner.invoke(main, typed, env={"COLUMNS": str(columns), "NO_COLOR": "1"})


def shown(*words: str | Path, columns: int = 80, **settings: Any) -> str:
    result = asked(*words, columns=columns, **settings)
    assert result.exit_code == 0, result.output
    return str(result.output)


def facts(*words: str | Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(shown(*words, "--json"))
    return told


def section(page: str, title: str) -> list[list[str]]:
    """The cells of a table's rows, by its title; cells are two spaces apart."""
    lines = page[page.index(title) :].splitlines()[2:]
    end = next(place for place, line in enumerate(lines) if not line or line.startswith("  a"))
    return [re.split(r" {2,}", line.strip()) for line in lines[:end]]


def digits(value: float) -> str:
    return f"{value:#.3g}".removesuffix(".")


# ---- the page


def test_the_page_shows_what_the_engine_computed(run: Path) -> None:
    """Every number of the tables, and some of each step, against the functions of the library."""
    model = small_model(5, **MODEL)
    tokens = small_tokenizer().encode(TEXT)
    trace, norms = trace_token(model, tokens, 1, -3), stream_norms(model, tokens)
    lens = logit_lens(model, tokens)
    page = shown(run, "--text", TEXT, "--block", "1", "--token", "-3", columns=120)
    assert "0 7  1 ·  2 a  3 n  4 d  5 ·  6 8" in page and "(· is a space)" in page
    assert "token    12 ·; 1 follows" in page
    assert "Token 12 · through block 1" in page
    heads = re.findall(r"^  (\d) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +(\d.*)$", page, re.M)
    assert len(heads) == 2
    attention = trace.attention
    for head, row in enumerate(heads):
        vectors = attention.query, attention.key, attention.value, attention.parts
        lengths = [digits(np.linalg.norm(vector[head])) for vector in vectors]
        assert list(row[:5]) == [str(head), *lengths]
        best = int(attention.weights[head].argmax())
        assert row[5].startswith(f"{best} {token_labels(small_tokenizer(), [tokens[best]])[0]} ")
        assert row[5].split()[2] == f"{attention.weights[head, best]:.0%}"
    steps = {
        "stream before": trace.before,
        "+ attention": attention.delta,
        "stream between": trace.middle,
        "+ mlp": trace.mlp.delta,
        "stream after": trace.after,
    }
    for step, row in steps.items():
        found = re.search(rf"^{re.escape(step)} +length ([\d.]+): +(\S.*?) \.\.\.$", page, re.M)
        assert found and found[1] == digits(np.linalg.norm(row)), step
        first = [float(number) for number in found[2].split()]
        assert np.allclose(first, row[: len(first)], atol=0.005 * np.abs(row).max())
    norm, mlp = attention.norm, trace.mlp
    assert norm is not None and norm.mean is not None
    assert f"mean {digits(norm.mean)}, variance {digits(norm.variance)}; (x - mean) / " in page
    is_open = round(64 * mlp.open_share)
    assert f"lets {is_open} of 64 units through, {mlp.open_share:.0%}: " in page
    assert f"its mean is {mlp.mean_gate:.2f}" in " ".join(page.split())
    rows = section(page, "All blocks at token 12 ·")
    assert [row[0] for row in rows] == ["0", "1 <", "2", "end"]
    for block, row in enumerate(rows[:-1]):
        at = block, 12
        assert row[1:] == [
            digits(norms.stream[at]),
            digits(norms.attention[at]),
            f"{np.degrees(np.arccos(norms.attention_cosine[at])):.0f}",
            digits(norms.mlp[at]),
            f"{np.degrees(np.arccos(norms.mlp_cosine[at])):.0f}",
            f"{norms.change[at]:.0%}",
            f"{np.degrees(np.arccos(norms.kept[at])):.0f}",
        ]
    assert rows[-1][1] == digits(norms.stream[3, 12])
    mean = np.nanmean(lens.loss, axis=1)
    page = page.replace("  nats;", "\n  nats;")
    for depth, row in enumerate(section(page, "If the model stopped after so many blocks")):
        assert row[0] == str(depth)
        assert row[2:6] == [
            str(lens.target_rank[depth, 12] + 1),
            f"{lens.loss[depth, 12]:.2f}",
            f"{lens.entropy[depth, 12]:.2f}",
            f"{mean[depth]:.2f}",
        ]
        likeliest = token_labels(small_tokenizer(), [lens.tokens[depth, 12, 0]])[0]
        assert row[6].split()[0] == likeliest
    assert f"a guess among {model.config.vocab_size} tokens: " in page
    assert f"{math.log(model.config.vocab_size):.2f}. next: 1. mean loss: over 14 tokens" in page
    assert "At the start" not in page


def test_of_a_long_text_the_tokens_around_the_traced_one_are_shown() -> None:
    words = ("--untrained", "andrea-nano", "--text", "abcd" * 32)
    for place in (0, 60, 127):
        page = shown(*words, "--token", str(place))
        lines = page[page.index("text     ") : page.index("\ntoken ")].splitlines()
        assert len(lines) == 9 and f" {place} {'abcd'[place % 4]}" in "  ".join(lines)
        told = [int(number) for line in lines[:8] for number in re.findall(r"(\d+) [a-d]", line)]
        assert told == list(range(told[0], told[-1] + 1))
        assert lines[8].strip() == f"({len(told)} of 128 tokens; --json has all)"
    # Weights that are all small are told with decimals, not as 0%.
    shares = re.findall(r"\d [a-d] ([\d.]+)%", page[page.index("looks at") :])
    assert shares and all(re.fullmatch(r"[0-9]\.\d\d?", share) for share in shares[:8])


def test_shades_stand_below_their_tokens(run: Path) -> None:
    model = small_model(5, **MODEL)
    weights = trace_token(model, small_tokenizer().encode(TEXT), 0, -1).attention.weights
    page = shown(run, "--text", TEXT)
    lines = page[page.index("\n  head     ") :].splitlines()[1:4]
    start = len("  head     ")
    assert lines[0][start:] == " ".join(TEXT.replace(" ", "·"))
    for row, line in zip(weights, lines[1:], strict=True):
        shades = [" ░▒▓█".index(shade) for shade in line[start:].ljust(29)[::2]]
        assert shades == [min(int(5 * weight / row.max()), 4) for weight in row]
    # Where not all tokens have room, the rest of the weight is told.
    page = shown(run, "--text", TEXT, columns=24)
    lines = page[page.index("\n  head     ") :].splitlines()[1:4]
    assert lines[0][start:] == "a k e · 1 5"
    for row, line in zip(weights, lines[1:], strict=True):
        assert line[3:start].split() == [f"{row[:-6].sum():.0%}", "<"]


ODD = ("--norm", "rmsnorm", "--norm-position", "post", "--activation", "swiglu", "--no-residual")
BARE = ("--norm-position", "none", "--activation", "relu2", "--no-bias", "--no-final-norm")
WIDE = "日本語 and Ünïcode\n\tof $many$ kinds"


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("dialect", [(), ODD, BARE], ids=["gpt2", "odd", "bare"])
def test_the_page_fits(dialect: tuple[str, ...], columns: int) -> None:
    words = ("--untrained", "andrea-nano", *dialect, "--text", WIDE, "--block", "-1")
    page = shown(*words, columns=columns)
    assert max(map(cell_len, page.splitlines())) <= columns
    assert max(map(cell_len, page.splitlines())) > columns - 8, "the room is used"
    steps = re.findall(r"^([a-z+=][a-z_0-9 +]{1,14}?)  +\S", page, re.M)
    between = [step for step in steps if step.startswith(("ln_", "c_", "+", "=", "stream"))]
    if dialect == ODD:
        assert between[:3] == ["stream before", "c_attn", "= attention"]
        assert between[3:6] == ["ln_1", "stream between", "c_fc"]
        assert between[6:] == ["= mlp", "ln_2", "stream after"]
        assert "it takes the" in page and "384 units and as many gates" in page
    elif dialect == BARE:
        assert between == [
            "stream before",
            "c_attn",
            "+ attention",
            "stream between",
            "c_fc",
            "+ mlp",
            "stream after",
        ]
        assert "those whose number is above 0" in " ".join(page.split())
    else:
        assert between[:3] == ["stream before", "ln_1", "c_attn"]
        assert between[4:7] == ["stream between", "ln_2", "c_fc"]


def test_a_terminal_without_signs_gets_ascii(run: Path) -> None:
    page = shown(run, "--text", TEXT, charset="ascii")
    assert page.isascii() and "0 7  1 _  2 a" in page and "(_ is a space)" in page
    assert re.search(r"^  0 +[ .:*#]+$", page, re.M) and "shades .:*#: weight" in page


def test_what_takes_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Telling(QuietDisplay):
        def activity(self, text: str, fraction: float | None = None) -> None:
            told.append(text)

    monkeypatch.setattr(trace, "answer_display", lambda is_json: Telling())
    shown("--untrained", "microgpt")
    assert told == ["making a model of 11.6k parameters", "following the text through all blocks"]


def test_titles_are_bold_where_colours_are_wanted(run: Path) -> None:
    words = ["trace", str(run), "--text", TEXT]
    plain = CliRunner().invoke(main, words, env={"NO_COLOR": "1"}, color=True).output
    styled = CliRunner().invoke(main, words, env={"NO_COLOR": ""}, color=True).output
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[\d*m", "", styled) == plain
    assert len(re.findall(r"^\x1b\[1m(Token|All|If)", styled, re.M)) == 3


def test_the_text_may_come_from_standard_input(run: Path) -> None:
    result = CliRunner().invoke(main, ["trace", str(run), "--text", "-", "--json"], input=TEXT)
    assert json.loads(result.output) == facts(run, "--text", TEXT)
    result = CliRunner().invoke(main, ["trace", str(run), "--text", "-"], input=b"\xff\xfe")
    assert result.exit_code == 1
    assert result.output == "andrea: standard input is no text in the terminal's encoding\n"


# ---- JSON


def test_json_has_all_of_it(run: Path) -> None:
    model = small_model(5, **MODEL)
    tokens = small_tokenizer().encode(TEXT)
    told = facts(run, "--text", TEXT, "--block", "2", "--token", "4")
    assert told["run"] == str(run) and told["device"] == "cpu" and told["precision"] == "fp32"
    assert told["config"] == model.config.to_full_dict() and told["start"] is None
    assert [one["token"] for one in told["text"]] == tokens.tolist()
    assert "".join(one["text"] for one in told["text"]) == TEXT
    trace = trace_token(model, tokens, 2, 4)
    assert (told["trace"]["block"], told["trace"]["position"]) == (2, 4)
    assert told["trace"]["before"] == trace.before.tolist()
    assert told["trace"]["attention"]["weights"] == trace.attention.weights.tolist()
    assert told["trace"]["attention"]["parts"] == trace.attention.parts.tolist()
    assert told["trace"]["mlp"]["norm"]["normed"] == trace.mlp.norm.normed.tolist()
    assert told["trace"]["mlp"]["open_share"] == trace.mlp.open_share
    assert told["norms"]["kept"] == stream_norms(model, tokens).kept.tolist()
    lens = logit_lens(model, tokens)
    assert told["lens"]["positions"] == list(range(len(TEXT)))
    assert told["lens"]["entropy"] == lens.entropy.tolist()
    # The last token has no successor; JSON has no NaN.
    assert [row[-1] for row in told["lens"]["loss"]] == [None] * 4
    assert [row[:-1] for row in told["lens"]["loss"]] == lens.loss[:, :-1].tolist()
    likeliest = logit_lens(model, tokens, top=8).tokens[0, 0]
    assert told["lens"]["texts"][0][0] == list(small_tokenizer().decode(likeliest))


def test_long_texts_are_predicted_at_some_places(tmp_path: Path) -> None:
    told = facts("--untrained", "andrea-nano", "--text", "abc " * 32, "--token", "17")
    positions = told["lens"]["positions"]
    assert len(positions) == 33 and 17 in positions
    assert positions[0] == 0 and np.diff(positions).max() == 4


# ---- untrained models


def test_a_preset_that_learned_nothing() -> None:
    page = shown("--untrained", "microgpt")
    assert "microgpt, untrained, from seed 0" in page and "15 n; the text ends with it" in page
    told = facts("--untrained", "microgpt", "--seed", "3")
    config = andrea.cli.info.preset_config("microgpt")
    model = andrea.GPT(config, device="cpu", precision="fp32", seed=3)
    tokens = ByteTokenizer().encode("The cat sat down")
    assert (told["untrained"], told["seed"]) == ("microgpt", 3)
    assert told["trace"]["after"] == trace_token(model, tokens).after.tolist()
    start = measure_start(stream_norms(model, tokens), logit_lens(model, tokens), 257)
    assert told["start"]["change"] == start.change.tolist()
    assert told["start"]["near_identity"] == [bool(start.change[0] < 0.5)]
    assert told["start"]["uniform"] == math.log(257)
    near = "yes: 1 of 1 block" if start.near_identity.all() else "no: 0 of 1 block"
    assert f"blocks near the identity  {near}" in page


def test_a_runs_model_before_it_learned(run: Path) -> None:
    """The same text through a run's weights and through those it began with."""
    told = facts("--untrained", run, "--text", TEXT)
    assert told["seed"] == 5 and told["trace"] == facts(run, "--text", TEXT)["trace"]
    other = facts("--untrained", run, "--text", TEXT, "--seed", "6")
    assert other["config"] == told["config"] and other["trace"] != told["trace"]


def synthetic(change: list[float], entropy: list[float]) -> tuple[StreamNorms, LogitLens]:
    """Norms and a lens of two tokens that say so."""
    blank = np.ones((len(change), 2))
    rows = np.array(change)[:, None] * np.array([0.5, 1.5])
    names = [name for name in StreamNorms.__dataclass_fields__ if name != "change"]
    norms = StreamNorms(**dict.fromkeys(names, blank), change=rows)
    spread = np.array(entropy)[:, None] + np.array([-0.1, 0.1])
    nothing = np.zeros((len(entropy), 2, 1))
    ids = nothing.astype(np.int64)
    loss = np.array([[float(depth), np.nan] for depth in range(len(entropy))])
    targets = np.array([3, -1])
    lens = LogitLens(
        np.array([0, 1]), targets, ids, nothing, nothing[..., 0], ids[..., 0], loss, spread
    )
    return norms, lens


def test_verdicts_go_both_ways() -> None:
    """Changes are means over tokens, against half; the entropy that of the whole model, against
    95% of ln V."""
    uniform = math.log(64)
    start = measure_start(*synthetic([0.2, 0.49, 0.51, 3.0], [0.1, 0.1, 0.1, 0.1, 4.0]), 64)
    assert start.near_identity.tolist() == [True, True, False, False]
    assert np.allclose(start.change, [0.2, 0.49, 0.51, 3.0])
    assert start.uniform == uniform and start.near_uniform  # 4.0 is 96% of ln 64
    assert start.loss.tolist() == [0, 1, 2, 3, 4]
    start = measure_start(*synthetic([0.1], [uniform, 0.94 * uniform]), 64)
    assert start.near_identity.all() and not start.near_uniform


# ---- tokens


def test_labels_of_tokens() -> None:
    tokenizer = ByteTokenizer()
    tokens = [*tokenizer.encode("a \n\té\x1b"), 256]
    assert token_labels(tokenizer, tokens) == [
        "a", "·", "↵", "→", r"\xc3", r"\xa9", r"\x1b", "<start>",
    ]  # fmt: skip
    ascii_labels = ["a", "_", r"\n", r"\t", r"\xc3", r"\xa9", r"\x1b", "<start>"]
    assert token_labels(tokenizer, tokens, ascii_only=True) == ascii_labels
    assert signs(["a", "b"]) == "" and signs(["·", "↵x"]) == "· is a space, ↵ is a line's end"
    whole = any_tokenizer("char")
    tokens = whole.encode("é漢\u00a0")
    assert token_labels(whole, tokens) == ["é", "漢", r"\xa0"]
    assert token_labels(whole, tokens, ascii_only=True) == [r"\xe9", r"\u6f22", r"\xa0"]


def test_every_label_can_be_printed() -> None:
    for kind in ("bpe", "byte", "char"):
        tokenizer = any_tokenizer(kind)
        labels = token_labels(tokenizer, range(tokenizer.vocab_size))
        assert all(label.isprintable() and label and " " not in label for label in labels)


# ---- pictures


def words_of(picture: str) -> list[str]:
    page = ElementTree.fromstring(picture)
    nodes = page.iter("{http://www.w3.org/2000/svg}text")
    return ["".join(node.itertext()).strip() for node in nodes]


@needs("matplotlib", extra="plots")
def test_pictures_are_drawn(run: Path, tmp_path: Path, recwarn: Any) -> None:
    folder = tmp_path / "new" / "pictures"
    output = shown(run, "--text", TEXT, "--token", "4", "--block", "1", "--out", folder)
    names = ("trace.json", "attention.svg", "stream.svg", "lens.svg")
    paths = [folder / name for name in names]
    assert output.endswith(f"\nwrote {', '.join(map(str, paths))}\n")
    assert json.loads(paths[0].read_text("utf-8")) == facts(
        run, "--text", TEXT, "--token", "4", "--block", "1"
    )
    attention, stream, lens = (words_of(path.read_text("utf-8")) for path in paths[1:])
    assert "Block 1, token 4 d: attention weights" in attention
    assert {"head", "0 7", "1 ·", "4 d"} <= set(attention) and "5 ·" not in attention
    assert {"the stream", "attention's output", "the MLP's output"} <= set(stream)
    assert "angle to the stream" in stream and "depth (blocks passed)" in stream
    assert {"nats", "probability", "loss of the next token", "mean loss of the text"} <= set(lens)
    # The names of the curves belong to the figure, below all axes, not among the curves.
    assert lens.index("mean loss of the text") > lens.index("probability")
    assert not [str(one.message) for one in recwarn if "Glyph" in str(one.message)]


@needs("matplotlib", extra="plots")
def test_pictures_of_hard_texts() -> None:
    """Formulas of matplotlib's, elements of SVG's, and long names."""
    model = small_model(**MODEL)
    labels = ["$", "$x$", "<b>", "&amp;", r"\$", "a" * 40]
    picture = draw_attention(trace_token(model, range(6)), labels).svg()
    short = "a" * 11 + "…"
    assert {"0 $", "1 $x$", "2 <b>", "3 &amp;", r"4 \$", f"5 {short}"} <= set(words_of(picture))
    assert f"Block 0, token 5 {short}: attention weights" in words_of(picture)
    lens = logit_lens(model, [3], top=2)
    picture = draw_lens(lens, 0, 50, "$y$", lambda token: f"${token}$").svg()
    words = words_of(picture)
    assert "After token 0 $y$" in words and "ln 50: all tokens alike" in words
    for depth in range(4):
        share = lens.probabilities[depth, 0, 0]
        text = f"${lens.tokens[depth, 0, 0]}$ {share:.0%}"
        assert (text if share >= 0.0995 else text.split()[0]) in " ".join(words)


@needs("matplotlib", extra="plots")
def test_a_picture_of_many_tokens_names_some() -> None:
    model = small_model(block_size=300)
    trace = trace_token(model, np.arange(300) % model.config.vocab_size)
    picture = draw_attention(trace, [f"t{place}" for place in range(300)]).svg()
    named = [word for word in words_of(picture) if re.fullmatch(r"\d+ t\d+", word)]
    assert 50 <= len(named) <= 64 and named[-1] == "299 t299"
    assert "<image" in picture and len(picture) < 100_000


def test_without_matplotlib_there_is_the_rest(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.font_manager", raising=False)
    result = asked(run, "--text", TEXT, "--out", tmp_path)
    assert result.exit_code == 1 and "All blocks at token 14 5" in result.output
    line = result.output.splitlines()[-1]
    assert line == "andrea: pictures need matplotlib: install it with pip install 'andrea[plots]'"
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]
    with pytest.raises(LibraryError):
        draw_attention(trace_token(small_model(), [1]), ["a"])


# ---- what is refused

WITH_TEXT = ("--text", TEXT)
LONG = ("--text", TEXT + TEXT)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("RUN",), "give a text to read: andrea trace "),
        (("RUN", "--text", ""), "the text is empty: there is no token to follow"),
        (("RUN", *LONG), "the text has 30 tokens, and the model sees 16 at once: take a shorter"),
        (("RUN", "--text", "Ü"), "Ü"),
        (("RUN", *WITH_TEXT, "--block", "3"), "there is no block 3: the model has 0 to 2, or from"),
        (("RUN", *WITH_TEXT, "--block", "-4"), "there is no block -4"),
        (("RUN", *WITH_TEXT, "--token", "15"), "there is no token 15: the text has 0 to 14, or"),
        (("RUN", *WITH_TEXT, "--token", "-16"), "there is no token -16"),
        (("RUN", *WITH_TEXT, "--device", "tpu"), "device is 'tpu'"),
        (("RUN", *WITH_TEXT, "--precision", "fp8"), "fp8"),
        (("RUN", *WITH_TEXT, "--norm", "rmsnorm"), "--norm is for a model of --untrained PRESET"),
        (("RUN", *WITH_TEXT, "--no-bias"), "--bias is for a model of --untrained PRESET"),
        (("RUN", *WITH_TEXT, "--seed", "1"), "--seed is for a model of --untrained PRESET"),
        (("nothing", *WITH_TEXT), "nothing"),
        (("gpt2", *WITH_TEXT), "has learned nothing: andrea trace --untrained gpt2"),
        (("--untrained", "nope"), "nope is neither a run's folder nor a preset"),
        (("--untrained", "RUN", "--dialect", "gpt2"), "--dialect is for a model of --untrained"),
        (("--untrained", "microgpt", "--text", "x" * 17), "the text has 17 tokens"),
        (
            ("--untrained", "gpt2", *BARE, "--norm", "rmsnorm"),
            "norm is 'rmsnorm', but the model has no norm",
        ),
        (
            ("--untrained", "andrea-nano", *BARE, "--init-std", "100"),
            " numbers overflow, so that there is nothing to follow: the model has diverged, or",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(run: Path, tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    typed = [str(run) if word == "RUN" else word for word in words]
    assert told in Shell(tmp_path).refuse("trace", *typed)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "name a RUN, or a model with --untrained PRESET"),
        (("", "--text", "a"), "name a RUN, or a model with --untrained PRESET"),
        (("--untrained", ""), "name a RUN, or a model with --untrained PRESET"),
        (("a", "--untrained", "gpt2"), "name a RUN, or a model with --untrained PRESET"),
        (("a", "--text", "x", "--token", "last"), "'last' is not a valid integer"),
        (("a", "--text", "x", "--out", ""), "the path is empty"),
    ],
)
def test_wrong_usage(words: tuple[str, ...], told: str) -> None:
    result = asked(*words)
    assert result.exit_code == 2 and told in result.output
