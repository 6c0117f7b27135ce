// cp.async: nothing arrives before the wait for it, the latest that the hardware may do it; until then the destination is NaN.

#include <stdint.h>

#include "engine/failure.h"
#include "engine/sanitizers.h"
#include "engine/scheduler.h"
#include "sim_ptx.h"

namespace mgsim {

namespace {

constexpr size_t kMostPending = 1024;

void arrive(const PendingCopy& copy) {
    // For TSan the destination is written again now: whoever touches it between the start and the wait is in a race.
    if (under_tsan()) __tsan_write_range(copy.to, copy.bytes);
    if (copy.valid)
        copy_bytes(copy.to, copy.from, copy.bytes);
    else
        fill_bytes(copy.to, 0, copy.bytes);
}

}  // namespace

void async_copy(void* to, const void* from, unsigned bytes, bool valid) {
    ThreadState& thread = scheduler.running();
    if (reinterpret_cast<uintptr_t>(to) % bytes != 0 || (valid && reinterpret_cast<uintptr_t>(from) % bytes != 0))
        fail("cp.async of %u bytes at an address that is not aligned to them", bytes);
    if (thread.copies.size() == kMostPending) fail("%zu cp.async copies under way", kMostPending);
    fill_bytes(to, 0xff, bytes);
    thread.copies.push_back({to, from, bytes, thread.copy_group, valid});
}

void async_commit() { ++scheduler.running().copy_group; }

void async_wait(int pending) {
    ThreadState& thread = scheduler.running();
    size_t kept = 0;
    for (const PendingCopy& copy : thread.copies) {
        if (static_cast<int>(thread.copy_group - copy.group) > pending)
            arrive(copy);
        else
            thread.copies[kept++] = copy;
    }
    thread.copies.resize(kept);
}

}  // namespace mgsim
