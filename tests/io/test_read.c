/* SPDX-License-Identifier: Apache-2.0 */
/* Files that NumPy and the safetensors package wrote (fixtures/make_fixtures.py), and paths that cannot be
 * read. */
#define _XOPEN_SOURCE 700

#include "io_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static fa_tensor_file *open_fixture(const char *name) {
    fa_file_error error;
    fa_tensor_file *file;
    expect_ok(fa_tensor_file_open(fixture(name), &file, &error), &error);
    return file;
}

static fa_tensor find(const fa_tensor_file *file, const char *name) {
    fa_file_error error;
    fa_tensor tensor;
    expect_ok(fa_tensor_file_find(file, name, &tensor, &error), &error);
    assert_int_equal(tensor.device.device_type, FA_DEVICE_CPU);
    assert_int_equal(tensor.device.device_id, 0);
    assert_int_equal(tensor.byte_offset, 0);
    return tensor;
}

static void expect_dtype(fa_dtype found, fa_dtype expected) {
    assert_int_equal(found.code, expected.code);
    assert_int_equal(found.bits, expected.bits);
    assert_int_equal(found.lanes, expected.lanes);
}

static void expect_dims(const fa_tensor *tensor, int32_t ndim, const int64_t *shape, const int64_t *strides) {
    assert_int_equal(tensor->ndim, ndim);
    for (int32_t i = 0; i < ndim; i++) {
        assert_int_equal(tensor->shape[i], shape[i]);
        assert_int_equal(tensor->strides[i], strides[i]);
    }
}

static void expect_case(const fa_tensor *tensor, const type_case *type) {
    expect_dtype(tensor->dtype, type->dtype);
    expect_dims(tensor, 2, (int64_t[]){2, 3}, (int64_t[]){3, 1});
    assert_memory_equal(tensor->data, type->values, 6 * (size_t)type->dtype.bits / 8);
}

static void npy_of_every_type(void **state) {
    (void)state;
    for (size_t i = 0; i < TYPE_CASES; i++) {
        const type_case *type = &type_cases[i];
        if (!type->npy) continue;
        char name[64];
        snprintf(name, sizeof name, "%s.npy", type->name);
        fa_tensor_file *file = open_fixture(name);
        assert_int_equal(fa_tensor_file_count(file), 1);
        const fa_file_tensor *listed = fa_tensor_file_at(file, 0);
        assert_string_equal(listed->name, "");
        assert_string_equal(listed->dtype_name, type->npy);
        assert_true(listed->readable);
        assert_int_equal(listed->offset, 128);
        fa_tensor tensor = find(file, NULL);
        expect_case(&tensor, type);
        fa_tensor_file_close(file);
    }
}

static void npy_of_every_version(void **state) {
    (void)state;
    const char *names[] = {"float32.npy", "version2.npy", "version3.npy"};
    for (size_t i = 0; i < 3; i++) {
        fa_tensor_file *file = open_fixture(names[i]);
        fa_tensor tensor = find(file, "");
        expect_case(&tensor, &type_cases[1]);
        fa_tensor_file_close(file);
    }
}

static void npy_in_fortran_order_is_strided(void **state) {
    (void)state;
    fa_tensor_file *file = open_fixture("fortran.npy");
    fa_tensor tensor = find(file, NULL);
    expect_dims(&tensor, 2, (int64_t[]){2, 3}, (int64_t[]){1, 2});
    const float *data = tensor.data, *expected = type_cases[1].values;
    for (int row = 0; row < 2; row++)
        for (int column = 0; column < 3; column++) assert_true(data[row + 2 * column] == expected[3 * row + column]);
    fa_tensor_file_close(file);
}

static void npy_of_zero_one_and_five_dimensions(void **state) {
    (void)state;
    fa_tensor_file *file = open_fixture("scalar.npy");
    fa_tensor tensor = find(file, NULL);
    assert_int_equal(tensor.ndim, 0);
    assert_true(*(const float *)tensor.data == 7.5f);
    fa_tensor_file_close(file);

    file = open_fixture("vector.npy");
    tensor = find(file, NULL);
    expect_dims(&tensor, 1, (int64_t[]){5}, (int64_t[]){1});
    assert_true(((const float *)tensor.data)[4] == 4.0f);
    fa_tensor_file_close(file);

    file = open_fixture("five_dims.npy");
    tensor = find(file, NULL);
    expect_dims(&tensor, 5, (int64_t[]){1, 2, 1, 2, 3}, (int64_t[]){12, 6, 6, 3, 1});
    for (int32_t i = 0; i < 12; i++) assert_int_equal(((const int32_t *)tensor.data)[i], i);
    fa_tensor_file_close(file);

    file = open_fixture("empty.npy");
    tensor = find(file, NULL);
    expect_dims(&tensor, 2, (int64_t[]){0, 3}, (int64_t[]){3, 1});
    assert_int_equal(fa_tensor_file_at(file, 0)->bytes, 0);
    fa_tensor_file_close(file);
}

static void npy_of_other_types_is_refused(void **state) {
    (void)state;
    const struct {
        const char *name, *sentence;
    } cases[] = {
        {"big_endian.npy", "big-endian"},         {"structured.npy", "list of fields"},
        {"complex.npy", "'<c8' is not read"},     {"float8_e4m3fn.npy", "'<V1' is not read"},
        {"float8_e5m2.npy", "'<f1' is not read"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fa_file_error error;
        fa_tensor_file *file;
        assert_int_equal(fa_tensor_file_open(fixture(cases[i].name), &file, &error), FA_FILE_UNSUPPORTED);
        assert_null(file);
        assert_non_null(strstr(error.text, cases[i].name));
        assert_non_null(strstr(error.text, cases[i].sentence));
    }
}

static void safetensors_of_every_type(void **state) {
    (void)state;
    fa_tensor_file *file = open_fixture("all_types.safetensors");
    assert_int_equal(fa_tensor_file_count(file), TYPE_CASES);
    for (size_t i = 0; i < TYPE_CASES; i++) {
        fa_tensor tensor = find(file, type_cases[i].name);
        expect_case(&tensor, &type_cases[i]);
    }
    assert_string_equal(fa_tensor_file_at(file, 0)->name, "int64");
    assert_string_equal(fa_tensor_file_at(file, 0)->dtype_name, "I64");
    assert_string_equal(fa_tensor_file_at(file, TYPE_CASES - 1)->name, "bool");
    fa_tensor_file_close(file);
}

static void safetensors_of_zero_one_and_five_dimensions(void **state) {
    (void)state;
    fa_tensor_file *file = open_fixture("shapes.safetensors");
    assert_int_equal(fa_tensor_file_count(file), 4);
    fa_tensor tensor = find(file, "scalar");
    assert_int_equal(tensor.ndim, 0);
    assert_true(*(const float *)tensor.data == 7.5f);
    tensor = find(file, "vector");
    expect_dims(&tensor, 1, (int64_t[]){5}, (int64_t[]){1});
    assert_true(((const float *)tensor.data)[4] == 4.0f);
    tensor = find(file, "five_dims");
    expect_dims(&tensor, 5, (int64_t[]){1, 2, 1, 2, 3}, (int64_t[]){12, 6, 6, 3, 1});
    assert_true(((const float *)tensor.data)[11] == 11.0f);
    tensor = find(file, "empty");
    expect_dims(&tensor, 2, (int64_t[]){0, 3}, (int64_t[]){3, 1});
    fa_tensor_file_close(file);
}

static void safetensors_lists_unknown_types_and_refuses_them(void **state) {
    (void)state;
    fa_tensor_file *file = open_fixture("unknown_type.safetensors");
    assert_int_equal(fa_tensor_file_count(file), 2);
    const fa_file_tensor *listed = fa_tensor_file_at(file, 1);
    assert_string_equal(listed->name, "unknown");
    assert_string_equal(listed->dtype_name, "U16");
    assert_false(listed->readable);
    assert_int_equal(listed->bytes, 12);
    assert_int_equal(listed->tensor.ndim, 1);
    assert_int_equal(listed->tensor.shape[0], 6);
    fa_tensor tensor = find(file, "known");
    expect_case(&tensor, &type_cases[1]);
    fa_file_error error;
    assert_int_equal(fa_tensor_file_find(file, "unknown", &tensor, &error), FA_FILE_UNSUPPORTED);
    assert_non_null(strstr(error.text, "'unknown' is of type U16"));
    fa_tensor_file_close(file);
}

static void names_that_are_not_there(void **state) {
    (void)state;
    fa_file_error error;
    fa_tensor tensor;
    fa_tensor_file *file = open_fixture("shapes.safetensors");
    assert_int_equal(fa_tensor_file_find(file, "vect", &tensor, &error), FA_FILE_NOT_FOUND);
    assert_non_null(strstr(error.text, "no tensor named 'vect' among its 4"));
    assert_int_equal(fa_tensor_file_find(file, NULL, &tensor, &error), FA_FILE_NOT_FOUND);
    assert_non_null(strstr(error.text, "holds 4 tensors; one of them must be named"));
    fa_tensor_file_close(file);

    file = open_fixture("no_tensors.safetensors");
    assert_int_equal(fa_tensor_file_count(file), 0);
    assert_int_equal(fa_tensor_file_find(file, NULL, &tensor, &error), FA_FILE_NOT_FOUND);
    fa_tensor_file_close(file);
}

static void format_is_told_by_content(void **state) {
    (void)state;
    size_t size;
    uint8_t *bytes = read_whole(fixture("float32.npy"), &size);
    write_whole(scratch("named.safetensors"), bytes, size);
    free(bytes);
    fa_file_error error;
    fa_tensor_file *file;
    expect_ok(fa_tensor_file_open(scratch("named.safetensors"), &file, &error), &error);
    fa_tensor tensor = find(file, NULL);
    expect_case(&tensor, &type_cases[1]);
    fa_tensor_file_close(file);
    fa_tensor_file_close(NULL);
}

static void expect_unopened(const char *path, fa_file_status status, const char *sentence) {
    fa_file_error error = {""};
    fa_tensor_file *file;
    fa_file_status found = fa_tensor_file_open(path, &file, &error);
    if (found != status || !strstr(error.text, sentence))
        fail_msg("status %d, \"%s\"; expected status %d and \"...%s...\"", found, error.text, status, sentence);
    assert_null(file);
}

static void paths_that_cannot_be_read(void **state) {
    (void)state;
    expect_unopened(scratch("absent.npy"), FA_FILE_SYSTEM_ERROR, "absent.npy: cannot be opened: No such file");
    expect_unopened("", FA_FILE_SYSTEM_ERROR, "cannot be opened");
    expect_unopened(scratch(""), FA_FILE_INVALID_ARGUMENT, "is a directory");
    expect_unopened("/dev/null", FA_FILE_INVALID_ARGUMENT, "a device");
    assert_int_equal(mkfifo(scratch("pipe.npy"), 0600), 0);
    expect_unopened(scratch("pipe.npy"), FA_FILE_INVALID_ARGUMENT, "a pipe"); /* and does not wait */
    write_whole(scratch("empty.npy"), "", 0);
    expect_unopened(scratch("empty.npy"), FA_FILE_MALFORMED, "is empty");
    assert_int_equal(symlink("loop.npy", scratch("loop.npy")), 0);
    expect_unopened(scratch("loop.npy"), FA_FILE_SYSTEM_ERROR, "cannot be opened");

    char long_path[3000];
    memset(long_path, 'a', sizeof long_path - 1);
    long_path[sizeof long_path - 1] = '\0';
    expect_unopened(long_path, FA_FILE_SYSTEM_ERROR, "a: cannot be opened: File name too long");
}

static void symbolic_links_are_followed(void **state) {
    (void)state;
    char *target = realpath(fixture("float32.npy"), NULL);
    assert_non_null(target);
    assert_int_equal(symlink(target, scratch("link.npy")), 0);
    free(target);
    fa_file_error error;
    fa_tensor_file *file;
    expect_ok(fa_tensor_file_open(scratch("link.npy"), &file, &error), &error);
    fa_tensor tensor = find(file, NULL);
    expect_case(&tensor, &type_cases[1]);
    fa_tensor_file_close(file);
}

static void files_without_permission(void **state) {
    (void)state;
    write_whole(scratch("secret.npy"), "x", 1);
    assert_int_equal(chmod(scratch("secret.npy"), 0), 0);
    uid_t user = geteuid();
    if (user == 0) assert_int_equal(seteuid(65534), 0); /* root may read everything */
    fa_file_error error = {""};
    fa_tensor_file *file;
    fa_file_status status = fa_tensor_file_open(scratch("secret.npy"), &file, &error);
    assert_int_equal(seteuid(user), 0);
    assert_int_equal(status, FA_FILE_SYSTEM_ERROR);
    assert_non_null(strstr(error.text, "Permission denied"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(npy_of_every_type),
        cmocka_unit_test(npy_of_every_version),
        cmocka_unit_test(npy_in_fortran_order_is_strided),
        cmocka_unit_test(npy_of_zero_one_and_five_dimensions),
        cmocka_unit_test(npy_of_other_types_is_refused),
        cmocka_unit_test(safetensors_of_every_type),
        cmocka_unit_test(safetensors_of_zero_one_and_five_dimensions),
        cmocka_unit_test(safetensors_lists_unknown_types_and_refuses_them),
        cmocka_unit_test(names_that_are_not_there),
        cmocka_unit_test(format_is_told_by_content),
        cmocka_unit_test(paths_that_cannot_be_read),
        cmocka_unit_test(symbolic_links_are_followed),
        cmocka_unit_test(files_without_permission),
    };
    return cmocka_run_group_tests_name("io: read", tests, make_scratch, remove_scratch);
}
