/* SPDX-License-Identifier: Apache-2.0 */
/* mbarriers: phases, arrival counts and transaction bytes. The state lives beside the shared memory, whose bytes it
 * guards against other accesses. */
#include "state.h"

fa_mbarrier *fa_mbarrier_find(fa_thread *self, const char *operation, uint32_t address) {
    fa_block *block;
    uint32_t offset = fa_shared_locate(self, operation, address, 8, 8, &block);
    uint32_t slot = block->mbarrier_at[offset / 8];
    if (slot == 0) fa_emulated_fail(operation, "there is no initialised mbarrier at 0x%x", address);
    fa_mbarrier *barrier = &block->mbarriers[slot - 1];
    if (!fa_knows(&self->order, barrier->init_agent, barrier->init_clock))
        fa_emulated_fail(operation,
                         "mbarrier 0x%x was initialised by another thread, without a barrier between the two", address);
    if (block != self->block) fa_mbarrier_check_fenced(operation, barrier);
    return barrier;
}

void fa_mbarrier_check_fenced(const char *operation, const fa_mbarrier *barrier) {
    const fa_thread *initialiser = &barrier->block->worker->threads[barrier->init_agent];
    if (initialiser->init_fenced < barrier->init_clock)
        fa_emulated_fail(operation, "mbarrier 0x%x was initialised without a fence_mbarrier_init after it",
                         barrier->address);
}

void fa_emulated_mbarrier_init(uint32_t address, uint32_t arrivals) {
    const char *operation = "mbarrier_init";
    fa_thread *self = fa_current();
    fa_block *block;
    fa_require_sm(90, operation);
    uint32_t offset = fa_shared_locate(self, operation, address, 8, 8, &block);
    if (block != self->block) fa_emulated_fail(operation, "0x%x is in another block", address);
    if (arrivals == 0 || arrivals > FA_TRANSACTION_LIMIT)
        fa_emulated_fail(operation, "%u arrivals: must be 1 to %d", arrivals, FA_TRANSACTION_LIMIT);
    if (block->mbarrier_at[offset / 8]) fa_emulated_fail(operation, "0x%x holds an mbarrier already", address);
    if (block->mbarrier_count == FA_MAX_MBARRIERS)
        fa_emulated_fail(operation, "more than %d mbarriers in one block (a limit of the emulator)", FA_MAX_MBARRIERS);
    fa_shadow_write(self, operation, block, offset, 8);
    uint32_t slot = block->mbarrier_count++;
    fa_mbarrier *barrier = &block->mbarriers[slot];
    *barrier = (fa_mbarrier){.block = block,
                             .address = FA_SHARED_START + offset,
                             .agent = block->worker->thread_count + block->rank * FA_MAX_MBARRIERS + slot,
                             .expected = arrivals,
                             .pending = arrivals,
                             .init_agent = self->order.agent,
                             .init_clock = self->order.clock};
    fa_exchange_create(&block->worker->pool, &barrier->exchange);
    block->mbarrier_at[offset / 8] = (uint8_t)(slot + 1);
}

void fa_emulated_mbarrier_invalidate(uint32_t address) {
    const char *operation = "mbarrier_invalidate";
    fa_mbarrier *barrier = fa_mbarrier_find(fa_current(), operation, address);
    if (barrier->waiters) fa_emulated_fail(operation, "%u threads wait for mbarrier 0x%x", barrier->waiters, address);
    if (barrier->load_count)
        fa_emulated_fail(operation, "%u copies to mbarrier 0x%x are in flight", barrier->load_count, address);
    barrier->block->mbarrier_at[(barrier->address - FA_SHARED_START) / 8] = 0;
}

/* The clock goes on, so that a fence before a later arrival differs from one after it. */
void fa_emulated_fence_mbarrier_init(void) {
    fa_thread *self = fa_current();
    fa_require_sm(90, "fence_mbarrier_init");
    self->init_fenced = self->order.clock++;
}

void fa_emulated_fence_proxy_async(void) {
    fa_thread *self = fa_current();
    fa_require_sm(90, "fence_proxy_async");
    self->init_fenced = self->fenced = self->order.clock++;
}

/* ---- Arrivals ---- */

static void complete_phase(fa_mbarrier *barrier) {
    fa_knowledge_pool *pool = &barrier->block->worker->pool;
    barrier->phase++;
    barrier->pending = barrier->expected;
    fa_exchange_publish_agent(&barrier->exchange, barrier->agent, (int32_t)barrier->phase);
    fa_exchange_complete(pool, &barrier->exchange);
    if (barrier->waiters == 0) return;
    for (uint32_t w = 0; w < barrier->block->warp_count; w++)
        for (uint32_t lanes = barrier->waiting[w]; lanes; lanes &= lanes - 1) {
            fa_thread *thread = &barrier->block->warps[w].threads[__builtin_ctz(lanes)];
            fa_exchange_learn(pool, &barrier->exchange, &thread->order);
            barrier->waiting[w] &= ~(1u << thread->lane);
            barrier->waiters--;
            fa_wake(thread);
        }
}

static void complete_if_due(fa_mbarrier *barrier, const char *operation) {
    if (barrier->pending > 0) return;
    if (barrier->transactions < 0)
        fa_emulated_fail(operation,
                         "all arrivals of mbarrier 0x%x have come, but %lld bytes more landed than were expected",
                         barrier->address, (long long)-barrier->transactions);
    if (barrier->transactions == 0) complete_phase(barrier);
}

static void expect(fa_mbarrier *barrier, const char *operation, int64_t bytes) {
    barrier->transactions += bytes;
    if (barrier->transactions > FA_TRANSACTION_LIMIT || barrier->transactions < -FA_TRANSACTION_LIMIT)
        fa_emulated_fail(operation, "the transaction count of mbarrier 0x%x would become %lld: its range is +-%d",
                         barrier->address, (long long)barrier->transactions, FA_TRANSACTION_LIMIT);
}

void fa_mbarrier_land(fa_mbarrier *barrier, uint32_t bytes) {
    expect(barrier, "load", -(int64_t)bytes);
    complete_if_due(barrier, "load");
}

void fa_mbarrier_arrive_for(fa_thread *thread, const char *operation, fa_mbarrier *barrier, uint32_t count) {
    fa_worker *worker = barrier->block->worker;
    if (count == 0 || count > barrier->pending)
        fa_emulated_fail(operation,
                         "over-arrival: %u arrivals at mbarrier 0x%x, which misses only %u of %u in phase %u", count,
                         barrier->address, barrier->pending, barrier->expected, barrier->phase);
    worker->counters.mbarrier_arrivals++;
    worker->idle_polls = 0;
    fa_exchange_publish(&worker->pool, &barrier->exchange, &thread->order);
    barrier->pending -= count;
    complete_if_due(barrier, operation);
}

void fa_emulated_mbarrier_arrive(uint32_t address, uint32_t count) {
    fa_thread *self = fa_current();
    fa_mbarrier_arrive_for(self, "mbarrier_arrive", fa_mbarrier_find(self, "mbarrier_arrive", address), count);
    fa_breathe(self);
}

void fa_emulated_mbarrier_arrive_expect_tx(uint32_t address, uint32_t bytes) {
    fa_thread *self = fa_current();
    fa_mbarrier *barrier = fa_mbarrier_find(self, "mbarrier_arrive_expect_tx", address);
    expect(barrier, "mbarrier_arrive_expect_tx", bytes);
    fa_mbarrier_arrive_for(self, "mbarrier_arrive_expect_tx", barrier, 1);
    fa_breathe(self);
}

void fa_emulated_mbarrier_expect_tx(uint32_t address, uint32_t bytes) {
    expect(fa_mbarrier_find(fa_current(), "mbarrier_expect_tx", address), "mbarrier_expect_tx", bytes);
}

/* ---- Waits ---- */

static fa_mbarrier *find_for_wait(fa_thread *self, const char *operation, uint32_t address, uint32_t parity) {
    fa_mbarrier *barrier = fa_mbarrier_find(self, operation, address);
    if (parity > 1) fa_emulated_fail(operation, "parity %u: must be 0 or 1", parity);
    if (barrier->block != self->block) fa_emulated_fail(operation, "mbarrier 0x%x is in another block", address);
    return barrier;
}

static bool completed(fa_thread *self, fa_mbarrier *barrier, uint32_t parity) {
    if ((barrier->phase & 1) == parity) return false;
    fa_exchange_learn(&self->block->worker->pool, &barrier->exchange, &self->order);
    return true;
}

/* Whoever waits allows the loads to land; half the time they do so at once, else later, when nobody else can run. */
static bool let_loads_land(fa_thread *self, fa_mbarrier *barrier) {
    uint32_t random = fa_random(self->block->worker);
    if (barrier->load_count == 0 || (random & 1)) return false;
    fa_load_finish(barrier, (random >> 1) % barrier->load_count);
    return true;
}

bool fa_emulated_mbarrier_test_wait(uint32_t address, uint32_t parity) {
    fa_thread *self = fa_current();
    fa_mbarrier *barrier = find_for_wait(self, "mbarrier_test_wait", address, parity);
    if (completed(self, barrier, parity)) return true;
    fa_poll(self, "mbarrier_test_wait");
    return completed(self, barrier, parity);
}

bool fa_emulated_mbarrier_try_wait(uint32_t address, uint32_t parity) {
    fa_thread *self = fa_current();
    fa_mbarrier *barrier = find_for_wait(self, "mbarrier_try_wait", address, parity);
    if (completed(self, barrier, parity)) return true;
    if (!let_loads_land(self, barrier)) fa_poll(self, "mbarrier_try_wait");
    return completed(self, barrier, parity);
}

void fa_emulated_mbarrier_wait(uint32_t address, uint32_t parity) {
    fa_thread *self = fa_current();
    fa_mbarrier *barrier = find_for_wait(self, "mbarrier_wait", address, parity);
    self->block->worker->counters.mbarrier_waits++;
    while (!completed(self, barrier, parity)) {
        if (let_loads_land(self, barrier)) continue;
        uint32_t phase = barrier->phase;
        barrier->waiting[self->warp->index] |= 1u << self->lane;
        barrier->waiters++;
        self->wait_parity = parity;
        fa_sleep(self, FA_WAIT_MBARRIER, barrier);
        if (barrier->phase - phase > 1)
            fa_emulated_fail("mbarrier_wait",
                             "mbarrier 0x%x can go through %u phases while a thread waits for one, which the parity "
                             "does not show",
                             address, barrier->phase - phase);
        return;
    }
}
