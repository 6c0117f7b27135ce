// The floating-point mode that the engine computes in, whatever mode its caller is in: rounding to nearest, no traps, and numbers below
// 1.2e-38, float32's smallest normal one, taken as 0.  CPUs compute with those a hundred times slower, and gradients that vanish
// on their way through a deep model are full of them, as are the moments of parameters that get no gradient any more.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace mg::cpu {

#if defined(__x86_64__)

// In force as long as the object lives, in its thread; then the thread's own mode is back, with its record of exceptions.
class Arithmetic {
   public:
    Arithmetic() : before_(_mm_getcsr()) { _mm_setcsr(kTrapsMasked | kResultsFlushed | kOperandsFlushed); }
    ~Arithmetic() { _mm_setcsr(before_); }
    Arithmetic(const Arithmetic&) = delete;
    Arithmetic& operator=(const Arithmetic&) = delete;

   private:
    static constexpr unsigned kTrapsMasked = 0x1f80, kResultsFlushed = 0x8000, kOperandsFlushed = 0x0040;

    unsigned before_;
};

#else

// Elsewhere the mode is the caller's: there such numbers cost little.
class Arithmetic {
   public:
    Arithmetic() {}
};

#endif

}  // namespace mg::cpu
