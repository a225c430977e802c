/* SPDX-License-Identifier: Apache-2.0 */
/* Rules that any tensor of any call must keep: see tensor.h. */
#include "tensor.h"

#include "status.h"

#include <inttypes.h>
#include <stdio.h>

/* The most elements that a tensor may have, and that one dimension may span. It keeps every sum of a few extents and of
 * a few spans, in bytes, inside int64_t. */
#define FA_MAX_SPAN ((int64_t)1 << 56)

bool fa_dtype_is(fa_dtype a, uint8_t code, uint8_t bits) { return a.code == code && a.bits == bits && a.lanes == 1; }

bool fa_tensor_element(fa_dtype dtype, fa_element *type) {
    if (fa_dtype_is(dtype, FA_DTYPE_FLOAT, 32))
        *type = FA_ELEMENT_FLOAT32;
    else if (fa_dtype_is(dtype, FA_DTYPE_FLOAT, 16))
        *type = FA_ELEMENT_FLOAT16;
    else if (fa_dtype_is(dtype, FA_DTYPE_BFLOAT, 16))
        *type = FA_ELEMENT_BFLOAT16;
    else if (fa_dtype_is(dtype, FA_DTYPE_FLOAT, 64))
        *type = FA_ELEMENT_FLOAT64;
    else
        return false;
    return true;
}

fa_text fa_dtype_text(fa_dtype dtype) {
    static const char *const kinds[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
    fa_text t;
    const char *kind = dtype.code < sizeof kinds / sizeof kinds[0] ? kinds[dtype.code] : NULL;
    if (dtype.code == FA_DTYPE_BOOL && dtype.bits == 8 && dtype.lanes == 1)
        snprintf(t.s, sizeof t.s, "bool");
    else if (kind != NULL && dtype.lanes == 1)
        snprintf(t.s, sizeof t.s, "%s%d", kind, dtype.bits);
    else
        snprintf(t.s, sizeof t.s, "code %d, %d bits, %d lanes", dtype.code, dtype.bits, dtype.lanes);
    return t;
}

/* The number of dimensions, non-negative extents, strides in range, the data pointer. */
fa_status fa_tensor_check(const char *name, const fa_tensor *t, bool with_data) {
    if (t == NULL) return fa_fail(FA_INVALID_ARGUMENT, "%s = NULL: must be a tensor", name);
    if (t->ndim < 1 || t->ndim > 5)
        return fa_fail(FA_INVALID_ARGUMENT, "%s.ndim = %" PRId32 ": no tensor of a call has that many dimensions", name,
                       t->ndim);
    if (t->shape == NULL)
        return fa_fail(FA_INVALID_ARGUMENT, "%s.shape = NULL: must point at %" PRId32 " sizes", name, t->ndim);
    int64_t count = 1; /* extents of 0 left out: compact strides are products of some of them */
    bool empty = false;
    for (int32_t i = 0; i < t->ndim; i++) {
        int64_t extent = t->shape[i];
        if (extent < 0 || extent > FA_MAX_EXTENT)
            return fa_fail(FA_INVALID_ARGUMENT, "%s.shape[%" PRId32 "] = %" PRId64 ": must be 0 .. 2^48", name, i,
                           extent);
        if (extent == 0) empty = true;
        if (extent > FA_MAX_SPAN / count)
            return fa_fail(FA_INVALID_ARGUMENT,
                           "%s.shape[%" PRId32 "] = %" PRId64 ": the tensor has more than 2^56 elements", name, i,
                           extent);
        if (extent > 1) count *= extent;
        if (t->strides == NULL) continue;
        int64_t limit = FA_MAX_SPAN / (extent > 1 ? extent - 1 : 1);
        if (t->strides[i] > limit || t->strides[i] < -limit)
            return fa_fail(FA_INVALID_ARGUMENT,
                           "%s.strides[%" PRId32 "] = %" PRId64 ": must be within +-2^56, over all of the dimension",
                           name, i, t->strides[i]);
    }
    if (empty) count = 0;
    if (with_data && count > 0 && t->data == NULL)
        return fa_fail(FA_INVALID_ARGUMENT, "%s.data = NULL: must point at the %" PRId64 " elements of the tensor",
                       name, count);
    return FA_OK;
}

fa_status fa_tensor_check_ndim(const char *name, const fa_tensor *t, int32_t ndim, const char *layout) {
    if (t->ndim == ndim) return FA_OK;
    return fa_fail(FA_INVALID_ARGUMENT, "%s.ndim = %" PRId32 ": must be %" PRId32 ", %s", name, t->ndim, ndim, layout);
}

fa_status fa_tensor_check_extent(const char *name, const fa_tensor *t, int32_t dimension, int64_t expected,
                                 const char *meaning) {
    if (t->shape[dimension] == expected) return FA_OK;
    return fa_fail(FA_INVALID_ARGUMENT, "%s.shape[%" PRId32 "] = %" PRId64 ": must be %" PRId64 ", %s", name, dimension,
                   t->shape[dimension], expected, meaning);
}

/* Stride in elements; compact row-major where strides is NULL. */
int64_t fa_tensor_stride(const fa_tensor *t, int32_t dimension) {
    if (t->strides != NULL) return t->strides[dimension];
    int64_t stride = 1;
    for (int32_t i = t->ndim - 1; i > dimension; i--) stride *= t->shape[i];
    return stride;
}

/* Strides of a tensor without elements mean nothing; NumPy gives it zeros. */
fa_status fa_tensor_check_last_stride(const char *name, const fa_tensor *t) {
    int32_t last = t->ndim - 1;
    if (t->shape[last] <= 1 || fa_tensor_stride(t, last) == 1) return FA_OK;
    for (int32_t i = 0; i < last; i++)
        if (t->shape[i] == 0) return FA_OK;
    return fa_fail(FA_INVALID_ARGUMENT,
                   "%s.strides[%" PRId32 "] = %" PRId64 ": the last dimension must be contiguous, stride 1", name, last,
                   fa_tensor_stride(t, last));
}

char *fa_tensor_data(const fa_tensor *t) { return t->data == NULL ? NULL : (char *)t->data + t->byte_offset; }

fa_status fa_tensor_check_device(const char *name, const fa_tensor *t, const fa_tensor *q) {
    if (t->device.device_type == q->device.device_type && t->device.device_id == q->device.device_id) return FA_OK;
    return fa_fail(FA_INVALID_ARGUMENT,
                   "%s.device = (type %" PRId32 ", id %" PRId32 "): must be q's, (type %" PRId32 ", id %" PRId32 ")",
                   name, t->device.device_type, t->device.device_id, q->device.device_type, q->device.device_id);
}

/*
 * An output's elements must all have addresses of their own. Sorting dimensions by stride, each must step
 * over all that the smaller ones span; layouts that interleave otherwise without touching are refused too.
 */
fa_status fa_tensor_check_output(const char *name, const fa_tensor *t) {
    int64_t span = 1;
    bool done[5] = {false};
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] == 0) return FA_OK;
    for (int32_t n = 0; n < t->ndim; n++) {
        int32_t smallest = -1;
        int64_t smallest_stride = 0;
        for (int32_t i = 0; i < t->ndim; i++) {
            int64_t stride = fa_tensor_stride(t, i) < 0 ? -fa_tensor_stride(t, i) : fa_tensor_stride(t, i);
            if (!done[i] && (smallest < 0 || stride < smallest_stride)) {
                smallest = i;
                smallest_stride = stride;
            }
        }
        done[smallest] = true;
        if (t->shape[smallest] == 1) continue;
        if (smallest_stride < span)
            return fa_fail(FA_INVALID_ARGUMENT,
                           "%s.strides[%" PRId32 "] = %" PRId64 ": elements of an output must not overlap", name,
                           smallest, fa_tensor_stride(t, smallest));
        span = smallest_stride * (t->shape[smallest] - 1) + span;
    }
    return FA_OK;
}

/* Byte range [begin, end) that a compact tensor fills; false for others, whose elements may interleave with
 * another tensor's. */
static bool compact_range(const fa_tensor *t, uintptr_t *begin, uintptr_t *end) {
    int64_t count = 1;
    for (int32_t i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] != 1 && fa_tensor_stride(t, i) != count) return false;
        count *= t->shape[i];
    }
    if (count == 0 || t->data == NULL) return false;
    *begin = (uintptr_t)fa_tensor_data(t);
    *end = *begin + (uintptr_t)count * (t->dtype.bits / 8u);
    return true;
}

fa_status fa_tensor_check_apart(const char *output_name, const fa_tensor *output, const char *name,
                                const fa_tensor *t) {
    uintptr_t begin, end, output_begin, output_end;
    if (t == NULL || !compact_range(output, &output_begin, &output_end) || !compact_range(t, &begin, &end))
        return FA_OK;
    if (begin >= output_end || output_begin >= end) return FA_OK;
    return fa_fail(FA_INVALID_ARGUMENT, "%s.data = %p: overlaps %s, and an output must not", output_name,
                   (const void *)fa_tensor_data(output), name);
}
