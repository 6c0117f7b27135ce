#include "cuda/check.h"

#include "error.h"

namespace mg::cuda {
namespace {

// Errors of a kernel that ran.  The driver keeps reporting them: nothing works in this process any more.
bool is_fault(cudaError_t code) {
    switch (code) {
        case cudaErrorIllegalAddress:
        case cudaErrorLaunchTimeout:
        case cudaErrorHardwareStackError:
        case cudaErrorIllegalInstruction:
        case cudaErrorMisalignedAddress:
        case cudaErrorInvalidAddressSpace:
        case cudaErrorInvalidPc:
        case cudaErrorLaunchFailure:
        case cudaErrorAssert:
        case cudaErrorECCUncorrectable: return true;
        default: return false;
    }
}

}  // namespace

std::string error_text(cudaError_t code, const char* call) {
    std::string text = format("%s: %s: %s", call, cudaGetErrorName(code), cudaGetErrorString(code));
    if (is_fault(code)) text += " (by work started earlier; the GPU is lost to this process)";
    return text;
}

void check(cudaError_t code, const char* call) {
    if (code == cudaSuccess) return;
    cudaGetLastError();  // the runtime keeps a copy for whoever asks next: it is told here and now
    throw Error(MG_ERROR_DEVICE, error_text(code, call));
}

void check_launch(const char* op) { check(cudaGetLastError(), op); }

std::string version_text(int version) { return format("%d.%d", version / 1000, version % 1000 / 10); }

}  // namespace mg::cuda
