/* SPDX-License-Identifier: Apache-2.0 */
/* Launches: check the configuration, build the state of a cluster, run one cluster after another, sum the counters. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "state.h"

enum { CACHE_LINE = 64, MAX_HOST_THREADS = 64, PARAMS_ALIGNMENT = 128 };

/* ---- Memory of a worker ---- */

static void *zeroed(size_t count, size_t size) {
    size_t bytes = (count * size + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    void *memory = aligned_alloc(CACHE_LINE, bytes ? bytes : CACHE_LINE);
    if (memory) memset(memory, 0, bytes);
    return memory;
}

static void destroy_worker(fa_worker *worker) {
    if (!worker) return;
    for (uint32_t b = 0; worker->blocks && b < worker->launch->cluster; b++) {
        fa_block *block = &worker->blocks[b];
        for (uint32_t g = 0; block->warpgroups && g < block->warpgroup_count; g++) {
            for (uint32_t t = 0; t < FA_WGMMA_MAX_TILES; t++) free(block->warpgroups[g].tiles[t].matrix);
            free(block->warpgroups[g].operations);
        }
        free(block->warpgroups);
        free(block->shared);
        free(block->cells);
        free(block->mbarrier_at);
        free(block->mbarriers);
    }
    while (worker->unused_cp_async) {
        fa_cp_async *next = worker->unused_cp_async->next;
        free(worker->unused_cp_async);
        worker->unused_cp_async = next;
    }
    free(worker->blocks);
    free(worker->threads);
    free(worker->warps);
    fa_fiber_stacks_destroy(&worker->stacks);
    if (worker->pool.emergency) fa_knowledge_pool_destroy(&worker->pool);
    free(worker);
}

static bool create_block(fa_worker *worker, uint32_t rank) {
    const fa_launch_state *launch = worker->launch;
    uint32_t threads = launch->launch.threads, warps = threads / FA_LANES;
    size_t shared = (launch->launch.shared_bytes + 15u) & ~(size_t)15;
    fa_block *block = &worker->blocks[rank];
    block->worker = worker;
    block->rank = rank;
    block->threads = worker->threads + rank * threads;
    block->warps = worker->warps + rank * warps;
    block->warp_count = warps;
    block->warpgroup_count = (warps + FA_WARPGROUP_WARPS - 1) / FA_WARPGROUP_WARPS;
    block->warpgroups = zeroed(block->warpgroup_count, sizeof *block->warpgroups);
    block->shared = zeroed(shared, 1);
    block->cells = zeroed(shared / 4, sizeof *block->cells);
    block->mbarrier_at = zeroed(shared / 8, 1);
    block->mbarriers = zeroed(FA_MAX_MBARRIERS, sizeof *block->mbarriers);
    return block->warpgroups && block->shared && block->cells && block->mbarrier_at && block->mbarriers;
}

/* Agents: the threads of the cluster, then the mbarriers of its blocks, then the warpgroups. */
static uint32_t agent_count(const fa_launch_state *launch, uint32_t threads) {
    return threads + launch->cluster * (FA_MAX_MBARRIERS + FA_MAX_WARPGROUPS);
}

static fa_worker *create_worker(fa_launch_state *launch) {
    fa_worker *worker = zeroed(1, sizeof *worker);
    if (!worker) return NULL;
    worker->launch = launch;
    worker->thread_count = launch->cluster * launch->launch.threads;
    worker->warp_count = worker->thread_count / FA_LANES;
    worker->blocks = zeroed(launch->cluster, sizeof *worker->blocks);
    worker->threads = zeroed(worker->thread_count, sizeof *worker->threads);
    worker->warps = zeroed(worker->warp_count, sizeof *worker->warps);
    bool ok = worker->blocks && worker->threads && worker->warps &&
              fa_knowledge_pool_create(&worker->pool, agent_count(launch, worker->thread_count)) &&
              fa_fiber_stacks_create(&worker->stacks, worker->thread_count);
    for (uint32_t rank = 0; ok && rank < launch->cluster; rank++) ok = create_block(worker, rank);
    if (ok) return worker;
    destroy_worker(worker);
    return NULL;
}

/* ---- One cluster ---- */

static void begin_warp(fa_block *block, uint32_t index) {
    fa_worker *worker = block->worker;
    fa_warp *warp = &block->warps[index];
    memset(warp, 0, sizeof *warp);
    warp->block = block;
    warp->index = index;
    warp->threads = block->threads + index * FA_LANES;
    warp->registers = worker->launch->entry_registers;
    fa_exchange_create(&worker->pool, &warp->exchange);
}

static void begin_thread(fa_block *block, uint32_t index, fa_knowledge *nothing) {
    const fa_launch_state *launch = block->worker->launch;
    fa_thread *thread = &block->threads[index];
    memset(thread, 0, sizeof *thread);
    thread->place.thread = index;
    thread->place.threads = launch->launch.threads;
    thread->place.rank = block->rank;
    thread->place.cluster = launch->cluster;
    memcpy(thread->place.block, block->index, sizeof block->index);
    memcpy(thread->place.grid, launch->launch.grid, sizeof thread->place.grid);
    thread->block = block;
    thread->warp = &block->warps[index / FA_LANES];
    thread->lane = index % FA_LANES;
    thread->order = (fa_observer){
        .agent = block->rank * launch->launch.threads + index, .clock = 1, .knows = fa_knowledge_keep(nothing)};
    thread->cp_async_end = &thread->cp_async_first;
    thread->bulk_end = &thread->bulk_first;
}

static void begin_block(fa_worker *worker, uint32_t rank, uint64_t cluster_index, fa_knowledge *nothing) {
    const fa_launch_state *launch = worker->launch;
    const uint32_t *grid = launch->launch.grid;
    fa_block *block = &worker->blocks[rank];
    uint64_t linear =
        cluster_index * launch->cluster + rank; /* clusters lie along x, and grid[0] is a multiple of them */
    block->index[0] = (uint32_t)(linear % grid[0]);
    block->index[1] = (uint32_t)(linear / grid[0] % grid[1]);
    block->index[2] = (uint32_t)(linear / grid[0] / grid[1]);
    block->live = launch->launch.threads;
    block->mbarrier_count = 0;
    block->free_registers = 0;
    size_t shared = (launch->launch.shared_bytes + 15u) & ~(size_t)15;
    memset(block->shared, 0xFF, shared);
    memset(block->cells, 0, shared / 4 * sizeof *block->cells);
    memset(block->mbarrier_at, 0, shared / 8);
    for (uint32_t i = 0; i < FA_NAMED_BARRIERS; i++) {
        memset(&block->named[i], 0, sizeof block->named[i]);
        fa_exchange_create(&worker->pool, &block->named[i].exchange);
    }
    for (uint32_t i = 0; i < block->warpgroup_count; i++) {
        fa_warpgroup *group = &block->warpgroups[i];
        group->block = block;
        group->index = i;
        group->agent = worker->thread_count + launch->cluster * FA_MAX_MBARRIERS + rank * FA_MAX_WARPGROUPS + i;
        group->arrived = group->open_group = group->first = group->count = 0;
        group->fenced = false;
        for (uint32_t t = 0; t < FA_WGMMA_MAX_TILES; t++) group->tiles[t].used = false;
        fa_exchange_create(&worker->pool, &group->exchange);
    }
    for (uint32_t i = 0; i < block->warp_count; i++) begin_warp(block, i);
    for (uint32_t i = 0; i < launch->launch.threads; i++) begin_thread(block, i, nothing);
}

static void end_block(fa_worker *worker, fa_block *block) {
    fa_knowledge_pool *pool = &worker->pool;
    for (uint32_t i = 0; i < worker->launch->launch.threads; i++) {
        fa_thread *thread = &block->threads[i];
        fa_stores_finish(thread);
        while (thread->cp_async_first) { /* after a failure */
            fa_cp_async *next = thread->cp_async_first->next;
            free(thread->cp_async_first);
            thread->cp_async_first = next;
        }
        fa_knowledge_drop(pool, thread->order.knows);
    }
    for (uint32_t i = 0; i < block->warp_count; i++) fa_exchange_destroy(pool, &block->warps[i].exchange);
    for (uint32_t i = 0; i < block->warpgroup_count; i++) fa_exchange_destroy(pool, &block->warpgroups[i].exchange);
    for (uint32_t i = 0; i < FA_NAMED_BARRIERS; i++) fa_exchange_destroy(pool, &block->named[i].exchange);
    for (uint32_t i = 0; i < block->mbarrier_count; i++) {
        fa_mbarrier *barrier = &block->mbarriers[i];
        while (barrier->loads) { /* after a failure */
            fa_copy *next = barrier->loads->next;
            free(barrier->loads);
            barrier->loads = next;
        }
        fa_exchange_destroy(pool, &barrier->exchange);
    }
}

/* splitmix64: neighbouring inputs give unrelated outputs. */
static uint64_t mix(uint64_t x) {
    x += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

static void run_cluster(fa_worker *worker, uint64_t index) {
    fa_launch_state *launch = worker->launch;
    worker->random = mix(mix(launch->launch.seed) + index) | 1;
    worker->elected_lane = (uint32_t)(mix(launch->launch.seed) >> 32) % FA_LANES;
    worker->idle_polls = 0;
    worker->cluster_arrived = worker->cluster_phase = 0;
    memset(worker->ready_warps, 0, sizeof worker->ready_warps);
    fa_exchange_create(&worker->pool, &worker->cluster_exchange);
    fa_knowledge *nothing = fa_knowledge_create(&worker->pool);
    for (uint32_t rank = 0; rank < launch->cluster; rank++) begin_block(worker, rank, index, nothing);
    fa_knowledge_drop(&worker->pool, nothing);

    fa_run_cluster(worker);

    for (uint32_t rank = 0; rank < launch->cluster; rank++) end_block(worker, &worker->blocks[rank]);
    fa_exchange_destroy(&worker->pool, &worker->cluster_exchange);
    if (worker->status == FA_EMULATOR_OK && worker->pool.out_of_memory) {
        worker->status = FA_EMULATOR_OUT_OF_MEMORY;
        snprintf(worker->text, sizeof worker->text, "kernel %s: the host ran out of memory", launch->kernel->name);
    }
}

static void *work(void *argument) {
    fa_worker *worker = argument;
    fa_launch_state *launch = worker->launch;
    while (worker->status == FA_EMULATOR_OK && !__atomic_load_n(&launch->stop, __ATOMIC_RELAXED)) {
        /* Running before it is taken: whoever polls for what an earlier block will do must know that it is on its way. */
        __atomic_fetch_add(&launch->running, 1, __ATOMIC_SEQ_CST);
        uint64_t index = __atomic_fetch_add(&launch->next_cluster, 1, __ATOMIC_SEQ_CST);
        if (index < launch->clusters) run_cluster(worker, index);
        __atomic_fetch_sub(&launch->running, 1, __ATOMIC_SEQ_CST);
        if (index >= launch->clusters) break;
    }
    if (worker->status != FA_EMULATOR_OK) __atomic_store_n(&launch->stop, 1, __ATOMIC_RELAXED);
    return NULL;
}

/* ---- The launch ---- */

#define REFUSE(...)                                                                             \
    do {                                                                                        \
        int used = snprintf(report->text, sizeof report->text, "launch of %s: ", kernel->name); \
        snprintf(report->text + used, sizeof report->text - (size_t)used, __VA_ARGS__);         \
        return FA_EMULATOR_REFUSED;                                                             \
    } while (0)

static fa_emulator_status check(const fa_emulator_properties *part, const fa_emulator_kernel *kernel,
                                const fa_emulator_launch *launch, fa_emulator_report *report) {
    static const uint32_t limits[3] = {0x7FFFFFFF, 65535, 65535};
    uint32_t cluster = launch->cluster ? launch->cluster : 1;
    for (int i = 0; i < 3; i++)
        if (launch->grid[i] == 0 || launch->grid[i] > limits[i])
            REFUSE("grid[%d] = %u: must be 1 to %u", i, launch->grid[i], limits[i]);
    if (launch->threads == 0 || launch->threads % FA_LANES || launch->threads > part->max_threads_per_block)
        REFUSE("%u threads: must be a multiple of 32 up to %u", launch->threads, part->max_threads_per_block);
    if (launch->threads > kernel->max_threads)
        REFUSE("%u threads: the kernel was compiled for at most %u", launch->threads, kernel->max_threads);
    if (launch->shared_bytes > part->shared_bytes_per_block)
        REFUSE("%u bytes of shared memory: %s has %u per block", launch->shared_bytes, part->name,
               part->shared_bytes_per_block);
    if (cluster > part->max_cluster_blocks)
        REFUSE("clusters of %u blocks: %s allows %u", cluster, part->name, part->max_cluster_blocks);
    if (launch->grid[0] % cluster)
        REFUSE("grid[0] = %u is not a multiple of the cluster's %u", launch->grid[0], cluster);
    return FA_EMULATOR_OK;
}

static void sum_counters(fa_emulator_counters *into, const fa_emulator_counters *from) {
    uint64_t *a = (uint64_t *)into;
    const uint64_t *b = (const uint64_t *)from;
    for (size_t i = 0; i < sizeof *into / sizeof *a; i++) a[i] += b[i];
}

static fa_emulator_status out_of_memory(const fa_emulator_kernel *kernel, fa_emulator_report *report) {
    snprintf(report->text, sizeof report->text, "launch of %s: the host ran out of memory", kernel->name);
    return report->status = FA_EMULATOR_OUT_OF_MEMORY;
}

/* The calling thread is the first worker. A host thread that cannot be started is done without. */
static void run_workers(fa_worker **workers, uint32_t count, fa_emulator_report *report) {
    pthread_t threads[MAX_HOST_THREADS];
    bool started[MAX_HOST_THREADS] = {false};
    for (uint32_t i = 1; i < count; i++) started[i] = pthread_create(&threads[i], NULL, work, workers[i]) == 0;
    work(workers[0]);
    for (uint32_t i = 1; i < count; i++)
        if (started[i]) pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < count; i++) {
        sum_counters(&report->counters, &workers[i]->counters);
        if (workers[i]->status != FA_EMULATOR_OK && report->status == FA_EMULATOR_OK) {
            report->status = workers[i]->status;
            memcpy(report->text, workers[i]->text, sizeof report->text);
        }
    }
}

fa_emulator_status fa_emulator_run(fa_emulator *emulator, const fa_emulator_kernel *kernel, const void *params,
                                   const fa_emulator_launch *launch, fa_emulator_report *report) {
    const fa_emulator_properties *part = fa_emulator_device_properties(emulator);
    memset(report, 0, sizeof *report);
    report->status = check(part, kernel, launch, report);
    if (report->status != FA_EMULATOR_OK) return report->status;

    fa_launch_state state = {.part = part, .kernel = kernel, .launch = *launch};
    state.cluster = launch->cluster ? launch->cluster : 1;
    state.clusters = (uint64_t)launch->grid[0] / state.cluster * launch->grid[1] * launch->grid[2];
    /* What a compiler with these launch bounds would give each thread. */
    uint32_t registers = part->registers_per_multiprocessor / launch->threads / 8 * 8;
    state.entry_registers = registers < 256 ? registers : 256;

    size_t params_bytes = (kernel->params_bytes + PARAMS_ALIGNMENT - 1u) / PARAMS_ALIGNMENT * PARAMS_ALIGNMENT;
    void *copy = aligned_alloc(PARAMS_ALIGNMENT, params_bytes);
    if (!copy) return out_of_memory(kernel, report);
    memcpy(copy, params, kernel->params_bytes);
    state.params = copy;
    fa_memory_map memory;
    if (!fa_emulator_memory_map(emulator, &memory)) {
        free(copy);
        return out_of_memory(kernel, report);
    }
    state.readable = memory.readable;
    state.writable = memory.writable;
    state.readable_count = memory.readable_count;
    state.writable_count = memory.writable_count;

    fa_worker *workers[MAX_HOST_THREADS];
    uint32_t wanted = launch->host_threads ? launch->host_threads : 1, count = 0;
    if (wanted > MAX_HOST_THREADS) wanted = MAX_HOST_THREADS;
    if (wanted > state.clusters) wanted = (uint32_t)state.clusters;
    while (count < wanted && (workers[count] = create_worker(&state))) count++;
    if (count)
        run_workers(workers, count, report);
    else
        out_of_memory(kernel, report);
    for (uint32_t i = 0; i < count; i++) destroy_worker(workers[i]);
    free(memory.readable);
    free(memory.writable);
    free(copy);
    return report->status;
}
