/* SPDX-License-Identifier: Apache-2.0 */
/* A small but complete Hopper kernel that keeps all rules: C = A B^T by a producer warp that feeds a ring of TMA
 * stages, two consumer warpgroups with wgmma, and an epilogue through stmatrix and a TMA store. It must pass with every
 * seed and give the right answer, also with clusters of two that share the B tiles by multicast, and on several host
 * threads. */
#include "test_emulator.h"

#include "instructions/instructions.h"

#define TILE_M 128
#define TILE_N 64
#define TILE_K 64
#define STAGES 3
#define CONSUMERS 2
#define THREADS (128 * (CONSUMERS + 1))
#define A_BYTES (TILE_M * TILE_K * 2)
#define B_BYTES (TILE_N * TILE_K * 2)
#define C_BYTES (TILE_M * TILE_N * 2)
#define SHARED_BYTES (STAGES * (A_BYTES + B_BYTES) + C_BYTES + 16 * STAGES)

typedef struct {
    fa_tensor_map a, b, c;
    uint32_t tiles_m, tiles_n, steps;
} product_params;

typedef struct {
    uint32_t index, parity;
} stage_state;

DEVICE void advance(stage_state *stage) {
    if (++stage->index == STAGES) {
        stage->index = 0;
        stage->parity ^= 1;
    }
}

typedef struct {
    uint32_t a, b, c, full, empty;
} shared_layout;

DEVICE shared_layout layout_of(uint32_t base) {
    shared_layout s;
    s.a = base;
    s.b = s.a + STAGES * A_BYTES;
    s.c = s.b + STAGES * B_BYTES;
    s.full = s.c + C_BYTES;
    s.empty = s.full + 8 * STAGES;
    return s;
}

/* With clusters, the blocks of a cluster work on neighbouring row tiles of the same column tile. */
DEVICE void tile_of(const product_params *p, uint32_t tile, uint32_t *m, uint32_t *n) {
    *m = tile % p->tiles_m;
    *n = tile / p->tiles_m;
}

DEVICE void producer(const product_params *p, shared_layout s) {
    stage_state stage = {0, 1};
    uint32_t m, n;
    for (uint32_t tile = block_index_x(); tile < p->tiles_m * p->tiles_n; tile += grid_blocks_x()) {
        tile_of(p, tile, &m, &n);
        for (uint32_t step = 0; step < p->steps; step++) {
            uint32_t full = s.full + 8 * stage.index;
            mbarrier_wait_cluster(s.empty + 8 * stage.index, stage.parity);
            mbarrier_arrive_expect_tx(full, A_BYTES + B_BYTES);
            tma_load_2d(s.a + stage.index * A_BYTES, &p->a, full, (int)(step * TILE_K), (int)(m * TILE_M));
            if (cluster_size() == 1) {
                tma_load_2d_hint(s.b + stage.index * B_BYTES, &p->b, full, (int)(step * TILE_K), (int)(n * TILE_N),
                                 L2_EVICT_LAST);
            } else { /* each block fetches half of the rows for both */
                uint32_t half = cluster_rank() * (TILE_N / 2);
                tma_load_2d_multicast(s.b + stage.index * B_BYTES + half * 128, &p->b, full, (int)(step * TILE_K),
                                      (int)(n * TILE_N + half), 3, L2_EVICT_LAST);
            }
            advance(&stage);
        }
    }
    /* A block may not end while its peer's consumers can still arrive here. */
    for (uint32_t i = 0; i < STAGES; i++) {
        mbarrier_wait_cluster(s.empty + 8 * stage.index, stage.parity);
        advance(&stage);
    }
}

DEVICE void release(shared_layout s, uint32_t index) {
    if (thread_index() % 128 < cluster_size())
        mbarrier_arrive_cluster(cluster_map(s.empty + 8 * index, thread_index() % 128));
}

DEVICE void store_tile(const product_params *p, shared_layout s, const float *d, uint32_t row, int column) {
    const uint32_t group = warpgroup_index() - 1, lane = lane_index(), warp = warp_index() % 4;
    const uint32_t tile = s.c + group * (64 * TILE_N * 2);
    if (warp == 0 && lane == 0) bulk_wait_group_read(0);
    named_barrier_sync(1 + group, 128);
    UNROLL for (uint32_t i = 0; i < TILE_N / 16; i++) {
        uint32_t r[4];
        for (uint32_t j = 0; j < 4; j++) r[j] = pack_bf16x2(d[8 * i + 2 * j], d[8 * i + 2 * j + 1]);
        uint32_t tile_row = 16 * warp + lane % 8 + 8 * (lane / 8 % 2), chunk = 2 * i + lane / 16;
        stmatrix_x4(swizzle_128b(tile + tile_row * 128 + chunk * 16), r);
    }
    fence_proxy_async_shared();
    named_barrier_sync(1 + group, 128);
    if (warp == 0 && lane == 0) {
        tma_store_2d(&p->c, tile, column, (int)(row + group * 64));
        bulk_commit_group();
    }
}

DEVICE void consumer(const product_params *p, shared_layout s) {
    const uint32_t group = warpgroup_index() - 1;
    stage_state stage = {0, 0};
    float d[TILE_N / 2];
    uint32_t m, n;
    for (uint32_t tile = block_index_x(); tile < p->tiles_m * p->tiles_n; tile += grid_blocks_x()) {
        tile_of(p, tile, &m, &n);
        uint32_t previous = 0;
        NO_UNROLL for (uint32_t step = 0; step < p->steps; step++) {
            mbarrier_wait(s.full + 8 * stage.index, stage.parity);
            uint64_t a = wgmma_descriptor(s.a + stage.index * A_BYTES + group * (64 * 128), 16, 1024, SWIZZLE_128B);
            uint64_t b = wgmma_descriptor(s.b + stage.index * B_BYTES, 16, 1024, SWIZZLE_128B);
            if (step == 0) register_fence_f32(d, TILE_N / 2);
            wgmma_fence();
            UNROLL for (uint32_t k = 0; k < TILE_K / 16; k++)
                wgmma_m64k16_ss(TILE_N, bf16, d, wgmma_descriptor_advance(a, 32 * k),
                                wgmma_descriptor_advance(b, 32 * k), step > 0 || k > 0, K_MAJOR, K_MAJOR);
            wgmma_commit_group();
            if (step > 0) { /* the product before this one is finished: its stage is free */
                wgmma_wait_group(1);
                release(s, previous);
            }
            previous = stage.index;
            advance(&stage);
        }
        wgmma_wait_group(0);
        register_fence_f32(d, TILE_N / 2);
        release(s, previous);
        store_tile(p, s, d, m * TILE_M, (int)(n * TILE_N));
    }
    if (thread_index() % 128 == 0) bulk_wait_group(0);
}

KERNEL(fa_test_product, THREADS, 1, product_params, params) {
    shared_layout s = layout_of(shared_base());
    if (thread_index() == 0) {
        for (uint32_t i = 0; i < STAGES; i++) {
            mbarrier_init(s.full + 8 * i, 1);
            mbarrier_init(s.empty + 8 * i, CONSUMERS * cluster_size());
        }
        fence_mbarrier_init();
    }
    if (cluster_size() > 1) {
        cluster_arrive();
        cluster_wait();
    } else {
        block_sync();
    }
    if (warpgroup_index() == 0) {
        set_max_registers_decrease(40);
        if (warp_index() == 0 && elect_one()) producer(params, s);
    } else {
        set_max_registers_increase(232);
        consumer(params, s);
    }
}

/* ---- The test ---- */

typedef struct {
    uint32_t m, n, k; /* any; the tiles at the edges are filled with zeros and cut */
    uint16_t *a, *b, *c;
    product_params params;
} problem;

static void encode(fa_tensor_map *map, void *address, uint64_t columns, uint64_t rows, uint32_t box_rows) {
    const uint64_t dims[2] = {columns, rows}, strides[1] = {columns * 2};
    const uint32_t box[2] = {64, box_rows}, dense[2] = {1, 1};
    char text[FA_EMULATOR_TEXT];
    if (fa_emulator_encode_tensor_map(map, FA_TENSOR_MAP_BFLOAT16, 2, address, dims, strides, box, dense,
                                      FA_TENSOR_MAP_SWIZZLE_128B, false, text) != FA_EMULATOR_OK)
        fail_msg("%s", text);
}

static problem make_problem(fa_emulator *device, uint32_t m, uint32_t n, uint32_t k, uint32_t cluster) {
    problem p = {.m = m, .n = n, .k = k};
    uint64_t stream = m * 31 + n * 7 + k;
    p.a = fa_emulator_allocate(device, (size_t)m * k * 2);
    p.b = fa_emulator_allocate(device, (size_t)n * k * 2);
    p.c = fa_emulator_allocate(device, (size_t)m * n * 2);
    for (size_t i = 0; i < (size_t)m * k; i++) p.a[i] = to_bf16(next_small(&stream));
    for (size_t i = 0; i < (size_t)n * k; i++) p.b[i] = to_bf16(next_small(&stream));
    encode(&p.params.a, p.a, k, m, TILE_M);
    encode(&p.params.b, p.b, k, n, TILE_N / cluster);
    encode(&p.params.c, p.c, n, m, 64);
    p.params.tiles_m = (m + TILE_M - 1) / TILE_M;
    p.params.tiles_n = (n + TILE_N - 1) / TILE_N;
    p.params.steps = (k + TILE_K - 1) / TILE_K;
    return p;
}

static void check_product(const problem *p, uint64_t seed) {
    for (uint32_t i = 0; i < p->m; i++)
        for (uint32_t j = 0; j < p->n; j++) {
            float sum = 0; /* multiples of 2^-8 below 2^10: exact */
            for (uint32_t l = 0; l < p->k; l++)
                sum += from_bf16(p->a[(size_t)i * p->k + l]) * from_bf16(p->b[(size_t)j * p->k + l]);
            float got = from_bf16(p->c[(size_t)i * p->n + j]), difference = got - sum;
            if (!(difference <= 0x1p-8f * (sum < 0 ? -sum : sum) && -difference <= 0x1p-8f * (sum < 0 ? -sum : sum)))
                fail_msg("seed %llu: C[%u][%u] = %g, expected %g", (unsigned long long)seed, i, j, (double)got,
                         (double)sum);
        }
}

static void free_problem(fa_emulator *device, problem *p) {
    fa_emulator_free(device, p->a);
    fa_emulator_free(device, p->b);
    fa_emulator_free(device, p->c);
}

static test_launch launch_of(const problem *p, uint32_t blocks, uint32_t cluster) {
    return (test_launch){&fa_test_product, &p->params, blocks, THREADS, cluster, SHARED_BYTES};
}

static void test_many_seeds(void **state) {
    problem p = make_problem(*state, 128, 64, 256, 1);
    test_launch launch = launch_of(&p, 1, 1);
    for (uint64_t seed = 0; seed < 40; seed++) {
        memset(p.c, 0xFF, (size_t)p.m * p.n * 2);
        expect_success(*state, &launch, seed);
        check_product(&p, seed);
    }
    free_problem(*state, &p);
}

static void test_edges_and_persistence(void **state) {
    problem p = make_problem(*state, 200, 136, 136, 1);
    test_launch launch = launch_of(&p, 2, 1);
    for (uint64_t seed = 0; seed < 3; seed++) {
        memset(p.c, 0xFF, (size_t)p.m * p.n * 2);
        expect_success(*state, &launch, seed);
        check_product(&p, seed);
    }
    free_problem(*state, &p);
}

static void test_cluster_multicast(void **state) {
    problem p = make_problem(*state, 512, 128, 320, 2);
    test_launch launch = launch_of(&p, 4, 2);
    for (uint64_t seed = 0; seed < 10; seed++) {
        memset(p.c, 0xFF, (size_t)p.m * p.n * 2);
        expect_success(*state, &launch, seed);
        check_product(&p, seed);
    }
    free_problem(*state, &p);
}

static void test_counters(void **state) {
    problem p = make_problem(*state, 128, 64, 256, 1);
    test_launch launch = launch_of(&p, 1, 1);
    fa_emulator_counters counters = expect_success(*state, &launch, 1);
    assert_int_equal(counters.tensor_flops, 2ull * 128 * 64 * 256);
    assert_int_equal(counters.global_bytes_read, (128 + 64) * 256 * 2);
    assert_int_equal(counters.global_bytes_written, 128 * 64 * 2);
    assert_int_equal(counters.async_copy_bytes, counters.global_bytes_read + counters.global_bytes_written);
    /* Written: the tiles, and C once. Read: per wgmma A and B (32 bytes a row) for both consumers, and C once. */
    assert_int_equal(counters.shared_bytes_written, (128 + 64) * 256 * 2 + 128 * 64 * 2);
    assert_int_equal(counters.shared_bytes_read, 2 * 16 * (64 + 64) * 32 + 128 * 64 * 2);
    assert_int_equal(counters.exp2_calls, 0);
    free_problem(*state, &p);
}

static void test_host_threads(void **state) {
    problem p = make_problem(*state, 512, 128, 128, 1);
    const fa_emulator_launch launch = {
        .grid = {8, 1, 1}, .threads = THREADS, .shared_bytes = SHARED_BYTES, .seed = 5, .host_threads = 2};
    fa_emulator_report report, single;
    fa_emulator_run(*state, &fa_test_product, &p.params, &launch, &report);
    assert_string_equal(report.text, "");
    check_product(&p, 5);
    fa_emulator_launch one = launch;
    one.host_threads = 1;
    fa_emulator_run(*state, &fa_test_product, &p.params, &one, &single);
    assert_memory_equal(&single.counters, &report.counters, sizeof single.counters);
    free_problem(*state, &p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_seeds),        cmocka_unit_test(test_edges_and_persistence),
        cmocka_unit_test(test_cluster_multicast), cmocka_unit_test(test_counters),
        cmocka_unit_test(test_host_threads),
    };
    return cmocka_run_group_tests(tests, create_device, destroy_device);
}
