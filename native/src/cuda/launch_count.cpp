#include "cuda/launch_count.h"

#include <atomic>

namespace mg::cuda {
namespace {

std::atomic<int64_t> launches{0};

}  // namespace

void count_launch() { add_launches(1); }
int64_t launch_count() { return launches.load(std::memory_order_relaxed); }
void add_launches(int64_t count) { launches.fetch_add(count, std::memory_order_relaxed); }

}  // namespace mg::cuda
