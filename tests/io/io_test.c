/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of src/io share: see io_test.h. */
#define _XOPEN_SOURCE 700

#include "io_test.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char directory[512];

int make_scratch(void **state) {
    (void)state;
    const char *parent = getenv("TMPDIR");
    snprintf(directory, sizeof directory, "%s/flashattn-io-XXXXXX", parent ? parent : "/tmp");
    return mkdtemp(directory) ? 0 : -1;
}

int remove_scratch(void **state) {
    (void)state;
    DIR *stream = opendir(directory);
    if (!stream) return -1;
    for (struct dirent *entry; (entry = readdir(stream));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (unlinkat(dirfd(stream), entry->d_name, 0) != 0) (void)unlinkat(dirfd(stream), entry->d_name, AT_REMOVEDIR);
    }
    (void)closedir(stream);
    return rmdir(directory);
}

static const char *join(const char *parent, const char *name) {
    static char paths[8][1024];
    static size_t next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", parent, name);
    return path;
}

const char *scratch(const char *name) { return join(directory, name); }

const char *fixture(const char *name) { return join(FIXTURES_DIRECTORY, name); }

uint8_t *read_whole(const char *path, size_t *size) {
    struct stat status;
    FILE *stream = fopen(path, "rb");
    if (!stream || fstat(fileno(stream), &status) != 0) fail_msg("cannot read %s", path);
    *size = (size_t)status.st_size;
    uint8_t *bytes = malloc(*size ? *size : 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *size, stream), *size);
    assert_int_equal(fclose(stream), 0);
    return bytes;
}

void write_whole(const char *path, const void *bytes, size_t size) {
    FILE *stream = fopen(path, "wb");
    if (!stream) fail_msg("cannot write %s", path);
    assert_int_equal(fwrite(bytes, 1, size, stream), size);
    assert_int_equal(fclose(stream), 0);
}

size_t scratch_entries(void) {
    DIR *stream = opendir(directory);
    assert_non_null(stream);
    size_t count = 0;
    while (readdir(stream)) count++;
    (void)closedir(stream);
    return count - 2; /* . and .. */
}

void expect_refusal(const void *bytes, size_t size, fa_file_status status, const char *sentence) {
    uint8_t *copy = malloc(size ? size : 1);
    assert_non_null(copy);
    memcpy(copy, bytes, size);
    fa_file_error error = {""};
    fa_tensor_file *file;
    fa_file_status found = fa_tensor_file_parse(copy, size, "hostile", &file, &error);
    free(copy);
    if (found != status || !strstr(error.text, sentence))
        fail_msg("status %d, \"%s\"; expected status %d and \"...%s...\"", found, error.text, status, sentence);
    assert_null(file);
    assert_int_equal(strncmp(error.text, "hostile: ", 9), 0);
}

void expect_ok(fa_file_status status, const fa_file_error *error) {
    if (status != FA_FILE_OK) fail_msg("status %d: %s", status, error->text);
}

/* 0, 1, 2, -3, 4, -5. The 16 and 8 bit floats by their bits, so that no conversion stands between. */
static const double float64_values[] = {0, 1, 2, -3, 4, -5};
static const float float32_values[] = {0, 1, 2, -3, 4, -5};
static const uint16_t float16_values[] = {0x0000, 0x3C00, 0x4000, 0xC200, 0x4400, 0xC500};
static const uint16_t bfloat16_values[] = {0x0000, 0x3F80, 0x4000, 0xC040, 0x4080, 0xC0A0};
static const int64_t int64_values[] = {0, 1, 2, -3, 4, -5};
static const int32_t int32_values[] = {0, 1, 2, -3, 4, -5};
static const int8_t int8_values[] = {0, 1, 2, -3, 4, -5};
static const uint8_t uint8_values[] = {0, 1, 2, 3, 4, 5};
static const uint8_t bool_values[] = {0, 1, 0, 1, 0, 1};
static const uint8_t float8_e4m3fn_values[] = {0x00, 0x38, 0x40, 0xC4, 0x48, 0xCA};
static const uint8_t float8_e5m2_values[] = {0x00, 0x3C, 0x40, 0xC2, 0x44, 0xC5};

const type_case type_cases[TYPE_CASES] = {
    {"float64", FA_FLOAT64, "<f8", "F64", float64_values},
    {"float32", FA_FLOAT32, "<f4", "F32", float32_values},
    {"float16", FA_FLOAT16, "<f2", "F16", float16_values},
    {"bfloat16", FA_BFLOAT16, "<V2", "BF16", bfloat16_values},
    {"int64", {FA_DTYPE_INT, 64, 1}, "<i8", "I64", int64_values},
    {"int32", FA_INT32, "<i4", "I32", int32_values},
    {"int8", {FA_DTYPE_INT, 8, 1}, "|i1", "I8", int8_values},
    {"uint8", {FA_DTYPE_UINT, 8, 1}, "|u1", "U8", uint8_values},
    {"bool", FA_BOOL, "|b1", "BOOL", bool_values},
    {"float8_e4m3fn", {10, 8, 1}, NULL, "F8_E4M3", float8_e4m3fn_values},
    {"float8_e5m2", {12, 8, 1}, NULL, "F8_E5M2", float8_e5m2_values},
};
