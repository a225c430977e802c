/* SPDX-License-Identifier: Apache-2.0 */
/* A TMA ring with one wgmma consumer, and the ways to break it. The kernel without a fault must pass; each fault must
 * be reported, with the right rule, for every seed. */
#include "test_emulator.h"

#include "instructions/instructions.h"

#define ROWS 64
#define ROW_BYTES 128
#define TILE (ROWS * ROW_BYTES)
#define STAGES 2
#define STEPS 5
#define SHARED_BYTES (2 * STAGES * TILE + TILE + 64)

typedef enum {
    NO_FAULT,
    NO_FULL_WAIT,
    WRONG_PARITY,
    NO_EMPTY_WAIT,
    RELEASE_BEFORE_WAIT,
    OVERLAPPING_STAGES,
    WRONG_SWIZZLE,
    OVER_ARRIVAL,
    TOO_FEW_ARRIVALS,
    WRONG_BYTES_EXPECTED,
    WRONG_BARRIER,
    BARRIER_NOT_FENCED,
    BARRIER_NOT_SYNCED,
    BARRIER_NOT_INITIALISED,
    BARRIER_OVERWRITTEN,
    ACCUMULATOR_READ_EARLY,
    ACCUMULATOR_STORED_EARLY,
    ACCUMULATOR_WRITTEN_EARLY,
    ACCUMULATOR_FENCED_EARLY,
    NO_WGMMA_FENCE,
    NO_COMMIT,
    NO_WAIT,
    DIVERGENT_WGMMA,
    DIFFERENT_DESCRIPTORS,
    DESCRIPTOR_MISALIGNED,
    TILE_MISALIGNED,
    TILE_OUT_OF_RANGE,
    WRONG_STRIDE,
    STORE_NOT_FENCED,
    STORE_NOT_SYNCED,
    STORE_SOURCE_REUSED,
    STORE_NOT_WAITED,
    LOAD_NOT_WAITED,
    READ_BY_OTHER_THREAD,
} fault_kind;

typedef struct {
    fa_tensor_map a, b, c;
    float *out;
    fault_kind fault;
} ring_params;

DEVICE void ring_producer(const ring_params *p, uint32_t base, uint32_t full, uint32_t empty) {
    uint32_t stage_bytes = p->fault == OVERLAPPING_STAGES ? TILE / 2 : TILE;
    uint32_t expected = p->fault == WRONG_BYTES_EXPECTED ? 2 * TILE - 16 : 2 * TILE;
    for (uint32_t i = 0; i < STEPS; i++) {
        uint32_t stage = i % STAGES, parity = i / STAGES % 2;
        if (p->fault != NO_EMPTY_WAIT) mbarrier_wait(empty + 8 * stage, parity ^ 1);
        mbarrier_arrive_expect_tx(full + 8 * stage, expected);
        tma_load_2d(base + stage * stage_bytes, &p->a, full + 8 * stage, 0, (int)(i * ROWS));
        uint32_t b_barrier = full + 8 * (p->fault == WRONG_BARRIER ? stage ^ 1 : stage);
        tma_load_2d(base + (STAGES + stage) * TILE, &p->b, b_barrier, 0, (int)(i * ROWS));
    }
    if (p->fault == LOAD_NOT_WAITED) {
        mbarrier_wait(empty + 8, 0); /* the fourth step was the last use of stage 1 */
        mbarrier_wait(empty + 8, 1);
        mbarrier_expect_tx(full + 8, TILE);
        tma_load_2d(base + TILE, &p->a, full + 8, 0, 0);
    }
}

DEVICE void multiply(const ring_params *p, float *d, uint32_t a_tile, uint32_t b_tile, uint32_t step) {
    const fault_kind fault = p->fault;
    uint32_t swizzle = fault == WRONG_SWIZZLE ? SWIZZLE_64B : SWIZZLE_128B;
    if (fault == DESCRIPTOR_MISALIGNED) a_tile += 8;
    if (fault == TILE_MISALIGNED) a_tile += 128;
    if (fault == TILE_OUT_OF_RANGE) a_tile += 8 * TILE;
    uint64_t a = wgmma_descriptor(a_tile, 16, fault == WRONG_STRIDE ? 512 : 1024, swizzle);
    uint64_t b = wgmma_descriptor(b_tile, 16, 1024, swizzle);
    if (fault == DIFFERENT_DESCRIPTORS && thread_index() % 128 == 77) b += 2;
    register_fence_f32(d, 32);
    if (fault != NO_WGMMA_FENCE) wgmma_fence();
    UNROLL for (uint32_t k = 0; k < 4; k++) {
        if (fault == DIVERGENT_WGMMA && k == 1 && warp_index() == 5) {
            warp_sync();
            continue;
        }
        wgmma_m64k16_ss(64, bf16, d, wgmma_descriptor_advance(a, 32 * k), wgmma_descriptor_advance(b, 32 * k),
                        step > 0 || k > 0, K_MAJOR, K_MAJOR);
    }
    if (fault != NO_COMMIT) wgmma_commit_group();
}

DEVICE void arrive_once(uint32_t barrier, fault_kind fault) {
    if (fault == TOO_FEW_ARRIVALS) return;
    if (thread_index() % 128 == 0) mbarrier_arrive(barrier);
    if (fault == OVER_ARRIVAL && thread_index() % 128 == 0) mbarrier_arrive_count(barrier, 2);
}

DEVICE void store_result(const ring_params *p, const float *d, uint32_t tile) {
    const uint32_t lane = lane_index(), warp = warp_index() % 4;
    UNROLL for (uint32_t i = 0; i < 4; i++) {
        uint32_t r[4];
        for (uint32_t j = 0; j < 4; j++) r[j] = pack_bf16x2(d[8 * i + 2 * j], d[8 * i + 2 * j + 1]);
        stmatrix_x4(swizzle_128b(tile + (16 * warp + lane % 16) * ROW_BYTES + (2 * i + lane / 16) * 16), r);
    }
    if (p->fault != STORE_NOT_FENCED) fence_proxy_async_shared();
    if (p->fault != STORE_NOT_SYNCED) named_barrier_sync(1, 128);
    if (thread_index() % 128 == 0) {
        tma_store_2d(&p->c, tile, 0, 0);
        bulk_commit_group();
        if (p->fault == STORE_SOURCE_REUSED) shared_store_u32(tile + 64, 0);
        if (p->fault != STORE_NOT_WAITED) bulk_wait_group(0);
    }
}

DEVICE void ring_consumer(const ring_params *p, uint32_t base, uint32_t full, uint32_t empty) {
    const fault_kind fault = p->fault;
    float d[32];
    for (uint32_t i = 0; i < STEPS; i++) {
        uint32_t stage = i % STAGES, parity = i / STAGES % 2;
        if (fault == WRONG_PARITY) parity ^= 1;
        if (fault == READ_BY_OTHER_THREAD) {
            if (thread_index() % 128 == 0) mbarrier_wait(full + 8 * stage, parity);
        } else if (fault != NO_FULL_WAIT) {
            mbarrier_wait(full + 8 * stage, parity);
        }
        multiply(p, d, base + stage * TILE, base + (STAGES + stage) * TILE, i);
        if (fault == RELEASE_BEFORE_WAIT) arrive_once(empty + 8 * stage, fault);
        if (fault == ACCUMULATOR_READ_EARLY) d[0] = exp2_approx(d[0] * 0.5f);
        if (fault == ACCUMULATOR_STORED_EARLY) global_store_f32(p->out + thread_index(), d[1] + 1);
        if (fault == ACCUMULATOR_WRITTEN_EARLY) d[3] = 0;
        if (fault == ACCUMULATOR_FENCED_EARLY) register_fence_f32(d, 32);
        if (fault != NO_WAIT) wgmma_wait_group(0);
        register_fence_f32(d, 32);
        if (fault != RELEASE_BEFORE_WAIT) arrive_once(empty + 8 * stage, fault);
    }
    store_result(p, d, base + 2 * STAGES * TILE);
}

KERNEL(fa_test_ring, 256, 1, ring_params, params) {
    uint32_t base = shared_base(), full = base + (2 * STAGES + 1) * TILE, empty = full + 8 * STAGES;
    if (thread_index() == 0 && params->fault != BARRIER_NOT_INITIALISED) {
        for (uint32_t i = 0; i < STAGES; i++) {
            mbarrier_init(full + 8 * i, 1);
            mbarrier_init(empty + 8 * i, 1);
        }
        if (params->fault != BARRIER_NOT_FENCED) fence_mbarrier_init();
        if (params->fault == BARRIER_OVERWRITTEN) shared_store_f32(full + 4, 1);
    }
    if (params->fault != BARRIER_NOT_SYNCED) block_sync();
    if (warpgroup_index() == 0) {
        if (thread_index() == 32) ring_producer(params, base, full, empty);
    } else {
        ring_consumer(params, base, full, empty);
    }
}

/* ---- The tests ---- */

typedef struct {
    uint16_t *a, *b, *c;
    float *out;
    ring_params params;
} ring;

static void encode(fa_tensor_map *map, void *address, uint32_t rows, uint32_t box_rows) {
    const uint64_t dims[2] = {64, rows}, strides[1] = {ROW_BYTES};
    const uint32_t box[2] = {64, box_rows}, dense[2] = {1, 1};
    assert_int_equal(fa_emulator_encode_tensor_map(map, FA_TENSOR_MAP_BFLOAT16, 2, address, dims, strides, box, dense,
                                                   FA_TENSOR_MAP_SWIZZLE_128B, false, NULL),
                     FA_EMULATOR_OK);
}

static ring make_ring(fa_emulator *device, uint32_t box_rows) {
    ring r;
    uint64_t stream = 1;
    memset(&r, 0, sizeof r);
    r.a = fa_emulator_allocate(device, STEPS * TILE);
    r.b = fa_emulator_allocate(device, STEPS * TILE);
    r.c = fa_emulator_allocate(device, TILE);
    r.out = fa_emulator_allocate(device, 256 * sizeof(float));
    for (uint32_t i = 0; i < STEPS * TILE / 2; i++) r.a[i] = to_bf16(next_small(&stream));
    for (uint32_t i = 0; i < STEPS * TILE / 2; i++) r.b[i] = to_bf16(next_small(&stream));
    encode(&r.params.a, r.a, STEPS * ROWS, box_rows);
    encode(&r.params.b, r.b, STEPS * ROWS, ROWS);
    encode(&r.params.c, r.c, ROWS, ROWS);
    r.params.out = r.out;
    return r;
}

static void free_ring(fa_emulator *device, ring *r) {
    fa_emulator_free(device, r->a);
    fa_emulator_free(device, r->b);
    fa_emulator_free(device, r->c);
    fa_emulator_free(device, r->out);
}

static void test_no_fault(void **state) {
    ring r = make_ring(*state, ROWS);
    const test_launch launch = {&fa_test_ring, &r.params, 1, 256, 1, SHARED_BYTES};
    for (uint64_t seed = 0; seed < 50; seed++) {
        memset(r.c, 0xFF, TILE);
        expect_success(*state, &launch, seed);
        for (uint32_t i = 0; i < ROWS; i++)
            for (uint32_t j = 0; j < 64; j++) {
                float sum = 0;
                for (uint32_t s = 0; s < STEPS; s++)
                    for (uint32_t k = 0; k < 64; k++)
                        sum += from_bf16(r.a[(s * ROWS + i) * 64 + k]) * from_bf16(r.b[(s * ROWS + j) * 64 + k]);
                float difference = from_bf16(r.c[i * 64 + j]) - sum, bound = 0x1p-8f * (sum < 0 ? -sum : sum);
                if (!(difference <= bound && -difference <= bound))
                    fail_msg("seed %u: C[%u][%u] is wrong", (unsigned)seed, i, j);
            }
    }
    free_ring(*state, &r);
}

static void expect_fault(fa_emulator *device, fault_kind fault, uint32_t box_rows, fa_emulator_status status,
                         const char *text, const char *more) {
    ring r = make_ring(device, box_rows);
    r.params.fault = fault;
    const test_launch launch = {&fa_test_ring, &r.params, 1, 256, 1, SHARED_BYTES};
    expect_report(device, &launch, status, text, more);
    free_ring(device, &r);
}

static void test_missing_waits(void **state) {
    const fa_emulator_status broken = FA_EMULATOR_RULE_BROKEN;
    expect_fault(*state, NO_FULL_WAIT, ROWS, broken, "wgmma operand", "reads shared memory");
    expect_fault(*state, WRONG_PARITY, ROWS, broken, "wgmma operand", "reads shared memory");
    expect_fault(*state, READ_BY_OTHER_THREAD, ROWS, broken, "wgmma operand", "without having waited for that phase");
    expect_fault(*state, RELEASE_BEFORE_WAIT, ROWS, broken, "read by a wgmma", "wgmma_wait_group");
    expect_fault(*state, NO_WAIT, ROWS, broken, "register_fence", "in flight");
    expect_fault(*state, STORE_NOT_WAITED, ROWS, broken, "bulk_wait_group_read", "block ends");
    expect_fault(*state, LOAD_NOT_WAITED, ROWS, broken, "the block ends while 1 loads", "in flight");
}

static void test_layout_mistakes(void **state) {
    const fa_emulator_status broken = FA_EMULATOR_RULE_BROKEN;
    expect_fault(*state, OVERLAPPING_STAGES, ROWS, broken, "overwrites shared memory", "tma_load");
    expect_fault(*state, WRONG_SWIZZLE, ROWS, broken, "the descriptor names swizzle 64B", "with swizzle 128B");
    expect_fault(*state, DESCRIPTOR_MISALIGNED, ROWS, broken, "wgmma_descriptor", "misaligned");
    expect_fault(*state, TILE_MISALIGNED, ROWS, broken, "wgmma operand a", "misaligned tile");
    expect_fault(*state, TILE_OUT_OF_RANGE, ROWS, broken, "wgmma operand a", "lie outside the block's shared memory");
    expect_fault(*state, WRONG_STRIDE, ROWS, broken, "stride 512 is not a multiple of the 1024", NULL);
}

/* Faults that show in one of two ways, whichever the order of execution brings first. */
static void expect_either(fa_emulator *device, fault_kind fault, uint32_t box_rows, const char *text,
                          const char *other) {
    ring r = make_ring(device, box_rows);
    r.params.fault = fault;
    const test_launch launch = {&fa_test_ring, &r.params, 1, 256, 1, SHARED_BYTES};
    for (uint64_t seed = 0; seed < 8; seed++) {
        fa_emulator_report report = run_kernel(device, &launch, seed);
        if (report.status == FA_EMULATOR_OK || (!strstr(report.text, text) && !strstr(report.text, other)))
            fail_msg("seed %u: status %d: %s", (unsigned)seed, (int)report.status, report.text);
    }
    free_ring(device, &r);
}

static void test_producer_without_brake(void **state) {
    expect_either(*state, NO_EMPTY_WAIT, ROWS, "overwrites shared memory", "over-arrival");
}

static void test_box_off_by_one(void **state) {
    expect_fault(*state, NO_FAULT, ROWS - 1, FA_EMULATOR_DEADLOCK, "0 of 1 arrivals missing, 128 bytes missing",
                 "warp 1 lane 0 waits for parity");
    /* A row too many runs into the next stage, or its bytes come on top of those expected. */
    expect_either(*state, NO_FAULT, ROWS + 1, "128 bytes more landed than were expected", "overwrites shared memory");
}

static void test_barrier_mistakes(void **state) {
    const fa_emulator_status broken = FA_EMULATOR_RULE_BROKEN;
    expect_fault(*state, OVER_ARRIVAL, ROWS, broken, "over-arrival", "mbarrier_arrive");
    expect_fault(*state, TOO_FEW_ARRIVALS, ROWS, FA_EMULATOR_DEADLOCK, "1 of 1 arrivals missing", "waits for parity");
    expect_fault(*state, WRONG_BYTES_EXPECTED, ROWS, broken, "16 bytes more landed than were expected", NULL);
    expect_fault(*state, BARRIER_NOT_FENCED, ROWS, broken, "initialised without a fence_mbarrier_init", "tma_load");
    expect_fault(*state, BARRIER_NOT_SYNCED, ROWS, broken, "mbarrier", NULL);
    expect_fault(*state, BARRIER_NOT_INITIALISED, ROWS, broken, "no initialised mbarrier", NULL);
    expect_fault(*state, BARRIER_OVERWRITTEN, ROWS, broken, "belongs to an mbarrier", "shared_store");
}

static void test_wrong_barrier(void **state) {
    expect_either(*state, WRONG_BARRIER, ROWS, "reads shared memory", "bytes");
}

static void test_register_mistakes(void **state) {
    const fa_emulator_status broken = FA_EMULATOR_RULE_BROKEN;
    expect_fault(*state, ACCUMULATOR_READ_EARLY, ROWS, broken, "exp2_approx", "read before the wgmma_wait_group");
    expect_fault(*state, ACCUMULATOR_STORED_EARLY, ROWS, broken, "global_store", "read before the wgmma_wait_group");
    expect_fault(*state, ACCUMULATOR_WRITTEN_EARLY, ROWS, broken, "accumulator 3",
                 "written while the wgmma was in flight");
    expect_fault(*state, ACCUMULATOR_FENCED_EARLY, ROWS, broken, "register_fence", "in flight");
    expect_fault(*state, NO_WGMMA_FENCE, ROWS, broken, "no wgmma_fence", NULL);
    expect_fault(*state, NO_COMMIT, ROWS, broken, "register_fence", "in flight");
    expect_fault(*state, DIVERGENT_WGMMA, ROWS, broken, "wgmma", NULL);
    expect_fault(*state, DIFFERENT_DESCRIPTORS, ROWS, broken, "must be the same in all 128", NULL);
}

static void test_store_mistakes(void **state) {
    const fa_emulator_status broken = FA_EMULATOR_RULE_BROKEN;
    expect_fault(*state, STORE_NOT_FENCED, ROWS, broken, "tma_store", "fence_proxy_async_shared");
    expect_fault(*state, STORE_NOT_SYNCED, ROWS, broken, "tma_store", "without a barrier between the two");
    expect_fault(*state, STORE_SOURCE_REUSED, ROWS, broken, "shared_store", "bulk store");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_fault),
        cmocka_unit_test(test_missing_waits),
        cmocka_unit_test(test_producer_without_brake),
        cmocka_unit_test(test_layout_mistakes),
        cmocka_unit_test(test_box_off_by_one),
        cmocka_unit_test(test_barrier_mistakes),
        cmocka_unit_test(test_wrong_barrier),
        cmocka_unit_test(test_register_mistakes),
        cmocka_unit_test(test_store_mistakes),
    };
    return cmocka_run_group_tests(tests, create_device, destroy_device);
}
