/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses a forward kernel for a problem, tells it the problem in device terms, and launches it. */
#include "gpu/launch_forward.h"

#include "gpu/launch_parts.h"
#include "gpu/launch_v3.h"
#include "gpu/memory_ranges.h"
#include "kernels/standard_tiles.h"
#include "kernels/v1_tiles.h"
#include "kernels/v2_tiles.h"
#include "status.h"
#include "tensor.h"

#include <inttypes.h>
#include <stdio.h>

/*
 * Positions in a kernel are 32-bit. The largest number that fa_visibility_make() and fa_visible_keys() form from them
 * is twice the keys plus the queries plus a tile.
 */
#define MAX_ROWS ((int64_t)1 << 29)

/* ---- what kernels can be asked for ---- */

/* The kernel's file in src/kernels; NULL: there is none. */
static const char *source_of(fa_kernel kernel) {
    switch (kernel) {
    case FA_KERNEL_STANDARD: return "standard_forward";
    case FA_KERNEL_V1: return "v1_forward";
    case FA_KERNEL_V2: return "v2_forward";
    case FA_KERNEL_V3: return "v3_forward";
    default: return NULL;
    }
}

static fa_status check_kernel(fa_kernel kernel) {
    if (kernel == FA_KERNEL_CPU || kernel == FA_KERNEL_REFERENCE)
        return fa_fail(FA_UNSUPPORTED, "kernel = %s: runs on the CPU, and the tensors lie on a GPU",
                       fa_kernel_name(kernel));
    if (source_of(kernel) == NULL || fa_variant_find(source_of(kernel), FA_ELEMENT_BFLOAT16, 1, 1, false) == NULL)
        return fa_fail(FA_UNSUPPORTED, "kernel = %s: has no GPU code in this build", fa_kernel_name(kernel));
    return FA_OK;
}

fa_status fa_gpu_open(const fa_problem *p, fa_kernel kernel, const fa_machine **machine) {
    if (p->device_type == FA_DEVICE_CPU && !fa_machine_emulation_asked())
        return fa_fail(FA_UNSUPPORTED,
                       "kernel = %s: runs on a GPU, the tensors lie in CPU memory, and the environment variable "
                       "FLASHATTN_MACHINE is not set: it names an emulated GPU (emulated-h100 for one) for them",
                       fa_kernel_name(kernel));
    return fa_machine_open((fa_device){p->device_type, p->device_id}, machine);
}

fa_status fa_gpu_check_options(const fa_problem *p, fa_kernel kernel) {
    const char *name = fa_kernel_name(kernel);
    if (p->isa != FA_ISA_AUTO)
        return fa_fail(FA_UNSUPPORTED, "isa = %s: only the cpu kernel has instruction sets, and kernel is %s",
                       fa_isa_name(p->isa), name);
    if (p->num_splits > 1)
        return fa_fail(FA_UNSUPPORTED, "num_splits = %" PRId32 ": the %s kernel does not split keys", p->num_splits,
                       name);
    if (p->page_size > 0)
        return fa_fail(FA_UNSUPPORTED, "block_table is given: the %s kernel does not read paged keys and values", name);
    if (p->q.type != FA_ELEMENT_FLOAT16 && p->q.type != FA_ELEMENT_BFLOAT16)
        return fa_fail(FA_UNSUPPORTED, "q.dtype = %s: the %s kernel takes float16 and bfloat16",
                       p->q.type == FA_ELEMENT_FLOAT64 ? "float64" : "float32", name);
    return FA_OK;
}

static fa_status check_size(const char *name, int64_t size, int64_t limit) {
    if (size <= limit) return FA_OK;
    return fa_fail(FA_UNSUPPORTED, "%s = %" PRId64 ": on a GPU at most %" PRId64, name, size, limit);
}

fa_status fa_gpu_check_sizes(const fa_problem *p) {
    FA_TRY(check_size("batch", p->batch, INT32_MAX - 1));
    FA_TRY(check_size("heads", p->heads, INT32_MAX));
    FA_TRY(check_size(p->cu_seqlens_q.data != NULL ? "total_q" : "seqlen_q", p->rows_q, MAX_ROWS));
    return check_size(p->cu_seqlens_k.data != NULL ? "total_k" : "seqlen_k", p->rows_k, MAX_ROWS);
}

/* ---- alignment ---- */

/* Every row of the tensor begins at a multiple of 16 bytes; strides of dimensions with one element do not count. */
bool fa_gpu_rows_begin_aligned(const fa_rows *t, int64_t batch, int64_t rows, int64_t heads) {
    uint64_t bits = (uint64_t)(uintptr_t)t->data;
    if (batch > 1) bits |= (uint64_t)t->batch_stride;
    if (rows > 1) bits |= (uint64_t)t->row_stride;
    if (heads > 1) bits |= (uint64_t)t->head_stride;
    return bits % 16 == 0;
}

static bool rows_aligned(const fa_problem *p) {
    int64_t element = fa_element_size(p->q.type);
    return p->head_dim * element % 16 == 0 && p->head_dim_v * element % 16 == 0 &&
           fa_gpu_rows_begin_aligned(&p->q, p->batch, p->rows_q, p->heads) &&
           fa_gpu_rows_begin_aligned(&p->k, p->batch, p->rows_k, p->heads_kv) &&
           fa_gpu_rows_begin_aligned(&p->v, p->batch, p->rows_k, p->heads_kv) &&
           fa_gpu_rows_begin_aligned(&p->out, p->batch, p->rows_q, p->heads);
}

/* A GPU reads and writes elements only at multiples of their size. Strides are multiples of it anyway. */
fa_status fa_gpu_check_address(const char *name, const void *data, int64_t element) {
    if ((uintptr_t)data % (uintptr_t)element == 0) return FA_OK;
    return fa_fail(FA_UNSUPPORTED, "%s.data = %p: on a GPU must be a multiple of the element size, %" PRId64, name,
                   data, element);
}

fa_status fa_gpu_check_addresses(const fa_problem *p) {
    int64_t element = fa_element_size(p->q.type);
    const struct {
        const char *name;
        const void *data;
        int64_t element;
    } tensors[] = {{"q", p->q.data, element},
                   {"k", p->k.data, element},
                   {"v", p->v.data, element},
                   {"out", p->out.data, fa_element_size(p->out.type)},
                   {"lse", p->lse.data, 4},
                   {"bias", p->rows_k == 0 ? NULL : p->bias.data, fa_element_size(p->bias.type)},
                   {"cu_seqlens_q", p->cu_seqlens_q.data, 4},
                   {"cu_seqlens_k", p->cu_seqlens_k.data, 4},
                   {"seqused_q", p->seqused_q.data, 4},
                   {"seqused_k", p->seqused_k.data, 4},
                   {"leftpad_k", p->leftpad_k.data, 4},
                   {"alibi_slopes", p->alibi_slopes.data, 4},
                   {"sink", p->sink.data, 4}};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++)
        FA_TRY(fa_gpu_check_address(tensors[i].name, tensors[i].data, tensors[i].element));
    return FA_OK;
}

/* ---- the plan ---- */

static fa_status choose_variant(const fa_problem *p, fa_gpu_plan *plan) {
    bool general = p->softcap > 0.0f || p->alibi_slopes.data != NULL || p->bias.data != NULL || p->mask.data != NULL ||
                   !(p->softmax_scale > 0.0f) || (!plan->rows_aligned && plan->kernel != FA_KERNEL_V3);
    plan->variant = fa_variant_find(source_of(plan->kernel), p->q.type, p->head_dim, p->head_dim_v, general);
    if (plan->variant == NULL)
        return fa_fail(FA_UNSUPPORTED, "head_dim = %" PRId64 ", head_dim_v = %" PRId64 ": no %s kernel is that wide",
                       p->head_dim, p->head_dim_v, fa_kernel_name(plan->kernel));
    return fa_machine_runs(plan->machine, plan->variant);
}

fa_status fa_gpu_count_tiles(const char *what, bool varlen, int64_t batch, int64_t rows, int64_t heads,
                             int64_t block_rows, int64_t *per_head, int64_t *tiles) {
    int64_t entries = varlen ? 1 : batch;
    *per_head =
        varlen && rows > 0 ? FA_VARLEN_TILES(rows, batch + 1, block_rows) : (rows + block_rows - 1) / block_rows;
    *tiles = *per_head * heads; /* at most 2^30 * 2^31 */
    if (*tiles > 0 && entries > FA_GPU_MAX_BLOCKS / *tiles)
        return fa_fail(FA_UNSUPPORTED,
                       "%" PRId64 " sequences, %s of %" PRId64 " %s rows, with %" PRId64
                       " heads: more than 2^31 - 1 %s tiles of %" PRId64 " rows",
                       batch, varlen ? "together" : "each", rows, what, heads, what, block_rows);
    *tiles *= entries;
    return FA_OK;
}

/* Query tiles over all sequences and heads; also what keeps the sizes computed from it far from 2^63. */
static fa_status plan_tiles(const fa_problem *p, fa_gpu_plan *plan, int64_t *tiles) {
    bool varlen = p->cu_seqlens_q.data != NULL;
    plan->tile_entries = varlen ? 1 : p->batch;
    return fa_gpu_count_tiles("query", varlen, p->batch, p->rows_q, p->heads, plan->variant->block_m, &plan->row_blocks,
                              tiles);
}

static void plan_v1(const fa_problem *p, fa_gpu_plan *plan) {
    const fa_variant *v = plan->variant;
    plan->workspace_bytes = V1_WORKSPACE_BYTES(FA_WORKSPACE_ROWS(p), p->heads, v->head_dim);
    plan->step_count = 1;
    plan->steps[0].blocks = fa_problem_sequences(p) * p->heads;
    plan->steps[0].shared_bytes = V1_SHARED_BYTES(v->head_dim, v->block_m, v->block_n, v->threads / 32);
}

static void plan_v2(const fa_variant *v, int64_t tiles, fa_gpu_plan *plan) {
    plan->step_count = 1;
    plan->steps[0].blocks = tiles;
    plan->steps[0].shared_bytes = V2_SHARED_BYTES(v->head_dim, v->block_m, v->block_n, v->stages);
    if (plan->steps[0].shared_bytes > plan->machine->shared_bytes) {
        plan->weights_in_keys = true;
        plan->steps[0].shared_bytes -= V2_WEIGHTS_BYTES(v->head_dim, v->block_m, v->block_n);
    }
}

static void plan_standard(const fa_problem *p, fa_gpu_plan *plan) {
    const fa_variant *v = plan->variant;
    bool lengths_given = p->cu_seqlens_k.data != NULL || p->seqused_k.data != NULL;
    plan->key_blocks = ((lengths_given ? p->max_seqlen_k : p->rows_k) + v->block_n - 1) / v->block_n;
    plan->workspace_bytes = STANDARD_WORKSPACE_BYTES(FA_WORKSPACE_ROWS(p), p->heads, plan->key_blocks, v->block_n);
    /* Without keys the kernel still computes addresses in it. */
    if (plan->workspace_bytes == 0) plan->workspace_bytes = 16;
    plan->step_count = STANDARD_STEPS;
    for (int step = 0; step < STANDARD_STEPS; step++) {
        plan->steps[step].blocks =
            STANDARD_GRID(step, plan->tile_entries, p->heads, plan->row_blocks, plan->key_blocks);
        plan->steps[step].shared_bytes = STANDARD_SHARED_BYTES(step, v->head_dim, v->block_m, v->block_n,
                                                               v->threads / 32, v->stages, plan->key_blocks);
    }
}

static fa_status check_steps(const fa_gpu_plan *plan) {
    const fa_machine *m = plan->machine;
    for (int32_t i = 0; i < plan->step_count; i++) {
        if (plan->steps[i].blocks > FA_GPU_MAX_BLOCKS)
            return fa_fail(FA_UNSUPPORTED, "%s needs %" PRId64 " blocks of threads: a launch has at most 2^31 - 1",
                           fa_variant_name(plan->variant), plan->steps[i].blocks);
        if (plan->steps[i].shared_bytes > m->shared_bytes)
            return fa_fail(
                FA_UNSUPPORTED, "%s needs %" PRId64 " bytes of shared memory per block, and %s (%s) has %" PRId64,
                fa_variant_name(plan->variant), plan->steps[i].shared_bytes, m->id, m->name, m->shared_bytes);
    }
    return FA_OK;
}

static fa_status plan_steps(const fa_problem *p, fa_gpu_plan *plan) {
    int64_t tiles;
    FA_TRY(plan_tiles(p, plan, &tiles));
    if (tiles == 0) return FA_OK;
    if (plan->kernel == FA_KERNEL_V1)
        plan_v1(p, plan);
    else if (plan->kernel == FA_KERNEL_V2)
        plan_v2(plan->variant, tiles, plan);
    else if (plan->kernel == FA_KERNEL_V3)
        fa_v3_plan(p, tiles, plan);
    else
        plan_standard(p, plan);
    return check_steps(plan);
}

/* FA_KERNEL_AUTO becomes the newest kernel that machine and tensors allow. */
static fa_status choose_kernel(const fa_problem *p, fa_gpu_plan *plan) {
    char text[FA_V3_OBSTACLE_TEXT];
    bool automatic = p->kernel == FA_KERNEL_AUTO, hopper = plan->machine->arch == 90;
    if (!automatic && p->kernel != FA_KERNEL_V3) return FA_OK;
    const char *obstacle = fa_v3_obstacle(p, text);
    if (!automatic)
        return obstacle == NULL ? FA_OK : fa_fail(FA_UNSUPPORTED, "kernel = v3: %s; v2 takes such tensors", obstacle);
    plan->kernel = hopper && obstacle == NULL ? FA_KERNEL_V3 : FA_KERNEL_V2;
    if (hopper && obstacle != NULL) (void)snprintf(plan->note, sizeof plan->note, "not v3: %s", obstacle);
    return FA_OK;
}

fa_status fa_gpu_forward_plan(const fa_problem *p, fa_gpu_plan *plan) {
    *plan = (fa_gpu_plan){.kernel = p->kernel == FA_KERNEL_AUTO ? FA_KERNEL_V2 : p->kernel};
    FA_TRY(check_kernel(plan->kernel));
    FA_TRY(fa_gpu_open(p, plan->kernel, &plan->machine));
    FA_TRY(fa_gpu_check_options(p, plan->kernel));
    FA_TRY(choose_kernel(p, plan));
    FA_TRY(fa_gpu_check_sizes(p));
    plan->rows_aligned = rows_aligned(p);
    FA_TRY(choose_variant(p, plan));
    FA_TRY(plan_steps(p, plan));
    return plan->step_count == 0 ? FA_OK : fa_gpu_check_addresses(p);
}

/* ---- the launch ---- */

fa_device_rows fa_gpu_device_rows(const fa_rows *t) {
    return (fa_device_rows){t->data, t->batch_stride, t->row_stride, t->head_stride};
}

static fa_device_scores device_scores(const fa_score_tensor *t) {
    return (fa_device_scores){t->data, t->batch_stride, t->head_stride, t->row_stride, t->key_stride};
}

static fa_device_table device_table(const fa_table *t) {
    return (fa_device_table){t->data, {t->stride[0], t->stride[1]}};
}

/* A bound beyond every position does what INT32_MAX does. */
static int32_t device_window(int64_t bound) { return bound > INT32_MAX ? INT32_MAX : (int32_t)bound; }

static int32_t device_length(int64_t length) { return length > INT32_MAX ? INT32_MAX : (int32_t)length; }

fa_forward_params fa_gpu_forward_params(const fa_problem *p, int64_t row_blocks, bool rows_aligned) {
    return (fa_forward_params){
        .q = fa_gpu_device_rows(&p->q),
        .k = fa_gpu_device_rows(&p->k),
        .v = fa_gpu_device_rows(&p->v),
        .out = fa_gpu_device_rows(&p->out),
        .lse = p->lse.data,
        .lse_batch_stride = p->lse.batch_stride,
        .lse_head_stride = p->lse.head_stride,
        .lse_row_stride = p->lse.row_stride,
        .batch = (int32_t)p->batch,
        .entries = (int32_t)fa_problem_sequences(p),
        .heads = (int32_t)p->heads,
        .group = (int32_t)p->group,
        .head_dim = (int32_t)p->head_dim,
        .head_dim_v = (int32_t)p->head_dim_v,
        .rows_q = (int32_t)p->rows_q,
        .rows_k = (int32_t)p->rows_k,
        .max_seqlen_q = device_length(p->max_seqlen_q),
        .max_seqlen_k = device_length(p->max_seqlen_k),
        .row_blocks = (int32_t)row_blocks,
        .out_float32 = p->out.type == FA_ELEMENT_FLOAT32,
        .rows_aligned = rows_aligned,
        .cu_seqlens_q = device_table(&p->cu_seqlens_q),
        .cu_seqlens_k = device_table(&p->cu_seqlens_k),
        .seqused_q = device_table(&p->seqused_q),
        .seqused_k = device_table(&p->seqused_k),
        .leftpad_k = device_table(&p->leftpad_k),
        .alibi_slopes = device_table(&p->alibi_slopes),
        .sink = device_table(&p->sink),
        .bias = device_scores(&p->bias),
        .mask = device_scores(&p->mask),
        .bias_type = (int32_t)p->bias.type,
        .causal = p->causal != FA_CAUSAL_NONE,
        .top_left = p->causal == FA_CAUSAL_TOP_LEFT,
        .window_left = device_window(p->window_left),
        .window_right = device_window(p->window_right),
        .softmax_scale = p->softmax_scale,
        .softcap = p->softcap,
    };
}

/* The steps of a plan, one after another in the order of the stream. */
static fa_status launch_steps(const fa_problem *p, const fa_gpu_plan *plan, void *workspace) {
    fa_memory_range memory[FA_MEMORY_RANGES_MAX];
    fa_forward_params forward = fa_gpu_forward_params(p, plan->row_blocks, plan->rows_aligned);
    forward.weights_in_keys = plan->weights_in_keys;
    fa_v1_params v1 = {forward, workspace};
    fa_standard_params standard = {forward, workspace, (int32_t)plan->key_blocks, 0};
    fa_v3_params v3;
    fa_launch launch = {.kernel = plan->variant,
                        .grid = {1, 1, 1},
                        /* as it was compiled: v3 without warp specialisation has a warpgroup less */
                        .threads = plan->variant->emulated->max_threads,
                        .params = &forward,
                        .params_bytes = sizeof forward,
                        .stream = p->stream,
                        .memory = memory};
    if (plan->kernel == FA_KERNEL_V1) {
        launch.params = &v1;
        launch.params_bytes = sizeof v1;
    } else if (plan->kernel == FA_KERNEL_STANDARD) {
        launch.params = &standard;
        launch.params_bytes = sizeof standard;
    } else if (plan->kernel == FA_KERNEL_V3) {
        launch.params = &v3;
        launch.params_bytes = sizeof v3;
        FA_TRY(fa_v3_params_init(&v3, p, plan, &forward, workspace));
        if (workspace != NULL) FA_TRY(plan->machine->fill(plan->machine, workspace, 0, sizeof(uint32_t), p->stream));
    }
    if (plan->machine->emulated) {
        launch.memory_count = fa_memory_ranges(p, memory);
        launch.host_threads = p->num_threads != 0 ? p->num_threads : fa_default_num_threads();
    }
    for (int32_t step = 0; step < plan->step_count; step++) {
        if (plan->steps[step].blocks == 0) continue; /* the standard kernel without keys */
        standard.step = step;
        launch.grid[0] = (uint32_t)plan->steps[step].blocks;
        /* v2 takes its tile from a grid of three dimensions without a division, if y and z can hold heads and sequences. */
        if (plan->kernel == FA_KERNEL_V2 && forward.heads <= FA_GPU_MAX_GRID_YZ &&
            plan->tile_entries <= FA_GPU_MAX_GRID_YZ) {
            launch.grid[0] = (uint32_t)forward.row_blocks;
            launch.grid[1] = (uint32_t)forward.heads;
            launch.grid[2] = (uint32_t)plan->tile_entries;
        }
        launch.shared_bytes = (uint32_t)plan->steps[step].shared_bytes;
        FA_TRY(plan->machine->launch(plan->machine, &launch));
    }
    return FA_OK;
}

fa_status fa_gpu_forward(const fa_problem *p, const fa_gpu_plan *plan) {
    const fa_machine *m = plan->machine;
    void *workspace = NULL;
    if (plan->step_count == 0) return FA_OK;
    if (plan->workspace_bytes == 0) return launch_steps(p, plan, NULL);
    FA_TRY(m->allocate(m, (size_t)plan->workspace_bytes, p->stream, &workspace));
    fa_status status = launch_steps(p, plan, workspace);
    if (status != FA_OK) { /* whose sentence must not be lost to a second failure */
        (void)m->release(m, workspace, p->stream);
        return status;
    }
    return m->release(m, workspace, p->stream);
}

/* ---- support ---- */

static fa_status supported_on(fa_device device, fa_kernel kernel) {
    const fa_machine *machine;
    FA_TRY(fa_machine_open(device, &machine));
    return fa_machine_runs(machine, fa_variant_find(source_of(kernel), FA_ELEMENT_BFLOAT16, 1, 1, false));
}

fa_status fa_gpu_kernel_supported(fa_kernel kernel) {
    FA_TRY(check_kernel(kernel));
    if (fa_machine_emulation_asked()) return supported_on((fa_device){FA_DEVICE_CPU, 0}, kernel);
    /* Without a driver or GPU, asking for the first one gives the reason. */
    fa_status status = supported_on((fa_device){FA_DEVICE_CUDA, 0}, kernel);
    int32_t devices = fa_machine_cuda_devices();
    for (int32_t i = 1; i < devices && status != FA_OK; i++)
        status = supported_on((fa_device){FA_DEVICE_CUDA, i}, kernel);
    return status;
}
