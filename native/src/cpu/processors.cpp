#include "cpu/processors.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

namespace mg::cpu {
namespace {

int affinity_processors() {
#if defined(__linux__)
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
    return static_cast<int>(std::thread::hardware_concurrency());
}

// Whole CPUs of a quota, rounded up; 0 where there is none.
int cpus_of_quota(double quota, double period) {
    if (quota <= 0 || period <= 0) return 0;
    return std::max(1, static_cast<int>(quota / period + 0.999));
}

// The tightest quota from this process's cgroup up to the root (version 2), or of the version 1 controller.
int cgroup_processors() {
    int limit = 0;
    const auto tighten = [&](int cpus) {
        if (cpus > 0) limit = limit == 0 ? cpus : std::min(limit, cpus);
    };
    std::string path;
    std::ifstream membership("/proc/self/cgroup");
    for (std::string line; std::getline(membership, line);) {
        if (line.rfind("0::", 0) == 0) path = line.substr(3);
    }
    for (;;) {
        std::ifstream file("/sys/fs/cgroup" + path + "/cpu.max");
        std::string quota;
        double period = 0;
        if (file >> quota >> period && quota != "max") tighten(cpus_of_quota(std::atof(quota.c_str()), period));
        const size_t slash = path.find_last_of('/');
        if (path.empty() || slash == std::string::npos) break;
        path.resize(slash);
    }
    std::ifstream quota_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
    std::ifstream period_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
    double quota = 0, period = 0;
    if (quota_file >> quota && period_file >> period) tighten(cpus_of_quota(quota, period));
    return limit;
}

}  // namespace

int usable_processors() {
    int count = std::max(1, affinity_processors());
    if (const int quota = cgroup_processors()) count = std::min(count, quota);
    if (const char* text = std::getenv("OMP_NUM_THREADS")) {
        const int wanted = std::atoi(text);
        if (wanted > 0) count = std::min(count, wanted);
    }
    return count;
}

}  // namespace mg::cpu
