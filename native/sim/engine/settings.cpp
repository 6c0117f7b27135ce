#include "engine/settings.h"

#include <stdlib.h>

namespace mgsim {

namespace {

uint64_t number(const char* name, uint64_t otherwise) {
    const char* const text = getenv(name);
    return text != nullptr && *text != '\0' ? strtoull(text, nullptr, 10) : otherwise;
}

Settings read() {
    Settings s;
    s.seed = number("MGSIM_SEED", 0);
    s.memory = number("MGSIM_MEMORY", uint64_t{8} << 30);
    s.devices = number("MGSIM_DEVICES", 1) != 0 ? 1 : 0;
    s.driver = static_cast<int>(number("MGSIM_DRIVER", 13000));
    s.capability = static_cast<int>(number("MGSIM_CAPABILITY", 90));
    s.epilogues = number("MGSIM_EPILOGUES", 1) != 0;
    s.neighbour = number("MGSIM_NEIGHBOUR", 0) != 0;
    s.trace = number("MGSIM_TRACE", 0) != 0;
    return s;
}

}  // namespace

const Settings& settings() {
    static const Settings once = read();
    return once;
}

}  // namespace mgsim
