#include "cpu/threads.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#if !defined(_WIN32)
#include <pthread.h>
#include <signal.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "cpu/arithmetic.h"
#include "cpu/processors.h"

namespace mg::cpu {
namespace {

void pause() {
#if defined(__x86_64__)
    _mm_pause();
#else
    std::this_thread::yield();
#endif
}

// Waits for a condition: a short spin for the gaps between ops, then giving way, so that a core that others want is
// theirs.  Returns false when it gave up.
template <typename Condition>
bool spin_until(const Condition& condition) {
    for (int i = 0; i < 300; ++i) {
        if (condition()) return true;
        pause();
    }
    for (int i = 0; i < 60; ++i) {
        if (condition()) return true;
        std::this_thread::yield();
    }
    return condition();
}

// Threads that are started while it lives leave the process's signals to the caller's own threads: they would take signals that a program
// has blocked in its threads, to wait for them.  Not those that a thread's own faults and limits send it, nor a profiler's.
class SignalsBlocked {
   public:
#if defined(_WIN32)
    SignalsBlocked() {}
#else
    SignalsBlocked() {
        sigset_t most;
        sigfillset(&most);
        for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF})
            sigdelset(&most, own);
        pthread_sigmask(SIG_BLOCK, &most, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
#endif
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

#if !defined(_WIN32)
   private:
    sigset_t before_;
#endif
};

// Tasks of one call are handed out by a counter that also names the call.  A worker that wakes up late finds the name changed
// and touches nothing, so nobody ever waits for a thread that hasn't begun: on a busy machine the caller does the work alone.
class Pool {
   public:
    void run(int threads, int64_t count, TaskFunction function, void* closure) {
        const std::lock_guard<std::mutex> turn(turn_);
        try {
            grow(threads - 1);
        } catch (...) {
            // The system gives no more threads: those that are there do the work.
        }
        // Closed to all before its parts change, so that no worker can mix two calls up.
        ticket_.store(uint64_t{++calls_} << 32 | kNoTask, std::memory_order_seq_cst);
        function_.store(function, std::memory_order_relaxed);
        closure_.store(closure, std::memory_order_relaxed);
        helpers_.store(threads - 1, std::memory_order_relaxed);
        finished_.store(0, std::memory_order_relaxed);
        count_.store(static_cast<uint32_t>(count), std::memory_order_relaxed);
        const uint32_t call = ++calls_;
        ticket_.store(uint64_t{call} << 32, std::memory_order_seq_cst);
        if (sleeping_.load(std::memory_order_seq_cst) > 0) {
            const std::lock_guard<std::mutex> lock(mutex_);
            wake_.notify_all();
        }
        take_tasks(call, 0);
        const auto all_done = [&] { return finished_.load(std::memory_order_acquire) == static_cast<uint32_t>(count); };
        if (!spin_until(all_done)) {
            std::unique_lock<std::mutex> lock(mutex_);
            done_.wait(lock, all_done);
        }
    }

   private:
    void grow(int helpers) {
        if (static_cast<int>(workers_.size()) >= helpers) return;
        const SignalsBlocked blocked;
        while (static_cast<int>(workers_.size()) < helpers) {
            const int index = static_cast<int>(workers_.size()) + 1;
            workers_.emplace_back([this, index] { work(index); });
        }
    }

    // Runs tasks of that call until none is left to begin.
    void take_tasks(uint32_t call, int worker) {
        uint64_t ticket = ticket_.load(std::memory_order_acquire);
        for (;;) {
            const uint32_t count = count_.load(std::memory_order_relaxed);
            const uint32_t task = static_cast<uint32_t>(ticket);
            if (ticket >> 32 != call || task >= count) return;
            if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) continue;
            // This task is begun and not finished, so the call can't end and its function and closure are the right ones.
            const TaskFunction function = function_.load(std::memory_order_relaxed);
            function(closure_.load(std::memory_order_relaxed), task, worker);
            if (finished_.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
                const std::lock_guard<std::mutex> lock(mutex_);
                done_.notify_one();
            }
            ticket = ticket_.load(std::memory_order_acquire);
        }
    }

    void work(int index) {
        const Arithmetic arithmetic;
        uint32_t seen = 0;
        for (;;) {
            const auto called = [&] {
                return static_cast<uint32_t>(ticket_.load(std::memory_order_seq_cst) >> 32) != seen;
            };
            if (!spin_until(called)) {
                std::unique_lock<std::mutex> lock(mutex_);
                sleeping_.fetch_add(1, std::memory_order_seq_cst);
                wake_.wait(lock, called);
                sleeping_.fetch_sub(1, std::memory_order_seq_cst);
            }
            seen = static_cast<uint32_t>(ticket_.load(std::memory_order_acquire) >> 32);
            if (index <= helpers_.load(std::memory_order_relaxed)) take_tasks(seen, index);
        }
    }

    static constexpr uint32_t kNoTask = 0xFFFFFFFF;

    std::mutex turn_;   // one caller at a time
    std::mutex mutex_;  // for the two conditions
    std::condition_variable wake_, done_;
    std::vector<std::thread> workers_;
    uint32_t calls_ = 0;
    std::atomic<uint64_t> ticket_{0};  // number of the call << 32 | next task
    std::atomic<uint32_t> count_{0}, finished_{0};
    std::atomic<int> helpers_{0}, sleeping_{0};
    std::atomic<TaskFunction> function_{nullptr};
    std::atomic<void*> closure_{nullptr};
};

std::atomic<Pool*> shared_pool{nullptr};
std::atomic<int> chosen_threads{0};

// Never destroyed: threads may still be computing while the process exits.  After a fork the child has none of the threads,
// so it starts a pool of its own.
Pool& pool() {
    Pool* current = shared_pool.load(std::memory_order_acquire);
    if (current == nullptr) {
        static std::mutex creation;
        const std::lock_guard<std::mutex> lock(creation);
        current = shared_pool.load(std::memory_order_acquire);
        if (current == nullptr) {
#if !defined(_WIN32)
            static const int registered =
                pthread_atfork(nullptr, nullptr, [] { shared_pool.store(nullptr, std::memory_order_release); });
            static_cast<void>(registered);
#endif
            current = new Pool;
            shared_pool.store(current, std::memory_order_release);
        }
    }
    return *current;
}

}  // namespace

int thread_count() {
    int count = chosen_threads.load(std::memory_order_relaxed);
    if (count == 0) {
        count = usable_processors();
        if (count > kMaxThreads) count = kMaxThreads;
        chosen_threads.store(count, std::memory_order_relaxed);
    }
    return count;
}

void set_thread_count(int count) { chosen_threads.store(count, std::memory_order_relaxed); }

void run_tasks(int threads, int64_t count, TaskFunction function, void* closure) {
    const Arithmetic arithmetic;
    if (threads > 1 && count > 1) {
        pool().run(static_cast<int>(count < threads ? count : threads), count, function, closure);
        return;
    }
    for (int64_t task = 0; task < count; ++task) function(closure, task, 0);
}

}  // namespace mg::cpu
