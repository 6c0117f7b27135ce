"""Breaks the engine on purpose, one line at a time, and shows that the tests of parity notice."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from native_build import build, configure, copy_sources, run_tests


@dataclass(frozen=True)
class Mutant:
    """One line of native/src, what it is replaced by, and the tests that must fail then."""

    file: str
    line: str
    broken: str
    tests: tuple[str, ...]


MUTANTS = {
    "norm's gradient without the mean": Mutant(
        "cpu/ops/norm.h",
        "(g - mean_g - xhat * mean_g_xhat)",
        "(g - xhat * mean_g_xhat)",
        ("ops/test_norm.py::test_backward",),
    ),
    "attention sees one token of the future": Mutant(
        "cpu/ops/attention.h",
        "return query >= static_cast<int32_t>(larger(smaller(key - first, kWidth), 0));",
        "return query >= static_cast<int32_t>(larger(smaller(key - first - 1, kWidth), 0));",
        (
            "ops/test_attention.py::test_forward",
            "ops/test_attention.py::test_the_future_is_not_seen",
        ),
    ),
    "gelu's constant has a digit wrong": Mutant(
        "cpu/ops/math.h",
        "kGeluCubic = 0.044715f",
        "kGeluCubic = 0.044725f",
        ("ops/test_gelu.py::test_forward_everywhere", "ops/test_gelu.py::test_backward_everywhere"),
    ),
    "softmax without its maximum": Mutant(
        "cpu/ops/loss.h",
        "const float most = maximum_of(l, V);",
        "const float most = 0.0f;",
        ("ops/test_head_loss.py::test_large_logits",),
    ),
    "the bias has no gradient": Mutant(
        "cpu/cpu_products.cpp",
        "p.row_sums = dbias;",
        "",
        (
            "ops/test_linear.py::test_backward_weight",
            "test_parity.py::test_loss_logits_and_gradients[usual]",
        ),
    ),
    "the head forgets that it is tied": Mutant(
        "cpu/cpu_products.cpp",
        "weight_gradient(dwte, nullptr, dlogits, dlogits_row, x + first * C, rows, V, C);",
        "",
        (
            "ops/test_head_loss.py::test_gradients",
            "test_parity.py::test_loss_logits_and_gradients[usual]",
        ),
    ),
    "biases decay": Mutant(
        "cpu/cpu_backend.cpp",
        "own.keep = piece.decays ? decayed : 1.0f;",
        "own.keep = decayed;",
        ("ops/test_adamw.py::test_one_step", "test_parity.py::test_ten_optimizer_steps"),
    ),
    "the second moment is corrected like the first": Mutant(
        "cpu/cpu_backend.cpp",
        "1.0 - std::pow(static_cast<double>(options->beta2),",
        "1.0 - std::pow(static_cast<double>(options->beta1),",
        ("ops/test_adamw.py::test_one_step", "test_parity.py::test_ten_optimizer_steps"),
    ),
    "ignored targets count in the mean": Mutant(
        "model/gpt.cpp",
        "if (targets[i] != MG_IGNORED_TARGET) ++counted;",
        "++counted;",
        ("test_parity.py::test_ignored_targets",),
    ),
    "the attention's gradient stops at its norm": Mutant(
        "model/gpt.cpp",
        "stream_backward(a_.normed, a_.narrow, a.ln_1, a.x, pre, t.ln_1);",
        "",
        ("test_parity.py::test_loss_logits_and_gradients[usual]",),
    ),
    "RMSNorm's gradient is centred": Mutant(
        "cpu/ops/norm.h",
        "const float mean_g = mean != nullptr ? sum_lanes(sum_g) / static_cast<float>(C) : 0.0f;",
        "const float mean_g = sum_lanes(sum_g) / static_cast<float>(C);",
        (
            "ops/test_norm_variants.py::test_backward",
            "test_parity_dialects.py::test_loss_logits_and_gradients[fp32, 3 rmsnorm pre gelu_erf]",
        ),
    ),
    "products after a post-norm see the gradient before it": Mutant(
        "cpu/cpu_backend.cpp",
        "dx, false, partial, dx, x, mean, rstd, gamma, begin, end, C);\n        if (converts)",
        "dx, false, partial, dx, x, mean, rstd, gamma, begin, end, C);\n        if (false)",
        (
            "ops/test_norm_variants.py::test_backward_on_the_stream",
            "test_parity_dialects.py::test_loss_logits_and_gradients[bf16, 4 rmsnorm post gelu]",
        ),
    ),
    "a gradient comes back around a layer without a residual connection": Mutant(
        "model/gpt.cpp",
        "void Gpt::drop_residual() { backend_->zero(",
        "void Gpt::drop_residual() { if (false) backend_->zero(",
        ("test_parity_dialects.py::test_loss_logits_and_gradients[fp32, 10 rmsnorm pre gelu]",),
    ),
    "a head of its own teaches the token table": Mutant(
        "model/gpt.cpp",
        "a_.narrow, parameters_.gradient(t.head), a_.normed,",
        "a_.narrow, parameters_.gradient(t.wte), a_.normed,",
        ("test_parity_dialects.py::test_loss_logits_and_gradients[fp32, 13 layernorm none gelu]",),
    ),
    "decoding is one position late": Mutant(
        "model/decoder.cpp",
        "rows.positions.push_back(static_cast<int32_t>(history.size()));",
        "rows.positions.push_back(history.empty() ? 0 : static_cast<int32_t>(history.size()) - 1);",
        (
            "test_parity_decoding.py::test_cached_decoding_gives_the_logits_of_the_whole_sequence",
            "test_parity_decoding.py::test_greedy_generation_past_block_size",
        ),
    ),
}


class Workshop:
    """A copy of the sources and its build folder, where only what changed is compiled again."""

    def __init__(self, folder: Path) -> None:
        self.source = copy_sources(folder)
        self.folder = folder / "build"
        configure(self.source, self.folder, MICROGPT_ISA="generic")
        self.library = build(self.folder)

    def break_and_build(self, mutant: Mutant) -> None:
        path = self.source / "native" / "src" / mutant.file
        original = path.read_text("utf-8")
        found = original.count(mutant.line)
        assert found == 1, (
            f"a stale mutant: {mutant.line!r} stands {found} times in native/src/{mutant.file}"
        )
        path.write_text(original.replace(mutant.line, mutant.broken), "utf-8")
        try:
            build(self.folder)
        finally:
            path.write_text(original, "utf-8")


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("mutants"))


def outcomes(library: Path, tests: set[str]) -> tuple[set[str], int]:
    """Those of the tests that failed, and how many cases passed."""
    # The model's test for each instruction set asks for those that this build doesn't have.
    select = ["-k", "not avx2 and not avx512", "--tb=no", "-rf"]
    done = run_tests(library, *sorted(tests), *select, MICROGPT_ISA="generic")
    assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr
    lines = re.findall(r"^FAILED (?:tests/)?(\S+::\w+(\[.*?\])?)", done.stdout, re.MULTILINE)
    failed = {
        test for test in tests if any(test in (case, case.removesuffix(of)) for case, of in lines)
    }
    assert bool(failed) == (done.returncode == 1), done.stdout[-3000:]
    passed = re.search(r"(\d+) passed", done.stdout.splitlines()[-1])
    return failed, int(passed[1]) if passed else 0


def test_the_unbroken_copy_passes(workshop: Workshop) -> None:
    failed, passed = outcomes(
        workshop.library, {test for m in MUTANTS.values() for test in m.tests}
    )
    assert failed == set() and passed > 300


# A CI run takes every second one, a complete run the others.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.complete] if number % 2 else [])
        for number, name in enumerate(MUTANTS)
    ],
)
def test_a_broken_line_is_noticed(workshop: Workshop, name: str) -> None:
    mutant = MUTANTS[name]
    workshop.break_and_build(mutant)
    failed, _ = outcomes(workshop.library, set(mutant.tests))
    assert failed == set(mutant.tests)
