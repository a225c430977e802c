/* SPDX-License-Identifier: Apache-2.0 */
/* The shadow of shared memory: for every 4 bytes the latest write and two of the latest reads, by agent and clock. From
 * these every access is checked: was the memory written at all, does the reader know of the write, does the writer know
 * of the reads, and has a generic write been fenced for the async proxy.
 *
 * Of many unordered reads two are remembered, chosen at random: a missing barrier touches many words, and is found
 * through some of them. */
#ifndef FA_EMULATOR_SHADOW_H
#define FA_EMULATOR_SHADOW_H

#include <stdint.h>

/* An access: clock in bits 0-31, agent in 32-47, then: */
#define FA_ACCESS_MASK_SHIFT 48               /* the bytes of the word, 4 bits */
#define FA_ACCESS_PENDING (UINT64_C(1) << 52) /* nobody knows of it yet: cp.async, bulk store in flight */
#define FA_ACCESS_ASYNC (UINT64_C(1) << 53)   /* by the async proxy */
#define FA_ACCESS_ATOMIC (UINT64_C(1) << 54)
#define FA_ACCESS_SWIZZLE_SHIFT 55           /* 2 bits: fa_tensor_map_swizzle of a TMA write */
#define FA_ACCESS_TENSOR (UINT64_C(1) << 57) /* the swizzle is known */
#define FA_ACCESS_VALID_SHIFT 60             /* bytes of the word ever written, 4 bits */

typedef struct {
    uint64_t write;
    uint64_t read[2];
} fa_shadow_cell;

struct fa_thread;
struct fa_block;
struct fa_warpgroup;

/* Ordinary accesses by a thread: loads, stores, ldmatrix, stmatrix, atomics. */
void fa_shadow_read(struct fa_thread *self, const char *operation, struct fa_block *block, uint32_t offset,
                    uint32_t bytes);
void fa_shadow_write(struct fa_thread *self, const char *operation, struct fa_block *block, uint32_t offset,
                     uint32_t bytes);
void fa_shadow_atomic(struct fa_thread *self, const char *operation, struct fa_block *block, uint32_t offset,
                      uint32_t bytes);

/* cp.async: begin at the issue, end when it has landed. */
void fa_shadow_cp_async_begin(struct fa_thread *self, const char *operation, struct fa_block *block, uint32_t offset);
void fa_shadow_cp_async_end(struct fa_thread *self, struct fa_block *block, uint32_t offset);

/* A load by TMA, which completes phase `clock` of the mbarrier agent; swizzle is a fa_tensor_map_swizzle, or -1. */
void fa_shadow_load(struct fa_thread *self, const char *operation, struct fa_block *block, uint32_t offset,
                    uint32_t bytes, uint32_t agent, uint32_t clock, int swizzle);

/* A store by TMA: begin at the issue, end when its shared memory has been read. */
void fa_shadow_store_begin(struct fa_thread *self, const char *operation, struct fa_block *block, uint32_t offset,
                           uint32_t bytes);
void fa_shadow_store_end(struct fa_thread *self, struct fa_block *block, uint32_t offset, uint32_t bytes);

/* 16 bytes read by a wgmma of group `clock`, whose descriptor names `swizzle`. Checked for one thread of the warpgroup.
 */
void fa_shadow_wgmma_read(struct fa_thread *self, const char *operation, struct fa_block *block, uint32_t offset,
                          uint32_t agent, uint32_t clock, uint32_t swizzle);
/* The check alone, for a further thread that knows something else. */
void fa_shadow_wgmma_check(struct fa_thread *self, const char *operation, struct fa_block *block, uint32_t offset);

#endif
