// What the environment may ask of the simulator; read here and nowhere else.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace mgsim {

struct Settings {
    uint64_t seed;  // MGSIM_SEED: 0 runs threads in order, anything else in a random order that changes at every switch
    size_t memory;  // MGSIM_MEMORY: bytes of device memory (8 GiB)
    int devices;    // MGSIM_DEVICES: 0 or 1
    int driver;     // MGSIM_DRIVER: version the driver reports, such as 12040 (13000); 0: no driver
    int capability;  // MGSIM_CAPABILITY: compute capability, such as 75 (90)
    bool epilogues;  // MGSIM_EPILOGUES: 0 makes cuBLASLt refuse all epilogues, as it may for some shapes
    bool neighbour;  // MGSIM_NEIGHBOUR: another library of the process uses the legacy default stream all the time
    bool trace;      // MGSIM_TRACE: print a table of memory accesses at exit (trace builds)
};

const Settings& settings();

}  // namespace mgsim
