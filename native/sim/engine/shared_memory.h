// Shared memory of the block that runs: the static arrays, each found by its declaration, and the dynamic one.
#pragma once

#include <stddef.h>

namespace mgsim {

// A grid asks for so much dynamic shared memory.
void begin_shared_memory(size_t dynamic_bytes);
// A block finds all of it filled with NaN.
void renew_shared_memory();
void end_shared_memory();

bool is_shared(const void* pointer);

}  // namespace mgsim
