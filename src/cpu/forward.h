/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU back end's forward: what it would do for a problem, and doing it. */
#ifndef FA_CPU_FORWARD_H
#define FA_CPU_FORWARD_H

#include "cpu/kernels.h"
#include "problem.h"

typedef struct fa_cpu_plan {
    const fa_cpu_kernels *kernels;
    const fa_cpu_kernels *float32; /* for tiles of few rows, and */
    bool long_only;                /* where it says so, for all sequences but those that are long */
    int64_t tile_rows;  /* rows of a query tile; a row is a query of one head, the heads of a group side by side */
    int64_t tile_bytes; /* from one packed tile to the next */
    int64_t blocks;     /* query tiles of all sequences, per key/value head */
    int64_t splits;     /* parts of the key range */
    int64_t
        packed_bytes; /* room for K and V of whole heads, packed ahead; 0: every tile is packed where it is needed */
    int64_t threads;
    int64_t thread_bytes; /* working memory of a thread */
    int64_t shared_bytes; /* of the call: the table of blocks, partial results of splits, packed K and V */
} fa_cpu_plan;

fa_status fa_cpu_forward_plan(const fa_problem *problem, fa_cpu_plan *plan);
fa_status fa_cpu_forward(const fa_problem *problem, const fa_cpu_plan *plan);

#endif
