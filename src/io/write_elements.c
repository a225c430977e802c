/* SPDX-License-Identifier: Apache-2.0 */
/* The elements of a tensor with any strides, written row-major without gaps. */
#include "file_format.h"

#include <string.h>

/* Small elements are gathered here, large runs go to the file directly. */
typedef struct gather_buffer {
    fa_atomic_output *output;
    size_t used;
    char bytes[1 << 14];
} gather_buffer;

static fa_file_status flush(gather_buffer *buffer, fa_file_error *error) {
    size_t used = buffer->used;
    buffer->used = 0;
    return fa_atomic_output_write(buffer->output, buffer->bytes, used, error);
}

static fa_file_status append(gather_buffer *buffer, const char *bytes, size_t size, fa_file_error *error) {
    if (size > sizeof buffer->bytes - buffer->used) {
        fa_file_status status = flush(buffer, error);
        if (status != FA_FILE_OK) return status;
        if (size > sizeof buffer->bytes) return fa_atomic_output_write(buffer->output, bytes, size, error);
    }
    memcpy(buffer->bytes + buffer->used, bytes, size);
    buffer->used += size;
    return FA_FILE_OK;
}

/* How many of the last dimensions form one run of bytes, and its size in elements. */
static int32_t contiguous_tail(int32_t ndim, const int64_t *shape, const int64_t *strides, int64_t *run_elements) {
    int32_t first = ndim;
    *run_elements = 1;
    while (first > 0 && strides[first - 1] == *run_elements) *run_elements *= shape[--first];
    return first;
}

fa_file_status fa_file_write_elements(fa_atomic_output *output, const fa_tensor *tensor, fa_file_error *error) {
    int64_t item_bytes = tensor->dtype.bits / 8;
    int64_t compact[FA_FILE_MAX_NDIM];
    const int64_t *strides = tensor->strides;
    if (!strides) {
        fa_file_compact_strides(tensor->ndim, tensor->shape, false, compact);
        strides = compact;
    }
    for (int32_t i = 0; i < tensor->ndim; i++)
        if (tensor->shape[i] == 0) return FA_FILE_OK;

    int64_t run_elements;
    int32_t outer = contiguous_tail(tensor->ndim, tensor->shape, strides, &run_elements);
    int64_t index[FA_FILE_MAX_NDIM] = {0};
    const char *next = (const char *)tensor->data + tensor->byte_offset;
    gather_buffer buffer = {.output = output, .used = 0};
    for (;;) {
        fa_file_status status = append(&buffer, next, (size_t)(run_elements * item_bytes), error);
        if (status != FA_FILE_OK) return status;
        int32_t i = outer - 1;
        /* Steps the row-major index, last dimension fastest, and the pointer with it. */
        for (; i >= 0 && ++index[i] == tensor->shape[i]; i--) {
            next -= (tensor->shape[i] - 1) * strides[i] * item_bytes;
            index[i] = 0;
        }
        if (i < 0) return flush(&buffer, error);
        next += strides[i] * item_bytes;
    }
}
