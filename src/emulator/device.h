/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated device as a launch sees it. */
#ifndef FA_EMULATOR_DEVICE_H
#define FA_EMULATOR_DEVICE_H

#include <stddef.h>

#include "emulator.h"
#include "state.h"

/* The known memory at this moment, as disjoint ascending ranges; the caller frees both arrays. */
typedef struct {
    fa_range *readable, *writable;
    size_t readable_count, writable_count;
} fa_memory_map;

bool fa_emulator_memory_map(fa_emulator *emulator, fa_memory_map *map);

#endif
