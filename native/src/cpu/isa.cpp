#include "cpu/isa.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "error.h"

namespace mg::cpu {
namespace {

struct Choice {
    const KernelSet* table;
    bool runs_here;
};

// Worst to best.  The compiler's baseline runs wherever this file runs.
std::vector<Choice> choices() {
    std::vector<Choice> found = {{&kernels_generic, true}};
#if defined(MG_HAVE_AVX2)
    found.push_back({&kernels_avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")});
#endif
#if defined(MG_EMULATE_AVX512)
    // The 16-lane kernels compiled for AVX2, so that their code is tested on machines without AVX-512.
    const bool avx512 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"), avx512bf16 = avx512;
#elif defined(MG_HAVE_AVX512)
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#endif
#if defined(MG_HAVE_AVX512)
    found.push_back({&kernels_avx512, avx512});
#endif
#if defined(MG_HAVE_AVX512BF16)
#if !defined(MG_EMULATE_AVX512)
    const bool avx512bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
#endif
    found.push_back({&kernels_avx512bf16, avx512bf16});
#endif
    return found;
}

const KernelSet& choose() {
    const std::vector<Choice> tables = choices();
    const char* wanted = std::getenv("MICROGPT_ISA");
    if (wanted == nullptr || *wanted == '\0') {
        const KernelSet* best = nullptr;
        for (const Choice& choice : tables)
            if (choice.runs_here) best = choice.table;
        return *best;
    }
    std::string built;
    for (const Choice& choice : tables) {
        if (std::string(wanted) == choice.table->fp32->isa) {
            if (choice.runs_here) return *choice.table;
            throw Error(MG_ERROR_DEVICE,
                        format("MICROGPT_ISA is %s, but this CPU has only: %s", wanted, available_isas()));
        }
        built += built.empty() ? "" : " ";
        built += choice.table->fp32->isa;
    }
    throw Error(MG_ERROR_DEVICE, format("MICROGPT_ISA is %s, but this library has only: %s", wanted, built.c_str()));
}

}  // namespace

const KernelSet& kernel_set() {
    static const KernelSet& chosen = choose();  // a choice that throws is tried again at the next call
    return chosen;
}

const char* available_isas() {
    static const std::string names = [] {
        std::string text;
        for (const Choice& choice : choices()) {
            if (!choice.runs_here) continue;
            text += text.empty() ? "" : " ";
            text += choice.table->fp32->isa;
        }
        return text;
    }();
    return names.c_str();
}

}  // namespace mg::cpu
