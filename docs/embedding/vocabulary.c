#include "vocabulary.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

enum {
    MAX_BYTES = 1 << 26, /* of all tokens together */
    MAX_WORD = 4096 /* bytes of a token, and of a word: longer ones are cut, for joining takes their length's square */
};

typedef enum { BYTE, CHAR, BPE } kind;

typedef struct {
    int32_t left, right;
    int32_t joined; /* -1: this place of the table is free */
    int32_t rank;
} merge;

struct vocabulary {
    kind kind;
    int32_t size, limit; /* tokens so far and in the end, without the one that begins a document */
    char* bytes;         /* of all tokens, one after the other */
    size_t used, room;
    size_t* starts;       /* limit + 2 */
    int32_t of_byte[256]; /* bpe: the token of each byte */
    merge* merges;        /* bpe: a hash table of pairs, at least half of it free */
    size_t places;        /* a power of two */
};

static int refuse(char* error, const char* text) {
    snprintf(error, VOCABULARY_ERROR, "%s", text);
    return 0;
}

/* ---- the table of tokens */

static int reserve(vocabulary* v, size_t size) {
    if (size > MAX_BYTES - v->used) return 0;
    size_t room = v->room;
    while (v->used + size > room) room = room ? 2 * room : 4096;
    char* larger = room == v->room ? v->bytes : realloc(v->bytes, room);
    if (larger == NULL) return 0;
    v->bytes = larger;
    v->room = room;
    return 1;
}

/* The next token is the `size` bytes behind the others. */
static int take_token(vocabulary* v, size_t size, char* error) {
    if (v->size == v->limit) return refuse(error, "the tokenizer has more tokens than the model");
    v->used += size;
    v->starts[++v->size] = v->used;
    return 1;
}

static int add_token(vocabulary* v, const char* bytes, size_t size, char* error) {
    if (!reserve(v, size)) return refuse(error, "the tokenizer is too large");
    memcpy(v->bytes + v->used, bytes, size);
    return take_token(v, size, error);
}

static int add_bytes(vocabulary* v, int printable, char* error) {
    for (int value = 0; value < 256; ++value) {
        /* GPT-2 numbers first the bytes that Latin-1 can print. */
        const int is_printable = (value > 32 && value < 127) || (value > 160 && value != 173);
        const char byte = (char)value;
        if (v->kind == BPE && is_printable != printable) continue;
        v->of_byte[value] = v->size;
        if (!add_token(v, &byte, 1, error)) return 0;
    }
    return 1;
}

static int add_characters(vocabulary* v, json* j, char* error) {
    json_text text;
    if (!json_string(j, &text)) return refuse(error, "the tokenizer has no characters");
    const char *at = text.bytes, *end = text.bytes + text.size, *before = NULL;
    while (at < end) {
        const int size = json_utf8_size(at, end);
        /* In UTF-8, bytes are in the order of code points. */
        if (before != NULL && memcmp(before, at, (size_t)(at - before)) >= 0)
            return refuse(error, "the tokenizer's characters are not in order");
        if (!add_token(v, at, (size_t)size, error)) return 0;
        before = at;
        at += size;
    }
    return 1;
}

/* ---- bpe: pairs of tokens that become one */

static size_t mixed(uint64_t x) {
    x ^= x >> 31;
    x *= 0x9e3779b97f4a7c15u;
    return (size_t)(x ^ x >> 29);
}

/* The place of a pair, or the free one where it would be. */
static merge* place_of(const vocabulary* v, int32_t left, int32_t right) {
    size_t at = mixed((uint64_t)(uint32_t)left << 32 | (uint32_t)right);
    for (;; ++at) {
        merge* m = &v->merges[at & (v->places - 1)];
        if (m->joined < 0 || (m->left == left && m->right == right)) return m;
    }
}

/* The token that has the bytes behind the last one, which it becomes itself where there is none; -1 where it may not.
 * `same` is a hash table of tokens by their bytes, as large as that of pairs. */
static int32_t token_of_bytes(vocabulary* v, size_t size, int32_t* same, char* error) {
    const char* bytes = v->bytes + v->used;
    uint64_t sum = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < size; ++i) sum = (sum ^ (unsigned char)bytes[i]) * 1099511628211u;
    for (size_t at = mixed(sum);; ++at) {
        int32_t* place = &same[at & (v->places - 1)];
        const int32_t token = *place;
        if (token < 0) {
            *place = v->size;
            return take_token(v, size, error) ? v->size - 1 : -1;
        }
        if (v->starts[token + 1] - v->starts[token] == size && memcmp(v->bytes + v->starts[token], bytes, size) == 0)
            return token;
    }
}

static int add_merge(vocabulary* v, const int64_t pair[2], int32_t rank, int32_t* same, char* error) {
    size_t sizes[2];
    for (int i = 0; i < 2; ++i) {
        if (pair[i] < 0 || pair[i] >= v->size) return refuse(error, "the tokenizer joins tokens that don't exist yet");
        sizes[i] = v->starts[pair[i] + 1] - v->starts[pair[i]];
    }
    if (sizes[0] + sizes[1] > MAX_WORD || !reserve(v, sizes[0] + sizes[1]))
        return refuse(error, "the tokenizer has too long tokens");
    memcpy(v->bytes + v->used, v->bytes + v->starts[pair[0]], sizes[0]);
    memcpy(v->bytes + v->used + sizes[0], v->bytes + v->starts[pair[1]], sizes[1]);
    merge* m = place_of(v, (int32_t)pair[0], (int32_t)pair[1]);
    if (m->joined >= 0) return refuse(error, "the tokenizer joins two tokens twice");
    const int32_t joined = token_of_bytes(v, sizes[0] + sizes[1], same, error);
    if (joined < 0) return 0;
    const merge added = {(int32_t)pair[0], (int32_t)pair[1], joined, rank};
    *m = added;
    return 1;
}

/* Room for as many pairs as a text of that size can name: each takes 6 bytes, "[0,1],". */
static int32_t* make_tables(vocabulary* v, size_t size) {
    v->places = 1024;
    while (v->places / 2 < size / 6 + 257) v->places *= 2;
    v->merges = malloc(v->places * sizeof(merge));
    int32_t* same = malloc(v->places * sizeof *same);
    if (v->merges == NULL || same == NULL) {
        free(same);
        return NULL;
    }
    for (size_t i = 0; i < v->places; ++i) v->merges[i].joined = same[i] = -1;
    return same;
}

static int add_merges(vocabulary* v, json* j, char* error) {
    int first = 1, is_good = 1;
    if (!json_open(j, '[')) return refuse(error, "the tokenizer has no list of merges");
    int32_t* same = make_tables(v, (size_t)(j->end - j->at));
    if (same == NULL) return refuse(error, "there is no memory for the tokenizer");
    for (int32_t rank = 0; is_good && json_more(j, ']', &first); ++rank) {
        int64_t pair[2] = {0, 0};
        int first_of_pair = 1, count = 0;
        is_good = json_open(j, '[');
        while (is_good && json_more(j, ']', &first_of_pair)) is_good = count < 2 && json_integer(j, &pair[count++]);
        if (!is_good || j->failed || count != 2)
            is_good = refuse(error, "the tokenizer has a merge that is no pair");
        else
            is_good = add_merge(v, pair, rank, same, error);
    }
    free(same);
    return is_good;
}

/* ---- from a checkpoint's JSON */

/* Keys are sorted: "merges" comes before "name", so the kind is looked for first. */
static int find_kind(vocabulary* v, char* text, size_t size, char* error) {
    json j = json_of(text, size);
    json_text key, name = {"", 0}, pattern = {"", 0};
    int first = 1, is_good = json_open(&j, '{');
    while (is_good && json_more(&j, '}', &first)) {
        is_good = json_key(&j, &key);
        if (is_good && json_is(key, "name"))
            is_good = json_string(&j, &name);
        else if (is_good && json_is(key, "pattern"))
            is_good = json_string(&j, &pattern);
        else
            is_good = is_good && json_skip(&j);
    }
    if (!is_good || !json_end(&j)) return refuse(error, "the tokenizer can't be read");
    v->kind = json_is(name, "byte") ? BYTE : json_is(name, "char") ? CHAR : BPE;
    if (v->kind != BPE) return 1;
    if (!json_is(name, "bpe")) return refuse(error, "the tokenizer is none of byte, char and bpe");
    return json_is(pattern, "gpt2") ? 1 : refuse(error, "the tokenizer splits text by another pattern than gpt2");
}

static int add_tokens(vocabulary* v, char* text, size_t size, char* error) {
    json j = json_of(text, size);
    json_text key;
    int first = 1, lists = 0;
    if (v->kind != CHAR && !(add_bytes(v, 1, error) && (v->kind == BYTE || add_bytes(v, 0, error)))) return 0;
    json_open(&j, '{');
    while (json_more(&j, '}', &first)) {
        json_key(&j, &key);
        const int is_list = json_is(key, v->kind == CHAR ? "characters" : "merges") && v->kind != BYTE;
        if (!is_list)
            json_skip(&j);
        else if (lists++ > 0 || !(v->kind == CHAR ? add_characters(v, &j, error) : add_merges(v, &j, error)))
            return lists > 1 ? refuse(error, "the tokenizer has two lists of tokens") : 0;
    }
    if (!json_end(&j)) return refuse(error, "the tokenizer can't be read");
    if (v->kind != BYTE && lists == 0) return refuse(error, "the tokenizer lacks its tokens");
    return v->size == v->limit ? 1 : refuse(error, "the tokenizer has fewer tokens than the model");
}

vocabulary* vocabulary_create(const char* tokenizer, int32_t vocab_size, char error[VOCABULARY_ERROR]) {
    const size_t size = tokenizer == NULL ? 0 : strlen(tokenizer);
    vocabulary* v = calloc(1, sizeof *v);
    char* text = malloc(size + 1); /* reading uses it up */
    if (v != NULL && text != NULL && vocab_size > 0) v->starts = malloc(((size_t)vocab_size + 1) * sizeof *v->starts);
    int is_good = v != NULL && v->starts != NULL;
    if (!is_good) {
        refuse(error, vocab_size > 0 ? "there is no memory for the tokenizer" : "a tokenizer has at least a token");
    } else {
        v->limit = vocab_size - 1;
        v->starts[0] = 0;
        if (size > 0) memcpy(text, tokenizer, size);
        is_good = find_kind(v, text, size, error);
        if (size > 0) memcpy(text, tokenizer, size);
        is_good = is_good && add_tokens(v, text, size, error);
    }
    free(text);
    if (is_good) return v;
    vocabulary_free(v);
    return NULL;
}

void vocabulary_free(vocabulary* v) {
    if (v == NULL) return;
    free(v->bytes);
    free(v->starts);
    free(v->merges);
    free(v);
}

int32_t vocabulary_beginning(const vocabulary* v) { return v->limit; }

const char* vocabulary_bytes(const vocabulary* v, int32_t token, size_t* size) {
    if (token < 0 || token >= v->limit) { /* the beginning of a document */
        *size = 0;
        return "";
    }
    *size = v->starts[token + 1] - v->starts[token];
    return v->bytes + v->starts[token];
}

/* ---- encoding */

typedef enum { SPACE, LETTER, NUMBER, OTHER } letter_class;

static letter_class class_of(char c) {
    if (c == ' ' || (c >= '\t' && c <= '\r')) return SPACE;
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (unsigned char)c >= 0x80) return LETTER;
    return c >= '0' && c <= '9' ? NUMBER : OTHER;
}

/* Bytes of the first word of a text that isn't empty, by GPT-2's pattern:
 * 's|'t|'re|'ve|'m|'ll|'d| ?letters| ?numbers| ?others|spaces, the last one left out where a word follows */
static size_t word_size(const char* text, size_t size) {
    static const char* const endings[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    for (size_t i = 0; text[0] == '\'' && i < sizeof endings / sizeof endings[0]; ++i) {
        const size_t length = strlen(endings[i]);
        if (size > length && memcmp(text + 1, endings[i], length) == 0) return length + 1;
    }
    const int has_space = text[0] == ' ' && size > 1 && class_of(text[1]) != SPACE;
    const letter_class found = class_of(text[has_space]);
    size_t end = has_space ? 2 : 1;
    while (end < size && class_of(text[end]) == found) ++end;
    return found == SPACE && end < size && end > 1 ? end - 1 : end;
}

/* Joins the pair of the lowest rank, of equal ones the first, until none is left; returns how many tokens remain. */
static size_t join(const vocabulary* v, int32_t* tokens, size_t count) {
    const merge* pairs[MAX_WORD]; /* of each token with the next; null where it is none */
    for (size_t i = 0; i + 1 < count; ++i) {
        const merge* m = place_of(v, tokens[i], tokens[i + 1]);
        pairs[i] = m->joined < 0 ? NULL : m;
    }
    for (;;) {
        size_t best = count;
        for (size_t i = 0; i + 1 < count; ++i)
            if (pairs[i] != NULL && (best == count || pairs[i]->rank < pairs[best]->rank)) best = i;
        if (best == count) return count;
        tokens[best] = pairs[best]->joined;
        --count;
        memmove(tokens + best + 1, tokens + best + 2, (count - best - 1) * sizeof *tokens);
        if (best + 2 < count) memmove(pairs + best + 1, pairs + best + 2, (count - best - 2) * sizeof *pairs);
        for (size_t i = best > 0 ? best - 1 : 0; i <= best && i + 1 < count; ++i) {
            const merge* m = place_of(v, tokens[i], tokens[i + 1]);
            pairs[i] = m->joined < 0 ? NULL : m;
        }
    }
}

/* The token of a character; -1 where there is none. */
static int32_t character(const vocabulary* v, const char* at, size_t size) {
    int32_t low = 0, high = v->limit;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        const size_t length = v->starts[middle + 1] - v->starts[middle];
        const int order = memcmp(at, v->bytes + v->starts[middle], length < size ? length : size);
        if (order == 0) return middle; /* no character begins like another one */
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return -1;
}

int64_t vocabulary_encode(const vocabulary* v, const char* text, size_t size, int32_t* tokens,
                          char error[VOCABULARY_ERROR]) {
    int64_t count = 0;
    const char* const end = text + size;
    for (const char* at = text; at < end;) {
        const int bytes = json_utf8_size(at, end);
        if (bytes == 0) return refuse(error, "the text is not UTF-8") - 1;
        if (v->kind == CHAR) {
            const int32_t token = character(v, at, (size_t)bytes);
            if (token < 0) {
                snprintf(error, VOCABULARY_ERROR,
                         "the tokenizer doesn't know '%.*s', which no text it learnt from held", bytes, at);
                return -1;
            }
            tokens[count++] = token;
        }
        at += bytes;
    }
    for (const char* at = text; v->kind != CHAR && at < end;) {
        size_t word = v->kind == BYTE ? 1 : word_size(at, (size_t)(end - at));
        if (word > MAX_WORD) word = MAX_WORD;
        for (size_t i = 0; i < word; ++i) tokens[count + (int64_t)i] = v->of_byte[(unsigned char)at[i]];
        count += (int64_t)(v->kind == BYTE ? 1 : join(v, tokens + count, word));
        at += word;
    }
    return count;
}
