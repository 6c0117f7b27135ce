// Kernel launches: what the device would refuse, and the task that runs the grid.

#include <map>

#include "engine/failure.h"
#include "engine/grid.h"
#include "runtime/memory.h"
#include "runtime/runtime.h"
#include "engine/settings.h"
#include "sim_launch.h"

namespace mgsim {

namespace {

constexpr size_t kDefaultShared = 48 << 10, kMostShared = 227 << 10;

// Kernels that cudaFuncSetAttribute has allowed more dynamic shared memory.
std::map<const void*, size_t>& shared_limits() {
    static auto& limits = *new std::map<const void*, size_t>;
    return limits;
}

cudaError_t check(const KernelCall& call) {
    const dim3 grid = call.grid, block = call.block;
    if (settings().devices == 0) return cudaErrorNoDevice;
    if (settings().capability < 80) return cudaErrorNoKernelImageForDevice;
    if (block.x == 0 || block.y == 0 || block.z == 0 || block.x > 1024 || block.y > 1024 || block.z > 64 ||
        block.x * block.y * block.z > 1024)
        return cudaErrorInvalidConfiguration;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
        return cudaErrorInvalidConfiguration;
    const auto limit = shared_limits().find(call.kernel);
    if (call.shared_bytes > (limit == shared_limits().end() ? kDefaultShared : limit->second))
        return cudaErrorInvalidValue;
    return cudaSuccess;
}

}  // namespace

void launch(KernelCall call, cudaStream_t stream) {
    const Lock lock(runtime_mutex());
    if (const cudaError_t error = check(call)) {
        report(error);
        return;
    }
    struct Launch {
        KernelCall call;
        std::vector<Reference> references;
    };
    const auto launch = std::make_shared<Launch>();
    for (size_t i = 0; i < call.pointers.size(); ++i) {
        if (call.pointers[i] == nullptr) continue;
        if (find_allocation(call.pointers[i]) == nullptr)
            fail("pointer %zu among the arguments of kernel %s is to no memory of the device", i, call.name);
        launch->references.emplace_back(call.pointers[i]);
    }
    launch->call = std::move(call);
    const auto run = [launch] {
        for (const Reference& reference : launch->references) reference.check(launch->call.name);
        run_grid(launch->call);
    };
    enqueue(stream, {run, true});
}

}  // namespace mgsim

extern "C" cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
    const mgsim::Lock lock(mgsim::runtime_mutex());
    if (kernel == nullptr) return mgsim::report(cudaErrorInvalidDeviceFunction);
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        static_cast<size_t>(value) > mgsim::kMostShared)
        return mgsim::report(cudaErrorInvalidValue);
    mgsim::shared_limits()[kernel] = static_cast<size_t>(value);
    return cudaSuccess;
}
