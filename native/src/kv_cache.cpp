#include "kv_cache.h"

#include <sys/mman.h>

#include <new>
#include <stdexcept>

namespace lpx {

namespace {

int64_t elements_per_head(int64_t head_dim) {
    return kKvBlock * (head_dim + padded_head_dim(head_dim));
}

}  // namespace

KvCache::KvCache(int64_t blocks, int64_t layers, int64_t kv_heads, int64_t head_dim)
    : blocks_(blocks),
      kv_heads_(kv_heads),
      head_elements_(elements_per_head(head_dim)),
      block_pitch_(layers * kv_heads * head_elements_) {
    if (blocks < 1 || blocks > INT32_MAX) throw std::invalid_argument("number of KV blocks must be in [1, 2^31)");
    void* const p = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    madvise(p, bytes(), MADV_HUGEPAGE);  // only a hint; small pages work too
    data_ = {static_cast<uint16_t*>(p), Unmap{bytes()}};
}

size_t KvCache::block_bytes(int64_t layers, int64_t kv_heads, int64_t head_dim) {
    return static_cast<size_t>(layers) * kv_heads * elements_per_head(head_dim) * sizeof(uint16_t);
}

void KvCache::Unmap::operator()(uint16_t* p) const {
    munmap(p, bytes);
}

}  // namespace lpx
