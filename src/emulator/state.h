/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a running cluster: worker > block > warpgroup > warp > thread, and what the files of the emulator call
 * of each other. One worker is driven by one host thread and shares nothing that changes with other workers. */
#ifndef FA_EMULATOR_STATE_H
#define FA_EMULATOR_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "emulator.h"
#include "fiber.h"
#include "operations.h"
#include "order.h"
#include "shadow.h"

enum {
    FA_LANES = 32,
    FA_WARPGROUP_WARPS = 4,
    FA_NAMED_BARRIERS = 16,
    FA_MAX_MBARRIERS = 64,  /* per block */
    FA_SHARED_START = 1024, /* address of the first byte: the system keeps 1 KiB, and address 0 is never valid */
    FA_CLUSTER_SHIFT = 24,  /* cluster address = (rank + 1) << 24 | address */
    FA_MAX_CLUSTER = 16,
    FA_MAX_WARPGROUPS = 8, /* per block */
    FA_TRANSACTION_LIMIT = (1 << 20) - 1,
};

#define FA_ALL_LANES 0xFFFFFFFFu

/* What registers hold between the issue of a wgmma and its wait: a quiet NaN with a payload that arithmetic keeps. */
#define FA_POISON_BITS 0x7FC5A1EDu

typedef struct fa_worker fa_worker;
typedef struct fa_block fa_block;
typedef struct fa_warp fa_warp;
typedef struct fa_thread fa_thread;
typedef struct fa_copy fa_copy;

/* ---- Threads ---- */

typedef enum {
    FA_WAIT_NOTHING, /* ready or running */
    FA_WAIT_WARP,    /* for the other lanes, in the warp's collective operation */
    FA_WAIT_WARPGROUP,
    FA_WAIT_BARRIER, /* object: fa_named_barrier */
    FA_WAIT_MBARRIER,
    FA_WAIT_CLUSTER,
    FA_WAIT_REGISTERS,
    FA_WAIT_EXITED,
} fa_wait;

/* A cp.async in flight: first in, first out per thread. */
typedef struct fa_cp_async {
    struct fa_cp_async *next;
    const void *source;
    uint32_t destination; /* offset in the block's shared memory */
    uint32_t source_bytes;
    uint32_t group;
    struct fa_mbarrier *arrival; /* not a copy but a pending arrival: cp.async.mbarrier.arrive.noinc */
} fa_cp_async;

struct fa_thread {
    fa_emulated_place place; /* first: fa_emulated_self points to it */
    fa_fiber fiber;
    fa_block *block;
    fa_warp *warp;
    uint32_t lane;
    fa_observer order;
    int32_t fenced;      /* generic writes up to this clock are visible to the async proxy */
    int32_t init_fenced; /* mbarrier initialisations up to this clock are visible to the cluster and to TMA */
    fa_wait wait;
    const void *wait_object;
    uint32_t wait_parity;
    uint32_t cp_async_group; /* number of the open group */
    fa_cp_async *cp_async_first, **cp_async_end;
    uint32_t bulk_group;
    fa_copy *bulk_first, **bulk_end;
};

/* ---- Warps ---- */

/* Operations in which the lanes of a warp meet. */
typedef enum {
    FA_MEET_NONE,
    FA_MEET_WARP_SYNC,
    FA_MEET_SHUFFLE,
    FA_MEET_VOTE,
    FA_MEET_ELECT,
    FA_MEET_LDMATRIX,
    FA_MEET_STMATRIX,
    FA_MEET_MMA,
    FA_MEET_BLOCK_SYNC,
    FA_MEET_NAMED_SYNC,
    FA_MEET_NAMED_ARRIVE,
    FA_MEET_CLUSTER_ARRIVE,
    FA_MEET_CLUSTER_WAIT,
    FA_MEET_REGISTERS,
    FA_MEET_WGMMA,
    FA_MEET_WGMMA_FENCE,
    FA_MEET_WGMMA_COMMIT,
    FA_MEET_WGMMA_WAIT,
} fa_meet;

/* What a lane brings to a collective operation, and what it takes home. */
typedef struct {
    uint32_t value[4]; /* addresses, shuffle values, arguments */
    const void *in[2]; /* registers of the waiting lane */
    void *out;
    uint32_t result;
} fa_lane;

struct fa_warp {
    fa_block *block;
    uint32_t index; /* in the block */
    uint32_t ready; /* lanes */
    uint32_t exited;
    uint32_t arrived;
    fa_meet meet;
    fa_lane lanes[FA_LANES];
    fa_exchange exchange;                 /* warp_sync */
    uint32_t registers, wanted_registers; /* per thread */
    bool cluster_pending;                 /* arrived at the cluster barrier and not yet waited */
    uint32_t cluster_phase;               /* of that arrival */
    fa_thread *threads;
};

/* ---- Barriers ---- */

typedef struct {
    uint32_t threads; /* expected; 0: nobody has come */
    uint32_t arrived;
    uint32_t came;    /* warps of this phase */
    uint32_t waiting; /* warps */
    fa_exchange exchange;
} fa_named_barrier;

typedef struct fa_mbarrier {
    fa_block *block;
    uint32_t address; /* of the block, FA_SHARED_START included */
    uint32_t agent;   /* of the copies that complete here */
    uint32_t expected, pending;
    int64_t transactions; /* bytes expected minus bytes landed */
    uint32_t phase;       /* completed phases */
    uint32_t init_agent;
    int32_t init_clock;
    bool valid;
    uint32_t waiting[FA_LANES]; /* lanes per warp */
    uint32_t waiters;
    fa_copy *loads; /* in flight */
    uint32_t load_count;
    uint32_t pending_cp_arrivals;
    fa_exchange exchange;
} fa_mbarrier;

/* ---- Copies by TMA ---- */

typedef enum { FA_COPY_LOAD, FA_COPY_STORE, FA_COPY_REDUCE } fa_copy_kind;

struct fa_copy {
    fa_copy *next;
    fa_copy_kind kind;
    fa_block *block; /* whose shared memory */
    uint32_t offset; /* in it */
    uint32_t bytes;  /* of shared memory */
    bool tensor;
    fa_tensor_map map; /* tensor copies */
    int32_t coordinates[5];
    void *global;   /* bulk copies */
    uint32_t group; /* stores */
    uint8_t *image; /* stores: what was read from shared memory; NULL: not yet read */
};

/* ---- wgmma ---- */

enum {
    FA_WGMMA_ROWS = 64,
    FA_WGMMA_MAX_N = 256,
    FA_WGMMA_MAX_K = 32,
    FA_WGMMA_MAX_TILES = 8,
    FA_WGMMA_MAX_OPERATIONS = 128
};

/* Accumulators in flight: the registers of 128 threads as one row-major matrix. */
typedef struct {
    bool used;
    uint32_t n;
    uint32_t operations; /* in flight */
    float *d[128];
    float *matrix; /* 64 x n */
} fa_wgmma_tile;

typedef struct {
    fa_wgmma what;
    fa_wgmma_tile *tile;
    uint32_t group;
    const uint32_t *a[128];
    uint32_t a_copy[128][4]; /* register operands as they were at the issue */
} fa_wgmma_operation;

typedef struct fa_warpgroup {
    fa_block *block;
    uint32_t index;
    uint32_t agent;
    uint32_t arrived; /* warps of the current meeting */
    fa_meet meet;
    bool fenced;         /* wgmma_fence since the last wait */
    uint32_t open_group; /* number of the group that collects operations */
    fa_exchange exchange;
    fa_wgmma_tile tiles[FA_WGMMA_MAX_TILES];
    fa_wgmma_operation *operations; /* ring, allocated at the first use */
    uint32_t first, count;
} fa_warpgroup;

/* ---- Blocks and workers ---- */

struct fa_block {
    fa_worker *worker;
    uint32_t rank;
    uint32_t index[3];
    fa_thread *threads;
    fa_warp *warps;
    uint32_t warp_count;
    fa_warpgroup *warpgroups; /* the last one may be incomplete */
    uint32_t warpgroup_count;
    uint32_t live; /* threads */
    uint8_t *shared;
    fa_shadow_cell *cells; /* one per 4 bytes of shared memory */
    uint8_t *mbarrier_at;  /* per 8 bytes: index + 1 into mbarriers, or 0 */
    fa_mbarrier *mbarriers;
    uint32_t mbarrier_count;
    fa_named_barrier named[FA_NAMED_BARRIERS];
    int64_t free_registers;
    uint32_t bulk_reads; /* copies that have not yet read their shared memory */
};

typedef struct {
    uintptr_t start, end;
} fa_range;

/* What all workers of a launch share; constant but for the atomics. */
typedef struct {
    const fa_emulator_properties *part;
    const fa_emulator_kernel *kernel;
    const void *params;
    fa_emulator_launch launch;
    uint32_t cluster;
    uint64_t clusters;
    uint32_t entry_registers;
    const fa_range *readable, *writable; /* disjoint, ascending */
    size_t readable_count, writable_count;
    uint64_t next_cluster; /* atomic */
    uint32_t stop;         /* atomic: some worker failed */
    uint32_t running;      /* atomic: workers that have a cluster, or are about to take one */
} fa_launch_state;

struct fa_worker {
    fa_launch_state *launch;
    fa_fiber main;
    fa_fiber_stacks stacks;
    fa_block *blocks; /* of the cluster */
    fa_thread *threads;
    uint32_t thread_count;
    fa_warp *warps;
    uint32_t warp_count;
    uint32_t live;
    fa_thread *current;
    uint64_t ready_warps[FA_MAX_CLUSTER / 2]; /* 32 warps per block */
    uint64_t random;
    uint32_t elected_lane;
    uint64_t clock;
    uint32_t idle_polls; /* unsuccessful polls since something last happened */
    double poll_start;   /* host seconds; 0: not polling */
    bool alone;          /* found so after many such polls: what others did last must still be looked for */
    fa_knowledge_pool pool;
    fa_exchange cluster_exchange;
    uint32_t cluster_arrived, cluster_phase;
    fa_cp_async *unused_cp_async;
    fa_range last_readable, last_writable;
    float operand_a[FA_WGMMA_ROWS * FA_WGMMA_MAX_K], operand_b[FA_WGMMA_MAX_K * FA_WGMMA_MAX_N]; /* of one wgmma */
    fa_emulator_counters counters;
    fa_emulator_status status;
    char text[FA_EMULATOR_TEXT];
};

static inline fa_thread *fa_current(void) { return (fa_thread *)(uintptr_t)fa_emulated_self; }

/* ---- schedule.c ---- */

void fa_run_cluster(fa_worker *worker);
/* Ends the launch with "kernel, block, warp, lane: operation: rule". */
_Noreturn void fa_emulated_fail(const char *operation, const char *format, ...) __attribute__((format(printf, 2, 3)));
_Noreturn void fa_emulated_fail_memory(void);
/* The running thread sleeps until somebody makes it ready. */
void fa_sleep(fa_thread *self, fa_wait wait, const void *object);
/* The same for a whole warp that met; to be called by the lane for which fa_meet_warp was true. */
void fa_sleep_warp(fa_thread *self, fa_wait wait, const void *object);
void fa_wake(fa_thread *thread);
void fa_wake_warp(fa_warp *warp);
/* Lets others run now and then. */
void fa_breathe(fa_thread *self);
/* Lets others run after an unsuccessful poll; reports a deadlock when nothing can happen any more. */
void fa_poll(fa_thread *self, const char *operation);
/* The lanes of a warp meet in `meet`: true in the last one, which does the work and then calls fa_wake_warp; the others
 * return false after that. */
bool fa_meet_warp(fa_thread *self, fa_meet meet);
/* The same for the four warps of a warpgroup; to be called by the lane for which fa_meet_warp was true. The others are
 * woken by fa_wake_warpgroup. */
bool fa_meet_warpgroup(fa_thread *self, fa_warpgroup *group, fa_meet meet);
void fa_wake_warpgroup(fa_warpgroup *group);
const char *fa_meet_name(fa_meet meet);
uint32_t fa_random(fa_worker *worker);
void fa_require_sm(uint32_t sm, const char *operation);
/* Fails if a float is the poison of an unfinished wgmma. */
void fa_check_value(const char *operation, float value);

/* ---- memory.c ---- */

/* The offset in its block of a shared address (which may be a cluster address), checked for range and alignment;
 * fa_shared_offset also refuses the bytes of an mbarrier. */
uint32_t fa_shared_locate(fa_thread *self, const char *operation, uint32_t address, uint32_t bytes, uint32_t alignment,
                          fa_block **block);
uint32_t fa_shared_offset(fa_thread *self, const char *operation, uint32_t address, uint32_t bytes, uint32_t alignment,
                          fa_block **block);
void fa_check_global(fa_thread *self, const char *operation, const void *address, size_t bytes, uint32_t alignment,
                     bool write);
void fa_add_f32(float *address, float value); /* atomically */

/* ---- barrier.c, mbarrier.c ---- */

fa_mbarrier *fa_mbarrier_find(fa_thread *self, const char *operation, uint32_t address);
/* Has the initialisation been fenced for the cluster and for the async proxy? */
void fa_mbarrier_check_fenced(const char *operation, const fa_mbarrier *barrier);
void fa_mbarrier_land(fa_mbarrier *barrier, uint32_t bytes); /* complete_tx */
void fa_mbarrier_arrive_for(fa_thread *thread, const char *operation, fa_mbarrier *barrier, uint32_t count);

/* ---- cp_async.c, bulk.c ---- */

void fa_cp_async_finish_arrival(fa_thread *thread, const fa_mbarrier *barrier); /* up to the first arrival there */
bool fa_cp_async_arrives(const fa_thread *thread, const fa_mbarrier *barrier);
void fa_cp_async_finish(fa_thread *thread);
void fa_load_finish(fa_mbarrier *barrier, uint32_t index); /* lets one load in flight land */
bool fa_finish_some_copy(fa_worker *worker);               /* when nobody is ready: one that somebody waits for */
void fa_check_copies_at_exit(fa_block *block);             /* when its last thread has returned */
void fa_stores_finish(fa_thread *thread);                  /* when the cluster has ended */

/* ---- tensor_map.c ---- */

/* Refuses what is no map of this rank; returns the bytes of its box. */
uint32_t fa_tensor_map_check(const char *operation, const fa_tensor_map *map, uint32_t rank);
fa_tensor_map_swizzle fa_tensor_map_swizzle_of(const fa_tensor_map *map);
/* Checks that the part of the box inside the tensor is known memory; returns its bytes. */
uint64_t fa_tensor_check_global(fa_thread *self, const char *operation, const fa_tensor_map *map,
                                const int32_t *coordinates, bool write);
bool fa_tensor_map_can_add(const fa_tensor_map *map);
/* Copies a box to shared memory (`shared` is its byte at FA_SHARED_START) at `address`; and from a plain image of the
 * box, as fa_tensor_unswizzle makes it, to the tensor. */
void fa_tensor_load(const fa_tensor_map *map, const int32_t *coordinates, uint8_t *shared, uint32_t address);
void fa_tensor_unswizzle(const fa_tensor_map *map, const uint8_t *shared, uint32_t address, uint8_t *image);
void fa_tensor_store(const fa_tensor_map *map, const int32_t *coordinates, const uint8_t *image, bool add);

/* ---- wgmma.c, multiply.c ---- */

void fa_wgmma_check_at_exit(fa_warpgroup *group);
/* c[m][n] += a[m][k] b[k][n], row-major; m and n multiples of 8. */
void fa_multiply(float *c, const float *a, const float *b, uint32_t m, uint32_t n, uint32_t k);

#endif
