// Whether kernels compiled for a list of architectures run on a GPU: the rules of CUDA's binary and PTX compatibility.
#pragma once

#include <string>

namespace mg::cuda {

// list: as CMAKE_CUDA_ARCHITECTURES, "80-real;90a-real;120", also with spaces.  Names without a number ("native", "all") can't be
// judged, and count as fitting: then the first kernel tells.
bool runs_on(const std::string& list, int major, int minor);

}  // namespace mg::cuda
