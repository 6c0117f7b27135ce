// Every call of the CUDA runtime goes through check(): an error becomes one MG_ERROR_DEVICE that names the call.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace mg::cuda {

std::string error_text(cudaError_t code, const char* call);  // "cudaMalloc: cudaErrorInvalidValue: invalid argument"

void check(cudaError_t code, const char* call);

// After kernels were started: reports what the launch itself, or a kernel before it, did wrong.
void check_launch(const char* op);

// "13.0" of 13000
std::string version_text(int version);

}  // namespace mg::cuda
