"""What is drawn: durations and counts in words, and lines that fit any terminal."""

from __future__ import annotations

import datetime
import io
import itertools
import re
import time
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from andrea.cli.screen import display as displays
from andrea.cli.screen.display import PlainDisplay, Progress, note_row, sample_lines, wrap
from andrea.cli.screen.formats import count, duration, parse_duration, printable, size
from andrea.cli.screen.live_display import LiveDisplay
from andrea.cli.screen.live_foot import bar, progress_line
from andrea.cli.training.plan_rows import finish_time, memory_text
from andrea.words import decimal

RUNNING = Progress(
    step=12_345,
    steps=200_000,
    fraction=0.0617,
    loss=2.34567,
    validation_loss=2.41,
    tokens_per_second=123_456.0,
    seconds_left=94_000.0,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("20m", 1200),
        ("1h30m", 5400),
        ("2d", 172_800),
        ("1.5h", 5400),
        ("1d 2h 3m 4s", 93_784),
        ("0.5", 0.5),
    ],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "3x", "h", "-5s", "1m2h", "0", "1:30", "٣m x", "nan"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|no time"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (1.26, "1.3s"),
        (9.97, "10s"),
        (59.7, "1m 00s"),
        (80, "1m 20s"),
        (3599.6, "1h 00m"),
        (11_100, "3h 05m"),
        (187_200, "2d 04h"),
    ],
)
def test_durations_are_written(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (7, "7"),
        (0.5, "0.5"),
        (999, "999"),
        (12_345, "12.3k"),
        (999_960, "1.0M"),
        (2.5e9, "2.5G"),
        (5.477e12, "5.5T"),
        (4.52e14, "452.0T"),
        (6e15, "6.0P"),
    ],
)
def test_counts(number: float, text: str) -> None:
    assert count(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(-0.004, "0.00"), (0.004, "0.00"), (-0.006, "-0.01"), (1234.5, "1,234.50")],
)
def test_numbers_with_decimals(number: float, text: str) -> None:
    assert decimal(number, 2) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 bytes"), (1, "1 byte"), (999, "999 bytes"), (465_000, "465 KB"), (1.84e9, "1.8 GB")],
)
def test_sizes(number: float, text: str) -> None:
    assert size(number) == text


def test_text_of_a_model_cannot_steer_the_terminal() -> None:
    assert printable("a\x1b[31m\r\n\tb\x9b\x07é😀") == "a\ufffd[31m\n\tb\ufffd\ufffdé😀"


@pytest.mark.parametrize("width", range(1, 220, 3))
def test_the_progress_line_fits(width: int) -> None:
    line = progress_line(RUNNING, width)
    assert line.cell_len <= width
    assert "\n" not in line.plain


def test_the_progress_line_keeps_what_matters() -> None:
    wide, usual, narrow = (progress_line(RUNNING, width).plain for width in (120, 79, 30))
    for part in (
        "step  12,345/200,000",
        "loss 2.3457",
        "val 2.4100",
        "123.5k tok/s",
        "1d 02h left",
    ):
        assert part in wide
    assert "loss 2.3457" in usual and "━" in usual and "1d 02h left" in usual
    assert narrow.startswith("step  12,345/200,000")


def test_the_bar_is_filled_to_the_fraction() -> None:
    assert bar(0.25, 8).plain == "━━──────"
    assert bar(1.0, 3, ascii_only=True).plain == "###"
    assert bar(-1.0, 3, ascii_only=True).plain == "---"
    assert len(bar(0.5, 40)) == 40


@pytest.mark.parametrize("width", [80, 200, 33])
def test_everything_live_fits_the_terminal(width: int) -> None:
    screen = io.StringIO()
    live = LiveDisplay(Console(file=screen, width=width, force_terminal=True, color_system=None))
    sentence = "size: the largest that sees 20 tokens per parameter in the time there is"
    live.rows([("model", "12 layers, " * 9), note_row(sentence)])
    live.line("a long remark " * 10)
    live.activity("reading the text: 3 MB of 1.2 GB", 0.25)
    live.progress(RUNNING)
    live.milestone(RUNNING, "3.456 bits/byte  best")
    live.sample("日本語の文章です。" * 20 + "\n\n\n\nx" * 3 + "\tthe end")
    live.close()
    live.close()
    written = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    lines = re.split(r"[\r\n]+", written)
    assert max(map(cell_len, lines)) <= width
    assert any("━" in line or "─" in line for line in lines)


def capture(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_plain_lines_come_at_intervals(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    plain = PlainDisplay()
    for second in range(601):
        now = float(second)
        plain.progress(Progress(step=second + 1, steps=None, fraction=second / 600))
    steps = [int(line.split()[1]) for line in capture(capsys)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(steps)]
    assert steps[0] == 1
    assert gaps[0] == 5 and gaps[-1] == 60
    assert gaps == sorted(gaps)


def test_plain_milestones_always_come(capsys: pytest.CaptureFixture[str]) -> None:
    plain = PlainDisplay()
    plain.milestone(RUNNING, "3.456 bits/byte  best")
    plain.milestone(RUNNING, "")
    first, second = capture(capsys)
    assert first == (
        "step 12,345/200,000  loss 2.3457  val 2.4100  3.456 bits/byte  best  "
        "123.5k tok/s  1d 02h left"
    )
    assert second == first.replace("  3.456 bits/byte  best", "")


def test_plain_lines_of_a_log_are_not_broken(capsys: pytest.CaptureFixture[str]) -> None:
    plain = PlainDisplay()
    plain.rows([("model", "word " * 60)])
    assert len(capture(capsys)) == 1


def test_wrapping_keeps_words_and_width() -> None:
    assert wrap("a b c", None) == ["a b c"]
    assert wrap("one two three", 9, "  ") == ["one two", "  three"]
    path = "/a/folder/far/down/in/the/tree"
    assert wrap(f"it is {path}", 16) == ["it is", path]
    assert wrap("x" * 20, 16, breaks_words=True) == ["x" * 16, "x" * 4]


def test_samples_are_a_glance() -> None:
    assert sample_lines("\n\n a\n\n\n\nb \n") == [" a", "", "b"]
    assert len(sample_lines("x\n" * 100)) == 8
    assert sample_lines("  \n \n") == sample_lines("") == ["(blank)"]
    # White space around a sample takes none of the lines there are.
    assert sample_lines(" \n" * 9 + "a\n" + "  \n" * 9) == ["a"]
    assert sample_lines("x\n" * 7 + "\nx") == ["x"] * 7


@pytest.mark.parametrize(
    ("terminal", "environment", "kind"),
    [
        (True, {}, LiveDisplay),
        (True, {"NO_COLOR": "1"}, PlainDisplay),
        (True, {"NO_COLOR": ""}, LiveDisplay),
        (True, {"TERM": "dumb"}, PlainDisplay),
        (False, {}, PlainDisplay),
    ],
)
def test_the_display_follows_the_terminal(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, environment: dict[str, str], kind: type[Any]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    assert type(displays.open_display()) is kind


def test_finish_time_names_another_day() -> None:
    evening = datetime.datetime(2024, 5, 3, 23, 30)
    assert finish_time(600, evening) == "23:40"
    assert finish_time(3600, evening) == "Sat 04 May 00:30"
    assert finish_time(400 * 86400, evening) == "Sat 07 Jun 2025 23:30"
    assert finish_time(1e15, evening) == "after the year 9999"


def test_parts_of_memory_add_up() -> None:
    memory = {"parameters": 5_000, "moments": 9_000, "activations": 1_986_000, "total": 2_000_000}
    assert memory_text(memory) == "2.0 MB: activations 2.0 MB, the rest 14.0 KB"
    assert memory_text({"parameters": 600, "total": 600}) == "600 bytes: parameters 600 bytes"
