// Runs the threads of one block, each on a fiber of its own, on one thread of the operating system.  A thread runs until it must
// wait for others (a barrier, a collective of its warp); then another that is ready goes on.  In random mode which one is drawn by
// chance, so that an order the kernel does not enforce differs from run to run.
#pragma once

#include <stdint.h>

#include <utility>
#include <vector>

#include "engine/fiber.h"
#include "sim_kernel.h"
#include "sim_warp.h"

namespace mgsim {

enum class State { kUnstarted, kReady, kAtBarrier, kAtCollective, kDone };

struct PendingCopy {  // cp.async
    void* to;
    const void* from;
    unsigned bytes, group;
    bool valid;
};

struct ThreadState : Thread {
    Fiber* fiber = nullptr;
    State state = State::kUnstarted;
    Site site = {};       // where it waits
    bool fenced = false;  // __threadfence has been called
    unsigned copy_group = 0;
    std::vector<PendingCopy> copies;
};

// What TSan is told a barrier by: each release of a token comes before an acquire of it.  Two, for a thread may be at the next
// barrier before all have left this one.
struct TokenPair {
    alignas(8) char of_phase[2][8];
};
TokenPair* new_tokens();

// Lanes that wait for each other in a collective.  The first to arrive says how it is called, and the others must agree.
struct LaneSet {
    unsigned mask = 0, waiting = 0;
    Complete complete = nullptr;
    Site site = {};
};

struct Warp {
    unsigned alive = 0;
    unsigned busy = 0;  // sets that somebody waits in
    LaneSet sets[32];   // as many as there can be
    void* parts[32] = {};

    // __syncwarp, by the lowest lane of the mask; null: not used in this block.
    TokenPair* tokens[32] = {};
    unsigned phases[32] = {};
};

struct Scheduler {
    Fiber main;  // the stack that started the grid
    std::vector<Fiber*> all, idle;
    bool second_half = false;  // of all, whose turn it is under TSan
    std::vector<ThreadState> threads;
    std::vector<Warp> warps;
    unsigned count = 0, started = 0, done = 0;  // threads of this block

    // Ready threads: a ring in order, a bag in random mode.
    std::vector<unsigned> ready;
    unsigned ready_head = 0, ready_count = 0;
    bool random = false;
    uint64_t random_state = 0;
    unsigned order_factor = 1, order_offset = 0;  // unstarted threads start in the order i * factor + offset

    // __syncthreads
    unsigned at_barrier = 0, barrier_phase = 0;
    Site barrier_site = {};
    Vote vote = Vote::kNone;
    int votes = 0, vote_result = 0;

    const char* kernel = "";
    const void* function = nullptr;
    void* arguments = nullptr;
    void (*run)(const void* function, void* arguments) = nullptr;

    // What TSan is told: a grid starts after what came before it, and is over before what comes after.
    char start_token = 0, end_token = 0;
    TokenPair* barrier_tokens = nullptr;
    std::vector<const void*> atomics;  // numbers this block has used atomics on

    unsigned draw(unsigned below);
    ThreadState& running() { return static_cast<ThreadState&>(*current.thread); }
    void make_ready(unsigned index);
    void wait(State state, Site site);  // the running thread, until made ready
    void give_way();                    // in random mode somebody else may go first
    bool complete_if_all_wait(unsigned warp, LaneSet& set);
    void prepare(unsigned threads_of_block);
    void run_block();

   private:
    ThreadState* next();
    void resume(ThreadState* thread, Fiber& from, bool from_ends);
    void finish(ThreadState& thread);
    [[noreturn]] void live();
    [[noreturn]] void report_deadlock();
    static void enter();
};
extern Scheduler& scheduler;

extern void (*after_block)();  // the trace's hook

}  // namespace mgsim
