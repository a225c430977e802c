/* SPDX-License-Identifier: Apache-2.0 */
/*
 * .safetensors:
 *
 *     header length (8 bytes, little-endian)  header  data
 *
 * The header is a JSON object: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]},
 * ...}, offsets from the start of data, and optionally "__metadata__": {"key": "text", ...}. It may be padded
 * with blanks. The tensors must cover data completely and without overlap.
 */
#include "file_format.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define METADATA_KEY "__metadata__"

enum {
    LENGTH_SIZE = 8,
    MAX_HEADER = 100000000, /* the format's own limit */
    /* A hostile header makes the JSON parser allocate a hundred times its size; this bounds it to a few
     * hundred MB, at more than 100000 tensors. */
    MAX_JSON_VALUES = 2000000,
    MAX_JSON_DEPTH = 3, /* file, tensor, shape */
};

bool fa_safetensors_recognise(const uint8_t *bytes, size_t size) {
    return size > LENGTH_SIZE && bytes[LENGTH_SIZE] == '{';
}

/* ---- Reading ---- */

/* Depth and number of values, before any of them is allocated. Text that is not JSON is counted somehow and
 * left to the parser to refuse. */
static fa_file_status check_header_extent(const fa_tensor_file *file, size_t header_size, fa_file_error *error) {
    bool in_string = false;
    int depth = 0, values = 0;
    for (size_t at = LENGTH_SIZE; at < LENGTH_SIZE + header_size; at++) {
        uint8_t next = file->bytes[at];
        if (next == '"') in_string = !in_string;
        if (in_string) {
            if (next == '\\') at++;
            continue;
        }
        if (next == '{' || next == '[' || next == ',') values++;
        if (next == '{' || next == '[') depth++;
        if (next == '}' || next == ']') depth--;
        if (depth > MAX_JSON_DEPTH)
            return fa_file_fail(error, FA_FILE_MALFORMED, file->label,
                                "safetensors header nests more than %d levels at byte %zu", MAX_JSON_DEPTH, at);
        if (values > MAX_JSON_VALUES)
            return fa_file_fail(error, FA_FILE_UNSUPPORTED, file->label, "safetensors header holds more than %d values",
                                MAX_JSON_VALUES);
    }
    return FA_FILE_OK;
}

static fa_file_status check_metadata(const fa_tensor_file *file, json_t *metadata, fa_file_error *error) {
    if (!json_is_object(metadata))
        return fa_file_fail(error, FA_FILE_MALFORMED, file->label,
                            "safetensors " METADATA_KEY " is not an object of strings");
    const char *key;
    json_t *value;
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value))
            return fa_file_fail(error, FA_FILE_MALFORMED, file->label,
                                "safetensors " METADATA_KEY " entry '%.200s' is not a string", key);
    }
    return FA_FILE_OK;
}

/* An array of integers >= 0 of at most limit elements; false otherwise. */
static bool read_integers(const json_t *array, int64_t *values, size_t limit, size_t *count) {
    if (!json_is_array(array) || json_array_size(array) > limit) return false;
    *count = json_array_size(array);
    for (size_t i = 0; i < *count; i++) {
        const json_t *value = json_array_get(array, i);
        if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
        values[i] = json_integer_value(value);
    }
    return true;
}

static fa_file_status read_tensor(fa_tensor_file *file, uint64_t data_begin, const char *name,
                                  const json_t *description, fa_file_error *error) {
    const json_t *dtype = json_object_get(description, "dtype");
    const json_t *shape = json_object_get(description, "shape");
    const json_t *data_offsets = json_object_get(description, "data_offsets");
    if (!json_is_string(dtype) || !shape || !data_offsets || json_object_size(description) != 3)
        return fa_file_fail(error, FA_FILE_MALFORMED, file->label,
                            "safetensors tensor '%.200s' must have \"dtype\" (a string), \"shape\", "
                            "\"data_offsets\" and nothing else",
                            name);
    fa_tensor_record record = {.name = name,
                               .dtype_name = json_string_value(dtype),
                               .dtype = fa_file_dtype_from_safetensors(json_string_value(dtype))};
    size_t count;
    if (!read_integers(shape, record.shape, FA_FILE_MAX_NDIM, &count))
        return fa_file_fail(error, FA_FILE_MALFORMED, file->label,
                            "safetensors tensor '%.200s' has a shape that is not an array of at most %d "
                            "integers >= 0",
                            name, FA_FILE_MAX_NDIM);
    record.ndim = (int32_t)count;
    int64_t range[2];
    if (!read_integers(data_offsets, range, 2, &count) || count != 2)
        return fa_file_fail(error, FA_FILE_MALFORMED, file->label,
                            "safetensors tensor '%.200s' has data_offsets that are not two integers >= 0", name);
    uint64_t data_size = file->size - data_begin;
    if (range[0] > range[1] || (uint64_t)range[1] > data_size)
        return fa_file_fail(error, FA_FILE_MALFORMED, file->label,
                            "safetensors tensor '%.200s' has data_offsets [%" PRId64 ", %" PRId64
                            "]; expected begin <= end <= %" PRIu64 ", the size of the data",
                            name, range[0], range[1], data_size);
    record.offset = data_begin + (uint64_t)range[0];
    record.bytes = (uint64_t)(range[1] - range[0]);

    /* Of an unknown type only the number of elements can be checked; then it is at least small enough. */
    uint64_t needed;
    if (!fa_file_shape_bytes(record.ndim, record.shape, record.dtype ? record.dtype->dtype.bits / 8 : 1, &needed))
        return fa_file_fail(error, FA_FILE_MALFORMED, file->label,
                            "safetensors tensor '%.200s' has a shape of more than 2^63 bytes", name);
    if (record.dtype && needed != record.bytes)
        return fa_file_fail(error, FA_FILE_MALFORMED, file->label,
                            "safetensors tensor '%.200s' has %" PRIu64
                            " bytes by its data_offsets; its shape and dtype %s need exactly %" PRIu64,
                            name, record.bytes, record.dtype_name, needed);
    return fa_file_add_tensor(file, &record, error);
}

static int compare_position(const void *left_pointer, const void *right_pointer) {
    const fa_file_tensor *left = left_pointer, *right = right_pointer;
    if (left->offset != right->offset) return left->offset < right->offset ? -1 : 1;
    if (left->bytes != right->bytes) return left->bytes < right->bytes ? -1 : 1;
    return strcmp(left->name, right->name);
}

/* Sorts the tensors by position and requires that each begins where the one before ends. */
static fa_file_status check_coverage(fa_tensor_file *file, uint64_t data_begin, fa_file_error *error) {
    if (file->count > 0) qsort(file->tensors, file->count, sizeof file->tensors[0], compare_position);
    uint64_t expected = data_begin;
    for (size_t i = 0; i < file->count; i++) {
        const fa_file_tensor *tensor = &file->tensors[i];
        if (tensor->offset != expected)
            return fa_file_fail(error, FA_FILE_MALFORMED, file->label,
                                "safetensors tensor '%.200s' begins at byte %" PRIu64 " of the file, %s byte "
                                "%" PRIu64 ", where the data before it ends",
                                tensor->name, tensor->offset,
                                tensor->offset > expected ? "leaving a hole after" : "overlapping others up to",
                                expected);
        expected += tensor->bytes;
    }
    if (expected != file->size)
        return fa_file_fail(error, FA_FILE_MALFORMED, file->label,
                            "safetensors tensors end at byte %" PRIu64 ", but the file has %zu bytes", expected,
                            file->size);
    return FA_FILE_OK;
}

static fa_file_status read_header(fa_tensor_file *file, uint64_t data_begin, json_t *header, fa_file_error *error) {
    const char *name;
    json_t *description;
    json_object_foreach(header, name, description) {
        fa_file_status status = strcmp(name, METADATA_KEY) == 0
                                    ? check_metadata(file, description, error)
                                    : read_tensor(file, data_begin, name, description, error);
        if (status != FA_FILE_OK) return status;
    }
    return check_coverage(file, data_begin, error);
}

fa_file_status fa_safetensors_parse(fa_tensor_file *file, fa_file_error *error) {
    uint64_t length;
    memcpy(&length, file->bytes, LENGTH_SIZE);
    if (length > MAX_HEADER)
        return fa_file_fail(error, FA_FILE_MALFORMED, file->label,
                            "safetensors header length is %" PRIu64 "; the format allows %d", length, MAX_HEADER);
    if (length > file->size - LENGTH_SIZE)
        return fa_file_fail(error, FA_FILE_MALFORMED, file->label,
                            "safetensors header should take %" PRIu64 " bytes from byte %d, but the file ends "
                            "after %zu of them",
                            length, LENGTH_SIZE, file->size - LENGTH_SIZE);
    fa_file_status status = check_header_extent(file, (size_t)length, error);
    if (status != FA_FILE_OK) return status;
    json_error_t json_error = {.text = ""};
    json_t *header =
        json_loadb((const char *)file->bytes + LENGTH_SIZE, (size_t)length, JSON_REJECT_DUPLICATES, &json_error);
    if (!header) {
        if (json_error.text[0] == '\0' || json_error_code(&json_error) == json_error_out_of_memory)
            return fa_file_fail_memory(error, file->label);
        return fa_file_fail(error, FA_FILE_MALFORMED, file->label,
                            "safetensors header is not valid JSON at byte %d: %s", LENGTH_SIZE + json_error.position,
                            json_error.text);
    }
    status = read_header(file, LENGTH_SIZE + length, header, error);
    json_decref(header);
    return status;
}

/* ---- Writing ---- */

/* Sets object[key] = value, which is consumed (NULL: it could not be allocated), refusing what JSON cannot
 * hold. */
static fa_file_status set_member(json_t *object, const char *key, json_t *value, const char *path,
                                 fa_file_error *error) {
    if (!value) return fa_file_fail_memory(error, path);
    if (json_object_get(object, key)) {
        json_decref(value);
        return fa_file_fail(error, FA_FILE_INVALID_ARGUMENT, path, "the name '%.200s' is given twice", key);
    }
    if (json_object_set_new_nocheck(object, key, value) != 0) return fa_file_fail_memory(error, path);
    return FA_FILE_OK;
}

/* JSON is UTF-8 throughout. */
static fa_file_status check_utf8(const char *text, const char *path, fa_file_error *error) {
    json_t *checked = json_string(text);
    json_t *unchecked = json_string_nocheck(text);
    fa_file_status status = FA_FILE_OK;
    if (!unchecked)
        status = fa_file_fail_memory(error, path);
    else if (!checked)
        status = fa_file_fail(error, FA_FILE_INVALID_ARGUMENT, path, "the name or text '%.200s' is not UTF-8", text);
    json_decref(checked);
    json_decref(unchecked);
    return status;
}

static fa_file_status add_metadata(json_t *header, const fa_file_metadata *metadata, size_t count, const char *path,
                                   fa_file_error *error) {
    json_t *object = json_object();
    fa_file_status status = set_member(header, METADATA_KEY, object, path, error);
    for (size_t i = 0; status == FA_FILE_OK && i < count; i++) {
        status = check_utf8(metadata[i].key, path, error);
        if (status == FA_FILE_OK) status = check_utf8(metadata[i].value, path, error);
        if (status == FA_FILE_OK)
            status = set_member(object, metadata[i].key, json_string(metadata[i].value), path, error);
    }
    return status;
}

/* NULL: out of memory. */
static json_t *integers(const int64_t *values, size_t count) {
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++) {
        if (json_array_append_new(array, json_integer(values[i])) != 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

/* NULL: out of memory. json_object_set_new takes its value also when it fails, and fails on NULL. */
static json_t *describe(const fa_tensor *tensor, uint64_t begin, uint64_t end) {
    const int64_t range[2] = {(int64_t)begin, (int64_t)end};
    json_t *description = json_object();
    int failed = json_object_set_new(description, "dtype", json_string(fa_file_dtype_of(tensor->dtype)->safetensors));
    failed |= json_object_set_new(description, "shape", integers(tensor->shape, (size_t)tensor->ndim));
    failed |= json_object_set_new(description, "data_offsets", integers(range, 2));
    if (!failed) return description;
    json_decref(description);
    return NULL;
}

static fa_file_status add_tensor(json_t *header, const fa_named_tensor *named, uint64_t *offset, const char *path,
                                 fa_file_error *error) {
    const fa_tensor *tensor = named->tensor;
    if (!named->name || strcmp(named->name, METADATA_KEY) == 0)
        return fa_file_fail(error, FA_FILE_INVALID_ARGUMENT, path,
                            "a tensor needs a name other than '" METADATA_KEY "'");
    fa_file_status status = check_utf8(named->name, path, error);
    if (status != FA_FILE_OK) return status;
    uint64_t bytes = 0;
    (void)fa_file_shape_bytes(tensor->ndim, tensor->shape, tensor->dtype.bits / 8, &bytes);
    if (bytes > (uint64_t)INT64_MAX - *offset)
        return fa_file_fail(error, FA_FILE_INVALID_ARGUMENT, path, "the tensors need more than 2^63 bytes");
    status = set_member(header, named->name, describe(tensor, *offset, *offset + bytes), path, error);
    *offset += bytes;
    return status;
}

static fa_file_status write_header(fa_atomic_output *output, const json_t *header, fa_file_error *error) {
    static const char blanks[LENGTH_SIZE] = "        ";
    char *text = json_dumps(header, JSON_COMPACT);
    if (!text) return fa_file_fail_memory(error, output->path);
    size_t size = strlen(text);
    size_t padding = (LENGTH_SIZE - size % LENGTH_SIZE) % LENGTH_SIZE; /* data begins at a multiple of 8 */
    uint64_t length = size + padding;
    fa_file_status status = FA_FILE_OK;
    if (length > MAX_HEADER)
        status = fa_file_fail(error, FA_FILE_INVALID_ARGUMENT, output->path,
                              "the names and shapes need %" PRIu64 " bytes of header; the format allows %d", length,
                              MAX_HEADER);
    if (status == FA_FILE_OK) status = fa_atomic_output_write(output, &length, LENGTH_SIZE, error);
    if (status == FA_FILE_OK) status = fa_atomic_output_write(output, text, size, error);
    if (status == FA_FILE_OK) status = fa_atomic_output_write(output, blanks, padding, error);
    free(text);
    return status;
}

fa_file_status fa_safetensors_write(fa_atomic_output *output, const fa_named_tensor *tensors, size_t count,
                                    const fa_file_metadata *metadata, size_t metadata_count, fa_file_error *error) {
    /* From the widest element type to the narrowest, so that every tensor is aligned to its own. */
    static const int widths[] = {64, 32, 16, 8};
    enum { WIDTH_COUNT = sizeof widths / sizeof widths[0] };
    json_t *header = json_object();
    if (!header) return fa_file_fail_memory(error, output->path);
    fa_file_status status = FA_FILE_OK;
    if (metadata_count > 0) status = add_metadata(header, metadata, metadata_count, output->path, error);
    uint64_t offset = 0;
    for (size_t w = 0; w < WIDTH_COUNT; w++)
        for (size_t i = 0; status == FA_FILE_OK && i < count; i++)
            if (tensors[i].tensor->dtype.bits == widths[w])
                status = add_tensor(header, &tensors[i], &offset, output->path, error);
    if (status == FA_FILE_OK) status = write_header(output, header, error);
    json_decref(header);
    for (size_t w = 0; w < WIDTH_COUNT; w++)
        for (size_t i = 0; status == FA_FILE_OK && i < count; i++)
            if (tensors[i].tensor->dtype.bits == widths[w])
                status = fa_file_write_elements(output, tensors[i].tensor, error);
    return status;
}
