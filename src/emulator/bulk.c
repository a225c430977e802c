/* SPDX-License-Identifier: Apache-2.0 */
/* TMA and bulk copies. A load lands when somebody waits for its mbarrier; until then its destination is poisoned. A
 * store reads shared memory when its thread waits for that, and writes global memory when its thread waits for
 * completion, or when the cluster has ended. */
#include <stdlib.h>
#include <string.h>

#include "state.h"

static fa_copy *create(fa_copy_kind kind, fa_block *block, uint32_t offset, uint32_t bytes) {
    fa_copy *copy = aligned_alloc(_Alignof(fa_copy), sizeof *copy);
    if (!copy) fa_emulated_fail_memory();
    memset(copy, 0, sizeof *copy);
    copy->kind = kind;
    copy->block = block;
    copy->offset = offset;
    copy->bytes = bytes;
    return copy;
}

static void set_tensor(fa_copy *copy, const fa_tensor_map *map, uint32_t rank, const int32_t *coordinates) {
    copy->tensor = true;
    copy->map = *map;
    memcpy(copy->coordinates, coordinates, rank * sizeof *coordinates);
}

void fa_emulated_tensor_map_prefetch(const fa_tensor_map *map) {
    fa_require_sm(90, "tensor_map_prefetch");
    fa_tensor_map_check("tensor_map_prefetch", map, 0);
}

void fa_emulated_check_cache_policy(uint64_t policy) {
    if (policy != 0x1000000000000000u && policy != 0x12F0000000000000u && policy != 0x14F0000000000000u)
        fa_emulated_fail("tma_load", "cache policy 0x%llx is none of L2_EVICT_*", (unsigned long long)policy);
}

/* ---- Loads ---- */

/* The mbarrier at the same offset in another block of the cluster. */
static fa_mbarrier *counterpart(fa_thread *self, const char *operation, const fa_block *block, fa_mbarrier *own) {
    if (block == own->block) return own;
    uint32_t address = (block->rank + 1) << FA_CLUSTER_SHIFT | own->address;
    return fa_mbarrier_find(self, operation, address);
}

/* The checks come first: a failure must not leave a copy behind. */
static fa_copy *issue_load(fa_thread *self, const char *operation, fa_mbarrier *barrier, uint32_t offset,
                           uint32_t bytes, int swizzle) {
    fa_block *block = barrier->block;
    fa_mbarrier_check_fenced(operation, barrier);
    fa_shadow_load(self, operation, block, offset, bytes, barrier->agent, barrier->phase + 1, swizzle);
    memset(block->shared + offset, 0xFF, bytes);
    self->block->worker->counters.shared_bytes_written += bytes;
    fa_copy *copy = create(FA_COPY_LOAD, block, offset, bytes);
    copy->next = barrier->loads;
    barrier->loads = copy;
    barrier->load_count++;
    return copy;
}

static void count_read(fa_thread *self, uint64_t bytes) {
    self->block->worker->counters.global_bytes_read += bytes;
    self->block->worker->counters.async_copy_bytes += bytes;
}

void fa_emulated_tma_load(uint32_t rank, uint32_t destination, const fa_tensor_map *map, uint32_t barrier_address,
                          const int32_t *coordinates, uint32_t cta_mask) {
    const char *operation = cta_mask == FA_TMA_OWN_BLOCK ? "tma_load" : "tma_load_multicast";
    fa_thread *self = fa_current();
    fa_worker *worker = self->block->worker;
    fa_require_sm(90, operation);
    uint32_t bytes = fa_tensor_map_check(operation, map, rank);
    fa_block *own;
    uint32_t offset = fa_shared_offset(self, operation, destination, bytes, 128, &own);
    if (own != self->block) fa_emulated_fail(operation, "destination 0x%x is in another block", destination);
    fa_mbarrier *own_barrier = fa_mbarrier_find(self, operation, barrier_address);
    if (own_barrier->block != own) fa_emulated_fail(operation, "mbarrier 0x%x is in another block", barrier_address);
    count_read(self, fa_tensor_check_global(self, operation, map, coordinates, false));
    uint32_t targets = cta_mask == FA_TMA_OWN_BLOCK ? 1u << own->rank : cta_mask;
    if (targets == 0 || targets >> worker->launch->cluster)
        fa_emulated_fail(operation, "cta_mask 0x%x: must name blocks of the cluster, which has %u", targets,
                         worker->launch->cluster);
    for (uint32_t r = 0; r < worker->launch->cluster; r++) {
        if (!(targets >> r & 1)) continue;
        fa_block *block;
        fa_shared_offset(self, operation, (r + 1) << FA_CLUSTER_SHIFT | destination, bytes, 128, &block);
        fa_mbarrier *barrier = counterpart(self, operation, block, own_barrier);
        int swizzle = (int)fa_tensor_map_swizzle_of(map);
        set_tensor(issue_load(self, operation, barrier, offset, bytes, swizzle), map, rank, coordinates);
    }
    fa_breathe(self);
}

static uint32_t check_bulk(fa_thread *self, const char *operation, uint32_t shared, const void *global, uint32_t bytes,
                           bool write) {
    fa_block *block;
    fa_require_sm(90, operation);
    if (bytes == 0 || bytes % 16) fa_emulated_fail(operation, "%u bytes: must be a positive multiple of 16", bytes);
    uint32_t offset = fa_shared_offset(self, operation, shared, bytes, 16, &block);
    if (block != self->block) fa_emulated_fail(operation, "shared address 0x%x is in another block", shared);
    fa_check_global(self, operation, global, bytes, 16, write);
    return offset;
}

void fa_emulated_bulk_load(uint32_t destination, const void *source, uint32_t bytes, uint32_t barrier_address) {
    fa_thread *self = fa_current();
    uint32_t offset = check_bulk(self, "bulk_load", destination, source, bytes, false);
    fa_mbarrier *barrier = fa_mbarrier_find(self, "bulk_load", barrier_address);
    if (barrier->block != self->block)
        fa_emulated_fail("bulk_load", "mbarrier 0x%x is in another block", barrier_address);
    count_read(self, bytes);
    issue_load(self, "bulk_load", barrier, offset, bytes, -1)->global = (void *)(uintptr_t)source;
    fa_breathe(self);
}

void fa_load_finish(fa_mbarrier *barrier, uint32_t index) {
    fa_copy **link = &barrier->loads;
    while (index--) link = &(*link)->next;
    fa_copy *copy = *link;
    *link = copy->next;
    barrier->load_count--;
    if (copy->tensor)
        fa_tensor_load(&copy->map, copy->coordinates, copy->block->shared, FA_SHARED_START + copy->offset);
    else
        memcpy(copy->block->shared + copy->offset, copy->global, copy->bytes);
    uint32_t bytes = copy->bytes;
    free(copy);
    fa_mbarrier_land(barrier, bytes);
}

/* ---- Stores ---- */

static fa_copy *issue_store(fa_thread *self, const char *operation, bool add, uint32_t offset, uint32_t bytes) {
    fa_shadow_store_begin(self, operation, self->block, offset, bytes);
    self->block->worker->counters.shared_bytes_read += bytes;
    fa_copy *copy = create(add ? FA_COPY_REDUCE : FA_COPY_STORE, self->block, offset, bytes);
    copy->group = self->bulk_group;
    *self->bulk_end = copy;
    self->bulk_end = &copy->next;
    return copy;
}

static void count_written(fa_thread *self, uint64_t bytes) {
    self->block->worker->counters.global_bytes_written += bytes;
    self->block->worker->counters.async_copy_bytes += bytes;
}

void fa_emulated_tma_store(uint32_t rank, const fa_tensor_map *map, uint32_t source, const int32_t *coordinates,
                           bool add) {
    const char *operation = add ? "tma_reduce_add" : "tma_store";
    fa_thread *self = fa_current();
    fa_require_sm(90, operation);
    uint32_t bytes = fa_tensor_map_check(operation, map, rank);
    if (add && !fa_tensor_map_can_add(map)) fa_emulated_fail(operation, "the element type of the map cannot be added");
    fa_block *block;
    uint32_t offset = fa_shared_offset(self, operation, source, bytes, 128, &block);
    if (block != self->block) fa_emulated_fail(operation, "source 0x%x is in another block", source);
    count_written(self, fa_tensor_check_global(self, operation, map, coordinates, true));
    set_tensor(issue_store(self, operation, add, offset, bytes), map, rank, coordinates);
    fa_breathe(self);
}

void fa_emulated_bulk_store(void *destination, uint32_t source, uint32_t bytes, bool add_f32) {
    const char *operation = add_f32 ? "bulk_reduce_add_f32" : "bulk_store";
    fa_thread *self = fa_current();
    uint32_t offset = check_bulk(self, operation, source, destination, bytes, true);
    count_written(self, bytes);
    issue_store(self, operation, add_f32, offset, bytes)->global = destination;
    fa_breathe(self);
}

static bool store_read(fa_thread *thread, fa_copy *copy) {
    if (copy->image) return true;
    copy->image = malloc(copy->bytes);
    if (!copy->image) return false;
    const uint8_t *shared = copy->block->shared;
    if (copy->tensor)
        fa_tensor_unswizzle(&copy->map, shared, FA_SHARED_START + copy->offset, copy->image);
    else
        memcpy(copy->image, shared + copy->offset, copy->bytes);
    fa_shadow_store_end(thread, copy->block, copy->offset, copy->bytes);
    return true;
}

static void store_write(const fa_copy *copy) {
    if (copy->tensor) {
        fa_tensor_store(&copy->map, copy->coordinates, copy->image, copy->kind == FA_COPY_REDUCE);
    } else if (copy->kind == FA_COPY_REDUCE) {
        for (uint32_t i = 0; i < copy->bytes; i += 4) {
            float value;
            memcpy(&value, copy->image + i, sizeof value);
            fa_add_f32((float *)copy->global + i / 4, value);
        }
    } else {
        memcpy(copy->global, copy->image, copy->bytes);
    }
}

void fa_emulated_bulk_commit_group(void) {
    fa_require_sm(90, "bulk_commit_group");
    fa_current()->bulk_group++;
}

void fa_emulated_bulk_wait_group(int pending, bool read) {
    const char *operation = read ? "bulk_wait_group_read" : "bulk_wait_group";
    fa_thread *self = fa_current();
    fa_require_sm(90, operation);
    if (pending < 0 || pending > 7) fa_emulated_fail(operation, "%d pending groups: must be 0 to 7", pending);
    for (fa_copy *copy = self->bulk_first; copy && copy->group + (uint32_t)pending < self->bulk_group;
         copy = copy->next)
        if (!store_read(self, copy)) fa_emulated_fail_memory();
    if (read) return;
    while (self->bulk_first && self->bulk_first->group + (uint32_t)pending < self->bulk_group) {
        fa_copy *copy = self->bulk_first;
        self->bulk_first = copy->next;
        if (!copy->next) self->bulk_end = &self->bulk_first;
        store_write(copy);
        free(copy->image);
        free(copy);
    }
}

/* ---- Ends ---- */

bool fa_finish_some_copy(fa_worker *worker) {
    fa_mbarrier *chosen = NULL;
    uint32_t seen = 0;
    bool waited_for = false;
    for (uint32_t b = 0; b < worker->launch->cluster; b++)
        for (uint32_t i = 0; i < worker->blocks[b].mbarrier_count; i++) {
            fa_mbarrier *barrier = &worker->blocks[b].mbarriers[i];
            bool waiters = barrier->waiters > 0;
            if (barrier->load_count + barrier->pending_cp_arrivals == 0 || (waited_for && !waiters)) continue;
            if (waiters && !waited_for) seen = 0;
            waited_for = waiters;
            if (fa_random(worker) % ++seen == 0) chosen = barrier;
        }
    if (!chosen) return false;
    if (chosen->load_count) {
        fa_load_finish(chosen, fa_random(worker) % chosen->load_count);
        return true;
    }
    for (uint32_t i = 0; i < worker->thread_count; i++)
        if (fa_cp_async_arrives(&worker->threads[i], chosen)) {
            fa_cp_async_finish_arrival(&worker->threads[i], chosen);
            return true;
        }
    return false;
}

void fa_check_copies_at_exit(fa_block *block) {
    for (uint32_t i = 0; i < block->mbarrier_count; i++)
        if (block->mbarriers[i].load_count)
            fa_emulated_fail("return", "the block ends while %u loads to its mbarrier 0x%x are in flight",
                             block->mbarriers[i].load_count, block->mbarriers[i].address);
    for (uint32_t t = 0; t < block->threads[0].place.threads; t++)
        for (const fa_copy *copy = block->threads[t].bulk_first; copy; copy = copy->next)
            if (!copy->image)
                fa_emulated_fail("return",
                                 "the block ends while a bulk store of thread %u still reads its shared memory: no "
                                 "bulk_wait_group_read",
                                 t);
}

void fa_stores_finish(fa_thread *thread) {
    while (thread->bulk_first) {
        fa_copy *copy = thread->bulk_first;
        thread->bulk_first = copy->next;
        if (copy->image) store_write(copy);
        free(copy->image);
        free(copy);
    }
    thread->bulk_end = &thread->bulk_first;
}
