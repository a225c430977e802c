/* SPDX-License-Identifier: Apache-2.0 */
/* A file that appears under its name only when it is complete: temporary file, fsync, rename. */
#ifndef FLASHATTN_IO_ATOMIC_OUTPUT_H
#define FLASHATTN_IO_ATOMIC_OUTPUT_H

#include "tensor_file.h"

typedef struct fa_atomic_output {
    char *path;      /* where the file will appear, symbolic links resolved */
    char *temporary; /* in the same directory */
    int descriptor;
} fa_atomic_output;

/* On failure nothing is left behind. On success one of commit and discard must follow. */
fa_file_status fa_atomic_output_open(fa_atomic_output *output, const char *path, fa_file_error *error);

fa_file_status fa_atomic_output_write(fa_atomic_output *output, const void *bytes, size_t size, fa_file_error *error);

/* The file takes its place, or the temporary file is removed and the error returned. */
fa_file_status fa_atomic_output_commit(fa_atomic_output *output, fa_file_error *error);

/* Removes the temporary file. */
void fa_atomic_output_discard(fa_atomic_output *output);

#endif
