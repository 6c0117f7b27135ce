#include "settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

typedef enum { SIZE, MLP_SIZE, SWITCH, CHOICE, DEVIATION } setting_kind;

typedef struct {
    const char* name;
    size_t place; /* in an mg_config */
    setting_kind kind;
    int32_t usual;          /* of what isn't a size */
    const char* choices[6]; /* by their numbers; null after the last */
} setting;

#define SETTING(setting) .name = #setting, .place = offsetof(mg_config, setting)

/* In the order of the alphabet, as they are written. */
static const setting settings[] = {
    {SETTING(activation), .kind = CHOICE, .choices = {"gelu", "gelu_erf", "relu", "relu2", "swiglu"}},
    {SETTING(attn_bias), .kind = SWITCH, .usual = MG_ON},
    {SETTING(block_size), .kind = SIZE},
    {SETTING(embedding_norm), .kind = SWITCH, .usual = MG_OFF},
    {SETTING(final_norm), .kind = SWITCH, .usual = MG_ON},
    {SETTING(init_std), .kind = DEVIATION},
    {SETTING(mlp_bias), .kind = SWITCH, .usual = MG_ON},
    {SETTING(mlp_dim), .kind = MLP_SIZE},
    {SETTING(n_embd), .kind = SIZE},
    {SETTING(n_head), .kind = SIZE},
    {SETTING(n_layer), .kind = SIZE},
    {SETTING(norm), .kind = CHOICE, .choices = {"layernorm", "rmsnorm"}},
    {SETTING(norm_affine), .kind = SWITCH, .usual = MG_ON},
    {SETTING(norm_position), .kind = CHOICE, .choices = {"pre", "post", "none"}},
    {SETTING(residual), .kind = SWITCH, .usual = MG_ON},
    {SETTING(scaled_init), .kind = SWITCH, .usual = MG_ON},
    {SETTING(tie_embeddings), .kind = SWITCH, .usual = MG_ON},
    {SETTING(vocab_size), .kind = SIZE},
};

enum { SETTINGS = sizeof settings / sizeof *settings, SIZES = 5 };

static const float usual_std = 0.02f;
static const double smallest_std = 1e-30, largest_std = 100;

/* ---- reading */

static int read_size(json* j, int32_t least, int32_t* number) {
    int64_t value;
    if (!json_integer(j, &value) || value < least || value > INT32_MAX) return 0;
    *number = (int32_t)value;
    return 1;
}

static int read_choice(json* j, const char* const* choices, int32_t* number) {
    json_text text;
    if (!json_string(j, &text)) return 0;
    for (*number = 0; choices[*number] != NULL; ++*number)
        if (json_is(text, choices[*number])) return 1;
    return 0;
}

static int read_value(json* j, const setting* s, mg_config* config) {
    char* const place = (char*)config + s->place;
    int32_t number;
    int is_on, is_read = 0;
    if (s->kind == DEVIATION) {
        double value;
        if (!json_number(j, &value) || !(value >= smallest_std && value <= largest_std)) return 0;
        const float deviation = (float)value;
        memcpy(place, &deviation, sizeof deviation);
        return 1;
    }
    if (s->kind == SWITCH) {
        is_read = json_boolean(j, &is_on);
        number = is_read && is_on ? MG_ON : MG_OFF;
    } else if (s->kind == CHOICE) {
        is_read = read_choice(j, s->choices, &number);
    } else {
        is_read = read_size(j, s->kind == SIZE ? 1 : 0, &number);
    }
    if (is_read) memcpy(place, &number, sizeof number);
    return is_read;
}

static int refuse(char wrong[SETTINGS_ERROR], const char* what, const char* name) {
    snprintf(wrong, SETTINGS_ERROR, "%s%.64s", what, name);
    return 0;
}

int settings_read(char* text, mg_config* config, char wrong[SETTINGS_ERROR]) {
    json j = json_of(text, strlen(text));
    json_text key;
    int first = 1, sizes = 0, seen[SETTINGS] = {0};
    const mg_config empty = {.struct_size = sizeof empty};
    *config = empty;
    json_open(&j, '{');
    while (json_more(&j, '}', &first)) {
        size_t i = 0;
        if (!json_key(&j, &key)) break;
        while (i < SETTINGS && !json_is(key, settings[i].name)) ++i;
        /* A model with more settings than these computes something else. */
        if (i == SETTINGS) return refuse(wrong, "has a model setting that this reader doesn't know: ", key.bytes);
        if (seen[i]++ > 0) return refuse(wrong, "has a model setting twice: ", settings[i].name);
        if (!read_value(&j, &settings[i], config))
            return refuse(wrong, "has a model setting with a value that can't be: ", settings[i].name);
        sizes += settings[i].kind == SIZE;
    }
    if (!json_end(&j) || sizes != SIZES) return refuse(wrong, "does not tell its model's sizes", "");
    return 1;
}

/* ---- writing */

/* The shortest decimal number that is this float, with a point or an exponent, as Python writes it. */
static void write_deviation(float value, char text[32]) {
    char printed[32], *out = text;
    int digits = 3, is_whole = 1; /* 100 is no 1e+02 */
    do snprintf(printed, sizeof printed, "%.*g", digits++, (double)value);
    while (strtof(printed, NULL) != value && digits <= 9);
    for (const char* s = printed; *s != '\0'; ++s) {
        const int is_part = strchr("0123456789e+-", *s) != NULL;
        if (!is_part || *s == 'e') is_whole = 0;
        if (is_part)
            *out++ = *s;
        else if (out == text || out[-1] != '.') /* the point, whatever it is in this locale */
            *out++ = '.';
    }
    strcpy(out, is_whole ? ".0" : "");
}

static int32_t usual_mlp_dim(const mg_config* c) {
    if (c->activation != MG_SWIGLU) return 4 * c->n_embd;
    return (int32_t)((8 * (int64_t)c->n_embd + 191) / 192 * 64);
}

static int is_usual(const mg_config* c, const setting* s, int32_t number) {
    switch (s->kind) {
        case SIZE: return 0;
        case MLP_SIZE: return number == usual_mlp_dim(c);
        case DEVIATION: return c->init_std == usual_std;
        default: return number == s->usual;
    }
}

void settings_write(const mg_config* config, char text[SETTINGS_TEXT]) {
    char value[32], *out = text;
    for (int i = 0; i < SETTINGS; ++i) {
        const setting* s = &settings[i];
        int32_t number = 0;
        if (s->kind != DEVIATION) memcpy(&number, (const char*)config + s->place, sizeof number);
        if (is_usual(config, s, number)) continue;
        if (s->kind == DEVIATION)
            write_deviation(config->init_std, value);
        else if (s->kind == SWITCH)
            strcpy(value, number == MG_ON ? "true" : "false");
        else if (s->kind == CHOICE)
            snprintf(value, sizeof value, "\"%s\"", s->choices[number]);
        else
            snprintf(value, sizeof value, "%d", (int)number);
        out += sprintf(out, "%c\"%s\":%s", out == text ? '{' : ',', s->name, value);
    }
    strcpy(out, "}");
}
