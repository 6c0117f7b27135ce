// Kernels and products started so far by this process: what the bar on launches per step is counted with.
#pragma once

#include <cstdint>

namespace mg::cuda {

void count_launch();
int64_t launch_count();
void add_launches(int64_t count);  // those of a replayed graph

}  // namespace mg::cuda
