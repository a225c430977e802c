/* SPDX-License-Identifier: Apache-2.0 */
/* The micro-kernels in AVX-512 (F, BW, DQ, VL). */
#include "kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

#    include "kernels_avx512.h"

#    include "kernels_simd.h"

#    include "kernels_few_rows.h"
#    include "kernels_multiply.h"

#    include "kernels_backward_simd.h"

const fa_cpu_kernels *fa_cpu_kernels_avx512(void) {
    static const fa_cpu_kernels table = FA_CPU_FLOAT32_KERNELS(FA_ISA_AVX512);
    return &table;
}

const fa_cpu_backward_kernels *fa_cpu_backward_kernels_avx512(void) {
    static const fa_cpu_backward_kernels table = BACKWARD_KERNELS;
    return &table;
}

#else

#    include "kernels_backward.h"

const fa_cpu_kernels *fa_cpu_kernels_avx512(void) { return NULL; }
const fa_cpu_backward_kernels *fa_cpu_backward_kernels_avx512(void) { return NULL; }

#endif
