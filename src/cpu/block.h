/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of one block: the query rows that share a tile, of one key/value head, over their keys or a part of them.
 * Everything that depends on masks, lengths, pages and score changes is decided here; the micro-kernels (kernels.h) see
 * one tile.
 */
#ifndef FA_CPU_BLOCK_H
#define FA_CPU_BLOCK_H

#include "cpu/kernels.h"
#include "problem.h"

/* With no more rows than this, or no more keys, K and V are read where they lie: packing them, or multiplying by panels that
 * are mostly empty, would cost more. */
#define FA_FEW_ROWS 8
#define FA_FEW_KEYS 16
/* Floats from one row of scores to the next: not a power of two, so that the rows of a block do not share a few sets of L1. */
#define FA_SCORE_STRIDE (FA_TILE_KEYS + 16)
/* With few rows, so many key/value heads make one block. */
#define FA_FEW_HEADS 16

/* What one thread needs for one unit. */
typedef struct fa_cpu_workspace {
    void *q;                /* [tile_rows][head_dim padded], operand */
    float *o;               /* [tile_rows][o_stride], not normalised */
    float *s;               /* [tile_rows][FA_SCORE_STRIDE], scores, then weights */
    char *kv;               /* a packed tile, as fa_cpu_pack_tile writes it */
    float *m, *l, *rescale; /* [tile_rows]; m as softmax_step has it, in the end a natural logarithm */
    float *row;             /* [max(o_stride, FA_TILE_KEYS)], one row of bias or of the output */
    fa_key_range *keys;     /* [tile_rows], what each row sees by position */
    const void **rows;      /* [max(tile_rows, FA_TILE_KEYS)], addresses to pack from */
    const void **values;    /* [FA_TILE_KEYS], those of a V tile beside `rows` of K */
    const void **next;      /* [FA_TILE_KEYS], those of the next K tile */
    unsigned char *seen;    /* [tile_rows][FA_TILE_KEYS], filled only where V holds NaN or infinity */
    bool *again;            /* [tile_rows], rows to compute again */
    int64_t o_stride;
} fa_cpu_workspace;

/* Lays the workspace out at base and returns its size in bytes; with base == NULL only that. */
int64_t fa_cpu_workspace_init(fa_cpu_workspace *w, const fa_problem *p, const fa_cpu_kernels *kernels,
                              int64_t tile_rows, char *base);

/*
 * The rows of a query tile: rows [begin, begin + per_head) of a sequence and key/value head, where row r is query r / group
 * of head head_kv * group + r % group; for few rows those of several heads, one head after the other, so that K and V are
 * read in the order in which they lie in memory.
 */
typedef struct fa_cpu_block {
    fa_sequence sequence;
    int64_t head_kv; /* the first */
    int64_t begin;
    int64_t per_head;
    int64_t count;                 /* all rows: per_head times the number of heads */
    bool in_place;                 /* K and V are read where they lie */
    const fa_cpu_kernels *kernels; /* in place: one that has dot_rows */
    const fa_cpu_kernels *float32; /* a table that works in float32 */
    const char *packed;            /* all tiles of its sequence and head; NULL: they are packed as they are needed */
    int64_t tile_bytes;            /* from one of these to the next: fa_cpu_tile_bytes or more */
} fa_cpu_block;

/*
 * K and V of FA_TILE_KEYS keys of a sequence, as operands of multiply: K, V, then 64 bytes of which the first tells
 * whether V holds NaN or infinity.
 */
int64_t fa_cpu_tile_bytes(const fa_problem *p, const fa_cpu_kernels *kernels);
/* The tiles of a sequence, from its first key on. */
int64_t fa_cpu_sequence_tiles(const fa_sequence *s);
/* `rows`: room for FA_TILE_KEYS addresses. */
void fa_cpu_pack_tile(const fa_problem *p, const fa_cpu_kernels *kernels, const fa_sequence *s, int64_t head_kv,
                      int64_t tile, char *to, const void **rows);

/*
 * The query and the head of row r, without a division where nothing is to be divided: with few keys they took a tenth
 * of a row's time.
 */
static inline int64_t fa_block_row(const fa_cpu_block *b, int64_t r) {
    return b->begin + (r < b->per_head ? r : r % b->per_head);
}

static inline int64_t fa_block_query(const fa_problem *p, const fa_cpu_block *b, int64_t r) {
    return p->group == 1 ? fa_block_row(b, r) : fa_block_row(b, r) / p->group;
}

static inline int64_t fa_block_head(const fa_problem *p, const fa_cpu_block *b, int64_t r) {
    int64_t head_kv = b->head_kv + (r < b->per_head ? 0 : r / b->per_head);
    return p->group == 1 ? head_kv : head_kv * p->group + fa_block_row(b, r) % p->group;
}

/* Part `split` of `splits` of the block's keys; leaves o, m, l in the workspace, m and l as merge.h has them. */
void fa_cpu_attend_block(const fa_problem *p, const fa_cpu_block *b, fa_cpu_workspace *w, int64_t split,
                         int64_t splits);

#endif
