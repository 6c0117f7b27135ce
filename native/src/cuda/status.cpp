// What a machine has for CUDA and whether it fits this build: asked of driver and runtime without making a GPU do anything.
#include "cuda/architectures.h"
#include "cuda/check.h"
#include "cuda/create.h"
#include "cuda/cublaslt_loader.h"
#include "error.h"

#if !defined(MG_CUDA_ARCHITECTURES)
#define MG_CUDA_ARCHITECTURES ""
#endif

namespace mg::cuda {
namespace {

// Why there is no GPU, in the versions that don't fit.
std::string no_gpu(const CudaStatus& status, cudaError_t code) {
    const std::string runtime = version_text(status.runtime), driver = version_text(status.driver);
    if (status.driver == 0)
        return format("no NVIDIA driver was found (this build has the CUDA runtime %s)", runtime.c_str());
    if (code == cudaErrorInsufficientDriver)
        return format(
            "the NVIDIA driver is for CUDA %s but this build has the CUDA runtime %s: a newer driver is needed",
            driver.c_str(), runtime.c_str());
    if (code == cudaSuccess || code == cudaErrorNoDevice)
        return format("the NVIDIA driver (CUDA %s) sees no GPU", driver.c_str());
    return error_text(code, "cudaGetDeviceCount");
}

Gpu describe(int index, const std::string& architectures) {
    Gpu gpu{};
    cudaDeviceProp properties{};
    const cudaError_t code = cudaGetDeviceProperties(&properties, index);
    if (code != cudaSuccess) {
        cudaGetLastError();
        gpu.why_not = error_text(code, "cudaGetDeviceProperties");
        return gpu;
    }
    gpu.name = properties.name;
    gpu.major = properties.major;
    gpu.minor = properties.minor;
    gpu.memory = properties.totalGlobalMem;
    if (!runs_on(architectures, gpu.major, gpu.minor))
        gpu.why_not = format("%s is sm_%d%d but this build's kernels are for: %s", gpu.name.c_str(), gpu.major,
                             gpu.minor, architectures.c_str());
    return gpu;
}

void find_out(CudaStatus* status) {
    status->built = true;
#if defined(MG_CUDA_SIM)
    status->simulated = true;
#endif
    status->architectures = MG_CUDA_ARCHITECTURES;
    if (cudaDriverGetVersion(&status->driver) != cudaSuccess) status->driver = 0;
    if (cudaRuntimeGetVersion(&status->runtime) != cudaSuccess) status->runtime = 0;
    int count = 0;
    const cudaError_t code = cudaGetDeviceCount(&count);
    cudaGetLastError();
    if (code != cudaSuccess || count == 0) {
        status->reason = no_gpu(*status, code);
        return;
    }
    for (int i = 0; i < count; ++i) status->gpus.push_back(describe(i, status->architectures));
    const Gpu& first = status->gpus.front();
    status->reason = first.why_not;
    try {
        status->cublaslt = cublaslt_version();
        status->usable = first.why_not.empty();
    } catch (const Error& error) {
        status->cublaslt = error.what();
        if (status->reason.empty()) status->reason = error.what();
    }
    if (status->usable) status->reason = format("cuda:0 is %s, sm_%d%d", first.name.c_str(), first.major, first.minor);
}

}  // namespace

CudaStatus cuda_status() noexcept {
    CudaStatus status{};
    try {
        find_out(&status);
    } catch (...) {
        status.usable = false;  // no memory for texts: no memory for a model either
    }
    return status;
}

size_t free_memory(int gpu) noexcept {
    int current = 0;
    size_t free = 0, total = 0;
    if (cudaGetDevice(&current) == cudaSuccess && cudaSetDevice(gpu) == cudaSuccess) {
        if (cudaMemGetInfo(&free, &total) != cudaSuccess) free = 0;
        cudaSetDevice(current);
    }
    cudaGetLastError();
    return free;
}

}  // namespace mg::cuda
