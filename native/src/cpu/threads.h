// The thread pool that all CPU backends of a process share, and the one way to use it: parallel_for.
// Which thread runs a task never changes a result: tasks write disjoint outputs, and sums have a fixed shape.
#pragma once

#include <cstdint>

namespace mg::cpu {

constexpr int kMaxThreads = 1024;

int thread_count();
void set_thread_count(int count);  // 1..kMaxThreads; 0 restores the default, usable_processors()

using TaskFunction = void (*)(void* closure, int64_t task, int worker);
void run_tasks(int threads, int64_t count, TaskFunction function, void* closure);

// Runs body(task, worker) for every task in [0, count) and returns when all are done; worker < threads.  Tasks must not throw
// and must not call parallel_for.
template <typename Body>
void parallel_for(int threads, int64_t count, const Body& body) {
    run_tasks(
        threads, count,
        [](void* closure, int64_t task, int worker) { (*static_cast<const Body*>(closure))(task, worker); },
        const_cast<Body*>(&body));
}

// The same for tasks that need no memory of their thread.
template <typename Body>
void parallel_for(int64_t count, const Body& body) {
    parallel_for(thread_count(), count, [&](int64_t task, int) { body(task); });
}

// The same over [0, total) in ranges of at most `grain`: body(begin, end).
template <typename Body>
void parallel_ranges(int64_t total, int64_t grain, const Body& body) {
    const int64_t tasks = (total + grain - 1) / grain;
    parallel_for(tasks, [&](int64_t task) {
        const int64_t begin = task * grain;
        body(begin, begin + grain < total ? begin + grain : total);
    });
}

}  // namespace mg::cpu
