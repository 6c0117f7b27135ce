// "cuda:1", "bf16" -> a backend, and the switch that all backends of the process share.
#include <atomic>
#include <cstdlib>

#include "cuda/create.h"
#include "cuda/cuda_backend.h"
#include "error.h"

namespace mg::cuda {
namespace {

std::atomic<bool> fused{true};

// The first GPU whose tensor cores multiply bfloat16 numbers.
constexpr int kBf16Major = 8;

int index_of(const std::string& device) {
    if (device == "cuda") return 0;
    const std::string number = device.rfind("cuda:", 0) == 0 ? device.substr(5) : "";
    const bool digits =
        !number.empty() && number.size() <= 4 && number.find_first_not_of("0123456789") == std::string::npos;
    if (!digits) throw Error(MG_ERROR_DEVICE, format("device is '%s' but must be cuda or cuda:N", device.c_str()));
    return std::atoi(number.c_str());
}

}  // namespace

bool fused_epilogues() { return fused; }
void set_fused_epilogues(bool on) { fused = on; }

std::unique_ptr<Backend> create_cuda_backend(const std::string& device, const std::string& precision) {
    const int index = index_of(device);
    if (precision != "fp32" && precision != "bf16" && precision != "auto")
        throw Error(MG_ERROR_DEVICE, format("precision is '%s' but device cuda has: fp32 bf16", precision.c_str()));
    if (precision == "fp32") return std::make_unique<CudaBackend<float>>(index, "");
    const Device gpu(index);  // raises where there is none
    if (gpu.major() >= kBf16Major)
        return std::make_unique<CudaBackend<Bf16>>(index,
                                                   precision == "auto" ? " (auto: it multiplies that fastest)" : "");
    if (precision == "bf16")
        throw Error(MG_ERROR_DEVICE, format("precision is 'bf16' but %s: bf16 needs sm_80 or newer; use fp32",
                                            gpu.description().c_str()));
    return std::make_unique<CudaBackend<float>>(index, " (auto: bf16 needs sm_80 or newer)");
}

}  // namespace mg::cuda
