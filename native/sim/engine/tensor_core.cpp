// ldmatrix and mma of a whole warp at once.  The 32 lanes' registers are put together to the matrices that cuda/ptx.h describes,
// multiplied by loops that the compiler vectorises, and taken apart again: most of the time of a simulated attention goes here.

#include <stdint.h>
#include <string.h>

#include "engine/failure.h"
#include "engine/sanitizers.h"
#include "engine/wide.h"
#include "sim_ptx.h"

namespace mgsim {

bool detects_races() { return under_tsan(); }

void complete_matrices(void* const* parts, unsigned lanes, Site site) {
    if (lanes != ~0u) fail("ldmatrix without all 32 lanes at %s:%d", site.file, site.line);
    const MatrixPart& first = *static_cast<const MatrixPart*>(parts[0]);
    const unsigned matrices = first.matrices;
    const bool transposed = first.transposed;
    const uint16_t* rows[32];
    for (unsigned lane = 0; lane < 32; ++lane)
        rows[lane] = static_cast<const uint16_t*>(static_cast<const MatrixPart*>(parts[lane])->row);
    for (unsigned lane = 0; lane < 32; ++lane) {
        MatrixPart& part = *static_cast<MatrixPart*>(parts[lane]);
        const unsigned group = lane / 4, pair = lane % 4;
        for (unsigned m = 0; m < matrices; ++m) {
            const uint16_t* const* const matrix = rows + m * 8;
            const unsigned low = transposed ? matrix[pair * 2][group] : matrix[group][pair * 2];
            const unsigned high = transposed ? matrix[pair * 2 + 1][group] : matrix[group][pair * 2 + 1];
            part.got[m] = low | high << 16;
        }
        if (under_tsan())
            for (unsigned other = 0; other < 32; ++other) part.rows[other] = rows[other];
    }
}

namespace {

float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
float low_half(unsigned both) { return from_bits(both << 16); }
float high_half(unsigned both) { return from_bits(both & 0xffff0000u); }

// d += a b, four rows at a time: sums that do not wait for each other.  d and b hold rows of 8 floats, each an Eight.
MGSIM_FOR_THIS_MACHINE
void multiply(Eight* d, const float (*a)[16], const Eight* b) {
    for (int row = 0; row < 16; row += 4) {
        Eight s0 = d[row], s1 = d[row + 1], s2 = d[row + 2], s3 = d[row + 3];
        for (int k = 0; k < 16; ++k) {
            s0 += b[k] * a[row][k];
            s1 += b[k] * a[row + 1][k];
            s2 += b[k] * a[row + 2][k];
            s3 += b[k] * a[row + 3][k];
        }
        d[row] = s0;
        d[row + 1] = s1;
        d[row + 2] = s2;
        d[row + 3] = s3;
    }
}

}  // namespace

void complete_mma(void* const* parts, unsigned lanes, Site site) {
    if (lanes != ~0u) fail("mma without all 32 lanes at %s:%d", site.file, site.line);
    alignas(64) float a[16][16], b[16][8], d[16][8];
    for (unsigned lane = 0; lane < 32; ++lane) {
        const MmaPart& part = *static_cast<const MmaPart*>(parts[lane]);
        const unsigned group = lane / 4, pair = lane % 4 * 2;
        for (unsigned half = 0; half < 2; ++half) {
            a[group][pair + 8 * half] = low_half(part.a[2 * half]);
            a[group][pair + 8 * half + 1] = high_half(part.a[2 * half]);
            a[group + 8][pair + 8 * half] = low_half(part.a[2 * half + 1]);
            a[group + 8][pair + 8 * half + 1] = high_half(part.a[2 * half + 1]);
            b[pair + 8 * half][group] = low_half(part.b[half]);
            b[pair + 8 * half + 1][group] = high_half(part.b[half]);
            d[group + 8 * half][pair] = part.d[2 * half];
            d[group + 8 * half][pair + 1] = part.d[2 * half + 1];
        }
    }
    multiply(reinterpret_cast<Eight*>(d), a, reinterpret_cast<const Eight*>(b));
    for (unsigned lane = 0; lane < 32; ++lane) {
        const MmaPart& part = *static_cast<const MmaPart*>(parts[lane]);
        const unsigned group = lane / 4, pair = lane % 4 * 2;
        for (unsigned half = 0; half < 2; ++half) {
            part.d[2 * half] = d[group + 8 * half][pair];
            part.d[2 * half + 1] = d[group + 8 * half][pair + 1];
        }
    }
}

}  // namespace mgsim
