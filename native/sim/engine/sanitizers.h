// The sanitizers' interfaces, null where the program is built without that sanitizer.  The engine itself is compiled without any:
// it switches stacks under their feet, and tells them so.
#pragma once

#include <stddef.h>

#define MGSIM_WEAK __attribute__((weak))

extern "C" {
MGSIM_WEAK void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, size_t size);
MGSIM_WEAK void __sanitizer_finish_switch_fiber(void* fake_stack, const void** old_bottom, size_t* old_size);
MGSIM_WEAK void* __tsan_create_fiber(unsigned flags);
MGSIM_WEAK void* __tsan_get_current_fiber();
MGSIM_WEAK void __tsan_switch_to_fiber(void* fiber, unsigned flags);
MGSIM_WEAK void __tsan_acquire(void* address);
MGSIM_WEAK void __tsan_release(void* address);
MGSIM_WEAK void __tsan_write_range(void* address, unsigned long bytes);
}

namespace mgsim {

// What happened before a release of the token happens before what follows an acquire of it.
inline void release(void* token) {
    if (__tsan_release) __tsan_release(token);
}
inline void acquire(void* token) {
    if (__tsan_acquire) __tsan_acquire(token);
}
inline bool under_tsan() { return __tsan_create_fiber != nullptr; }

// Loops, not memcpy: a sanitizer's memcpy in a fiber would be charged to a thread it does not know.  (The engine is compiled with
// -fno-tree-loop-distribute-patterns, or GCC would make them memcpy again.)
inline void copy_bytes(void* to, const void* from, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) static_cast<char*>(to)[i] = static_cast<const char*>(from)[i];
}
inline void fill_bytes(void* to, unsigned char value, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) static_cast<unsigned char*>(to)[i] = value;
}

}  // namespace mgsim
