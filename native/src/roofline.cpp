#include "roofline.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace lpx {

namespace {

// A repetition lasts at least so long: starting the threads and reading the clock then count for nothing.
constexpr std::chrono::milliseconds kLeastTime{5};
constexpr double kMostSeconds = 60.0;

}  // namespace

Roofline::Roofline(int threads, const char* isa, int64_t bytes)
    : kernels_(kernels_for(isa)), pool_(threads), bytes_(bytes), memory_(threads), shares_(threads) {
    if (bytes < kLeastBytes)
        throw std::invalid_argument("a thread needs at least " + std::to_string(kLeastBytes) + " bytes to read, not " +
                                    std::to_string(bytes));
    pool_.run([&](int thread) {
        memory_[thread] = allocate_weights(static_cast<size_t>(bytes));
        std::memset(memory_[thread].get(), thread + 1, static_cast<size_t>(bytes));
    });
}

// `work(thread, count)` does something `count` times and returns how much that was.
template <class Work>
std::vector<double> Roofline::rates(double seconds, Work work) {
    if (!(seconds >= 0.0 && seconds <= kMostSeconds))
        throw std::invalid_argument("seconds must be between 0 and " + std::to_string(static_cast<int>(kMostSeconds)));
    const Clock::time_point started = Clock::now();
    std::vector<double> result;
    int64_t count = 1;
    do {
        pool_.run([&](int thread) {
            Share& share = shares_[thread];
            pool_.barrier();
            share.begin = Clock::now();
            share.amount = work(thread, count);
            share.end = Clock::now();
        });
        Clock::time_point begin = shares_[0].begin, end = shares_[0].end;
        double amount = 0.0;
        for (const Share& share : shares_) {
            begin = std::min(begin, share.begin);
            end = std::max(end, share.end);
            amount += static_cast<double>(share.amount);
        }
        if (end - begin < kLeastTime)
            count *= 2;
        else
            result.push_back(amount / std::chrono::duration<double>(end - begin).count());
    } while (result.empty() || std::chrono::duration<double>(Clock::now() - started).count() < seconds);
    return result;
}

std::vector<double> Roofline::read(int64_t bytes, int streams, bool fetched, double seconds) {
    if (streams != 1 && streams != 2 && streams != 4 && streams != 8)
        throw std::invalid_argument("streams must be 1, 2, 4 or 8, not " + std::to_string(streams));
    if (bytes < kLeastBytes || bytes > bytes_)
        throw std::invalid_argument("bytes must be between " + std::to_string(kLeastBytes) + " and the " +
                                    std::to_string(bytes_) + " of a thread, not " + std::to_string(bytes));
    // An odd number of steps: streams that are a multiple of 4 KiB apart would compete for the same cache sets.
    const int64_t steps = bytes / streams / kReadStep;
    const int64_t stream_bytes = (steps - (steps + 1) % 2) * kReadStep;
    return rates(seconds, [&](int thread, int64_t count) {
        for (int64_t i = 0; i < count; ++i)
            kernels_.read_streams(memory_[thread].get(), streams, stream_bytes, fetched);
        return count * streams * stream_bytes;
    });
}

std::vector<double> Roofline::multiply_add(const std::string& kind, double seconds) {
    int64_t (*peak)(int64_t) = nullptr;
    if (kind == "int8_4bit")
        peak = kernels_.peak_int8_4bit;
    else if (kind == "int8")
        peak = kernels_.peak_int8;
    else if (kind == "bf16")
        peak = kernels_.peak_bf16;
    else if (kind == "f32")
        peak = kernels_.peak_f32;
    else
        throw std::invalid_argument("unknown kind of multiply-add '" + kind +
                                    "'; choose one of: int8_4bit, int8, bf16, f32");
    if (peak == nullptr) return {};
    return rates(seconds, [&](int /*thread*/, int64_t count) { return peak(1000 * count); });
}

}  // namespace lpx
