/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors in files: .npy (one array) and .safetensors (many, by name), behind one interface.
 *
 * Reading maps the file and copies nothing: tensors point into the mapping. Consequences:
 *   - They are read-only; a write through fa_tensor.data is a segmentation fault.
 *   - They may be unaligned, since both formats allow a header of any length. fa_forward accepts that.
 *   - They end with fa_tensor_file_close.
 *   - If another process shortens the file in place meanwhile, the system raises SIGBUS, as for every
 *     mapping. Files written by fa_tensor_file_write are replaced, never shortened, so one may even write
 *     over the very file that is being read.
 * No value is looked at: a bool byte may be other than 0 and 1, a float may be NaN.
 *
 * Element types (DLPack codes; 10 and 12 are DLPack's float8_e4m3fn and float8_e5m2):
 *   both formats        float64, float32, float16, bfloat16, int64, int32, int8, uint8, bool
 *   .safetensors only   float8_e4m3fn, float8_e5m2: NumPy's '<V1' and '<f1' do not say which is meant
 * In .npy bfloat16 is '<V2', as NumPy itself stores an array of ml_dtypes.bfloat16; '|V2' is read alike.
 * Python then reads np.load(path).view(ml_dtypes.bfloat16).
 */
#ifndef FLASHATTN_IO_TENSOR_FILE_H
#define FLASHATTN_IO_TENSOR_FILE_H

#include "flashattn.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* NumPy's limit (NPY_MAXDIMS since 2.0). A tensor of more dimensions is refused. */
#define FA_FILE_MAX_NDIM 64

typedef enum fa_file_status {
    FA_FILE_OK = 0,
    FA_FILE_INVALID_ARGUMENT, /* what was asked for cannot be: an unknown extension, a tensor on a GPU, ... */
    FA_FILE_SYSTEM_ERROR,     /* the operating system refused: no such file, no permission, no space, ... */
    FA_FILE_MALFORMED,        /* the content breaks a rule of its format */
    FA_FILE_UNSUPPORTED,      /* the content is valid, but of a kind that is not read here */
    FA_FILE_NOT_FOUND,        /* the file holds no tensor of that name */
    FA_FILE_OUT_OF_MEMORY
} fa_file_status;

/* One sentence: the file, what was found, what was expected. Written when a function does not return
 * FA_FILE_OK. Control characters that a hostile file smuggles into names are shown as '?'. */
typedef struct fa_file_error {
    char text[1024];
} fa_file_error;

typedef struct fa_tensor_file fa_tensor_file;

/* A tensor as the file lists it. */
typedef struct fa_file_tensor {
    char *name;          /* "" in .npy, which has no names */
    char dtype_name[24]; /* the file's own spelling, "BF16" or "<f4", cut if longer */
    bool readable;       /* false: an element type unknown here; fa_tensor_file_find refuses it */
    uint64_t offset;     /* of the first byte, from the start of the file */
    uint64_t bytes;
    fa_tensor tensor; /* shape and strides always; data and dtype only if readable. Strides are never NULL: a
                         .npy in Fortran order has its first one 1. */
} fa_file_tensor;

/* Opens a regular file (or a link to one) and checks it completely, values excepted. The format is told by the
 * content, not by the name. *file is NULL on failure. An open file is only read, so threads may share it. The
 * memory for a hostile .safetensors header is bounded by a limit of 2000000 JSON values, some 200000 tensors. */
fa_file_status fa_tensor_file_open(const char *path, fa_tensor_file **file, fa_file_error *error);

/* The same for a file that lies in memory already; bytes must outlive *file. label stands for the path in
 * sentences. */
fa_file_status fa_tensor_file_parse(const void *bytes, size_t size, const char *label, fa_tensor_file **file,
                                    fa_file_error *error);

/* Invalidates all tensors of the file. NULL is allowed. */
void fa_tensor_file_close(fa_tensor_file *file);

/* The tensors in the order of their data; index < count. */
size_t fa_tensor_file_count(const fa_tensor_file *file);
const fa_file_tensor *fa_tensor_file_at(const fa_tensor_file *file, size_t index);

/* The tensor of that name, or, if name is NULL, the only one of a file that holds exactly one. */
fa_file_status fa_tensor_file_find(const fa_tensor_file *file, const char *name, fa_tensor *tensor,
                                   fa_file_error *error);

typedef struct fa_named_tensor {
    const char *name; /* UTF-8; not read for .npy */
    const fa_tensor *tensor;
} fa_named_tensor;

/* An entry of the "__metadata__" of .safetensors, UTF-8. */
typedef struct fa_file_metadata {
    const char *key;
    const char *value;
} fa_file_metadata;

/*
 * Writes tensors on the CPU, of any strides, to a file whose extension says the format: ".npy" takes exactly
 * one tensor and no metadata, ".safetensors" any number. Stored compact and row-major, aligned to the element
 * size.
 *
 * Atomic: all goes to a temporary file in the same directory, is flushed to the device and then renamed. On
 * any failure the temporary file is removed and a file already at path stays as it is. An existing file is
 * replaced only if it is a regular one with write permission; it keeps its permission bits; through a
 * symbolic link its target is replaced. (A process killed in the middle leaves ".flashattn-PID-N.tmp".)
 */
fa_file_status fa_tensor_file_write(const char *path, const fa_named_tensor *tensors, size_t count,
                                    const fa_file_metadata *metadata, size_t metadata_count, fa_file_error *error);

#endif
