/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the backward kernels for a call, tells them the call in device terms, and launches them: see backward_params.h. */
#include "gpu/launch_backward.h"

#include "gpu/launch_forward.h"
#include "gpu/launch_parts.h"
#include "gpu/launch_v3.h"
#include "gpu/memory_ranges.h"
#include "kernels/backward_params.h"
#include "kernels/v2_tiles.h"
#include "kernels/v3_backward_params.h"
#include "status.h"
#include "tensor.h"

#include <inttypes.h>
#include <stdio.h>

/* Blocks of the small kernels keep a few counters and sums. */
#define SMALL_SHARED_BYTES 128

/* ---- what kernels can be asked for ---- */

static fa_status check_kernel(fa_kernel kernel) {
    if (kernel == FA_KERNEL_V2 || kernel == FA_KERNEL_V3) return FA_OK;
    if (kernel == FA_KERNEL_CPU || kernel == FA_KERNEL_REFERENCE)
        return fa_fail(FA_UNSUPPORTED, "kernel = %s: runs on the CPU, and the tensors lie on a GPU",
                       fa_kernel_name(kernel));
    return fa_fail(FA_UNSUPPORTED, "kernel = %s: has no backward pass on a GPU; v2 and v3 have",
                   fa_kernel_name(kernel));
}

static fa_status check_addresses(const fa_gradients *g) {
    const fa_rows *const rows[] = {&g->dout, &g->dq, &g->dk, &g->dv};
    static const char *const names[] = {"dout", "dq", "dk", "dv"};
    FA_TRY(fa_gpu_check_addresses(&g->problem));
    for (int i = 0; i < 4; i++) FA_TRY(fa_gpu_check_address(names[i], rows[i]->data, fa_element_size(rows[i]->type)));
    FA_TRY(fa_gpu_check_address("dbias", g->dbias.data, fa_element_size(g->dbias.type)));
    FA_TRY(fa_gpu_check_address("dsink", g->dsink.data, fa_element_size(g->dsink.type)));
    return fa_gpu_check_address("dalibi_slopes", g->dalibi_slopes.data, fa_element_size(g->dalibi_slopes.type));
}

/* ---- the plan ---- */

static bool whole_pieces(const fa_rows *t, int64_t columns, int64_t batch, int64_t rows, int64_t heads) {
    return columns * fa_element_size(t->type) % 16 == 0 && fa_gpu_rows_begin_aligned(t, batch, rows, heads);
}

static fa_status choose_variants(const fa_problem *p, fa_gpu_backward_plan *plan) {
    bool general = p->softcap > 0.0f || p->alibi_slopes.data != NULL || p->bias.data != NULL || p->mask.data != NULL ||
                   !(p->softmax_scale > 0.0f) || (!plan->rows_aligned && plan->kernel == FA_KERNEL_V2);
    const char *source = plan->kernel == FA_KERNEL_V3 ? "v3_backward" : "v2_backward";
    plan->variant = fa_variant_find(source, p->q.type, p->head_dim, p->head_dim_v, general);
    plan->prepare = fa_variant_find("backward_prepare", p->q.type, 1, 1, false);
    plan->finish = fa_variant_find("backward_finish", p->q.type, 1, 1, false);
    plan->scores = fa_variant_find("score_gradients", p->q.type, 1, 1, false);
    if (plan->variant == NULL || plan->prepare == NULL || plan->finish == NULL || plan->scores == NULL)
        return fa_fail(FA_UNSUPPORTED, "head_dim = %" PRId64 ", head_dim_v = %" PRId64 ": no %s kernel is that wide",
                       p->head_dim, p->head_dim_v, fa_kernel_name(plan->kernel));
    const fa_variant *v = plan->variant;
    if (plan->kernel == FA_KERNEL_V3)
        plan->shared_bytes =
            V3B_SHARED_BYTES(v->head_dim, v->head_dim_v, v->general, v->block_m, v->block_n, v->stages);
    else
        plan->shared_bytes = V2_BACKWARD_SHARED_BYTES(v->head_dim, v->block_m, v->block_n,
                                                      V2_BACKWARD_STAGES(v->stages, plan->machine->arch >= 90));
    plan->dq_columns = plan->kernel == FA_KERNEL_V3 ? V3B_DQ_COLUMNS(v->head_dim) : v->head_dim;
    plan->dq_part_columns = plan->kernel == FA_KERNEL_V3 ? V3B_DQ_PART_COLUMNS(v->head_dim) : v->head_dim;
    return fa_machine_runs(plan->machine, v);
}

static fa_status check_shared(const fa_gpu_backward_plan *plan) {
    const fa_machine *m = plan->machine;
    if (plan->shared_bytes <= m->shared_bytes) return FA_OK;
    return fa_fail(FA_UNSUPPORTED, "%s needs %" PRId64 " bytes of shared memory per block, and %s (%s) has %" PRId64,
                   fa_variant_name(plan->variant), plan->shared_bytes, m->id, m->name, m->shared_bytes);
}

/* Elements of dbias are computed by a warp each. */
static int64_t bias_blocks(const fa_gradients *g, const fa_gpu_backward_plan *plan) {
    int64_t warps = plan->scores->threads / 32;
    return g->dbias.data == NULL ? 0 : (fa_dbias_count(g) + warps - 1) / warps;
}

static fa_status check_blocks(const fa_gradients *g, const fa_gpu_backward_plan *plan) {
    const fa_problem *p = &g->problem;
    int64_t blocks = bias_blocks(g, plan), sums = g->dalibi_per_batch ? p->batch * p->heads : p->heads;
    if (sums > blocks) blocks = sums;
    if (blocks <= FA_GPU_MAX_BLOCKS) return FA_OK;
    return fa_fail(FA_UNSUPPORTED, "%s needs %" PRId64 " blocks of threads: a launch has at most 2^31 - 1",
                   fa_variant_name(plan->scores), blocks);
}

/* The next array of the workspace, at a multiple of 256 bytes. */
static int64_t place(fa_gpu_backward_workspace *w, int64_t bytes) {
    int64_t offset = w->bytes;
    w->bytes += (bytes + 255) / 256 * 256;
    return offset;
}

/* dout's copy: rows of whole 16-byte pieces. */
static int64_t dout_pitch(const fa_problem *p) { return (p->head_dim_v + 7) / 8 * 16; }

/* Linear in the number of queries: tiles * rows of a tile is, up to a tile per sequence, queries * heads. */
static void plan_workspace(const fa_gradients *g, fa_gpu_backward_plan *plan) {
    const fa_problem *p = &g->problem;
    fa_gpu_backward_workspace *w = &plan->workspace;
    int64_t tiles = plan->query_tiles, rows = tiles * plan->variant->block_m;
    w->lse_log2 = place(w, 4 * rows);
    w->delta = place(w, 4 * rows);
    w->row_sum = place(w, g->dsink.data != NULL || g->dalibi_slopes.data != NULL ? 4 * rows : 0);
    w->idle_rows = place(w, 4 * tiles);
    w->turns = place(w, 8 * tiles);
    w->dq_sum = place(w, g->dq.data != NULL ? 4 * rows * plan->dq_columns : 0);
    w->dout = place(w, plan->copies_dout ? FA_WORKSPACE_ROWS(p) * p->heads * dout_pitch(p) : 0);
}

/* FA_KERNEL_AUTO becomes the newest kernel that machine and tensors allow. dout is copied where it must be. */
static fa_status choose_kernel(const fa_problem *p, fa_gpu_backward_plan *plan) {
    char text[FA_V3_OBSTACLE_TEXT];
    bool automatic = p->kernel == FA_KERNEL_AUTO, hopper = plan->machine->arch == 90;
    if (!automatic && p->kernel != FA_KERNEL_V3) return FA_OK;
    const char *obstacle = fa_v3_input_obstacle(p, text);
    if (!automatic)
        return obstacle == NULL ? FA_OK : fa_fail(FA_UNSUPPORTED, "kernel = v3: %s; v2 takes such tensors", obstacle);
    plan->kernel = hopper && obstacle == NULL ? FA_KERNEL_V3 : FA_KERNEL_V2;
    if (hopper && obstacle != NULL) (void)snprintf(plan->note, sizeof plan->note, "not v3: %s", obstacle);
    return FA_OK;
}

fa_status fa_gpu_backward_plan_make(const fa_gradients *g, fa_gpu_backward_plan *plan) {
    const fa_problem *p = &g->problem;
    bool varlen_k = p->cu_seqlens_k.data != NULL;
    *plan = (fa_gpu_backward_plan){.kernel = p->kernel == FA_KERNEL_AUTO ? FA_KERNEL_V2 : p->kernel};
    FA_TRY(check_kernel(plan->kernel));
    FA_TRY(fa_gpu_open(p, plan->kernel, &plan->machine));
    FA_TRY(fa_gpu_check_options(p, plan->kernel));
    FA_TRY(fa_gpu_check_sizes(p));
    FA_TRY(choose_kernel(p, plan));
    plan->rows_aligned = whole_pieces(&p->q, p->head_dim, p->batch, p->rows_q, p->heads) &&
                         whole_pieces(&p->k, p->head_dim, p->batch, p->rows_k, p->heads_kv) &&
                         whole_pieces(&p->v, p->head_dim_v, p->batch, p->rows_k, p->heads_kv);
    plan->copies_dout = g->dout.type != p->q.type ||
                        !whole_pieces(&g->dout, p->head_dim_v, p->batch, p->rows_q, p->heads) ||
                        (plan->kernel == FA_KERNEL_V3 && !fa_v3_reads(p, &g->dout));
    FA_TRY(choose_variants(p, plan));
    FA_TRY(check_shared(plan));
    FA_TRY(fa_gpu_count_tiles("query", p->cu_seqlens_q.data != NULL, p->batch, p->rows_q, p->heads,
                              plan->variant->block_m, &plan->row_blocks, &plan->query_tiles));
    FA_TRY(fa_gpu_count_tiles("key", varlen_k, p->batch, p->rows_k, p->heads_kv, plan->variant->block_n,
                              &plan->key_blocks, &plan->key_tiles));
    plan->key_entries = varlen_k ? 1 : p->batch;
    FA_TRY(check_blocks(g, plan));
    plan_workspace(g, plan);
    return check_addresses(g);
}

/* ---- the launch ---- */

/* An array of the workspace; there is none where there is nothing to do. */
static void *array_at(char *workspace, int64_t offset) { return workspace == NULL ? NULL : workspace + offset; }

/*
 * Heads whose key tiles take turns in the order of blocks.
 *
 * With a causal mask the first tiles of a head, which most queries see, take longest, and so come before the last ones of
 * other heads: of as many as find their queries in the L2 cache.
 *
 * deterministic: blocks of a head that begin together wait for one another at the first query tiles. Those of a group that
 * fills the GPU once have waited by its end, and end in order of their tiles; if the next group begins in that order,
 * nobody waits again. Blocks that begin with different query tiles need no such thing.
 */
static int64_t head_group(const fa_problem *p, const fa_gpu_backward_plan *plan, bool deterministic) {
    const fa_machine *m = plan->machine;
    int64_t pairs = p->heads_kv * plan->key_entries, tiles = plan->row_blocks * (p->heads / p->heads_kv), group = 1;
    bool causal = p->causal != FA_CAUSAL_NONE;
    if (pairs == 0 || tiles == 0 || plan->key_blocks == 0) return 1;
    if (deterministic) {
        if (!causal) group = (m->processors + plan->key_blocks - 1) / plan->key_blocks;
    } else if (causal) {
        int64_t bytes = tiles * plan->variant->block_m * ((p->head_dim + p->head_dim_v) * 2 + plan->dq_columns * 4);
        group = m->l2_bytes / 4 * 3 / bytes;
    }
    if (group < 1) group = 1;
    return group < pairs ? group : pairs;
}

static fa_backward_params params_of(const fa_gradients *g, const fa_gpu_backward_plan *plan, char *workspace) {
    const fa_problem *p = &g->problem;
    const fa_gpu_backward_workspace *w = &plan->workspace;
    fa_backward_params b = {
        .forward = fa_gpu_forward_params(p, plan->row_blocks, plan->rows_aligned),
        .dout = fa_gpu_device_rows(&g->dout),
        .dout_given = fa_gpu_device_rows(&g->dout),
        .dout_copied = plan->copies_dout,
        .dout_float32 = g->dout.type == FA_ELEMENT_FLOAT32,
        .whole_rows = !plan->copies_dout && p->out.type == p->q.type && p->bias.data == NULL && p->mask.data == NULL &&
                      whole_pieces(&p->out, p->head_dim_v, p->batch, p->rows_q, p->heads),
        .dq = fa_gpu_device_rows(&g->dq),
        .dk = fa_gpu_device_rows(&g->dk),
        .dv = fa_gpu_device_rows(&g->dv),
        .dq_float32 = g->dq.type == FA_ELEMENT_FLOAT32,
        .dk_float32 = g->dk.type == FA_ELEMENT_FLOAT32,
        .dv_float32 = g->dv.type == FA_ELEMENT_FLOAT32,
        .block_m = plan->variant->block_m,
        .tile_columns = (int32_t)plan->dq_columns,
        .dq_part_columns = (int32_t)plan->dq_part_columns,
        .dq_aligned = g->dq.type == p->q.type && whole_pieces(&g->dq, p->head_dim, p->batch, p->rows_q, p->heads),
        .key_blocks = (int32_t)plan->key_blocks,
        .key_entries = (int32_t)plan->key_entries,
        .head_group = (int32_t)head_group(p, plan, g->deterministic),
        .deterministic = g->deterministic,
        .lse_log2 = array_at(workspace, w->lse_log2),
        .delta = array_at(workspace, w->delta),
        .dq_sum = array_at(workspace, w->dq_sum),
        .turns = array_at(workspace, w->turns),
        .idle_rows = array_at(workspace, w->idle_rows),
    };
    if (g->dsink.data != NULL || g->dalibi_slopes.data != NULL) b.row_sum = array_at(workspace, w->row_sum);
    if (plan->copies_dout) {
        int64_t pitch = dout_pitch(p);
        b.dout = (fa_device_rows){.data = array_at(workspace, w->dout),
                                  .batch_stride = p->cu_seqlens_q.data != NULL ? 0 : p->rows_q * p->heads * pitch,
                                  .row_stride = p->heads * pitch,
                                  .head_stride = pitch};
    }
    return b;
}

/* A kernel with a block of threads per tile or per result. */
static fa_status launch(const fa_gpu_backward_plan *plan, const fa_launch *common, const fa_variant *kernel,
                        int64_t blocks, const void *params, size_t params_bytes) {
    fa_launch l = *common;
    if (blocks == 0) return FA_OK;
    l.kernel = kernel;
    l.grid[0] = (uint32_t)blocks;
    l.threads = (uint32_t)kernel->threads;
    l.shared_bytes = SMALL_SHARED_BYTES;
    l.params = params;
    l.params_bytes = params_bytes;
    return plan->machine->launch(plan->machine, &l);
}

/* Rows of dk or dv that can be written 16 bytes at a time. */
static int32_t gradient_aligned(const fa_rows *t, const fa_problem *p, int64_t columns) {
    return t->type == p->q.type && whole_pieces(t, columns, p->batch, p->rows_k, p->heads_kv);
}

static fa_status v3_params_init(fa_v3_backward_params *v3, const fa_gradients *g, const fa_gpu_backward_plan *plan,
                                const fa_backward_params *params) {
    const fa_problem *p = &g->problem;
    const fa_variant *v = plan->variant;
    const fa_rows dout = {.data = params->dout.data,
                          .type = p->q.type,
                          .batch_stride = params->dout.batch_stride,
                          .row_stride = params->dout.row_stride,
                          .head_stride = params->dout.head_stride};
    const int64_t batch_q = p->cu_seqlens_q.data != NULL ? 1 : p->batch,
                  batch_k = p->cu_seqlens_k.data != NULL ? 1 : p->batch;
    const int32_t page = V3B_PAGE(v->head_dim);
    memset(v3, 0, sizeof *v3);
    v3->backward = *params;
    v3->dk_aligned = gradient_aligned(&g->dk, p, p->head_dim);
    v3->dv_aligned = gradient_aligned(&g->dv, p, p->head_dim_v);
    if (p->rows_q == 0) return FA_OK; /* nothing is loaded */
    FA_TRY(fa_v3_encode(plan->machine, &p->q, p->head_dim, p->rows_q, p->heads, batch_q, page, v->block_m, &v3->q));
    FA_TRY(
        fa_v3_encode(plan->machine, &dout, p->head_dim_v, p->rows_q, p->heads, batch_q, page, v->block_m, &v3->dout));
    FA_TRY(fa_v3_encode(plan->machine, &p->k, p->head_dim, p->rows_k, p->heads_kv, batch_k, page, v->block_n, &v3->k));
    return fa_v3_encode(plan->machine, &p->v, p->head_dim_v, p->rows_k, p->heads_kv, batch_k, page, v->block_n, &v3->v);
}

static fa_status launch_main(const fa_gradients *g, const fa_gpu_backward_plan *plan, const fa_launch *common,
                             const fa_backward_params *params) {
    const fa_problem *p = &g->problem;
    fa_launch l = *common;
    if (plan->key_tiles == 0 || (g->dq.data == NULL && g->dk.data == NULL && g->dv.data == NULL)) return FA_OK;
    l.kernel = plan->variant;
    l.grid[0] = (uint32_t)plan->key_tiles;
    /* A tile is taken from a grid of three dimensions without a division, if y and z can hold heads and sequences. */
    if (params->head_group == 1 && p->heads_kv <= FA_GPU_MAX_GRID_YZ && plan->key_entries <= FA_GPU_MAX_GRID_YZ) {
        l.grid[0] = (uint32_t)plan->key_blocks;
        l.grid[1] = (uint32_t)p->heads_kv;
        l.grid[2] = (uint32_t)plan->key_entries;
    }
    l.threads = (uint32_t)plan->variant->threads;
    l.shared_bytes = (uint32_t)plan->shared_bytes;
    l.params = params;
    l.params_bytes = sizeof *params;
    if (plan->kernel != FA_KERNEL_V3) return plan->machine->launch(plan->machine, &l);
    fa_v3_backward_params v3;
    FA_TRY(v3_params_init(&v3, g, plan, params));
    l.params = &v3;
    l.params_bytes = sizeof v3;
    return plan->machine->launch(plan->machine, &l);
}

/* dsink before the slopes: both use row_sum. */
static fa_status launch_scores(const fa_gradients *g, const fa_gpu_backward_plan *plan, const fa_launch *common,
                               const fa_backward_params *params) {
    const fa_problem *p = &g->problem;
    fa_score_gradient_params s = {.backward = *params};
    if (g->dsink.data != NULL) {
        s.what = FA_SCORE_SUM;
        s.result = g->dsink.data;
        s.result_type = (int32_t)g->dsink.type;
        s.shape[0] = 1;
        s.stride[1] = g->dsink.stride[0];
        FA_TRY(launch(plan, common, plan->scores, p->heads, &s, sizeof s));
    }
    if (g->dalibi_slopes.data != NULL) {
        s.what = FA_SCORE_SLOPE_ROWS;
        FA_TRY(launch(plan, common, plan->scores, plan->query_tiles, &s, sizeof s));
        s.what = FA_SCORE_SUM;
        s.result = g->dalibi_slopes.data;
        s.result_type = (int32_t)g->dalibi_slopes.type;
        s.shape[0] = g->dalibi_per_batch ? p->batch : 1;
        s.stride[0] = g->dalibi_slopes.stride[0];
        s.stride[1] = g->dalibi_slopes.stride[1];
        FA_TRY(launch(plan, common, plan->scores, s.shape[0] * p->heads, &s, sizeof s));
    }
    if (g->dbias.data == NULL) return FA_OK;
    const int64_t stride[4] = {g->dbias.batch_stride, g->dbias.head_stride, g->dbias.row_stride, g->dbias.key_stride};
    s.what = FA_SCORE_BIAS;
    s.result = (char *)g->dbias.data; /* an output: not const where it came from */
    s.result_type = (int32_t)g->dbias.type;
    for (int i = 0; i < 4; i++) {
        s.shape[i] = g->dbias_shape[i];
        s.stride[i] = stride[i];
    }
    return launch(plan, common, plan->scores, bias_blocks(g, plan), &s, sizeof s);
}

static fa_status launch_all(const fa_gradients *g, const fa_gpu_backward_plan *plan, char *workspace) {
    const fa_problem *p = &g->problem;
    const fa_machine *m = plan->machine;
    fa_memory_range memory[FA_GRADIENT_MEMORY_RANGES_MAX];
    fa_backward_params params = params_of(g, plan, workspace);
    fa_launch common = {.grid = {1, 1, 1}, .stream = p->stream, .memory = memory};
    if (m->emulated) {
        common.memory_count = fa_gradient_memory_ranges(g, memory);
        common.host_threads = p->num_threads != 0 ? p->num_threads : fa_default_num_threads();
    }
    FA_TRY(launch(plan, &common, plan->prepare, plan->query_tiles, &params, sizeof params));
    FA_TRY(launch_main(g, plan, &common, &params));
    if (g->dq.data != NULL) FA_TRY(launch(plan, &common, plan->finish, plan->query_tiles, &params, sizeof params));
    return launch_scores(g, plan, &common, &params);
}

fa_status fa_gpu_backward(const fa_gradients *g, const fa_gpu_backward_plan *plan) {
    const fa_machine *m = plan->machine;
    void *workspace = NULL, *stream = g->problem.stream;
    if (plan->workspace.bytes == 0) return launch_all(g, plan, NULL);
    FA_TRY(m->allocate(m, (size_t)plan->workspace.bytes, stream, &workspace));
    fa_status status = launch_all(g, plan, workspace);
    if (status != FA_OK) { /* whose sentence must not be lost to a second failure */
        (void)m->release(m, workspace, stream);
        return status;
    }
    return m->release(m, workspace, stream);
}
