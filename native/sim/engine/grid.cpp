#include "engine/grid.h"

#include "engine/sanitizers.h"
#include "engine/scheduler.h"
#include "engine/settings.h"
#include "engine/shared_memory.h"

namespace mgsim {

void run_grid(const KernelCall& call) {
    static uint64_t grids = 0;
    Scheduler& s = scheduler;
    const uint64_t seed = settings().seed == 0 ? 0 : settings().seed + grids++;
    s.kernel = call.name;
    s.function = call.kernel;
    s.arguments = call.arguments.get();
    s.run = call.run;
    s.random = seed != 0;
    current.block_size = call.block;
    current.grid_size = call.grid;
    begin_shared_memory(call.shared_bytes);
    s.prepare(call.block.x * call.block.y * call.block.z);
    const uint64_t blocks = static_cast<uint64_t>(call.grid.x) * call.grid.y * call.grid.z;
    for (uint64_t i = 0; i < blocks; ++i) {
        const uint64_t block = s.random ? blocks - 1 - i : i;  // random mode turns the order of the blocks round too
        current.block = {static_cast<unsigned>(block % call.grid.x),
                         static_cast<unsigned>(block / call.grid.x % call.grid.y),
                         static_cast<unsigned>(block / call.grid.x / call.grid.y)};
        s.random_state = seed * 0x9e3779b97f4a7c15u + block;
        s.run_block();
    }
    acquire(&s.end_token);
    end_shared_memory();
    current.thread = nullptr;
}

}  // namespace mgsim
