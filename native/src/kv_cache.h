// The memory of the paged KV cache. Which sequence owns which block is the engine's business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "kernels/kv_layout.h"

namespace lpx {

// "f16", "bf16", "q8" or "q4"; throws std::invalid_argument for any other.
KvType kv_type_from_name(std::string_view name);

KvLayout make_kv_layout(KvTypes types, int64_t head_dim);

// A block holds kKvBlock tokens of all layers: [layers][kv heads], each as kernels/kv_layout.h lays it out. Keeping the
// layers of a block together makes the memory in use grow with the blocks in use, in huge pages.
class KvCache {
  public:
    // Throws std::bad_alloc when the address space is refused. Pages are backed when first written.
    KvCache(int64_t blocks, int64_t layers, int64_t kv_heads, const KvLayout& layout);

    int64_t blocks() const { return blocks_; }
    const KvLayout& layout() const { return layout_; }
    // Has the system hand over the memory of `count` blocks now, not when they are first written. What they hold stays.
    // False: it does not know how (Linux before 5.14), or has no memory left.
    bool populate(int64_t first, int64_t count) const;
    // Bytes from one block to the next.
    int64_t block_pitch() const { return block_pitch_; }
    std::byte* at(int64_t layer, int64_t kv_head) const {
        return data_.get() + (layer * kv_heads_ + kv_head) * layout_.bytes;
    }
    size_t bytes() const { return static_cast<size_t>(blocks_) * block_pitch_; }
    // The values that are kept of one token, [head_dim] each: the scalar twin of what the kernels read.
    void read(int64_t block, int64_t layer, int64_t kv_head, int slot, float* key, float* value) const;

    static size_t block_bytes(int64_t layers, int64_t kv_heads, const KvLayout& layout);

  private:
    struct Unmap {
        size_t bytes;
        void operator()(std::byte* p) const;
    };
    KvLayout layout_;
    int64_t blocks_, kv_heads_, block_pitch_;
    std::unique_ptr<std::byte[], Unmap> data_;
};

}  // namespace lpx
