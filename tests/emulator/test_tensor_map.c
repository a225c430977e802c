/* SPDX-License-Identifier: Apache-2.0 */
/* TMA and bulk copies against their definition: the box of a tensor map, dimension 0 fastest, zeros outside the tensor,
 * 16 byte chunks permuted by the swizzle. And the refusals of the encoder. */
#include "test_emulator.h"

#include "instructions/instructions.h"

/* ---- Encoding ---- */

typedef struct {
    fa_tensor_map_type type;
    uint32_t rank;
    uintptr_t address;
    uint64_t dims[5], strides[4];
    uint32_t box[5], dense[5];
    fa_tensor_map_swizzle swizzle;
    bool nan_fill;
} map_description;

static const map_description good = {.type = FA_TENSOR_MAP_BFLOAT16,
                                     .rank = 5,
                                     .address = 0x1000,
                                     .dims = {64, 1000, 2, 3, 4},
                                     .strides = {512, 128, 256, 512000},
                                     .box = {64, 128, 2, 1, 1},
                                     .dense = {1, 1, 1, 1, 1},
                                     .swizzle = FA_TENSOR_MAP_SWIZZLE_128B};

static fa_emulator_status encode(fa_tensor_map *map, const map_description *d, char *text) {
    return fa_emulator_encode_tensor_map(map, d->type, d->rank, (const void *)d->address, d->dims, d->strides, d->box,
                                         d->dense, d->swizzle, d->nan_fill, text);
}

#define EXPECT_REFUSED(change, expected)                                                   \
    do {                                                                                   \
        map_description d = good;                                                          \
        fa_tensor_map map;                                                                 \
        char text[FA_EMULATOR_TEXT] = "";                                                  \
        change;                                                                            \
        assert_int_equal(encode(&map, &d, text), FA_EMULATOR_REFUSED);                     \
        if (!strstr(text, expected)) fail_msg("expected \"%s\", got: %s", expected, text); \
    } while (0)

static void test_encode(void **state) {
    (void)state;
    fa_tensor_map accepted;
    assert_int_equal(encode(&accepted, &good, NULL), FA_EMULATOR_OK);
    EXPECT_REFUSED(d.rank = 0, "rank 0");
    EXPECT_REFUSED(d.rank = 6, "rank 6");
    EXPECT_REFUSED(d.address = 0x1008, "must be a multiple of 16");
    EXPECT_REFUSED(d.address = 0, "must be a multiple of 16");
    EXPECT_REFUSED(d.dims[2] = 0, "dims[2] = 0");
    EXPECT_REFUSED(d.dims[1] = (UINT64_C(1) << 32) + 1, "dims[1]");
    EXPECT_REFUSED(d.strides[0] = 520, "strides[0] = 520");
    EXPECT_REFUSED(d.strides[3] = UINT64_C(1) << 40, "strides[3]");
    EXPECT_REFUSED(d.box[1] = 257, "box[1] = 257");
    EXPECT_REFUSED(d.box[4] = 0, "box[4] = 0");
    EXPECT_REFUSED(d.box[0] = 20, "must be a multiple of 16");
    EXPECT_REFUSED(d.box[0] = 128, "at most 128 with this swizzle");
    EXPECT_REFUSED(d.swizzle = FA_TENSOR_MAP_SWIZZLE_64B, "at most 64 with this swizzle");
    EXPECT_REFUSED(d.swizzle = (fa_tensor_map_swizzle)4, "swizzle 4 is unknown");
    EXPECT_REFUSED(d.dense[1] = 2, "element_strides[1] = 2");
    EXPECT_REFUSED(d.type = (fa_tensor_map_type)77, "type 77");
    EXPECT_REFUSED(d.type = FA_TENSOR_MAP_UINT16; d.nan_fill = true, "NaN fill");
    map_description largest = good; /* the limits themselves are allowed */
    largest.dims[1] = UINT64_C(1) << 32;
    largest.strides[3] = (UINT64_C(1) << 40) - 16;
    largest.box[1] = 256;
    assert_int_equal(encode(&accepted, &largest, NULL), FA_EMULATOR_OK);
}

/* ---- Loads and stores ---- */

typedef enum { LOAD, STORE, REDUCE } direction;

typedef struct {
    fa_tensor_map map;
    int32_t c[5];
    uint32_t rank, bytes;
    direction what;
    uint8_t *image; /* of shared memory */
} box_params;

DEVICE void load(const box_params *p, uint32_t tile, uint32_t bar) {
    const int32_t *c = p->c;
    if (p->rank == 2) tma_load_2d(tile, &p->map, bar, c[0], c[1]);
    if (p->rank == 3) tma_load_3d(tile, &p->map, bar, c[0], c[1], c[2]);
    if (p->rank == 4) tma_load_4d_hint(tile, &p->map, bar, c[0], c[1], c[2], c[3], L2_EVICT_FIRST);
    if (p->rank == 5) tma_load_5d(tile, &p->map, bar, c[0], c[1], c[2], c[3], c[4]);
}

DEVICE void store(const box_params *p, uint32_t tile) {
    const int32_t *c = p->c;
    const fa_tensor_map *map = &p->map;
    if (p->what == STORE) {
        if (p->rank == 2) tma_store_2d(map, tile, c[0], c[1]);
        if (p->rank == 3) tma_store_3d(map, tile, c[0], c[1], c[2]);
        if (p->rank == 4) tma_store_4d(map, tile, c[0], c[1], c[2], c[3]);
        if (p->rank == 5) tma_store_5d(map, tile, c[0], c[1], c[2], c[3], c[4]);
    } else {
        if (p->rank == 2) tma_reduce_add_2d(map, tile, c[0], c[1]);
        if (p->rank == 3) tma_reduce_add_3d(map, tile, c[0], c[1], c[2]);
        if (p->rank == 4) tma_reduce_add_4d(map, tile, c[0], c[1], c[2], c[3]);
        if (p->rank == 5) tma_reduce_add_5d(map, tile, c[0], c[1], c[2], c[3], c[4]);
    }
    bulk_commit_group();
    bulk_wait_group(0);
}

KERNEL(fa_test_box, 128, 1, box_params, params) {
    const uint32_t bar = shared_base(), tile = bar + 1024, t = thread_index();
    if (params->what == LOAD) {
        if (t == 0) {
            mbarrier_init(bar, 1);
            fence_mbarrier_init();
            tensor_map_prefetch(&params->map);
            mbarrier_arrive_expect_tx(bar, params->bytes);
            load(params, tile, bar);
        }
        block_sync();
        mbarrier_wait(bar, 0);
        for (uint32_t i = 16 * t; i < params->bytes; i += 16 * 128)
            global_store_u32x4(params->image + i, shared_load_u32x4(tile + i));
    } else {
        for (uint32_t i = 16 * t; i < params->bytes; i += 16 * 128)
            shared_store_u32x4(tile + i, global_load_u32x4(params->image + i));
        fence_proxy_async_shared();
        block_sync();
        if (t == 0) store(params, tile);
    }
}

enum { TENSOR_BYTES = 1 << 16 };

/* Byte offset of an element in the tensor, or -1 outside. */
static int64_t element_offset(const map_description *d, const int32_t *c, const uint32_t *index, uint32_t element) {
    int64_t offset = 0;
    for (uint32_t i = 0; i < d->rank; i++) {
        int64_t at = (int64_t)c[i] + index[i];
        if (at < 0 || at >= (int64_t)d->dims[i]) return -1;
        offset += at * (i == 0 ? (int64_t)element : (int64_t)d->strides[i - 1]);
    }
    return offset;
}

/* Row r, chunk c of a swizzled tile: 128B: c ^ (r & 7), 64B: c ^ ((r >> 1) & 3), 32B: c ^ ((r >> 2) & 1). */
static uint32_t image_offset(fa_tensor_map_swizzle swizzle, uint32_t linear) {
    const uint32_t span = swizzle == FA_TENSOR_MAP_SWIZZLE_NONE ? 16 : 16u << (uint32_t)swizzle;
    uint32_t row = linear / span, chunk = linear % span / 16;
    if (swizzle == FA_TENSOR_MAP_SWIZZLE_128B) chunk ^= row & 7;
    if (swizzle == FA_TENSOR_MAP_SWIZZLE_64B) chunk ^= row >> 1 & 3;
    if (swizzle == FA_TENSOR_MAP_SWIZZLE_32B) chunk ^= row >> 2 & 1;
    return row * span + chunk * 16 + linear % 16;
}

static void try_box(fa_emulator *device, const map_description *description, const int32_t *c, direction what) {
    const uint32_t element = description->type == FA_TENSOR_MAP_FLOAT32 ? 4
                             : description->type == FA_TENSOR_MAP_UINT8 ? 1
                                                                        : 2;
    map_description d = *description;
    uint8_t *tensor = fa_emulator_allocate(device, TENSOR_BYTES), *expected = malloc(TENSOR_BYTES);
    assert_non_null(expected);
    for (uint32_t i = 0; i < TENSOR_BYTES; i++) tensor[i] = (uint8_t)(i * 7 + i / 256 * 3 + 1);
    if (d.type == FA_TENSOR_MAP_FLOAT32)
        for (uint32_t i = 0; i < TENSOR_BYTES / 4; i++) ((float *)(void *)tensor)[i] = (float)(i % 1000);
    memcpy(expected, tensor, TENSOR_BYTES);
    d.address = (uintptr_t)tensor;
    box_params params = {.rank = d.rank, .what = what, .bytes = element};
    char text[FA_EMULATOR_TEXT];
    if (encode(&params.map, &d, text) != FA_EMULATOR_OK) fail_msg("%s", text);
    memcpy(params.c, c, d.rank * sizeof *c);
    for (uint32_t i = 0; i < d.rank; i++) params.bytes *= d.box[i];
    params.image = fa_emulator_allocate(device, params.bytes);
    if (what != LOAD)
        for (uint32_t i = 0; i < params.bytes; i += 4)
            ((float *)(void *)params.image)[i / 4] = (float)(i % 503); /* small integers: sums are exact */
    const test_launch launch = {&fa_test_box, &params, 1, 128, 1, 1024 + params.bytes};
    fa_emulator_counters counters = expect_success(device, &launch, 1 + (uint64_t)c[0]);

    uint32_t index[5] = {0}, inside = 0;
    for (uint32_t linear = 0; linear < params.bytes; linear += element) {
        int64_t offset = element_offset(&d, c, index, element);
        uint8_t *image = params.image + image_offset(d.swizzle, linear);
        inside += offset >= 0 ? element : 0;
        if (what == LOAD) {
            uint8_t nothing[4] = {0, 0, 0, 0};
            if (d.nan_fill) memset(nothing, 0xFF, 4);
            assert_memory_equal(image, offset >= 0 ? tensor + offset : nothing, element);
        } else if (offset >= 0) {
            float sum = what == REDUCE ? *(float *)(void *)(expected + offset) + *(float *)(void *)image : 0;
            if (what == REDUCE)
                memcpy(expected + offset, &sum, 4);
            else
                memcpy(expected + offset, image, element);
        }
        for (uint32_t i = 0; i < d.rank && ++index[i] == d.box[i]; i++) index[i] = 0;
    }
    assert_memory_equal(tensor, expected, TENSOR_BYTES);
    assert_int_equal(counters.async_copy_bytes, inside);
    fa_emulator_free(device, params.image);
    fa_emulator_free(device, tensor);
    free(expected);
}

static void test_boxes(void **state) {
    static const int32_t places[][5] = {{0, 0, 0, 0, 0},   {8, 3, 1, 1, 1},   {-8, -3, 0, 0, 0}, {40, 30, 1, 1, 1},
                                        {100, 0, 0, 0, 0}, {3, -20, 0, 0, 0}, {0, 5, -1, 2, 0},  {-200, 0, 0, 9, 0}};
    for (uint32_t rank = 2; rank <= 5; rank++)
        for (uint32_t swizzle = 0; swizzle < 4; swizzle++)
            for (uint32_t place = 0; place < 8; place++) {
                map_description d = {.type = FA_TENSOR_MAP_BFLOAT16,
                                     .rank = rank,
                                     .dims = {50, 36, 2, 2, 2},
                                     .strides = {128, 5120, 10240, 20480},
                                     .box = {16, 10, 2, 1, 2},
                                     .dense = {1, 1, 1, 1, 1},
                                     .swizzle = (fa_tensor_map_swizzle)swizzle};
                if (swizzle >= 2) d.box[0] = 8u << swizzle; /* full rows of 64 and 128 bytes */
                d.nan_fill = place % 2;
                try_box(*state, &d, places[place], LOAD);
                try_box(*state, &d, places[place], STORE);
                d.type = FA_TENSOR_MAP_FLOAT32;
                d.box[0] /= 2;
                try_box(*state, &d, places[place], REDUCE);
            }
}

/* The whole-tile trick: (64 columns, rows, halves of d, head, batch) with strides that are not nested. */
static void test_row_of_two_halves(void **state) {
    const map_description d = {.type = FA_TENSOR_MAP_BFLOAT16,
                               .rank = 5,
                               .dims = {64, 30, 2, 2, 2},
                               .strides = {512, 128, 256, 15360},
                               .box = {64, 16, 2, 1, 1},
                               .dense = {1, 1, 1, 1, 1},
                               .swizzle = FA_TENSOR_MAP_SWIZZLE_128B};
    const int32_t c[5] = {0, 20, 0, 1, 1};
    try_box(*state, &d, c, LOAD);
    try_box(*state, &d, c, STORE);
}

static void test_bytes(void **state) {
    const map_description d = {.type = FA_TENSOR_MAP_UINT8,
                               .rank = 2,
                               .dims = {100, 40},
                               .strides = {112},
                               .box = {32, 24},
                               .dense = {1, 1},
                               .swizzle = FA_TENSOR_MAP_SWIZZLE_32B};
    const int32_t c[2] = {80, 30};
    try_box(*state, &d, c, LOAD);
    try_box(*state, &d, c, STORE);
}

/* ---- Bulk copies ---- */

typedef struct {
    uint8_t *in, *out;
    float *sum;
    uint32_t bytes, fault;
} bulk_params;

KERNEL(fa_test_bulk, 64, 1, bulk_params, params) {
    const uint32_t bar = shared_base(), data = bar + 16, t = thread_index();
    if (t == 0) {
        mbarrier_init(bar, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(bar, params->bytes);
        bulk_load(data + (params->fault == 1 ? 8 : 0), params->in, params->bytes, bar);
    }
    block_sync();
    mbarrier_wait(bar, 0);
    if (t == 32) {
        bulk_store(params->out, data, params->bytes);
        bulk_commit_group();
        bulk_reduce_add_f32(params->sum, data, params->bytes);
        bulk_reduce_add_f32(params->sum, data, params->bytes);
        bulk_commit_group();
        bulk_wait_group_read(0);
        if (params->fault != 2) bulk_wait_group(1);
    }
}

static void test_bulk(void **state) {
    bulk_params params = {fa_emulator_allocate(*state, 4096), fa_emulator_allocate(*state, 4096),
                          fa_emulator_allocate(*state, 4096), 4096, 0};
    const test_launch launch = {&fa_test_bulk, &params, 3, 64, 1, 4096 + 32};
    for (uint32_t i = 0; i < 1024; i++) {
        ((float *)(void *)params.in)[i] = (float)i;
        params.sum[i] = 1;
    }
    expect_success(*state, &launch, 1);
    assert_memory_equal(params.in, params.out, 4096);
    for (uint32_t i = 0; i < 1024; i++) assert_true(params.sum[i] == 1 + 6 * (float)i);
    params.bytes = 4095;
    expect_report(*state, &launch, FA_EMULATOR_RULE_BROKEN, "4095 bytes", "multiple of 16");
    params.bytes = 4112;
    expect_report(*state, &launch, FA_EMULATOR_RULE_BROKEN, "run past the end", "bulk_load");
    params.bytes = 4096;
    params.fault = 1;
    expect_report(*state, &launch, FA_EMULATOR_RULE_BROKEN, "not a multiple of 16", "bulk_load");
    fa_emulator_free(*state, params.in);
    fa_emulator_free(*state, params.out);
    fa_emulator_free(*state, params.sum);
}

/* ---- Mistakes ---- */

typedef struct {
    fa_tensor_map map;
    uint32_t fault;
} fault_params;

KERNEL(fa_test_tma_faults, 32, 1, fault_params, params) {
    const uint32_t bar = shared_base(), tile = bar + 1024;
    if (thread_index() != 0) return;
    mbarrier_init(bar, 1);
    fence_mbarrier_init();
    switch (params->fault) {
    case 0: tma_load_2d(tile + 64, &params->map, bar, 0, 0); break;
    case 1: tma_load_3d(tile, &params->map, bar, 0, 0, 0); break;
    case 2: tma_load_2d(tile + 1024, &params->map, bar, 0, 0); break;
    case 3: tma_load_2d(bar, &params->map, bar, 0, 0); break;
    case 4: tma_store_2d(&params->map, tile, 0, 0); break;
    case 5: tma_load_2d_multicast(tile, &params->map, bar, 0, 0, 2, L2_EVICT_LAST); break;
    case 6: tma_load_2d_hint(tile, &params->map, bar, 0, 0, 7); break;
    default: {
        fa_tensor_map fresh = {{0}};
        tma_load_2d(tile, &fresh, bar, 0, 0);
    }
    }
}

static void test_mistakes(void **state) {
    static const char *const texts[][2] = {{"is not a multiple of 128", "tma_load"},
                                           {"3 coordinates for a tensor map of rank 2", "tma_load"},
                                           {"lie outside the block's shared memory", "tma_load"},
                                           {"belongs to an mbarrier", "tma_load"},
                                           {"that nobody has written", "tma_store"},
                                           {"cta_mask 0x2", "tma_load_multicast"},
                                           {"cache policy 0x7", "tma_load"},
                                           {"is not an encoded tensor map", "tma_load"}};
    uint8_t *tensor = fa_emulator_allocate(*state, 4096);
    map_description d = {.type = FA_TENSOR_MAP_UINT8,
                         .rank = 2,
                         .address = (uintptr_t)tensor,
                         .dims = {64, 64},
                         .strides = {64},
                         .box = {64, 16},
                         .dense = {1, 1}};
    fault_params params;
    assert_int_equal(encode(&params.map, &d, NULL), FA_EMULATOR_OK);
    const test_launch launch = {&fa_test_tma_faults, &params, 1, 32, 1, 2048};
    for (params.fault = 0; params.fault < 8; params.fault++)
        expect_report(*state, &launch, FA_EMULATOR_RULE_BROKEN, texts[params.fault][0], texts[params.fault][1]);
    d.dims[1] = 65; /* the tensor does not lie in the memory that it names */
    d.address = (uintptr_t)tensor + 3968;
    assert_int_equal(encode(&params.map, &d, NULL), FA_EMULATOR_OK);
    const box_params box = {.map = params.map, .rank = 2, .bytes = 1024, .what = LOAD, .image = tensor};
    const test_launch outside = {&fa_test_box, &box, 1, 128, 1, 4096};
    expect_report(*state, &outside, FA_EMULATOR_RULE_BROKEN, "tma_load", "allocation");
    fa_emulator_free(*state, tensor);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode), cmocka_unit_test(test_boxes), cmocka_unit_test(test_row_of_two_halves),
        cmocka_unit_test(test_bytes),  cmocka_unit_test(test_bulk),  cmocka_unit_test(test_mistakes),
    };
    return cmocka_run_group_tests(tests, create_device, destroy_device);
}
