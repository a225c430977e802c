/* SPDX-License-Identifier: Apache-2.0 */
/* Barriers of warps, blocks and clusters, and the register pool of setmaxnreg. Barriers count whole warps: their lanes
 * meet first. */
#include "state.h"

static fa_knowledge_pool *pool_of(fa_thread *self) { return &self->block->worker->pool; }

static void publish_warp(fa_warp *warp, fa_exchange *exchange) {
    for (uint32_t i = 0; i < FA_LANES; i++)
        fa_exchange_publish(&warp->block->worker->pool, exchange, &warp->threads[i].order);
}

static void learn_warp(fa_warp *warp, fa_exchange *exchange) {
    for (uint32_t i = 0; i < FA_LANES; i++)
        fa_exchange_learn(&warp->block->worker->pool, exchange, &warp->threads[i].order);
}

void fa_emulated_warp_sync(void) {
    fa_thread *self = fa_current();
    if (!fa_meet_warp(self, FA_MEET_WARP_SYNC)) return;
    publish_warp(self->warp, &self->warp->exchange);
    fa_exchange_complete(pool_of(self), &self->warp->exchange);
    learn_warp(self->warp, &self->warp->exchange);
    fa_wake_warp(self->warp);
}

/* ---- Block and named barriers ---- */

static void complete(fa_block *block, fa_named_barrier *barrier) {
    fa_exchange_complete(&block->worker->pool, &barrier->exchange);
    for (uint32_t waiting = barrier->waiting; waiting; waiting &= waiting - 1) {
        fa_warp *warp = &block->warps[__builtin_ctz(waiting)];
        learn_warp(warp, &barrier->exchange);
        fa_wake_warp(warp);
    }
    barrier->threads = barrier->arrived = barrier->came = barrier->waiting = 0;
}

static void arrive(fa_thread *self, const char *operation, uint32_t id, uint32_t threads, bool wait) {
    fa_warp *warp = self->warp;
    fa_block *block = self->block;
    fa_named_barrier *barrier = &block->named[id];
    uint32_t bit = 1u << warp->index;
    block->worker->counters.barriers++;
    if (barrier->threads && barrier->threads != threads)
        fa_emulated_fail(operation, "barrier %u is used with %u threads here, but others of this phase gave %u", id,
                         threads, barrier->threads);
    /* A warp may give itself a token (arrive, later sync), but a second arrival of its own is a mistake. */
    if (!wait && (barrier->came & bit))
        fa_emulated_fail(operation,
                         "over-arrival: warp %u has come to barrier %u already and its phase is not complete (%u of %u "
                         "threads)",
                         warp->index, id, barrier->arrived, threads);
    barrier->threads = threads;
    barrier->arrived += FA_LANES;
    barrier->came |= bit;
    publish_warp(warp, &barrier->exchange);
    if (wait) barrier->waiting |= bit;
    if (barrier->arrived == threads) {
        complete(block, barrier);
        if (!wait) fa_wake_warp(warp);
        return;
    }
    if (wait) {
        fa_sleep_warp(self, FA_WAIT_BARRIER, barrier);
        return;
    }
    fa_wake_warp(warp);
    fa_breathe(self);
}

void fa_emulated_block_sync(void) {
    fa_thread *self = fa_current();
    if (self->block->live != self->place.threads)
        fa_emulated_fail("block_sync", "all %u threads of the block must take part, but %u have returned",
                         self->place.threads, self->place.threads - self->block->live);
    if (fa_meet_warp(self, FA_MEET_BLOCK_SYNC)) arrive(self, "block_sync", 0, self->place.threads, true);
}

void fa_emulated_named_barrier(uint32_t id, uint32_t threads, bool wait) {
    fa_thread *self = fa_current();
    const char *operation = wait ? "named_barrier_sync" : "named_barrier_arrive";
    if (id == 0 || id >= FA_NAMED_BARRIERS)
        fa_emulated_fail(operation, "barrier %u: must be 1 to 15 (0 belongs to block_sync)", id);
    if (threads == 0 || threads % FA_LANES || threads > self->place.threads)
        fa_emulated_fail(operation, "%u threads: must be a multiple of 32 and at most the %u of the block", threads,
                         self->place.threads);
    fa_lane *lanes = self->warp->lanes;
    lanes[self->lane].value[0] = id;
    lanes[self->lane].value[1] = threads;
    if (!fa_meet_warp(self, wait ? FA_MEET_NAMED_SYNC : FA_MEET_NAMED_ARRIVE)) return;
    for (uint32_t i = 0; i < FA_LANES; i++)
        if (lanes[i].value[0] != id || lanes[i].value[1] != threads)
            fa_emulated_fail(operation, "lane %u names barrier %u with %u threads, lane %u barrier %u with %u",
                             self->lane, id, threads, i, lanes[i].value[0], lanes[i].value[1]);
    arrive(self, operation, id, threads, wait);
}

/* ---- Cluster barrier ---- */

static void complete_cluster(fa_worker *worker) {
    worker->cluster_arrived = 0;
    worker->cluster_phase++;
    fa_exchange_complete(&worker->pool, &worker->cluster_exchange);
    for (uint32_t i = 0; i < worker->warp_count; i++) {
        fa_warp *warp = &worker->warps[i];
        if (warp->threads[0].wait == FA_WAIT_CLUSTER) {
            learn_warp(warp, &worker->cluster_exchange);
            fa_wake_warp(warp);
        }
    }
}

void fa_emulated_cluster_arrive(bool release) {
    fa_thread *self = fa_current();
    fa_worker *worker = self->block->worker;
    fa_warp *warp = self->warp;
    fa_require_sm(90, "cluster_arrive");
    if (!fa_meet_warp(self, FA_MEET_CLUSTER_ARRIVE)) return;
    worker->counters.barriers++;
    if (warp->cluster_pending)
        fa_emulated_fail("cluster_arrive", "over-arrival: the warp has arrived already and not called cluster_wait");
    warp->cluster_pending = true;
    warp->cluster_phase = worker->cluster_phase;
    if (release) publish_warp(warp, &worker->cluster_exchange);
    if (worker->live != worker->thread_count)
        fa_emulated_fail("cluster_arrive", "all threads of the cluster must take part, but %u have returned",
                         worker->thread_count - worker->live);
    if (++worker->cluster_arrived == worker->warp_count) complete_cluster(worker);
    fa_wake_warp(warp);
    fa_breathe(self);
}

void fa_emulated_cluster_wait(void) {
    fa_thread *self = fa_current();
    fa_worker *worker = self->block->worker;
    fa_warp *warp = self->warp;
    if (!fa_meet_warp(self, FA_MEET_CLUSTER_WAIT)) return;
    if (!warp->cluster_pending) fa_emulated_fail("cluster_wait", "the warp has not called cluster_arrive");
    warp->cluster_pending = false;
    if (warp->cluster_phase == worker->cluster_phase) {
        fa_sleep_warp(self, FA_WAIT_CLUSTER, NULL);
        return;
    }
    learn_warp(warp, &worker->cluster_exchange);
    fa_wake_warp(warp);
}

uint32_t fa_emulated_cluster_map(uint32_t address, uint32_t rank) {
    fa_thread *self = fa_current();
    fa_require_sm(90, "cluster_map");
    if (rank >= self->place.cluster)
        fa_emulated_fail("cluster_map", "rank %u: the cluster has %u blocks", rank, self->place.cluster);
    if (address >> FA_CLUSTER_SHIFT)
        fa_emulated_fail("cluster_map", "0x%x is not an address of the own block", address);
    return (rank + 1) << FA_CLUSTER_SHIFT | address;
}

/* ---- Registers ---- */

/* Increases that wait are served in the order of the warps. */
static void serve_registers(fa_block *block) {
    for (uint32_t i = 0; i < block->warp_count; i++) {
        fa_warp *warp = &block->warps[i];
        if (warp->threads[0].wait != FA_WAIT_REGISTERS) continue;
        int64_t more = (int64_t)(warp->wanted_registers - warp->registers) * FA_LANES;
        if (more > block->free_registers) continue;
        block->free_registers -= more;
        warp->registers = warp->wanted_registers;
        fa_wake_warp(warp);
    }
}

void fa_emulated_set_max_registers(uint32_t count, bool increase) {
    const char *operation = increase ? "set_max_registers_increase" : "set_max_registers_decrease";
    fa_thread *self = fa_current();
    fa_block *block = self->block;
    fa_warp *warp = self->warp;
    fa_require_sm(90, operation);
    if (count < 24 || count > 256 || count % 8)
        fa_emulated_fail(operation, "%u registers: must be 24 to 256, a multiple of 8", count);
    if (!fa_meet_warp(self, FA_MEET_REGISTERS)) return;
    if (increase ? count < warp->registers : count > warp->registers)
        fa_emulated_fail(operation, "%u registers: the warp has %u", count, warp->registers);
    if (increase) {
        warp->wanted_registers = count;
        int64_t more = (int64_t)(count - warp->registers) * FA_LANES;
        if (more > block->free_registers) {
            fa_sleep_warp(self, FA_WAIT_REGISTERS, NULL);
            return;
        }
        block->free_registers -= more;
        warp->registers = count;
    } else {
        block->free_registers += (int64_t)(warp->registers - count) * FA_LANES;
        warp->registers = count;
        serve_registers(block);
    }
    fa_wake_warp(warp);
}

void fa_emulated_grid_dependency(void) { fa_require_sm(90, "grid_dependency"); }

/* Grows with every call, so that differences are positive. It is not a time. */
uint64_t fa_emulated_clock(void) { return ++fa_current()->block->worker->clock; }
