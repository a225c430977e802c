/* SPDX-License-Identifier: Apache-2.0 */
/* What holds for a single tensor whatever call it is passed to: dtype, extents, strides, device, overlap.
 * `name` is the argument's name in messages. */
#ifndef FA_TENSOR_H
#define FA_TENSOR_H

#include "element.h"
#include "flashattn.h"

#include <stdbool.h>

#define FA_MAX_EXTENT ((int64_t)1 << 48)

/* Hands on a failure. */
#define FA_TRY(call)                                \
    do {                                            \
        fa_status try_status = (call);              \
        if (try_status != FA_OK) return try_status; \
    } while (0)

bool fa_dtype_is(fa_dtype dtype, uint8_t code, uint8_t bits);
/* The number format of a floating-point dtype; false for others. */
bool fa_tensor_element(fa_dtype dtype, fa_element *type);

typedef struct fa_text {
    char s[48];
} fa_text;
/* "bfloat16" */
fa_text fa_dtype_text(fa_dtype dtype);

/* The number of dimensions, non-negative extents, strides in range, the data pointer (if with_data). */
fa_status fa_tensor_check(const char *name, const fa_tensor *t, bool with_data);
fa_status fa_tensor_check_ndim(const char *name, const fa_tensor *t, int32_t ndim, const char *layout);
fa_status fa_tensor_check_extent(const char *name, const fa_tensor *t, int32_t dimension, int64_t expected,
                                 const char *meaning);
fa_status fa_tensor_check_last_stride(const char *name, const fa_tensor *t);
fa_status fa_tensor_check_device(const char *name, const fa_tensor *t, const fa_tensor *q);
/* An output: no two elements at one address. */
fa_status fa_tensor_check_output(const char *name, const fa_tensor *t);
/* An output must not overlap another tensor (NULL: none). Only compact tensors are compared: others may
 * interleave without touching. */
fa_status fa_tensor_check_apart(const char *output_name, const fa_tensor *output, const char *name, const fa_tensor *t);

/* Stride in elements; compact row-major where strides is NULL. */
int64_t fa_tensor_stride(const fa_tensor *t, int32_t dimension);
/* data + byte_offset; NULL if data is. */
char *fa_tensor_data(const fa_tensor *t);

#endif
