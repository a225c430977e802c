/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor maps and order of work for the v3 forward kernel: see launch_v3.h. */
#include "gpu/launch_v3.h"

#include "status.h"
#include "tensor.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- what TMA can read ---- */

/*
 * The rules of cuTensorMapEncodeTiled: addresses and strides are multiples of 16 bytes, strides are below 2^40. A
 * stride of 0 is not promised to work, and negative ones do not exist. The stride of a dimension of one element does
 * not count.
 */
static const char *rows_obstacle(const char *name, const fa_rows *t, int64_t rows, int64_t heads, int64_t batch,
                                 bool varlen, char text[FA_V3_OBSTACLE_TEXT]) {
    const struct {
        const char *name;
        int64_t extent, stride;
    } d[3] = {
        {"row", rows, t->row_stride}, {"head", heads, t->head_stride}, {"batch", varlen ? 1 : batch, t->batch_stride}};
    if (rows == 0 || heads == 0 || batch == 0) return NULL; /* nothing is read */
    if ((uintptr_t)t->data % 16 != 0) {
        (void)snprintf(text, FA_V3_OBSTACLE_TEXT, "%s.data = %p: for TMA must be a multiple of 16", name,
                       (void *)t->data);
        return text;
    }
    for (int i = 0; i < 3; i++) {
        if (d[i].extent <= 1 || (d[i].stride > 0 && d[i].stride % 16 == 0 && d[i].stride < INT64_C(1) << 40)) continue;
        (void)snprintf(text, FA_V3_OBSTACLE_TEXT,
                       "the %s stride of %s is %" PRId64
                       " bytes: for TMA must be a multiple of 16 above 0 and below 2^40",
                       d[i].name, name, d[i].stride);
        return text;
    }
    return NULL;
}

/* Whether the output can be written 16 bytes at a time. */
static const char *output_obstacle(const fa_problem *p, char text[FA_V3_OBSTACLE_TEXT]) {
    const fa_rows *t = &p->out;
    if (t->type == FA_ELEMENT_FLOAT32) return NULL; /* is written element by element */
    if (p->head_dim_v % 8 != 0) {
        (void)snprintf(text, FA_V3_OBSTACLE_TEXT,
                       "head_dim_v = %" PRId64 ": for stores of 16 bytes must be a multiple of 8", p->head_dim_v);
        return text;
    }
    return rows_obstacle("out", t, p->rows_q, p->heads, p->batch, p->cu_seqlens_q.data != NULL, text);
}

bool fa_v3_reads(const fa_problem *p, const fa_rows *t) {
    char text[FA_V3_OBSTACLE_TEXT];
    return rows_obstacle("", t, p->rows_q, p->heads, p->batch, p->cu_seqlens_q.data != NULL, text) == NULL;
}

const char *fa_v3_input_obstacle(const fa_problem *p, char text[FA_V3_OBSTACLE_TEXT]) {
    bool varlen_q = p->cu_seqlens_q.data != NULL, varlen_k = p->cu_seqlens_k.data != NULL;
    const char *obstacle = rows_obstacle("q", &p->q, p->rows_q, p->heads, p->batch, varlen_q, text);
    if (obstacle == NULL) obstacle = rows_obstacle("k", &p->k, p->rows_k, p->heads_kv, p->batch, varlen_k, text);
    if (obstacle == NULL) obstacle = rows_obstacle("v", &p->v, p->rows_k, p->heads_kv, p->batch, varlen_k, text);
    return obstacle;
}

const char *fa_v3_obstacle(const fa_problem *p, char text[FA_V3_OBSTACLE_TEXT]) {
    const char *obstacle = fa_v3_input_obstacle(p, text);
    return obstacle == NULL ? output_obstacle(p, text) : obstacle;
}

/* ---- the order of work ---- */

/* Tiles differ in length, so that blocks should take the next one when they are done with the last. */
static bool tiles_differ(const fa_problem *p) {
    return p->causal != FA_CAUSAL_NONE || p->window_left != FA_WINDOW_OPEN || p->window_right != FA_WINDOW_OPEN ||
           p->cu_seqlens_q.data != NULL || p->cu_seqlens_k.data != NULL || p->seqused_q.data != NULL ||
           p->seqused_k.data != NULL || p->leftpad_k.data != NULL;
}

/* Up to so many query tiles per head, a group of heads is worked on by all processors at once. */
#define SHORT_ROW_BLOCKS 8

/*
 * (batch entry, head) pairs to work on at a time: whole groups that share K and V, whose K and V fill three quarters of L2. Where heads
 * have few query tiles, Q and O are as much traffic as K and V: then no more than keep all processors busy.
 */
static int64_t pairs_at_a_time(const fa_problem *p, const fa_gpu_plan *plan) {
    const fa_machine *m = plan->machine;
    int64_t rows = p->cu_seqlens_k.data != NULL && p->batch > 0 ? p->rows_k / p->batch : p->rows_k; /* on average */
    int64_t bytes = rows * (p->head_dim + p->head_dim_v) * fa_element_size(p->k.type) + 1;
    int64_t kv_heads = m->l2_bytes / 4 * 3 / bytes, tiles = plan->row_blocks * p->group;
    if (plan->row_blocks <= SHORT_ROW_BLOCKS) {
        int64_t wave = (m->processors + m->processors / 8 + tiles - 1) / tiles;
        if (wave < kv_heads) kv_heads = wave;
    }
    int64_t pairs = (kv_heads > 1 ? kv_heads : 1) * p->group, all = plan->tile_entries * p->heads;
    return pairs < all ? pairs : all;
}

void fa_v3_plan(const fa_problem *p, int64_t tiles, fa_gpu_plan *plan) {
    const fa_variant *v = plan->variant;
    plan->workspace_bytes = tiles_differ(p) ? 16 : 0; /* the number of the next tile */
    plan->step_count = 1;
    plan->steps[0].blocks = tiles < plan->machine->processors ? tiles : plan->machine->processors;
    plan->steps[0].shared_bytes = V3_SHARED_BYTES(v->head_dim, v->head_dim_v, v->block_m, v->block_n, v->stages);
}

/* ---- parameters ---- */

fa_status fa_v3_encode(const fa_machine *m, const fa_rows *t, int64_t columns, int64_t rows, int64_t heads,
                       int64_t batch, int32_t page, int32_t box_rows, fa_tensor_map *map) {
    const int64_t extents[3] = {rows, heads, batch}, strides[3] = {t->row_stride, t->head_stride, t->batch_stride};
    fa_tensor_map_layout layout = {.type =
                                       t->type == FA_ELEMENT_BFLOAT16 ? FA_TENSOR_MAP_BFLOAT16 : FA_TENSOR_MAP_FLOAT16,
                                   .swizzle = page == 64 ? FA_TENSOR_MAP_SWIZZLE_128B : FA_TENSOR_MAP_SWIZZLE_64B,
                                   .rank = 4,
                                   .data = t->data,
                                   .extents = {(uint64_t)columns},
                                   .box = {(uint32_t)page, (uint32_t)box_rows, 1, 1}};
    for (int i = 0; i < 3; i++) {
        layout.extents[i + 1] = (uint64_t)extents[i];
        layout.strides[i] = extents[i] > 1 ? (uint64_t)strides[i] : 16;
    }
    return m->encode_tensor_map(m, &layout, map);
}

fa_status fa_v3_params_init(fa_v3_params *params, const fa_problem *p, const fa_gpu_plan *plan,
                            const fa_forward_params *forward, void *workspace) {
    const fa_machine *m = plan->machine;
    const fa_variant *v = plan->variant;
    const int64_t batch_q = p->cu_seqlens_q.data != NULL ? 1 : p->batch,
                  batch_k = p->cu_seqlens_k.data != NULL ? 1 : p->batch;
    memset(params, 0, sizeof *params);
    params->forward = *forward;
    params->pairs = (int32_t)(plan->tile_entries * p->heads);
    params->tiles = (int32_t)(plan->row_blocks * params->pairs);
    params->longest_first = tiles_differ(p);
    params->group_heads = (int32_t)pairs_at_a_time(p, plan);
    /* A kernel of 96 columns writes only a part of the last 64 in shared memory, which TMA would read. */
    params->store_by_tma = p->out.type == p->q.type && p->cu_seqlens_q.data == NULL && v->head_dim_v % V3_PAGE == 0;
    params->next_tile = workspace;
    FA_TRY(fa_v3_encode(m, &p->q, p->head_dim, p->rows_q, p->heads, batch_q, V3_PAGE, v->block_m, &params->q));
    if (params->store_by_tma) /* by each consumer warpgroup, its own rows */
        FA_TRY(fa_v3_encode(m, &p->out, p->head_dim_v, p->rows_q, p->heads, batch_q, V3_PAGE, 64, &params->out));
    if (p->rows_k == 0) return FA_OK; /* no tile of K or V is ever loaded */
    FA_TRY(fa_v3_encode(m, &p->k, p->head_dim, p->rows_k, p->heads_kv, batch_k, V3_PAGE, v->block_n, &params->k));
    return fa_v3_encode(m, &p->v, p->head_dim_v, p->rows_k, p->heads_kv, batch_k, V3_PAGE, v->block_n, &params->v);
}
