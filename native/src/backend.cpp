// (device, precision) -> Backend: the only file that knows the backends by name.
#include "backend.h"

#include <cstring>

#include "cpu/cpu_backend.h"
#include "cpu/isa.h"
#include "cpu/threads.h"
#include "cuda/create.h"
#include "error.h"

namespace mg {
namespace {

template <size_t size>
void copy_text(char (&to)[size], const std::string& text) {
    std::strncpy(to, text.c_str(), size - 1);
}

}  // namespace

std::unique_ptr<Backend> create_backend(const std::string& device, const std::string& precision) {
    if (device == "cuda" || device.rfind("cuda:", 0) == 0) return cuda::create_cuda_backend(device, precision);
    if (device != "cpu" && device != "auto")
        throw Error(MG_ERROR_DEVICE, format("device is '%s' but must be cpu, cuda, cuda:N or auto", device.c_str()));
    if (device == "auto" && cuda::cuda_status().usable) return cuda::create_cuda_backend("cuda", precision);
    return cpu::create_cpu_backend(precision);
}

void cuda_info(mg_cuda_info* info) {
    const cuda::CudaStatus status = cuda::cuda_status();
    *info = {};
    info->built = status.built ? 1 : 0;
    info->usable = status.usable ? 1 : 0;
    info->simulated = status.simulated ? 1 : 0;
    info->driver_version = status.driver;
    info->runtime_version = status.runtime;
    info->device_count = static_cast<int32_t>(status.gpus.size());
    copy_text(info->architectures, status.architectures);
    copy_text(info->cublaslt, status.cublaslt);
    copy_text(info->reason, status.usable ? "" : status.reason);
    if (status.gpus.empty()) return;
    const cuda::Gpu& gpu = status.gpus.front();
    copy_text(info->device_name, gpu.name);
    info->compute_major = gpu.major;
    info->compute_minor = gpu.minor;
    info->memory_total = static_cast<int64_t>(gpu.memory);
    if (status.usable) info->memory_free = static_cast<int64_t>(cuda::free_memory(0));
}

void set_cublaslt_path(const char* path) { cuda::set_cublaslt_path(path == nullptr ? "" : path); }
void set_fused_epilogues(bool fused) { cuda::set_fused_epilogues(fused); }

const char* cpu_isa() { return cpu::kernel_set().fp32->isa; }

const char* available_cpu_isas() { return cpu::available_isas(); }

int cpu_threads() { return cpu::thread_count(); }

void set_cpu_threads(int count) {
    check_argument(count >= 0 && count <= cpu::kMaxThreads, "threads: count is %d but must be 0 to %d", count,
                   cpu::kMaxThreads);
    cpu::set_thread_count(count);
}

void parallel_on_host(int64_t count, const std::function<void(int64_t task)>& body) { cpu::parallel_for(count, body); }

}  // namespace mg
