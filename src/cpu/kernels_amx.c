/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The micro-kernels in AMX: products in tiles of bfloat16, everything else in AVX-512. Products are exact, sums
 * float32; subnormal operands and sums count as 0 (docs/numerics.md). A thread may use tiles only after the process was
 * permitted to (dispatch.c).
 */
#include "kernels.h"

/* Clang before 16 spells its macros without the underscore. FA_AMX_MODEL: kernels_amx_tiles.h. */
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && \
    defined(__AVX512BF16__) && (defined(__AMX_BF16__) || defined(__AMXBF16__) || defined(FA_AMX_MODEL))

#    define OPERAND_BFLOAT16
#    define DEPTH 32

#    include "kernels_avx512_bf16_operands.h"

#    include "kernels_amx_multiply.h"

_Static_assert(PANEL == AMX_PANEL && DEPTH == AMX_DEPTH, "packed panels are pairs of tiles");

static void multiply(float *c, int64_t c_stride, const void *a, int64_t a_stride, const void *b, int64_t b_depth,
                     int64_t rows, int64_t columns, int64_t depth, const float *row_scale) {
    for (int64_t r = 0; r < rows && row_scale != NULL; r++)
        for (int64_t n = 0; n < columns; n++) c[r * c_stride + n] *= row_scale[r];
    multiply_blocks(c, c_stride, a, a_stride, b, b_depth, rows, columns, depth, row_scale != NULL);
}

const fa_cpu_kernels *fa_cpu_kernels_amx(void) {
    static const fa_cpu_kernels table = {.isa = FA_ISA_AMX,
                                         .panel = PANEL,
                                         .operand = FA_ELEMENT_BFLOAT16,
                                         .b_bytes = 2,
                                         .step = STEP,
                                         .depth = DEPTH,
                                         .strip = 32,
                                         .load_rows = load_rows,
                                         .load_queries = load_queries,
                                         .pack_keys = pack_keys,
                                         .pack_values = pack_values,
                                         .multiply = multiply,
                                         .leave = leave,
                                         .softmax_step = softmax_step,
                                         .softcap = softcap,
                                         .store_row = store_row};
    return &table;
}

#else

const fa_cpu_kernels *fa_cpu_kernels_amx(void) { return NULL; }

#endif
