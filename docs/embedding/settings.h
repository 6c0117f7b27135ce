/* A model's settings as Andrea's checkpoints hold them: JSON, the sizes and whatever of the dialect is not GPT-2's. */
#ifndef SETTINGS_H
#define SETTINGS_H

#include "microgpt_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SETTINGS_ERROR = 160, /* bytes of what is wrong, with the closing zero */
    SETTINGS_TEXT = 640   /* bytes that the longest text takes, with the closing zero */
};

/* Reads the text, which is used up, into a config; what it doesn't say is GPT-2's.  1: done; 0: refused, and `wrong` goes on
 * after "the file ". */
int settings_read(char* text, mg_config* config, char wrong[SETTINGS_ERROR]);
/* Writes what mg_model_config gave, byte for byte as Andrea does. */
void settings_write(const mg_config* config, char text[SETTINGS_TEXT]);

#ifdef __cplusplus
}
#endif
#endif
