// What tests set to reach the ways around (create.h): read where products are made.
#pragma once

#include <cstdint>

namespace mg::cuda {

bool fused_epilogues();
int64_t most_head_rows();  // 0: as many as memory is meant for

}  // namespace mg::cuda
