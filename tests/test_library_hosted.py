"""The engine inside a program that has a life of its own: signals, arithmetic, memory."""

from __future__ import annotations

import platform
import sys
from importlib import resources
from pathlib import Path

import pytest

from andrea._library import library_path
from native_build import c_compiler, run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a Unix compiler's options")

SIGNALS = r"""
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
#include "microgpt_cuda.h"

int main(void) {
    const mg_config config = {.struct_size = sizeof config, .vocab_size = 64, .block_size = 32,
                              .n_layer = 1, .n_head = 2, .n_embd = 64};
    mg_model* model;
    int32_t tokens[64];
    float loss;
    for (int i = 0; i < 64; ++i) tokens[i] = i;
    if (mg_set_num_threads(4) || mg_model_create(&config, "cpu", "fp32", 1, &model)) return 2;
    if (mg_forward(model, tokens, tokens, 2, 32, &loss)) return 3;
    sigset_t awaited;
    int taken = 0;
    sigemptyset(&awaited);
    sigaddset(&awaited, SIGUSR1);
    sigprocmask(SIG_BLOCK, &awaited, NULL);
    kill(getpid(), SIGUSR1);
    sigwait(&awaited, &taken);
    puts(taken == SIGUSR1 ? "taken by the program" : "another");
    mg_model_free(model);
    return 0;
}
"""

ARITHMETIC = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xmmintrin.h>
#include "microgpt_cuda_ops.h"

enum { COUNT = 1 << 18 };

/* One update of moments of 1e-38, which shrink below float32's smallest normal number. */
static void update(mg_backend* backend, float* m, int threads, unsigned mode) {
    const mg_step_options options = {sizeof options, 1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 0, 0};
    static float p[COUNT], g[COUNT], v[COUNT];
    const float norm = 1.0f;
    for (int i = 0; i < COUNT; ++i) {
        p[i] = 0.3f + 1e-6f * (float)i;
        g[i] = i % 2 == 0 ? 0.0f : 1e-4f * (float)(i % 1000);
        m[i] = i % 2 == 0 ? 1.2e-38f : 1e-5f;
        v[i] = 1e-10f;
    }
    const unsigned before = _mm_getcsr();
    _mm_setcsr(mode);
    const mg_status set = mg_set_num_threads(threads);
    const mg_status done = mg_op_adamw(backend, p, g, m, v, &norm, COUNT, 1, 3, &options);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    if (set != MG_OK || done != MG_OK) exit(2);
    if (after != mode) puts("the caller's mode was changed");
    for (int i = 1; i < COUNT; i += 2) m[i] += p[i];
}

int main(void) {
    const unsigned usual = 0x1f80, flushed = 0x9fc0, upwards = 0x5f80;
    static float first[COUNT], other[COUNT];
    mg_backend* backend;
    if (mg_backend_create("cpu", "fp32", &backend) != MG_OK) return 3;
    update(backend, first, 1, usual);
    for (int i = 0; i < COUNT; i += 2)
        if (first[i] != 0.0f) return printf("%g is left\n", first[i]), 0;
    const unsigned modes[] = {usual, flushed, upwards};
    for (int threads = 1; threads <= 4; threads += 3)
        for (int i = 0; i < 3; ++i) {
            update(backend, other, threads, modes[i]);
            if (memcmp(first, other, sizeof first) == 0) continue;
            printf("mode %x, %d threads\n", modes[i], threads);
        }
    puts("done");
    mg_backend_free(backend);
    return 0;
}
"""

MEMORY = r"""
#include <stdio.h>
#include <string.h>
#include "microgpt_cuda.h"

static int there_is_none = 0;
void* __libc_malloc(size_t bytes);
void* malloc(size_t bytes) { return there_is_none ? NULL : __libc_malloc(bytes); }

int main(void) {
    const mg_config config = {.struct_size = sizeof config, .vocab_size = 64, .block_size = 32,
                              .n_layer = 1, .n_head = 2, .n_embd = 64};
    static char path[5000];
    mg_cuda_info info;
    mg_model* model = NULL;
    const char* isa = "";
    memset(path, 'x', sizeof path - 1);
    there_is_none = 1;
    mg_set_cublaslt_path(path);
    mg_get_cuda_info(&info);
    const int32_t threads = mg_get_num_threads();
    const int named = mg_cpu_isa_available() != NULL;
    const mg_status told = mg_cpu_isa(&isa);
    const mg_status made = mg_model_create(&config, "cpu", "fp32", 1, &model);
    there_is_none = 0;
    printf("%d %d %d\n", threads >= 1, named && (told == MG_OK || told == MG_ERROR_MEMORY),
           made == MG_ERROR_MEMORY && mg_get_num_threads() >= threads);
    if (mg_model_create(&config, "cpu", "fp32", 1, &model)) return 2;
    mg_model_free(model);
    return 0;
}
"""


def printed_by(folder: Path, program: str) -> str:
    """What a C program prints that is compiled against the installed library."""
    source, made, library = folder / "main.c", folder / "made", library_path()
    source.write_text(program, "utf-8")
    include = Path(str(resources.files("andrea") / "include"))
    link = [f"-I{include}", library, f"-Wl,-rpath,{library.parent}"]
    run(*c_compiler(), "-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", source, *link, "-o", made)
    return run(made)


def test_threads_of_the_engine_take_no_signals_of_the_program(tmp_path: Path) -> None:
    """A program that blocks a signal after the threads began, and waits for it, gets it."""
    assert printed_by(tmp_path, SIGNALS) == "taken by the program\n"


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="modes of x86-64")
def test_numbers_do_not_depend_on_the_callers_arithmetic(tmp_path: Path) -> None:
    """Whether it flushes small numbers to 0 or rounds upwards, on any number of threads."""
    assert printed_by(tmp_path, ARITHMETIC) == "done\n"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="puts its own malloc before glibc's")
def test_no_call_ends_a_program_that_has_no_memory_left(tmp_path: Path) -> None:
    """Not those that return no status, either."""
    assert printed_by(tmp_path, MEMORY) == "1 1 1\n"
