// Aligned memory of the CPU backend, in huge pages where the system gives them.
#pragma once

#include <cstddef>

namespace mg::cpu {

void* allocate_memory(size_t bytes);  // null when there is none; aligned to 64 bytes, large blocks to 2 MiB
void release_memory(void* memory);    // null is fine

}  // namespace mg::cpu
