// Atomic operations of device code.  They are relaxed, as CUDA's are: under TSan one orders other memory only together with
// __threadfence, of which the scheduler keeps account (note_atomic).
#pragma once

#include <stdint.h>
#include <string.h>

#include <type_traits>

namespace mgsim {

void note_atomic(const void* address);

// The classic loop: replaces *p by change(*p), returns what was there.
template <typename T, typename Change>
inline T atomic_change(T* p, Change change) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "CUDA's atomics are of 4 or 8 bytes");
    using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
    note_atomic(p);
    Bits* const place = reinterpret_cast<Bits*>(p);
    Bits seen = __atomic_load_n(place, __ATOMIC_RELAXED), wanted;
    T old;
    do {
        memcpy(&old, &seen, sizeof old);
        const T changed = change(old);
        memcpy(&wanted, &changed, sizeof wanted);
    } while (!__atomic_compare_exchange_n(place, &seen, wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}

template <typename T>
struct Same {
    using type = T;
};

}  // namespace mgsim

// The second operand is converted to the first one's type, as CUDA's overloads do.
#define MGSIM_ATOMIC(name, expression)                                            \
    template <typename T>                                                         \
    inline T name(T* p, typename mgsim::Same<T>::type value) {                    \
        return mgsim::atomic_change(p, [value](T old) { return T(expression); }); \
    }
MGSIM_ATOMIC(atomicAdd, old + value)
MGSIM_ATOMIC(atomicSub, old - value)
MGSIM_ATOMIC(atomicMax, old < value ? value : old)
MGSIM_ATOMIC(atomicMin, value < old ? value : old)
MGSIM_ATOMIC(atomicAnd, old& value)
MGSIM_ATOMIC(atomicOr, old | value)
MGSIM_ATOMIC(atomicXor, old ^ value)
MGSIM_ATOMIC(atomicExch, (static_cast<void>(old), value))
MGSIM_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
MGSIM_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)
#undef MGSIM_ATOMIC

template <typename T>
inline T atomicCAS(T* p, typename mgsim::Same<T>::type expected, typename mgsim::Same<T>::type value) {
    return mgsim::atomic_change(p, [expected, value](T old) { return old == expected ? value : old; });
}
