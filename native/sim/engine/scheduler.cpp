#include "engine/scheduler.h"

#include <stdio.h>

#include <numeric>

#include "engine/failure.h"
#include "engine/sanitizers.h"
#include "engine/shared_memory.h"

namespace mgsim {

Current current;
Scheduler& scheduler = *new Scheduler;  // never destroyed: a process may end while a test's threads still look at it
void (*after_block)() = nullptr;

// Tokens that no block has used yet, as far as they last: what one block's barrier released must not reach another block's.
TokenPair* new_tokens() {
    static TokenPair pairs[8192];
    static size_t used = 0;
    return &pairs[under_tsan() ? used++ % 8192 : 0];
}

unsigned Scheduler::draw(unsigned below) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<unsigned>((random_state >> 33) * below >> 31);
}

void Scheduler::make_ready(unsigned index) {
    unsigned at = ready_head + ready_count++;
    ready[at < count ? at : at - count] = index;
}

// A ready thread, an unstarted one, or none: all are done.
ThreadState* Scheduler::next() {
    const unsigned unstarted = count - started;
    if (unstarted != 0 && (ready_count == 0 || (random && draw(ready_count + unstarted) >= ready_count))) {
        const uint64_t index = static_cast<uint64_t>(started++) * order_factor + order_offset;
        return &threads[static_cast<unsigned>(index % count)];
    }
    if (ready_count != 0) {
        if (random) std::swap(ready[(ready_head + draw(ready_count)) % count], ready[ready_head]);
        const unsigned index = ready[ready_head];
        if (++ready_head == count) ready_head = 0;
        --ready_count;
        return &threads[index];
    }
    if (done != count) report_deadlock();
    return nullptr;
}

void Scheduler::resume(ThreadState* thread, Fiber& from, bool from_ends) {
    current.thread = thread;
    if (thread != nullptr && thread->state == State::kUnstarted) {
        if (idle.empty()) {
            all.push_back(new_fiber());
            idle.push_back(all.back());
        }
        thread->fiber = idle.back();
        idle.pop_back();
        start_over(*thread->fiber, enter);
    }
    Fiber& to = thread != nullptr ? *thread->fiber : main;
    if (&to != &from) switch_fiber(from, to, from_ends);
}

void Scheduler::wait(State state, Site site) {
    ThreadState& thread = running();
    thread.state = state;
    thread.site = site;
    resume(next(), *thread.fiber, false);
}

void Scheduler::give_way() {
    if (!random) return;
    ThreadState& thread = running();
    make_ready(static_cast<unsigned>(&thread - threads.data()));
    resume(next(), *thread.fiber, false);
}

void Scheduler::enter() {
    entered();
    scheduler.live();
}

// A fiber's life: it runs threads until there is something better to switch to.
void Scheduler::live() {
    for (;;) {
        ThreadState& thread = running();
        thread.state = State::kReady;
        acquire(&start_token);
        run(function, arguments);
        release(&end_token);
        finish(thread);
        Fiber* const fiber = thread.fiber;
        ThreadState* const following = next();
        if (!under_tsan()) {  // (for TSan a fiber is a thread)
            if (following != nullptr && following->state == State::kUnstarted) {
                following->fiber = fiber;
                current.thread = following;
                continue;
            }
            idle.push_back(fiber);
        }
        resume(following, *fiber, true);
        __builtin_unreachable();
    }
}

void Scheduler::finish(ThreadState& thread) {
    if (!thread.copies.empty()) fail("the thread ends with cp.async copies that it has not waited for");
    if (at_barrier != 0)
        fail("the thread ends while others wait in __syncthreads at %s:%d", barrier_site.file, barrier_site.line);
    thread.state = State::kDone;
    ++done;
    Warp& warp = warps[thread.warp];
    warp.alive &= ~(1u << thread.lane);
    // It may have been the last that a collective waited for: those that have exited do not take part.
    for (unsigned rest = warp.busy; rest != 0; rest &= rest - 1)
        complete_if_all_wait(thread.warp, warp.sets[__builtin_ctz(rest)]);
}

void Scheduler::report_deadlock() {
    char text[1200];
    int length = snprintf(text, sizeof text, "deadlock in kernel %s, block %u,%u,%u: %u of %u threads have ended",
                          kernel, current.block.x, current.block.y, current.block.z, done, count);
    int shown = 0;
    for (unsigned i = 0; i < count && shown < 4; ++i) {
        const ThreadState& thread = threads[i];
        if (thread.state == State::kDone) continue;
        ++shown;
        length += snprintf(text + length, sizeof text - static_cast<size_t>(length),
                           "; thread %u (warp %u, lane %u) waits in %s at %.160s:%d", i, thread.warp, thread.lane,
                           thread.state == State::kAtBarrier ? "__syncthreads" : "a collective of its warp",
                           thread.site.file, thread.site.line);
    }
    current.thread = nullptr;
    fail("%s", text);
}

// Makes room for a grid whose blocks have so many threads.
void Scheduler::prepare(unsigned threads_of_block) {
    count = threads_of_block;
    const dim3 size = current.block_size;
    if (threads.size() < count) threads.resize(count), ready.resize(count);
    if (warps.size() < (count + 31) / 32) warps.resize((count + 31) / 32);
    for (unsigned i = 0; i < count; ++i) {
        threads[i].index = {i % size.x, i / size.x % size.y, i / size.x / size.y};
        threads[i].lane = i % 32;
        threads[i].warp = i / 32;
        threads[i].copies.reserve(under_tsan() ? 1024 : 64);  // under TSan a fiber must not allocate
    }
    atomics.reserve(1024);
    if (under_tsan()) {
        while (all.size() < 2 * count) all.push_back(new_fiber());
        main.tsan = __tsan_get_current_fiber();
        __tsan_release(&start_token);
    }
}

void Scheduler::run_block() {
    renew_shared_memory();
    for (unsigned i = 0; i < count; ++i) {
        threads[i].state = State::kUnstarted;
        threads[i].copy_group = 0;
        threads[i].fenced = false;
    }
    for (unsigned w = 0; w * 32 < count; ++w) {
        warps[w].busy = 0;
        warps[w].alive = count - w * 32 >= 32 ? ~0u : (1u << (count - w * 32)) - 1;
    }
    ready_head = ready_count = started = done = at_barrier = 0;
    votes = 0;
    atomics.clear();
    order_factor = 1;
    order_offset = 0;
    if (random) {
        do order_factor = 1 + draw(count);
        while (std::gcd(order_factor, count) != 1);
        order_offset = draw(count);
    }
    barrier_tokens = new_tokens();
    if (under_tsan()) {
        // Every thread has a fiber of its own, and neighbouring blocks have none in common: what a fiber has done is ordered, and
        // through the barriers of its later block the order would reach all of that block's threads.
        for (Warp& warp : warps)
            for (TokenPair*& tokens : warp.tokens) tokens = nullptr;
        second_half = !second_half;
        const auto first = all.begin() + (second_half ? static_cast<std::ptrdiff_t>(count) : 0);
        idle.assign(first, first + static_cast<std::ptrdiff_t>(count));
    }
    resume(next(), main, false);
    if (after_block != nullptr) after_block();
}

}  // namespace mgsim
