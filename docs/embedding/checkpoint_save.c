/* Writes a model's weights as Andrea does: the file that checkpoint.c reads. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"
#include "settings.h"
#include "sha256.h"

enum { CHUNK = 1 << 14 /* floats that are written at a time */ };

static const char digits_key[] = "\"checksum\":\"";

/* What grows at its end; `bytes` is null once there was no memory. */
typedef struct {
    char* bytes;
    size_t size, room;
} text;

static void append(text* t, const char* bytes, size_t size) {
    while (t->bytes != NULL && t->size + size > t->room) {
        char* larger = realloc(t->bytes, t->room *= 2);
        if (larger == NULL) free(t->bytes);
        t->bytes = larger;
    }
    if (t->bytes == NULL) return;
    memcpy(t->bytes + t->size, bytes, size);
    t->size += size;
}

static void append_plain(text* t, const char* bytes) { append(t, bytes, strlen(bytes)); }

/* A JSON string. */
static void append_string(text* t, const char* bytes) {
    append_plain(t, "\"");
    for (; *bytes != '\0'; ++bytes) {
        char escaped[8];
        if (*bytes == '"' || *bytes == '\\')
            snprintf(escaped, sizeof escaped, "\\%c", *bytes);
        else if ((unsigned char)*bytes < 0x20)
            snprintf(escaped, sizeof escaped, "\\u%04x", (unsigned)*bytes);
        else
            snprintf(escaped, sizeof escaped, "%c", *bytes);
        append_plain(t, escaped);
    }
    append_plain(t, "\"");
}

/* The header, with zeros for the checksum; its length comes first, in 8 bytes. */
static text header_of(mg_model* model, const mg_config* config, const char* tokenizer, const char* record) {
    text t = {malloc(4096), 8, 4096};
    char line[256], settings[SETTINGS_TEXT];
    int64_t offset = 0;
    append_plain(&t, "{\"__metadata__\":{\"andrea_checkpoint\":\"1\",\"model\":");
    settings_write(config, settings);
    append_string(&t, settings);
    append_plain(&t, ",\"record\":");
    append_string(&t, record);
    append_plain(&t, ",\"tokenizer\":");
    append_string(&t, tokenizer);
    append_plain(&t, ",");
    append_plain(&t, digits_key);
    for (int i = 0; i < 64; ++i) append_plain(&t, "0");
    append_plain(&t, "\"}");
    for (int32_t i = 0; i < mg_model_tensor_count(model); ++i) {
        mg_tensor tensor;
        if (mg_model_tensor(model, i, &tensor) != MG_OK) continue;
        snprintf(line, sizeof line, ",\"%s\":{\"dtype\":\"F32\",\"shape\":[%lld", tensor.name,
                 (long long)tensor.shape[0]);
        append_plain(&t, line);
        if (tensor.n_dims == 2) {
            snprintf(line, sizeof line, ",%lld", (long long)tensor.shape[1]);
            append_plain(&t, line);
        }
        snprintf(line, sizeof line, "],\"data_offsets\":[%lld,%lld]}", (long long)offset,
                 (long long)(offset + 4 * tensor.size));
        append_plain(&t, line);
        offset += 4 * tensor.size;
    }
    append_plain(&t, "}");
    while (t.size % 8 != 0) append_plain(&t, " ");
    for (int i = 0; t.bytes != NULL && i < 8; ++i) t.bytes[i] = (char)((uint64_t)(t.size - 8) >> 8 * i);
    return t;
}

/* Writes some of the content, and adds it to the checksum. */
static int put(FILE* file, sha256* sum, const void* bytes, size_t size) {
    sha256_add(sum, bytes, size);
    return fwrite(bytes, 1, size, file) == size;
}

/* The tensor's numbers, little-endian; null: all are written. */
static const char* put_tensor(FILE* file, sha256* sum, mg_model* model, const mg_tensor* tensor, float* values) {
    for (int64_t done = 0; done < tensor->size;) {
        const int64_t now = tensor->size - done < CHUNK ? tensor->size - done : CHUNK;
        if (mg_model_read(model, MG_PARAMETERS, tensor->offset + done, now, values) != MG_OK) return mg_last_error();
        for (int64_t i = 0; i < now; ++i) {
            uint32_t bits;
            if (!isfinite(values[i])) return "a weight is not finite";
            memcpy(&bits, &values[i], sizeof bits);
            const unsigned char bytes[4] = {(unsigned char)bits, (unsigned char)(bits >> 8),
                                            (unsigned char)(bits >> 16), (unsigned char)(bits >> 24)};
            memcpy(&values[i], bytes, sizeof bytes);
        }
        if (!put(file, sum, values, (size_t)now * 4)) return strerror(errno);
        done += now;
    }
    return NULL;
}

static const char* write_content(FILE* file, mg_model* model, const text* header) {
    size_t digits = 0; /* the place of the checksum; the quotes inside of texts are escaped, so the first is the one */
    while (memcmp(header->bytes + digits, digits_key, sizeof digits_key - 1) != 0) ++digits;
    digits += sizeof digits_key - 1;
    sha256 sum;
    char checksum[65];
    const char* failed = NULL;
    float* values = malloc(CHUNK * sizeof *values);
    if (values == NULL) return "there is no memory";
    sha256_start(&sum);
    if (!put(file, &sum, header->bytes, header->size)) failed = strerror(errno);
    for (int32_t i = 0; failed == NULL && i < mg_model_tensor_count(model); ++i) {
        mg_tensor tensor;
        failed = mg_model_tensor(model, i, &tensor) != MG_OK ? mg_last_error()
                                                             : put_tensor(file, &sum, model, &tensor, values);
    }
    free(values);
    if (failed != NULL) return failed;
    sha256_finish(&sum, checksum);
    if (fseek(file, (long)digits, SEEK_SET) != 0 || fwrite(checksum, 1, 64, file) != 64) return strerror(errno);
    return NULL;
}

int checkpoint_save(const char* path, mg_model* model, const char* tokenizer, const char* record,
                    char error[CHECKPOINT_ERROR]) {
    static const char ending[] = ".part";
    mg_config config = {.struct_size = sizeof config};
    const char* failed = mg_model_config(model, &config) == MG_OK ? NULL : mg_last_error();
    if (failed != NULL) {
        snprintf(error, CHECKPOINT_ERROR, "%.120s was not written: %.180s", path, failed);
        return 0;
    }
    const text header = header_of(model, &config, tokenizer, record == NULL ? "{}" : record);
    char* part = malloc(strlen(path) + sizeof ending);
    if (header.bytes == NULL || part == NULL) {
        failed = "there is no memory";
    } else {
        strcat(strcpy(part, path), ending);
        FILE* file = fopen(part, "wb");
        failed = file == NULL ? strerror(errno) : write_content(file, model, &header);
        if (file != NULL && fclose(file) != 0 && failed == NULL) failed = strerror(errno);
        /* Whole or not at all: what was there stays until the new file takes its place. */
        if (failed == NULL && rename(part, path) != 0) failed = strerror(errno);
        if (failed != NULL && file != NULL) remove(part);
    }
    snprintf(error, CHECKPOINT_ERROR, failed == NULL ? "" : "%.120s was not written: %.180s", path, failed);
    free(part);
    free(header.bytes);
    return failed == NULL;
}
