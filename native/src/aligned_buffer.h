// Memory for kernels: aligned to cache lines, zero at first.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

namespace lpx {

template <class T>
class AlignedBuffer {
  public:
    AlignedBuffer() = default;
    explicit AlignedBuffer(size_t size)
        : data_(static_cast<T*>(::operator new(size * sizeof(T) + 64, std::align_val_t(64)))), size_(size) {
        std::memset(static_cast<void*>(data_.get()), 0, size * sizeof(T) + 64);
    }
    T* data() const { return data_.get(); }
    size_t size() const { return size_; }
    T& operator[](size_t i) const { return data_[i]; }

  private:
    struct Free {
        void operator()(T* p) const { ::operator delete(p, std::align_val_t(64)); }
    };
    std::unique_ptr<T[], Free> data_;
    size_t size_ = 0;
};

}  // namespace lpx
