/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target over kept inputs, for compilers without libFuzzer: each argument is a file or a
 * directory of files. Each input lies in an allocation of its exact size, so that sanitizers see a read past
 * its end.
 */
#define _XOPEN_SOURCE 700

#include "fuzz_tensor_file.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static bool replay_file(const char *path, size_t size) {
    FILE *stream = fopen(path, "rb");
    uint8_t *bytes = malloc(size ? size : 1);
    bool complete = stream && bytes && fread(bytes, 1, size, stream) == size;
    if (complete) (void)LLVMFuzzerTestOneInput(bytes, size);
    if (stream) (void)fclose(stream);
    free(bytes);
    return complete;
}

/* The number of inputs replayed, or -1. */
static long replay(const char *path) {
    struct stat status;
    if (stat(path, &status) != 0) return -1;
    if (S_ISREG(status.st_mode)) return replay_file(path, (size_t)status.st_size) ? 1 : -1;
    DIR *directory = opendir(path);
    if (!directory) return -1;
    long total = 0;
    for (struct dirent *entry; total >= 0 && (entry = readdir(directory));) {
        if (entry->d_name[0] == '.') continue;
        char inner[4096];
        int length = snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
        long replayed = length < (int)sizeof inner ? replay(inner) : -1;
        total = replayed < 0 ? -1 : total + replayed;
    }
    (void)closedir(directory);
    return total;
}

int main(int argc, char **argv) {
    long total = 0;
    for (int i = 1; i < argc; i++) {
        long replayed = replay(argv[i]);
        if (replayed < 0) {
            perror(argv[i]);
            return 1;
        }
        total += replayed;
    }
    printf("%ld inputs replayed\n", total);
    return total > 0 ? 0 : 1; /* an empty corpus is a mistake in the call */
}
