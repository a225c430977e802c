/* SPDX-License-Identifier: Apache-2.0 */
/* Views, memory and random contents: see tensors.h. */
#define _XOPEN_SOURCE 700 /* M_PI */

#include "tensors.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Types ---- */

static const struct {
    const char *name;
    fa_dtype dtype;
} element_types[] = {
    [FA_ELEMENT_FLOAT32] = {"float32", FA_FLOAT32},
    [FA_ELEMENT_FLOAT16] = {"float16", FA_FLOAT16},
    [FA_ELEMENT_BFLOAT16] = {"bfloat16", FA_BFLOAT16},
    [FA_ELEMENT_FLOAT64] = {"float64", FA_FLOAT64},
};

const char *dtype_choice(int index) {
    return index >= 0 && index <= (int)FA_ELEMENT_FLOAT64 ? element_types[index].name : NULL;
}

fa_dtype dtype_of_element(fa_element element) { return element_types[element].dtype; }

bool element_of_dtype(fa_dtype dtype, fa_element *element) {
    for (int i = 0; i <= (int)FA_ELEMENT_FLOAT64; i++) {
        if (memcmp(&element_types[i].dtype, &dtype, sizeof dtype) == 0) {
            *element = (fa_element)i;
            return true;
        }
    }
    return false;
}

void dtype_text(fa_dtype dtype, char *text, size_t size) {
    static const char *const kinds[] = {"int", "uint", "float", "opaque", "bfloat", "complex"};
    if (dtype.code == FA_DTYPE_BOOL)
        (void)snprintf(text, size, "bool");
    else if (dtype.code < sizeof kinds / sizeof kinds[0])
        (void)snprintf(text, size, "%s%d", kinds[dtype.code], dtype.bits);
    else
        (void)snprintf(text, size, "float8");
}

/* ---- Views ---- */

void tensor_view(tensor *view, const fa_tensor *other) {
    memset(view, 0, sizeof *view);
    view->t = *other;
    int64_t compact = 1;
    for (int32_t i = other->ndim - 1; i >= 0; i--) {
        view->shape[i] = other->shape[i];
        view->strides[i] = other->strides ? other->strides[i] : compact;
        compact *= other->shape[i];
    }
    view->t.shape = view->shape;
    view->t.strides = view->strides;
}

void tensor_select(tensor *t, int32_t dim, int64_t index) {
    tensor_narrow(t, dim, index, 1);
    for (int32_t i = dim; i + 1 < t->t.ndim; i++) {
        t->shape[i] = t->shape[i + 1];
        t->strides[i] = t->strides[i + 1];
    }
    t->t.ndim--;
}

void tensor_narrow(tensor *t, int32_t dim, int64_t begin, int64_t count) {
    int64_t bytes = begin * t->strides[dim] * (t->t.dtype.bits / 8);
    if (t->t.data != NULL) t->t.data = (char *)t->t.data + bytes;
    t->shape[dim] = count;
}

void tensor_insert(tensor *t, int32_t dim) {
    for (int32_t i = t->t.ndim; i > dim; i--) {
        t->shape[i] = t->shape[i - 1];
        t->strides[i] = t->strides[i - 1];
    }
    t->shape[dim] = 1;
    t->strides[dim] = 0;
    t->t.ndim++;
}

static void swap(int64_t *a, int64_t *b) {
    int64_t x = *a;
    *a = *b;
    *b = x;
}

void tensor_swap(tensor *t, int32_t a, int32_t b) {
    swap(&t->shape[a], &t->shape[b]);
    swap(&t->strides[a], &t->strides[b]);
}

int64_t tensor_elements(const fa_tensor *t) {
    int64_t count = 1;
    for (int32_t i = 0; i < t->ndim; i++) count *= t->shape[i];
    return count;
}

char *tensor_address(const fa_tensor *t, const int64_t *index) {
    int64_t offset = 0;
    for (int32_t i = 0; i < t->ndim; i++) offset += index[i] * t->strides[i];
    return (char *)t->data + t->byte_offset + offset * (t->dtype.bits / 8);
}

void shape_text(const fa_tensor *t, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, "[");
    for (int32_t i = 0; i < t->ndim && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, i > 0 ? ", " : "", t->shape[i]);
    if (used < size) (void)snprintf(text + used, size - used, "]");
}

/* ---- Memory ---- */

/* False if the product exceeds what one allocation can have. */
static bool compact_bytes(fa_dtype dtype, int32_t ndim, const int64_t *shape, size_t *bytes) {
    uint64_t total = dtype.bits / 8;
    for (int32_t i = 0; i < ndim; i++) {
        if (shape[i] < 0 || (shape[i] > 0 && total > (uint64_t)PTRDIFF_MAX / 2 / (uint64_t)shape[i])) return false;
        total *= (uint64_t)shape[i];
    }
    *bytes = (size_t)((total + 63) / 64 * 64);
    return true;
}

bool tensor_allocate(tensor *t, fa_dtype dtype, int32_t ndim, const int64_t *shape) {
    size_t bytes = 0;
    memset(t, 0, sizeof *t);
    if (!compact_bytes(dtype, ndim, shape, &bytes)) return false;
    t->memory = aligned_alloc(64, bytes > 0 ? bytes : 64);
    if (t->memory == NULL) return false;
    t->t.data = t->memory;
    t->t.device.device_type = FA_DEVICE_CPU;
    t->t.ndim = ndim;
    t->t.dtype = dtype;
    t->t.shape = t->shape;
    t->t.strides = t->strides;
    int64_t stride = 1;
    for (int32_t i = ndim - 1; i >= 0; i--) {
        t->shape[i] = shape[i];
        t->strides[i] = stride;
        stride *= shape[i];
    }
    tensor_poison(t);
    return true;
}

void tensor_poison(tensor *t) {
    memset(t->memory, 0xff, (size_t)tensor_elements(&t->t) * (size_t)(t->t.dtype.bits / 8));
}

void tensor_free(tensor *t) {
    free(t->memory);
    t->memory = NULL;
}

/* ---- Random numbers ---- */

/* SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators"). */
static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Uniform in (0, 1]. */
static double next_uniform(uint64_t *state) { return ((double)(next_random(state) >> 11) + 1) * 0x1p-53; }

/* Box and Muller 1958: two numbers at a time. */
static void fill_normal(char *at, int64_t count, fa_element element, uint64_t seed) {
    int64_t size = fa_element_size(element);
    for (int64_t i = 0; i < count; i += 2) {
        double radius = sqrt(-2 * log(next_uniform(&seed))), angle = 2 * M_PI * next_uniform(&seed);
        fa_element_store(at + i * size, radius * cos(angle), element);
        if (i + 1 < count) fa_element_store(at + (i + 1) * size, radius * sin(angle), element);
    }
}

void tensor_fill_normal(tensor *t, uint64_t seed) {
    enum { PIECE = 4096 }; /* each with a seed of its own, so that threads can share the work */
    fa_element element = FA_ELEMENT_FLOAT32;
    (void)element_of_dtype(t->t.dtype, &element);
    int64_t count = tensor_elements(&t->t), pieces = (count + PIECE - 1) / PIECE;
#pragma omp parallel for
    for (int64_t piece = 0; piece < pieces; piece++) {
        int64_t begin = piece * PIECE, length = count - begin < PIECE ? count - begin : PIECE;
        uint64_t state = seed, piece_seed = next_random(&state) + (uint64_t)piece;
        fill_normal((char *)t->memory + begin * fa_element_size(element), length, element, next_random(&piece_seed));
    }
}
