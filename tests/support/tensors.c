/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors as callers have them: see tensors.h. */
#include "tensors.h"

#include "testing.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define POISON 0xff

const char *layout_name(layout kind) {
    static const char *const names[] = {"compact",   "padded",    "permuted", "reversed",
                                        "unaligned", "broadcast", "any",      "aligned"};
    return kind < LAYOUTS ? names[kind] : "?";
}

fa_dtype dtype_of_element(fa_element type) {
    static const fa_dtype dtypes[] = {FA_FLOAT32, FA_FLOAT16, FA_BFLOAT16, FA_FLOAT64};
    return dtypes[type];
}

const char *element_name(fa_element type) {
    static const char *const names[] = {"float32", "float16", "bfloat16", "float64"};
    return names[type];
}

fa_element element_of_dtype(fa_dtype dtype) {
    if (dtype.code == FA_DTYPE_BFLOAT) return FA_ELEMENT_BFLOAT16;
    if (dtype.bits == 16) return FA_ELEMENT_FLOAT16;
    return dtype.bits == 64 ? FA_ELEMENT_FLOAT64 : FA_ELEMENT_FLOAT32;
}

/* How the elements are spread over memory. */
typedef struct spread {
    int order[TENSOR_DIMS]; /* dimensions from the outermost in memory to the innermost */
    int64_t gap[TENSOR_DIMS];
    bool negative[TENSOR_DIMS];
    int broadcast; /* dimension of stride 0, or -1 */
    size_t misalign;
    uint64_t byte_offset;
    bool compact;
    bool at_end;
    bool aligned; /* gaps count units of 16 bytes, and the innermost dimension is filled up to whole ones */
} spread;

static spread choose_spread(layout kind, int ndim, bool inner_contiguous, rng *r) {
    spread s = {.broadcast = -1, .at_end = true};
    int outer = inner_contiguous ? ndim - 1 : ndim; /* dimensions that may be moved */
    bool any = kind == LAYOUT_ANY;
    for (int i = 0; i < ndim; i++) s.order[i] = i;
    if (kind == LAYOUT_COMPACT || (any && rng_chance(r, 0.2))) {
        s.compact = true;
        s.at_end = !any || rng_chance(r, 0.5);
        return s;
    }
    if (kind == LAYOUT_ALIGNED) s.aligned = true;
    if (kind == LAYOUT_PERMUTED || s.aligned || (any && rng_chance(r, 0.5)))
        for (int i = outer - 1; i > 0; i--) {
            int j = (int)rng_range(r, 0, kind == LAYOUT_PERMUTED ? i - 1 : i), other = s.order[j];
            s.order[j] = s.order[i];
            s.order[i] = other;
        }
    for (int i = 0; i < outer; i++) {
        if (kind == LAYOUT_PADDED || (s.aligned && rng_chance(r, 0.3)) || (any && rng_chance(r, 0.4)))
            s.gap[i] = rng_range(r, 1, 9);
        if (kind == LAYOUT_REVERSED || (any && rng_chance(r, 0.3))) s.negative[i] = true;
    }
    if (kind == LAYOUT_BROADCAST && outer > 0) s.broadcast = (int)rng_range(r, 0, outer - 1);
    if (kind == LAYOUT_UNALIGNED || (any && rng_chance(r, 0.5))) {
        s.misalign = (size_t)rng_range(r, 0, 3) * 2 + 1;
        s.byte_offset = (uint64_t)rng_range(r, 1, 1000);
    }
    s.at_end = !s.aligned && rng_chance(r, 0.5);
    return s;
}

/* Pages for `bytes` between two inaccessible ones. */
static void tensor_map(tensor *t, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    t->page_bytes = (bytes + page - 1) / page * page;
    unsigned char *map = mmap(NULL, t->page_bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) fail_msg("no memory for a tensor of %zu bytes", bytes);
    t->pages = map + page;
    assert_int_equal(mprotect(t->pages, t->page_bytes, PROT_READ | PROT_WRITE), 0);
    memset(t->pages, POISON, t->page_bytes);
}

tensor *tensor_new(fa_dtype dtype, int ndim, const int64_t *shape, layout kind, bool inner_contiguous, rng *r) {
    tensor *t = calloc(1, sizeof *t);
    assert_non_null(t);
    spread s = choose_spread(kind, ndim, inner_contiguous, r);
    t->owner = true;
    t->element_bytes = dtype.bits / 8;
    int64_t span = 1, before = 0; /* elements of the block, and those before the origin */
    for (int n = ndim - 1; n >= 0; n--) {
        int i = s.order[n];
        t->shape[i] = shape[i];
        if (i == s.broadcast) {
            t->broadcast = shape[i] > 1;
            continue;
        }
        t->stride[i] = span;
        if (s.negative[i] && shape[i] > 0) {
            before += span * (shape[i] - 1);
            t->stride[i] = -span;
        }
        const int64_t unit = s.aligned ? 16 / t->element_bytes : 1;
        span = (span * shape[i] + unit - 1) / unit * unit + s.gap[i] * unit;
    }
    size_t bytes = (size_t)(span * t->element_bytes);
    tensor_map(t, bytes + s.misalign + 1);
    unsigned char *block = s.at_end ? t->pages + t->page_bytes - bytes - s.misalign : t->pages + s.misalign;
    t->origin = block + before * t->element_bytes;
    t->fa = (fa_tensor){.data = t->origin - s.byte_offset,
                        .device = {FA_DEVICE_CPU, 0},
                        .ndim = ndim,
                        .dtype = dtype,
                        .shape = t->shape,
                        .strides = s.compact ? NULL : t->stride,
                        .byte_offset = s.byte_offset};
    return t;
}

tensor *tensor_rounded(const tensor *t, fa_element type, rng *r) {
    tensor *copy = tensor_new(dtype_of_element(type), t->fa.ndim, t->shape, LAYOUT_COMPACT, true, r);
    int64_t count = tensor_count(t);
    for (int64_t i = 0; i < count; i++) tensor_put(copy, i, tensor_get(t, i));
    return copy;
}

tensor *tensor_view(const tensor *whole, int64_t width) {
    tensor *t = calloc(1, sizeof *t);
    assert_non_null(t);
    *t = *whole;
    t->owner = false;
    t->shape[t->fa.ndim - 1] = width;
    t->fa.shape = t->shape;
    t->fa.strides = t->stride;
    return t;
}

void tensor_free(tensor *t) {
    if (t == NULL) return;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (t->owner) (void)munmap(t->pages - page, t->page_bytes + 2 * page);
    free(t);
}

int64_t tensor_count(const tensor *t) {
    int64_t count = 1;
    for (int i = 0; i < t->fa.ndim; i++) count *= t->shape[i];
    return count;
}

unsigned char *tensor_address(const tensor *t, int64_t number) {
    int64_t offset = 0;
    for (int i = t->fa.ndim - 1; i >= 0; i--) {
        offset += number % t->shape[i] * t->stride[i];
        number /= t->shape[i];
    }
    return t->origin + offset * t->element_bytes;
}

double tensor_get(const tensor *t, int64_t number) {
    return fa_element_load(tensor_address(t, number), element_of_dtype(t->fa.dtype));
}

void tensor_put(tensor *t, int64_t number, double x) {
    fa_element_store(tensor_address(t, number), x, element_of_dtype(t->fa.dtype));
}

int64_t tensor_get_int(const tensor *t, int64_t number) {
    const unsigned char *address = tensor_address(t, number);
    if (t->element_bytes == 1) return *address;
    int32_t x;
    memcpy(&x, address, sizeof x);
    return x;
}

void tensor_put_int(tensor *t, int64_t number, int64_t x) {
    unsigned char *address = tensor_address(t, number);
    if (t->element_bytes == 1) {
        *address = (unsigned char)x;
        return;
    }
    int32_t narrow = (int32_t)x;
    memcpy(address, &narrow, sizeof narrow);
}

void tensor_enlarge_channel(tensor *t, int64_t channel) {
    int64_t width = t->shape[t->fa.ndim - 1], rows = tensor_count(t) / width;
    double *before = calloc((size_t)rows + 1, sizeof *before);
    assert_non_null(before);
    for (int64_t r = 0; r < rows; r++) before[r] = tensor_get(t, r * width + channel % width);
    for (int64_t r = 0; r < rows; r++) tensor_put(t, r * width + channel % width, 50 * before[r]);
    free(before);
}

void tensor_poison(tensor *t) { memset(t->pages, POISON, t->page_bytes); }

/* Neighbouring elements that also lie one after another: loops over them are much faster than element by element. */
static int64_t run_of(const tensor *t) {
    int last = t->fa.ndim - 1;
    return last >= 0 && t->stride[last] == 1 && t->shape[last] > 0 ? t->shape[last] : 1;
}

static bool is_poison(const unsigned char *address, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i++)
        if (address[i] != POISON) return false;
    return true;
}

int64_t tensor_first_poisoned(const tensor *t) {
    int64_t count = tensor_count(t), run = run_of(t);
    for (int64_t n = 0; n < count; n += run) {
        const unsigned char *address = tensor_address(t, n);
        for (int64_t i = 0; i < run; i++)
            if (is_poison(address + i * t->element_bytes, t->element_bytes)) return n + i;
    }
    return -1;
}

bool tensor_canaries_intact(const tensor *t) {
    unsigned char *owned = calloc(1, t->page_bytes);
    assert_non_null(owned);
    int64_t count = tensor_count(t), run = run_of(t);
    for (int64_t n = 0; n < count; n += run)
        memset(owned + (tensor_address(t, n) - t->pages), 1, (size_t)(run * t->element_bytes));
    unsigned wrong = 0; /* no branch in the loop: tensors are large */
    for (size_t i = 0; i < t->page_bytes; i++) wrong |= (unsigned)(!owned[i]) & (unsigned)(t->pages[i] != POISON);
    free(owned);
    return wrong == 0;
}

/* FNV-1a over 64-bit words; pages are whole words. */
uint64_t tensor_checksum(const tensor *t) {
    uint64_t hash = 0xcbf29ce484222325u, word;
    for (size_t i = 0; i < t->page_bytes; i += sizeof word) {
        memcpy(&word, t->pages + i, sizeof word);
        hash = (hash ^ word) * 0x100000001b3u;
        hash ^= hash >> 29; /* the product alone never lets high bits reach low ones */
    }
    return hash;
}

int64_t tensor_first_difference(const tensor *a, const tensor *b) {
    int64_t count = tensor_count(a), run = run_of(a) == run_of(b) ? run_of(a) : 1;
    assert_int_equal(count, tensor_count(b));
    assert_int_equal(a->element_bytes, b->element_bytes);
    for (int64_t n = 0; n < count; n += run) {
        if (memcmp(tensor_address(a, n), tensor_address(b, n), (size_t)(run * a->element_bytes)) == 0) continue;
        while (memcmp(tensor_address(a, n), tensor_address(b, n), (size_t)a->element_bytes) == 0) n++;
        return n;
    }
    return -1;
}
