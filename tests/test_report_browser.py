"""The report as a person sees it: in Chromium, wide and narrow, light and dark, mouse and keys."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import run_logs
from andrea.reporting.metrics import Metrics
from andrea.reporting.page import render
from browser import Browser, Page
from run_logs import evaluation, event, sample, start, step_event
from test_report import HOSTILE, hostile_page

WIDE, NARROW = (1400, 900), (390, 844)
# The paper, the ink, the training and the validation curve: page.css.
LIGHT = ("#faf9f6", "#21201d", "#386ca6", "#bf5413")
DARK = ("#131416", "#e8e6e1", "#7db0e8", "#f0935a")
STEPS = 1200


def eventful_run() -> list[run_logs.Event]:
    """Resumed, with skipped and outlying steps, samples with markup in them, all curves."""
    events = [start(plan={"steps": STEPS, "seconds": 2000.0})]
    for step in range(1, STEPS + 1):
        if step == 601:
            events.append(start(9000, resumed_step=600))
        at = step + (9000 if step > 600 else 0)
        loss = 1.6 + 2.6 * math.exp(-step / 150) + 0.1 * math.sin(step)
        changes: dict[str, Any] = {"loss": loss, "lr": 0.002 * (1 - step / 1500)}
        changes["tokens_per_second"] = 15_000.0 + step
        if step == 300:
            changes |= {"loss": None, "skipped": True}
        if step == 700:
            changes |= {"loss": 9.0, "outlier": 20.0}
        events.append(step_event(step, at, **changes))
        if step % 100 == 0:
            score = 1.7 + 2.6 * math.exp(-step / 150)
            events.append(evaluation(step, at, score=score, bits_per_byte=score / math.log(2)))
            text = f"Once upon a time {step}\n{HOSTILE}"
            events.append(sample(step, text, at, prompt="Once upon", coherence=step / 20))
    notice = "step 300 was skipped: its loss is not finite"
    events.append(event("run.notice", 10_000, step=STEPS, kind="skipped", text=notice))
    return events


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    metrics = Metrics()
    for one in eventful_run():
        metrics.add(one)
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(render(metrics, "my book"), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def wide(browser: Browser, report: Path) -> Page:
    return Page(browser, report, *WIDE)


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_looks_right(browser: Browser, report: Path, size: tuple[int, int], dark: bool) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    page = Page(browser, report, *size, dark=dark)
    assert page.complaints() == []
    # Nothing but the file itself is asked for, and nothing is wider than the window.
    assert page.requests() == [report.as_uri()]
    assert page.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [size[0]] * 2
    assert page.evaluate("document.documentElement.dataset.drawn") == "6"
    cut = page.evaluate(
        """[...document.querySelectorAll("h1, h2, dt, dd, td, th, button, .switch, .unit, .now")]
           .filter((node) => node.offsetParent && node.scrollWidth > node.clientWidth + 1 &&
                   getComputedStyle(node).display !== "inline").map((node) => node.outerHTML)"""
    )
    assert cut == []
    picture = image.open(io.BytesIO(page.picture(whole=True))).convert("RGB")
    assert picture.width == size[0] and picture.height > 2000
    colours = picture.getcolors(picture.width * picture.height)
    found = Counter({colour: number for number, colour in colours})
    paper, ink, training, validation = (
        tuple(bytes.fromhex(colour[1:])) for colour in (DARK if dark else LIGHT)
    )
    total = picture.width * picture.height
    assert found[paper] > 0.1 * total
    assert found[ink] > 300 and found[training] > 1000 and found[validation] > 300
    other = tuple(bytes.fromhex((LIGHT if dark else DARK)[0][1:]))
    assert found[other] < 0.001 * total


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_words_are_legible(browser: Browser, report: Path, dark: bool) -> None:
    # The contrast of WCAG 2 AA: 4.5 for text, on the card that is behind it.
    page = Page(browser, report, *WIDE, dark=dark)
    ratios = page.evaluate(
        """(() => {
          const parse = (text) => text.match(/[\\d.]+/g).map(Number);
          const light = (rgb) => {
            const [r, g, b] = rgb.map((one) => (one /= 255) <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const behind = (node) => {
            for (; node; node = node.parentElement) {
              const colour = parse(getComputedStyle(node).backgroundColor);
              if (colour.length < 4 || colour[3] > 0.9) return colour.slice(0, 3);
            }
          };
          const words = [...document.querySelectorAll("p, h1, h2, dt, dd, td, th, span, summary, .plot text")];
          return words.filter((node) => node.textContent.trim()).map((node) => {
            const style = getComputedStyle(node);
            const colour = parse(node.ownerSVGElement ? style.fill : style.color).slice(0, 3);
            const [a, b] = [light(colour), light(behind(node))].sort((x, y) => y - x);
            return [(a + 0.05) / (b + 0.05), node.outerHTML.slice(0, 80)];
          });
        })()"""  # noqa: E501
    )
    assert len(ratios) > 100
    assert [(ratio, node) for ratio, node in ratios if ratio < 4.5] == []


def test_axes_have_units(wide: Page) -> None:
    captions = wide.evaluate(
        """[...document.querySelectorAll("figcaption")].map((one) =>
             [one.children[0].textContent, one.children[1].textContent])"""
    )
    assert captions == [
        ["Loss", "nats per token"],
        ["Bits per byte", "of validation text"],
        ["Gradient norm", "before clipping"],
        ["Learning rate", "of the optimizer"],
        ["Speed", "tokens per second"],
        ["Coherence of samples", "0 to 100"],
    ]
    texts = wide.evaluate(
        "[...document.querySelectorAll('#curves svg text')].map((one) => one.textContent)"
    )
    assert texts.count("step") == 6 and "0.002" in texts and "1.2k" in texts and "2.0" in texts
    # All of an axis in the one form.
    assert {"0", "5k", "10k", "15k"} <= set(texts) and "5000" not in texts
    assert "NaN" not in wide.evaluate("document.querySelector('#curves').innerHTML")
    legend = wide.text(".legend")
    for name in ("training, smoothed", "lowest and highest of 2 steps", "validation", "best",
                 "skipped or outlying step", "resumed"):  # fmt: skip
        assert name in legend
    assert wide.evaluate("document.querySelectorAll('.event').length") == 3  # and in the legend
    assert wide.evaluate("document.querySelectorAll('svg > .session').length") == 2


def test_a_point_on_the_axis_is_whole(wide: Page) -> None:
    below = wide.evaluate(
        """(() => {
          const clip = document.querySelector("#clip-coherence rect");
          const axis = clip.closest("svg").querySelector("path.axis").getAttribute("d");
          const bottom = Number(axis.match(/,([0-9.]+)H/)[1]);
          return Number(clip.getAttribute("y")) + Number(clip.getAttribute("height")) - bottom;
        })()"""
    )
    assert below >= 3 + 0.75  # a point's radius, and half of its line


def middle_of_plot(page: Page, share: float) -> tuple[float, float]:
    x, y = page.evaluate(
        f"""(() => {{
          const plot = document.querySelector(".plot");
          plot.scrollIntoView({{ block: "center" }});
          const box = plot.getBoundingClientRect();
          return [box.x + {share} * box.width, box.y + box.height / 2];
        }})()"""
    )
    return x, y


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_hovering_reads_the_curves(browser: Browser, report: Path, size: tuple[int, int]) -> None:
    page = Page(browser, report, *size)
    before = page.text(".card:nth-of-type(4) .now")
    for share in (0.08, 0.5, 0.97):
        page.point(*middle_of_plot(page, share))
        lines = page.text(".tip").splitlines()
        step = int(lines[0].removeprefix("step ").replace(",", ""))
        assert abs(step / STEPS - share) < 0.12
        assert lines[2] == "training"
        expected = 1.6 + 2.6 * math.exp(-step / 150)
        assert float(lines[3]) == pytest.approx(expected, abs=0.15)
        assert "validation" in lines
        # All of it is inside the chart, and every chart has its cursor there.
        inside = page.evaluate(
            """(() => {
              const tip = document.querySelector(".tip").getBoundingClientRect();
              const plot = document.querySelector(".plot").getBoundingClientRect();
              return [tip.left >= plot.left - 1, tip.right <= plot.right + 1];
            })()"""
        )
        assert inside == [True, True]
        drawn = "[...document.querySelectorAll('.cursor')].filter((one) => one.getAttribute('d'))"
        assert page.evaluate(f"{drawn}.length") == 6
        assert (
            page.evaluate(
                "[...document.querySelectorAll('.tip')].filter((one) => !one.hidden).length"
            )
            == 1
        )
    page.point(2, 2)
    assert page.evaluate("document.querySelector('.tip').hidden")
    assert page.text(".card:nth-of-type(4) .now") == before


def test_keys_read_the_curves(browser: Browser, report: Path) -> None:
    page = Page(browser, report, *WIDE)
    page.evaluate("document.querySelector('.plot').focus()")
    page.press("Home")
    assert page.text(".tip").startswith("step 1\n")
    page.press("ArrowRight")
    assert page.text(".tip").splitlines()[0] in ("step 2", "step 3")
    page.press("End")
    assert page.text(".tip").splitlines()[0] in ("step 1,200", "step 1,199")
    page.press("Escape")
    assert page.evaluate("document.querySelector('.tip').hidden")


def test_everything_is_reached_by_tab(browser: Browser, report: Path) -> None:
    page = Page(browser, report, *WIDE)
    seen = []
    for _ in range(24):
        page.press("Tab")
        seen.append(
            page.evaluate(
                """(({ value, textContent, ariaLabel }) => ariaLabel || value || textContent)
                       (document.activeElement)"""
            )
        )
    for name in ("steps", "linear", "Earlier sample", "Sample", "Play", "Sample text"):
        assert name in seen, seen
    assert any(str(name).startswith("Loss, nats per token: training from") for name in seen)


def test_the_axes_can_be_changed(browser: Browser, report: Path) -> None:
    page = Page(browser, report, *WIDE)

    def line() -> str:
        return str(page.evaluate("document.querySelector('.training .line').getAttribute('d')"))

    linear = line()
    page.click("input[value=log]")
    assert line() != linear
    page.click("input[value=linear]")
    assert line() == linear
    page.click("input[value=time]")
    assert line() != linear
    texts = "[...document.querySelectorAll('#curves svg text')].map((one) => one.textContent)"
    assert page.evaluate(texts).count("time in training") == 6
    # 600 s, then a pause that does not count, then 600 s more.
    assert "10m" in page.evaluate(texts) and "2h" not in page.evaluate(texts)
    page.click("input[value=tokens]")
    assert page.evaluate(texts).count("tokens seen") == 6 and "1M" in page.evaluate(texts)


def test_samples_are_leafed_through(browser: Browser, report: Path) -> None:
    page = Page(browser, report, *WIDE)
    assert page.text("#samples h2") == "What it writes after “Once upon”"
    assert "Once upon a time 1200" in page.text(".sample")
    assert "12 of 12" in page.text(".told") and "coherence 60 of 100" in page.text(".told")
    page.click("#samples button")
    assert "Once upon a time 1100" in page.text(".sample")
    page.evaluate("document.querySelector('#samples input').focus()")
    page.press("Home")
    assert "Once upon a time 100\n" in page.text(".sample") and "step 100" in page.text(".told")
    assert page.evaluate("document.querySelector('#samples button').disabled")
    for _ in range(3):
        page.press("ArrowRight")
    assert "Once upon a time 400" in page.text(".sample")
    assert page.evaluate("document.querySelector('.chosen').getAttribute('d')").startswith("M")
    # What the model wrote is text, whatever it looks like.
    assert HOSTILE.split("\n")[0].replace("\x00", "\ufffd")[:40] in page.text(".sample")
    assert page.evaluate("document.querySelectorAll('.sample img, .sample script').length") == 0


def test_a_reload_keeps_what_was_chosen(browser: Browser, report: Path) -> None:
    page = Page(browser, report, *WIDE)
    page.click("input[value=log]")
    page.click("#samples button")
    page.open(report)
    assert page.evaluate("document.querySelector('input[value=log]').checked")
    assert "Once upon a time 1100" in page.text(".sample")


def test_a_hostile_run_is_shown_and_does_nothing(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "hostile.html"
    file.write_text(hostile_page(), encoding="utf-8", errors="replace")
    page = Page(browser, file, *NARROW)
    assert page.requests() == [file.as_uri()]
    assert page.complaints() == []
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert page.text("h1").startswith("</script><script>alert(1)")
    assert page.evaluate("document.documentElement.scrollWidth") == NARROW[0]


def test_the_policy_forbids_what_is_not_its_own(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "altered.html"
    more = "<script>document.title = 'taken'</script><img src='http://example.org/x.png'>"
    file.write_text(hostile_page().replace("</main>", more + "</main>"), encoding="utf-8")
    page = Page(browser, file, *WIDE)
    assert page.evaluate("document.title") != "taken"
    assert len(page.complaints()) >= 2 and "Content Security Policy" in page.complaints()[0]


@pytest.mark.parametrize("events", [0, 1, 2, 3])
def test_a_run_that_begins_is_shown(browser: Browser, tmp_path: Path, events: int) -> None:
    metrics = Metrics()
    for one in [start(), step_event(1), evaluation(1)][:events]:
        metrics.add(one)
    file = tmp_path / "begins.html"
    file.write_text(render(metrics, "young", live=True), encoding="utf-8")
    page = Page(browser, file, *NARROW)
    assert page.complaints() == []
    assert page.evaluate("document.documentElement.dataset.drawn") == str([0, 0, 4, 5][events])
    assert "NaN" not in page.evaluate("document.body.outerHTML.split('<script')[0]")
    if events == 1:
        gap = page.evaluate(
            """(() => {
              const bar = document.querySelector(".progress");
              const below = bar.nextElementSibling.getBoundingClientRect();
              return below.top - bar.getBoundingClientRect().bottom;
            })()"""
        )
        assert gap >= 8  # pixels between the bar and what is said below it


def test_a_live_page_reads_itself_again(browser: Browser, tmp_path: Path) -> None:
    metrics = Metrics()
    for one in eventful_run()[:400]:
        metrics.add(one)
    file = tmp_path / "live.html"
    file.write_text(render(metrics, "first", live=True, reload_seconds=0.3), encoding="utf-8")
    page = Page(browser, file, *WIDE)
    assert page.text("h1") == "first" and "Training" in page.text(".status")
    metrics.add(event("run.end", 2000, reason="complete"))
    file.write_text(render(metrics, "second", live=True), encoding="utf-8")
    page.wait_until("document.querySelector('h1').textContent === 'second'")
    assert page.text("#status").startswith("Finished")


def test_a_run_that_fell_silent_is_told(browser: Browser, tmp_path: Path) -> None:
    metrics = Metrics()
    for one in eventful_run()[:40]:
        metrics.add(one)
    page_text = render(metrics, "silent", live=True).replace('"generated":', '"generated":1,"x":')
    file = tmp_path / "silent.html"
    file.write_text(page_text, encoding="utf-8")
    page = Page(browser, file, *WIDE)
    assert "no news for" in page.text("#status")


def test_it_prints(wide: Page) -> None:
    paper = wide.pdf()
    assert paper.startswith(b"%PDF-") and len(paper) > 30_000
    pages = paper.count(b"/Type /Page\n")
    assert 1 <= pages <= 6
