/* SPDX-License-Identifier: Apache-2.0 */
/* Loads, stores and atomics on global and shared memory. */
#include <string.h>

#include "state.h"

/* ---- Global memory ---- */

/* The range of known memory that holds the address, or an empty one. */
static fa_range find_range(const fa_range *ranges, size_t count, uintptr_t address) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].end <= address)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < count && ranges[low].start <= address) return ranges[low];
    return (fa_range){0, 0};
}

void fa_check_global(fa_thread *self, const char *operation, const void *address, size_t bytes, uint32_t alignment,
                     bool write) {
    fa_worker *worker = self->block->worker;
    uintptr_t start = (uintptr_t)address;
    if (start % alignment) fa_emulated_fail(operation, "global address %p is not a multiple of %u", address, alignment);
    fa_range *last = write ? &worker->last_writable : &worker->last_readable;
    if (start >= last->start && start + bytes <= last->end) return;
    const fa_launch_state *launch = worker->launch;
    fa_range range = write ? find_range(launch->writable, launch->writable_count, start)
                           : find_range(launch->readable, launch->readable_count, start);
    if (range.end == 0) {
        fa_range readable = find_range(launch->readable, launch->readable_count, start);
        if (readable.end != 0) fa_emulated_fail(operation, "global address %p is read-only", address);
        fa_emulated_fail(operation, "global address %p is in no known allocation", address);
    }
    if (start + bytes > range.end)
        fa_emulated_fail(operation, "%zu bytes at global address %p run past the end of the allocation [%p, %p)", bytes,
                         address, (const void *)range.start, (const void *)range.end);
    *last = range;
}

static fa_emulator_counters *counters(void) { return &fa_current()->block->worker->counters; }

static void check_floats(const char *operation, const void *value, uint32_t bytes) {
    for (uint32_t i = 0; i < bytes; i += 4) {
        float x;
        memcpy(&x, (const char *)value + i, sizeof x);
        fa_check_value(operation, x);
    }
}

void fa_emulated_global_load(const void *address, void *value, uint32_t bytes) {
    fa_check_global(fa_current(), "global_load", address, bytes, bytes, false);
    counters()->global_bytes_read += bytes;
    memcpy(value, address, bytes);
}

void fa_emulated_global_store(void *address, const void *value, uint32_t bytes, bool floats) {
    fa_check_global(fa_current(), "global_store", address, bytes, bytes, true);
    if (floats) check_floats("global_store", value, bytes);
    counters()->global_bytes_written += bytes;
    memcpy(address, value, bytes);
}

uint32_t fa_emulated_global_load_acquire(const uint32_t *address) {
    fa_check_global(fa_current(), "global_load_acquire", address, sizeof *address, sizeof *address, false);
    counters()->global_bytes_read += sizeof *address;
    fa_poll(fa_current(), "global_load_acquire"); /* such loads stand in loops */
    return __atomic_load_n(address, __ATOMIC_ACQUIRE);
}

uint32_t fa_emulated_global_load_relaxed(const uint32_t *address) {
    fa_check_global(fa_current(), "global_load_relaxed", address, sizeof *address, sizeof *address, false);
    counters()->global_bytes_read += sizeof *address;
    return __atomic_load_n(address, __ATOMIC_RELAXED);
}

void fa_emulated_global_store_release(uint32_t *address, uint32_t value) {
    fa_check_global(fa_current(), "global_store_release", address, sizeof *address, sizeof *address, true);
    counters()->global_bytes_written += sizeof *address;
    __atomic_store_n(address, value, __ATOMIC_RELEASE);
    fa_breathe(fa_current());
}

/* All fences of the process meet in one variable, which orders them as atomic_thread_fence() would and which, unlike that,
 * ThreadSanitizer understands. */
void fa_emulated_fence_gpu(void) {
    static uint32_t meeting;
    (void)__atomic_fetch_add(&meeting, 1, __ATOMIC_SEQ_CST);
}

static void check_atomic(const char *operation, const void *address, uint32_t bytes, uint32_t alignment) {
    fa_check_global(fa_current(), operation, address, bytes, alignment, true);
    counters()->global_atomics++;
    counters()->global_bytes_written += bytes;
}

static float add_f32(float *address, float value) {
    uint32_t *word = (uint32_t *)(void *)address;
    uint32_t old = __atomic_load_n(word, __ATOMIC_RELAXED), sum_bits;
    float old_value, sum;
    do {
        memcpy(&old_value, &old, sizeof old_value);
        sum = old_value + value;
        memcpy(&sum_bits, &sum, sizeof sum_bits);
    } while (!__atomic_compare_exchange_n(word, &old, sum_bits, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old_value;
}

void fa_add_f32(float *address, float value) { add_f32(address, value); }

float fa_emulated_global_add_f32(float *address, float value) {
    check_atomic("global_atomic_add_f32", address, 4, 4);
    fa_check_value("global_atomic_add_f32", value);
    float old = add_f32(address, value);
    fa_breathe(fa_current());
    return old;
}

uint32_t fa_emulated_global_add_u32(uint32_t *address, uint32_t value) {
    check_atomic("global_atomic_add", address, 4, 4);
    uint32_t old = __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
    fa_breathe(fa_current());
    return old;
}

uint64_t fa_emulated_global_add_u64(uint64_t *address, uint64_t value) {
    check_atomic("global_atomic_add_u64", address, 8, 8);
    uint64_t old = __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
    fa_breathe(fa_current());
    return old;
}

uint32_t fa_emulated_global_max_u32(uint32_t *address, uint32_t value) {
    check_atomic("global_atomic_max_u32", address, 4, 4);
    uint32_t old = __atomic_load_n(address, __ATOMIC_RELAXED);
    while (old < value &&
           !__atomic_compare_exchange_n(address, &old, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    fa_breathe(fa_current());
    return old;
}

uint32_t fa_emulated_global_cas_u32(uint32_t *address, uint32_t expected, uint32_t value) {
    check_atomic("global_atomic_cas_u32", address, 4, 4);
    fa_poll(fa_current(), "global_atomic_cas_u32"); /* may stand in a loop */
    __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    return expected;
}

void fa_emulated_global_reduce_f32x4(float *address, const float value[4]) {
    fa_require_sm(90, "global_reduce_add_f32x4");
    check_atomic("global_reduce_add_f32x4", address, 16, 16);
    for (int i = 0; i < 4; i++) {
        fa_check_value("global_reduce_add_f32x4", value[i]);
        add_f32(address + i, value[i]);
    }
}

/* ---- Shared memory ---- */

uint32_t fa_emulated_shared_base(void) { return FA_SHARED_START; }

uint32_t fa_shared_locate(fa_thread *self, const char *operation, uint32_t address, uint32_t bytes, uint32_t alignment,
                          fa_block **block) {
    const fa_worker *worker = self->block->worker;
    const fa_launch_state *launch = worker->launch;
    uint32_t rank = address >> FA_CLUSTER_SHIFT;
    uint32_t local = address & ((1u << FA_CLUSTER_SHIFT) - 1);
    *block = self->block;
    if (rank > 0) {
        if (rank > launch->cluster) fa_emulated_fail(operation, "0x%x is not a shared address", address);
        *block = &worker->blocks[rank - 1];
        if ((*block)->live == 0)
            fa_emulated_fail(operation, "accesses shared memory of cluster block %u, which has ended", rank - 1);
    }
    if (local % alignment)
        fa_emulated_fail(operation, "shared address 0x%x is not a multiple of %u", address, alignment);
    if (local < FA_SHARED_START || local - FA_SHARED_START + (uint64_t)bytes > launch->launch.shared_bytes)
        fa_emulated_fail(operation,
                         "%u bytes at shared address 0x%x lie outside the block's shared memory [0x%x, 0x%x)", bytes,
                         address, (unsigned)FA_SHARED_START, FA_SHARED_START + launch->launch.shared_bytes);
    return local - FA_SHARED_START;
}

uint32_t fa_shared_offset(fa_thread *self, const char *operation, uint32_t address, uint32_t bytes, uint32_t alignment,
                          fa_block **block) {
    uint32_t offset = fa_shared_locate(self, operation, address, bytes, alignment, block);
    for (uint32_t i = offset / 8; i * 8 < offset + bytes; i++)
        if ((*block)->mbarrier_at[i])
            fa_emulated_fail(operation, "shared address 0x%x belongs to an mbarrier", FA_SHARED_START + i * 8);
    return offset;
}

void fa_emulated_shared_load(uint32_t address, void *value, uint32_t bytes) {
    fa_thread *self = fa_current();
    fa_block *block;
    uint32_t offset = fa_shared_offset(self, "shared_load", address, bytes, bytes, &block);
    fa_shadow_read(self, "shared_load", block, offset, bytes);
    block->worker->counters.shared_bytes_read += bytes;
    memcpy(value, block->shared + offset, bytes);
}

void fa_emulated_shared_store(uint32_t address, const void *value, uint32_t bytes, bool floats) {
    fa_thread *self = fa_current();
    fa_block *block;
    uint32_t offset = fa_shared_offset(self, "shared_store", address, bytes, bytes, &block);
    if (floats) check_floats("shared_store", value, bytes);
    fa_shadow_write(self, "shared_store", block, offset, bytes);
    block->worker->counters.shared_bytes_written += bytes;
    memcpy(block->shared + offset, value, bytes);
}

static void *shared_atomic(const char *operation, uint32_t address) {
    fa_thread *self = fa_current();
    fa_breathe(self);
    fa_block *block;
    uint32_t offset = fa_shared_offset(self, operation, address, 4, 4, &block);
    fa_shadow_atomic(self, operation, block, offset, 4);
    block->worker->counters.shared_bytes_read += 4;
    block->worker->counters.shared_bytes_written += 4;
    return block->shared + offset;
}

float fa_emulated_shared_add_f32(uint32_t address, float value) {
    float *word = shared_atomic("shared_atomic_add_f32", address);
    fa_check_value("shared_atomic_add_f32", value);
    float old = *word;
    *word = old + value;
    return old;
}

uint32_t fa_emulated_shared_add_u32(uint32_t address, uint32_t value) {
    uint32_t *word = shared_atomic("shared_atomic_add_u32", address);
    uint32_t old = *word;
    *word = old + value;
    return old;
}
