// Matrix products: choice by format.
#include "../block_matmul.h"

namespace lpx::LPX_ISA_NS {

MatmulFunction matmul_of_float_format(PackedFormat format);
MatmulFunction matmul_of_block_format(PackedFormat format);
MatmulFunction matmul_of_super_block_format(PackedFormat format);
void fill_matrix(KernelTable& table);

namespace {

MatmulFunction matmul_of(PackedFormat format) {
    if (MatmulFunction f = matmul_of_float_format(format)) return f;
    if (MatmulFunction f = matmul_of_block_format(format)) return f;
    return matmul_of_super_block_format(format);
}

void matmul(const PackedMatrix& w, int64_t group_begin, int64_t group_end, const Activations& a, int64_t rows,
            float* out, int64_t out_stride, void* scratch) {
    if (rows > 0 && group_begin < group_end)
        matmul_of(w.format())(w, group_begin, group_end, a, rows, out, out_stride, scratch);
}

}  // namespace

void fill_matrix(KernelTable& table) {
    table.matmul = matmul;
}

}  // namespace lpx::LPX_ISA_NS
