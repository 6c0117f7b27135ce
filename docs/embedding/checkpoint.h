/* Reads Andrea's checkpoints into models, and writes weights as such; docs/embedding.md describes the file.  Copy checkpoint,
 * json, settings and sha256 (.h and .c), and checkpoint_save.c, into a program: they need microgpt_cuda.h and the C library.
 *
 * A file is checked as a whole before a number of it is used, its checksum too.  What is damaged, cut short, of another
 * version or no checkpoint is refused, with one line in `error`.  The file stays open, so that a run which still trains may
 * replace it meanwhile. */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include <stdint.h>

#include "microgpt_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CHECKPOINT_ERROR = 320 }; /* bytes of an error, with the closing zero */

typedef struct checkpoint checkpoint;

/* Null where the file is refused. */
checkpoint* checkpoint_open(const char* path, char error[CHECKPOINT_ERROR]);
void checkpoint_close(checkpoint* file); /* null is fine */

/* For mg_model_create.  The file holds as many numbers as that model, so a damaged one can't ask for all memory. */
const mg_config* checkpoint_config(const checkpoint* file);
/* The optimizer's updates, where the file holds its moments; -1 where it holds weights only. */
int64_t checkpoint_step_count(const checkpoint* file);
/* What the file says under a name, as JSON: "model", "tokenizer" and "record"; "train" and "state" beside moments. */
const char* checkpoint_metadata(const checkpoint* file, const char* name);

/* Copies the parameters into a model of checkpoint_config, on whatever device; and where with_moments is not 0 the moments
 * and the step count, so that training goes on as if it had never stopped.  1: done; 0: refused, before the model was
 * changed unless the disk failed meanwhile. */
int checkpoint_load(checkpoint* file, mg_model* model, int with_moments, char error[CHECKPOINT_ERROR]);

/* Writes the weights of a model, for checkpoint_open and for andrea sample, eval and train --init-from: whole or
 * not at all, beside what was there.  tokenizer and record: JSON objects, as checkpoint_metadata gave them; tokenizer may
 * be {"name":"byte"}, with 257 tokens, record null.  1: done; 0: the disk refused, or a weight is not finite. */
int checkpoint_save(const char* path, mg_model* model, const char* tokenizer, const char* record,
                    char error[CHECKPOINT_ERROR]);

#ifdef __cplusplus
}
#endif
#endif
