// The CUDA backend of a build without CUDA: there is none, and this is how to get it.
#include "cuda/create.h"
#include "error.h"

namespace mg::cuda {
namespace {

constexpr char kReason[] =
    "this build has no CUDA; where nvcc is found, pip install . --config-settings=cmake.define.MICROGPT_CUDA=ON gives "
    "it";

}  // namespace

CudaStatus cuda_status() noexcept {
    CudaStatus status{};
    try {
        status.reason = kReason;
    } catch (...) {
        // No memory for a text; that there is no GPU is told all the same.
    }
    return status;
}

size_t free_memory(int) noexcept { return 0; }

std::unique_ptr<Backend> create_cuda_backend(const std::string& device, const std::string&) {
    throw Error(MG_ERROR_DEVICE, format("device '%s': %s", device.c_str(), kReason));
}

void set_cublaslt_path(const std::string&) {}
void set_fused_epilogues(bool) {}

}  // namespace mg::cuda
