// The simulator's own test: a program that runs one case by name.  Planted cases have a defect; correct ones check their results;
// queue cases are host code.
#pragma once

#define MG_COUNT_LAUNCH() static_cast<void>(0)
#include <cuda_runtime.h>

#include <functional>
#include <string>
#include <vector>

struct Buffers {
    cudaStream_t stream;
    float* out;         // 128 numbers, zero
    const float* in;    // 512 numbers, 0, 1, 2, ...
    unsigned* counter;  // zero
};

struct Case {
    std::string name;
    std::function<void(Buffers&)> run;
};

const std::vector<Case>& planted_cases();
const std::vector<Case>& correct_cases();
const std::vector<Case>& queue_cases();
const std::vector<Case>& product_cases();

// Ends the program with status 1 where what was expected is not so, or a call of the runtime failed.
void expect(bool holds, const char* what);
void expect_success(cudaError_t error, const char* what);
#define SUCCEEDS(call) expect_success(call, #call)
