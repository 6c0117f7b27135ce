// Errors: the last one of each thread, names and texts.

#include "runtime/runtime.h"

namespace mgsim {

namespace {

thread_local cudaError_t last = cudaSuccess;

}  // namespace

std::mutex& runtime_mutex() {
    static std::mutex& mutex = *new std::mutex;
    return mutex;
}

cudaError_t report(cudaError_t error) {
    if (error != cudaSuccess) last = error;
    return error;
}

}  // namespace mgsim

extern "C" {

cudaError_t cudaGetLastError(void) {
    const cudaError_t error = mgsim::last;
    mgsim::last = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void) { return mgsim::last; }

#define MGSIM_NAME(error) \
    case error: return #error;
const char* cudaGetErrorName(cudaError_t error) {
    switch (error) {
        MGSIM_NAME(cudaSuccess)
        MGSIM_NAME(cudaErrorInvalidValue)
        MGSIM_NAME(cudaErrorMemoryAllocation)
        MGSIM_NAME(cudaErrorInitializationError)
        MGSIM_NAME(cudaErrorInvalidConfiguration)
        MGSIM_NAME(cudaErrorInvalidDevicePointer)
        MGSIM_NAME(cudaErrorInvalidMemcpyDirection)
        MGSIM_NAME(cudaErrorInsufficientDriver)
        MGSIM_NAME(cudaErrorInvalidDeviceFunction)
        MGSIM_NAME(cudaErrorNoDevice)
        MGSIM_NAME(cudaErrorInvalidDevice)
        MGSIM_NAME(cudaErrorNoKernelImageForDevice)
        MGSIM_NAME(cudaErrorECCUncorrectable)
        MGSIM_NAME(cudaErrorInvalidResourceHandle)
        MGSIM_NAME(cudaErrorNotReady)
        MGSIM_NAME(cudaErrorIllegalAddress)
        MGSIM_NAME(cudaErrorLaunchOutOfResources)
        MGSIM_NAME(cudaErrorLaunchTimeout)
        MGSIM_NAME(cudaErrorAssert)
        MGSIM_NAME(cudaErrorHardwareStackError)
        MGSIM_NAME(cudaErrorIllegalInstruction)
        MGSIM_NAME(cudaErrorMisalignedAddress)
        MGSIM_NAME(cudaErrorInvalidAddressSpace)
        MGSIM_NAME(cudaErrorInvalidPc)
        MGSIM_NAME(cudaErrorLaunchFailure)
        MGSIM_NAME(cudaErrorNotSupported)
        MGSIM_NAME(cudaErrorStreamCaptureUnsupported)
        MGSIM_NAME(cudaErrorStreamCaptureInvalidated)
        MGSIM_NAME(cudaErrorStreamCaptureUnmatched)
        MGSIM_NAME(cudaErrorStreamCaptureImplicit)
        MGSIM_NAME(cudaErrorCapturedEvent)
        MGSIM_NAME(cudaErrorStreamCaptureWrongThread)
        MGSIM_NAME(cudaErrorUnknown)
    }
    return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "no error";
        case cudaErrorInvalidValue: return "invalid argument";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorInvalidConfiguration: return "invalid configuration argument";
        case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
        case cudaErrorNoDevice: return "no CUDA-capable device is detected";
        case cudaErrorInvalidDevice: return "invalid device ordinal";
        case cudaErrorNoKernelImageForDevice: return "no kernel image is available for execution on the device";
        case cudaErrorInvalidResourceHandle: return "invalid resource handle";
        case cudaErrorNotReady: return "device not ready";
        case cudaErrorNotSupported: return "operation not supported";
        case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
        case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
        default: return cudaGetErrorName(error);
    }
}
}
