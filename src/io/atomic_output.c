/* SPDX-License-Identifier: Apache-2.0 */
/* A file that appears under its name only when it is complete: see atomic_output.h. */
#define _XOPEN_SOURCE 700

#include "atomic_output.h"

#include "file_format.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static fa_file_status fail_system(fa_file_error *error, const char *path, const char *what) {
    return fa_file_fail(error, FA_FILE_SYSTEM_ERROR, path, "%s: %s", what, strerror(errno));
}

/* The path to replace, allocated, and the permission bits to keep; *exists tells whether there is a file. */
static fa_file_status resolve(const char *path, char **resolved, bool *exists, mode_t *mode, fa_file_error *error) {
    struct stat status;
    *exists = false;
    *resolved = NULL;
    if (lstat(path, &status) != 0) {
        if (errno != ENOENT) return fail_system(error, path, "cannot be written");
        *resolved = strdup(path);
        return *resolved ? FA_FILE_OK : fa_file_fail_memory(error, path);
    }
    *resolved = S_ISLNK(status.st_mode) ? realpath(path, NULL) : strdup(path);
    if (!*resolved) {
        if (errno == ENOMEM) return fa_file_fail_memory(error, path);
        return fail_system(error, path, "is a symbolic link that cannot be followed");
    }
    fa_file_status result = FA_FILE_OK;
    if (stat(*resolved, &status) != 0)
        result = fail_system(error, path, "cannot be examined");
    else if (!S_ISREG(status.st_mode))
        result = fa_file_fail(error, FA_FILE_INVALID_ARGUMENT, path,
                              "is a directory or a device; an output must be a regular file or not exist");
    else if (faccessat(AT_FDCWD, *resolved, W_OK, AT_EACCESS) != 0)
        result = fail_system(error, path, "exists and may not be replaced");
    if (result != FA_FILE_OK) {
        free(*resolved);
        *resolved = NULL;
        return result;
    }
    *exists = true;
    *mode = status.st_mode & 0777;
    return FA_FILE_OK;
}

/* The length of the directory part, final '/' included; 0 if there is none. */
static size_t directory_length(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

static fa_file_status create_temporary(fa_atomic_output *output, const char *path, fa_file_error *error) {
    enum { ATTEMPTS = 100 };
    /* Not made from the file's own name, which may already be as long as the file system allows. */
    size_t directory = directory_length(output->path);
    size_t size = directory + sizeof ".flashattn-18446744073709551615-100.tmp";
    output->temporary = malloc(size);
    if (!output->temporary) return fa_file_fail_memory(error, path);
    memcpy(output->temporary, output->path, directory);
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        snprintf(output->temporary + directory, size - directory, ".flashattn-%lu-%d.tmp", (unsigned long)getpid(),
                 attempt);
        /* O_EXCL follows no link that somebody may have laid there. The umask applies, as for any new file. */
        output->descriptor = open(output->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (output->descriptor >= 0) return FA_FILE_OK;
        if (errno != EEXIST) break;
    }
    return fail_system(error, path, "cannot be written, for no file can be created in its directory");
}

static void release(fa_atomic_output *output) {
    free(output->path);
    free(output->temporary);
    *output = (fa_atomic_output){.descriptor = -1};
}

fa_file_status fa_atomic_output_open(fa_atomic_output *output, const char *path, fa_file_error *error) {
    *output = (fa_atomic_output){.descriptor = -1};
    bool exists;
    mode_t mode = 0;
    fa_file_status status = resolve(path, &output->path, &exists, &mode, error);
    if (status == FA_FILE_OK) status = create_temporary(output, path, error);
    if (status != FA_FILE_OK) {
        release(output);
        return status;
    }
    if (exists && fchmod(output->descriptor, mode) != 0) {
        status = fail_system(error, path, "cannot be replaced with the permissions it has");
        fa_atomic_output_discard(output);
    }
    return status;
}

fa_file_status fa_atomic_output_write(fa_atomic_output *output, const void *bytes, size_t size, fa_file_error *error) {
    const char *next = bytes;
    while (size > 0) {
        ssize_t written = write(output->descriptor, next, size);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return fail_system(error, output->path, "cannot be written");
        next += written;
        size -= (size_t)written;
    }
    return FA_FILE_OK;
}

/* So that the rename survives a power failure too. Not an error if it does not work: the file under the name
 * is complete in either case, and some file systems cannot do this. */
static void flush_directory(fa_atomic_output *output) {
    size_t length = directory_length(output->path);
    output->path[length] = '\0'; /* the file's own name is not needed any more */
    int directory = open(length > 0 ? output->path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) return;
    (void)fsync(directory);
    (void)close(directory);
}

fa_file_status fa_atomic_output_commit(fa_atomic_output *output, fa_file_error *error) {
    int reason = fsync(output->descriptor) == 0 ? 0 : errno;
    /* A network file system may report a failed write as late as here. After EINTR Linux has closed it. */
    if (close(output->descriptor) != 0 && reason == 0 && errno != EINTR) reason = errno;
    output->descriptor = -1;
    if (reason == 0 && rename(output->temporary, output->path) != 0) reason = errno;
    if (reason != 0) {
        errno = reason;
        fa_file_status status = fail_system(error, output->path, "could not be completed");
        fa_atomic_output_discard(output);
        return status;
    }
    flush_directory(output);
    release(output);
    return FA_FILE_OK;
}

void fa_atomic_output_discard(fa_atomic_output *output) {
    if (output->descriptor >= 0) (void)close(output->descriptor);
    (void)unlink(output->temporary);
    release(output);
}
