// Measures what the machine gives at most to a number of threads with one instruction set: reading and multiply-adds.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "thread_pool.h"
#include "weight_storage.h"

namespace lpx {

// Not thread-safe: one caller at a time.
class Roofline {
  public:
    // Memory of `bytes` for each thread, written by that thread and kept like weights. Throws std::invalid_argument for
    // arguments that cannot be used, std::bad_alloc when there is no memory.
    Roofline(int threads, const char* isa, int64_t bytes);

    const char* isa() const { return kernels_.isa; }
    int threads() const { return pool_.size(); }

    // Bytes a second that all threads read together, once a repetition, repeated for `seconds` but at least once. Each
    // thread reads the first `bytes` of its memory over and over, as so many streams side by side; see
    // KernelTable::read_streams. Throws std::invalid_argument for arguments out of range.
    std::vector<double> read(int64_t bytes, int streams, bool fetched, double seconds);

    // Multiply-adds a second of all threads together, likewise. `kind` is int8_4bit, int8, bf16 or f32; empty when the
    // instruction set has no unit for it.
    std::vector<double> multiply_add(const std::string& kind, double seconds);

    static constexpr int64_t kLeastBytes = 8 * kReadStep;

  private:
    using Clock = std::chrono::steady_clock;
    struct alignas(64) Share {
        Clock::time_point begin, end;
        int64_t amount = 0;
    };

    template <class Work>
    std::vector<double> rates(double seconds, Work work);

    const KernelTable& kernels_;
    ThreadPool pool_;
    int64_t bytes_;
    std::vector<WeightMemory> memory_;
    std::vector<Share> shares_;
};

}  // namespace lpx
