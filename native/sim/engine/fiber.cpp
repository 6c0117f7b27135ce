#include "engine/fiber.h"

#include <sys/mman.h>

#include "engine/failure.h"
#include "engine/sanitizers.h"

#if defined(__x86_64__)
// Saves what a function call must preserve on the stack that is left, and takes it from the other.
extern "C" void mgsim_switch(void** from, void* to);
asm(R"(
    .text
    .hidden mgsim_switch
    .globl mgsim_switch
    .type mgsim_switch, @function
mgsim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size mgsim_switch, . - mgsim_switch
)");
#endif

namespace mgsim {

namespace {

constexpr size_t kStack = 128 << 10, kPage = 4096;

Fiber* left = nullptr;  // by the latest switch

// Told which stack was left, ASan says where it is: the only way to learn the bounds of the main thread's.
void finish_switch(void* fake_stack) {
    const void* bottom = nullptr;
    size_t size = 0;
    if (!__sanitizer_finish_switch_fiber) return;
    __sanitizer_finish_switch_fiber(fake_stack, &bottom, &size);
    left->bottom = bottom;
    left->size = size;
}

}  // namespace

Fiber* new_fiber() {
    static size_t made = 0;
    void* const mapping =
        mmap(nullptr, kStack + 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) fail("no memory for a stack");
    mprotect(mapping, kPage, PROT_NONE);  // a stack that overflows faults
    Fiber* const fiber = new Fiber;
    fiber->bottom = static_cast<char*>(mapping) + kPage;
    // Stacks that all ended on a page's end would compete for the same few lines of the cache.
    fiber->size = kStack + (made++ * 320) % kPage;
    if (__tsan_create_fiber) fiber->tsan = __tsan_create_fiber(0);
    return fiber;
}

void start_over(Fiber& fiber, void (*entry)()) {
    char* const top = static_cast<char*>(const_cast<void*>(fiber.bottom)) + fiber.size;
#if defined(__x86_64__)
    void** const words = reinterpret_cast<void**>(top);
    words[-1] = nullptr;                         // where entry's caller would be
    words[-2] = reinterpret_cast<void*>(entry);  // what mgsim_switch returns to, 16-byte aligned as after a call
    fiber.stack_pointer = words - 8;             // six registers below it
#else
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = const_cast<void*>(fiber.bottom);
    fiber.context.uc_stack.ss_size = static_cast<size_t>(top - static_cast<const char*>(fiber.bottom));
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, entry, 0);
#endif
}

void entered() { finish_switch(nullptr); }

void switch_fiber(Fiber& from, Fiber& to, bool from_ends) {
    left = &from;
    if (__sanitizer_start_switch_fiber)
        __sanitizer_start_switch_fiber(from_ends ? nullptr : &from.fake_stack, to.bottom, to.size);
    if (__tsan_switch_to_fiber) __tsan_switch_to_fiber(to.tsan, 1);  // 1: a switch orders nothing
#if defined(__x86_64__)
    mgsim_switch(&from.stack_pointer, to.stack_pointer);
#else
    swapcontext(&from.context, &to.context);
#endif
    finish_switch(from.fake_stack);
}

}  // namespace mgsim
