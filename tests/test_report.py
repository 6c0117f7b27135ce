"""The report of a run as text: what it says, that nothing in it can break out, how it is kept."""

from __future__ import annotations

import errno
import html
import importlib.resources
import json
import os
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import run_logs
from andrea.errors import RunError
from andrea.reporting import writer
from andrea.reporting.facts import facts
from andrea.reporting.metrics import Metrics
from andrea.reporting.page import render
from andrea.reporting.writer import ReportWriter, write_report
from cli_process import ANDREA, Shell
from patience import PATIENCE
from run_logs import evaluation, event, loss_at, sample, start, step_event, whole_run, write_log

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\"'`${1}\u2028\x00"
ABOUT: dict[str, Any] = {
    "environment": {"device": "cpu", "threads": 2, "instruction_sets": ["avx2", "generic"]},
    "plan": {"steps": 60, "seconds": 100.0, "tokens": 61440, "epochs": 1.5, "parameters": 108416,
             "memory": {"parameters": 433664, "total": 9_600_000}},
    "data": {"names": ["book.txt"], "documents": 1, "train_bytes": 1_003_854},
}  # fmt: skip


class Elements(HTMLParser):
    """Elements with their attributes, and the text outside of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def heard(events: list[run_logs.Event]) -> Metrics:
    metrics = Metrics()
    for one in events:
        metrics.add(one)
    return metrics


def data_of(page: str) -> dict[str, Any]:
    found = json.loads(Elements(page).scripts[0])
    assert isinstance(found, dict)
    return found


def test_it_tells_what_became_of_the_run() -> None:
    events = [start(**ABOUT), *whole_run()[1:]]
    text = Elements(render(heard(events), "my book")).text
    for words in (
        "my book",
        "Finished, 29 Nov 2026, 22:15 UTC",
        "begun 29 Nov 2026, 22:15 UTC",
        f"Validation loss {loss_at(40) + 0.1:.3f} nats per token, best at step 40",
        f"Bits per byte {loss_at(40):.3f}",
        "Time 41s",
        "41.0k seen",  # 40 steps of 2 x 8 x 64 tokens
        "steps 60 40",
        "time 1m 40s 41s",
        "tokens 61.4k 41.0k",
        "epochs 1.5 1",
        "memory 9.6 MB: parameters 434 KB",
        "What it writes after “Once”",
        "text after 40",
        "how it began, at step 10 text after 10",
        "names book.txt",
        "train bytes 1.0 MB",
        "instruction sets avx2, generic",
        "layers 2",
        "Saved 5 times, last at step 40",
    ):
        assert words in text, (words, text)
    assert "Sessions" not in text and "Notices" not in text


def test_settings_say_what_their_numbers_mean() -> None:
    config = {
        "min_ratio": 0.1,
        "keep_last": 2,
        "early_stop": 0,
        "coherence_gate": 30.0,
        "outlier_z": 12.0,
        "max_skipped": 10,
        "decay_share": 0.2,
        "schedule": "cosine",
    }
    told = dict(facts(config))
    assert told == {
        "lowest rate": "0.1 of the highest",
        "keeps": "the newest 2 checkpoints",
        "early stop": "never",
        "coherence gate": "below 30 of 100",
        "outliers": "beyond 12 robust deviations",
        "ends after": "10 steps in a row without an update",
        "schedule": "cosine",
    }
    assert dict(facts(config | {"schedule": "wsd"}))["decay share"] == "0.2"
    counts = {"passages": 30_829, "leaked": 17_092, "documents": 9, "repeated": 1}
    data = {"unigram_entropy": 3.25597, "repetition": {**counts, "near_repeated": 0}}
    assert facts(data) == [
        ("token frequencies", "3.256 nats per token"),
        (
            "repetition",
            "17,092 of 30,829 validation passages stand in the training text; of 9 documents 1 "
            "equal an earlier one, 0 nearly",
        ),
    ]
    alone = {"repetition": {**counts, "documents": 1, "near_repeated": 0}}
    assert facts(alone)[0][1].endswith("stand in the training text")


def test_it_carries_the_curves() -> None:
    data = data_of(render(heard(whole_run()), "x"))
    curves = data["curves"]
    assert curves["loss"]["step"] == list(range(1, 41))
    assert curves["loss"]["mean"] == pytest.approx([loss_at(step) for step in range(1, 41)], 1e-5)
    assert curves["validation"]["step"] == curves["bits_per_byte"]["step"] == [10, 20, 30, 40]
    assert curves["coherence"]["mean"] == [30, 40, 50, 60]
    assert [one["text"] for one in data["samples"]] == [f"text after {n}" for n in (10, 20, 30, 40)]
    assert data["tokensPerStep"] == 1024 and data["best"]["step"] == 40 and not data["live"]


def test_a_run_of_weeks_makes_a_small_page() -> None:
    events = [start()]
    for step in range(1, 30_000):
        events.append(step_event(step))
        if step % 10 == 0:
            events += [evaluation(step), sample(step, "some words " * 30)]
    page = render(heard(events), "long")
    assert len(page) < 900_000
    assert len(data_of(page)["curves"]["loss"]["step"]) <= 1024


def ended(reason: str) -> list[run_logs.Event]:
    return [*whole_run()[:-1], event("run.end", 50, reason=reason)]


@pytest.mark.parametrize(
    ("state", "events", "words"),
    [
        ("live", [start(), step_event(10)], "Training, 25% done"),
        ("done", whole_run(), "Finished"),
        ("done", ended("complete"), "Finished"),
        ("open", ended("stopped by a signal"), "Stopped by a signal"),
        ("broken", ended("its samples were incoherent"), "Its samples were incoherent"),
    ],
)
def test_it_says_how_the_run_stands(state: str, events: list[Any], words: str) -> None:
    page = render(heard(events), "x", live=True)
    assert f'<p class="status {state}">' in page
    assert words in Elements(page).text
    assert data_of(page)["live"] == (state == "live")


def test_resumes_notices_and_skipped_steps_are_told() -> None:
    events = [start(), step_event(1), step_event(2, loss=None, skipped=True)]
    events.append(event("run.notice", 2.5, step=2, kind="skipped", text="step 2 was skipped"))
    events += [start(500, resumed_step=2), step_event(3, 501), step_event(4, 502, outlier=12.0)]
    page = render(heard(events), "x")
    text, data = Elements(page).text, data_of(page)
    assert "resumed once" in text and "Trained in 2 sessions" in text
    assert "skipped 1" in text and "step 2 was skipped" in text
    assert (data["events"], data["sessions"]) == ([2, 4], [2])
    assert None not in data["curves"]["loss"]["mean"]


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([], "The first step is being taken."),
        ([start()], "The first step is being taken."),
        ([event("run.start", 0)], "The first step is being taken."),
        ([event("run.end", 1)], "No step has been logged."),
    ],
)
def test_hardly_anything_is_known(events: list[Any], words: str) -> None:
    page = render(heard(events), "x", live=True)
    assert words in Elements(page).text
    assert data_of(page)["samples"] == [] and data_of(page)["best"] is None


# ---- nothing breaks out, nothing comes in


def hostile_page() -> str:
    about = {
        "environment": {HOSTILE: HOSTILE},
        "data": {"names": [HOSTILE], HOSTILE: {HOSTILE: 1}},
        "plan": {HOSTILE: HOSTILE, "memory": HOSTILE, "parameters": HOSTILE, "tokens": HOSTILE},
    }
    events = [{**start(**about), "model": {HOSTILE: HOSTILE}, "config": {HOSTILE: HOSTILE}}]
    events += [step_event(1), sample(1, HOSTILE, prompt=HOSTILE), sample(2, HOSTILE)]
    events.append(event("run.notice", 2, step=1, kind=HOSTILE, text=HOSTILE))
    events.append(event("run.checkpoint", 2, step=1, path=HOSTILE, size_bytes=1))
    events.append(event("run.end", 3, reason=HOSTILE))
    return render(heard([{**one, "run_id": HOSTILE} for one in events]), HOSTILE)


def test_words_of_a_run_stay_words() -> None:
    usual = Elements(render(heard([start(), step_event(1), sample(1, "a"), sample(2, "b")]), "x"))
    hostile = Elements(hostile_page())
    tags = [tag for tag, _ in hostile.elements]
    assert tags.count("script") == [tag for tag, _ in usual.elements].count("script") == 2
    assert "img" not in tags
    attributes = {name for _, found in hostile.elements for name in found}
    assert not [name for name in attributes if name.startswith("on")]
    data = json.loads(hostile.scripts[0])
    assert data["samples"][0]["text"] == HOSTILE
    assert html.escape(HOSTILE) in hostile_page()


def test_the_page_loads_nothing() -> None:
    for page in (hostile_page(), render(heard(whole_run()), "x")):
        found = Elements(page)
        for tag, attributes in found.elements:
            assert tag not in ("link", "iframe", "object", "embed", "img", "base", "form"), tag
            assert not {"src", "href", "style", "action"} & attributes.keys(), (tag, attributes)
        policies = [
            one["content"]
            for _, one in found.elements
            if one.get("http-equiv") == "Content-Security-Policy"
        ]
        assert len(policies) == 1 and policies[0] is not None
        assert policies[0].startswith("default-src 'none'; ") and "unsafe" not in policies[0]
        own = re.sub(r'<script type="application/json".*?</script>', "", page, flags=re.DOTALL)
        own = own.replace("http://www.w3.org/2000/svg", "")  # a name, not an address
        assert "url(http" not in own and "@import" not in own and "fetch(" not in own


def test_its_parts_are_installed() -> None:
    folder = importlib.resources.files("andrea.reporting")
    parts = [part.name for part in folder.iterdir()]
    for name in ("page.html", "page.css", "scale.js", "chart.js", "samples.js", "page.js"):
        assert name in parts
        assert len(folder.joinpath(name).read_text(encoding="utf-8")) > 500


# ---- kept while the run goes on


class Time:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(writer, "time", clock)
    return clock


def pages_during(report: ReportWriter, clock: Time, seconds: int) -> list[int]:
    """The seconds at which the page was written anew."""
    written, before = [], report.path.read_bytes()
    for second in range(1, seconds + 1):
        clock.now += 1
        report(step_event(second))
        page = report.path.read_bytes()
        if page != before:
            written.append(second)
        before = page
    return written


def test_the_page_is_there_at_once_and_kept_current(tmp_path: Path, clock: Time) -> None:
    write_log(tmp_path, [start()])
    report = ReportWriter(tmp_path)
    page = report.path.read_text(encoding="utf-8")
    assert report.path == tmp_path / "report.html" and data_of(page)["live"]
    written = pages_during(report, clock, 400)
    gaps = [later - earlier for earlier, later in zip([0, *written], written, strict=False)]
    assert gaps[0] == 2 and max(gaps) == 30 and gaps[-1] == 30 and gaps == sorted(gaps)
    assert data_of(report.path.read_text(encoding="utf-8"))["reload"] == 30
    report(event("run.end", 401, reason="complete"))
    data = data_of(report.path.read_text(encoding="utf-8"))
    assert not data["live"] and data["curves"]["loss"]["step"][-1] == 400
    assert [path.name for path in tmp_path.iterdir()].count("report.html") == 1
    assert len(list(tmp_path.iterdir())) == 2  # and the log: no file was left behind


def test_slow_pages_come_rarely(
    tmp_path: Path, clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*arguments: Any, **settings: Any) -> str:
        clock.now += 1.5
        return render(*arguments, **settings)

    monkeypatch.setattr(writer, "render", slow)
    report = ReportWriter(tmp_path)
    written = pages_during(report, clock, 2000)
    assert len(written) <= 4  # at 1.5 s for each: a third of a percent of the time


def test_a_resumed_run_goes_on_from_its_log(tmp_path: Path, clock: Time) -> None:
    write_log(tmp_path, [*whole_run()[:-1], start(900, resumed_step=40)])
    with ReportWriter(tmp_path) as report:
        report(step_event(41, 901))
    data = data_of(report.path.read_text(encoding="utf-8"))
    assert data["curves"]["loss"]["step"] == list(range(1, 42)) and data["sessions"] == [40]


def test_close_writes_what_is_left(tmp_path: Path, clock: Time) -> None:
    report = ReportWriter(tmp_path)
    report(step_event(1))
    report.close()
    before = report.path.stat().st_mtime_ns, report.path.read_bytes()
    assert data_of(before[1].decode())["curves"]["loss"]["step"] == [1]
    report.close()
    assert (report.path.stat().st_mtime_ns, report.path.read_bytes()) == before


def test_a_page_that_cannot_be_written_stops_nothing(
    tmp_path: Path, clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = ReportWriter(tmp_path)
    first = report.path.read_bytes()
    real = os.replace

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer.os, "replace", full)
    assert pages_during(report, clock, 60) == []
    assert report.path.read_bytes() == first and list(tmp_path.iterdir()) == [report.path]
    monkeypatch.setattr(writer.os, "replace", real)
    assert pages_during(report, clock, 60) != []


def test_a_fault_of_the_report_stops_nothing(
    tmp_path: Path, clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = ReportWriter(tmp_path)

    def broken(*_: Any, **__: Any) -> str:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(writer, "render", broken)
    assert pages_during(report, clock, 60) == []
    assert report.problem == "ZeroDivisionError: a bug"


def test_the_report_can_be_written_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "other.html"
    write_report(heard(whole_run()), path, "x")
    assert "Finished" in path.read_text(encoding="utf-8")
    with pytest.raises(RunError, match="cannot write"):
        write_report(heard(whole_run()), tmp_path / "nowhere" / "page.html", "x")


# ---- commands


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    write_log(tmp_path / "run", whole_run())
    return Shell(tmp_path)


def test_andrea_report(shell: Shell) -> None:
    assert shell.succeed("report", "run") == "wrote run/report.html\n"
    assert "Finished" in (shell.folder / "run" / "report.html").read_text(encoding="utf-8")
    assert shell.succeed("report", "run", "--out", "page.html") == "wrote page.html\n"
    assert "<h1>run</h1>" in (shell.folder / "page.html").read_text(encoding="utf-8")
    assert shell.refuse("report", "nothing").startswith("andrea: nothing isn't there")
    assert "cannot write" in shell.refuse("report", "run", "--out", "no/such/page.html")


def test_andrea_metrics(shell: Shell) -> None:
    table = shell.succeed("metrics", "run")
    assert len(table.splitlines()) == 41 and table.startswith("step,time,loss,")
    assert shell.succeed("metrics", "run", "--out", "m.csv") == "wrote m.csv\n"
    assert (shell.folder / "m.csv").read_text() == table
    lines = shell.succeed("metrics", "run/log.jsonl", "--format", "jsonl").splitlines()
    assert [json.loads(line) for line in lines] == whole_run()
    assert "No such file" in shell.refuse("metrics", "run", "--out", "no/such/m.csv")
    assert shell.refuse("metrics", ".").startswith("andrea: . holds no log (no log.jsonl)")


def test_a_reader_that_stops_early_is_no_error(shell: Shell) -> None:
    write_log(shell.folder / "long", whole_run(3000))
    done = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$0" metrics long | head -1', ANDREA],
        cwd=shell.folder,
        env=shell.environment({}),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.stdout.startswith("step,") and done.stderr == ""
