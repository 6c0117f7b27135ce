"""`andrea export` and `andrea import`, and what can be done with what came in."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from andrea.formats.hf import export_hf
from andrea.formats.weights import Weights, of_run
from andrea.runs.folder import RunFolder
from andrea.tokenizers import CarriedTokenizer
from cli_process import TINY, Shell
from small_weights import small_tokenizer, small_weights

WRITING = ("--prompt", "The", "--temperature", "0", "--tokens", "12")


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A run of the book with a bpe tokenizer."""
    shell = Shell(tmp_path_factory.mktemp("formats"))
    typed = ("--tokenizer", "bpe", "--vocab-size", "300", "--steps", "30", "--batch-size", "4")
    shell.succeed("train", "book.txt", *TINY, *typed, "--learning-rate", "0.01", "--out", "run")
    return shell


def weights_of(path: Path) -> dict[str, bytes]:
    with RunFolder.open(path) as run:
        return {name: np.asarray(t).tobytes() for name, t in of_run(run).parameters.items()}


@pytest.mark.parametrize(
    ("format_name", "more", "held"),
    [
        ("hf", (), "weights only"),
        ("llmc", ("--tokenizer", "run"), "weights only"),
        ("andrea", ("--tokenizer", "run"), "weights and moments of step 30"),
    ],
)
def test_a_model_goes_out_and_comes_back(
    format_name: str, more: tuple[str, ...], held: str, shell: Shell
) -> None:
    """The same bits, the same text, and the moments where the format has them."""
    out = f"out.{format_name}"
    said = shell.succeed("export", "run", "--format", format_name, "--out", out)
    assert re.match(rf"wrote out\.{format_name}, [\d.]+ KB: ", said)
    back = f"back-{format_name}"
    said = shell.succeed("import", out, "--out", back, *more)
    assert said.startswith(f"made {back}: ") and "bpe, 300 tokens" in said
    assert weights_of(shell.folder / "run") == weights_of(shell.folder / back)
    written = shell.succeed("sample", back, *WRITING)
    assert written == shell.succeed("sample", "run", *WRITING)
    again = f"again.{format_name}"
    shell.succeed("export", back, "--format", format_name, "--out", again)
    first, second = shell.folder / out, shell.folder / again
    if first.is_file():
        assert first.read_bytes() == second.read_bytes()
    else:
        files = sorted(path.name for path in first.iterdir())
        assert files == sorted(path.name for path in second.iterdir())
        for name in files:
            assert (first / name).read_bytes() == (second / name).read_bytes(), name
    said = shell.succeed("info", back)
    assert re.search(rf"^state +{held}: can be sampled from, not continued$", said, re.M)
    line = shell.refuse("train", "--resume", back)
    assert ("moments but not how" if "moments" in held else held) in line and "--init-from" in line


# ---- dialects


@pytest.fixture(scope="module")
def ancestor(shell: Shell) -> Shell:
    """Beside the run of the book one of the ancestor's dialect, in the folder "ancestor"."""
    typed = ("--tokenizer", "char", "--steps", "3", "--batch-size", "4", "--out", "ancestor")
    shell.succeed("train", "book.txt", *TINY, "--dialect", "microgpt", *typed)
    return shell


def test_the_familys_layout_is_found_and_told(ancestor: Shell) -> None:
    """Given the sizes alone, as with the published files: the same bits, the same text."""
    order = ("--order", "head-first")
    layout = "layout: untied head, no biases, norms without parameters; order: head-first"
    typed = ("--format", "andrea", *order)
    out, back, again = "family.bin", "from-family", "family-again.bin"
    said = ancestor.succeed("export", "ancestor", *typed, "--out", out)
    assert said.endswith(f"; {layout}\n")
    said = ancestor.succeed("import", out, *TINY, *order, "--tokenizer", "ancestor", "--out", back)
    assert f"\n{layout}\n" in said and "\ndialect: microgpt: RMSNorm without gain, " in said
    assert weights_of(ancestor.folder / "ancestor") == weights_of(ancestor.folder / back)
    written = ancestor.succeed("sample", back, *WRITING)
    assert written == ancestor.succeed("sample", "ancestor", *WRITING)
    ancestor.succeed("export", back, *typed, "--out", again)
    assert (ancestor.folder / out).read_bytes() == (ancestor.folder / again).read_bytes()


def test_what_a_count_cannot_tell_is_said_by_options(ancestor: Shell) -> None:
    ancestor.succeed("export", "ancestor", "--format", "andrea", "--out", "a.bin")
    typed = ("import", "a.bin", *TINY, "--tokenizer", "ancestor")
    for number, (more, known) in enumerate(
        (
            (("--activation", "gelu"), {"activation": "gelu", "embedding_norm": True}),
            (("--dialect", "microgpt", "--activation", "relu2"), {"activation": "relu2"}),
        )
    ):
        ancestor.succeed(*typed, *more, "--out", f"said-{number}")
        with RunFolder.open(ancestor.folder / f"said-{number}") as run:
            assert known.items() <= run.info.model.to_full_dict().items()
            assert run.info.model.norm == "rmsnorm"
    line = ancestor.refuse(*typed, "--dialect", "gpt2", "--out", "x")
    assert re.search(r"has [\d,]+ parameters, and no layout of .* has so many: [\d,]+ tied", line)
    assert not (ancestor.folder / "x").exists()


@pytest.mark.parametrize(
    ("format_name", "what"), [("hf", "a GPT-2 of Hugging Face"), ("llmc", "llm.c")]
)
def test_what_gpt2_has_not_is_refused(format_name: str, what: str, ancestor: Shell) -> None:
    line = ancestor.refuse("export", "ancestor", "--format", format_name, "--out", "x")
    assert f"{what} can't hold this model: its norm is rmsnorm, there it is always" in line
    assert not (ancestor.folder / "x").exists()


def test_a_gpt2_of_another_dialect_is_told_and_tuned(shell: Shell) -> None:
    """Its activation, its head and its MLP are kept, and asked to be others they are refused."""
    own = dict(activation="relu2", tie_embeddings=False, mlp_dim=40, mlp_bias=False)
    export_hf(small_weights(small_tokenizer("byte"), **own), shell.folder / "relu2")
    said = shell.succeed("import", "relu2", "--out", "relu2-run")
    assert "\ndialect: squared ReLU, MLP 40 wide, untied head\n" in said
    line = shell.refuse("import", "relu2", "--activation", "relu", "--out", "x")
    assert "relu2 says what model it holds: leave out --activation" in line
    tuned = ("train", "book.txt", "--init-from", "relu2", "--steps", "2", "--batch-size", "2")
    line = shell.refuse(*tuned, "--activation", "gelu")
    assert "--activation" in line and "relu2" in line
    shell.succeed(*tuned, "--out", "relu2-tuned")
    shell.succeed("sample", "relu2-tuned", *WRITING)
    with RunFolder.open(shell.folder / "relu2-tuned") as run:
        found = run.info.model.dialect()
    assert found == dict(activation="relu2", mlp_dim=40, tie_embeddings=False)
    shell.succeed("export", "relu2-tuned", "--format", "hf", "--out", "relu2-again")


# ---- other files


def test_a_checkpoint_of_weights(shell: Shell) -> None:
    shell.succeed("export", "run", "--format", "safetensors", "--out", "w/weights.safetensors")
    path = "w/weights.safetensors"
    assert shell.succeed("sample", path, *WRITING) == shell.succeed("sample", "run", *WRITING)
    assert weights_of(shell.folder / path) == weights_of(shell.folder / "run")


def test_gguf(shell: Shell) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed")
    typed = ("export", "run", "--format", "gguf", "--precision", "q8_0", "--out", "run.gguf")
    assert "llama.cpp" in shell.succeed(*typed)
    assert (shell.folder / "run.gguf").read_bytes()[:4] == b"GGUF"


def test_the_best_checkpoint(shell: Shell) -> None:
    with RunFolder.open(shell.folder / "run", best=True) as run:
        best = run.state().best_step
    shell.succeed("export", "run", "--best", "--format", "andrea", "--out", "best.bin")
    step = int.from_bytes((shell.folder / "best.bin").read_bytes()[:4], "little")
    assert best and step == best


def test_a_folder_is_fine_tuned_with_one_command(shell: Shell) -> None:
    """With a tokenizer that Andrea has no kind of: it is kept, in the run and when repeated."""
    tokenizer = small_tokenizer("bpe")
    export_hf(small_weights(tokenizer, block_size=16), shell.folder / "theirs")
    path = shell.folder / "theirs" / "tokenizer.json"
    description = json.loads(path.read_text("utf-8"))
    description["pre_tokenizer"]["add_prefix_space"] = True
    path.write_text(json.dumps(description), "utf-8")
    typed = ("train", "book.txt", "--init-from", "theirs", "--steps", "3", "--batch-size", "2")
    said = shell.succeed(*typed, "--block-size", "24", "--out", "tuned")
    assert re.search(r"^weights +those of theirs; their context of 16 becomes 24$", said, re.M)
    assert re.search(r"^tokenizer +json, 300 tokens", said, re.M)
    with RunFolder.open(shell.folder / "tuned") as run:
        assert isinstance(run.tokenizer(), CarriedTokenizer)
        assert run.info.model.block_size == 24
    shell.succeed("sample", "tuned", *WRITING)
    shell.succeed("train", "--resume", "tuned", "--steps", "4")
    shell.succeed("train", "--config", "tuned/config.toml", "--out", "twice")
    newest = "checkpoints/step-00000004.safetensors"
    assert (shell.folder / "tuned" / newest).exists()


def test_what_is_imported_is_judged_and_tuned(shell: Shell) -> None:
    shell.succeed("export", "run", "--format", "hf", "--out", "folder")
    shell.succeed("import", "folder", "--out", "imported")
    assert "left out  5-gram" in shell.succeed("eval", "imported", "book.txt")
    assert "bpe, 300 tokens" in shell.succeed("info", "imported")
    shell.succeed(*("train", "book.txt", "--init-from", "imported", "--steps", "1", "--out", "on"))


def broken(shell: Shell, name: str, weights: Weights | None = None) -> Path:
    folder = shell.folder / name
    export_hf(weights or small_weights(small_tokenizer("byte")), folder)
    return folder


def test_refusals_are_one_line(shell: Shell) -> None:
    for typed, told in (
        (("export", "run", "--format", "hf", "--out", "run"), "run is there already"),
        (("export", "nowhere", "--format", "hf", "--out", "x"), "nowhere isn't there"),
        (
            ("export", "run", "--format", "llmc", "--precision", "q8_0", "--out", "x"),
            "llmc is written in f32 or bf16, not in q8_0",
        ),
        (("import", "run", "--out", "x"), "a run of Andrea already"),
        (("import", "nowhere", "--out", "x"), "nowhere isn't there"),
        (("import", "book.txt", "--out", "x"), "does not say its shape"),
        (("import", "book.txt", "--preset", "andrea-12m", "--out", "x"), "--tokenizer"),
        (
            ("import", "book.txt", "--preset", "andrea-12m", "--tokenizer", "byte", "--out", "x"),
            "no checkpoint of the family|is truncated or no checkpoint",
        ),
        (("import", "book.txt", "--format", "llmc", "--tokenizer", "byte", "--out", "x"), "llm.c"),
    ):
        line = shell.refuse(*typed)
        assert re.search(told, line), line
        assert not (shell.folder / "x").exists()


def test_a_folder_with_other_files_of_weights_is_told(shell: Shell) -> None:
    folder = broken(shell, "pickled")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "has no model.safetensors" in shell.refuse("import", "pickled", "--out", "x")


def test_a_tokenizer_of_another_size_is_refused(shell: Shell) -> None:
    broken(shell, "bytes")
    line = shell.refuse("import", "bytes", "--tokenizer", "run", "--out", "x")
    assert "the tokenizer has 300 tokens, the model 257" in line


def test_tokens_of_llmc_go_out_and_come_back(shell: Shell) -> None:
    """A text's documents, in the run's tokens, and the same documents as text again."""
    documents = [f"Document {number}: café & “quotes”\n\tend" for number in range(30)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in documents)
    (shell.folder / "docs.jsonl").write_text(lines, "utf-8")
    typed = ("export", "run", "--format", "llmc-tokens", "--text", "docs.jsonl", "--out", "tokens")
    said = shell.succeed(*typed)
    assert re.search(r"wrote tokens, .*: [\d,]+ tokens to learn from, [\d,]+ to validate", said)
    found = []
    for name in ("train", "val"):
        data = (shell.folder / "tokens" / f"{name}.bin").read_bytes()
        header = np.frombuffer(data[:1024], dtype="<i4")
        assert header[:2].tolist() == [20240520, 1] and header[2] == (len(data) - 1024) // 2
        assert np.frombuffer(data[1024:], dtype="<u2")[0] == 299  # begins with the marker
        typed = ("import", f"tokens/{name}.bin", "--tokenizer", "run", "--out", f"{name}.jsonl")
        assert re.match(rf"wrote {name}\.jsonl: \d+ documents?\n", shell.succeed(*typed))
        text = (shell.folder / f"{name}.jsonl").read_text("utf-8")
        found += [json.loads(line)["text"] for line in text.splitlines()]
    assert sorted(found) == sorted(documents)
    line = shell.refuse("import", "tokens/train.bin", "--out", "more.jsonl")
    assert "name the tokenizer" in line
    line = shell.refuse("import", "tokens/train.bin", "--tokenizer", "byte", "--out", "more.jsonl")
    assert "the vocabulary has 257: another tokenizer made it" in line
    assert not (shell.folder / "more.jsonl").exists()
