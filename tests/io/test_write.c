/* SPDX-License-Identifier: Apache-2.0 */
/* Content that is written: read back, compared byte for byte with the formats' own libraries, refused. */
#include "io_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static fa_tensor make_tensor(const void *data, fa_dtype dtype, int32_t ndim, int64_t *shape) {
    return (fa_tensor){
        .data = (void *)(uintptr_t)data, .device = {FA_DEVICE_CPU, 0}, .ndim = ndim, .dtype = dtype, .shape = shape};
}

static void write_one(const char *path, const char *name, const fa_tensor *tensor) {
    fa_file_error error;
    const fa_named_tensor named = {name, tensor};
    expect_ok(fa_tensor_file_write(path, &named, 1, NULL, 0, &error), &error);
}

/* The file at path holds under that name a compact tensor of that type, shape and content. */
static void expect_content(const char *path, const char *name, const fa_tensor *expected, const void *content,
                           size_t bytes) {
    fa_file_error error;
    fa_tensor_file *file;
    fa_tensor found;
    expect_ok(fa_tensor_file_open(path, &file, &error), &error);
    expect_ok(fa_tensor_file_find(file, name, &found, &error), &error);
    assert_memory_equal(&found.dtype, &expected->dtype, sizeof found.dtype);
    assert_int_equal(found.ndim, expected->ndim);
    if (found.ndim > 0) assert_memory_equal(found.shape, expected->shape, (size_t)found.ndim * sizeof(int64_t));
    assert_int_equal((uintptr_t)found.data % (found.dtype.bits / 8), 0);
    assert_memory_equal(found.data, content, bytes);
    fa_tensor_file_close(file);
}

static void round_trip_of_every_type_and_ndim(void **state) {
    (void)state;
    uint8_t content[48 * 8];
    for (size_t i = 0; i < sizeof content; i++) content[i] = (uint8_t)(i * 167 + 13);
    int64_t shapes[6][5] = {{0}, {7}, {2, 3}, {3, 1, 5}, {2, 2, 3, 4}, {1, 2, 3, 2, 4}};
    static const size_t elements[6] = {1, 7, 6, 15, 48, 48};

    fa_tensor tensors[TYPE_CASES * 6];
    fa_named_tensor named[TYPE_CASES * 6];
    static char names[TYPE_CASES * 6][32];
    for (size_t i = 0; i < TYPE_CASES * 6; i++) {
        const type_case *type = &type_cases[i / 6];
        int32_t ndim = (int32_t)(i % 6);
        tensors[i] = make_tensor(content, type->dtype, ndim, shapes[ndim]);
        snprintf(names[i], sizeof names[i], "%s of %d dimensions", type->name, ndim);
        named[i] = (fa_named_tensor){names[i], &tensors[i]};
        if (!type->npy) continue;
        write_one(scratch("round.npy"), NULL, &tensors[i]);
        expect_content(scratch("round.npy"), NULL, &tensors[i], content, elements[ndim] * type->dtype.bits / 8);
    }
    fa_file_error error;
    expect_ok(fa_tensor_file_write(scratch("round.safetensors"), named, TYPE_CASES * 6, NULL, 0, &error), &error);
    for (size_t i = 0; i < TYPE_CASES * 6; i++)
        expect_content(scratch("round.safetensors"), names[i], &tensors[i], content,
                       elements[i % 6] * tensors[i].dtype.bits / 8);
}

static void expect_same_file(const char *left, const char *right) {
    size_t left_size, right_size;
    uint8_t *left_bytes = read_whole(left, &left_size), *right_bytes = read_whole(right, &right_size);
    if (left_size != right_size || memcmp(left_bytes, right_bytes, left_size) != 0)
        fail_msg("%s and %s differ", left, right);
    free(left_bytes);
    free(right_bytes);
}

static void npy_is_byte_for_byte_what_numpy_writes(void **state) {
    (void)state;
    int64_t shape[] = {2, 3};
    for (size_t i = 0; i < TYPE_CASES; i++) {
        if (!type_cases[i].npy) continue;
        char name[64];
        snprintf(name, sizeof name, "%s.npy", type_cases[i].name);
        fa_tensor tensor = make_tensor(type_cases[i].values, type_cases[i].dtype, 2, shape);
        write_one(scratch("same.npy"), NULL, &tensor);
        expect_same_file(scratch("same.npy"), fixture(name));
    }
    const float scalar = 7.5f, vector[] = {0, 1, 2, 3, 4};
    const int32_t counted[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    fa_tensor tensor = make_tensor(&scalar, (fa_dtype)FA_FLOAT32, 0, NULL);
    write_one(scratch("same.npy"), NULL, &tensor);
    expect_same_file(scratch("same.npy"), fixture("scalar.npy"));
    tensor = make_tensor(vector, (fa_dtype)FA_FLOAT32, 1, (int64_t[]){5});
    write_one(scratch("same.npy"), NULL, &tensor);
    expect_same_file(scratch("same.npy"), fixture("vector.npy"));
    tensor = make_tensor(NULL, (fa_dtype)FA_FLOAT32, 2, (int64_t[]){0, 3});
    write_one(scratch("same.npy"), NULL, &tensor);
    expect_same_file(scratch("same.npy"), fixture("empty.npy"));
    tensor = make_tensor(counted, (fa_dtype)FA_INT32, 5, (int64_t[]){1, 2, 1, 2, 3});
    write_one(scratch("same.npy"), NULL, &tensor);
    expect_same_file(scratch("same.npy"), fixture("five_dims.npy"));
}

static void safetensors_is_byte_for_byte_what_its_library_writes(void **state) {
    (void)state;
    /* Within a width its library sorts by type and then name; here the given order stays. The widths are given
     * from the narrowest on. */
    static const char *const given[TYPE_CASES] = {"float8_e4m3fn", "float8_e5m2", "int8",    "uint8",
                                                  "bool",          "bfloat16",    "float16", "float32",
                                                  "int32",         "int64",       "float64"};
    int64_t shape[] = {2, 3};
    fa_tensor tensors[TYPE_CASES];
    fa_named_tensor named[TYPE_CASES];
    for (size_t i = 0; i < TYPE_CASES; i++)
        for (size_t t = 0; t < TYPE_CASES; t++)
            if (strcmp(type_cases[t].name, given[i]) == 0) {
                tensors[i] = make_tensor(type_cases[t].values, type_cases[t].dtype, 2, shape);
                named[i] = (fa_named_tensor){given[i], &tensors[i]};
            }
    fa_file_error error;
    expect_ok(fa_tensor_file_write(scratch("same.safetensors"), named, TYPE_CASES, NULL, 0, &error), &error);
    expect_same_file(scratch("same.safetensors"), fixture("all_types.safetensors"));

    const float scalar = 7.5f, counted[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    tensors[0] = make_tensor(NULL, (fa_dtype)FA_FLOAT32, 2, (int64_t[]){0, 3});
    tensors[1] = make_tensor(counted, (fa_dtype)FA_FLOAT32, 5, (int64_t[]){1, 2, 1, 2, 3});
    tensors[2] = make_tensor(&scalar, (fa_dtype)FA_FLOAT32, 0, NULL);
    tensors[3] = make_tensor(counted, (fa_dtype)FA_FLOAT32, 1, (int64_t[]){5});
    static const char *const names[] = {"empty", "five_dims", "scalar", "vector"};
    for (size_t i = 0; i < 4; i++) named[i].name = names[i];
    const fa_file_metadata metadata = {"model", "tiny"};
    expect_ok(fa_tensor_file_write(scratch("same.safetensors"), named, 4, &metadata, 1, &error), &error);
    expect_same_file(scratch("same.safetensors"), fixture("shapes.safetensors"));

    expect_ok(fa_tensor_file_write(scratch("same.safetensors"), NULL, 0, NULL, 0, &error), &error);
    expect_same_file(scratch("same.safetensors"), fixture("no_tensors.safetensors"));
}

static void narrow_types_do_not_misalign_wide_ones(void **state) {
    (void)state;
    const uint8_t bytes[3] = {1, 2, 3};
    const double wide[2] = {4, 5};
    fa_tensor narrow = make_tensor(bytes, (fa_dtype)FA_BOOL, 1, (int64_t[]){3});
    fa_tensor broad = make_tensor(wide, (fa_dtype)FA_FLOAT64, 1, (int64_t[]){2});
    const fa_named_tensor named[] = {{"a name of length 19", &narrow}, {"b", &broad}};
    fa_file_error error;
    expect_ok(fa_tensor_file_write(scratch("mixed.safetensors"), named, 2, NULL, 0, &error), &error);
    expect_content(scratch("mixed.safetensors"), "a name of length 19", &narrow, bytes, 3);
    expect_content(scratch("mixed.safetensors"), "b", &broad, wide, 16);
}

/* Element [i][j][k] is 100 i + 10 j + k, wherever the strides put it. */
static void expect_gathered(int16_t *base, int64_t origin, int64_t *strides) {
    int64_t shape[] = {2, 3, 4};
    int16_t expected[24];
    for (int64_t e = 0; e < 24; e++) {
        int64_t i = e / 12, j = e / 4 % 3, k = e % 4;
        expected[e] = (int16_t)(100 * i + 10 * j + k);
        base[origin + i * strides[0] + j * strides[1] + k * strides[2]] = expected[e];
    }
    fa_tensor tensor = make_tensor(base, (fa_dtype)FA_FLOAT16, 3, shape);
    tensor.strides = strides;
    tensor.byte_offset = (uint64_t)origin * 2;
    write_one(scratch("strided.npy"), NULL, &tensor);
    expect_content(scratch("strided.npy"), NULL, &tensor, expected, sizeof expected);
}

static void tensors_of_any_strides(void **state) {
    (void)state;
    int16_t base[512];
    memset(base, 0x7F, sizeof base);
    expect_gathered(base, 0, (int64_t[]){12, 4, 1});      /* compact */
    expect_gathered(base, 5, (int64_t[]){40, 8, 1});      /* a slice */
    expect_gathered(base, 0, (int64_t[]){1, 2, 6});       /* Fortran order */
    expect_gathered(base, 3, (int64_t[]){4, 8, 1});       /* first two dimensions exchanged */
    expect_gathered(base, 100, (int64_t[]){-12, -4, -1}); /* reversed */
    expect_gathered(base, 0, (int64_t[]){100, 20, 3});    /* no two adjacent */

    const float one = 2.5f;
    const float expected[6] = {2.5f, 2.5f, 2.5f, 2.5f, 2.5f, 2.5f};
    fa_tensor tensor = make_tensor(&one, (fa_dtype)FA_FLOAT32, 2, (int64_t[]){2, 3});
    tensor.strides = (int64_t[]){0, 0};
    write_one(scratch("strided.npy"), NULL, &tensor);
    expect_content(scratch("strided.npy"), NULL, &tensor, expected, sizeof expected);

    tensor = make_tensor(expected, (fa_dtype)FA_FLOAT32, 3, (int64_t[]){1, 6, 1});
    tensor.strides = (int64_t[]){-77, 1, 99}; /* of dimensions of size 1 a stride says nothing */
    write_one(scratch("strided.npy"), NULL, &tensor);
    expect_content(scratch("strided.npy"), NULL, &tensor, expected, sizeof expected);
}

static void empty_tensors_have_strides_as_if_sizes_were_1(void **state) {
    (void)state;
    fa_tensor tensor = make_tensor(NULL, (fa_dtype)FA_FLOAT32, 3, (int64_t[]){2, 0, 3});
    write_one(scratch("empty.npy"), NULL, &tensor);
    fa_file_error error;
    fa_tensor_file *file;
    expect_ok(fa_tensor_file_open(scratch("empty.npy"), &file, &error), &error);
    const fa_tensor *found = &fa_tensor_file_at(file, 0)->tensor;
    const int64_t strides[] = {3, 3, 1};
    assert_memory_equal(found->strides, strides, sizeof strides);
    fa_tensor_file_close(file);
}

static void tensors_larger_than_the_gathering_buffer(void **state) {
    (void)state;
    enum { ROWS = 37, COLUMNS = 5003 };
    uint32_t *stored = malloc(sizeof(uint32_t) * ROWS * COLUMNS);
    uint32_t *expected = malloc(sizeof(uint32_t) * ROWS * COLUMNS);
    assert_non_null(stored);
    assert_non_null(expected);
    for (uint32_t i = 0; i < ROWS * COLUMNS; i++) stored[i] = i * 2654435761u;
    for (uint32_t row = 0; row < COLUMNS; row++)
        for (uint32_t column = 0; column < ROWS; column++)
            expected[row * ROWS + column] = stored[column * COLUMNS + row];
    fa_tensor tensor = make_tensor(stored, (fa_dtype)FA_INT32, 2, (int64_t[]){COLUMNS, ROWS});
    tensor.strides = (int64_t[]){1, COLUMNS};
    write_one(scratch("large.npy"), NULL, &tensor);
    expect_content(scratch("large.npy"), NULL, &tensor, expected, sizeof(uint32_t) * ROWS * COLUMNS);

    /* Rows longer than the buffer, in reverse order. */
    for (uint32_t row = 0; row < ROWS; row++)
        memcpy(expected + row * COLUMNS, stored + (ROWS - 1 - row) * COLUMNS, sizeof(uint32_t) * COLUMNS);
    tensor = make_tensor(stored + (ROWS - 1) * COLUMNS, (fa_dtype)FA_INT32, 2, (int64_t[]){ROWS, COLUMNS});
    tensor.strides = (int64_t[]){-COLUMNS, 1};
    write_one(scratch("large.npy"), NULL, &tensor);
    expect_content(scratch("large.npy"), NULL, &tensor, expected, sizeof(uint32_t) * ROWS * COLUMNS);
    free(stored);
    free(expected);
}

static void expect_unwritten(const char *name, const fa_named_tensor *tensors, size_t count,
                             const fa_file_metadata *metadata, size_t metadata_count, const char *sentence) {
    size_t before = scratch_entries();
    fa_file_error error = {""};
    const char *path = scratch(name);
    fa_file_status status = fa_tensor_file_write(path, tensors, count, metadata, metadata_count, &error);
    if (status != FA_FILE_INVALID_ARGUMENT || !strstr(error.text, sentence) || !strstr(error.text, name))
        fail_msg("status %d, \"%s\"; expected status %d and \"...%s...\"", status, error.text, FA_FILE_INVALID_ARGUMENT,
                 sentence);
    assert_int_equal(scratch_entries(), before);
}

static void expect_tensor_unwritten(const char *name, fa_tensor tensor, const char *sentence) {
    const fa_named_tensor named = {"t", &tensor};
    expect_unwritten(name, &named, 1, NULL, 0, sentence);
}

static void tensors_that_cannot_be_written(void **state) {
    (void)state;
    const float data[6] = {0};
    const fa_tensor good = make_tensor(data, (fa_dtype)FA_FLOAT32, 2, (int64_t[]){2, 3});
    const char *names[] = {"refused.npy", "refused.safetensors"};
    for (size_t i = 0; i < 2; i++) {
        fa_tensor bad = good;
        bad.device.device_type = FA_DEVICE_CUDA;
        expect_tensor_unwritten(names[i], bad, "'t' is on device type 2; only tensors on the CPU (1)");
        bad = good;
        bad.dtype = (fa_dtype){5, 64, 1};
        expect_tensor_unwritten(names[i], bad, "code 5, bits 64, lanes 1, which cannot be written");
        bad = good;
        bad.dtype.lanes = 2;
        expect_tensor_unwritten(names[i], bad, "lanes 2");
        bad = good;
        bad.shape = (int64_t[]){2, -3};
        expect_tensor_unwritten(names[i], bad, "size -3 in dimension 1");
        bad.shape = (int64_t[]){INT64_MAX, INT64_MAX};
        expect_tensor_unwritten(names[i], bad, "more than 2^63 bytes");
        bad = good;
        bad.ndim = FA_FILE_MAX_NDIM + 1;
        expect_tensor_unwritten(names[i], bad, "has 65 dimensions");
        bad.ndim = -1;
        expect_tensor_unwritten(names[i], bad, "has -1 dimensions");
        bad = good;
        bad.data = NULL;
        expect_tensor_unwritten(names[i], bad, "'t' has no data");
    }
    fa_tensor float8 = make_tensor(data, (fa_dtype){10, 8, 1}, 2, (int64_t[]){2, 3});
    expect_tensor_unwritten("refused.npy", float8, "F8_E4M3 cannot be written to .npy; .safetensors holds it");
    expect_tensor_unwritten("refused.npz", good, "the extension must be .npy or .safetensors");
    expect_tensor_unwritten("refused", good, "the extension must be .npy or .safetensors");
    expect_tensor_unwritten("refused.NPY", good, "the extension must be .npy or .safetensors");
}

static void names_that_cannot_be_written(void **state) {
    (void)state;
    const float data[6] = {0};
    const fa_tensor good = make_tensor(data, (fa_dtype)FA_FLOAT32, 2, (int64_t[]){2, 3});
    const fa_named_tensor twice[] = {{"t", &good}, {"t", &good}};
    const fa_file_metadata text = {"key", "value"};
    expect_unwritten("n.npy", twice, 2, NULL, 0, "2 tensors and 0 entries of metadata cannot be written");
    expect_unwritten("n.npy", twice, 0, NULL, 0, "0 tensors");
    expect_unwritten("n.npy", twice, 1, &text, 1, "1 entries of metadata");
    expect_unwritten("n.safetensors", twice, 2, NULL, 0, "the name 't' is given twice");
    expect_unwritten("n.safetensors", &(fa_named_tensor){NULL, &good}, 1, NULL, 0, "needs a name");
    expect_unwritten("n.safetensors", &(fa_named_tensor){"__metadata__", &good}, 1, NULL, 0, "other than");
    expect_unwritten("n.safetensors", &(fa_named_tensor){"\xFF", &good}, 1, NULL, 0, "is not UTF-8");
    expect_unwritten("n.safetensors", twice, 1, &(fa_file_metadata){"\xC3", "v"}, 1, "is not UTF-8");
    expect_unwritten("n.safetensors", twice, 1, &(fa_file_metadata){"k", "\xC3"}, 1, "is not UTF-8");
    const fa_file_metadata same_keys[] = {{"k", "v"}, {"k", "w"}};
    expect_unwritten("n.safetensors", twice, 1, same_keys, 2, "the name 'k' is given twice");
}

static void sums_that_are_too_large(void **state) {
    (void)state;
    const float data = 0.0f;
    fa_tensor tensor = make_tensor(&data, (fa_dtype)FA_FLOAT32, 1, (int64_t[]){INT64_C(1) << 60});
    tensor.strides = (int64_t[]){0};
    const fa_named_tensor named[] = {{"a", &tensor}, {"b", &tensor}};
    expect_unwritten("sum.safetensors", named, 2, NULL, 0, "the tensors need more than 2^63 bytes");

    size_t length = 100000000;
    char *text = malloc(length + 1);
    assert_non_null(text);
    memset(text, 'x', length);
    text[length] = '\0';
    expect_unwritten("sum.safetensors", NULL, 0, &(fa_file_metadata){"k", text}, 1, "the format allows 100000000");
    free(text);
}

static void names_with_every_ascii_character(void **state) {
    (void)state;
    char name[128];
    for (int i = 1; i < 128; i++) name[i - 1] = (char)i;
    name[127] = '\0';
    const float data = 1.5f;
    fa_tensor tensor = make_tensor(&data, (fa_dtype)FA_FLOAT32, 0, NULL);
    write_one(scratch("ascii.safetensors"), name, &tensor);
    expect_content(scratch("ascii.safetensors"), name, &tensor, &data, 4);
    write_one(scratch("utf8.safetensors"), "\xE6\xB3\xA8\xE6\x84\x8F", &tensor);
    expect_content(scratch("utf8.safetensors"), "\xE6\xB3\xA8\xE6\x84\x8F", &tensor, &data, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip_of_every_type_and_ndim),
        cmocka_unit_test(npy_is_byte_for_byte_what_numpy_writes),
        cmocka_unit_test(safetensors_is_byte_for_byte_what_its_library_writes),
        cmocka_unit_test(narrow_types_do_not_misalign_wide_ones),
        cmocka_unit_test(tensors_of_any_strides),
        cmocka_unit_test(empty_tensors_have_strides_as_if_sizes_were_1),
        cmocka_unit_test(tensors_larger_than_the_gathering_buffer),
        cmocka_unit_test(tensors_that_cannot_be_written),
        cmocka_unit_test(names_that_cannot_be_written),
        cmocka_unit_test(sums_that_are_too_large),
        cmocka_unit_test(names_with_every_ascii_character),
    };
    return cmocka_run_group_tests_name("io: written content", tests, make_scratch, remove_scratch);
}
