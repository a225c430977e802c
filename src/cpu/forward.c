/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FlashAttention-2 on a CPU. A unit of work is one tile of query rows of one key/value head (and one part of
 * its keys, if those are split): it stays in the core's L2 with its output while K/V tiles of FA_TILE_KEYS
 * keys stream through L1. The heads of a GQA group are rows of the same tile, so they share each packed K/V
 * tile. Units are independent, and what a unit computes does not depend on which thread runs it: results are
 * the same bits for any number of threads.
 *
 * Everything that depends on masks, lengths, pages and score changes is here; the micro-kernels (kernels.h)
 * see one tile.
 */
#include "cpu/forward.h"

#include "cpu/threads.h"
#include "merge.h"
#include "status.h"

#include <inttypes.h>
#include <stdlib.h>

/* Packing K and V costs about as much as 4 rows of products, so 128 rows make it small; Q, O and S of such a
 * tile with K and V take 224 KiB at head_dim 128, which fits every L2 of the last years. */
#define MAX_TILE_ROWS 128
/* Fewer units than this leave cores idle on large machines: then keys are split, into parts of at least
 * MIN_SPLIT_KEYS, so that merging stays cheap. Only shapes enter the rule. */
#define ENOUGH_UNITS 64
#define MIN_SPLIT_KEYS 512

static int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

/* ---- Working memory
 * ------------------------------------------------------------------------------------------------- */

/* What one thread needs for one unit. */
typedef struct workspace {
    float *q;               /* [tile_rows][head_dim], scaled */
    float *o;               /* [tile_rows][o_stride], not normalised */
    float *s;               /* [tile_rows][FA_TILE_KEYS], scores, then weights */
    float *k;               /* packed K^T tile */
    float *v;               /* packed V tile */
    float *m, *l, *rescale; /* [tile_rows] */
    float *row;             /* [max(o_stride, FA_TILE_KEYS)], one row of bias or of the output */
    fa_key_range *keys;     /* [tile_rows], what each row sees by position */
    const void **rows;      /* [max(tile_rows, FA_TILE_KEYS)], addresses to pack from */
    unsigned char *seen;    /* [tile_rows][FA_TILE_KEYS], filled only where V holds NaN or infinity */
    int64_t o_stride;
} workspace;

/* Cuts the next `bytes` of a block, 64-byte aligned; with base == NULL only counts. */
static void *carve(char *base, int64_t *used, int64_t bytes) {
    void *piece = base == NULL ? NULL : base + *used;
    *used += round_up(bytes, 64);
    return piece;
}

/* Lays the workspace out at base and returns its size in bytes. */
static int64_t workspace_init(workspace *w, const fa_problem *p, int64_t tile_rows, char *base) {
    const int64_t f = (int64_t)sizeof(float);
    int64_t used = 0;
    w->o_stride = round_up(p->head_dim_v, FA_PANEL_MAX);
    w->q = carve(base, &used, tile_rows * p->head_dim * f);
    w->o = carve(base, &used, tile_rows * w->o_stride * f);
    w->s = carve(base, &used, tile_rows * FA_TILE_KEYS * f);
    w->k = carve(base, &used, FA_TILE_KEYS * p->head_dim * f);
    w->v = carve(base, &used, FA_TILE_KEYS * w->o_stride * f);
    w->m = carve(base, &used, tile_rows * f);
    w->l = carve(base, &used, tile_rows * f);
    w->rescale = carve(base, &used, tile_rows * f);
    w->row = carve(base, &used, max_i64(w->o_stride, FA_TILE_KEYS) * f);
    w->keys = carve(base, &used, tile_rows * (int64_t)sizeof(fa_key_range));
    w->rows = carve(base, &used, max_i64(tile_rows, FA_TILE_KEYS) * (int64_t)sizeof(void *));
    w->seen = carve(base, &used, tile_rows * FA_TILE_KEYS);
    return used;
}

/* Results of a unit whose keys are split, until they are merged: [splits][tile_rows] rows. */
typedef struct partial {
    float *o; /* [splits][tile_rows][o_stride] */
    float *m; /* [splits][tile_rows] */
    float *l;
} partial;

static int64_t partial_init(partial *part, int64_t splits, int64_t tile_rows, int64_t o_stride, char *base) {
    const int64_t f = (int64_t)sizeof(float);
    int64_t used = 0;
    part->o = carve(base, &used, splits * tile_rows * o_stride * f);
    part->m = carve(base, &used, splits * tile_rows * f);
    part->l = carve(base, &used, splits * tile_rows * f);
    return used;
}

/* ---- One unit
 * ------------------------------------------------------------------------------------------------------- */

/* Rows [begin, begin + count) of a sequence and key/value head: row r is query r / group of head head_kv *
 * group + r % group. */
typedef struct block {
    fa_sequence sequence;
    int64_t head_kv;
    int64_t begin;
    int64_t count;
} block;

static int64_t row_query(const fa_problem *p, const block *b, int64_t r) { return (b->begin + r) / p->group; }

static int64_t row_head(const fa_problem *p, const block *b, int64_t r) {
    return b->head_kv * p->group + (b->begin + r) % p->group;
}

static void load_queries(const fa_problem *p, const fa_cpu_kernels *kernels, const block *b, workspace *w) {
    for (int64_t r = 0; r < b->count; r++) {
        w->rows[r] = fa_query_address(&p->q, &b->sequence, row_query(p, b, r), row_head(p, b, r));
        w->keys[r] = fa_visible_keys(&b->sequence.visibility, row_query(p, b, r));
        w->m[r] = -INFINITY;
        w->l[r] = 0.0f;
    }
    kernels->load_rows(w->q, p->head_dim, w->rows, b->count, p->head_dim, p->q.type, p->softmax_scale);
    memset(w->o, 0, (size_t)(b->count * w->o_stride) * sizeof(float));
}

/* s += bias and ALiBi, for one row and the keys [key, key + count). */
static void add_offsets(const fa_problem *p, const fa_cpu_kernels *kernels, const block *b, int64_t r, int64_t key,
                        int64_t count, float *s, float *bias) {
    int64_t query = row_query(p, b, r), head = row_head(p, b, r), batch = b->sequence.batch;
    if (p->bias.data != NULL) {
        const void *row = fa_score_address(&p->bias, batch, head, query, key);
        if (p->bias.key_stride == fa_element_size(p->bias.type)) {
            kernels->load_rows(bias, FA_TILE_KEYS, &row, 1, count, p->bias.type, 1.0f);
        } else {
            for (int64_t j = 0; j < count; j++)
                bias[j] = (float)fa_element_load((const char *)row + j * p->bias.key_stride, p->bias.type);
        }
        /* Not a sum where it masks: a hidden key's score may be NaN or +inf. */
        for (int64_t j = 0; j < count; j++) s[j] = bias[j] == -INFINITY ? -INFINITY : s[j] + bias[j];
    }
    if (p->alibi_slopes.data != NULL) {
        float slope = fa_alibi_slope(p, batch, head);
        for (int64_t j = 0; j < count; j++)
            s[j] -= slope * (float)fa_alibi_distance(&b->sequence.visibility, query, key + j);
    }
}

/* -inf where row r does not see a key of [key, key + count), and behind the last one up to the panel's edge.
 */
static void hide(const fa_problem *p, const block *b, int64_t r, const fa_key_range *keys, int64_t key, int64_t count,
                 int64_t columns, float *s) {
    for (int64_t j = 0; j < min_i64(keys->begin - key, count); j++) s[j] = -INFINITY;
    for (int64_t j = max_i64(min_i64(keys->end - key, count), 0); j < columns; j++) s[j] = -INFINITY;
    if (p->mask.data == NULL) return;
    const char *mask = fa_score_address(&p->mask, b->sequence.batch, row_head(p, b, r), row_query(p, b, r), key);
    for (int64_t j = 0; j < count; j++)
        if (mask[j * p->mask.key_stride] == 0) s[j] = -INFINITY;
}

/* O = rescale * O + P V for a V tile that holds NaN or infinity: only visible keys are added, since 0 * NaN
 * is NaN. */
static void accumulate_visible(const workspace *w, int64_t panel, int64_t first, int64_t end, int64_t count,
                               int64_t width) {
    for (int64_t r = first; r < end; r++) {
        float *o = w->o + r * w->o_stride;
        for (int64_t i = 0; i < width; i++) o[i] *= w->rescale[r];
        for (int64_t j = 0; j < count; j++) {
            if (!w->seen[r * FA_TILE_KEYS + j]) continue;
            float weight = w->s[r * FA_TILE_KEYS + j];
            for (int64_t i = 0; i < width; i++) o[i] += weight * w->v[(i / panel * count + j) * panel + i % panel];
        }
    }
}

/* One K/V tile, keys [key, key + count), for the rows [first, end) that see some of them. */
static void attend_tile(const fa_problem *p, const fa_cpu_kernels *kernels, const block *b, workspace *w, int64_t key,
                        int64_t count, int64_t first, int64_t end) {
    int64_t rows = end - first, columns = round_up(count, kernels->panel);
    float *s = w->s + first * FA_TILE_KEYS;
    for (int64_t j = 0; j < count; j++) w->rows[j] = fa_key_address(p, &p->k, &b->sequence, key + j, b->head_kv);
    kernels->pack_keys(w->k, w->rows, count, p->head_dim, p->k.type);
    kernels->multiply(s, FA_TILE_KEYS, w->q + first * p->head_dim, p->head_dim, w->k, rows, columns, p->head_dim, NULL);
    bool offsets = p->bias.data != NULL || p->alibi_slopes.data != NULL;
    for (int64_t r = first; r < end; r++) {
        float *row = w->s + r * FA_TILE_KEYS;
        if (p->softcap > 0) kernels->softcap(row, columns, p->softcap);
        if (offsets) add_offsets(p, kernels, b, r, key, count, row, w->row);
        if (w->keys[r].begin > key || w->keys[r].end < key + columns || count < columns || p->mask.data != NULL)
            hide(p, b, r, &w->keys[r], key, count, columns, row);
    }

    for (int64_t j = 0; j < count; j++) w->rows[j] = fa_key_address(p, &p->v, &b->sequence, key + j, b->head_kv);
    bool not_finite = kernels->pack_values(w->v, w->rows, count, p->head_dim_v, p->v.type);
    for (int64_t r = first; r < end && not_finite; r++)
        for (int64_t j = 0; j < count; j++)
            w->seen[r * FA_TILE_KEYS + j] = w->s[r * FA_TILE_KEYS + j] != -INFINITY ? 1u : 0u;

    kernels->softmax_step(s, FA_TILE_KEYS, rows, columns, w->m + first, w->l + first, w->rescale + first);
    if (not_finite)
        accumulate_visible(w, kernels->panel, first, end, count, p->head_dim_v);
    else
        kernels->multiply(w->o + first * w->o_stride, w->o_stride, s, FA_TILE_KEYS, w->v, rows,
                          round_up(p->head_dim_v, kernels->panel), count, w->rescale + first);
}

/* Part `split` of `splits` of a block's keys; leaves o, m, l in the workspace. */
static void attend_block(const fa_problem *p, const fa_cpu_kernels *kernels, const block *b, workspace *w,
                         int64_t split, int64_t splits) {
    load_queries(p, kernels, b, w);
    /* Both ends rise with the query (mask.h), unused queries at the end apart, which see nothing. */
    int64_t key_begin = INT64_MAX, key_end = 0;
    for (int64_t r = 0; r < b->count; r++) {
        if (w->keys[r].begin >= w->keys[r].end) continue;
        key_begin = min_i64(key_begin, w->keys[r].begin);
        key_end = max_i64(key_end, w->keys[r].end);
    }
    if (key_begin >= key_end) return;
    int64_t tile_begin = key_begin / FA_TILE_KEYS, tiles = divide_up(key_end, FA_TILE_KEYS) - tile_begin;
    int64_t tile_end = tile_begin + tiles * (split + 1) / splits;
    tile_begin += tiles * split / splits;
    for (int64_t tile = tile_begin; tile < tile_end; tile++) {
        int64_t begin = max_i64(tile * FA_TILE_KEYS, key_begin), end = min_i64((tile + 1) * FA_TILE_KEYS, key_end);
        int64_t first = 0, last = b->count;
        while (first < last && (w->keys[first].end <= begin || w->keys[first].begin >= w->keys[first].end)) first++;
        while (last > first && (w->keys[last - 1].begin >= end || w->keys[last - 1].begin >= w->keys[last - 1].end))
            last--;
        if (first < last) attend_tile(p, kernels, b, w, begin, end - begin, first, last);
    }
}

/* Merges the parts of each row with the sink, and writes out and lse. */
static void finish_block(const fa_problem *p, const fa_cpu_kernels *kernels, const block *b, const partial *part,
                         int64_t splits, int64_t part_rows, int64_t o_stride, float *o) {
    for (int64_t r = 0; r < b->count; r++) {
        int64_t query = row_query(p, b, r), head = row_head(p, b, r);
        fa_merged whole = fa_merge_begin();
        for (int64_t split = 0; split < splits; split++)
            whole = fa_merge_add(whole, part->m[split * part_rows + r], part->l[split * part_rows + r]);
        if (p->sink.data != NULL) whole = fa_merge_add(whole, fa_table_float(&p->sink, head, 0), 1.0f);
        memset(o, 0, (size_t)p->head_dim_v * sizeof(float));
        for (int64_t split = 0; split < splits; split++) {
            int64_t row = split * part_rows + r;
            if (part->l[row] == 0.0f) continue;
            float weight = fa_merge_weight(whole, part->m[row]);
            for (int64_t i = 0; i < p->head_dim_v; i++) o[i] += weight * part->o[row * o_stride + i];
        }
        kernels->store_row(fa_query_address(&p->out, &b->sequence, query, head), o, p->head_dim_v, 1.0f, p->out.type);
        fa_problem_store_lse(p, &b->sequence, query, head, (double)fa_merge_lse(whole));
    }
}

/* ---- All units
 * ------------------------------------------------------------------------------------------------------ */

static int64_t sequence_blocks(const fa_problem *p, int64_t n, int64_t tile_rows) {
    return divide_up(fa_problem_sequence(p, n).q_rows * p->group, tile_rows);
}

fa_status fa_cpu_forward_plan(const fa_problem *p, fa_cpu_plan *plan) {
    fa_status status = FA_OK;
    memset(plan, 0, sizeof *plan);
    plan->kernels = fa_cpu_kernels_select(p->isa, &status);
    if (plan->kernels == NULL) return status;

    int64_t longest = 0;
    for (int64_t n = 0; n < fa_problem_sequences(p); n++)
        longest = max_i64(longest, fa_problem_sequence(p, n).q_rows * p->group);
    plan->tile_rows = max_i64(1, min_i64(longest, MAX_TILE_ROWS));
    for (int64_t n = 0; n < fa_problem_sequences(p); n++) plan->blocks += sequence_blocks(p, n, plan->tile_rows);

    int64_t units = plan->blocks * p->heads_kv;
    plan->splits = p->num_splits;
    if (plan->splits == 0)
        plan->splits = max_i64(1, min_i64(ENOUGH_UNITS / max_i64(units, 1), p->max_seqlen_k / MIN_SPLIT_KEYS));
    int64_t threads = p->num_threads > 0 ? p->num_threads : fa_default_num_threads();
    plan->threads = max_i64(1, min_i64(threads, units * plan->splits));

    workspace w;
    partial part;
    plan->thread_bytes = workspace_init(&w, p, plan->tile_rows, NULL);
    plan->shared_bytes = round_up((fa_problem_sequences(p) + 1) * (int64_t)sizeof(int64_t), 64);
    if (plan->splits > 1)
        plan->shared_bytes += units * partial_init(&part, plan->splits, plan->tile_rows, w.o_stride, NULL);
    return FA_OK;
}

/* Block `index` counted through all sequences, by the table of first blocks. Later queries come first: under
 * a causal mask they have the most keys, and short units at the end balance the threads. */
static block find_block(const fa_problem *p, const fa_cpu_plan *plan, const int64_t *first_block, int64_t index,
                        int64_t head_kv) {
    int64_t low = 0, high = fa_problem_sequences(p);
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (first_block[middle] <= index)
            low = middle;
        else
            high = middle;
    }
    block b;
    b.sequence = fa_problem_sequence(p, low);
    b.head_kv = head_kv;
    int64_t reversed = first_block[low + 1] - 1 - index;
    b.begin = reversed * plan->tile_rows;
    b.count = min_i64(plan->tile_rows, b.sequence.q_rows * p->group - b.begin);
    return b;
}

fa_status fa_cpu_forward(const fa_problem *p, const fa_cpu_plan *plan) {
    int64_t units = plan->blocks * p->heads_kv;
    if (units == 0) return FA_OK;
    int64_t bytes = plan->shared_bytes + plan->threads * plan->thread_bytes;
    char *memory = aligned_alloc(64, (size_t)bytes);
    if (memory == NULL)
        return fa_fail(FA_OUT_OF_MEMORY, "no memory for a workspace of %" PRId64 " bytes (%" PRId64 " threads)", bytes,
                       plan->threads);

    const fa_cpu_kernels *kernels = plan->kernels;
    int64_t sequences = fa_problem_sequences(p), splits = plan->splits;
    int64_t *first_block = (int64_t *)(void *)memory;
    first_block[0] = 0;
    for (int64_t n = 0; n < sequences; n++)
        first_block[n + 1] = first_block[n] + sequence_blocks(p, n, plan->tile_rows);
    char *partials = memory + round_up((sequences + 1) * (int64_t)sizeof(int64_t), 64);
    char *workspaces = memory + plan->shared_bytes;

#pragma omp parallel num_threads((int)plan->threads)
    {
        workspace w;
        partial part;
        (void)workspace_init(&w, p, plan->tile_rows, workspaces + fa_thread_number() * plan->thread_bytes);
        int64_t unit_bytes = partial_init(&part, splits, plan->tile_rows, w.o_stride, NULL);

#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < units * splits; i++) {
            int64_t unit = i / splits, split = i % splits;
            block b = find_block(p, plan, first_block, unit % plan->blocks, unit / plan->blocks);
            attend_block(p, kernels, &b, &w, split, splits);
            if (splits == 1) {
                part = (partial){w.o, w.m, w.l};
                finish_block(p, kernels, &b, &part, 1, plan->tile_rows, w.o_stride, w.row);
            } else {
                (void)partial_init(&part, splits, plan->tile_rows, w.o_stride, partials + unit * unit_bytes);
                int64_t row = split * plan->tile_rows;
                memcpy(part.o + row * w.o_stride, w.o, (size_t)(b.count * w.o_stride) * sizeof(float));
                memcpy(part.m + row, w.m, (size_t)b.count * sizeof(float));
                memcpy(part.l + row, w.l, (size_t)b.count * sizeof(float));
            }
        }

        if (splits > 1) {
#pragma omp for schedule(dynamic, 1)
            for (int64_t unit = 0; unit < units; unit++) {
                block b = find_block(p, plan, first_block, unit % plan->blocks, unit / plan->blocks);
                (void)partial_init(&part, splits, plan->tile_rows, w.o_stride, partials + unit * unit_bytes);
                finish_block(p, kernels, &b, &part, splits, plan->tile_rows, w.o_stride, w.row);
            }
        }
    }
    free(memory);
    return FA_OK;
}
