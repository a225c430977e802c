/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of accesses to shared memory; see shadow.h. */
#include "shadow.h"

#include <stdio.h>

#include "state.h"

#define AGENT(access) ((uint32_t)((access) >> 32) & 0xFFFFu)
#define CLOCK(access) ((int32_t)(uint32_t)(access))
#define MASK(access) ((uint32_t)((access) >> FA_ACCESS_MASK_SHIFT) & 0xFu)
#define VALID(access) ((uint32_t)((access) >> FA_ACCESS_VALID_SHIFT) & 0xFu)
#define ALL_VALID (UINT64_C(0xF) << FA_ACCESS_VALID_SHIFT)
#define ALL_BYTES (UINT64_C(0xF) << FA_ACCESS_MASK_SHIFT)

static inline uint64_t access_of(uint32_t agent, int32_t clock) { return (uint64_t)agent << 32 | (uint32_t)clock; }

static inline bool knows(const fa_thread *self, uint64_t access) {
    return !(access & FA_ACCESS_PENDING) && fa_knows(&self->order, AGENT(access), CLOCK(access));
}

/* Bytes of word `word` that the access [offset, offset + bytes) touches. */
static inline uint32_t mask_of(uint32_t word, uint32_t offset, uint32_t bytes) {
    uint32_t mask = 0xF;
    if (word * 4 < offset) mask &= 0xFu << (offset - word * 4);
    if (word * 4 + 4 > offset + bytes) mask &= 0xFu >> (word * 4 + 4 - offset - bytes);
    return mask;
}

/* ---- Who it was ---- */

typedef struct {
    char text[160];
} description;

static const fa_mbarrier *mbarrier_of(const fa_worker *worker, uint32_t agent) {
    uint32_t i = agent - worker->thread_count;
    return &worker->blocks[i / FA_MAX_MBARRIERS].mbarriers[i % FA_MAX_MBARRIERS];
}

static bool is_mbarrier(const fa_worker *worker, uint32_t agent) {
    return agent >= worker->thread_count && agent < worker->thread_count + worker->launch->cluster * FA_MAX_MBARRIERS;
}

static description describe(const fa_worker *worker, uint64_t access) {
    description d;
    uint32_t agent = AGENT(access);
    if (agent < worker->thread_count) {
        const fa_thread *thread = &worker->threads[agent];
        if (worker->launch->cluster > 1)
            snprintf(d.text, sizeof d.text, "cluster block %u warp %u lane %u", thread->block->rank,
                     thread->warp->index, thread->lane);
        else
            snprintf(d.text, sizeof d.text, "warp %u lane %u", thread->warp->index, thread->lane);
    } else if (is_mbarrier(worker, agent)) {
        snprintf(d.text, sizeof d.text, "the load that completes phase %d of mbarrier 0x%x", CLOCK(access) - 1,
                 mbarrier_of(worker, agent)->address);
    } else {
        snprintf(d.text, sizeof d.text, "a wgmma of warpgroup %u",
                 (agent - worker->thread_count - worker->launch->cluster * FA_MAX_MBARRIERS) % 8);
    }
    return d;
}

static uint32_t address_of(uint32_t word) { return FA_SHARED_START + word * 4; }

_Noreturn static void fail_unwritten(const char *operation, uint32_t word) {
    fa_emulated_fail(operation, "reads shared memory 0x%x that nobody has written", address_of(word));
}

/* A read, by whomever, of a write that the reader does not know of. */
_Noreturn static void fail_read(const fa_worker *worker, const char *operation, uint32_t word, uint64_t write) {
    uint32_t agent = AGENT(write);
    if (is_mbarrier(worker, agent)) {
        const fa_mbarrier *barrier = mbarrier_of(worker, agent);
        if (barrier->phase < (uint32_t)CLOCK(write))
            fa_emulated_fail(operation, "reads shared memory 0x%x while %s is in flight: the phase has not completed",
                             address_of(word), describe(worker, write).text);
        fa_emulated_fail(operation, "reads shared memory 0x%x, written by %s, without having waited for that phase",
                         address_of(word), describe(worker, write).text);
    }
    if (write & FA_ACCESS_PENDING)
        fa_emulated_fail(operation,
                         "reads shared memory 0x%x while a cp_async of %s is in flight: no cp_async_wait_group yet",
                         address_of(word), describe(worker, write).text);
    fa_emulated_fail(operation, "reads shared memory 0x%x, written by %s, without a barrier between the two (race)",
                     address_of(word), describe(worker, write).text);
}

_Noreturn static void fail_write(const fa_worker *worker, const char *operation, uint32_t word, uint64_t write) {
    if (is_mbarrier(worker, AGENT(write)))
        fa_emulated_fail(operation,
                         "overwrites shared memory 0x%x, written by %s, without having waited for that phase",
                         address_of(word), describe(worker, write).text);
    if (write & FA_ACCESS_PENDING)
        fa_emulated_fail(operation, "overwrites shared memory 0x%x while a cp_async of %s is in flight",
                         address_of(word), describe(worker, write).text);
    fa_emulated_fail(operation,
                     "overwrites shared memory 0x%x, written by %s, without a barrier between the two (race)",
                     address_of(word), describe(worker, write).text);
}

_Noreturn static void fail_overwrite(const fa_worker *worker, const char *operation, uint32_t word, uint64_t read) {
    if (read & FA_ACCESS_PENDING)
        fa_emulated_fail(
            operation, "overwrites shared memory 0x%x while a bulk store of %s still reads it: no bulk_wait_group yet",
            address_of(word), describe(worker, read).text);
    if (read & FA_ACCESS_ASYNC)
        fa_emulated_fail(operation,
                         "overwrites shared memory 0x%x, read by %s, without knowing that the wgmma is complete "
                         "(wgmma_wait_group, then a barrier)",
                         address_of(word), describe(worker, read).text);
    fa_emulated_fail(operation, "overwrites shared memory 0x%x, read by %s, without a barrier between the two (race)",
                     address_of(word), describe(worker, read).text);
}

_Noreturn static void fail_fence(const fa_worker *worker, const char *operation, uint32_t word, uint64_t write) {
    fa_emulated_fail(
        operation,
        "the async proxy accesses shared memory 0x%x, written by ordinary stores of %s, which has not executed "
        "fence_proxy_async_shared before the barrier",
        address_of(word), describe(worker, write).text);
}

/* ---- Checks of one word ---- */

static inline void check_write_known(const fa_thread *self, const char *operation, uint32_t word, uint64_t write,
                                     uint32_t mask, bool reading) {
    if ((MASK(write) & mask) == 0 || knows(self, write)) return;
    if (reading) fail_read(self->block->worker, operation, word, write);
    fail_write(self->block->worker, operation, word, write);
}

static inline void check_reads_known(const fa_thread *self, const char *operation, uint32_t word,
                                     const fa_shadow_cell *cell, uint32_t mask) {
    for (int i = 0; i < 2; i++)
        if ((MASK(cell->read[i]) & mask) != 0 && !knows(self, cell->read[i]))
            fail_overwrite(self->block->worker, operation, word, cell->read[i]);
}

/* The async proxy sees a generic write if the writer fenced it, and the observer knows of a time after the fence. */
static inline void check_fenced(const fa_thread *self, const fa_observer *observer, const char *operation,
                                uint32_t word, uint64_t write) {
    if (MASK(write) == 0 || (write & FA_ACCESS_ASYNC)) return;
    const fa_worker *worker = self->block->worker;
    const fa_thread *writer = &worker->threads[AGENT(write)];
    if (writer->fenced < CLOCK(write) || !fa_knows(observer, AGENT(write), CLOCK(write) + 1))
        fail_fence(worker, operation, word, write);
}

/* Remembers a read in place of one that the reader knows of (whoever knows of this one knows of that one too), of an
 * equal one, or of a random one. Stores in flight are not displaced. */
static inline void remember_read(fa_thread *self, fa_shadow_cell *cell, uint64_t read) {
    if (cell->read[0] == read || cell->read[1] == read) return;
    uint32_t mask = MASK(read);
    for (int i = 0; i < 2; i++)
        if ((MASK(cell->read[i]) & ~mask) == 0 && (MASK(cell->read[i]) == 0 || knows(self, cell->read[i]))) {
            cell->read[i] = read;
            return;
        }
    int victim = (int)(fa_random(self->block->worker) & 1);
    if (cell->read[victim] & FA_ACCESS_PENDING) victim ^= 1;
    if (cell->read[victim] & FA_ACCESS_PENDING) return;
    cell->read[victim] = read;
}

static inline void forget_reads(fa_shadow_cell *cell, uint32_t mask) {
    for (int i = 0; i < 2; i++)
        if ((MASK(cell->read[i]) & ~mask) == 0) cell->read[i] = 0;
}

/* ---- Ordinary accesses ---- */

void fa_shadow_read(fa_thread *self, const char *operation, fa_block *block, uint32_t offset, uint32_t bytes) {
    uint64_t read = access_of(self->order.agent, self->order.clock), known = 0;
    for (uint32_t word = offset / 4; word * 4 < offset + bytes; word++) {
        fa_shadow_cell *cell = &block->cells[word];
        uint32_t mask = mask_of(word, offset, bytes);
        if ((VALID(cell->write) & mask) != mask) fail_unwritten(operation, word);
        if (cell->write != known) check_write_known(self, operation, word, cell->write, mask, true);
        known = cell->write; /* neighbouring words were mostly written together */
        remember_read(self, cell, read | (uint64_t)mask << FA_ACCESS_MASK_SHIFT);
    }
}

static void write(fa_thread *self, const char *operation, fa_block *block, uint32_t offset, uint32_t bytes,
                  uint64_t flags) {
    uint64_t access = access_of(self->order.agent, self->order.clock) | flags;
    for (uint32_t word = offset / 4; word * 4 < offset + bytes; word++) {
        fa_shadow_cell *cell = &block->cells[word];
        uint32_t mask = mask_of(word, offset, bytes);
        if (!(flags & cell->write & FA_ACCESS_ATOMIC))
            check_write_known(self, operation, word, cell->write, mask, false);
        check_reads_known(self, operation, word, cell, mask);
        forget_reads(cell, mask);
        uint32_t valid = VALID(cell->write) | mask;
        /* A store by the same thread to another part of the word extends the earlier one. */
        if (((cell->write ^ access) & ~(ALL_VALID | ALL_BYTES)) == 0) mask |= MASK(cell->write);
        cell->write = access | (uint64_t)mask << FA_ACCESS_MASK_SHIFT | (uint64_t)valid << FA_ACCESS_VALID_SHIFT;
    }
}

void fa_shadow_write(fa_thread *self, const char *operation, fa_block *block, uint32_t offset, uint32_t bytes) {
    write(self, operation, block, offset, bytes, 0);
}

void fa_shadow_atomic(fa_thread *self, const char *operation, fa_block *block, uint32_t offset, uint32_t bytes) {
    uint32_t word = offset / 4;
    if (VALID(block->cells[word].write) != 0xF) fail_unwritten(operation, word);
    write(self, operation, block, offset, bytes, FA_ACCESS_ATOMIC);
}

/* ---- cp.async ---- */

void fa_shadow_cp_async_begin(fa_thread *self, const char *operation, fa_block *block, uint32_t offset) {
    write(self, operation, block, offset, 16, FA_ACCESS_PENDING);
}

void fa_shadow_cp_async_end(fa_thread *self, fa_block *block, uint32_t offset) {
    for (uint32_t word = offset / 4; word < offset / 4 + 4; word++) {
        fa_shadow_cell *cell = &block->cells[word];
        if (AGENT(cell->write) == self->order.agent && (cell->write & FA_ACCESS_PENDING))
            cell->write = access_of(self->order.agent, self->order.clock) | ALL_BYTES | ALL_VALID;
    }
}

/* ---- TMA ---- */

void fa_shadow_load(fa_thread *self, const char *operation, fa_block *block, uint32_t offset, uint32_t bytes,
                    uint32_t agent, uint32_t clock, int swizzle) {
    uint64_t access = access_of(agent, (int32_t)clock) | FA_ACCESS_ASYNC | ALL_BYTES | ALL_VALID;
    if (swizzle >= 0) access |= FA_ACCESS_TENSOR | (uint64_t)swizzle << FA_ACCESS_SWIZZLE_SHIFT;
    for (uint32_t word = offset / 4; word < (offset + bytes) / 4; word++) {
        fa_shadow_cell *cell = &block->cells[word];
        check_write_known(self, operation, word, cell->write, 0xF, false);
        check_fenced(self, &self->order, operation, word, cell->write);
        check_reads_known(self, operation, word, cell, 0xF);
        cell->write = access;
        cell->read[0] = cell->read[1] = 0;
    }
}

void fa_shadow_store_begin(fa_thread *self, const char *operation, fa_block *block, uint32_t offset, uint32_t bytes) {
    uint64_t read = access_of(self->order.agent, self->order.clock) | FA_ACCESS_PENDING | ALL_BYTES;
    for (uint32_t word = offset / 4; word < (offset + bytes) / 4; word++) {
        fa_shadow_cell *cell = &block->cells[word];
        if (VALID(cell->write) != 0xF) fail_unwritten(operation, word);
        check_write_known(self, operation, word, cell->write, 0xF, true);
        check_fenced(self, &self->order, operation, word, cell->write);
        remember_read(self, cell, read);
    }
}

void fa_shadow_store_end(fa_thread *self, fa_block *block, uint32_t offset, uint32_t bytes) {
    uint64_t read = access_of(self->order.agent, self->order.clock) | ALL_BYTES;
    for (uint32_t word = offset / 4; word < (offset + bytes) / 4; word++)
        for (int i = 0; i < 2; i++) {
            uint64_t *old = &block->cells[word].read[i];
            if (AGENT(*old) == self->order.agent && (*old & FA_ACCESS_PENDING)) *old = read;
        }
}

/* ---- wgmma ---- */

void fa_shadow_wgmma_check(fa_thread *self, const char *operation, fa_block *block, uint32_t offset) {
    /* Without the exception for the own clock: what this thread wrote must be known to the other threads as well, hence
     * have been through a barrier. */
    const fa_observer group = {UINT32_MAX, 0, self->order.knows};
    uint64_t known = 0;
    for (uint32_t word = offset / 4; word < offset / 4 + 4; word++) {
        uint64_t write = block->cells[word].write;
        if (write == known) continue;
        known = write;
        if (VALID(write) != 0xF) fail_unwritten(operation, word);
        if ((write & FA_ACCESS_PENDING) || !fa_knows(&group, AGENT(write), CLOCK(write)))
            fail_read(self->block->worker, operation, word, write);
        check_fenced(self, &group, operation, word, write);
    }
}

void fa_shadow_wgmma_read(fa_thread *self, const char *operation, fa_block *block, uint32_t offset, uint32_t agent,
                          uint32_t clock, uint32_t swizzle) {
    static const char *const names[] = {"none", "32B", "64B", "128B"};
    fa_shadow_wgmma_check(self, operation, block, offset);
    uint64_t read = access_of(agent, (int32_t)clock) | FA_ACCESS_ASYNC | ALL_BYTES;
    for (uint32_t word = offset / 4; word < offset / 4 + 4; word++) {
        fa_shadow_cell *cell = &block->cells[word];
        uint32_t written = (uint32_t)(cell->write >> FA_ACCESS_SWIZZLE_SHIFT) & 3u;
        if ((cell->write & FA_ACCESS_TENSOR) && written != swizzle)
            fa_emulated_fail(
                operation, "the descriptor names swizzle %s, but the TMA load wrote shared memory 0x%x with swizzle %s",
                names[swizzle], address_of(word), names[written]);
        remember_read(self, cell, read);
    }
}
