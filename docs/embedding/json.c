#include "json.h"

#include <string.h>

enum { DEEPEST = 64 };

static int fail(json* j) {
    j->failed = 1;
    return 0;
}

/* The next byte that isn't white space, without taking it; -1 at the end. */
static int peek(json* j) {
    while (j->at < j->end && (*j->at == ' ' || *j->at == '\n' || *j->at == '\t' || *j->at == '\r')) ++j->at;
    return j->failed || j->at == j->end ? -1 : (unsigned char)*j->at;
}

static int take(json* j, char expected) {
    if (peek(j) != expected) return fail(j);
    ++j->at;
    return 1;
}

static int take_word(json* j, const char* word) {
    const size_t size = strlen(word);
    peek(j);
    if (j->failed || (size_t)(j->end - j->at) < size || memcmp(j->at, word, size) != 0) return fail(j);
    j->at += size;
    return 1;
}

json json_of(char* text, size_t size) {
    const json j = {text, text + size, 0};
    return j;
}

int json_open(json* j, char bracket) { return take(j, bracket); }

int json_more(json* j, char bracket, int* first) {
    if (peek(j) == bracket) {
        ++j->at;
        return 0;
    }
    if (!*first && !take(j, ',')) return 0;
    *first = 0;
    return peek(j) >= 0 ? 1 : fail(j);
}

int json_key(json* j, json_text* key) { return json_string(j, key) && take(j, ':'); }

/* Four hexadecimal digits; -1 where there are none. */
static int32_t hexadecimal(json* j) {
    int32_t value = 0;
    if (j->end - j->at < 4) return -1;
    for (int i = 0; i < 4; ++i, ++j->at) {
        const char c = *j->at;
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0) return -1;
        value = 16 * value + digit;
    }
    return value;
}

/* The code point of \uXXXX, or of two that are a pair; -1 for half a pair. */
static int32_t escaped_code(json* j) {
    const int32_t high = hexadecimal(j);
    if (high < 0xd800 || high > 0xdfff) return high;
    if (high > 0xdbff || j->end - j->at < 2 || j->at[0] != '\\' || j->at[1] != 'u') return -1;
    j->at += 2;
    const int32_t low = hexadecimal(j);
    return low < 0xdc00 || low > 0xdfff ? -1 : 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
}

static char* put_utf8(char* out, int32_t code) {
    if (code < 0x80) {
        *out++ = (char)code;
        return out;
    }
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const int lead[4] = {0, 0xc0, 0xe0, 0xf0};
    *out++ = (char)(lead[more] | code >> 6 * more);
    for (int i = more - 1; i >= 0; --i) *out++ = (char)(0x80 | (code >> 6 * i & 0x3f));
    return out;
}

int json_utf8_size(const char* at, const char* end) {
    const unsigned char* s = (const unsigned char*)at;
    const int size = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
    if (size > end - at) return 0;
    for (int i = 1; i < size; ++i)
        if ((s[i] & 0xc0) != 0x80) return 0;
    /* Too long a form, half a surrogate pair, or more than U+10FFFF. */
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f)) return 0;
    if ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f)) return 0;
    return size;
}

int json_string(json* j, json_text* text) {
    static const char escapes[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    if (!take(j, '"')) return 0;
    char* out = j->at;
    text->bytes = out;
    for (;;) {
        if (j->at == j->end || (unsigned char)*j->at < 0x20) return fail(j);
        if (*j->at == '"') break;
        if (*j->at != '\\') {
            for (int size = json_utf8_size(j->at, j->end), i = 0; i < size || size == 0; ++i) {
                if (size == 0) return fail(j);
                *out++ = *j->at++;
            }
            continue;
        }
        if (++j->at == j->end) return fail(j);
        const char c = *j->at++;
        const char* escape = c == '\0' ? NULL : strchr(escapes, c);
        const int32_t code = c == 'u' ? escaped_code(j) : escape != NULL ? meanings[escape - escapes] : -1;
        if (code < 0) return fail(j);
        out = put_utf8(out, code);
    }
    ++j->at;
    text->size = (size_t)(out - text->bytes);
    *out = '\0'; /* on the closing quote, or before it */
    return 1;
}

static int is_digit(const json* j) { return j->at < j->end && *j->at >= '0' && *j->at <= '9'; }

/* Digits without leading zeros. */
static int whole_part(json* j) {
    if (!is_digit(j)) return fail(j);
    const int is_zero = *j->at++ == '0';
    if (is_zero && is_digit(j)) return fail(j);
    while (is_digit(j)) ++j->at;
    return 1;
}

int json_integer(json* j, int64_t* value) {
    const int negative = peek(j) == '-';
    uint64_t size = 0;
    if (negative) ++j->at;
    const char* digits = j->at;
    if (j->failed || !whole_part(j)) return fail(j);
    for (; digits < j->at; ++digits) {
        const uint64_t digit = (uint64_t)(*digits - '0');
        if (size > (INT64_MAX - digit) / 10) return fail(j);
        size = 10 * size + digit;
    }
    if (j->at < j->end && (*j->at == '.' || *j->at == 'e' || *j->at == 'E')) return fail(j);
    *value = negative ? -(int64_t)size : (int64_t)size;
    return 1;
}

static int skip_number(json* j) {
    if (*j->at == '-') ++j->at;
    if (!whole_part(j)) return 0;
    if (j->at < j->end && *j->at == '.') {
        ++j->at;
        if (!is_digit(j)) return fail(j);
        while (is_digit(j)) ++j->at;
    }
    if (j->at < j->end && (*j->at == 'e' || *j->at == 'E')) {
        ++j->at;
        if (j->at < j->end && (*j->at == '+' || *j->at == '-')) ++j->at;
        if (!is_digit(j)) return fail(j);
        while (is_digit(j)) ++j->at;
    }
    return 1;
}

/* By hand: strtod would look for the point of the program's locale. */
int json_number(json* j, double* value) {
    enum { DIGITS = 18, FARTHEST = 400 /* beyond what a double can hold */ };
    const int negative = peek(j) == '-';
    const char* at = j->at;
    int64_t digits = 0;
    int count = 0, has_point = 0, scale = 0, exponent = 0;
    if (j->failed || at == j->end || !skip_number(j)) return fail(j);
    for (at += negative; at < j->at && *at != 'e' && *at != 'E'; ++at) {
        if (*at == '.') {
            has_point = 1;
        } else if (count < DIGITS) {
            digits = 10 * digits + (*at - '0');
            count += digits > 0;
            scale -= has_point;
        } else {
            scale += !has_point;
        }
    }
    if (at < j->at) {
        const int is_small = *++at == '-';
        if (*at == '-' || *at == '+') ++at;
        for (; at < j->at; ++at)
            if (exponent < 100 * FARTHEST) exponent = 10 * exponent + (*at - '0');
        scale += is_small ? -exponent : exponent;
    }
    *value = (double)digits;
    double power = 1;
    int size = scale < 0 ? -scale : scale;
    for (size = size < FARTHEST ? size : FARTHEST; size > 0 && digits > 0; --size) power *= 10;
    *value = scale < 0 ? *value / power : *value * power;
    if (negative) *value = -*value;
    return 1;
}

int json_boolean(json* j, int* value) {
    *value = peek(j) == 't';
    return take_word(j, *value ? "true" : "false");
}

int json_null(json* j) { return peek(j) == 'n' && take_word(j, "null"); }

static int skip_value(json* j, int depth) {
    json_text text;
    const int c = peek(j);
    if (c == '{' || c == '[') {
        const char closing = c == '{' ? '}' : ']';
        int first = 1;
        if (depth == DEEPEST || !json_open(j, (char)c)) return fail(j);
        while (json_more(j, closing, &first))
            if ((c == '{' && !json_key(j, &text)) || !skip_value(j, depth + 1)) return 0;
        return !j->failed;
    }
    if (c == '"') return json_string(j, &text);
    if (c == 't') return take_word(j, "true");
    if (c == 'f') return take_word(j, "false");
    if (c == 'n') return take_word(j, "null");
    return c >= 0 ? skip_number(j) : fail(j);
}

int json_skip(json* j) { return skip_value(j, 0); }

int json_end(json* j) { return peek(j) < 0 && !j->failed ? 1 : fail(j); }

int json_is(json_text text, const char* expected) {
    return strlen(expected) == text.size && memcmp(text.bytes, expected, text.size) == 0;
}
