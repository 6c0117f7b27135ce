// Shuffles and votes, done once for the whole warp.

#include "engine/failure.h"
#include "sim_warp.h"

namespace mgsim {

void complete_shuffle(void* const* parts, unsigned lanes, Site site) {
    for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        ShufflePart& part = *static_cast<ShufflePart*>(parts[lane]);
        if (part.source < 0 || part.source > 31 || (lanes >> part.source & 1u) == 0)
            fail("lane %d reads lane %d, which does not take part (lanes %08x) at %s:%d", lane, part.source, lanes,
                 site.file, site.line);
        const ShufflePart& source = *static_cast<const ShufflePart*>(parts[part.source]);
        part.got[0] = source.given[0];
        if (part.words == 2) part.got[1] = source.given[1];
    }
}

void complete_vote(void* const* parts, unsigned lanes, Site) {
    unsigned ballot = 0;
    for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        if (static_cast<const VotePart*>(parts[lane])->predicate != 0) ballot |= 1u << lane;
    }
    for (unsigned rest = lanes; rest != 0; rest &= rest - 1)
        static_cast<VotePart*>(parts[__builtin_ctz(rest)])->ballot = ballot;
}

}  // namespace mgsim
