/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every system call and every allocation of src/io made to fail, one after the other: each gives its status, loses
 * no memory (run under a leak checker) and leaves the old file. Linked with -Wl,--wrap=... for each function below.
 */
#include "io_test.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Faults ---- */

/* Allocations still granted, then every one fails, as when memory has run out; negative: no limit. */
static long allocations_left = -1;

static bool allocation_fails(void) {
    if (allocations_left < 0) return false;
    if (allocations_left > 0) {
        allocations_left--;
        return false;
    }
    errno = ENOMEM;
    return true;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *pointer, size_t size);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *pointer, size_t size);
char *__wrap_strdup(const char *text);

void *__wrap_malloc(size_t size) { return allocation_fails() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t count, size_t size) { return allocation_fails() ? NULL : __real_calloc(count, size); }
void *__wrap_realloc(void *pointer, size_t size) { return allocation_fails() ? NULL : __real_realloc(pointer, size); }
char *__wrap_strdup(const char *text) { return allocation_fails() ? NULL : __real_strdup(text); }

/* The system call of that name that fails, with EIO. */
static const char *failing = "";

static bool fails(const char *call) {
    if (strcmp(failing, call) != 0) return false;
    errno = EIO;
    return true;
}

ssize_t __real_write(int descriptor, const void *bytes, size_t size);
int __real_fsync(int descriptor);
int __real_close(int descriptor);
int __real_rename(const char *from, const char *to);
int __real_fchmod(int descriptor, mode_t mode);
void *__real_mmap(void *address, size_t size, int protection, int flags, int descriptor, off_t offset);
ssize_t __wrap_write(int descriptor, const void *bytes, size_t size);
int __wrap_fsync(int descriptor);
int __wrap_close(int descriptor);
int __wrap_rename(const char *from, const char *to);
int __wrap_fchmod(int descriptor, mode_t mode);
void *__wrap_mmap(void *address, size_t size, int protection, int flags, int descriptor, off_t offset);

ssize_t __wrap_write(int descriptor, const void *bytes, size_t size) {
    static bool interrupt;
    if (fails("write")) return -1;
    if (strcmp(failing, "interrupted write") != 0) return __real_write(descriptor, bytes, size);
    /* Not a failure: every other call is interrupted, and the rest take three bytes at a time. */
    interrupt = !interrupt;
    errno = EINTR;
    return interrupt ? -1 : __real_write(descriptor, bytes, size < 3 ? size : 3);
}
int __wrap_fsync(int descriptor) { return fails("fsync") ? -1 : __real_fsync(descriptor); }
int __wrap_close(int descriptor) {
    int result = __real_close(descriptor);
    return fails("close") ? -1 : result;
}
int __wrap_rename(const char *from, const char *to) { return fails("rename") ? -1 : __real_rename(from, to); }
int __wrap_fchmod(int descriptor, mode_t mode) { return fails("fchmod") ? -1 : __real_fchmod(descriptor, mode); }
void *__wrap_mmap(void *address, size_t size, int protection, int flags, int descriptor, off_t offset) {
    return fails("mmap") ? MAP_FAILED : __real_mmap(address, size, protection, flags, descriptor, offset);
}

/* ---- Tests ---- */

static fa_file_status write_pair(const char *path, int32_t value, fa_file_error *error) {
    int32_t values[2] = {value, value};
    fa_tensor tensor = {.data = values,
                        .device = {FA_DEVICE_CPU, 0},
                        .ndim = 1,
                        .dtype = FA_INT32,
                        .shape = (int64_t[]){2},
                        .strides = (int64_t[]){-1}};
    tensor.byte_offset = sizeof values[0];
    const fa_named_tensor named[] = {{"first", &tensor}, {"second", &tensor}};
    const fa_file_metadata metadata[] = {{"key", "value"}};
    size_t length = strlen(path);
    if (strcmp(path + length - 4, ".npy") == 0) return fa_tensor_file_write(path, named, 1, NULL, 0, error);
    return fa_tensor_file_write(path, named, 2, metadata, 1, error);
}

static void expect_pair(const char *path, int32_t value) {
    fa_file_error error;
    fa_tensor_file *file;
    expect_ok(fa_tensor_file_open(path, &file, &error), &error);
    for (size_t i = 0; i < fa_tensor_file_count(file); i++) {
        const int32_t *data = fa_tensor_file_at(file, i)->tensor.data;
        assert_int_equal(data[0], value);
        assert_int_equal(data[1], value);
    }
    fa_tensor_file_close(file);
}

static const char *const outputs[] = {"out.npy", "out.safetensors"};

static void system_calls_that_fail_leave_the_old_file(void **state) {
    (void)state;
    static const char *const calls[] = {"write", "fsync", "close", "rename", "fchmod"};
    for (size_t i = 0; i < 2; i++) {
        const char *path = scratch(outputs[i]);
        fa_file_error error;
        expect_ok(write_pair(path, 1, &error), &error);
        size_t before = scratch_entries();
        for (size_t c = 0; c < sizeof calls / sizeof calls[0]; c++) {
            failing = calls[c];
            fa_file_status status = write_pair(path, -1, &error);
            failing = "";
            assert_int_equal(status, FA_FILE_SYSTEM_ERROR);
            assert_non_null(strstr(error.text, "Input/output error"));
            assert_non_null(strstr(error.text, outputs[i]));
            assert_int_equal(scratch_entries(), before);
            expect_pair(path, 1);
        }
    }
}

static void interrupted_and_partial_writes_are_continued(void **state) {
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        fa_file_error error;
        failing = "interrupted write";
        fa_file_status status = write_pair(scratch(outputs[i]), 2, &error);
        failing = "";
        expect_ok(status, &error);
        expect_pair(scratch(outputs[i]), 2);
    }
}

static void a_file_that_cannot_be_mapped(void **state) {
    (void)state;
    fa_file_error error;
    fa_tensor_file *file;
    expect_ok(write_pair(scratch("map.npy"), 3, &error), &error);
    failing = "mmap";
    fa_file_status status = fa_tensor_file_open(scratch("map.npy"), &file, &error);
    failing = "";
    assert_int_equal(status, FA_FILE_SYSTEM_ERROR);
    assert_null(file);
    assert_non_null(strstr(error.text, "cannot be mapped: Input/output error"));
}

static void every_allocation_of_a_write_fails_once(void **state) {
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        const char *path = scratch(outputs[i]);
        fa_file_error error;
        expect_ok(write_pair(path, 4, &error), &error);
        size_t before = scratch_entries();
        long granted = 0;
        for (;; granted++) {
            allocations_left = granted;
            fa_file_status status = write_pair(path, 5, &error);
            allocations_left = -1;
            if (status == FA_FILE_OK) break;
            assert_int_equal(status, FA_FILE_OUT_OF_MEMORY);
            assert_int_equal(scratch_entries(), before);
            expect_pair(path, 4);
        }
        assert_true(granted > 1);
        expect_pair(path, 5);
    }
}

static void every_allocation_of_a_read_fails_once(void **state) {
    (void)state;
    const char *const names[] = {"float32.npy", "all_types.safetensors", "shapes.safetensors"};
    for (size_t i = 0; i < 3; i++) {
        long granted = 0;
        for (;; granted++) {
            fa_file_error error = {""};
            fa_tensor_file *file;
            const char *path = fixture(names[i]);
            allocations_left = granted;
            fa_file_status status = fa_tensor_file_open(path, &file, &error);
            allocations_left = -1;
            if (status == FA_FILE_OK) {
                fa_tensor_file_close(file);
                break;
            }
            /* The JSON library takes some of its own failed allocations for a mistake in the text. */
            bool misjudged = status == FA_FILE_MALFORMED && strstr(error.text, "is not valid JSON");
            if (status != FA_FILE_OUT_OF_MEMORY && !misjudged) fail_msg("status %d: %s", status, error.text);
            assert_null(file);
        }
        assert_true(granted > 3);
    }
}

int main(void) {
    /* The JSON library is linked as it is; its allocations are counted by its own hook. */
    json_set_alloc_funcs(__wrap_malloc, free);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(system_calls_that_fail_leave_the_old_file),
        cmocka_unit_test(interrupted_and_partial_writes_are_continued),
        cmocka_unit_test(a_file_that_cannot_be_mapped),
        cmocka_unit_test(every_allocation_of_a_write_fails_once),
        cmocka_unit_test(every_allocation_of_a_read_fails_once),
    };
    return cmocka_run_group_tests_name("io: faults", tests, make_scratch, remove_scratch);
}
