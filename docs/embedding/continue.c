/* Loads a checkpoint that Andrea wrote, lets it write, trains it further on a text, lets it write again, and
 * saves its weights.  docs/embedding.md says how to build and run this. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"
#include "microgpt_cuda.h"
#include "vocabulary.h"

enum { BATCH = 4, STEPS = 30, WRITTEN = 60 };

static void give_up(const char* text) {
    fprintf(stderr, "continue: %s\n", text);
    exit(EXIT_FAILURE);
}

static void check(mg_status status) {
    if (status != MG_OK) give_up(mg_last_error());
}

static void* memory(size_t size) {
    void* found = malloc(size > 0 ? size : 1);
    if (found == NULL) give_up("there is not enough memory");
    return found;
}

/* The tokens of a file's text. */
static int32_t* tokens_of_file(const vocabulary* words, const char* path, int64_t* count) {
    char error[VOCABULARY_ERROR];
    FILE* file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) give_up("the text can't be read");
    const long size = ftell(file);
    if (size < 0) give_up("the text can't be read");
    rewind(file);
    char* text = memory((size_t)size);
    if (fread(text, 1, (size_t)size, file) != (size_t)size) give_up("the text can't be read");
    fclose(file);
    int32_t* tokens = memory((size_t)size * sizeof *tokens);
    *count = vocabulary_encode(words, text, (size_t)size, tokens, error);
    if (*count < 0) give_up(error);
    free(text);
    return tokens;
}

/* A number in [0, 1) from a generator of Marsaglia's (xorshift64*). */
static double random_number(uint64_t* state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (double)(*state * 2685821657736338717u >> 11) / 9007199254740992.0;
}

/* A token at random, each as likely as the model says at a temperature of 0.8. */
static int32_t choose(const float* logits, int32_t vocab_size, uint64_t* state) {
    const double temperature = 0.8;
    double highest = logits[0], sum = 0;
    for (int32_t token = 1; token < vocab_size; ++token)
        if (logits[token] > highest) highest = logits[token];
    for (int32_t token = 0; token < vocab_size; ++token) sum += exp((logits[token] - highest) / temperature);
    double left = random_number(state) * sum;
    for (int32_t token = 0; token < vocab_size; ++token)
        if ((left -= exp((logits[token] - highest) / temperature)) < 0) return token;
    return vocab_size - 1;
}

/* Prints what the model writes after the prompt, until it ends the document or has written enough. */
static void write_text(mg_model* model, const vocabulary* words, int32_t vocab_size, const char* prompt) {
    char error[VOCABULARY_ERROR];
    const size_t size = strlen(prompt);
    int32_t* tokens = memory((size + 1) * sizeof *tokens);
    float* logits = memory((size_t)vocab_size * sizeof *logits);
    uint64_t state = 1;
    mg_decoder* decoder;
    /* A document begins with that token; it is of no bytes. */
    tokens[0] = vocabulary_beginning(words);
    const int64_t length = vocabulary_encode(words, prompt, size, tokens + 1, error);
    if (length < 0) give_up(error);
    int32_t count = (int32_t)length + 1;
    check(mg_decoder_create(model, 1, &decoder));
    printf("%s", prompt);
    for (int written = 0; written < WRITTEN; ++written) {
        size_t bytes;
        check(mg_decoder_feed(decoder, tokens, &count, logits));
        tokens[0] = choose(logits, vocab_size, &state);
        count = 1;
        if (tokens[0] == vocabulary_beginning(words)) break;
        const char* text = vocabulary_bytes(words, tokens[0], &bytes);
        fwrite(text, 1, bytes, stdout);
    }
    putchar('\n');
    mg_decoder_free(decoder);
    free(logits);
    free(tokens);
}

/* Some steps on stretches of the text, one after the other. */
static void train(mg_model* model, const int32_t* tokens, int64_t count, int32_t context) {
    const mg_step_options options = {
        .struct_size = sizeof options,
        .learning_rate = 1e-3f,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .epsilon = 1e-8f,
        .weight_decay = 0.1f,
        .max_norm = 1.0f,
    };
    if (count < 2) give_up("the text is too short");
    if (context > count - 1) context = (int32_t)(count - 1);
    const size_t size = (size_t)context;
    int32_t *inputs = memory(BATCH * size * sizeof *inputs), *targets = memory(BATCH * size * sizeof *targets);
    int64_t start = 0;
    for (int step = 1; step <= STEPS; ++step) {
        float loss;
        for (size_t b = 0; b < BATCH; ++b, start = (start + context) % (count - context)) {
            memcpy(inputs + b * size, tokens + start, size * sizeof *inputs);
            memcpy(targets + b * size, tokens + start + 1, size * sizeof *targets);
        }
        check(mg_forward_backward(model, inputs, targets, BATCH, context, 1.0f, &loss));
        check(mg_step(model, &options, NULL));
        if (step == 1 || step % 10 == 0) printf("step %3d  loss %.3f\n", step, loss);
    }
    free(targets);
    free(inputs);
}

int main(int count, char** arguments) {
    char error[CHECKPOINT_ERROR];
    if (count < 4 || count > 5) give_up("expected a checkpoint, a text to train on, a file to save to, maybe a prompt");
    if (mg_abi_version() != MG_ABI_VERSION) give_up("the library is not the one of this header");
    const char* prompt = count == 5 ? arguments[4] : "";

    checkpoint* file = checkpoint_open(arguments[1], error);
    if (file == NULL) give_up(error);
    const mg_config* config = checkpoint_config(file);
    const char* tokenizer = checkpoint_metadata(file, "tokenizer");
    vocabulary* words = vocabulary_create(tokenizer, config->vocab_size, error);
    if (words == NULL) give_up(error);
    mg_model* model;
    check(mg_model_create(config, "auto", "auto", 1, &model));
    /* With the moments, where the file has them: AdamW goes on as if it had never stopped. */
    if (!checkpoint_load(file, model, checkpoint_step_count(file) >= 0, error)) give_up(error);

    int64_t steps, length;
    check(mg_model_step_count(model, &steps));
    printf("%lld parameters, %lld steps\n", (long long)mg_model_parameter_count(model), (long long)steps);
    write_text(model, words, config->vocab_size, prompt);
    int32_t* tokens = tokens_of_file(words, arguments[2], &length);
    train(model, tokens, length, config->block_size);
    write_text(model, words, config->vocab_size, prompt);
    if (!checkpoint_save(arguments[3], model, tokenizer, checkpoint_metadata(file, "record"), error)) give_up(error);

    free(tokens);
    mg_model_free(model);
    vocabulary_free(words);
    checkpoint_close(file);
    return EXIT_SUCCESS;
}
