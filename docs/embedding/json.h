/* Reads JSON (RFC 8259) step by step, in the text's own memory: a string is decoded where it stands, as UTF-8, which is never
 * longer.  So nothing is allocated, and the text is used up.  After the first mistake every call fails; `failed` tells. */
#ifndef JSON_H
#define JSON_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    char* at;
    char* end;
    int failed;
} json;

/* A string's decoded bytes, and a zero after them; they may hold zeros themselves. */
typedef struct {
    const char* bytes;
    size_t size;
} json_text;

json json_of(char* text, size_t size);
/* Enters an object '{' or an array '['; then: while (json_more(&j, '}', &first)) with first = 1 before the loop. */
int json_open(json* j, char bracket);
int json_more(json* j, char bracket, int* first);
/* A key and its colon. */
int json_key(json* j, json_text* key);
int json_string(json* j, json_text* text);
/* A whole number, without fraction or exponent, that int64_t can hold. */
int json_integer(json* j, int64_t* value);
/* A number of any form, as the nearest double or one beside it; of more than 18 digits the first count. */
int json_number(json* j, double* value);
int json_boolean(json* j, int* value);
int json_null(json* j); /* 1: there was one; else nothing was read */
/* Any value, nested 64 deep at most. */
int json_skip(json* j);
/* 1: nothing failed, and only white space is left. */
int json_end(json* j);

/* Bytes of the well-formed UTF-8 character at the front of [at, end), which isn't empty; 0 where there is none. */
int json_utf8_size(const char* at, const char* end);

int json_is(json_text text, const char* expected);

#ifdef __cplusplus
}
#endif
#endif
