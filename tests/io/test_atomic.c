/* SPDX-License-Identifier: Apache-2.0 */
/* What a write does to the directory: all or nothing, whatever lies there already. */
#define _XOPEN_SOURCE 700

#include "io_test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static float numbers[4096];

static fa_file_status write_numbers(const char *path, float first, fa_file_error *error) {
    numbers[0] = first;
    fa_tensor tensor = {.data = numbers,
                        .device = {FA_DEVICE_CPU, 0},
                        .ndim = 1,
                        .dtype = FA_FLOAT32,
                        .shape = (int64_t[]){sizeof numbers / sizeof numbers[0]}};
    const fa_named_tensor named = {"t", &tensor};
    return fa_tensor_file_write(path, &named, 1, NULL, 0, error);
}

static void expect_written(const char *path, float first) {
    fa_file_error error;
    expect_ok(write_numbers(path, first, &error), &error);
}

static void expect_first(const char *path, float first) {
    fa_file_error error;
    fa_tensor_file *file;
    fa_tensor tensor;
    expect_ok(fa_tensor_file_open(path, &file, &error), &error);
    expect_ok(fa_tensor_file_find(file, NULL, &tensor, &error), &error);
    assert_true(*(const float *)tensor.data == first);
    fa_tensor_file_close(file);
}

/* The write fails so and leaves no name behind. */
static void expect_failure(const char *path, fa_file_status status, const char *sentence) {
    size_t before = scratch_entries();
    fa_file_error error = {""};
    fa_file_status found = write_numbers(path, -1.0f, &error);
    if (found != status || !strstr(error.text, sentence))
        fail_msg("status %d, \"%s\"; expected status %d and \"...%s...\"", found, error.text, status, sentence);
    assert_int_equal(scratch_entries(), before);
}

static mode_t mode_of(const char *path) {
    struct stat status;
    assert_int_equal(stat(path, &status), 0);
    return status.st_mode & 07777;
}

static void a_new_file_obeys_the_umask(void **state) {
    (void)state;
    mode_t before = umask(027);
    expect_written(scratch("new.npy"), 1.0f);
    (void)umask(before);
    assert_int_equal(mode_of(scratch("new.npy")), 0640);
    expect_first(scratch("new.npy"), 1.0f);
}

static void an_existing_file_is_replaced_and_keeps_its_mode(void **state) {
    (void)state;
    write_whole(scratch("old.npy"), "anything", 8);
    assert_int_equal(chmod(scratch("old.npy"), 0604), 0);
    size_t before = scratch_entries();
    expect_written(scratch("old.npy"), 2.0f);
    assert_int_equal(scratch_entries(), before);
    assert_int_equal(mode_of(scratch("old.npy")), 0604);
    expect_first(scratch("old.npy"), 2.0f);
}

static void the_file_being_read_may_be_replaced(void **state) {
    (void)state;
    expect_written(scratch("both.npy"), 3.0f);
    fa_file_error error;
    fa_tensor_file *file;
    fa_tensor tensor;
    expect_ok(fa_tensor_file_open(scratch("both.npy"), &file, &error), &error);
    expect_ok(fa_tensor_file_find(file, NULL, &tensor, &error), &error);
    const fa_named_tensor named = {NULL, &tensor};
    tensor.shape[0] = 1; /* the new file is shorter than the mapping */
    expect_ok(fa_tensor_file_write(scratch("both.npy"), &named, 1, NULL, 0, &error), &error);
    assert_true(((const float *)tensor.data)[0] == 3.0f);
    assert_true(((const float *)tensor.data)[4095] == 0.0f);
    fa_tensor_file_close(file);
    expect_first(scratch("both.npy"), 3.0f);
}

static void without_a_directory_part(void **state) {
    (void)state;
    char home[1024];
    assert_non_null(getcwd(home, sizeof home));
    assert_int_equal(chdir(scratch("")), 0);
    fa_file_error error;
    fa_file_status status = write_numbers("here.npy", 4.0f, &error);
    assert_int_equal(chdir(home), 0);
    expect_ok(status, &error);
    expect_first(scratch("here.npy"), 4.0f);
}

static void a_name_as_long_as_the_file_system_allows(void **state) {
    (void)state;
    char name[256];
    memset(name, 'n', sizeof name);
    memcpy(name + 251, ".npy", 5);
    expect_written(scratch(name), 5.0f);
    expect_first(scratch(name), 5.0f);
}

static void a_symbolic_link_keeps_pointing_to_the_new_content(void **state) {
    (void)state;
    expect_written(scratch("target.npy"), 6.0f);
    assert_int_equal(symlink("target.npy", scratch("link.npy")), 0);
    expect_written(scratch("link.npy"), 7.0f);
    struct stat status;
    assert_int_equal(lstat(scratch("link.npy"), &status), 0);
    assert_true(S_ISLNK(status.st_mode));
    expect_first(scratch("target.npy"), 7.0f);

    assert_int_equal(symlink("nothing.npy", scratch("dangling.npy")), 0);
    expect_failure(scratch("dangling.npy"), FA_FILE_SYSTEM_ERROR, "a symbolic link that cannot be followed");
    assert_int_equal(symlink("loop.npy", scratch("loop.npy")), 0);
    expect_failure(scratch("loop.npy"), FA_FILE_SYSTEM_ERROR, "a symbolic link that cannot be followed");
}

static void places_that_cannot_be_written(void **state) {
    (void)state;
    expect_failure(scratch("absent/out.npy"), FA_FILE_SYSTEM_ERROR, "in its directory: No such file");
    write_whole(scratch("file"), "x", 1);
    expect_failure(scratch("file/out.npy"), FA_FILE_SYSTEM_ERROR, "Not a directory");
    assert_int_equal(mkdir(scratch("directory.npy"), 0777), 0);
    expect_failure(scratch("directory.npy"), FA_FILE_INVALID_ARGUMENT, "is a directory or a device");
    assert_int_equal(symlink("/dev/null", scratch("null.npy")), 0);
    expect_failure(scratch("null.npy"), FA_FILE_INVALID_ARGUMENT, "is a directory or a device");
}

/* As a user whom permissions bind: root may write everywhere. */
static void expect_failure_as_user(const char *path, const char *sentence) {
    uid_t user = geteuid();
    if (user == 0) assert_int_equal(seteuid(65534), 0);
    fa_file_error error = {""};
    fa_file_status status = write_numbers(path, -1.0f, &error);
    assert_int_equal(seteuid(user), 0);
    if (status != FA_FILE_SYSTEM_ERROR || !strstr(error.text, sentence))
        fail_msg("status %d, \"%s\"; expected \"...%s...\"", status, error.text, sentence);
}

static void permissions_are_respected(void **state) {
    (void)state;
    assert_int_equal(chmod(scratch(""), 0777), 0);
    expect_written(scratch("fixed.npy"), 8.0f);
    assert_int_equal(chmod(scratch("fixed.npy"), 0444), 0);
    size_t before = scratch_entries();
    expect_failure_as_user(scratch("fixed.npy"), "exists and may not be replaced: Permission denied");
    assert_int_equal(chmod(scratch("fixed.npy"), 0666), 0);
    assert_int_equal(chmod(scratch(""), 0555), 0);
    expect_failure_as_user(scratch("fixed.npy"), "in its directory: Permission denied");
    expect_failure_as_user(scratch("other.npy"), "in its directory: Permission denied");
    assert_int_equal(chmod(scratch(""), 0755), 0);
    assert_int_equal(scratch_entries(), before);
    expect_first(scratch("fixed.npy"), 8.0f);
}

static void a_full_device_leaves_the_old_file(void **state) {
    (void)state;
    expect_written(scratch("kept.npy"), 9.0f);
    expect_written(scratch("kept.safetensors"), 9.0f);
    /* The limit acts like a device that is full after 5000 bytes: a first write is cut, the next fails. */
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    const struct rlimit limit = {5000, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    fa_file_error npy_error = {""}, safetensors_error = {""};
    fa_file_status npy = write_numbers(scratch("kept.npy"), -1.0f, &npy_error);
    fa_file_status safetensors = write_numbers(scratch("kept.safetensors"), -1.0f, &safetensors_error);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    (void)signal(SIGXFSZ, handler);
    assert_int_equal(npy, FA_FILE_SYSTEM_ERROR);
    assert_int_equal(safetensors, FA_FILE_SYSTEM_ERROR);
    assert_non_null(strstr(npy_error.text, "kept.npy: cannot be written: File too large"));
    assert_non_null(strstr(safetensors_error.text, "kept.safetensors: cannot be written: File too large"));
    expect_first(scratch("kept.npy"), 9.0f);
    expect_first(scratch("kept.safetensors"), 9.0f);
}

static void temporary_names_that_are_taken(void **state) {
    (void)state;
    char name[64];
    for (int attempt = 0; attempt < 100; attempt++) {
        snprintf(name, sizeof name, ".flashattn-%lu-%d.tmp", (unsigned long)getpid(), attempt);
        if (attempt == 3) expect_written(scratch("fourth.npy"), 10.0f);
        /* A link that would lead a careless writer to another file. */
        assert_int_equal(symlink("fourth.npy", scratch(name)), 0);
    }
    expect_first(scratch("fourth.npy"), 10.0f);
    expect_failure(scratch("fifth.npy"), FA_FILE_SYSTEM_ERROR, "in its directory: File exists");
    expect_first(scratch("fourth.npy"), 10.0f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_file_obeys_the_umask),
        cmocka_unit_test(an_existing_file_is_replaced_and_keeps_its_mode),
        cmocka_unit_test(the_file_being_read_may_be_replaced),
        cmocka_unit_test(without_a_directory_part),
        cmocka_unit_test(a_name_as_long_as_the_file_system_allows),
        cmocka_unit_test(a_symbolic_link_keeps_pointing_to_the_new_content),
        cmocka_unit_test(places_that_cannot_be_written),
        cmocka_unit_test(permissions_are_respected),
        cmocka_unit_test(a_full_device_leaves_the_old_file),
        cmocka_unit_test(temporary_names_that_are_taken), /* last: it takes the names */
    };
    /* No file descriptor may be lost by any of them. */
    int before = dup(0);
    (void)close(before);
    int failed = cmocka_run_group_tests_name("io: atomic output", tests, make_scratch, remove_scratch);
    int after = dup(0);
    (void)close(after);
    if (after != before) fprintf(stderr, "descriptors were left open: next is %d, was %d\n", after, before);
    return failed || after != before;
}
