// selftest NAME: runs a case, and prints the 128 numbers it left.  selftest --list: the names.

#include "selftest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void expect(bool holds, const char* what) {
    if (holds) return;
    fprintf(stderr, "not so: %s\n", what);
    fflush(stderr);
    _exit(1);
}

void expect_success(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorName(error));
    fflush(stderr);
    _exit(1);
}

namespace {

void run(const Case& named) {
    Buffers buffers{};
    std::vector<float> numbers(512);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
    float* in = nullptr;
    SUCCEEDS(cudaStreamCreateWithFlags(&buffers.stream, cudaStreamNonBlocking));
    SUCCEEDS(cudaMalloc(&buffers.out, 128 * sizeof(float)));
    SUCCEEDS(cudaMalloc(&in, 512 * sizeof(float)));
    SUCCEEDS(cudaMalloc(&buffers.counter, sizeof(unsigned)));
    SUCCEEDS(cudaMemset(buffers.out, 0, 128 * sizeof(float)));
    SUCCEEDS(cudaMemset(buffers.counter, 0, sizeof(unsigned)));
    SUCCEEDS(cudaMemcpy(in, numbers.data(), 512 * sizeof(float), cudaMemcpyHostToDevice));
    SUCCEEDS(cudaDeviceSynchronize());
    buffers.in = in;
    named.run(buffers);
    SUCCEEDS(cudaGetLastError());
    SUCCEEDS(cudaStreamSynchronize(buffers.stream));
    float out[128];
    SUCCEEDS(cudaMemcpy(out, buffers.out, sizeof out, cudaMemcpyDeviceToHost));
    for (const float x : out) printf("%.9g ", static_cast<double>(x));
    printf("\n");
    SUCCEEDS(cudaFree(buffers.out));
    SUCCEEDS(cudaFree(in));
    SUCCEEDS(cudaFree(buffers.counter));
    SUCCEEDS(cudaStreamDestroy(buffers.stream));
}

}  // namespace

int main(int count, char** words) {
    for (const auto* cases : {&planted_cases(), &correct_cases(), &queue_cases(), &product_cases()}) {
        for (const Case& named : *cases) {
            if (count == 2 && strcmp(words[1], "--list") == 0) printf("%s\n", named.name.c_str());
            if (count == 2 && named.name == words[1]) return run(named), 0;
        }
    }
    return count == 2 && strcmp(words[1], "--list") == 0 ? 0 : 2;
}
