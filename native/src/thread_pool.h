// A persistent team of threads: spinning inside a step, sleeping between steps.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace lpx {

class ThreadPool {
  public:
    // The calling thread counts as one: `threads` - 1 are started. Throws std::invalid_argument for fewer than 1.
    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const { return static_cast<int>(workers_.size()) + 1; }

    // Calls f(thread_index) on every thread, the caller as index 0, and returns when all are done. One run at a time;
    // an f that throws must not use barrier() (the first exception is thrown again here).
    template <class F>
    void run(F&& f) {
        using Function = std::remove_reference_t<F>;
        start([](void* context, int thread) { (*static_cast<Function*>(context))(thread); },
              const_cast<void*>(static_cast<const void*>(std::addressof(f))));
    }

    // Inside run: returns when every thread has called it; what they wrote before is visible after.
    void barrier();

  private:
    using Call = void (*)(void* context, int thread);

    void start(Call call, void* context);
    void work(int thread);
    void call_guarded(int thread);
    template <class Done>
    void spin_until(Done done) const;

    Call call_ = nullptr;
    void* context_ = nullptr;
    bool stop_ = false;  // published by epoch_
    int spins_;          // pauses before a waiting thread gives its core away
    std::mutex failure_mutex_;
    std::exception_ptr failure_;
    std::vector<std::thread> workers_;
    // Written by different threads while others spin on them: one cache line each.
    alignas(64) std::atomic<int> epoch_{0};    // counts runs; workers wait for its change
    alignas(64) std::atomic<int> running_{0};  // workers that have not finished the run
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> barrier_epoch_{0};
};

}  // namespace lpx
