// (device, precision) -> Backend: the only file that knows the backends by name.
#include "backend.h"

#include "cpu/cpu_backend.h"
#include "cpu/isa.h"
#include "cpu/threads.h"
#include "error.h"

namespace mg {

std::unique_ptr<Backend> create_backend(const std::string& device, const std::string& precision) {
    if (device != "cpu" && device != "auto")
        throw Error(MG_ERROR_DEVICE, format("device is '%s' but this build has: cpu", device.c_str()));
    return cpu::create_cpu_backend(precision);
}

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
