/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU back end's backward: what it would do for a problem, and doing it. */
#ifndef FA_CPU_BACKWARD_H
#define FA_CPU_BACKWARD_H

#include "cpu/kernels_backward.h"
#include "gradients.h"

typedef struct fa_cpu_backward_plan {
    fa_isa isa;
    const fa_cpu_backward_kernels *kernels;
    const fa_cpu_products *products; /* the kernels' own, or those of bfloat16 operands */
    int64_t tile_rows;               /* rows of a query tile, as in forward */
    int64_t tile_keys;               /* keys of a tile */
    int64_t splits;                  /* parts of the key range, each with a dq of its own that is summed in the end */
    int64_t threads;
    int64_t thread_bytes; /* working memory of a thread */
    int64_t shared_bytes; /* of the call */
} fa_cpu_backward_plan;

fa_status fa_cpu_backward_plan_make(const fa_gradients *gradients, fa_cpu_backward_plan *plan);
fa_status fa_cpu_backward(const fa_gradients *gradients, const fa_cpu_backward_plan *plan);

#endif
