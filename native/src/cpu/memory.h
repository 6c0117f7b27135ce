// Aligned memory of the CPU backend, in huge pages where the system gives them.
#pragma once

#include <cstddef>

namespace mg::cpu {

void* allocate_memory(size_t bytes);  // raises MG_ERROR_MEMORY; aligned to 64 bytes, large blocks to 2 MiB
void release_memory(void* memory);    // null is fine

// Scratch memory that grows to the largest request and is kept.
class Scratch {
   public:
    Scratch() = default;
    ~Scratch() { release_memory(memory_); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    void* at_least(size_t bytes);  // contents are lost when it grows; raises MG_ERROR_MEMORY

   private:
    void* memory_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace mg::cpu
