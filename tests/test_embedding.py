"""The engine in other programs: the examples of docs/embedding, found by CMake and pkg-config."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import andrea
import small_runs
from andrea import installed
from andrea.cli import main
from andrea.config import DIALECTS
from andrea.errors import LibraryError
from andrea.runs import Checkpoint, CheckpointInfo, save_checkpoint
from andrea.training import TrainState, train
from embedding_programs import (
    READER,
    WARNINGS,
    build_examples,
    compile_c,
    compile_cxx,
    pkg_config,
    sanitizers,
    sources,
)
from native_build import find_tool, run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a Unix compiler's options")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a model that has learnt a little, with its moments."""
    return train_a_little(tmp_path_factory.mktemp("trained") / "run", small_runs.small_model())


@pytest.fixture(scope="module")
def trained_ancestor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of the ancestor's dialect."""
    model = small_runs.small_model(**DIALECTS["microgpt"])
    return train_a_little(tmp_path_factory.mktemp("ancestor") / "run", model)


def train_a_little(folder: Path, model: andrea.GPT) -> Path:
    config = small_runs.small_config(steps=150)
    with small_runs.small_run(folder, config, model) as of_it:
        for _ in train(model, small_runs.small_data(), config, run=of_it, state=TrainState()):
            pass
        return of_it.checkpoint_path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Another text of the same characters, on which there is something to learn."""
    path = tmp_path / "new.txt"
    path.write_text("make 1 and make 2. " * 60)
    return path


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C example, as pkg-config lets it be compiled."""
    files = [sources() / name for name in ("continue.c", *READER)]
    path = tmp_path_factory.mktemp("example") / "continue"
    return compile_c(installed.prefix(), path, *files)


def writes_and_learns(program: Path, checkpoint: Path, text: Path) -> None:
    """What either example shows of a run: its prompt, continued, and a loss that falls."""
    prompts = ["7 and ", "12 and"] if "cpp" in program.name else ["7 and "]
    out = [] if "cpp" in program.name else [program.with_suffix(".safetensors")]
    printed = run(program, checkpoint, text, *out, *prompts)
    written = [line for line in printed.splitlines() if line.startswith(tuple(prompts))]
    assert len(written) == 2 * len(prompts), printed
    assert all(re.fullmatch(r"[0-9a-z. ]+", line) for line in written), printed
    assert max(map(len, written)) > 20, printed
    # Before and after training: another model writes another text.
    assert written[: len(prompts)] != written[len(prompts) :], printed
    losses = [float(loss) for loss in re.findall(r"(?:loss|steps) (\d+\.\d+)", printed)]
    assert losses[-1] < 0.8 * losses[0], printed


# ---- the package's own files: the layout of a wheel


def test_examples_through_find_package(trained: Path, text: Path, tmp_path: Path) -> None:
    folder = build_examples(installed.prefix(), tmp_path, *sanitizers())
    assert (folder / "train").is_file()  # tests/test_c_example.py runs it
    writes_and_learns(folder / "continue", trained, text)
    writes_and_learns(folder / "continue_cpp", trained, text)


def test_examples_through_pkg_config(
    program: Path, trained_ancestor: Path, text: Path, tmp_path: Path
) -> None:
    """With a checkpoint of another dialect than GPT-2's."""
    writes_and_learns(program, trained_ancestor, text)
    compiled = compile_cxx(installed.prefix(), tmp_path / "continue_cpp", tmp_path)
    writes_and_learns(compiled, trained_ancestor, text)


def test_training_goes_on_from_the_moments(
    program: Path, trained: Path, text: Path, tmp_path: Path
) -> None:
    """Losses in C are Python's of the same batches, and the step count goes on."""
    printed = run(program, trained, text, tmp_path / "new.safetensors")
    assert printed.startswith("7152 parameters, 150 steps\n")
    model = small_runs.small_model()
    with Checkpoint(trained) as checkpoint:
        checkpoint.load(model, moments=True)
    tokens = small_runs.small_tokenizer().encode(text.read_text())
    starts = [16 * row for row in range(4)]
    inputs = [tokens[start : start + 16] for start in starts]
    targets = [tokens[start + 1 : start + 17] for start in starts]
    for step in range(1, 11):
        loss = model.train_step(inputs, targets, learning_rate=1e-3)
        if step == 1:
            assert f"step   1  loss {loss:.3f}\n" in printed
        starts = [start + 64 for start in starts]
        inputs = [tokens[start : start + 16] for start in starts]
        targets = [tokens[start + 1 : start + 17] for start in starts]
    assert f"step  10  loss {loss:.3f}\n" in printed


def test_another_dialect_learns_in_c_as_in_python(
    program: Path, text: Path, tmp_path: Path
) -> None:
    """The ancestor's: its loss of the same batch, and the saved file is of that dialect again."""
    model = small_runs.small_model(**DIALECTS["microgpt"])
    info = CheckpointInfo(model.config, small_runs.small_tokenizer().to_dict())
    save_checkpoint(tmp_path / "ancestor.safetensors", model, info)
    printed = run(program, tmp_path / "ancestor.safetensors", text, tmp_path / "new.safetensors")
    tokens = small_runs.small_tokenizer().encode(text.read_text())
    inputs = [tokens[start : start + 16] for start in range(0, 64, 16)]
    targets = [tokens[start + 1 : start + 17] for start in range(0, 64, 16)]
    assert f"step   1  loss {model.forward(inputs, targets):.3f}\n" in printed
    with Checkpoint(tmp_path / "new.safetensors") as saved:
        assert saved.info.model == model.config and not saved.has_moments
        saved.load(model, moments=False)
    assert model.forward(inputs, targets) < float(printed.split("step   1  loss ")[1].split()[0])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "expected a checkpoint, a text"),
        (("absent.safetensors", "text", "x"), "absent.safetensors cannot be read: No such file"),
        (("{trained}", "absent.txt", "x"), "the text can't be read"),
        (("{trained}", "{text}", "x", "7 & 8"), "the tokenizer doesn't know '&'"),
        (("{trained}", "{text}", "no/x"), "no/x was not written: No such file or directory"),
    ],
)
def test_an_example_that_gives_up_says_why(
    arguments: tuple[str, ...],
    said: str,
    program: Path,
    trained: Path,
    text: Path,
    tmp_path: Path,
) -> None:
    words = [each.format(trained=trained, text=text) for each in arguments]
    done = subprocess.run([program, *words], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("continue: ") and done.stderr.count("\n") == 1
    assert said in done.stderr


def test_a_prefix_may_be_moved(tmp_path: Path) -> None:
    """Also to where there is a space in its path."""
    moved = tmp_path / "another place" / "andrea"
    for name in ("include", "lib"):
        shutil.copytree(installed.prefix() / name, moved / name)
    said, printed = build_other(tmp_path / "other", f"-DCMAKE_PREFIX_PATH={moved}")
    assert f"headers {moved / 'include'}, version 0.1.0\n" in said
    assert printed == "0.1.0\n"
    program = compile_c(moved, tmp_path / "version", tmp_path / "other" / "version.c")
    assert str(moved) in run(find_tool("readelf"), "-d", program)
    assert run(program) == "0.1.0\n"


def build_other(folder: Path, *settings: str) -> tuple[str, str]:
    """What CMake says of a project that finds the library, and what its program prints."""
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\n"
        "project(other LANGUAGES C)\n"
        "find_package(microgpt_cuda 0.1 REQUIRED)\n"
        "get_target_property(headers microgpt_cuda::microgpt_cuda INTERFACE_INCLUDE_DIRECTORIES)\n"
        'message(STATUS "headers ${headers}, version ${microgpt_cuda_VERSION}")\n'
        "add_executable(other version.c)\n"
        "target_link_libraries(other PRIVATE microgpt_cuda::microgpt_cuda)\n"
    )
    (folder / "version.c").write_text(
        "#include <stdio.h>\n#include <microgpt_cuda.h>\n"
        "int main(void) { return puts(mg_version()) < 0 || mg_abi_version() != MG_ABI_VERSION; }\n"
    )
    warnings = f"-DCMAKE_C_FLAGS={' '.join(WARNINGS)}"
    said = run(find_tool("cmake"), "-S", folder, "-B", folder / "build", warnings, *settings)
    run(find_tool("cmake"), "--build", folder / "build")
    return said, run(folder / "build" / "other")


def test_another_version_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\n"
        "project(other LANGUAGES C)\n"
        "foreach(version 0.0 0.1.1 0.2 1.0)\n"
        "  find_package(microgpt_cuda ${version} QUIET)\n"
        "  if(microgpt_cuda_FOUND)\n"
        '    message(FATAL_ERROR "found as ${version}")\n'
        "  endif()\n"
        "endforeach()\n"
        "find_package(microgpt_cuda 0.1.0 EXACT REQUIRED)\n"
    )
    settings = [f"-DCMAKE_PREFIX_PATH={installed.prefix()}"]
    run(find_tool("cmake"), "-S", tmp_path, "-B", tmp_path / "build", *settings)


def test_pkg_config_says_what_the_library_says() -> None:
    from andrea import _library

    assert pkg_config(installed.prefix(), "--modversion") == [_library.engine_version()]
    (library,) = pkg_config(installed.prefix(), "--variable=libdir")
    assert Path(library).resolve() == (installed.prefix() / "lib").resolve()


def test_the_command_prints_the_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(main, ["prefix"])
    assert result.output == f"{installed.prefix()}\n"
    assert (installed.prefix() / "include" / "microgpt_cuda.h").is_file()
    monkeypatch.setattr(installed, "_PKG_CONFIG", ("lib", "pkgconfig", "another.pc"))
    with pytest.raises(LibraryError, match=r"another\.pc is missing: install Andrea again"):
        installed.prefix()


# ---- what `cmake --install` leaves


@pytest.mark.parametrize("folder", ["lib", "lib/some-machine"])
def test_an_installed_prefix(folder: str, checked_build: Path, tmp_path: Path) -> None:
    """Installed from a build, with the library's folder where the distribution has it."""
    cmake, prefix = find_tool("cmake"), tmp_path / "prefix"
    source = checked_build.parent / "source"
    run(cmake, "-S", source, "-B", checked_build, f"-DCMAKE_INSTALL_LIBDIR={folder}")
    run(cmake, "--install", checked_build, "--prefix", prefix)
    assert (prefix / folder / "pkgconfig" / "microgpt_cuda.pc").is_file()
    assert [Path(path).resolve() for path in pkg_config(prefix, "--variable=libdir")] == [
        (prefix / folder).resolve()
    ]
    # A folder like lib/x86_64-linux-gnu is looked into on the machine of that name alone.
    package = f"-Dmicrogpt_cuda_DIR={prefix / folder / 'cmake' / 'microgpt_cuda'}"
    said, printed = build_other(tmp_path / "other", package)
    assert f"headers {prefix / 'include'}, version 0.1.0\n" in said
    assert printed == "0.1.0\n"
    program = compile_c(prefix, tmp_path / "version", tmp_path / "other" / "version.c")
    assert run(program) == "0.1.0\n"
