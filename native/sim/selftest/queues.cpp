// Host code against the stand-in runtime: what runs when, what is copied when, what a graph keeps.

#include "selftest.h"

namespace {

__global__ void add(float* out, float value) { out[threadIdx.x] += value; }
__global__ void copy(float* out, const float* in) { out[threadIdx.x] = in[threadIdx.x]; }

float* pinned(size_t numbers) {
    float* memory = nullptr;
    SUCCEEDS(cudaMallocHost(&memory, numbers * sizeof(float)));
    return memory;
}

cudaGraphExec_t record(Buffers& b, const std::function<void()>& work, size_t nodes) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    SUCCEEDS(cudaStreamBeginCapture(b.stream, cudaStreamCaptureModeThreadLocal));
    work();
    SUCCEEDS(cudaStreamEndCapture(b.stream, &graph));
    size_t count = 0;
    SUCCEEDS(cudaGraphGetNodes(graph, nullptr, &count));
    expect(count == nodes, "the graph has as many nodes as there were calls");
    SUCCEEDS(cudaGraphInstantiate(&executable, graph));
    SUCCEEDS(cudaGraphDestroy(graph));
    return executable;
}

// --- planted: the result is wrong, or the program ends with status 66

void staging_used_again(Buffers& b) {  // the second fill comes before the first copy has run
    float* const staging = pinned(64);
    for (int half = 0; half < 2; ++half) {
        for (int i = 0; i < 64; ++i) staging[i] = static_cast<float>(half + 1);
        SUCCEEDS(cudaMemcpyAsync(b.out + half * 64, staging, 64 * sizeof(float), cudaMemcpyHostToDevice, b.stream));
    }
}

void no_synchronize(Buffers& b) {
    float* const result = pinned(128);
    for (int i = 0; i < 128; ++i) result[i] = -1.0f;
    MG_LAUNCH(add, 1, 128, 0, b.stream, b.out, 1.0f);
    SUCCEEDS(cudaMemcpyAsync(result, b.out, 128 * sizeof(float), cudaMemcpyDeviceToHost, b.stream));
    expect(result[0] == 1.0f, "the result is there");
}

void no_wait_between_streams(Buffers& b) {
    cudaStream_t other = nullptr;
    SUCCEEDS(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    MG_LAUNCH(add, 1, 64, 0, other, b.out, 1.0f);
    MG_LAUNCH(copy, 1, 64, 0, b.stream, b.out + 64, b.out);  // before the addition
    SUCCEEDS(cudaStreamSynchronize(b.stream));
    SUCCEEDS(cudaStreamSynchronize(other));
}

void stale_argument(Buffers& b) {  // a graph adds what was recorded, not what the variable holds now
    float value = 1.0f;
    const cudaGraphExec_t graph = record(b, [&] { MG_LAUNCH(add, 1, 128, 0, b.stream, b.out, value); }, 1);
    value = 10.0f;
    SUCCEEDS(cudaGraphLaunch(graph, b.stream));
    SUCCEEDS(cudaGraphLaunch(graph, b.stream));
}

void graph_of_freed_memory(Buffers& b) {
    float* memory = nullptr;
    SUCCEEDS(cudaMalloc(&memory, 512));
    const cudaGraphExec_t graph = record(b, [&] { MG_LAUNCH(add, 1, 128, 0, b.stream, memory, 1.0f); }, 1);
    SUCCEEDS(cudaFree(memory));
    SUCCEEDS(cudaMalloc(&memory, 512));  // perhaps at the same address
    SUCCEEDS(cudaGraphLaunch(graph, b.stream));
}

void freed_staging(Buffers& b) {
    float* const staging = pinned(128);
    SUCCEEDS(cudaMemcpyAsync(b.out, staging, 512, cudaMemcpyHostToDevice, b.stream));
    SUCCEEDS(cudaFreeHost(staging));
}

void host_reads_device(Buffers& b) {
    SUCCEEDS(cudaStreamSynchronize(b.stream));
    const volatile float* const memory = b.out;
    expect(memory[3] == 0.0f, "device memory reads as zero");
}

void kernel_reads_host(Buffers& b) {
    static float numbers[128] = {};
    MG_LAUNCH(copy, 1, 128, 0, b.stream, b.out, numbers);
}

// --- correct

void arguments_are_copied(Buffers& b) {
    float value = 1.0f;
    MG_LAUNCH(add, 1, 128, 0, b.stream, b.out, value);
    value = 10.0f;
    std::vector<float> pageable(64, 5.0f);  // CUDA copies pageable memory aside before it returns
    SUCCEEDS(cudaMemcpyAsync(b.out + 64, pageable.data(), 64 * sizeof(float), cudaMemcpyHostToDevice, b.stream));
    pageable.assign(64, 6.0f);
}

void events_order_streams(Buffers& b) {
    cudaStream_t other = nullptr;
    cudaEvent_t done = nullptr;
    SUCCEEDS(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    SUCCEEDS(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    MG_LAUNCH(add, 1, 64, 0, other, b.out, 1.0f);
    SUCCEEDS(cudaEventRecord(done, other));
    MG_LAUNCH(add, 1, 64, 0, other, b.out, 100.0f);  // after the event: not waited for
    SUCCEEDS(cudaStreamWaitEvent(b.stream, done));
    MG_LAUNCH(copy, 1, 64, 0, b.stream, b.out + 64, b.out);
    expect(cudaEventQuery(done) == cudaErrorNotReady, "the event is to come");
    SUCCEEDS(cudaStreamSynchronize(b.stream));
    SUCCEEDS(cudaEventSynchronize(done));
    SUCCEEDS(cudaEventDestroy(done));
}

void default_stream_waits(Buffers& b) {
    cudaStream_t blocking = nullptr;
    SUCCEEDS(cudaStreamCreate(&blocking));
    MG_LAUNCH(add, 1, 64, 0, blocking, b.out, 1.0f);
    MG_LAUNCH(copy, 1, 64, 0, nullptr, b.out + 64, b.out);
    MG_LAUNCH(add, 1, 64, 0, blocking, b.out, 1.0f);
    SUCCEEDS(cudaStreamDestroy(blocking));
}

void refusals(Buffers& b) {
    MG_LAUNCH(add, 1, 1025, 0, b.stream, b.out, 1.0f);
    expect(cudaGetLastError() == cudaErrorInvalidConfiguration, "1025 threads are too many");
    MG_LAUNCH(add, dim3(1, 65536), 32, 0, b.stream, b.out, 1.0f);
    expect(cudaGetLastError() == cudaErrorInvalidConfiguration, "65536 blocks in y are too many");
    MG_LAUNCH(add, 1, 32, 49153, b.stream, b.out, 1.0f);
    expect(cudaGetLastError() == cudaErrorInvalidValue, "over 48 KiB must be asked for");
    expect(cudaFuncSetAttribute(add, cudaFuncAttributeMaxDynamicSharedMemorySize, 228 << 10) == cudaErrorInvalidValue,
           "227 KiB is the limit");
    void* memory = nullptr;
    expect(cudaMalloc(&memory, size_t{1} << 40) == cudaErrorMemoryAllocation, "1 TiB is too much");
    expect(cudaMemcpy(b.out, b.in, 513, cudaMemcpyDeviceToDevice) == cudaErrorInvalidValue, "a copy past the end");
    SUCCEEDS(cudaStreamBeginCapture(b.stream, cudaStreamCaptureModeThreadLocal));
    expect(cudaMalloc(&memory, 16) == cudaErrorStreamCaptureUnsupported, "no allocation in a recording");
    cudaGraph_t graph = nullptr;
    expect(cudaStreamEndCapture(b.stream, &graph) == cudaErrorStreamCaptureInvalidated && graph == nullptr,
           "which is spoiled");
    SUCCEEDS(cudaStreamBeginCapture(b.stream, cudaStreamCaptureModeThreadLocal));
    expect(cudaStreamSynchronize(b.stream) == cudaErrorStreamCaptureUnsupported, "no waiting in a recording");
    expect(cudaStreamEndCapture(b.stream, &graph) == cudaErrorStreamCaptureInvalidated, "which is spoiled too");
    cudaGetLastError();
    cudaPointerAttributes attributes;
    SUCCEEDS(cudaPointerGetAttributes(&attributes, b.out + 5));
    expect(attributes.type == cudaMemoryTypeDevice, "device memory is known");
    SUCCEEDS(cudaPointerGetAttributes(&attributes, &memory));
    expect(attributes.type == cudaMemoryTypeUnregistered, "the stack is not");
}

}  // namespace

const std::vector<Case>& queue_cases() {
#define QUEUE(function)     \
    {                       \
        #function, function \
    }
    static const std::vector<Case> cases = {
        QUEUE(staging_used_again),   QUEUE(no_synchronize),        QUEUE(no_wait_between_streams),
        QUEUE(stale_argument),       QUEUE(graph_of_freed_memory), QUEUE(freed_staging),
        QUEUE(host_reads_device),    QUEUE(kernel_reads_host),     QUEUE(arguments_are_copied),
        QUEUE(events_order_streams), QUEUE(default_stream_waits),  QUEUE(refusals),
    };
#undef QUEUE
    return cases;
}
