"""`andrea sample` and `andrea info RUN` as a user runs them."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from typing import Any

import pytest

import andrea
from andrea.cli.sample import _in_order, _unescape
from andrea.runs.folder import RunFolder
from andrea.sampling import SamplingConfig
from andrea.writing import generate_text, generate_texts
from cli_process import ANDREA, TEXT, TINY, Shell, checkpoints, listen_to_interrupts
from patience import PATIENCE


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    made = Shell(tmp_path_factory.mktemp("sample"))
    # Enough to learn that a document, once begun, goes on.
    steps = ["--steps", "200", "--learning-rate", "0.01", "--eval-every", "100"]
    made.succeed("train", "book.txt", *TINY, "--batch-size", "8", *steps, "--out", "run")
    made.succeed(
        "train", "book.txt", *TINY, "--batch-size", "4", "--steps", "2", "--out", "bytes",
        "--tokenizer", "byte",
    )  # fmt: skip
    return made


def log_of_run(shell: Shell) -> list[dict[str, Any]]:
    lines = (shell.folder / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def in_library(shell: Shell, prompt: str, count: int, tokens: int, stop: str = "") -> list[str]:
    """What the package writes with the settings that the command takes when left alone."""
    with RunFolder.open(shell.folder / "run") as run:
        model = andrea.GPT(run.info.model)
        run.load(model)
        texts = [""] * count
        pieces = generate_texts(
            model,
            run.tokenizer(),
            prompt,
            num_samples=count,
            max_tokens=tokens,
            sampling=SamplingConfig(temperature=0.8, top_p=0.95),
            seed=7,
            stop=[stop] if stop else [],
        )
        for index, piece in pieces:
            texts[index] += piece
    return texts


def test_the_text_is_the_prompt_and_what_follows(shell: Shell) -> None:
    arguments = ["sample", "run", "--prompt", "The ", "--tokens", "60", "--seed", "7"]
    [expected] = in_library(shell, "The ", 1, 60)
    assert shell.succeed(*arguments) == f"The {expected}\n"
    assert shell.succeed("sample", checkpoints(shell.folder / "run")[-1], *arguments[2:]) == (
        f"The {expected}\n"
    )


def test_several_samples_stand_apart(shell: Shell) -> None:
    arguments = ["--prompt", "The ", "--tokens", "20", "--seed", "7", "--num-samples", "3"]
    first, second, third = in_library(shell, "The ", 3, 20)
    assert shell.succeed("sample", "run", *arguments) == (
        f"--- 1 of 3 ---\nThe {first}\n\n--- 2 of 3 ---\nThe {second}\n\n--- 3 of 3 ---\n"
        f"The {third}\n"
    )


def test_samples_are_put_in_order() -> None:
    pieces = [(0, "a"), (1, "x"), (0, "b"), (1, ""), (2, "p"), (0, ""), (2, "q"), (2, "")]
    told = list(_in_order(iter(pieces), 3))
    assert told == [
        *((0, None), (0, "a"), (0, "b"), (0, ""), (0, "\n")),
        *((1, None), (1, "x"), (1, ""), (1, "\n")),
        *((2, None), (2, "p"), (2, "q"), (2, "")),
    ]


def test_without_a_seed_texts_differ(shell: Shell) -> None:
    texts = {shell.succeed("sample", "run", "--temperature", "2", "--top-p", "1") for _ in "ab"}
    assert len(texts) == 2


def test_temperature_0_is_the_same_for_any_seed(shell: Shell) -> None:
    arguments = ["sample", "run", "--prompt", "The ", "--temperature", "0", "--tokens", "40"]
    first, second = (shell.succeed(*arguments, "--seed", seed) for seed in ("1", "2"))
    assert first == second
    assert shell.succeed(*arguments[:-4], "--top-k", "1", "--tokens", "40") == first


def test_stop_ends_before_a_text(shell: Shell) -> None:
    arguments = ["sample", "run", "--prompt", "The ", "--seed", "7", "--tokens", "300"]
    [whole] = in_library(shell, "The ", 1, 300)
    assert len(whole) == 300
    letter = whole[40]
    stopped = shell.succeed(*arguments, "--stop", letter, "--stop", "never there")
    assert stopped == f"The {whole[: whole.index(letter)]}\n"
    assert shell.succeed(*arguments, "--stop", r"\n") == f"The {whole.partition(chr(10))[0]}\n"


def test_only_a_stop_of_escapes_is_unescaped() -> None:
    assert _unescape(r"\n\n") == "\n\n" and _unescape(r"\t") == "\t"
    assert _unescape(r"\newpage") == r"\newpage"


def test_a_prompt_can_come_from_standard_input(shell: Shell) -> None:
    arguments = ["sample", "run", "--prompt", "-", "--tokens", "10", "--seed", "7"]
    assert shell.succeed(*arguments, stdin="The fox").startswith("The fox")


def test_unknown_characters_are_named(shell: Shell) -> None:
    line = shell.refuse("sample", "run", "--prompt", "Die Ziege")
    assert "'D'" in line and "'Z'" in line
    # A tokenizer of bytes knows all.
    output = shell.succeed("sample", "bytes", "--prompt", "Ziege 🐐", "--tokens", "5")
    assert output.startswith("Ziege 🐐")


def test_output_that_cannot_be_shown_is_replaced(shell: Shell) -> None:
    done = shell.run(
        "sample", "bytes", "--prompt", "é🐐", "--tokens", "5", PYTHONIOENCODING="ascii"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("??")


def test_a_closed_pipe_is_quiet(shell: Shell) -> None:
    process = subprocess.Popen(
        [ANDREA, "sample", "run", "--tokens", "100000"],
        cwd=shell.folder,
        env=shell.environment({}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(20)
    process.stdout.close()
    assert process.wait(timeout=PATIENCE) in (0, 1)
    assert process.stderr.read() == b""
    process.stderr.close()


def test_an_interrupt_is_quiet(shell: Shell) -> None:
    with shell.begin(
        "sample", "run", "--seed", "7", "--tokens", "10000000", stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert error.strip() == b""


def test_interactive_continues_each_line(shell: Shell) -> None:
    [expected] = in_library(shell, "The ", 1, 30)
    done = shell.run(
        "sample", "run", "--interactive", "--tokens", "30", "--seed", "7",
        stdin="The \nThe Ziege\n\nThe ",
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stdout.startswith(f"The {expected}\n") and done.stdout.endswith(f"The {expected}\n")
    guide, complaint, *rest = done.stderr.splitlines()
    assert "Ctrl-D ends" in guide and "'Z'" in complaint and rest == [""]


def test_interactive_leaves_quietly_at_an_interrupt(shell: Shell) -> None:
    process = subprocess.Popen(
        [ANDREA, "sample", "run", "--interactive"],
        cwd=shell.folder,
        env=shell.environment({}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=listen_to_interrupts,
    )
    with process:
        assert process.stderr is not None and b"Ctrl-D ends" in process.stderr.readline()
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE) == 0
        assert process.stderr.read().strip() == b""


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("nothing",), "nothing isn't there"),
        ((".",), "holds no run"),
        (("book.txt",), "book.txt is"),
        (("run", "--top-p", "1.5"), "top_p must be"),
        (("run", "--min-p", "2"), "min_p must be"),
        (("run", "--device", "tpu"), "'tpu'"),
        (("run", "--threads", "100000"), "100000"),
    ],
)
def test_what_cannot_be_sampled(shell: Shell, arguments: tuple[str, ...], complaint: str) -> None:
    assert complaint in shell.refuse("sample", *arguments)


def test_info_of_a_run(shell: Shell) -> None:
    output = shell.succeed("info", "run")
    for part in (
        "200 of 200",
        "validation ",
        "bits/byte",
        "char, 33 tokens",
        "book.txt",
    ):
        assert part in output
    facts = json.loads(shell.succeed("info", "run", "--json"))
    with RunFolder.open(shell.folder / "run") as run:
        model = andrea.GPT(run.info.model)
        assert facts["run"]["state"]["best_loss"] == run.state().best_loss
        assert facts["run"]["record"] == run.info.record
    assert facts["parameters"] == model.num_parameters
    shapes = {row["name"]: row["shape"] for row in facts["table"]}
    for name, tensor in model.parameters().items():
        assert list(tensor.shape) == shapes[name.replace("h.0.", "h.*.")]
    last = [entry for entry in log_of_run(shell) if entry["type"] == "run.eval"][-1]
    assert facts["run"]["losses"]["validation"] == last["score"]


def test_info_without_a_log_tells_the_rest(shell: Shell) -> None:
    moved = shell.folder / "moved.safetensors"
    moved.write_bytes(checkpoints(shell.folder / "run")[-1].read_bytes())
    output = shell.succeed("info", "moved.safetensors")
    assert "200 of 200" in output and "best validation" in output


def test_the_sample_of_training_is_what_sample_writes(shell: Shell) -> None:
    """The log's last sample is the model's text for the recorded seed, so progress is honest."""
    with RunFolder.open(shell.folder / "run") as run:
        model = andrea.GPT(run.info.model)
        run.load(model)
        pieces = generate_text(
            model,
            run.tokenizer(),
            "\n",
            max_tokens=400,
            sampling=SamplingConfig(temperature=0.8, top_p=0.95),
            seed=0,
        )
        text = "".join(pieces)
    samples = [entry["text"] for entry in log_of_run(shell) if entry["type"] == "run.sample"]
    assert samples[-1] and text.startswith(samples[-1])
    assert set(samples[-1]) <= set(TEXT)
