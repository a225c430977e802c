/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors named on the command line: FILE, FILE:NAME, or :NAME in the file that holds q, k and v. */
#ifndef FLASHATTN_TOOLS_INPUTS_H
#define FLASHATTN_TOOLS_INPUTS_H

#include "io/tensor_file.h"
#include "tensors.h"

#define INPUT_FILES_MAX 24

/* The files of one run, each mapped once. Zero-initialise. */
typedef struct input_files {
    struct {
        char *path;
        fa_tensor_file *file;
    } open[INPUT_FILES_MAX];
    size_t count;
    const char *home; /* where :NAME looks; NULL: nowhere */
} input_files;

/*
 * Finds the tensor that `reference` names. A reference that is the path of a file is that file's only tensor;
 * otherwise it is cut at its first colon. `role` stands in messages: "q", "--bias". Returns an exit code; the
 * view holds until inputs_close.
 */
int inputs_find(input_files *files, const char *role, const char *reference, tensor *view);

void inputs_close(input_files *files);

#endif
