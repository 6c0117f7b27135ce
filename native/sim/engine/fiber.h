// A fiber is a stack, and the state of the machine while nothing runs on it.  One runs one CUDA thread at a time; switching costs a
// few nanoseconds, which is what makes a barrier in every few instructions bearable.
#pragma once

#include <stddef.h>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace mgsim {

struct Fiber {
#if defined(__x86_64__)
    void* stack_pointer = nullptr;
#else
    ucontext_t context;
#endif
    const void* bottom = nullptr;  // of its stack
    size_t size = 0;
    void* fake_stack = nullptr;  // ASan's
    void* tsan = nullptr;        // TSan's idea of it
};

Fiber* new_fiber();

// The next switch to the fiber calls entry(), which never returns and first calls entered().
void start_over(Fiber& fiber, void (*entry)());
void entered();

void switch_fiber(Fiber& from, Fiber& to, bool from_ends);

}  // namespace mgsim
