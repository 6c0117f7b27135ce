#include "engine/failure.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "engine/scheduler.h"

namespace mgsim {

void fail(const char* pattern, ...) {
    char text[2000];
    va_list values;
    va_start(values, pattern);
    vsnprintf(text, sizeof text, pattern, values);
    va_end(values);
    if (current.thread != nullptr) {
        const uint3 block = current.block, thread = current.thread->index;
        fprintf(stderr, "MGSIM ERROR: %s  [kernel %s, block %u,%u,%u, thread %u,%u,%u]\n", text, scheduler.kernel,
                block.x, block.y, block.z, thread.x, thread.y, thread.z);
    } else {
        fprintf(stderr, "MGSIM ERROR: %s\n", text);
    }
    fflush(stderr);
    _exit(66);
}

}  // namespace mgsim
