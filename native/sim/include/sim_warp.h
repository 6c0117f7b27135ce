// Collectives of a warp: shuffles, votes, __syncwarp.  Each lane of the mask hands in its part and waits; the last one to arrive
// does the work for all.
#pragma once

#include <stdint.h>
#include <string.h>

#include "sim_kernel.h"

namespace mgsim {

// Called once, with the parts of the lanes that take part (those of the mask that have not exited), by lane.
using Complete = void (*)(void* const* parts, unsigned lanes, Site site);
void warp_collective(unsigned mask, Complete complete, void* part, Site site);

struct ShufflePart {
    uint32_t given[2], got[2];
    unsigned words;
    int source;  // the lane to take from
};
struct VotePart {
    int predicate;
    unsigned ballot;
};
void complete_shuffle(void* const* parts, unsigned lanes, Site site);
void complete_vote(void* const* parts, unsigned lanes, Site site);
void warp_barrier(unsigned mask, Site site);  // unlike the others, __syncwarp orders memory

template <typename T>
inline T shuffle(unsigned mask, T value, int source, Site site) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "CUDA shuffles numbers of 4 or 8 bytes");
    ShufflePart part;
    memcpy(part.given, &value, sizeof value);
    part.words = sizeof(T) / 4;
    part.source = source;
    warp_collective(mask, complete_shuffle, &part, site);
    memcpy(&value, part.got, sizeof value);
    return value;
}

inline int lane() { return static_cast<int>(current.thread->lane); }

}  // namespace mgsim

inline void __syncwarp(unsigned mask = ~0u, mgsim::Site site = mgsim::Site::here()) { mgsim::warp_barrier(mask, site); }

template <typename T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, mgsim::Site site = mgsim::Site::here()) {
    return mgsim::shuffle(mask, value, (mgsim::lane() & ~(width - 1)) | (source & (width - 1)), site);
}
template <typename T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, mgsim::Site site = mgsim::Site::here()) {
    const int own = mgsim::lane(), source = own ^ bits;
    return mgsim::shuffle(mask, value, (source & ~(width - 1)) > (own & ~(width - 1)) ? own : source, site);
}
template <typename T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                          mgsim::Site site = mgsim::Site::here()) {
    const int own = mgsim::lane(), by = static_cast<int>(delta);
    return mgsim::shuffle(mask, value, (own & (width - 1)) + by >= width ? own : own + by, site);
}
template <typename T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                        mgsim::Site site = mgsim::Site::here()) {
    const int own = mgsim::lane(), by = static_cast<int>(delta);
    return mgsim::shuffle(mask, value, (own & (width - 1)) < by ? own : own - by, site);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, mgsim::Site site = mgsim::Site::here()) {
    mgsim::VotePart part{predicate, 0};
    mgsim::warp_collective(mask, mgsim::complete_vote, &part, site);
    return part.ballot;
}
inline int __any_sync(unsigned mask, int predicate, mgsim::Site site = mgsim::Site::here()) {
    return __ballot_sync(mask, predicate, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, mgsim::Site site = mgsim::Site::here()) {
    return __ballot_sync(mask, predicate == 0, site) == 0;
}
