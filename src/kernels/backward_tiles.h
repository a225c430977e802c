/* SPDX-License-Identifier: Apache-2.0 */
/* Where the backward kernels' tiles and their workspace lie: see backward_params.h. */
#ifndef FA_KERNELS_BACKWARD_TILES_H
#define FA_KERNELS_BACKWARD_TILES_H

#include "backward_params.h"
#include "sequence.h"

/* Number of the first query tile of a sequence and head. */
DEVICE int first_query_tile(const fa_backward_params *p, const device_sequence *s, int head) {
    if (p->forward.cu_seqlens_q.data) return head * p->forward.row_blocks + (int)s->q_begin / p->block_m + s->entry;
    return (s->entry * p->forward.heads + head) * p->forward.row_blocks;
}

/* A query tile by its number: those of neighbouring numbers belong to one head. */
typedef struct query_tile {
    device_sequence sequence;
    int head;
    int row; /* first query; may lie behind the sequence */
} query_tile;

DEVICE query_tile query_tile_of(const fa_backward_params *params, uint32_t number) {
    const fa_forward_params *p = &params->forward;
    query_tile t;
    uint32_t pair = number / (uint32_t)p->row_blocks, tile = number - pair * (uint32_t)p->row_blocks;
    uint32_t entry = p->cu_seqlens_q.data ? 0 : pair / (uint32_t)p->heads;
    t.head = (int)(pair - entry * (uint32_t)p->heads);
    t.sequence = tile_sequence(p, (int)entry, &tile, params->block_m);
    t.row = (int)tile * params->block_m;
    return t;
}

/*
 * A key tile of the grid (key tiles, key/value heads, batch entries), or all of them folded into x, where head_group
 * neighbouring heads come together: their first tiles, then their second ones. Unlike query tiles, they cover unused keys
 * and those behind the last sequence too, since every row of dk and dv is written.
 */
typedef struct key_tile {
    device_sequence sequence;
    int head_kv;
    int number; /* within the sequence */
    int rows;   /* keys of the sequence, used or not */
} key_tile;

DEVICE key_tile key_tile_locate(const fa_backward_params *params, int block_n) {
    const fa_forward_params *p = &params->forward;
    key_tile t;
    uint32_t tile = block_index_x(), head = block_index_y(), entry = block_index_z();
    if (grid_blocks_y() == 1 && grid_blocks_z() == 1) {
        const uint32_t heads = (uint32_t)(p->heads / p->group), pairs = (uint32_t)params->key_entries * heads;
        const uint32_t in_group = (uint32_t)params->head_group, blocks = in_group * (uint32_t)params->key_blocks;
        const uint32_t group = tile / blocks, first = group * in_group;
        const uint32_t taking_turns = pairs - first < in_group ? pairs - first : in_group;
        const uint32_t rest = tile - group * blocks, pair = first + rest % taking_turns;
        tile = rest / taking_turns;
        entry = pair / heads;
        head = pair - entry * heads;
    }
    t.head_kv = (int)head;
    int begin = 0, end = p->rows_k;
    if (p->cu_seqlens_k.data) {
        entry = (uint32_t)sequence_of_tile(&p->cu_seqlens_k, p->batch + 1, p->rows_k, block_n, &tile);
        begin = clamp_length(device_length(&p->cu_seqlens_k, (int)entry), p->rows_k);
        if ((int)entry < p->batch) end = device_length(&p->cu_seqlens_k, (int)entry + 1);
    }
    t.sequence = sequence_load(p, (int)entry);
    t.sequence.k_begin = begin; /* also behind the last sequence */
    t.number = (int)tile;
    t.rows = clamp_length(end - begin, p->rows_k - begin);
    return t;
}

/*
 * The number of a key tile. deterministic: the last one comes first. dQ of a query tile is added in this order, and
 * with a causal mask blocks come to it in this order; those who are waited for have started before.
 */
DEVICE int key_tile_number(const fa_backward_params *params, const key_tile *tile, int block_n) {
    const int tiles = (tile->rows + block_n - 1) / block_n;
    return params->deterministic && tile->number < tiles ? tiles - 1 - tile->number : tile->number;
}

/*
 * How many key tiles are added to dQ of a query tile before key tile `number`: those behind it that some query of the
 * tile sees. last_seen: the end of the keys that its last used query sees by position.
 */
DEVICE uint32_t dq_turn(int last_seen, int number, int block_n) {
    return (uint32_t)((last_seen + block_n - 1) / block_n - 1 - number);
}

/*
 * The place of an element in its tile of dq_sum. Pieces of 16 rows and 8 columns lie one after another, and each is
 * what a warp's accumulators of mma.sync or wgmma are: [lane][register] on sm_90, where four registers are added at a
 * time, or stored for a bulk reduction; else [register][lane], so that single additions are of whole lines. In v3 the
 * columns are in parts, all rows of one before those of the next, so that what a warpgroup adds lies in one place.
 */
DEVICE int dq_sum_index(int row, int column, int block_m, int part_columns) {
    const int part = column / part_columns * (block_m / 16), in_part = column % part_columns;
    const int piece = (part + row / 16) * (part_columns / 8) + in_part / 8, lane = row % 8 * 4 + column % 8 / 2,
              reg = row % 16 / 8 * 2 + column % 2;
    return piece * 128 + (has_sm90() ? lane * 4 + reg : reg * 32 + lane);
}

#endif
