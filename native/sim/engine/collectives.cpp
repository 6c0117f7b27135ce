// Where threads wait for each other: __syncthreads, collectives of a warp, and what orders memory (for TSan).

#include <algorithm>

#include "engine/failure.h"
#include "engine/sanitizers.h"
#include "engine/scheduler.h"
#include "sim_atomics.h"

namespace mgsim {

namespace {

bool same(Site a, Site b) { return a.line == b.line && a.file == b.file; }

}  // namespace

int block_barrier(Vote vote, int value, Site site) {
    Scheduler& s = scheduler;
    ThreadState& thread = s.running();
    if (s.done != 0)
        fail("__syncthreads at %s:%d after %u threads of the block have ended", site.file, site.line, s.done);
    if (s.at_barrier != 0 && !same(s.barrier_site, site))
        fail("divergent __syncthreads: this thread is at %s:%d, others wait at %s:%d", site.file, site.line,
             s.barrier_site.file, s.barrier_site.line);
    s.barrier_site = site;
    s.vote = vote;
    s.votes += value != 0 ? 1 : 0;
    void* const token = s.barrier_tokens->of_phase[s.barrier_phase & 1u];
    release(token);
    if (++s.at_barrier == s.count) {
        s.vote_result = vote == Vote::kAnd  ? s.votes == static_cast<int>(s.count)
                        : vote == Vote::kOr ? s.votes != 0
                                            : s.votes;
        s.at_barrier = 0;
        s.votes = 0;
        ++s.barrier_phase;
        for (unsigned i = 0; i < s.count; ++i)
            if (s.threads[i].state == State::kAtBarrier) s.make_ready(i);
        s.give_way();
    } else {
        s.wait(State::kAtBarrier, site);
    }
    thread.state = State::kReady;
    acquire(token);
    return s.vote_result;  // the next barrier cannot complete before this thread is there
}

// Does the work of the collective of `mask` once every lane of it that lives has arrived.
void Scheduler::complete_if_all_wait(unsigned index, unsigned mask) {
    Warp& warp = warps[index];
    const unsigned lanes = mask & warp.alive;
    if (lanes == 0 || (warp.waiting & lanes) != lanes) return;
    ThreadState* const of_lane = &threads[index * 32];
    const ThreadState& first = of_lane[__builtin_ctz(lanes)];
    void* parts[32];
    for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
        const unsigned lane = static_cast<unsigned>(__builtin_ctz(rest));
        const ThreadState& thread = of_lane[lane];
        if (thread.mask != first.mask || thread.complete != first.complete || !same(thread.site, first.site))
            fail("warp %u: lane %u is at %s:%d with mask %08x, lane %u at %s:%d with mask %08x", index, lane,
                 thread.site.file, thread.site.line, thread.mask, first.lane, first.site.file, first.site.line,
                 first.mask);
        parts[lane] = thread.part;
    }
    if (first.complete != nullptr) first.complete(parts, lanes, first.site);
    warp.waiting &= ~lanes;
    ++warp.phase[__builtin_ctz(mask)];
    for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
        const unsigned thread = index * 32 + static_cast<unsigned>(__builtin_ctz(rest));
        if (threads[thread].state == State::kAtCollective) make_ready(thread);
    }
}

void warp_collective(unsigned mask, Complete complete, void* part, Site site) {
    Scheduler& s = scheduler;
    ThreadState& thread = s.running();
    Warp& warp = s.warps[thread.warp];
    if ((mask >> thread.lane & 1u) == 0)
        fail("lane %u calls a collective at %s:%d with mask %08x, which lacks it", thread.lane, site.file, site.line,
             mask);
    thread.site = site;
    thread.mask = mask;
    thread.complete = complete;
    thread.part = part;
    unsigned& phase = warp.phase[__builtin_ctz(mask)];
    const unsigned before = phase;
    warp.waiting |= 1u << thread.lane;
    s.complete_if_all_wait(thread.warp, mask);
    if (phase == before)
        s.wait(State::kAtCollective, site);
    else
        s.give_way();
    thread.state = State::kReady;
}

void warp_barrier(unsigned mask, Site site) {
    const ThreadState& thread = scheduler.running();
    const int set = mask == 0 ? 0 : __builtin_ctz(mask);
    Warp& warp = scheduler.warps[thread.warp];
    if (warp.tokens[set] == nullptr) warp.tokens[set] = new_tokens();
    void* const token = warp.tokens[set]->of_phase[warp.phase[set] & 1u];
    release(token);
    warp_collective(mask, nullptr, nullptr, site);
    acquire(token);
}

// PTX orders memory through an atomic when a fence comes before it (release) and after it (acquire).  A fence may be another thread's
// of the block, on the far side of a barrier; taken together the two rules are: an atomic releases what its thread has seen, if it
// has called a fence, and a fence acquires what was released to any number that the block has used an atomic on.
void fence() {
    if (!under_tsan()) return;
    scheduler.running().fenced = true;
    for (const void* number : scheduler.atomics) acquire(const_cast<void*>(number));
}

void note_atomic(const void* number) {
    if (!under_tsan()) return;
    if (scheduler.running().fenced) release(const_cast<void*>(number));
    std::vector<const void*>& seen = scheduler.atomics;
    if (seen.size() < seen.capacity() && std::find(seen.begin(), seen.end(), number) == seen.end())
        seen.push_back(number);
}

}  // namespace mgsim
