/* SPDX-License-Identifier: Apache-2.0 */
/* Broken and malicious content: each is refused with its reason, none is read out of bounds. */
#include "io_test.h"

#include "../fuzz/fuzz_tensor_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct hostile_case {
    const char *header;
    size_t data_bytes;
    fa_file_status status; /* FA_FILE_OK: accepted */
    const char *sentence;
} hostile_case;

/* A file of the given header and that many bytes of data, in an allocation of its exact size. */
static uint8_t *make_npy(const char *header, size_t header_size, size_t data_bytes, size_t *size) {
    *size = 10 + header_size + data_bytes;
    uint8_t *bytes = malloc(*size);
    assert_non_null(bytes);
    memcpy(bytes, "\x93NUMPY\x01\x00", 8);
    bytes[8] = (uint8_t)header_size;
    bytes[9] = (uint8_t)(header_size >> 8);
    memcpy(bytes + 10, header, header_size);
    memset(bytes + 10 + header_size, 0x5A, data_bytes);
    return bytes;
}

static uint8_t *make_safetensors(const char *header, size_t header_size, size_t data_bytes, size_t *size) {
    *size = 8 + header_size + data_bytes;
    uint8_t *bytes = malloc(*size);
    assert_non_null(bytes);
    uint64_t length = header_size;
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, header_size);
    memset(bytes + 8 + header_size, 0x5A, data_bytes);
    return bytes;
}

static void expect_accepted(const uint8_t *bytes, size_t size) {
    fa_file_error error;
    fa_tensor_file *file;
    expect_ok(fa_tensor_file_parse(bytes, size, "good", &file, &error), &error);
    fa_tensor_file_close(file);
    (void)LLVMFuzzerTestOneInput(bytes, size); /* reads every element */
}

static void expect_case(const hostile_case *test, const uint8_t *bytes, size_t size) {
    if (test->status == FA_FILE_OK)
        expect_accepted(bytes, size);
    else
        expect_refusal(bytes, size, test->status, test->sentence);
}

#define MALFORMED FA_FILE_MALFORMED
#define UNSUPPORTED FA_FILE_UNSUPPORTED
#define F4 "{'descr': '<f4', 'fortran_order': False, 'shape': "

static const hostile_case npy_cases[] = {
    /* Spellings that Python accepts too. */
    {F4 "(2, 3), }", 24, FA_FILE_OK, ""},
    {F4 "(2, 3)}", 24, FA_FILE_OK, ""},
    {F4 "(2, 3,), }", 24, FA_FILE_OK, ""},
    {F4 "(2L, 3L), }", 24, FA_FILE_OK, ""},
    {F4 "(), }", 4, FA_FILE_OK, ""},
    {F4 "(3,), }\t\r\n  ", 12, FA_FILE_OK, ""},
    {"{\"shape\":(1,),\"fortran_order\":True,\"descr\":\"<f4\"}", 4, FA_FILE_OK, ""},
    {"{'descr': '|V2', 'fortran_order': False, 'shape': (2,)}", 4, FA_FILE_OK, ""},
    {F4 "(0, 9223372036854775807)}", 0, MALFORMED, "more than 2^63 bytes"},
    {F4 "(0, 1000000000)}", 0, FA_FILE_OK, ""},
    {F4 "(1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
        "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1)}",
     4, FA_FILE_OK, ""},
    {F4 "(1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
        "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1)}",
     4, UNSUPPORTED, "more than 64 dimensions"},
    /* Sizes. */
    {F4 "(2, 3), }", 23, MALFORMED, "has 23 bytes of data from byte 69 on; its shape and type need exactly 24"},
    {F4 "(2, 3), }", 25, MALFORMED, "has 25 bytes of data"},
    {F4 "(-1,), }", 4, MALFORMED, "'-' (0x2d) at byte 61; expected a size: decimal digits, not negative"},
    {F4 "(9223372036854775808,)}", 4, MALFORMED, "less than 2^63"},
    {F4 "(99999999999999999999999999999999999999,)}", 4, MALFORMED, "less than 2^63"},
    {F4 "(4611686018427387904, 2)}", 4, MALFORMED, "more than 2^63 bytes"},
    {F4 "(4294967296, 4294967296)}", 0, MALFORMED, "more than 2^63 bytes"},
    {F4 "(4294967296, 1073741824)}", 0, MALFORMED, "more than 2^63 bytes"},
    {F4 "(2305843009213693951,)}", 0, MALFORMED, "need exactly 9223372036854775804"},
    {F4 "(3)}", 12, MALFORMED, "expected ',' after the size"},
    {F4 "(,)}", 12, MALFORMED, "expected a size"},
    {F4 "(1,,1)}", 4, MALFORMED, "expected a size"},
    {F4 "(1 1)}", 4, MALFORMED, "expected ',' or ')' in the shape"},
    {F4 "(01,)}", 4, MALFORMED, "without leading zeros"},
    {F4 "(1.0,)}", 4, MALFORMED, "'.' (0x2e)"},
    {F4 "(0x1,)}", 4, MALFORMED, "'x' (0x78)"},
    {F4 "((1,),)}", 4, MALFORMED, "expected a size"},
    {F4 "[1]}", 4, MALFORMED, "expected '(' of the shape"},
    {F4 "None}", 4, MALFORMED, "expected '(' of the shape"},
    {F4 "(1,", 4, MALFORMED, "header ends at byte 63; expected a size"},
    /* Keys. */
    {"{}", 0, MALFORMED, "no key 'descr'"},
    {"{'descr': '<f4'}", 0, MALFORMED, "no key 'fortran_order'"},
    {"{'descr': '<f4', 'fortran_order': False}", 0, MALFORMED, "no key 'shape'"},
    {F4 "(1,), 'shape': (1,)}", 4, MALFORMED, "a second key 'shape' at byte 66"},
    {F4 "(1,), 'x': 1}", 4, MALFORMED, "the unknown key 'x' at byte 66"},
    {F4 "(1,) 'x': 1}", 4, MALFORMED, "expected ',' or '}'"},
    {F4 "(1,), , }", 4, MALFORMED, "expected a key"},
    {F4 "(1,), 7: 1}", 4, MALFORMED, "expected a key"},
    {F4 "(1,), 'abcdefghijklmnopqrstuvwxyz': 1}", 4, MALFORMED, "expected a short plain string"},
    {"{'descr' '<f4'}", 0, MALFORMED, "expected ':'"},
    /* Around the dictionary. */
    {"", 0, MALFORMED, "expected '{'"},
    {"    ", 0, MALFORMED, "expected '{'"},
    {"[]", 0, MALFORMED, "expected '{'"},
    {F4 "(1,)} x", 4, MALFORMED, "expected only blanks after the dictionary"},
    {F4 "(1,)}}", 4, MALFORMED, "expected only blanks after the dictionary"},
    {F4 "(1,)", 4, MALFORMED, "expected ',' or '}'"},
    /* Types and order. */
    {"{'descr': '>f4', 'fortran_order': False, 'shape': (1,)}", 4, UNSUPPORTED, "'>f4' is big-endian"},
    {"{'descr': '=f4', 'fortran_order': False, 'shape': (1,)}", 4, MALFORMED, "byte order '='"},
    {"{'descr': '|f4', 'fortran_order': False, 'shape': (1,)}", 4, MALFORMED, "byte order '|'"},
    {"{'descr': 'f4', 'fortran_order': False, 'shape': (1,)}", 4, UNSUPPORTED, "'f4' is not read"},
    {"{'descr': '', 'fortran_order': False, 'shape': (1,)}", 4, UNSUPPORTED, "'' is not read"},
    {"{'descr': '<', 'fortran_order': False, 'shape': (1,)}", 4, UNSUPPORTED, "'<' is not read"},
    {"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", 4, UNSUPPORTED, "'|O' is not read"},
    {"{'descr': '<f4\\n', 'fortran_order': False, 'shape': (1,)}", 4, MALFORMED, "0x5c"},
    {"{'descr': '<f4\n', 'fortran_order': False, 'shape': (1,)}", 4, MALFORMED, "'?' (0x0a)"},
    {"{'descr': \"<f4', 'fortran_order': False, 'shape': (1,)}", 4, MALFORMED, "closing quote"},
    {"{'descr': '<f4", 4, MALFORMED, "header ends"},
    {"{'descr': ('<f4', (2,)), 'fortran_order': False, 'shape': (1,)}", 4, MALFORMED, "expected the element type"},
    {"{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", 4, MALFORMED, "expected True or False"},
    {"{'descr': '<f4', 'fortran_order': Fals", 4, MALFORMED, "expected True or False"},
    {"{'descr': '<f4', 'fortran_order': Falsehood, 'shape': (1,)}", 4, MALFORMED, "expected ',' or '}'"},
};

static void hostile_npy_headers(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof npy_cases / sizeof npy_cases[0]; i++) {
        const hostile_case *test = &npy_cases[i];
        size_t size;
        uint8_t *bytes = make_npy(test->header, strlen(test->header), test->data_bytes, &size);
        expect_case(test, bytes, size);
        free(bytes);
    }
}

static void hostile_npy_prefixes(void **state) {
    (void)state;
    size_t size;
    uint8_t *bytes = make_npy(F4 "(1,)}", sizeof F4 "(1,)}" - 1, 4, &size);
    expect_accepted(bytes, size);
    static const uint8_t versions[][2] = {{0, 0}, {4, 0}, {1, 1}, {255, 255}};
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        memcpy(bytes + 6, versions[i], 2);
        expect_refusal(bytes, size, UNSUPPORTED, "expected 1.0, 2.0 or 3.0");
    }
    memcpy(bytes + 6, "\1\0\xFF\xFF", 4);
    expect_refusal(bytes, size, MALFORMED, "header should take 65535 bytes from byte 10, but the file ends after 59");
    memcpy(bytes + 6, "\2\0\xFF\xFF\xFF\xFF", 6);
    expect_refusal(bytes, size, MALFORMED, "header should take 4294967295 bytes from byte 12");
    free(bytes);

    static const char nul[] = F4 "(1,)}\0";
    bytes = make_npy(nul, sizeof nul - 1, 4, &size);
    expect_refusal(bytes, size, MALFORMED, "(0x00)");
    free(bytes);
}

#define T(dtype, shape, offsets) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const hostile_case safetensors_cases[] = {
    {"{}", 0, FA_FILE_OK, ""},
    {"{}     ", 0, FA_FILE_OK, ""},
    {"{\"__metadata__\":{}}", 0, FA_FILE_OK, ""},
    {"{\"\":" T("F32", "[1]", "[0,4]") "}", 4, FA_FILE_OK, ""},
    {"{\"b\":" T("F32", "[1]", "[4,8]") ",\"a\":" T("F32", "[1]", "[0,4]") "}", 8, FA_FILE_OK, ""},
    {"{\"a\":" T("F32", "[0]", "[4,4]") ",\"b\":" T("F32", "[1]", "[0,4]") "}", 4, FA_FILE_OK, ""},
    {"{\"a\":" T("F32", "[0]", "[0,0]") ",\"b\":" T("F32", "[1]", "[0,4]") "}", 4, FA_FILE_OK, ""},
    {"{\"a{[,\\\"\":" T("F32", "[1]", "[0,4]") "}", 4, FA_FILE_OK, ""},
    /* Data. */
    {"{\"a\":" T("F32", "[1]", "[0,4]") "}", 3, MALFORMED, "expected begin <= end <= 3, the size of the data"},
    {"{\"a\":" T("F32", "[1]", "[0,4]") "}", 5, MALFORMED, "end at byte 66, but the file has 67 bytes"},
    {"{}", 1, MALFORMED, "end at byte 10, but the file has 11 bytes"},
    {"{\"a\":" T("F32", "[1]", "[4,8]") "}", 8, MALFORMED, "leaving a hole after byte 62"},
    {"{\"a\":" T("F32", "[1]", "[0,4]") ",\"b\":" T("F32", "[1]", "[5,9]") "}", 9, MALFORMED, "hole"},
    {"{\"a\":" T("F32", "[1]", "[0,4]") ",\"b\":" T("F32", "[1]", "[3,7]") "}", 7, MALFORMED, "overlapping"},
    {"{\"a\":" T("F32", "[1]", "[0,4]") ",\"b\":" T("F32", "[1]", "[0,4]") "}", 4, MALFORMED, "overlapping"},
    {"{\"a\":" T("F32", "[0]", "[2,2]") ",\"b\":" T("F32", "[1]", "[0,4]") "}", 4, MALFORMED, "overlapping"},
    {"{\"a\":" T("U16", "[1]", "[0,2]") ",\"b\":" T("F32", "[1]", "[1,5]") "}", 5, MALFORMED, "overlapping"},
    {"{\"a\":" T("F32", "[1]", "[4,0]") "}", 4, MALFORMED, "data_offsets [4, 0]"},
    {"{\"a\":" T("F32", "[1]", "[0,9223372036854775807]") "}", 4, MALFORMED, "expected begin <= end"},
    {"{\"a\":" T("F32", "[1]", "[9223372036854775804,9223372036854775807]") "}", 4, MALFORMED, "expected begin"},
    {"{\"a\":" T("F32", "[1]", "[-4,0]") "}", 4, MALFORMED, "not two integers >= 0"},
    {"{\"a\":" T("F32", "[1]", "[0.0,4.0]") "}", 4, MALFORMED, "not two integers >= 0"},
    {"{\"a\":" T("F32", "[1]", "[0]") "}", 4, MALFORMED, "not two integers >= 0"},
    {"{\"a\":" T("F32", "[1]", "[0,4,8]") "}", 4, MALFORMED, "not two integers >= 0"},
    {"{\"a\":" T("F32", "[1]", "{}") "}", 4, MALFORMED, "not two integers >= 0"},
    /* Shapes. */
    {"{\"a\":" T("F32", "[2]", "[0,4]") "}", 4, MALFORMED, "its shape and dtype F32 need exactly 8"},
    {"{\"a\":" T("F32", "[]", "[0,8]") "}", 8, MALFORMED, "need exactly 4"},
    {"{\"a\":" T("BF16", "[2]", "[0,8]") "}", 8, MALFORMED, "need exactly 4"},
    {"{\"a\":" T("F32", "[4611686018427387904,4]", "[0,0]") "}", 0, MALFORMED, "more than 2^63 bytes"},
    {"{\"a\":" T("F32", "[4294967296,4294967296]", "[0,0]") "}", 0, MALFORMED, "more than 2^63 bytes"},
    {"{\"a\":" T("F32", "[0,9223372036854775807]", "[0,0]") "}", 0, MALFORMED, "more than 2^63 bytes"},
    {"{\"a\":" T("U16", "[9223372036854775807,2]", "[0,0]") "}", 0, MALFORMED, "more than 2^63 bytes"},
    {"{\"a\":" T("F32", "[9223372036854775808]", "[0,4]") "}", 4, MALFORMED, "too big integer"},
    {"{\"a\":" T("F32", "[-1]", "[0,4]") "}", 4, MALFORMED, "integers >= 0"},
    {"{\"a\":" T("F32", "[1.0]", "[0,4]") "}", 4, MALFORMED, "integers >= 0"},
    {"{\"a\":" T("F32", "[true]", "[0,4]") "}", 4, MALFORMED, "integers >= 0"},
    {"{\"a\":" T("F32", "[\"1\"]", "[0,4]") "}", 4, MALFORMED, "integers >= 0"},
    {"{\"a\":" T("F32", "1", "[0,4]") "}", 4, MALFORMED, "integers >= 0"},
    {"{\"a\":" T("F32", "[[1]]", "[0,4]") "}", 4, MALFORMED, "nests more than 3 levels at byte 37"},
    {"{\"a\":" T("F32",
                 "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
                 "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]",
                 "[0,4]") "}",
     4, MALFORMED, "at most 64 integers"},
    /* Objects. */
    {"{\"a\":" T("F32", "[1]", "[0,4]") ",\"a\":" T("F32", "[1]", "[4,8]") "}", 8, MALFORMED, "duplicate"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, MALFORMED, "duplicate"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 0, MALFORMED, "and nothing else"},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, MALFORMED, "and nothing else"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, MALFORMED, "and nothing else"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, MALFORMED, "and nothing else"},
    {"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, MALFORMED, "and nothing else"},
    {"{\"a\":7}", 0, MALFORMED, "and nothing else"},
    {"{\"a\":null}", 0, MALFORMED, "and nothing else"},
    {"{\"a\":[]}", 0, MALFORMED, "and nothing else"},
    {"{\"__metadata__\":7}", 0, MALFORMED, "not an object of strings"},
    {"{\"__metadata__\":{\"k\":7}}", 0, MALFORMED, "entry 'k' is not a string"},
    {"{\"__metadata__\":{\"k\":{}}}", 0, MALFORMED, "entry 'k' is not a string"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, MALFORMED, "duplicate"},
    /* Text. */
    {"{\"a\\u0000b\":" T("F32", "[1]", "[0,4]") "}", 4, MALFORMED, "NUL byte in object key"},
    {"{\"a\":" T("F32\\u0000", "[1]", "[0,4]") "}", 4, MALFORMED, "\\u0000 is not allowed"},
    {"{\"\xFF\":" T("F32", "[1]", "[0,4]") "}", 4, MALFORMED, "not valid JSON"},
    {"{\"\xC0\x80\":" T("F32", "[1]", "[0,4]") "}", 4, MALFORMED, "not valid JSON"},
    {"{\"\\uD800\":" T("F32", "[1]", "[0,4]") "}", 4, MALFORMED, "not valid JSON"},
    {"{\"a\":" T("F32", "[1]", "[0,4]") ",}", 4, MALFORMED, "not valid JSON"},
    {"{'a':1}", 0, MALFORMED, "not valid JSON"},
    {"{} x", 0, MALFORMED, "not valid JSON"},
    {"{}{}", 0, MALFORMED, "not valid JSON"},
    {"{", 0, MALFORMED, "not valid JSON"},
    {"{\"\\", 0, MALFORMED, "not valid JSON"},
    {"{\"a", 0, MALFORMED, "not valid JSON"},
    {" {}", 0, MALFORMED, "neither .npy"},
    {"[]", 0, MALFORMED, "neither .npy"},
    {"", 0, MALFORMED, "neither .npy"},
};

static void hostile_safetensors_headers(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof safetensors_cases / sizeof safetensors_cases[0]; i++) {
        const hostile_case *test = &safetensors_cases[i];
        size_t size;
        uint8_t *bytes = make_safetensors(test->header, strlen(test->header), test->data_bytes, &size);
        expect_case(test, bytes, size);
        free(bytes);
    }
}

static void nul_bytes_in_safetensors_header(void **state) {
    (void)state;
    static const char header[] = "{\"a\0b\":" T("F32", "[1]", "[0,4]") "}";
    size_t size;
    uint8_t *bytes = make_safetensors(header, sizeof header - 1, 4, &size);
    expect_refusal(bytes, size, MALFORMED, "not valid JSON");
    free(bytes);
    static const char padded[] = "{}\0\0\0\0\0\0";
    bytes = make_safetensors(padded, sizeof padded - 1, 0, &size);
    expect_refusal(bytes, size, MALFORMED, "not valid JSON");
    free(bytes);
}

static void safetensors_header_lengths_that_lie(void **state) {
    (void)state;
    size_t size;
    uint8_t *bytes = make_safetensors("{}", 2, 0, &size);
    const struct {
        uint64_t length;
        const char *sentence;
    } cases[] = {
        {0, "not valid JSON"},
        {1, "not valid JSON"},
        {3, "should take 3 bytes from byte 8, but the file ends after 2 of them"},
        {100000000, "should take 100000000 bytes"},
        {100000001, "the format allows 100000000"},
        {UINT64_MAX - 7, "the format allows 100000000"},
        {UINT64_MAX, "the format allows 100000000"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        memcpy(bytes, &cases[i].length, 8);
        fa_file_error error;
        fa_tensor_file *file;
        assert_int_equal(fa_tensor_file_parse(bytes, size, "lie", &file, &error), FA_FILE_MALFORMED);
        assert_non_null(strstr(error.text, cases[i].sentence));
    }
    free(bytes);
}

/* "{" and count copies of text, not closed: what a parser would allocate before it sees the end. */
static void expect_refused_flood(const char *text, size_t count, fa_file_status status, const char *sentence) {
    size_t length = strlen(text), size;
    char *header = malloc(1 + count * length);
    assert_non_null(header);
    header[0] = '{';
    for (size_t i = 0; i < count; i++) memcpy(header + 1 + i * length, text, length);
    uint8_t *bytes = make_safetensors(header, 1 + count * length, 0, &size);
    expect_refusal(bytes, size, status, sentence);
    free(bytes);
    free(header);
}

static void safetensors_header_that_would_exhaust_memory(void **state) {
    (void)state;
    expect_refused_flood("\"a\":{", 1000000, FA_FILE_MALFORMED, "nests more than 3 levels");
    expect_refused_flood("[", 1000000, FA_FILE_MALFORMED, "nests more than 3 levels");
    expect_refused_flood("{},", 1000001, FA_FILE_UNSUPPORTED, "more than 2000000 values");
}

static void neither_format(void **state) {
    (void)state;
    expect_refusal("PK\3\4 and the rest of an archive", 30, UNSUPPORTED, "zip archive");
    expect_refusal("", 0, MALFORMED, "neither .npy");
    expect_refusal("\x93NUMP", 5, MALFORMED, "neither .npy");
    expect_refusal("\x80\4\x95 a pickle of some sort", 24, MALFORMED, "neither .npy");
}

static void sentences_carry_no_control_characters(void **state) {
    (void)state;
    /* ESC, CSI as C1 in UTF-8, and DEL; other UTF-8 stays readable. */
    static const char header[] = "{\"\\u001b[31m\xC2\x9B\x7F\xC3\xA9\":7}";
    size_t size;
    uint8_t *bytes = make_safetensors(header, sizeof header - 1, 0, &size);
    expect_refusal(bytes, size, MALFORMED, "tensor '?[31m???\xC3\xA9' must have");
    free(bytes);
}

static const char *const fixtures[] = {
    "float64.npy",
    "float32.npy",
    "float16.npy",
    "bfloat16.npy",
    "int64.npy",
    "int32.npy",
    "int8.npy",
    "uint8.npy",
    "bool.npy",
    "version2.npy",
    "version3.npy",
    "fortran.npy",
    "scalar.npy",
    "vector.npy",
    "empty.npy",
    "five_dims.npy",
    "all_types.safetensors",
    "shapes.safetensors",
    "unknown_type.safetensors",
    "no_tensors.safetensors",
};
enum { FIXTURES = sizeof fixtures / sizeof fixtures[0] };

static void truncation_at_every_byte(void **state) {
    (void)state;
    for (size_t i = 0; i < FIXTURES; i++) {
        size_t size;
        uint8_t *bytes = read_whole(fixture(fixtures[i]), &size);
        expect_accepted(bytes, size);
        for (size_t shorter = 0; shorter < size; shorter++) expect_refusal(bytes, shorter, MALFORMED, "");
        free(bytes);
    }
}

static void one_byte_too_many(void **state) {
    (void)state;
    for (size_t i = 0; i < FIXTURES; i++) {
        size_t size;
        uint8_t *bytes = read_whole(fixture(fixtures[i]), &size);
        uint8_t *longer = realloc(bytes, size + 1);
        assert_non_null(longer);
        longer[size] = 0;
        expect_refusal(longer, size + 1, MALFORMED, "");
        free(longer);
    }
}

/* Refused or not, no byte outside is read: for AddressSanitizer and valgrind. */
static void every_byte_changed(void **state) {
    (void)state;
    static const uint8_t changes[] = {0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFF};
    for (size_t i = 0; i < FIXTURES; i++) {
        size_t size;
        uint8_t *bytes = read_whole(fixture(fixtures[i]), &size);
        for (size_t at = 0; at < size; at++) {
            for (size_t c = 0; c < sizeof changes; c++) {
                bytes[at] ^= changes[c];
                (void)LLVMFuzzerTestOneInput(bytes, size);
                bytes[at] ^= changes[c];
            }
        }
        free(bytes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_npy_headers),
        cmocka_unit_test(hostile_npy_prefixes),
        cmocka_unit_test(hostile_safetensors_headers),
        cmocka_unit_test(nul_bytes_in_safetensors_header),
        cmocka_unit_test(safetensors_header_lengths_that_lie),
        cmocka_unit_test(safetensors_header_that_would_exhaust_memory),
        cmocka_unit_test(neither_format),
        cmocka_unit_test(sentences_carry_no_control_characters),
        cmocka_unit_test(truncation_at_every_byte),
        cmocka_unit_test(one_byte_too_many),
        cmocka_unit_test(every_byte_changed),
    };
    return cmocka_run_group_tests_name("io: hostile files", tests, NULL, NULL);
}
