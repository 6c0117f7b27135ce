// How many threads this process should use: the machine's matter, kept away from the thread pool.
#pragma once

namespace mg::cpu {

// CPUs this process may run on (affinity mask), at most its cgroup's quota and OMP_NUM_THREADS; at least 1.
int usable_processors();

}  // namespace mg::cpu
