// Sequences that grow token by token, with keys and values of earlier tokens cached.
#pragma once

#include <cstdint>
#include <vector>

#include "model/buffer.h"
#include "model/gpt.h"

namespace mg {

class Arena;

class Decoder {
   public:
    Decoder(Gpt& model, int64_t sequences);
    ~Decoder();
    Decoder(const Decoder&) = delete;
    Decoder& operator=(const Decoder&) = delete;

    void reset();
    void forget(int64_t sequence);
    // tokens: those of sequence 0, then 1, ...; logits [sequences, V] on the host, rows of sequences with counts 0 untouched.
    // A sequence that would pass block_size keeps its last block_size / 2 tokens, reads them again and goes on.
    void feed(const int32_t* tokens, const int32_t* counts, float* logits);

    // What a decoder takes that is fed `rows` tokens at once: its cache, and its buffers.
    static KeptBytes bytes(const Backend& backend, const Config& config, int64_t sequences, int64_t rows);

    int64_t sequences() const { return static_cast<int64_t>(history_.size()); }
    int64_t length(int64_t sequence) const {
        return static_cast<int64_t>(history_[static_cast<size_t>(sequence)].size());
    }

   private:
    // New tokens of several sequences as rows: which sequence and position each is, and the last row of each sequence.
    struct Rows {
        std::vector<int32_t> tokens, sequences, positions;
        std::vector<int64_t> last;  // row, by sequence; -1: none
    };

    // What all layers use in turn, for N rows.
    struct Buffers {
        int32_t *tokens, *sequences, *positions;  // [N]
        BlockActivations block;
        NormStatistics statistics;  // [N] of whichever norm is at work
        Element *normed, *wide;     // [N, C], [N, mlp_dim]
        float* logits;              // [sequences, V]
    };

    static size_t layer_cache_bytes(const Backend& backend, const Config& config, int64_t sequences);
    static Buffers lay_out(Arena& arena, const Backend& backend, const Config& config, int64_t sequences, int64_t N);
    Rows take(const int32_t* tokens, const int32_t* counts);
    void append(Rows& rows, int64_t sequence, const int32_t* tokens, int64_t count);
    void forward(const Rows& rows, float* logits);
    void trunk(const Buffers& b, int64_t N);

    Gpt& model_;
    std::vector<std::vector<int32_t>> history_;  // the tokens in the cache, by sequence
    Buffer cache_;                               // of all layers, one after the other
    size_t layer_cache_bytes_;
    Buffer memory_;
};

}  // namespace mg
