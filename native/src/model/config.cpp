#include "model/config.h"

#include "error.h"

namespace mg {
namespace {

// Far beyond any memory, and such that no product of sizes, times the bytes and buffers of a layer, leaves int64.
constexpr double kMostNumbers = 1e15;
constexpr int64_t kMostLayers = 1 << 16;  // names stay within MG_MAX_NAME

}  // namespace

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
    check_argument(n_layer <= kMostLayers, "config: n_layer is %lld but at most %lld is supported",
                   static_cast<long long>(n_layer), static_cast<long long>(kMostLayers));
    const double C = static_cast<double>(n_embd);
    const double parameters =
        static_cast<double>(vocab_size + block_size) * C + 12.0 * static_cast<double>(n_layer) * C * C;
    check_argument(parameters <= kMostNumbers,
                   "config: a model of %.3g parameters is too large; make n_embd, n_layer or vocab_size smaller",
                   parameters);
}

void Config::check_batch(const char* call, int64_t B, int64_t T) const {
    check_argument(B >= 1, "%s: B is %lld but must be at least 1", call, static_cast<long long>(B));
    check_argument(T >= 1 && T <= block_size, "%s: T is %lld but block_size is %lld", call, static_cast<long long>(T),
                   static_cast<long long>(block_size));
    const double numbers =
        static_cast<double>(B) * static_cast<double>(T) * static_cast<double>(n_embd * n_layer + vocab_size);
    check_argument(numbers <= kMostNumbers, "%s: a batch of %lld x %lld is too large; make it smaller", call,
                   static_cast<long long>(B), static_cast<long long>(T));
}

}  // namespace mg
