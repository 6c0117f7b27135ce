/* Trains a small model on one rhyme and lets it recite, through microgpt_cuda.h alone.
 * Tokens are bytes, so there is no tokenizer; docs/embedding.md says how to build and run this. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "microgpt_cuda.h"

static const char text[] =
    "Twinkle, twinkle, little star,\n"
    "How I wonder what you are!\n"
    "Up above the world so high,\n"
    "Like a diamond in the sky.\n"
    "When the blazing sun is gone,\n"
    "When he nothing shines upon,\n"
    "Then you show your little light,\n"
    "Twinkle, twinkle, all the night.\n";

enum { VOCABULARY = 256, CONTEXT = 64, BATCH = 8, STEPS = 300 };

/* Every call that can fail returns a status, and the thread's last error says in a line what was wrong. */
static void check(mg_status status) {
    if (status == MG_OK) return;
    fprintf(stderr, "train: %s\n", mg_last_error());
    exit(EXIT_FAILURE);
}

/* Inputs are stretches of the text, targets the same one byte later: each byte learns to predict the next. */
static void fill_batch(int32_t* inputs, int32_t* targets, int step) {
    const int places = (int)sizeof text - 1 - CONTEXT;
    for (int b = 0; b < BATCH; ++b) {
        const int start = (step * 37 + b * 53) % places;
        for (int t = 0; t < CONTEXT; ++t) {
            inputs[b * CONTEXT + t] = (unsigned char)text[start + t];
            targets[b * CONTEXT + t] = (unsigned char)text[start + t + 1];
        }
    }
}

static void train(mg_model* model) {
    static int32_t inputs[BATCH * CONTEXT], targets[BATCH * CONTEXT];
    mg_step_options options = {
        .struct_size = sizeof options, /* how the library knows which version of the struct this is */
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .epsilon = 1e-8f,
        .weight_decay = 0.1f,
        .max_norm = 1.0f,
    };
    for (int step = 1; step <= STEPS; ++step) {
        float loss, gradient_norm;
        options.learning_rate = 5e-3f * (1.0f - (float)step / (STEPS + 1)); /* shorter strides towards the end */
        fill_batch(inputs, targets, step);
        check(mg_forward_backward(model, inputs, targets, BATCH, CONTEXT, 1.0f, &loss));
        check(mg_step(model, &options, &gradient_norm));
        if (step == 1 || step % 50 == 0) printf("step %3d  loss %.3f\n", step, loss);
    }
}

/* Feeds the prompt, then again and again the likeliest next byte. */
static void recite(mg_model* model, const char* prompt, int length) {
    static float logits[VOCABULARY];
    int32_t tokens[CONTEXT];
    int32_t count = (int32_t)strlen(prompt);
    mg_decoder* decoder;
    check(mg_decoder_create(model, 1, &decoder));
    for (int i = 0; i < count; ++i) tokens[i] = (unsigned char)prompt[i];
    printf("%s", prompt);
    for (int written = 0; written < length; ++written) {
        check(mg_decoder_feed(decoder, tokens, &count, logits));
        int32_t best = 0;
        for (int32_t v = 1; v < VOCABULARY; ++v)
            if (logits[v] > logits[best]) best = v;
        putchar(best);
        tokens[0] = best;
        count = 1;
    }
    putchar('\n');
    mg_decoder_free(decoder);
}

int main(void) {
    if (mg_abi_version() != MG_ABI_VERSION) {
        fprintf(stderr, "train: the library is not the one of this header\n");
        return EXIT_FAILURE;
    }
    const mg_config config = {
        .struct_size = sizeof config,
        .vocab_size = VOCABULARY,
        .block_size = CONTEXT,
        .n_layer = 2,
        .n_head = 4,
        .n_embd = 64,
    };
    const char* isa;
    mg_model* model;
    check(mg_cpu_isa(&isa));
    check(mg_model_create(&config, "auto", "auto", 1, &model)); /* the seed decides the initial parameters */
    printf("%lld parameters, %s kernels, %d threads\n", (long long)mg_model_parameter_count(model), isa,
           (int)mg_get_num_threads());
    train(model);
    recite(model, "How I", 76);
    mg_model_free(model);
    return EXIT_SUCCESS;
}
