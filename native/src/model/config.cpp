#include "model/config.h"

#include "error.h"

namespace mg {
namespace {

// Far beyond any memory, and such that no product of sizes, times the bytes and buffers of a layer, leaves int64.
constexpr double kMostNumbers = 1e15;
constexpr int64_t kMostLayers = 1 << 16;  // names stay within MG_MAX_NAME
constexpr float kLargestStd = 100.0f;

}  // namespace

int64_t usual_mlp_dim(int64_t n_embd, Activation activation) {
    constexpr int64_t kWhole = 64;
    if (!is_gated(activation)) return 4 * n_embd;
    return ((8 * n_embd + 2) / 3 + kWhole - 1) / kWhole * kWhole;
}

void Config::check() const {
    const struct {
        const char* name;
        int64_t value;
    } sizes[] = {{"vocab_size", vocab_size}, {"block_size", block_size}, {"n_layer", n_layer},
                 {"n_head", n_head},         {"n_embd", n_embd},         {"mlp_dim", mlp_dim}};
    for (const auto& size : sizes)
        check_argument(size.value >= 1, "config: %s is %lld but must be at least 1", size.name,
                       static_cast<long long>(size.value));
    check_argument(n_embd % n_head == 0, "config: n_head must divide n_embd: n_embd is %lld, n_head is %lld",
                   static_cast<long long>(n_embd), static_cast<long long>(n_head));
    check_argument(n_layer <= kMostLayers, "config: n_layer is %lld but at most %lld is supported",
                   static_cast<long long>(n_layer), static_cast<long long>(kMostLayers));
    check_argument(
        has_norms() || norm == Norm::layernorm,
        "config: norm is rmsnorm, but the model has no norm: norm_position is none, and there is no final and "
        "no embedding norm");
    check_argument(
        has_norms() || norm_affine,
        "config: norm_affine is off, but the model has no norm: norm_position is none, and there is no final "
        "and no embedding norm");
    check_argument(init_std > 0 && init_std <= kLargestStd, "config: init_std is %g but must be above 0 and at most %g",
                   static_cast<double>(init_std), static_cast<double>(kLargestStd));
    const double C = static_cast<double>(n_embd), M = static_cast<double>(mlp_dim);
    const double block = C * (4.0 * C + M + static_cast<double>(is_gated(activation) ? 2 * M : M));
    const double tables =
        static_cast<double>(tie_embeddings ? 1 : 2) * static_cast<double>(vocab_size) + static_cast<double>(block_size);
    const double parameters = tables * C + static_cast<double>(n_layer) * block;
    check_argument(
        parameters <= kMostNumbers,
        "config: a model of %.3g parameters is too large; make n_embd, n_layer, vocab_size or mlp_dim smaller",
        parameters);
}

void Config::check_batch(const char* call, int64_t B, int64_t T) const {
    check_argument(B >= 1, "%s: B is %lld but must be at least 1", call, static_cast<long long>(B));
    check_argument(T >= 1 && T <= block_size, "%s: T is %lld but block_size is %lld", call, static_cast<long long>(T),
                   static_cast<long long>(block_size));
    const double numbers =
        static_cast<double>(B) * static_cast<double>(T) *
        (static_cast<double>(n_embd + mlp_dim / 4) * static_cast<double>(n_layer) + static_cast<double>(vocab_size));
    check_argument(numbers <= kMostNumbers, "%s: a batch of %lld x %lld is too large; make it smaller", call,
                   static_cast<long long>(B), static_cast<long long>(T));
}

void Config::check_sequences(const char* call, int64_t sequences) const {
    check_argument(sequences >= 1, "%s: sequences is %lld but must be at least 1", call,
                   static_cast<long long>(sequences));
    const double cached = 2.0 * static_cast<double>(sequences) * static_cast<double>(block_size) *
                          static_cast<double>(n_embd) * static_cast<double>(n_layer);
    check_argument(cached <= kMostNumbers, "%s: %lld sequences of up to %lld tokens are too many", call,
                   static_cast<long long>(sequences), static_cast<long long>(block_size));
}

}  // namespace mg
