// Hands out consecutive pieces of a block of memory; without memory it only counts.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mg {

class Arena {
   public:
    explicit Arena(void* memory) : base_(reinterpret_cast<uintptr_t>(memory)) {}

    template <typename T>
    T* take(size_t bytes) {
        const uintptr_t at = base_ + used_;
        used_ += (bytes + 63) / 64 * 64;
        return base_ == 0 ? nullptr : reinterpret_cast<T*>(at);
    }

    size_t used() const { return used_; }

   private:
    uintptr_t base_;
    size_t used_ = 0;
};

}  // namespace mg
