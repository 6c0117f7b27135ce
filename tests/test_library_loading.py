"""Loading the library: the wrong one, instruction sets, threads by default, and fork.

Each case is decided once per process, so each has a process of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import andrea
from andrea import _library
from native_build import c_compiler, run
from patience import PATIENCE

FUNCTIONS = sorted(name for name in dir(_library.lib) if name.startswith("mg_"))


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "MICROGPT_ISA"}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**inherited, **environment},
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def printed(code: str, **environment: str) -> str:
    done = python(code, **environment)
    assert done.returncode == 0, done.stderr or f"ended by signal {-done.returncode}"
    return done.stdout.strip()


def raised(code: str, error: str, **environment: str) -> str:
    """The one line that an error says; any other end of the process fails."""
    done = python(code, **environment)
    assert done.returncode == 1, done.stdout + done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"andrea.errors.{error}: "), done.stderr
    return last.removeprefix(f"andrea.errors.{error}: ")


# ---- the wrong library

LOAD = "import andrea; andrea.engine_info()"


def fake_library(folder: Path, **bodies: str) -> str:
    """A library that has every function, but does nothing except what `bodies` say."""
    stubs = [
        f"size_t {name}(void) {{ {bodies.pop(name, 'return 0;')} }}"
        for name in FUNCTIONS
        if bodies.get(name) != "absent"
    ]
    source = folder / "fake.c"
    source.write_text("\n".join(["#include <stddef.h>", *stubs]))
    run(*c_compiler(), "-shared", "-fPIC", source, "-o", folder / "fake.so")
    return str(folder / "fake.so")


def sizes(**changed: int) -> dict[str, str]:
    """The handshake's answers as they should be, but for the changes."""
    right = {
        "mg_abi_version": _library.lib.MG_ABI_VERSION,
        "mg_config_size": _library.ffi.sizeof("mg_config"),
        "mg_step_options_size": _library.ffi.sizeof("mg_step_options"),
    }
    return {name: f"return {value};" for name, value in {**right, **changed}.items()}


def test_library_of_another_version(tmp_path: Path) -> None:
    fake = fake_library(tmp_path, **sizes(mg_abi_version=99))
    text = raised(LOAD, "LibraryError", ANDREA_LIBRARY=fake)
    assert fake in text and "ABI version 99" in text and "pip install" in text


@pytest.mark.parametrize("struct", ["mg_config_size", "mg_step_options_size"])
def test_library_with_other_structs(struct: str, tmp_path: Path) -> None:
    fake = fake_library(tmp_path, **sizes(**{struct: 1000}))
    text = raised(LOAD, "LibraryError", ANDREA_LIBRARY=fake)
    assert fake in text and "1000" in text


def test_library_without_a_function(tmp_path: Path) -> None:
    fake = fake_library(tmp_path, **sizes(), mg_decoder_feed="absent")
    text = raised(LOAD, "LibraryError", ANDREA_LIBRARY=fake)
    assert fake in text and "mg_decoder_feed" in text


def test_another_library_altogether(tmp_path: Path) -> None:
    source = tmp_path / "other.c"
    source.write_text("int answer(void) { return 42; }\n")
    run(*c_compiler(), "-shared", "-fPIC", source, "-o", tmp_path / "other.so")
    text = raised(LOAD, "LibraryError", ANDREA_LIBRARY=str(tmp_path / "other.so"))
    assert "is not the library of these bindings" in text


def test_no_library_at_all(tmp_path: Path) -> None:
    no_elf = tmp_path / "text.so"
    no_elf.write_text("not a library\n")
    assert "cannot be loaded" in raised(LOAD, "LibraryError", ANDREA_LIBRARY=str(no_elf))
    for absent in (tmp_path / "absent.so", tmp_path):
        text = raised(LOAD, "LibraryError", ANDREA_LIBRARY=str(absent))
        assert text == f"ANDREA_LIBRARY is {absent}, but there is no such file"


def test_import_alone_loads_nothing(tmp_path: Path) -> None:
    code = "import andrea, sys; print('andrea._library' in sys.modules, 'numpy' in sys.modules)"
    assert printed(code, ANDREA_LIBRARY=str(tmp_path / "absent.so")) == "False False"


# ---- instruction sets

ISA = "import andrea; print(andrea.instruction_set(), *andrea.available_instruction_sets())"
MODEL = "import andrea; andrea.GPT(andrea.ModelConfig(3, 2, 1, 1, 2))"


def test_the_best_instruction_set_is_chosen() -> None:
    chosen, *available = printed(ISA).split()
    assert available[0] == "generic" and chosen == available[-1]
    assert printed(ISA, MICROGPT_ISA="").split()[0] == chosen


@pytest.mark.parametrize("isa", ["generic", "avx2", "avx512", "avx512bf16"])
def test_an_instruction_set_is_forced_or_refused(isa: str) -> None:
    available = andrea.available_instruction_sets()
    if isa in available:
        assert printed(ISA, MICROGPT_ISA=isa).split() == [isa, *available]
        return
    for code in (ISA, MODEL):
        text = raised(code, "DeviceError", MICROGPT_ISA=isa)
        assert re.fullmatch(f"MICROGPT_ISA is {isa}, but this (CPU|library) has only: .*", text)
        assert set(available) <= set(text.split(": ")[1].split())


@pytest.mark.parametrize("isa", ["nonsense", "AVX2", " generic", "%s%n"])
def test_an_unknown_instruction_set_is_refused(isa: str) -> None:
    for code in (ISA, MODEL):
        text = raised(code, "DeviceError", MICROGPT_ISA=isa)
        assert text.startswith(f"MICROGPT_ISA is {isa}, but this library has only: generic")


# ---- threads

THREADS = "import andrea; print(andrea.get_num_threads())"
ON_ONE_CPU = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"


def test_default_number_of_threads() -> None:
    usual = int(printed(THREADS, OMP_NUM_THREADS=""))
    assert 1 <= usual <= (os.cpu_count() or 1)
    assert printed(THREADS, OMP_NUM_THREADS="1") == "1"
    for no_limit in ("100000", "0", "-2", "many"):
        assert int(printed(THREADS, OMP_NUM_THREADS=no_limit)) == usual


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity masks here")
def test_threads_keep_to_the_affinity_mask() -> None:
    assert printed(ON_ONE_CPU + THREADS, OMP_NUM_THREADS="8") == "1"


def test_the_default_can_be_restored() -> None:
    code = "import andrea as a; a.set_num_threads(7); n = a.get_num_threads(); a.set_num_threads(0)"
    assert printed(f"{code}; print(n, a.get_num_threads())", OMP_NUM_THREADS="1") == "7 1"


FORK = """
import os, sys
import andrea
andrea.set_num_threads(3)
batch = [[n % 11 for n in range(24)]] * 4

def train(model):
    return [model.train_step(batch, batch, learning_rate=1e-2) for _ in range(3)]

def new_model():
    return andrea.GPT(andrea.ModelConfig(11, 24, 2, 2, 32), seed=3)

used = new_model()
before, expected = train(used), train(new_model())
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        fresh = train(new_model())
        inherited = train(used)
        os._exit(0 if fresh == expected and inherited[0] < before[-1] else 9)
    children.append(child)
assert train(new_model()) == expected
for child in children:
    _, status = os.waitpid(child, 0)
    assert status == 0, f"a child ended with {status}"
print("fine")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_models_work_on_both_sides_of_a_fork() -> None:
    assert printed(FORK) == "fine"


SIDE_BY_SIDE = """
import threading
import andrea
andrea.set_num_threads(2)
batch = [[n % 11 for n in range(24)]] * 4

def train(seed, results):
    model = andrea.GPT(andrea.ModelConfig(11, 24, 2, 2, 32), seed=seed)
    results[seed] = [model.train_step(batch, batch, learning_rate=1e-2) for _ in range(20)]
    try:
        model.train_step([[11 + seed]], [[0]], learning_rate=1e-2)
    except andrea.ArgumentError as error:
        assert str(11 + seed) in str(error), error  # each thread has its own last error

alone, together = {}, {}
for seed in range(4):
    train(seed, alone)
threads = [threading.Thread(target=train, args=(seed, together)) for seed in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert together == alone
print("fine")
"""


def test_different_models_in_different_threads() -> None:
    assert printed(SIDE_BY_SIDE) == "fine"
