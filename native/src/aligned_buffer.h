// Memory for kernels: aligned to cache lines, zero at first.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace lpx {

template <class T>
class AlignedBuffer {
  public:
    AlignedBuffer() = default;
    explicit AlignedBuffer(size_t size) : size_(size) {
        const size_t bytes = (size * sizeof(T) + 2 * kAlignment - 1) / kAlignment * kAlignment;
        data_ = {static_cast<T*>(bytes < kMappedBytes ? zeroed(bytes) : mapped(bytes)), Free{bytes}};
    }
    T* data() const { return data_.get(); }
    size_t size() const { return size_; }
    T& operator[](size_t i) const { return data_[i]; }

  private:
    static constexpr size_t kAlignment = 64;
    // From here on a buffer is mapped by itself: it takes memory only where it is used, and gives all of it back.
    static constexpr size_t kMappedBytes = size_t{256} << 10;

    static void* zeroed(size_t bytes) {
        void* const p = std::aligned_alloc(kAlignment, bytes);
        if (p == nullptr) throw std::bad_alloc();
        return std::memset(p, 0, bytes);
    }
    static void* mapped(size_t bytes) {
        void* const p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) throw std::bad_alloc();
        return p;
    }
    struct Free {
        size_t bytes = 0;
        void operator()(T* p) const {
            if (bytes < kMappedBytes)
                std::free(p);
            else
                munmap(p, bytes);
        }
    };
    std::unique_ptr<T[], Free> data_;
    size_t size_ = 0;
};

}  // namespace lpx
