#include "model/config.h"

#include "error.h"

namespace mg {

void Config::check() const {
    const struct {
        const char* name;
        int64_t value;
    } sizes[] = {{"vocab_size", vocab_size},
                 {"block_size", block_size},
                 {"n_layer", n_layer},
                 {"n_head", n_head},
                 {"n_embd", n_embd}};
    for (const auto& size : sizes)
        check_argument(size.value >= 1, "config: %s is %lld but must be at least 1", size.name,
                       static_cast<long long>(size.value));
    check_argument(n_embd % n_head == 0, "config: n_head must divide n_embd: n_embd is %lld, n_head is %lld",
                   static_cast<long long>(n_embd), static_cast<long long>(n_head));
    // Keeps every product of sizes far inside int64 and every name inside MG_MAX_NAME.
    check_argument(n_embd <= (1 << 20), "config: n_embd is %lld but at most %d is supported",
                   static_cast<long long>(n_embd), 1 << 20);
    check_argument(n_layer <= (1 << 16), "config: n_layer is %lld but at most %d is supported",
                   static_cast<long long>(n_layer), 1 << 16);
}

}  // namespace mg
