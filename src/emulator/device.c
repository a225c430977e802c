/* SPDX-License-Identifier: Apache-2.0 */
/* An emulated device: its part, and the memory that kernels may touch. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"

typedef struct {
    const void *memory;
    size_t bytes;
    bool writable;
    bool owned;
} registration;

struct fa_emulator {
    const fa_emulator_properties *properties;
    pthread_mutex_t mutex; /* over the registrations */
    registration *registrations;
    size_t count, capacity;
};

enum { ALLOCATION_ALIGNMENT = 256 };

fa_emulator *fa_emulator_create(fa_emulator_part part) {
    const fa_emulator_properties *properties = fa_emulator_part_properties(part);
    if (!properties) return NULL;
    fa_emulator *emulator = calloc(1, sizeof *emulator);
    if (!emulator) return NULL;
    if (pthread_mutex_init(&emulator->mutex, NULL) != 0) {
        free(emulator);
        return NULL;
    }
    emulator->properties = properties;
    return emulator;
}

void fa_emulator_destroy(fa_emulator *emulator) {
    if (!emulator) return;
    for (size_t i = 0; i < emulator->count; i++)
        if (emulator->registrations[i].owned) free((void *)(uintptr_t)emulator->registrations[i].memory);
    free(emulator->registrations);
    pthread_mutex_destroy(&emulator->mutex);
    free(emulator);
}

const fa_emulator_properties *fa_emulator_device_properties(const fa_emulator *emulator) {
    return emulator->properties;
}

static bool add(fa_emulator *emulator, registration r) {
    bool ok = true;
    pthread_mutex_lock(&emulator->mutex);
    if (emulator->count == emulator->capacity) {
        size_t capacity = emulator->capacity ? 2 * emulator->capacity : 16;
        registration *larger = realloc(emulator->registrations, capacity * sizeof *larger);
        if (larger) {
            emulator->registrations = larger;
            emulator->capacity = capacity;
        }
        ok = larger != NULL;
    }
    if (ok) emulator->registrations[emulator->count++] = r;
    pthread_mutex_unlock(&emulator->mutex);
    return ok;
}

static bool remove_one(fa_emulator *emulator, registration r) {
    bool found = false;
    pthread_mutex_lock(&emulator->mutex);
    for (size_t i = 0; i < emulator->count && !found; i++) {
        const registration *other = &emulator->registrations[i];
        if (other->memory != r.memory || other->owned != r.owned) continue;
        if (!r.owned && (other->bytes != r.bytes || other->writable != r.writable)) continue;
        emulator->registrations[i] = emulator->registrations[--emulator->count];
        found = true;
    }
    pthread_mutex_unlock(&emulator->mutex);
    return found;
}

void *fa_emulator_allocate(fa_emulator *emulator, size_t bytes) {
    size_t rounded = (bytes + ALLOCATION_ALIGNMENT - 1) / ALLOCATION_ALIGNMENT * ALLOCATION_ALIGNMENT;
    if (rounded < bytes) return NULL;
    void *memory = aligned_alloc(ALLOCATION_ALIGNMENT, rounded ? rounded : ALLOCATION_ALIGNMENT);
    if (!memory) return NULL;
    memset(memory, 0xFF, bytes);
    if (!add(emulator, (registration){memory, bytes, true, true})) {
        free(memory);
        return NULL;
    }
    return memory;
}

void fa_emulator_free(fa_emulator *emulator, void *memory) {
    if (memory && remove_one(emulator, (registration){memory, 0, true, true})) free(memory);
}

bool fa_emulator_register(fa_emulator *emulator, const void *memory, size_t bytes, bool writable) {
    return add(emulator, (registration){memory, bytes, writable, false});
}

void fa_emulator_unregister(fa_emulator *emulator, const void *memory, size_t bytes, bool writable) {
    remove_one(emulator, (registration){memory, bytes, writable, false});
}

static int by_start(const void *a, const void *b) {
    const fa_range *x = a, *y = b;
    return x->start < y->start ? -1 : x->start > y->start;
}

/* Overlapping ranges become one; neighbours stay apart, so that running off one allocation into the next is noticed. */
static size_t merge(fa_range *ranges, size_t count) {
    qsort(ranges, count, sizeof *ranges, by_start);
    size_t merged = 0;
    for (size_t i = 0; i < count; i++)
        if (merged && ranges[i].start < ranges[merged - 1].end) {
            if (ranges[i].end > ranges[merged - 1].end) ranges[merged - 1].end = ranges[i].end;
        } else {
            ranges[merged++] = ranges[i];
        }
    return merged;
}

bool fa_emulator_memory_map(fa_emulator *emulator, fa_memory_map *map) {
    memset(map, 0, sizeof *map);
    pthread_mutex_lock(&emulator->mutex);
    map->readable = malloc((emulator->count + 1) * sizeof *map->readable);
    map->writable = malloc((emulator->count + 1) * sizeof *map->writable);
    bool ok = map->readable && map->writable;
    for (size_t i = 0; i < emulator->count && ok; i++) {
        const registration *r = &emulator->registrations[i];
        fa_range range = {(uintptr_t)r->memory, (uintptr_t)r->memory + r->bytes};
        if (r->bytes == 0) continue;
        map->readable[map->readable_count++] = range;
        if (r->writable) map->writable[map->writable_count++] = range;
    }
    pthread_mutex_unlock(&emulator->mutex);
    if (!ok) {
        free(map->readable);
        free(map->writable);
        return false;
    }
    map->readable_count = merge(map->readable, map->readable_count);
    map->writable_count = merge(map->writable, map->writable_count);
    return true;
}
