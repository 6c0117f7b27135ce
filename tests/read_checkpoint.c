/* Reads files as docs/embedding does and prints a line for each: what was read, or why not.  With a text as the first argument's
 * file: its tokens.  The buffers of what is read are exactly as long as they may be, for sanitizers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"
#include "sha256.h"
#include "vocabulary.h"

static void* memory(size_t size) {
    void* found = malloc(size);
    if (found == NULL && size > 0) exit(2);
    return found;
}

/* The checksum of all numbers of a kind, tensor by tensor, little-endian. */
static void print_numbers(mg_model* model, mg_memory kind) {
    char digits[65];
    sha256 sum;
    sha256_start(&sum);
    for (int32_t i = 0; i < mg_model_tensor_count(model); ++i) {
        mg_tensor tensor;
        if (mg_model_tensor(model, i, &tensor) != MG_OK) exit(2);
        float* values = memory((size_t)tensor.size * sizeof *values);
        if (mg_model_read(model, kind, tensor.offset, tensor.size, values) != MG_OK) exit(2);
        sha256_add(&sum, (const unsigned char*)values, (size_t)tensor.size * sizeof *values);
        free(values);
    }
    sha256_finish(&sum, digits);
    printf(" %s", digits);
}

/* Of the model that was made, so with nothing left to defaults. */
static void print_settings(const mg_model* model) {
    mg_config c = {.struct_size = sizeof c};
    if (mg_model_config(model, &c) != MG_OK) exit(2);
    const int32_t numbers[] = {c.vocab_size,     c.block_size, c.n_layer,     c.n_head,         c.n_embd,
                               c.mlp_dim,        c.norm,       c.norm_affine, c.norm_position,  c.residual,
                               c.activation,     c.attn_bias,  c.mlp_bias,    c.tie_embeddings, c.final_norm,
                               c.embedding_norm, c.scaled_init};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i) printf("%d ", (int)numbers[i]);
    printf("%.9g", (double)c.init_std);
}

static void print_vocabulary(const vocabulary* words, int32_t vocab_size) {
    char digits[65];
    sha256 sum;
    sha256_start(&sum);
    for (int32_t token = 0; token < vocab_size; ++token) {
        size_t size;
        const unsigned char* bytes = (const unsigned char*)vocabulary_bytes(words, token, &size);
        const unsigned char length[2] = {(unsigned char)(size >> 8), (unsigned char)size};
        sha256_add(&sum, length, sizeof length);
        sha256_add(&sum, bytes, size);
    }
    sha256_finish(&sum, digits);
    printf(" %s", digits);
}

static void print_tokens(const vocabulary* words, const char* path) {
    char error[VOCABULARY_ERROR];
    FILE* file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) exit(2);
    const size_t size = (size_t)ftell(file);
    char* text = memory(size);
    int32_t* tokens = memory(size * sizeof *tokens);
    rewind(file);
    if (fread(text, 1, size, file) != size) exit(2);
    fclose(file);
    const int64_t count = vocabulary_encode(words, text, size, tokens, error);
    if (count < 0) printf("refused: %s\n", error);
    for (int64_t i = 0; i < count; ++i) printf("%d%c", (int)tokens[i], i + 1 < count ? ' ' : '\n');
    free(tokens);
    free(text);
}

/* "--text FILE" before the checkpoints prints its tokens instead; "--weights" reads no moments though there are some; "--save FILE"
 * writes what was read. */
int main(int count, char** arguments) {
    const char *text = NULL, *save = NULL;
    int moments = 1;
    for (int i = 1; i < count; ++i) {
        char error[CHECKPOINT_ERROR] = "";
        if (strcmp(arguments[i], "--text") == 0) {
            text = arguments[++i];
            continue;
        }
        if (strcmp(arguments[i], "--save") == 0) {
            save = arguments[++i];
            continue;
        }
        if (strcmp(arguments[i], "--weights") == 0) {
            moments = 0;
            continue;
        }
        checkpoint* file = checkpoint_open(arguments[i], error);
        vocabulary* words = NULL;
        mg_model* model = NULL;
        if (file != NULL) {
            const mg_config* config = checkpoint_config(file);
            words = vocabulary_create(checkpoint_metadata(file, "tokenizer"), config->vocab_size, error);
            if (words != NULL && text == NULL && mg_model_create(config, "cpu", "fp32", 1, &model) != MG_OK) exit(2);
            if (words != NULL && text != NULL) {
                print_tokens(words, text);
            } else if (words != NULL && checkpoint_load(file, model, moments, error)) {
                int64_t steps;
                if (mg_model_step_count(model, &steps) != MG_OK) exit(2);
                print_settings(model);
                printf(" %lld", (long long)steps);
                print_numbers(model, MG_PARAMETERS);
                print_numbers(model, MG_MOMENT_1);
                print_numbers(model, MG_MOMENT_2);
                print_vocabulary(words, config->vocab_size);
                putchar('\n');
                if (save != NULL)
                    checkpoint_save(save, model, checkpoint_metadata(file, "tokenizer"),
                                    checkpoint_metadata(file, "record"), error);
            }
        }
        if (error[0] != '\0') printf("refused: %s\n", error);
        mg_model_free(model);
        vocabulary_free(words);
        checkpoint_close(file);
    }
    return 0;
}
