// NumPy arrays that own what they hold.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <initializer_list>
#include <memory>

namespace lpx {

// A new NumPy array; `fill` writes its values.
template <class T, class F>
nanobind::object new_array(std::initializer_list<size_t> shape, F fill) {
    size_t size = 1;
    for (const size_t n : shape) size *= n;
    auto data = std::make_unique<T[]>(size);
    fill(data.get());
    T* const p = data.release();
    nanobind::capsule owner(p, [](void* q) noexcept { delete[] static_cast<T*>(q); });
    return nanobind::cast(nanobind::ndarray<nanobind::numpy, T>(p, shape, owner));
}

}  // namespace lpx
