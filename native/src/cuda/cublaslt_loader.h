// Opens cuBLASLt when the first GPU backend is made, and not before: it maps 500 MB and is no dependency of this library.
#pragma once

#include <string>

#include "cuda/cublaslt_api.h"

namespace mg::cuda {

// The functions of the library, which stays open.  Raises MG_ERROR_DEVICE that tells what was tried.
const cublaslt::Functions& cublaslt_functions();

std::string cublaslt_version();  // "13.1.1"

}  // namespace mg::cuda
