/* Text to tokens and back, as a checkpoint's tokenizer does it: byte, char or bpe.  Needs json.h and json.c.
 *
 * Decoding is exact.  So is encoding of byte and char, and of bpe where the text is ASCII; other characters count as letters where bpe
 * splits a text into words, which may give other tokens than Andrea's for the same text (punctuation like U+2019), but never loses any. */
#ifndef VOCABULARY_H
#define VOCABULARY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { VOCABULARY_ERROR = 160 }; /* bytes of an error, with the closing zero */

typedef struct vocabulary vocabulary;

/* From checkpoint_metadata(file, "tokenizer") and the model's vocab_size.  Null where it isn't one, or not of that size. */
vocabulary* vocabulary_create(const char* tokenizer, int32_t vocab_size, char error[VOCABULARY_ERROR]);
void vocabulary_free(vocabulary* v); /* null is fine */

/* The token that stands before every document, of no bytes itself: the last one. */
int32_t vocabulary_beginning(const vocabulary* v);
/* A token's bytes, which may be parts of a UTF-8 character; `token` is in [0, vocab_size). */
const char* vocabulary_bytes(const vocabulary* v, int32_t token, size_t* size);
/* The tokens of a text in UTF-8, never more than it has bytes; `tokens` has room for that many.  -1 where the text isn't well formed or,
 * with char, holds a character that the tokenizer doesn't know, or where there is no memory. */
int64_t vocabulary_encode(const vocabulary* v, const char* text, size_t size, int32_t* tokens,
                          char error[VOCABULARY_ERROR]);

#ifdef __cplusplus
}
#endif
#endif
