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

// Does the work of the set's collective once every lane of it that lives has arrived.
bool Scheduler::complete_if_all_wait(unsigned index, LaneSet& set) {
    Warp& warp = warps[index];
    const unsigned lanes = set.mask & warp.alive;
    if (set.waiting != lanes || lanes == 0) return false;
    if (set.complete != nullptr) set.complete(warp.parts, lanes, set.site);
    set.waiting = 0;
    warp.busy &= ~(1u << (&set - warp.sets));
    ++warp.phases[__builtin_ctz(set.mask)];
    const Thread& running = *current.thread;
    const unsigned others = running.warp == index ? lanes & ~(1u << running.lane) : lanes;
    for (unsigned rest = others; rest != 0; rest &= rest - 1)
        make_ready(index * 32 + static_cast<unsigned>(__builtin_ctz(rest)));
    return true;
}

namespace {

// The set that waits with this mask, or a free one.
LaneSet& set_of(Warp& warp, unsigned mask) {
    for (unsigned rest = warp.busy; rest != 0; rest &= rest - 1) {
        LaneSet& set = warp.sets[__builtin_ctz(rest)];
        if (set.mask == mask) return set;
    }
    return warp.sets[__builtin_ctz(~warp.busy)];
}

}  // namespace

void warp_collective(unsigned mask, Complete complete, void* part, Site site) {
    Scheduler& s = scheduler;
    ThreadState& thread = s.running();
    const unsigned lane = thread.lane;
    Warp& warp = s.warps[thread.warp];
    if ((mask >> lane & 1u) == 0)
        fail("lane %u calls a collective at %s:%d with mask %08x, which lacks it", lane, site.file, site.line, mask);
    LaneSet& set = set_of(warp, mask);
    if (set.waiting == 0) {
        set.mask = mask;
        set.complete = complete;
        set.site = site;
        warp.busy |= 1u << (&set - warp.sets);
    } else if (set.complete != complete || !same(set.site, site)) {
        fail("warp %u: lane %u is at %s:%d with mask %08x, lane %d at %s:%d with mask %08x", thread.warp, lane,
             site.file, site.line, mask, __builtin_ctz(set.waiting), set.site.file, set.site.line, set.mask);
    }
    warp.parts[lane] = part;
    set.waiting |= 1u << lane;
    if (s.complete_if_all_wait(thread.warp, set))
        s.give_way();
    else
        s.wait(State::kAtCollective, site);
    thread.state = State::kReady;
}

void warp_barrier(unsigned mask, Site site) {
    const ThreadState& thread = scheduler.running();
    Warp& warp = scheduler.warps[thread.warp];
    const int lowest = mask == 0 ? 0 : __builtin_ctz(mask);
    if (warp.tokens[lowest] == nullptr) warp.tokens[lowest] = new_tokens();
    void* const token = warp.tokens[lowest]->of_phase[warp.phases[lowest] & 1u];
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
