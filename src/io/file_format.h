/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the two formats share: element types, sizes and strides of a shape, the list of tensors that a parser
 * fills, and the errors. Private to this directory.
 */
#ifndef FLASHATTN_IO_FILE_FORMAT_H
#define FLASHATTN_IO_FILE_FORMAT_H

#include "tensor_file.h"

#include "atomic_output.h"

/* Both formats store little-endian values and hand out pointers to them as they lie. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a big-endian machine cannot use the files in place");

struct fa_tensor_file {
    char *label;
    const uint8_t *bytes;
    size_t size;
    bool mapped;
    fa_file_tensor *tensors;
    size_t count;
    size_t capacity;
};

/* An element type and its spelling in each format. */
typedef struct fa_file_dtype {
    fa_dtype dtype;
    const char *npy; /* without the byte order; NULL: cannot be stored */
    const char *safetensors;
} fa_file_dtype;

/* NULL: not one that is read and written here. */
const fa_file_dtype *fa_file_dtype_of(fa_dtype dtype);
const fa_file_dtype *fa_file_dtype_from_npy(const char *kind_and_size);
const fa_file_dtype *fa_file_dtype_from_safetensors(const char *name);

/* False if elements of item_bytes in this shape need more than INT64_MAX bytes, where dimensions of size 0
 * count as 1, so that strides never overflow either. Dimensions must not be negative. */
bool fa_file_shape_bytes(int32_t ndim, const int64_t *shape, uint64_t item_bytes, uint64_t *bytes);

/* In elements; of a shape that fa_file_shape_bytes accepted. */
void fa_file_compact_strides(int32_t ndim, const int64_t *shape, bool fortran_order, int64_t *strides);

/* A tensor as a parser found it; dtype is NULL if unknown, offset and bytes lie within the file. */
typedef struct fa_tensor_record {
    const char *name;
    const char *dtype_name;
    const fa_file_dtype *dtype;
    int32_t ndim;
    int64_t shape[FA_FILE_MAX_NDIM];
    bool fortran_order;
    uint64_t offset;
    uint64_t bytes;
} fa_tensor_record;

/* Copies the record to the file's list. */
fa_file_status fa_file_add_tensor(fa_tensor_file *file, const fa_tensor_record *record, fa_file_error *error);

/* Writes "label: sentence" and returns status. */
fa_file_status fa_file_fail(fa_file_error *error, fa_file_status status, const char *label, const char *sentence, ...)
    __attribute__((format(printf, 4, 5)));
fa_file_status fa_file_fail_memory(fa_file_error *error, const char *label);

/* The formats. Parsers read file->bytes; on failure the caller frees what they added. Writers get tensors
 * that fa_tensor_file_write has checked. */
bool fa_npy_recognise(const uint8_t *bytes, size_t size);
fa_file_status fa_npy_parse(fa_tensor_file *file, fa_file_error *error);
fa_file_status fa_npy_write(fa_atomic_output *output, const fa_named_tensor *tensor, fa_file_error *error);

bool fa_safetensors_recognise(const uint8_t *bytes, size_t size);
fa_file_status fa_safetensors_parse(fa_tensor_file *file, fa_file_error *error);
fa_file_status fa_safetensors_write(fa_atomic_output *output, const fa_named_tensor *tensors, size_t count,
                                    const fa_file_metadata *metadata, size_t metadata_count, fa_file_error *error);

/* Writes the elements in row-major order, without gaps. */
fa_file_status fa_file_write_elements(fa_atomic_output *output, const fa_tensor *tensor, fa_file_error *error);

#endif
