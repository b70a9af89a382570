// Memory of packed weights: small matrices share huge pages, because streaming them through 4 KiB pages costs a third
// of the bandwidth.
#pragma once

#include <cstddef>
#include <memory>

namespace lpx {

struct WeightSlab;  // a mapping that several matrices may share; unmapped when the last of them goes

struct FreeWeights {
    WeightSlab* slab = nullptr;
    void operator()(std::byte* p) const;
};
using WeightMemory = std::unique_ptr<std::byte[], FreeWeights>;

// `bytes` of memory aligned to 64. Any thread may call it. Throws std::bad_alloc.
WeightMemory allocate_weights(size_t bytes);

}  // namespace lpx
