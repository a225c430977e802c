/* SPDX-License-Identifier: Apache-2.0 */
/* Input files: see inputs.h. */
#define _XOPEN_SOURCE 700

#include "inputs.h"

#include "message.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int open_file(input_files *files, const char *path, fa_tensor_file **file) {
    for (size_t i = 0; i < files->count; i++) {
        if (strcmp(files->open[i].path, path) == 0) {
            *file = files->open[i].file;
            return EXIT_CODE_OK;
        }
    }
    if (files->count == INPUT_FILES_MAX) return fail_usage("more than %d input files", INPUT_FILES_MAX);
    fa_file_error error;
    if (fa_tensor_file_open(path, file, &error) != FA_FILE_OK) return fail_file("%s", error.text);
    char *copy = strdup(path);
    if (copy == NULL) {
        fa_tensor_file_close(*file);
        return fail_memory("a file name");
    }
    files->open[files->count].path = copy;
    files->open[files->count].file = *file;
    files->count++;
    return EXIT_CODE_OK;
}

/* Cuts a reference into path and name; name is NULL for a file's only tensor. */
static int split_reference(const input_files *files, const char *role, const char *reference, char *path, size_t size,
                           const char **name) {
    bool in_home = reference[0] == ':';
    const char *colon = !in_home && access(reference, F_OK) == 0 ? NULL : strchr(reference, ':');
    *name = colon == NULL ? NULL : colon + 1;
    if (in_home) {
        if (files->home == NULL)
            return fail_usage("%s = %s: names a tensor of the file with q, k and v, but they are in files of their own",
                              role, reference);
        (void)snprintf(path, size, "%s", files->home);
        return EXIT_CODE_OK;
    }
    size_t length = colon == NULL ? strlen(reference) : (size_t)(colon - reference);
    if (length >= size) return fail_file("%s: the path is longer than %zu bytes", role, size - 1);
    memcpy(path, reference, length);
    path[length] = '\0';
    return EXIT_CODE_OK;
}

int inputs_find(input_files *files, const char *role, const char *reference, tensor *view) {
    char path[4096];
    const char *name = NULL;
    fa_tensor_file *file = NULL;
    fa_file_error error;
    fa_tensor found;
    int code = split_reference(files, role, reference, path, sizeof path, &name);
    if (code != EXIT_CODE_OK) return code;
    code = open_file(files, path, &file);
    if (code != EXIT_CODE_OK) return code;
    if (fa_tensor_file_find(file, name, &found, &error) != FA_FILE_OK)
        return fail_file("%s = %s: %s", role, reference, error.text);
    if (found.ndim > TENSOR_MAX_NDIM)
        return fail_file("%s = %s: has %" PRId32 " dimensions; must have at most %d", role, reference, found.ndim,
                         TENSOR_MAX_NDIM);
    tensor_view(view, &found);
    return EXIT_CODE_OK;
}

void inputs_close(input_files *files) {
    for (size_t i = 0; i < files->count; i++) {
        fa_tensor_file_close(files->open[i].file);
        free(files->open[i].path);
    }
    files->count = 0;
}
