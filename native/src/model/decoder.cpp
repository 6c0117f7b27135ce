#include "model/decoder.h"

#include <algorithm>

#include "error.h"
#include "model/arena.h"
#include "model/block.h"

namespace mg {

Decoder::Decoder(Gpt& model, int64_t sequences) : model_(model), cache_(model.backend()), memory_(model.backend()) {
    const Config& c = model.config();
    layer_cache_bytes_ = layer_cache_bytes(model.backend(), c, sequences);
    // The larger memory first: where there is none, nothing else has been filled for it.
    cache_.reserve(layer_cache_bytes_ * static_cast<size_t>(c.n_layer));
    history_.resize(static_cast<size_t>(sequences));
    model.parameters().want_prepared();
}

Decoder::~Decoder() { model_.parameters().release_prepared(); }

void Decoder::reset() {
    for (std::vector<int32_t>& tokens : history_) tokens.clear();
}

void Decoder::forget(int64_t sequence) { history_[static_cast<size_t>(sequence)].clear(); }

void Decoder::append(Rows& rows, int64_t sequence, const int32_t* tokens, int64_t count) {
    std::vector<int32_t>& history = history_[static_cast<size_t>(sequence)];
    for (int64_t i = 0; i < count; ++i) {
        rows.tokens.push_back(tokens[i]);
        rows.sequences.push_back(static_cast<int32_t>(sequence));
        rows.positions.push_back(static_cast<int32_t>(history.size()));
        history.push_back(tokens[i]);
    }
    rows.last[static_cast<size_t>(sequence)] = static_cast<int64_t>(rows.tokens.size()) - 1;
}

void Decoder::feed(const int32_t* tokens, const int32_t* counts, float* logits) {
    const int64_t vocab_size = model_.config().vocab_size;
    int64_t total = 0;
    for (int64_t s = 0; s < sequences(); ++s) {
        check_argument(counts[s] >= 0, "decode: sequence %lld has a count of %d", static_cast<long long>(s), counts[s]);
        total += counts[s];
    }
    for (int64_t i = 0; i < total; ++i)
        check_argument(tokens[i] >= 0 && tokens[i] < vocab_size, "decode: token %d is outside the vocabulary of %lld",
                       tokens[i], static_cast<long long>(vocab_size));
    if (total == 0) return;
    try {
        forward(take(tokens, counts), logits);
    } catch (...) {
        reset();  // the cache doesn't hold what the history says
        throw;
    }
}

// The rows of tokens that were checked; the history has them then.
Decoder::Rows Decoder::take(const int32_t* tokens, const int32_t* counts) {
    const int64_t block_size = model_.config().block_size;
    Rows rows;
    rows.last.assign(history_.size(), -1);
    for (int64_t s = 0; s < sequences(); tokens += counts[s], ++s) {
        if (counts[s] == 0) continue;
        std::vector<int32_t>& history = history_[static_cast<size_t>(s)];
        const int64_t length = static_cast<int64_t>(history.size()) + counts[s];
        if (length <= block_size) {
            append(rows, s, tokens, counts[s]);
            continue;
        }
        // Past the context: the newest half of it, at most, is read again from position 0.
        std::vector<int32_t> newest(history);
        newest.insert(newest.end(), tokens, tokens + counts[s]);
        const int64_t kept = std::max<int64_t>(1, block_size / 2);
        history.clear();
        append(rows, s, newest.data() + (length - kept), kept);
    }
    return rows;
}

KeptBytes Decoder::bytes(const Backend& backend, const Config& config, int64_t sequences, int64_t rows) {
    Arena arena(nullptr);
    lay_out(arena, backend, config, sequences, rows);
    return {layer_cache_bytes(backend, config, sequences) * static_cast<size_t>(config.n_layer), arena.used()};
}

size_t Decoder::layer_cache_bytes(const Backend& backend, const Config& config, int64_t sequences) {
    return (backend.cache_bytes(sequences, config.block_size, config.n_embd) + 63) / 64 * 64;
}

Decoder::Buffers Decoder::lay_out(Arena& arena, const Backend& backend, const Config& c, int64_t sequences,
                                  int64_t rows) {
    const size_t N = static_cast<size_t>(rows), C = static_cast<size_t>(c.n_embd);
    const size_t number = sizeof(float), element = backend.element_bytes();
    Buffers b;
    for (int32_t** list : {&b.tokens, &b.sequences, &b.positions}) *list = arena.take<int32_t>(N * sizeof(int32_t));
    for (float** stream : {&b.block.x, &b.block.x_middle}) *stream = arena.take<float>(N * C * number);
    // Nothing goes back through a decoder: one pair of statistics serves all norms, and attention saves nothing.
    if (c.norm == Norm::layernorm) b.statistics.mean = arena.take<float>(N * number);
    b.statistics.rstd = arena.take<float>(N * number);
    b.block.ln_1 = b.block.ln_2 = b.statistics;
    b.block.qkv = arena.take<Element>(N * 3 * C * element);
    for (Element** narrow : {&b.normed, &b.block.attention}) *narrow = arena.take<Element>(N * C * element);
    b.block.hidden = arena.take<Element>(N * static_cast<size_t>(c.hidden_dim()) * element);
    b.wide = arena.take<Element>(N * static_cast<size_t>(c.mlp_dim) * element);
    b.logits = arena.take<float>(static_cast<size_t>(sequences * c.vocab_size) * number);
    return b;
}

void Decoder::forward(const Rows& rows, float* logits) {
    const int64_t N = static_cast<int64_t>(rows.tokens.size()), C = model_.config().n_embd,
                  V = model_.config().vocab_size;
    Backend& backend = model_.backend();
    memory_.reserve(bytes(backend, model_.config(), sequences(), N).workspace);
    Arena arena(memory_.get());
    const Buffers b = lay_out(arena, backend, model_.config(), sequences(), N);
    const size_t list = static_cast<size_t>(N) * sizeof(int32_t);
    backend.copy_in(b.tokens, rows.tokens.data(), list);
    backend.copy_in(b.sequences, rows.sequences.data(), list);
    backend.copy_in(b.positions, rows.positions.data(), list);
    backend.repeat({cache_.get(), 0, N, 0}, [&] { trunk(b, N); });

    // The last row of each sequence that got tokens, gathered by the final norm: a call for each run of neighbours.
    std::vector<int64_t> fed;
    for (int64_t s = 0; s < sequences(); ++s)
        if (rows.last[static_cast<size_t>(s)] >= 0) fed.push_back(s);
    const int64_t count = static_cast<int64_t>(fed.size());
    const auto last = [&](int64_t i) { return rows.last[static_cast<size_t>(fed[static_cast<size_t>(i)])]; };
    for (int64_t begin = 0, end; begin < count; begin = end) {
        for (end = begin + 1; end < count && last(end) == last(end - 1) + 1;) ++end;
        Element* out = reinterpret_cast<Element*>(reinterpret_cast<char*>(b.normed) +
                                                  static_cast<size_t>(begin * C) * backend.element_bytes());
        read_stream(backend, model_.parameters(), out, b.statistics, b.block.x + last(begin) * C,
                    model_.config().final_norm, model_.parameters().table().ln_f, end - begin, C);
    }
    backend.head_forward(b.logits, b.normed, model_.parameters().weight(model_.parameters().table().head), count);
    // Each copy waits for the device, so neighbouring sequences' logits are one.
    const auto sequence = [&](int64_t i) { return fed[static_cast<size_t>(i)]; };
    for (int64_t begin = 0, end; begin < count; begin = end) {
        for (end = begin + 1; end < count && sequence(end) == sequence(end - 1) + 1;) ++end;
        backend.copy_out(logits + sequence(begin) * V, b.logits + begin * V,
                         static_cast<size_t>((end - begin) * V) * sizeof(float));
    }
}

// As in gpt.cpp, but attention looks into the cache.
void Decoder::trunk(const Buffers& b, int64_t N) {
    Backend& backend = model_.backend();
    Parameters& p = model_.parameters();
    const TensorTable& table = p.table();
    const Config& c = model_.config();
    const BlockActivations& a = b.block;
    char* cache = cache_.as<char>();
    backend.embedding_forward(a.x, b.tokens, b.positions, p.value(table.wte), p.value(table.wpe), N, 1, c.n_embd);
    if (c.embedding_norm) norm_stream(backend, p, a.x, nullptr, b.statistics, a.x, table.ln_emb, N, c.n_embd);
    begin_blocks(backend, c, b.normed, a.x, N);
    for (const BlockTensors& t : table.blocks) {
        block_forward(backend, p, c, t, a, b.normed, b.wide, a.x, N, [&] {
            backend.cached_attention_forward(a.attention, cache, a.qkv, b.sequences, b.positions, N, c.block_size,
                                             c.n_embd, c.n_head);
        });
        cache += layer_cache_bytes_;
    }
}

}  // namespace mg
