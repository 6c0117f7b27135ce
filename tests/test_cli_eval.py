"""`andrea eval` as a user runs it, its numbers beside those of the package."""

from __future__ import annotations

import json
import lzma
import math
import shutil
from typing import Any

import numpy as np
import pytest

import andrea
from andrea.cli.eval_text import eval_lines
from andrea.data import prepare
from andrea.judging.evaluate import judge
from andrea.runs.folder import RunFolder
from cli_process import TEXT, TINY, Shell


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    made = Shell(tmp_path_factory.mktemp("eval"))
    steps = ["--steps", "200", "--learning-rate", "0.01", "--eval-every", "100"]
    made.succeed("train", "book.txt", *TINY, "--batch-size", "8", *steps, "--out", "run")
    return made


def facts_of(shell: Shell, *arguments: str, **settings: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(
        shell.succeed("eval", "run", "--json", *arguments, **settings)
    )
    return answer


@pytest.fixture(scope="module")
def own(shell: Shell) -> dict[str, Any]:
    """The run judged by its own validation text, all of it."""
    return facts_of(shell, "--windows", "0", "--samples", "3")


def test_without_a_text_it_is_the_runs_validation_text(shell: Shell, own: dict[str, Any]) -> None:
    with RunFolder.open(shell.folder / "run") as run:
        model = andrea.GPT(run.info.model)
        run.load(model)
        tokenizer = run.tokenizer()
    data = prepare(
        [shell.folder / "book.txt"], cache_dir=shell.folder / "other", tokenizer=tokenizer
    )
    expected = judge(model, tokenizer, data.validation, data.train)
    assert own["step"] == 200 and own["missing"] == "" and own["damaged"] == []
    assert own["text"] == {
        "name": "book.txt",
        "is_validation": True,
        "bytes": data.validation_bytes,
        "tokens": len(data.validation),
        "leaked": 1.0,
    }
    assert own["scores"]["model"] == json.loads(json.dumps(expected.model.to_dict()))
    assert list(own["scores"]) == ["model", "5-gram", "unigram", "xz -9", "gzip -9"]
    assert own["scores"]["5-gram"]["loss"] == expected.others[0].loss
    assert own["measured"]["passages"] == own["measured"]["of_passages"]
    assert own["measured"]["tokens"] == len(data.validation) - 1
    model_bits = own["scores"]["model"]["bits_per_byte"]
    assert own["scores"]["model"]["interval"][0] < model_bits
    assert own["scores"]["model"]["perplexity"] == pytest.approx(
        math.exp(own["scores"]["model"]["loss"])
    )
    # The text is one sentence for ever: a model that learned anything beats single tokens.
    assert own["ahead_of"]["unigram"]["bits_per_byte"] > 2
    assert own["verdict"]


def test_what_the_model_has_by_heart_is_found(shell: Shell, own: dict[str, Any]) -> None:
    found = own["memorised"]
    assert len(found["samples"]) == len(found["unseen"]) == 3
    assert found["longest"] == max(found["samples"]) == len(found["passage"].encode())
    assert found["passage"] in TEXT
    # The validation text is the training text once more.
    assert found["longest_unseen"] > 300 and not found["is_suspicious"]
    assert found["unseen_known"] == 3
    told = " ".join("\n".join(eval_lines(own, 80)).split())
    assert "100% of the validation text's passages stand in the training text" in told
    assert "chance" not in told


def test_numbers_of_a_model_that_quotes_are_told_as_such(own: dict[str, Any]) -> None:
    own = {**own, "text": {**own["text"], "leaked": 0.0}}
    found = {**own["memorised"], "is_suspicious": True, "unseen_known": 0, "longest_unseen": 9}
    told = " ".join("\n".join(eval_lines({**own, "memorised": found}, 80)).split())
    assert "up to 9: the model has some of it by heart" in told and "leak" not in told
    for longest_unseen, conclusion in ((1000, "no more than chance"), (500, "little more than")):
        found = {**found, "is_suspicious": False, "longest": 600, "longest_unseen": longest_unseen}
        told = " ".join("\n".join(eval_lines({**own, "memorised": found}, 80)).split())
        assert f"up to {longest_unseen:,}: {conclusion}" in told


def test_another_text_is_judged_as_a_whole(shell: Shell) -> None:
    text = "The lazy fox is closed; the brown dog jumps over the café.\n" * 12
    (shell.folder / "other.txt").write_text(text, "utf-8")
    facts = facts_of(shell, "other.txt", "--samples", "0", "--windows", "7")
    raw = text.encode()
    assert facts["text"]["bytes"] == len(raw) and not facts["text"]["is_validation"]
    assert facts["text"]["tokens"] == len(text) + 1  # a document's beginning
    assert facts["scores"]["xz -9"]["bits_per_byte"] == pytest.approx(
        8 * len(lzma.compress(raw, preset=9)) / len(raw)
    )
    assert facts["measured"]["passages"] == 7 < facts["measured"]["of_passages"]
    assert facts["memorised"] is None
    by_pipe = facts_of(shell, "-", "--samples", "0", "--windows", "7", stdin=text)
    assert by_pipe["scores"] == facts["scores"] and by_pipe["text"]["name"] == "standard input"


def test_a_text_that_the_model_learned_from_is_no_news(shell: Shell) -> None:
    facts = facts_of(shell, "book.txt", "--samples", "4", "--windows", "5")
    assert facts["text"]["leaked"] is None and facts["memorised"]["unseen_known"] == 4
    told = " ".join("\n".join(eval_lines(facts, 80)).split())
    assert "4 of 4 passages from all over this text stand in the training text" in told


def test_json_lines_are_read_by_their_key(shell: Shell) -> None:
    lines = [json.dumps({"body": sentence}) for sentence in TEXT.splitlines()[:9]]
    (shell.folder / "some.jsonl").write_text("\n".join([*lines, "{broken"]), "utf-8")
    line = shell.refuse("eval", "run", "some.jsonl", "--text-key", "body", "--samples", "0")
    assert "some.jsonl" in line and "10" in line
    facts = facts_of(shell, "some.jsonl", "--text-key", "body", "--skip-bad", "--samples", "0")
    sentence = TEXT.splitlines()[0]
    assert facts["text"]["bytes"] == 9 * len(sentence.encode())
    assert facts["text"]["tokens"] == 9 * (len(sentence) + 1)


def test_the_table_fits_and_is_sorted(shell: Shell, own: dict[str, Any]) -> None:
    text = shell.succeed("eval", "run", "--windows", "0", "--samples", "3", COLUMNS="80")
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines == list(eval_lines(own, 80))
    header = next(n for n, line in enumerate(lines) if "bits/byte" in line)
    rows = lines[header + 1 : header + 6]
    assert {row.split("  ")[0] for row in rows} == set(own["scores"])
    bits = [float(row[8:].split()[0]) for row in rows]
    assert bits == sorted(bits)
    assert " ".join(own["verdict"].split()[:4]) in text
    narrow = list(eval_lines(own, 60))
    assert max(map(len, narrow)) <= 60


def test_without_the_training_text_the_rest_is_told(shell: Shell) -> None:
    shutil.copytree(shell.folder / "run", shell.folder / "moved")
    book = shell.folder / "book.txt"
    text = book.read_text("utf-8")
    (shell.folder / "unseen.txt").write_text(text[-500:], "utf-8")
    book.write_text(text + "More.", "utf-8")
    try:
        line = shell.refuse("eval", "run")  # with a character that its tokenizer lacks
        assert "book.txt is no longer the text that the run learned from" in line
        book.write_text(text + "the fox", "utf-8")
        assert shell.refuse("eval", "run") == line and "andrea eval run TEXT" in line
        told = shell.succeed("eval", "run", "unseen.txt")
        assert "left out" in told and "5-gram" in told.split("left out")[1]
        assert "xz -9" in told.split("verdict")[1]
        book.unlink()
        assert "no such file" in shell.refuse("eval", "run")
    finally:
        book.write_text(text, "utf-8")


def test_what_cannot_be_judged_is_told_in_one_line(shell: Shell) -> None:
    (shell.folder / "greek.txt").write_text("ἐν ἀρχῇ ἦν ὁ λόγος", "utf-8")
    assert "does not know 'γ'" in shell.refuse("eval", "run", "greek.txt")
    assert "nowhere" in shell.refuse("eval", "nowhere")
    assert "no such file" in shell.refuse("eval", "run", "missing.txt")
    (shell.folder / "empty.txt").write_text("", "utf-8")
    assert "empty.txt" in shell.refuse("eval", "run", "empty.txt")


def test_a_run_that_read_a_pipe_is_judged_by_a_named_text(shell: Shell) -> None:
    shell.succeed(
        "train", "-", *TINY, "--batch-size", "4", "--steps", "2", "--out", "piped", stdin=TEXT
    )
    assert "standard input, which is gone" in shell.refuse("eval", "piped")
    facts = json.loads(shell.succeed("eval", "piped", "book.txt", "--json"))
    assert "5-gram" not in facts["scores"] and "standard input" in facts["missing"]


def test_the_best_checkpoint_is_judged_when_asked_for(shell: Shell) -> None:
    with RunFolder.open(shell.folder / "run", best=True) as best:
        step = best.state().step
    assert facts_of(shell, "--best", "--samples", "0")["step"] == step


def test_numbers_are_the_same_each_time(shell: Shell, own: dict[str, Any]) -> None:
    again = facts_of(shell, "--windows", "0", "--samples", "3", "--threads", "1")
    assert again["scores"] == own["scores"] and again["memorised"] == own["memorised"]
    assert np.isfinite(own["scores"]["model"]["loss"])
