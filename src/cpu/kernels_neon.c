/* SPDX-License-Identifier: Apache-2.0 */
/* The micro-kernels in NEON (aarch64). */
#include "kernels.h"

#if defined(__aarch64__)

#    include "kernels_neon.h"

#    include "kernels_simd.h"

#    include "kernels_few_rows.h"
#    include "kernels_multiply.h"

#    include "kernels_backward_simd.h"

const fa_cpu_kernels *fa_cpu_kernels_neon(void) {
    static const fa_cpu_kernels table = FA_CPU_FLOAT32_KERNELS(FA_ISA_NEON);
    return &table;
}

const fa_cpu_backward_kernels *fa_cpu_backward_kernels_neon(void) {
    static const fa_cpu_backward_kernels table = BACKWARD_KERNELS;
    return &table;
}

#else

#    include "kernels_backward.h"

const fa_cpu_kernels *fa_cpu_kernels_neon(void) { return NULL; }
const fa_cpu_backward_kernels *fa_cpu_backward_kernels_neon(void) { return NULL; }

#endif
