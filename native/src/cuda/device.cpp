#include "cuda/device.h"

#include "cuda/check.h"
#include "cuda/create.h"
#include "error.h"

namespace mg::cuda {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

// The handles by which others name streams that every device has (as in __cuda_array_interface__).
constexpr uintptr_t kNoStream = 0, kLegacyStream = 1;

}  // namespace

Device::Device(int index) : index_(index) {
    const CudaStatus status = cuda_status();
    const int count = static_cast<int>(status.gpus.size());
    if (count == 0) throw Error(MG_ERROR_DEVICE, format("device 'cuda:%d': %s", index, status.reason.c_str()));
    if (index >= count)
        throw Error(MG_ERROR_DEVICE, format("device 'cuda:%d': this machine has %d GPU%s, and the first is cuda:0",
                                            index, count, count == 1 ? "" : "s"));
    const Gpu& gpu = status.gpus[static_cast<size_t>(index)];
    if (!gpu.why_not.empty()) throw Error(MG_ERROR_DEVICE, format("device 'cuda:%d': %s", index, gpu.why_not.c_str()));
    name_ = gpu.name;
    major_ = gpu.major;
    minor_ = gpu.minor;
    memory_bytes_ = gpu.memory;
    driver_ = status.driver;
    runtime_ = status.runtime;
    activate();
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamDefault), "cudaStreamCreateWithFlags");
}

Device::~Device() {
    // No errors from here: the process may be ending, or the GPU be lost.
    if (cudaSetDevice(index_) != cudaSuccess) return;
    cudaStreamSynchronize(stream_);
    if (order_ != nullptr) cudaEventDestroy(order_);
    if (recorder_ != nullptr) cudaStreamDestroy(recorder_);
    cudaStreamDestroy(stream_);
}

void Device::activate() const {
    int current;
    check(cudaGetDevice(&current), "cudaGetDevice");
    if (current != index_) check(cudaSetDevice(index_), "cudaSetDevice");
}

cudaStream_t Device::stream() const {
    activate();
    return capturing_ ? recorder_ : stream_;
}

void Device::check_not_capturing(const char* call) const {
    if (capturing_) throw Error(MG_ERROR_INTERNAL, format("%s inside a list of ops that is being recorded", call));
}

void* Device::allocate(size_t bytes) {
    check_not_capturing("allocate");
    activate();
    void* memory = nullptr;
    const cudaError_t code = cudaMalloc(&memory, bytes == 0 ? 1 : bytes);
    if (code != cudaErrorMemoryAllocation) {
        check(code, "cudaMalloc");
        return memory;
    }
    cudaGetLastError();  // handled here
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    throw Error(
        MG_ERROR_MEMORY,
        format("the GPU's memory is full: %.2f GiB more are needed, %.2f GiB of %.1f GiB are free",
               static_cast<double>(bytes) / kGiB, static_cast<double>(free) / kGiB, static_cast<double>(total) / kGiB));
}

void Device::release(void* memory) noexcept {
    if (memory == nullptr || cudaSetDevice(index_) != cudaSuccess) return;
    cudaFree(memory);  // waits for what uses it; an error before it is told by the next call
}

void Device::zero(void* memory, size_t bytes) {
    if (bytes > 0) check(cudaMemsetAsync(memory, 0, bytes, stream()), "cudaMemsetAsync");
}

void Device::copy_in(void* device, const void* host, size_t bytes) {
    check_not_capturing("copy_in");
    if (bytes > 0) staging_.copy_in(stream(), device, host, bytes);
}

void Device::copy_out(void* host, const void* device, size_t bytes) {
    check_not_capturing("copy_out");
    if (bytes > 0) check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream()), "cudaMemcpyAsync");
    synchronize();
}

void Device::synchronize() {
    check_not_capturing("synchronize");
    check(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
}

bool Device::owns(const void* memory) const {
    cudaPointerAttributes attributes{};
    const cudaError_t code = cudaPointerGetAttributes(&attributes, memory);
    if (code == cudaErrorInvalidValue) {  // how older runtimes say that it is plain host memory
        cudaGetLastError();
        return false;
    }
    check(code, "cudaPointerGetAttributes");
    if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged) return false;
    check_argument(attributes.type == cudaMemoryTypeManaged || attributes.device == index_,
                   "an array lies on cuda:%d but the model on cuda:%d", attributes.device, index_);
    return true;
}

void Device::order(cudaStream_t first, cudaStream_t second) {
    check_not_capturing("an order of streams");
    if (order_ == nullptr) check(cudaEventCreateWithFlags(&order_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    check(cudaEventRecord(order_, first), "cudaEventRecord");
    check(cudaStreamWaitEvent(second, order_, 0), "cudaStreamWaitEvent");
}

// A blocking stream and the legacy default stream are ordered against each other anyway.
void Device::wait_for(uintptr_t other) {
    const cudaStream_t own = stream();
    if (other != kNoStream && other != kLegacyStream) order(reinterpret_cast<cudaStream_t>(other), own);
}

void Device::let_wait(uintptr_t other) {
    const cudaStream_t own = stream();
    if (other != kNoStream && other != kLegacyStream) order(own, reinterpret_cast<cudaStream_t>(other));
}

void Device::begin_capture() {
    check_not_capturing("begin_capture");
    activate();
    if (recorder_ == nullptr)
        check(cudaStreamCreateWithFlags(&recorder_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    check(cudaStreamBeginCapture(recorder_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    capturing_ = true;
}

cudaGraph_t Device::end_capture() {
    capturing_ = false;
    cudaGraph_t graph = nullptr;
    if (cudaStreamEndCapture(recorder_, &graph) == cudaSuccess) return graph;
    cudaGetLastError();
    return nullptr;
}

std::string Device::description() const {
    return format("%s, sm_%d%d, %.1f GiB, driver %s, runtime %s", name_.c_str(), major_, minor_,
                  static_cast<double>(memory_bytes_) / kGiB, version_text(driver_).c_str(),
                  version_text(runtime_).c_str());
}

}  // namespace mg::cuda
