#include "checkpoint.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "settings.h"
#include "sha256.h"

enum {
    MAX_AXES = 8,
    MAX_METADATA = 64,
    MAX_HEADER = 100000000, /* bytes; safetensors has the same limit */
    MAX_PADDING = 256,      /* bytes after a tensor in a model's memory */
    CHECKSUM = 64,          /* digits */
    CHUNK = 1 << 16         /* floats that are read at a time */
};

typedef struct {
    const char* name;
    int64_t begin, end; /* bytes, from the end of the header */
    int64_t shape[MAX_AXES];
    int n_dims;
    int is_known;  /* while loading: a tensor of the model or of its moments */
    int is_wanted; /* that is loaded, to offset of this kind of memory */
    mg_memory kind;
    int64_t offset;
} entry;

struct checkpoint {
    FILE* file;
    char path[121]; /* for errors, so its beginning does */
    char* header;   /* decoded: texts are what names and metadata point to */
    size_t header_size;
    entry* entries; /* as they follow each other in the file */
    entry** by_name;
    size_t count, room;
    const char *names[MAX_METADATA], *texts[MAX_METADATA]; /* of the metadata */
    int metadata_count;
    mg_config config;
    int64_t step_count;
    char* error; /* of the call that goes on */
    float values[CHUNK];
};

/* One line, whatever is in the names that it tells; returns 0. */
static int refuse(checkpoint* c, const char* format, ...) {
    va_list values;
    const size_t size = (size_t)snprintf(c->error, CHECKPOINT_ERROR, "%s ", c->path);
    va_start(values, format);
    vsnprintf(c->error + size, CHECKPOINT_ERROR - size, format, values);
    va_end(values);
    for (char* s = c->error; *s != '\0'; ++s)
        if ((unsigned char)*s < 0x20 || *s == 0x7f || ((unsigned char)*s > 0x7f && s >= c->error + size)) *s = '?';
    return 0;
}

static int read_exactly(checkpoint* c, void* data, size_t size) {
    errno = 0;
    if (fread(data, 1, size, c->file) == size) return 1;
    return ferror(c->file) ? refuse(c, "cannot be read: %s", strerror(errno)) : refuse(c, "is cut short");
}

const char* checkpoint_metadata(const checkpoint* c, const char* name) {
    for (int i = 0; i < c->metadata_count; ++i)
        if (strcmp(c->names[i], name) == 0) return c->texts[i];
    return NULL;
}

/* ---- the header */

/* The header, as it is in the file, and its checksum begun: with the digits of the checksum itself as zeros. */
static int read_header(checkpoint* c, sha256* sum) {
    static const char key[] = "\"checksum\":\"";
    unsigned char length[8], zeros[CHECKSUM];
    uint64_t size = 0;
    if (!read_exactly(c, length, sizeof length)) return 0;
    for (int i = 7; i >= 0; --i) size = size << 8 | length[i];
    if (size > MAX_HEADER)
        return refuse(c, "is no checkpoint: its header would be %llu bytes", (unsigned long long)size);
    c->header_size = (size_t)size;
    c->header = malloc(c->header_size + 1);
    if (c->header == NULL) return refuse(c, "has a header for which there is no memory");
    if (!read_exactly(c, c->header, c->header_size)) return 0;
    c->header[c->header_size] = '\0';
    sha256_start(sum);
    sha256_add(sum, length, sizeof length);
    memset(zeros, '0', sizeof zeros);
    size_t at = 0;
    const size_t needed = sizeof key - 1 + CHECKSUM;
    /* Quotes inside of texts are escaped, so that the first place is the one. */
    while (at + needed <= c->header_size && memcmp(c->header + at, key, sizeof key - 1) != 0) ++at;
    if (at + needed > c->header_size) return refuse(c, "is no Andrea checkpoint: it has no checksum");
    at += sizeof key - 1;
    sha256_add(sum, (const unsigned char*)c->header, at);
    sha256_add(sum, zeros, sizeof zeros);
    at += CHECKSUM;
    sha256_add(sum, (const unsigned char*)c->header + at, c->header_size - at);
    return 1;
}

/* A text that holds no zero, and so is as long as it looks. */
static int plain_text(json* j, int is_key, const char** text) {
    json_text found;
    if (!(is_key ? json_key(j, &found) : json_string(j, &found))) return 0;
    *text = found.bytes;
    return strlen(found.bytes) == found.size;
}

static int read_metadata(checkpoint* c, json* j) {
    int first = 1;
    if (c->metadata_count > 0 || !json_open(j, '{')) return 0;
    while (json_more(j, '}', &first)) {
        const char *name, *text;
        if (c->metadata_count == MAX_METADATA || !plain_text(j, 1, &name) || !plain_text(j, 0, &text)) return 0;
        if (checkpoint_metadata(c, name) != NULL) return 0;
        c->names[c->metadata_count] = name;
        c->texts[c->metadata_count++] = text;
    }
    return !j->failed;
}

static int read_numbers(json* j, int64_t* numbers, int limit, int* count) {
    int first = 1;
    *count = 0;
    if (!json_open(j, '[')) return 0;
    while (json_more(j, ']', &first))
        if (*count == limit || !json_integer(j, &numbers[(*count)++])) return 0;
    return !j->failed;
}

static int read_entry(checkpoint* c, json* j, const char* name) {
    int first = 1, has_type = 0, has_shape = 0, offsets = 0;
    int64_t begin_end[2] = {0, 0};
    json_text key, type;
    if (c->count == c->room) return 0;
    entry* e = &c->entries[c->count++];
    e->name = name;
    if (!json_open(j, '{')) return 0;
    while (json_more(j, '}', &first)) {
        if (!json_key(j, &key)) return 0;
        if (json_is(key, "dtype")) {
            if (has_type++ > 0 || !json_string(j, &type)) return 0;
            if (!json_is(type, "F32")) return refuse(c, "holds %.64s as %.16s, not F32", name, type.bytes);
        } else if (json_is(key, "shape")) {
            if (has_shape++ > 0 || !read_numbers(j, e->shape, MAX_AXES, &e->n_dims)) return 0;
        } else if (json_is(key, "data_offsets")) {
            if (offsets > 0 || !read_numbers(j, begin_end, 2, &offsets) || offsets != 2) return 0;
        } else if (!json_skip(j)) {
            return 0;
        }
    }
    e->begin = begin_end[0];
    e->end = begin_end[1];
    return !j->failed && has_type && has_shape && offsets == 2;
}

/* The bytes that a shape needs; -1 where there can't be as many. */
static int64_t bytes_of(const entry* e) {
    int64_t bytes = 4;
    for (int i = 0; i < e->n_dims; ++i) {
        if (e->shape[i] < 0 || (e->shape[i] > 0 && bytes > INT64_MAX / e->shape[i])) return -1;
        bytes *= e->shape[i];
    }
    return bytes;
}

static int by_place(const void* a, const void* b) {
    const entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static int by_name(const void* a, const void* b) {
    return strcmp((*(entry* const*)a)->name, (*(entry* const*)b)->name);
}

/* Tensors fill the file from the header's end without holes and overlaps, and no two have a name. */
static int check_entries(checkpoint* c) {
    int64_t end = 0;
    if (c->count == 0) return refuse(c, "holds no tensors");
    qsort(c->entries, c->count, sizeof(entry), by_place);
    c->by_name = malloc(c->count * sizeof *c->by_name);
    if (c->by_name == NULL) return refuse(c, "has more tensors than there is memory for");
    for (size_t i = 0; i < c->count; ++i) {
        entry* e = c->by_name[i] = &c->entries[i];
        if (e->begin != end) return refuse(c, "is damaged: %.64s does not lie where the one before it ends", e->name);
        if (bytes_of(e) != e->end - e->begin)
            return refuse(c, "is damaged: %.64s has another size than its shape", e->name);
        end = e->end;
    }
    qsort(c->by_name, c->count, sizeof *c->by_name, by_name);
    for (size_t i = 1; i < c->count; ++i)
        if (strcmp(c->by_name[i - 1]->name, c->by_name[i]->name) == 0)
            return refuse(c, "is damaged: it has %.64s twice", c->by_name[i]->name);
    return 1;
}

static int read_table(checkpoint* c) {
    json j = json_of(c->header, c->header_size);
    int first = 1, is_good = json_open(&j, '{');
    c->room = c->header_size / 40 + 1; /* an entry takes more letters */
    c->entries = calloc(c->room, sizeof(entry));
    if (c->entries == NULL) return refuse(c, "has a header for which there is no memory");
    while (is_good && json_more(&j, '}', &first)) {
        const char* name;
        is_good = plain_text(&j, 1, &name) &&
                  (strcmp(name, "__metadata__") == 0 ? read_metadata(c, &j) : read_entry(c, &j, name));
    }
    if (is_good && json_end(&j)) return check_entries(c);
    return c->error[0] != '\0' ? 0 : refuse(c, "is damaged: its header can't be read");
}

/* Everything after the header, which must end where the last tensor ends, and the checksum over all. */
static int check_content(checkpoint* c, sha256* sum) {
    unsigned char* data = (unsigned char*)c->values;
    const char* expected = checkpoint_metadata(c, "checksum");
    char found[CHECKSUM + 1];
    int64_t left = c->entries[c->count - 1].end;
    while (left > 0) {
        const size_t size = left < (int64_t)sizeof c->values ? (size_t)left : sizeof c->values;
        if (!read_exactly(c, data, size)) return 0;
        sha256_add(sum, data, size);
        left -= (int64_t)size;
    }
    if (fgetc(c->file) != EOF) return refuse(c, "is damaged: it is longer than its tensors");
    sha256_finish(sum, found);
    if (expected == NULL || strcmp(expected, found) != 0)
        return refuse(c, "is damaged: its checksum does not match its content");
    return 1;
}

/* ---- what the metadata says */

static int read_settings(checkpoint* c, char* text) {
    char wrong[SETTINGS_ERROR];
    return settings_read(text, &c->config, wrong) || refuse(c, "%s", wrong);
}

static int is_json(checkpoint* c, char* text) {
    json j = json_of(text, strlen(text));
    return c != NULL && json_skip(&j) && json_end(&j);
}

/* What `read` makes of a copy of the text, which reading uses up. */
static int read_copy(checkpoint* c, const char* text, int (*read)(checkpoint* c, char* text)) {
    char* copy = text == NULL ? NULL : malloc(strlen(text) + 1);
    const int result = copy != NULL && read(c, strcpy(copy, text));
    free(copy);
    return result;
}

static int read_config(checkpoint* c) {
    if (!read_copy(c, checkpoint_metadata(c, "model"), read_settings))
        return c->error[0] != '\0' ? 0 : refuse(c, "does not tell its model's sizes");
    /* Nobody shall make memory for a model that the file can't fill; the engine leaves some between tensors. */
    int64_t bytes = 0;
    mg_memory_plan plan;
    for (size_t i = 0; i < c->count; ++i)
        if (strncmp(c->entries[i].name, "optimizer.", 10) != 0)
            bytes += c->entries[i].end - c->entries[i].begin + MAX_PADDING;
    if (mg_plan_memory(&c->config, "cpu", "fp32", 1, 1, 0, &plan) != MG_OK)
        return refuse(c, "has a model that can't be: %s", mg_last_error());
    return plan.parameters <= bytes ? 1 : refuse(c, "holds fewer numbers than its model has");
}

static int check_metadata(checkpoint* c) {
    const char* version = checkpoint_metadata(c, "andrea_checkpoint");
    const char* state = checkpoint_metadata(c, "state");
    const char* steps = checkpoint_metadata(c, "optimizer_steps");
    if (version == NULL || strcmp(version, "1") != 0)
        return refuse(c, "is a checkpoint of format %.16s, this reader knows 1", version ? version : "unknown");
    c->step_count = -1;
    if (state != NULL && strcmp(state, "null") != 0) {
        const size_t digits = steps == NULL ? 0 : strspn(steps, "0123456789");
        if (digits == 0 || digits > 18 || steps[digits] != '\0')
            return refuse(c, "does not say how many steps its optimizer did");
        c->step_count = strtoll(steps, NULL, 10);
    }
    static const char* const names[] = {"tokenizer", "record", "train", "state"};
    for (int i = 0; i < 4; ++i) {
        const char* text = checkpoint_metadata(c, names[i]);
        if (text == NULL || (i >= 2 && strcmp(text, "null") == 0)) continue;
        if (*text != '{' || !read_copy(c, text, is_json))
            return refuse(c, "is damaged: its %s can't be read", names[i]);
    }
    return read_config(c);
}

checkpoint* checkpoint_open(const char* path, char error[CHECKPOINT_ERROR]) {
    sha256 sum;
    checkpoint* c = calloc(1, sizeof *c);
    snprintf(error, CHECKPOINT_ERROR, "%s", c == NULL ? "there is no memory for a checkpoint" : "");
    if (c == NULL) return NULL;
    c->error = error;
    snprintf(c->path, sizeof c->path, "%s", path);
    c->file = fopen(path, "rb");
    if (c->file == NULL)
        refuse(c, "cannot be read: %s", strerror(errno));
    else if (read_header(c, &sum) && read_table(c) && check_content(c, &sum) && check_metadata(c))
        return c;
    checkpoint_close(c);
    return NULL;
}

void checkpoint_close(checkpoint* c) {
    if (c == NULL) return;
    if (c->file != NULL) fclose(c->file);
    free(c->by_name);
    free(c->entries);
    free(c->header);
    free(c);
}

const mg_config* checkpoint_config(const checkpoint* c) { return &c->config; }
int64_t checkpoint_step_count(const checkpoint* c) { return c->step_count; }

/* ---- loading */

/* Which tensors of the file belong to the model's memory of a kind, and where they go if they are loaded; all must be there, in
 * the model's shapes. */
static int choose(checkpoint* c, mg_model* model, mg_memory kind, const char* prefix, int is_wanted) {
    for (int32_t i = 0; i < mg_model_tensor_count(model); ++i) {
        mg_tensor tensor;
        char name[MG_MAX_NAME + 16];
        if (mg_model_tensor(model, i, &tensor) != MG_OK) return refuse(c, "cannot be loaded: %s", mg_last_error());
        snprintf(name, sizeof name, "%s%s", prefix, tensor.name);
        entry named = {.name = name}, *const key = &named;
        entry** found = bsearch(&key, c->by_name, c->count, sizeof *c->by_name, by_name);
        if (found == NULL) return refuse(c, "lacks %s", name);
        entry* e = *found;
        int is_same = e->n_dims == tensor.n_dims;
        for (int axis = 0; is_same && axis < e->n_dims; ++axis) is_same = e->shape[axis] == tensor.shape[axis];
        if (!is_same || e->end - e->begin != 4 * tensor.size)
            return refuse(c, "has %s in another shape than the model", name);
        e->is_known = 1;
        e->is_wanted = is_wanted;
        e->kind = kind;
        e->offset = tensor.offset;
    }
    return 1;
}

/* The next tensor of the file, into the model or past it. */
static int read_tensor(checkpoint* c, const entry* e, mg_model* model) {
    const int64_t count = (e->end - e->begin) / 4;
    for (int64_t done = 0; done < count;) {
        const int64_t now = count - done < CHUNK ? count - done : CHUNK;
        const unsigned char* bytes = (const unsigned char*)c->values;
        if (!read_exactly(c, c->values, (size_t)now * 4)) return 0;
        for (int64_t i = 0; i < now; ++i, bytes += 4) { /* little-endian, whatever this machine is */
            const uint32_t bits =
                (uint32_t)bytes[3] << 24 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[1] << 8 | bytes[0];
            memcpy(&c->values[i], &bits, sizeof bits);
        }
        if (e->is_wanted && mg_model_write(model, e->kind, e->offset + done, now, c->values) != MG_OK)
            return refuse(c, "cannot be loaded: %s", mg_last_error());
        done += now;
    }
    return 1;
}

int checkpoint_load(checkpoint* c, mg_model* model, int with_moments, char error[CHECKPOINT_ERROR]) {
    c->error = error;
    error[0] = '\0';
    for (size_t i = 0; i < c->count; ++i) c->entries[i].is_known = c->entries[i].is_wanted = 0;
    if (with_moments && c->step_count < 0) return refuse(c, "holds weights only, so training can't go on from it");
    if (!choose(c, model, MG_PARAMETERS, "", 1)) return 0;
    if (c->step_count >= 0 && !(choose(c, model, MG_MOMENT_1, "optimizer.m.", with_moments) &&
                                choose(c, model, MG_MOMENT_2, "optimizer.v.", with_moments)))
        return 0;
    for (size_t i = 0; i < c->count; ++i) /* numbers that nothing would come of are a sign of another model */
        if (!c->entries[i].is_known)
            return refuse(c, "holds %.64s, which is no tensor of its model", c->entries[i].name);
    if (fseek(c->file, 8 + (long)c->header_size, SEEK_SET) != 0)
        return refuse(c, "cannot be read: %s", strerror(errno));
    size_t last = c->count;
    while (!c->entries[last - 1].is_wanted) --last;
    for (size_t i = 0; i < last; ++i)
        if (!read_tensor(c, &c->entries[i], model)) return 0;
    if (mg_model_refresh(model) != MG_OK || (with_moments && mg_model_set_step_count(model, c->step_count) != MG_OK))
        return refuse(c, "cannot be loaded: %s", mg_last_error());
    return 1;
}
