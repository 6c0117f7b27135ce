#include "model/parameters.h"

#include <algorithm>
#include <vector>

#include "model/random.h"

namespace mg {
namespace {

constexpr int64_t kInitialiseAtOnce = int64_t{1} << 20;
constexpr int64_t kNumbersPerTask = int64_t{1} << 14;

}  // namespace

Parameters::Parameters(Backend& backend, const Config& config)
    : backend_(backend),
      table_(config),
      values_(backend),
      gradients_(backend),
      moment_1_(backend),
      moment_2_(backend),
      prepared_(backend) {
    size_t prepared = 0;
    for (const Tensor& tensor : table_.tensors()) {
        prepared_offsets_.push_back(prepared);
        if (tensor.is_matrix()) prepared += (backend.prepared_bytes(tensor.rows, tensor.columns) + 63) / 64 * 64;
    }
    prepared_offsets_.push_back(prepared);
    zeroed(values_);
}

void Parameters::initialise(uint64_t seed) {
    std::vector<float> numbers;
    for (const Tensor& tensor : table_.tensors()) {
        const uint64_t stream = stream_of(tensor.name);
        for (int64_t begin = 0; begin < tensor.size(); begin += kInitialiseAtOnce) {
            const int64_t count = std::min(kInitialiseAtOnce, tensor.size() - begin);
            numbers.assign(static_cast<size_t>(count), tensor.init == Init::ones ? 1.0f : 0.0f);
            if (tensor.init == Init::normal) {
                parallel_on_host((count + kNumbersPerTask - 1) / kNumbersPerTask, [&](int64_t task) {
                    const int64_t at = task * kNumbersPerTask;
                    fill_normal(numbers.data() + at, begin + at, std::min(kNumbersPerTask, count - at), tensor.std,
                                seed, stream);
                });
            }
            backend_.copy_in(values() + tensor.offset + begin, numbers.data(),
                             static_cast<size_t>(count) * sizeof(float));
        }
    }
    for (Buffer* buffer : {&gradients_, &moment_1_, &moment_2_})
        if (!buffer->empty()) backend_.zero(buffer->get(), bytes());
    prepare();
}

void Parameters::want_prepared() {
    if (prepared_.empty() && prepared_offsets_.back() > 0) prepared_.reserve(prepared_offsets_.back());
    if (++wanting_prepared_ == 1) prepare();
}

void Parameters::release_prepared() {
    if (--wanting_prepared_ == 0) prepared_.release();
}

void Parameters::prepare() {
    if (prepared_.empty()) return;
    for (int i = 0; i < static_cast<int>(table_.tensors().size()); ++i)
        if (table_[i].is_matrix()) backend_.prepare(weight(i));
}

Weight Parameters::weight(int tensor) {
    const Tensor& t = table_[tensor];
    void* prepared =
        prepared_.empty() ? nullptr : prepared_.as<char>() + prepared_offsets_[static_cast<size_t>(tensor)];
    return {value(tensor), prepared, t.rows, t.columns};
}

float* Parameters::zeroed(Buffer& buffer) {
    if (buffer.empty()) {
        buffer.reserve(bytes());
        backend_.zero(buffer.get(), bytes());
    }
    return buffer.as<float>();
}

}  // namespace mg
