// Softmax cross-entropy of rows of logits, natural logarithm.
//   forward   loss = log(sum(exp(l))) - l[target], with the row's maximum taken out first; 0 where the target is -1
//   backward  dl = scale (softmax(l) - onehot(target)) in precision E, written over the row's logits from its first byte on;
//             0 where the target is -1
#pragma once

#include "cpu/ops/math.h"

namespace {

template <typename E>
void loss_rows(float* losses, float* logits, const int32_t* targets, float scale, int64_t row_begin, int64_t row_end,
               int64_t V) {
    for (int64_t row = row_begin; row < row_end; ++row) {
        float* l = logits + row * V;
        E* dl = reinterpret_cast<E*>(l);  // never ahead of the logits that are still to be read
        if (targets[row] < 0) {
            losses[row] = 0.0f;
            if (scale != 0.0f) memset(dl, 0, static_cast<size_t>(V) * sizeof(E));
            continue;
        }
        const float most = maximum_of(l, V);
        const float of_target = l[targets[row]] - most;
        Vector total = {};
        float rest = 0.0f;
        for_vectors(V, [&](int64_t v, int64_t n) {
            const Vector e = exponential(load_some(l + v, n) - most);
            store_some(l + v, e, n);
            if (n == kWidth)
                total = total + e;
            else
                for (int64_t i = 0; i < n; ++i) rest += e[i];
        });
        const float sum = sum_lanes(total) + rest;
        losses[row] = logf(sum) - of_target;
        if (scale == 0.0f) continue;
        const Vector factor = broadcast(scale / sum);
        l[targets[row]] -= sum;  // scale (e / sum - 1) = (e - sum) scale / sum
        for_vectors(V, [&](int64_t v, int64_t n) { store_some(dl + v, load_some(l + v, n) * factor, n); });
    }
}

}  // namespace
