#include "thread_pool.h"

#include <chrono>
#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lpx {

namespace {

inline void pause_briefly() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("isb");
#endif
}

// Some 50 us of pauses: longer than any wait among threads that all have a core. Threads that have to share cores give
// theirs away almost at once.
constexpr int kSpins = 1500;
constexpr int kSpinsOversubscribed = 20;
// After its spins a thread that waits for the next run yields for so long, then sleeps: the steps of a running request
// find their threads awake (waking one takes longer than what lies between two steps), and an idle process uses no CPU.
constexpr std::chrono::microseconds kAwake{1000};

}  // namespace

// Yields in the end, because the thread that is waited for may need this very core.
template <class Done>
void ThreadPool::spin_until(Done done) const {
    for (int i = 0; i < spins_; ++i) {
        if (done()) return;
        pause_briefly();
    }
    while (!done()) std::this_thread::yield();
}

ThreadPool::ThreadPool(int threads)
    : spins_(threads <= static_cast<int>(std::thread::hardware_concurrency()) ? kSpins : kSpinsOversubscribed) {
    if (threads < 1)
        throw std::invalid_argument("a thread pool needs at least 1 thread, not " + std::to_string(threads));
    workers_.reserve(threads - 1);
    for (int thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
}

ThreadPool::~ThreadPool() {
    stop_ = true;
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::start(Call call, void* context) {
    call_ = call;
    context_ = context;
    if (!workers_.empty()) {
        running_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
        epoch_.fetch_add(1, std::memory_order_release);
        epoch_.notify_all();
    }
    call_guarded(0);
    spin_until([this] { return running_.load(std::memory_order_acquire) == 0; });
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadPool::work(int thread) {
    int seen = 0;
    for (;;) {
        const auto next = [&] { return epoch_.load(std::memory_order_acquire) != seen; };
        bool ready = false;
        for (int i = 0; i < spins_ && !(ready = next()); ++i) pause_briefly();
        const auto asleep = std::chrono::steady_clock::now() + kAwake;
        while (!ready && std::chrono::steady_clock::now() < asleep) {
            std::this_thread::yield();
            ready = next();
        }
        while (!next()) epoch_.wait(seen, std::memory_order_acquire);
        ++seen;
        if (stop_) return;
        call_guarded(thread);
        running_.fetch_sub(1, std::memory_order_release);
    }
}

void ThreadPool::call_guarded(int thread) {
    try {
        call_(context_, thread);
    } catch (...) {
        const std::lock_guard lock(failure_mutex_);
        if (!failure_) failure_ = std::current_exception();
    }
}

void ThreadPool::barrier() {
    if (workers_.empty()) return;
    const int epoch = barrier_epoch_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size()) {
        arrived_.store(0, std::memory_order_relaxed);
        barrier_epoch_.store(epoch + 1, std::memory_order_release);
    } else {
        spin_until([&] { return barrier_epoch_.load(std::memory_order_acquire) != epoch; });
    }
}

}  // namespace lpx
