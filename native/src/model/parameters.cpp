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
    zeroed(values_);
    if (backend.trains_prepared()) want_prepared();
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
    if (prepared_.empty()) prepared_.reserve(backend_.prepared_bytes(table_.memory_floats()));
    if (++wanting_prepared_ == 1) prepare();
}

void Parameters::release_prepared() {
    if (--wanting_prepared_ == 0) prepared_.release();
}

void Parameters::prepare() {
    if (!prepared_.empty()) backend_.prepare(prepared_.get(), values(), table_.memory_floats());
}

const void* Parameters::prepared(int tensor) {
    if (prepared_.empty() || tensor == kNoTensor) return nullptr;
    return prepared_.as<char>() + static_cast<size_t>(table_[tensor].offset) * backend_.element_bytes();
}

Weight Parameters::weight(int tensor) {
    const Tensor& t = table_[tensor];
    return {value(tensor), prepared(tensor), t.rows, t.columns};
}

Bias Parameters::bias(int tensor) { return {value(tensor), prepared(tensor)}; }

float* Parameters::zeroed(Buffer& buffer) {
    if (buffer.empty()) {
        buffer.reserve(bytes());
        backend_.zero(buffer.get(), bytes());
    }
    return buffer.as<float>();
}

}  // namespace mg
