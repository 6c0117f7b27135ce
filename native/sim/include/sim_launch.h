// MG_LAUNCH of the simulator: what kernel<<<...>>>(...) does.  The arguments are copied, as the types of the kernel's parameters,
// into a task that waits on the stream; nothing runs before somebody synchronises.
#pragma once

#include <stddef.h>

#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda_runtime_api.h"
#include "vector_types.h"

namespace mgsim {

struct KernelCall {
    const char* name;
    const void* kernel;
    dim3 grid, block;
    size_t shared_bytes;
    std::vector<const void*> pointers;  // those among the arguments: each must be to memory a kernel may use
    std::shared_ptr<void> arguments;    // a std::tuple of the kernel's parameters
    void (*run)(const void* kernel, void* arguments);  // one CUDA thread
};

// Puts the call on the stream; a launch that the device would refuse sets the error that cudaGetLastError returns.
void launch(KernelCall call, cudaStream_t stream);

template <typename T>
void collect_pointer(std::vector<const void*>& pointers, const T& value) {
    if constexpr (std::is_pointer_v<T> && !std::is_function_v<std::remove_pointer_t<T>>) pointers.push_back(value);
}

template <typename... Parameters, typename... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
            cudaStream_t stream, Arguments&&... values) {
    using Tuple = std::tuple<std::decay_t<Parameters>...>;
    static_assert(sizeof(Tuple) <= 4096, "a kernel's parameters are limited to 4 KiB");
    auto arguments = std::make_shared<Tuple>(static_cast<std::decay_t<Parameters>>(std::forward<Arguments>(values))...);
    KernelCall call{name, reinterpret_cast<const void*>(kernel), grid, block, shared_bytes, {}, nullptr, nullptr};
    std::apply([&call](const auto&... each) { (collect_pointer(call.pointers, each), ...); }, *arguments);
    call.arguments = std::move(arguments);
    call.run = [](const void* function, void* tuple) {
        std::apply(reinterpret_cast<void (*)(Parameters...)>(const_cast<void*>(function)),
                   *static_cast<const Tuple*>(tuple));
    };
    launch(std::move(call), stream);
}

}  // namespace mgsim

// MG_COUNT_LAUNCH() is the includer's: what is to happen at each launch beside it.
#define MG_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    (MG_COUNT_LAUNCH(), mgsim::launch(#kernel, kernel, dim3(grid), dim3(block), (shared_bytes), (stream), __VA_ARGS__))
