// What the rest of the engine knows of the CUDA backend: whether a GPU can be used, why not, and how to make a backend.  Built
// without CUDA the same functions are there (no_cuda.cpp), and say so.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "backend.h"

namespace mg::cuda {

struct Gpu {
    std::string name;
    int major, minor;     // compute capability: 9, 0 is sm_90
    size_t memory;        // bytes
    std::string why_not;  // empty: this build runs on it
};

struct CudaStatus {
    bool built;           // with CUDA
    bool simulated;       // the build for tests, whose GPU is the CPU
    bool usable;          // create_cuda_backend("cuda", ...) is expected to work
    std::string reason;   // one line: the GPU that "cuda" means, or why there is none to use
    int driver, runtime;  // CUDA versions, 13000 is 13.0; 0: none
    std::vector<Gpu> gpus;
    std::string architectures;  // that kernels were compiled for
    std::string cublaslt;       // its version, or why it can't be used; empty where there is no GPU to use it with
};

// Never throws; takes no memory of a GPU's.  Opens cuBLASLt where there is a GPU.
CudaStatus cuda_status() noexcept;

// Bytes that are free on a GPU; 0 where that can't be told.  Makes the GPU ready for work, which takes a moment the first time.
size_t free_memory(int gpu) noexcept;

// device: "cuda" (the first GPU) or "cuda:N"; precision: "fp32", "bf16", or "auto": bf16 where the GPU multiplies it.
// Raises MG_ERROR_DEVICE with the versions that don't fit.
std::unique_ptr<Backend> create_cuda_backend(const std::string& device, const std::string& precision);

// Where cuBLASLt lies: tried before the loader's own search.  Empty: nowhere in particular.  Has no effect once it is open.
void set_cublaslt_path(const std::string& path);

// For tests: products without fused epilogues, as where cuBLASLt has none for a shape.
void set_fused_epilogues(bool fused);
bool fused_epilogues();

}  // namespace mg::cuda
