/* SPDX-License-Identifier: Apache-2.0 */
/* What the two formats share: see file_format.h. */
#include "file_format.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* DLPack 1.1: kDLFloat8_e4m3fn, kDLFloat8_e5m2. */
#define DTYPE_FLOAT8_E4M3FN 10
#define DTYPE_FLOAT8_E5M2 12

static const fa_file_dtype dtypes[] = {
    {FA_FLOAT64, "f8", "F64"},
    {FA_FLOAT32, "f4", "F32"},
    {FA_FLOAT16, "f2", "F16"},
    {FA_BFLOAT16, "V2", "BF16"},
    {{FA_DTYPE_INT, 64, 1}, "i8", "I64"},
    {FA_INT32, "i4", "I32"},
    {{FA_DTYPE_INT, 8, 1}, "i1", "I8"},
    {{FA_DTYPE_UINT, 8, 1}, "u1", "U8"},
    {FA_BOOL, "b1", "BOOL"},
    {{DTYPE_FLOAT8_E4M3FN, 8, 1}, NULL, "F8_E4M3"},
    {{DTYPE_FLOAT8_E5M2, 8, 1}, NULL, "F8_E5M2"},
};
enum { DTYPE_COUNT = sizeof dtypes / sizeof dtypes[0] };

const fa_file_dtype *fa_file_dtype_of(fa_dtype dtype) {
    for (size_t i = 0; i < DTYPE_COUNT; i++) {
        const fa_dtype *known = &dtypes[i].dtype;
        if (known->code == dtype.code && known->bits == dtype.bits && known->lanes == dtype.lanes) return &dtypes[i];
    }
    return NULL;
}

const fa_file_dtype *fa_file_dtype_from_npy(const char *kind_and_size) {
    for (size_t i = 0; i < DTYPE_COUNT; i++)
        if (dtypes[i].npy && strcmp(dtypes[i].npy, kind_and_size) == 0) return &dtypes[i];
    return NULL;
}

const fa_file_dtype *fa_file_dtype_from_safetensors(const char *name) {
    for (size_t i = 0; i < DTYPE_COUNT; i++)
        if (strcmp(dtypes[i].safetensors, name) == 0) return &dtypes[i];
    return NULL;
}

bool fa_file_shape_bytes(int32_t ndim, const int64_t *shape, uint64_t item_bytes, uint64_t *bytes) {
    uint64_t product = item_bytes;
    bool empty = false;
    for (int32_t i = 0; i < ndim; i++) {
        if (shape[i] == 0) {
            empty = true;
            continue;
        }
        if (product > (uint64_t)INT64_MAX / (uint64_t)shape[i]) return false;
        product *= (uint64_t)shape[i];
    }
    *bytes = empty ? 0 : product;
    return true;
}

void fa_file_compact_strides(int32_t ndim, const int64_t *shape, bool fortran_order, int64_t *strides) {
    int64_t stride = 1;
    for (int32_t i = 0; i < ndim; i++) {
        int32_t dimension = fortran_order ? i : ndim - 1 - i;
        strides[dimension] = stride;
        if (shape[dimension] > 0) stride *= shape[dimension];
    }
}

static bool make_room(fa_tensor_file *file) {
    if (file->count < file->capacity) return true;
    size_t capacity = file->capacity ? 2 * file->capacity : 4;
    fa_file_tensor *tensors = realloc(file->tensors, capacity * sizeof *tensors);
    if (!tensors) return false;
    file->tensors = tensors;
    file->capacity = capacity;
    return true;
}

fa_file_status fa_file_add_tensor(fa_tensor_file *file, const fa_tensor_record *record, fa_file_error *error) {
    size_t ndim = (size_t)record->ndim;
    size_t name_size = strlen(record->name) + 1;
    char *name = malloc(name_size);
    int64_t *shape_and_strides = calloc(2 * ndim + 1, sizeof *shape_and_strides); /* never of size 0 */
    if (!name || !shape_and_strides || !make_room(file)) {
        free(name);
        free(shape_and_strides);
        return fa_file_fail_memory(error, file->label);
    }
    memcpy(name, record->name, name_size);
    memcpy(shape_and_strides, record->shape, ndim * sizeof *shape_and_strides);

    fa_file_tensor *entry = &file->tensors[file->count++];
    *entry = (fa_file_tensor){
        .name = name, .readable = record->dtype != NULL, .offset = record->offset, .bytes = record->bytes};
    snprintf(entry->dtype_name, sizeof entry->dtype_name, "%s", record->dtype_name);
    entry->tensor.device.device_type = FA_DEVICE_CPU;
    entry->tensor.ndim = record->ndim;
    entry->tensor.shape = shape_and_strides;
    entry->tensor.strides = shape_and_strides + ndim;
    fa_file_compact_strides(record->ndim, record->shape, record->fortran_order, entry->tensor.strides);
    if (!entry->readable) return FA_FILE_OK;
    entry->tensor.dtype = record->dtype->dtype;
    entry->tensor.data = (void *)(file->bytes + record->offset);
    return FA_FILE_OK;
}

/* What a terminal could obey: C0, DEL, and C1 in UTF-8 (C2 80 .. C2 9F). */
static void hide_control_characters(char *text) {
    for (unsigned char *c = (unsigned char *)text; *c; c++) {
        if (c[0] == 0xC2 && c[1] >= 0x80 && c[1] <= 0x9F)
            c[0] = c[1] = '?';
        else if (*c < 0x20 || *c == 0x7F)
            *c = '?';
    }
}

fa_file_status fa_file_fail(fa_file_error *error, fa_file_status status, const char *label, const char *sentence, ...) {
    /* Of a long path the end tells more; the sentence needs room too. */
    size_t length = strlen(label);
    enum { LABEL_SHOWN = 400 };
    bool cut = length > LABEL_SHOWN;
    int used = snprintf(error->text, sizeof error->text, "%s%s: ", cut ? "..." : "",
                        cut ? label + length - LABEL_SHOWN : label);
    va_list arguments;
    va_start(arguments, sentence);
    vsnprintf(error->text + used, sizeof error->text - (size_t)used, sentence, arguments);
    va_end(arguments);
    hide_control_characters(error->text);
    return status;
}

fa_file_status fa_file_fail_memory(fa_file_error *error, const char *label) {
    return fa_file_fail(error, FA_FILE_OUT_OF_MEMORY, label, "no memory for its description");
}
