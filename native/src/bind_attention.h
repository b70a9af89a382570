// What the bindings of the KV cache share.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "kv_cache.h"

namespace lpx {

// Throws std::invalid_argument for unknown names.
KvTypes kv_types(const std::string& key_type, const std::string& value_type);
// (keys, values) of a block of one layer and KV head, as they are kept: float32 [tokens of a block, head_dim] each.
nanobind::tuple stored_block(const KvCache& cache, int64_t block, int64_t layer, int64_t kv_head);

}  // namespace lpx
