"""Curves of characters, and the foot of the terminal that shows them while a run trains."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator

import pytest
from rich.cells import cell_len
from rich.console import Console

from andrea.cli.screen.display import Progress
from andrea.cli.screen.live_foot import Foot
from andrea.cli.screen.terminal_chart import columns, dot, line_rows, sparkline, vertical_range


def braille_dots(rows: list[str]) -> set[tuple[int, int]]:
    """(column, row) of each dot, counted from the top left."""
    bits = {0x01: (0, 0), 0x02: (0, 1), 0x04: (0, 2), 0x40: (0, 3)}
    bits |= {0x08: (1, 0), 0x10: (1, 1), 0x20: (1, 2), 0x80: (1, 3)}
    return {
        (2 * column + across, 4 * row + down)
        for row, line in enumerate(rows)
        for column, character in enumerate(line)
        if character != " "
        for bit, (across, down) in bits.items()
        if (ord(character) - 0x2800) & bit
    }


def test_columns_are_means_and_lines_between() -> None:
    assert columns([(0, 1.0), (1, 3.0), (30, 7.0)], 4) == pytest.approx(
        [2.0, 2 + 5 / 3, 2 + 10 / 3, 7.0]
    )
    assert columns([(5, 2.5)], 3) == [2.5, 2.5, 2.5]
    assert columns([(float(step), step * 2.0) for step in range(1, 9)], 8) == [
        step * 2.0 for step in range(1, 9)
    ]


def test_the_range_leaves_the_steep_beginning_out() -> None:
    heights = [9.0, 8.0, *[2.0 + 0.001 * index for index in range(98)]]
    low, high = vertical_range(heights)
    assert low < 2.01 and high < 3
    assert vertical_range(heights, [1.5])[0] == 1.5
    assert vertical_range([4.0, 4.0]) == (2.0, 6.0)
    assert vertical_range([0.0]) == (-0.5, 0.5)


def test_the_line_goes_through_every_height() -> None:
    heights = [math.sin(place / 7) for place in range(60)]
    dots = braille_dots(line_rows(heights, 6, -1, 1))
    for place, height in enumerate(heights):
        assert (place, dot(height, 24, -1, 1)) in dots


@pytest.mark.parametrize("ascii_only", [False, True])
def test_a_steep_line_has_no_holes(ascii_only: bool) -> None:
    rows = line_rows([0.0, 1.0, 0.0, 0.5], 5, 0, 1, ascii_only=ascii_only)
    assert len(rows) == 5
    if ascii_only:
        assert rows == [" *  ", " ** ", " ***", " ***", "* * "]
    else:
        dots = braille_dots(rows)
        assert {row for column, row in dots if column == 1} == set(range(19))
        assert {len(row) for row in rows} == {2}


def test_what_is_outside_the_range_is_at_its_edge() -> None:
    assert [dot(value, 8, 0.0, 1.0) for value in (5.0, 1.0, 0.0, -5.0)] == [0, 0, 7, 7]


def test_sparklines() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([2.0, 2.0, 2.0]) == "▅▅▅"
    assert sparkline([98, 100, 99], from_zero=True) == "███"
    assert sparkline([0, 1, 2, 3, 4], ascii_only=True) == "_.-=#"


# ---- the foot


def training(steps: int) -> Iterator[Progress]:
    for step in range(1, steps + 1):
        yield Progress(
            step=step,
            steps=steps,
            fraction=step / steps,
            loss=1.5 + 3 / (1 + step / 20),
            validation_loss=None if step < 50 else 1.8 + 2 / (1 + step // 50),
            tokens_per_second=40_000.0 + step % 7,
            seconds_left=float(steps - step),
            learning_rate=0.002 * (1 - step / steps) + 1e-5,
            gradient_norm=1.25 if step < steps else 3.75,
        )


def drawn(foot: Foot, width: int, height: int, encoding: str = "utf-8") -> list[str]:
    screen = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=screen, width=width, height=height, color_system=None)
    console.print(foot)
    screen.flush()
    lines = screen.buffer.getvalue().decode(encoding).split("\n")  # type: ignore[attr-defined]
    assert lines.pop() == ""
    return lines


def trained(steps: int) -> Foot:
    foot = Foot()
    for progress in training(steps):
        foot.add(progress)
    return foot


@pytest.mark.parametrize("width", [55, 80, 121, 200])
@pytest.mark.parametrize("height", [20, 24, 50])
def test_a_tall_terminal_shows_the_curves(width: int, height: int) -> None:
    lines = drawn(trained(400), width, height)
    assert 8 <= len(lines) <= height // 2
    assert max(map(cell_len, lines)) <= width - 5  # room for ^C^C
    assert lines[0].startswith("loss, nats per token: training  • validation")
    chart = lines[1:-3]
    assert sum("•" in line for line in chart) >= 2
    assert any(0x2800 < ord(character) < 0x2900 for character in chart[-1])
    assert lines[-3].split() == ["1", "step", "400"]
    assert lines[-2].startswith("learning rate ") and "gradient norm" in lines[-2]
    assert lines[-1].startswith("step 400/400")


def test_the_curve_falls_as_the_loss_does() -> None:
    lines = drawn(trained(400), 80, 24)[1:-3]
    top, bottom = lines[0].index("│"), lines[-1].index("│")
    assert float(lines[0][:top]) > 2.4 and float(lines[-1][:bottom]) < 1.7
    assert lines[-1].rstrip()[-1] not in "│ " and len(lines[-1].rstrip()) > 60


def test_the_newest_numbers_are_told() -> None:
    line = drawn(trained(400), 120, 40)[-2]
    assert "1e-05" in line and "3.75" in line and "40.0k" in line
    assert sum(character in "▁▂▃▄▅▆▇█" for character in line) > 30


@pytest.mark.parametrize(("width", "height"), [(80, 19), (45, 40), (20, 10), (1, 1)])
def test_a_small_terminal_shows_one_line(width: int, height: int) -> None:
    assert len(drawn(trained(400), width, height)) == 1


def test_the_first_steps_show_one_line() -> None:
    foot = trained(2)
    assert len(drawn(foot, 80, 40)) == 1
    assert drawn(Foot(), 80, 40) == []


def test_an_ascii_terminal_shows_ascii() -> None:
    lines = drawn(trained(400), 100, 30, "ascii")
    assert len(lines) > 8 and all(line.isascii() for line in lines)
    assert any("*" in line for line in lines) and any("o" in line for line in lines[1:-3])


def test_an_activity_keeps_the_curves() -> None:
    foot = trained(400)
    foot.activity = "writing a sample"
    lines = drawn(foot, 80, 30)
    assert len(lines) > 8 and lines[-1].endswith("writing a sample")


def test_old_callers_and_bad_steps_are_drawn() -> None:
    foot = Foot()
    for step in range(1, 60):
        loss = float("nan") if step % 3 == 0 else 2.0
        foot.add(Progress(step=step, steps=None, fraction=0.5, loss=loss))
    lines = drawn(foot, 80, 30)
    assert len(lines) > 8 and lines[-1].startswith("step 59")
    assert "learning rate" not in "".join(lines)


def test_a_run_of_weeks_is_drawn_from_few_numbers() -> None:
    foot = trained(20_000)
    assert all(len(curve.buckets) <= 400 for curve in (foot._loss, foot._norm, foot._validation))
    lines = drawn(foot, 80, 30)
    marks = sum(line.count("•") for line in lines[1:-3])
    assert 5 <= marks <= 20
