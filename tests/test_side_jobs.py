"""Side jobs are done in order, each after those that it needs, and their failures are told."""

from __future__ import annotations

import functools
import threading

import pytest

import side_jobs


@pytest.fixture(autouse=True)
def queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue with nothing in it, and no jobs but a test's."""
    monkeypatch.setattr(side_jobs, "_queue", side_jobs._Queue())
    monkeypatch.setattr(side_jobs, "_known", {})


def test_what_is_needed_comes_first_and_once() -> None:
    done: list[str] = []
    side_jobs.job("build", lambda: done.append("build") or "folder")

    def run(name: str) -> str:
        done.append(name)
        return str(side_jobs.result("build"))

    for name in ("first", "second"):
        side_jobs.job(name, functools.partial(run, name), "build")
    side_jobs.start(["first", "second"])
    assert side_jobs.result("second") == side_jobs.result("first") == "folder"
    assert sorted(done) == ["build", "first", "second"] and done[0] == "build"


def test_who_waits_for_what_nobody_has_begun_does_it() -> None:
    side_jobs.job("build", threading.get_ident)
    side_jobs.job("run", threading.get_ident, "build")
    assert side_jobs.result("run") == side_jobs.result("build") == threading.get_ident()


def test_a_job_that_needs_one_under_way_keeps_no_other_waiting() -> None:
    free = threading.Event()
    side_jobs.job("build", lambda: free.wait(60))
    side_jobs.job("run", lambda: "ran", "build")
    side_jobs.job("other", lambda: free.set() or "other")
    side_jobs.start(["run", "other"])
    assert side_jobs.result("other") == "other"
    assert side_jobs.result("run") == "ran" and side_jobs.result("build")


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_failure_is_that_of_all_who_need_it(is_begun: bool) -> None:
    def fail() -> None:
        pytest.skip("no compiler")

    side_jobs.job("build", fail)
    side_jobs.job("run", lambda: side_jobs.result("build"), "build")
    if is_begun:
        side_jobs.start(["run"])
    for name in ("run", "build"):
        with pytest.raises(pytest.skip.Exception, match="no compiler"):
            side_jobs.result(name)
