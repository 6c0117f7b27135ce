#include "sha256.h"

#include <stdio.h>
#include <string.h>

/* The first 32 bits of the fractions of the cube roots of the first 64 primes. */
static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotated(uint32_t x, int bits) { return (x >> bits) | (x << (32 - bits)); }

static void compress(uint32_t state[8], const unsigned char block[64]) {
    uint32_t w[64], s[8];
    for (int t = 0; t < 16; ++t)
        w[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 | (uint32_t)block[4 * t + 2] << 8 |
               (uint32_t)block[4 * t + 3];
    for (int t = 16; t < 64; ++t) {
        const uint32_t a = w[t - 15], b = w[t - 2];
        w[t] = w[t - 16] + w[t - 7] + (rotated(a, 7) ^ rotated(a, 18) ^ (a >> 3)) +
               (rotated(b, 17) ^ rotated(b, 19) ^ (b >> 10));
    }
    memcpy(s, state, sizeof s);
    for (int t = 0; t < 64; ++t) {
        const uint32_t a = s[0], e = s[4];
        const uint32_t choice = (e & s[5]) ^ (~e & s[6]), majority = (a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]);
        const uint32_t one = s[7] + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) + choice + constants[t] + w[t];
        const uint32_t two = (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + majority;
        memmove(s + 1, s, 7 * sizeof s[0]);
        s[4] += one;
        s[0] = one + two;
    }
    for (int i = 0; i < 8; ++i) state[i] += s[i];
}

void sha256_start(sha256* sum) {
    static const uint32_t initial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(sum->state, initial, sizeof initial);
    sum->length = 0;
}

void sha256_add(sha256* sum, const unsigned char* data, size_t size) {
    while (size > 0) {
        const size_t used = (size_t)(sum->length % 64);
        const size_t taken = size < 64 - used ? size : 64 - used;
        memcpy(sum->block + used, data, taken);
        sum->length += taken;
        data += taken;
        size -= taken;
        if (sum->length % 64 == 0) compress(sum->state, sum->block);
    }
}

void sha256_finish(sha256* sum, char digits[65]) {
    static const unsigned char padding[64] = {0x80};
    const uint64_t bits = 8 * sum->length;
    unsigned char length[8];
    for (int i = 0; i < 8; ++i) length[i] = (unsigned char)(bits >> (56 - 8 * i));
    sha256_add(sum, padding, (size_t)((119 - sum->length % 64) % 64) + 1);
    sha256_add(sum, length, sizeof length);
    for (int i = 0; i < 8; ++i) snprintf(digits + 8 * i, 9, "%08lx", (unsigned long)sum->state[i]);
}
