/* SPDX-License-Identifier: Apache-2.0 */
/* wgmma: asynchronous products of a warpgroup. At the issue the operands are checked, and the accumulators move from
 * the registers of the 128 threads into a tile; the registers are poisoned. The products are computed when the wait
 * that covers them is executed, from what shared memory and the operand registers hold then. */
#include <stdlib.h>
#include <string.h>

#include "../element.h"
#include "fp8.h"
#include "state.h"

enum { ROWS = FA_WGMMA_ROWS, MAX_N = FA_WGMMA_MAX_N, THREADS = 128, K_BYTES = 32 };

static uint32_t depth(const fa_wgmma *what) { return what->a_type <= FA_MATRIX_f16 ? 16 : 32; }

/* ---- Operands in shared memory ---- */

/* A descriptor taken apart. W is the number of 16 byte chunks of a swizzled row, 1 without swizzle. */
typedef struct {
    uint32_t start, leading, stride, chunks;
    uint32_t swizzle; /* fa_tensor_map_swizzle */
    bool mn_major;
} tile_layout;

static tile_layout decode(uint64_t descriptor, uint32_t major) {
    static const uint8_t chunks[] = {1, 8, 4, 2}, swizzles[] = {0, 3, 2, 1};
    uint32_t type = (uint32_t)(descriptor >> 62);
    return (tile_layout){.start = (uint32_t)(descriptor & 0x3FFF) << 4,
                         .leading = (uint32_t)(descriptor >> 16 & 0x3FFF) << 4,
                         .stride = (uint32_t)(descriptor >> 32 & 0x3FFF) << 4,
                         .chunks = chunks[type],
                         .swizzle = swizzles[type],
                         .mn_major = major == 1};
}

/* Address of a 16 byte chunk. K-major: row mn, chunk number `i` along k. MN-major: k = i, and mn a multiple of 8. */
static uint32_t chunk_address(const tile_layout *t, uint32_t mn, uint32_t i) {
    static const uint32_t masks[] = {0, 0x10, 0x30, 0x70};
    const uint32_t row = 16 * t->chunks;
    uint32_t address = t->start;
    if (!t->mn_major) {
        address += mn / 8 * t->stride + mn % 8 * row;
        address += t->swizzle ? i * 16 : i * t->leading;
    } else if (t->swizzle) {
        address += mn / (8 * t->chunks) * t->leading + mn / 8 % t->chunks * 16;
        address += i / 8 * t->stride + i % 8 * row;
    } else {
        address += mn / 8 * t->stride + i / 8 * t->leading + i % 8 * row;
    }
    return address ^ ((address >> 3) & masks[t->swizzle]);
}

static void check_descriptor_bits(const char *operation, uint64_t descriptor, uint32_t major) {
    const uint64_t reserved = UINT64_C(0x3) << 14 | UINT64_C(0x3) << 30 | UINT64_C(0x7) << 46 | UINT64_C(0x3FF) << 52;
    if (descriptor & reserved)
        fa_emulated_fail(operation,
                         "descriptor 0x%016llx: reserved bits are set (address, leading and stride have 14 bits each)",
                         (unsigned long long)descriptor);
    if (descriptor >> 49 & 7)
        fa_emulated_fail(operation,
                         "descriptor 0x%016llx: base offset %u; the emulator knows 0 only (tiles aligned to 8 rows)",
                         (unsigned long long)descriptor, (unsigned)(descriptor >> 49 & 7));
    tile_layout t = decode(descriptor, major);
    if (!t.swizzle) return;
    uint32_t pattern = 128 * t.chunks;
    if (t.start % pattern >= 16 * t.chunks)
        fa_emulated_fail(
            operation,
            "descriptor 0x%016llx: misaligned tile: address 0x%x must lie in the first row of a pattern of %u "
            "bytes",
            (unsigned long long)descriptor, t.start, pattern);
    if (t.stride % pattern)
        fa_emulated_fail(operation,
                         "descriptor 0x%016llx: stride %u is not a multiple of the %u bytes of the swizzle pattern",
                         (unsigned long long)descriptor, t.stride, pattern);
    if (t.mn_major && t.leading % pattern)
        fa_emulated_fail(operation,
                         "descriptor 0x%016llx: leading %u is not a multiple of the %u bytes of the swizzle pattern",
                         (unsigned long long)descriptor, t.leading, pattern);
}

void fa_emulated_check_descriptor(uint32_t address, uint32_t leading_bytes, uint32_t stride_bytes, uint32_t swizzle) {
    const char *operation = "wgmma_descriptor";
    fa_require_sm(90, operation);
    if (address % 16 || leading_bytes % 16 || stride_bytes % 16)
        fa_emulated_fail(operation,
                         "misaligned descriptor: address 0x%x, leading %u and stride %u must be multiples of 16",
                         address, leading_bytes, stride_bytes);
    if (address >= 1u << 18 || leading_bytes >= 1u << 18 || stride_bytes >= 1u << 18)
        fa_emulated_fail(operation, "address 0x%x, leading %u and stride %u must be below 2^18", address, leading_bytes,
                         stride_bytes);
    if (swizzle > 3) fa_emulated_fail(operation, "swizzle %u is unknown", swizzle);
}

/* Every thread of the warpgroup must know the writes; threads that share their knowledge are checked once. */
static void check_operand(fa_thread *self, fa_warpgroup *group, const char *operation, uint64_t descriptor,
                          uint32_t major, uint32_t extent, uint32_t k) {
    check_descriptor_bits(operation, descriptor, major);
    fa_block *block = group->block;
    fa_thread *threads = &block->threads[group->index * THREADS];
    const fa_knowledge *checked[4];
    uint32_t checked_count = 0;
    tile_layout t = decode(descriptor, major);
    const uint32_t mn_step = t.mn_major ? 8 : 1, others = t.mn_major ? k : K_BYTES / 16;
    for (uint32_t lane = 0; lane < THREADS; lane++) {
        const fa_knowledge *knows = threads[lane].order.knows;
        bool again = false;
        for (uint32_t i = 0; i < checked_count; i++) again |= checked[i] == knows;
        if (again) continue;
        for (uint32_t mn = 0; mn < extent; mn += mn_step)
            for (uint32_t i = 0; i < others; i++) {
                uint32_t address = chunk_address(&t, mn, i);
                if (lane > 0) {
                    fa_shadow_wgmma_check(&threads[lane], operation, block, address - FA_SHARED_START);
                    continue;
                }
                fa_block *found;
                uint32_t offset = fa_shared_offset(self, operation, address, 16, 16, &found);
                fa_shadow_wgmma_read(&threads[0], operation, block, offset, group->agent, group->open_group + 1,
                                     t.swizzle);
            }
        if (checked_count < 4) checked[checked_count++] = knows;
    }
    block->worker->counters.shared_bytes_read += extent * K_BYTES;
}

static void convert_chunk(fa_matrix_type type, const uint8_t *chunk, float *out, uint32_t step) {
    uint16_t h[8];
    switch (type) {
    case FA_MATRIX_bf16:
        memcpy(h, chunk, sizeof h);
        for (uint32_t e = 0; e < 8; e++) out[e * step] = fa_float_from_bfloat16(h[e]);
        break;
    case FA_MATRIX_f16:
        memcpy(h, chunk, sizeof h);
        for (uint32_t e = 0; e < 8; e++) out[e * step] = fa_float_from_float16(h[e]);
        break;
    case FA_MATRIX_e4m3:
        for (uint32_t e = 0; e < 16; e++) out[e * step] = fa_float_from_e4m3(chunk[e]);
        break;
    default:
        for (uint32_t e = 0; e < 16; e++) out[e * step] = fa_float_from_e5m2(chunk[e]);
        break;
    }
}

/* Reads the operand into out, element (mn, k) at out[mn * mn_step + k * k_step]. */
static void load_operand(const fa_block *block, fa_matrix_type type, uint64_t descriptor, uint32_t major,
                         uint32_t extent, uint32_t k, float *out, uint32_t mn_step, uint32_t k_step) {
    tile_layout t = decode(descriptor, major);
    const uint8_t *shared = block->shared;
    if (t.mn_major) {
        for (uint32_t mn = 0; mn < extent; mn += 8)
            for (uint32_t i = 0; i < k; i++)
                convert_chunk(type, shared + chunk_address(&t, mn, i) - FA_SHARED_START,
                              out + mn * mn_step + i * k_step, mn_step);
    } else {
        const uint32_t per_chunk = k / (K_BYTES / 16);
        for (uint32_t mn = 0; mn < extent; mn++)
            for (uint32_t i = 0; i < K_BYTES / 16; i++)
                convert_chunk(type, shared + chunk_address(&t, mn, i) - FA_SHARED_START,
                              out + mn * mn_step + i * per_chunk * k_step, k_step);
    }
}

/* ---- Operands in registers ---- */

/* a[j]: row 16 w + p + 8 (j & 1); 16-bit: k = 2q + e + 8 (j >> 1); 8-bit: k = 4q + byte + 16 (j >> 1). */
static void load_register_operand(const fa_wgmma_operation *operation, float *out) {
    const fa_matrix_type type = operation->what.a_type;
    const uint32_t k_count = depth(&operation->what), per_register = k_count / 8;
    for (uint32_t t = 0; t < THREADS; t++) {
        const uint32_t w = t / 32, p = t % 32 / 4, q = t % 4;
        for (uint32_t j = 0; j < 4; j++) {
            float *to = out + (16 * w + p + 8 * (j & 1)) * k_count + per_register * q + k_count / 2 * (j >> 1);
            uint32_t bits = operation->a_copy[t][j];
            for (uint32_t e = 0; e < per_register; e++) switch (type) {
                case FA_MATRIX_bf16: to[e] = fa_float_from_bfloat16((uint16_t)(bits >> (16 * e))); break;
                case FA_MATRIX_f16: to[e] = fa_float_from_float16((uint16_t)(bits >> (16 * e))); break;
                case FA_MATRIX_e4m3: to[e] = fa_float_from_e4m3((uint8_t)(bits >> (8 * e))); break;
                default: to[e] = fa_float_from_e5m2((uint8_t)(bits >> (8 * e))); break;
                }
        }
    }
}

/* ---- Accumulators ---- */

/* Register r of thread t: row 16 w + p + 8 ((r >> 1) & 1), column 8 (r >> 2) + 2q + (r & 1). */
static float *tile_element(const fa_wgmma_tile *tile, uint32_t t, uint32_t r) {
    uint32_t row = t / 32 * 16 + t % 32 / 4 + 8 * (r >> 1 & 1), column = 8 * (r >> 2) + 2 * (t % 4) + (r & 1);
    return &tile->matrix[row * tile->n + column];
}

static void take_accumulators(fa_wgmma_tile *tile) {
    const float poison = fa_float_from_bits(FA_POISON_BITS);
    for (uint32_t t = 0; t < THREADS; t++)
        for (uint32_t r = 0; r < tile->n / 2; r++) {
            *tile_element(tile, t, r) = tile->d[t][r];
            tile->d[t][r] = poison;
        }
}

static void return_accumulators(fa_warpgroup *group, fa_wgmma_tile *tile) {
    for (uint32_t t = 0; t < THREADS; t++)
        for (uint32_t r = 0; r < tile->n / 2; r++) {
            if (fa_float_bits(tile->d[t][r]) != FA_POISON_BITS)
                fa_emulated_fail("wgmma_wait_group",
                                 "accumulator %u of thread %u of warpgroup %u was written while the wgmma was in "
                                 "flight",
                                 r, t, group->index);
            tile->d[t][r] = *tile_element(tile, t, r);
        }
    tile->used = false;
}

static bool overlap(const float *a, uint32_t a_count, const float *b, uint32_t b_count) {
    return (uintptr_t)a < (uintptr_t)(b + b_count) && (uintptr_t)b < (uintptr_t)(a + a_count);
}

/* The tile in flight on these registers, or a new one. */
static fa_wgmma_tile *find_tile(fa_warpgroup *group, float *const *d, uint32_t n) {
    fa_wgmma_tile *unused = NULL;
    for (uint32_t i = 0; i < FA_WGMMA_MAX_TILES; i++) {
        fa_wgmma_tile *tile = &group->tiles[i];
        if (!tile->used) {
            if (!unused) unused = tile;
            continue;
        }
        if (tile->n == n && memcmp(tile->d, d, sizeof tile->d) == 0) return tile;
        for (uint32_t t = 0; t < THREADS; t++)
            if (overlap(tile->d[t], tile->n / 2, d[t], n / 2))
                fa_emulated_fail("wgmma", "the accumulators overlap those of a wgmma in flight with another shape");
    }
    if (!unused)
        fa_emulated_fail("wgmma", "more than %d accumulator tiles in flight (a limit of the emulator)",
                         FA_WGMMA_MAX_TILES);
    if (!unused->matrix) unused->matrix = malloc(ROWS * MAX_N * sizeof(float));
    if (!unused->matrix) fa_emulated_fail_memory();
    unused->used = true;
    unused->n = n;
    unused->operations = 0;
    memcpy(unused->d, d, sizeof unused->d);
    take_accumulators(unused);
    return unused;
}

void fa_emulated_register_fence(const void *registers, int count) {
    fa_thread *self = fa_current();
    const fa_warpgroup *group = &self->block->warpgroups[self->place.thread / THREADS];
    uint32_t t = self->place.thread % THREADS;
    if (group->count == 0) return;
    for (uint32_t i = 0; i < FA_WGMMA_MAX_TILES; i++)
        if (group->tiles[i].used && overlap(group->tiles[i].d[t], group->tiles[i].n / 2, registers, (uint32_t)count))
            fa_emulated_fail("register_fence",
                             "these are accumulators of a wgmma in flight: no wgmma_wait_group covers them yet");
}

/* ---- Issue ---- */

static const fa_wgmma *what_of(const fa_thread *threads, uint32_t t) {
    return threads[t].warp->lanes[t % FA_LANES].in[0];
}

static void check_uniform(const fa_thread *threads, const fa_wgmma *what) {
    for (uint32_t t = 0; t < THREADS; t++) {
        const fa_wgmma *other = what_of(threads, t);
        if (other->n != what->n || other->a_type != what->a_type || other->b_type != what->b_type ||
            other->accumulate != what->accumulate || other->a_major != what->a_major ||
            other->b_major != what->b_major || other->a_descriptor != what->a_descriptor ||
            other->b_descriptor != what->b_descriptor || !other->a_registers != !what->a_registers)
            fa_emulated_fail(
                "wgmma",
                "thread %u of the warpgroup gives other arguments: descriptors, shape and accumulate must be the "
                "same in all 128",
                t);
    }
}

static void check_shape(const fa_wgmma *what) {
    bool bits16 = what->a_type <= FA_MATRIX_f16;
    if (what->n % 8 || what->n < 8 || what->n > MAX_N)
        fa_emulated_fail("wgmma", "n = %u: must be 8, 16 .. 256", what->n);
    if (bits16 ? what->a_type != what->b_type : what->b_type < FA_MATRIX_e4m3)
        fa_emulated_fail("wgmma", "the element types of a and b do not go together");
    if (what->a_major > 1 || what->b_major > 1) fa_emulated_fail("wgmma", "the major of an operand is 0 (K) or 1 (MN)");
    if (!bits16 && (what->a_major || what->b_major)) fa_emulated_fail("wgmma", "8-bit operands must be K-major");
}

static fa_wgmma_operation *append(fa_warpgroup *group) {
    if (!group->operations) group->operations = malloc(FA_WGMMA_MAX_OPERATIONS * sizeof *group->operations);
    if (!group->operations) fa_emulated_fail_memory();
    if (group->count == FA_WGMMA_MAX_OPERATIONS)
        fa_emulated_fail("wgmma", "more than %d wgmma in flight (a limit of the emulator)", FA_WGMMA_MAX_OPERATIONS);
    return &group->operations[(group->first + group->count++) % FA_WGMMA_MAX_OPERATIONS];
}

static void issue(fa_thread *self, fa_warpgroup *group, const fa_wgmma *what) {
    fa_thread *threads = &self->block->threads[group->index * THREADS];
    float *d[THREADS];
    check_shape(what);
    check_uniform(threads, what);
    if (!group->fenced)
        fa_emulated_fail(
            "wgmma", "no wgmma_fence since the last wgmma_wait_group: registers written before may not have arrived");
    const uint32_t k = depth(what);
    if (!what->a_registers) check_operand(self, group, "wgmma operand a", what->a_descriptor, what->a_major, ROWS, k);
    check_operand(self, group, "wgmma operand b", what->b_descriptor, what->b_major, what->n, k);

    for (uint32_t t = 0; t < THREADS; t++) d[t] = threads[t].warp->lanes[t % FA_LANES].out;
    fa_wgmma_operation *operation = append(group);
    operation->what = *what;
    operation->group = group->open_group;
    for (uint32_t t = 0; t < THREADS && what->a_registers; t++) {
        operation->a[t] = what_of(threads, t)->a_registers;
        memcpy(operation->a_copy[t], operation->a[t], sizeof operation->a_copy[t]);
    }
    operation->tile = find_tile(group, d, what->n);
    operation->tile->operations++;
    self->block->worker->counters.tensor_flops += UINT64_C(2) * ROWS * what->n * k;
}

static fa_warpgroup *own_group(fa_thread *self, const char *operation) {
    const fa_emulator_properties *part = self->block->worker->launch->part;
    if (part->sm != 90) fa_emulated_fail(operation, "exists on sm_90a only, but %s is sm_%u", part->name, part->sm);
    uint32_t index = self->warp->index / FA_WARPGROUP_WARPS;
    if ((index + 1) * FA_WARPGROUP_WARPS > self->block->warp_count)
        fa_emulated_fail(operation, "warp %u belongs to no complete warpgroup", self->warp->index);
    return &self->block->warpgroups[index];
}

/* True in the one thread of the warpgroup that does the work; it then calls fa_wake_warpgroup. */
static bool meet(fa_thread *self, fa_warpgroup *group, fa_meet what) {
    return fa_meet_warp(self, what) && fa_meet_warpgroup(self, group, what);
}

void fa_emulated_wgmma(float *d, const fa_wgmma *what) {
    fa_thread *self = fa_current();
    fa_warpgroup *group = own_group(self, "wgmma");
    self->warp->lanes[self->lane].in[0] = what;
    self->warp->lanes[self->lane].out = d;
    if (!meet(self, group, FA_MEET_WGMMA)) return;
    issue(self, group, what);
    fa_wake_warpgroup(group);
}

void fa_emulated_wgmma_fence(void) {
    fa_thread *self = fa_current();
    fa_warpgroup *group = own_group(self, "wgmma_fence");
    if (!meet(self, group, FA_MEET_WGMMA_FENCE)) return;
    group->fenced = true;
    fa_wake_warpgroup(group);
}

void fa_emulated_wgmma_commit_group(void) {
    fa_thread *self = fa_current();
    fa_warpgroup *group = own_group(self, "wgmma_commit_group");
    if (!meet(self, group, FA_MEET_WGMMA_COMMIT)) return;
    group->open_group++;
    fa_wake_warpgroup(group);
}

/* ---- Completion ---- */

static void compute(fa_warpgroup *group, const fa_wgmma_operation *operation) {
    const fa_wgmma *what = &operation->what;
    const uint32_t k = depth(what), n = what->n;
    float *a = group->block->worker->operand_a, *b = group->block->worker->operand_b;
    if (what->a_registers) {
        for (uint32_t t = 0; t < THREADS; t++)
            if (memcmp(operation->a_copy[t], operation->a[t], sizeof operation->a_copy[t]) != 0)
                fa_emulated_fail("wgmma_wait_group",
                                 "register operand a of thread %u of warpgroup %u was written while the wgmma was "
                                 "in flight",
                                 t, group->index);
        load_register_operand(operation, a);
    } else {
        load_operand(group->block, what->a_type, what->a_descriptor, what->a_major, ROWS, k, a, k, 1);
    }
    load_operand(group->block, what->b_type, what->b_descriptor, what->b_major, n, k, b, 1, n);
    fa_wgmma_tile *tile = operation->tile;
    if (!what->accumulate) memset(tile->matrix, 0, (size_t)ROWS * n * sizeof(float));
    fa_multiply(tile->matrix, a, b, ROWS, n, k);
    if (--tile->operations == 0) return_accumulators(group, tile);
}

void fa_emulated_wgmma_wait_group(int pending) {
    fa_thread *self = fa_current();
    fa_warpgroup *group = own_group(self, "wgmma_wait_group");
    if (pending < 0 || pending > 7) fa_emulated_fail("wgmma_wait_group", "%d pending groups: must be 0 to 7", pending);
    self->warp->lanes[self->lane].value[0] = (uint32_t)pending;
    if (!meet(self, group, FA_MEET_WGMMA_WAIT)) return;
    while (group->count) {
        fa_wgmma_operation *operation = &group->operations[group->first];
        if (operation->group + (uint32_t)pending >= group->open_group) break;
        compute(group, operation);
        group->first = (group->first + 1) % FA_WGMMA_MAX_OPERATIONS;
        group->count--;
    }
    group->fenced = false;
    if (group->open_group >= (uint32_t)pending) {
        fa_knowledge_pool *pool = &self->block->worker->pool;
        fa_exchange_publish_agent(&group->exchange, group->agent, (int32_t)(group->open_group - (uint32_t)pending));
        fa_exchange_complete(pool, &group->exchange);
        for (uint32_t t = 0; t < THREADS; t++)
            fa_exchange_learn(pool, &group->exchange, &self->block->threads[group->index * THREADS + t].order);
    }
    fa_wake_warpgroup(group);
}

void fa_wgmma_check_at_exit(fa_warpgroup *group) {
    if (group->count)
        fa_emulated_fail("return", "the block ends while %u wgmma of warpgroup %u are in flight", group->count,
                         group->index);
}
