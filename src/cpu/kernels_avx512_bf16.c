/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The micro-kernels in AVX-512 with the dot product of bfloat16 pairs, for bfloat16 inputs: two products per lane and
 * instruction. Products are exact, sums float32; subnormal operands and sums count as 0 (docs/numerics.md).
 */
#include "kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && \
    defined(__AVX512BF16__)

#    define OPERAND_BFLOAT16
#    define DEPTH 2

#    include "kernels_avx512_bf16_operands.h"

#    include "kernels_few_rows.h"
#    include "kernels_multiply.h"

const fa_cpu_kernels *fa_cpu_kernels_avx512_bf16(void) {
    static const fa_cpu_kernels table = FA_CPU_BFLOAT16_KERNELS(FA_ISA_AVX512_BF16);
    return &table;
}

#else

const fa_cpu_kernels *fa_cpu_kernels_avx512_bf16(void) { return NULL; }

#endif
