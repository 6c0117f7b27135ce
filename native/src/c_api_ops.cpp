// extern "C" bodies of microgpt_cuda_ops.h: each op of a backend on its own.
#include "microgpt_cuda_ops.h"

#include <initializer_list>
#include <list>

#include "backend.h"
#include "mg_config.h"
#include "guard.h"
#include "model/buffer.h"

namespace mg {

// What mg_backend_keep_copies keeps: a weight in the backend's precision.
struct KeptCopy {
    explicit KeptCopy(Backend& backend) : memory(backend) {}

    const float* master = nullptr;
    int64_t rows = 0, columns = 0;
    Buffer memory;
};

}  // namespace mg

struct mg_backend {
    std::unique_ptr<mg::Backend> backend;
    bool keeps_copies = false;
    std::list<mg::KeptCopy> kept;
    std::unique_ptr<mg::Buffer> kept_value;
};

namespace mg {

AdamW adamw_of(const mg_step_options* options, const char* call);  // c_api.cpp

namespace {

// Runs body(backend) after checking the handle and that every size is at least 1.
template <typename Body>
mg_status run_op(mg_backend* handle, const char* op, std::initializer_list<int64_t> sizes, const Body& body) {
    return guarded([&] {
        check_pointer(handle, op, "backend");
        for (const int64_t size : sizes)
            check_argument(size >= 1, "%s: a size is %lld but must be at least 1", op, static_cast<long long>(size));
        body(*handle->backend);
    });
}

// A weight, or a bias, with its copy in the backend's precision: made for one call, or kept.
class Prepared {
   public:
    Prepared(mg_backend& handle, const float* master, int64_t rows, int64_t columns)
        : own_(*handle.backend), master_(master), rows_(rows), columns_(columns) {
        // As in a model, numbers follow the matrix: a backend may read whole groups of 8 rows.
        const size_t bytes = handle.backend->prepared_bytes((rows + 7) / 8 * 8 * columns);
        if (bytes == 0 || master == nullptr) return;
        Buffer* memory = &own_;
        if (handle.keeps_copies) {
            for (KeptCopy& copy : handle.kept)
                if (copy.master == master && copy.rows == rows && copy.columns == columns) {
                    prepared_ = copy.memory.get();
                    return;
                }
            KeptCopy& copy = handle.kept.emplace_back(*handle.backend);
            copy.master = master;
            copy.rows = rows;
            copy.columns = columns;
            memory = &copy.memory;
        }
        memory->reserve(bytes);
        handle.backend->zero(memory->get(), bytes);
        handle.backend->prepare(memory->get(), master, rows * columns);
        prepared_ = memory->get();
    }
    operator Weight() const { return {master_, prepared_, rows_, columns_}; }
    operator Bias() const { return {master_, prepared_}; }

   private:
    Buffer own_;
    const void* prepared_ = nullptr;
    const float* master_;
    int64_t rows_, columns_;
};

// One value in the backend's memory for one call.
template <typename T>
class OnDevice {
   public:
    OnDevice(Backend& backend, const T& value, Buffer* kept = nullptr) : own_(backend) {
        Buffer& memory = kept == nullptr ? own_ : *kept;
        memory.reserve(sizeof(T));
        backend.copy_in(memory.get(), &value, sizeof(T));
        memory_ = memory.as<T>();
    }
    operator T*() const { return memory_; }

   private:
    Buffer own_;
    T* memory_;
};

const Element* elements(const void* x) { return static_cast<const Element*>(x); }
Element* elements(void* x) { return static_cast<Element*>(x); }

}  // namespace
}  // namespace mg

using mg::Backend;
using mg::elements;
using mg::OnDevice;
using mg::Prepared;
using mg::run_op;

extern "C" {

mg_status mg_backend_create(const char* device, const char* precision, mg_backend** backend) {
    return mg::guarded([&] {
        mg::check_pointer(device, "backend_create", "device");
        mg::check_pointer(precision, "backend_create", "precision");
        mg::check_pointer(backend, "backend_create", "backend");
        *backend = new mg_backend{mg::create_backend(device, precision), false, {}, nullptr};
    });
}

void mg_backend_free(mg_backend* backend) { delete backend; }

mg_status mg_backend_allocate(mg_backend* backend, size_t bytes, void** memory) {
    return run_op(backend, "allocate", {}, [&](Backend& b) { *memory = b.allocate(bytes); });
}

void mg_backend_release(mg_backend* backend, void* memory) {
    if (backend != nullptr) backend->backend->release(memory);
}

mg_status mg_backend_copy_in(mg_backend* backend, void* device, const void* host, size_t bytes) {
    return run_op(backend, "copy_in", {}, [&](Backend& b) { b.copy_in(device, host, bytes); });
}

mg_status mg_backend_copy_out(mg_backend* backend, void* host, const void* device, size_t bytes) {
    return run_op(backend, "copy_out", {}, [&](Backend& b) { b.copy_out(host, device, bytes); });
}

size_t mg_backend_element_bytes(const mg_backend* backend) {
    return backend == nullptr ? 0 : backend->backend->element_bytes();
}

mg_status mg_backend_keep_copies(mg_backend* backend, int32_t keep) {
    return run_op(backend, "keep_copies", {}, [&](Backend& b) {
        backend->kept.clear();
        backend->kept_value.reset(keep != 0 ? new mg::Buffer(b) : nullptr);
        backend->keeps_copies = keep != 0;
    });
}

int64_t mg_backend_launches(const mg_backend* backend) { return backend == nullptr ? 0 : backend->backend->launches(); }

void mg_set_fused_epilogues(int32_t fused) { mg::set_fused_epilogues(fused != 0); }

mg_status mg_op_embedding_forward(mg_backend* backend, float* out, const int32_t* tokens, const int32_t* positions,
                                  const float* wte, const float* wpe, int64_t N, int64_t T, int64_t C) {
    return run_op(backend, "embedding_forward", {N, T, C},
                  [&](Backend& b) { b.embedding_forward(out, tokens, positions, wte, wpe, N, T, C); });
}

mg_status mg_op_embedding_backward(mg_backend* backend, float* dwte, float* dwpe, const float* dout,
                                   const int32_t* tokens, int64_t N, int64_t T, int64_t C) {
    return run_op(backend, "embedding_backward", {N, T, C},
                  [&](Backend& b) { b.embedding_backward(dwte, dwpe, dout, tokens, N, T, C); });
}

mg_status mg_op_norm_forward(mg_backend* backend, void* out, float* mean, float* rstd, const float* x,
                             const float* gamma, const float* beta, int64_t N, int64_t C) {
    return run_op(backend, "norm_forward", {N, C},
                  [&](Backend& b) { b.norm_forward(elements(out), mean, rstd, x, gamma, beta, N, C); });
}

mg_status mg_op_norm_backward(mg_backend* backend, float* dx, void* dx_elements, void* out, float* dgamma, float* dbeta,
                              const void* dout, const float* x, const float* mean, const float* rstd,
                              const float* gamma, const float* beta, int64_t N, int64_t C) {
    return run_op(backend, "norm_backward", {N, C}, [&](Backend& b) {
        b.norm_backward(dx, elements(dx_elements), elements(out), dgamma, dbeta, elements(dout), x, mean, rstd, gamma,
                        beta, N, C);
    });
}

mg_status mg_op_stream_norm_forward(mg_backend* backend, float* out, float* mean, float* rstd, const float* x,
                                    const float* gamma, const float* beta, int64_t N, int64_t C) {
    return run_op(backend, "stream_norm_forward", {N, C},
                  [&](Backend& b) { b.stream_norm_forward(out, nullptr, mean, rstd, x, gamma, beta, N, C); });
}

mg_status mg_op_stream_norm_backward(mg_backend* backend, float* dx, void* dx_elements, float* dgamma, float* dbeta,
                                     const float* x, const float* mean, const float* rstd, const float* gamma,
                                     int64_t N, int64_t C) {
    return run_op(backend, "stream_norm_backward", {N, C}, [&](Backend& b) {
        b.stream_norm_backward(dx, elements(dx_elements), dgamma, dbeta, x, mean, rstd, gamma, N, C);
    });
}

mg_status mg_op_read_stream(mg_backend* backend, void* out, const float* x, int64_t count) {
    return run_op(backend, "read_stream", {count}, [&](Backend& b) { b.read_stream(elements(out), x, count); });
}

mg_status mg_op_add_to_stream(mg_backend* backend, float* dx, void* dx_elements, const void* dout, int64_t count) {
    return run_op(backend, "add_to_stream", {count},
                  [&](Backend& b) { b.add_to_stream(dx, elements(dx_elements), elements(dout), count); });
}

mg_status mg_op_activation_forward(mg_backend* backend, int32_t activation, void* out, const void* hidden, int64_t N,
                                   int64_t M) {
    return run_op(backend, "activation_forward", {N, M}, [&](Backend& b) {
        b.activation_forward(mg::activation_of(activation), elements(out), elements(hidden), N, M);
    });
}

mg_status mg_op_activation_backward(mg_backend* backend, int32_t activation, void* hidden, void* dout, int64_t N,
                                    int64_t M) {
    return run_op(backend, "activation_backward", {N, M}, [&](Backend& b) {
        b.activation_backward(mg::activation_of(activation), elements(hidden), elements(dout), N, M);
    });
}

mg_status mg_op_linear_forward(mg_backend* backend, void* out, const void* x, const float* weight, const float* bias,
                               int64_t N, int64_t rows, int64_t columns) {
    return run_op(backend, "linear_forward", {N, rows, columns}, [&](Backend& b) {
        b.linear_forward(elements(out), elements(x), Prepared(*backend, weight, rows, columns),
                         Prepared(*backend, bias, rows, 1), N);
    });
}

mg_status mg_op_linear_gelu_forward(mg_backend* backend, void* hidden, void* out, const void* x, const float* weight,
                                    const float* bias, int64_t N, int64_t rows, int64_t columns) {
    return run_op(backend, "linear_gelu_forward", {N, rows, columns}, [&](Backend& b) {
        b.linear_gelu_forward(elements(hidden), elements(out), elements(x), Prepared(*backend, weight, rows, columns),
                              Prepared(*backend, bias, rows, 1), N);
    });
}

mg_status mg_op_linear_residual_forward(mg_backend* backend, float* out, const float* residual, const void* x,
                                        const float* weight, const float* bias, int64_t N, int64_t rows,
                                        int64_t columns) {
    return run_op(backend, "linear_residual_forward", {N, rows, columns}, [&](Backend& b) {
        b.linear_residual_forward(out, residual, elements(x), Prepared(*backend, weight, rows, columns),
                                  Prepared(*backend, bias, rows, 1), N);
    });
}

mg_status mg_op_linear_backward_input(mg_backend* backend, void* dx, const void* dout, const float* weight, int64_t N,
                                      int64_t rows, int64_t columns) {
    return run_op(backend, "linear_backward_input", {N, rows, columns}, [&](Backend& b) {
        b.linear_backward_input(elements(dx), elements(dout), Prepared(*backend, weight, rows, columns), N);
    });
}

mg_status mg_op_linear_gelu_backward_input(mg_backend* backend, void* dhidden, void* hidden, const void* dout,
                                           const float* weight, int64_t N, int64_t rows, int64_t columns) {
    return run_op(backend, "linear_gelu_backward_input", {N, rows, columns}, [&](Backend& b) {
        b.linear_gelu_backward_input(elements(dhidden), elements(hidden), elements(dout),
                                     Prepared(*backend, weight, rows, columns), N);
    });
}

mg_status mg_op_linear_backward_weight(mg_backend* backend, float* dweight, float* dbias, const void* dout,
                                       const void* x, int64_t N, int64_t rows, int64_t columns) {
    return run_op(backend, "linear_backward_weight", {N, rows, columns}, [&](Backend& b) {
        b.linear_backward_weight(dweight, dbias, elements(dout), elements(x), N, rows, columns);
    });
}

size_t mg_op_attention_saved_bytes(const mg_backend* backend, int64_t B, int64_t T, int64_t NH) {
    return backend == nullptr ? 0 : backend->backend->attention_saved_bytes(B, T, NH);
}

mg_status mg_op_attention_forward(mg_backend* backend, void* out, void* saved, const void* qkv, int64_t B, int64_t T,
                                  int64_t C, int64_t NH) {
    return run_op(backend, "attention_forward", {B, T, C, NH}, [&](Backend& b) {
        mg::check_argument(C % NH == 0, "attention_forward: NH does not divide C");
        b.attention_forward(elements(out), saved, elements(qkv), B, T, C, NH);
    });
}

mg_status mg_op_attention_backward(mg_backend* backend, void* dqkv, const void* dout, const void* qkv, const void* out,
                                   const void* saved, int64_t B, int64_t T, int64_t C, int64_t NH) {
    return run_op(backend, "attention_backward", {B, T, C, NH}, [&](Backend& b) {
        mg::check_argument(C % NH == 0, "attention_backward: NH does not divide C");
        b.attention_backward(elements(dqkv), elements(dout), elements(qkv), elements(out), saved, B, T, C, NH);
    });
}

mg_status mg_op_head_loss_forward(mg_backend* backend, float* losses, const void* x, const float* wte,
                                  const int32_t* targets, int64_t N, int64_t C, int64_t V) {
    return run_op(backend, "head_loss_forward", {N, C, V}, [&](Backend& b) {
        b.head_loss_forward(losses, elements(x), Prepared(*backend, wte, V, C), targets, N);
    });
}

mg_status mg_op_head_loss_backward(mg_backend* backend, float* losses, void* dx, float* dwte, const void* x,
                                   const float* wte, const int32_t* targets, float scale, int64_t N, int64_t C,
                                   int64_t V) {
    return run_op(backend, "head_loss_backward", {N, C, V}, [&](Backend& b) {
        b.head_loss_backward(losses, elements(dx), dwte, elements(x), Prepared(*backend, wte, V, C), targets,
                             OnDevice<float>(b, scale, backend->kept_value.get()), N);
    });
}

mg_status mg_op_head_forward(mg_backend* backend, float* logits, const void* x, const float* wte, int64_t N, int64_t C,
                             int64_t V) {
    return run_op(backend, "head_forward", {N, C, V},
                  [&](Backend& b) { b.head_forward(logits, elements(x), Prepared(*backend, wte, V, C), N); });
}

mg_status mg_op_sum(mg_backend* backend, float* result, const float* x, int64_t count) {
    return run_op(backend, "sum", {count}, [&](Backend& b) { b.sum(result, x, count); });
}

mg_status mg_op_global_norm(mg_backend* backend, float* result, const float* x, int64_t count) {
    return run_op(backend, "global_norm", {count}, [&](Backend& b) { b.global_norm(result, x, count); });
}

mg_status mg_op_adamw(mg_backend* backend, float* parameters, float* gradients, float* m, float* v, const float* norm,
                      int64_t count, int32_t decays, int64_t step, const mg_step_options* options) {
    return run_op(backend, "adamw", {count, step}, [&](Backend& b) {
        mg::StepState state{};
        b.copy_out(&state.norm, norm, sizeof state.norm);
        state.steps = step - 1;
        const OnDevice<mg::AdamW> on_device(b, mg::adamw_of(options, "adamw"));
        b.adamw(parameters, gradients, m, v, nullptr, OnDevice<mg::StepState>(b, state), {{0, count, decays != 0}},
                on_device);
        b.synchronize();
    });
}

size_t mg_op_cache_bytes(const mg_backend* backend, int64_t sequences, int64_t capacity, int64_t C) {
    return backend == nullptr ? 0 : backend->backend->cache_bytes(sequences, capacity, C);
}

mg_status mg_op_cached_attention_forward(mg_backend* backend, void* out, void* cache, const void* qkv,
                                         const int32_t* sequences, const int32_t* positions, int64_t rows,
                                         int64_t capacity, int64_t C, int64_t NH) {
    return run_op(backend, "cached_attention_forward", {rows, capacity, C, NH}, [&](Backend& b) {
        mg::check_argument(C % NH == 0, "cached_attention_forward: NH does not divide C");
        b.cached_attention_forward(elements(out), cache, elements(qkv), sequences, positions, rows, capacity, C, NH);
    });
}

mg_status mg_op_peak_products(mg_backend* backend, int64_t rounds, double* operations) {
    return run_op(backend, "peak_products", {rounds}, [&](Backend& b) { *operations = b.peak_products(rounds); });
}

mg_status mg_op_read(mg_backend* backend, float* result, const void* memory, size_t bytes) {
    return run_op(backend, "read", {}, [&](Backend& b) { b.read(result, memory, bytes); });
}

}  // extern "C"
