"""All tests of the package once more with a CPU engine built with sanitizers; `-m complete` alone.

What a sanitizer finds ends the process of the tests, and its report is shown.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from native_build import build, configure, copy_sources, passed_in, run_tests, sanitizer_runtimes

# They build engines of their own, link the installed one, or run on simulated GPUs, whose
# sanitizers are their own, too.
OTHER_ENGINES = (
    "test_c_example.py",
    "test_cuda_build.py",
    "test_cuda_host.py",
    "test_cuda_simulated.py",
    "test_embedding.py",
    "test_embedding_reader.py",
    "test_library_build.py",
    "test_mutation.py",
    "test_mutation_cuda.py",
    "test_sim.py",
    "test_sanitized_suite.py",
)
# Programs that aren't Python's: a compiler, a browser, the loader; other programs' engines.
OTHER_PROGRAMS = (
    "test_docs.py",
    "test_formats_llama.py",
    "test_formats_transformers.py",
    "test_library_hosted.py",
    "test_library_loading.py",
    "test_report_browser.py",
    "test_serving_browser.py",
)
# A sanitizer takes memory and address space of its own, and keeps for a while what was freed.
OF_MEMORY = (
    "test_data_memory.py",
    "test_lessons_pages.py",  # a page traces a model of 92M parameters
    "test_budgets.py::test_a_run_takes_what_is_planned",
    "test_budgets.py::test_the_limit_of_a_process_counts",
    "test_model_dialects.py::test_memory_is_what_was_planned",
    "test_model_memory.py::test_memory_comes_back",
    "test_resume.py::test_a_resume_takes_no_more_memory_than_the_first_run",
)
# So many steps in so many seconds.
OF_TIME = (
    "test_cli_train.py::test_a_time_is_kept_and_continued",
    "test_training.py::test_the_real_clock_is_kept_too",
)
HOURS = 3600.0


@pytest.mark.complete
@pytest.mark.parametrize(
    ("sanitizers", "runtimes", "options"),
    [
        (
            "address,undefined",
            ("asan", "ubsan"),
            {"ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1"},
        ),
        (
            "thread",
            ("tsan",),
            {
                "TSAN_OPTIONS": "exitcode=66:halt_on_error=1:ignore_noninstrumented_modules=1:"
                "die_after_fork=0:allocator_may_return_null=1"
            },
        ),
    ],
    ids=["accesses", "races"],
)
def test_the_suite_is_clean_under(
    sanitizers: str, runtimes: tuple[str, ...], options: dict[str, str], tmp_path: Path
) -> None:
    preload = sanitizer_runtimes(*runtimes)
    # What reads past an end depends on the vector's width; 16 lanes take too long to compile.
    isa = {"MICROGPT_HAVE_AVX512": "OFF"} if sanitizers != "thread" else {"MICROGPT_ISA": "generic"}
    configure(copy_sources(tmp_path), tmp_path / "build", MICROGPT_SANITIZE=sanitizers, **isa)
    library = build(tmp_path / "build")
    left_out = [f"--ignore={name}" for name in (*OTHER_ENGINES, *OTHER_PROGRAMS)]
    left_out += [f"--deselect=tests/{name}" for name in (*OF_MEMORY, *OF_TIME)]
    selection = ["-m", "not gpu and not complete", "--capture=sys", "--tb=short", *left_out]
    patient = {"LD_PRELOAD": preload, "ANDREA_TEST_PATIENCE": "20"}
    done = run_tests(library, *selection, seconds=3 * HOURS, **options, **patient)
    said = done.stdout[-30_000:] + done.stderr[-6000:]
    assert done.returncode == 0, f"status {done.returncode}\n{said}"
    assert passed_in(done) > 3000, said
