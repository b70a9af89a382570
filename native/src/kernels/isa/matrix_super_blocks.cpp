// Matrix products of the formats with two levels of scales (K formats and IQ4_XS).
#include "../block_matmul.h"

namespace lpx::LPX_ISA_NS {

MatmulFunction matmul_of_super_block_format(PackedFormat format) {
    switch (format) {
        case PackedFormat::Q2_K:
            return matmul_blocks<PackedFormat::Q2_K>;
        case PackedFormat::Q3_K:
            return matmul_blocks<PackedFormat::Q3_K>;
        case PackedFormat::Q4_K:
            return matmul_blocks<PackedFormat::Q4_K>;
        case PackedFormat::Q5_K:
            return matmul_blocks<PackedFormat::Q5_K>;
        case PackedFormat::Q6_K:
            return matmul_blocks<PackedFormat::Q6_K>;
        case PackedFormat::IQ4_XS:
            return matmul_blocks<PackedFormat::IQ4_XS>;
        default:
            return nullptr;
    }
}

}  // namespace lpx::LPX_ISA_NS
