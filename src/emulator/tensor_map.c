/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor maps: encoding with the driver's rules, and the copies of boxes that they describe. */
#include <stdio.h>
#include <string.h>

#include "../element.h"
#include "state.h"

/* What the opaque bytes hold. */
typedef struct {
    uint64_t magic;
    uint64_t address;
    uint64_t strides[4];
    uint32_t last[5]; /* extent - 1: extents go up to 2^32 */
    uint16_t box[5];
    uint8_t type, rank, swizzle, nan_fill;
} map_content;

_Static_assert(sizeof(map_content) <= sizeof(fa_tensor_map), "the map must fit");

#define MAP_MAGIC UINT64_C(0x70616D726F736E74)

static map_content content_of(const fa_tensor_map *map) {
    map_content content;
    memcpy(&content, map, sizeof content);
    return content;
}

/* 0: not a type. */
static uint32_t element_bytes(uint32_t type) {
    static const uint8_t bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};
    return type < sizeof bytes ? bytes[type] : 0;
}

static bool is_floating(uint32_t type) {
    return type == FA_TENSOR_MAP_FLOAT16 || type == FA_TENSOR_MAP_BFLOAT16 || type == FA_TENSOR_MAP_FLOAT32 ||
           type == FA_TENSOR_MAP_FLOAT64;
}

#define REFUSE(...)                                                             \
    do {                                                                        \
        if (text) snprintf(text, FA_EMULATOR_TEXT, "tensor map: " __VA_ARGS__); \
        return FA_EMULATOR_REFUSED;                                             \
    } while (0)

fa_emulator_status fa_emulator_encode_tensor_map(fa_tensor_map *map, fa_tensor_map_type type, uint32_t rank,
                                                 const void *address, const uint64_t *dims, const uint64_t *strides,
                                                 const uint32_t *box, const uint32_t *element_strides,
                                                 fa_tensor_map_swizzle swizzle, bool nan_fill, char *text) {
    uint32_t bytes = element_bytes((uint32_t)type);
    if (bytes == 0) REFUSE("type %u is unknown", (unsigned)type);
    if ((uintptr_t)map % 64) REFUSE("the map at %p is not a multiple of 64", (void *)map);
    if (rank < 1 || rank > 5) REFUSE("rank %u: must be 1 to 5", rank);
    if (!address || (uintptr_t)address % 16) REFUSE("address %p: must be a multiple of 16", address);
    if ((uint32_t)swizzle > FA_TENSOR_MAP_SWIZZLE_128B) REFUSE("swizzle %u is unknown", (unsigned)swizzle);
    if (nan_fill && !is_floating((uint32_t)type))
        REFUSE("NaN fill needs a floating-point type, not %u", (unsigned)type);
    for (uint32_t i = 0; i < rank; i++) {
        if (dims[i] == 0 || dims[i] > UINT64_C(1) << 32)
            REFUSE("dims[%u] = %llu: must be 1 to 2^32", i, (unsigned long long)dims[i]);
        if (box[i] == 0 || box[i] > 256) REFUSE("box[%u] = %u: must be 1 to 256", i, box[i]);
        if (element_strides[i] != 1)
            REFUSE("element_strides[%u] = %u: the emulator knows 1 only", i, element_strides[i]);
        if (i > 0 && (strides[i - 1] % 16 || strides[i - 1] >= UINT64_C(1) << 40))
            REFUSE("strides[%u] = %llu: must be a multiple of 16 below 2^40", i - 1,
                   (unsigned long long)strides[i - 1]);
    }
    uint32_t row = box[0] * bytes;
    if (row % 16) REFUSE("box[0] = %u elements are %u bytes: must be a multiple of 16", box[0], row);
    uint32_t span = 16u << (uint32_t)swizzle;
    if (swizzle != FA_TENSOR_MAP_SWIZZLE_NONE && row > span)
        REFUSE("box[0] = %u elements are %u bytes: at most %u with this swizzle", box[0], row, span);

    map_content content = {.magic = MAP_MAGIC,
                           .address = (uint64_t)(uintptr_t)address,
                           .type = (uint8_t)type,
                           .rank = (uint8_t)rank,
                           .swizzle = (uint8_t)swizzle,
                           .nan_fill = nan_fill};
    for (uint32_t i = 0; i < 5; i++) {
        content.last[i] = i < rank ? (uint32_t)(dims[i] - 1) : 0;
        content.box[i] = i < rank ? (uint16_t)box[i] : 1;
        if (i > 0) content.strides[i - 1] = i < rank ? strides[i - 1] : 0;
    }
    memset(map, 0, sizeof *map);
    memcpy(map, &content, sizeof content);
    return FA_EMULATOR_OK;
}

uint32_t fa_tensor_map_check(const char *operation, const fa_tensor_map *map, uint32_t rank) {
    if ((uintptr_t)map % 64)
        fa_emulated_fail(operation, "the tensor map at %p is not a multiple of 64", (const void *)map);
    map_content m = content_of(map);
    if (m.magic != MAP_MAGIC) fa_emulated_fail(operation, "%p is not an encoded tensor map", (const void *)map);
    if (rank && m.rank != rank) fa_emulated_fail(operation, "%u coordinates for a tensor map of rank %u", rank, m.rank);
    return (uint32_t)m.box[0] * m.box[1] * m.box[2] * m.box[3] * m.box[4] * element_bytes(m.type);
}

bool fa_tensor_map_can_add(const fa_tensor_map *map) {
    switch (content_of(map).type) {
    case FA_TENSOR_MAP_FLOAT32:
    case FA_TENSOR_MAP_FLOAT16:
    case FA_TENSOR_MAP_BFLOAT16:
    case FA_TENSOR_MAP_UINT32:
    case FA_TENSOR_MAP_INT32:
    case FA_TENSOR_MAP_UINT64: return true;
    default: return false;
    }
}

fa_tensor_map_swizzle fa_tensor_map_swizzle_of(const fa_tensor_map *map) {
    return (fa_tensor_map_swizzle)content_of(map).swizzle;
}

/* ---- Boxes ---- */

/* One row of a box along dimension 0: where its part inside the tensor begins (NULL: nothing is inside), which elements
 * of the row that are. */
typedef struct {
    char *inside;
    uint32_t first, count;
} row_place;

typedef struct {
    map_content map;
    int64_t start[5];
    uint32_t rows, row_bytes, element_bytes;
} box_walk;

static box_walk walk_box(const fa_tensor_map *map, const int32_t *coordinates) {
    box_walk walk = {.map = content_of(map)};
    for (uint32_t i = 0; i < walk.map.rank; i++) walk.start[i] = coordinates[i];
    walk.rows = (uint32_t)walk.map.box[1] * walk.map.box[2] * walk.map.box[3] * walk.map.box[4];
    walk.element_bytes = element_bytes(walk.map.type);
    walk.row_bytes = walk.map.box[0] * walk.element_bytes;
    return walk;
}

static row_place place_row(const box_walk *walk, uint32_t row) {
    const map_content *m = &walk->map;
    uint64_t address = m->address;
    for (uint32_t d = 1; d < 5; d++) {
        int64_t c = walk->start[d] + row % m->box[d];
        row /= m->box[d];
        if (c < 0 || c > (int64_t)m->last[d]) return (row_place){NULL, 0, 0};
        address += (uint64_t)c * m->strides[d - 1];
    }
    int64_t first = walk->start[0] < 0 ? -walk->start[0] : 0;
    int64_t end = (int64_t)m->last[0] + 1 - walk->start[0];
    if (end > m->box[0]) end = m->box[0];
    if (first >= end) return (row_place){NULL, 0, 0};
    address += (uint64_t)(walk->start[0] + first) * walk->element_bytes;
    return (row_place){(char *)(uintptr_t)address, (uint32_t)first, (uint32_t)(end - first)};
}

uint64_t fa_tensor_check_global(fa_thread *self, const char *operation, const fa_tensor_map *map,
                                const int32_t *coordinates, bool write) {
    box_walk walk = walk_box(map, coordinates);
    uint64_t bytes = 0;
    for (uint32_t row = 0; row < walk.rows; row++) {
        row_place place = place_row(&walk, row);
        if (!place.inside) continue;
        fa_check_global(self, operation, place.inside, place.count * walk.element_bytes, 1, write);
        bytes += place.count * walk.element_bytes;
    }
    return bytes;
}

/* The 16 byte chunks of rows of 32, 64 or 128 bytes are permuted by address bits 7 and up. */
static uint32_t swizzled(uint32_t swizzle, uint32_t address) {
    static const uint32_t masks[] = {0, 0x10, 0x30, 0x70};
    return address ^ ((address >> 3) & masks[swizzle]);
}

static void fill(const map_content *m, uint8_t *row, uint32_t bytes) {
    memset(row, 0, bytes);
    if (!m->nan_fill) return;
    memset(row, 0xFF, bytes);
}

enum { MAX_ROW_BYTES = 256 * 8 };

void fa_tensor_load(const fa_tensor_map *map, const int32_t *coordinates, uint8_t *shared, uint32_t address) {
    box_walk walk = walk_box(map, coordinates);
    uint8_t buffer[MAX_ROW_BYTES];
    for (uint32_t row = 0; row < walk.rows; row++) {
        row_place place = place_row(&walk, row);
        if (place.count != walk.map.box[0]) fill(&walk.map, buffer, walk.row_bytes);
        if (place.inside)
            memcpy(buffer + place.first * walk.element_bytes, place.inside, place.count * walk.element_bytes);
        for (uint32_t i = 0; i < walk.row_bytes; i += 16)
            memcpy(shared + swizzled(walk.map.swizzle, address + i) - FA_SHARED_START, buffer + i, 16);
        address += walk.row_bytes;
    }
}

void fa_tensor_unswizzle(const fa_tensor_map *map, const uint8_t *shared, uint32_t address, uint8_t *image) {
    map_content m = content_of(map);
    uint32_t bytes = fa_tensor_map_check("tma_store", map, 0);
    for (uint32_t i = 0; i < bytes; i += 16)
        memcpy(image + i, shared + swizzled(m.swizzle, address + i) - FA_SHARED_START, 16);
}

static void add_16bit(uint16_t *address, uint16_t value, bool bfloat) {
    uint16_t old = __atomic_load_n(address, __ATOMIC_RELAXED), sum;
    do {
        sum = bfloat ? fa_bfloat16_from_float(fa_float_from_bfloat16(old) + fa_float_from_bfloat16(value))
                     : fa_float16_from_float(fa_float_from_float16(old) + fa_float_from_float16(value));
    } while (!__atomic_compare_exchange_n(address, &old, sum, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

static void add_row(uint32_t type, char *to, const uint8_t *from, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        uint16_t h;
        uint32_t u;
        uint64_t w;
        float f;
        switch (type) {
        case FA_TENSOR_MAP_FLOAT32:
            memcpy(&f, from + 4 * i, sizeof f);
            fa_add_f32((float *)(void *)to + i, f);
            break;
        case FA_TENSOR_MAP_FLOAT16:
        case FA_TENSOR_MAP_BFLOAT16:
            memcpy(&h, from + 2 * i, sizeof h);
            add_16bit((uint16_t *)(void *)to + i, h, type == FA_TENSOR_MAP_BFLOAT16);
            break;
        case FA_TENSOR_MAP_UINT32:
        case FA_TENSOR_MAP_INT32:
            memcpy(&u, from + 4 * i, sizeof u);
            __atomic_fetch_add((uint32_t *)(void *)to + i, u, __ATOMIC_RELAXED);
            break;
        case FA_TENSOR_MAP_UINT64:
            memcpy(&w, from + 8 * i, sizeof w);
            __atomic_fetch_add((uint64_t *)(void *)to + i, w, __ATOMIC_RELAXED);
            break;
        default: break; /* see fa_tensor_map_can_add */
        }
    }
}

void fa_tensor_store(const fa_tensor_map *map, const int32_t *coordinates, const uint8_t *image, bool add) {
    box_walk walk = walk_box(map, coordinates);
    for (uint32_t row = 0; row < walk.rows; row++, image += walk.row_bytes) {
        row_place place = place_row(&walk, row);
        if (!place.inside) continue;
        const uint8_t *from = image + place.first * walk.element_bytes;
        if (add)
            add_row(walk.map.type, place.inside, from, place.count);
        else
            memcpy(place.inside, from, place.count * walk.element_bytes);
    }
}
