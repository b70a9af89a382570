// Which kernel sets exist, which of them this machine can run, and the choice of one.
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

// The fill functions of one instruction set; namespaces cannot be template arguments.
#define LPX_DECLARE_KERNELS(isa)         \
    namespace isa {                      \
    void fill_matrix(KernelTable&);      \
    void fill_quantize(KernelTable&);    \
    void fill_elementwise(KernelTable&); \
    void fill_kv_store(KernelTable&);    \
    void fill_attention(KernelTable&);   \
    void fill_screen(KernelTable&);      \
    void fill_sampling(KernelTable&);    \
    void fill_roofline(KernelTable&);    \
    }
#define LPX_KERNEL_SET(isa)                                                                                       \
    {                                                                                                             \
        #isa, {                                                                                                   \
            isa::fill_matrix, isa::fill_quantize, isa::fill_elementwise, isa::fill_kv_store, isa::fill_attention, \
                isa::fill_screen, isa::fill_sampling, isa::fill_roofline                                          \
        }                                                                                                         \
    }

namespace lpx {

// LPX_WITH_*: what the build was configured with (CMakeLists.txt).
#if LPX_WITH_avx512bf16
LPX_DECLARE_KERNELS(avx512bf16)
#endif
#if LPX_WITH_avx512vnni
LPX_DECLARE_KERNELS(avx512vnni)
#endif
#if LPX_WITH_avx2vnni
LPX_DECLARE_KERNELS(avx2vnni)
#endif
#if LPX_WITH_avx2
LPX_DECLARE_KERNELS(avx2)
#endif
LPX_DECLARE_KERNELS(portable)

namespace {

struct KernelSet {
    const char* name;
    void (*fill[8])(KernelTable&);
};

// Best first.
constexpr KernelSet kKernelSets[] = {
#if LPX_WITH_avx512bf16
    LPX_KERNEL_SET(avx512bf16),
#endif
#if LPX_WITH_avx512vnni
    LPX_KERNEL_SET(avx512vnni),
#endif
#if LPX_WITH_avx2vnni
    LPX_KERNEL_SET(avx2vnni),
#endif
#if LPX_WITH_avx2
    LPX_KERNEL_SET(avx2),
#endif
    LPX_KERNEL_SET(portable),
};
constexpr int kSetCount = static_cast<int>(std::size(kKernelSets));

#if defined(__x86_64__)

struct CpuFeatures {
    bool avx2 = false, avx2vnni = false, avx512vnni = false, avx512bf16 = false;
};

// A feature counts only when the system saves its registers (XCR0).
CpuFeatures detect_cpu() {
    CpuFeatures found;
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0) return found;
    const bool fma = c >> 12 & 1, osxsave = c >> 27 & 1, avx = c >> 28 & 1, f16c = c >> 29 & 1;
    if (!osxsave || !avx) return found;
    unsigned state = 0, state_high = 0;
    __asm__("xgetbv" : "=a"(state), "=d"(state_high) : "c"(0));
    const bool saves_ymm = (state & 0x06) == 0x06, saves_zmm = (state & 0xe6) == 0xe6;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return found;
    const unsigned subleaves = a;
    const bool avx2 = b >> 5 & 1, bmi2 = b >> 8 & 1;
    const bool avx512 = (b >> 16 & 1) && (b >> 17 & 1) && (b >> 30 & 1) && (b >> 31 & 1);  // F, DQ, BW, VL
    const bool avx512_vnni = c >> 11 & 1;
    unsigned a1 = 0;
    if (subleaves >= 1) __get_cpuid_count(7, 1, &a1, &b, &c, &d);
    found.avx2 = saves_ymm && avx2 && fma && f16c && bmi2;
    found.avx2vnni = found.avx2 && (a1 >> 4 & 1);
    found.avx512vnni = found.avx2 && saves_zmm && avx512 && avx512_vnni;
    found.avx512bf16 = found.avx512vnni && (a1 >> 5 & 1);
    return found;
}

bool can_run(const std::string& isa) {
    static const CpuFeatures cpu = detect_cpu();
    if (isa == "avx512bf16") return cpu.avx512bf16;
    if (isa == "avx512vnni") return cpu.avx512vnni;
    if (isa == "avx2vnni") return cpu.avx2vnni;
    if (isa == "avx2") return cpu.avx2;
    return true;
}

#else

bool can_run(const std::string& /*isa*/) {
    return true;
}

#endif

struct Tables {
    KernelTable table[kSetCount];

    Tables() {
        for (int i = 0; i < kSetCount; ++i) {
            table[i].isa = kKernelSets[i].name;
            for (const auto fill : kKernelSets[i].fill) fill(table[i]);
        }
    }
};

}  // namespace

IsaList available_isas() {
    IsaList list{};
    for (const KernelSet& set : kKernelSets)
        if (can_run(set.name)) list.names[list.count++] = set.name;
    return list;
}

const KernelTable& kernels_for(const char* name) {
    static const Tables tables;
    std::string wanted = name == nullptr ? "" : name;
    const bool from_environment = wanted.empty();
    if (from_environment)
        if (const char* value = std::getenv("LPX_ISA")) wanted = value;
    std::string choices;
    bool known = false;
    for (int i = 0; i < kSetCount; ++i) {
        const bool runs = can_run(kKernelSets[i].name);
        if (runs && (wanted.empty() || wanted == kKernelSets[i].name)) return tables.table[i];
        known = known || wanted == kKernelSets[i].name;
        if (runs) choices += std::string(choices.empty() ? "" : ", ") + kKernelSets[i].name;
    }
    throw std::invalid_argument(
        (from_environment ? "LPX_ISA: '" : "'") + wanted + "' is " +
        (known ? "an instruction set that this machine cannot run" : "no known instruction set") +
        "; choose one of: " + choices);
}

size_t matmul_scratch_bytes(const PackedMatrix& w) {
    if (w.float_weights()) return kFloatScratchBytes;
    return kBlockScratchBytes + kMaxFusedRows * 2 * sizeof(float) * static_cast<size_t>(w.padded_cols() / kBlockCols);
}

}  // namespace lpx
