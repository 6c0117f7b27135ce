// How much memory a model will take, told before it exists.
#pragma once

#include <cstdint>

#include "backend.h"
#include "microgpt_cuda.h"
#include "model/config.h"

namespace mg {

// What mg_plan_memory tells, in bytes.
mg_memory_plan plan_memory(const Config& config, const Backend& backend, int64_t B, int64_t T, Purpose purpose);

}  // namespace mg
