/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FlashAttention-2 on a CPU. A unit of work is one tile of query rows of one key/value head (and one part of
 * its keys, if those are split): it stays in the core's L2 with its output while K/V tiles of FA_TILE_KEYS
 * keys stream through L1. The heads of a GQA group are rows of the same tile, so they share each packed K/V
 * tile. Units are independent, and what a unit computes does not depend on which thread runs it: results are
 * the same bits for any number of threads.
 *
 * block.c attends one unit; here are the plan, the loop over units and what happens to their results.
 */
#include "cpu/forward.h"

#include "cpu/arrays.h"
#include "cpu/block.h"
#include "cpu/memory.h"
#include "cpu/threads.h"
#include "merge.h"
#include "status.h"

#include <inttypes.h>
#include <stdlib.h>

/* A query tile of 128 rows with its Q, O, S and a K/V tile takes 320 KiB at head_dim 128 in float32, 224 KiB with bfloat16
 * operands, which fits every L2 of the last years; 384 KiB in parts, where L2 has 2 MiB. */
#define MAX_TILE_ROWS 128
/* Fewer units than this leave cores idle on large machines: then keys are split, into parts of at least
 * MIN_SPLIT_KEYS, or, where a unit has few rows of many heads, MIN_SPLIT_KEYS_FEW, so that merging stays cheap. Only
 * shapes enter the rule. */
#define ENOUGH_UNITS 64
#define MIN_SPLIT_KEYS 512
#define MIN_SPLIT_KEYS_FEW 256
/* Waking a thread takes some microseconds, so each gets at least so much to do: multiplications and additions, some ten
 * microseconds of a core with wide vectors. */
#define MIN_THREAD_OPERATIONS (1 << 21)
/* K and V are packed ahead for as many heads and sequences as fit here, so that each thread finds work, and what it packed in
 * its L2; or for a single one up to the second limit. One that does not fit that is packed tile by tile for each query
 * tile. */
#define PACKED_BYTES_PER_THREAD (2 << 20)
#define PACKED_BYTES (64 << 20)

/* Results of a unit whose keys are split, until they are merged: [splits][tile_rows] rows. */
typedef struct partial {
    float *o; /* [splits][tile_rows][o_stride] */
    float *m; /* [splits][tile_rows] */
    float *l;
} partial;

static int64_t partial_init(partial *part, int64_t splits, int64_t tile_rows, int64_t o_stride, char *base) {
    const int64_t f = (int64_t)sizeof(float);
    int64_t used = 0;
    part->o = fa_carve(base, &used, splits * tile_rows * o_stride * f);
    part->m = fa_carve(base, &used, splits * tile_rows * f);
    part->l = fa_carve(base, &used, splits * tile_rows * f);
    return used;
}

/* Merges the parts of each row with the sink, and writes out and lse. */
static void finish_block(const fa_problem *p, const fa_cpu_kernels *kernels, const fa_cpu_block *b, const partial *part,
                         int64_t splits, int64_t part_rows, int64_t o_stride, float *o) {
    for (int64_t r = 0; r < b->count; r++) {
        int64_t query = fa_block_query(p, b, r), head = fa_block_head(p, b, r);
        void *out = fa_query_address(&p->out, &b->sequence, query, head);
        bool whole_already = splits == 1 && p->sink.data == NULL && part->l[r] != 0.0f;
        fa_merged whole = whole_already ? (fa_merged){part->m[r], part->l[r]} : fa_merge_begin();
        for (int64_t split = 0; split < splits && !whole_already; split++)
            whole = fa_merge_add(whole, part->m[split * part_rows + r], part->l[split * part_rows + r]);
        if (p->sink.data != NULL) whole = fa_merge_add(whole, fa_table_float(&p->sink, head, 0), 1.0f);
        if (p->lse.data != NULL) fa_problem_store_lse(p, &b->sequence, query, head, (double)fa_merge_lse(whole));
        if (whole_already) { /* the same as below, without exponentials of 0 */
            kernels->store_row(out, part->o + r * o_stride, p->head_dim_v, 1.0f / part->l[r], p->out.type);
            continue;
        }
        memset(o, 0, (size_t)p->head_dim_v * sizeof(float));
        for (int64_t split = 0; split < splits; split++) {
            int64_t row = split * part_rows + r;
            if (part->l[row] == 0.0f) continue;
            float weight = fa_merge_weight(whole, part->m[row]);
            for (int64_t i = 0; i < p->head_dim_v; i++) o[i] += weight * part->o[row * o_stride + i];
        }
        kernels->store_row(out, o, p->head_dim_v, 1.0f, p->out.type);
    }
}

/* ---- All units
 * ------------------------------------------------------------------------------------------------------ */

/* Blocks of a sequence, which are of nearly equal height. Their rows depend on the sequence alone, not on its batch. */
static int64_t sequence_blocks(const fa_problem *p, int64_t n) {
    return fa_divide_up(fa_problem_sequence(p, n).q_rows * p->group, MAX_TILE_ROWS);
}

/* Products of parts take more preparation than others, and pay for it where several tiles of queries share each tile of
 * keys, and sums are long. (A Xeon of the Emerald Rapids class takes up to 1.4 times as long for others, and is up to 1.4
 * times as fast for these.) */
#define LONG_KEYS 256
#define LONG_HEAD_DIM 64

static bool is_long(const fa_problem *p, const fa_sequence *s) {
    return s->visibility.seqlen_q * p->group > MAX_TILE_ROWS && s->visibility.key_end >= LONG_KEYS &&
           p->head_dim >= LONG_HEAD_DIM && p->head_dim_v >= LONG_HEAD_DIM;
}

static const fa_cpu_kernels *sequence_kernels(const fa_problem *p, const fa_cpu_plan *plan, const fa_sequence *s) {
    return plan->long_only && !is_long(p, s) ? plan->float32 : plan->kernels;
}

static bool in_place(const fa_problem *p, const fa_sequence *s) {
    return s->q_rows * p->group <= FA_FEW_ROWS || s->visibility.key_end <= FA_FEW_KEYS;
}

/* Bytes of a sequence's K and V of one head, packed ahead; 0 if that does not pay or takes too much. */
static int64_t sequence_packed(const fa_problem *p, int64_t tile_bytes, int64_t n) {
    fa_sequence s = fa_problem_sequence(p, n);
    int64_t bytes = fa_cpu_sequence_tiles(&s) * tile_bytes;
    return s.visibility.seqlen_q * p->group > MAX_TILE_ROWS && bytes <= PACKED_BYTES && !in_place(p, &s) ? bytes : 0;
}

/*
 * Items are the sequences of the first key/value head, then those of the second ...; their blocks follow one another in
 * the same order. A wave is a run of items whose K and V are packed together, and then attended together.
 */
typedef struct items {
    int64_t sequences;
    int64_t *first_block;  /* [sequences + 1], counted through the sequences of one head */
    int64_t *first_packed; /* [sequences + 1], the same for bytes of packed K and V */
} items;

static int64_t items_init(items *it, const fa_problem *p, char *base) {
    int64_t used = 0;
    it->sequences = fa_problem_sequences(p);
    it->first_block = fa_carve(base, &used, (it->sequences + 1) * (int64_t)sizeof(int64_t));
    it->first_packed = fa_carve(base, &used, (it->sequences + 1) * (int64_t)sizeof(int64_t));
    return used;
}

/* The sequence to which entry x of a table of first entries belongs. */
static int64_t find_sequence(const int64_t *first, int64_t sequences, int64_t x) {
    int64_t low = 0, high = sequences;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (first[middle] <= x)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* What lies before item i, in blocks or bytes. */
static int64_t before_item(const int64_t *first, int64_t sequences, int64_t i) {
    return i / sequences * first[sequences] + first[i % sequences];
}

static int64_t wave_end(const items *it, int64_t begin, int64_t heads_kv, int64_t room) {
    int64_t end = begin + 1, from = before_item(it->first_packed, it->sequences, begin);
    while (end < heads_kv * it->sequences && before_item(it->first_packed, it->sequences, end + 1) - from <= room)
        end++;
    return end;
}

/* About as many as the call has; all keys are counted that a sequence's queries see together. */
static double operations(const fa_problem *p) {
    double pairs = 0;
    for (int64_t n = 0; n < fa_problem_sequences(p); n++) {
        fa_sequence s = fa_problem_sequence(p, n);
        fa_key_range first = fa_visible_keys(&s.visibility, 0);
        fa_key_range last = fa_visible_keys(&s.visibility, fa_max(s.visibility.seqlen_q - 1, 0));
        pairs += (double)s.visibility.seqlen_q * (double)fa_max(last.end - first.begin, 0);
    }
    return 2 * pairs * (double)p->heads * (double)(p->head_dim + p->head_dim_v);
}

fa_status fa_cpu_forward_plan(const fa_problem *p, fa_cpu_plan *plan) {
    fa_status status = FA_OK;
    memset(plan, 0, sizeof *plan);
    plan->kernels = fa_cpu_kernels_select(p->isa, p->q.type, &status);
    if (plan->kernels == NULL) return status;
    plan->float32 = fa_cpu_kernels_float32(plan->kernels->isa);
    const fa_cpu_kernels *in_parts = fa_cpu_kernels_in_parts(p->isa, p->q.type);
    for (int64_t n = 0; n < fa_problem_sequences(p) && in_parts != NULL && !plan->long_only; n++) {
        fa_sequence s = fa_problem_sequence(p, n);
        plan->long_only = is_long(p, &s);
    }
    if (plan->long_only) plan->kernels = in_parts;
    plan->tile_bytes = fa_cpu_tile_bytes(p, plan->kernels);

    int64_t units = 0; /* that have something to do */
    int64_t part_keys = MIN_SPLIT_KEYS_FEW;
    plan->tile_rows = 1;
    for (int64_t n = 0; n < fa_problem_sequences(p); n++) {
        int64_t rows = fa_problem_sequence(p, n).q_rows * p->group;
        bool few = rows <= FA_FEW_ROWS;
        plan->tile_rows = fa_max(plan->tile_rows, few ? rows * fa_min(p->heads_kv, FA_FEW_HEADS) : MAX_TILE_ROWS);
        if (!few) part_keys = MIN_SPLIT_KEYS;
        plan->blocks += sequence_blocks(p, n);
        units += few ? fa_divide_up(p->heads_kv, FA_FEW_HEADS) : sequence_blocks(p, n) * p->heads_kv;
    }
    plan->splits = p->num_splits;
    if (plan->splits == 0)
        plan->splits = fa_max(1, fa_min(ENOUGH_UNITS / fa_max(units, 1), p->max_seqlen_k / part_keys));
    int64_t threads = p->num_threads > 0 ? p->num_threads : fa_default_num_threads();
    threads = fa_min(threads, (int64_t)(operations(p) / MIN_THREAD_OPERATIONS) + 1);
    plan->threads = fa_max(1, fa_min(threads, units * plan->splits));

    fa_cpu_workspace w;
    partial part;
    items it;
    plan->thread_bytes = fa_cpu_workspace_init(&w, p, plan->kernels, plan->tile_rows, NULL);
    plan->shared_bytes = items_init(&it, p, NULL);
    if (plan->splits > 1)
        plan->shared_bytes +=
            plan->blocks * p->heads_kv * partial_init(&part, plan->splits, plan->tile_rows, w.o_stride, NULL);
    int64_t largest = 0;
    for (int64_t n = 0; n < fa_problem_sequences(p); n++) {
        int64_t bytes = sequence_packed(p, plan->tile_bytes, n);
        largest = fa_max(largest, bytes);
        plan->packed_bytes = fa_min(plan->packed_bytes + p->heads_kv * bytes, PACKED_BYTES);
    }
    plan->packed_bytes = fa_min(plan->packed_bytes, fa_max(largest, plan->threads * PACKED_BYTES_PER_THREAD));
    plan->shared_bytes += plan->packed_bytes;
    return FA_OK;
}

/* Block `index` counted through all sequences of a head. Later queries come first: under a causal mask they have the most
 * keys, and short units at the end balance the threads. `packed` is where the head's packed K and V would begin. */
static fa_cpu_block find_block(const fa_problem *p, const fa_cpu_plan *plan, const items *it, int64_t index,
                               int64_t head_kv, const char *packed) {
    int64_t n = find_sequence(it->first_block, it->sequences, index);
    fa_cpu_block b;
    b.sequence = fa_problem_sequence(p, n);
    b.head_kv = head_kv;
    int64_t reversed = it->first_block[n + 1] - 1 - (index - it->first_block[n]) - it->first_block[n];
    int64_t rows = b.sequence.q_rows * p->group, blocks = it->first_block[n + 1] - it->first_block[n];
    b.begin = rows * reversed / blocks;
    b.count = b.per_head = rows * (reversed + 1) / blocks - b.begin;
    b.float32 = plan->float32;
    b.in_place = in_place(p, &b.sequence);
    b.kernels = sequence_kernels(p, plan, &b.sequence);
    if (b.in_place && b.kernels->dot_rows == NULL) b.kernels = plan->float32;
    if (rows <= FA_FEW_ROWS) /* several heads make one block, and the others have none */
        b.count *= head_kv % FA_FEW_HEADS == 0 ? fa_min(FA_FEW_HEADS, p->heads_kv - head_kv) : 0;
    bool ahead = it->first_packed[n + 1] > it->first_packed[n];
    b.packed = ahead ? packed + it->first_packed[n] : NULL;
    b.tile_bytes = plan->tile_bytes;
    return b;
}

/* Memory of a call, and what its threads share. */
typedef struct call {
    const fa_problem *p;
    const fa_cpu_plan *plan;
    items it;
    char *partials, *packed, *workspaces;
    int64_t unit_bytes; /* of partials */
} call;

static fa_cpu_block unit_block(const call *c, int64_t unit, int64_t wave_packed) {
    int64_t head_kv = unit / c->plan->blocks;
    return find_block(c->p, c->plan, &c->it, unit % c->plan->blocks, head_kv,
                      c->packed + head_kv * c->it.first_packed[c->it.sequences] - wave_packed);
}

/* Tile number `tile` of all packed tiles, to its place in a wave whose tiles begin at byte wave_packed of all. */
static void pack_ahead(const call *c, int64_t tile, int64_t wave_packed, const void **rows) {
    const fa_problem *p = c->p;
    int64_t bytes = c->plan->tile_bytes, of_head = c->it.first_packed[c->it.sequences];
    int64_t head_kv = tile * bytes / of_head, at = tile * bytes % of_head;
    int64_t n = find_sequence(c->it.first_packed, c->it.sequences, at);
    fa_sequence s = fa_problem_sequence(p, n);
    fa_cpu_pack_tile(p, sequence_kernels(p, c->plan, &s), &s, head_kv, (at - c->it.first_packed[n]) / bytes,
                     c->packed + tile * bytes - wave_packed, rows);
}

/* Split `split` of a unit: to the output, or to the partial results. */
static void attend_unit(const call *c, int64_t unit, int64_t split, int64_t wave_packed, fa_cpu_workspace *w) {
    const fa_cpu_plan *plan = c->plan;
    fa_cpu_block b = unit_block(c, unit, wave_packed);
    if (b.count == 0) return;
    fa_cpu_attend_block(c->p, &b, w, split, plan->splits);
    partial part = {w->o, w->m, w->l};
    if (plan->splits == 1) {
        finish_block(c->p, plan->kernels, &b, &part, 1, plan->tile_rows, w->o_stride, w->row);
        return;
    }
    (void)partial_init(&part, plan->splits, plan->tile_rows, w->o_stride, c->partials + unit * c->unit_bytes);
    int64_t row = split * plan->tile_rows;
    memcpy(part.o + row * w->o_stride, w->o, (size_t)(b.count * w->o_stride) * sizeof(float));
    memcpy(part.m + row, w->m, (size_t)b.count * sizeof(float));
    memcpy(part.l + row, w->l, (size_t)b.count * sizeof(float));
}

/* What each thread does; `#pragma omp for` shares out the loops and waits at their ends. */
static void work(const call *c) {
    const fa_problem *p = c->p;
    const fa_cpu_plan *plan = c->plan;
    const items *it = &c->it;
    int64_t splits = plan->splits, tile_bytes = plan->tile_bytes;
    fa_cpu_workspace w;
    (void)fa_cpu_workspace_init(&w, p, plan->kernels, plan->tile_rows,
                                c->workspaces + fa_thread_number() * plan->thread_bytes);
    for (int64_t begin = 0, end; begin < p->heads_kv * it->sequences; begin = end) {
        end = wave_end(it, begin, p->heads_kv, plan->packed_bytes);
        int64_t packed = before_item(it->first_packed, it->sequences, begin);
        int64_t packed_end = before_item(it->first_packed, it->sequences, end);
        int64_t unit_begin = before_item(it->first_block, it->sequences, begin);
        int64_t unit_end = before_item(it->first_block, it->sequences, end);
        if (packed < packed_end) {
#pragma omp for schedule(static)
            for (int64_t tile = packed / tile_bytes; tile < packed_end / tile_bytes; tile++)
                pack_ahead(c, tile, packed, w.rows);
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = unit_begin * splits; i < unit_end * splits; i++)
            attend_unit(c, i / splits, i % splits, packed, &w);
    }
    if (plan->kernels->leave != NULL) plan->kernels->leave();
    if (splits == 1) return;
#pragma omp for schedule(dynamic, 1)
    for (int64_t unit = 0; unit < plan->blocks * p->heads_kv; unit++) {
        partial part;
        fa_cpu_block b = unit_block(c, unit, 0);
        (void)partial_init(&part, splits, plan->tile_rows, w.o_stride, c->partials + unit * c->unit_bytes);
        finish_block(p, plan->kernels, &b, &part, splits, plan->tile_rows, w.o_stride, w.row);
    }
}

fa_status fa_cpu_forward(const fa_problem *p, const fa_cpu_plan *plan) {
    if (plan->blocks == 0 || p->heads_kv == 0) return FA_OK;
    int64_t bytes = plan->shared_bytes + plan->threads * plan->thread_bytes;
    char *memory = fa_cpu_allocate(bytes);
    if (memory == NULL)
        return fa_fail(FA_OUT_OF_MEMORY, "no memory for a workspace of %" PRId64 " bytes (%" PRId64 " threads)", bytes,
                       plan->threads);
    call c = {.p = p, .plan = plan};
    int64_t used = items_init(&c.it, p, memory);
    c.packed = memory + used;
    c.partials = c.packed + plan->packed_bytes;
    c.workspaces = memory + plan->shared_bytes;
    partial part;
    c.unit_bytes = partial_init(&part, plan->splits, plan->tile_rows, fa_round_up(p->head_dim_v, FA_PANEL_MAX), NULL);
    c.it.first_block[0] = c.it.first_packed[0] = 0;
    for (int64_t n = 0; n < c.it.sequences; n++) {
        c.it.first_block[n + 1] = c.it.first_block[n] + sequence_blocks(p, n);
        c.it.first_packed[n + 1] = c.it.first_packed[n] + sequence_packed(p, plan->tile_bytes, n);
    }
#pragma omp parallel num_threads((int)plan->threads)
    work(&c);
    free(memory);
    return FA_OK;
}
