/* SHA-256 (FIPS 180-4) of bytes that come in pieces. */
#ifndef SHA256_H
#define SHA256_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    uint32_t state[8];
    uint64_t length; /* bytes so far */
    unsigned char block[64];
} sha256;

void sha256_start(sha256* sum);
void sha256_add(sha256* sum, const unsigned char* data, size_t size);
/* 64 lower-case digits and a zero; the sum is used up then. */
void sha256_finish(sha256* sum, char digits[65]);

#ifdef __cplusplus
}
#endif
#endif
