/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic of sizes, and working memory cut out of one block. */
#ifndef FA_CPU_ARRAYS_H
#define FA_CPU_ARRAYS_H

#include <stddef.h>
#include <stdint.h>

static inline int64_t fa_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t fa_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t fa_divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t fa_round_up(int64_t a, int64_t b) { return fa_divide_up(a, b) * b; }

/* Cuts the next `bytes` of a block, 64-byte aligned; with base == NULL only counts. */
static inline void *fa_carve(char *base, int64_t *used, int64_t bytes) {
    void *piece = base == NULL ? NULL : base + *used;
    *used += fa_round_up(bytes, 64);
    return piece;
}

#endif
