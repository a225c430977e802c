/* SPDX-License-Identifier: Apache-2.0 */
/* cp.async: 16 byte copies by single threads, in groups. A copy is done when its thread waits for its group; until then
 * its destination is poisoned. */
#include <stdlib.h>
#include <string.h>

#include "state.h"

static fa_cp_async *append(fa_thread *self) {
    fa_worker *worker = self->block->worker;
    fa_cp_async *copy = worker->unused_cp_async;
    if (copy)
        worker->unused_cp_async = copy->next;
    else
        copy = malloc(sizeof *copy);
    if (!copy) fa_emulated_fail_memory();
    copy->next = NULL;
    copy->group = self->cp_async_group;
    *self->cp_async_end = copy;
    self->cp_async_end = &copy->next;
    return copy;
}

static void finish_first(fa_thread *thread) {
    fa_worker *worker = thread->block->worker;
    fa_cp_async *copy = thread->cp_async_first;
    thread->cp_async_first = copy->next;
    if (!copy->next) thread->cp_async_end = &thread->cp_async_first;
    if (copy->arrival) {
        copy->arrival->pending_cp_arrivals--;
        fa_mbarrier_arrive_for(thread, "cp_async_mbarrier_arrive_noinc", copy->arrival, 1);
    } else {
        uint8_t *destination = thread->block->shared + copy->destination;
        if (copy->source_bytes) memcpy(destination, copy->source, copy->source_bytes);
        memset(destination + copy->source_bytes, 0, 16 - copy->source_bytes);
        fa_shadow_cp_async_end(thread, thread->block, copy->destination);
    }
    copy->next = worker->unused_cp_async;
    worker->unused_cp_async = copy;
}

void fa_emulated_cp_async_16(uint32_t destination, const void *source, uint32_t source_bytes) {
    fa_thread *self = fa_current();
    fa_block *block;
    uint32_t offset = fa_shared_offset(self, "cp_async_16", destination, 16, 16, &block);
    if (block != self->block) fa_emulated_fail("cp_async_16", "0x%x is in another block", destination);
    if (source_bytes > 16) fa_emulated_fail("cp_async_16", "source_bytes %u: must be at most 16", source_bytes);
    if (source_bytes) {
        if ((uintptr_t)source % 16)
            fa_emulated_fail("cp_async_16", "global address %p is not a multiple of 16", source);
        fa_check_global(self, "cp_async_16", source, source_bytes, 1, false);
    }
    fa_shadow_cp_async_begin(self, "cp_async_16", block, offset);
    memset(block->shared + offset, 0xFF, 16);
    fa_emulator_counters *counters = &block->worker->counters;
    counters->global_bytes_read += source_bytes;
    counters->async_copy_bytes += source_bytes;
    counters->shared_bytes_written += 16;
    fa_cp_async *copy = append(self);
    copy->source = source;
    copy->destination = offset;
    copy->source_bytes = source_bytes;
    copy->arrival = NULL;
}

void fa_emulated_cp_async_commit_group(void) { fa_current()->cp_async_group++; }

void fa_emulated_cp_async_wait_group(int pending) {
    fa_thread *self = fa_current();
    if (pending < 0 || pending > 7)
        fa_emulated_fail("cp_async_wait_group", "%d pending groups: must be 0 to 7", pending);
    while (self->cp_async_first && self->cp_async_first->group + (uint32_t)pending < self->cp_async_group)
        finish_first(self);
}

void fa_emulated_cp_async_mbarrier_arrive_noinc(uint32_t address) {
    fa_thread *self = fa_current();
    fa_mbarrier *barrier = fa_mbarrier_find(self, "cp_async_mbarrier_arrive_noinc", address);
    append(self)->arrival = barrier;
    barrier->pending_cp_arrivals++;
    fa_breathe(self);
}

bool fa_cp_async_arrives(const fa_thread *thread, const fa_mbarrier *barrier) {
    for (const fa_cp_async *copy = thread->cp_async_first; copy; copy = copy->next)
        if (copy->arrival == barrier) return true;
    return false;
}

void fa_cp_async_finish_arrival(fa_thread *thread, const fa_mbarrier *barrier) {
    while (thread->cp_async_first) {
        bool last = thread->cp_async_first->arrival == barrier;
        finish_first(thread);
        if (last) return;
    }
}

void fa_cp_async_finish(fa_thread *thread) {
    while (thread->cp_async_first) finish_first(thread);
}
