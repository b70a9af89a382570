// Matrix products of the formats with one level of scales.
#include "../block_matmul.h"

namespace lpx::LPX_ISA_NS {

MatmulFunction matmul_of_block_format(PackedFormat format) {
    switch (format) {
        case PackedFormat::Q4_0:
            return matmul_blocks<PackedFormat::Q4_0>;
        case PackedFormat::Q4_1:
            return matmul_blocks<PackedFormat::Q4_1>;
        case PackedFormat::Q5_0:
            return matmul_blocks<PackedFormat::Q5_0>;
        case PackedFormat::Q5_1:
            return matmul_blocks<PackedFormat::Q5_1>;
        case PackedFormat::Q8_0:
            return matmul_blocks<PackedFormat::Q8_0>;
        case PackedFormat::Q8_0_Split:
            return matmul_blocks<PackedFormat::Q8_0_Split>;
        case PackedFormat::IQ4_NL:
            return matmul_blocks<PackedFormat::IQ4_NL>;
        default:
            return nullptr;
    }
}

}  // namespace lpx::LPX_ISA_NS
