#include "cpu/threads.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#if !defined(_WIN32)
#include <pthread.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

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

class Pool {
   public:
    void run(int threads, int64_t count, TaskFunction function, void* closure) {
        const std::lock_guard<std::mutex> turn(turn_);
        try {
            grow(threads - 1);
        } catch (...) {
            // The system gives no more threads: those that are there do the work.
        }
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            function_ = function;
            closure_ = closure;
            count_ = count;
            helpers_ =
                threads - 1 < static_cast<int>(workers_.size()) ? threads - 1 : static_cast<int>(workers_.size());
            next_.store(0, std::memory_order_relaxed);
            busy_.store(helpers_, std::memory_order_relaxed);
            generation_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
        take_tasks(0);
        const auto all_done = [&] { return busy_.load(std::memory_order_acquire) == 0; };
        if (!spin_until(all_done)) {
            std::unique_lock<std::mutex> lock(mutex_);
            done_.wait(lock, all_done);
        }
    }

    ~Pool() {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            stopping_ = true;
            generation_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
        for (std::thread& worker : workers_) worker.join();
    }

   private:
    void grow(int helpers) {
        while (static_cast<int>(workers_.size()) < helpers) {
            const int index = static_cast<int>(workers_.size()) + 1;
            const uint64_t seen = generation_.load(std::memory_order_relaxed);
            workers_.emplace_back([this, index, seen] { work(index, seen); });
        }
    }

    void take_tasks(int worker) {
        for (;;) {
            const int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
            if (task >= count_) return;
            function_(closure_, task, worker);
        }
    }

    void work(int index, uint64_t seen) {
        for (;;) {
            const auto called = [&] { return generation_.load(std::memory_order_acquire) != seen; };
            if (!spin_until(called)) {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, called);
            }
            int helpers;
            {
                // A worker that this call doesn't count may be late for it: only under the lock do generation and
                // helpers_ belong together.
                const std::lock_guard<std::mutex> lock(mutex_);
                if (stopping_) return;
                seen = generation_.load(std::memory_order_relaxed);
                helpers = helpers_;
            }
            if (index > helpers) continue;
            take_tasks(index);
            if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
                const std::lock_guard<std::mutex> lock(mutex_);
                done_.notify_one();
            }
        }
    }

    std::mutex turn_;   // one caller at a time
    std::mutex mutex_;  // guards the call below and the two conditions
    std::condition_variable wake_, done_;
    std::vector<std::thread> workers_;
    std::atomic<uint64_t> generation_{0};
    std::atomic<int64_t> next_{0};
    std::atomic<int> busy_{0};
    TaskFunction function_ = nullptr;
    void* closure_ = nullptr;
    int64_t count_ = 0;
    int helpers_ = 0;
    bool stopping_ = false;
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
    if (threads > 1 && count > 1) {
        pool().run(static_cast<int>(count < threads ? count : threads), count, function, closure);
        return;
    }
    for (int64_t task = 0; task < count; ++task) function(closure, task, 0);
}

}  // namespace mg::cpu
