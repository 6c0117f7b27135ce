/* Calls everything in both headers with odd shapes, for a build with sanitizers.  Buffers are exactly as long as the ops may
 * use, and plain memory of the host: the CPU backend's is no other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "microgpt_cuda_ops.h"

#define CHECK(call) check((call), MG_OK, #call, __LINE__)
#define REFUSED(status, call) check((call), (status), #call, __LINE__)

static void check(mg_status found, mg_status expected, const char* call, int line) {
    if (found == expected && (found == MG_OK || *mg_last_error() != '\0')) return;
    fprintf(stderr, "line %d: %s gave %d: %s\n", line, call, (int)found, mg_last_error());
    exit(1);
}

/* ---- buffers that are freed together */

static void* taken[96];
static int taken_count = 0;

static void* take(size_t bytes) {
    void* memory = malloc(bytes);
    if (memory == NULL || taken_count == 96) exit(2);
    return taken[taken_count++] = memory;
}

static void give_back(void) {
    while (taken_count > 0) free(taken[--taken_count]);
}

static uint32_t state = 1;

static uint32_t next_number(uint32_t limit) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % limit;
}

static float* numbers(int64_t count) {
    float* x = take((size_t)count * sizeof(float));
    for (int64_t i = 0; i < count; ++i) x[i] = (float)next_number(2001) / 1000.0f - 1.0f;
    return x;
}

static int32_t* ids(int64_t count, int32_t limit) {
    int32_t* x = take((size_t)count * sizeof(int32_t));
    for (int64_t i = 0; i < count; ++i) x[i] = (int32_t)next_number((uint32_t)limit);
    return x;
}

/* ---- ops */

static void all_ops(mg_backend* b, int64_t B, int64_t T, int64_t C, int64_t NH, int64_t V) {
    const int64_t N = B * T, M = 4 * C;
    int32_t* tokens = ids(N, (int32_t)V);
    float *x = numbers(N * C), *wte = numbers(V * C), *out = numbers(N * C), *row = numbers(N), *row_2 = numbers(N);
    float *gamma = numbers(C), *beta = numbers(C), *dwte = numbers(V * C);
    CHECK(mg_op_embedding_forward(b, out, tokens, NULL, wte, numbers(T * C), N, T, C));
    CHECK(mg_op_embedding_backward(b, dwte, numbers(T * C), out, tokens, N, T, C));
    CHECK(mg_op_norm_forward(b, out, row, row_2, x, gamma, beta, N, C));
    CHECK(mg_op_norm_backward(b, out, NULL, NULL, numbers(C), numbers(C), x, x, row, row_2, gamma, beta, N, C));
    CHECK(
        mg_op_norm_backward(b, out, out, numbers(N * C), numbers(C), numbers(C), x, x, row, row_2, gamma, beta, N, C));

    float *weight = numbers(M * C), *bias = numbers(M), *wide = numbers(N * M), *wide_2 = numbers(N * M);
    CHECK(mg_op_linear_forward(b, wide, x, weight, bias, N, M, C));
    CHECK(mg_op_linear_gelu_forward(b, wide, wide_2, x, weight, bias, N, M, C));
    CHECK(mg_op_linear_residual_forward(b, out, x, wide, weight, beta, N, C, M));
    CHECK(mg_op_linear_backward_input(b, out, wide, weight, N, M, C));
    CHECK(mg_op_linear_gelu_backward_input(b, wide, wide_2, x, weight, N, C, M));
    CHECK(mg_op_linear_backward_weight(b, numbers(M * C), numbers(M), wide, x, N, M, C));

    /* What dialects leave out, and their own. */
    CHECK(mg_op_norm_forward(b, out, NULL, row_2, x, NULL, NULL, N, C));
    CHECK(mg_op_norm_backward(b, out, out, numbers(N * C), NULL, NULL, x, x, NULL, row_2, NULL, NULL, N, C));
    CHECK(mg_op_stream_norm_forward(b, out, row, row_2, x, gamma, beta, N, C));
    CHECK(mg_op_stream_norm_forward(b, out, NULL, row_2, out, gamma, NULL, N, C));
    CHECK(mg_op_stream_norm_backward(b, out, out, numbers(C), numbers(C), x, row, row_2, gamma, N, C));
    CHECK(mg_op_stream_norm_backward(b, out, NULL, NULL, NULL, x, NULL, row_2, NULL, N, C));
    CHECK(mg_op_read_stream(b, out, x, N * C));
    CHECK(mg_op_add_to_stream(b, out, out, x, N * C));
    CHECK(mg_op_linear_forward(b, wide, x, weight, NULL, N, M, C));
    CHECK(mg_op_linear_residual_forward(b, out, NULL, wide, weight, NULL, N, C, M));
    for (int32_t f = MG_GELU; f <= MG_SWIGLU; ++f) {
        const int64_t hidden = f == MG_SWIGLU ? 2 * C : C;
        CHECK(mg_op_activation_forward(b, f, out, numbers(N * hidden), N, C));
        CHECK(mg_op_activation_backward(b, f, numbers(N * hidden), out, N, C));
    }

    float *qkv = numbers(N * 3 * C), *saved = take(mg_op_attention_saved_bytes(b, B, T, NH));
    CHECK(mg_op_attention_forward(b, out, saved, qkv, B, T, C, NH));
    CHECK(mg_op_attention_backward(b, numbers(N * 3 * C), x, qkv, out, saved, B, T, C, NH));

    int32_t* targets = ids(N, (int32_t)V);
    targets[0] = MG_IGNORED_TARGET;
    CHECK(mg_op_head_loss_forward(b, row, x, wte, targets, N, C, V));
    CHECK(mg_op_head_loss_backward(b, row, out, dwte, x, wte, targets, 0.5f, N, C, V));
    CHECK(mg_op_head_forward(b, numbers(N * V), x, wte, N, C, V));

    /* Every sequence's tokens at once, as a prompt is read. */
    int32_t *sequences = ids(N, 1), *positions = ids(N, 1);
    for (int64_t i = 0; i < N; ++i) {
        sequences[i] = (int32_t)(i / T);
        positions[i] = (int32_t)(i % T);
    }
    void* cache = take(mg_op_cache_bytes(b, B, T, C));
    CHECK(mg_op_cached_attention_forward(b, out, cache, qkv, sequences, positions, N, T, C, NH));

    const mg_step_options options = {sizeof options, 1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 0.0f, 0.0f};
    float result[1], *v = numbers(M * C);
    for (int64_t i = 0; i < M * C; ++i) v[i] *= v[i];
    CHECK(mg_op_sum(b, result, x, N * C));
    CHECK(mg_op_global_norm(b, result, weight, M * C));
    CHECK(mg_op_adamw(b, weight, numbers(M * C), numbers(M * C), v, result, M * C, 1, 1, &options));
    give_back();
}

/* ---- the model, trained past an odd step or two, and decoded past its context */

static void whole_model(mg_config config, int32_t B, int32_t T) {
    const mg_step_options options = {sizeof options, 1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 0.0f, 0.0f};
    const int64_t N = (int64_t)B * T;
    mg_model* model;
    mg_memory_plan plan;
    float loss, norm, *memory;
    config.struct_size = sizeof config;
    CHECK(mg_plan_memory(&config, "cpu", "fp32", B, T, 1, &plan));
    CHECK(mg_model_create(&config, "cpu", "fp32", 7, &model));
    mg_config told;
    told.struct_size = sizeof told;
    CHECK(mg_model_config(model, &told));
    if (told.norm_position != config.norm_position || told.mlp_dim < 1 || told.residual == MG_DEFAULT) exit(3);
    int32_t *tokens = ids(N, config.vocab_size), *targets = ids(N, config.vocab_size);
    for (int64_t i = 1; i < N; i += 5) targets[i] = MG_IGNORED_TARGET;
    for (int step = 0; step < 2; ++step) {
        CHECK(mg_forward(model, tokens, targets, B, T, &loss));
        CHECK(mg_backward(model, 0.5f));
        CHECK(mg_forward_backward(model, tokens, targets, 1, T, 0.5f, &loss));
        CHECK(mg_step(model, &options, &norm));
    }
    /* A step that is left out, but where a vocabulary of 1 has no gradient at all. */
    mg_step_options limited = options;
    limited.skip_norm_above = 1e-20f;
    CHECK(mg_forward_backward(model, tokens, targets, B, T, 1.0f, &loss));
    CHECK(mg_step(model, &limited, &norm));
    const int64_t updates = 3 + (norm <= limited.skip_norm_above);
    /* Queued without waiting, asked afterwards; what a forward pass keeps, to its last number. */
    int32_t activations;
    CHECK(mg_forward(model, tokens, targets, B, T, NULL));
    CHECK(mg_model_activation_count(model, &activations));
    for (int32_t i = 0; i < activations; ++i) {
        mg_activation one;
        CHECK(mg_model_activation(model, i, &one));
        if (one.is_bf16) exit(3);
        const int64_t size = one.shape[0] * one.shape[1] * (one.n_dims == 3 ? one.shape[2] : 1);
        const float last = ((const float*)one.memory)[size - 1];
        if (last - last != 0.0f) exit(3);
    }
    CHECK(mg_loss(model, &loss));
    CHECK(mg_backward(model, 1.0f));
    CHECK(mg_zero_gradients(model));
    CHECK(mg_step(model, &options, NULL));
    CHECK(mg_gradient_norm(model, &norm));
    if (norm != 0.0f) exit(3);
    CHECK(mg_model_wait(model, 0));
    CHECK(mg_model_synchronize(model));
    int64_t steps = 0;
    CHECK(mg_model_step_count(model, &steps));
    if (steps != updates || !mg_model_host_readable(model) || *mg_model_description(model) == '\0') exit(3);
    CHECK(mg_logits(model, tokens, B, T, numbers(N * config.vocab_size)));
    const int64_t all = mg_model_parameter_count(model);
    float* copied = numbers(all);
    CHECK(mg_model_read(model, MG_MOMENT_1, 0, 1, copied));
    CHECK(mg_model_read(model, MG_PARAMETERS, 0, all, copied));
    CHECK(mg_model_write(model, MG_PARAMETERS, all - 1, 1, copied));
    REFUSED(MG_ERROR_ARGUMENT, mg_model_read(model, MG_PARAMETERS, -1, 2, copied));
    for (int kind = MG_PARAMETERS; kind <= MG_MOMENT_2; ++kind) CHECK(mg_model_memory(model, (mg_memory)kind, &memory));
    for (int32_t i = 0; i < mg_model_tensor_count(model); ++i) {
        mg_tensor tensor;
        CHECK(mg_model_tensor(model, i, &tensor));
        memory[tensor.offset + tensor.size - 1] = 0.0f;
    }
    CHECK(mg_model_refresh(model));

    /* Refused calls leave the model as it was. */
    int32_t wrong = config.vocab_size, nothing = MG_IGNORED_TARGET;
    REFUSED(MG_ERROR_ARGUMENT, mg_forward(model, &wrong, targets, 1, 1, &loss));
    REFUSED(MG_ERROR_ARGUMENT, mg_forward(model, tokens, &nothing, 1, 1, &loss));
    REFUSED(MG_ERROR_ARGUMENT, mg_forward(model, tokens, targets, B, config.block_size + 1, &loss));
    REFUSED(MG_ERROR_ARGUMENT, mg_forward(model, NULL, targets, B, T, &loss));
    REFUSED(MG_ERROR_STATE, mg_backward(model, 1.0f));
    REFUSED(MG_ERROR_ARGUMENT, mg_step(model, NULL, &norm));

    mg_decoder* decoder;
    int32_t counts[3] = {config.block_size, 1, 0};
    float* logits = numbers(3 * (int64_t)config.vocab_size);
    CHECK(mg_decoder_create(model, 3, &decoder));
    int32_t* fed = ids(config.block_size + 1, config.vocab_size);
    CHECK(mg_decoder_feed(decoder, fed, counts, logits));
    for (int32_t i = 0; i < 2 * config.block_size; ++i) {
        counts[0] = i % 2;
        counts[1] = 1;
        counts[2] = i % 3 == 0;
        CHECK(mg_decoder_feed(decoder, ids(3, config.vocab_size), counts, logits));
        if (mg_decoder_length(decoder, 1) > config.block_size) exit(3);
        --taken_count;
        free(taken[taken_count]);
    }
    CHECK(mg_decoder_forget(decoder, 1));
    REFUSED(MG_ERROR_ARGUMENT, mg_decoder_forget(decoder, 3));
    if (mg_decoder_length(decoder, 1) != 0) exit(3);
    CHECK(mg_model_reset(model, 8));
    mg_model_free(model); /* before its decoder, which keeps what it needs */
    CHECK(mg_decoder_reset(decoder));
    CHECK(mg_decoder_feed(decoder, fed, counts, logits));
    mg_decoder_free(decoder);
    give_back();
}

int main(void) {
    static const struct {
        int32_t V, block_size, n_layer, n_head, n_embd, B, T;
    } shapes[] = {{1, 1, 1, 1, 1, 1, 1},       {2, 3, 1, 1, 3, 2, 3},     {5, 7, 2, 3, 9, 3, 5},
                  {17, 33, 1, 2, 10, 1, 33},   {3, 9, 1, 1, 17, 2, 1},    {97, 65, 1, 3, 51, 2, 65},
                  {33, 130, 1, 1, 40, 1, 129}, {11, 12, 3, 2, 14, 25, 12}};
    const mg_config dialects[] = {
        {0},
        {.norm = MG_RMSNORM,
         .norm_position = MG_NORM_POST,
         .activation = MG_SWIGLU,
         .mlp_dim = 5,
         .mlp_bias = MG_OFF,
         .tie_embeddings = MG_OFF,
         .final_norm = MG_OFF,
         .embedding_norm = MG_ON},
        {.norm_position = MG_NORM_NONE,
         .residual = MG_OFF,
         .activation = MG_RELU2,
         .attn_bias = MG_OFF,
         .final_norm = MG_OFF},
    };
    for (int32_t threads = 1; threads <= 3; ++threads) {
        CHECK(mg_set_num_threads(threads));
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i) {
            mg_backend* backend;
            CHECK(mg_backend_create("cpu", "fp32", &backend));
            all_ops(backend, shapes[i].B, shapes[i].T, shapes[i].n_embd, shapes[i].n_head, shapes[i].V);
            mg_backend_free(backend);
            const size_t spoken = threads == 2 ? sizeof dialects / sizeof *dialects : 1;
            for (size_t d = 0; d < spoken; ++d) {
                mg_config config = dialects[d];
                config.vocab_size = shapes[i].V;
                config.block_size = shapes[i].block_size;
                config.n_layer = shapes[i].n_layer;
                config.n_head = shapes[i].n_head;
                config.n_embd = shapes[i].n_embd;
                whole_model(config, shapes[i].B, shapes[i].T);
            }
        }
    }
    const char* isa;
    mg_cuda_info info;
    mg_get_cuda_info(&info);
    CHECK(mg_cpu_isa(&isa));
    printf("clean with %s kernels\n", isa);
    return 0;
}
