#include "weight_storage.h"

#include <sys/mman.h>

#include <cstdint>
#include <mutex>
#include <new>

namespace lpx {

struct WeightSlab {
    void* mapping = nullptr;
    size_t mapped = 0;
    std::byte* begin = nullptr;  // aligned to a huge page
    size_t size = 0, used = 0;
    size_t owners = 0;  // matrices in it, plus one while it is the slab that is being filled
};

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSlabBytes = size_t{32} << 20;
constexpr size_t kOwnSlabBytes = size_t{8} << 20;  // from here on a matrix gets a slab of its own

std::mutex mutex;
WeightSlab* filling = nullptr;

size_t round_up(size_t n, size_t unit) {
    return (n + unit - 1) / unit * unit;
}

WeightSlab* map_slab(size_t size) {
    auto slab = std::make_unique<WeightSlab>();
    slab->mapped = size + kHugePage;
    slab->mapping = mmap(nullptr, slab->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (slab->mapping == MAP_FAILED) throw std::bad_alloc();
    slab->begin = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<uintptr_t>(slab->mapping), kHugePage));
    slab->size = size;
    madvise(slab->begin, size, MADV_HUGEPAGE);  // a system without huge pages says no, and works
    return slab.release();
}

// With the mutex held.
void release(WeightSlab* slab) {
    if (--slab->owners > 0) return;
    munmap(slab->mapping, slab->mapped);
    delete slab;
}

}  // namespace

void FreeWeights::operator()(std::byte* /*p*/) const {
    const std::lock_guard lock(mutex);
    release(slab);
    // Nothing but the allocator holds it: let an engine that went away leave no memory behind.
    if (filling != nullptr && filling->owners == 1) {
        release(filling);
        filling = nullptr;
    }
}

WeightMemory allocate_weights(size_t bytes) {
    const size_t size = round_up(bytes, 64);
    const std::lock_guard lock(mutex);
    if (size >= kOwnSlabBytes) {
        WeightSlab* slab = map_slab(size);
        slab->owners = 1;
        return {slab->begin, FreeWeights{slab}};
    }
    if (filling == nullptr || filling->size - filling->used < size) {
        WeightSlab* fresh = map_slab(kSlabBytes);
        if (filling != nullptr) release(filling);
        filling = fresh;
        filling->owners = 1;
    }
    std::byte* p = filling->begin + filling->used;
    filling->used += size;
    ++filling->owners;
    return {p, FreeWeights{filling}};
}

}  // namespace lpx
