#include "model/activations.h"

#include <algorithm>

#include "model/arena.h"

namespace mg {
namespace {

NormStatistics take_statistics(Arena& arena, const Config& config, size_t N) {
    NormStatistics s;
    if (config.norm == Norm::layernorm) s.mean = arena.take<float>(N * sizeof(float));
    s.rstd = arena.take<float>(N * sizeof(float));
    return s;
}

// The one description of the layout: counted by activation_bytes, filled in by arrange_activations.
Activations lay_out(Arena& arena, const Backend& backend, const Config& config, int64_t B, int64_t T, Keep keep,
                    size_t* kept) {
    const size_t N = static_cast<size_t>(B * T), C = static_cast<size_t>(config.n_embd);
    const size_t number = sizeof(float), element = backend.element_bytes();
    const bool backward = keep == Keep::for_backward, post = config.norm_position == NormPosition::post;
    Activations a;
    // Where nothing is kept, a norm of the stream works in place.
    a.embeddings = config.embedding_norm && backward ? arena.take<float>(N * C * number) : nullptr;
    if (config.embedding_norm) a.ln_emb = take_statistics(arena, config, N);
    BlockActivations block;
    for (int64_t i = 0; i < config.n_layer; ++i) {
        if (i == 0 || backward) {
            block.x = arena.take<float>(N * C * number);
            if (config.has_block_norms()) block.ln_1 = take_statistics(arena, config, N);
            block.qkv = arena.take<Element>(N * 3 * C * element);
            block.attention_saved = arena.take<void>(backend.attention_saved_bytes(B, T, config.n_head));
            block.attention = arena.take<Element>(N * C * element);
            if (post && backward) block.attention_sum = arena.take<float>(N * C * number);
            block.x_middle = arena.take<float>(N * C * number);
            if (config.has_block_norms()) block.ln_2 = take_statistics(arena, config, N);
            block.hidden = arena.take<Element>(N * static_cast<size_t>(config.hidden_dim()) * element);
            if (post && backward) block.mlp_sum = arena.take<float>(N * C * number);
        }
        a.blocks.push_back(block);
    }
    a.x = backward ? arena.take<float>(N * C * number) : block.x;
    if (config.final_norm) a.ln_f = take_statistics(arena, config, N);
    if (kept != nullptr) *kept = backward ? arena.used() : 0;
    a.tokens = arena.take<int32_t>(N * sizeof(int32_t));
    a.targets = arena.take<int32_t>(N * sizeof(int32_t));
    a.losses = arena.take<float>(N * number);
    a.scale = arena.take<BatchScale>(sizeof(BatchScale));
    a.normed = arena.take<Element>(N * C * element);
    a.wide = arena.take<Element>(N * static_cast<size_t>(std::max(config.mlp_dim, 3 * config.n_embd)) * element);
    a.narrow = backward ? arena.take<Element>(N * C * element) : nullptr;
    a.dx = backward ? arena.take<float>(N * C * number) : nullptr;
    a.dx_elements = reinterpret_cast<Element*>(a.dx);
    if (backward && element != number) a.dx_elements = arena.take<Element>(N * C * element);
    return a;
}

}  // namespace

KeptBytes activation_bytes(const Backend& backend, const Config& config, int64_t B, int64_t T, Keep keep) {
    Arena arena(nullptr);
    size_t kept;
    lay_out(arena, backend, config, B, T, keep, &kept);
    return {kept, arena.used() - kept};
}

Activations arrange_activations(Backend& backend, Buffer& memory, const Config& config, int64_t B, int64_t T,
                                Keep keep) {
    const KeptBytes bytes = activation_bytes(backend, config, B, T, keep);
    memory.reserve(bytes.kept + bytes.workspace);
    Arena arena(memory.get());
    return lay_out(arena, backend, config, B, T, keep, nullptr);
}

std::vector<NamedActivation> name_activations(const Activations& a, const Config& config, int64_t B, int64_t T) {
    const int64_t C = config.n_embd;
    const bool post = config.norm_position == NormPosition::post;
    std::vector<NamedActivation> list;
    const auto stream = [&](const std::string& name, const float* memory) {
        list.push_back({name, memory, false, {B, T, C}});
    };
    const auto elements = [&](const std::string& name, const Element* memory, int64_t width) {
        list.push_back({name, memory, true, {B, T, width}});
    };
    const auto statistics = [&](const std::string& norm, const NormStatistics& s) {
        if (s.mean != nullptr) list.push_back({norm + ".mean", s.mean, false, {B, T}});
        if (s.rstd != nullptr) list.push_back({norm + ".rstd", s.rstd, false, {B, T}});
    };
    if (a.embeddings != nullptr) stream("ln_emb.input", a.embeddings);
    statistics("ln_emb", a.ln_emb);
    for (size_t i = 0; i < a.blocks.size(); ++i) {
        const BlockActivations& block = a.blocks[i];
        const std::string h = "h." + std::to_string(i) + ".";
        stream(h + "input", block.x);
        if (!post) statistics(h + "ln_1", block.ln_1);
        elements(h + "attn.c_attn", block.qkv, 3 * C);
        elements(h + "attn.heads", block.attention, C);
        if (post) stream(h + "ln_1.input", block.attention_sum);
        if (post) statistics(h + "ln_1", block.ln_1);
        stream(h + "middle", block.x_middle);
        if (!post) statistics(h + "ln_2", block.ln_2);
        elements(h + "mlp.c_fc", block.hidden, config.hidden_dim());
        if (post) stream(h + "ln_2.input", block.mlp_sum);
        if (post) statistics(h + "ln_2", block.ln_2);
    }
    stream(config.final_norm ? "ln_f.input" : "head.stream", a.x);
    statistics("ln_f", a.ln_f);
    elements(config.final_norm ? "ln_f" : "head.input", a.normed, C);
    list.push_back({"losses", a.losses, false, {B, T}});
    return list;
}

}  // namespace mg
