// Only +, -, *, / and sqrt are used, which IEEE 754 defines to the last bit, and CMake compiles this file without contraction:
// a library's log() would differ between machines.
#include "model/random.h"

#include <cmath>
#include <cstring>

namespace mg {
namespace {

struct Block {
    uint32_t word[4];
};

// Philox-4x32-10, a counter-based generator (Salmon, Moraes, Dror & Shaw 2011; constants from the paper).
Block philox(uint64_t counter_low, uint64_t counter_high, uint64_t key) {
    uint32_t x[4] = {static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
                     static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)};
    uint32_t k[2] = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t{0xD2511F53} * x[0];
        const uint64_t b = uint64_t{0xCD9E8D57} * x[2];
        const uint32_t next[4] = {static_cast<uint32_t>(b >> 32) ^ x[1] ^ k[0], static_cast<uint32_t>(b),
                                  static_cast<uint32_t>(a >> 32) ^ x[3] ^ k[1], static_cast<uint32_t>(a)};
        std::memcpy(x, next, sizeof x);
        k[0] += 0x9E3779B9;
        k[1] += 0xBB67AE85;
    }
    return {{x[0], x[1], x[2], x[3]}};
}

// ln(x) for 0 < x < 1: x = m 2^e with m in [sqrt(1/2), sqrt(2)); ln m = 2 atanh((m-1)/(m+1)) by its series.
double natural_log(double x) {
    int e;
    double m = std::frexp(x, &e);
    if (m < 0.70710678118654752) {
        m *= 2;
        --e;
    }
    const double z = (m - 1) / (m + 1), zz = z * z;
    double series = 0;
    for (int n = 23; n >= 1; n -= 2) series = series * zz + 1.0 / n;
    return 2 * z * series + e * 0.69314718055994531;
}

double polynomial(const double (&c)[8], double x) {
    double sum = c[7];
    for (int i = 6; i >= 0; --i) sum = sum * x + c[i];
    return sum;
}

// The standard normal quantile of p in (0, 1), relative error about 1e-16 (Wichura 1988, algorithm AS 241, PPND16).
double normal_quantile(double p) {
    static const double a[8] = {3.3871328727963666080e0,  1.3314166789178437745e+2, 1.9715909503065514427e+3,
                                1.3731693765509461125e+4, 4.5921953931549871457e+4, 6.7265770927008700853e+4,
                                3.3430575583588128105e+4, 2.5090809287301226727e+3};
    static const double b[8] = {1.0,
                                4.2313330701600911252e+1,
                                6.8718700749205790830e+2,
                                5.3941960214247511077e+3,
                                2.1213794301586595867e+4,
                                3.9307895800092710610e+4,
                                2.8729085735721942674e+4,
                                5.2264952788528545610e+3};
    static const double c[8] = {1.42343711074968357734e0,  4.63033784615654529590e0, 5.76949722146069140550e0,
                                3.64784832476320460504e0,  1.27045825245236838258e0, 2.41780725177450611770e-1,
                                2.27238449892691845833e-2, 7.74545014278341407640e-4};
    static const double d[8] = {1.0,
                                2.05319162663775882187e0,
                                1.67638483018380384940e0,
                                6.89767334985100004550e-1,
                                1.48103976427480074590e-1,
                                1.51986665636164571966e-2,
                                5.47593808499534494600e-4,
                                1.05075007164441684324e-9};
    static const double e[8] = {6.65790464350110377720e0,  5.46378491116411436990e0,  1.78482653991729133580e0,
                                2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                2.71155556874348757815e-5, 2.01033439929228813265e-7};
    static const double f[8] = {1.0,
                                5.99832206555887937690e-1,
                                1.36929880922735805310e-1,
                                1.48753612908506148525e-2,
                                7.86869131145613259100e-4,
                                1.84631831751005468180e-5,
                                1.42151175831644588870e-7,
                                2.04426310338993978564e-15};
    const double q = p - 0.5;
    if (std::fabs(q) <= 0.425) {
        const double r = 0.180625 - q * q;
        return q * polynomial(a, r) / polynomial(b, r);
    }
    const double r = std::sqrt(-natural_log(q < 0 ? p : 1 - p));
    const double tail =
        r <= 5 ? polynomial(c, r - 1.6) / polynomial(d, r - 1.6) : polynomial(e, r - 5) / polynomial(f, r - 5);
    return q < 0 ? -tail : tail;
}

}  // namespace

uint64_t stream_of(const std::string& name) {
    uint64_t hash = 0xCBF29CE484222325;
    for (const char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001B3;
    return hash;
}

void fill_normal(float* values, int64_t begin, int64_t count, float std, uint64_t seed, uint64_t stream) {
    Block block{};
    for (int64_t i = 0; i < count; ++i) {
        const uint64_t sample = static_cast<uint64_t>(begin + i);
        if (i == 0 || sample % 4 == 0) block = philox(sample / 4, stream, seed);
        // The middle of one of 2^32 equal intervals: never 0 or 1.
        const double p = (block.word[sample % 4] + 0.5) / 4294967296.0;
        values[i] = static_cast<float>(normal_quantile(p) * static_cast<double>(std));
    }
}

}  // namespace mg
