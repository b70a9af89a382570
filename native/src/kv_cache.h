// The memory of the paged KV cache. Which sequence owns which block is the engine's business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/attention.h"

namespace lpx {

// A block holds kKvBlock tokens of all layers: [layers][kv heads], each as kernels/attention.h lays it out. Keeping the
// layers of a block together makes the memory in use grow with the blocks in use, in huge pages.
class KvCache {
  public:
    // Throws std::bad_alloc when the address space is refused. Pages are backed when first written.
    KvCache(int64_t blocks, int64_t layers, int64_t kv_heads, int64_t head_dim);

    int64_t blocks() const { return blocks_; }
    // Elements from one block to the next.
    int64_t block_pitch() const { return block_pitch_; }
    uint16_t* at(int64_t layer, int64_t kv_head) const {
        return data_.get() + (layer * kv_heads_ + kv_head) * head_elements_;
    }
    size_t bytes() const { return static_cast<size_t>(blocks_) * block_pitch_ * sizeof(uint16_t); }

    static size_t block_bytes(int64_t layers, int64_t kv_heads, int64_t head_dim);

  private:
    struct Unmap {
        size_t bytes;
        void operator()(uint16_t* p) const;
    };
    int64_t blocks_, kv_heads_, head_elements_, block_pitch_;
    std::unique_ptr<uint16_t[], Unmap> data_;
};

}  // namespace lpx
